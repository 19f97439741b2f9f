#include "flow.hpp"

#include <algorithm>
#include <bit>

#include "ccl_lab/schema.hpp"
#include "exact.hpp"

namespace ccl_lab::sim {
namespace {

constexpr std::size_t kKnown = 1024;
constexpr int kFew = 4;               // counters of one destination and channel that are looked for one by one
constexpr std::uint64_t kMany = 64;  // that a list is good for
constexpr std::int64_t kMostAtOnce = 30'000'000;  // ops of one group that come several times and are evaluated each time

}  // namespace

Flow::Flow(const FlowLinks& links, bool ordered)
    : ordered_(ordered), turns_(ordered ? links.bytes_per_s.size() : 0), links_(links), changes_(links.changes, links.bytes_per_s.size()),
      channels_(static_cast<std::size_t>(links.ranks * links.channels)), left_(links.timetable ? links.late_ps.size() : channels_.size()),
      served_(links.bytes_per_s.size()), first_counter_(channels_.size(), -1), known_(kKnown) {
  for (std::size_t i = 0; i < channels_.size(); ++i)
    channels_[i].clock_ps = links.late_ps[i / static_cast<std::size_t>(links.channels)];
  chunk_bytes_ = links.count % links.parts == 0 ? links.count / links.parts * links.itemsize : -1;
  part_ticks_ = links.timetable ? 0 : (links.count + links.parts - 1) / links.parts * links.itemsize;
  if (ordered) {
    lines_.resize(channels_.size());
    // Memory is taken as it is used; grown by halves, as beyond this, it would be there twice.
    told_.reserve(static_cast<std::size_t>(std::min(links.most_waiting, FlowLinks{}.most_waiting)));
  }
  find_shared();
}

void Flow::find_shared() {
  shared_.assign(served_.size(), links_.channels > 1);
  if (links_.nodes == 1) return;
  std::vector<bool> seen(served_.size(), false);
  for (std::size_t i = 0; i < channels_.size(); ++i) {
    for (const bool receives : {false, true}) {
      const std::int32_t link = nic_of(i, receives);
      if (link < 0) continue;
      if (seen[static_cast<std::size_t>(link)]) shared_[static_cast<std::size_t>(link)] = true;
      seen[static_cast<std::size_t>(link)] = true;
    }
  }
}

// Nothing but links and counters cares which op of a group is evaluated first.
FlowStatus Flow::run(const FlowOps& ops) {
  first_op_ = op_;
  contending_.clear();
  expanded_.clear();
  if (!ops.times.empty() && (links_.channels > 1 || links_.timetable)) return FlowStatus::unsupported;
  for (std::size_t i = 0; i < ops.rank.size(); ++i) {
    fetch(ops, i + 12);
    if (!in_range(ops, i)) return FlowStatus::bad_op;
    const bool waits = contends(ops, i) && !ordered_;
    const std::int64_t often = times(ops, i), now = often > 1 && contends(ops, i) ? 1 : often;
    if (now != often) expanded_.push_back(i);
    if (waits) {
      contending_.emplace_back(next_batch(ops, i), i);
      continue;
    }
    const std::int64_t number = first_op_ + static_cast<std::int64_t>(i);
    const FlowStatus status = ordered_ ? tell(ops, i, number, now) : row(ops, i, number, now);
    if (status != FlowStatus::ok) return status;
  }
  std::int64_t next = first_op_ + static_cast<std::int64_t>(ops.rank.size());
  const FlowStatus status = ordered_ ? told_in_turns(ops, next) : in_turns(ops, next);
  op_ = next;
  if (status != FlowStatus::ok) return status;
  return ordered_ ? drain() : FlowStatus::ok;
}

// As written: ops that share links, by batches, and in each as often as they come. next: the number of the next op.
FlowStatus Flow::in_turns(const FlowOps& ops, std::int64_t& next) {
  if (!std::is_sorted(contending_.begin(), contending_.end())) std::sort(contending_.begin(), contending_.end());
  std::size_t end = 0;
  for (std::size_t begin = 0; begin < contending_.size(); begin = end) {
    std::int64_t most = 1;
    for (end = begin; end < contending_.size() && contending_[end].first == contending_[begin].first; ++end)
      most = std::max(most, times(ops, contending_[end].second));
    if (most * static_cast<std::int64_t>(end - begin) > kMostAtOnce) return FlowStatus::too_many;
    for (std::int64_t turn = 0; turn < most; ++turn) {
      for (std::size_t k = begin; k < end; ++k) {
        const std::size_t i = contending_[k].second;
        if (turn >= times(ops, i)) continue;
        const std::int64_t number = turn == 0 ? first_op_ + static_cast<std::int64_t>(i) : next++;
        if (const FlowStatus status = row(ops, i, number, 1); status != FlowStatus::ok) return status;
      }
    }
  }
  return FlowStatus::ok;
}

// Ordered: those that share links once more, and again.
FlowStatus Flow::told_in_turns(const FlowOps& ops, std::int64_t& next) {
  std::int64_t most = 1;
  for (const std::size_t i : expanded_) most = std::max(most, times(ops, i));
  for (std::int64_t turn = 1; turn < most; ++turn)
    for (const std::size_t i : expanded_)
      if (turn < times(ops, i))
        if (const FlowStatus status = tell(ops, i, next++, 1); status != FlowStatus::ok) return status;
  return FlowStatus::ok;
}

// What an op further on will touch, so that memory is on its way: peers of a step lie far apart.
void Flow::fetch(const FlowOps& ops, std::size_t i) const {
  if (i >= ops.rank.size() || !in_range(ops, i) || ops.peer[i] < 0) return;
  const auto kind = static_cast<Kind>(ops.kind);
  const std::int32_t destination = kind == Kind::wait ? ops.rank[i] : ops.peer[i];
  if (ops.sig_channel[i] >= 0) {
    const std::int32_t first = first_counter_[static_cast<std::size_t>(destination * links_.channels + ops.sig_channel[i])];
    if (first >= 0) __builtin_prefetch(&counters_[static_cast<std::size_t>(first)]);
  }
  if (kind != Kind::put || ops.peer[i] == ops.rank[i]) return;
  const auto [a, b] = path(ops, i);
  if (b >= 0) __builtin_prefetch(&served_[static_cast<std::size_t>(b)], 1);
}

bool Flow::contends(const FlowOps& ops, std::size_t i) const {
  const auto kind = static_cast<Kind>(ops.kind);
  if (kind == Kind::put && ops.peer[i] != ops.rank[i]) {
    const auto [a, b] = path(ops, i);
    return a >= 0 && b >= 0 && (shared_[static_cast<std::size_t>(a)] || shared_[static_cast<std::size_t>(b)]);
  }
  return links_.channels > 1 && (kind == Kind::put || kind == Kind::copy || kind == Kind::reduce);
}

std::int64_t Flow::next_batch(const FlowOps& ops, std::size_t i) {
  Channel& at = channel(ops, i);
  if (links_.timetable) not_before(at, ops.step[i]);
  return at.row && ops.peer[i] != ops.rank[i] && static_cast<Kind>(ops.kind) == Kind::put ? at.batch : at.batch + 1;
}

bool Flow::in_range(const FlowOps& ops, std::size_t i) const {
  const auto below = [](std::int32_t v, std::int64_t end) { return v >= 0 && v < end; };
  const auto kind = static_cast<Kind>(ops.kind);
  const bool paired = kind == Kind::put || kind == Kind::signal || kind == Kind::wait;
  if (!below(ops.rank[i], links_.ranks) || !below(ops.channel[i], links_.channels) || times(ops, i) < 1) return false;
  if (paired && !below(ops.peer[i], links_.ranks)) return false;
  return ops.sig_channel[i] < links_.channels && (ops.sig_channel[i] >= 0 || kind == Kind::put || !paired);
}

FlowStatus Flow::row(const FlowOps& ops, std::size_t i, std::int64_t number, std::int64_t times) {
  op_ = number;
  Channel& at = channel(ops, i);
  const auto kind = static_cast<Kind>(ops.kind);
  FlowStatus status = FlowStatus::unsupported;
  Message sent;
  if (links_.timetable) not_before(at, ops.step[i]);
  if (kind == Kind::put && ops.peer[i] != ops.rank[i]) {
    const Issue issued = issue(at);
    status = transfer(ops, i, times, issued, sent);
  } else if (kind == Kind::put || kind == Kind::copy || kind == Kind::reduce) {
    status = work(ops, i, times, at, sent);
  } else if (kind == Kind::wait) {
    status = wait(ops, i, at);
  } else if (kind == Kind::signal) {
    status = signal(ops, i, issue(at), sent);
  } else if (kind == Kind::flush && ops.peer[i] < 0 && !links_.timetable) {
    flush(channel_id(ops, i));
    status = FlowStatus::ok;
  }
  if (status != FlowStatus::ok) return status;
  if ((kind == Kind::put || kind == Kind::signal) && ops.sig_channel[i] >= 0)
    status = signalled(counter_id(ops.peer[i], ops.rank[i], ops.sig_channel[i]), sent, times);
  return status == FlowStatus::ok ? checked(at, kind) : status;
}

FlowStatus Flow::checked(const Channel& at, Kind kind) {
  // A flush leaves the place before the first one of a tick.
  const bool placed = kind == Kind::flush || (at.batch & (kPlaces - 1)) <= kPlaces - 8;
  return placed && at.clock_ps <= kLatest ? FlowStatus::ok : FlowStatus::overflow;
}

// In a timetable a channel comes to an op at its step at the earliest.
void Flow::not_before(Channel& at, std::int64_t step) {
  if (step <= at.batch >> kPlaceBits) return;
  at.batch = (step << kPlaceBits) - 1;
  at.row = false;
}

// A put or a signal: those in a row are of one batch, and the channel goes on.
Flow::Issue Flow::issue(Channel& at) {
  at.batch += !at.row;
  at.row = true;
  return {at.clock_ps, at.batch};
}

void Flow::flush(std::size_t id) {
  Channel& at = channels_[id];
  at.clock_ps = std::max(at.clock_ps, left_[id].ps);
  at.batch = std::max(at.batch + 1, (left_[id].tick << kPlaceBits) - 1);  // the next op comes at the tick when its puts have left
  at.row = false;
}

std::int64_t Flow::bytes(const FlowOps& ops, std::size_t i) const {
  const std::int64_t first = ops.chunk[i], span = ops.n_chunks[i];
  if (chunk_bytes_ >= 0) return span * chunk_bytes_;
  const auto offset = [&](std::int64_t chunk) {
    const std::int64_t block = chunk / links_.parts, part = chunk % links_.parts;
    return block * links_.count + part * links_.count / links_.parts;
  };
  return (offset(first + span) - offset(first)) * links_.itemsize;
}

std::pair<std::int32_t, std::int32_t> Flow::path(const FlowOps& ops, std::size_t i) const {
  const std::int32_t from = ops.rank[i], to = ops.peer[i];
  const auto n = static_cast<std::int32_t>(links_.ranks);
  if (links_.node_of[static_cast<std::size_t>(from)] == links_.node_of[static_cast<std::size_t>(to)]) return {from, n + to};
  const auto at = [&](std::int32_t rank) { return static_cast<std::size_t>(rank * links_.channels + ops.channel[i]); };
  return {nic_of(at(from), false), nic_of(at(to), true)};
}

std::int64_t Flow::latency(const FlowOps& ops, std::size_t i, std::int32_t a, std::int32_t b) const {
  const std::int64_t links = links_.latency_ps[static_cast<std::size_t>(a)] + links_.latency_ps[static_cast<std::size_t>(b)];
  return ops.tier_ps.empty() ? links : links + ops.tier_ps[i];
}

std::int64_t Flow::busy(std::int64_t nbytes, std::int32_t link) {
  const std::int64_t rate = links_.bytes_per_s[static_cast<std::size_t>(link)];
  const auto mixed = static_cast<std::uint64_t>(nbytes) * 0x9E3779B97F4A7C15ull ^ static_cast<std::uint64_t>(rate) * 0xC2B2AE3D27D4EB4Full;
  Known& known = known_[(mixed >> 32) % kKnown];
  if (known.bytes != nbytes || known.rate != rate) known = {nbytes, rate, std::min(duration_ps(nbytes, rate), kLatest)};
  return known.ps;
}

// A put to another rank.
FlowStatus Flow::transfer(const FlowOps& ops, std::size_t i, std::int64_t times, const Issue& issued, Message& sent) {
  const auto [a, b] = path(ops, i);
  if (a < 0 || b < 0) return FlowStatus::bad_op;
  Served &tx = served_[static_cast<std::size_t>(a)], &rx = served_[static_cast<std::size_t>(b)];
  if (!ordered_ && !(times == 1 ? in_order(tx, rx, issued.batch, op_) : in_order_many(tx, rx, issued.batch, op_, times)))
    return FlowStatus::disorder;
  const std::int64_t nbytes = bytes(ops, i), held = nbytes > 0 ? links_.alpha_ps : 0;
  std::int64_t start = std::max({issued.clock_ps, links_.late_ps[static_cast<std::size_t>(ops.peer[i])], tx.free_ps, rx.free_ps});
  if (times > 1) {  // each begins when the one before has left both links
    if (changes_.on(a) || changes_.on(b)) {
      for (std::int64_t k = 1; k < times && start <= kLatest; ++k)
        start = std::max(through(nbytes, a, start + held), through(nbytes, b, start + held));
    } else {
      const std::int64_t each = held + std::max(busy(nbytes, a), busy(nbytes, b));
      if (each > (2 * kLatest - start) / times) return FlowStatus::overflow;
      start += (times - 1) * each;
    }
  }
  tx.free_ps = through(nbytes, a, start + held);
  rx.free_ps = through(nbytes, b, start + held);
  const std::int64_t done = std::max(tx.free_ps, rx.free_ps);
  Left& at = left(ops, i);
  at.ps = std::max(at.ps, done);
  if (done > kLatest) return FlowStatus::overflow;
  std::int64_t tick = issued.batch >> kPlaceBits;
  if (a >= 3 * links_.ranks) {
    if (times > 1 && times * part_ticks_ > kLastTick) return FlowStatus::overflow;
    tick = tx.free_tick = rx.free_tick = std::max({tick, tx.free_tick, rx.free_tick}) + times * ops.n_chunks[i] * part_ticks_;
    at.tick = std::max(at.tick, tick);
    if (tick > kLastTick) return FlowStatus::overflow;
  }
  sent = {done + latency(ops, i, a, b), tick, issued.batch};
  return FlowStatus::ok;
}

// What occupies the rank's own memory: copies, reductions, puts to itself.
FlowStatus Flow::work(const FlowOps& ops, std::size_t i, std::int64_t times, Channel& at, Message& sent) {
  const auto link = static_cast<std::int32_t>(2 * links_.ranks + ops.rank[i]);
  Served& memory = served_[static_cast<std::size_t>(link)];
  if (times > kPlaces / 2 || (times > 1 && ((at.batch + 1) & (kPlaces - 1)) + times > kPlaces - 8)) return FlowStatus::overflow;
  at.batch += times;  // no other channel has this memory
  at.row = false;
  if (!ordered_ && !in_order(memory, memory, at.batch, op_)) return FlowStatus::disorder;
  const bool adds = static_cast<Kind>(ops.kind) == Kind::reduce;
  const std::int64_t ready = ops.ready_ps.empty() ? 0 : ops.ready_ps[i];
  const std::int64_t start = std::max({at.clock_ps, ready, memory.free_ps});
  const std::int64_t each = busy(bytes(ops, i) * (adds ? ops.sources : 1), link);
  if (times > 1 && each > kLatest / times) return FlowStatus::overflow;
  at.clock_ps = memory.free_ps = start + times * each;
  sent = {at.clock_ps, at.batch >> kPlaceBits, at.batch};
  return FlowStatus::ok;
}

FlowStatus Flow::signal(const FlowOps& ops, std::size_t i, const Issue& issued, Message& sent) {
  sent = {issued.clock_ps, issued.batch >> kPlaceBits, issued.batch};
  if (ops.peer[i] == ops.rank[i]) return FlowStatus::ok;
  const auto [a, b] = path(ops, i);
  if (a < 0 || b < 0) return FlowStatus::bad_op;
  sent.arrive_ps += latency(ops, i, a, b);
  return FlowStatus::ok;
}

// A counter rises in static order, never before an earlier raise was seen.
FlowStatus Flow::raise(Counter& at, const Message& message) {
  if (message.batch < at.batch) return FlowStatus::disorder;
  at.arrive_ps = std::max(message.arrive_ps, at.arrive_ps);
  at.leaves = std::max<std::int64_t>(message.leaves, at.leaves);
  at.batch = message.batch;
  return FlowStatus::ok;
}

// A raise as written: a wait may ask for the last one, or, where nobody has waited for that yet, for the one before.
FlowStatus Flow::signalled(std::int32_t id, const Message& message, std::int64_t times) {
  Counter& at = counters_[static_cast<std::size_t>(id)];
  const auto many = static_cast<std::size_t>(id);
  if (times > 1 && repeated_.size() <= many) repeated_.resize(std::max(counters_.size(), many + 1));
  if (many < repeated_.size()) repeated_[many] = times > 1;
  if (at.waiting > 0 && times == 1) before(id) = at.last();
  if (times > static_cast<std::int64_t>(kMostWaiting - at.waiting)) return FlowStatus::too_early;
  at.waiting += static_cast<std::uint64_t>(times);
  return raise(at, message);
}

Message& Flow::before(std::int32_t counter) {
  if (before_.size() < counters_.size()) before_.resize(counters_.size());
  return before_[static_cast<std::size_t>(counter)];
}

FlowStatus Flow::wait(const FlowOps& ops, std::size_t i, Channel& at) {
  const std::int32_t id = counter_id(ops.rank[i], ops.peer[i], ops.sig_channel[i]);
  Counter& counted = counters_[static_cast<std::size_t>(id)];
  const std::int64_t later = static_cast<std::int64_t>(counted.waiting) - ops.value[i];
  if (later < 0 || later > 1 || ops.value[i] < 1) return FlowStatus::too_early;
  if (later == 1 && static_cast<std::size_t>(id) < repeated_.size() && repeated_[static_cast<std::size_t>(id)]) return FlowStatus::too_early;
  counted.waiting = static_cast<std::uint64_t>(later);
  go_on(at, later == 0 ? counted.last() : before(id));
  return FlowStatus::ok;
}

// After a wait for what was seen then.
void Flow::go_on(Channel& at, const Message& seen) {
  const std::int64_t tick = std::max(std::max<std::int64_t>(at.batch, 0) >> kPlaceBits, seen.leaves);
  at.batch = std::max(tick << kPlaceBits, std::max(at.batch, seen.batch) + 1);
  at.clock_ps = std::max(at.clock_ps, seen.arrive_ps);
  at.row = false;
}

std::int32_t Flow::counter_id(std::int32_t destination, std::int32_t source, std::int32_t sig_channel) {
  const auto list = static_cast<std::size_t>(destination * links_.channels + sig_channel);
  if (listed_.empty()) return counter_of_few(list, source);
  if (listed_[list] >> 56 == kMany) return counter_of_many(list, source);
  const std::uint64_t bit = bit_of(destination, source);
  const bool maybe = (listed_[list] & bit) != 0;
  listed_[list] |= bit;
  if (const std::int32_t found = maybe ? in_list(list, source) : kNone; found != kNone) return found;
  listed_[list] += std::uint64_t{1} << 56;
  if (listed_[list] >> 56 == kMany) {  // from here on a hash finds them
    for (std::int32_t at = first_counter_[list]; at >= 0; at = counters_[static_cast<std::size_t>(at)].next) {
      const auto id = static_cast<std::size_t>(many_(static_cast<std::int32_t>(list), counters_[static_cast<std::size_t>(at)].source));
      many_counters_.resize(std::max(many_counters_.size(), id + 1), kNone);
      many_counters_[id] = at;
    }
    return counter_of_many(list, source);
  }
  return first_counter_[list] = new_counter(source, first_counter_[list]);
}

// Most lists are of partners at distances of powers of two: one bit each says who cannot be in the list.
std::uint64_t Flow::bit_of(std::int32_t destination, std::int32_t source) {
  const auto apart = static_cast<std::uint32_t>(destination ^ source);
  const int zeros = apart == 0 ? 0 : std::countr_zero(apart);
  return std::uint64_t{1} << ((zeros * 3 + static_cast<int>((apart >> zeros >> 1) & 3u)) % 56);
}

std::int32_t Flow::in_list(std::size_t list, std::int32_t source) {
  std::int32_t& first = first_counter_[list];
  std::int32_t before = -1;
  for (std::int32_t at = first; at >= 0; before = at, at = counters_[static_cast<std::size_t>(at)].next) {
    Counter& found = counters_[static_cast<std::size_t>(at)];
    if (found.source != source) continue;
    if (before >= 0) {  // to the front: it is asked for again soon
      counters_[static_cast<std::size_t>(before)].next = found.next;
      found.next = first;
      first = at;
    }
    return at;
  }
  return kNone;
}

// As long as no list has more than a few, which is so in rings and trees, nothing but the lists is kept.
std::int32_t Flow::counter_of_few(std::size_t list, std::int32_t source) {
  if (const std::int32_t found = in_list(list, source); found != kNone) return found;
  int length = 1;
  for (std::int32_t at = first_counter_[list]; at >= 0; at = counters_[static_cast<std::size_t>(at)].next) ++length;
  first_counter_[list] = new_counter(source, first_counter_[list]);
  if (length > kFew) note_lists();
  return first_counter_[list];
}

void Flow::note_lists() {
  listed_.assign(first_counter_.size(), 0);
  for (std::size_t list = 0; list < listed_.size(); ++list) {
    const auto destination = static_cast<std::int32_t>(static_cast<std::int64_t>(list) / links_.channels);
    for (std::int32_t at = first_counter_[list]; at >= 0; at = counters_[static_cast<std::size_t>(at)].next) {
      listed_[list] |= bit_of(destination, counters_[static_cast<std::size_t>(at)].source);
      listed_[list] += std::uint64_t{1} << 56;
    }
  }
}

std::int32_t Flow::counter_of_many(std::size_t list, std::int32_t source) {
  const auto id = static_cast<std::size_t>(many_(static_cast<std::int32_t>(list), source));
  if (id >= many_counters_.size()) many_counters_.resize(id + 1, kNone);
  if (many_counters_[id] == kNone) many_counters_[id] = new_counter(source, kNone);
  return many_counters_[id];
}

std::int32_t Flow::new_counter(std::int32_t source, std::int32_t next) {
  counters_.push_back({.source = source, .next = next});
  if (ordered_) watches_.emplace_back();
  return static_cast<std::int32_t>(counters_.size() - 1);
}

FlowStatus Flow::finish(std::span<std::int64_t> finish_ps) {
  if (ordered_) {
    told_all_ = true;
    if (const FlowStatus status = drain(); status != FlowStatus::ok) return status;
    for (const Line& line : lines_)
      if (line.held != Held::no) return FlowStatus::deadlock;
  }
  const auto raise_to = [&](std::size_t rank, std::int64_t ps) { finish_ps[rank] = std::max(finish_ps[rank], ps); };
  const auto channels = static_cast<std::size_t>(links_.channels);
  for (std::size_t i = 0; i < channels_.size(); ++i) raise_to(i / channels, channels_[i].clock_ps);
  for (std::size_t i = 0; i < left_.size(); ++i) raise_to(links_.timetable ? i : i / channels, left_[i].ps);
  return FlowStatus::ok;
}

}  // namespace ccl_lab::sim
