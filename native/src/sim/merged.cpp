// See merged.hpp.
#include "merged.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>
#include <vector>

#include "changes.hpp"
#include "exact.hpp"
#include "stream.hpp"

namespace ccl_lab::sim {
namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMostChains = 64;  // a turn is a bit

enum class Next : std::uint8_t { message, reduce, send, nothing };

struct Chain {
  Next next = Next::message;
  std::int64_t slice = 0, message = -1;  // -1: what is sent before the first one
  std::int64_t batch = 0;                // of its next op; of its last one where it waits for a message
  std::int64_t clock_ps = 0, left_ps = 0;
};

struct Link {
  std::int64_t free_ps = 0, free_tick = 0;
};

struct Due {
  std::int64_t op;
  std::size_t chain;
  int turn;
};

using Messages = std::vector<Message>;

class Merged {
 public:
  Merged(const RingsInput& in, RingsOutput& out);

  [[nodiscard]] RingsStatus run();

 private:
  void begin(std::size_t unit);
  void visit(std::size_t unit, std::int64_t promised, const std::vector<Messages>& received, std::vector<Messages>& sent);
  void serve_batches(std::int64_t promised, std::vector<Messages>& sent);
  void serve(std::size_t chain, std::vector<Messages>& sent);
  void wait(Chain& chain, const Message& message) const;
  void receive(std::size_t chain);
  void after_reduce(std::size_t chain);
  void end_slice(std::size_t chain);
  void enter_slice(std::size_t chain);
  void reduce(std::size_t chain);
  void send(std::size_t chain, Messages& sent);
  void line_up();
  [[nodiscard]] std::int64_t through(std::int32_t link, std::int64_t start_ps, std::int64_t bytes, std::int64_t bytes_per_s) const;
  [[nodiscard]] std::int64_t bytes_of(std::size_t chain) const;
  [[nodiscard]] std::int64_t op_of(std::size_t chain) const;
  [[nodiscard]] std::size_t row(std::size_t chain) const { return unit_ * chains_ + chain; }
  [[nodiscard]] std::size_t slot(std::size_t chain) const {
    return chain * slices_ + static_cast<std::size_t>(state_[row(chain)].slice);
  }
  [[nodiscard]] Link& link(std::int32_t id) { return links_[unit_ * links_of_unit_ + static_cast<std::size_t>(id)]; }

