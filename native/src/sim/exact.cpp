// See exact.hpp. Two stages: `Order` finds levels and which signal satisfies which wait (no times), `Clock` walks the levels
// once and adds up time, taking the transfers of a level in turns that `Turns` deals out. Keeping order free of time is what makes
// the result monotone in every rate and delay.
#include "exact.hpp"

#include <algorithm>
#include <bit>
#include <new>
#include <utility>
#include <vector>

#include "ccl_lab/schema.hpp"

namespace ccl_lab::sim {
namespace {

constexpr std::int64_t kForever = std::int64_t{1} << 62;
constexpr std::int32_t kNone = -1;
__extension__ typedef unsigned __int128 Wide;  // bytes times 10^12 need more than 64 bits

// Dense numbers 0, 1, 2, … for keys, in order of first appearance. Open addressing, at most half full.
class DenseIds {
 public:
  DenseIds() : slots_(64, Slot{0, 0, kNone}) {}

  std::int32_t operator()(std::int32_t a, std::int32_t b, std::int32_t c = 0) {
    const std::uint64_t key = std::uint64_t{static_cast<std::uint32_t>(a)} << 32 | static_cast<std::uint32_t>(b);
    Slot* slot = find(key, c);
    if (slot->id != kNone) return slot->id;
    if (2 * static_cast<std::size_t>(count_ + 1) > slots_.size()) {
      grow();
      slot = find(key, c);
    }
    *slot = {key, c, count_};
    return count_++;
  }

  [[nodiscard]] std::int32_t count() const { return count_; }

 private:
  struct Slot {
    std::uint64_t key;
    std::int32_t more;
    std::int32_t id;
  };

  Slot* find(std::uint64_t key, std::int32_t more) {
    const std::uint64_t mixed = (key ^ static_cast<std::uint64_t>(more) << 17) * 0x9E3779B97F4A7C15ull;
    std::size_t i = (mixed ^ mixed >> 32) & (slots_.size() - 1);
    while (slots_[i].id != kNone && (slots_[i].key != key || slots_[i].more != more)) i = (i + 1) & (slots_.size() - 1);
    return &slots_[i];
  }

  void grow() {
    std::vector<Slot> old(4 * slots_.size(), Slot{0, 0, kNone});
    old.swap(slots_);
    for (const Slot& slot : old)
      if (slot.id != kNone) *find(slot.key, slot.more) = slot;
  }

  std::vector<Slot> slots_;
  std::int32_t count_ = 0;
};

Kind kind_of(const ExactInput& in, std::size_t op) { return static_cast<Kind>(in.kind[op]); }

bool moves(Kind kind) {
  return kind == Kind::put || kind == Kind::get || kind == Kind::copy || kind == Kind::reduce;
}

// The channel goes on at once: such ops in a row belong to one level.
bool goes_on(const ExactInput& in, std::size_t op) {
  return kind_of(in, op) == Kind::signal || (kind_of(in, op) == Kind::put && in.peer[op] != in.rank[op]);
}

bool raises(const ExactInput& in, std::size_t op) {
  return in.sig_channel[op] >= 0 && (kind_of(in, op) == Kind::put || kind_of(in, op) == Kind::signal);
}

// Levels of the ops, by a breadth-first walk of what follows what.
class Order {
 public:
  std::vector<std::int32_t> channel_of, counter_of;
  std::vector<std::int32_t> raiser;  // the op whose signal satisfies a wait
  std::vector<std::int32_t> order;         // by (level, op)
  std::vector<std::size_t> begin_of_level;  // in `order`; one more than there are levels

  explicit Order(const ExactInput& in)
      : channel_of(in.rank.size()), counter_of(in.rank.size(), kNone), raiser(in.rank.size(), kNone), in_(in),
        n_(in.rank.size()), next_(n_, kNone) {
    number_channels();
    number_counters();
  }

  // Levels into `level`; false where ops remain that can never run.
  bool walk(std::span<std::int32_t> level) {
    std::fill(level.begin(), level.end(), kNone);
    std::vector<std::int32_t> now, following;
    for (const std::int32_t op : heads_) settle(op, following);
    for (std::int32_t depth = 0; !following.empty(); ++depth) {
      now.swap(following);
      following.clear();
      std::sort(now.begin(), now.end());
      begin_of_level.push_back(order.size());
      for (const std::int32_t op : now) {
        level[op] = depth;
        order.push_back(op);
        if (raises(in_, op)) raised_ops_[first_[counter_of[op]] + raised_[counter_of[op]]++] = op;
      }
      // Waits that were parked before this level first: `settle` parks new ones on the same lists.
      for (const std::int32_t op : now)
        if (raises(in_, op)) release(counter_of[op], following);
      for (const std::int32_t op : now)
        if (next_[op] != kNone && !in_one_row(op)) settle(next_[op], following);
    }
    begin_of_level.push_back(order.size());
    return order.size() == n_;
  }

