// See runs.hpp.
#include "runs.hpp"

#include <algorithm>
#include <numeric>
#include <utility>


namespace ccl_lab::sim {
namespace {

constexpr std::int64_t kEnd = std::int64_t{1} << 62;  // no number of a state is beyond
constexpr std::int64_t kPatience = 4, kLongestPause = 128;
constexpr std::int64_t kMostNoted = std::int64_t{1} << 24;  // numbers that decided, of all visits that are noted

}  // namespace

Runs::Runs(const RingsInput& in, RingsOutput& out, Unit& unit) : in_(in), out_(out), unit_(unit) {
  find_alike(1);
  const auto alone = std::ranges::count_if(last_alike_, [u = std::int64_t{0}](std::int64_t last) mutable { return last == u++; });
  // Loops have to be as far in their period as those that they are compared with.
  const std::int64_t period = unit.period(), rounds = in.stations * in.depth;
  if (const std::int64_t stride = std::lcm(2 * alone > in.units ? 2 : 1, period / std::gcd(period, rounds)); stride > 1) find_alike(stride);
  visits_.resize(static_cast<std::size_t>(2 * stride_));
}

void Runs::find_alike(std::int64_t stride) {
  stride_ = stride;
  last_alike_.resize(static_cast<std::size_t>(in_.units));
  const bool simple = in_.jumps && in_.n_sizes == 1;
  for (std::int64_t u = in_.units; u-- > 0;) {
    const auto here = static_cast<std::size_t>(u);
    // The last unit is no follower: what it sends before it receives was read by the first already.
    last_alike_[here] = simple && u + stride + 1 < in_.units && alike(u, stride) ? last_alike_[here + static_cast<std::size_t>(stride)] : u;
  }
}

// Whether the unit that many further on has the same links, at the same times and in the same order.
bool Runs::alike(std::int64_t unit, std::int64_t stride) const {
  const std::int64_t other = unit + stride;
  const auto same = [](const auto& column, std::int64_t a, std::int64_t b, std::int64_t count) {
    return std::equal(column.begin() + a, column.begin() + a + count, column.begin() + b);
  };
  if (!in_.same_links(unit, other) || in_.changing(unit) || in_.changing(other)) return false;
  if (!same(in_.late_ps, in_.kind_row(unit), in_.kind_row(other), in_.rows_of_unit())) return false;
  const std::int64_t begins = static_cast<std::int64_t>(in_.begin_ps.size()) / in_.units;
  for (const auto& column : {in_.begin_ps, in_.begin_batch})
    if (!same(column, unit * begins, other * begins, begins)) return false;
  return std::ranges::all_of(in_.row_step, [&](std::int64_t step) { return step == in_.row_step[0]; });
}

bool Runs::worth_noting(std::int64_t unit) {
  if (pause_ > 0) {
    --pause_;
    return false;
  }
  return last_alike_[static_cast<std::size_t>(unit)] > unit;
}

RingsStatus Runs::visit(std::int64_t& unit, const std::vector<Stream>& received, std::vector<Stream>& sent) {
  if (!worth_noting(unit)) {
    in_a_row_ = 0;
    return unit_.visit(unit, received, sent);
  }
  Visit& now = noted(unit);
  now.unit = unit;
  now.round = unit_.round_of(unit);
  now.state.assign(unit_.state_of(unit), unit_.state_of(unit) + unit_.words());
  now.received = received;
  now.path.clear();
  unit_.note_in(&now.path, static_cast<std::size_t>(kMostNoted / (2 * stride_)));
  const RingsStatus status = unit_.visit(unit, received, sent);
  unit_.note_in(nullptr);
  if (status != RingsStatus::ok) return status;
  if (now.path.given_up()) {
    in_a_row_ = 0;
    pause_ = kLongestPause;
    return status;
  }
  now.ended = unit_.ended();
  if (++in_a_row_ < 2 * stride_) return status;
  const std::int64_t following = followers(unit, sent);
  failed_ = following > 0 ? 0 : failed_ + 1;
  if (failed_ >= kPatience * stride_)
    pause_ = std::min(kLongestPause, std::int64_t{1} << std::min<std::int64_t>(failed_ - kPatience * stride_, 30));
  if (following == 0) return status;
  for (std::int64_t u = unit - stride_ + 1; u <= unit; ++u) follow(u, following);
  const std::int64_t* next = progress_.data();
  for (Stream& each : sent) each.progress(next, following);
  unit += following * stride_;
  in_a_row_ = 0;
  return status;
}

// How many more strides go as the last one did.
std::int64_t Runs::followers(std::int64_t unit, const std::vector<Stream>& sent) {
  std::int64_t most = Path::kAlways;
  for (std::int64_t u = unit - stride_ + 1; u <= unit && most > 0; ++u) most = std::min(most, followers_like(u));
  if (most > 0) most = std::min(most, streams_go_on(unit, sent));
  for (std::int64_t u = unit - stride_ + 1; u <= unit && most > 0; ++u) most = in_progression(u, most);
  const auto fit = [&] {
    for (std::int64_t u = unit - stride_ + 1; u <= unit; ++u)
      if (!fits(u, most)) return false;
    return true;
  };
  while (most > 0 && !fit()) most /= 2;
  return most;
}

// How many units, a stride from one to the next, have the same links and take the same path, as far as the path knows.
std::int64_t Runs::followers_like(std::int64_t unit) {
  const Visit &now = noted(unit), &before = noted(unit - stride_);
  if (now.ended != before.ended || (now.round - before.round) % unit_.period() != 0) return 0;
  return std::min((last_alike_[static_cast<std::size_t>(unit)] - unit) / stride_, now.path.repeats_since(before.path));
}

// How often what the last units sent can go on as it did. What the last of them sent has to have gone on by the same twice; then what
// comes in, and with it all else, does.
std::int64_t Runs::streams_go_on(std::int64_t unit, const std::vector<Stream>& sent) {
  const auto since = [](const std::vector<Stream>& now, const std::vector<Stream>& before, std::vector<std::int64_t>& out) {
    out.clear();
    for (std::size_t c = 0; c < now.size(); ++c)
      if (!now[c].progress_since(before[c], out)) return false;
    return true;
  };
  std::int64_t most = Path::kAlways;
  const auto lasts = [&](const std::vector<Stream>& streams) {
    const std::int64_t* next = progress_.data();
    for (const Stream& each : streams) most = std::min(most, each.most_progress(next));
  };
  for (std::int64_t u = unit - stride_ + 2; u <= unit; ++u) {  // sent by the unit before
    if (!since(noted(u).received, noted(u - stride_).received, progress_)) return 0;
    lasts(noted(u).received);
  }
  const std::vector<Stream>& before = noted(unit - stride_ + 1).received;
  if (!since(before, noted(unit - 2 * stride_ + 1).received, last_progress_) || !since(sent, before, progress_)) return 0;
  lasts(sent);
  return progress_ == last_progress_ ? most : 0;
}

// How many of the next `most` units have a state, and a round, that goes on as those of the last two did before their visits.
std::int64_t Runs::in_progression(std::int64_t unit, std::int64_t most) {
  const Visit &now = noted(unit), &before = noted(unit - stride_);
  const std::size_t words = unit_.words();
  step_.resize(words);
  next_ = now.state;
  for (std::size_t i = 0; i < words; ++i) step_[i] = now.state[i] - before.state[i];
  for (std::int64_t k = 1; k <= most; ++k) {
    const std::int64_t* const state = unit_.state_of(unit + k * stride_);
    if (unit_.round_of(unit + k * stride_) != now.round + k * (now.round - before.round)) return k - 1;
    std::int64_t differs = 0;
    for (std::size_t i = 0; i < words; ++i) {
      next_[i] += step_[i];
      differs |= next_[i] ^ state[i];
    }
    if (differs != 0) return k - 1;
  }
  return most;
}

// Whether the state of the last follower can be told; those between lie between.
bool Runs::fits(std::int64_t unit, std::int64_t followers) {
  const std::int64_t *const now = unit_.state_of(unit), *const before = unit_.state_of(unit - stride_);
  for (std::size_t i = 0; i < unit_.words(); ++i) {
    std::int64_t far = 0;
    if (__builtin_mul_overflow(now[i] - before[i], followers, &far) || __builtin_add_overflow(now[i], far, &far) || far >= kEnd) return false;
  }
  return true;
}

void Runs::follow(std::int64_t unit, std::int64_t followers) {
  const std::int64_t *const now = unit_.state_of(unit), *const before = unit_.state_of(unit - stride_);
  const std::int64_t round = unit_.round_of(unit), rounds = round - unit_.round_of(unit - stride_);
  const auto each = static_cast<std::int64_t>(out_.end_ps.size() / static_cast<std::size_t>(in_.units));
  step_.resize(unit_.words());
  for (std::size_t i = 0; i < step_.size(); ++i) step_[i] = now[i] - before[i];
  for (std::int64_t k = 1; k <= followers; ++k) {
    const std::int64_t next = unit + k * stride_;
    std::int64_t* const state = unit_.state_of(next);
    const std::int64_t* const last = unit_.state_of(next - stride_);
    for (std::size_t i = 0; i < step_.size(); ++i) state[i] = last[i] + step_[i];
    unit_.jumped += round + k * rounds - unit_.round_of(next);
    unit_.round_of(next) = round + k * rounds;
    for (const std::size_t slot : noted(unit).ended) {
      const auto place = [&](std::int64_t u) { return static_cast<std::size_t>(u * each) + slot; };
      for (const auto& end : {out_.end_ps, out_.end_batch}) end[place(next)] = end[place(unit)] + k * (end[place(unit)] - end[place(unit - stride_)]);
    }
  }
}

}  // namespace ccl_lab::sim
