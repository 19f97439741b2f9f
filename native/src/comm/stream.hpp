// The computation of a rank beside its transfers: partitions, one after the other, in the order in which they were posted.
//
// Is: the hand-over between who drives the run (posts partitions, hears that they have ended) and what computes them:
//     emulated   a device that is only a clock: a partition ends by itself, and no core is used
//     caller     the thread that called run(): it takes a partition, computes, says that it has ended, waits for the next
// Is not: a thread, and not what a partition is: that is the caller's.
//
//   partition   posted ──stream is free──► running ──its time is over, or ended()──► ended ──take_ended()──► gone
//
// Invariants
//  - One partition runs at a time; the order is that of the posts.
//  - A device is not late because its rank was: what was ready before the device got free begins when it got free, however
//    late the end was seen. So errors of a sleep do not add up; a partition that had to wait begins when it is posted.
//  - posts, take_ended and due_ns belong to who drives; begin and end to one caller; any of them may meet any other.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace ccl_lab {

enum class Device : std::uint8_t { none, emulated, caller };

// How the compute ops of a run are done.
struct Computation {
  Device device = Device::none;
  // What a partition produces lies in INPUT already: the engine only adds the other sources and writes the sum where it goes.
  bool carries = false;
  std::vector<std::int64_t> duration_ns;  // by partition; of an emulated device
};

class Stream {
 public:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  struct Partition {
    std::uint64_t cookie = 0;
    std::uint32_t op = 0;       // index into Program::ops()
    std::int64_t begin_ns = 0;  // 0: it has not begun
    std::int64_t end_ns = 0;
  };

  // Room for `most` partitions that are posted and not ended.
  Stream(std::shared_ptr<const Computation> how, std::size_t most) : how_(std::move(how)) {
    posted_.reserve(most);
    ended_.reserve(most);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  const Computation& how() const { return *how_; }

  // Whoever drives. `on_time`: nothing but the end of the partition before this one was waited for.
  void post(std::uint64_t cookie, std::uint32_t op, std::int32_t partition, std::int64_t now_ns, bool on_time);
  // True where take_ended would find something.
  bool has_ended(std::int64_t now_ns) const {
    return how_->device == Device::caller ? n_ended_.load(std::memory_order_acquire) > 0 : due_ns() <= now_ns;
  }
  // Appends what has ended since the last call.
  void take_ended(std::int64_t now_ns, std::vector<Partition>& ended);
  // When the running partition of an emulated device ends; kNever without one.
  std::int64_t due_ns() const {
    return how_->device == Device::emulated && !posted_.empty() ? posted_.front().end_ns : kNever;
  }
  // Those that have begun and not ended, for traces of runs that failed.
  void running(std::int64_t now_ns, std::vector<Partition>& out) const;

  // Any thread: a partition waits for the caller.
  bool calls() const { return n_posted_.load(std::memory_order_acquire) > 0; }
  // The caller. begin: the op of the partition to compute now; false: there is none. end: it has ended; false: there was none.
  bool begin(std::uint32_t& op);
  bool end();

 private:
  std::shared_ptr<const Computation> how_;
  std::int64_t free_ns_ = 0;           // when the emulated device is through with all that was posted
  mutable std::mutex mutex_;           // of what follows, where a caller computes
  std::vector<Partition> posted_;      // the first ones run
  std::vector<Partition> ended_;
  bool taken_ = false;                 // the caller has the first of posted_
  std::atomic<int> n_posted_{0};       // partitions that nobody has taken
  std::atomic<int> n_ended_{0};
};

}  // namespace ccl_lab
