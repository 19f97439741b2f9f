// How a thread of the host waits for streams: it looks again soon at first, then less often, and hears of signals between looks.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>

#include "base/clock.hpp"
#include "base/status.hpp"

namespace ccl_lab::device {

using Interrupted = std::function<Status()>;  // what it returns, if not ok, ends the wait

class Waiting {
 public:
  explicit Waiting(const Interrupted& interrupted) : interrupted_(interrupted), begin_ns_(now_ns()), looked_ns_(begin_ns_) {}
  std::int64_t waited_ns() const { return now_ns() - begin_ns_; }
  // Until the next look. Not ok where a signal came.
  Status pause() {
    if (waited_ns() < kSpinNs) std::this_thread::yield();
    else std::this_thread::sleep_for(std::chrono::microseconds(50));
    if (now_ns() - looked_ns_ < kInterruptNs) return {};
    looked_ns_ = now_ns();
    return interrupted_();
  }

 private:
  static constexpr std::int64_t kSpinNs = 200'000;  // peers that are on their way come within
  static constexpr std::int64_t kInterruptNs = 50'000'000;
  const Interrupted& interrupted_;
  std::int64_t begin_ns_;
  std::int64_t looked_ns_;
};

}  // namespace ccl_lab::device
