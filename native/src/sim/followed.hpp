// Rings whose messages differ in length: each message is followed all the way round, and what is alike on its way is jumped over.
//
// Is: the times of rings.hpp where messages of one ring keep lengths of their own, for which messages go round by round. Is not: a check of
// that order, which no length changes: whoever asks has found it for messages that are all alike (rings.cpp), with the batches. Invariant:
// whole picoseconds, the same as message by message, or `bad_input`.
//
// How. A message needs at each unit what the message before it has left behind there, and nothing else. So messages are taken one after the
// other, in the order in which units see them, each for its whole way; what it leaves behind, unit after unit, is a Trail (trail.hpp), all
// that the next message needs. That is rings.hpp with messages and units exchanged: there a unit is visited for all messages, here a message
// for all units. A message keeps its length, and units are alike, so that what it does goes on as it did: the same jump, with the same
// proof, from unit to unit where rings.hpp goes from message to message.
//
// The circle. The first message begins without a trail before it, which can only make it early, and the last one has to leave behind what
// the first began with: otherwise they are gone over again. A trail that is wrong beyond its e-th unit leaves the next one right up to its
// (e + 1)-th, so that after as many messages as a way is long all are right.
//
// Units with links whose rate changes in time are like no others: each message is evaluated there by itself.
//
// Many alike. Where units are alike, what a message does follows from its length, from when it begins, and from the trail before it. Soon
// after a long message nothing is left of those before it, so that there are few of these three: trails have numbers, and a message that is
// like one before is not followed again.
#pragma once

#include "rings.hpp"

namespace ccl_lab::sim {

// finish_ps and end_ps; end_batch is left alone. bad_input: what is not so (sizes of too many kinds), or is too much work
// for being worth it: `rounds` says how many were evaluated. The input is good already (rings.cpp).
[[nodiscard]] RingsStatus followed_rings(const RingsInput& in, RingsOutput& out);

}  // namespace ccl_lab::sim
