// Ops that are told in any order, served in the static one: see flow.hpp.
//
// A channel runs what it is told at once, up to an op that it cannot go beyond: a wait for a signal that was not raised, a flush of puts
// that were not served, work on memory that several channels share. What it is told behind that waits in its line. What it issues (puts
// to others, signals) is served batch by batch, a batch once nothing of it or before it can still come: that is so before `bound_`, the
// least batch in which a channel that nothing holds, that was told no more and is not closed, could go on. A held channel goes on after
// what it waits for, which is either pending or comes from such a channel, so it needs no bound of its own.
#include <algorithm>

#include "ccl_lab/schema.hpp"
#include "flow.hpp"

namespace ccl_lab::sim {
namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
constexpr std::size_t kNear = 8, kFar = 16;    // ops ahead whose counters, and they themselves, are asked for from memory

}  // namespace

FlowOps Flow::alone(const Told& t) const {
  const auto one = [](const auto& cell) { return std::span(&cell, 1); };
  // Counters are known by their number here.
  const auto id = static_cast<std::size_t>(&t - told_.data());
  const auto more = id < more_.size() ? one(more_[id]) : std::span<const std::int64_t>();
  return {t.kind, one(t.rank), one(t.channel), one(t.peer), {}, {}, one(t.chunk), one(t.n_chunks), t.sources, more, more, {}, {}};
}

std::int32_t Flow::keep(const Told& told) {
  if (unused_ < 0) {
    told_.push_back(told);
    return static_cast<std::int32_t>(told_.size() - 1);
  }
  Told& place = told_[static_cast<std::size_t>(unused_)];
  const std::int32_t id = std::exchange(unused_, place.next);
  if (unused_ >= 0) __builtin_prefetch(&told_[static_cast<std::size_t>(unused_)], 1);
  place = told;
  return id;
}

void Flow::keep_more(std::int32_t id, std::int64_t ps) {
  const auto place = static_cast<std::size_t>(id);
  if (place >= more_.size() && ps != 0) more_.resize(told_.size());
  if (place < more_.size()) more_[place] = ps;
}

FlowStatus Flow::tell(const FlowOps& ops, std::size_t i, std::int64_t number, std::int64_t times) {
  const auto kind = static_cast<Kind>(ops.kind);
  const bool raises = (kind == Kind::put || kind == Kind::signal) && ops.sig_channel[i] >= 0;
  Told told{.rank = ops.rank[i], .channel = ops.channel[i], .peer = ops.peer[i], .chunk = ops.chunk[i], .n_chunks = ops.n_chunks[i]};
  if (raises) told.counter = counter_id(ops.peer[i], ops.rank[i], ops.sig_channel[i]);
  if (kind == Kind::wait) {
    if (ops.value[i] < 1) return FlowStatus::too_early;
    told.counter = counter_id(ops.rank[i], ops.peer[i], ops.sig_channel[i]);
    told.chunk = watches_[static_cast<std::size_t>(told.counter)].consumed += ops.value[i];
  }
  told.kind = ops.kind;
  told.sources = static_cast<std::uint16_t>(std::min<std::int64_t>(ops.sources, 0xffff));
  if (number > std::numeric_limits<std::int32_t>::max()) return FlowStatus::too_many;
  told.op = static_cast<std::int32_t>(number);
  told.step_or_times = static_cast<std::int32_t>(times);
  const auto& more = kind == Kind::copy || kind == Kind::reduce ? ops.ready_ps : ops.tier_ps;
  if (links_.timetable) told.step_or_times = ops.step[i];
  if (ops.sources > 0xffff) return FlowStatus::unsupported;
  if (unused_ < 0 && told_.size() >= static_cast<std::size_t>(links_.most_waiting)) return FlowStatus::too_many;
  Line& line = lines_[channel_of(told)];
  if (line.closed) return FlowStatus::closed;
  const std::int32_t id = keep(told);
  keep_more(id, more.empty() ? 0 : more[i]);
  if (line.held == Held::no) return come_to(id);
  (line.first < 0 ? line.first : told_[static_cast<std::size_t>(line.last)].next) = id;
  line.last = id;
  return FlowStatus::ok;
}

