// See both_ways.hpp.
#include "both_ways.hpp"

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "path.hpp"
#include "stream.hpp"

namespace ccl_lab::sim {
namespace {

using Row = std::vector<std::int64_t>;

constexpr std::int64_t kShort = 5;           // cells of a run that are visited each
constexpr std::int64_t kRoom = 16;           // of a run that gets shorter, beyond what a jump leaves of it
constexpr std::size_t kLongest = 24;         // steps after which what happens may repeat
constexpr std::size_t kMostNoted = 200;      // runs of a step whose decisions are noted
constexpr std::size_t kMostKept = 8'000'000;  // numbers that are kept of the last steps
// Evaluated messages from which on it is asked whether there would be too many, and after how many steps again.
constexpr std::int64_t kSome = 5'000'000, kRecent = 64;

struct Run {
  std::int64_t begin = 0, count = 0;  // cells
  Row first, slope;
};

// The runs before a step, and what the step noted.
struct Step {
  std::vector<Run> runs;
  Path path;
};

class BothWays {
 public:
  BothWays(const RingsInput& in, RingsOutput& out, Manner manner)
      : in_(in), out_(out), unit_(in, out, manner), chains_(static_cast<std::size_t>(in.chains)),
        period_(static_cast<std::size_t>(in.stations * in.depth)), words_(unit_.words()), each_(words_ + 3 * chains_ * period_),
        rounds_(in.steps * in.depth), streams_(chains_, Stream(in.stations * in.depth)), sent_(streams_) {
    form_cells();
  }

  RingsStatus run() {
    if (const auto status = begin(); status != RingsStatus::ok) return status;
    const auto period = static_cast<std::int64_t>(period_);
    for (std::int64_t last = (rounds_ + period - 1) / period; step_ < last; ++step_) {
      jump(last);
      messages_ = std::min(period, rounds_ - step_ * period);
      if (const auto status = step(); status != RingsStatus::ok) return status;
      if (in_.jumps && too_many(last)) return RingsStatus::too_many;
    }
    finish();
    return RingsStatus::ok;
  }

 private:
  // Whether more messages than may be are evaluated, or will be if the steps to come cost what the last ones did.
  [[nodiscard]] bool too_many(std::int64_t last) {
    const std::int64_t cost = unit_.evaluated * in_.chains * in_.stations;
    if (cost <= kSome || cost > in_.most_both_ways) return cost > kSome;
    if (step_ < looked_ + kRecent) return false;
    const std::int64_t each = (cost - cost_then_) / (step_ - looked_);
    looked_ = step_;
    cost_then_ = cost;
    return each > 0 && last - step_ > (2 * in_.most_both_ways - cost) / each;
  }

  // -- cells

  // Cells of two units where most units are not like the next one.
  void form_cells() {
    std::int64_t differ = 0;
    for (std::int64_t u = 0; u + 1 < in_.units; ++u) differ += !alike(u, u + 1);
    const std::int64_t stride = 2 * differ > in_.units ? 2 : 1;
    for (std::int64_t u = 0; u < in_.units; u += stride) cells_.push_back(u);
    cells_.push_back(in_.units);
    goes_on_.assign(cells_.size(), false);
    for (std::size_t c = 0; c + 2 < cells_.size(); ++c) {
      bool same = size(c) == size(c + 1);
      for (std::int64_t u = cells_[c]; same && u < cells_[c + 1]; ++u) same = alike(u, u + stride);
      goes_on_[c] = same;
    }
  }

  [[nodiscard]] std::int64_t size(std::size_t cell) const { return cells_[cell + 1] - cells_[cell]; }

  // Whether two units have the same links, all the time. Places in the order of ops go on by the same from unit to unit of a chain.
  [[nodiscard]] bool alike(std::int64_t u, std::int64_t v) const { return in_.same_links(u, v) && !in_.changing(u) && !in_.changing(v); }

  // -- rows: unit after unit, what it remembers, then what it sent, chain by chain

  [[nodiscard]] std::int64_t* messages_of(std::int64_t* unit) const { return unit + words_; }

