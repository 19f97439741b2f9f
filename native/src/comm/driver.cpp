// Seats, turns and sleeps; see driver.hpp.
#include "comm/driver.hpp"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <limits>
#include <string>
#include <utility>

#include "base/arithmetic.hpp"
#include "base/clock.hpp"
#include "base/cpu.hpp"

namespace ccl_lab {

namespace {

// How late a sleeping rank notices an abort by a process that died before it rang, and how often it shows that it lives.
constexpr std::int64_t kHeartbeatNs = Parked::kHeartbeatNs;

// A caller has nothing better to do; the thread may be taking the core from somebody who computes.
constexpr int kMostSpins = 10;

// While it lives and once set, sleeps of this thread end when they should, and not up to 50 µs later.
class FineTimers {
 public:
  FineTimers() = default;
  FineTimers(const FineTimers&) = delete;
  FineTimers& operator=(const FineTimers&) = delete;
  ~FineTimers() {
    if (before_ > 0) ::prctl(PR_SET_TIMERSLACK, before_);
  }
  void set() {
    if (before_ != 0) return;
    before_ = ::prctl(PR_GET_TIMERSLACK);
    if (before_ > 0) ::prctl(PR_SET_TIMERSLACK, 1UL);
  }

 private:
  long before_ = 0;  // -1: not known here
};

}  // namespace

Driver::Driver(Progress& progress, std::shared_ptr<RankSegment> own, std::int64_t spin_ns, Sharing with)
    : progress_(progress),
      own_(std::move(own)),
      caller_patience_(spin_ns, with, kMostSpins),
      thread_patience_(spin_ns, with, 1) {}

Status Driver::refuse_closed() const {
  return Status(Code::usage, "the engine of rank " + std::to_string(own_->rank()) + " is closed", own_->rank());
}

Status Driver::push(std::shared_ptr<Work> work, bool caller_waits) {
  const std::lock_guard lock(mutex_);
  if (closed_) return refuse_closed();
  incoming_.push_back(std::move(work));
  pending_.store(true, std::memory_order_release);
  if (callers_ > 0) poke();
  else if (!caller_waits) call_thread();
  return {};
}

bool Driver::wait(const Goal& goal, std::int64_t until_ns, bool in_slices) {
  Lock lock(mutex_);
  ++callers_;
  bool again = !goal.calls() && !closed_;
  while (again) {
    if (seat_is_free()) {
      seat_ = Seat::caller;
      lock.unlock();
      const bool outstanding = drive(Seat::caller, &goal, until_ns, in_slices);
      lock.lock();
      outstanding_ = outstanding;
      seat_ = Seat::nobody;
      if (callers_ > 1) changed_.notify_all();
      again = false;  // it has ended, or it is time to go
    } else {
      if (seat_ == Seat::thread) leave_.store(true, std::memory_order_relaxed);
      watchers_.fetch_add(1);
      const auto left = std::chrono::nanoseconds(std::max<std::int64_t>(until_ns - now_ns(), 0));
      changed_.wait_for(lock, std::min<std::chrono::nanoseconds>(left, std::chrono::hours(1)));
      watchers_.fetch_sub(1);
      again = !goal.calls() && !closed_ && now_ns() < until_ns;
    }
  }
  --callers_;
  if (callers_ > 0) return goal.done();
  leave_.store(false, std::memory_order_relaxed);
  if (closed_) changed_.notify_all();
  else if (outstanding_ || pending_) {
    // In slices the caller comes back, or hands over; what works that are over left unsent has nobody else.
    if (!in_slices || (unsent_ && goal.done())) call_thread();
  }
  return goal.done();
}

// Peers may ask at any time from here on, also between two calls.
void Driver::keep_watch(bool closely) {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  if (closely) parked_.closely();
  if (!watchful_.exchange(true) && runner_ == nullptr) start_thread();
}

// With the turn held: what the thread has to look after when nobody drives.
void Driver::say_watch() {
  watched_.clear();
  std::int64_t due_ns = std::numeric_limits<std::int64_t>::max();
  progress_.watch_set(watched_, due_ns);
  const std::lock_guard lock(mutex_);
  parked_.watch(watched_, due_ns);
}

void Driver::wake_caller() {
  const std::lock_guard lock(mutex_);
  if (caller_.asleep) poke();
}

void Driver::hand_over(bool surely) {
  const std::lock_guard lock(mutex_);
  if (!closed_ && callers_ == 0 && (surely || outstanding_ || pending_)) call_thread();
}

Status Driver::alone(const std::function<void()>& body) {
  if (closed_) return refuse_closed();
  wanted_.fetch_add(1);
  {
    const Lock turn(turn_);
    wanted_.fetch_sub(1);
    if (closed_) return refuse_closed();
    body();
    if (watchful_.load(std::memory_order_relaxed)) say_watch();
  }
  // Whoever sleeps may have to sleep on something else now; works may have ended.
  const std::lock_guard lock(mutex_);
  poke();
  changed_.notify_all();
  return {};
}

bool Driver::close() {
  {
    Lock lock(mutex_);
    if (closed_.exchange(true)) return false;
    poke();
    parked_.wake();
    changed_.notify_all();
    changed_.wait(lock, [this] { return callers_ == 0; });
    poke();  // a caller may have drained what was meant for the thread
  }
  if (runner_ != nullptr) runner_->join();
  const Lock turn(turn_);  // a call of alone() may be at it
  take_incoming();
  return true;
}

// With mutex_ held: sleepers look again.
void Driver::poke() const {
  if (!caller_.asleep && !thread_.asleep) return;
  const char byte = 1;
  while (::write(own_->doorbell().fd(), &byte, 1) < 0 && errno == EINTR) {
  }
}

// With mutex_ held: the thread takes the seat if it is free.
void Driver::call_thread() {
  if (runner_ == nullptr) start_thread();
  else if (parked_.asleep()) parked_.wake();
  else poke();
}

void Driver::start_thread() {
  parked_.open();
  // The thread inherits the mask: Python's signals belong to Python's main thread.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  runner_ = std::make_unique<std::thread>([this] { loop(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  const std::string name = "ccl_lab/" + std::to_string(own_->rank());
  pthread_setname_np(runner_->native_handle(), name.substr(0, 15).c_str());
}

void Driver::loop() {
  Lock lock(mutex_);
  while (!closed_) {
    if (callers_ > 0 || seat_ != Seat::nobody) {
      parked_.sleep(lock);
      continue;
    }
    seat_ = Seat::thread;
    lock.unlock();
    const bool outstanding = drive(Seat::thread, nullptr, std::numeric_limits<std::int64_t>::max(), false);
    lock.lock();
    if (seat_ != Seat::thread) continue;  // a caller took it while this dozed
    outstanding_ = outstanding;
    seat_ = Seat::nobody;
    if (callers_ > 0) changed_.notify_all();
  }
}

// With the turn held.
void Driver::take_incoming() {
  const std::lock_guard lock(mutex_);
  pending_.store(false, std::memory_order_relaxed);
  for (std::shared_ptr<Work>& work : incoming_) progress_.push(std::move(work));
  incoming_.clear();
}

void Driver::let_others_in(Lock& turn) {
  turn.unlock();
  while (wanted_.load(std::memory_order_relaxed) > 0) ::sched_yield();
  turn.lock();
}

// Steps until `until` has ended, until_ns has passed, or the seat has to be given up. Returns whether works are
// outstanding.
bool Driver::drive(Seat who, const Goal* until, std::int64_t until_ns, bool in_slices) {
  const DefaultArithmetic arithmetic;
  Patience& patience = who == Seat::caller ? caller_patience_ : thread_patience_;
  patience.reset(0);
  Lock turn(turn_);
  std::uint64_t news = progress_.n_news();
  FineTimers timers;
  for (;;) {
    if (wanted_.load(std::memory_order_relaxed) > 0) let_others_in(turn);
    if (pending_.load(std::memory_order_acquire)) take_incoming();
    const int did = progress_.step();
    if (std::exchange(news, progress_.n_news()) != news && watchers_.load() > 0) {
      const std::lock_guard lock(mutex_);
      changed_.notify_all();
    }
    if (until != nullptr && until->calls()) break;
    if (closed_.load(std::memory_order_relaxed)) break;
    if (who == Seat::thread && leave_.load(std::memory_order_relaxed)) break;
    if (did > 0) {
      patience.reset(progress_.now());
      continue;
    }
    const std::int64_t now = progress_.now();
    if (now >= until_ns) break;
    const Patience::Next next = patience.next(now);
    if (next == Patience::Next::look) {
      relax();
      continue;
    }
    if (next == Patience::Next::yield && progress_.busy()) {
      ::sched_yield();
      continue;
    }
    if (progress_.on_the_clock()) timers.set();
    const Woken woken = sleep(who, turn, until_ns);
    if (woken == Woken::seat_lost) return true;  // to be said by whoever has it
    const std::int64_t awake = now_ns();
    patience.slept(awake, awake - now);
    if (woken == Woken::by_signal && in_slices) break;
  }
  if (watchful_.load(std::memory_order_relaxed)) say_watch();
  unsent_ = !progress_.busy() && progress_.outstanding();
  return unsent_ || progress_.busy() || pending_.load(std::memory_order_relaxed);
}

Driver::Woken Driver::sleep(Seat who, Lock& turn, std::int64_t until_ns) {
  const Doorbell& bell = own_->doorbell();
  Woken woken = Woken::on;
  bell.prepare_sleep();
  const bool parked = progress_.announce_sleep();
  if (!pending_.load(std::memory_order_acquire) && progress_.step() == 0) woken = doze(who, turn, until_ns);
  if (parked) progress_.take_back_sleep();
  if (woken != Woken::seat_lost) bell.finish_sleep();
  return woken;
}

Driver::Woken Driver::doze(Seat who, Lock& turn, std::int64_t until_ns) {
  Sleeper& self = who == Seat::caller ? caller_ : thread_;
  self.descriptors.clear();
  self.descriptors.push_back({own_->doorbell().fd(), POLLIN, 0});
  const std::int64_t now = now_ns();
  std::int64_t wake_ns = std::min(now + kHeartbeatNs, until_ns);
  progress_.wait_set(self.descriptors, wake_ns);
  if (wake_ns <= now) return Woken::on;
  {
    const std::lock_guard lock(mutex_);
    if (pending_ || closed_ || (who == Seat::thread && callers_ > 0)) return Woken::on;
    self.asleep = true;
  }
  turn.unlock();
  const std::int64_t left = wake_ns - now;
  const timespec timeout{left / 1'000'000'000, left % 1'000'000'000};
  const int n = ::ppoll(self.descriptors.data(), static_cast<nfds_t>(self.descriptors.size()), &timeout, nullptr);
  const bool signalled = n < 0 && errno == EINTR;
  {
    const std::lock_guard lock(mutex_);
    self.asleep = false;
    if (seat_ != who) return Woken::seat_lost;
  }
  turn.lock();
  return signalled ? Woken::by_signal : Woken::on;
}

}  // namespace ccl_lab
