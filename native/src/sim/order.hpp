// In which order a schedule's ops are taken, found before anybody knows how long they take.
//
// Is: batches of ops in the order of nominal time, in which a transfer takes one tick a byte on every NIC (`link_ticks`) and all
// else takes none; at a tick all that can begin, then all that can begin after that; and which signal satisfies which wait. Where steps are
// a timetable, an op comes at the tick of its step at the earliest, and transfers take no ticks either. Is not: time (exact.cpp).
// Invariant: depends on programs and sizes, never on a rate, a latency or a late rank, so the times that follow are monotone in those.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "ccl_lab/schema.hpp"
#include "exact.hpp"

namespace ccl_lab::sim {

inline constexpr std::int32_t kNone = -1;

// Dense numbers 0, 1, 2, … for keys, in order of first appearance. Open addressing, at most half full.
class DenseIds {
 public:
  DenseIds() : slots_(64, Slot{0, 0, kNone}) {}

  std::int32_t operator()(std::int32_t a, std::int32_t b, std::int32_t c = 0) {
    const std::uint64_t key = std::uint64_t{static_cast<std::uint32_t>(a)} << 32 | static_cast<std::uint32_t>(b);
    Slot* slot = find(key, c);
    if (slot->id != kNone) return slot->id;
    if (2 * static_cast<std::size_t>(count_ + 1) > slots_.size()) {
      grow();
      slot = find(key, c);
    }
    *slot = {key, c, count_};
    return count_++;
  }

  [[nodiscard]] std::int32_t count() const { return count_; }

 private:
  struct Slot {
    std::uint64_t key;
    std::int32_t more;
    std::int32_t id;
  };

  Slot* find(std::uint64_t key, std::int32_t more) {
    const std::uint64_t mixed = (key ^ static_cast<std::uint64_t>(more) << 17) * 0x9E3779B97F4A7C15ull;
    std::size_t i = (mixed ^ mixed >> 32) & (slots_.size() - 1);
    while (slots_[i].id != kNone && (slots_[i].key != key || slots_[i].more != more)) i = (i + 1) & (slots_.size() - 1);
    return &slots_[i];
  }

  void grow() {
    std::vector<Slot> old(4 * slots_.size(), Slot{0, 0, kNone});
    old.swap(slots_);
    for (const Slot& slot : old)
      if (slot.id != kNone) *find(slot.key, slot.more) = slot;
  }

  std::vector<Slot> slots_;
  std::int32_t count_ = 0;
};

inline Kind kind_of(const ExactInput& in, std::size_t op) { return static_cast<Kind>(in.kind[op]); }

inline bool moves(Kind kind) {
  return kind == Kind::put || kind == Kind::get || kind == Kind::copy || kind == Kind::reduce;
}

// The channel goes on at once: such ops in a row belong to one batch.
inline bool goes_on(const ExactInput& in, std::size_t op) {
  return kind_of(in, op) == Kind::signal || (kind_of(in, op) == Kind::put && in.peer[op] != in.rank[op]);
}

inline bool raises(const ExactInput& in, std::size_t op) {
  return in.sig_channel[op] >= 0 && (kind_of(in, op) == Kind::put || kind_of(in, op) == Kind::signal);
}

// Ticks of a transfer: chunks of one message that differ by an element alone take the same (ccl_lab/simulator/exact.py).
inline std::int64_t nominal_bytes(const ExactInput& in, std::size_t op) {
  return in.nominal_bytes.empty() ? in.work_bytes[op] : in.nominal_bytes[op];
}

// What passes between the last byte's leaving and its being seen, and between a signal and its being seen; at most 2^62.
inline std::int64_t path_latency_ps(const ExactInput& in, std::size_t op) {
  const std::int32_t a = in.link_a[op], b = in.link_b[op];
  const std::int64_t ends = in.link_latency_ps[a] + (a == b ? 0 : in.link_latency_ps[b]);
  return in.tier_ps.empty() ? ends : std::min(ends + in.tier_ps[op], std::int64_t{1} << 62);
}

// Deals out turns to the transfers of one batch: each gets the first turn that neither of its links has given away yet. In
// op order alone, transfers that share one link each with the next would all wait in one line.
class Turns {
 public:
  explicit Turns(std::size_t links) : used_(links), full_(links, 0) {}

  std::int64_t next(std::int32_t a, std::int32_t b) {
    std::uint32_t word = std::max(full_[a], full_[b]);
    while (~(at(a, word) | at(b, word)) == 0) ++word;
    const int bit = std::countr_one(at(a, word) | at(b, word));
    take(a, word, bit);
    if (b != a) take(b, word, bit);
    return static_cast<std::int64_t>(word) * 64 + bit;
  }

  void clear() {
    for (const std::int32_t link : touched_) {
      used_[link] = {};
      full_[link] = 0;
    }
    touched_.clear();
    many_in_use_ = 0;
  }

