// What one unit of a ring sends to the next: messages in order, as many as there are, in little memory.
//
// Is: single messages, and loops: `period` messages that come again and again, each time later by slopes of their own. Is not: an
// approximation; a loop stands for exactly the messages that were pushed. Invariant: a message is part of a loop as soon as it continues it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "path.hpp"

namespace ccl_lab::sim {

inline constexpr int kPlaceBits = 20;  // of a batch number: its place among the batches of its tick
inline constexpr std::int64_t kPlaces = std::int64_t{1} << kPlaceBits;
// What is later, in ps or in ticks, does not fit: an overflow.
inline constexpr std::int64_t kLatest = std::int64_t{1} << 60;
inline constexpr std::int64_t kLastTick = std::int64_t{1} << 41;

struct Message {
  std::int64_t arrive_ps = 0;
  std::int64_t leaves = 0;  // tick of nominal time at which it is seen (order.hpp)
  std::int64_t batch = 0;   // the batch in which it was sent (rings.hpp)

  bool operator==(const Message&) const = default;
  Message operator+(const Message& o) const { return {arrive_ps + o.arrive_ps, leaves + o.leaves, batch + o.batch}; }
  Message operator-(const Message& o) const { return {arrive_ps - o.arrive_ps, leaves - o.leaves, batch - o.batch}; }
  Message operator*(std::int64_t n) const { return {arrive_ps * n, leaves * n, batch * n}; }
};

class Stream {
 public:
  struct Part {
    std::int64_t count = 0;
    std::size_t first = 0;  // in `values`; of a loop: `period` messages, then as many slopes
    bool loops = false;
  };

  explicit Stream(std::int64_t period) : period_(static_cast<std::size_t>(period)) {}

  void clear() {
    parts_.clear();
    values_.clear();
    alike_ = 0;
  }

  // Where what decides about parts is noted from now on; none: nowhere.
  void note_in(Path* path) { path_ = path; }

  void push(const Message& message) {
    if (parts_.empty() || (parts_.back().loops && !same(at(parts_.back(), parts_.back().count), message))) {
      parts_.push_back({0, values_.size(), false});
      alike_ = 0;
    }
    Part& last = parts_.back();
    ++last.count;
    if (last.loops) return;
    values_.push_back(message);
    // A period of messages, each as much after the one before it as that was after the one before: three periods make a loop.
    const std::size_t end = values_.size();
    if (last.count <= 2 * period()) return;
    const bool alike = same(message - values_[end - 1 - period_], values_[end - 1 - period_] - values_[end - 1 - 2 * period_]);
    alike_ = alike ? alike_ + 1 : 0;
    if (alike_ == period_) make_loop(end - 3 * period_);
  }

  // `count` more messages, each the one a period before it plus its slope; slopes[0] is that of the next message. At least a period
  // of messages was pushed before.
  void push_loop(const std::vector<Message>& slopes, std::int64_t count) {
    Part& last = parts_.back();
    if (last.loops || last.count < static_cast<std::int64_t>(period_)) return push_singly(slopes, count);
    // The messages pushed one by one that follow the same rule become part of the loop.
    const std::size_t end = last.first + static_cast<std::size_t>(last.count);
    std::size_t begin = end - period_;
    while (begin > last.first && same(values_[begin - 1 + period_] - values_[begin - 1], slope_of(slopes, end, begin - 1))) --begin;
    const auto taken = static_cast<std::int64_t>(end - begin);
    values_.resize(begin + 2 * period_);
    for (std::size_t i = 0; i < period_; ++i) values_[begin + period_ + i] = slope_of(slopes, end, begin + i);
    last.count -= taken;
    if (last.count == 0) parts_.pop_back();
    parts_.push_back({taken + count, begin, true});
  }

  [[nodiscard]] const std::vector<Part>& parts() const { return parts_; }
  [[nodiscard]] std::int64_t period() const { return static_cast<std::int64_t>(period_); }

  [[nodiscard]] Message at(const Part& part, std::int64_t i) const {
    const auto place = static_cast<std::size_t>(i);
    if (!part.loops) return values_[part.first + place];
    return values_[part.first + place % period_] + values_[part.first + period_ + place % period_] * (i / period());
  }

  // What lies between this stream and `before`, number by number; false where they are not made of the same parts, or loops of theirs have
  // other slopes, or more messages are told one by one.
  [[nodiscard]] bool progress_since(const Stream& before, std::vector<std::int64_t>& out) const {
    if (parts_.size() != before.parts_.size() || values_.size() != before.values_.size()) return false;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const Part &now = parts_[i], &then = before.parts_[i];
      if (now.loops != then.loops || now.first != then.first || (!now.loops && now.count != then.count)) return false;
      for (std::size_t v = now.first + period_; now.loops && v < now.first + 2 * period_; ++v)
        if (values_[v] != before.values_[v]) return false;
      out.push_back(now.count - then.count);
    }
    for (std::size_t v = 0; v < values_.size(); ++v) {
      const Message gap = values_[v] - before.values_[v];
      out.insert(out.end(), {gap.arrive_ps, gap.leaves, gap.batch});
    }
    return true;
  }

