#include "order.hpp"

#include <functional>

namespace ccl_lab::sim {
namespace {

constexpr std::int64_t kLastTick = std::int64_t{1} << 61;  // two of them can be added

bool takes_ticks(const ExactInput& in, std::size_t op) {
  if (!in.step.empty()) return false;
  const bool transfers = kind_of(in, op) == Kind::put || kind_of(in, op) == Kind::get;
  return transfers && (in.link_ticks[in.link_a[op]] || in.link_ticks[in.link_b[op]]);
}

}  // namespace

Order::Order(const ExactInput& in)
    : channel_of(in.rank.size()), counter_of(in.rank.size(), kNone), raiser(in.rank.size(), kNone), in_(in), n_(in.rank.size()),
      next_(n_, kNone), leaves_(n_, 0), free_(in.link_latency_ps.size(), 0), turns_(in.link_latency_ps.size()) {
  number_channels();
  number_counters();
  left_.assign(heads_.size(), 0);
  order.reserve(n_);
  line.reserve(n_);
}

// Chains the ops of each (rank, channel) in op order.
void Order::number_channels() {
  DenseIds ids;
  std::vector<std::int32_t> last;
  for (std::size_t i = 0; i < n_; ++i) {
    const auto op = static_cast<std::int32_t>(i);
    const std::int32_t id = ids(in_.rank[i], in_.channel[i]);
    channel_of[i] = id;
    if (static_cast<std::size_t>(id) == last.size()) {
      heads_.push_back(op);
      last.push_back(op);
    } else {
      next_[last[id]] = op;
      last[id] = op;
    }
  }
}

// A counter is (destination, source, sig_channel).
void Order::number_counters() {
  DenseIds counters;
  for (std::size_t op = 0; op < n_; ++op) {
    const bool waits = kind_of(in_, op) == Kind::wait;
    if (!waits && !raises(in_, op)) continue;
    const std::int32_t dst = waits ? in_.rank[op] : in_.peer[op], src = waits ? in_.peer[op] : in_.rank[op];
    counter_of[op] = counters(dst, src, in_.sig_channel[op]);
  }
  first_.assign(counters.count() + 1, 0);
  for (std::size_t op = 0; op < n_; ++op)
    if (raises(in_, op)) ++first_[counter_of[op] + 1];
  for (std::size_t i = 1; i < first_.size(); ++i) first_[i] += first_[i - 1];
  raised_ops_.assign(first_.back(), kNone);
  raised_.assign(counters.count(), 0);
  parked_.assign(counters.count(), kNone);
  next_parked_.assign(n_, kNone);
  last_seen_.assign(counters.count(), 0);
}

bool Order::walk(std::span<std::int32_t> level) {
  std::fill(level.begin(), level.end(), kNone);
  for (const std::int32_t op : heads_) settle(op, 0);
  while (!following_.empty() || !later_.empty()) {
    if (following_.empty()) {
      tick_ = later_.front().first;
      while (!later_.empty() && later_.front().first == tick_) {
        enter(later_.front().second);
        std::pop_heap(later_.begin(), later_.end(), std::greater<>{});
        later_.pop_back();
      }
    }
    now_.swap(following_);
    following_.clear();
    std::sort(now_.begin(), now_.end());
    for (const std::int32_t op : now_) level[op] = static_cast<std::int32_t>(begin_of_batch.size());
    run_batch();
  }
  begin_of_batch.push_back(order.size());
  return order.size() == n_;
}

void Order::run_batch() {
  begin_of_batch.push_back(order.size());
  order.insert(order.end(), now_.begin(), now_.end());
  turns_.clear();
  by_turn_.clear();
  for (const std::int32_t op : now_)
    by_turn_.emplace_back(moves(kind_of(in_, op)) ? turns_.next(in_.link_a[op], in_.link_b[op]) : 0, op);
  std::sort(by_turn_.begin(), by_turn_.end());
  for (const auto& [turn, op] : by_turn_) {
    line.push_back(op);
    take(op);
  }
  for (const std::int32_t op : now_)
    if (raises(in_, op)) raise(op);
  // Waits that were parked before this batch first: `settle` parks new ones on the same lists.
  for (const std::int32_t op : now_)
    if (raises(in_, op)) release(counter_of[op]);
  for (const std::int32_t op : now_)
    if (next_[op] != kNone && !in_one_row(op)) settle(next_[op], goes_on_at(op));
}

// Occupies links, in nominal time.
void Order::take(std::int32_t op) {
  leaves_[op] = tick_;
  if (!takes_ticks(in_, op)) return;
  std::int64_t &a = free_[in_.link_a[op]], &b = free_[in_.link_b[op]];
  a = b = leaves_[op] = std::min(std::max({tick_, a, b}) + std::min(nominal_bytes(in_, op), kLastTick), kLastTick);
  std::int64_t& left = left_[channel_of[op]];
  left = std::max(left, leaves_[op]);
}

// A counter rises in static order, never before an earlier raise has been seen.
void Order::raise(std::int32_t op) {
  const std::int32_t counter = counter_of[op];
  raised_ops_[first_[counter] + raised_[counter]++] = op;
  leaves_[op] = last_seen_[counter] = std::max(last_seen_[counter], leaves_[op]);
}

std::int64_t Order::goes_on_at(std::int32_t op) const {
  if (kind_of(in_, op) == Kind::get) return leaves_[op];
  if (kind_of(in_, op) == Kind::flush) return std::max(tick_, left_[channel_of[op]]);
  return tick_;
}

bool Order::satisfied(std::int32_t op) {
  const std::int32_t counter = counter_of[op];
  if (in_.value[op] > raised_[counter]) return false;
  if (in_.value[op] > 0) raiser[op] = raised_ops_[first_[counter] + in_.value[op] - 1];
  return true;
}

// `op` and the one after it belong to the same batch.
bool Order::in_one_row(std::int32_t op) const {
  return next_[op] != kNone && goes_on(in_, op) && goes_on(in_, next_[op]) && (in_.step.empty() || in_.step[next_[op]] <= tick_);
}

void Order::enter(std::int32_t op) {
  following_.push_back(op);
  for (; in_one_row(op); op = next_[op]) following_.push_back(next_[op]);
}

// The channel of `op` comes to it at `tick`.
void Order::settle(std::int32_t op, std::int64_t tick) {
  if (!in_.step.empty()) tick = std::max<std::int64_t>(tick, in_.step[op]);
  if (kind_of(in_, op) == Kind::wait) {
    if (!satisfied(op)) {
      next_parked_[op] = parked_[counter_of[op]];
      parked_[counter_of[op]] = op;
      leaves_[op] = tick;  // not before its channel came to it
      return;
    }
    if (raiser[op] != kNone) tick = std::max(tick, leaves_[raiser[op]]);
  }
  if (tick <= tick_) return enter(op);
  later_.emplace_back(tick, op);
  std::push_heap(later_.begin(), later_.end(), std::greater<>{});
}

void Order::release(std::int32_t counter) {
  std::int32_t op = std::exchange(parked_[counter], kNone);
  while (op != kNone) {
    const std::int32_t next = next_parked_[op];
    settle(op, std::max(tick_, leaves_[op]));
    op = next;
  }
}

}  // namespace ccl_lab::sim
