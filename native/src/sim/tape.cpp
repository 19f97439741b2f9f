// See tape.hpp.
#include "tape.hpp"

#include <algorithm>
#include <span>
#include <utility>

namespace ccl_lab::sim {
namespace {

// What is shorter, or repeats more slowly, is told one by one.
constexpr std::size_t kShortestRun = 32, kLongestPeriod = 64, kLook = 16;

// In a run so many gaps in a row or more are each as the one a period later: a period less one is missing of 32 messages, or two of three.
constexpr std::size_t kAlike = 20;
constexpr std::uint64_t kBase = 0x9e37'79b9'7f4a'7c15;

// The least number of messages after which a loop repeats: a divisor of its period.
std::size_t least_period(const std::vector<Seen>& first, const std::vector<Seen>& slopes) {
  const std::size_t period = first.size();
  const auto at = [&](std::size_t i) { return i < period ? first[i] : first[i - period] + slopes[i - period]; };
  const auto repeats_after = [&](std::size_t some) {
    for (std::size_t i = 0; i + some < 2 * period; ++i)
      if (at(i + some) - at(i) != at(i % some + some) - at(i % some)) return false;
    for (std::size_t i = 0; i < period; ++i)
      if ((at(i % some + some) - at(i % some)) * static_cast<std::int64_t>(period / some) != slopes[i]) return false;
    return true;
  };
  for (std::size_t some = 1; some <= period / 2; ++some)
    if (period % some == 0 && repeats_after(some)) return some;
  return period;
}

// Messages in a row of which each one lies as far behind the one before as the one a period before it did.
struct Run {
  std::size_t messages = 0, period = 0;
};

// A number for the kAlike gaps from each message on, equal where those are; of messages with fewer gaps behind them there is none. What lies
// too far behind the end to be looked at is added as zeros.
std::vector<std::uint32_t> keys_of(std::span<const Seen> messages) {
  const std::size_t gaps = messages.size() - 1, keys = gaps - std::min(gaps, kAlike - 1);
  std::vector<std::uint32_t> all(keys + kLongestPeriod + 1);
  const auto number = [&](std::size_t i) {
    const Seen gap = messages[i + 1] - messages[i];
    return static_cast<std::uint64_t>(gap.arrive_ps) * 31 + static_cast<std::uint64_t>(gap.leaves);
  };
  std::uint64_t power = 1, key = 0;  // of a polynomial in `base`
  for (std::size_t i = 0; i < kAlike; ++i) power *= kBase;
  for (std::size_t i = gaps; i-- > 0;) {
    key = key * kBase + number(i) - (i + kAlike < gaps ? number(i + kAlike) * power : 0);
    if (i < keys) all[i] = static_cast<std::uint32_t>(key >> 32);
  }
  return all;
}

// The longest one that begins with the first message. keys: those of the messages from here on.
Run longest_run(std::span<const Seen> messages, const std::uint32_t* keys) {
  Run best;
  std::uint32_t some = 0;  // all periods are looked at, which takes few instructions
  for (std::size_t period = 1; period <= kLongestPeriod; ++period) some |= keys[period] == keys[0] ? 1 : 0;
  if (some == 0) return best;
  const auto gap = [&](std::size_t i) { return messages[i + 1] - messages[i]; };
  for (std::size_t period = 1; period <= kLongestPeriod && 3 * period <= messages.size(); ++period) {
    if (keys[period] != keys[0]) continue;
    std::size_t alike = 0;
    while (alike + period + 1 < messages.size() && gap(alike + period) == gap(alike)) ++alike;
    const std::size_t reach = alike + period + 1;
    if (reach >= std::max(3 * period, kShortestRun) && reach > best.messages) best = {reach, period};
  }
  return best;
}

}  // namespace

void Tape::clear() {
  parts_.clear();
  values_.clear();
  part_ = 0;
  taken_ = place_ = turn_ = 0;
}

Seen Tape::at(const Part& part, std::int64_t i) const {
  if (part.period == 0) return values_[part.first + static_cast<std::size_t>(i)];
  const auto place = part.first + static_cast<std::size_t>(i % part.period);
  return values_[place] + values_[place + static_cast<std::size_t>(part.period)] * (i / part.period);
}

Tape::Ahead Tape::ahead() const {
  if (empty() || parts_[part_].period == 0) return {};
  const Part& loop = parts_[part_];
  const std::size_t slopes = loop.first + static_cast<std::size_t>(loop.period);
  const std::int64_t ticks = values_[slopes].leaves;
  for (std::int64_t i = 1; i < loop.period; ++i)
    if (values_[slopes + static_cast<std::size_t>(i)].leaves != ticks) return {};
  return {loop.count - taken_, loop.period, ticks};
}

void Tape::skip(std::int64_t count) {
  taken_ += count;
  const Part& loop = parts_[part_];
  if (taken_ == loop.count) return next_part();
  place_ = taken_ % loop.period;
  turn_ = taken_ / loop.period;
}

void Tape::keep(const Tape& other) {
  if (other.empty()) {
    if (values_.capacity() > 0) *this = Tape();
    return;
  }
  Tape rest;
  rest.append(other);
  rest.parts_.shrink_to_fit();
  rest.values_.shrink_to_fit();
  *this = std::move(rest);
}

// Whether what the last part would go on with is this loop.
bool Tape::continues(const Part& last, const std::vector<Seen>& first, const std::vector<Seen>& slopes) const {
  const auto period = static_cast<std::int64_t>(first.size());
  if (last.period != period) return false;
  for (std::int64_t i = 0; i < period; ++i) {
    const auto place = last.first + static_cast<std::size_t>(period + (last.count + i) % period);
    const auto own = static_cast<std::size_t>(i);
    if (at(last, last.count + i) != first[own] || values_[place] != slopes[own]) return false;
  }
  return true;
}

void Tape::drop_last() {
  Part& last = parts_.back();
  --last.count;
  if (last.period == 0) values_.pop_back();
  if (unread(parts_.size() - 1) > 0) return;
  values_.resize(last.first);
  parts_.pop_back();
  if (part_ == parts_.size()) taken_ = 0;
}

// Messages at the end that follow the rule of the loop to come become part of it.
void Tape::absorb(std::vector<Seen>& first, std::vector<Seen>& slopes, std::int64_t& count) {
  const auto period = static_cast<std::int64_t>(first.size());
  std::int64_t taken = 0;
  const auto before = [&](std::int64_t n) {  // the message that would lie n before the first one
    const std::int64_t turns = (n + period - 1) / period;
    const auto place = static_cast<std::size_t>(turns * period - n);
    return first[place] - slopes[place] * turns;
  };
  while (parts_.size() > part_ && unread(parts_.size() - 1) > 0) {
    const Part& last = parts_.back();
    if (last.period == period && last.count >= period) break;  // long enough to be one by itself
    if (at(last, last.count - 1) != before(taken + 1)) break;
    drop_last();
    ++taken;
  }
  if (taken == 0) return;
  std::vector<Seen> earlier(first.size()), turned(first.size());
  for (std::int64_t i = 0; i < period; ++i) {
    const std::int64_t place = ((i - taken) % period + period) % period;
    earlier[static_cast<std::size_t>(i)] = i < taken ? before(taken - i) : first[static_cast<std::size_t>(i - taken)];
    turned[static_cast<std::size_t>(i)] = slopes[static_cast<std::size_t>(place)];
  }
  first.swap(earlier);
  slopes.swap(turned);
  count += taken;
}

void Tape::push_loop(std::vector<Seen> first, std::vector<Seen> slopes, std::int64_t count) {
  if (const std::size_t least = least_period(first, slopes); least < first.size()) {
    for (std::size_t i = 0; i < least; ++i) slopes[i] = (i + least < first.size() ? first[i + least] : first[i] + slopes[i]) - first[i];
    first.resize(least);
    slopes.resize(least);
  }
  absorb(first, slopes, count);
  if (parts_.size() > part_ && parts_.back().period > 0 && continues(parts_.back(), first, slopes)) {
    parts_.back().count += count;
    return;
  }
  parts_.push_back({values_.size(), count, static_cast<std::int64_t>(first.size()), false});
  values_.insert(values_.end(), first.begin(), first.end());
  values_.insert(values_.end(), slopes.begin(), slopes.end());
}

void Tape::find_loops() {
  const auto some = [](const Part& part) { return part.period == 0 && !part.searched && part.count >= static_cast<std::int64_t>(kShortestRun); };
  if (std::none_of(parts_.begin(), parts_.end(), some)) return;
  Tape found;
  for (const Part& part : parts_) {
    if (part.searched) {
      found.add(*this, part, 0, part.count, {});
      continue;
    }
    const std::span messages = std::span(values_).subspan(part.first, static_cast<std::size_t>(part.period > 0 ? 2 * part.period : part.count));
    const auto told = [&](std::size_t begin, std::size_t count) {
      return std::vector<Seen>(messages.begin() + static_cast<std::ptrdiff_t>(begin), messages.begin() + static_cast<std::ptrdiff_t>(begin + count));
    };
    if (part.period > 0) {
      const auto period = static_cast<std::size_t>(part.period);
      found.push_loop(told(0, period), told(period, period), part.count);
      continue;
    }
    const std::vector<std::uint32_t> keys = keys_of(messages);
    for (std::size_t i = 0; i < messages.size();) {
      const Run run = i + kAlike < messages.size() ? longest_run(messages.subspan(i), keys.data() + i) : Run();
      if (run.messages == 0) {  // one that begins before the next look is absorbed by what follows it
        for (const std::size_t next = std::min(i + kLook, messages.size()); i < next; ++i) found.push(messages[i]);
        continue;
      }
      const std::vector<Seen> slopes(run.period, messages[i + run.period] - messages[i]);
      found.push_loop(told(i, run.period), slopes, static_cast<std::int64_t>(run.messages));
      i += run.messages;
    }
  }
  *this = std::move(found);
  for (Part& part : parts_) part.searched = part.period == 0;
}

// Messages of a part of another tape, later by so much.
void Tape::add(const Tape& other, const Part& part, std::int64_t from, std::int64_t to, const Seen& later) {
  if (part.period > 0 && to - from > 2 * part.period) {
    std::vector<Seen> first, slopes;
    for (std::int64_t i = from; i < from + part.period; ++i) {
      first.push_back(other.at(part, i) + later);
      slopes.push_back(other.values_[part.first + static_cast<std::size_t>(part.period + i % part.period)]);
    }
    return push_loop(std::move(first), std::move(slopes), to - from);
  }
  if (!part.searched) {
    for (std::int64_t i = from; i < to; ++i) push(other.at(part, i) + later);
    return;
  }
  while (from < to && goes_on(other.at(part, from) + later)) ++from;
  if (from == to) return;
  if (parts_.size() == part_ || !parts_.back().searched) parts_.push_back({values_.size(), 0, 0, true});
  parts_.back().count += to - from;
  const std::size_t size = values_.size();
  values_.resize(size + static_cast<std::size_t>(to - from));
  const Seen* const told = other.values_.data() + part.first + from;
  for (std::int64_t i = 0; i < to - from; ++i) values_[size + static_cast<std::size_t>(i)] = told[i] + later;
}

void Tape::append(const Tape& other) {
  for (std::size_t p = other.part_; p < other.parts_.size(); ++p)
    add(other, other.parts_[p], p == other.part_ ? other.taken_ : 0, other.parts_[p].count, {});
}

std::int64_t Tape::left() const {
  std::int64_t count = -taken_;
  for (std::size_t p = part_; p < parts_.size(); ++p) count += parts_[p].count;
  return count;
}

Seen Tape::peek(std::int64_t ahead) const {
  std::size_t p = part_;
  for (ahead += taken_; ahead >= parts_[p].count; ++p) ahead -= parts_[p].count;
  return at(parts_[p], ahead);
}

std::int64_t Tape::seen_before(std::int64_t tick, std::int64_t most) const {
  std::int64_t count = 0;
  for (std::size_t p = part_; p < parts_.size() && count < most; ++p) {
    const Part& part = parts_[p];
    const std::int64_t from = p == part_ ? taken_ : 0;
    std::int64_t low = from, high = part.count;
    if (at(part, high - 1).leaves < tick) low = high;
    while (low < high) {
      const std::int64_t middle = low + (high - low) / 2;
      if (at(part, middle).leaves < tick)
        low = middle + 1;
      else
        high = middle;
    }
    count += low - from;
    if (low < part.count) break;
  }
  return std::min(count, most);
}

void Tape::pass_on(std::int64_t count, const Seen& later, Tape& to) {
  while (count > 0) {
    const Part part = parts_[part_];
    const std::int64_t some = std::min(count, part.count - taken_);
    to.add(*this, part, taken_, taken_ + some, later);
    taken_ += some;
    count -= some;
    if (taken_ == part.count) {
      next_part();
    } else if (part.period > 0) {
      place_ = taken_ % part.period;
      turn_ = taken_ / part.period;
    }
  }
}

}  // namespace ccl_lab::sim
