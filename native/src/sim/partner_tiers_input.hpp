// The tiers of switches above NICs, as evaluations of exchanges are told them (partner_tiers.hpp).
#pragma once

#include <cstdint>
#include <span>

namespace ccl_lab::sim {

struct PartnerTiersInput {
  std::span<const std::int32_t> above;       // [tiers][streams] the switch above the NIC of each, from the NICs up: NICs meet at the first they share
  std::span<const std::int64_t> latency_ps;  // [tiers]; empty: switches add nothing
};

}  // namespace ccl_lab::sim
