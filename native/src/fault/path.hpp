// What the fault layer remembers of one pair of NICs, of one lane and of one put.
//
// Is: plain records of rails.hpp, and the small rules that belong to one of them (how much a path may carry, when one that
//     was lost may be tried again).
// Is not: a protocol.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "base/status.hpp"
#include "transport/queue.hpp"
#include "transport/segment_order.hpp"
#include "transport/transport.hpp"

namespace ccl_lab {

// absent: there was no connection yet. retiring: quiet here, and the peer has not said what it got. down: both ends agreed.
enum class PathState : std::uint8_t { absent, up, retiring, down };
inline constexpr const char* kPathStateNames[] = {"absent", "up", "retiring", "down"};

// Lanes have their number on the wire: the NICs as the sender names them.
inline std::uint32_t lane_id(std::uint16_t nic, std::uint16_t peer_nic) { return std::uint32_t{nic} << 16 | peer_nic; }

// A piece of a put, from when a path took it until the peer has confirmed it.
struct Flight {
  std::uint32_t lane = 0;    // index in Rails
  std::uint32_t item = 0;
  std::uint64_t offset = 0;
  std::uint64_t nbytes = 0;
  std::uint32_t number = 0;  // in its lane
  bool last = false;         // carries the signal
  std::int64_t since_ns = 0;
  std::uint64_t delivered = 0;  // by its path when it left
  bool full = false;            // its path then had all it may have
};

// How much a path may have under way: what it confirms in some milliseconds, so that work stays to be shared when one is
// lost, and segments on slow paths are small. The rate is the largest seen lately, the delay the smallest, as in BBR: a
// path that waits for a core must not look slow.
class Window {
 public:
  static constexpr std::int64_t kAheadNs = 10'000'000;
  static constexpr std::int64_t kSegmentNs = 4'000'000;
  static constexpr std::int64_t kLatelyNs = 500'000'000;
  static constexpr std::uint64_t kLeastSegment = 16 * 1024;
  // Two connections have a slot of a slow wire each, two more segments wait behind them, and as many are not confirmed yet: with
  // fewer, a later put takes the slots before the next segment of this one is there.
  static constexpr std::uint64_t kLeastSegments = 6;

  Window() = default;
  Window(std::uint64_t segment_bytes, std::uint64_t first_segment_bytes, std::uint64_t window_bytes)
      : most_segment_(segment_bytes), most_(window_bytes), segment_(std::min(first_segment_bytes, segment_bytes)),
        bytes_(std::min(4 * segment_, window_bytes)) {}

  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t segment_bytes() const { return segment_; }
  // Bytes confirmed so far; kept with each flight.
  std::uint64_t delivered() const { return delivered_; }

  // `since_ns`, `before`: when the flight left and what had been delivered then. `full`: the path had all it may have.
  void confirmed(std::uint64_t nbytes, std::int64_t since_ns, std::uint64_t before, bool full, std::int64_t now_ns) {
    delivered_ += nbytes;
    take(delivered_ - before, std::max<std::int64_t>(now_ns - since_ns, 1), full, now_ns);
  }

 private:
  void take(std::uint64_t nbytes, std::int64_t took_ns, bool full, std::int64_t now_ns) {
    // A message alone on its path says how far the peer is, and nothing new of a rate that was seen to be higher.
    if (!full && static_cast<double>(nbytes) <= std::max(rate_, last_rate_) * static_cast<double>(took_ns)) {
      if (took_ns < delay_ns_) delay_ns_ = took_ns;
      return;
    }
    const double rate = static_cast<double>(nbytes) / static_cast<double>(took_ns);  // bytes per ns
    if (now_ns - began_ns_ > kLatelyNs && full) {
      began_ns_ = now_ns;
      last_rate_ = rate_;
      last_delay_ns_ = delay_ns_;
      rate_ = 0;
      delay_ns_ = took_ns;
    }
    rate_ = std::max(rate_, rate);
    delay_ns_ = delay_ns_ == 0 ? took_ns : std::min(delay_ns_, took_ns);
    const double best = std::max(rate_, last_rate_);
    const std::int64_t delay_ns = last_delay_ns_ == 0 ? delay_ns_ : std::min(delay_ns_, last_delay_ns_);
    const auto within = [best](std::int64_t ns) { return static_cast<std::uint64_t>(best * static_cast<double>(ns)); };
    segment_ = std::clamp(std::bit_floor(within(kSegmentNs) + 1), std::min(kLeastSegment, most_segment_), most_segment_);
    bytes_ = std::clamp(within(std::min(delay_ns, kAheadNs) + kAheadNs), std::min(kLeastSegments * segment_, most_), most_);
  }

