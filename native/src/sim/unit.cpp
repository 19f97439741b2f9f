#include "unit.hpp"

#include <algorithm>

#include "exact.hpp"

namespace ccl_lab::sim {
namespace {

constexpr std::int64_t kAlways = Path::kAlways;

}  // namespace

std::int64_t Choices::repeats_since(const Choices& before, Path* path) const {
  if (used_ != before.used_) return -1;
  std::int64_t least = kAlways;
  for (std::size_t i = 0; i < used_; ++i) {
    const std::int64_t gap = gaps_[i], rate = gap - before.gaps_[i];
    if (path) path->fixed(rate);
    if (rate == 0) continue;
    if (path) {
      path->sign(gap);
      path->sign(before.gaps_[i]);
    }
    if ((before.gaps_[i] < 0 && gap > 0) || (before.gaps_[i] > 0 && gap < 0)) return -1;
    if (gap == 0) return 0;  // equal now, and not before: on the way to the other sign, or from it
    if ((gap > 0) == (rate > 0)) continue;
    const std::int64_t repeats = gap > 0 ? gap / -rate : -gap / rate;
    if (path) {
      path->quotient(gap, rate);
      if (least != kAlways) path->sign(repeats - least);
    }
    least = std::min(least, repeats);
  }
  return least;
}

Unit::Unit(const RingsInput& in, const RingsOutput& out)
    : in_(in), out_(out), per_slice_(in.steps * in.depth), period_(in.stations * in.depth),
      changes_(in.changes, static_cast<std::size_t>(in.all_links)) {
  most_slices_ = *std::max_element(in.slices.begin(), in.slices.end());
  rounds_ = most_slices_ * per_slice_;
  for (const auto ids : {in.memory, in.link_a, in.link_b})
    for (const std::int32_t id : ids) links_ = std::max<std::int64_t>(links_, id + 1);
  words_ = 3 * in.chains * in.stations + 5 * links_;
  for (const std::int64_t r : in.row) ops_per_group_ = std::max(ops_per_group_, r + 1);
  states_.assign(static_cast<std::size_t>(in.units * words_), 0);
  round_.assign(static_cast<std::size_t>(in.units), 0);
  posts_.resize(in.memory.size());
  for (std::size_t r = 0; r < posts_.size(); ++r)
    posts_[r] = {in.memory[r], in.link_a[r], in.link_b[r], in.ticks[r] != 0, in.latency_ps[r], in.ready_ps[r], in.row[r]};
  busy_.resize(static_cast<std::size_t>(in.chains * in.stations));
  mail_.resize(static_cast<std::size_t>(in.chains * in.stations * in.depth));
  sent_.resize(static_cast<std::size_t>(in.chains));
  last_.resize(static_cast<std::size_t>(words_));
  change_.resize(last_.size());
  change_before_.resize(last_.size());
}

void Unit::select(std::int64_t unit) {
  unit_ = unit;
  state_ = states_.data() + unit * words_;
  stations_of_unit_ = reinterpret_cast<Station*>(state_);
  links_of_unit_ = reinterpret_cast<Served*>(state_ + 3 * in_.chains * in_.stations);
  watching_ = noting_ = false;
  keep_busy(unit);
}

// Forgets how long messages take at stations whose rates are not those of the unit before.
void Unit::keep_busy(std::int64_t unit) {
  const std::size_t each = busy_.size(), now = static_cast<std::size_t>(unit) * each;
  const std::size_t before = static_cast<std::size_t>(std::exchange(busy_unit_, unit)) * each;
  for (std::size_t i = 0; i < each; ++i) {
    const auto same = [&](const auto& rates) { return rates[now + i] == rates[before + i]; };
    if (!same(in_.memory_bytes_per_s) || !same(in_.a_bytes_per_s) || !same(in_.b_bytes_per_s)) busy_[i] = {};
  }
}

Unit::At Unit::at(std::int64_t chain, std::int64_t station, std::int64_t slice, std::int64_t message) {
  const std::int64_t i = chain * in_.stations + station;
  return {chain, station, slice, message, stations_of_unit_ + i, posts_.data() + unit_ * in_.chains * in_.stations + i};
}

std::int64_t Unit::bytes_of(const At& at) const {
  const std::size_t first = slot(at.chain, at.slice) * static_cast<std::size_t>(in_.depth * in_.n_sizes);
  if (in_.depth == 1 && in_.n_sizes == 1) return in_.bytes[first];
  const std::int64_t i = (at.message + in_.depth) % in_.depth, step = (at.message + in_.depth) / in_.depth - 1;
  const std::int64_t ring = in_.units * in_.stations, position = unit_ * in_.stations + at.station;
  const std::int64_t place = in_.n_sizes == 1 ? 0 : ((position - 1 - step) % ring + ring) % ring;
  return in_.bytes[first + static_cast<std::size_t>(i * in_.n_sizes + place)];
}

const Busy& Unit::busy(const At& at) {
  const std::int64_t bytes = bytes_of(at);
  Busy* const known = busy_[static_cast<std::size_t>(at.chain * in_.stations + at.station)].last;
  if (known[0].bytes == bytes) return known[0];
  std::swap(known[0], known[1]);
  if (known[0].bytes == bytes) return known[0];
  const auto r = static_cast<std::size_t>(at.post - posts_.data());
  const std::int64_t held = bytes > 0 ? in_.alpha_ps : 0;
  const auto capped = [](std::int64_t ps) { return std::min(ps, kLatest); };
  known[0] = {bytes, capped(duration_ps(2 * bytes, in_.memory_bytes_per_s[r])), capped(held + duration_ps(bytes, in_.a_bytes_per_s[r])),
              capped(held + duration_ps(bytes, in_.b_bytes_per_s[r]))};
  return known[0];
}

// Ops are numbered slice by slice, in a slice message by message, in those group by group (wait, reduce, put), row by row.
std::int64_t Unit::op(const At& at, std::int64_t kind) const {
  const std::int64_t messages = per_slice_ + in_.depth;
  return ((in_.group[slot(at.chain, at.slice)] * messages + at.message + in_.depth) * 3 + kind) * ops_per_group_ + at.post->row;
}

void Unit::occupy(Served& a, Served& b, std::int64_t batch, std::int64_t op) {
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

void Unit::copy_own(const At& at) {
  Station& s = *at.state;
  Served& memory = link(at.post->memory);
  s.batch += 1;
  occupy(memory, memory, s.batch, op(at, 1));
  const auto r = static_cast<std::size_t>(at.post - posts_.data());
  const std::int64_t time = std::min(duration_ps(bytes_of(at), in_.memory_bytes_per_s[r]), kLatest);
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
  if (noting_) {
    choices_.note(from - begins);
    choices_.note(end - ends);
  }
  return end;
}

// Sends on what it works on; the station's batch is that of the put.
void Unit::send(const At& at, std::vector<Stream>& sent) {
  Station& s = *at.state;
  const Post& post = *at.post;
  Served &a = link(post.a), &b = link(post.b);
  const Busy& time = busy(at);
  occupy(a, b, s.batch, op(at, 2));
  const std::int64_t start = larger(larger(s.clock_ps, post.ready_ps), larger(a.free_ps, b.free_ps));
  constant_ = decides(post.ready_ps - s.clock_ps) > 0 || constant_;
  if (in_.changes.link.empty()) {
    a.free_ps = start + time.a_ps;
    b.free_ps = start + time.b_ps;
  } else {
    const auto r = static_cast<std::size_t>(&post - posts_.data());
    a.free_ps = through(at, in_.all_a[r], start, time.a_ps, in_.a_bytes_per_s[r]);
    b.free_ps = through(at, in_.all_b[r], start, time.b_ps, in_.b_bytes_per_s[r]);
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

// A slice begins: where somebody has to say so, its channel waits for that. The signal is seen at the tick in which it is given.
void Unit::enter_slice(const At& at) {
  if (in_.begin_ps.empty()) return;
  const std::int64_t batch = in_.begin_batch[slot_of_unit(at)];
  wait(*at.state, {in_.begin_ps[slot_of_unit(at)], batch >> kPlaceBits, batch});
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
  wait(*at.state, message);
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
  if (in_.copies) {
    for (std::int64_t c = 0; c < in_.chains; ++c)
      for (std::int64_t i = 0; i < in_.stations; ++i) copy_own(at(c, i, 0, -in_.depth));
  }
  for (std::int64_t m = 0; m < std::min((in_.stations - 1) * in_.depth, per_slice_); ++m) {
    // Stations from the last on: a message takes the place of the one that the next station has just read.
    for (std::int64_t c = 0; c < in_.chains; ++c)
      for (std::int64_t i = in_.stations - 1; i > m / in_.depth; --i) handle(at(c, i, 0, m), Message(mail(c, i, m)), sent);
  }
}

RingsStatus Unit::begin(std::int64_t unit, std::vector<Stream>& sent) {
  select(unit);
  for (std::int64_t c = 0; c < in_.chains; ++c) {
    for (std::int64_t i = 0; i < in_.stations; ++i) {
      const At here = at(c, i, 0, 0);
      const auto r = static_cast<std::size_t>(here.post - posts_.data());
      here.state->clock_ps = here.state->left_ps = in_.late_ps[r];
      link(here.post->memory).free_ps = in_.memory_free_ps[r];
    }
  }
  warm_up(sent);
  return status_;
}

void Unit::begin_like(std::int64_t unit, std::int64_t other) {
  const auto each = static_cast<std::size_t>(in_.chains * in_.stations);
  const std::int64_t rows = in_.row[static_cast<std::size_t>(unit) * each] - in_.row[static_cast<std::size_t>(other) * each];
  std::int64_t* const state = std::copy_n(state_of(other), words_, state_of(unit)) - words_;
  for (std::int64_t i = 3 * static_cast<std::int64_t>(each) + 3; i < words_; i += 5)
    if (state[i] >= 0) state[i] += rows;  // the op that a link has served last
}

void Unit::round(std::vector<Stream>& sent) {
  const std::int64_t now = round_[static_cast<std::size_t>(unit_)];
  const std::int64_t slice = most_slices_ == 1 ? 0 : now / per_slice_, first = now - slice * per_slice_;
  for (std::int64_t i = 0; i < in_.stations; ++i) {
    const std::int64_t message = first + i * in_.depth;
    if (i > 0 && decides(message - per_slice_) >= 0) break;  // only where stations > 1, and then there is one slice
    for (std::int64_t c = 0; c < in_.chains; ++c) {
      if (slice >= in_.slices[static_cast<std::size_t>(c)]) continue;
      const Message came = i == 0 ? readers_[static_cast<std::size_t>(c)].next() : mail(c, i, message);
      handle(at(c, i, slice, message), came, sent);
    }
  }
  ++evaluated;
  ++round_[static_cast<std::size_t>(unit_)];
}

bool Unit::at_work(std::size_t chain) const {
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

// -- the jump

// Rounds from the next one on in which every station does the same kind of work.
std::int64_t Unit::rounds_alike() {
  const std::int64_t now = round_[static_cast<std::size_t>(unit_)], first = now % per_slice_;
  std::int64_t least = kAlways;
  for (std::int64_t i = 0; i < in_.stations; ++i) {
    const std::int64_t message = first + i * in_.depth;
    for (const std::int64_t border : {in_.reducing * in_.depth, per_slice_ - in_.depth, per_slice_})
      if (decides(message - border) < 0) least = lesser(least, border - message);
  }
  return least;
}

// Whether the state changed by the same in the last two periods, batches by whole ticks and turns not at all.
bool Unit::steady() {
  for (std::size_t i = 0; i < change_.size(); ++i)
    if (decides(change_[i] - change_before_[i]) != 0) return false;
  const auto at = [&](std::int64_t i) {
    const std::int64_t change = change_[static_cast<std::size_t>(i)];
    if (path_) path_->fixed(change);
    return change;
  };
  const std::int64_t stations = in_.chains * in_.stations;
  for (std::int64_t i = 0; i < stations; ++i)
    if (at(3 * i + 1) % kPlaces != 0) return false;
  for (std::int64_t i = 3 * stations; i < words_; i += 5)
    if (at(i + 2) % kPlaces != 0 || at(i + 4) != 0) return false;
  return true;
}

// Whether all that the last period touched moved by the same shift, and what comes in goes on by that too. Then so does the next period:
// a maximum of sums of what moves together moves with it, whatever it chose. What was not touched does not matter.
bool Unit::shifted() {
  if (constant_) return false;
  const auto at = [&](std::int64_t i) { return state_[i] - last_[static_cast<std::size_t>(i)]; };
  const std::int64_t stations = in_.chains * in_.stations;
  std::int64_t first = 0;
  while (first < stations && !at_work(static_cast<std::size_t>(first / in_.stations))) ++first;
  if (first == stations) return false;
  shift_ = {at(3 * first), at(3 * first + 1) >> kPlaceBits, at(3 * first + 1)};
  if (path_) {
    path_->fixed(shift_.arrive_ps);
    path_->fixed(shift_.batch);
  }
  if (shift_.batch <= 0 || shift_.batch % kPlaces != 0) return false;
  for (std::size_t c = 0; c < readers_.size(); ++c)
    if (at_work(c) && !readers_[c].shifts_by(shift_)) return false;
  for (std::int64_t i = 0; i < stations; ++i) {
    if (!at_work(static_cast<std::size_t>(i / in_.stations))) continue;
    if (differ(at(3 * i), shift_.arrive_ps) || differ(at(3 * i + 1), shift_.batch) || differ(at(3 * i + 2), shift_.arrive_ps)) return false;
  }
  for (std::int64_t i = 3 * stations; i < words_; i += 5) {
    if (!differ(at(i + 2), 0)) continue;  // an op raises the batch
    const bool never_ticks = !differ(at(i + 1), 0) && !differ(state_[i + 1], 0);
    if (differ(at(i), shift_.arrive_ps) || differ(at(i + 2), shift_.batch) || differ(at(i + 4), 0)) return false;
    if (differ(at(i + 1), shift_.leaves) && !never_ticks) return false;
  }
  return true;
}

// From here on rounds are looked at, period by period.
void Unit::watch() {
  watching_ = true;
  noting_ = false;
  constant_ = crossed_ = false;
  seen_ = 0;
  choices_.clear();
  choices_before_.clear();
  for (auto& each : sent_) each.clear();
  std::copy(state_, state_ + words_, last_.begin());
}

// Called before every round: where the last two periods were alike, goes over as many more as will be. True where it did.
bool Unit::jump(std::vector<Stream>& sent) {
  std::int64_t taken = kAlways, left = kAlways;
  for (std::size_t c = 0; c < readers_.size(); ++c) {
    if (!at_work(c)) continue;
    taken = lesser(taken, readers_[c].taken());
    left = lesser(left, readers_[c].left());
  }
  watching_ = watching_ && decides(alike_) > 0 && !crossed_;
  noting_ = watching_ && noting_;
  if (!watching_) {
    if (decides(left - 2 * period_) < 0) return false;
    alike_ = rounds_alike();
    if (decides(alike_ - 2 * period_) < 0) return false;
    watch();
  } else if (seen_ % period_ == 0) {
    const bool once = decides(taken - period_) >= 0 && shifted();
    if (once || noting_) {
      change_before_.swap(change_);
      for (std::size_t i = 0; i < last_.size(); ++i) change_[i] = state_[i] - last_[i];
    }
    const bool twice = !once && !crossed_ && seen_ >= 3 * period_ && decides(taken - 2 * period_) >= 0 && steady();
    std::int64_t repeats = 0;
    if (once || twice) {
      repeats = periods(alike_);
      repeats = lesser(repeats, periods(left));
    }
    if (twice) repeats = lesser(choices_.repeats_since(choices_before_, path_), repeats);
    if (decides(repeats) > 0) {
      watching_ = noting_ = false;
      if (!repeat(repeats)) status_ = RingsStatus::overflow;
      pass_on(repeats, once, sent);
      return true;
    }
    noting_ = true;  // where one period was not enough
    choices_before_.swap(choices_);
    choices_.clear();
    for (auto& each : sent_)
      if (each.size() > static_cast<std::size_t>(period_)) each.erase(each.begin(), each.end() - period_);
    std::copy(state_, state_ + words_, last_.begin());
  }
  ++seen_;
  --alike_;
  return false;
}

// The state after so many more periods; false where it does not fit.
bool Unit::repeat(std::int64_t repeats) {
  for (std::size_t i = 0; i < change_.size(); ++i) {
    std::int64_t far = 0;
    if (path_) path_->product(change_[i], repeats);
    if (__builtin_mul_overflow(change_[i], repeats, &far) || __builtin_add_overflow(state_[i], far, &far) || far >= 4 * kLatest) return false;
    state_[i] = far;
  }
  return true;
}

void Unit::pass_on(std::int64_t repeats, bool once, std::vector<Stream>& sent) {
  slopes_.assign(static_cast<std::size_t>(period_), shift_);
  for (std::size_t c = 0; c < readers_.size(); ++c) {
    if (!at_work(c)) continue;
    readers_[c].skip(repeats * period_);
    const std::vector<Message>& last = sent_[c];  // of two periods; none where this is the last step
    if (last.empty()) continue;
    for (std::size_t i = 0; !once && i < slopes_.size(); ++i) slopes_[i] = last[slopes_.size() + i] - last[i];
    sent[c].push_loop(slopes_, repeats * period_);
  }
  round_[static_cast<std::size_t>(unit_)] += repeats * period_;
  jumped += repeats * period_;
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
