// One rank of a node of its own with a registry, and contents that are told again.
//
// Is: what tests of registration begin with. Is not: several ranks (node_ranks.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "comm/registry.hpp"

namespace ccl_lab::testing {

struct LoneRank {
  std::shared_ptr<RankSegment> segment;
  std::shared_ptr<Arena> arena;
  std::unique_ptr<node::Group> group;
  std::unique_ptr<Registry> registry;

  LoneRank() {
    SegmentOptions options;
    options.n_signal_channels = 1;
    options.trace_spans = 64;
    options.board_bytes = node::board_bytes(1);
    options.arena_bytes = std::uint64_t{1} << 32;
    segment = std::make_shared<RankSegment>(std::move(RankSegment::create(0, 1, options)).value());
    arena = std::make_shared<Arena>(segment);
    group = std::make_unique<node::Group>(segment, std::vector<std::int32_t>{0}, node::GroupOptions{}, nullptr);
    registry = std::make_unique<Registry>(segment, arena, group.get());
  }
};

inline unsigned char value_at(std::size_t i, int seed) { return static_cast<unsigned char>(i * 7 + i / 4096 + static_cast<std::size_t>(seed)); }

inline void fill(void* data, std::size_t nbytes, int seed) {
  for (std::size_t i = 0; i < nbytes; ++i) static_cast<unsigned char*>(data)[i] = value_at(i, seed);
}

inline bool holds(const void* data, std::size_t nbytes, int seed) {
  for (std::size_t i = 0; i < nbytes; ++i)
    if (static_cast<const unsigned char*>(data)[i] != value_at(i, seed)) return false;
  return true;
}

}  // namespace ccl_lab::testing
