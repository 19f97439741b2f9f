// Puts of all nodes side by side: what one row of them does to the NICs of both ends.
//
// Is: rows of numbers, one a unit, and the arithmetic of exact.cpp on them. Is not: which puts come when (pairs.cpp, pair_turns.hpp, pair_cuts.hpp).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "vectors.hpp"

namespace ccl_lab::sim {

// A put of all units to those so many further on: rows of units, from the first one on.
struct PairRows {
  std::int64_t *a, *b, *left, *arrived;
  const std::int64_t *time_a, *time_b, *latency_a, *latency_b, *late_from, *late_to;
};

// What it does to `count` units from u on, which put to those from v on.
[[gnu::always_inline]] inline void put(const PairRows& rows, std::size_t u, std::size_t v, std::size_t count) {
#pragma GCC ivdep
  for (std::size_t w = 0; w < count; ++w) {
    const std::int64_t start = std::max(std::max(rows.late_from[u + w], rows.late_to[v + w]), std::max(rows.a[u + w], rows.b[v + w]));
    rows.a[u + w] = start + rows.time_a[u + w];
    rows.b[v + w] = start + rows.time_b[v + w];
    const std::int64_t leaves = std::max(rows.a[u + w], rows.b[v + w]);
    rows.left[u + w] = std::max(rows.left[u + w], leaves);
    rows.arrived[v + w] = std::max(rows.arrived[v + w], leaves + rows.latency_a[u + w] + rows.latency_b[v + w]);
  }
}

// The same between units that are *plain*: all NICs take as long, have the same latencies, and no rank is late. Then both NICs are free when the
// last byte leaves, so that it follows from when they are free at last when all has left and arrived.
[[gnu::always_inline]] inline void put_plainly(const PairRows& rows, std::int64_t time, std::size_t u, std::size_t v, std::size_t count) {
#pragma GCC ivdep
  for (std::size_t w = 0; w < count; ++w) rows.a[u + w] = rows.b[v + w] = std::max(rows.a[u + w], rows.b[v + w]) + time;
}

struct PairBlock {
  std::span<const PairRows> rows;
  std::span<const std::int64_t> times;  // of plain ones; empty: not plain
};

// time: of plain ones, or nullptr.
struct PairWord {
  const PairRows& rows;
  const std::int64_t* time;
  std::uint64_t from;
  std::size_t u, v;
};

// For a processor: `kWide` units from u on put to those from v on; 64 units, or some of them.
using PutBlock = void (*)(const PairBlock& block, std::size_t u, std::size_t v);
using PutWord = void (*)(const PairWord& puts);
[[nodiscard]] PutBlock put_block_for(Target target);
[[nodiscard]] PutWord put_word_for(Target target);

}  // namespace ccl_lab::sim