  void keep(std::int64_t unit, std::int64_t* row) {
    std::copy_n(unit_.state_of(unit), words_, row);
    std::int64_t* next = messages_of(row);
    for (std::size_t c = 0; c < chains_; ++c, next += 3 * period_) {
      std::int64_t* each = next;
      for (Reader reader(sent_[c]); !reader.empty();) {
        const Message message = reader.next();
        *each++ = message.arrive_ps;
        *each++ = message.leaves;
        *each++ = message.batch;
      }
      std::fill(each, next + 3 * period_, 0);
      sent_[c].clear();
    }
  }

  RingsStatus begin() {
    for (std::size_t c = 0; c + 1 < cells_.size(); ++c) {
      Run run{static_cast<std::int64_t>(c), 1, Row(static_cast<std::size_t>(size(c)) * each_), {}};
      for (std::int64_t u = cells_[c]; u < cells_[c + 1]; ++u) {
        if (const auto status = unit_.begin(u, sent_); status != RingsStatus::ok) return status;
        keep(u, run.first.data() + static_cast<std::size_t>(u - cells_[c]) * each_);
      }
      add(std::move(run));
    }
    runs_.swap(next_);
    return RingsStatus::ok;
  }

  static Row row_of(const Run& run, std::int64_t i) {
    Row row = run.first;
    for (std::size_t w = 0; i != 0 && w < row.size(); ++w) row[w] += i * run.slope[w];
    return row;
  }

  // -- a step

  // What cell `cell` is after a visit of each of its units.
  Row visit(std::int64_t cell, const Row& row, const Row& before, const Row& after, Path* path) {
    Row found(row.size());
    const auto c = static_cast<std::size_t>(cell);
    const auto units = static_cast<std::size_t>(size(c));
    for (std::size_t i = 0; i < units; ++i) {
      const std::int64_t u = cells_[c] + static_cast<std::int64_t>(i);
      const std::int64_t* const left = i > 0 ? row.data() + (i - 1) * each_ : before.data() + before.size() - each_;
      const std::int64_t* const right = i + 1 < units ? row.data() + (i + 1) * each_ : after.data();
      for (std::size_t chain = 0; chain < chains_; ++chain) {
        const std::int64_t* next = (in_.backward[chain] ? right : left) + words_ + 3 * chain * period_;
        streams_[chain].clear();
        for (std::int64_t m = 0; m < messages_; ++m, next += 3) streams_[chain].push({next[0], next[1], next[2]});
      }
      std::copy_n(row.data() + i * each_, words_, unit_.state_of(u));
      unit_.round_of(u) = step_ * static_cast<std::int64_t>(period_);
      unit_.note_in(path);
      const RingsStatus status = unit_.visit(u, streams_, sent_);
      unit_.note_in(nullptr);
      if (status != RingsStatus::ok) status_ = status;
      for (Stream& each : sent_) each.note_in(nullptr);
      keep(u, found.data() + i * each_);
    }
    return found;
  }

  struct End {
    Row row;
    Path path;
  };
  // A cell of a run that has its neighbours in it.
  End inner(const Run& run, std::int64_t i) {
    End end;
    end.row = visit(run.begin + i, row_of(run, i), row_of(run, i - 1), row_of(run, i + 1), &end.path);
    if (noting_) path_.append(end.path);
    return end;
  }

  // Cells `low` to `high` of a run, of which the first and the last one were visited.
  void inner(const Run& run, std::int64_t low, std::int64_t high, End first, const End& last) {
    const std::int64_t span = high - low;
    if (span > 0 && !first.path.same_way(last.path)) {
      const std::int64_t middle = low + span / 2;
      if (span > 1) {
        End left = middle == low ? first : inner(run, middle);
        End right = middle + 1 == high ? last : inner(run, middle + 1);
        inner(run, low, middle, std::move(first), left);
        inner(run, middle + 1, high, std::move(right), last);
      } else {
        add({run.begin + low, 1, std::move(first.row), {}});
        add({run.begin + high, 1, last.row, {}});
      }
      return;
    }
    Run found{run.begin + low, span + 1, std::move(first.row), {}};
    if (span > 0) {
      found.slope.resize(found.first.size());
      for (std::size_t w = 0; w < found.slope.size(); ++w) found.slope[w] = (last.row[w] - found.first[w]) / span;
    }
    add(std::move(found));
  }

