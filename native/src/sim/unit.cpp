#include "unit.hpp"

#include <algorithm>
#include <bit>
#include <span>
#include <utility>

#include "exact.hpp"
#include "order.hpp"

namespace ccl_lab::sim {

Unit::Unit(const RingsInput& in, const RingsOutput& out, Manner manner, std::int64_t period, bool one_state)
    : in_(in), out_(out), per_slice_(in.steps * in.depth), period_(period > 0 ? period : in.stations * in.depth),
      changes_(in.changes, static_cast<std::size_t>(in.all_links)), together_(manner.together), together_at_first_(manner.together_at_first), one_state_(one_state) {
  most_slices_ = *std::max_element(in.slices.begin(), in.slices.end());
  rounds_ = most_slices_ * per_slice_;
  for (const auto ids : {in.memory, in.link_a, in.link_b})
    for (const std::int32_t id : ids) links_ = std::max<std::int64_t>(links_, id + 1);
  words_ = 3 * in.chains * in.stations + 5 * links_;
  ops_per_group_ = in.places();
  states_.assign(static_cast<std::size_t>((one_state ? 1 : in.units) * words_), 0);
  round_.assign(static_cast<std::size_t>(in.units), 0);
  posts_.resize(in.memory.size());
  for (std::size_t r = 0; r < posts_.size(); ++r)
    posts_[r] = {in.memory[r], in.link_a[r], in.link_b[r], in.ticks[r] != 0, in.latency_ps[r], in.ready_ps[r]};
  busy_.resize(static_cast<std::size_t>(in.chains * in.stations));
  mail_.resize(static_cast<std::size_t>(in.chains * in.stations * in.depth));
  sent_.resize(static_cast<std::size_t>(in.chains));
  last_.resize(static_cast<std::size_t>(words_));
  change_.resize(last_.size());
  change_before_.resize(last_.size());
}

void Unit::select(std::int64_t unit) {
  unit_ = unit;
  state_ = state_of(unit);
  stations_of_unit_ = reinterpret_cast<Station*>(state_);
  posts_of_unit_ = posts_.data() + in_.kind_row(unit);
  links_of_unit_ = reinterpret_cast<Served*>(state_ + 3 * in_.chains * in_.stations);
  watching_ = noting_ = false;
  keep_busy(unit);
}

// Forgets how long messages take at stations whose rates are not those of the unit before.
void Unit::keep_busy(std::int64_t unit) {
  const std::size_t each = busy_.size(), now = static_cast<std::size_t>(in_.kind_row(unit));
  const std::size_t before = std::exchange(busy_row_, now);
  if (now == before) return;
  for (std::size_t i = 0; i < each; ++i) {
    const auto same = [&](const auto& rates) { return rates[now + i] == rates[before + i]; };
    if (!same(in_.memory_bytes_per_s) || !same(in_.a_bytes_per_s) || !same(in_.b_bytes_per_s)) busy_[i] = {};
  }
}

Unit::At Unit::at(std::int64_t chain, std::int64_t station, std::int64_t slice, std::int64_t message) {
  const std::int64_t i = chain * in_.stations + station;
  return {chain, station, slice, message, stations_of_unit_ + i, posts_of_unit_ + i};
}

std::int64_t Unit::bytes_of(const At& at) const {
  const std::size_t first = slot(at.chain, at.slice) * static_cast<std::size_t>(in_.depth * in_.n_sizes);
  if (in_.depth == 1 && in_.n_sizes == 1) return in_.bytes[first];
  const std::int64_t i = (at.message + in_.depth) % in_.depth, step = (at.message + in_.depth) / in_.depth - 1;
  const std::int64_t ring = in_.units * in_.stations;
  const bool backward = !in_.backward.empty() && in_.backward[static_cast<std::size_t>(at.chain)] != 0;
  const std::int64_t position = (backward ? in_.units - 1 - unit_ : unit_) * in_.stations + at.station;
  const std::int64_t place = in_.n_sizes == 1 ? 0 : ((position - 1 - step) % ring + ring) % ring;
  return in_.bytes[first + static_cast<std::size_t>(i * in_.n_sizes + place)];
}

const Busy& Unit::busy(const At& at) {
  const std::int64_t bytes = bytes_of(at);
  Busy* const known = busy_[static_cast<std::size_t>(at.chain * in_.stations + at.station)].last;
  if (known[0].bytes == bytes) return known[0];
  std::swap(known[0], known[1]);
  if (known[0].bytes == bytes) return known[0];
  known[0] = busy_of(in_, kind_row(at), bytes);
  return known[0];
}

// Ops are numbered slice by slice, in a slice message by message, in those group by group (wait, reduce, put), row by row.
std::int64_t Unit::op(const At& at, std::int64_t kind) const {
  const std::int64_t messages = per_slice_ + in_.depth;
  const std::int64_t place = in_.place(unit_, static_cast<std::size_t>(at.post - posts_of_unit_));
  return ((in_.group[slot(at.chain, at.slice)] * messages + at.message + in_.depth) * 3 + kind) * ops_per_group_ + place;
}

void Unit::note_order(const Served& a, const Served& b, std::int64_t batch, std::int64_t op) {
  if (path_) {
    for (const Served* link : {&a, &b}) {
      path_->sign(batch - link->batch);
      path_->sign(op - link->op);
      path_->fixed(link->turns);
    }
  }
  if (noting_) {
    for (const Served* link : {&a, &b}) {
      choices_.note(batch - link->batch);
      if (batch == link->batch) choices_.note(op - link->op);
    }
  }
}

void Unit::occupy(Served& a, Served& b, std::int64_t batch, std::int64_t op) {
  note_order(a, b, batch, op);
  if (!in_order(a, b, batch, op)) status_ = RingsStatus::disorder;
}

// A channel comes to a wait: it goes on when the message has been seen, and not before the op before it.
void Unit::wait(Station& station, const Message& message) {
  const std::int64_t tick = larger(tick_of(station.batch), message.leaves);
  station.batch = larger(tick << kPlaceBits, larger(station.batch, message.batch) + 1);
  station.clock_ps = larger(station.clock_ps, message.arrive_ps);
}

// Its sources are the station's own, so nobody else has to have entered.
void Unit::reduce(const At& at) {
  Station& s = *at.state;
  Served& memory = link(at.post->memory);
  s.batch += 1;
  occupy(memory, memory, s.batch, op(at, 1));
  s.clock_ps = memory.free_ps = larger(s.clock_ps, memory.free_ps) + busy(at).add_ps;
}

// One reduction of all that a station is about to send.
void Unit::add_own(At at) {
  std::int64_t bytes = 0;
  for (at.message = -in_.depth; at.message < 0; ++at.message) bytes += bytes_of(at);
  at.message = -in_.depth;
  Station& s = *at.state;
  Served& memory = link(at.post->memory);
  s.batch += 1;
  occupy(memory, memory, s.batch, op(at, 1));
  s.clock_ps = memory.free_ps = larger(s.clock_ps, memory.free_ps) + own_ps(in_, kind_row(at), bytes);
}

void Unit::copy_own(const At& at) {
  Station& s = *at.state;
  Served& memory = link(at.post->memory);
  s.batch += 1;
  occupy(memory, memory, s.batch, op(at, 1));
  const std::int64_t time = std::min(duration_ps(bytes_of(at), in_.memory_bytes_per_s[kind_row(at)]), kLatest);
  s.clock_ps = memory.free_ps = std::max(s.clock_ps, memory.free_ps) + time;
}

// When a link that begins at `start_ps` is free again.
std::int64_t Unit::through(const At& at, std::int32_t link, std::int64_t start_ps, std::int64_t busy_ps, std::int64_t bytes_per_s) {
  if (!changes_.on(link)) return start_ps + busy_ps;
  const std::int64_t bytes = busy(at).bytes, from = start_ps + (bytes > 0 ? in_.alpha_ps : 0);
  const std::int64_t end = changes_.through_ps(link, from, bytes, bytes_per_s);
  const auto [begins, ends, rate] = changes_.stretch(link, from, bytes_per_s);
  constant_ = true;
  crossed_ = crossed_ || end > ends;
  if (path_) {
    path_->fixed(begins);
    path_->sign(end - ends);
    path_->fixed(end > ends ? from : rate);  // under a message: no sum of inputs
    path_->sign(from - begins);
  }
  if (noting_) {
    choices_.note(from - begins);
    choices_.note(end - ends);
  }
  return end;
}

// Sends on what it works on; the station's batch is that of the put.
void Unit::send(const At& at, std::vector<Stream>& sent) {
  Served &a = link(at.post->a), &b = link(at.post->b);
  if (together_) {
    puts_.push_back({at, &a, &b, at.state->batch, op(at, 2), 0, 0});
    return;
  }
  occupy(a, b, at.state->batch, op(at, 2));
  leave(at, sent);
}

// All puts that wait for one another's turns, batch by batch.
void Unit::put_together(std::vector<Stream>& sent) {
  const auto note = [&](const Put& one, const Put& other) {
    const std::int64_t gap = decides(one.batch - other.batch);
    if (noting_) choices_.note(gap);
    return gap == 0;
  };
  bool alike = true;
  for (std::size_t i = 1; i < puts_.size(); ++i) alike = note(puts_[i], puts_[i - 1]) && alike;
  for (std::size_t i = 2; !alike && i < puts_.size(); ++i)
    for (std::size_t k = 0; k + 1 < i; ++k) note(puts_[i], puts_[k]);
  std::ranges::sort(puts_, {}, [](const Put& put) { return std::pair(put.batch, put.op); });
  for (std::size_t first = 0, last = 0; first < puts_.size(); first = last) {
    while (last < puts_.size() && puts_[last].batch == puts_[first].batch) ++last;
    take_turns(first, last);
    std::ranges::sort(puts_.begin() + static_cast<std::ptrdiff_t>(first), puts_.begin() + static_cast<std::ptrdiff_t>(last), {},
                      [](const Put& put) { return std::pair(put.turn, put.op); });
    for (std::size_t i = first; i < last; ++i) leave(puts_[i].at, sent);
  }
  puts_.clear();
}

// Puts of one batch, in the order of ops: each gets the first turn that none of its links has given away. What was served before is not
// to be overtaken.
void Unit::take_turns(std::size_t first, std::size_t last) {
  const auto puts = std::span(puts_).subspan(first, last - first);
  for (const Put& put : puts) {
    note_order(*put.a, *put.b, put.batch, put.op);
    for (Served* link : {put.a, put.b}) {
      if (put.batch < link->batch) status_ = RingsStatus::disorder;
      if (put.batch > link->batch) *link = {link->free_ps, link->free_tick, put.batch, -1, 0};
    }
  }
  for (Put& put : puts) put.served = put.a->turns | put.b->turns;
  for (Put& put : puts) {
    const auto used = static_cast<std::uint64_t>(put.a->turns | put.b->turns);
    put.turn = std::countr_one(used);
    if (put.turn > 61 || put.served >> put.turn != 0 || put.op <= put.a->op || put.op <= put.b->op) status_ = RingsStatus::disorder;
    for (Served* link : {put.a, put.b}) {
      link->turns |= std::int64_t{1} << std::min<std::int64_t>(put.turn, 61);
      link->op = put.op;
    }
  }
}

void Unit::leave(const At& at, std::vector<Stream>& sent) {
  Station& s = *at.state;
  const Post& post = *at.post;
  Served &a = link(post.a), &b = link(post.b);
  const Busy& time = busy(at);
  const std::int64_t start = larger(larger(s.clock_ps, post.ready_ps), larger(a.free_ps, b.free_ps));
  constant_ = decides(post.ready_ps - s.clock_ps) > 0 || constant_;
  if (in_.changes.link.empty()) {
    a.free_ps = start + time.a_ps;
    b.free_ps = start + time.b_ps;
  } else {
    const std::size_t k = kind_row(at), r = static_cast<std::size_t>(unit_ * in_.rows_of_unit() + (&post - posts_of_unit_));
    a.free_ps = through(at, in_.all_a[r], start, time.a_ps, in_.a_bytes_per_s[k]);
    b.free_ps = through(at, in_.all_b[r], start, time.b_ps, in_.b_bytes_per_s[k]);
  }
  s.left_ps = std::max(a.free_ps, b.free_ps);
  Message message{s.left_ps + post.latency_ps, tick_of(s.batch), s.batch};
  if (post.ticks) {
    message.leaves = larger(larger(message.leaves, a.free_tick), b.free_tick) + in_.nominal_bytes;
    a.free_tick = b.free_tick = message.leaves;
  }
  if (decides(message.arrive_ps - kLatest) > 0 || decides(message.leaves - kLastTick) > 0 || (s.batch & (kPlaces - 1)) > kPlaces - 8)
    status_ = RingsStatus::overflow;
  if (at.station + 1 < in_.stations) {
    mail(at.chain, at.station + 1, at.message + in_.depth) = message;
    return;
  }
  sent[static_cast<std::size_t>(at.chain)].push(message);
  if (watching_) sent_[static_cast<std::size_t>(at.chain)].push_back(message);
}

// A slice begins: where ranks of a node have parts of it, its channel waits for each of the others, whose signals are of one batch, and adds
// them up. A signal is seen at the tick in which it is given.
void Unit::enter_slice(const At& at) {
  if (in_.begin_ps.empty()) return;
  const std::int64_t batch = in_.begin_batch[slot_of_unit(at)];
  wait(*at.state, {in_.begin_ps[slot_of_unit(at)], batch >> kPlaceBits, batch});
  at.state->batch += in_.own - 2;
  add_own(at);
  at.state->batch += 1;
}

// `depth` puts in a row, of one batch.
void Unit::send_first(At at, std::vector<Stream>& sent) {
  for (at.message = -in_.depth; at.message < 0; ++at.message) send(at, sent);
}

void Unit::slice_ends(const At& at, std::vector<Stream>& sent) {
  Station& s = *at.state;
  if (!out_.end_ps.empty()) {
    out_.end_ps[slot_of_unit(at)] = s.clock_ps;
    out_.end_batch[slot_of_unit(at)] = s.batch;
    if (path_) ended_.push_back(slot(at.chain, at.slice));
  }
  s.batch += in_.passes_on;
  if (at.slice + 1 == in_.slices[static_cast<std::size_t>(at.chain)]) return;
  At next = at;
  ++next.slice;
  enter_slice(next);
  send_first(next, sent);
}

void Unit::handle(const At& at, const Message& message, std::vector<Stream>& sent) {
  if (in_.timetable && at.station == 0) {
    // It was sent at an earlier tick, and nothing was done since: the number of the message says when.
    at.state->batch = (at.slice * per_slice_ + at.message + 1) << kPlaceBits;
    at.state->clock_ps = larger(at.state->clock_ps, message.arrive_ps);
  } else {
    wait(*at.state, message);
  }
  if (decides(at.message - in_.reducing * in_.depth) < 0) reduce(at);
  if (decides(at.message - (per_slice_ - in_.depth)) < 0) {
    at.state->batch += 1;
    send(at, sent);
  } else if (decides(at.message - (per_slice_ - 1)) == 0) {
    slice_ends(at, sent);
  }
}

// What stations send without a message from outside the unit: step by step, since nominal time stands still inside a node.
void Unit::warm_up(std::vector<Stream>& sent) {
  for (std::int64_t c = 0; c < in_.chains; ++c) {
    for (std::int64_t i = 0; i < in_.stations; ++i) {
      enter_slice(at(c, i, 0, 0));
      send_first(at(c, i, 0, 0), sent);
    }
  }
  put_together(sent);
  if (in_.copies) {
    for (std::int64_t c = 0; c < in_.chains; ++c)
      for (std::int64_t i = 0; i < in_.stations; ++i) copy_own(at(c, i, 0, -in_.depth));
  }
  for (std::int64_t m = 0; m < std::min((in_.stations - 1) * in_.depth, per_slice_); ++m) {
    // Stations from the last on: a message takes the place of the one that the next station has just read.
    for (std::int64_t c = 0; c < in_.chains; ++c)
      for (std::int64_t i = in_.stations - 1; i > m / in_.depth; --i) handle(at(c, i, 0, m), Message(mail(c, i, m)), sent);
    put_together(sent);
  }
}

RingsStatus Unit::begin(std::int64_t unit, std::vector<Stream>& sent) {
  select(unit);
  if (one_state_) std::ranges::fill(states_, 0);
  for (std::int64_t c = 0; c < in_.chains; ++c) {
    for (std::int64_t i = 0; i < in_.stations; ++i) {
      const At here = at(c, i, 0, 0);
      here.state->clock_ps = here.state->left_ps = in_.late_ps[kind_row(here)];
    }
  }
  const bool later = std::exchange(together_, together_ || together_at_first_);
  warm_up(sent);
  together_ = later;
  return status_;
}

void Unit::begin_like(std::int64_t unit, std::int64_t other) {
  const std::int64_t rows = in_.place(unit, 0) - in_.place(other, 0);
  std::int64_t* const state = std::copy_n(state_of(other), words_, state_of(unit)) - words_;
  for (std::int64_t i = 3 * in_.rows_of_unit() + 3; i < words_; i += 5)
    if (state[i] >= 0) state[i] += rows;  // the op that a link has served last
}

void Unit::round(std::vector<Stream>& sent) {
  const std::int64_t now = round_[static_cast<std::size_t>(unit_)];
  const std::int64_t slice = most_slices_ == 1 ? 0 : now / per_slice_, first = now - slice * per_slice_;
  for (std::int64_t i = 0; i < in_.stations; ++i) {
    if (i > 0 && decides(first + i * in_.depth - per_slice_) >= 0) break;  // only where stations > 1, and then there is one slice
    for (std::int64_t c = 0; c < in_.chains; ++c) {
      const auto chain = static_cast<std::size_t>(c);
      if (slice >= in_.slices[chain]) continue;
      const std::int64_t message = first + i * in_.depth;
      handle(at(c, i, slice, message), i == 0 ? readers_[chain].next() : mail(c, i, message), sent);
    }
    put_together(sent);
  }
  ++evaluated;
  ++round_[static_cast<std::size_t>(unit_)];
}

bool Unit::at_work(std::size_t chain) {
  return round_[static_cast<std::size_t>(unit_)] / per_slice_ < in_.slices[chain];
}

RingsStatus Unit::visit(std::int64_t unit, const std::vector<Stream>& received, std::vector<Stream>& sent) {
  select(unit);
  readers_.clear();
  for (const Stream& each : received) readers_.emplace_back(each).note_in(path_);
  for (Stream& each : sent) each.note_in(path_);
  ended_.clear();
  std::int64_t& now = round_[static_cast<std::size_t>(unit)];
  while (decides(now - rounds_) < 0 && status_ == RingsStatus::ok) {
    if (path_ && path_->size() > most_noted_) stop_noting(sent);
    if (path_) note_slice(now);
    for (std::size_t c = 0; c < readers_.size(); ++c)
      if (at_work(c) && readers_[c].empty()) return status_;
    if (in_.jumps && in_.n_sizes == 1 && jump(sent)) continue;
    round(sent);
  }
  return status_;
}

// All that follows from the slice that a round is in.
void Unit::note_slice(std::int64_t round) {
  const std::int64_t slice = round / per_slice_;
  path_->fixed(slice);
  path_->sign(round - slice * per_slice_);
  path_->sign((slice + 1) * per_slice_ - round);
}

void Unit::stop_noting(std::vector<Stream>& sent) {
  path_->give_up();
  path_ = nullptr;
  for (Reader& each : readers_) each.note_in(nullptr);
  for (Stream& each : sent) each.note_in(nullptr);
}

void Unit::finish() const {
  for (std::int64_t u = 0; u < in_.units; ++u) {
    const auto* const stations = reinterpret_cast<const Station*>(states_.data() + u * words_);
    const std::int64_t each = in_.chains * in_.stations;
    for (std::int64_t i = 0; i < each; ++i)
      out_.finish_ps[static_cast<std::size_t>(u * each + i)] = std::max(stations[i].clock_ps, stations[i].left_ps);
  }
}

}  // namespace ccl_lab::sim
