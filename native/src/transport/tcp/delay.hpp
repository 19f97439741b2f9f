// How a NIC of the lab adds latency to what it sends.
//
// Is: the times at which the things that wait in a queue may go, in the order of the queue: each waits as long as was asked
//     when it came, so a stream is shifted and not slowed down. It counts; the queue is somebody else's.
// Is not: a rate (shaper.hpp), nor a clock: times are handed in. Nothing is held while it was not switched on.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "transport/queue.hpp"

namespace ccl_lab {

class Delay {
 public:
  // Whether the first of the queue may go.
  bool open() const { return !on_ || free_ > 0; }
  // It went.
  void gone() {
    if (on_) --free_;
  }
  // `waiting` things are in the queue now; `wait()` says how long one that is new has to. Returns how many were new.
  template <class Wait>
  std::size_t look(std::size_t waiting, std::int64_t now_ns, Wait&& wait) {
    on_ = true;
    std::size_t fresh = 0;
    for (; free_ + held_.size() < waiting; ++fresh) held_.push(now_ns + wait());
    for (; !held_.empty() && held_.front() <= now_ns; held_.pop()) ++free_;
    return fresh;
  }
  void off() {
    on_ = false;
    free_ = 0;
    held_.clear();
  }
  void wake(std::int64_t& wake_ns) const {
    if (on_ && free_ == 0 && !held_.empty()) wake_ns = std::min(wake_ns, held_.front());
  }

 private:
  bool on_ = false;
  std::size_t free_ = 0;       // of the queue, from its front
  Queue<std::int64_t> held_;   // when each of the others may go
};

}  // namespace ccl_lab
