// Rings in both directions that meet in a NIC: what a unit receives from the one before and from the one after goes through one link.
//
// Is: the times of rings.hpp for such units, every message, round by round, all units in it. Is not: a check of the order in
// which links serve (as in both_ways_swept.hpp). Invariant: whole picoseconds below 2^52, as in swept.hpp.
//
// How. A link that two chains share is free when the later of their two last messages is through, since times rise; so a unit asks the unit two
// further on, which sends to the same one from the other side, when its last message was through. That is another one for each chain: no unit can go
// ahead by a round, and numbers of all units lie in columns.
#pragma once

#include "rings.hpp"

namespace ccl_lab::sim {

[[nodiscard]] bool fits_both_ways_meeting(const RingsInput& in);

// finish_ps alone. bad_input: as both_ways_swept. The input is good already (rings.cpp).
[[nodiscard]] RingsStatus both_ways_meeting(const RingsInput& in, RingsOutput& out);

}  // namespace ccl_lab::sim