  void outer(std::size_t which, std::int64_t i) {
    const Run& run = runs_[which];
    const Run &left = runs_[(which + runs_.size() - 1) % runs_.size()], &right = runs_[(which + 1) % runs_.size()];
    const Row before = i > 0 ? row_of(run, i - 1) : row_of(left, left.count - 1), after = i + 1 < run.count ? row_of(run, i + 1) : right.first;
    Path path;
    Row found = visit(run.begin + i, row_of(run, i), before, after, noting_ ? &path : nullptr);
    path_.append(path);
    add({run.begin + i, 1, std::move(found), {}});
  }

  RingsStatus step() {
    next_.clear();
    path_.clear();
    noting_ = in_.jumps && runs_.size() <= kMostNoted;
    for (std::size_t r = 0; r < runs_.size() && status_ == RingsStatus::ok; ++r) {
      const Run& run = runs_[r];
      path_.fixed(std::min(run.count, kShort));
      if (run.count < kShort) {
        for (std::int64_t i = 0; i < run.count; ++i) outer(r, i);
        continue;
      }
      outer(r, 0);
      End low = inner(run, 1);
      const End high = inner(run, run.count - 2);
      inner(run, 1, run.count - 2, std::move(low), high);
      outer(r, run.count - 1);
    }
    noting_ ? remember() : forget();
    runs_.swap(next_);
    return status_;
  }

  // -- runs that go on as one

  [[nodiscard]] static bool apart_by(const Row& a, const Row& b, const Row& slope, std::int64_t times) {
    if (a.size() != b.size()) return false;
    for (std::size_t w = 0; w < a.size(); ++w)
      if (b[w] - a[w] != slope[w] * times) return false;
    return true;
  }

  // Whether the cell behind a run, or a cell, has the same links.
  [[nodiscard]] bool same_links_behind(const Run& run) const { return goes_on_[static_cast<std::size_t>(run.begin + run.count - 1)]; }

  void add(Run run) {
    while (in_.jumps && !next_.empty() && same_links_behind(next_.back())) {
      Run& last = next_.back();
      const auto joined = [&] {
        if (last.count > 1) return apart_by(last.first, run.first, last.slope, last.count) && (run.count == 1 || run.slope == last.slope);
        if (run.count > 1) return apart_by(last.first, run.first, run.slope, 1);
        return next_.size() > 1 && three(next_[next_.size() - 2], last, run);
      };
      if (!joined()) break;
      path_.fixed(run.count > 1 ? 1 : 2);
      if (last.count > 1) {
        last.count += run.count;
        return;
      }
      Run all{last.begin, run.count + 1, std::move(last.first), std::move(run.slope)};
      if (run.count == 1) {  // the third cell in a row
        Run& one = next_[next_.size() - 2];
        all.slope.resize(all.first.size());
        for (std::size_t w = 0; w < all.slope.size(); ++w) all.slope[w] = run.first[w] - all.first[w];
        all = {one.begin, 3, std::move(one.first), std::move(all.slope)};
        next_.pop_back();
      }
      next_.pop_back();
      run = std::move(all);
    }
    path_.fixed(0);
    next_.push_back(std::move(run));
  }

  [[nodiscard]] bool three(const Run& one, const Run& two, const Run& run) const {
    if (one.count != 1 || !same_links_behind(one) || one.first.size() != two.first.size() || two.first.size() != run.first.size()) return false;
    for (std::size_t w = 0; w < run.first.size(); ++w)
      if (run.first[w] - two.first[w] != two.first[w] - one.first[w]) return false;
    return true;
  }

  // -- the jump

  void remember() {
    kept_ += path_.size();
    before_.push_back({runs_, std::move(path_)});
    path_ = {};
    while (before_.size() > 2 * kLongest || kept_ > kMostKept) {
      kept_ -= before_.front().path.size();
      before_.pop_front();
    }
  }

  void forget() {
    before_.clear();
    kept_ = 0;
  }

