// The jump over windows that repeat (merged_unit.hpp).
#include <algorithm>
#include <numeric>
#include <utility>

#include "merged_unit.hpp"

namespace ccl_lab::sim {
namespace {

// A window of more messages is no shorter way. After so many windows that are not alike nothing is expected of the next ones for a while.
constexpr std::int64_t kMostMessages = 4096, kPatience = 8, kPause = 16;

}  // namespace

// Whether a rate changes in time on a link of a part.
bool Merged::varies(const Part& part) const {
  if (in_.changes.link.empty()) return false;
  return std::any_of(part.chains.begin(), part.chains.end(),
                     [&](std::size_t c) { return changes_.on(in_.all_a[row(c)]) || changes_.on(in_.all_b[row(c)]); });
}

// Called before every batch while every chain has messages: where the last two windows were alike, goes over as many more as will be.
bool Merged::jump(std::int64_t batch, const Part& part, std::vector<Tape>& sent) {
  if (!noting_) {
    if (pause_ > 0)
      --pause_;
    else if (!watch(batch, part))
      pause_ = kPause;
    return false;
  }
  if (batch < border_) return false;
  end_window(part);
  if (const std::int64_t more = repeats(); more > 0) {
    noting_ = false;
    const bool waited = at_ != nullptr && stretch_.breaks != breaks_;  // not all that is jumped over goes on with the stretch
    if (waited) end_stretch(part);
    go_on(part, more);
    pass_on(more, sent);
    if (waited) begin_stretch(part);
    return true;
  }
  if (windows_ == kPatience || std::any_of(loops_.begin(), loops_.end(), [&](const Loop& loop) { return windows_left(loop) < 1; })) {
    noting_ = false;
    pause_ = kPause * windows_;
    return false;
  }
  border_ += window_;
  last_.swap(state_now_);
  change_before_.swap(change_);
  served_before_.swap(served_);
  served_.clear();
  choices_before_.swap(choices_);
  choices_.clear();
  for (Loop& loop : loops_) {
    loop.before.swap(loop.sent);
    loop.sent.clear();
  }
  return false;
}

// Windows from here on are looked at, if every chain that is at work has a loop of messages ahead, and the same kind of work for a while.
bool Merged::watch(std::int64_t batch, const Part& part) {
  loops_.clear();
  std::int64_t ticks = 1;
  for (const std::size_t c : part.chains) {
    const Chain& chain = state_[row(c)];
    if (chain.next == Next::nothing) continue;
    const Tape::Ahead ahead = inbox_[c].ahead();
    if (ahead.messages == 0 || ahead.ticks <= 0 || __builtin_mul_overflow(ticks / std::gcd(ticks, ahead.ticks), ahead.ticks, &ticks) ||
        ticks > kLastTick)
      return false;
    loop_of_[c] = loops_.size();
    loops_.push_back({c, 0, chain.message < in_.reducing ? in_.reducing : in_.steps - 1, 0, {}, {}});
  }
  std::int64_t sum = 0;
  for (Loop& loop : loops_) {
    const Tape::Ahead ahead = inbox_[loop.chain].ahead();
    loop.messages = ahead.messages * (ticks / ahead.ticks);
    loop.end = state_[row(loop.chain)].message + ahead.left;
    sum += loop.messages;
    if (sum > kMostMessages || windows_left(loop) < 3) return false;
  }
  noting_ = true;
  breaks_ = stretch_.breaks;
  windows_ = 0;
  window_ = ticks << kPlaceBits;
  border_ = batch + window_;
  choices_.clear();
  keep_state(part);
  served_.clear();
  last_.swap(state_now_);
  return true;
}

// In how many windows a chain reads from its loop alone, and does the work that it does now. One is left out: the message at work may be
// the one after, or before, the last one that was read.
std::int64_t Merged::windows_left(const Loop& loop) const {
  return (std::min(loop.end, loop.border) - state_[row(loop.chain)].message) / loop.messages - 1;
}

// Numbers that a part goes on with; of its chains the batch and the message first.
void Merged::keep_state(const Part& part) {
  state_now_.clear();
  for (const Loop& loop : loops_) {
    const Chain& c = state_[row(loop.chain)];
    state_now_.insert(state_now_.end(), {c.batch, c.message, c.clock_ps, c.left_ps});
    served_.push_back(static_cast<std::int64_t>(c.next));
  }
  for (const std::size_t l : part.links) {
    const Link& each = links_[unit_ * links_of_unit_ + l];
    state_now_.insert(state_now_.end(), {each.free_ps, each.free_tick});
  }
}

void Merged::end_window(const Part& part) {
  keep_state(part);
  ++windows_;
  change_.resize(state_now_.size());
  for (std::size_t i = 0; i < change_.size(); ++i) change_[i] = state_now_[i] - last_[i];
}

// How many windows will be as the last two were.
std::int64_t Merged::repeats() const {
  if (windows_ < 2 || change_ != change_before_ || served_ != served_before_) return 0;
  for (std::size_t i = 0; i < loops_.size(); ++i)
    if (change_[4 * i] != window_ || change_[4 * i + 1] != loops_[i].messages) return 0;
  std::int64_t least = choices_.repeats_since(choices_before_, nullptr);
  for (const Loop& loop : loops_) least = std::min(least, windows_left(loop));
  return least;
}

void Merged::go_on(const Part& part, std::int64_t windows) {
  const auto later = [&](std::int64_t& value, std::size_t i) {
    std::int64_t far = 0;
    if (__builtin_mul_overflow(change_[i], windows, &far) || __builtin_add_overflow(value, far, &value)) status_ = RingsStatus::overflow;
  };
  std::size_t i = 0;
  for (const Loop& loop : loops_) {
    Chain& c = state_[row(loop.chain)];
    for (std::int64_t* const value : {&c.batch, &c.message, &c.clock_ps, &c.left_ps}) later(*value, i++);
    if (c.clock_ps > kLatest || c.left_ps > kLatest || c.batch >> kPlaceBits > kLastTick) status_ = RingsStatus::overflow;
  }
  for (const std::size_t l : part.links) {
    Link& each = links_[unit_ * links_of_unit_ + l];
    for (std::int64_t* const value : {&each.free_ps, &each.free_tick}) later(*value, i++);
    if (each.free_ps > kLatest || each.free_tick > kLastTick) status_ = RingsStatus::overflow;
  }
}

// What chains read and send in so many windows.
void Merged::pass_on(std::int64_t windows, std::vector<Tape>& sent) {
  for (Loop& loop : loops_) {
    in_hand_[loop.chain] = inbox_[loop.chain].peek(windows * loop.messages - 1);
    inbox_[loop.chain].skip(windows * loop.messages);
    jumped_ += windows * loop.messages;
    std::vector<Seen> slopes(loop.sent.size());
    for (std::size_t i = 0; i < slopes.size(); ++i) {
      slopes[i] = loop.sent[i] - loop.before[i];
      loop.sent[i] = loop.sent[i] + slopes[i];
    }
    sent[loop.chain].push_loop(std::move(loop.sent), std::move(slopes), windows * loop.messages);
  }
}

}  // namespace ccl_lab::sim
