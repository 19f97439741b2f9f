// Puts of direct algorithms, of many nodes at once (pairs.hpp).
//
// Is: what a put does to when NICs are free, and to when all has left and arrived, for rows of nodes. Is not: which puts come when (pairs.cpp).
// Some loops are not to be unrolled: where they are short a compiler did that before it looked for vectors, and found none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "pair_tiers.hpp"
#include "vectors.hpp"

namespace ccl_lab::sim {

// A put of all units to those so many further on: rows of units, from the first one on.
struct Rows {
  std::int64_t *a, *b, *left, *arrived;
  const std::int64_t *time_a, *time_b, *latency_a, *latency_b, *late_from, *late_to;
  const std::int64_t *copy_from, *copy_to, *longer_from, *longer_to;  // what a copy takes, and a longer one more
  bool same_nic;  // whether both NICs have one number
};

// How many copies there are, at both ends, from those on that wait for a put, and how many of these are longer.
struct After {
  std::int64_t from = 0, to = 0, longer_from = 0, longer_to = 0;
};

// What is copied after puts.
enum class Copies : std::uint8_t { none, alike, some_longer };

template <Copies kCopies>
[[gnu::always_inline]] inline std::int64_t after_left(const Rows& rows, const After& after, std::size_t u) {
  if constexpr (kCopies == Copies::none) return 0;
  return after.from * rows.copy_from[u] + (kCopies == Copies::some_longer ? after.longer_from * rows.longer_from[u] : 0);
}

template <Copies kCopies>
[[gnu::always_inline]] inline std::int64_t after_arrived(const Rows& rows, const After& after, std::size_t v) {
  if constexpr (kCopies == Copies::none) return 0;
  return after.to * rows.copy_to[v] + (kCopies == Copies::some_longer ? after.longer_to * rows.longer_to[v] : 0);
}

// What a put does to `count` units from u on, which put to those from v on. adds: what switches do to their latencies.
template <Copies kCopies, bool kAdds = false>
[[gnu::always_inline]] inline void put(const Rows& rows, const After& after, std::size_t u, std::size_t v, std::size_t count,
                                       const std::int64_t* adds = nullptr) {
#pragma GCC ivdep
  for (std::size_t w = 0; w < count; ++w) {
    const std::int64_t start = std::max(std::max(rows.late_from[u + w], rows.late_to[v + w]), std::max(rows.a[u + w], rows.b[v + w]));
    rows.a[u + w] = start + rows.time_a[u + w];
    rows.b[v + w] = start + rows.time_b[v + w];
    const std::int64_t leaves = std::max(rows.a[u + w], rows.b[v + w]);
    const std::int64_t arrives = leaves + rows.latency_a[u + w] + rows.latency_b[v + w] + (kAdds ? adds[w] : 0);
    rows.left[u + w] = std::max(rows.left[u + w], leaves + after_left<kCopies>(rows, after, u + w));
    rows.arrived[v + w] = std::max(rows.arrived[v + w], arrives + after_arrived<kCopies>(rows, after, v + w));
  }
}

// The same between units that are *plain*: all NICs take as long, have the same latencies, and no rank is late. Then both NICs are free when the
// last byte leaves, so that it follows from when they are free at last when all has left and arrived.
[[gnu::always_inline]] inline void put_plainly(const Rows& rows, std::int64_t time, std::size_t u, std::size_t v, std::size_t count) {
#pragma GCC ivdep
#pragma GCC unroll 1
  for (std::size_t w = 0; w < count; ++w) rows.a[u + w] = rows.b[v + w] = std::max(rows.a[u + w], rows.b[v + w]) + time;
}

struct Block {
  std::span<const Rows> rows;
  std::span<const std::int64_t> times;  // of plain ones; empty: not plain
  const After* after;                   // of each row, or nullptr
  Copies copies;
  Added added;                          // where something is, nothing is plain
};

template <Copies kCopies>
[[gnu::always_inline]] inline void puts_and_copies(const Block& block, std::size_t u, std::size_t v) {
  for (std::size_t i = 0; i < block.rows.size(); ++i) {
    const After after = kCopies == Copies::none ? After{} : block.after[i];
    if (block.added) put<kCopies, true>(block.rows[i], after, u, v, kWide, block.added.of(block.rows[i].same_nic));
    else put<kCopies>(block.rows[i], after, u, v, kWide);
  }
}

[[gnu::always_inline]] inline void puts_of(const Block& block, std::size_t u, std::size_t v) {
  if (!block.times.empty() && !block.added) {
    for (std::size_t i = 0; i < block.rows.size(); ++i) put_plainly(block.rows[i], block.times[i], u, v, kWide);
  } else if (block.copies == Copies::none) {
    puts_and_copies<Copies::none>(block, u, v);
  } else {
    block.copies == Copies::alike ? puts_and_copies<Copies::alike>(block, u, v) : puts_and_copies<Copies::some_longer>(block, u, v);
  }
}

// Those of 64 units in a row that `from` says.
template <Copies kCopies>
[[gnu::always_inline]] inline void put_some(const Rows& rows, const After& after, std::uint64_t from, std::size_t u, std::size_t v) {
#pragma GCC ivdep
#pragma GCC unroll 1
  for (std::size_t w = 0; w < 64; ++w) {
    const bool puts = (from >> w & 1) != 0;
    const std::int64_t start = std::max(std::max(rows.late_from[u + w], rows.late_to[v + w]), std::max(rows.a[u + w], rows.b[v + w]));
    const std::int64_t a = start + rows.time_a[u + w], b = start + rows.time_b[v + w], leaves = std::max(a, b);
    rows.a[u + w] = puts ? a : rows.a[u + w];
    rows.b[v + w] = puts ? b : rows.b[v + w];
    const std::int64_t left = std::max(rows.left[u + w], leaves + after_left<kCopies>(rows, after, u + w));
    rows.left[u + w] = puts ? left : rows.left[u + w];
    const std::int64_t arrives = leaves + rows.latency_a[u + w] + rows.latency_b[v + w];
    const std::int64_t arrived = std::max(rows.arrived[v + w], arrives + after_arrived<kCopies>(rows, after, v + w));
    rows.arrived[v + w] = puts ? arrived : rows.arrived[v + w];
  }
}

[[gnu::always_inline]] inline void put_some_plainly(const Rows& rows, std::int64_t time, std::uint64_t from, std::size_t u, std::size_t v) {
#pragma GCC ivdep
#pragma GCC unroll 1
  for (std::size_t w = 0; w < 64; ++w) {
    const std::int64_t leaves = std::max(rows.a[u + w], rows.b[v + w]) + time;
    const bool puts = (from >> w & 1) != 0;
    rows.a[u + w] = puts ? leaves : rows.a[u + w];
    rows.b[v + w] = puts ? leaves : rows.b[v + w];
  }
}

// time: of plain ones, or nullptr.
struct Word {
  const Rows& rows;
  const std::int64_t* time;
  After after;
  Copies copies;
  std::uint64_t from;
  std::size_t u, v;
};

template <Copies kCopies>
[[gnu::always_inline]] inline void put_word(const Word& word) {
  const bool all = word.from == ~std::uint64_t{0};
  all ? put<kCopies>(word.rows, word.after, word.u, word.v, 64) : put_some<kCopies>(word.rows, word.after, word.from, word.u, word.v);
}

[[gnu::always_inline]] inline void any_word(const Word& word) {
  if (word.time != nullptr) {
    const bool all = word.from == ~std::uint64_t{0};
    all ? put_plainly(word.rows, *word.time, word.u, word.v, 64) : put_some_plainly(word.rows, *word.time, word.from, word.u, word.v);
  } else if (word.copies == Copies::none) {
    put_word<Copies::none>(word);
  } else {
    word.copies == Copies::alike ? put_word<Copies::alike>(word) : put_word<Copies::some_longer>(word);
  }
}

}  // namespace ccl_lab::sim
