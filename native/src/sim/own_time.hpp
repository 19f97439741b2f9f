// Rings whose messages differ in length, where units go on in their own time: what comes from the unit before is there before it is needed.
//
// Is: the times of rings.hpp where messages of a ring keep lengths of their own, and go round by round. Is not: a check of that order, which no length
// changes: whoever asks has found it for messages that are all alike (rings.cpp), with the batches. Invariant: whole picoseconds, the same as message by
// message, or `bad_input`.
//
// How. Where several chains take turns at the links of a unit, a round of a unit waits for the one before it, and that takes longer than messages need to
// come from the unit before. So a round is as late as all those before it were long together, which neither a unit (unit.hpp) nor a message
// (followed.hpp) can jump over, since which messages are longer has no period. But all units see the same lengths in the same order, each from another
// place on. A *reference* (own_time_reference.hpp) is what a unit with such links does on the whole way, from some state, if it never has to wait for a message.
//
// Offsets. Say a unit's state is that of the reference at the same place plus an offset, a number for each of its words. A round is maxima of sums. Let the
// first side of a maximum, in the reference, never be earlier than the second by less than some least gap (or never later). As long as the
// offsets of its sides do not outweigh that gap the unit takes the same side; and where both sides have the same offset it does not matter which one it
// takes. Either way the offset of the maximum follows from those of its sides, whatever the lengths are. So if all maxima of so many rounds are
// seen to be of these two kinds, and the offsets are what they were before them, they will be so again and again: at the end of its way
// the unit's state is the reference's plus these offsets. Offsets come back soon, since they are passed along the paths that decide.
//
// What comes in is a maximum, too, of which one side is a message: as long as none is later than what it meets, nobody waits: the clock and the memory of the
// station that takes it, or, where nothing is added, the links that it goes on by. Where no station ever waits for a memory in the reference, and the unit's
// offsets leave it so, it is the links even where something is added, and memories and clocks of first stations are left out of the offsets: they tell when
// messages came, which differs on and on after a unit has waited, and nothing follows from it. Afterwards some rounds are evaluated, which tell them. Where the
// unit before follows a reference as well that is known from the two references and from the offsets, for many rounds at a time. Everything
// else is evaluated, round by round: the way from the first messages to offsets that come back, the rounds in which some stations add and
// others do not any more, and those in which somebody is late. Where that is too much work it is `too_much`.
//
// Units that wait. Behind a unit that is slower than they are units wait for each message: their offsets never come back. They are a band, through which
// messages are followed one by one (own_time_band.hpp), up to a unit that still goes on in its own time; a unit joins the band when it has waited for long.
// It is taken apart where messages may be waited for no more: its units are visited again then, from where they are.
//
// Units with links whose rate changes in time have no reference: all their rounds are evaluated, each by itself.
//
// The circle. Units are visited one after the other, the first as if no message had to be waited for. They are gone over again until one of them sends what it
// sent the time before. A unit's round needs those before it and one `group` rounds before it of the unit before, so that there is one solution, and what is
// wrong from some round on is wrong a whole ring later when it comes round: the third time all is right.
#pragma once

#include "rings.hpp"

namespace ccl_lab::sim {

// finish_ps and end_ps; end_batch is left alone. bad_input: what is not so (several slices, sizes of too many kinds); too_much:
// `rounds` says how many were evaluated by then. The input is good already (rings.cpp).
[[nodiscard]] RingsStatus own_time_rings(const RingsInput& in, RingsOutput& out);

}  // namespace ccl_lab::sim
