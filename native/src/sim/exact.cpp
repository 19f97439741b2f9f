// See exact.hpp. Two stages: `Order` finds the static order (order.hpp), `Clock` walks it once and adds up time. Keeping order free
// of rates and delays is what makes the result monotone in them.
#include "exact.hpp"

#include <algorithm>
#include <new>
#include <vector>

#include "changes.hpp"
#include "order.hpp"

namespace ccl_lab::sim {
namespace {

constexpr std::int64_t kForever = std::int64_t{1} << 62;
__extension__ typedef unsigned __int128 Wide;  // bytes times 10^12 need more than 64 bits

// Adds up time, batch by batch.
class Clock {
 public:
  Clock(const ExactInput& in, const ExactOutput& out, const Order& order)
      : in_(in), out_(out), order_(order), clock_(order.channels()), left_(order.channels()),
        free_(in.link_latency_ps.size(), 0), last_arrival_(order.counters(), 0), changes_(in.changes, in.link_latency_ps.size()) {
    for (std::size_t op = 0; op < in.rank.size(); ++op) {
      clock_[order.channel_of[op]] = in.late_ps[in.rank[op]];
      flushes_one_peer_ |= kind_of(in, op) == Kind::flush && in.peer[op] >= 0;
    }
  }

  // The first op that happens too late to be represented, or -1.
  std::int64_t run() {
    std::copy(in_.late_ps.begin(), in_.late_ps.end(), out_.finish_ps.begin());
    const std::span<const std::int32_t> line(order_.line), order(order_.order);
    for (std::size_t i = 0; i + 1 < order_.begin_of_batch.size(); ++i) {
      const std::size_t first = order_.begin_of_batch[i], n = order_.begin_of_batch[i + 1] - first;
      if (const std::int64_t op = run_batch(line.subspan(first, n)); op >= 0) return op;
      for (const std::int32_t op : order.subspan(first, n))
        if (raises(in_, op)) raise(op);
    }
    return -1;
  }

 private:
  // A channel has in a batch either one op, or puts and signals at which it goes on: so the order inside a batch matters to links
  // (turns) and to counters (op order), and to nothing else.
  std::int64_t run_batch(std::span<const std::int32_t> ops) {
    for (const std::int32_t op : ops) {
      std::int64_t& clock = clock_[order_.channel_of[op]];
      out_.begin_ps[op] = out_.start_ps[op] = clock;
      step(op, clock);
      out_.end_ps[op] = clock;
      std::int64_t& finish = out_.finish_ps[in_.rank[op]];
      finish = std::max({finish, clock, kind_of(in_, op) == Kind::put ? out_.leave_ps[op] : 0});
      if (finish >= kForever || out_.arrive_ps[op] >= kForever) return op;
    }
    return -1;
  }

  void step(std::int32_t op, std::int64_t& clock) {
    const Kind kind = kind_of(in_, op);
    if (moves(kind)) {
      const std::int64_t arrival = move(op, clock + in_.request_ps[op]);
      if (!goes_on(in_, op)) clock = arrival;
      if (kind == Kind::put) note_leave(op);
      return;
    }
    if (kind == Kind::wait && order_.raiser[op] != kNone) clock = std::max(clock, out_.arrive_ps[order_.raiser[op]]);
    if (kind == Kind::flush) clock = std::max(clock, flushed(op));
    if (kind == Kind::compute) clock += in_.compute_ps[op];
    out_.leave_ps[op] = clock;
    out_.arrive_ps[op] = kind == Kind::signal ? clock + path_latency_ps(in_, op) : clock;
  }

  [[nodiscard]] std::int64_t busy_ps(std::int32_t op, std::int32_t link, std::int64_t start_ps) const {
    if (changes_.on(link)) {
      const std::int64_t from = std::min(start_ps + in_.hold_ps[op], kForever);
      return changes_.through_ps(link, from, in_.work_bytes[op], in_.link_bytes_per_s[link]) - start_ps;
    }
    return std::min(in_.hold_ps[op] + duration_ps(in_.work_bytes[op], in_.link_bytes_per_s[link]), kForever);
  }

  // Occupies the links of the path; returns the arrival.
  std::int64_t move(std::int32_t op, std::int64_t from) {
    const std::int32_t a = in_.link_a[op], b = in_.link_b[op];
    const std::int64_t start = std::max({from, in_.ready_ps[op], free_[a], free_[b]});
    const std::int64_t time_a = busy_ps(op, a, start), time_b = a == b ? time_a : busy_ps(op, b, start);
    // Each at most 2^62, so sums of two fit; saturated here so that later ops cannot overflow either.
    free_[a] = std::min(start + time_a, kForever);
    free_[b] = std::min(start + time_b, kForever);
    out_.start_ps[op] = start;
    out_.leave_ps[op] = std::min(start + std::max(time_a, time_b), kForever);
    return out_.arrive_ps[op] = std::min(out_.leave_ps[op] + path_latency_ps(in_, op), kForever);
  }

