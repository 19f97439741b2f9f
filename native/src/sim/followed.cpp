// See followed.hpp.
#include "followed.hpp"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "followed_units.hpp"
#include "followed_way.hpp"
#include "trail.hpp"

namespace ccl_lab::sim {
namespace {

using Column = std::vector<std::int64_t>;

constexpr std::size_t kMostKept = std::size_t{1} << 26;  // bytes of trails
constexpr std::int64_t kBefore = 64;                     // groups that are followed before the first one, for a trail to begin with
constexpr int kLaps = 3;                                  // after which all trails are right

class Follower {
 public:
  Follower(const RingsInput& in, RingsOutput& out)
      : in_(in), out_(out), units_(in), n_(in.units), group_(static_cast<std::int64_t>(units_.group)), way_(units_, out) {}

  RingsStatus run() {
    if (!units_.fits()) return RingsStatus::bad_input;
    way_.find_runs();
    find_first();
    const std::int64_t all = in_.units * in_.chains * in_.stations * units_.messages * units_.most;
    budget_ = std::clamp<std::int64_t>(all / 16, 1'000'000, 400'000'000) / (in_.chains * in_.stations);
    allowed_ = budget_ / 8;
    states_.resize(static_cast<std::size_t>(n_) * units_.words);
    starts_.resize(static_cast<std::size_t>(n_) * units_.group * units_.chains);
    for (std::int64_t u = 0; u < n_; ++u) units_.begin(static_cast<std::size_t>(u), state_of(states_, u), starts_of(starts_, u, 0));
    for (std::int64_t slice = 0; slice < units_.most; ++slice) {
      units_.enter(slice);
      next_states_ = states_;
      next_starts_ = starts_;
      if (!(way_.all_alike() ? circle_of_numbers(slice) : circle(slice))) return RingsStatus::bad_input;
      states_.swap(next_states_);
      starts_.swap(next_starts_);
    }
    for (std::int64_t u = 0; u < n_; ++u) units_.finish(static_cast<std::size_t>(u), state_of(states_, u), out_);
    return RingsStatus::ok;
  }

 private:
  struct Found {            // of a message that did what others may do
    std::size_t trail;
    Column last;            // before the last message of a slice comes to a unit: the state there, and when it comes
  };

  [[nodiscard]] std::int64_t* state_of(Column& states, std::int64_t unit) const { return states.data() + static_cast<std::size_t>(unit) * units_.words; }
  [[nodiscard]] std::int64_t* starts_of(Column& starts, std::int64_t unit, std::int64_t g) const {
    return starts.data() + static_cast<std::size_t>(unit * group_ + g) * units_.chains;
  }
  [[nodiscard]] const std::uint8_t* sizes_of(std::int64_t unit, std::int64_t g) const {
    return units_.sizes.data() + static_cast<std::size_t>(unit * group_ + g) * units_.chains;
  }

  // Messages pile up before a unit that is not like those before it. The first one is that which comes to such a unit before all others, so that
  // the last one comes there once, and what the first one begins with is right as early as can be.
  void find_first() {
    first_ = n_ - 1;
    std::int64_t longest = 0, run = 0;
    for (std::int64_t u = 0; u < 2 * n_ && !way_.all_alike(); ++u) {
      run = way_.run(u % n_) > 0 ? run + 1 : 0;
      if (run > longest && way_.run((u + 1) % n_) == 0) {
        longest = run;
        first_ = u % n_;
      }
    }
  }

  // The g-th message of each chain that begins in `unit`, which go on together: from the next unit on to the last that they leave. `left`:
  // what the messages before them left behind, after `first` if there is one. last_: as Found::last. False where that is too much work.
  bool follow(std::int64_t unit, std::int64_t g, const Trail& left, const std::int64_t* first, Trail& out) {
    const std::uint8_t* const size = sizes_of(unit, g);
    const std::int64_t count = (units_.messages - 1 - g + group_ - 1) / group_;
    TrailReader reader(left, first);
    came_.assign(starts_of(starts_, unit, g), starts_of(starts_, unit, g) + units_.chains);
    state_.resize(units_.words);
    out.clear();
    if (!way_.go({unit + 1, g, count}, size, reader, state_.data(), came_, out, allowed_)) return false;
    last_.clear();
    if ((units_.messages - 1 - g) % group_ != 0) return true;
    reader.next(state_.data());
    last_.assign(state_.begin(), state_.end());
    last_.insert(last_.end(), came_.begin(), came_.end());
    return true;
  }