  std::uint64_t most_segment_ = 0;
  std::uint64_t most_ = 0;
  std::uint64_t segment_ = 0;
  std::uint64_t bytes_ = 0;
  std::uint64_t delivered_ = 0;
  double rate_ = 0;
  double last_rate_ = 0;
  std::int64_t began_ns_ = 0;
  std::int64_t delay_ns_ = 0;
  std::int64_t last_delay_ns_ = 0;
};

// When a lost path is asked whether it lives: after a hold-off that doubles each time it was lost soon after it came back;
// it is fit again after answers in a row.
class Revival {
 public:
  static constexpr std::int64_t kEveryNs = 20'000'000;
  static constexpr std::int64_t kRarelyNs = 250'000'000;
  static constexpr std::int64_t kStableNs = 10'000'000'000;
  static constexpr int kRounds = 5;

  void lost(std::int64_t now_ns, std::int64_t hold_off_ns, std::int64_t longest_ns) {
    if (back_ns_ == 0 || now_ns - back_ns_ > kStableNs) flaps_ = 0;
    const std::int64_t hold_ns = std::min(hold_off_ns << std::min(flaps_, 16), longest_ns);
    ++flaps_;
    next_ns_ = now_ns + hold_ns;
    answered_ = asked_ = 0;
  }
  void back(std::int64_t now_ns) { back_ns_ = now_ns; }

  std::int64_t next_ns() const { return next_ns_; }
  std::uint64_t token() const { return token_; }
  // Another alive message goes out now.
  void ask(std::int64_t now_ns, std::uint64_t token) {
    if (pending_) answered_ = 0;  // the last one was not answered: not in a row
    asked_ = answered_ > 0 ? 0 : asked_ + 1;
    token_ = token;
    pending_ = true;
    next_ns_ = now_ns + (asked_ > kRounds ? kRarelyNs : kEveryNs);
  }
  bool answer(std::uint64_t token) {
    if (!pending_ || token != token_) return false;
    pending_ = false;
    ++answered_;
    return true;
  }
  std::uint32_t answered() const { return answered_; }
  // It was reported as fit; if nobody connects it, it is reported again later.
  void reported(std::int64_t now_ns) {
    next_ns_ = now_ns + kStableNs / 10;
    answered_ = 0;
    pending_ = false;
  }

 private:
  std::int64_t next_ns_ = 0;
  std::int64_t back_ns_ = 0;
  std::uint64_t token_ = 0;
  std::uint32_t answered_ = 0;
  int asked_ = 0;
  int flaps_ = 0;
  bool pending_ = false;
};

struct PathRecord {
  Path name;
  std::uint32_t index = 0;         // in Rails
  PathState state = PathState::absent;
  std::uint32_t generation = 0;    // even: up in it; odd: lost in it
  std::size_t turn = 0;            // which lane is served next
  Window window;
  std::uint32_t most_flights = 1;  // that peers can keep, if all paths have as many under way

  Queue<Flight> flights;           // not confirmed, in the order they were posted
  std::uint64_t confirmed = 0;     // flights of this generation that are done with; the position of the first one left
  std::uint64_t asked_until = 0;   // position after the last flight that asks to be confirmed at once, for the sake of the window
  std::uint64_t in_flight_bytes = 0;
  std::uint64_t received = 0;      // segments of the peer that landed in this generation
  std::uint64_t settled_received = 0;     // the same, of the generation that was agreed about last
  std::uint32_t settled_generation = 0;

