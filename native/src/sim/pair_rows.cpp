// See pair_rows.hpp.
#include "pair_rows.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace ccl_lab::sim {
namespace {

[[gnu::always_inline]] inline void puts_of(const PairBlock& block, std::size_t u, std::size_t v) {
  if (block.times.empty()) {
    for (const PairRows& each : block.rows) put(each, u, v, kWide);
  } else {
    for (std::size_t i = 0; i < block.rows.size(); ++i) put_plainly(block.rows[i], block.times[i], u, v, kWide);
  }
}

CCL_FOR_TARGETS(puts, (const PairBlock& block, std::size_t u, std::size_t v), puts_of(block, u, v))

// Those of 64 units in a row that `from` says.
[[gnu::always_inline]] inline void put_some(const PairRows& rows, std::uint64_t from, std::size_t u, std::size_t v) {
#pragma GCC ivdep
  for (std::size_t w = 0; w < 64; ++w) {
    const bool puts = (from >> w & 1) != 0;
    const std::int64_t start = std::max(std::max(rows.late_from[u + w], rows.late_to[v + w]), std::max(rows.a[u + w], rows.b[v + w]));
    const std::int64_t a = start + rows.time_a[u + w], b = start + rows.time_b[v + w], leaves = std::max(a, b);
    rows.a[u + w] = puts ? a : rows.a[u + w];
    rows.b[v + w] = puts ? b : rows.b[v + w];
    rows.left[u + w] = puts ? std::max(rows.left[u + w], leaves) : rows.left[u + w];
    const std::int64_t arrives = std::max(rows.arrived[v + w], leaves + rows.latency_a[u + w] + rows.latency_b[v + w]);
    rows.arrived[v + w] = puts ? arrives : rows.arrived[v + w];
  }
}

[[gnu::always_inline]] inline void put_some_plainly(const PairRows& rows, std::int64_t time, std::uint64_t from, std::size_t u, std::size_t v) {
#pragma GCC ivdep
  for (std::size_t w = 0; w < 64; ++w) {
    const std::int64_t leaves = std::max(rows.a[u + w], rows.b[v + w]) + time;
    const bool puts = (from >> w & 1) != 0;
    rows.a[u + w] = puts ? leaves : rows.a[u + w];
    rows.b[v + w] = puts ? leaves : rows.b[v + w];
  }
}

[[gnu::always_inline]] inline void put_word(const PairWord& word) {
  const bool all = word.from == ~std::uint64_t{0};
  if (word.time != nullptr) {
    all ? put_plainly(word.rows, *word.time, word.u, word.v, 64) : put_some_plainly(word.rows, *word.time, word.from, word.u, word.v);
  } else {
    all ? put(word.rows, word.u, word.v, 64) : put_some(word.rows, word.from, word.u, word.v);
  }
}

CCL_FOR_TARGETS(word, (const PairWord& puts), put_word(puts))

}  // namespace

PutBlock put_block_for(Target target) { return puts_for(target); }

PutWord put_word_for(Target target) { return word_for(target); }

}  // namespace ccl_lab::sim
