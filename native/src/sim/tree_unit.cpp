#include "tree_unit.hpp"

#include <algorithm>
#include <bit>
#include <tuple>
#include <utility>

#include "exact.hpp"

namespace ccl_lab::sim {
namespace {

enum Link : std::size_t { kTx, kRx, kMemory, kTxLatency, kRxLatency, kLinks };

}  // namespace

std::vector<std::int64_t> TreeKind::columns() const {
  std::vector<std::int64_t> all{ranks, level[0], level[1], color[0], color[1], child[0][0], child[0][1], child[1][0], child[1][1]};
  all.insert(all.end(), links.begin(), links.end());
  return all;
}

TreeUnit::TreeUnit(TreeKind kind, const ChunkSizes& sizes, std::int64_t height, std::int64_t alpha_ps)
    : kind_(std::move(kind)), sizes_(sizes), height_(height), alpha_ps_(alpha_ps) {
  const std::size_t rows = at(2 * sizes.slices * kind_.ranks), ranks = at(kind_.ranks);
  came_up_.assign(rows, 0);
  came_down_.assign(rows, 0);
  for (auto* by_row : {&up_, &down_}) by_row->assign(rows, -1);
  for (auto* by_rank : {&tx_, &rx_, &memory_}) by_rank->assign(ranks, -1);
  number();
  const std::int64_t longest = (sizes.count / (2 * sizes.slices * sizes.depth) + 1) * sizes.itemsize;
  for (std::size_t i = 0; i < kind_.links.size(); ++i)
    longest_ps_ = std::max(longest_ps_, i % kLinks < kTxLatency ? duration_ps(4 * longest, kind_.links[i]) : kind_.links[i]);
}

// A part of a state that is read in round `now`.
void TreeUnit::read(std::int32_t& place, std::int64_t now) {
  if (place < 0) {
    place = static_cast<std::int32_t>(size_++);
    last_read_.push_back(now);
  }
  last_read_[at(place)] = std::max(last_read_[at(place)], now);
}

// Nothing is in a state that stays as it is while rounds go by: a state would never come again.
void TreeUnit::number() {
  for (std::int64_t tree = 0; tree < 2; ++tree)
    for (std::int64_t slice = 0; slice < sizes_.slices; ++slice)
      for (std::int64_t place = 0; place < kind_.ranks; ++place) {
        const std::size_t which = at(row(tree, slice, place)), rank = at(local(slice, place));
        const std::int64_t last_sum = adds(tree, place) + sizes_.depth - 1, last_total = ends(tree, place) + sizes_.depth - 1;
        if (children(tree, place) > 0) {
          read(up_[which], place == 0 && root(tree) ? last_total + 1 : last_sum + 1);
          read(memory_[rank], last_sum);
          if (place > 0 || !root(tree)) read(down_[which], last_total + 1);
        }
        if (place == 0) continue;
        const std::size_t above = at(local(slice, place - 1));
        read(tx_[rank], last_sum + 1);
        read(rx_[above], last_sum + 1);
        read(tx_[above], last_total);
        read(rx_[rank], last_total);
      }
}

void TreeUnit::enter(std::span<const std::int64_t> late_ps, std::span<std::int64_t> state) const {
  for (std::int64_t slice = 0; slice < sizes_.slices; ++slice)
    for (std::int64_t place = 0; place < kind_.ranks; ++place)
      for (std::int64_t tree = 0; tree < 2; ++tree) {
        const std::size_t which = at(row(tree, slice, place)), rank = at(local(slice, place));
        for (const std::int32_t i : {up_[which], down_[which], tx_[rank], rx_[rank], memory_[rank]})
          if (i >= 0) state[at(i)] = late_ps[rank];
      }
}

bool TreeUnit::ending(std::int64_t now) const {
  std::int64_t first = height_;
  for (std::int64_t tree = 0; tree < 2; ++tree) first = std::min(first, adds(tree, kind_.ranks - 1));
  return now >= first + sizes_.depth - 1;
}

std::int64_t TreeUnit::phase(std::int64_t now) const {
  if (!sizes_.even()) return now + 1;
  std::int64_t first = 0;
  for (std::int64_t tree = 0; tree < 2; ++tree) first = std::max({first, adds(tree, 0) + 1, ends(tree, kind_.ranks - 1) + 1});
  return now >= first && !ending(now) ? 0 : now + 1;
}

bool TreeUnit::idle(std::int64_t now) const {
  std::int64_t first = height_, last = 0;
  for (std::int64_t tree = 0; tree < 2; ++tree) {
    first = std::min(first, adds(tree, kind_.ranks - 1));
    last = std::max({last, adds(tree, 0) + 1, ends(tree, kind_.ranks - 1)});
  }
  return now < first || now >= last + sizes_.depth;
}

// A root puts its sum on in the channel in which it added.
std::int64_t TreeUnit::down_clock(std::int64_t tree, std::int64_t slice, std::int64_t place) const {
  const std::size_t which = at(row(tree, slice, place));
  return place == 0 && root(tree) ? up_[which] : down_[which];
}

bool TreeUnit::clocks(std::span<const std::int64_t> state, std::int64_t tree, bool down, std::span<std::int64_t> out) const {
  for (std::int64_t slice = 0; slice < sizes_.slices; ++slice) {
    const std::int64_t which = down ? down_clock(tree, slice, 0) : up_[at(row(tree, slice, 0))];
    if (which < 0) return false;
    out[at(slice)] = state[at(which)];
  }
  return true;
}

TreeUnit::Ordered TreeUnit::put(std::int64_t from, std::int64_t to, std::int64_t nbytes) const {
  const auto link = [&](std::int64_t rank, Link which) { return kind_.links[at(rank) * kLinks + which]; };
  const std::int64_t held = nbytes > 0 ? alpha_ps_ : 0;
  Ordered made{};
  made.to = static_cast<std::int32_t>(to);
  made.put.from = static_cast<std::int32_t>(from);
  made.put.tx = tx_[at(from)];
  made.put.rx = rx_[at(to)];
  made.put.tx_ps = held + duration_ps(nbytes, link(from, kTx));
  made.put.rx_ps = held + duration_ps(nbytes, link(to, kRx));
  made.put.latency_ps = link(from, kTxLatency) + link(to, kRxLatency);
  return made;
}

// What the rank at `place` of a chain puts up, and what the one above puts down to it. Edges of chains have the color of their tree.
void TreeUnit::puts(std::int64_t now, std::int64_t tree, std::int64_t slice, std::int64_t place) {
  const std::int64_t rank = local(slice, place), above = local(slice, place - 1);
  const std::int64_t key = (tree * sizes_.slices + slice) * kind_.ranks + rank;
  if (const std::int64_t begins = adds(tree, place) + 1; due(begins, now)) {
    Ordered up = put(rank, above, sizes_.bytes(tree, slice, now - begins));
    up.begins = begins;
    up.key = key;
    up.put.clock = up_[at(row(tree, slice, place))];
    up.put.row = static_cast<std::int32_t>(row(tree, slice, place - 1));
    program_.ordered[at(tree)].push_back(up);
  }
  if (const std::int64_t begins = ends(tree, place); due(begins, now)) {
    Ordered down = put(above, rank, sizes_.bytes(tree, slice, now - begins));
    down.begins = begins;
    down.key = key;
    down.put.clock = static_cast<std::int32_t>(down_clock(tree, slice, place - 1));
    down.put.row = static_cast<std::int32_t>(row(tree, slice, place));
    program_.ordered[at(2 + tree)].push_back(down);
  }
}

void TreeUnit::work(std::int64_t now, std::int64_t tree, std::int64_t slice, std::int64_t place) {
  const std::int64_t which = row(tree, slice, place), rank = local(slice, place), heard = children(tree, place);
  if (const std::int64_t begins = adds(tree, place); heard > 0 && due(begins, now)) {
    const bool puts = place == 0 && root(tree) && due(height_, now) && ((tree == 1 && kind_.ranks > 1) || kind_.child[at(tree)][1]);
    const std::int64_t nbytes = sizes_.bytes(tree, slice, now - begins) * (1 + heard);
    program_.sums.push_back({heard + puts, begins, (tree * sizes_.slices + slice) * kind_.ranks + rank, up_[at(which)], memory_[at(rank)],
                             static_cast<std::int32_t>(which), static_cast<std::int32_t>(slice), static_cast<std::int32_t>(tree),
                             static_cast<std::int32_t>(rank), place + 1 < kind_.ranks, place == 0, duration_ps(nbytes, kind_.links[at(rank) * kLinks + kMemory])});
  }
  if ((place == 0 && root(tree)) || !due(ends(tree, place), now) || (down_[at(which)] < 0 && !ending(now))) return;
  const std::int32_t step = place == 0 ? 2 + static_cast<std::int32_t>(kind_.color[at(tree)]) : 0;
  program_.heard.push_back({down_[at(which)], place == 0 ? -1 : static_cast<std::int32_t>(which), static_cast<std::int32_t>(slice), step,
                            static_cast<std::int32_t>(rank)});
}

// By turns: each put gets the first one that neither of its links has given away.
bool TreeUnit::turns(std::vector<Ordered>& puts) {
  std::sort(puts.begin(), puts.end(), [](const Ordered& a, const Ordered& b) { return std::tie(a.begins, a.key) < std::tie(b.begins, b.key); });
  std::vector<std::uint64_t> sent(at(kind_.ranks), 0), received(at(kind_.ranks), 0);
  for (Ordered& put : puts) {
    put.turn = std::countr_one(sent[at(put.put.from)] | received[at(put.to)]);
    if (put.turn > 63) return false;
    sent[at(put.put.from)] |= std::uint64_t{1} << put.turn;
    received[at(put.to)] |= std::uint64_t{1} << put.turn;
  }
  std::stable_sort(puts.begin(), puts.end(), [](const Ordered& a, const Ordered& b) { return a.turn < b.turn; });
  return true;
}

bool TreeUnit::prepare(std::int64_t now) {
  for (auto& step : program_.ordered) step.clear();
  program_.puts.clear();
  program_.sums.clear();
  program_.heard.clear();
  for (std::int64_t tree = 0; tree < 2; ++tree)
    for (std::int64_t slice = 0; slice < sizes_.slices; ++slice)
      for (std::int64_t place = 0; place < kind_.ranks; ++place) {
        if (place > 0) puts(now, tree, slice, place);
        work(now, tree, slice, place);
      }
  for (std::size_t step = 0; step < 4; ++step) {
    if (!turns(program_.ordered[step])) return false;
    if (step == 2) program_.descends = program_.puts.size();
    for (const Ordered& each : program_.ordered[step]) program_.puts.push_back(each.put);
  }
  program_.read.clear();
  program_.over.clear();
  for (std::size_t i = 0; i < size_; ++i) (last_read_[i] > now ? program_.read : program_.over).push_back(i);
  std::sort(program_.sums.begin(), program_.sums.end(),
            [](const Sum& a, const Sum& b) { return std::tie(a.batch, a.begins, a.key) < std::tie(b.batch, b.begins, b.key); });
  return true;
}

bool TreeUnit::round(std::int64_t now, std::span<std::int64_t> state, const Inbox& inbox, std::span<std::int64_t> ended) {
  if (const std::int64_t wanted = phase(now); program_.phase != wanted) {
    program_.phase = -1;
    if (!prepare(now)) return false;
    program_.phase = wanted;
  }
  std::fill(ended.begin(), ended.end(), kNobody);
  const auto end = [&](std::int32_t rank, std::int64_t ps) {
    if (!ended.empty()) ended[at(rank)] = std::max(ended[at(rank)], ps);
  };
  for (std::size_t i = 0; i < program_.puts.size(); ++i) {
    const Put& put = program_.puts[i];
    std::int64_t &tx = state[at(put.tx)], &rx = state[at(put.rx)];
    const std::int64_t start = std::max({put.clock < 0 ? kNobody : state[at(put.clock)], tx, rx});
    tx = start + put.tx_ps;
    rx = start + put.rx_ps;
    const std::int64_t done = std::max(tx, rx);
    (i < program_.descends ? came_up_ : came_down_)[at(put.row)] = done + put.latency_ps;
    end(put.from, done);
  }
  for (const Sum& sum : program_.sums) {
    std::int64_t ready = state[at(sum.clock)];
    if (sum.near) ready = std::max(ready, came_up_[at(sum.row)]);
    for (std::size_t color = 0; sum.far && color < 2; ++color)
      if (kind_.child[at(sum.tree)][color]) ready = std::max(ready, inbox[color][at(sum.slice)]);
    std::int64_t& memory = state[at(sum.memory)];
    state[at(sum.clock)] = memory = std::max(ready, memory) + sum.ps;
    end(sum.rank, memory);
  }
  for (const Heard& heard : program_.heard) {
    const std::int64_t came = heard.row >= 0 ? came_down_[at(heard.row)] : inbox[at(heard.step)][at(heard.slice)];
    if (heard.clock >= 0) state[at(heard.clock)] = std::max(state[at(heard.clock)], came);
    end(heard.rank, came);
  }
  forget(state);
  return true;
}

void TreeUnit::forget(std::span<std::int64_t> state) const {
  std::int64_t most = program_.read.empty() ? 0 : state[program_.read.front()];
  if (program_.over.empty()) return;
  for (const std::size_t i : program_.read) most = std::max(most, state[i]);
  for (const std::size_t i : program_.over) state[i] = most;
}

}  // namespace ccl_lab::sim
