// Pairwise exchanges whose ranks are not in step (partners.hpp), eight of them at a time.
//
// Is: a power of two of ranks on one channel, not in place, nearly all of which have a NIC to themselves whose rate does not change:
// they are *regular*. Is not: others (partners.cpp). Invariant: every number is the one that partners.cpp finds put by put.
//
// Octets. In step s the eight ranks of an octet, which differ in three bits of their numbers, have the eight of another one for
// partners, and the eight octets of a word those of another one. Most of them come to a step at one tick, and their partners too, so
// that one meeting of two words (partner_octet.hpp) stands for up to 128 puts. Who puts is looked for step by step in what a bit a rank
// says is due. Puts of one batch that meet in the receiving NIC of a regular rank are of different steps and of ranks with NICs of their
// own, so that their turns are in the order of steps: so are meetings. Puts to or from other ranks, inside nodes, and all that meet one
// of these in a NIC, take turns one by one.
#pragma once

#include "partners.hpp"

namespace ccl_lab::sim {

// Of columns that fit together: whether they are such exchanges; few ranks share a NIC where more puts than most_puts are made.
[[nodiscard]] bool in_octets(const PartnersInput& in);

// Cost: 3 to 8 ns a put where most ranks of a word are at one step. Throws std::bad_alloc.
[[nodiscard]] PartnersStatus simulate_in_octets(const PartnersInput& in, PartnersOutput& out);

}  // namespace ccl_lab::sim
