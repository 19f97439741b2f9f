// The transitions of the executor; see executor.hpp.
#include "exec/executor.hpp"

#include <algorithm>
#include <utility>

namespace ccl_lab {

void Baselines::zero() {
  std::fill(counters_.begin(), counters_.end(), 0);
  std::fill(ready_sent_.begin(), ready_sent_.end(), 0);
}

Executor::Executor(std::uint32_t at, std::uint32_t of) : run_number_(at), run_step_(of) { posts_.reserve(kMaxPosts); }

void Executor::prepare(const Program& program, const Binding& binding, Baselines& baselines) {
  program_ = &program;
  binding_ = binding;
  baselines_ = &baselines;
  run_number_ = (run_number_ + run_step_) & kMostRuns;
  status_ = Status();
  more_ = false;
  posts_.clear();
  channels_.assign(program.n_channels(), Channel());
  for (std::size_t c = 0; c < channels_.size(); ++c) {
    channels_[c].next = program.channel_begin(c);
    channels_[c].end = program.channel_begin(c + 1);
  }
  own_raised_.assign(static_cast<std::size_t>(program.ready_channel()), 0);
  flights_.assign(program.n_flights(), 0);
  begin_ns_.assign(program.ops().size(), 0);
  open_.assign(program.ops().size(), 0);
  ready_.assign(program.peers().size(), Entered::no);
  remote_key_.assign(program.peers().size() * kBufferCount, 0);
  remote_offset_.assign(program.peers().size() * kBufferCount, 0);
  ready_out_.assign(program.ready_to().size(), ReadySlot());
  ready_posted_ = 0;
  outstanding_ = 0;
}

void Executor::announce(const Program& program, const Binding& binding, Baselines& baselines) {
  prepare(program, binding, baselines);
  run_ = Run::announced;
}

void Executor::start(const Program& program, const Binding& binding, Baselines& baselines, std::span<const KnownPeer> known) {
  if (run_ != Run::announced) prepare(program, binding, baselines);
  run_ = Run::running;
  base_.resize(program.counters().size());
  for (std::size_t i = 0; i < base_.size(); ++i) {
    const Counter& counter = program.counters()[i];
    base_[i] = counter.peer == program.rank() ? 0 : baselines.counter(counter.peer, counter.sig_channel);
  }
  if (!known.empty()) take_known(known);
}

void Executor::take_known(std::span<const KnownPeer> known) {
  for (std::size_t slot = 0; slot < ready_.size(); ++slot) {
    const std::int32_t rank = program_->peers()[slot].rank;
    const auto found = std::find_if(known.begin(), known.end(), [&](const KnownPeer& peer) { return peer.rank == rank; });
    if (found == known.end()) continue;
    ready_[slot] = Entered::known;
    for (std::size_t b = 0; b < kBufferCount; ++b) {
      remote_key_[slot * kBufferCount + b] = found->key[b];
      remote_offset_[slot * kBufferCount + b] = found->offset[b];
    }
  }
}

void Executor::fail(Status status) {
  if (!active()) return;
  run_ = Run::failed;
  status_ = std::move(status);
}

void Executor::advance(std::int64_t now_ns, std::span<const Completion> completions, const Inbox& inbox) {
  posts_.clear();
  more_ = false;
  now_ns_ = now_ns;
  for (const Completion& completion : completions) complete(completion);
  if (run_ == Run::draining && outstanding_ == 0) run_ = Run::done;
  if (run_ != Run::running && run_ != Run::announced) return;
  post_ready(now_ns);
  if (run_ == Run::announced) return;
  for (std::size_t c = 0; c < channels_.size() && run_ == Run::running; ++c) run_channel(c, now_ns, inbox);
  if (run_ == Run::running) try_finish();
}

void Executor::post(PostKind kind, std::uint16_t channel, std::int32_t peer, std::uint32_t op, std::uint32_t cookie_low,
                    std::int64_t begin_ns) {
  Post next;
  next.kind = kind;
  next.channel = channel;
  next.peer = peer;
  next.op = op;
  next.cookie = cookie(cookie_low);
  next.begin_ns = begin_ns;
  posts_.push_back(next);
}

void Executor::post_op(PostKind kind, const Op& op, std::uint32_t index) {
  begin_ns_[index] = now_ns_;
  open_[index] = 1;
  ++outstanding_;
  post(kind, op.channel, op.peer, index, index, now_ns_);
}

void Executor::ended(const Op& op, std::uint32_t index, std::int64_t begin_ns) {
  post(PostKind::ended, op.channel, op.peer, index, index, begin_ns);
}

void Executor::post_ready(std::int64_t now_ns) {
  const auto peers = program_->ready_to();
  for (; ready_posted_ < peers.size(); ++ready_posted_) {
    if (!room(1)) {
      more_ = true;
      return;
    }
    const std::int32_t peer = peers[ready_posted_].peer;
    const RunIdentity& identity = program_->identity();
    ReadySlot& slot = ready_out_[ready_posted_];
    slot.sequence = ++baselines_->ready_sent(peer);
    slot.plan_hash = identity.plan_hash;
    slot.count = identity.count;
    slot.collective = static_cast<std::uint8_t>(identity.collective);
    slot.dtype = static_cast<std::uint8_t>(identity.dtype);
    slot.redop = static_cast<std::uint8_t>(identity.redop);
    for (std::size_t b = 0; b < kBufferCount; ++b) {
      slot.key[b] = binding_.key[b];
      slot.offset[b] = binding_.offset[b];
      slot.size[b] = program_->bytes(static_cast<Buffer>(b));
    }
    ++outstanding_;
    const auto index = static_cast<std::uint32_t>(ready_posted_);
    post(PostKind::ready, 0, peer, index, kReadyCookie + index, now_ns);
  }
}

void Executor::complete(const Completion& completion) {
  if (!active() || completion.cookie >> 32 != run_number_) return;
  const auto low = static_cast<std::uint32_t>(completion.cookie);
  if (!completion.status.ok()) {
    Status status = completion.status;
    if (low < program_->ops().size()) {
      const Op& op = program_->ops()[low];
      status.op_id = op.op_id;
      status.message = "rank " + std::to_string(program_->rank()) + ", channel " + std::to_string(op.channel) + ", op " +
                       std::to_string(op.op_id) + " (" + kKindNames[static_cast<std::size_t>(op.kind)] +
                       "): " + status.message;
    }
    return fail(std::move(status));
  }
  --outstanding_;
  if (low == kDivideCookie) return finish();
  if (low < kReadyCookie) complete_op(low);
}

void Executor::complete_op(std::uint32_t index) {
  const Op& op = program_->ops()[index];
  if (--open_[index] > 0) return;
  ended(op, index, begin_ns_[index]);
  const bool remote_put = (op.kind == Kind::put || op.kind == Kind::signal) && op.slot >= 0;
  if (remote_put) {
    --flights_[static_cast<std::size_t>(op.flight)];
    return;
  }
  if (op.kind == Kind::put && op.sig_channel >= 0) ++own_raised_[static_cast<std::size_t>(op.sig_channel)];
  Channel& channel = channels_[op.channel];
  ++channel.next;
  channel.state = State::running;
  channel.reached = false;
}

void Executor::run_channel(std::size_t index, std::int64_t now_ns, const Inbox& inbox) {
  Channel& channel = channels_[index];
  while (channel.state != State::in_flight && channel.state != State::finished) {
    if (channel.next == channel.end) {
      channel.state = State::finished;
      return;
    }
    // An op makes at most two posts: a wait for READY that ended, and itself.
    if (!room(2)) {
      more_ = true;
      return;
    }
    const Op& op = program_->ops()[channel.next];
    if (!channel.reached) {
      channel.reached = true;
      channel.since_ns = now_ns;
    }
    if (!step(channel, op, now_ns, inbox)) return;
  }
}

// One op; false where the channel has to stay.
bool Executor::step(Channel& channel, const Op& op, std::int64_t now_ns, const Inbox& inbox) {
  if (!peers_ready(channel, op, now_ns, inbox)) return false;
  const std::uint32_t index = channel.next;
  const auto stay = [&](State state) {
    channel.state = state;
    return false;
  };
  switch (op.kind) {
    case Kind::put:
    case Kind::signal:
      if (op.slot < 0) return step_own_put(channel, op, now_ns);
      ++flights_[static_cast<std::size_t>(op.flight)];
      post_op(PostKind::put, op, index);
      break;
    case Kind::get:
      post_op(op.slot < 0 ? PostKind::copy : PostKind::get, op, index);
      return stay(State::in_flight);
    case Kind::copy: post_op(PostKind::copy, op, index); return stay(State::in_flight);
    case Kind::reduce: post_op(PostKind::reduce, op, index); return stay(State::in_flight);
    case Kind::compute: post_op(PostKind::compute, op, index); return stay(State::in_flight);
    case Kind::wait:
      if (counter_value(op, inbox) < op.value) return stay(State::await_signal);
      ended(op, index, channel.since_ns);
      break;
    case Kind::flush:
      if (in_flight(op) > 0) return stay(State::await_flush);
      ended(op, index, channel.since_ns);
      break;
  }
  ++channel.next;
  channel.state = State::running;
  channel.reached = false;
  return true;
}

// A put to oneself is a copy, and blocks its channel: so its signal cannot overtake it.
bool Executor::step_own_put(Channel& channel, const Op& op, std::int64_t now_ns) {
  const std::uint32_t index = channel.next;
  if (op.kind == Kind::put) {
    post_op(PostKind::copy, op, index);
    channel.state = State::in_flight;
    return false;
  }
  ++own_raised_[static_cast<std::size_t>(op.sig_channel)];
  // A channel before this one may wait for it, and nothing else would call again.
  more_ = true;
  ended(op, index, now_ns);
  ++channel.next;
  channel.state = State::running;
  channel.reached = false;
  return true;
}

bool Executor::peers_ready(Channel& channel, const Op& op, std::int64_t now_ns, const Inbox& inbox) {
  std::int32_t missing = -1;
  if (op.slot >= 0 && !slot_ready(op.slot, inbox)) missing = op.slot;
  for (const Source& source : program_->sources(op)) {
    if (missing >= 0 || run_ != Run::running) break;
    if (source.slot >= 0 && !slot_ready(source.slot, inbox)) missing = source.slot;
  }
  if (run_ != Run::running) return false;
  if (missing >= 0) {
    if (channel.state != State::await_ready) channel.ready_since_ns = now_ns;
    channel.state = State::await_ready;
    channel.ready_slot = missing;
    return false;
  }
  if (channel.state == State::await_ready) {
    const Peer& peer = program_->peers()[static_cast<std::size_t>(channel.ready_slot)];
    post(PostKind::waited_ready, op.channel, peer.rank, channel.next, 0, channel.ready_since_ns);
    channel.state = State::running;
    channel.since_ns = now_ns;
  }
  return true;
}

bool Executor::slot_ready(std::int32_t slot, const Inbox& inbox) {
  const auto at = static_cast<std::size_t>(slot);
  if (ready_[at] != Entered::no) return true;
  const Peer& peer = program_->peers()[at];
  const std::uint64_t sequence = baselines_->counter(peer.rank, program_->ready_channel()) + 1;
  if (inbox.signals.value(peer.rank, program_->ready_channel()) < sequence) return false;
  const ReadySlot& found = inbox.ready[ready_slot(peer.rank, sequence)];
  if (Status status = check_ready(*program_, peer, found, sequence); !status.ok()) {
    fail(std::move(status));
    return false;
  }
  for (std::size_t b = 0; b < kBufferCount; ++b) {
    remote_key_[at * kBufferCount + b] = found.key[b];
    remote_offset_[at * kBufferCount + b] = found.offset[b];
  }
  ready_[at] = Entered::yes;
  return true;
}

std::uint32_t Executor::in_flight(const Op& flush) const {
  if (flush.peer >= 0) return flush.flight < 0 ? 0 : flights_[static_cast<std::size_t>(flush.flight)];
  std::uint32_t total = 0;
  for (std::uint32_t f = program_->flight_begin(flush.channel); f < program_->flight_begin(flush.channel + 1u); ++f)
    total += flights_[f];
  return total;
}

// How far the counter got since this run began.
std::uint64_t Executor::counter_value(const Op& wait, const Inbox& inbox) const {
  if (wait.peer == program_->rank()) return own_raised_[static_cast<std::size_t>(wait.sig_channel)];
  const std::uint64_t value = inbox.signals.value(wait.peer, wait.sig_channel);
  const std::uint64_t base = base_[static_cast<std::size_t>(wait.counter)];
  return value < base ? 0 : value - base;
}

bool Executor::averages() const {
  return program_->identity().redop == RedOp::avg && program_->output_elements() > 0 && program_->n_ranks_avg() > 1;
}

bool Executor::drainable() const { return posted_all() && !averages(); }

bool Executor::posted_all() const {
  if (run_ != Run::running || more_) return false;
  return std::all_of(channels_.begin(), channels_.end(), [](const Channel& channel) { return channel.state == State::finished; });
}

void Executor::drain() {
  count_up();
  run_ = Run::draining;
}

void Executor::try_finish() {
  if (outstanding_ > 0 || more_) return;
  for (const Channel& channel : channels_)
    if (channel.state != State::finished) return;
  if (!averages()) return finish();
  if (!room(1)) {
    more_ = true;
    return;
  }
  run_ = Run::finishing;
  ++outstanding_;
  post(PostKind::divide, 0, -1, 0, kDivideCookie, now_ns_);
}

// The next run begins where this one got to.
void Executor::count_up() {
  for (const Counter& counter : program_->counters())
    if (counter.peer != program_->rank()) baselines_->counter(counter.peer, counter.sig_channel) += counter.total;
  for (std::size_t slot = 0; slot < ready_.size(); ++slot)
    if (ready_[slot] != Entered::known) ++baselines_->counter(program_->peers()[slot].rank, program_->ready_channel());
}

void Executor::finish() {
  count_up();
  run_ = Run::done;
}

Executor::Position Executor::position(std::size_t channel) const {
  const Channel& at = channels_[channel];
  if (at.next == at.end) return {};
  return {&program_->ops()[at.next], at.state == State::await_ready ? at.ready_since_ns : at.since_ns};
}

bool Executor::needs(std::int32_t peer, const Inbox& inbox) const {
  if (!active()) return false;
  const auto ops = program_->ops();
  const auto touches = [&](const Op& op) {
    if (op.kind == Kind::wait) return op.peer == peer && counter_value(op, inbox) < op.value;
    if (op.kind != Kind::flush && op.slot >= 0 && op.peer == peer) return true;
    for (const Source& source : program_->sources(op))
      if (source.slot >= 0 && program_->peers()[static_cast<std::size_t>(source.slot)].rank == peer) return true;
    return false;
  };
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const bool left = i >= channels_[ops[i].channel].next || open_[i];
    if (left && touches(ops[i])) return true;
  }
  return false;
}

