// See meetings.hpp.
#include "meetings.hpp"

#include <algorithm>
#include <new>
#include <vector>

#include "exact.hpp"

namespace ccl_lab::sim {
namespace {

using Index = std::ptrdiff_t;

constexpr std::int64_t kPlaces = std::int64_t{1} << 20;
constexpr std::int64_t kMostTime = std::int64_t{1} << 52;
constexpr Index kTile = 512, kSteps = 64;  // what stays in a cache

Index size_of(const auto& column) { return static_cast<Index>(column.size()); }

// -- cells: nodes v and chunks k in a row, which differ by the same number

[[gnu::always_inline]] inline void pass_batches(std::int64_t* __restrict batch, std::int64_t* __restrict free, std::int64_t* __restrict message,
                                                const std::int64_t* __restrict ticks, std::int64_t more, Index count) {
  for (Index i = 0; i < count; ++i) {
    const std::int64_t now = std::max(batch[i] + 1, message[i]) + more;
    const std::int64_t gone = std::max(now & ~(kPlaces - 1), free[i]) + ticks[i];
    batch[i] = now;
    free[i] = message[i] = gone;
  }
}

inline double later(double a, double b) { return a < b ? b : a; }

// kOne: both NICs are always busy for the same time, so that tx stands for both.
template <bool kAdds, bool kOne>
[[gnu::always_inline]] inline void pass_times(double* __restrict clock, double* __restrict tx, double* __restrict rx, double* __restrict message,
                                              const double* __restrict add, const double* __restrict tx_ps, const double* __restrict rx_ps,
                                              const double* __restrict latency, Index count) {
  for (Index i = 0; i < count; ++i) {
    double now = later(clock[i], message[i]);
    if constexpr (kAdds) now += add[i];
    clock[i] = now;
    double start = later(now, tx[i]);
    if constexpr (!kOne) start = later(start, rx[i]);
    double gone = start + tx_ps[i];
    tx[i] = gone;
    if constexpr (!kOne) {
      rx[i] = start + rx_ps[i];
      gone = later(gone, rx[i]);
    }
    message[i] = gone + latency[i];
  }
}

#define CCL_TIMES                                                                                                                   \
  (double* clock, double* tx, double* rx, double* message, const double* add, const double* tx_ps, const double* rx_ps, \
   const double* latency, Index count)
#define CCL_GIVEN clock, tx, rx, message, add, tx_ps, rx_ps, latency, count
CCL_FOR_TARGETS(batches, (std::int64_t* batch, std::int64_t* free, std::int64_t* message, const std::int64_t* ticks, std::int64_t more, Index count),
                pass_batches(batch, free, message, ticks, more, count))
CCL_FOR_TARGETS(send, CCL_TIMES, (pass_times<false, false>(CCL_GIVEN)))
CCL_FOR_TARGETS(send_one, CCL_TIMES, (pass_times<false, true>(CCL_GIVEN)))
CCL_FOR_TARGETS(add_send, CCL_TIMES, (pass_times<true, false>(CCL_GIVEN)))
CCL_FOR_TARGETS(add_send_one, CCL_TIMES, (pass_times<true, true>(CCL_GIVEN)))
#undef CCL_TIMES
#undef CCL_GIVEN

// Calls `cells(v, v_end, k)` for steps i = 0, …, steps - 1 of chunks k in [first, end), each at node k + off + i, if that is in [0, nodes).
template <class Cells>
void wave(Index first, Index end, Index off, Index steps, Index nodes, const Cells& cells) {
  for (Index e = end; e > first; e -= kTile) {
    const Index b = std::max(first, e - kTile);
    for (Index i = 0; i < steps; ++i) {
      const Index v = std::max<Index>(b + off + i, 0), v_end = std::min(e + off + i, nodes);
      if (v < v_end) cells(v, v_end, v - off - i);
    }
  }
}

// The waves of a sweep over m nodes. State has: message (a number a chunk, of twice as many), cells(base, adds) which returns what `wave` calls,
// with chunks counted from `base` on in all tables of chunks.
template <class State>
void around(State& state, Index m, Index shift, Index steps, Index reducing) {
  for (Index s = 0; s < steps;) {
    const bool adds = s < reducing;
    const Index count = std::min({kSteps, m, (adds ? std::min(reducing, steps) : steps) - s});
    const Index base = ((-1 - s - shift) % m + m) % m;
    const auto cells = state.cells(base, adds);
    wave(0, m, 0, count, m, cells);
    wave(m - count + 1, m, -m, count, m, cells);
    std::rotate(state.message.begin(), state.message.begin() + (m - count), state.message.begin() + m);
    s += count;
  }
}

template <class State>
void before(State& state, Index m) {  // chunk k is at node k + t in step t
  for (Index t = 0; t + 1 < m; t += kSteps) wave(0, m - 1, t, std::min(kSteps, m - 1 - t), m - 1, state.cells(0, false));
}

template <class State>
void after(State& state, Index m) {  // chunk k is at node k + t + 1 - m in step t = 0, 1, …, m - 3; chunk m - 1 begins
  for (Index t = 0; t + 2 < m; t += kSteps) wave(0, m, t + 1 - m, std::min(kSteps, m - 2 - t), m, state.cells(0, false));
}

template <class Given, class State>
void sweep(const Given& in, State& state) {
  const Index m = size_of(in.came);
  auto& message = state.message;
  if (in.sweep == Sweep::around) {
    std::copy(in.came.begin(), in.came.end(), message.begin());
    around(state, m, static_cast<Index>(in.shift), static_cast<Index>(in.steps), static_cast<Index>(in.reducing));
    std::transform(message.begin(), message.begin() + m, in.came.begin(), [](auto v) { return static_cast<std::int64_t>(v); });
  } else if (in.sweep == Sweep::before) {
    before(state, m);
    for (Index t = 0; t + 1 < m; ++t) in.came[t] = static_cast<std::int64_t>(message[m - 2 - t]);
  } else {
    for (Index t = 0; t + 1 < m; ++t) message[m - 1 - t] = in.came[t];
    after(state, m);
    for (Index q = 0; q + 1 < m; ++q) in.came[q] = static_cast<std::int64_t>(message[q + 1]);
  }
}

bool good_sweep(const auto& in) {
  const Index m = size_of(in.came);
  return m >= 2 && in.shift >= 0 && in.steps >= 0 && in.reducing >= 0 && runs(in.target);
}

// -- batches

struct BatchState {
  explicit BatchState(const BatchSweep& given)
      : in(given), message(given.came.size(), 0), ticks(2 * given.ticks.size()), pass(batches_for(given.target)) {
    for (std::size_t i = 0; i < ticks.size(); ++i) ticks[i] = in.ticks[i % in.ticks.size()];
  }

