// Rings whose messages differ in length: every message is evaluated, step by step, all units at once.
//
// Is: the times of rings.hpp for units of one station, where messages of all chains go round by round, chain after
// chain, or in step: then each tick is a batch, whose puts take turns, unit by unit in the same ones at each. Is not: a check of that order where
// there is no timetable: no length changes it, and whoever asks has found it for messages that are all alike (rings.cpp), with the batches. Invariant: whole picoseconds below 2^52, which a double holds, so that maxima and sums of many units are one instruction.
#pragma once

#include "rings.hpp"

namespace ccl_lab::sim {

// finish_ps and end_ps, and end_batch of a timetable. bad_input: what is not so (other units, rates of too many kinds, rates that change), or
// takes an hour or more. The input is good already (rings.cpp).
[[nodiscard]] RingsStatus swept_rings(const RingsInput& in, RingsOutput& out);

}  // namespace ccl_lab::sim