  [[nodiscard]] std::int64_t raised(std::size_t op) const { return raised_[counter_of[op]]; }
  [[nodiscard]] std::size_t counters() const { return raised_.size(); }
  [[nodiscard]] std::int32_t channels() const { return static_cast<std::int32_t>(heads_.size()); }

 private:
  // Chains the ops of each (rank, channel) in op order.
  void number_channels() {
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
  void number_counters() {
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
    order.reserve(n_);
  }

  bool satisfied(std::int32_t op) {
    const std::int32_t counter = counter_of[op];
    if (in_.value[op] > raised_[counter]) return false;
    if (in_.value[op] > 0) raiser[op] = raised_ops_[first_[counter] + in_.value[op] - 1];
    return true;
  }

  // `op` and the one after it belong to the same level.
  bool in_one_row(std::int32_t op) const {
    return next_[op] != kNone && goes_on(in_, op) && goes_on(in_, next_[op]);
  }

  void settle(std::int32_t op, std::vector<std::int32_t>& following) {
    if (kind_of(in_, op) == Kind::wait && !satisfied(op)) {
      next_parked_[op] = parked_[counter_of[op]];
      parked_[counter_of[op]] = op;
      return;
    }
    following.push_back(op);
    for (; in_one_row(op); op = next_[op]) following.push_back(next_[op]);
  }

  void release(std::int32_t counter, std::vector<std::int32_t>& following) {
    std::int32_t op = std::exchange(parked_[counter], kNone);
    while (op != kNone) {
      const std::int32_t next = next_parked_[op];
      settle(op, following);
      op = next;
    }
  }

  const ExactInput& in_;
  std::size_t n_;
  std::vector<std::int32_t> next_, heads_;
  std::vector<std::int32_t> first_, raised_ops_, raised_;  // per counter: its raisers in static order
  std::vector<std::int32_t> parked_, next_parked_;         // per counter: the waits that it has not satisfied, as a list
};

// Deals out turns to the transfers of one level: each gets the first turn that neither of its links has given away yet. In
// op order alone, transfers that share one link each with the next would all wait in one line.
class Turns {
 public:
  explicit Turns(std::size_t links) : used_(links), full_(links, 0) {}

  std::int64_t next(std::int32_t a, std::int32_t b) {
    std::size_t word = std::max(full_[a], full_[b]);
    while (~(at(a, word) | at(b, word)) == 0) ++word;
    const int bit = std::countr_one(at(a, word) | at(b, word));
    take(a, word, bit);
    if (b != a) take(b, word, bit);
    return static_cast<std::int64_t>(word) * 64 + bit;
  }

  void clear() {
    for (const std::int32_t link : touched_) {
      used_[link].clear();
      full_[link] = 0;
    }
    touched_.clear();
  }

 private:
  [[nodiscard]] std::uint64_t at(std::int32_t link, std::size_t word) const {
    return word < used_[link].size() ? used_[link][word] : 0;
  }

  void take(std::int32_t link, std::size_t word, int bit) {
    std::vector<std::uint64_t>& used = used_[link];
    if (used.empty()) touched_.push_back(link);
    if (used.size() <= word) used.resize(word + 1, 0);
    used[word] |= std::uint64_t{1} << bit;
    while (full_[link] < used.size() && ~used[full_[link]] == 0) ++full_[link];
  }

  std::vector<std::vector<std::uint64_t>> used_;  // per link: bit t says that turn t is given away
  std::vector<std::size_t> full_;                 // per link: words before this one are all ones
  std::vector<std::int32_t> touched_;
};

// Adds up time, level by level.
class Clock {
 public:
  Clock(const ExactInput& in, const ExactOutput& out, const Order& order)
      : in_(in), out_(out), order_(order), clock_(order.channels()), left_(order.channels()),
        free_(in.link_latency_ps.size(), 0), last_arrival_(order.counters(), 0), turns_(in.link_latency_ps.size()) {
    for (std::size_t op = 0; op < in.rank.size(); ++op) {
      clock_[order.channel_of[op]] = in.late_ps[in.rank[op]];
      flushes_one_peer_ |= kind_of(in, op) == Kind::flush && in.peer[op] >= 0;
    }
  }

  // The first op that happens too late to be represented, or -1.
  std::int64_t run() {
    std::copy(in_.late_ps.begin(), in_.late_ps.end(), out_.finish_ps.begin());
    for (std::size_t i = 0; i + 1 < order_.begin_of_level.size(); ++i) {
      const auto first = order_.order.begin() + static_cast<std::ptrdiff_t>(order_.begin_of_level[i]);
      const auto last = order_.order.begin() + static_cast<std::ptrdiff_t>(order_.begin_of_level[i + 1]);
      if (const std::int64_t op = run_level({first, last}); op >= 0) return op;
    }
    return -1;
  }