  // The unit where a message ends a slice.
  void end(std::int64_t unit, std::int64_t g, std::int64_t slice, const Column& last) {
    if (last.empty()) return;
    const std::int64_t there = (unit + 1 + (units_.messages - 1 - g) / group_) % n_;
    std::int64_t* const state = state_of(next_states_, there);
    std::copy_n(last.data(), units_.words, state);
    units_.end(static_cast<std::size_t>(there), slice, sizes_of(unit, g), state, last.data() + units_.words, starts_of(next_starts_, there, 0), out_);
  }

  // What takes too much work is known long before it is done.
  void allow_more() { allowed_ = std::min(budget_, allowed_ + budget_ / (n_ * units_.most) + 1); }

  // Some groups for what the first one begins with, then all of them, until what they leave behind is that. `left`: after the last message.
  template <class Left, class FollowGroup>
  bool laps(const Left& left, const FollowGroup& follow_group) {
    const auto follow_back = [&](std::int64_t groups) {
      for (std::int64_t i = groups; i > 0; --i) {
        allow_more();
        if (!follow_group((first_ + i) % n_)) return false;
      }
      return true;
    };
    if (!follow_back(kBefore)) return false;
    for (int lap = 0; lap < kLaps; ++lap) {
      const Left begun = left;
      if (!follow_back(n_)) return false;
      if (left == begun) break;
    }
    return true;
  }

  bool circle(std::int64_t slice) {
    Trail left(units_.words, static_cast<std::size_t>(way_.period())), next = left;
    return laps(left, [&](std::int64_t unit) {
      for (std::int64_t g = 0; g < group_; ++g) {
        if (!follow(unit, g, left, g == 0 ? state_of(states_, (unit + 1) % n_) : nullptr, next)) return false;
        std::swap(left, next);
        end(unit, g, slice, last_);
      }
      return true;
    });
  }

  // The same with numbers for trails, where all units are alike.
  bool circle_of_numbers(std::int64_t slice) {
    if (trails_.empty()) trails_.emplace_back(units_.words, static_cast<std::size_t>(way_.period()));  // 0: none
    std::size_t left = 0;
    return laps(left, [&](std::int64_t unit) {
      for (std::int64_t g = 0; g < group_; ++g) {
        const Found* const found = find(unit, g, left);
        if (!found) return false;
        left = found->trail;
        end(unit, g, slice, found->last);
      }
      return true;
    });
  }

  const Found* find(std::int64_t unit, std::int64_t g, std::size_t left) {
    const std::int64_t* const first = g == 0 ? state_of(states_, (unit + 1) % n_) : nullptr;
    key_.clear();
    const auto tell = [&](const auto* values, std::size_t count) { key_.append(reinterpret_cast<const char*>(values), count * sizeof *values); };
    const std::int64_t numbers[] = {static_cast<std::int64_t>(left), g, unit % way_.period()};
    tell(numbers, 3);
    tell(sizes_of(unit, g), units_.chains);
    tell(starts_of(starts_, unit, g), units_.chains);
    if (first) tell(first, units_.words);
    if (const auto at = found_.find(key_); at != found_.end()) return &at->second;
    Trail next(units_.words, static_cast<std::size_t>(way_.period()));
    if (!follow(unit, g, trails_[left], first, next)) return nullptr;
    std::string told = next.told();
    const auto [at, is_new] = numbers_.try_emplace(std::move(told), trails_.size());
    if (is_new) {
      kept_ += 2 * next.bytes();
      trails_.push_back(std::move(next));
    }
    kept_ += key_.size() + last_.size() * sizeof(std::int64_t);
    if (kept_ > kMostKept) return nullptr;
    return &found_.try_emplace(key_, Found{at->second, last_}).first->second;
  }

  const RingsInput& in_;
  RingsOutput& out_;
  FollowedUnits units_;
  const std::int64_t n_, group_;
  Way way_;
  std::int64_t budget_ = 0, allowed_ = 0;  // rounds: in all, and so far
  std::int64_t first_ = 0;         // the unit whose messages come first
  Column states_, starts_, next_states_, next_starts_;  // of each unit before messages of others come to it, and when its own come to the next
  Column came_, state_, last_;

  std::vector<Trail> trails_;
  std::unordered_map<std::string, std::size_t> numbers_;  // of trails
  std::unordered_map<std::string, Found> found_;          // by what it follows from
  std::string key_;
  std::size_t kept_ = 0;
};

}  // namespace

RingsStatus followed_rings(const RingsInput& in, RingsOutput& out) { return Follower(in, out).run(); }

}  // namespace ccl_lab::sim
