// Signals of one peer, in the order they were posted, though their frames may take several connections.
//
// Is: per signal channel the number of the next signal sent and of the next one to raise; a signal that arrives before an
//     earlier one is parked until that one has come. Silent signals (base/signals.hpp) have numbers as the others do.
// Is not: aware of bytes: a frame is reported here after its own payload has been written.
//
//   arrived(n): n == next ─► raise, next++, then whatever is parked for next ... ; n after next ─► park ; n before ─► error
//
// Invariants
//  - Numbers count modulo 2^32; at most kMostParked are parked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/signals.hpp"
#include "base/status.hpp"

namespace ccl_lab {

class SignalOrder {
 public:
  static constexpr std::size_t kMostParked = 65536;

  // `first`: the number of the first signal of every channel, the same on both sides.
  explicit SignalOrder(int n_channels, std::uint32_t first = 0)
      : sent_(static_cast<std::size_t>(n_channels), first), raised_(static_cast<std::size_t>(n_channels), first) {}

  std::uint32_t next_to_send(std::int32_t signal) { return sent_[static_cast<std::size_t>(channel_of_signal(signal))]++; }

  Status arrived(const SignalTable& signals, std::int32_t peer, std::int32_t signal, std::uint32_t number) {
    const std::int32_t channel = channel_of_signal(signal);
    bool silent = is_silent(signal);
    std::uint32_t& next = raised_[static_cast<std::size_t>(channel)];
    const auto ahead = static_cast<std::int32_t>(number - next);
    if (ahead < 0 || is_parked(channel, number))
      return Status(Code::link_down, "bad frame: signal " + std::to_string(number) + " on channel " +
                                         std::to_string(channel) + " came twice, expected " + std::to_string(next));
    if (ahead > 0) {
      if (parked_.size() >= kMostParked)
        return Status(Code::link_down, "bad frame: more than " + std::to_string(kMostParked) +
                                           " signals came before signal " + std::to_string(next) + " of channel " +
                                           std::to_string(channel));
      parked_.push_back({channel, number, silent});
      return {};
    }
    do {
      if (!silent) signals.raise(peer, channel);
      ++next;
    } while (take_parked(channel, next, silent));
    return {};
  }

  std::size_t n_parked() const { return parked_.size(); }

 private:
  struct Parked {
    std::int32_t channel;
    std::uint32_t number;
    bool silent;
  };

  bool is_parked(std::int32_t channel, std::uint32_t number) const {
    for (const Parked& one : parked_)
      if (one.channel == channel && one.number == number) return true;
    return false;
  }
  bool take_parked(std::int32_t channel, std::uint32_t number, bool& silent) {
    for (Parked& one : parked_) {
      if (one.channel != channel || one.number != number) continue;
      silent = one.silent;
      one = parked_.back();
      parked_.pop_back();
      return true;
    }
    return false;
  }

  std::vector<std::uint32_t> sent_;
  std::vector<std::uint32_t> raised_;
  std::vector<Parked> parked_;
};

}  // namespace ccl_lab
