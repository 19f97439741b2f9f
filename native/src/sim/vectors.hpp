// What evaluations of all nodes side by side have in common.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ccl_lab::sim {

// For which processor a loop is compiled. best: whatever this one has.
enum class Target : std::uint8_t { best = 0, base = 1, avx2 = 2, avx512 = 3 };

// Whether this processor can run it.
inline bool runs(Target target) {
#if defined(__x86_64__) && defined(__GNUC__)
  if (target == Target::avx2) return __builtin_cpu_supports("avx2") != 0;
  if (target == Target::avx512)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#endif
  return target == Target::best || target == Target::base;
}

// A function for each target, all with one body; name##_for(target): the one of them.
#if defined(__x86_64__) && defined(__GNUC__)
#define CCL_FOR_TARGETS(name, parameters, body)                                                             \
  void name##_base parameters { body; }                                                                     \
  [[gnu::target("avx2")]] void name##_avx2 parameters { body; }                                             \
  [[gnu::target("avx512f,avx512vl,avx512dq,prefer-vector-width=512")]] void name##_avx512 parameters { body; } \
  auto name##_for(Target target)->decltype(&name##_base) {                                                  \
    if (target == Target::avx512 || (target == Target::best && runs(Target::avx512))) return name##_avx512; \
    return target == Target::avx2 || (target == Target::best && runs(Target::avx2)) ? name##_avx2 : name##_base; \
  }
#else
#define CCL_FOR_TARGETS(name, parameters, body) \
  void name##_base parameters { body; }         \
  auto name##_for(Target)->decltype(&name##_base) { return name##_base; }
#endif

inline constexpr std::size_t kWide = 16;  // units that are evaluated at a time
inline constexpr std::size_t kRare = 64;  // of so many units one at most may be odd

// Rows of numbers, one a unit. They begin an odd number of cache lines apart: powers of two apart they would push one another out of a cache.
class Table {
 public:
  Table(std::size_t rows, std::size_t units) : stride_(8 * ((units + 7) / 8 / 64 * 64 + 64 + 3)), cells_(rows * stride_, 0) {}
  std::int64_t* operator[](std::size_t row) { return cells_.data() + row * stride_; }

 private:
  std::size_t stride_;
  std::vector<std::int64_t> cells_;
};

// Calls `round(d, u, end)` for rounds d = first, …, first + n - 1, in each for all units: units u to `end` put to those d further on. What a unit puts
// in a round comes after what it, and the next unit, put in the one before: the last units come first, each in all rounds. Those that would
// have to wait for the first units come at the end.
template <class Round>
void strips(std::size_t units, std::size_t first, std::size_t n, const Round& round) {
  for (std::size_t tile = (units + kWide - 1) / kWide; tile-- > 0;) {
    const std::size_t u = tile * kWide;
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t end = std::min(u + kWide, units - i);
      if (u < end) round(first + i, u, end);
    }
  }
  for (std::size_t i = 1; i < n; ++i) round(first + i, units - i, units);
}

}  // namespace ccl_lab::sim
