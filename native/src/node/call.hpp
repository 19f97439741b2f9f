// What a rank asks of its node: one collective on its buffers.
//
// Is: the arguments, and which memory and ranks they speak of.
// Is not: checked: whoever builds one has checked sizes, types and overlap.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ccl_lab/schema.hpp"

namespace ccl_lab::node {

struct Call {
  Collective collective = Collective::barrier;
  DType dtype = DType::uint8;
  RedOp redop = RedOp::sum;
  std::int32_t root = 0;            // place in the node of the root, or of the sender
  std::int32_t peer = -1;           // of the receiver of send_recv
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::uint64_t block_bytes = 0;    // of one block: the message of all_reduce, what one rank gives to all_gather, ...
  std::uint32_t coll_id = 0;        // for spans
  const std::int32_t* share_ops = nullptr;  // by place: the op that a span of its share carries; null: none
};

// How many blocks INPUT and OUTPUT of the rank at `place` have; 0: the rank has no such buffer.
struct Blocks {
  std::uint64_t input = 0;
  std::uint64_t output = 0;
};

constexpr Blocks blocks_of(Collective collective, int place, int n, int root, int peer) {
  const auto all = static_cast<std::uint64_t>(n);
  const std::uint64_t at_root = place == root ? 1 : 0;
  switch (collective) {
    case Collective::all_reduce: return {1, 1};
    case Collective::all_gather: return {1, all};
    case Collective::reduce_scatter: return {all, 1};
    case Collective::broadcast: return {at_root, 1};
    case Collective::reduce: return {1, at_root};
    case Collective::gather: return {1, at_root * all};
    case Collective::scatter: return {at_root * all, 1};
    case Collective::all_to_all: return {all, all};
    case Collective::send_recv: return {at_root, place == peer ? 1u : 0u};
    default: return {0, 0};
  }
}

// The bytes of INPUT of a rank that has one; the same on all ranks.
constexpr std::uint64_t contribution_bytes(Collective collective, std::uint64_t block_bytes, int n) {
  const bool per_rank = collective == Collective::reduce_scatter || collective == Collective::scatter ||
                        collective == Collective::all_to_all;
  return per_rank ? block_bytes * static_cast<std::uint64_t>(n) : block_bytes;
}

constexpr bool reduces(Collective collective) {
  return collective == Collective::all_reduce || collective == Collective::reduce ||
         collective == Collective::reduce_scatter;
}

}  // namespace ccl_lab::node
