// Where the thread of a rank is while callers drive, or come and go: asleep until it is called, or there is something to see to.
//
// Is: its sleep, and what may end it: a call, a descriptor on which peers ask for an answer, a time.
// Is not: a driver: it looks at nothing itself, and does not say why it woke.
//
//   nothing to watch over   a heartbeat
//   watch()                 the descriptors, and the time at which something is due; the next sleep after one of them woke it has a
//                           time only: callers may have seen to it, and what they have not read yet would wake it again at once
//   closely()               every 10 ms
//
// Invariants
//  - All of it with the mutex of the driver held, but for the sleep itself. No call is lost: it stays in an eventfd until the
//    sleeper has read it.
//  - A thread that wakes takes a core from a rank that spins: every 10 ms is 1 % of an all_reduce of 16 MiB on two cores that two ranks share.
#pragma once

#include <poll.h>

#include <cstdint>
#include <mutex>
#include <vector>

namespace ccl_lab {

class Parked {
 public:
  // How late a sleeping rank notices an abort by a process that died before it rang.
  static constexpr std::int64_t kHeartbeatNs = 250'000'000;
  // How late it is where there is nothing that would wake it.
  static constexpr std::int64_t kCloselyNs = 10'000'000;

  Parked() = default;
  Parked(const Parked&) = delete;
  Parked& operator=(const Parked&) = delete;
  ~Parked();

  // Before the first sleep. Where the process has no descriptor left, sleeps are short ones.
  void open();
  void sleep(std::unique_lock<std::mutex>& lock);
  // Ends the sleep, if it is one.
  void wake();
  bool asleep() const { return asleep_; }

  void closely();
  // `set` is copied; due_ns: when the next sleep ends at the latest, though not before kCloselyNs. An empty set: closely, until the next call.
  void watch(const std::vector<pollfd>& set, std::int64_t due_ns);

 private:
  int bell_ = -1;
  bool asleep_ = false;
  bool closely_ = false;
  bool watches_ = false;
  bool came_ = false;               // a descriptor ended the last sleep
  std::int64_t due_ns_ = 0;
  std::int64_t ends_ns_ = 0;        // of the sleep, at the latest
  std::vector<pollfd> watched_;
  std::vector<pollfd> set_;         // the sleeper's
};

}  // namespace ccl_lab
