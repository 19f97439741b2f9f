// The signal counters of one rank.
//
// Is: a view of counters[source rank][signal channel]; whoever moves bytes raises them, the executor reads them.
// Is not: an owner of memory (that is RankSegment, or a plain vector in tests).
//
// Invariants
//  - Counters only grow, except by `zero`, which needs all writers quiet.
//  - A reader that loads a value with `value` sees every byte that was written before the counter was raised.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace ccl_lab {

// A bit of the number of a signal channel, on its way: the signal takes its turn among those of its channel, and raises nothing.
// What comes after it on the channel so waits for what came before it, on whatever NICs both travel.
inline constexpr std::int32_t kSilentSignal = 1 << 30;

// The channel of a signal, silent or not; -1 of none.
constexpr std::int32_t channel_of_signal(std::int32_t signal) { return signal < 0 ? signal : signal & ~kSilentSignal; }
constexpr bool is_silent(std::int32_t signal) { return signal >= 0 && (signal & kSilentSignal) != 0; }

class SignalTable {
 public:
  SignalTable() = default;
  // `row_stride` counts counters, not bytes.
  SignalTable(std::atomic<std::uint64_t>* counters, int n_ranks, int n_channels, std::size_t row_stride)
      : counters_(counters), row_stride_(row_stride), n_ranks_(n_ranks), n_channels_(n_channels) {}

  int n_ranks() const { return n_ranks_; }
  int n_channels() const { return n_channels_; }
  bool contains(std::int32_t source, std::int32_t channel) const {
    return source >= 0 && source < n_ranks_ && channel >= 0 && channel < n_channels_;
  }

  std::atomic<std::uint64_t>& at(std::int32_t source, std::int32_t channel) const {
    return counters_[static_cast<std::size_t>(source) * row_stride_ + static_cast<std::size_t>(channel)];
  }
  std::uint64_t value(std::int32_t source, std::int32_t channel) const {
    return at(source, channel).load(std::memory_order_acquire);
  }
  void raise(std::int32_t source, std::int32_t channel) const {
    at(source, channel).fetch_add(1, std::memory_order_acq_rel);
  }
  void zero() const {
    for (int source = 0; source < n_ranks_; ++source)
      for (int channel = 0; channel < n_channels_; ++channel) at(source, channel).store(0, std::memory_order_release);
  }

 private:
  std::atomic<std::uint64_t>* counters_ = nullptr;
  std::size_t row_stride_ = 0;
  int n_ranks_ = 0;
  int n_channels_ = 0;
};

}  // namespace ccl_lab
