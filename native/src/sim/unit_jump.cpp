// The jump over rounds that repeat (unit.hpp).
#include <algorithm>

#include "unit.hpp"

namespace ccl_lab::sim {
namespace {

constexpr std::int64_t kAlways = Path::kAlways;

}  // namespace

std::int64_t Choices::repeats_since(const Choices& before, Path* path) const {
  if (used_ != before.used_) return -1;
  std::int64_t least = kAlways;
  for (std::size_t i = 0; i < used_; ++i) {
    const std::int64_t gap = gaps_[i], rate = gap - before.gaps_[i];
    if (path) path->fixed(rate);
    if (rate == 0) continue;
    if (path) {
      path->sign(gap);
      path->sign(before.gaps_[i]);
    }
    if ((before.gaps_[i] < 0 && gap > 0) || (before.gaps_[i] > 0 && gap < 0)) return -1;
    if (gap == 0) return 0;  // equal now, and not before: on the way to the other sign, or from it
    if ((gap > 0) == (rate > 0)) continue;
    const std::int64_t repeats = gap > 0 ? gap / -rate : -gap / rate;
    if (path) {
      path->quotient(gap, rate);
      if (least != kAlways) path->sign(repeats - least);
    }
    least = std::min(least, repeats);
  }
  return least;
}

// Rounds from the next one on in which every station does the same kind of work.
std::int64_t Unit::rounds_alike() {
  const std::int64_t now = round_[static_cast<std::size_t>(unit_)], first = now % per_slice_;
  std::int64_t least = kAlways;
  for (std::int64_t i = 0; i < in_.stations; ++i) {
    const std::int64_t message = first + i * in_.depth;
    for (const std::int64_t border : {in_.reducing * in_.depth, per_slice_ - in_.depth, per_slice_})
      if (decides(message - border) < 0) least = lesser(least, border - message);
  }
  return least;
}

// Whether the state changed by the same in the last two periods, batches by whole ticks and turns not at all.
bool Unit::steady() {
  for (std::size_t i = 0; i < change_.size(); ++i)
    if (decides(change_[i] - change_before_[i]) != 0) return false;
  const auto at = [&](std::int64_t i) {
    const std::int64_t change = change_[static_cast<std::size_t>(i)];
    if (path_) path_->fixed(change);
    return change;
  };
  const std::int64_t stations = in_.chains * in_.stations;
  for (std::int64_t i = 0; i < stations; ++i)
    if (at(3 * i + 1) % kPlaces != 0) return false;
  for (std::int64_t i = 3 * stations; i < words_; i += 5)
    if (at(i + 2) % kPlaces != 0 || at(i + 4) != 0) return false;
  return true;
}

// Whether all that the last period touched moved by the same shift, and what comes in goes on by that too. Then so does the next period:
// a maximum of sums of what moves together moves with it, whatever it chose. What was not touched does not matter.
bool Unit::shifted() {
  if (constant_) return false;
  const auto at = [&](std::int64_t i) { return state_[i] - last_[static_cast<std::size_t>(i)]; };
  const std::int64_t stations = in_.chains * in_.stations;
  std::int64_t first = 0;
  while (first < stations && !at_work(static_cast<std::size_t>(first / in_.stations))) ++first;
  if (first == stations) return false;
  shift_ = {at(3 * first), at(3 * first + 1) >> kPlaceBits, at(3 * first + 1)};
  if (path_) {
    path_->fixed(shift_.arrive_ps);
    path_->fixed(shift_.batch);
  }
  if (shift_.batch <= 0 || shift_.batch % kPlaces != 0) return false;
  for (std::size_t c = 0; c < readers_.size(); ++c)
    if (at_work(c) && !readers_[c].shifts_by(shift_)) return false;
  for (std::int64_t i = 0; i < stations; ++i) {
    if (!at_work(static_cast<std::size_t>(i / in_.stations))) continue;
    if (differ(at(3 * i), shift_.arrive_ps) || differ(at(3 * i + 1), shift_.batch) || differ(at(3 * i + 2), shift_.arrive_ps)) return false;
  }
  for (std::int64_t i = 3 * stations; i < words_; i += 5) {
    if (!differ(at(i + 2), 0)) continue;  // an op raises the batch
    const bool never_ticks = !differ(at(i + 1), 0) && !differ(state_[i + 1], 0);
    if (differ(at(i), shift_.arrive_ps) || differ(at(i + 2), shift_.batch) || differ(at(i + 4), 0)) return false;
    if (differ(at(i + 1), shift_.leaves) && !never_ticks) return false;
  }
  return true;
}

// From here on rounds are looked at, period by period.
void Unit::watch() {
  watching_ = true;
  noting_ = false;
  constant_ = crossed_ = false;
  seen_ = 0;
  choices_.clear();
  choices_before_.clear();
  for (auto& each : sent_) each.clear();
  std::copy(state_, state_ + words_, last_.begin());
}

// Called before every round: where the last two periods were alike, goes over as many more as will be. True where it did.
bool Unit::jump(std::vector<Stream>& sent) {
  std::int64_t taken = kAlways, left = kAlways;
  for (std::size_t c = 0; c < readers_.size(); ++c) {
    if (!at_work(c)) continue;
    taken = lesser(taken, readers_[c].taken());
    left = lesser(left, readers_[c].left());
  }
  watching_ = watching_ && decides(alike_) > 0 && !crossed_;
  noting_ = watching_ && noting_;
  if (!watching_) {
    if (decides(left - 2 * period_) < 0) return false;
    alike_ = rounds_alike();
    if (decides(alike_ - 2 * period_) < 0) return false;
    watch();
  } else if (seen_ % period_ == 0) {
    const bool once = decides(taken - period_) >= 0 && shifted();
    if (once || noting_) {
      change_before_.swap(change_);
      for (std::size_t i = 0; i < last_.size(); ++i) change_[i] = state_[i] - last_[i];
    }
    const bool twice = !once && !crossed_ && seen_ >= 3 * period_ && decides(taken - 2 * period_) >= 0 && steady();
    std::int64_t repeats = 0;
    if (once || twice) {
      repeats = periods(alike_);
      repeats = lesser(repeats, periods(left));
    }
    if (twice) repeats = lesser(choices_.repeats_since(choices_before_, path_), repeats);
    if (decides(repeats) > 0) {
      watching_ = noting_ = false;
      if (!repeat(repeats)) status_ = RingsStatus::overflow;
      pass_on(repeats, once, sent);
      return true;
    }
    noting_ = true;  // where one period was not enough
    choices_before_.swap(choices_);
    choices_.clear();
    for (std::size_t c = 0; c < sent_.size(); ++c)
      if (auto& each = sent_[c]; each.size() > static_cast<std::size_t>(period_)) each.erase(each.begin(), each.end() - period_);
    std::copy(state_, state_ + words_, last_.begin());
  }
  ++seen_;
  --alike_;
  return false;
}

// The state after so many more periods; false where it does not fit.
bool Unit::repeat(std::int64_t repeats) {
  for (std::size_t i = 0; i < change_.size(); ++i) {
    std::int64_t far = 0;
    if (path_) path_->product(change_[i], repeats);
    if (__builtin_mul_overflow(change_[i], repeats, &far) || __builtin_add_overflow(state_[i], far, &far) || far >= 4 * kLatest) return false;
    state_[i] = far;
  }
  return true;
}

void Unit::pass_on(std::int64_t repeats, bool once, std::vector<Stream>& sent) {
  for (std::size_t c = 0; c < readers_.size(); ++c) {
    if (!at_work(c)) continue;
    slopes_.assign(static_cast<std::size_t>(period_), shift_);
    readers_[c].skip(repeats * period_);
    const std::vector<Message>& last = sent_[c];  // of two periods; none where this is the last step
    if (last.empty()) continue;
    for (std::size_t i = 0; !once && i < slopes_.size(); ++i) slopes_[i] = last[slopes_.size() + i] - last[i];
    sent[c].push_loop(slopes_, repeats * period_);
  }
  round_[static_cast<std::size_t>(unit_)] += repeats * period_;
  jumped += repeats * period_;
}

}  // namespace ccl_lab::sim
