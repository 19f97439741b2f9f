// See sharing.hpp. Flows of one route get one rate, so a class only counts how much any flow of it has moved since time began
// (`moved`); a flow that begins is due at what was moved then plus its own work. The next to end is the top of a heap, and
// a change of rate costs nothing a flow.
#include "sharing.hpp"

#include <algorithm>
#include <functional>
#include <new>
#include <queue>
#include <tuple>
#include <vector>

#include "order.hpp"
#include "sharing_rates.hpp"

namespace ccl_lab::sim {
namespace {

constexpr std::int64_t kForever = std::int64_t{1} << 62;
constexpr std::int64_t kPsPerSecond = 1'000'000'000'000;
__extension__ typedef unsigned __int128 Wide;  // work: units (2^-10 bytes/s) times picoseconds

// What the static order of each job's own schedule says: which raise a wait is for, and in which order a counter's raises count.
struct Program {
  std::vector<std::int32_t> channel_of, counter_of, raiser;
  std::vector<std::int32_t> next, heads;    // ops of a channel as a list
  std::vector<std::int32_t> next_raise;     // of the same counter
  std::vector<std::int32_t> first_raise;    // per counter

  ExactResult read(const SharedInput& in, std::span<std::int32_t> level);

 private:
  void take(const ExactInput& job, const Order& order, std::int32_t begin);
};

ExactInput job_of(const ExactInput& all, std::size_t begin, std::size_t n) {
  ExactInput job = all;
  for (auto column : {&ExactInput::rank, &ExactInput::channel, &ExactInput::peer, &ExactInput::sig_channel, &ExactInput::value,
                      &ExactInput::link_a, &ExactInput::link_b})
    job.*column = (all.*column).subspan(begin, n);
  for (auto column : {&ExactInput::work_bytes, &ExactInput::hold_ps, &ExactInput::compute_ps, &ExactInput::ready_ps, &ExactInput::request_ps})
    job.*column = (all.*column).subspan(begin, n);
  job.kind = all.kind.subspan(begin, n);
  if (!all.tier_ps.empty()) job.tier_ps = all.tier_ps.subspan(begin, n);
  job.step = {};
  if (n > 0 && !all.step.empty() && all.step[begin] >= 0) job.step = all.step.subspan(begin, n);
  if (!all.nominal_bytes.empty()) job.nominal_bytes = all.nominal_bytes.subspan(begin, n);
  return job;
}

ExactResult Program::read(const SharedInput& in, std::span<std::int32_t> level) {
  const std::size_t n = in.ops.rank.size();
  next.assign(n, kNone), next_raise.assign(n, kNone);
  std::size_t begin = 0;
  for (const std::int64_t count : in.job_ops) {
    const ExactInput job = job_of(in.ops, begin, static_cast<std::size_t>(count));
    Order order(job);
    if (const auto levels = level.subspan(begin, job.rank.size()); !order.walk(levels)) {
      ExactResult lost = find_deadlock(job, order, levels);
      if (lost.op >= 0) lost.op += static_cast<std::int64_t>(begin);
      return lost;
    }
    take(job, order, static_cast<std::int32_t>(begin));
    begin += job.rank.size();
  }
  return {};
}

void Program::take(const ExactInput& job, const Order& order, std::int32_t begin) {
  const auto channels = static_cast<std::int32_t>(heads.size()), counters = static_cast<std::int32_t>(first_raise.size());
  heads.resize(heads.size() + static_cast<std::size_t>(order.channels()), kNone);
  first_raise.resize(first_raise.size() + order.counters(), kNone);
  std::vector<std::int32_t> last(static_cast<std::size_t>(order.channels()), kNone), last_raise(order.counters(), kNone);
  for (std::size_t i = 0; i < job.rank.size(); ++i) {
    const std::int32_t op = begin + static_cast<std::int32_t>(i), channel = order.channel_of[i];
    channel_of.push_back(channels + channel);
    counter_of.push_back(order.counter_of[i] == kNone ? kNone : counters + order.counter_of[i]);
    raiser.push_back(order.raiser[i] == kNone ? kNone : begin + order.raiser[i]);
    (last[channel] == kNone ? heads[channels + channel] : next[last[channel]]) = op;
    last[channel] = op;
  }
  for (const std::int32_t i : order.order) {
    if (!raises(job, static_cast<std::size_t>(i))) continue;
    std::int32_t& before = last_raise[order.counter_of[i]];
    (before == kNone ? first_raise[counters + order.counter_of[i]] : next_raise[before]) = begin + i;
    before = begin + i;
  }
}

class Clock {
 public:
  Clock(const SharedInput& in, const ExactOutput& out, Program& program)
      : in_(in.ops), route_of_(in.route_of), out_(out), program_(program), rates_(in.routes, in.route_width, in.ops.link_bytes_per_s),
        classes_(rates_.classes()), at_(program.heads), landed_(in.ops.rank.size(), 0), sleeper_(in.ops.rank.size(), kNone),
        next_sleeper_(program.heads.size(), kNone), flush_(program.heads.size(), kNone), going_(program.heads.size(), 0),
        connection_of_(in.ops.rank.size(), kNone) {
    number_connections();
  }

