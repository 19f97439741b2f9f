// Rings in both directions of which every message is evaluated: where messages differ in length, or too many units are unlike each other.
//
// Is: the times of rings.hpp, units side by side. Is not: a check of the order in which links serve: no rate, latency or length changes it,
// and whoever asks has found it for units that are alike but for their links (ccl_lab/simulator/loops.py). Invariant: whole picoseconds below 2^52, as in swept.hpp.
//
// How. In a visit a unit goes as many rounds on as its neighbours have sent messages in the visit before. Abreast units are visited at a time
// (both_ways_abreast.hpp). What a unit will be some visits later depends on as many of its neighbours on both sides: a tile of units, with so many
// more on both sides of it, is visited that often while it is in a cache, and what the others have become is forgotten.
#pragma once

#include "rings.hpp"

namespace ccl_lab::sim {

[[nodiscard]] bool fits_both_ways_swept(const RingsInput& in);

// finish_ps alone. bad_input: messages of more than two lengths, too many chains, or takes an hour or more. The input is good already (rings.cpp).
[[nodiscard]] RingsStatus both_ways_swept(const RingsInput& in, RingsOutput& out);

}  // namespace ccl_lab::sim
