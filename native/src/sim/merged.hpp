// Rings between nodes whose chains share links at different paces: every chain goes on by itself, and a unit's ops are merged by batch.
//
// Is: what rings.hpp evaluates, for units of one station with one message under way, in any order of rounds. Is not: a visit of several units
// at once. Invariants: the times are those of exact.cpp; no link is served in another order than (batch, turn, op).
//
// How. When a channel comes to an op follows from the messages that its chain received, not from the other chains of its unit: those only
// decide when links are free. So the next op of a chain that has a message is known, and the earliest batch of a unit is served as soon as
// no chain without a message can still come before it. Such a chain is bounded by what the unit before promises: whatever that one has yet
// to send, it issues no earlier than the batch its chain stopped at, and a message is seen `nominal_bytes` ticks later or more. Promises go
// round the circle with the messages, and every unit that they pass adds to them, so somebody can always go on. Chains that meet in no link
// of a unit are served there each by itself, what they repeat is jumped over, and what waits for nothing is passed on as it was in the unit
// before (merged_unit.hpp).
#pragma once

#include "rings.hpp"

namespace ccl_lab::sim {

// disorder: more messages than `most_merged` would be evaluated, which is looked at after every sixteenth of them, or units of another kind.
// The input is good already (rings.cpp).
[[nodiscard]] RingsStatus merged_rings(const RingsInput& in, RingsOutput& out);

}  // namespace ccl_lab::sim
