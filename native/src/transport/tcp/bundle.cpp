// Items of one pair of NICs; see bundle.hpp.
#include "transport/tcp/bundle.hpp"

#include <algorithm>

namespace ccl_lab {

std::string ConnectionName::text(int rank) const {
  return "connection " + (index > 0 ? std::to_string(index) + " " : std::string()) + "of rank " + std::to_string(rank) +
         " (NIC " + std::to_string(nic) + ") to rank " + std::to_string(peer) + " (NIC " + std::to_string(peer_nic) + ")";
}

void Bundle::post(const Put& put, std::uint32_t sequence, std::uint64_t order) {
  Item item;
  item.live = true;
  item.source = put.source;
  item.nbytes = put.nbytes;
  item.remote = put.destination;
  item.notice = put.confirmed ? put.notice : Notice{0, 0, put.signal, sequence};
  item.cookie = put.cookie;
  item.tag = put.tag;
  item.confirmed = put.confirmed;
  item.surely = put.surely || put.confirmed;
  item.urgent = put.urgent;
  item.together = put.urgent && put.confirmed && put.together;
  item.order = order;
  puts_.push(items_.add(item));
  stir();
}

void Bundle::post(const Get& get) {
  Item item;
  item.type = FrameType::get_request;
  item.live = true;
  item.destination = get.destination;
  item.nbytes = get.nbytes;
  item.remote = get.source;
  item.cookie = get.cookie;
  item.tag = get.tag;
  gets_.push(items_.add(item));
  stir();
}

void Bundle::cut(Queue<std::uint32_t>& queue, Delay& delay, Segment& segment) {
  const std::uint32_t at = queue.front();
  Item& item = items_[at];
  FrameHeader& header = segment.header;
  header = FrameHeader{};
  header.type = item.type;
  header.epoch = context_.epoch;
  header.key = item.remote.key;
  header.offset = item.remote.offset + item.cut;
  header.nbytes = std::min(item.nbytes - item.cut, kSegmentBytes);
  header.coll_id = item.tag.coll_id;
  header.op_id = item.tag.op_id;
  segment.source = item.source == nullptr ? nullptr : item.source + item.cut;
  segment.destination = item.destination == nullptr ? nullptr : item.destination + item.cut;
  segment.item = at;
  item.cut += header.nbytes;
  ++item.open;
  if (item.type == FrameType::put) header.segment = segment_++;
  if (item.cut < item.nbytes) return;
  queue.pop();
  delay.gone();
  if (item.surely) {
    header.notice = item.confirmed;
    header.asks = !item.confirmed;
    header.urgent = item.urgent;
    header.together = item.together;
    header.lane = item.notice.lane;
    header.number = item.notice.number;
    unconfirmed_.push({header.segment, at});
  }
  if (item.notice.signal < 0 && !item.confirmed) return;
  header.signal = item.notice.signal;
  header.sequence = item.notice.sequence;
}

void Bundle::done_with(std::uint32_t at, std::vector<Completion>& completions) {
  Item& item = items_[at];
  --item.open;
  if (item.open > 0 || item.cut < item.nbytes || item.surely) return;
  items_.complete(at, completions);
}

Status Bundle::tell(const Mark& mark, std::int64_t now_ns) {
  if (retired_) return {};
  if (context_.receiver == nullptr)
    return Status(Code::link_down, "bad frame: it carries a notice, and nobody on this rank hears of those; fault handling is "
                                   "off here and on at the peer");
  owe_ack(mark, now_ns);
  told_ = landed_.next();
  last_told_ = mark.notice;
  context_.receiver->landed({name_.peer, name_.nic, name_.peer_nic}, mark.notice);
  return {};
}

// At once, or after so many others, or after a while: most acks go in headers that are sent anyway.
void Bundle::owe_ack(const Mark& mark, std::int64_t now_ns) {
  const std::int64_t delay_ns = faults_ == nullptr ? 0 : waits();
  const std::uint64_t many = mark.scheduled ? kScheduledAckBytes : kAckBytes;
  if (mark.together && context_.together && delay_ns == 0) {
    context_.n_asked += !std::exchange(ack_asked_, true);
    ack_ns_ = std::min(ack_ns_, now_ns + kTogetherNs);
  } else if (mark.urgent || landed_bytes_ >= many || ++landed_notices_ >= kAckNotices) {
    ack_ns_ = std::min(ack_ns_, now_ns + delay_ns);
    ack_due_ = ack_due_ || delay_ns == 0;
  } else if (!ack_due_) {
    ack_ns_ = std::min(ack_ns_, now_ns + (mark.scheduled ? kScheduledAckDelayNs : kAckDelayNs) + delay_ns);
  }
}

Status Bundle::take_acks(std::vector<Completion>& completions) {
  const auto sent_after = static_cast<std::int32_t>(segment_ - acked_);
  for (; has_acks(); unconfirmed_.pop()) {
    const Unconfirmed& first = unconfirmed_.front();
    if (sent_after < 0 || items_[first.item].open > 0)
      return Status(Code::link_down, "bad frame: it confirms segment " + std::to_string(acked_ - 1) + ", which was not sent; "
                                         "expected at most " + std::to_string(segment_ - 1));
    items_.complete(first.item, completions);
  }
  return {};
}

FrameHeader Bundle::tell_aside(std::int64_t now_ns) {
  FrameHeader header;
  header.type = FrameType::ack_aside;
  header.epoch = context_.epoch;
  header.lane = std::uint32_t{name_.nic} << 16 | name_.peer_nic;
  header.segment = told_;
  header.key = last_told_.lane;
  header.number = last_told_.number;
  // Whoever carries it may be lost: if nothing else goes this way, the peer is told again.
  unask();
  ack_ns_ = now_ns + kScheduledAckDelayNs;
  return header;
}

void Bundle::acked_aside(const FrameHeader& frame) {
  for (std::size_t i = unconfirmed_.size(); i-- > 0;) {
    if (unconfirmed_[i].segment + 1 != frame.segment) continue;
    const Item& item = items_[unconfirmed_[i].item];
    if (item.confirmed && item.open == 0 && item.notice.lane == frame.key && item.notice.number == frame.number) acked(frame.segment);
    return;
  }
}

std::int64_t Bundle::waits() {
  const std::int64_t delay_ns = std::max<std::int64_t>(faults_->value(NicFault::delay_ns), 0);
  const std::int64_t jitter_ns = std::max<std::int64_t>(faults_->value(NicFault::jitter_ns), 0);
  if (delay_ns > 0) faults_->hit(NicFault::delay_ns);
  if (jitter_ns == 0) return delay_ns;
  faults_->hit(NicFault::jitter_ns);
  random_ ^= random_ << 13;
  random_ ^= random_ >> 7;
  random_ ^= random_ << 17;
  return delay_ns + static_cast<std::int64_t>(random_ % static_cast<std::uint64_t>(jitter_ns + 1));
}

void Bundle::obey(NicFaults* faults, std::int64_t now_ns) {
  faults_ = faults;
  if (faults == nullptr || !(faults->on(NicFault::delay_ns) || faults->on(NicFault::jitter_ns))) {
    put_delay_.off();
    get_delay_.off();
    return;
  }
  put_delay_.look(puts_.size(), now_ns, [this] { return waits(); });
  get_delay_.look(gets_.size(), now_ns, [this] { return waits(); });
}

void Bundle::fail(const Status& status, std::vector<Completion>& completions) {
  items_.fail(status, completions);
  puts_.clear();
  gets_.clear();
  unconfirmed_.clear();
}

}  // namespace ccl_lab
