#include "tree_unit.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <tuple>
#include <utility>

#include "exact.hpp"

namespace ccl_lab::sim {
namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::min() / 4;
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
  for (auto* by_rank : {&tx_, &rx_, &memory_, &left_}) by_rank->assign(ranks, -1);
  number();
  const std::int64_t longest = (sizes.count / (2 * sizes.slices * sizes.depth) + 1) * sizes.itemsize;
  for (std::size_t i = 0; i < kind_.links.size(); ++i)
    longest_ps_ = std::max(longest_ps_, i % kLinks < kTxLatency ? duration_ps(4 * longest, kind_.links[i]) : kind_.links[i]);
}

// Nothing is in a state that stays as it is while rounds go by: a state would never come again.
void TreeUnit::number() {
  for (std::int64_t tree = 0; tree < 2; ++tree)
    for (std::int64_t slice = 0; slice < sizes_.slices; ++slice)
      for (std::int64_t place = 0; place < kind_.ranks; ++place) {
        const std::size_t which = at(row(tree, slice, place)), rank = at(local(slice, place));
        if (children(tree, place) > 0) up_[which] = next();
        if (place > 0 || !root(tree)) down_[which] = next();
        if (children(tree, place) > 0 && memory_[rank] < 0) memory_[rank] = next();
        if (place == 0) continue;
        const std::size_t above = at(local(slice, place - 1));
        for (const std::size_t end : {rank, above})
          for (auto* link : {&tx_, &rx_, &left_})
            if ((*link)[end] < 0) (*link)[end] = next();
      }
}

void TreeUnit::enter(std::span<const std::int64_t> late_ps, std::span<std::int64_t> state) const {
  for (std::int64_t slice = 0; slice < sizes_.slices; ++slice)
    for (std::int64_t place = 0; place < kind_.ranks; ++place)
      for (std::int64_t tree = 0; tree < 2; ++tree) {
        const std::size_t which = at(row(tree, slice, place)), rank = at(local(slice, place));
        for (const std::int32_t i : {up_[which], down_[which], tx_[rank], rx_[rank], memory_[rank], left_[rank]})
          if (i >= 0) state[at(i)] = late_ps[rank];
      }
}