 private:
  // Of a link: bit t - 64 begin says that turn t is given away. Who meets a link that thousands want has one turn, far back.
  // Most links have one word of them, and `many` is none; others have all of theirs there.
  struct Used {
    std::uint32_t begin = 0;
    std::int32_t many = kNone;
    std::uint64_t first = 0;  // 0: not in this batch
  };

  [[nodiscard]] std::uint64_t at(std::int32_t link, std::uint32_t word) const {
    const Used& used = used_[link];
    if (used.many == kNone) return word == used.begin ? used.first : 0;
    const std::vector<std::uint64_t>& words = many_[used.many];
    return word >= used.begin && word - used.begin < words.size() ? words[word - used.begin] : 0;
  }

  void take(std::int32_t link, std::uint32_t word, int bit) {
    Used& used = used_[link];
    if (used.first == 0) {
      touched_.push_back(link);
      used = {word, kNone, std::uint64_t{1} << bit};
    } else if (used.many == kNone && word == used.begin) {
      used.first |= std::uint64_t{1} << bit;
    } else {
      take_among_many(used, word, bit);
    }
    while (~at(link, full_[link]) == 0) ++full_[link];
  }

  void take_among_many(Used& used, std::uint32_t word, int bit) {
    if (used.many == kNone) {
      used.many = static_cast<std::int32_t>(many_in_use_++);
      if (many_in_use_ > many_.size()) many_.emplace_back();
      many_[used.many].assign(1, used.first);
    }
    std::vector<std::uint64_t>& words = many_[used.many];
    if (word < used.begin) {
      words.insert(words.begin(), used.begin - word, 0);
      used.begin = word;
    }
    if (word - used.begin >= words.size()) words.resize(word - used.begin + 1, 0);
    words[word - used.begin] |= std::uint64_t{1} << bit;
  }

  std::vector<Used> used_;
  std::vector<std::uint32_t> full_;               // per link: words before this one are all ones
  std::vector<std::int32_t> touched_;
  std::vector<std::vector<std::uint64_t>> many_;  // the first `many_in_use_` of them belong to links
  std::size_t many_in_use_ = 0;
};

// The batches, and what they are made of.
class Order {
 public:
  std::vector<std::int32_t> channel_of, counter_of;
  std::vector<std::int32_t> raiser;         // the op whose signal satisfies a wait
  std::vector<std::int32_t> order;          // by (batch, op)
  std::vector<std::int32_t> line;           // by (batch, turn, op)
  std::vector<std::size_t> begin_of_batch;  // in both; one more than there are batches

  explicit Order(const ExactInput& in);

  // The number of each op's batch into `level`; false where ops remain that can never run.
  bool walk(std::span<std::int32_t> level);

  [[nodiscard]] std::int64_t raised(std::size_t op) const { return raised_[counter_of[op]]; }
  [[nodiscard]] std::size_t counters() const { return raised_.size(); }
  [[nodiscard]] std::int32_t channels() const { return static_cast<std::int32_t>(heads_.size()); }

 private:
  using Due = std::pair<std::int64_t, std::int32_t>;  // (tick, op)

  void number_channels();
  void number_counters();
  void run_batch();
  void take(std::int32_t op);
  void raise(std::int32_t op);
  [[nodiscard]] std::int64_t goes_on_at(std::int32_t op) const;
  bool satisfied(std::int32_t op);
  [[nodiscard]] bool in_one_row(std::int32_t op) const;
  void enter(std::int32_t op);
  void settle(std::int32_t op, std::int64_t tick);
  void release(std::int32_t counter);

  const ExactInput& in_;
  std::size_t n_;
  std::vector<std::int32_t> next_, heads_;
  std::vector<std::int32_t> first_, raised_ops_, raised_;  // per counter: its raisers in static order
  std::vector<std::int32_t> parked_, next_parked_;         // per counter: the waits that it has not satisfied, as a list
  std::vector<std::int32_t> now_, following_;              // ops of this batch, and of the next one of this tick
  std::vector<Due> later_;                                 // a heap, the earliest first
  std::int64_t tick_ = 0;
  std::vector<std::int64_t> leaves_;     // per op: tick at which its last byte leaves and its signal is seen; parked wait: its own
  std::vector<std::int64_t> free_;       // per link
  std::vector<std::int64_t> left_;       // per channel: when its puts have left
  std::vector<std::int64_t> last_seen_;  // per counter
  Turns turns_;
  std::vector<Due> by_turn_;  // (turn, op) of a batch
};

// The first op with a column out of range, or -1. Everything after relies on it.
[[nodiscard]] std::int64_t find_bad_op(const ExactInput& in);

// After a walk that failed, the wait to blame: the first op, by id, that its channel came to and that nothing will wake.
[[nodiscard]] ExactResult find_deadlock(const ExactInput& in, const Order& order, std::span<const std::int32_t> level);

}  // namespace ccl_lab::sim
