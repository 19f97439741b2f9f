// What puts of exchanges that are not in step take, where several ranks are evaluated side by side (partner_octets.hpp, partner_rows.hpp).
//
// Is: times of puts of one size, by link. Is not: links whose rates change in time.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>

#include "order.hpp"
#include "partners.hpp"
#include "stream.hpp"

namespace ccl_lab::sim {

// On the two sides of a NIC, or of a rank in its node, and latencies.
struct Takes {
  std::int64_t tx_ps = 0, rx_ps = 0, tx_latency_ps = 0, rx_latency_ps = 0;
  auto operator<=>(const Takes&) const = default;
  [[nodiscard]] std::int64_t longest() const { return std::max({tx_ps, rx_ps, tx_latency_ps, rx_latency_ps}); }
};

inline Takes takes_of(const PartnersInput& in, std::size_t tx, std::size_t rx) {
  const std::int64_t held = in.bytes[0] > 0 ? in.alpha_ps : 0;
  const auto of = [&](std::size_t link) {
    return in.bytes_per_s[link] > 0 ? held + std::min(duration_ps(in.bytes[0], in.bytes_per_s[link]), kLatest) : 0;
  };
  return {of(tx), of(rx), in.latency_ps[tx], in.latency_ps[rx]};
}

}  // namespace ccl_lab::sim
