// Rings in both directions among units of which some are unlike the others: all units go on together, a visit of each at a time.
//
// Is: what rings.hpp evaluates, where some chains send to the unit before (`backward`) and no NIC receives from both sides. Is not: able to
// take slices, or messages of several lengths. Invariant: the times are those of exact.cpp, or `disorder`, or `too_many`.
//
// How. A unit needs the messages of both its neighbours, so none can go ahead, and there is no order in which to visit them. In a step
// each is visited once, with the messages that its neighbours sent in the step before. Units form cells: one each, or two where every other
// one is alike; what a cell remembers and has sent is a row of numbers. A *run* is some cells with the same links whose rows form an
// arithmetic progression. Of a run the first and the last cell, which have other neighbours, are visited, and the two next to them. If these
// two took the same path (path.hpp), so did all between them, whose inputs lie on the line between theirs; so their rows are a progression
// again. If not, the run is parted. Runs that go on as one are joined.
//
// Jump. Let the runs of a step, their lengths too, differ by v from those some steps before, a period,, and these by v from those before them. If the
// steps of the last two periods noted the same, the next period adds v again, as far as no number that decided something reaches 0 and no
// run gets short. A wave that a slow NIC sends out both ways makes one run shorter and another one longer, so most steps are not taken.
#pragma once

#include "rings.hpp"
#include "unit.hpp"

namespace ccl_lab::sim {

[[nodiscard]] bool fits_both_ways(const RingsInput& in);

// The input is good already (rings.cpp). `jumps` false: every unit is visited in every step. end_ps and end_batch
// are not told.
[[nodiscard]] RingsStatus rings_both_ways(const RingsInput& in, RingsOutput& out, Manner manner);

}  // namespace ccl_lab::sim
