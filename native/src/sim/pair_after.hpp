// How many copies in place wait for each put of a direct algorithm (pairs.hpp): what a put adds to when its ranks end.
//
// Is: for each put the copies of both ends from those on that wait for it, in the order of their memories. Is not: that order
// (pair_copies.hpp, pair_orders.hpp), nor time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "order.hpp"
#include "pair_copies.hpp"
#include "pair_orders.hpp"
#include "pair_puts.hpp"
#include "pair_turns.hpp"
#include "pairs.hpp"

namespace ccl_lab::sim {

// A put of a block: between lanes, over NICs.
struct PairPut {
  std::size_t from, to, a, b, size;  // size: its channel, since channels may differ by an element, or that of a piece
  std::size_t from_rank, to_rank;
  std::int64_t turn;
};

inline PairTurns dealer(const PairsInput& in) {
  return PairTurns({static_cast<std::size_t>(in.nodes), static_cast<std::size_t>(in.group), static_cast<std::size_t>(in.channels),
                    static_cast<std::size_t>(in.nics), in.nic, in.odd_node, in.odd_nic, static_cast<std::size_t>(in.few)});
}

// The puts of a node to another one into `puts`, in the order of service. Returns whether each NIC has as many of them as turns, so that none is left
// over; else they stay as they are written.
inline bool deal_block(const PairsInput& in, std::vector<PairPut>& puts) {
  const auto group = static_cast<std::size_t>(in.group), nics = static_cast<std::size_t>(in.nics);
  Turns turns(2 * nics);
  std::vector<std::int64_t> used(2 * nics, 0);
  std::int64_t most = 0;
  for (std::size_t k = 0; k < group; ++k) {
    for (std::size_t from = 0; from < static_cast<std::size_t>(in.channels) * group; ++from) {
      const std::size_t channel = from / group, to = channel * group + (from % group + k) % group;
      const auto a = static_cast<std::size_t>(in.nic[from]), b = static_cast<std::size_t>(in.nic[to]);
      const std::int64_t turn = turns.next(static_cast<std::int32_t>(a), static_cast<std::int32_t>(nics + b));
      puts.push_back({from, to, a, b, channel, from % group, to % group, turn});
      ++used[a];
      ++used[nics + b];
      most = std::max(most, turn + 1);
    }
  }
  if (!in.odd_node.empty() || std::ranges::any_of(used, [&](std::int64_t n) { return n != 0 && n != most; })) return false;
  std::ranges::stable_sort(puts, {}, &PairPut::turn);
  return true;
}

class PairAfter {
 public:
  explicit PairAfter(const PairsInput& in)
      : in_(in), units_(static_cast<std::size_t>(in.units)), group_(static_cast<std::size_t>(in.group)),
        shortest_(static_cast<std::size_t>(std::ranges::min_element(in.bytes) - in.bytes.begin())),
        longer_(static_cast<std::size_t>(in.channels) * group_, false) {
    for (std::size_t lane = 0; lane < longer_.size(); ++lane) longer_[lane] = in.bytes[lane / group_] > in.bytes[shortest_];
  }

  // repeats: turns of a block are those of all. Too long where more words of bits than `most` are looked at.
  PairsStatus find(std::span<const PairPut> puts, bool repeats, std::int64_t most) {
    kind_ = std::ranges::find(longer_, true) != longer_.end() ? Copies::some_longer : Copies::alike;
    const bool takes = std::ranges::any_of(in_.bytes, [](std::int64_t n) { return n > 0; });
    const std::size_t crossing = takes ? static_cast<std::size_t>(in_.nodes - 1) * group_ : 0;
    const std::size_t dealt = repeats || in_.channels == 1 ? 0 : crossing;
    if (dealt > 0 && !in_.odd_node.empty()) return deal_orders(puts, most);
    std::vector<LaneTurns> lanes(longer_.size(), {std::vector<std::int64_t>(std::max(group_, dealt), 0), 0});
    std::int64_t block = 0;
    for (const PairPut& p : puts) {
      note(lanes, p, (p.to + group_ - p.from) % group_, p.turn);
      block = std::max(block, p.turn + 1);
    }
    if (dealt > 0 && !deal_alike(puts, lanes, most)) return PairsStatus::too_long;
    copies_ = PairCopies(static_cast<std::size_t>(in_.nodes) * group_ - 1, group_, longer_, crossing, block, lanes);
    return PairsStatus::ok;
  }