std::int64_t TreeUnit::phase(std::int64_t now) const {
  if (!sizes_.even()) return now + 1;
  std::int64_t first = 0, last = 1 << 30;
  for (std::int64_t tree = 0; tree < 2; ++tree) {
    first = std::max({first, adds(tree, 0) + 1, ends(tree, kind_.ranks - 1) + 1});
    last = std::min({last, adds(tree, kind_.ranks - 1) + sizes_.depth, ends(tree, 0) + sizes_.depth});
  }
  return now >= first && now < last ? 0 : now + 1;
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

TreeUnit::Put TreeUnit::put(std::int64_t from, std::int64_t to, std::int64_t nbytes) const {
  const auto link = [&](std::int64_t rank, Link which) { return kind_.links[at(rank) * kLinks + which]; };
  Put made{};
  made.from = static_cast<std::int32_t>(from);
  made.to = static_cast<std::int32_t>(to);
  made.tx = tx_[at(from)];
  made.rx = rx_[at(to)];
  made.left = left_[at(from)];
  made.held_ps = nbytes > 0 ? alpha_ps_ : 0;
  made.tx_ps = made.held_ps + duration_ps(nbytes, link(from, kTx));
  made.rx_ps = made.held_ps + duration_ps(nbytes, link(to, kRx));
  made.latency_ps = link(from, kTxLatency) + link(to, kRxLatency);
  return made;
}

// What the rank at `place` of a chain puts up, and what the one above puts down to it. Edges of chains have the color of their tree.
void TreeUnit::puts(std::int64_t now, std::int64_t tree, std::int64_t slice, std::int64_t place) {
  const std::int64_t rank = local(slice, place), above = local(slice, place - 1);
  const std::int64_t key = (tree * sizes_.slices + slice) * kind_.ranks + rank;
  if (const std::int64_t begins = adds(tree, place) + 1; due(begins, now)) {
    Put up = put(rank, above, sizes_.bytes(tree, slice, now - begins));
    up.begins = begins;
    up.key = key;
    up.clock = up_[at(row(tree, slice, place))];
    up.row = static_cast<std::int32_t>(row(tree, slice, place - 1));
    program_.puts[at(tree)].push_back(up);
  }
  if (const std::int64_t begins = ends(tree, place); due(begins, now)) {
    Put down = put(above, rank, sizes_.bytes(tree, slice, now - begins));
    down.begins = begins;
    down.key = key;
    down.clock = static_cast<std::int32_t>(down_clock(tree, slice, place - 1));
    down.row = static_cast<std::int32_t>(row(tree, slice, place));
    program_.puts[at(2 + tree)].push_back(down);
  }
}

void TreeUnit::work(std::int64_t now, std::int64_t tree, std::int64_t slice, std::int64_t place) {
  const std::int64_t which = row(tree, slice, place), rank = local(slice, place), heard = children(tree, place);
  if (const std::int64_t begins = adds(tree, place); heard > 0 && due(begins, now)) {
    const bool puts = place == 0 && root(tree) && due(height_, now) && ((tree == 1 && kind_.ranks > 1) || kind_.child[at(tree)][1]);
    const std::int64_t nbytes = sizes_.bytes(tree, slice, now - begins) * (1 + heard);
    program_.sums.push_back({heard + puts, begins, (tree * sizes_.slices + slice) * kind_.ranks + rank, up_[at(which)], memory_[at(rank)],
                             static_cast<std::int32_t>(which), static_cast<std::int32_t>(slice), static_cast<std::int32_t>(tree),
                             place + 1 < kind_.ranks, place == 0, duration_ps(nbytes, kind_.links[at(rank) * kLinks + kMemory])});
  }
  if (down_[at(which)] < 0 || !due(ends(tree, place), now)) return;
  const std::int32_t step = place == 0 ? 2 + static_cast<std::int32_t>(kind_.color[at(tree)]) : 0;
  program_.heard.push_back({down_[at(which)], place == 0 ? -1 : static_cast<std::int32_t>(which), static_cast<std::int32_t>(slice), step});
}

// By turns: each put gets the first one that neither of its links has given away.
bool TreeUnit::turns(std::vector<Put>& puts) {
  std::sort(puts.begin(), puts.end(), [](const Put& a, const Put& b) { return std::tie(a.begins, a.key) < std::tie(b.begins, b.key); });
  std::vector<std::uint64_t> sent(at(kind_.ranks), 0), received(at(kind_.ranks), 0);
  for (Put& put : puts) {
    put.turn = std::countr_one(sent[at(put.from)] | received[at(put.to)]);
    if (put.turn > 63) return false;
    sent[at(put.from)] |= std::uint64_t{1} << put.turn;
    received[at(put.to)] |= std::uint64_t{1} << put.turn;
  }
  std::stable_sort(puts.begin(), puts.end(), [](const Put& a, const Put& b) { return a.turn < b.turn; });
  return true;
}

bool TreeUnit::prepare(std::int64_t now) {
  for (auto& step : program_.puts) step.clear();
  program_.sums.clear();
  program_.heard.clear();
  for (std::int64_t tree = 0; tree < 2; ++tree)
    for (std::int64_t slice = 0; slice < sizes_.slices; ++slice)
      for (std::int64_t place = 0; place < kind_.ranks; ++place) {
        if (place > 0) puts(now, tree, slice, place);
        work(now, tree, slice, place);
      }
  for (auto& step : program_.puts)
    if (!turns(step)) return false;
  std::sort(program_.sums.begin(), program_.sums.end(),
            [](const Sum& a, const Sum& b) { return std::tie(a.batch, a.begins, a.key) < std::tie(b.batch, b.begins, b.key); });
  return true;
}

bool TreeUnit::round(std::int64_t now, std::span<std::int64_t> state, const Inbox& inbox) {
  if (const std::int64_t wanted = phase(now); program_.phase != wanted) {
    program_.phase = -1;
    if (!prepare(now)) return false;
    program_.phase = wanted;
  }
  for (std::size_t step = 0; step < 4; ++step) {
    std::vector<std::int64_t>& came = step < 2 ? came_up_ : came_down_;
    for (const Put& put : program_.puts[step]) {
      std::int64_t &tx = state[at(put.tx)], &rx = state[at(put.rx)], &left = state[at(put.left)];
      const std::int64_t start = std::max({put.clock < 0 ? kNever : state[at(put.clock)], tx, rx});
      tx = start + put.tx_ps;
      rx = start + put.rx_ps;
      const std::int64_t done = std::max(tx, rx);
      left = std::max(left, done);
      came[at(put.row)] = done + put.latency_ps;
    }
  }
  for (const Sum& sum : program_.sums) {
    std::int64_t ready = state[at(sum.clock)];
    if (sum.near) ready = std::max(ready, came_up_[at(sum.row)]);
    for (std::size_t color = 0; sum.far && color < 2; ++color)
      if (kind_.child[at(sum.tree)][color]) ready = std::max(ready, inbox[color][at(sum.slice)]);
    std::int64_t& memory = state[at(sum.memory)];
    state[at(sum.clock)] = memory = std::max(ready, memory) + sum.ps;
  }
  for (const Heard& heard : program_.heard) {
    const std::int64_t came = heard.row >= 0 ? came_down_[at(heard.row)] : inbox[at(heard.step)][at(heard.slice)];
    state[at(heard.clock)] = std::max(state[at(heard.clock)], came);
  }
  return true;
}

void TreeUnit::finish(std::span<const std::int64_t> state, std::int64_t shift, std::span<std::int64_t> finish_ps) const {
  for (std::int64_t slice = 0; slice < sizes_.slices; ++slice)
    for (std::int64_t place = 0; place < kind_.ranks; ++place)
      for (std::int64_t tree = 0; tree < 2; ++tree) {
        const std::size_t which = at(row(tree, slice, place)), rank = at(local(slice, place));
        for (const std::int32_t i : {up_[which], down_[which], left_[rank]})
          if (i >= 0) finish_ps[rank] = std::max(finish_ps[rank], state[at(i)] + shift);
      }
}

}  // namespace ccl_lab::sim
