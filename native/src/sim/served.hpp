// A link that is served in an order given from outside, and whether that is the static order (batch, turn, op) of order.hpp.
//
// Is: what a link remembers of the ops that it served. Is not: the finding of the order. Invariant: once an op comes before one that was
// served already, `in_order` of that call is false, and the result of the whole evaluation is not to be used.
#pragma once

#include <bit>
#include <cstdint>

namespace ccl_lab::sim {

struct Served {
  std::int64_t free_ps = 0;
  std::int64_t free_tick = 0;
  std::int64_t batch = -1;  // of the last op
  std::int64_t op = -1;     // its place in the order of ops
  std::int64_t turns = 0;   // of this batch that are given away, one bit each; negative: so many, from the first one on
};

// The next op on two links (or on one, given twice). In a batch each gets the first turn that none of its links has given away; ops come
// in their own order, or later ones would have taken turns before earlier ones.
inline bool in_order_many(Served& a, Served& b, std::int64_t batch, std::int64_t op, std::int64_t times);

inline bool in_order(Served& a, Served& b, std::int64_t batch, std::int64_t op) {
  if (batch > a.batch && batch > b.batch) {
    a.batch = b.batch = batch;
    a.op = b.op = op;
    a.turns = b.turns = 1;
    return true;
  }
  if (batch < a.batch || batch < b.batch) return false;
  for (Served* link : {&a, &b}) {
    if (link->batch < batch) {
      link->batch = batch;
      link->turns = 0;
    } else if (op <= link->op && link->turns != 0) {
      return false;
    }
  }
  if ((a.turns | b.turns) < 0) return in_order_many(a, b, batch, op, 1);
  const auto used = static_cast<std::uint64_t>(a.turns | b.turns);
  const int turn = std::countr_one(used);
  // A turn between others, or one too many to remember.
  if (turn > 61 || used >> turn != 0) return false;
  a.turns |= std::int64_t{1} << turn;
  b.turns |= std::int64_t{1} << turn;
  a.op = b.op = op;
  return true;
}

// The same op so many times in a row, on two links of which no other op of this batch has one without the other: both have given away the
// same turns, from the first one on.
inline bool in_order_many(Served& a, Served& b, std::int64_t batch, std::int64_t op, std::int64_t times) {
  if (batch < a.batch || batch < b.batch) return false;
  const auto given = [&](const Served& link) -> std::int64_t {
    if (link.batch < batch || link.turns == 0) return 0;
    if (link.turns < 0) return -link.turns;
    const auto used = static_cast<std::uint64_t>(link.turns);
    return (used & (used + 1)) == 0 ? std::countr_one(used) : -1;
  };
  const std::int64_t turn = given(a);
  if (turn < 0 || turn != given(b)) return false;
  if (turn > 0 && (op <= a.op || op <= b.op)) return false;
  a.batch = b.batch = batch;
  a.op = b.op = op;
  a.turns = b.turns = -(turn + times);
  return true;
}

}  // namespace ccl_lab::sim
