// Completions of the NIC, and what the peer's immediates say; see link.hpp.
#include <algorithm>

#include "base/clock.hpp"
#include "transport/segment_span.hpp"
#include "transport/verbs/link.hpp"

namespace ccl_lab {

namespace {

constexpr int kRounds = 8;            // of a batch of completions, in one poll
constexpr std::size_t kBatch = 32;

}  // namespace

int VerbsLink::serve(std::int64_t now_ns, std::vector<Completion>& completions) {
  const std::size_t before = completions.size();
  int done = state_ != State::greeting ? take_completions(now_ns, completions) : 0;
  if (retired_) return done;
  if (!pending_.empty()) answer_pending();
  if (ended_.ok() && up()) {
    return_receives();
    if (ack_ns_ <= now_ns) ack_due_ = true;
    if (done > 0 || posted_ || ack_due_ || starved_) {
      const std::uint32_t number = number_;
      pump(now_ns, completions);
      done += number_ != number;
    }
  }
  return done + static_cast<int>(completions.size() - before);
}

int VerbsLink::take_completions(std::int64_t now_ns, std::vector<Completion>& completions) {
  verbs::Wc wcs[kBatch];
  int done = 0;
  for (int round = 0; round < kRounds; ++round) {
    const int n = completions_->poll(wcs);
    if (n < 0) end(Status(Code::link_down, "its completion queue is broken"));
    for (int i = 0; i < n; ++i) {
      take_wc(wcs[i], now_ns, completions);
      if (retired_) return done + 1;
    }
    done += std::max(n, 0);
    // What arrived before the end is taken, all of it.
    if (n <= 0 || (ended_.ok() && n < static_cast<int>(kBatch))) break;
    if (!ended_.ok()) round = 0;
  }
  return done;
}

void VerbsLink::take_wc(const verbs::Wc& wc, std::int64_t now_ns, std::vector<Completion>& completions) {
  const auto at = static_cast<std::size_t>(wc.id >> 32 & ~kReceiveBit);
  if (wc.status != verbs::WcStatus::success) {
    const bool ours = (wc.id & (std::uint64_t{kReceiveBit} << 32)) == 0;
    Pair& pair = pairs_[at];
    const std::uint32_t ahead = static_cast<std::uint32_t>(wc.id) - pair.done;
    return end(explain(wc, ours && ahead < pair.flights.size() ? &pair.flights[ahead] : nullptr));
  }
  if (wc.received) {
    ++pairs_[at].owed;
    Status status = arrived(at, wc, now_ns);
    if (retired_) return;
    if (!status.ok()) end(std::move(status));
    else confirm(completions);
    return;
  }
  Pair& pair = pairs_[at];
  const std::uint32_t n = static_cast<std::uint32_t>(wc.id) - pair.done + 1;
  for (std::uint32_t k = 0; k < n && !pair.flights.empty(); ++k) flight_done(pair, now_ns, completions);
}

Status VerbsLink::arrived(std::size_t pair, const verbs::Wc& wc, std::int64_t now_ns) {
  if ((wc.imm & kAckBit) != 0) {
    if (pair + 1 != pairs_.size()) return Status(Code::link_down, "bad immediate: an acknowledgement on a queue pair of data");
    return acked(widen(wc.imm, acked_));
  }
  const std::uint32_t number = widen(wc.imm, landed_.next());
  if (landed_.place(number) != SegmentPlace::wanted)
    return Status(Code::link_down, "bad immediate: segment " + std::to_string(number) + " came, expected " + std::to_string(landed_.next()) +
                                       " or one of the " + std::to_string(kWindow) + " after it that did not come yet");
  const bool notify = (wc.imm & kNotifyBit) != 0;
  const NoticeSlot& slot = slots_[number % kWindow];
  const bool bare = notify && slot.number == number && (slot.flags & NoticeSlot::kBare) != 0;
  const std::uint64_t nbytes = bare ? slot.plain_bytes : wc.nbytes;
  shaper_.count_rx(nbytes);
  if (message_bytes_ == 0) message_ns_ = now_ns;
  message_bytes_ += nbytes;
  landed_bytes_ += nbytes;
  if (landed_bytes_ >= kAckBytes || ++landed_segments_ >= kAckSegments) ack_due_ = true;
  else if (!ack_due_) ack_ns_ = std::min(ack_ns_, now_ns + kAckDelayNs);
  std::uint32_t fires = landed_.next();
  return landed_.landed(number, notify, [&](bool notifies) {
    const std::uint32_t each = fires++;
    return notifies && !retired_ ? notified(each, now_ns) : Status();
  });
}

Status VerbsLink::notified(std::uint32_t number, std::int64_t now_ns) {
  const NoticeSlot slot = slots_[number % kWindow];
  if (slot.number != number || slot.signal < -1 || channel_of_signal(slot.signal) >= context_.signals.n_channels())
    return Status(Code::link_down, "bad notice: the slot of segment " + std::to_string(number) + " is that of segment " +
                                       std::to_string(slot.number) + " and raises signal channel " + std::to_string(slot.signal));
  if (Status status = acked(slot.ack); !status.ok()) return status;
  if (traced() && message_bytes_ > 0)
    record(Track::nic_rx, message_bytes_, {slot.coll_id, slot.op_id, 0}, message_ns_, std::max(now_ns, ccl_lab::now_ns()));
  message_bytes_ = 0;
  if ((slot.flags & NoticeSlot::kNotice) == 0)
    return slot.signal < 0 ? Status() : order_.arrived(context_.signals, name_.peer, slot.signal, slot.sequence);
  if (context_.receiver == nullptr)
    return Status(Code::link_down, "a notice came, and nobody on this rank hears of those; fault handling is off here and on at the peer");
  if ((slot.flags & NoticeSlot::kUrgent) != 0) ack_due_ = true;
  context_.receiver->landed(name_, {slot.lane, slot.notice, slot.signal, slot.sequence});
  return {};
}

void VerbsLink::return_receives() {
  for (std::size_t i = 0; i < pairs_.size() && ended_.ok(); ++i) {
    Pair& pair = pairs_[i];
    if (pair.owed == 0) continue;
    if (Status status = pair.pair->post_receives(std::uint64_t{kReceiveBit | i} << 32, pair.owed); !status.ok()) end(std::move(status));
    pair.owed = 0;
  }
}

void VerbsLink::record(Track track, std::uint64_t nbytes, const Tag& tag, std::int64_t begin_ns, std::int64_t end_ns) const {
  context_.trace->record(segment_span(track, name_.peer, name_.nic, context_.epoch, tag, nbytes, begin_ns, end_ns));
}

}  // namespace ccl_lab
