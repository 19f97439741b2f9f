// Passing on what passed through the unit before without waiting (merged_unit.hpp).
//
// Why that is exact. A message of a stretch found its chain, its memory and its two links free, in time and in ticks, and its tick was later than
// the one at which its chain came to it. Each of these says that two messages of the stretch that one link serves lie far enough apart, for
// links of the same rates. A unit sends them as far apart as they came: all are later by the same shift. So the next unit with the same links
// and rates finds them as far apart, and what they find there is free as well, unless something is in the way that is no part of the
// stretch: what the links and chains did before, which is looked at, and what comes after, before the first tick of which this ends.
#include <algorithm>
#include <limits>
#include <utility>

#include "merged_unit.hpp"

namespace ccl_lab::sim {
namespace {

// Shorter stretches are not worth it. One that could not be passed on is looked at again after so many batches.
constexpr std::int64_t kShortest = 16, kTries = 8;

}  // namespace

// How many messages a chain sent, and received, in all slices.
std::int64_t Merged::sends(std::size_t chain) const {
  const Chain& c = state_[row(chain)];
  return c.slice == in_.slices[chain] ? c.slice * in_.steps : c.slice * in_.steps + c.message + 1;
}

std::int64_t Merged::reads(std::size_t chain) const {
  return sends(chain) - (state_[row(chain)].next == Next::message ? 1 : 0);
}

// Which message of those that came in this visit a chain sends on next.
std::int64_t Merged::here(std::size_t chain) const {
  const Chain& c = state_[row(chain)];
  if (c.next == Next::nothing) return kNever;
  return reads(chain) - reads_[chain] - (c.next != Next::message && c.message >= 0 ? 1 : 0);
}

// By how much a message leaves later that waits for nothing.
Seen Merged::least_later(std::size_t chain) {
  const Busy& time = busy(chain);
  const bool reduces = state_[row(chain)].message < in_.reducing;
  return {(reduces ? time.add_ps : 0) + std::max(time.a_ps, time.b_ps) + in_.latency_ps[kind_row(chain)], in_.nominal_bytes};
}

void Merged::begin_stretch(const Part& part) {
  stretch_.from.resize(part.chains.size());
  for (std::size_t i = 0; i < part.chains.size(); ++i) stretch_.from[i] = sends(part.chains[i]);
}

// Nothing is known yet of what a part does in this visit.
void Merged::watch_stretches(const Part& part) {
  at_ = &part;
  part_ = static_cast<std::size_t>(&part - kinds_[kind_of_[unit_]].data());
  before_ = part_before(part);
  next_ = before_ < passed_before_.size() ? 0 : std::numeric_limits<std::size_t>::max();
  tries_ = 0;
  stretch_.later = {};
  begin_stretch(part);
}

// Kept for the next unit, if it is long.
void Merged::end_stretch(const Part& part) {
  std::int64_t messages = 0;
  for (std::size_t i = 0; i < part.chains.size(); ++i) messages += sends(part.chains[i]) - stretch_.from[i];
  ++stretch_.breaks;
  if (messages < kShortest) return;
  Stretch kept = stretch_;
  for (std::size_t i = 0; i < part.chains.size(); ++i) {
    const std::size_t c = part.chains[i];
    kept.from[i] -= sends_[c];
    kept.to.push_back(sends(c) - sends_[c]);
  }
  passed_[part_].push_back(std::move(kept));
}

// The message that a chain sends now does not go on with the stretch: it ends, and with or after this message another one begins.
void Merged::waited(std::size_t chain, const Seen& later) {
  end_stretch(*at_);
  begin_stretch(*at_);
  stretch_.later = least_later(chain);
  const bool free = later == stretch_.later && (state_[row(chain)].batch & (kPlaces - 1)) <= 2;
  const auto place = std::find(at_->chains.begin(), at_->chains.end(), chain) - at_->chains.begin();
  if (!free) ++stretch_.from[static_cast<std::size_t>(place)];
}

// The number of the same part in the unit before: the same chains, links and rates, and messages of one length; -1 where there is none.
std::size_t Merged::part_before(const Part& part) const {
  const std::size_t none = std::numeric_limits<std::size_t>::max();
  const auto before = static_cast<std::size_t>(in_.kind_row(static_cast<std::int64_t>(passed_unit_)));
  const auto& parts = kinds_[kind_of_[passed_unit_]];
  const auto found = std::find_if(parts.begin(), parts.end(), [&](const Part& each) { return each.chains == part.chains; });
  if (found == parts.end()) return none;
  for (const std::size_t c : part.chains) {
    for (const auto& ids : {in_.memory, in_.link_a, in_.link_b})
      if (ids[kind_row(c)] != ids[before + c]) return none;
    for (const auto& rates : {in_.memory_bytes_per_s, in_.a_bytes_per_s, in_.b_bytes_per_s})
      if (rates[kind_row(c)] != rates[before + c]) return none;
    const std::size_t slot = c * slices_;
    for (std::int64_t s = 1; s < in_.slices[c]; ++s)
      if (in_.bytes[slot + static_cast<std::size_t>(s)] != in_.bytes[slot]) return none;
  }
  return static_cast<std::size_t>(found - parts.begin());
}

// Of a chain that has something to do: how many messages of the stretch it can pass on, that do what the one in hand does.
Merged::Passing Merged::passing(std::size_t chain, std::size_t place, const Stretch& stretch) {
  const Chain& c = state_[row(chain)];
  const Seen in_hand = in_hand_[chain];
  const std::int64_t at = here(chain);
  const bool reduces = c.message < in_.reducing;
  const bool part_of_it = at >= stretch.from[place] && at < stretch.to[place] && c.message >= 0 && c.message + 1 < in_.steps &&
                          c.clock_ps == in_hand.arrive_ps && c.batch == (in_hand.leaves << kPlaceBits) + 1 && least_later(chain) == stretch.later;
  if (!part_of_it) return {0, 0, in_hand};
  const std::int64_t border = std::min(reduces ? in_.reducing : in_.steps, in_.steps - 1) - c.message;
  return {std::min(stretch.to[place] - at, border), reduces ? busy(chain).add_ps : 0, in_hand};
}

// Whether nothing in a part lasts longer than to a time and a tick.
bool Merged::all_free(std::int64_t begin_ps, std::int64_t tick, const Part& part) const {
  for (const std::size_t l : part.links) {
    const Link& each = links_[unit_ * links_of_unit_ + l];
    if (each.free_ps > begin_ps || each.free_tick > tick) return false;
  }
  return std::all_of(part.chains.begin(), part.chains.end(), [&](std::size_t c) { return in_.ready_ps[kind_row(c)] <= begin_ps; });
}

// Passes on what can be of the next stretch; false where that is nothing yet. bound: before which batch no chain without a message comes.
bool Merged::pass(std::int64_t bound, const Part& part, const std::vector<std::int64_t>& promised, std::vector<Tape>& sent) {
  tries_ = kTries;
  const auto& stretches = passed_before_[before_];
  std::int64_t tick = bound >> kPlaceBits, first_ps = kNever, first_tick = kNever;
  const auto past = [&](const Stretch& each) {
    for (std::size_t i = 0; i < part.chains.size(); ++i)
      if (here(part.chains[i]) < each.to[i]) return false;
    return true;
  };
  while (next_ < stretches.size() && past(stretches[next_])) ++next_;
  if (next_ == stretches.size()) return false;
  const Stretch& stretch = stretches[next_];
  std::vector<Passing> found(part.chains.size());
  for (std::size_t i = 0; i < part.chains.size(); ++i) {
    const std::size_t c = part.chains[i];
    const Chain& chain = state_[row(c)];
    found[i].count = 0;
    if (chain.next == Next::message || chain.next == Next::nothing) continue;
    found[i] = passing(c, i, stretch);
    const std::int64_t left = inbox_[c].left() + 1;
    if (found[i].count == 0)
      tick = std::min(tick, chain.batch >> kPlaceBits);
    else if (found[i].count < left)
      tick = std::min(tick, inbox_[c].peek(found[i].count - 1).leaves);
    else
      tick = std::min(tick, promised[c] >> kPlaceBits);
    found[i].count = std::min(found[i].count, left);
  }
  std::int64_t messages = 0;
  for (std::size_t i = 0; i < part.chains.size(); ++i) {
    Passing& each = found[i];
    if (each.count == 0) continue;
    each.count = each.in_hand.leaves < tick ? 1 + inbox_[part.chains[i]].seen_before(tick, each.count - 1) : 0;
    messages += each.count;
    if (each.count == 0) continue;
    first_ps = std::min(first_ps, each.in_hand.arrive_ps);
    first_tick = std::min(first_tick, each.in_hand.leaves);
  }
  if (messages < kShortest || !all_free(first_ps, first_tick, part)) return false;
  if (!(stretch_.later == stretch.later)) {
    end_stretch(part);
    begin_stretch(part);
    stretch_.later = stretch.later;
  }
  for (std::size_t i = 0; i < part.chains.size(); ++i)
    if (found[i].count > 0) pass_chain(part.chains[i], found[i], stretch.later, sent[part.chains[i]]);
  for (const std::size_t c : part.chains) receive(c);
  tries_ = 0;
  return true;
}

void Merged::pass_chain(std::size_t chain, const Passing& each, const Seen& later, Tape& sent) {
  Chain& c = state_[row(chain)];
  const std::size_t r = kind_row(chain);
  const Busy& time = busy(chain);
  const Seen last = each.count == 1 ? each.in_hand : inbox_[chain].peek(each.count - 2);
  sent.push(each.in_hand + later);
  inbox_[chain].pass_on(each.count - 1, later, sent);
  jumped_ += each.count - 1;
  const bool reduces = c.message < in_.reducing;
  c.message += each.count;
  c.next = Next::message;
  c.batch = (last.leaves << kPlaceBits) + (reduces ? 2 : 1);
  c.clock_ps = last.arrive_ps + each.add_ps;
  c.left_ps = c.clock_ps + std::max(time.a_ps, time.b_ps);
  const auto until = [](std::int64_t& value, std::int64_t other) { value = std::max(value, other); };
  if (reduces) until(link(in_.memory[r]).free_ps, c.clock_ps);
  until(link(in_.link_a[r]).free_ps, c.clock_ps + time.a_ps);
  until(link(in_.link_b[r]).free_ps, c.clock_ps + time.b_ps);
  for (const std::int32_t id : {in_.link_a[r], in_.link_b[r]}) until(link(id).free_tick, last.leaves + later.leaves);
  static_cast<void>(fails(c, c.left_ps + in_.latency_ps[r], last.leaves + later.leaves));
}

}  // namespace ccl_lab::sim
