// See pair_turns.hpp.
#include "pair_turns.hpp"

#include <algorithm>
#include <functional>

namespace ccl_lab::sim {
namespace {

constexpr std::size_t kAhead = 16;  // puts of a round that is not made, kept one by one

}  // namespace

PairTurns::PairTurns(const PairTurnsInput& in)
    : in_(in), group_(in.group), lanes_(in.group * in.channels), nics_(in.nics), nodes_(in.odd_node.empty() ? 1 : in.nodes),
      words_((nodes_ + 63) / 64), rounds_((in.nodes - 1) * in.group), odd_of_(nodes_, -1), lanes_of_(nics_), plain_(lanes_, Circle(nodes_)),
      tx_(nics_ * words_, 0), rx_(nics_, Circle(nodes_)), active_(nics_), round_(rounds_), ahead_(rounds_),
      remaining_(std::uint64_t{rounds_} * lanes_ * nodes_) {
  for (std::size_t lane = 0; lane < lanes_; ++lane) lanes_of_[static_cast<std::size_t>(in.nic[lane])].push_back(static_cast<std::uint32_t>(lane));
  for (std::size_t i = 0; i < in.odd_node.size(); ++i) odd_of_[static_cast<std::size_t>(in.odd_node[i])] = static_cast<std::int32_t>(i);
  for (std::size_t w = 0; w < words_; ++w) all_words_.push_back(static_cast<std::uint32_t>(w));
  find_odd();
  for (std::size_t node = 0; node < nodes_; ++node) {
    for (std::size_t lane = 0; lane < lanes_; ++lane) {
      const std::size_t nic = nic_of(node, lane);
      if (tx_free(node, nic)) continue;
      tx_[nic * words_ + node / 64] |= std::uint64_t{1} << node % 64;
      rx_[nic].set(node);
      ++all_free_;
    }
  }
  all_tx_ = tx_;
  all_rx_ = rx_;
}

// NICs that have other lanes than in most nodes; where all nodes are alike the one that is dealt for has none but such.
void PairTurns::find_odd() {
  const bool alike = in_.odd_node.empty();
  if (alike) odd_of_[0] = 0;
  odd_nics_at_.assign(2 * nics_ * std::max<std::size_t>(in_.odd_node.size(), 1), kNobody);
  if (alike) in_.odd_nic = in_.nic;
  for (std::size_t node = 0; node < nodes_; ++node) {
    for (std::size_t lane = 0; lane < lanes_ && odd_of_[node] < 0; ++lane) plain_[lane].set(node);
    for (std::size_t nic = 0; nic < nics_ && odd_of_[node] >= 0; ++nic) {
      std::vector<std::uint32_t> lanes;
      for (std::size_t lane = 0; lane < lanes_; ++lane)
        if (nic_of(node, lane) == nic) lanes.push_back(static_cast<std::uint32_t>(lane));
      if (!alike && lanes == lanes_of_[nic]) {
        for (const std::uint32_t lane : lanes) plain_[lane].set(node);
      } else if (!lanes.empty()) {
        add_odd(node, nic, std::move(lanes));
      }
    }
  }
}

void PairTurns::add_odd(std::size_t node, std::size_t nic, std::vector<std::uint32_t> lanes) {
  for (const bool sends : {false, true}) {
    odd_nics_at_[(static_cast<std::size_t>(odd_of_[node]) * nics_ + nic) * 2 + sends] = static_cast<std::uint32_t>(odd_.size());
    OddNic& odd = odd_.emplace_back(OddNic{static_cast<std::uint32_t>(node), static_cast<std::uint32_t>(nic), sends, lanes, {}, {}, 0});
    odd.dealt.assign((rounds_ * lanes.size() + 63) / 64, 0);
    for (std::size_t k = 0; k < group_; ++k) {
      std::vector<std::uint32_t> row(lanes);
      if (!sends) std::ranges::sort(row, {}, [&](std::uint32_t lane) { return from_lane(lane, k); });
      odd.order.insert(odd.order.end(), row.begin(), row.end());
    }
  }
}

bool PairTurns::next() {
  if (remaining_ == 0) return false;
  begin();
  for (; first_ < rounds_ && round_[first_].made && round_[first_].count == 0; ++first_) round_[first_] = Round{nullptr, 0, true};
  std::size_t s = nodes_ > 1 ? first_ : rounds_;
  if (s > 0 && s < rounds_) odd_until(s * lanes_ - 1);
  for (; s < rounds_ && free_ > in_.few; ++s) deal_round(s);
  if (s < rounds_ && free_ > 0) deal_pairs(s);
  if (s == rounds_) odd_until(std::numeric_limits<std::uint64_t>::max());
  return true;
}

void PairTurns::begin() {
  puts_.clear();
  singles_.clear();
  due_.clear();
  tx_ = all_tx_;
  rx_ = all_rx_;
  free_ = all_free_;
  for (std::vector<std::uint32_t>& words : active_) words = all_words_;
  for (std::uint32_t odd = 0; odd < odd_.size(); ++odd) push(odd, odd_[odd].first);
}

PairTurns::Round& PairTurns::round(std::size_t s) {
  Round& found = round_[s];
  if (found.made) return found;
  found.made = true;
  found.left = std::make_unique<std::uint64_t[]>(lanes_ * words_);
  const std::size_t d = s / group_ + 1, k = s % group_;
  for (std::size_t lane = 0; lane < lanes_; ++lane) {
    for (std::size_t w = 0; w < words_; ++w) {
      std::uint64_t bits = plain_[lane].from(64 * w) & plain_[to_lane(lane, k)].from((64 * w + d) % nodes_);
      if (64 * w + 64 > nodes_) bits &= (std::uint64_t{1} << nodes_ % 64) - 1;
      found.left[lane * words_ + w] = bits;
      found.count += static_cast<std::uint32_t>(std::popcount(bits));
    }
  }
  for (const std::uint32_t put : ahead_[s]) found.left[put / nodes_ * words_ + put % nodes_ / 64] &= ~(std::uint64_t{1} << put % nodes_ % 64);
  found.count -= static_cast<std::uint32_t>(ahead_[s].size());
  ahead_[s] = {};
  return found;
}

void PairTurns::deal_round(std::size_t s) {
  if (round_[s].made && round_[s].count == 0 && due_.empty()) return;
  Round& at = round(s);
  for (std::size_t lane = 0; lane < lanes_; ++lane) {
    if (at.count > 0) deal_lane(at, s, lane);
    if (!due_.empty()) odd_until(s * lanes_ + lane);
  }
  if (at.count == 0) at.left.reset();
}

// What the nodes put from one lane in one round.
void PairTurns::deal_lane(Round& at, std::size_t s, std::size_t lane) {
  const std::size_t d = s / group_ + 1, k = s % group_, nic = static_cast<std::size_t>(in_.nic[lane]);
  std::vector<std::uint32_t>& active = active_[nic];
  std::uint64_t *const left = at.left.get() + lane * words_, *const tx = tx_.data() + nic * words_;
  Circle& rx = rx_[static_cast<std::size_t>(in_.nic[to_lane(lane, k)])];
  std::size_t kept = 0;
  work_ += static_cast<std::int64_t>(active.size());
  for (const std::uint32_t w : active) {
    std::size_t to = 64 * w + d;
    if (to >= nodes_) to -= nodes_;
    std::uint64_t bits = tx[w] & rx.from(to);  // few where few are free: then what is left, which is in no near cache, is not asked for
    if (bits != 0 && (bits &= left[w]) != 0) {
      left[w] &= ~bits;
      tx[w] &= ~bits;
      rx.clear(to, bits);
      const auto n = static_cast<std::uint32_t>(std::popcount(bits));
      at.count -= n;
      free_ -= n;
      remaining_ -= n;
      puts_.push_back({bits, w, static_cast<std::uint32_t>(k * lanes_ + lane), static_cast<std::uint32_t>(d)});
    }
    if (tx[w] != 0) active[kept++] = w;
  }
  active.resize(kept);
}

// Puts of rounds from `from` on, where few NICs are free.
void PairTurns::deal_pairs(std::size_t from) {
  free_tx_.clear();
  free_rx_.clear();
  for (std::size_t nic = 0; nic < nics_; ++nic) {
    for (std::size_t w = 0; w < words_; ++w) {
      const auto node = static_cast<std::uint32_t>(64 * w);
      for (std::uint64_t bits = tx_[nic * words_ + w]; bits != 0; bits &= bits - 1)
        free_tx_.emplace_back(nic, node + static_cast<std::uint32_t>(std::countr_zero(bits)));
      std::uint64_t bits = rx_[nic].from(node);
      if (64 * w + 64 > nodes_) bits &= (std::uint64_t{1} << nodes_ % 64) - 1;
      for (; bits != 0; bits &= bits - 1) free_rx_.emplace_back(nic, node + static_cast<std::uint32_t>(std::countr_zero(bits)));
    }
  }
  work_ += static_cast<std::int64_t>(free_tx_.size() * free_rx_.size());
  candidates_.clear();
  for (const auto& [a, u] : free_tx_)
    for (const auto& [b, v] : free_rx_)
      if (u != v) offer(from, u, a, v, b);
  std::ranges::sort(candidates_, {}, &Candidate::key);
  for (const Candidate& put : candidates_) deal(put);
}

// The puts of one NIC to another one that are left.
void PairTurns::offer(std::size_t from, std::size_t u, std::size_t a, std::size_t v, std::size_t b) {
  const std::size_t d = v > u ? v - u : v + nodes_ - u;
  if (d * group_ <= from) return;
  const std::uint32_t sender = odd_nic(true, u, a), receiver = odd_nic(false, v, b);
  for (const std::uint32_t lane : lanes_at(u, a)) {
    for (const std::uint32_t to : lanes_at(v, b)) {
      if (lane / group_ != to / group_) continue;
      const std::size_t s = (d - 1) * group_ + (to % group_ + group_ - lane % group_) % group_;
      if (s < from) continue;
      const bool is_left = sender != kNobody     ? left(odd_[sender], s, lane)
                           : receiver != kNobody ? left(odd_[receiver], s, to)
                                                 : left_of_plain(s, lane, u);
      if (is_left) candidates_.push_back({std::uint64_t{s} * lanes_ + lane, lane, static_cast<std::uint32_t>(u)});
    }
  }
}

std::span<const std::uint32_t> PairTurns::lanes_at(std::size_t node, std::size_t nic) const {
  const std::uint32_t odd = odd_nic(true, node, nic);
  return odd == kNobody ? lanes_of_[nic] : odd_[odd].lanes;
}

bool PairTurns::left_of_plain(std::size_t s, std::size_t lane, std::size_t from) {
  if (!round_[s].made && ahead_[s].size() <= kAhead) return std::ranges::find(ahead_[s], lane * nodes_ + from) == ahead_[s].end();
  const Round& at = round(s);
  return at.left && (at.left[lane * words_ + from / 64] >> from % 64 & 1) != 0;
}

void PairTurns::deal(const Candidate& put) {
  const std::size_t s = put.key / lanes_, d = s / group_ + 1, k = s % group_, to_lane_ = to_lane(put.lane, k), to = (put.from + d) % nodes_;
  const std::uint32_t a = nic_of(put.from, put.lane), b = nic_of(to, to_lane_);
  if (!tx_free(put.from, a) || !rx_free(to, b)) return;
  if (odd_nic(true, put.from, a) != kNobody || odd_nic(false, to, b) != kNobody) {
    deal_single({s, put.lane, put.from, to, to_lane_});
    return;
  }
  tx_[a * words_ + put.from / 64] &= ~(std::uint64_t{1} << put.from % 64);
  rx_[b].clear(to, 1);
  --free_;
  --remaining_;
  puts_.push_back({std::uint64_t{1} << put.from % 64, put.from / 64, static_cast<std::uint32_t>(k * lanes_ + put.lane), static_cast<std::uint32_t>(d)});
  if (!round_[s].made) {
    ahead_[s].push_back(static_cast<std::uint32_t>(put.lane * nodes_ + put.from));
    return;
  }
  round_[s].left[put.lane * words_ + put.from / 64] &= ~(std::uint64_t{1} << put.from % 64);
  --round_[s].count;
}

PairTurns::Put PairTurns::put_of(const OddNic& nic, std::size_t i) const {
  const std::size_t n = nic.lanes.size(), s = i / n, d = s / group_ + 1, k = s % group_, lane = nic.order[k * n + i % n];
  if (nic.sends) return {s, lane, nic.node, (nic.node + d) % nodes_, to_lane(lane, k)};
  return {s, from_lane(lane, k), (nic.node + nodes_ - d % nodes_) % nodes_, nic.node, lane};
}

std::size_t PairTurns::place(const OddNic& nic, std::size_t s, std::size_t lane) const {
  const std::size_t n = nic.lanes.size();
  const auto row = nic.order.begin() + static_cast<std::ptrdiff_t>(s % group_ * n);
  return s * n + static_cast<std::size_t>(std::find(row, row + static_cast<std::ptrdiff_t>(n), lane) - row);
}

bool PairTurns::left(const OddNic& nic, std::size_t s, std::size_t lane) const {
  const std::size_t i = place(nic, s, lane);
  return (nic.dealt[i / 64] >> i % 64 & 1) == 0;
}

// The next put of an odd NIC that is left, from its `from`-th one on.
void PairTurns::push(std::uint32_t odd, std::size_t from) {
  OddNic& nic = odd_[odd];
  const std::size_t end = rounds_ * nic.lanes.size();
  for (std::size_t word = from / 64; word < nic.dealt.size(); ++word) {
    std::uint64_t bits = ~nic.dealt[word];
    if (word == from / 64) bits &= ~std::uint64_t{0} << from % 64;
    if (bits == 0) continue;
    const std::size_t i = 64 * word + static_cast<std::size_t>(std::countr_zero(bits));
    if (i >= end) break;
    if (from == nic.first) nic.first = i;
    const Put put = put_of(nic, i);
    due_.emplace_back(put.round * lanes_ + put.lane, odd);
    std::push_heap(due_.begin(), due_.end(), std::greater<>{});
    return;
  }
  if (from == nic.first) nic.first = end;
}

// Puts of odd NICs that are written up to `key`.
void PairTurns::odd_until(std::uint64_t key) {
  while (!due_.empty() && due_.front().first <= key) {
    const auto [at, odd] = due_.front();
    std::pop_heap(due_.begin(), due_.end(), std::greater<>{});
    due_.pop_back();
    const OddNic& nic = odd_[odd];
    if (nic.sends ? !tx_free(nic.node, nic.nic) : !rx_free(nic.node, nic.nic)) continue;
    const std::size_t s = at / lanes_, lane = at % lanes_;
    const std::size_t i = place(nic, s, nic.sends ? lane : to_lane(lane, s % group_));
    const Put put = put_of(nic, i);
    if (tx_free(put.from, nic_of(put.from, put.lane)) && rx_free(put.to, nic_of(put.to, put.to_lane))) {
      deal_single(put);
    } else {
      push(odd, i + 1);
    }
    ++work_;
  }
}

void PairTurns::deal_single(const Put& put) {
  const std::uint32_t a = nic_of(put.from, put.lane), b = nic_of(put.to, put.to_lane);
  const std::size_t d = put.round / group_ + 1, k = put.round % group_;
  tx_[a * words_ + put.from / 64] &= ~(std::uint64_t{1} << put.from % 64);
  rx_[b].clear(put.to, 1);
  --free_;
  --remaining_;
  singles_.push_back({static_cast<std::uint32_t>(k * lanes_ + put.lane), static_cast<std::uint32_t>(d), static_cast<std::uint32_t>(put.from),
                      static_cast<std::uint32_t>(put.to), a, b});
  mark(odd_nic(true, put.from, a), put.round, put.lane);
  mark(odd_nic(false, put.to, b), put.round, put.to_lane);
}

void PairTurns::mark(std::uint32_t odd, std::size_t s, std::size_t lane) {
  if (odd == kNobody) return;
  const std::size_t i = place(odd_[odd], s, lane);
  odd_[odd].dealt[i / 64] |= std::uint64_t{1} << i % 64;
}

}  // namespace ccl_lab::sim
