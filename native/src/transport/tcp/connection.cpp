// One stream socket between two NICs; see connection.hpp.
#include "transport/tcp/connection.hpp"

#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/clock.hpp"

namespace ccl_lab {

namespace {

constexpr std::uint64_t kTurnBytes = 512 * 1024;
constexpr std::size_t kMostReplies = 65536;  // gets of a peer waiting to be answered on one connection

}  // namespace

std::string ConnectionName::text(int rank) const {
  return "connection of rank " + std::to_string(rank) + " (NIC " + std::to_string(nic) + ") to rank " +
         std::to_string(peer) + " (NIC " + std::to_string(peer_nic) + ")";
}

Connection::Connection(const TcpContext& context, ConnectionName name, int fd, Shaper shaper, SignalOrder& order)
    : context_(context), name_(name), fd_(fd), shaper_(shaper), order_(order) {}

Connection::~Connection() { ::close(fd_); }

void Connection::post(const Put& put, std::uint32_t sequence) {
  SendItem item;
  item.type = FrameType::put;
  item.source = put.source;
  item.nbytes = put.nbytes;
  item.remote = put.destination;
  item.signal = put.signal;
  item.sequence = sequence;
  item.cookie = put.cookie;
  item.tag = put.tag;
  queue_.push(item);
  queued_bytes_ += put.nbytes;
}

void Connection::post(const Get& get) {
  PendingGet pending;
  pending.destination = get.destination;
  pending.nbytes = get.nbytes;
  pending.sequence = next_get_++;
  pending.cookie = get.cookie;
  pending.tag = get.tag;
  gets_.push(pending);
  SendItem item;
  item.type = FrameType::get_request;
  item.nbytes = get.nbytes;
  item.remote = get.source;
  item.sequence = pending.sequence;
  item.tag = get.tag;
  queue_.push(item);
}

// ---- sending

// The header of the next piece of the first item of the queue.
void Connection::start_frame(std::int64_t now_ns) {
  SendItem& item = queue_.front();
  out_ = FrameHeader{};
  out_.type = item.type;
  out_.epoch = context_.epoch;
  out_.key = item.remote.key;
  out_.sequence = item.sequence;
  out_.coll_id = item.tag.coll_id;
  out_.op_id = item.tag.op_id;
  out_.offset = item.remote.offset + item.framed;
  out_.nbytes = item.nbytes;
  if (item.type != FrameType::get_request) out_.nbytes = std::min(item.nbytes - item.framed, kSegmentBytes);
  out_payload_ = item.source == nullptr ? nullptr : item.source + item.framed;
  out_payload_left_ = out_.payload_bytes();
  item.framed += out_.nbytes;
  if (item.framed == item.nbytes) out_.signal = item.signal;
  out_.sent_ns = now_ns;
  encode(out_, out_bytes_);
  out_header_left_ = kFrameHeaderBytes;
  out_begin_ns_ = 0;
  in_frame_ = true;
}

// Whether bytes may go now; lowers `nbytes` to how many. Reserves the next slot of the wire where there is none.
bool Connection::admitted(std::uint64_t rate, std::uint64_t& nbytes, std::int64_t now_ns) {
  if (rate == 0) {
    granted_ = 0;
    return true;
  }
  if (granted_ == 0) {
    granted_ = std::min(nbytes, Shaper::quantum(rate));
    const Shaper::Slot slot = shaper_.reserve(granted_, rate, waited_ ? slot_end_ns_ : now_ns, now_ns);
    slot_end_ns_ = slot.end_ns;
    waited_ = true;
    if (out_header_left_ == kFrameHeaderBytes) {
      out_begin_ns_ = out_.sent_ns = slot.begin_ns;
      encode(out_, out_bytes_);
    }
  }
  nbytes = std::min(nbytes, granted_);
  return slot_end_ns_ <= now_ns;
}

void Connection::sent(std::uint64_t nbytes) {
  shaper_.count_tx(nbytes);
  granted_ -= std::min(granted_, nbytes);
  const std::uint64_t header = std::min<std::uint64_t>(nbytes, out_header_left_);
  out_header_left_ -= header;
  out_payload_left_ -= nbytes - header;
  if (out_payload_ != nullptr) out_payload_ += nbytes - header;
}

void Connection::finish_sent(std::int64_t now_ns, std::vector<Completion>& completions) {
  in_frame_ = false;
  if (context_.trace != nullptr && context_.trace->enabled())
    record(Track::nic_tx, out_, out_begin_ns_, shaper_.rate() > 0 ? slot_end_ns_ : std::max(now_ns, ccl_lab::now_ns()));
  SendItem& item = queue_.front();
  if (item.type != FrameType::get_request) queued_bytes_ -= out_.nbytes;
  if (item.framed < item.nbytes) return;
  if (item.type == FrameType::put) completions.push_back({item.cookie, {}});
  if (item.type == FrameType::get_reply) --replies_queued_;
  queue_.pop();
  if (queue_.empty()) waited_ = false;
}

Status Connection::send(std::int64_t now_ns, std::vector<Completion>& completions, int& done) {
  std::uint64_t budget = kTurnBytes;
  while (budget > 0 && !blocked_) {
    if (!in_frame_) {
      if (queue_.empty()) break;
      start_frame(now_ns);
    }
    std::uint64_t nbytes = std::min(budget, out_header_left_ + out_payload_left_);
    if (!admitted(shaper_.rate(), nbytes, now_ns)) break;
    if (out_begin_ns_ == 0 && context_.trace != nullptr && context_.trace->enabled()) out_begin_ns_ = ccl_lab::now_ns();
    const std::size_t header = std::min<std::size_t>(out_header_left_, nbytes);
    iovec parts[2] = {{out_bytes_.data() + (kFrameHeaderBytes - out_header_left_), header},
                      {const_cast<std::byte*>(out_payload_), static_cast<std::size_t>(nbytes) - header}};
    msghdr message{};
    message.msg_iov = header > 0 ? parts : parts + 1;
    message.msg_iovlen = static_cast<std::size_t>(header > 0) + static_cast<std::size_t>(parts[1].iov_len > 0);
    const ssize_t n = ::sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS) return socket_error("sendmsg");
      blocked_ = true;
      break;
    }
    sent(static_cast<std::uint64_t>(n));
    budget -= static_cast<std::uint64_t>(n);
    ++done;
    if (out_header_left_ + out_payload_left_ == 0) finish_sent(now_ns, completions);
  }
  return {};
}

