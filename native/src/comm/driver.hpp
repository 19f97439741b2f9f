// Who drives a rank's Progress: a caller that waits, or the rank's thread when no caller does.
//
// Is: the seat of the driver, the thread, spinning and sleeping, and the queue into Progress; callable from any thread.
// Is not: what a step does (progress.cpp), nor what a caller may start (engine.cpp).
//
//   caller waits ──seat is free, or the thread's──► drives itself: no switch of threads on the way of a small message
//   caller leaves with works outstanding ─────────► the thread is called, and drives until they are done
//   nothing outstanding ──────────────────────────► the thread dozes in ppoll: notices aborts, shows that the rank lives
//
//   seat   nobody ──► caller | thread      who steps. A caller takes it from a thread that dozes at once, from one that
//                                          steps after the step
//   turn   a lock around each burst of steps. Not held while asleep; a driver that is awake lets `alone` in between two
//          steps
//
// Invariants
//  - Progress is touched only with the turn held; its driver is the only one who sleeps for it, on the rank's doorbell.
//  - The thread starts when it is first called. No signal is delivered to it, and it never takes the GIL.
//  - No wake-up is lost: a sleeper says that it sleeps, looks again, then sleeps (doorbell.hpp); work for it is put down
//    before it is woken.
//  - Sums are the same whoever drives: the driver's thread runs with the default floating-point environment.
#pragma once

#include <poll.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/segment.hpp"
#include "comm/goal.hpp"
#include "comm/parked.hpp"
#include "comm/patience.hpp"
#include "comm/progress.hpp"
#include "comm/work.hpp"

namespace ccl_lab {

class Driver {
 public:
  // `with`: who else wants the cores of this rank.
  Driver(Progress& progress, std::shared_ptr<RankSegment> own, std::int64_t spin_ns, Sharing with);
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;
  ~Driver() { close(); }

  // Queues a work. Unless the caller says that it will wait, or hand over, next, the thread is called to run it.
  Status push(std::shared_ptr<Work> work, bool caller_waits);
  // Drives until the goal has ended, calls for its caller, or until_ns has passed; true if it has ended. With `in_slices` it may return earlier,
  // where a signal came, and leaves without calling the thread: wait again, or hand_over().
  bool wait(const Goal& goal, std::int64_t until_ns, bool in_slices);
  // What is outstanding goes on without the caller; `surely`: the caller knows that something is.
  void hand_over(bool surely = false);
  // Something that a step finds has happened in this process: another caller that drives and sleeps looks again.
  void wake_caller();
  // From here on something answers peers, whether works are outstanding or not: within milliseconds where they ask by message, and `closely`
  // within milliseconds whatever they do.
  void keep_watch(bool closely);
  // Runs `body` where Progress may be touched; usage error where the driver is closed.
  Status alone(const std::function<void()>& body);

  // Started works go to Progress. Only inside `alone`, or as its driver.
  void take_incoming();

  // Ends the thread and sends waiting callers away; Progress belongs to the caller afterwards. False, at once, where it
  // was closed before.
  bool close();
  bool closed() const { return closed_.load(std::memory_order_relaxed); }
  Status refuse_closed() const;

 private:
  enum class Seat : std::uint8_t { nobody, caller, thread };
  enum class Woken : std::uint8_t { on, by_signal, seat_lost };
  // What a driver sleeps on, and whether it does: the thread may still doze when a caller has taken its seat.
  struct Sleeper {
    std::vector<pollfd> descriptors;
    bool asleep = false;
  };

  using Lock = std::unique_lock<std::mutex>;

  bool seat_is_free() const { return seat_ == Seat::nobody || (seat_ == Seat::thread && thread_.asleep); }
  bool drive(Seat who, const Goal* until, std::int64_t until_ns, bool in_slices);
  void let_others_in(Lock& turn);
  Woken sleep(Seat who, Lock& turn, std::int64_t until_ns);
  Woken doze(Seat who, Lock& turn, std::int64_t until_ns);
  void call_thread();
  void poke() const;
  void start_thread();
  void say_watch();
  void loop();

  Progress& progress_;
  std::shared_ptr<RankSegment> own_;
  Patience caller_patience_;
  Patience thread_patience_;

  std::mutex turn_;
  std::atomic<int> wanted_{0};       // calls of alone() that wait for the turn

  mutable std::mutex mutex_;         // of all below
  std::condition_variable changed_;  // a seat is free, a work has ended, it is closed
  Parked parked_;                    // the thread: no caller drives any more
  Seat seat_ = Seat::nobody;
  int callers_ = 0;                  // in wait()
  std::atomic<int> watchers_{0};     // callers that wait for `changed_`
  Sleeper caller_;
  Sleeper thread_;
  bool outstanding_ = false;         // as the last driver left it
  std::atomic<bool> unsent_{false};  // no work is left, but bytes of one are
  std::atomic<bool> leave_{false};   // the thread has to give its seat to a caller
  std::atomic<bool> closed_{false};
  std::atomic<bool> pending_{false};
  std::atomic<bool> watchful_{false};
  std::vector<std::shared_ptr<Work>> incoming_;
  std::vector<pollfd> watched_;      // scratch of say_watch()
  std::unique_ptr<std::thread> runner_;
};

}  // namespace ccl_lab
