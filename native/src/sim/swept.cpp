// See swept.hpp.
#include "swept.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "busy.hpp"
#include "exact.hpp"
#include "order.hpp"
#include "stream.hpp"
#include "vectors.hpp"

namespace ccl_lab::sim {
namespace {

constexpr double kMost = static_cast<double>(std::int64_t{1} << 52);
constexpr std::size_t kMostKinds = 64;

double later(double a, double b) { return a < b ? b : a; }

// A put of a slice's message `i`.
struct First {
  std::size_t chain, i;
};

// Units in a row of which each chain has the same links, with the same rates, and is served in the same order.
struct Stretch {
  std::size_t begin = 0, end = 0;
  std::vector<std::size_t> kinds;        // by chain
  std::vector<First> first;              // what a slice begins with
  std::vector<std::size_t> line;         // chains, as a step's puts are served
  bool as_numbered = true;               // which is in their order
};

// What the next messages of some units do, one number a unit each.
struct Columns {
  double *clock, *memory, *a, *b;
  const double *came, *add, *a_ps, *b_ps, *latency_ps;
  double* goes;

  [[nodiscard]] Columns from(std::size_t i) const {
    return {clock + i, memory + i, a + i, b + i, came + i, add, a_ps, b_ps, latency_ps + i, goes + i};
  }
};

// One: both links are always busy for the same time, so that `a` stands for both. Alone: nothing else uses the memory, which is free when the
// channel comes to it.
template <bool kAdds, bool kOne, bool kAlone>
[[gnu::always_inline]] inline void messages(double* __restrict clock, double* __restrict memory, double* __restrict a, double* __restrict b, double* __restrict goes,
                     const double* __restrict came, const double* __restrict add, const double* __restrict a_ps, const double* __restrict b_ps,
                     const double* __restrict latency, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    double now = later(clock[i], came[i]);
    if constexpr (kAdds && !kAlone) now = later(now, memory[i]);
    if constexpr (kAdds) now += add[i];
    if constexpr (kAdds && !kAlone) memory[i] = now;
    clock[i] = now;
    double start = later(now, a[i]);
    if constexpr (!kOne) start = later(start, b[i]);
    double end = start + a_ps[i];
    a[i] = end;
    if constexpr (!kOne) {
      b[i] = start + b_ps[i];
      end = later(end, b[i]);
    }
    goes[i] = end + latency[i];
  }
}

#define CCL_MESSAGES(name, ...)                     \
  CCL_FOR_TARGETS(name, (const Columns& c, std::size_t count), \
                  (messages<__VA_ARGS__>(c.clock, c.memory, c.a, c.b, c.goes, c.came, c.add, c.a_ps, c.b_ps, c.latency_ps, count)))
CCL_MESSAGES(send_on, false, false, false)
CCL_MESSAGES(send_on_one, false, true, false)
CCL_MESSAGES(add_and_send, true, false, false)
CCL_MESSAGES(add_and_send_one, true, true, false)
CCL_MESSAGES(add_and_send_alone, true, true, true)

class Sweep {
 public:
  explicit Sweep(const RingsInput& in)
      : in_(in), units_(static_cast<std::size_t>(in.units)), chains_(static_cast<std::size_t>(in.chains)),
        depth_(static_cast<std::size_t>(in.depth)), most_(static_cast<std::size_t>(*std::ranges::max_element(in.slices))) {}

  [[nodiscard]] bool fits() {
    if (in_.stations != 1 || in_.copies || !in_.changes.link.empty() || in_.n_sizes != in_.units) return false;
    // All chains begin a slice together, in one batch.
    if (in_.timetable && std::ranges::count(in_.slices, in_.slices[0]) != in_.chains) return false;
    if (in_.timetable && std::ranges::adjacent_find(in_.begin_batch, std::ranges::not_equal_to()) != in_.begin_batch.end()) return false;
    for (const auto& ids : {in_.memory, in_.link_a, in_.link_b})
      for (const std::int32_t id : ids) links_ = std::max(links_, static_cast<std::size_t>(id) + 1);
    if (!find_stretches()) return false;
    one_ = std::ranges::equal(in_.a_bytes_per_s, in_.b_bytes_per_s);
    for (const Stretch& each : stretches_)
      for (std::size_t c = 1; c < chains_; ++c)
        for (std::size_t other = 0; other < c; ++other)
          one_ = one_ && (a(each, c) == a(each, other)) == (b(each, c) == b(each, other));
    send_ = (one_ ? send_on_one_for : send_on_for)(Target::best);
    add_ = (one_ ? add_and_send_one_for : add_and_send_for)(Target::best);
    return true;
  }

