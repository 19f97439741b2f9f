// See merged.hpp and merged_unit.hpp.
#include "merged.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <numeric>
#include <utility>

#include "merged_unit.hpp"

namespace ccl_lab::sim {
namespace {

constexpr std::int64_t kMostChains = 64;  // a turn is a bit
constexpr Seen kNothing{-kLatest, -kLatest};

std::int64_t messages_of(const RingsInput& in) {
  return std::accumulate(in.slices.begin(), in.slices.end(), std::int64_t{0}) * in.steps * in.units;
}

}  // namespace

Merged::Merged(const RingsInput& in, RingsOutput& out)
    : in_(in), out_(out), changes_(in.changes, static_cast<std::size_t>(in.all_links)), chains_(static_cast<std::size_t>(in.chains)),
      slices_(static_cast<std::size_t>(*std::max_element(in.slices.begin(), in.slices.end()))), messages_(messages_of(in)) {
  const auto units = static_cast<std::size_t>(in.units);
  for (const auto ids : {in.memory, in.link_a, in.link_b})
    for (const std::int32_t id : ids) links_of_unit_ = std::max(links_of_unit_, static_cast<std::size_t>(id) + 1);
  ops_per_group_ = in.places();
  state_.resize(units * chains_);
  links_.resize(units * links_of_unit_);
  unread_.resize(units * chains_);
  inbox_.resize(chains_);
  in_hand_.resize(chains_);
  reads_.resize(chains_);
  sends_.resize(chains_);
  turns_.resize(links_of_unit_);
  loop_of_.resize(chains_);
  known_.resize(chains_);
  find_parts();
}

// Which chains of a unit meet; most units are of one kind.
void Merged::find_parts() {
  std::map<std::vector<std::int32_t>, std::size_t> known;
  std::vector<std::int32_t> ids;
  for (std::size_t unit = 0; unit < static_cast<std::size_t>(in_.units); ++unit) {
    at_unit(unit);
    ids.clear();
    for (const auto column : {in_.memory, in_.link_a, in_.link_b})
      ids.insert(ids.end(), column.begin() + static_cast<std::ptrdiff_t>(kind_row(0)), column.begin() + static_cast<std::ptrdiff_t>(kind_row(chains_)));
    const auto [found, is_new] = known.try_emplace(ids, kinds_.size());
    kind_of_.push_back(found->second);
    if (!is_new) continue;
    std::vector<std::size_t> part_of(links_of_unit_);  // by link, the least link of its part
    std::iota(part_of.begin(), part_of.end(), std::size_t{0});
    const auto join = [&](std::int32_t one, std::int32_t other) {
      const std::size_t from = part_of[static_cast<std::size_t>(one)], to = part_of[static_cast<std::size_t>(other)];
      for (std::size_t& part : part_of)
        if (part == std::max(from, to)) part = std::min(from, to);
    };
    for (std::size_t c = 0; c < chains_; ++c) {
      join(ids[c], ids[chains_ + c]);
      join(ids[c], ids[2 * chains_ + c]);
    }
    std::map<std::size_t, Part> parts;
    for (std::size_t c = 0; c < chains_; ++c) parts[part_of[static_cast<std::size_t>(ids[c])]].chains.push_back(c);
    for (std::size_t l = 0; l < links_of_unit_; ++l)
      if (const auto part = parts.find(part_of[l]); part != parts.end()) part->second.links.push_back(l);
    kinds_.emplace_back();
    for (auto& [_, part] : parts) kinds_.back().push_back(std::move(part));
  }
}

std::int64_t Merged::bytes_of(std::size_t chain) const {
  const std::size_t first = slot(chain) * static_cast<std::size_t>(in_.n_sizes);
  if (in_.n_sizes == 1) return in_.bytes[first];
  const std::int64_t place = (static_cast<std::int64_t>(unit_) - 1 - state_[row(chain)].message) % in_.units;
  return in_.bytes[first + static_cast<std::size_t>((place + in_.units) % in_.units)];
}

// Ops are numbered slice by slice, in a slice message by message, in those group by group (wait, reduce, put), row by row.
std::int64_t Merged::op_of(std::size_t chain) const {
  const Chain& c = state_[row(chain)];
  const std::int64_t kind = c.next == Next::reduce ? 1 : 2;
  return ((in_.group[slot(chain)] * (in_.steps + 1) + c.message + 1) * 3 + kind) * ops_per_group_ + in_.place(static_cast<std::int64_t>(unit_), chain);
}

// Up to the next op that needs a link. The batch in which a message was sent lies before the tick at which it is seen, and decides nothing.
void Merged::receive(std::size_t chain) {
  Chain& c = state_[row(chain)];
  if (c.next != Next::message || inbox_[chain].empty()) return;
  const Seen message = in_hand_[chain] = inbox_[chain].next();
  ++evaluated_;
  wait(c, message.arrive_ps, message.leaves, c.batch);
  if (c.message >= in_.reducing) return after_reduce(chain);
  c.batch += 1;
  c.next = Next::reduce;
}

void Merged::after_reduce(std::size_t chain) {
  Chain& c = state_[row(chain)];
  if (c.message + 1 == in_.steps) return end_slice(chain);
  c.batch += 1;
  c.next = Next::send;
}

void Merged::end_slice(std::size_t chain) {
  Chain& c = state_[row(chain)];
  const std::size_t place = unit_ * chains_ * slices_ + slot(chain);
  if (!out_.end_ps.empty()) {
    out_.end_ps[place] = c.clock_ps;
    out_.end_batch[place] = c.batch;
  }
  c.batch += in_.passes_on ? 1 : 0;
  c.next = Next::nothing;
  if (++c.slice < in_.slices[chain]) enter_slice(chain);
}

void Merged::enter_slice(std::size_t chain) {
  Chain& c = state_[row(chain)];
  c.message = -1;
  c.next = Next::send;
  in_hand_[chain] = kNothing;
  if (in_.begin_ps.empty()) return;
  const std::size_t place = unit_ * chains_ * slices_ + slot(chain);
  const std::int64_t batch = in_.begin_batch[place];
  wait(c, in_.begin_ps[place], batch >> kPlaceBits, batch);
  c.batch += 1;
}

void Merged::reduce(std::size_t chain) {
  Chain& c = state_[row(chain)];
  Link& memory = link(in_.memory[kind_row(chain)]);
  c.clock_ps = memory.free_ps = larger(c.clock_ps, memory.free_ps) + busy(chain).add_ps;
  if (c.clock_ps > kLatest) status_ = RingsStatus::overflow;
  after_reduce(chain);
}

// Forgets how long messages take where rates are not those of the unit before.
void Merged::keep_busy() {
  for (std::size_t c = 0; c < chains_; ++c) {
    const std::array rates{in_.memory_bytes_per_s[kind_row(c)], in_.a_bytes_per_s[kind_row(c)], in_.b_bytes_per_s[kind_row(c)]};
    if (known_[c].rates != rates) known_[c] = {rates, {}};
  }
}

// How long a message keeps the links of a chain busy.
const Busy& Merged::busy(std::size_t chain) {
  const std::int64_t bytes = bytes_of(chain);
  Busy& known = known_[chain].busy;
  if (known.bytes != bytes) known = busy_of(in_, kind_row(chain), bytes);
  return known;
}

// When a link that begins at `start_ps` is free again.
std::int64_t Merged::through(std::int32_t link, std::int64_t start_ps, std::int64_t busy_ps, std::int64_t bytes, std::int64_t bytes_per_s) const {
  if (!changes_.on(link)) return start_ps + busy_ps;
  return changes_.through_ps(link, start_ps + (bytes > 0 ? in_.alpha_ps : 0), bytes, bytes_per_s);
}

void Merged::send(std::size_t chain, Tape& sent) {
  Chain& c = state_[row(chain)];
  const std::size_t r = row(chain), k = kind_row(chain);
  Link &a = link(in_.link_a[k]), &b = link(in_.link_b[k]);
  const Busy& time = busy(chain);
  const std::int64_t start = larger(larger(c.clock_ps, in_.ready_ps[k]), larger(a.free_ps, b.free_ps));
  if (in_.changes.link.empty()) {
    a.free_ps = start + time.a_ps;
    b.free_ps = start + time.b_ps;
  } else {
    a.free_ps = through(in_.all_a[r], start, time.a_ps, time.bytes, in_.a_bytes_per_s[k]);
    b.free_ps = through(in_.all_b[r], start, time.b_ps, time.bytes, in_.b_bytes_per_s[k]);
  }
  c.left_ps = larger(a.free_ps, b.free_ps);
  const std::int64_t leaves = larger(c.batch >> kPlaceBits, larger(a.free_tick, b.free_tick)) + in_.nominal_bytes;
  a.free_tick = b.free_tick = leaves;
  const Seen message{c.left_ps + in_.latency_ps[k], leaves};
  sent.push(message);
  if (noting_) loops_[loop_of_[chain]].sent.push_back(message);
  note_sent(chain, message);
  if (fails(c, message.arrive_ps, leaves)) return;
  ++c.message;
  c.next = Next::message;
}

void Merged::serve(std::size_t chain, std::vector<Tape>& sent) {
  const bool reduces = state_[row(chain)].next == Next::reduce;
  if (noting_) served_.push_back(static_cast<std::int64_t>(chain) * 2 + (reduces ? 1 : 0));
  if (reduces)
    reduce(chain);
  else
    send(chain, sent[chain]);
}

// All that a chain does at this tick: nobody else of its part has anything to do there.
void Merged::serve_alone(std::size_t chain, std::vector<Tape>& sent) {
  const Chain& c = state_[row(chain)];
  const std::int64_t tick = c.batch >> kPlaceBits;
  serve(chain, sent);
  if (c.next == Next::send && c.batch >> kPlaceBits == tick) serve(chain, sent);
  receive(chain);
}

// Ops of one batch: in their order each gets the first turn that none of its links has given away, and they are served turn by turn.
void Merged::line_up() {
  for (Due& each : due_) each.op = op_of(each.chain);
  std::sort(due_.begin(), due_.end(), [](const Due& a, const Due& b) { return a.op < b.op; });
  for (std::size_t i = 0; noting_ && i < due_.size(); ++i) {
    served_.push_back(static_cast<std::int64_t>(due_[i].chain));
    if (i > 0) choices_.note(due_[i].op - due_[i - 1].op);
  }
  std::fill(turns_.begin(), turns_.end(), 0);
  for (Due& each : due_) {
    const std::size_t r = kind_row(each.chain);
    const bool reduces = state_[row(each.chain)].next == Next::reduce;
    const auto a = static_cast<std::size_t>(reduces ? in_.memory[r] : in_.link_a[r]);
    const auto b = static_cast<std::size_t>(reduces ? in_.memory[r] : in_.link_b[r]);
    each.turn = std::countr_one(turns_[a] | turns_[b]);
    turns_[a] |= std::uint64_t{1} << each.turn;
    turns_[b] |= std::uint64_t{1} << each.turn;
  }
  std::stable_sort(due_.begin(), due_.end(), [](const Due& a, const Due& b) { return a.turn < b.turn; });
}

void Merged::serve_batch(std::int64_t batch, const Part& part, std::vector<Tape>& sent) {
  due_.clear();
  for (const std::size_t c : part.chains) {
    const Chain& chain = state_[row(c)];
    if (chain.batch == batch && (chain.next == Next::reduce || chain.next == Next::send)) due_.push_back({0, c, 0});
  }
  if (due_.size() > 1) line_up();
  for (const Due& each : due_) {
    serve(each.chain, sent);
    receive(each.chain);
    if (status_ != RingsStatus::ok) return;  // what is beyond would no longer fit
  }
}

// Batch by batch, up to the first one that a chain without a message may still come before.
void Merged::serve_batches(const Part& part, const std::vector<std::int64_t>& promised, std::vector<Tape>& sent) {
  const Chain* const chains = state_.data() + unit_ * chains_;
  const bool alike = in_.n_sizes == 1 && !varies(part), jumps = in_.jumps && alike;
  if (alike) keep_posts(part, sent);
  at_ = nullptr;
  if (jumps) watch_stretches(part);
  noting_ = false;
  pause_ = 0;
  while (status_ == RingsStatus::ok) {
    std::int64_t earliest = kNever, other = kNever, bound = kNever;
    std::size_t first = 0;
    for (const std::size_t c : part.chains) {
      if (chains[c].next == Next::message) {
        bound = std::min(bound, std::max(promised[c], chains[c].batch + 1));
      } else if (chains[c].next != Next::nothing) {
        other = std::min(other, std::max(earliest, chains[c].batch));
        if (chains[c].batch >= earliest) continue;
        earliest = chains[c].batch;
        first = c;
      }
    }
    if (earliest == kNever || earliest >= bound) break;
    const bool watched = jumps && bound == kNever, meets = meets_stretch();
    if (meets && !noting_ && tries_ == 0 && pass(bound, part, promised, sent)) continue;
    if (alike && !noting_ && (!watched || pause_ > 0) && earliest >> kPlaceBits < std::min(other, bound) >> kPlaceBits) {
      const std::int64_t served = serve_each_alone(bound, std::min(watched ? pause_ : kNever, meets ? tries_ : kNever));
      if (watched) pause_ -= served;
      tries_ = std::max<std::int64_t>(tries_ - served, 0);
      if (served > 0) continue;
    }
    tries_ = std::max<std::int64_t>(tries_ - 1, 0);
    if (watched && jump(earliest, part, sent)) continue;
    noting_ = noting_ && bound == kNever;
    if (earliest >> kPlaceBits < std::min(other, bound) >> kPlaceBits)
      serve_alone(first, sent);
    else
      serve_batch(earliest, part, sent);
    if (evaluated_ >= look_ && too_many()) status_ = RingsStatus::disorder;
  }
  noting_ = false;
  if (jumps) end_stretch(part);
}

void Merged::begin(std::size_t unit) {
  at_unit(unit);
  for (std::size_t c = 0; c < chains_; ++c) {
    Chain& chain = state_[row(c)];
    chain.clock_ps = chain.left_ps = in_.late_ps[kind_row(c)];
    link(in_.memory[kind_row(c)]).free_ps = in_.memory_free_ps[kind_row(c)];
    enter_slice(c);
  }
}

// What was received is used up.
void Merged::visit(std::size_t unit, const std::vector<std::int64_t>& promised, std::vector<Tape>& received, std::vector<Tape>& sent) {
  at_unit(unit);
  keep_busy();
  passed_.assign(kinds_[kind_of_[unit]].size(), {});
  for (std::size_t c = 0; c < chains_; ++c) {
    in_hand_[c] = kNothing;
    reads_[c] = reads(c) + unread_[row(c)].left();
    sends_[c] = sends(c);
    inbox_[c] = unread_[row(c)];
    if (inbox_[c].empty())
      std::swap(inbox_[c], received[c]);
    else
      inbox_[c].append(received[c]);
    sent[c].clear();
    receive(c);
  }
  for (const Part& part : kinds_[kind_of_[unit]]) serve_batches(part, promised, sent);
  for (std::size_t c = 0; c < chains_; ++c) {
    unread_[row(c)].keep(inbox_[c]);
    if (in_.jumps) sent[c].find_loops();
  }
  passed_before_.swap(passed_);
  passed_unit_ = unit;
}

// By chain, before which batch no more of its messages will be seen: it sends nothing before its next op, and no link is free before.
void Merged::promise(std::vector<std::int64_t>& promised) {
  for (std::size_t c = 0; c < chains_; ++c) {
    const Chain& chain = state_[row(c)];
    if (chain.next == Next::nothing || (chain.next == Next::message && promised[c] == kNever)) {
      promised[c] = kNever;
      continue;
    }
    const std::int64_t batch = chain.next == Next::message ? std::max(promised[c], chain.batch + 1) : chain.batch;
    const std::int64_t free_tick = std::max(link(in_.link_a[kind_row(c)]).free_tick, link(in_.link_b[kind_row(c)]).free_tick);
    promised[c] = (std::max(batch >> kPlaceBits, free_tick) + in_.nominal_bytes) << kPlaceBits;
  }
}

RingsStatus Merged::run() {
  const auto units = static_cast<std::size_t>(in_.units);
  for (std::size_t u = 0; u < units; ++u) begin(u);
  std::vector<Tape> received(chains_), sent(chains_);
  std::vector<std::int64_t> promised(chains_, 0), before;
  promise(promised);  // of the last one
  for (std::int64_t done = -1; done != evaluated_ + jumped_ || before != promised;) {
    done = evaluated_ + jumped_;
    before = promised;
    for (std::size_t u = 0; u < units && status_ == RingsStatus::ok; ++u) {
      visit(u, promised, received, sent);
      promise(promised);
      received.swap(sent);
    }
    if (status_ != RingsStatus::ok) return status_;
    if (std::all_of(state_.begin(), state_.end(), [](const Chain& c) { return c.next == Next::nothing; })) break;
  }
  for (std::size_t i = 0; i < state_.size(); ++i) {
    if (state_[i].next != Next::nothing) return RingsStatus::bad_input;
    out_.finish_ps[i] = std::max(state_[i].clock_ps, state_[i].left_ps);
  }
  out_.rounds = evaluated_;
  out_.jumped = jumped_;
  return RingsStatus::ok;
}

// Whether more messages would be evaluated than should be, if the rest of them are as those before.
bool Merged::too_many() {
  look_ += in_.most_merged / 16;
  const double share = static_cast<double>(evaluated_) / static_cast<double>(evaluated_ + jumped_);
  return share * static_cast<double>(messages_) > static_cast<double>(in_.most_merged);
}

RingsStatus merged_rings(const RingsInput& in, RingsOutput& out) {
  const bool fits = in.stations == 1 && in.depth == 1 && !in.copies && in.chains <= kMostChains && in.nominal_bytes > 0 &&
                    std::all_of(in.ticks.begin(), in.ticks.end(), [](std::uint8_t ticks) { return ticks != 0; });
  if (!fits) return RingsStatus::disorder;
  if (const bool jumps = in.jumps && in.n_sizes == 1; !jumps && messages_of(in) > in.most_merged) return RingsStatus::disorder;
  return Merged(in, out).run();
}

}  // namespace ccl_lab::sim
