// See own_time_band.hpp.
#include "own_time_band.hpp"

#include <algorithm>

namespace ccl_lab::sim {
namespace {

constexpr std::int64_t kLook = 128;  // messages between two looks at how long they take
constexpr std::int64_t kLong = 640;   // rounds for each unit after which it may go on by itself for a while, each time twice as many
constexpr std::int64_t kLeast = 32;   // units that are counted there
constexpr std::int64_t kFew = 24;    // rounds of a message that are worth it in any case

}  // namespace

Band::Band(const FollowedUnits& units, const Lengths& lengths, RingsOutput& out)
    : units_(units), lengths_(lengths), out_(out), way_(units, out), source_(units.chains), reader_(source_, 0), left_(units.words, 1), next_(units.words, 1) {
  way_.find_runs();
  left_ = next_ = Trail(units.words, static_cast<std::size_t>(way_.period()));
  state_.resize(units.words);
  came_.resize(units.chains);
}

void Band::begin(std::int64_t unit, std::int64_t place, const std::int64_t* state, Sent&& source, std::int64_t shift, bool again) {
  first_ = unit;
  size_ = 0;
  place_ = place;
  shift_ = shift;
  source_ = std::move(source);
  reader_ = SentReader(source_, shift);
  left_.clear();
  in_vain_ = false;
  long_ = again ? 2 * long_ : kLong;
  followed_ = rounds_ = all_rounds_ = 0;
  push(state);
}

void Band::push(const std::int64_t* state) {
  left_.push(state);
  ++size_;
}

Band::Done Band::follow(Sent& out, std::int64_t most_rounds) {
  const auto group = static_cast<std::int64_t>(units_.group);
  const std::int64_t n = place_ + first_ * group, last = units_.messages - 1;  // of the first unit
  const std::int64_t count = std::min(size_, (last - n + group - 1) / group);
  TrailReader left(left_, nullptr);
  const std::int64_t before = out_.rounds;
  reader_.take(place_, came_);
  next_.clear();
  if (!way_.go({first_, n, count}, lengths_.at(place_), left, state_.data(), came_, next_, most_rounds)) return Done::too_much;
  const bool ends = count < size_, goes_on = !ends && n + (count - 1) * group < units_.messages - group;
  if (ends) left.next(state_.data());
  if (goes_on) out.push(came_.data());
  std::swap(left_, next_);
  size_ = count;
  ++place_;
  rounds_ += out_.rounds - before;
  all_rounds_ += out_.rounds - before;
  if (++followed_ == kLook) {
    in_vain_ = rounds_ > kLook * (kFew + size_ / 8);
    followed_ = rounds_ = 0;
  }
  return goes_on ? Done::went_on : ends ? Done::ended : Done::stayed;
}

bool Band::is_worth_a_look() const { return all_rounds_ > long_ * std::max(kLeast, size_); }

std::vector<std::int64_t> Band::take_apart(Sent& source) {
  std::vector<std::int64_t> states(static_cast<std::size_t>(size_) * units_.words);
  TrailReader left(left_, nullptr);
  for (std::int64_t i = 0; i < size_; ++i) left.next(states.data() + static_cast<std::size_t>(i) * units_.words);
  source = std::move(source_);
  size_ = 0;
  return states;
}

}  // namespace ccl_lab::sim
