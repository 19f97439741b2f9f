// The sleep of a thread that does not drive; see parked.hpp.
#include "comm/parked.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>

#include "base/clock.hpp"

namespace ccl_lab {

Parked::~Parked() {
  if (bell_ >= 0) ::close(bell_);
}

void Parked::open() {
  if (bell_ < 0) bell_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

void Parked::sleep(std::unique_lock<std::mutex>& lock) {
  const std::int64_t now = now_ns();
  std::int64_t left_ns = kHeartbeatNs;
  set_.assign(1, {bell_, POLLIN, 0});  // -1 is passed over
  if (bell_ < 0 || closely_ || came_ || (watches_ && watched_.empty())) {
    left_ns = kCloselyNs;
  } else if (watches_) {
    set_.insert(set_.end(), watched_.begin(), watched_.end());
    left_ns = std::clamp(due_ns_ - now, kCloselyNs, kHeartbeatNs);
  }
  ends_ns_ = now + left_ns;
  asleep_ = true;
  lock.unlock();
  const timespec timeout{0, left_ns};
  const int n = ::ppoll(set_.data(), static_cast<nfds_t>(set_.size()), &timeout, nullptr);
  lock.lock();
  asleep_ = false;
  came_ = n > 0 && std::any_of(set_.begin() + 1, set_.end(), [](const pollfd& each) { return each.revents != 0; });
  eventfd_t calls = 0;
  if (n > 0 && set_[0].revents != 0) ::eventfd_read(bell_, &calls);
}

void Parked::wake() {
  if (asleep_ && bell_ >= 0) ::eventfd_write(bell_, 1);
}

void Parked::closely() {
  closely_ = true;
  wake();
}

void Parked::watch(const std::vector<pollfd>& set, std::int64_t due_ns) {
  watched_ = set;
  due_ns_ = due_ns;
  const bool later = !watches_ || due_ns < ends_ns_ - kCloselyNs;  // than it should wake
  watches_ = true;
  if (later) wake();
}

}  // namespace ccl_lab