// ---- receiving

Status Connection::receive(std::int64_t now_ns, std::vector<Completion>& completions, int& done) {
  const std::uint64_t rate = shaper_.rate();
  std::uint64_t budget = kTurnBytes;
  while (budget > 0) {
    if (rate > 0 && shaper_.readable_ns() > now_ns) break;
    const std::uint64_t limit = rate > 0 ? std::min(budget, Shaper::quantum(rate)) : budget;
    const std::uint64_t payload = std::min(in_payload_left_, limit);
    iovec parts[2] = {{in_payload_, static_cast<std::size_t>(payload)},
                      {in_bytes_.data() + in_have_, kFrameHeaderBytes - in_have_}};
    const bool with_header = payload == in_payload_left_;
    const ssize_t n = ::readv(fd_, payload > 0 ? parts : parts + 1,
                              static_cast<int>(payload > 0) + static_cast<int>(with_header));
    if (n == 0) return closed_by_peer();
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) return socket_error("readv");
      break;
    }
    const auto nbytes = static_cast<std::uint64_t>(n);
    Shaper::Slot slot{now_ns, now_ns};
    if (rate > 0) slot = shaper_.pay(nbytes, rate, in_.sent_ns, now_ns);
    shaper_.count_rx(nbytes);
    budget -= std::min(budget, nbytes);
    ++done;
    const std::uint64_t into_payload = std::min(nbytes, payload);
    in_payload_ += into_payload;
    in_payload_left_ -= into_payload;
    in_have_ += static_cast<std::size_t>(nbytes - into_payload);
    if (in_begin_ns_ == 0) in_begin_ns_ = rate > 0 ? slot.begin_ns : ccl_lab::now_ns();
    in_end_ns_ = rate > 0 ? slot.end_ns : 0;
    if (Status status = take_in(now_ns, completions); !status.ok()) return status;
  }
  return {};
}

// What the bytes read so far complete: the payload of one frame, then the header of the next.
Status Connection::take_in(std::int64_t now_ns, std::vector<Completion>& completions) {
  if (in_payload_phase_ && in_payload_left_ == 0)
    if (Status status = finish_received(now_ns, completions); !status.ok()) return status;
  if (in_have_ < kFrameHeaderBytes) return {};
  const Result<FrameHeader> header = decode(in_bytes_, context_.epoch, context_.signals.n_channels());
  if (!header.ok()) return blame(header.status());
  in_ = header.value();
  in_have_ = 0;
  if (in_.payload_bytes() > 0) in_begin_ns_ = 0;  // the header came with the frame before it, or alone and early
  Status status = in_.type == FrameType::put          ? judge_put()
                  : in_.type == FrameType::get_request ? judge_request()
                                                       : judge_reply();
  if (!status.ok()) return blame(status);
  in_payload_left_ = in_.payload_bytes();
  in_payload_phase_ = true;
  return in_payload_left_ == 0 ? finish_received(now_ns, completions) : Status{};
}

Status Connection::judge_put() {
  in_payload_ = nullptr;
  if (in_.nbytes == 0) return {};
  const Result<std::byte*> at =
      context_.regions.resolve("put", context_.rank, {in_.key, in_.offset}, in_.nbytes, in_.op_id);
  if (!at.ok()) return at.status();
  in_payload_ = at.value();
  return {};
}