  void jump(std::int64_t last) {
    for (std::size_t period = 1; 2 * period <= before_.size(); ++period) {
      const std::int64_t times = std::min((last - 3 - step_) / static_cast<std::int64_t>(period), repeats(period));
      if (times <= 0) continue;
      const std::vector<Run>& then = before_[before_.size() - period].runs;
      for (std::size_t r = 0; r < runs_.size(); ++r) {
        Run& run = runs_[r];
        run.begin += times * (run.begin - then[r].begin);
        run.count += times * (run.count - then[r].count);
        for (std::size_t w = 0; w < run.first.size(); ++w) run.first[w] += times * (run.first[w] - then[r].first[w]);
      }
      const std::int64_t steps = times * static_cast<std::int64_t>(period);
      out_.jumped += steps * static_cast<std::int64_t>(period_) * in_.units;
      step_ += steps;
      forget();
      return;
    }
  }

  // How often the last `period` steps can be repeated.
  [[nodiscard]] std::int64_t repeats(std::size_t period) const {
    const std::size_t now = before_.size();
    std::int64_t most = progress(before_[now - 2 * period].runs, before_[now - period].runs);
    for (std::size_t i = 1; most > 0 && i <= period; ++i)
      most = std::min(most, before_[now - i].path.repeats_since(before_[now - i - period].path));
    return most;
  }

  // How often the runs can go on as from `first` to `then` and from there to now; 0 where that differs.
  [[nodiscard]] std::int64_t progress(const std::vector<Run>& first, const std::vector<Run>& then) const {
    if (runs_.size() != then.size() || runs_.size() != first.size()) return 0;
    std::int64_t most = Path::kAlways;
    for (std::size_t r = 0; r < runs_.size(); ++r) {
      const Run &a = first[r], &b = then[r], &c = runs_[r];
      const std::int64_t more = c.count - b.count;
      if (b.count - a.count != more || b.begin - a.begin != c.begin - b.begin || c.slope != b.slope || b.slope != a.slope) return 0;
      if (more != 0 && std::min(a.count, c.count) <= kRoom) return 0;
      if (more < 0) most = std::min(most, (c.count - kRoom) / -more);
      if (a.first.size() != b.first.size() || b.first.size() != c.first.size()) return 0;
      for (std::size_t w = 0; w < c.first.size(); ++w)
        if (c.first[w] - b.first[w] != b.first[w] - a.first[w]) return 0;
    }
    return most;
  }

  void finish() {
    for (const Run& run : runs_) {
      for (std::int64_t i = 0; i < run.count; ++i) {
        const Row row = row_of(run, i);
        const auto c = static_cast<std::size_t>(run.begin + i);
        for (std::int64_t u = cells_[c]; u < cells_[c + 1]; ++u)
          std::copy_n(row.data() + static_cast<std::size_t>(u - cells_[c]) * each_, words_, unit_.state_of(u));
      }
    }
    unit_.finish();
    out_.rounds = unit_.evaluated;
  }

  const RingsInput& in_;
  RingsOutput& out_;
  Unit unit_;
  std::size_t chains_, period_, words_, each_;  // messages of a chain in a step; words of a unit, and of its place in a row
  std::int64_t rounds_, step_ = 0, messages_ = 0;
  std::int64_t looked_ = 0, cost_then_ = 0;  // at the last look at what steps cost
  std::vector<std::int64_t> cells_;  // the first unit of each, and the end
  std::vector<bool> goes_on_;        // whether the next cell has the same links
  std::vector<Stream> streams_, sent_;
  std::vector<Run> runs_, next_;
  Path path_;
  bool noting_ = false;  // what decides, in path_
  std::deque<Step> before_;
  std::size_t kept_ = 0;  // numbers in it
  RingsStatus status_ = RingsStatus::ok;
};

}  // namespace

bool fits_both_ways(const RingsInput& in) {
  return in.units > 2 && in.n_sizes == 1 && in.begin_ps.empty() && !in.followed && !in.own_time && !in.swept &&
         std::ranges::all_of(in.slices, [](std::int64_t slices) { return slices == 1; }) && in.steps * in.depth > in.stations * in.depth;
}

RingsStatus rings_both_ways(const RingsInput& in, RingsOutput& out, Manner manner) {
  out.jumped = 0;
  return BothWays(in, out, manner).run();
}

}  // namespace ccl_lab::sim