  RingsStatus run(RingsOutput& out) {
    begin();
    const std::size_t messages = static_cast<std::size_t>(in_.steps) * depth_;
    for (std::size_t slice = 0; slice < most_; ++slice) {
      enter(slice);
      for (std::size_t message = 0; message < messages; ++message) handle(slice, message / depth_, message % depth_);
      for (std::size_t c = 0; c < chains_; ++c)
        if (goes_on(c, slice)) ends(c, slice, out);
    }
    for (std::size_t c = 0; c < chains_; ++c) {
      for (std::size_t u = 0; u < units_; ++u) {
        const double end = later(clock_[c][u], left_[c][u]);
        if (end >= kMost) return RingsStatus::bad_input;
        out.finish_ps[u * chains_ + c] = static_cast<std::int64_t>(end);
      }
    }
    out.rounds = in_.units * in_.chains * in_.steps * in_.depth;
    return RingsStatus::ok;
  }

 private:
  using Column = std::vector<double>;
  struct Times {  // of the i-th messages of a slice, twice, so that those of a step lie in a row: to add, and on both links
    Column add, a, b;
  };

  [[nodiscard]] std::size_t kind_row(std::size_t unit) const { return static_cast<std::size_t>(in_.kind_row(static_cast<std::int64_t>(unit))); }
  [[nodiscard]] bool goes_on(std::size_t c, std::size_t slice) const { return static_cast<std::int64_t>(slice) < in_.slices[c]; }
  // A chain's links.
  [[nodiscard]] std::size_t memory(const Stretch& at, std::size_t c) const { return of(in_.memory, at, c); }
  [[nodiscard]] std::size_t a(const Stretch& at, std::size_t c) const { return of(in_.link_a, at, c); }
  [[nodiscard]] std::size_t b(const Stretch& at, std::size_t c) const { return of(in_.link_b, at, c); }
  [[nodiscard]] std::size_t of(std::span<const std::int32_t> links, const Stretch& at, std::size_t c) const {
    return static_cast<std::size_t>(links[kind_row(at.begin) + c]);
  }

  bool find_stretches() {
    std::map<std::array<std::int64_t, 3>, std::size_t> known;
    std::vector<std::size_t> kinds(chains_);
    for (std::size_t u = 0; u < units_; ++u) {
      for (std::size_t c = 0; c < chains_; ++c) {
        const std::size_t row = kind_row(u) + c;
        const std::array rates = {in_.memory_bytes_per_s[row], in_.a_bytes_per_s[row], in_.b_bytes_per_s[row]};
        kinds[c] = known.try_emplace(rates, known.size()).first->second;
      }
      if (known.size() > kMostKinds) return false;
      if (stretches_.empty() || kinds != stretches_.back().kinds || !same_order(u)) begin_stretch(u, kinds);
      stretches_.back().end = u + 1;
    }
    kinds_.resize(known.size());
    for (const auto& [rates, kind] : known) kinds_[kind] = rates;
    return true;
  }

  // Whether a unit has the links of the one before.
  [[nodiscard]] bool same_order(std::size_t u) const {
    for (const auto& ids : {in_.memory, in_.link_a, in_.link_b})
      for (std::size_t c = 0; c < chains_; ++c)
        if (ids[kind_row(u) + c] != ids[kind_row(u - 1) + c]) return false;
    return true;
  }

  void begin_stretch(std::size_t u, const std::vector<std::size_t>& kinds) {
    Stretch& now = stretches_.emplace_back();
    now.begin = u;
    now.kinds = kinds;
    now.line.resize(chains_);
    std::iota(now.line.begin(), now.line.end(), 0);
    if (!in_.timetable) {
      for (std::size_t c = 0; c < chains_; ++c)
        for (std::size_t i = 0; i < depth_; ++i) now.first.push_back({c, i});
      return;
    }
    // Ops of a batch are written message by message, chain by chain.
    std::vector<First> puts;
    for (std::size_t i = 0; i < depth_; ++i)
      for (std::size_t c = 0; c < chains_; ++c) puts.push_back({c, i});
    now.first = in_turn(now, puts);
    puts.clear();
    for (std::size_t c = 0; c < chains_; ++c) puts.push_back({c, 0});
    std::ranges::transform(in_turn(now, puts), now.line.begin(), &First::chain);
    now.as_numbered = std::ranges::is_sorted(now.line);
  }

