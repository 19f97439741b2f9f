// Ticks that become times: how far off, in which order, and counters that jump.
#include <algorithm>
#include <cstdlib>
#include <random>

#include "base/clock.hpp"
#include "base/ticks.hpp"
#include "check.hpp"

using namespace ccl_lab;

namespace {

constexpr double kTicksPerNs = 2.24578;
constexpr std::int64_t kMinuteNs = 60'000'000'000;
constexpr std::int64_t kLookOffNs = 30;  // how far a look's two halves may be apart

// A machine whose clock is slewed, by another amount now and then: both count on, `ticks` evenly.
class Machine {
 public:
  explicit Machine(std::uint32_t seed) : random_(seed) {}

  void pass(double ns) {
    ticks_ += ns * kTicksPerNs;
    ns_ += ns * (1 + slew_ppm_ * 1e-6);
  }
  void slew() { slew_ppm_ = std::uniform_real_distribution<double>(-500, 500)(random_); }
  std::int64_t ticks() const { return static_cast<std::int64_t>(ticks_); }
  std::int64_t ns() const { return static_cast<std::int64_t>(ns_); }
  Look look() { return {ticks(), ns() + static_cast<std::int64_t>(random_() % (2 * kLookOffNs + 1)) - kLookOffNs}; }
  double below(double most) { return std::uniform_real_distribution<double>(0, most)(random_); }

 private:
  std::mt19937 random_;
  double ticks_ = 1e15;
  double ns_ = 5e12;
  double slew_ppm_ = 0;
};

}  // namespace

TEST(times_are_right_to_a_microsecond_however_the_clock_is_slewed) {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    Machine machine(seed);
    TickScale scale(machine.look());
    machine.pass(30'000);
    CHECK(scale.add(machine.look()));
    std::int64_t last = 0;
    std::int64_t worst = 0;
    for (const std::int64_t until = machine.ns() + kMinuteNs; machine.ns() < until;) {
      // Mostly calls in a row, sometimes a pause.
      machine.pass(machine.below(10) < 9.9 ? machine.below(20'000) : machine.below(2e9));
      if (machine.below(1000) < 1) machine.slew();
      const std::int64_t ticks = machine.ticks();
      const std::int64_t ns = machine.ns();
      if (!scale.reaches(ticks)) {
        machine.pass(50);
        while (!scale.add(machine.look())) machine.pass(1000);
      }
      const std::int64_t found = scale.ns_of(ticks);
      CHECK(found >= last);
      last = found;
      worst = std::max(worst, std::abs(found - ns));
    }
    CHECK(worst < 1000);
  }
}

TEST(looks_that_are_too_near_tell_nothing) {
  TickScale scale({1000, 1000});
  CHECK(!scale.reaches(1001));
  CHECK(!scale.add({1000 + TickScale::kLeastNs - 1, 1000 + TickScale::kLeastNs - 1}));
  CHECK(scale.add({1000 + TickScale::kLeastNs, 1000 + TickScale::kLeastNs}));
  CHECK_EQ(scale.ns_of(21'500), std::int64_t{21'500});
  // No further than the looks are apart, and never beyond the reach.
  CHECK(scale.reaches(41'000) && !scale.reaches(41'001));
  CHECK(scale.add({10'000'000, 10'000'000}));
  CHECK(scale.reaches(10'000'000 + TickScale::kReachNs) && !scale.reaches(10'000'001 + TickScale::kReachNs));
}

TEST(a_counter_that_jumps_leaves_the_pace_alone) {
  for (const std::int64_t jump : {std::int64_t{1} << 50, -(std::int64_t{1} << 40)}) {
    TickScale scale({1LL << 45, 1000});
    CHECK(scale.add({(1LL << 45) + 200'000, 101'000}));
    const std::int64_t ticks = (1LL << 45) + 400'000 + jump;
    CHECK(!scale.reaches(ticks));
    CHECK(scale.add({ticks, 201'000}));
    CHECK_EQ(scale.ns_of(ticks), std::int64_t{201'000});
    CHECK_EQ(scale.ns_of(ticks + 2000), std::int64_t{202'000});
  }
}

// Whatever this machine has: the clock itself, read before and after, tells how far off a moment can be.
TEST(moments_of_this_machine_are_those_of_the_clock) {
  TickClock clock;
  std::int64_t last = 0;
  int far = 0;
  int n = 0;
  for (const std::int64_t until = now_ns() + 300'000'000; now_ns() < until; ++n) {
    const std::int64_t before = now_ns();
    const std::int64_t moment = clock.now();
    const std::int64_t after = now_ns();
    if (!clock.reaches(moment)) clock.look_again();
    const std::int64_t ns = clock.ns_of(moment);
    CHECK(ns >= last);
    last = ns;
    far += ns < before - 1000 || ns > after + 1000;
  }
  std::printf("%d of %d moments are more than 1 us off (ticks: %s)\n", far, n, has_even_ticks() ? "yes" : "no");
  CHECK_EQ(far, 0);
}