  [[nodiscard]] auto cells(Index base, bool adds) {
    return [this, base, more = std::int64_t{adds ? 2 : 1}](Index v, Index end, Index k) {
      pass(in.batch.data() + v, in.free.data() + v, message.data() + k, ticks.data() + base + k, more, end - v);
    };
  }

  const BatchSweep& in;
  std::vector<std::int64_t> message, ticks;
  decltype(&batches_base) pass;
};

// -- times

// Nodes in a row that are alike, but for their latencies.
struct Stretch {
  Index begin, end;
  const double *add, *tx, *rx;
  bool one;
};

struct TimeState {
  explicit TimeState(const TimeSweep& given)
      : in(given), m(size_of(given.came)), message(given.came.size(), 0.0), clock(given.clock.begin(), given.clock.end()),
        tx(given.tx.begin(), given.tx.end()), rx(given.rx.begin(), given.rx.end()), latency(given.latency_ps.begin(), given.latency_ps.end()),
        add(doubled(given.add)), nic(doubled(given.nic)),
        pass{send_for(in.target), send_one_for(in.target), add_send_for(in.target), add_send_one_for(in.target)} {
    for (Index v = 0; v < m; ++v) {
      const bool alike = v > 0 && in.memory_kind[v] == in.memory_kind[v - 1] && in.tx_kind[v] == in.tx_kind[v - 1] &&
                         in.rx_kind[v] == in.rx_kind[v - 1];
      if (!alike) {
        const auto row = [&](const std::vector<double>& table, std::int64_t kind) { return table.data() + 2 * m * kind; };
        stretches.push_back({v, v, in.add.empty() ? nullptr : row(add, in.memory_kind[v]), row(nic, in.tx_kind[v]), row(nic, in.rx_kind[v]),
                             in.tx_kind[v] == in.rx_kind[v]});
      }
      stretches.back().end = v + 1;
      at.push_back(static_cast<std::int32_t>(stretches.size()) - 1);
      if (stretches.back().one && puts(v)) tx[v] = later(tx[v], rx[v]);
    }
  }

  // Whether a node puts something to the next one: from then on both NICs are free at the same time where they are as fast.
  [[nodiscard]] bool puts(Index v) const {
    return in.sweep == Sweep::around ? in.steps > 0 : v < m - (in.sweep == Sweep::before ? 1 : 2);
  }

