// See swept.hpp.
#include "swept.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include "exact.hpp"
#include "vectors.hpp"

namespace ccl_lab::sim {
namespace {

constexpr double kMost = static_cast<double>(std::int64_t{1} << 52);
constexpr std::size_t kMostKinds = 64;

double later(double a, double b) { return a < b ? b : a; }

// Units in a row whose links have the same rates.
struct Stretch {
  std::size_t begin, end, kind;
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
    for (const auto& ids : {in_.memory, in_.link_a, in_.link_b})
      for (std::size_t row = chains_; row < ids.size(); ++row)
        if (ids[row] != ids[row - chains_]) return false;
    one_ = std::ranges::equal(in_.a_bytes_per_s, in_.b_bytes_per_s);
    for (std::size_t c = 1; c < chains_; ++c)
      for (std::size_t other = 0; other < c; ++other)
        one_ = one_ && (in_.link_a[c] == in_.link_a[other]) == (in_.link_b[c] == in_.link_b[other]);
    send_ = (one_ ? send_on_one_for : send_on_for)(Target::best);
    add_ = (one_ ? add_and_send_one_for : add_and_send_for)(Target::best);
    return find_kinds();
  }

  RingsStatus run(RingsOutput& out) {
    begin();
    for (std::size_t c = 0; c < chains_; ++c) enter(c, 0);
    const std::size_t messages = static_cast<std::size_t>(in_.steps) * depth_;
    for (std::size_t slice = 0; slice < most_; ++slice) {
      for (std::size_t message = 0; message < messages; ++message) {
        for (std::size_t c = 0; c < chains_; ++c) {
          if (static_cast<std::int64_t>(slice) >= in_.slices[c]) continue;
          handle(c, message / depth_, message % depth_);
          if (message + 1 < messages) continue;
          ends(c, slice, out);
          if (static_cast<std::int64_t>(slice) + 1 < in_.slices[c]) enter(c, slice + 1);
        }
      }
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

  bool find_kinds() {
    std::map<std::array<std::int64_t, 3>, std::size_t> known;
    stretches_.resize(chains_);
    for (std::size_t c = 0; c < chains_; ++c) {
      for (std::size_t u = 0; u < units_; ++u) {
        const std::size_t row = kind_row(u) + c;
        const auto kind = known.try_emplace({in_.memory_bytes_per_s[row], in_.a_bytes_per_s[row], in_.b_bytes_per_s[row]}, known.size()).first->second;
        if (stretches_[c].empty() || stretches_[c].back().kind != kind) stretches_[c].push_back({u, u, kind});
        stretches_[c].back().end = u + 1;
      }
    }
    kinds_.resize(known.size());
    for (const auto& [rates, kind] : known) kinds_[kind] = rates;
    return kinds_.size() <= kMostKinds;
  }

  void begin() {
    const auto rows = [&](std::size_t count) { return std::vector<Column>(count, Column(units_)); };
    std::size_t links = 0;
    for (const auto& ids : {in_.memory, in_.link_a, in_.link_b})
      for (std::size_t c = 0; c < chains_; ++c) links = std::max(links, static_cast<std::size_t>(ids[c]) + 1);
    clock_ = left_ = latency_ = rows(chains_);
    free_ = rows(links);
    goes_ = std::vector<Column>(chains_, Column(units_ + 1));
    came_ = std::vector<Column>(chains_ * depth_, Column(units_ + 1));
    tables_.resize(chains_ * depth_ * kinds_.size());
    for (std::size_t c = 0; c < chains_; ++c) {
      for (std::size_t u = 0; u < units_; ++u) {
        const std::size_t row = kind_row(u) + c;
        clock_[c][u] = left_[c][u] = static_cast<double>(in_.late_ps[row]);
        latency_[c][u] = static_cast<double>(in_.latency_ps[row]);
        double& memory = free_[static_cast<std::size_t>(in_.memory[c])][u];
        memory = static_cast<double>(in_.memory_free_ps[row]);
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
        if (size != known) took = {time(duration_ps(2 * size, kinds_[kind][0])), time(held + duration_ps(size, kinds_[kind][1])),
                                   time(held + duration_ps(size, kinds_[kind][2]))};
        known = size;
        table.add[at] = took[0];
        table.a[at] = took[1];
        table.b[at] = took[2];
      }
    }
  }

  // A slice begins: what a unit sends first is not before the rank that it goes to has entered, and nothing after it is.
  void enter(std::size_t c, std::size_t slice) {
    for (std::size_t u = 0; u < units_; ++u) {
      const std::size_t row = u * chains_ + c;
      double& clock = clock_[c][u];
      if (!in_.begin_ps.empty()) clock = later(clock, static_cast<double>(in_.begin_ps[row * most_ + slice]));
      double& a = free_[static_cast<std::size_t>(in_.link_a[c])][u];
      a = later(a, static_cast<double>(in_.ready_ps[kind_row(u) + c]));
    }
    for (std::size_t i = 0; i < depth_; ++i) {
      make_tables(c, slice, i);
      std::ranges::fill(came_[c * depth_ + i], 0.0);
      pass(c, i, 0, false);
    }
  }

  // The i-th message of `chunk` by unit 0, and so on, round the ring.
  void pass(std::size_t c, std::size_t i, std::size_t chunk, bool adds, bool alone = false) {
    Column& came = came_[c * depth_ + i];
    for (const Stretch& each : stretches_[c]) {
      const Times& table = tables_[(c * depth_ + i) * kinds_.size() + each.kind];
      const std::size_t at = chunk + each.begin;
      Columns columns = Columns{clock_[c].data(), free_[static_cast<std::size_t>(in_.memory[c])].data(), free_[static_cast<std::size_t>(in_.link_a[c])].data(),
                                free_[static_cast<std::size_t>(in_.link_b[c])].data(), came.data(), nullptr, nullptr, nullptr, latency_[c].data(),
                                goes_[c].data() + 1}.from(each.begin);
      columns.add = table.add.data() + at;
      columns.a_ps = table.a.data() + at;
      columns.b_ps = table.b.data() + at;
      (adds ? one_ && alone ? add_alone_ : add_ : send_)(columns, each.end - each.begin);
    }
    goes_[c][0] = goes_[c][units_];
    came.swap(goes_[c]);
  }

  void handle(std::size_t c, std::size_t step, std::size_t i) {
    const bool adds = static_cast<std::int64_t>(step) < in_.reducing, sends = static_cast<std::int64_t>(step) + 1 < in_.steps;
    const std::size_t chunk = (units_ - 1 + units_ - step % units_) % units_;
    if (sends) return pass(c, i, chunk, adds, chains_ == 1 && step > 0);
    const Column& came = came_[c * depth_ + i];
    Column& memory = free_[static_cast<std::size_t>(in_.memory[c])];
    for (const Stretch& each : stretches_[c]) {
      const Column& add = tables_[(c * depth_ + i) * kinds_.size() + each.kind].add;
      for (std::size_t u = each.begin; u < each.end; ++u) {
        double& clock = clock_[c][u];
        clock = later(clock, came[u]);
        if (adds) clock = memory[u] = later(clock, memory[u]) + add[chunk + u];
      }
    }
  }

  void ends(std::size_t c, std::size_t slice, RingsOutput& out) {
    for (std::size_t u = 0; u < units_; ++u) {
      left_[c][u] = came_[(c + 1) * depth_ - 1][u + 1] - latency_[c][u];  // the last message that it sent
      if (!out.end_ps.empty()) out.end_ps[(u * chains_ + c) * most_ + slice] = static_cast<std::int64_t>(clock_[c][u]);
    }
  }

  const RingsInput& in_;
  const std::size_t units_, chains_, depth_, most_;
  bool one_ = false;
  decltype(&send_on_base) send_ = nullptr, add_ = nullptr, add_alone_ = add_and_send_alone_for(Target::best);
  std::vector<std::array<std::int64_t, 3>> kinds_;   // rates: memory, and both links
  std::vector<std::vector<Stretch>> stretches_;      // by chain
  std::vector<Column> clock_, left_, latency_;       // by chain
  std::vector<Column> free_;                         // by link of a unit
  std::vector<Column> came_, goes_;                  // by chain (and depth): the messages to unit 0, 1, …, and round to the first one again
  std::vector<Times> tables_;                        // by chain, depth and kind, of its slice
};

}  // namespace

RingsStatus swept_rings(const RingsInput& in, RingsOutput& out) {
  Sweep sweep(in);
  return sweep.fits() ? sweep.run(out) : RingsStatus::bad_input;
}

}  // namespace ccl_lab::sim
