// See runs.hpp.
#include "runs.hpp"

#include <algorithm>
#include <utility>

namespace ccl_lab::sim {
namespace {

constexpr std::int64_t kEnd = std::int64_t{1} << 62;  // no number of a state is beyond
constexpr std::int64_t kPatience = 4, kLongestPause = 128;

}  // namespace

Runs::Runs(const RingsInput& in, RingsOutput& out, Unit& unit) : in_(in), out_(out), unit_(unit) {
  last_alike_.resize(static_cast<std::size_t>(in.units));
  // With more stations or messages under way, loops have periods, and counts of periods would be quotients.
  const bool simple = in.jumps && in.stations == 1 && in.depth == 1 && in.n_sizes == 1;
  for (std::int64_t u = in.units; u-- > 0;) {
    const auto here = static_cast<std::size_t>(u);
    // The last unit is no follower: what it sends before it receives was read by the first already.
    last_alike_[here] = simple && u + 2 < in.units && alike(u) ? last_alike_[here + 1] : u;
  }
}

// Whether the next unit has the same links, at the same times and in the same order.
bool Runs::alike(std::int64_t unit) const {
  const auto each = static_cast<std::size_t>(in_.chains), first = static_cast<std::size_t>(unit) * each;
  const auto same = [](const auto& column, std::size_t begin, std::size_t count) {
    const auto at = column.begin() + static_cast<std::ptrdiff_t>(begin);
    return std::equal(at, at + static_cast<std::ptrdiff_t>(count), at + static_cast<std::ptrdiff_t>(count));
  };
  for (const auto& ids : {in_.memory, in_.link_a, in_.link_b})
    if (!same(ids, first, each)) return false;
  for (const auto& column : {in_.memory_bytes_per_s, in_.a_bytes_per_s, in_.b_bytes_per_s, in_.latency_ps, in_.late_ps, in_.ready_ps,
                             in_.memory_free_ps})
    if (!same(column, first, each)) return false;
  const std::size_t begins = in_.begin_ps.size() / static_cast<std::size_t>(in_.units);
  for (const auto& column : {in_.begin_ps, in_.begin_batch})
    if (!same(column, static_cast<std::size_t>(unit) * begins, begins)) return false;
  for (std::size_t i = first; i < first + each; ++i)
    if (in_.row[i + each] - in_.row[i] != in_.row[i % each + each] - in_.row[i % each]) return false;
  for (const auto& ids : {in_.all_a, in_.all_b}) {
    for (std::size_t i = first; i < first + 2 * each && !ids.empty(); ++i)
      if (std::binary_search(in_.changes.link.begin(), in_.changes.link.end(), ids[i])) return false;
  }
  return same(in_.ticks, first, each);
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
    now_.unit = -1;
    return unit_.visit(unit, received, sent);
  }
  std::swap(now_, before_);
  now_.unit = unit;
  now_.round = unit_.round_of(unit);
  now_.state.assign(unit_.state_of(unit), unit_.state_of(unit) + unit_.words());
  now_.progress.clear();
  now_.path.clear();
  unit_.note_in(&now_.path);
  const RingsStatus status = unit_.visit(unit, received, sent);
  unit_.note_in(nullptr);
  if (status != RingsStatus::ok) return status;
  now_.ended = unit_.ended();
  for (std::size_t c = 0; c < sent.size() && now_.unit >= 0; ++c)
    if (!sent[c].progress_since(received[c], now_.progress)) now_.unit = -1;
  if (now_.unit < 0 || before_.unit + 1 != unit || before_.unit < 0) return status;
  const std::int64_t following = followers(sent);
  failed_ = following > 0 ? 0 : failed_ + 1;
  if (failed_ >= kPatience) pause_ = std::min(kLongestPause, std::int64_t{1} << std::min<std::int64_t>(failed_ - kPatience, 30));
  if (following == 0) return status;
  follow(following, sent);
  unit += following;
  now_.unit = -1;
  return status;
}

std::int64_t Runs::followers(const std::vector<Stream>& sent) {
  if (now_.progress != before_.progress || now_.ended != before_.ended) return 0;
  std::int64_t most = std::min(last_alike_[static_cast<std::size_t>(now_.unit)] - now_.unit, now_.path.repeats_since(before_.path));
  const std::int64_t* next = now_.progress.data();
  for (const Stream& each : sent) most = std::min(most, each.most_progress(next));
  most = most > 0 ? in_progression(most) : 0;
  while (most > 0 && !fits(most)) most /= 2;
  return most;
}

// How many of the next `most` units have a state, and a round, that goes on as those of the last two did before their visits.
std::int64_t Runs::in_progression(std::int64_t most) {
  const std::size_t words = unit_.words();
  step_.resize(words);
  next_ = now_.state;
  for (std::size_t i = 0; i < words; ++i) step_[i] = now_.state[i] - before_.state[i];
  for (std::int64_t k = 1; k <= most; ++k) {
    const std::int64_t* const state = unit_.state_of(now_.unit + k);
    if (unit_.round_of(now_.unit + k) != now_.round + k * (now_.round - before_.round)) return k - 1;
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
bool Runs::fits(std::int64_t followers) {
  const std::int64_t *const now = unit_.state_of(now_.unit), *const before = unit_.state_of(before_.unit);
  for (std::size_t i = 0; i < unit_.words(); ++i) {
    std::int64_t far = 0;
    if (__builtin_mul_overflow(now[i] - before[i], followers, &far) || __builtin_add_overflow(now[i], far, &far) || far >= kEnd) return false;
  }
  return true;
}

void Runs::follow(std::int64_t followers, std::vector<Stream>& sent) {
  const std::int64_t unit = now_.unit;
  const std::int64_t *const now = unit_.state_of(unit), *const before = unit_.state_of(unit - 1);
  const std::int64_t round = unit_.round_of(unit), rounds = round - unit_.round_of(unit - 1);
  const std::size_t ends = out_.end_ps.size() / static_cast<std::size_t>(in_.units), first = static_cast<std::size_t>(unit) * ends;
  for (std::size_t i = 0; i < step_.size(); ++i) step_[i] = now[i] - before[i];
  for (std::int64_t k = 1; k <= followers; ++k) {
    std::int64_t* const state = unit_.state_of(unit + k);
    const std::int64_t* const last = unit_.state_of(unit + k - 1);
    for (std::size_t i = 0; i < step_.size(); ++i) state[i] = last[i] + step_[i];
    unit_.jumped += round + k * rounds - unit_.round_of(unit + k);
    unit_.round_of(unit + k) = round + k * rounds;
    for (const std::size_t slot : now_.ended) {
      for (const auto& end : {out_.end_ps, out_.end_batch}) {
        const std::int64_t last = end[first + slot];
        end[first + static_cast<std::size_t>(k) * ends + slot] = last + k * (last - end[first - ends + slot]);
      }
    }
  }
  const std::int64_t* next = now_.progress.data();
  for (Stream& each : sent) each.progress(next, followers);
}

}  // namespace ccl_lab::sim