  // The puts of a batch as links serve them.
  [[nodiscard]] std::vector<First> in_turn(const Stretch& at, std::span<const First> puts) const {
    Turns turns(links_);
    std::vector<std::pair<std::int64_t, std::size_t>> order;
    for (std::size_t k = 0; k < puts.size(); ++k)
      order.emplace_back(turns.next(static_cast<std::int32_t>(a(at, puts[k].chain)), static_cast<std::int32_t>(b(at, puts[k].chain))), k);
    std::ranges::sort(order);
    std::vector<First> found;
    for (const auto& [turn, k] : order) found.push_back(puts[k]);
    return found;
  }

  void begin() {
    const auto rows = [&](std::size_t count) { return std::vector<Column>(count, Column(units_)); };
    clock_ = left_ = latency_ = rows(chains_);
    free_ = rows(links_);
    came_ = goes_ = std::vector<Column>(chains_ * depth_, Column(units_ + 1));
    tables_.resize(chains_ * depth_ * kinds_.size());
    for (std::size_t c = 0; c < chains_; ++c) {
      for (std::size_t u = 0; u < units_; ++u) {
        const std::size_t row = kind_row(u) + c;
        clock_[c][u] = left_[c][u] = static_cast<double>(in_.late_ps[row]);
        latency_[c][u] = static_cast<double>(in_.latency_ps[row]);
      }
    }
  }

  void make_tables(std::size_t c, std::size_t slice, std::size_t i) {
    const std::int64_t* const bytes = in_.bytes.data() + ((c * most_ + slice) * depth_ + i) * units_;
    const auto time = [](std::int64_t ps) { return static_cast<double>(std::min(ps, std::int64_t{1} << 60)); };
    for (std::size_t kind = 0; kind < kinds_.size(); ++kind) {
      Times& table = tables_[(c * depth_ + i) * kinds_.size() + kind];
      for (Column* column : {&table.add, &table.a, &table.b}) column->resize(2 * units_);
      std::int64_t known = -1;
      std::array<double, 3> took = {};
      for (std::size_t at = 0; at < 2 * units_; ++at) {
        const std::int64_t size = bytes[at % units_], held = size > 0 ? in_.alpha_ps : 0;
        if (size != known) took = {time(duration_ps((1 + in_.own) * size, kinds_[kind][0])), time(held + duration_ps(size, kinds_[kind][1])),
                                   time(held + duration_ps(size, kinds_[kind][2]))};
        known = size;
        table.add[at] = took[0];
        table.a[at] = took[1];
        table.b[at] = took[2];
      }
    }
  }

  // A slice begins.
  void enter(std::size_t slice) {
    for (std::size_t c = 0; c < chains_; ++c) {
      if (!goes_on(c, slice)) continue;
      for (std::size_t u = 0; u < units_ && !in_.begin_ps.empty(); ++u)
        clock_[c][u] = later(clock_[c][u], static_cast<double>(in_.begin_ps[(u * chains_ + c) * most_ + slice]));
      for (std::size_t i = 0; i < depth_; ++i) {
        make_tables(c, slice, i);
        std::ranges::fill(came_[c * depth_ + i], 0.0);
      }
    }
    for (const Stretch& each : stretches_) {
      for (std::size_t c = 0; in_.own > 1 && c < chains_; ++c) add_own(each, c, slice);
      for (const auto& [c, i] : each.first) {
        if (!goes_on(c, slice)) continue;
        // What a unit sends first is not before the rank that it goes to has entered, and nothing after it is.
        Column& free = free_[a(each, c)];
        for (std::size_t u = each.begin; u < each.end; ++u) free[u] = later(free[u], static_cast<double>(in_.ready_ps[kind_row(u) + c]));
        pass(each, c, i, 0, send_);
      }
    }
    for (std::size_t i = 0; i < depth_; ++i) arrive(slice, i);
  }

  // What a chain sends first is added up.
  void add_own(const Stretch& at, std::size_t c, std::size_t slice) {
    if (!goes_on(c, slice)) return;
    Column &clock = clock_[c], &memory_free = free_[memory(at, c)];
    const std::int64_t* const bytes = in_.bytes.data() + (c * most_ + slice) * depth_ * units_;
    for (std::size_t u = at.begin; u < at.end; ++u) {
      std::int64_t sum = 0;
      for (std::size_t i = 0; i < depth_; ++i) sum += bytes[i * units_ + u];
      clock[u] = memory_free[u] = later(clock[u], memory_free[u]) + static_cast<double>(own_ps(in_, kind_row(u) + c, sum));
    }
  }

