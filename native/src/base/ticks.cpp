// Whether ticks can be trusted, and looks at both clocks; see ticks.hpp.
#include "base/ticks.hpp"

#include <cmath>
#include <cstdio>
#include <cstring>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace ccl_lab {

namespace {

// A pace that differs by more from one look to the next is a counter that jumped, as when a machine moves to another host.
constexpr double kMostPaceChange = 0.1;
constexpr int kLooks = 3;

// The kernel takes a counter that it found uneven off this list.
bool system_trusts_ticks() {
  char text[256] = {};
  std::FILE* const file = std::fopen("/sys/devices/system/clocksource/clocksource0/available_clocksource", "re");
  if (file == nullptr) return false;
  const std::size_t n = std::fread(text, 1, sizeof text - 1, file);
  std::fclose(file);
  for (char* word = n > 0 ? std::strtok(text, " \n") : nullptr; word != nullptr; word = std::strtok(nullptr, " \n"))
    if (std::strcmp(word, "tsc") == 0) return true;
  return false;
}

bool never_changes_pace() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(0x80000007u, &a, &b, &c, &d) != 0 && (d >> 8 & 1u) != 0;
#else
  return false;
#endif
}

}  // namespace

bool has_even_ticks() {
  static const bool even = never_changes_pace() && system_trusts_ticks();
  return even;
}

bool TickScale::add(Look look) {
  const auto ns = static_cast<double>(look.ns - last_.ns);
  const auto ticks = static_cast<double>(look.ticks - last_.ticks);
  if (look.ns - last_.ns < kLeastNs || (ticks <= 0 && ns_per_tick_ == 0)) return false;
  const double pace = ticks > 0 ? ns / ticks : 0;
  const bool jumped = ns_per_tick_ != 0 && std::abs(pace / ns_per_tick_ - 1) > kMostPaceChange;
  if (!jumped) ns_per_tick_ = pace;
  last_ = look;
  reach_ = static_cast<std::uint64_t>(std::min(ns, static_cast<double>(kReachNs)) / ns_per_tick_);
  return true;
}

// Of a few the one that took least: whatever came between the count and the clock is an error of the pair.
Look TickClock::look() const {
  Look best{now(), 0};
  if (!counts_) return best;
  std::int64_t least = INT64_MAX;
  for (int i = 0; i < kLooks; ++i) {
    const std::int64_t before = now();
    const std::int64_t ns = now_ns();
    const std::int64_t took = now() - before;
    if (took >= least) continue;
    least = took;
    best = {before + took / 2, ns};
  }
  return best;
}

void TickClock::look_again() {
  while (!scale_.add(look())) {
  }
}

}  // namespace ccl_lab