  // How often those numbers can be added until a loop has no messages left; `next` is moved to what follows them.
  [[nodiscard]] std::int64_t most_progress(const std::int64_t*& next) const {
    std::int64_t most = Path::kAlways;
    for (const Part& part : parts_) {
      if (*next < 0) most = std::min(most, (part.count - 1) / -*next);
      ++next;
    }
    next += 3 * values_.size();
    return most;
  }

  // Adds `times` the numbers of `progress_since`; `next` is moved to what follows them.
  void progress(const std::int64_t*& next, std::int64_t times) {
    for (Part& part : parts_) part.count += times * *next++;
    for (Message& value : values_) {
      value = value + Message{next[0], next[1], next[2]} * times;
      next += 3;
    }
  }

  [[nodiscard]] bool shifts_by(const Part& loop, const Message& shift) const {
    for (std::size_t i = 0; i < period_; ++i)
      if (values_[loop.first + period_ + i] != shift) return false;
    return true;
  }

 private:
  // Single messages from `begin` on become a loop.
  void make_loop(std::size_t begin) {
    for (std::size_t i = 0; i < period_; ++i) values_[begin + period_ + i] = values_[begin + period_ + i] - values_[begin + i];
    values_.resize(begin + 2 * period_);
    Part& last = parts_.back();
    last.count -= 3 * period();
    if (last.count == 0) parts_.pop_back();
    parts_.push_back({3 * period(), begin, true});
  }

  // Slope of the message at `place`, where slopes[0] belongs to `end`.
  [[nodiscard]] Message slope_of(const std::vector<Message>& slopes, std::size_t end, std::size_t place) const {
    return slopes[(period_ - (end - place) % period_) % period_];
  }

  void push_singly(const std::vector<Message>& slopes, std::int64_t count) {
    if (parts_.back().loops && continues(slopes)) {
      parts_.back().count += count;
      return;
    }
    // A loop that ended less than a period ago: told one by one, it stays what it is.
    if (path_) path_->fixed(count);
    std::vector<Message> last(period_);
    for (std::size_t i = 0; i < period_; ++i) last[i] = back(static_cast<std::int64_t>(period_ - i));
    for (std::int64_t i = 0; i < count; ++i) {
      Message& next = last[static_cast<std::size_t>(i) % period_];
      next = next + slopes[static_cast<std::size_t>(i) % period_];
      push(next);
    }
  }

  // Whether the loop at the end goes on with these slopes.
  [[nodiscard]] bool continues(const std::vector<Message>& slopes) const {
    const Part& last = parts_.back();
    if (path_ && period_ > 1) path_->sign(last.count - period() + 1);
    if (last.count < period()) return false;
    for (std::size_t i = 0; i < period_; ++i)
      if (!same(values_[last.first + period_ + (static_cast<std::size_t>(last.count) + i) % period_], slopes[i])) return false;
    return true;
  }

  [[nodiscard]] bool same(const Message& a, const Message& b) const {
    if (path_) {
      const Message gap = a - b;
      path_->sign(gap.arrive_ps);
      path_->sign(gap.leaves);
      path_->sign(gap.batch);
    }
    return a == b;
  }

  // The message `n` before the end (1: the last), in whatever part it is.
  [[nodiscard]] Message back(std::int64_t n) const {
    for (std::size_t i = parts_.size(); i-- > 0;) {
      if (path_ && period_ > 1) path_->sign(parts_[i].count - n + 1);
      if (n <= parts_[i].count) return at(parts_[i], parts_[i].count - n);
      n -= parts_[i].count;
    }
    return {};
  }

  Path* path_ = nullptr;
  std::size_t period_;
  std::size_t alike_ = 0;  // messages in a row that went on as a loop would
  std::vector<Part> parts_;
  std::vector<Message> values_;
};

// Takes messages from a stream in order.
class Reader {
 public:
  explicit Reader(const Stream& stream) : stream_(&stream) {}

  [[nodiscard]] bool empty() const { return part_ == stream_->parts().size(); }

  Message next() {
    const Message message = stream_->at(stream_->parts()[part_], taken_);
    skip(1);
    return message;
  }

  void note_in(Path* path) { path_ = path; }

  void skip(std::int64_t count) {
    taken_ += count;
    if (path_) path_->sign(taken_ - stream_->parts()[part_].count);
    if (taken_ == stream_->parts()[part_].count) {
      ++part_;
      taken_ = 0;
    }
  }

  // Of the loop that the next message belongs to: messages taken, and messages left; both 0 outside of loops.
  [[nodiscard]] std::int64_t taken() const { return in_loop() ? taken_ : 0; }
  [[nodiscard]] std::int64_t left() const { return in_loop() ? stream_->parts()[part_].count - taken_ : 0; }
  // Inside a loop: whether all its messages come later by `shift` each time.
  [[nodiscard]] bool shifts_by(const Message& shift) const { return stream_->shifts_by(stream_->parts()[part_], shift); }

 private:
  [[nodiscard]] bool in_loop() const { return !empty() && stream_->parts()[part_].loops; }

  const Stream* stream_;
  Path* path_ = nullptr;
  std::size_t part_ = 0;
  std::int64_t taken_ = 0;
};

}  // namespace ccl_lab::sim