Put Executor::put_of(const Post& post) const {
  const Op& op = this->op(post);
  Put put;
  put.peer = op.peer;
  put.nic = op.nic;
  put.peer_nic = op.peer_nic;
  if (op.kind == Kind::put) {
    const Source& source = program_->sources(op).front();
    put.source = own(source.buffer, source.offset);
    put.source_key = device_key(source.buffer);
    put.nbytes = op.nbytes;
    put.destination = remote(op.slot, op.dst_buffer, op.dst_offset);
  }
  put.signal = op.sig_channel;
  put.urgent = op.awaited;
  put.cookie = post.cookie;
  put.tag = tag_of(op);
  return put;
}

Tag Executor::tag_of(const Op& op) const {
  Tag tag;
  tag.op_id = op.op_id;
  tag.channel = op.channel;
  const Collective collective = program_->identity().collective;
  if (collective == Collective::all_to_all || collective == Collective::all_to_allv) tag.traffic = Traffic::all_to_all;
  return tag;
}

Put Executor::ready_put_of(const Post& post) const {
  Put put;
  const ReadyTo& path = program_->ready_to()[post.op];
  put.peer = path.peer;
  put.nic = path.nic;
  put.peer_nic = path.peer_nic;
  put.source = reinterpret_cast<const std::byte*>(&ready_out_[post.op]);
  put.nbytes = sizeof(ReadySlot);
  const std::size_t slot = ready_slot(program_->rank(), ready_out_[post.op].sequence);
  put.destination = {kControlRegionKey, static_cast<std::uint64_t>(slot) * sizeof(ReadySlot)};
  put.signal = program_->ready_channel();
  put.cookie = post.cookie;
  return put;
}

Get Executor::get_of(const Post& post) const {
  const Op& op = this->op(post);
  const Source& source = program_->sources(op).front();
  Get get;
  get.peer = op.peer;
  get.nic = op.nic;
  get.peer_nic = op.peer_nic;
  get.destination = own(op.dst_buffer, op.dst_offset);
  get.destination_key = device_key(op.dst_buffer);
  get.nbytes = op.nbytes;
  get.source = remote(source.slot, source.buffer, source.offset);
  get.cookie = post.cookie;
  get.tag = tag_of(op);
  return get;
}

Remote Executor::remote(std::int32_t slot, Buffer buffer, std::uint64_t offset) const {
  const std::size_t at = static_cast<std::size_t>(slot) * kBufferCount + static_cast<std::size_t>(buffer);
  return {remote_key_[at], remote_offset_[at] + offset};
}

}  // namespace ccl_lab