Status Connection::judge_request() {
  const Result<std::byte*> at =
      context_.regions.resolve("get", context_.rank, {in_.key, in_.offset}, in_.nbytes, in_.op_id);
  if (!at.ok()) return at.status();
  if (replies_queued_ >= kMostReplies)
    return Status(Code::link_down, "bad frame: more than " + std::to_string(kMostReplies) + " gets wait for an answer");
  SendItem item;
  item.type = FrameType::get_reply;
  item.source = at.value();
  item.nbytes = in_.nbytes;
  item.sequence = in_.sequence;
  item.tag.coll_id = in_.coll_id;
  item.tag.op_id = in_.op_id;
  queue_.push(item);
  queued_bytes_ += in_.nbytes;
  ++replies_queued_;
  return {};
}

Status Connection::judge_reply() {
  if (gets_.empty())
    return Status(Code::link_down, "bad frame: an answer to get " + std::to_string(in_.sequence) + ", but none waits");
  const PendingGet& get = gets_.front();
  if (in_.sequence != get.sequence || in_.offset != get.done || in_.nbytes > get.nbytes - get.done ||
      (in_.nbytes == 0 && get.nbytes != 0))
    return Status(Code::link_down,
                  "bad frame: " + std::to_string(in_.nbytes) + " bytes at " + std::to_string(in_.offset) + " of get " +
                      std::to_string(in_.sequence) + ", expected bytes at " + std::to_string(get.done) + " of get " +
                      std::to_string(get.sequence) + ", which has " + std::to_string(get.nbytes));
  in_payload_ = get.destination + get.done;
  return {};
}

Status Connection::finish_received(std::int64_t now_ns, std::vector<Completion>& completions) {
  in_payload_phase_ = false;
  if (context_.trace != nullptr && context_.trace->enabled())
    record(Track::nic_rx, in_, in_begin_ns_, in_end_ns_ != 0 ? in_end_ns_ : std::max(now_ns, ccl_lab::now_ns()));
  in_begin_ns_ = 0;
  if (in_.type == FrameType::put && in_.signal >= 0) {
    Status status = order_.arrived(context_.signals, name_.peer, in_.signal, in_.sequence);
    return status.ok() ? status : blame(status);
  }
  if (in_.type != FrameType::get_reply) return {};
  PendingGet& get = gets_.front();
  get.done += in_.nbytes;
  if (get.done < get.nbytes) return {};
  completions.push_back({get.cookie, {}});
  gets_.pop();
  return {};
}

// ---- both

pollfd Connection::interest(std::int64_t now_ns, std::int64_t& wake_ns) const {
  pollfd wanted{fd_, 0, 0};
  const std::int64_t readable_ns = shaper_.rate() > 0 ? shaper_.readable_ns() : 0;
  if (readable_ns > now_ns) {
    wake_ns = std::min(wake_ns, readable_ns);
  } else {
    wanted.events = static_cast<short>(wanted.events | POLLIN);
  }
  if (blocked_) {
    wanted.events = static_cast<short>(wanted.events | POLLOUT);
  } else if (in_frame_ || !queue_.empty()) {
    wake_ns = std::min(wake_ns, granted_ > 0 ? slot_end_ns_ : 0);
  }
  return wanted;
}

void Connection::record(Track track, const FrameHeader& frame, std::int64_t begin_ns, std::int64_t end_ns) const {
  SpanRecord span{};
  span.begin_ns = begin_ns == 0 ? end_ns : begin_ns;
  span.end_ns = end_ns;
  span.nbytes = static_cast<std::int64_t>(frame.payload_bytes());
  span.coll_id = frame.coll_id;
  span.op_id = frame.op_id;
  span.peer = name_.peer;
  span.index = name_.nic;
  span.epoch = context_.epoch;
  span.track = static_cast<std::uint8_t>(track);
  span.kind = static_cast<std::uint8_t>(SpanKind::segment);
  context_.trace->record(span);
}

void Connection::fail(const Status& status, std::vector<Completion>& completions) {
  for (; !queue_.empty(); queue_.pop())
    if (queue_.front().type == FrameType::put) completions.push_back({queue_.front().cookie, status});
  for (; !gets_.empty(); gets_.pop()) completions.push_back({gets_.front().cookie, status});
  queued_bytes_ = 0;
}

// The same error, saying on which connection.
Status Connection::blame(const Status& status) const {
  return Status(Code::link_down, name_.text(context_.rank) + ": " + status.message + "; the connection is closed", name_.peer,
                name_.nic, status.op_id);
}

Status Connection::socket_error(const char* call) const {
  return blame(Status(Code::link_down, std::string(call) + ": " + std::strerror(errno) + "; is the NIC up and rank " +
                                           std::to_string(name_.peer) + " alive?"));
}

Status Connection::closed_by_peer() const {
  const bool between = in_have_ == 0 && !in_payload_phase_;
  return blame(Status(Code::link_down, std::string("closed by the peer ") +
                                           (between ? "between frames" : "in the middle of a frame") +
                                           "; its rank ended or its NIC was taken down"));
}

}  // namespace ccl_lab