  // The i-th message of `chunk` by unit 0, and so on, round the ring.
  void pass(const Stretch& at, std::size_t c, std::size_t i, std::size_t chunk, decltype(&send_on_base) how) {
    const std::size_t row = c * depth_ + i;
    const Times& table = tables_[row * kinds_.size() + at.kinds[c]];
    Columns columns = Columns{clock_[c].data(), free_[memory(at, c)].data(), free_[a(at, c)].data(), free_[b(at, c)].data(), came_[row].data(),
                              nullptr, nullptr, nullptr, latency_[c].data(), goes_[row].data() + 1}.from(at.begin);
    columns.add = table.add.data() + chunk + at.begin;
    columns.a_ps = table.a.data() + chunk + at.begin;
    columns.b_ps = table.b.data() + chunk + at.begin;
    how(columns, at.end - at.begin);
  }

  // What was sent comes in.
  void arrive(std::size_t slice, std::size_t i) {
    for (std::size_t c = 0; c < chains_; ++c) {
      if (!goes_on(c, slice)) continue;
      Column& goes = goes_[c * depth_ + i];
      goes[0] = goes[units_];
      came_[c * depth_ + i].swap(goes);
    }
  }

  // The i-th messages of a step, of all chains.
  void handle(std::size_t slice, std::size_t step, std::size_t i) {
    const bool adds = static_cast<std::int64_t>(step) < in_.reducing, sends = static_cast<std::int64_t>(step) + 1 < in_.steps;
    const std::size_t chunk = (units_ - 1 + units_ - step % units_) % units_;
    const bool alone = one_ && chains_ == 1 && step > 0;
    for (const Stretch& each : stretches_) {
      // Memory serves chains as they are numbered.
      const bool both = sends && each.as_numbered;
      for (std::size_t c = 0; c < chains_; ++c) {
        if (!goes_on(c, slice)) continue;
        if (both) pass(each, c, i, chunk, !adds ? send_ : alone ? add_alone_ : add_);
        else wait(each, c, i, chunk, adds);
      }
      for (std::size_t k = 0; sends && !both && k < chains_; ++k) pass(each, each.line[k], i, chunk, send_);
    }
    if (sends) arrive(slice, i);
  }

  void wait(const Stretch& at, std::size_t c, std::size_t i, std::size_t chunk, bool adds) {
    const Column &came = came_[c * depth_ + i], &add = tables_[(c * depth_ + i) * kinds_.size() + at.kinds[c]].add;
    Column& memory_free = free_[memory(at, c)];
    for (std::size_t u = at.begin; u < at.end; ++u) {
      double& clock = clock_[c][u];
      clock = later(clock, came[u]);
      if (adds) clock = memory_free[u] = later(clock, memory_free[u]) + add[chunk + u];
    }
  }

  void ends(std::size_t c, std::size_t slice, RingsOutput& out) {
    for (std::size_t u = 0; u < units_; ++u) {
      left_[c][u] = came_[(c + 1) * depth_ - 1][u + 1] - latency_[c][u];  // the last message that it sent
      if (out.end_ps.empty()) continue;
      const std::size_t end = (u * chains_ + c) * most_ + slice;
      out.end_ps[end] = static_cast<std::int64_t>(clock_[c][u]);
      if (in_.timetable) out.end_batch[end] = (static_cast<std::int64_t>(slice) + 1) * in_.steps * in_.depth << kPlaceBits;
    }
  }

  const RingsInput& in_;
  const std::size_t units_, chains_, depth_, most_;
  std::size_t links_ = 0;
  bool one_ = false;
  decltype(&send_on_base) send_ = nullptr, add_ = nullptr, add_alone_ = add_and_send_alone_for(Target::best);
  std::vector<std::array<std::int64_t, 3>> kinds_;   // rates: memory, and both links
  std::vector<Stretch> stretches_;
  std::vector<Column> clock_, left_, latency_;       // by chain
  std::vector<Column> free_;                         // by link of a unit
  std::vector<Column> came_, goes_;                  // by chain and depth: the messages to unit 0, 1, …, and round to the first one again
  std::vector<Times> tables_;                        // by chain, depth and kind, of its slice
};

}  // namespace

RingsStatus swept_rings(const RingsInput& in, RingsOutput& out) {
  Sweep sweep(in);
  return sweep.fits() ? sweep.run(out) : RingsStatus::bad_input;
}

}  // namespace ccl_lab::sim