  // The first op that happens too late to be represented, or -1.
  std::int64_t run() {
    std::copy(in_.late_ps.begin(), in_.late_ps.end(), out_.finish_ps.begin());
    for (std::size_t channel = 0; channel < at_.size(); ++channel)
      at(in_.late_ps[in_.rank[at_[channel]]], What::go, static_cast<std::int32_t>(channel));
    while (!events_.empty() && too_late_ < 0) {
      now_ = events_.top().time;
      while (!events_.empty() && events_.top().time == now_) {
        const Event event = events_.top();
        events_.pop();
        handle(event);
      }
      share();
    }
    return too_late_;
  }

 private:
  enum class What : std::uint8_t { go, issue, leave, arrive, end_of_flows };

  struct Event {
    std::int64_t time;
    What what;
    std::int32_t id;      // a channel, an op, or a class
    std::uint32_t stamp;  // of a class: the event counts only if no rate was given since

    bool operator>(const Event& other) const {
      return std::tie(time, what, id, stamp) > std::tie(other.time, other.what, other.id, other.stamp);
    }
  };

  struct Flow {
    Wide due;
    std::int32_t op;

    bool operator>(const Flow& other) const { return due != other.due ? due > other.due : op > other.op; }
  };

  struct Class {
    std::vector<Flow> flows;  // a heap, the first to end on top
    Wide moved = 0;           // by a flow that was there all the time
    std::int64_t since = 0;   // when `moved` was true
    std::int64_t rate = 0;
    std::uint32_t stamp = 0;
  };

  // What one channel puts to one peer goes in order, one after the other.
  struct Connection {
    std::int32_t first = kNone, last = kNone;  // issued puts that have not left, as a list over next_put_
    std::int64_t going = 0;                    // puts of it, issued or not yet, that have not left
  };

  void number_connections() {
    DenseIds ids;
    next_put_.assign(in_.rank.size(), kNone);
    for (std::size_t op = 0; op < in_.rank.size(); ++op) {
      const bool flushes = kind_of(in_, op) == Kind::flush && in_.peer[op] >= 0;
      if (queues(static_cast<std::int32_t>(op)) || flushes) connection_of_[op] = ids(program_.channel_of[op], in_.peer[op]);
    }
    connections_.resize(static_cast<std::size_t>(ids.count()));
  }

  [[nodiscard]] bool queues(std::int32_t op) const { return kind_of(in_, op) == Kind::put && in_.peer[op] != in_.rank[op]; }

  void at(std::int64_t time, What what, std::int32_t id, std::uint32_t stamp = 0) { events_.push({time, what, id, stamp}); }

  void handle(const Event& event) {
    switch (event.what) {
      case What::go: return go(event.id);
      case What::issue: return issue(event.id);
      case What::leave: return left(event.id);
      case What::arrive: return arrive(event.id);
      case What::end_of_flows: return end_flows(event.id, event.stamp);
    }
  }

  // -- channels

  void go(std::int32_t channel) {
    while (at_[channel] != kNone) {
      const std::int32_t op = at_[channel];
      out_.begin_ps[op] = out_.start_ps[op] = now_;
      if (!step(op, channel)) return;
      end(op, channel);
    }
  }

  void end(std::int32_t op, std::int32_t channel) {
    out_.end_ps[op] = now_;
    note_finish(op);
    at_[channel] = program_.next[op];
  }

  // The channel of `op`, which was blocked there, goes on.
  void go_on(std::int32_t op) {
    const std::int32_t channel = program_.channel_of[op];
    end(op, channel);
    at(now_, What::go, channel);
  }