  [[nodiscard]] auto cells(Index base, bool adds) {
    return [this, base, adds](Index v, Index end, Index k) {
      while (v < end) {
        const Stretch& each = stretches[static_cast<std::size_t>(at[v])];
        const Index count = std::min(end, each.end) - v;
        pass[2 * adds + each.one](clock.data() + v, tx.data() + v, rx.data() + v, message.data() + k, each.add + base + k, each.tx + base + k,
                                  each.rx + base + k, latency.data() + v, count);
        v += count;
        k += count;
      }
    };
  }

  [[nodiscard]] bool give_back() {
    double most = *std::ranges::max_element(message);
    for (Index v = 0; v < m; ++v) {
      if (stretches[static_cast<std::size_t>(at[v])].one && puts(v)) rx[v] = tx[v];
      most = std::max({most, clock[v], tx[v], rx[v]});
      in.clock[v] = static_cast<std::int64_t>(clock[v]);
      in.tx[v] = static_cast<std::int64_t>(tx[v]);
      in.rx[v] = static_cast<std::int64_t>(rx[v]);
    }
    return most < static_cast<double>(kMostTime);
  }

  [[nodiscard]] std::vector<double> doubled(std::span<const std::int64_t> table) const {
    std::vector<double> out(2 * table.size());
    for (std::size_t i = 0; i < out.size(); ++i) {
      const auto n = static_cast<std::size_t>(m), kind = i / (2 * n);
      out[i] = static_cast<double>(table[kind * n + i % n]);
    }
    return out;
  }

  const TimeSweep& in;
  Index m;
  std::vector<double> message, clock, tx, rx, latency, add, nic;
  std::vector<Stretch> stretches;
  std::vector<std::int32_t> at;  // the stretch of each node
  decltype(&send_base) pass[4];
};

bool good(const TimeSweep& in) {
  const std::size_t m = in.came.size();
  const auto time = [](std::int64_t v) { return v >= 0 && v < kMostTime; };
  for (const auto& column : {in.clock, in.tx, in.rx, in.came})
    if (column.size() != m || !std::ranges::all_of(column, time)) return false;
  if (in.add.size() % m || in.nic.size() % m || in.nic.empty() || in.latency_ps.size() != m) return false;
  for (const auto& column : {in.add, in.nic, in.latency_ps})
    if (!std::ranges::all_of(column, time)) return false;
  const auto kinds = [&](const auto& column, std::size_t count) {
    return column.size() == m && std::ranges::all_of(column, [&](std::int64_t v) { return v >= 0 && v < static_cast<std::int64_t>(count); });
  };
  if (!kinds(in.tx_kind, in.nic.size() / m) || !kinds(in.rx_kind, in.nic.size() / m)) return false;
  return (in.add.empty() && in.reducing == 0 && in.memory_kind.size() == m) || kinds(in.memory_kind, in.add.size() / m);
}

// -- fabrics

bool good(const FabricsInput& in, std::size_t order) {
  if (in.nodes < 1 || in.group < 1 || in.puts < 0 || in.alpha_ps < 0) return false;
  const auto rows = static_cast<std::size_t>(in.nodes * in.puts), ranks = static_cast<std::size_t>(in.nodes * in.group);
  const auto local = [&](const auto& column) {
    return column.size() == rows && std::ranges::all_of(column, [&](std::int32_t v) { return v >= 0 && v < in.group; });
  };
  return in.batch.size() == rows && local(in.source) && local(in.to) && in.nbytes.size() == rows && order == rows &&
         in.bytes_per_s.size() == ranks && in.latency_ps.size() == ranks && in.late_ps.size() == ranks &&
         std::ranges::all_of(in.bytes_per_s, [](std::int64_t v) { return v > 0; });
}

// Turns of one batch: each put gets the first that neither of its ends has given away.
class Turns {
 public:
  explicit Turns(std::int64_t group) : used_(2 * static_cast<std::size_t>(group)) {}

  std::int64_t next(std::size_t tx, std::size_t rx) {
    auto &a = used_[2 * tx], &b = used_[2 * rx + 1];
    std::int64_t turn = 0;
    while (std::ranges::find(a, turn) != a.end() || std::ranges::find(b, turn) != b.end()) ++turn;
    a.push_back(turn);
    b.push_back(turn);
    return turn;
  }

  void clear() {
    for (auto& each : used_) each.clear();
  }