// The channel of an op comes to it.
FlowStatus Flow::come_to(std::int32_t id) {
  const Told& told = told_[static_cast<std::size_t>(id)];
  const std::size_t c = channel_of(told);
  Channel& at = channels_[c];
  Line& line = lines_[c];
  const auto kind = static_cast<Kind>(told.kind);
  if (links_.timetable) not_before(at, told.step_or_times);
  const bool works = kind == Kind::copy || kind == Kind::reduce || (kind == Kind::put && told.peer == told.rank);
  if (kind == Kind::wait) return wait_for(id, c);
  if (kind == Kind::signal || (kind == Kind::put && !works)) {
    line.puts += kind == Kind::put;
    pend(id, issue(at));
  } else if (works && (links_.channels > 1 || told.counter >= 0)) {
    line.held = Held::work;
    line.at = id;
    pend(id, {at.clock_ps, at.batch + 1});
  } else if (works) {
    Message sent;
    if (const FlowStatus status = work(alone(told), 0, times_of(told), at, sent); status != FlowStatus::ok) return status;
    forget(id);
  } else if (kind == Kind::flush && told.peer < 0 && !links_.timetable) {
    line.held = line.puts > 0 ? Held::flush : Held::no;
    line.at = id;
    if (line.held == Held::no) {
      flush(c);
      forget(id);
    }
  } else {
    return FlowStatus::unsupported;
  }
  return line.held == Held::no ? checked(at, kind) : FlowStatus::ok;
}

FlowStatus Flow::wait_for(std::int32_t id, std::size_t c) {
  const Told& told = told_[static_cast<std::size_t>(id)];
  Watch& watch = watches_[static_cast<std::size_t>(told.counter)];
  Line& line = lines_[c];
  const std::int32_t number = told.chunk;
  if (number > watch.raised) {
    line.held = Held::wait;
    line.at = id;
    line.next_parked = std::exchange(watch.parked, static_cast<std::int32_t>(c));
    return FlowStatus::ok;
  }
  Message seen;
  if (!raise_of(told.counter, number, seen)) return FlowStatus::too_early;
  go_on(channels_[c], seen);
  watch.seen = std::max(watch.seen, number);
  forget(id);
  return checked(channels_[c], Kind::wait);
}

// A raise that happened; false where it is no longer known. Those before it are forgotten.
bool Flow::raise_of(std::int32_t counter, std::int32_t number, Message& found) {
  const std::int32_t raised = watches_[static_cast<std::size_t>(counter)].raised;
  if (number == raised) {
    found = counters_[static_cast<std::size_t>(counter)].last();
    return true;
  }
  if (number == raised - 1) {
    const auto at = second_.find(counter);
    if (at == second_.end()) return false;
    found = at->second;
    second_.erase(at);
    return true;
  }
  const auto at = early_.find(counter);
  if (at == early_.end()) return false;
  Early& early = at->second;
  for (; early.begin < early.raises.size() && early.first < number; ++early.first) ++early.begin;
  if (early.begin >= early.raises.size() || early.first != number) return false;
  found = early.raises[early.begin];
  return true;
}

void Flow::pend(std::int32_t id, const Issue& issued) {
  const auto [at, fresh] = pending_.try_emplace(issued.batch);
  if (fresh && !spare_.empty()) {
    at->second = std::move(spare_.back());
    spare_.pop_back();
  }
  at->second.push_back({told_[static_cast<std::size_t>(id)].op, id, issued.clock_ps});
}

FlowStatus Flow::close(std::span<const std::int32_t> rank, std::span<const std::int32_t> channel) {
  if (rank.size() != channel.size()) return FlowStatus::bad_op;
  if (!ordered_) return FlowStatus::ok;
  for (std::size_t i = 0; i < rank.size(); ++i) {
    if (rank[i] < 0 || rank[i] >= links_.ranks || channel[i] < 0 || channel[i] >= links_.channels) return FlowStatus::bad_op;
    lines_[static_cast<std::size_t>(rank[i] * links_.channels + channel[i])].closed = true;
  }
  open_.clear();
  for (std::size_t c = 0; c < lines_.size(); ++c)
    if (!lines_[c].closed) open_.push_back(c);
  any_closed_ = true;
  return FlowStatus::ok;
}

// Nothing holds the channel, and it was told no more.
void Flow::idle(std::size_t c) {
  const std::int64_t next = told_all_ || lines_[c].closed ? kNever : channels_[c].batch + !channels_[c].row;
  if (next >= bound_) return;
  bound_ = next;
  first_idle_ = c;
}