  // A counter rises in static order: never before an earlier raise has been seen.
  void raise(std::int32_t op) {
    std::int64_t& last = last_arrival_[order_.counter_of[op]];
    out_.arrive_ps[op] = last = std::max(last, out_.arrive_ps[op]);
  }

  std::int64_t& left_to(std::int32_t op) {
    const std::size_t id = pairs_(order_.channel_of[op], in_.peer[op]);
    if (id == left_to_.size()) left_to_.push_back(0);
    return left_to_[id];
  }

  void note_leave(std::int32_t op) {
    std::int64_t& all = left_[order_.channel_of[op]];
    all = std::max(all, out_.leave_ps[op]);
    if (!flushes_one_peer_) return;
    std::int64_t& one = left_to(op);
    one = std::max(one, out_.leave_ps[op]);
  }

  std::int64_t flushed(std::int32_t op) { return in_.peer[op] < 0 ? left_[order_.channel_of[op]] : left_to(op); }

  const ExactInput& in_;
  const ExactOutput& out_;
  const Order& order_;
  std::vector<std::int64_t> clock_, left_;  // per channel: now, and when its last put had left
  std::vector<std::int64_t> free_;          // per link
  std::vector<std::int64_t> last_arrival_;  // per counter
  std::vector<std::int64_t> left_to_;       // per (channel, peer)
  DenseIds pairs_;
  Changes changes_;
  bool flushes_one_peer_ = false;
};

}  // namespace

std::int64_t find_bad_op(const ExactInput& in) {
  const auto ranks = static_cast<std::int32_t>(in.late_ps.size());
  const auto links = static_cast<std::int32_t>(in.link_bytes_per_s.size());
  for (std::size_t op = 0; op < in.rank.size(); ++op) {
    const Kind kind = kind_of(in, op);
    const bool paired = kind == Kind::put || kind == Kind::get || kind == Kind::signal || kind == Kind::wait;
    const bool counted = kind == Kind::signal || kind == Kind::wait;
    const auto link_is_good = [&](std::int32_t l) { return l >= 0 && l < links && in.link_bytes_per_s[l] > 0; };
    const auto time_is_good = [](std::int64_t ps) { return ps >= 0 && ps < kForever / 2; };
    if (nominal_bytes(in, op) < 0) return static_cast<std::int64_t>(op);
    if (!in.tier_ps.empty() && (in.tier_ps[op] < 0 || in.tier_ps[op] >= kForever / 4)) return static_cast<std::int64_t>(op);
    if (in.kind[op] >= kKindCount || in.rank[op] < 0 || in.rank[op] >= ranks || in.peer[op] < -1 ||
        in.peer[op] >= ranks || (paired && in.peer[op] < 0) || (counted && in.sig_channel[op] < 0) ||
        in.sig_channel[op] < -1 || in.work_bytes[op] < 0 || !link_is_good(in.link_a[op]) || !link_is_good(in.link_b[op]) ||
        !time_is_good(in.compute_ps[op]) || !time_is_good(in.hold_ps[op]) || !time_is_good(in.ready_ps[op]) || !time_is_good(in.request_ps[op]) ||
        !time_is_good(in.late_ps[in.rank[op]]) || !time_is_good(in.link_latency_ps[in.link_a[op]]) ||
        !time_is_good(in.link_latency_ps[in.link_b[op]]))
      return static_cast<std::int64_t>(op);
  }
  return -1;
}

ExactResult find_deadlock(const ExactInput& in, const Order& order, std::span<const std::int32_t> level) {
  std::vector<bool> seen(order.channels(), false);
  for (std::size_t op = 0; op < in.rank.size(); ++op) {
    if (level[op] != kNone || seen[order.channel_of[op]]) continue;
    seen[order.channel_of[op]] = true;
    if (kind_of(in, op) == Kind::wait) return {ExactStatus::deadlock, static_cast<std::int64_t>(op), order.raised(op)};
  }
  return {ExactStatus::deadlock, -1, 0};
}

std::int64_t duration_ps(std::int64_t nbytes, std::int64_t bytes_per_s) noexcept {
  if (bytes_per_s >= kInstant) return 0;
  const Wide rate = static_cast<Wide>(bytes_per_s);
  const Wide ps = (static_cast<Wide>(nbytes) * 1'000'000'000'000u + rate - 1) / rate;
  return ps > static_cast<Wide>(kForever) ? kForever : static_cast<std::int64_t>(ps);
}

ExactResult simulate_exact(const ExactInput& in, const ExactOutput& out) noexcept try {
  if (!Changes::good(in.changes, in.link_latency_ps.size())) return {ExactStatus::bad_op, -1, 0};
  if (const std::int64_t op = find_bad_op(in); op >= 0) return {ExactStatus::bad_op, op, 0};
  Order order(in);
  if (!order.walk(out.level)) return find_deadlock(in, order, out.level);
  Clock clock(in, out, order);
  if (const std::int64_t op = clock.run(); op >= 0) return {ExactStatus::overflow, op, 0};
  return {};
} catch (const std::bad_alloc&) {
  return {ExactStatus::out_of_memory, -1, 0};
}

}  // namespace ccl_lab::sim
