// Which way plain buffers go, by what it took before: through the stages, or copied across processes by the kernel.
//
// Is: for each collective and size the least time of either way lately, and whose turn it is. One rank of a node keeps it
//     and decides for all.
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
  // True: by the kernel.
  bool crosses(Collective collective, std::uint64_t block_bytes) {
    Entry& entry = entry_of(collective, block_bytes);
    for (const bool cross : {false, true})
      if (entry.tried[cross] < kFirstTries && entry.tried[cross] <= entry.tried[!cross]) return cross;
    const bool better = entry.least_ns[true] < entry.least_ns[false];
    const double ratio = std::max(1.0, entry.least_ns[!better] / std::max(1.0, entry.least_ns[better]));
    if (++entry.since < kTriesApart * std::min(ratio * ratio, kMostRare)) return better;
    entry.since = 0;
    return !better;
  }

  void took(Collective collective, std::uint64_t block_bytes, bool cross, std::int64_t ns) {
    Entry& entry = entry_of(collective, block_bytes);
    double& least = entry.least_ns[cross];
    const auto now = static_cast<double>(ns);
    least = entry.tried[cross] == 0 ? now : std::min(now, least * kForgets);
    if (entry.tried[cross] < kFirstTries) ++entry.tried[cross];
  }

 private:
  static constexpr int kFirstTries = 3;
  static constexpr double kTriesApart = 64;  // calls, between two ways that are alike
  static constexpr double kMostRare = 64;
  static constexpr double kForgets = 1.03;   // a call

  struct Entry {
    double least_ns[2] = {0, 0};
    int tried[2] = {0, 0};
    int since = 0;
  };

  // By powers of two.
  Entry& entry_of(Collective collective, std::uint64_t block_bytes) {
    return entries_[static_cast<std::size_t>(collective)][static_cast<std::size_t>(std::bit_width(block_bytes))];
  }

  std::array<std::array<Entry, 65>, kCollectiveCount> entries_;
};

}  // namespace ccl_lab::node