 private:
  std::vector<std::vector<std::int64_t>> used_;
};

struct Placed {
  std::int64_t batch, turn;
  std::int32_t op;
  auto operator<=>(const Placed&) const = default;
};

}  // namespace

MeetingStatus sweep_batches(const BatchSweep& in) noexcept try {
  if (!good_sweep(in) || in.batch.size() != in.came.size() || in.free.size() != in.came.size() || in.ticks.size() != in.came.size())
    return MeetingStatus::bad_input;
  if (in.sweep == Sweep::before)  // there is no wait before the first put
    for (auto& each : in.batch) --each;
  BatchState state(in);
  sweep(in, state);
  if (in.sweep == Sweep::before) ++in.batch.back();
  return MeetingStatus::ok;
} catch (const std::bad_alloc&) {
  return MeetingStatus::out_of_memory;
}

MeetingStatus sweep_times(const TimeSweep& in) noexcept try {
  if (!good_sweep(in) || !good(in)) return MeetingStatus::bad_input;
  TimeState state(in);
  sweep(in, state);
  return state.give_back() ? MeetingStatus::ok : MeetingStatus::too_long;
} catch (const std::bad_alloc&) {
  return MeetingStatus::out_of_memory;
}

MeetingStatus order_fabrics(const FabricsInput& in, std::span<std::int32_t> order) noexcept try {
  if (!good(in, order.size())) return MeetingStatus::bad_input;
  Turns turns(in.group);
  std::vector<Placed> placed;
  for (std::int64_t node = 0; node < in.nodes; ++node) {
    placed.clear();
    for (std::int64_t put = 0; put < in.puts; ++put)
      if (const std::int64_t batch = in.batch[put * in.nodes + node]; batch >= 0) placed.push_back({batch, 0, static_cast<std::int32_t>(put)});
    std::ranges::sort(placed);
    for (std::size_t i = 0; i < placed.size(); ++i) {
      if (i == 0 || placed[i].batch != placed[i - 1].batch) turns.clear();
      const std::int64_t row = placed[i].op * in.nodes + node;
      placed[i].turn = turns.next(static_cast<std::size_t>(in.source[row]), static_cast<std::size_t>(in.to[row]));
    }
    std::ranges::sort(placed);
    const auto mine = order.subspan(static_cast<std::size_t>(node * in.puts), static_cast<std::size_t>(in.puts));
    std::ranges::fill(mine, -1);
    std::ranges::transform(placed, mine.begin(), [](const Placed& each) { return each.op; });
  }
  return MeetingStatus::ok;
} catch (const std::bad_alloc&) {
  return MeetingStatus::out_of_memory;
}

MeetingStatus serve_fabrics(const FabricsInput& in, std::span<const std::int32_t> order, std::span<const std::int64_t> ready_ps,
                            std::span<std::int64_t> next, std::span<std::int64_t> tx_ps, std::span<std::int64_t> rx_ps,
                            std::span<std::int64_t> left_ps, std::span<std::int64_t> seen_ps) noexcept {
  const auto ranks = static_cast<std::size_t>(in.nodes * in.group);
  if (!good(in, order.size()) || next.size() != static_cast<std::size_t>(in.nodes) || tx_ps.size() != ranks || rx_ps.size() != ranks ||
      ready_ps.size() != order.size() || left_ps.size() != order.size() || seen_ps.size() != order.size())
    return MeetingStatus::bad_input;
  for (std::int64_t node = 0; node < in.nodes; ++node) {
    for (std::int64_t& i = next[node]; i >= 0 && i < in.puts; ++i) {
      const std::int32_t put = order[node * in.puts + i];
      if (put < 0 || put >= in.puts || ready_ps[put * in.nodes + node] < 0) break;
      const std::int64_t row = put * in.nodes + node, source = node * in.group + in.source[row], to = node * in.group + in.to[row];
      const std::int64_t start = std::max({ready_ps[row], in.late_ps[to], tx_ps[source], rx_ps[to]}), held = in.nbytes[row] > 0 ? in.alpha_ps : 0;
      tx_ps[source] = start + held + duration_ps(in.nbytes[row], in.bytes_per_s[source]);
      rx_ps[to] = start + held + duration_ps(in.nbytes[row], in.bytes_per_s[to]);
      left_ps[row] = std::max(tx_ps[source], rx_ps[to]);
      seen_ps[row] = left_ps[row] + in.latency_ps[source] - in.latency_ps[source] / 2 + in.latency_ps[to] / 2;
    }
  }
  return MeetingStatus::ok;
}

}  // namespace ccl_lab::sim