  std::int64_t progress_ns = 0;    // the last confirmation, or when the first flight left
  std::int64_t confirmed_ns = 0;   // the last confirmation
  std::uint64_t confirmed_order = 0;  // of the put that it was of
  std::int64_t latency_ns = 0;     // of the last confirmation
  std::int64_t asked_ns = 0;       // since when the peer is asked whether it is there; 0: it is not
  std::int64_t ping_ns = 0;
  Status why;                      // it was lost
  std::int64_t lost_ns = 0;
  std::int64_t up_ns = 0;          // it came up
  bool fresh = false;              // again, and nothing came over it since
  std::int64_t resend_ns = 0;      // of the request
  int tries = 0;
  Revival revival;
};

// The way of one put from the program to its completion.
struct Item {
  bool live = false;
  bool completed = false;          // told complete before it was confirmed, which needs the copy
  bool urgent = false;             // when it has landed, the peer confirms at once
  std::uint32_t lane = 0;
  const std::byte* source = nullptr;
  RegionKey source_key = 0;
  std::uint64_t nbytes = 0;
  std::uint64_t cut = 0;
  std::uint32_t open = 0;          // segments not confirmed
  Remote destination;
  std::int32_t signal = -1;
  std::uint32_t sequence = 0;
  std::uint64_t cookie = 0;
  Tag tag;
  std::uint64_t order = 0;         // among the puts of this rank
  std::vector<std::byte> copy;     // keeps its memory from use to use
};

// A short put that went over its own path as it came, and is not in the ledger yet.
struct Posted {
  Put put;                         // as the transport got it
  std::uint64_t cookie = 0;        // of the program
  PathRecord* path = nullptr;
  std::uint32_t lane = 0;
  bool awaited = false;            // the program waits for its completion, and posts nothing before
  std::int64_t since_ns = 0;
};

// A short put whose bytes are copied when there is time, unless it is confirmed by then and its place has another one.
struct Uncopied {
  // What is copied as soon as it has gone. Longer puts may be confirmed before there is time for that, or need to be.
  static constexpr std::uint64_t kShortBytes = 512;
  // Confirmations that ride on what goes the other way come within this.
  static constexpr std::int64_t kYoungNs = 50'000;

  std::uint32_t item = 0;
  std::uint64_t order = 0;
  std::int64_t since_ns = 0;
};

struct Lane {
  Path home;
  PathRecord* home_path = nullptr; // null: no connection joined these NICs yet
  std::uint32_t id = 0;
  std::uint32_t next_number = 0;
  bool owed = false;               // a put whose completion will be missed went, and none that asks for it since
  Queue<std::uint32_t> items;      // with bytes that are in no segment yet
  std::vector<Flight> again;       // lost on the way, by number, the next one last

  bool has_work() const { return !again.empty() || !items.empty(); }
};

// Of one of the few paths or lanes of a peer: both are called by their NICs.
template <class T>
struct Named {
  std::uint32_t id = 0;      // lane_id()
  std::uint32_t index = 0;   // in Rails
  T* at = nullptr;
};

template <class T>
const Named<T>* find_named(const std::vector<Named<T>>& all, std::uint32_t id) {
  for (const Named<T>& each : all)
    if (each.id == id) return &each;
  return nullptr;
}

// Cookies that this layer gives the transport say which path and generation, or, with this bit, which get.
inline constexpr std::uint64_t kReadingBit = std::uint64_t{1} << 63;

// A get under way. Its bytes land here, so this end alone can send it again.
struct Reading {
  bool live = false;
  bool posted = false;
  std::uint32_t serial = 0;
  std::size_t path = 0;
  std::int64_t since_ns = 0;       // when that path was asked
  Get get;
};

}  // namespace ccl_lab
