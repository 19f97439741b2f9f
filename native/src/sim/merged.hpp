// Rings between nodes whose chains share links at different paces: every chain goes on by itself, and a unit's ops are merged by batch.
//
// Is: what rings.hpp evaluates, for units of one station with one message under way, in any order of rounds. Is not: able to jump; it takes
// time for every message. Invariants: the times are those of exact.cpp; no link is served in another order than (batch, turn, op).
//
// How. When a channel comes to an op follows from the messages that its chain received, not from the other chains of its unit: those only
// decide when links are free. So the next op of a chain that has a message is known, and the earliest batch of a unit is served as soon as
// no chain without a message can still come before it. Such a chain is bounded by what the unit before promises: whatever that one has yet
// to send, it issues no earlier than the batch it stopped at, and a message is seen `nominal_bytes` ticks later or more. Promises go round
// the circle with the messages, and every unit that they pass adds to them, so somebody can always go on.
#pragma once

#include "rings.hpp"

namespace ccl_lab::sim {

// Messages that are evaluated one by one, 60 ns or so each: some ten seconds, which nothing interrupts.
inline constexpr std::int64_t kMostMerged = 200'000'000;

// disorder: more messages than that, or units of another kind. The input is good already (rings.cpp).
[[nodiscard]] RingsStatus merged_rings(const RingsInput& in, RingsOutput& out);

}  // namespace ccl_lab::sim
