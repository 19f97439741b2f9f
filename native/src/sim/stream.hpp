// What one unit of a ring sends to the next: messages in order, as many as there are, in little memory.
//
// Is: single messages, and loops: `period` messages that come again and again, each time later by slopes of their own. Is not: an
// approximation; a loop stands for exactly the messages that were pushed. Invariant: a message is part of a loop as soon as it continues it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ccl_lab::sim {

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

  void push(const Message& message) {
    if (parts_.empty() || (parts_.back().loops && at(parts_.back(), parts_.back().count) != message)) {
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
    const bool alike = message - values_[end - 1 - period_] == values_[end - 1 - period_] - values_[end - 1 - 2 * period_];
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
    while (begin > last.first && values_[begin - 1 + period_] - values_[begin - 1] == slope_of(slopes, end, begin - 1)) --begin;
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
    if (last.count < period()) return false;
    for (std::size_t i = 0; i < period_; ++i)
      if (values_[last.first + period_ + (static_cast<std::size_t>(last.count) + i) % period_] != slopes[i]) return false;
    return true;
  }

  // The message `n` before the end (1: the last), in whatever part it is.
  [[nodiscard]] Message back(std::int64_t n) const {
    for (std::size_t i = parts_.size(); i-- > 0;) {
      if (n <= parts_[i].count) return at(parts_[i], parts_[i].count - n);
      n -= parts_[i].count;
    }
    return {};
  }

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

  void skip(std::int64_t count) {
    taken_ += count;
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
  std::size_t part_ = 0;
  std::int64_t taken_ = 0;
};

}  // namespace ccl_lab::sim