  void note_finish(std::int32_t op) {
    std::int64_t& finish = out_.finish_ps[in_.rank[op]];
    finish = std::max(finish, now_);
  }

  // Whether the channel goes on at once.
  bool step(std::int32_t op, std::int32_t channel) {
    switch (kind_of(in_, op)) {
      case Kind::put:
      case Kind::get:
      case Kind::copy:
      case Kind::reduce: return move(op, channel);
      case Kind::signal: instant(op); return later(op, path_latency_ps(in_, op), What::arrive), true;
      case Kind::wait: return wait(op);
      case Kind::flush: return flush(op, channel);
      case Kind::compute: return later(op, in_.compute_ps[op], What::arrive), false;
    }
    return true;
  }

  void instant(std::int32_t op) { out_.leave_ps[op] = out_.arrive_ps[op] = now_; }

  void later(std::int32_t op, std::int64_t ps, What what) {
    if (now_ + ps >= kForever && too_late_ < 0) too_late_ = op;
    at(std::min(now_ + ps, kForever), what, op);
  }

  bool move(std::int32_t op, std::int32_t channel) {
    const bool queued = queues(op);
    if (queued) {
      ++going_[channel];
      ++connections_[connection_of_[op]].going;
    }
    at(std::max(std::min(now_ + in_.request_ps[op], kForever), in_.ready_ps[op]), What::issue, op);
    return queued;
  }

  bool wait(std::int32_t op) {
    instant(op);
    const std::int32_t raise = program_.raiser[op];
    if (raise == kNone || landed_[raise] == kSeen) return true;
    next_sleeper_[program_.channel_of[op]] = sleeper_[raise];
    sleeper_[raise] = program_.channel_of[op];
    return false;
  }

  bool flush(std::int32_t op, std::int32_t channel) {
    instant(op);
    if (flushed(op, channel)) return true;
    flush_[channel] = op;
    return false;
  }

  [[nodiscard]] bool flushed(std::int32_t op, std::int32_t channel) const {
    return in_.peer[op] < 0 ? going_[channel] == 0 : connections_[connection_of_[op]].going == 0;
  }

  // -- transfers

  void issue(std::int32_t op) {
    if (!queues(op)) return start(op);
    Connection& connection = connections_[connection_of_[op]];
    if (connection.first != kNone) {
      next_put_[connection.last] = op;
      connection.last = op;
      return;
    }
    connection.first = connection.last = op;
    start(op);
  }

  void start(std::int32_t op) {
    out_.start_ps[op] = now_;
    const std::int32_t cls = route_of_[op];
    const std::int64_t slowest = rates_.slowest(cls);
    const Wide work = static_cast<Wide>(in_.work_bytes[op]) * kPsPerSecond * FairRates::kUnits + static_cast<Wide>(in_.hold_ps[op]) * slowest;
    if (slowest == 0) return later(op, in_.hold_ps[op], What::leave);
    if (work == 0) return at(now_, What::leave, op);
    Class& flows = classes_[cls];
    advance(flows);
    flows.flows.push_back({flows.moved + work, op});
    std::push_heap(flows.flows.begin(), flows.flows.end(), std::greater<>{});
    rates_.add(cls);
  }

  void advance(Class& flows) const {
    flows.moved += static_cast<Wide>(flows.rate) * static_cast<Wide>(now_ - flows.since);
    flows.since = now_;
  }

  void end_flows(std::int32_t cls, std::uint32_t stamp) {
    Class& flows = classes_[cls];
    if (stamp != flows.stamp) return;
    advance(flows);
    while (!flows.flows.empty() && flows.flows.front().due <= flows.moved) {
      const std::int32_t op = flows.flows.front().op;
      std::pop_heap(flows.flows.begin(), flows.flows.end(), std::greater<>{});
      flows.flows.pop_back();
      rates_.remove(cls);
      at(now_, What::leave, op);
    }
  }

  // New rates after all that happened now.
  void share() {
    for (const std::int32_t cls : rates_.settle()) {
      Class& flows = classes_[cls];
      advance(flows);
      flows.rate = rates_.rate(cls);
      ++flows.stamp;
      if (flows.flows.empty()) continue;
      const Flow& next = flows.flows.front();
      const Wide left = next.due - flows.moved, rate = static_cast<Wide>(flows.rate);
      const Wide ps = (left + rate - 1) / rate;
      if (ps >= static_cast<Wide>(kForever - now_)) {
        if (too_late_ < 0) too_late_ = next.op;
        return;
      }
      at(now_ + static_cast<std::int64_t>(ps), What::end_of_flows, cls, flows.stamp);
    }
  }

