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
  return {bytes, capped(duration_ps(2 * bytes, in.memory_bytes_per_s[row])), capped(held + duration_ps(bytes, in.a_bytes_per_s[row])),
          capped(held + duration_ps(bytes, in.b_bytes_per_s[row]))};
}

}  // namespace ccl_lab::sim
