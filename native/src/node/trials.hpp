// Which of two ways is taken, by what it took before: plain buffers through the stages, or (the other) copied across processes by the
// kernel; stages written through the caches, or (the other) past them.
//
// Is: for each collective and size the least time of either way lately, and whose turn it is. One rank of a node keeps it
//     and decides for all.
//       Short calls are timed by the run: where ranks share cores, one alone says how far the others had come, not what it costs.
// Is not: a model: which way is faster differs by machine, by where its cores are this minute, and by size, up to tenfold
//     in either direction.
//
// Invariants
//  - Both ways are tried before one is preferred, and the other now and then: what that costs in the mean is about a hundredth,
//    because a way that took longer is tried more rarely.
//  - What was seen long ago counts for less.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "node/call.hpp"

namespace ccl_lab::node {

class RouteTrials {
 public:
  // Of the next call. True: the other way.
  bool takes_other(Collective collective, std::uint64_t block_bytes) {
    Entry& entry = entry_of(collective, block_bytes);
    if (entry.left == 0) {
      entry.way = next_way(entry);
      entry.left = run_of(block_bytes);
    }
    --entry.left;
    return entry.way;
  }

  void took(Collective collective, std::uint64_t block_bytes, bool other, std::int64_t ns) {
    Entry& entry = entry_of(collective, block_bytes);
    if (other != entry.timed) entry.calls = 0;
    if (entry.calls == 0) entry.sum_ns = 0;
    entry.timed = other;
    entry.sum_ns += static_cast<double>(ns);
    if (++entry.calls < run_of(block_bytes)) return;
    const double mean = entry.sum_ns / entry.calls;
    entry.calls = 0;
    double& least = entry.least_ns[other];
    least = entry.tried[other] == 0 ? mean : std::min(mean, least * kForgets);
    if (entry.tried[other] < kFirstTries) ++entry.tried[other];
  }

 private:
  static constexpr int kFirstTries = 3;
  static constexpr double kTriesApart = 64;  // runs, between two ways that are alike
  static constexpr double kMostRare = 64;
  static constexpr double kForgets = 1.03;   // a run

  struct Entry {
    double least_ns[2] = {0, 0};  // a call
    int tried[2] = {0, 0};        // runs
    int since = 0;
    bool way = false;    // of the run that calls are begun in
    int left = 0;
    bool timed = false;  // of the run that calls end in
    int calls = 0;
    double sum_ns = 0;
  };

  // Calls of one way in a row.
  static int run_of(std::uint64_t block_bytes) { return block_bytes < 256 * 1024 ? 8 : block_bytes < 1024 * 1024 ? 3 : 1; }

  static bool next_way(Entry& entry) {
    for (const bool other : {false, true})
      if (entry.tried[other] < kFirstTries && entry.tried[other] <= entry.tried[!other]) return other;
    const bool better = entry.least_ns[true] < entry.least_ns[false];
    const double ratio = std::max(1.0, entry.least_ns[!better] / std::max(1.0, entry.least_ns[better]));
    if (++entry.since < kTriesApart * std::min(ratio * ratio, kMostRare)) return better;
    entry.since = 0;
    return !better;
  }

  // By powers of two.
  Entry& entry_of(Collective collective, std::uint64_t block_bytes) {
    return entries_[static_cast<std::size_t>(collective)][static_cast<std::size_t>(std::bit_width(block_bytes))];
  }

  std::array<std::array<Entry, 65>, kCollectiveCount> entries_;
};

}  // namespace ccl_lab::node