 private:
  // A channel has in a level either one op, or puts and signals at which it goes on: so the order inside a level matters to links
  // (turns) and to counters (op order), and to nothing else.
  std::int64_t run_level(std::span<const std::int32_t> ops) {
    turns_.clear();
    line_.clear();
    for (const std::int32_t op : ops) {
      const bool queued = moves(kind_of(in_, op));
      const std::int64_t turn = queued ? turns_.next(in_.link_a[op], in_.link_b[op]) : 0;
      line_.emplace_back(turn, op);
    }
    std::sort(line_.begin(), line_.end());
    for (const auto& [turn, op] : line_) {
      std::int64_t& clock = clock_[order_.channel_of[op]];
      out_.begin_ps[op] = out_.start_ps[op] = clock;
      step(op, clock);
      out_.end_ps[op] = clock;
      std::int64_t& finish = out_.finish_ps[in_.rank[op]];
      finish = std::max({finish, clock, kind_of(in_, op) == Kind::put ? out_.leave_ps[op] : 0});
      if (finish >= kForever || out_.arrive_ps[op] >= kForever) return op;
    }
    for (const std::int32_t op : ops)
      if (raises(in_, op)) raise(op);
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
    out_.arrive_ps[op] = kind == Kind::signal ? clock + latency(op) : clock;
  }

  [[nodiscard]] std::int64_t latency(std::int32_t op) const {
    return in_.link_latency_ps[in_.link_a[op]] +
           (in_.link_a[op] == in_.link_b[op] ? 0 : in_.link_latency_ps[in_.link_b[op]]);
  }

  [[nodiscard]] std::int64_t busy_ps(std::int32_t op, std::int32_t link) const {
    return std::min(in_.hold_ps[op] + duration_ps(in_.work_bytes[op], in_.link_bytes_per_s[link]), kForever);
  }

  // Occupies the links of the path; returns the arrival.
  std::int64_t move(std::int32_t op, std::int64_t from) {
    const std::int32_t a = in_.link_a[op], b = in_.link_b[op];
    const std::int64_t start = std::max({from, in_.ready_ps[op], free_[a], free_[b]});
    const std::int64_t time_a = busy_ps(op, a), time_b = a == b ? time_a : busy_ps(op, b);
    // Each at most 2^62, so sums of two fit; saturated here so that later ops cannot overflow either.
    free_[a] = std::min(start + time_a, kForever);
    free_[b] = std::min(start + time_b, kForever);
    out_.start_ps[op] = start;
    out_.leave_ps[op] = std::min(start + std::max(time_a, time_b), kForever);
    return out_.arrive_ps[op] = std::min(out_.leave_ps[op] + latency(op), kForever);
  }

  // A counter rises by (level, op): never before an earlier raise has been seen.
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
  bool flushes_one_peer_ = false;
  Turns turns_;
  std::vector<std::pair<std::int64_t, std::int32_t>> line_;  // (turn, op) of one level
};

// The first op with a column out of range, or -1. Everything after relies on it.
std::int64_t find_bad_op(const ExactInput& in) {
  const auto ranks = static_cast<std::int32_t>(in.late_ps.size());
  const auto links = static_cast<std::int32_t>(in.link_bytes_per_s.size());
  for (std::size_t op = 0; op < in.rank.size(); ++op) {
    const Kind kind = kind_of(in, op);
    const bool paired = kind == Kind::put || kind == Kind::get || kind == Kind::signal || kind == Kind::wait;
    const bool counted = kind == Kind::signal || kind == Kind::wait;
    const auto link_is_good = [&](std::int32_t l) { return l >= 0 && l < links && in.link_bytes_per_s[l] > 0; };
    const auto time_is_good = [](std::int64_t ps) { return ps >= 0 && ps < kForever / 2; };
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

// The wait to blame: the first op, by id, that its channel came to and that nothing will wake.
ExactResult find_deadlock(const ExactInput& in, const Order& order, std::span<const std::int32_t> level) {
  std::vector<bool> seen(order.channels(), false);
  for (std::size_t op = 0; op < in.rank.size(); ++op) {
    if (level[op] != kNone || seen[order.channel_of[op]]) continue;
    seen[order.channel_of[op]] = true;
    if (kind_of(in, op) == Kind::wait) return {ExactStatus::deadlock, static_cast<std::int64_t>(op), order.raised(op)};
  }
  return {ExactStatus::deadlock, -1, 0};
}

}  // namespace

std::int64_t duration_ps(std::int64_t nbytes, std::int64_t bytes_per_s) noexcept {
  if (bytes_per_s >= kInstant) return 0;
  const Wide rate = static_cast<Wide>(bytes_per_s);
  const Wide ps = (static_cast<Wide>(nbytes) * 1'000'000'000'000u + rate - 1) / rate;
  return ps > static_cast<Wide>(kForever) ? kForever : static_cast<std::int64_t>(ps);
}

ExactResult simulate_exact(const ExactInput& in, const ExactOutput& out) noexcept try {
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
