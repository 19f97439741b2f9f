// Posting, ending and handing over; see stream.hpp.
#include "comm/stream.hpp"

#include <algorithm>

#include "base/clock.hpp"

namespace ccl_lab {

void Stream::post(std::uint64_t cookie, std::uint32_t op, std::int32_t partition, std::int64_t now_ns, bool on_time) {
  Partition next;
  next.cookie = cookie;
  next.op = op;
  const std::lock_guard lock(mutex_);
  if (how_->device == Device::emulated) {
    next.begin_ns = on_time && free_ns_ > 0 ? free_ns_ : std::max(free_ns_, now_ns);
    next.end_ns = next.begin_ns + how_->duration_ns[static_cast<std::size_t>(partition)];
    free_ns_ = next.end_ns;
  }
  posted_.push_back(next);
  if (how_->device == Device::caller) n_posted_.fetch_add(1, std::memory_order_release);
}

void Stream::take_ended(std::int64_t now_ns, std::vector<Partition>& ended) {
  const std::lock_guard lock(mutex_);
  if (how_->device == Device::emulated) {
    const auto still = std::find_if(posted_.begin(), posted_.end(), [&](const Partition& p) { return p.end_ns > now_ns; });
    ended.insert(ended.end(), posted_.begin(), still);
    posted_.erase(posted_.begin(), still);
    return;
  }
  ended.insert(ended.end(), ended_.begin(), ended_.end());
  ended_.clear();
  n_ended_.store(0, std::memory_order_relaxed);
}

void Stream::running(std::int64_t now_ns, std::vector<Partition>& out) const {
  const std::lock_guard lock(mutex_);
  for (const Partition& partition : posted_)
    if (partition.begin_ns > 0 && partition.begin_ns < now_ns) out.push_back(partition);
}

bool Stream::begin(std::uint32_t& op) {
  const std::lock_guard lock(mutex_);
  if (taken_ || posted_.empty()) return false;
  taken_ = true;
  posted_.front().begin_ns = now_ns();
  op = posted_.front().op;
  n_posted_.fetch_sub(1, std::memory_order_relaxed);
  return true;
}

bool Stream::end() {
  const std::lock_guard lock(mutex_);
  if (!taken_) return false;
  taken_ = false;
  posted_.front().end_ns = now_ns();
  ended_.push_back(posted_.front());
  posted_.erase(posted_.begin());
  n_ended_.fetch_add(1, std::memory_order_release);
  return true;
}

}  // namespace ccl_lab
