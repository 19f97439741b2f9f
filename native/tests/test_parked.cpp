// The sleep of a thread that does not drive: what ends it, and when.
//
// Is: one sleeper, whose wake-ups come before it sleeps or from another thread. Is not: a driver (test_driver.cpp). Times are compared with a
// half of what would end the sleep next, so that a busy machine does not fail it.
#include "comm/parked.hpp"

#include <unistd.h>

#include <limits>
#include <thread>

#include "base/clock.hpp"
#include "check.hpp"

namespace ccl_lab {
namespace {

constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max();

struct Sleeper {
  std::mutex mutex;
  Parked parked;
  int ends[2] = {-1, -1};
  std::vector<pollfd> set;

  Sleeper() {
    CHECK_EQ(::pipe(ends), 0);
    set = {{ends[0], POLLIN, 0}};
    parked.open();
  }
  ~Sleeper() {
    for (const int end : ends) ::close(end);
  }

  void say() const { CHECK_EQ(::write(ends[1], "!", 1), 1); }
  // ns of one sleep.
  std::int64_t sleep() {
    std::unique_lock lock(mutex);
    const std::int64_t before = now_ns();
    parked.sleep(lock);
    CHECK(!parked.asleep());
    return now_ns() - before;
  }
};

constexpr std::int64_t kHalf = Parked::kHeartbeatNs / 2;

TEST(with_nothing_to_watch_over_it_sleeps_for_a_heartbeat) { CHECK(Sleeper().sleep() >= Parked::kHeartbeatNs); }

TEST(a_call_ends_the_sleep_and_is_over_then) {
  Sleeper s;
  std::thread caller([&] {
    for (bool asleep = false; !asleep; std::this_thread::yield()) {
      const std::lock_guard lock(s.mutex);
      asleep = s.parked.asleep();
      s.parked.wake();
    }
  });
  CHECK(s.sleep() < kHalf);
  caller.join();
  CHECK(s.sleep() >= Parked::kHeartbeatNs);
}

TEST(what_peers_ask_ends_the_sleep_and_does_not_end_the_next_at_once) {
  Sleeper s;
  s.parked.watch(s.set, kFar);
  s.say();
  CHECK(s.sleep() < kHalf);
  CHECK(s.sleep() >= Parked::kCloselyNs);  // a caller may be about to read it
  CHECK(s.sleep() < kHalf);                // nobody has
}

TEST(what_is_due_ends_the_sleep_but_not_every_moment) {
  Sleeper s;
  s.parked.watch(s.set, now_ns() + 2 * Parked::kCloselyNs);
  const std::int64_t slept = s.sleep();
  CHECK(slept >= Parked::kCloselyNs && slept < kHalf);
  CHECK(s.sleep() >= Parked::kCloselyNs);  // it is over, and callers have not seen to it
}

TEST(something_due_sooner_ends_a_longer_sleep) {
  Sleeper s;
  s.parked.watch(s.set, kFar);
  std::thread caller([&] {
    for (bool said = false; !said; std::this_thread::yield()) {
      const std::lock_guard lock(s.mutex);
      said = s.parked.asleep();
      if (said) s.parked.watch(s.set, now_ns());
    }
  });
  CHECK(s.sleep() < kHalf);
  caller.join();
  CHECK(s.sleep() < kHalf);
}

TEST(without_anything_that_would_wake_it_it_sleeps_for_a_short_time) {
  Sleeper s;
  s.parked.watch({}, kFar);
  CHECK(s.sleep() < kHalf);
  s.parked.watch(s.set, kFar);
  CHECK(s.sleep() >= Parked::kHeartbeatNs);
  s.parked.closely();
  CHECK(s.sleep() < kHalf);
  CHECK(s.sleep() < kHalf);
}

TEST(a_process_without_descriptors_sleeps_for_short_times) {
  std::mutex mutex;
  Parked parked;  // not opened
  std::unique_lock lock(mutex);
  const std::int64_t before = now_ns();
  parked.sleep(lock);
  CHECK(now_ns() - before < kHalf);
}

}  // namespace
}  // namespace ccl_lab