// Channels are looked at again only once the one that set the bound has gone on.
void Flow::find_bound() {
  const Line& line = lines_[first_idle_];
  const Channel& at = channels_[first_idle_];
  if (!told_all_ && line.held == Held::no && !line.closed && at.batch + !at.row == bound_) return;
  bound_ = kNever;
  for (std::size_t i = 0; i < (any_closed_ ? open_.size() : lines_.size()); ++i)
    if (const std::size_t c = any_closed_ ? open_[i] : i; lines_[c].held == Held::no) idle(c);
}

FlowStatus Flow::drain() {
  if (pending_.empty()) return FlowStatus::ok;
  find_bound();
  while (!pending_.empty() && pending_.begin()->first < bound_) {
    const std::int64_t number = pending_.begin()->first;
    std::vector<Pending> batch = std::move(pending_.begin()->second);
    pending_.erase(pending_.begin());
    if (const FlowStatus status = serve(number, batch); status != FlowStatus::ok) return status;
    batch.clear();
    if (spare_.size() < kNear) spare_.push_back(std::move(batch));
    if (const FlowStatus status = resume(); status != FlowStatus::ok) return status;
  }
  return FlowStatus::ok;
}

// What the evaluation of op i, and of those after it, will touch.
void Flow::fetch_told(const std::vector<Pending>& batch, std::size_t i, bool counters) const {
  if (i + kFar < batch.size()) __builtin_prefetch(&told_[static_cast<std::size_t>(batch[i + kFar].id)], 1);
  if (i + kNear >= batch.size()) return;
  const Told& soon = told_[static_cast<std::size_t>(batch[i + kNear].id)];
  if (counters) {
    if (soon.counter < 0) return;
    __builtin_prefetch(&counters_[static_cast<std::size_t>(soon.counter)], 1);
    __builtin_prefetch(&watches_[static_cast<std::size_t>(soon.counter)], 1);
    return;
  }
  __builtin_prefetch(&channels_[channel_of(soon)], 1);
  if (soon.peer < 0 || soon.peer == soon.rank) return;
  const auto [a, b] = path(alone(soon), 0);
  if (a >= 0) __builtin_prefetch(&served_[static_cast<std::size_t>(a)], 1);
  if (b >= 0) __builtin_prefetch(&served_[static_cast<std::size_t>(b)], 1);
}

// All ops of one batch: in turns on their links, then what they raise, in the order of ops (order.hpp).
FlowStatus Flow::serve(std::int64_t number, std::vector<Pending>& batch) {
  const auto told = [&](const Pending& one) -> Told& { return told_[static_cast<std::size_t>(one.id)]; };
  if (!std::is_sorted(batch.begin(), batch.end())) std::sort(batch.begin(), batch.end());
  turns_.clear();
  by_turn_.clear();
  for (std::size_t i = 0; i < batch.size(); ++i) {
    fetch_told(batch, i, false);
    const Told& each = told(batch[i]);
    const auto memory = static_cast<std::int32_t>(2 * links_.ranks + each.rank);
    const bool transfers = static_cast<Kind>(each.kind) == Kind::put && each.peer != each.rank;
    const auto [a, b] = transfers ? path(alone(each), 0) : std::pair(memory, memory);
    if (a < 0 || b < 0) return FlowStatus::bad_op;
    const bool signals = static_cast<Kind>(each.kind) == Kind::signal;
    by_turn_.emplace_back(signals ? 0 : turns_.next(a, b), i);
    if (transfers && !has_to_itself(each, number, by_turn_.back().first, a, b)) return FlowStatus::disorder;
  }
  if (!std::is_sorted(by_turn_.begin(), by_turn_.end())) std::sort(by_turn_.begin(), by_turn_.end());
  sent_.resize(batch.size());
  for (const auto& [turn, i] : by_turn_) {
    fetch_told(batch, i, false);
    if (const FlowStatus status = take(told(batch[i]), {batch[i].clock_ps, number}, sent_[i]); status != FlowStatus::ok) return status;
  }
  for (std::size_t i = 0; i < batch.size(); ++i) {
    fetch_told(batch, i, true);
    if (const FlowStatus status = announce(told(batch[i]), sent_[i]); status != FlowStatus::ok) return status;
    forget(batch[i].id);
  }
  return FlowStatus::ok;
}

