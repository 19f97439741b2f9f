// What happens inside a node of a double binary tree (trees.hpp) in a round.
//
// Is: the kinds of nodes, the order in which their fabrics and memories are served, and the arithmetic. Is not: what passes between nodes.
//
// Order, by (batch, turn, op) of order.hpp. In a step puts come in the order of the rounds in which their edges began, then of trees, slices
// and ranks. Sums come in the last step of a round; a channel comes to one after as many batches as it waits for children, and a root that puts in
// this step, in the channel in which it adds, one later. All waits of a round are for what came in it.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace ccl_lab::sim {

// Bytes of chunks: the parts of a message that does not divide are not all as long.
struct ChunkSizes {
  std::int64_t count, itemsize, slices, depth;

  [[nodiscard]] bool even() const { return count % (2 * slices * depth) == 0; }
  [[nodiscard]] std::int64_t bytes(std::int64_t tree, std::int64_t slice, std::int64_t chunk) const {
    const std::int64_t part = (tree * slices + slice) * depth + chunk, parts = 2 * slices * depth;
    return ((part + 1) * count / parts - part * count / parts) * itemsize;
  }
};

// Before any time.
inline constexpr std::int64_t kNobody = -(std::int64_t{1} << 60);

// All that the inside of a node depends on. Rates and latencies by local rank.
struct TreeKind {
  std::int64_t ranks = 0;
  std::array<std::int64_t, 2> level{};         // in either tree
  std::array<std::int64_t, 2> color{};         // of the edge to the parent, -1 at the root
  std::array<std::array<bool, 2>, 2> child{};  // [tree][color]: whether there is one
  std::vector<std::int64_t> links;             // [ranks][5]: tx and rx bytes/s, memory bytes/s, tx and rx latency

  [[nodiscard]] std::vector<std::int64_t> columns() const;
};

// Of one element a slice: what came in this round, by step; empty: nothing.
using Inbox = std::array<std::span<const std::int64_t>, 4>;

class TreeUnit {
 public:
  TreeUnit(TreeKind kind, const ChunkSizes& sizes, std::int64_t height, std::int64_t alpha_ps);

  // Elements of a state, and at which a rank enters `late_ps`, [ranks].
  [[nodiscard]] std::size_t size() const { return size_; }
  void enter(std::span<const std::int64_t> late_ps, std::span<std::int64_t> state) const;
  // One round. ended: [ranks], when the last op of each in this round ended, below kNobody where there was none; written where `ending`. What
  // is not read any more is as the largest of the rest, so that states that differ in nothing else are one. False where a link has more
  // turns than are known.
  bool round(std::int64_t now, std::span<std::int64_t> state, const Inbox& inbox, std::span<std::int64_t> ended);
  // Whether nothing happens in this round; whether something happens for the last time in it or did before; 0 in all rounds that are alike,
  // else one more than the number of this one.
  [[nodiscard]] bool idle(std::int64_t now) const;
  [[nodiscard]] bool ending(std::int64_t now) const;
  [[nodiscard]] std::int64_t phase(std::int64_t now) const;
  // When the channels of the ranks at which slices enter a tree come to their puts, by slice; false where they have no such time of their own.
  bool clocks(std::span<const std::int64_t> state, std::int64_t tree, bool down, std::span<std::int64_t> out) const;
  [[nodiscard]] std::int64_t longest_ps() const { return longest_ps_; }
  [[nodiscard]] std::int64_t local(std::int64_t slice, std::int64_t place) const {
    return (slice * kind_.ranks / sizes_.slices + place) % kind_.ranks;
  }

 private:
  // Where in a state it reads and writes, -1: nowhere; `row` gets it.
  struct Put {
    std::int32_t clock, tx, rx, row, from;
    std::int64_t tx_ps, rx_ps, latency_ps;
  };
  struct Ordered {
    std::int64_t begins, key, turn;
    std::int32_t to;
    Put put;
  };
  struct Sum {
    std::int64_t batch, begins, key;
    std::int32_t clock, memory, row, slice, tree, rank;
    bool near, far;  // hears the next of its chain; the children of the node
    std::int64_t ps;
  };
  struct Heard {
    std::int32_t clock, row, slice, step, rank;  // row: -1 where it comes from another node, in `step`
  };
  struct Program {
    std::int64_t phase = -1;
    std::array<std::vector<Ordered>, 4> ordered;
    std::vector<Put> puts;       // step by step
    std::size_t descends = 0;    // the first that goes down
    std::vector<std::size_t> read, over;  // parts of a state that are read later, and that are not
    std::vector<Sum> sums;
    std::vector<Heard> heard;
  };

  [[nodiscard]] std::int64_t row(std::int64_t tree, std::int64_t slice, std::int64_t place) const {
    return (tree * sizes_.slices + slice) * kind_.ranks + place;
  }
  [[nodiscard]] bool due(std::int64_t begins, std::int64_t now) const { return now >= begins && now < begins + sizes_.depth; }
  [[nodiscard]] std::int64_t children(std::int64_t tree, std::int64_t place) const {
    return (place == 0 ? kind_.child[at(tree)][0] + kind_.child[at(tree)][1] : 0) + (place + 1 < kind_.ranks);
  }
  [[nodiscard]] std::int64_t adds(std::int64_t tree, std::int64_t place) const { return height_ - 1 - kind_.level[at(tree)] - place; }
  [[nodiscard]] std::int64_t ends(std::int64_t tree, std::int64_t place) const { return height_ - 1 + kind_.level[at(tree)] + place; }
  [[nodiscard]] bool root(std::int64_t tree) const { return kind_.color[at(tree)] < 0; }
  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

  void read(std::int32_t& place, std::int64_t now);
  void number();
  [[nodiscard]] std::int64_t down_clock(std::int64_t tree, std::int64_t slice, std::int64_t place) const;
  bool prepare(std::int64_t now);
  void puts(std::int64_t now, std::int64_t tree, std::int64_t slice, std::int64_t place);
  [[nodiscard]] Ordered put(std::int64_t from, std::int64_t to, std::int64_t nbytes) const;
  void work(std::int64_t now, std::int64_t tree, std::int64_t slice, std::int64_t place);
  bool turns(std::vector<Ordered>& puts);
  void forget(std::span<std::int64_t> state) const;

  TreeKind kind_;
  ChunkSizes sizes_;
  std::int64_t height_, alpha_ps_, longest_ps_ = 0;
  std::size_t size_ = 0;
  // By row, or by local rank: where in a state it is, -1: nowhere.
  std::vector<std::int32_t> up_, down_, tx_, rx_, memory_;
  std::vector<std::int64_t> last_read_;  // by place in a state: the last round that reads it
  Program program_;
  std::vector<std::int64_t> came_up_, came_down_;  // by row: when what was put to it arrived
};

}  // namespace ccl_lab::sim