  [[nodiscard]] Copies copies() const { return kind_; }
  [[nodiscard]] bool by_node() const { return orders_ != nullptr; }
  [[nodiscard]] std::size_t shortest() const { return shortest_; }  // channel
  [[nodiscard]] bool is_longer(std::size_t lane) const { return longer_[lane]; }

  // The round in which lane `from` puts to the lane `to` of those so many nodes further on.
  [[nodiscard]] std::size_t round_of(std::size_t from, std::size_t to, std::size_t further) const {
    return (further - 1) * group_ + (to + group_ - from) % group_;
  }

  // The copies of both lanes from those on that wait for this put: the receiver's in the same round, the sender's in the one in which the
  // receiver puts to it. Where each node has an order of its own, of units u and v.
  [[nodiscard]] After of(std::size_t from, std::size_t to, std::size_t round, std::size_t back, std::size_t u = 0, std::size_t v = 0) const {
    if (kind_ == Copies::none) return {};
    const PairCopies::Count sender = orders_ ? orders_->of(from, u, back) : copies_.of(from, back);
    const PairCopies::Count receiver = orders_ ? orders_->of(to, v, round) : copies_.of(to, round);
    return {sender.all, receiver.all, sender.longer, receiver.longer};
  }

  [[nodiscard]] After operator()(const PairPut& p, std::size_t further, std::size_t u = 0, std::size_t v = 0) const {
    return of(p.from, p.to, round_of(p.from, p.to, further), round_of(p.to, p.from, static_cast<std::size_t>(in_.nodes) - further), u, v);
  }

 private:
  static void note(std::span<LaneTurns> lanes, const PairPut& p, std::size_t round, std::int64_t turn) {
    lanes[p.to].coming[round] = turn;
    lanes[p.from].last = std::max(lanes[p.from].last, turn);
  }

  // Orders of copies, of each rank of each node its own.
  PairsStatus deal_orders(std::span<const PairPut> puts, std::int64_t most) {
    const std::size_t between = static_cast<std::size_t>(in_.nodes - 1) * group_;
    orders_ = std::make_unique<PairOrders>(units_, group_, between, between + group_ - 1, longer_);
    PairTurns turns = dealer(in_);
    for (std::int32_t turn = 0; turns.next(); ++turn) {
      for (const PutsOfTurn& some : turns.puts()) {
        const std::size_t u = std::size_t{64} * some.word, v = u + some.further;
        const PairPut& p = puts[some.row];
        orders_->put(turn, round_of(p.from, p.to, some.further), p.from, p.to, u, v < units_ ? v : v - units_, some.from);
      }
      for (const SinglePut& some : turns.singles()) {
        const PairPut& p = puts[some.row];
        orders_->put(turn, round_of(p.from, p.to, some.further), p.from, p.to, some.from, some.to, 1);
      }
      orders_->end_turn();
      if (turns.work() > most) return PairsStatus::too_long;
    }
    orders_->find();
    return PairsStatus::ok;
  }

  // Turns of all puts, where they repeat in no pattern, but are the same in all nodes.
  bool deal_alike(std::span<const PairPut> puts, std::span<LaneTurns> lanes, std::int64_t most) {
    PairTurns turns = dealer(in_);
    for (std::int64_t turn = 0; turns.next(); ++turn) {
      for (const SinglePut& some : turns.singles()) {
        const PairPut& p = puts[some.row];
        note(lanes, p, round_of(p.from, p.to, some.further), turn);
      }
      if (turns.work() > most) return false;
    }
    return true;
  }

  const PairsInput& in_;
  std::size_t units_, group_, shortest_;
  std::vector<bool> longer_;
  Copies kind_ = Copies::none;
  PairCopies copies_;
  std::unique_ptr<PairOrders> orders_;  // in place of copies_, where each node has its own
};

}  // namespace ccl_lab::sim
