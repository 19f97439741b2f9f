// Pairwise exchanges of ranks that are no power of two, each with a NIC to itself, step after step (partners.hpp).
//
// Is: all ranks on one channel, not in place, at rates that do not change. In nominal time those that rest in a step come to be ahead of
// others, yet each NIC serves step by step. Is not: a proof of that. Invariant: every step that a NIC serves is checked to begin no
// earlier, in batches of nominal time, than the one before it; puts of one batch take turns in the order of steps. If so, every number
// is the one that partners.cpp finds put by put.
//
// Rows. In step s ranks r and s - r meet, or n + s - r, so that a row of ranks meets a row backwards, and in the next step the one that
// begins a rank later. A row of 128 is taken through sixteen steps before the next one: those that it meets met nobody else but rows
// before it.
#pragma once

#include "partners.hpp"

namespace ccl_lab::sim {

// Of columns that fit together: whether they are such exchanges.
[[nodiscard]] bool in_rows(const PartnersInput& in);

// out_of_order: some NIC does not serve step by step. Cost: 1 to 2 ns a put. Throws std::bad_alloc.
[[nodiscard]] PartnersStatus simulate_in_rows(const PartnersInput& in, PartnersOutput& out);

}  // namespace ccl_lab::sim