// Where an op comes several times, no other of its batch may have one of its links, but between the same ranks after it.
bool Flow::has_to_itself(const Told& told, std::int64_t batch, std::int64_t turn, std::int32_t a, std::int32_t b) {
  const bool many = times_of(told) > 1;
  if (!many && alone_.empty()) return true;
  if (alone_.empty()) alone_.resize(served_.size());
  Alone &at = alone_[static_cast<std::size_t>(a)], &to = alone_[static_cast<std::size_t>(b)];
  const auto own = [&](const Alone& link) { return link.batch == batch && link.rank == told.rank && link.peer == told.peer; };
  if (own(at) && own(to)) return true;
  if (at.batch == batch || to.batch == batch || (many && turn > 0)) return false;
  if (many) at = to = {batch, told.rank, told.peer};
  return true;
}

FlowStatus Flow::take(const Told& told, const Issue& issued, Message& sent) {
  const std::size_t c = channel_of(told);
  Channel& at = channels_[c];
  Line& line = lines_[c];
  const auto kind = static_cast<Kind>(told.kind);
  if (kind == Kind::signal) return signal(alone(told), 0, issued, sent);
  if (line.held == Held::work && &told == &told_[static_cast<std::size_t>(line.at)]) {
    line.held = Held::no;
    ready_.push_back(c);
    const FlowStatus status = work(alone(told), 0, times_of(told), at, sent);
    return status == FlowStatus::ok ? checked(at, kind) : status;
  }
  if (const FlowStatus status = transfer(alone(told), 0, times_of(told), issued, sent); status != FlowStatus::ok) return status;
  if (--line.puts > 0 || line.held != Held::flush) return FlowStatus::ok;
  flush(c);
  forget(line.at);
  line.held = Held::no;
  ready_.push_back(c);
  return checked(at, Kind::flush);
}

// What an op raises, and who waited for that.
FlowStatus Flow::announce(const Told& told, const Message& sent) {
  if (told.counter < 0) return FlowStatus::ok;
  const auto id = static_cast<std::size_t>(told.counter);
  Watch& watch = watches_[id];
  if (watch.raised >= 2 && watch.raised - 1 > watch.seen) {
    Early& early = early_[told.counter];
    // Those in between were waited for.
    if (early.first + static_cast<std::int64_t>(early.raises.size() - early.begin) != watch.raised - 1) {
      early.begin = early.raises.size();
      early.first = watch.raised - 1;
    }
    if (early.begin == early.raises.size()) {
      early.raises.clear();
      early.begin = 0;
    }
    const auto second = second_.find(told.counter);
    if (second == second_.end()) return FlowStatus::too_early;  // it came several times, and nobody has waited for all
    early.raises.push_back(second->second);
  }
  const auto times = static_cast<std::int32_t>(times_of(told));
  if (times > 1) {
    second_.erase(told.counter);  // of those only the last one is known
  } else if (watch.raised > watch.seen) {
    second_[told.counter] = counters_[id].last();
  }
  if (const FlowStatus status = raise(counters_[id], sent); status != FlowStatus::ok) return status;
  watch.raised += times;
  std::int32_t c = std::exchange(watch.parked, -1);
  for (; c >= 0; c = std::exchange(lines_[static_cast<std::size_t>(c)].next_parked, -1)) ready_.push_back(static_cast<std::size_t>(c));
  return FlowStatus::ok;
}

// Channels that may go on do so, as far as they can.
FlowStatus Flow::resume() {
  for (std::size_t k = 0; k < ready_.size(); ++k) {
    const std::size_t c = ready_[k];
    if (k + kFar < ready_.size()) {
      __builtin_prefetch(&lines_[ready_[k + kFar]], 1);
      __builtin_prefetch(&channels_[ready_[k + kFar]], 1);
    }
    if (k + kNear < ready_.size()) {
      const Line& soon = lines_[ready_[k + kNear]];
      if (soon.at >= 0) __builtin_prefetch(&told_[static_cast<std::size_t>(soon.at)]);
      if (soon.first >= 0) __builtin_prefetch(&told_[static_cast<std::size_t>(soon.first)], 1);
    }
    Line& line = lines_[c];
    FlowStatus status = FlowStatus::ok;
    if (line.held == Held::wait) {
      line.held = Held::no;
      status = wait_for(line.at, c);
    }
    while (status == FlowStatus::ok && line.held == Held::no && line.first >= 0) {
      const std::int32_t id = line.first;
      line.first = std::exchange(told_[static_cast<std::size_t>(id)].next, -1);
      status = come_to(id);
    }
    if (status != FlowStatus::ok) return status;
    if (line.held == Held::no) idle(c);
  }
  ready_.clear();
  return FlowStatus::ok;
}

}  // namespace ccl_lab::sim