  void left(std::int32_t op) {
    out_.leave_ps[op] = now_;
    later(op, path_latency_ps(in_, op), What::arrive);
    if (!queues(op)) return;
    note_finish(op);
    const std::int32_t channel = program_.channel_of[op];
    Connection& connection = connections_[connection_of_[op]];
    --going_[channel];
    --connection.going;
    connection.first = next_put_[op];
    if (connection.first != kNone) start(connection.first);
    if (flush_[channel] == kNone || !flushed(flush_[channel], channel)) return;
    const std::int32_t flush = std::exchange(flush_[channel], kNone);
    instant(flush);
    go_on(flush);
  }

  void arrive(std::int32_t op) {
    out_.arrive_ps[op] = now_;
    const Kind kind = kind_of(in_, op);
    if (kind == Kind::compute) out_.leave_ps[op] = now_;
    if (kind != Kind::signal && !queues(op)) go_on(op);
    if (raises(in_, op)) land(op);
  }

  // A counter rises in the static order of its raises: one that is early is seen with the last of those before it.
  void land(std::int32_t op) {
    landed_[op] = kLanded;
    std::int32_t& next = program_.first_raise[program_.counter_of[op]];
    for (; next != kNone && landed_[next] != 0; next = program_.next_raise[next]) {
      landed_[next] = kSeen;
      out_.arrive_ps[next] = now_;
      for (std::int32_t channel = std::exchange(sleeper_[next], kNone); channel != kNone;) {
        const std::int32_t after = next_sleeper_[channel], waiting = at_[channel];
        instant(waiting);
        go_on(waiting);
        channel = after;
      }
    }
  }

  static constexpr char kLanded = 1, kSeen = 2;

  const ExactInput& in_;
  std::span<const std::int32_t> route_of_;
  const ExactOutput& out_;
  Program& program_;
  FairRates rates_;
  std::vector<Class> classes_;
  std::vector<std::int32_t> at_;                      // per channel: the op that it is at
  std::vector<char> landed_;                          // per op that raises
  std::vector<std::int32_t> sleeper_, next_sleeper_;  // per raise: the channels that wait for it, as a list over channels
  std::vector<std::int32_t> flush_;                   // per channel: the flush that it waits in
  std::vector<std::int64_t> going_;                   // per channel: its puts that have not left
  std::vector<std::int32_t> connection_of_, next_put_;
  std::vector<Connection> connections_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::int64_t now_ = 0, too_late_ = -1;
};

// The first op whose route is no row, or whose row names a link that is none; -1.
std::int64_t find_bad_route(const SharedInput& in) {
  const std::size_t width = in.route_width;
  const auto rows = static_cast<std::int32_t>(width == 0 ? 0 : in.routes.size() / width);
  const auto links = static_cast<std::int32_t>(in.ops.link_bytes_per_s.size());
  std::vector<char> bad(static_cast<std::size_t>(rows), 0);
  for (std::size_t i = 0; i < static_cast<std::size_t>(rows) * width; ++i)
    if (in.routes[i] < -1 || in.routes[i] >= links || (in.routes[i] >= 0 && in.ops.link_bytes_per_s[in.routes[i]] <= 0)) bad[i / width] = 1;
  for (std::size_t op = 0; op < in.ops.rank.size(); ++op) {
    const bool moving = moves(kind_of(in.ops, op));
    if (in.route_of[op] >= rows || (in.route_of[op] < 0 ? moving : bad[in.route_of[op]] != 0)) return static_cast<std::int64_t>(op);
  }
  return -1;
}

}  // namespace

ExactResult simulate_shared(const SharedInput& in, const ExactOutput& out) noexcept try {
  if (const std::int64_t op = find_bad_op(in.ops); op >= 0) return {ExactStatus::bad_op, op, 0};
  if (const std::int64_t op = find_bad_route(in); op >= 0) return {ExactStatus::bad_op, op, 0};
  Program program;
  if (const ExactResult lost = program.read(in, out.level); lost.status != ExactStatus::ok) return lost;
  if (const std::int64_t op = Clock(in, out, program).run(); op >= 0) return {ExactStatus::overflow, op, 0};
  return {};
} catch (const std::bad_alloc&) {
  return {ExactStatus::out_of_memory, -1, 0};
}

}  // namespace ccl_lab::sim
