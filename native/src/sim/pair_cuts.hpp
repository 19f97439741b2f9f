// Which pieces nodes exchange where some of them lost NICs, in the order of service: `balance` all_to_all, and direct algorithms.
//
// Is: the puts of a node to one other, whose blocks are cut by the shares of the rank whose node has less left, or all alike, in the order in
// which their NICs serve them. Is not: when they leave (pairs.cpp). Invariant: that order is the one of exact.cpp for the unrolled schedule.
//
// Order. Steps are a timetable: the puts of a round (d, k) are a batch, which NICs serve before the next one, or those of all rounds of one d are. In
// these a node puts to one other, and no other node puts to that one, so turns are dealt for the two of them: in each batch round by round, and in a
// round either rank by rank and channel by channel (rounds), or channel by channel and rank by rank (all of one d): as the ops are written.
//
// Nodes of one *kind* have the same NICs on each channel and the same shares, so that two kinds say all of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ccl_lab::sim {

// Kind 0 lost nothing. Rank l of kind i exchanges pieces `first[i * group + l]` to the next one's, in the order of their channels, with each rank of
// other nodes.
struct PairCutsInput {
  std::span<const std::int32_t> kind;     // [units]; empty: nothing is cut
  std::span<const std::int32_t> nic;      // [kinds][wide][group] of the node, by channel
  std::span<const std::int32_t> left;     // [kinds], rising with what a node has left: the shares of the lower one count, of equal ones the sender's
  std::span<const std::int32_t> first;    // [kinds * group + 1]
  std::span<const std::int32_t> channel, size;  // of each piece; size: which of `bytes`
  std::span<const std::int64_t> bytes;    // of puts of any size: first of the channels of kind 0, then others
  std::span<const std::int64_t> near_bytes;  // of puts inside nodes, by channel
  bool by_node = false;                      // what goes to one other node is one batch; else a round is
};

// A piece from one rank to another one, over NICs of their nodes.
struct CutPut {
  std::size_t from, to, a, b, size;
};

class PairCuts {
 public:
  PairCuts(const PairCutsInput& in, std::size_t group, std::size_t nics) : in_(in), group_(group), nics_(nics) {}

  [[nodiscard]] static bool good(const PairCutsInput& in, std::int64_t units, std::int64_t group, std::int64_t nics, std::int64_t channels);
  [[nodiscard]] bool any() const { return !in_.kind.empty(); }
  [[nodiscard]] std::size_t kinds() const { return in_.left.size(); }
  [[nodiscard]] std::size_t kind(std::size_t unit) const { return static_cast<std::size_t>(in_.kind[unit]); }
  // What a node of one kind puts to a node of another one.
  [[nodiscard]] std::vector<CutPut> puts(std::size_t from, std::size_t to) const;

 private:
  struct Piece {
    std::size_t rank, channel, size;
  };
  // What is put in round k, as it is written.
  [[nodiscard]] std::vector<Piece> round(std::size_t from, std::size_t to, std::size_t k) const;

  [[nodiscard]] std::size_t nic(std::size_t kind, std::size_t channel, std::size_t rank) const {
    const std::size_t wide = in_.nic.size() / (kinds() * group_);
    return static_cast<std::size_t>(in_.nic[(kind * wide + channel) * group_ + rank]);
  }

  PairCutsInput in_;
  std::size_t group_, nics_;
};

}  // namespace ccl_lab::sim