  const RingsInput& in_;
  RingsOutput& out_;
  Changes changes_;
  std::size_t chains_, slices_, links_of_unit_ = 0, unit_ = 0;
  std::int64_t ops_per_group_ = 1;
  std::vector<Chain> state_;      // [units][chains]
  std::vector<Link> links_;       // [units][links of a unit]
  std::vector<Messages> unread_;  // [units][chains] received, and beyond what could be served
  std::vector<std::int64_t> stopped_;  // per unit: a batch before which it serves nothing more
  std::vector<Messages> inbox_;        // [chains] of the unit at work
  std::vector<std::size_t> taken_;     // [chains] messages of it
  std::vector<Due> due_;               // ops of one batch
  std::vector<std::uint64_t> turns_;   // per link of a unit: turns of this batch that are given away
  RingsStatus status_ = RingsStatus::ok;
};

Merged::Merged(const RingsInput& in, RingsOutput& out)
    : in_(in), out_(out), changes_(in.changes, static_cast<std::size_t>(in.all_links)), chains_(static_cast<std::size_t>(in.chains)),
      slices_(static_cast<std::size_t>(*std::max_element(in.slices.begin(), in.slices.end()))) {
  const auto units = static_cast<std::size_t>(in.units);
  for (const auto ids : {in.memory, in.link_a, in.link_b})
    for (const std::int32_t id : ids) links_of_unit_ = std::max(links_of_unit_, static_cast<std::size_t>(id) + 1);
  for (const std::int64_t r : in.row) ops_per_group_ = std::max(ops_per_group_, r + 1);
  state_.resize(units * chains_);
  links_.resize(units * links_of_unit_);
  unread_.resize(units * chains_);
  stopped_.assign(units, 0);
  inbox_.resize(chains_);
  taken_.resize(chains_);
  turns_.resize(links_of_unit_);
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
  return ((in_.group[slot(chain)] * (in_.steps + 1) + c.message + 1) * 3 + kind) * ops_per_group_ + in_.row[row(chain)];
}

// A channel comes to a wait: it goes on when the message has been seen, and not before the op before it.
void Merged::wait(Chain& chain, const Message& message) const {
  const std::int64_t tick = std::max(chain.batch >> kPlaceBits, message.leaves);
  chain.batch = std::max(tick << kPlaceBits, std::max(chain.batch, message.batch) + 1);
  chain.clock_ps = std::max(chain.clock_ps, message.arrive_ps);
}

// Up to the next op that needs a link.
void Merged::receive(std::size_t chain) {
  Chain& c = state_[row(chain)];
  if (c.next != Next::message || taken_[chain] == inbox_[chain].size()) return;
  wait(c, inbox_[chain][taken_[chain]++]);
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
  if (in_.begin_ps.empty()) return;
  const std::size_t place = unit_ * chains_ * slices_ + slot(chain);
  const std::int64_t batch = in_.begin_batch[place];
  wait(c, {in_.begin_ps[place], batch >> kPlaceBits, batch});
  c.batch += 1;
}

void Merged::reduce(std::size_t chain) {
  Chain& c = state_[row(chain)];
  Link& memory = link(in_.memory[row(chain)]);
  const std::int64_t busy_ps = std::min(duration_ps(2 * bytes_of(chain), in_.memory_bytes_per_s[row(chain)]), kLatest);
  c.clock_ps = memory.free_ps = std::max(c.clock_ps, memory.free_ps) + busy_ps;
  if (c.clock_ps > kLatest) status_ = RingsStatus::overflow;
  after_reduce(chain);
}

// When bytes are through a link that begins at `start_ps`.
std::int64_t Merged::through(std::int32_t link, std::int64_t start_ps, std::int64_t bytes, std::int64_t bytes_per_s) const {
  const std::int64_t from = start_ps + (bytes > 0 ? in_.alpha_ps : 0);
  if (!in_.changes.link.empty() && changes_.on(link)) return changes_.through_ps(link, from, bytes, bytes_per_s);
  return from + std::min(duration_ps(bytes, bytes_per_s), kLatest);
}

void Merged::send(std::size_t chain, Messages& sent) {
  Chain& c = state_[row(chain)];
  const std::size_t r = row(chain);
  Link &a = link(in_.link_a[r]), &b = link(in_.link_b[r]);
  const std::int64_t bytes = bytes_of(chain);
  const std::int64_t start = std::max({c.clock_ps, in_.ready_ps[r], a.free_ps, b.free_ps});
  const bool constant = in_.changes.link.empty();
  a.free_ps = through(constant ? 0 : in_.all_a[r], start, bytes, in_.a_bytes_per_s[r]);
  b.free_ps = through(constant ? 0 : in_.all_b[r], start, bytes, in_.b_bytes_per_s[r]);
  c.left_ps = std::max(a.free_ps, b.free_ps);
  const std::int64_t leaves = std::max({c.batch >> kPlaceBits, a.free_tick, b.free_tick}) + in_.nominal_bytes[0];
  a.free_tick = b.free_tick = leaves;
  sent.push_back({c.left_ps + in_.latency_ps[r], leaves, c.batch});
  if (sent.back().arrive_ps > kLatest || leaves > kLastTick || (c.batch & (kPlaces - 1)) > kPlaces - 8) status_ = RingsStatus::overflow;
  ++c.message;
  c.next = Next::message;
}

void Merged::serve(std::size_t chain, std::vector<Messages>& sent) {
  if (state_[row(chain)].next == Next::reduce)
    reduce(chain);
  else
    send(chain, sent[chain]);
  receive(chain);
}

// Ops of one batch: in their order each gets the first turn that none of its links has given away, and they are served turn by turn.
void Merged::line_up() {
  std::sort(due_.begin(), due_.end(), [](const Due& a, const Due& b) { return a.op < b.op; });
  std::fill(turns_.begin(), turns_.end(), 0);
  for (Due& each : due_) {
    const std::size_t r = row(each.chain);
    const bool reduces = state_[r].next == Next::reduce;
    const auto a = static_cast<std::size_t>(reduces ? in_.memory[r] : in_.link_a[r]);
    const auto b = static_cast<std::size_t>(reduces ? in_.memory[r] : in_.link_b[r]);
    each.turn = std::countr_one(turns_[a] | turns_[b]);
    turns_[a] |= std::uint64_t{1} << each.turn;
    turns_[b] |= std::uint64_t{1} << each.turn;
  }
  std::stable_sort(due_.begin(), due_.end(), [](const Due& a, const Due& b) { return a.turn < b.turn; });
}

// Batch by batch, up to the first one that a chain without a message may still come before.
void Merged::serve_batches(std::int64_t promised, std::vector<Messages>& sent) {
  Chain* const chains = state_.data() + unit_ * chains_;
  while (status_ == RingsStatus::ok) {
    std::int64_t earliest = kNever, bound = kNever;
    for (std::size_t c = 0; c < chains_; ++c) {
      if (chains[c].next == Next::message)
        bound = std::min(bound, std::max(promised, chains[c].batch + 1));
      else if (chains[c].next != Next::nothing)
        earliest = std::min(earliest, chains[c].batch);
    }
    stopped_[unit_] = std::min(earliest, bound);
    if (earliest == kNever || earliest >= bound) return;
    due_.clear();
    for (std::size_t c = 0; c < chains_; ++c)
      if (chains[c].batch == earliest && (chains[c].next == Next::reduce || chains[c].next == Next::send)) due_.push_back({0, c, 0});
    if (due_.size() > 1) {
      for (Due& each : due_) each.op = op_of(each.chain);
      line_up();
    }
    for (const Due& each : due_) {
      serve(each.chain, sent);
      if (status_ != RingsStatus::ok) return;  // what is beyond would no longer fit
    }
  }
}

void Merged::begin(std::size_t unit) {
  unit_ = unit;
  std::fill(taken_.begin(), taken_.end(), 0);
  for (std::size_t c = 0; c < chains_; ++c) {
    Chain& chain = state_[row(c)];
    chain.clock_ps = chain.left_ps = in_.late_ps[row(c)];
    link(in_.memory[row(c)]).free_ps = in_.memory_free_ps[row(c)];
    enter_slice(c);
  }
}

void Merged::visit(std::size_t unit, std::int64_t promised, const std::vector<Messages>& received, std::vector<Messages>& sent) {
  unit_ = unit;
  for (std::size_t c = 0; c < chains_; ++c) {
    Messages& unread = unread_[row(c)];
    inbox_[c].assign(unread.begin(), unread.end());
    inbox_[c].insert(inbox_[c].end(), received[c].begin(), received[c].end());
    taken_[c] = 0;
    sent[c].clear();
    receive(c);
  }
  serve_batches(promised, sent);
  for (std::size_t c = 0; c < chains_; ++c) {
    out_.rounds += static_cast<std::int64_t>(taken_[c]);
    const auto left = inbox_[c].begin() + static_cast<std::ptrdiff_t>(taken_[c]);
    if (left == inbox_[c].end() && unread_[row(c)].empty()) continue;
    Messages(left, inbox_[c].end()).swap(unread_[row(c)]);  // no more memory than it needs
  }
}

RingsStatus Merged::run() {
  const auto units = static_cast<std::size_t>(in_.units);
  for (std::size_t u = 0; u < units; ++u) begin(u);
  std::vector<Messages> received(chains_), sent(chains_);
  for (std::int64_t before = -1, sum = 0; sum != before;) {
    before = std::exchange(sum, 0);
    for (std::size_t u = 0; u < units && status_ == RingsStatus::ok; ++u) {
      const std::int64_t stopped = stopped_[(u + units - 1) % units];
      const std::int64_t promised = stopped == kNever ? kNever : ((stopped >> kPlaceBits) + in_.nominal_bytes[0]) << kPlaceBits;
      visit(u, promised, received, sent);
      received.swap(sent);
    }
    if (status_ != RingsStatus::ok) return status_;
    if (std::all_of(state_.begin(), state_.end(), [](const Chain& c) { return c.next == Next::nothing; })) break;
    for (const std::int64_t each : stopped_) sum = std::max(sum, each == kNever ? 0 : each);
  }
  for (std::size_t i = 0; i < state_.size(); ++i) {
    if (state_[i].next != Next::nothing) return RingsStatus::bad_input;
    out_.finish_ps[i] = std::max(state_[i].clock_ps, state_[i].left_ps);
  }
  return RingsStatus::ok;
}

}  // namespace

RingsStatus merged_rings(const RingsInput& in, RingsOutput& out) {
  const bool fits = in.stations == 1 && in.depth == 1 && !in.copies && in.chains <= kMostChains && in.nominal_bytes[0] > 0 &&
                    std::all_of(in.ticks.begin(), in.ticks.end(), [](std::uint8_t ticks) { return ticks != 0; });
  std::int64_t messages = 0;
  for (const std::int64_t slices : in.slices) messages += slices * in.steps;
  if (!fits || messages > kMostMerged / in.units) return RingsStatus::disorder;
  return Merged(in, out).run();
}

}  // namespace ccl_lab::sim
