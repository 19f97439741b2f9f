// Messages of one chain in order, on their way from unit to unit, in little memory: what merged.hpp reads and writes.
//
// Is: messages told one by one, and loops: `period` messages that come again and again, each time later by slopes of their own; every loop
// has a period of its own. Is not: an approximation; a loop stands for exactly the messages that it was made of. Invariants: a message is
// part of a loop as soon as it continues it. (stream.hpp has one period for all.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ccl_lab::sim {

// When a message arrives, and at which tick of nominal time it is seen.
struct Seen {
  std::int64_t arrive_ps = 0;
  std::int64_t leaves = 0;

  bool operator==(const Seen& o) const { return ((arrive_ps ^ o.arrive_ps) | (leaves ^ o.leaves)) == 0; }
  Seen operator+(const Seen& o) const { return {arrive_ps + o.arrive_ps, leaves + o.leaves}; }
  Seen operator-(const Seen& o) const { return {arrive_ps - o.arrive_ps, leaves - o.leaves}; }
  Seen operator*(std::int64_t n) const { return {arrive_ps * n, leaves * n}; }
};

class Tape {
 public:
  // From where on the next messages are a loop: how many of it are left, and by how many ticks all of them come later in a period of
  // `messages`; 0 messages where the next one is told by itself, or some come later by more than others.
  struct Ahead {
    std::int64_t left = 0, messages = 0, ticks = 0;
  };

  void clear();
  [[nodiscard]] bool empty() const { return part_ == parts_.size(); }
  [[nodiscard]] Ahead ahead() const;
  Seen next() {
    const Part& part = parts_[part_];
    if (part.period == 0) {
      const Seen message = values_[part.first + static_cast<std::size_t>(taken_)];
      if (++taken_ == part.count) next_part();
      return message;
    }
    const std::size_t place = part.first + static_cast<std::size_t>(place_);
    const Seen message = values_[place] + values_[place + static_cast<std::size_t>(part.period)] * turn_;
    if (++place_ == part.period) {
      place_ = 0;
      ++turn_;
    }
    if (++taken_ == part.count) next_part();
    return message;
  }
  void skip(std::int64_t count);  // of the loop that is ahead
  [[nodiscard]] std::int64_t left() const;
  [[nodiscard]] Seen peek(std::int64_t ahead) const;  // the message that so many others lie before
  // How many of the next `most` messages are seen before a tick; they are seen one after the other.
  [[nodiscard]] std::int64_t seen_before(std::int64_t tick, std::int64_t most) const;
  // The next messages go to another tape, all of them later by so much. What was told one by one there has been searched for loops.
  void pass_on(std::int64_t count, const Seen& later, Tape& to);
  // Becomes what is left of another one, and holds no more memory than that needs.
  void keep(const Tape& other);

  void push(const Seen& message) {
    if (parts_.size() == part_ || parts_.back().period > 0 || parts_.back().searched) {
      if (goes_on(message)) return;
      parts_.push_back({values_.size(), 0, 0, false});
    }
    values_.push_back(message);
    ++parts_.back().count;
  }
  // `count` messages: `first`, then each one that lies a period before, later by its slope.
  void push_loop(std::vector<Seen> first, std::vector<Seen> slopes, std::int64_t count);
  // Messages told one by one that repeat become loops.
  void find_loops();
  // All that is left of another one comes after this.
  void append(const Tape& other);

 private:
  struct Part {
    std::size_t first = 0;     // in `values_`; of a loop: `period` messages, then as many slopes
    std::int64_t count = 0;
    std::int64_t period = 0;   // 0: told one by one
    bool searched = false;     // told one by one, and no loop
  };

  void next_part() {
    ++part_;
    taken_ = place_ = turn_ = 0;
  }
  [[nodiscard]] Seen at(const Part& part, std::int64_t i) const;
  bool goes_on(const Seen& message) {  // with the loop at the end
    if (parts_.size() == part_ || parts_.back().period == 0 || at(parts_.back(), parts_.back().count) != message) return false;
    ++parts_.back().count;
    return true;
  }
  void add(const Tape& other, const Part& part, std::int64_t from, std::int64_t to, const Seen& later);
  [[nodiscard]] bool continues(const Part& last, const std::vector<Seen>& first, const std::vector<Seen>& slopes) const;
  [[nodiscard]] std::int64_t unread(std::size_t part) const { return parts_[part].count - (part == part_ ? taken_ : 0); }
  void absorb(std::vector<Seen>& first, std::vector<Seen>& slopes, std::int64_t& count);
  void drop_last();

  std::vector<Part> parts_;
  std::vector<Seen> values_;
  std::size_t part_ = 0;      // that the next message belongs to
  std::int64_t taken_ = 0;    // messages of it
  std::int64_t place_ = 0, turn_ = 0;  // of the next one, if that is a loop: in its period, and how many periods were before
};

}  // namespace ccl_lab::sim
