// How long a message keeps the links of a station of a ring busy (rings.hpp).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "exact.hpp"
#include "rings.hpp"
#include "stream.hpp"

namespace ccl_lab::sim {

struct Busy {
  std::int64_t bytes = -1, add_ps = 0, a_ps = 0, b_ps = 0;
};

// row: of the station. What takes longer than everything may is cut there: it is an overflow all the same.
inline Busy busy_of(const RingsInput& in, std::size_t row, std::int64_t bytes) {
  const std::int64_t held = bytes > 0 ? in.alpha_ps : 0;
  const auto capped = [](std::int64_t ps) { return std::min(ps, kLatest); };
  return {bytes, capped(duration_ps((1 + in.own) * bytes, in.memory_bytes_per_s[row])), capped(held + duration_ps(bytes, in.a_bytes_per_s[row])),
          capped(held + duration_ps(bytes, in.b_bytes_per_s[row]))};
}

// How long it adds its own arrays of the chunks that it sends first, `bytes` in all.
inline std::int64_t own_ps(const RingsInput& in, std::size_t row, std::int64_t bytes) {
  return std::min(duration_ps(in.own * bytes, in.memory_bytes_per_s[row]), kLatest);
}

}  // namespace ccl_lab::sim
