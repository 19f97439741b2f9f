// What the executor says about itself when something is wrong: why a channel waits, and how READYs differ.
#include <cstdio>
#include <string>
#include <utility>

#include "exec/executor.hpp"

namespace ccl_lab {

namespace {

std::string hex(std::uint64_t value) {
  char text[20];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

const char* name_of(const char* const* names, std::size_t n, std::uint8_t value) {
  return value < n ? names[value] : "unknown";
}

std::string describe(std::uint64_t sequence, std::uint8_t collective, std::uint8_t dtype, std::uint8_t redop,
                     std::uint64_t count, std::uint64_t plan_hash) {
  return std::string(name_of(kCollectiveNames, kCollectiveCount, collective)) + " of " + std::to_string(count) + " " +
         name_of(kDTypeNames, kDTypeCount, dtype) + " per block, " + name_of(kRedOpNames, kRedOpCount, redop) + ", plan " +
         hex(plan_hash) + ", entry " + std::to_string(sequence);
}

}  // namespace

Status check_ready(const Program& program, const Peer& peer, const ReadySlot& slot, std::uint64_t sequence) {
  const RunIdentity& own = program.identity();
  const auto collective = static_cast<std::uint8_t>(own.collective);
  const auto dtype = static_cast<std::uint8_t>(own.dtype);
  const auto redop = static_cast<std::uint8_t>(own.redop);
  const std::string who = "rank " + std::to_string(peer.rank);
  const auto refuse = [&](Code code, const std::string& advice) {
    return Status(code, "ranks disagree about what they run: rank " + std::to_string(program.rank()) + " is in " +
                            describe(sequence, collective, dtype, redop, own.count, own.plan_hash) + "; " + who +
                            " is in " + describe(slot.sequence, slot.collective, slot.dtype, slot.redop, slot.count,
                                                 slot.plan_hash) + "; " + advice, peer.rank);
  };
  if (slot.sequence != sequence || slot.collective != collective)
    return refuse(Code::usage, "call the same collectives in the same order on every rank");
  if (slot.dtype != dtype) return refuse(Code::dtype, "pass the same element type on every rank");
  if (slot.redop != redop) return refuse(Code::usage, "pass the same reduction on every rank");
  if (slot.count != own.count) return refuse(Code::shape, "pass the same shape on every rank");
  if (slot.plan_hash != own.plan_hash) return refuse(Code::usage, "run the same schedule on every rank");
  for (std::size_t b = 0; b < kBufferCount; ++b)
    if (slot.size[b] < peer.extent[b])
      return Status(Code::shape, who + " has " + std::to_string(slot.size[b]) + " bytes of " + kBufferNames[b] +
                                     ", this rank's ops need " + std::to_string(peer.extent[b]) +
                                     "; pass the same shapes on every rank", peer.rank);
  return {};
}

Blocked Executor::blocked_op(const Op& op, std::string why, std::int64_t since_ns) const {
  Blocked blocked;
  blocked.channel = op.channel;
  blocked.op_id = op.op_id;
  blocked.peer = op.peer;
  blocked.since_ns = since_ns;
  blocked.text = "rank " + std::to_string(program_->rank()) + ", channel " + std::to_string(op.channel) + ", op " +
                 std::to_string(op.op_id) + " (" + kKindNames[static_cast<std::size_t>(op.kind)] + ") " + std::move(why);
  return blocked;
}

Blocked Executor::blocked_in_flight(const Op& op, std::int64_t since_ns) const {
  std::string what = "of " + std::to_string(op.nbytes) + " bytes";
  if (op.kind == Kind::put) what += " to rank " + std::to_string(op.peer);
  if (op.kind == Kind::get) what += " from rank " + std::to_string(op.peer);
  if (op.kind == Kind::signal) what = "to rank " + std::to_string(op.peer);
  if (op.kind == Kind::compute) return blocked_op(op, "of partition " + std::to_string(op.arg) + " has not ended", since_ns);
  return blocked_op(op, what + " has not completed", since_ns);
}

Blocked Executor::blocked(std::size_t index, const Inbox& inbox) const {
  const Channel& channel = channels_[index];
  if (channel.state == State::finished || channel.next == channel.end) return {};
  const Op& op = program_->ops()[channel.next];
  switch (channel.state) {
    case State::await_ready: {
      const Peer& peer = program_->peers()[static_cast<std::size_t>(channel.ready_slot)];
      Blocked blocked = blocked_op(op, "waits for rank " + std::to_string(peer.rank) + " to enter the collective",
                                   channel.ready_since_ns);
      blocked.peer = peer.rank;
      return blocked;
    }
    case State::await_signal:
      return blocked_op(op, "waits for signal " + std::to_string(op.value) + " of rank " + std::to_string(op.peer) +
                                " on signal channel " + std::to_string(op.sig_channel) + ", has " +
                                std::to_string(counter_value(op, inbox)), channel.since_ns);
    case State::await_flush:
      return blocked_op(op, "waits until " + std::to_string(in_flight(op)) + " puts" +
                                (op.peer < 0 ? std::string() : " to rank " + std::to_string(op.peer)) +
                                " have left their source", channel.since_ns);
    case State::in_flight: return blocked_in_flight(op, channel.since_ns);
    case State::running:
    case State::finished: break;
  }
  return {};
}

Blocked Executor::oldest_blocked(const Inbox& inbox) const {
  Blocked oldest;
  if (!active()) return oldest;
  const auto consider = [&](Blocked candidate) {
    if (candidate.channel >= 0 && (oldest.channel < 0 || candidate.since_ns < oldest.since_ns))
      oldest = std::move(candidate);
  };
  for (std::size_t c = 0; c < channels_.size(); ++c) consider(blocked(c, inbox));
  if (oldest.channel >= 0) return oldest;
  for (std::size_t i = 0; i < open_.size(); ++i)
    if (open_[i]) consider(blocked_in_flight(program_->ops()[i], begin_ns_[i]));
  return oldest;
}

}  // namespace ccl_lab
