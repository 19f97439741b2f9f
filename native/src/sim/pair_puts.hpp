// Puts of direct algorithms, of many nodes at once (pairs.hpp).
//
// Is: what a put does to when NICs are free, and to when all has left and arrived, for rows of nodes. Is not: which puts come when (pairs.cpp).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "vectors.hpp"

namespace ccl_lab::sim {

// A put of all units to those so many further on: rows of units, from the first one on.
struct Rows {
  std::int64_t *a, *b, *left, *arrived;
  const std::int64_t *time_a, *time_b, *latency_a, *latency_b, *late_from, *late_to;
  const std::int64_t *copy_from, *copy_to;  // what a copy takes
};

// How many copies there are, at both ends, from those on that wait for a put.
struct After {
  std::int64_t from = 0, to = 0;
};

// What it does to `count` units from u on, which put to those from v on; kCopies: something is copied after it.
template <bool kCopies>
[[gnu::always_inline]] inline void put(const Rows& rows, const After& after, std::size_t u, std::size_t v, std::size_t count) {
#pragma GCC ivdep
  for (std::size_t w = 0; w < count; ++w) {
    const std::int64_t start = std::max(std::max(rows.late_from[u + w], rows.late_to[v + w]), std::max(rows.a[u + w], rows.b[v + w]));
    rows.a[u + w] = start + rows.time_a[u + w];
    rows.b[v + w] = start + rows.time_b[v + w];
    const std::int64_t leaves = std::max(rows.a[u + w], rows.b[v + w]), arrives = leaves + rows.latency_a[u + w] + rows.latency_b[v + w];
    rows.left[u + w] = std::max(rows.left[u + w], kCopies ? leaves + after.from * rows.copy_from[u + w] : leaves);
    rows.arrived[v + w] = std::max(rows.arrived[v + w], kCopies ? arrives + after.to * rows.copy_to[v + w] : arrives);
  }
}

// The same between units that are *plain*: all NICs take as long, have the same latencies, and no rank is late. Then both NICs are free when the
// last byte leaves, so that it follows from when they are free at last when all has left and arrived.
[[gnu::always_inline]] inline void put_plainly(const Rows& rows, std::int64_t time, std::size_t u, std::size_t v, std::size_t count) {
#pragma GCC ivdep
  for (std::size_t w = 0; w < count; ++w) rows.a[u + w] = rows.b[v + w] = std::max(rows.a[u + w], rows.b[v + w]) + time;
}

struct Block {
  std::span<const Rows> rows;
  std::span<const std::int64_t> times;  // of plain ones; empty: not plain
  const After* after;                   // of each row, or nullptr
};

[[gnu::always_inline]] inline void puts_of(const Block& block, std::size_t u, std::size_t v) {
  if (!block.times.empty()) {
    for (std::size_t i = 0; i < block.rows.size(); ++i) put_plainly(block.rows[i], block.times[i], u, v, kWide);
  } else if (block.after != nullptr) {
    for (std::size_t i = 0; i < block.rows.size(); ++i) put<true>(block.rows[i], block.after[i], u, v, kWide);
  } else {
    for (const Rows& each : block.rows) put<false>(each, {}, u, v, kWide);
  }
}

// Those of 64 units in a row that `from` says.
template <bool kCopies>
[[gnu::always_inline]] inline void put_some(const Rows& rows, const After& after, std::uint64_t from, std::size_t u, std::size_t v) {
#pragma GCC ivdep
  for (std::size_t w = 0; w < 64; ++w) {
    const bool puts = (from >> w & 1) != 0;
    const std::int64_t start = std::max(std::max(rows.late_from[u + w], rows.late_to[v + w]), std::max(rows.a[u + w], rows.b[v + w]));
    const std::int64_t a = start + rows.time_a[u + w], b = start + rows.time_b[v + w], leaves = std::max(a, b);
    rows.a[u + w] = puts ? a : rows.a[u + w];
    rows.b[v + w] = puts ? b : rows.b[v + w];
    const std::int64_t left = std::max(rows.left[u + w], kCopies ? leaves + after.from * rows.copy_from[u + w] : leaves);
    rows.left[u + w] = puts ? left : rows.left[u + w];
    const std::int64_t arrives = leaves + rows.latency_a[u + w] + rows.latency_b[v + w];
    const std::int64_t arrived = std::max(rows.arrived[v + w], kCopies ? arrives + after.to * rows.copy_to[v + w] : arrives);
    rows.arrived[v + w] = puts ? arrived : rows.arrived[v + w];
  }
}

[[gnu::always_inline]] inline void put_some_plainly(const Rows& rows, std::int64_t time, std::uint64_t from, std::size_t u, std::size_t v) {
#pragma GCC ivdep
  for (std::size_t w = 0; w < 64; ++w) {
    const std::int64_t leaves = std::max(rows.a[u + w], rows.b[v + w]) + time;
    const bool puts = (from >> w & 1) != 0;
    rows.a[u + w] = puts ? leaves : rows.a[u + w];
    rows.b[v + w] = puts ? leaves : rows.b[v + w];
  }
}

// time: of plain ones, or nullptr; after: as of Block.
struct Word {
  const Rows& rows;
  const std::int64_t* time;
  const After* after;
  std::uint64_t from;
  std::size_t u, v;
};

template <bool kCopies>
[[gnu::always_inline]] inline void put_word(const Word& word, const After& after) {
  const bool all = word.from == ~std::uint64_t{0};
  all ? put<kCopies>(word.rows, after, word.u, word.v, 64) : put_some<kCopies>(word.rows, after, word.from, word.u, word.v);
}

[[gnu::always_inline]] inline void put_word(const Word& word) {
  if (word.time != nullptr) {
    const bool all = word.from == ~std::uint64_t{0};
    all ? put_plainly(word.rows, *word.time, word.u, word.v, 64) : put_some_plainly(word.rows, *word.time, word.from, word.u, word.v);
  } else {
    word.after != nullptr ? put_word<true>(word, *word.after) : put_word<false>(word, {});
  }
}

}  // namespace ccl_lab::sim
