// See followed_way.hpp.
#include "followed_way.hpp"

#include <algorithm>
#include <ranges>
#include <utility>

namespace ccl_lab::sim {
namespace {

using Column = std::vector<std::int64_t>;

constexpr std::int64_t kAlways = std::int64_t{1} << 60;

// How often what the differences `now` have been since `before` can go on until one of them changes its sign; 0 where one did.
std::int64_t repeats(const Column& before, const Column& now, std::size_t count) {
  std::int64_t least = kAlways;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t gap = now[i], rate = gap - before[i];
    if (rate == 0) continue;
    if (gap == 0 || (gap > 0) != (before[i] >= 0 && (before[i] > 0 || rate > 0))) return 0;
    if ((gap > 0) != (rate > 0)) least = std::min(least, gap > 0 ? gap / -rate : -gap / rate);
  }
  return least;
}

}  // namespace

// A ring may pass through odd nodes the other way round: then every other unit is like this one. Where rates change in time none is like another one, nor
// like itself a whole ring later.
void Way::find_runs() {
  const auto& kind = units_.kind;
  const auto others = [&](std::size_t apart) {
    std::int64_t count = 0;
    for (std::size_t u = 0; u < kind.size(); ++u) count += kind[u] != kind[(u + apart) % kind.size()];
    return count;
  };
  period_ = n_ % 2 == 0 && others(1) > others(2) ? 2 : 1;
  const auto changes = [&](std::size_t unit) { return units_.changes(unit); };
  alike_ = others(static_cast<std::size_t>(period_)) == 0 && std::ranges::none_of(std::views::iota(std::size_t{0}, kind.size()), changes);
  runs_.assign(kind.size(), 0);
  for (std::int64_t u = 2 * n_ - 1; u >= 0; --u) {  // twice, for those across unit 0
    const auto here = static_cast<std::size_t>(u % n_), back = static_cast<std::size_t>((u % n_ + n_ - period_) % n_);
    runs_[here] = kind[here] == kind[back] && !changes(here) ? std::min(runs_[(here + 1) % kind.size()] + 1, 4 * n_) : 0;
  }
  if (alike_) std::ranges::fill(runs_, kAlways);
}

bool Way::go(const Part& part, const std::uint8_t* size, TrailReader& reader, std::int64_t* state, Column& came, Trail& out, std::int64_t most_rounds) {
  const auto group = static_cast<std::int64_t>(units_.group);
  for (std::int64_t done = 0; done < part.count;) {
    const std::int64_t here = (part.unit + done) % n_, n = part.n + done * group;
    const std::int64_t same = period_ + runs_[static_cast<std::size_t>((here + period_) % n_)];
    const std::int64_t most = std::min({part.count - done, reader.alike(), same, units_.alike(n)});
    if (most >= 3 * period_) {
      done += go_on(here, n, most, size, reader, came, out);
    } else {
      reader.next(state);
      units_.pass(static_cast<std::size_t>(here), n, size, state, came.data());
      out.push(state);
      ++done;
      ++out_.rounds;
    }
    if (out_.rounds > most_rounds) return false;
  }
  return true;
}

// `most` units that are alike, with as much work in each: passes some of them, until it is known how the others go on, and goes over those.
std::int64_t Way::go_on(std::int64_t here, std::int64_t n, std::int64_t most, const std::uint8_t* size, TrailReader& reader, Column& came, Trail& out) {
  const auto group = static_cast<std::int64_t>(units_.group);
  const std::size_t words = units_.words, period = static_cast<std::size_t>(period_);
  for (Seen& each : seen_) {
    each.gaps.resize(units_.most_gaps() * period);
    each.states.resize(words * period);
  }
  seen_[1].came = came;
  for (std::int64_t done = 0; done < most;) {
    std::swap(seen_[0], seen_[1]);  // this period, after the one before
    Seen& now = seen_[1];
    std::int64_t* gaps = now.gaps.data();
    for (std::size_t p = 0; p < period && done < most; ++p, ++done, ++out_.rounds) {
      std::int64_t* const state = now.states.data() + p * words;
      reader.next(state);
      gaps = units_.pass_noting(static_cast<std::size_t>((here + done) % n_), n + done * group, size, state, came.data(), gaps);
      out.push(state);
    }
    now.noted = static_cast<std::size_t>(gaps - now.gaps.data());
    earlier_.swap(change_);
    change_.resize(came.size());
    for (std::size_t c = 0; c < came.size(); ++c) change_[c] = came[c] - seen_[0].came[c];
    now.came = came;
    if (done < 2 * period_ || done % period_ != 0 || change_ != earlier_) continue;
    const std::int64_t times = std::min(repeats(seen_[0].gaps, now.gaps, now.noted), (most - done) / period_);
    if (times <= 0) continue;
    for (std::size_t c = 0; c < came.size(); ++c) came[c] += change_[c] * times;
    steps_.resize(words * period);
    for (std::size_t i = 0; i < steps_.size(); ++i) steps_[i] = now.states[i] - seen_[0].states[i];
    out.push_steps(steps_, times);
    reader.skip_periods(times);
    out_.jumped += times * period_;
    return done + times * period_;
  }
  return most;
}

}  // namespace ccl_lab::sim
