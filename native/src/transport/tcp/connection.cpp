// One stream socket between two NICs; see connection.hpp.
#include "transport/tcp/connection.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/clock.hpp"
#include "transport/segment_span.hpp"

namespace ccl_lab {

namespace {

constexpr std::uint64_t kTurnBytes = 512 * 1024;
constexpr std::uint64_t kSmallBytes = 2048;
constexpr std::uint64_t kAcksLaterBytes = 16 * 1024;
constexpr std::size_t kMostReplies = 65536;  // gets of a peer waiting to be answered on one connection

constexpr bool says_only(FrameType type) { return type == FrameType::ack || type == FrameType::ack_aside; }

}  // namespace

Connection::Connection(const TcpContext& context, ConnectionName name, int fd, Shaper shaper, Bundle& bundle)
    : context_(context), name_(name), fd_(fd), shaper_(shaper), bundle_(bundle) {}

Connection::~Connection() { ::close(fd_); }

void Connection::edges(std::uint32_t events) {
  bundle_.stir();
  if ((events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) readable_ = true;
  if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) hung_up_ = true;
  if ((events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0) blocked_ = false;
}

void Connection::obey(std::int64_t now_ns) {
  const NicFaults* const faults = bundle_.faults();
  if (faults == nullptr || !(faults->on(NicFault::delay_ns) || faults->on(NicFault::jitter_ns))) return reply_delay_.off();
  reply_delay_.look(replies_.size(), now_ns, [this] { return bundle_.waits(); });
}

void Connection::cut_off() {
  stopped_ = ended_ = true;
  // Closing it resets it then: what the kernel has is thrown away, here and at the peer.
  const linger at_once{1, 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

void Connection::sever() const { ::shutdown(fd_, SHUT_RDWR); }

void Connection::hold(bool sending, bool mute, NicFaults* faults) {
  bool& held = held_back_[sending];
  if (!mute) held = false;
  if (!mute || held || !(sending ? sendable() : readable())) return;
  std::byte scrap;
  if (!sending && !held_ && ::recv(fd_, &scrap, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
    readable_ = false;  // nobody has looked yet: there is nothing to hold
    return;
  }
  held = true;
  faults->hit_mute(sending ? NicFault::silent_tx : NicFault::silent_rx);
}

// ---- sending

void Connection::write_header(Out& frame) {
  encode(frame.segment.header, frame.bytes);
  if (frame.damaged) frame.bytes[kFrameCheckAt] ^= std::byte{1};
}

// Requests first: they are short, and the peer then sends while this side does. Answers and puts take turns. Each says how
// far the other way has come; where there is none, a frame of its own does.
void Connection::next_segment(Segment& segment) {
  if (bundle_.has_gets() && gets_.size() < kMostRequests) {
    bundle_.next_of_get(segment);
    segment.header.sequence = next_get_++;
    gets_.push({segment.destination, segment.header.nbytes, segment.header.sequence, segment.item});
  } else if (has_replies() && (reply_next_ || !bundle_.has_puts())) {
    segment = replies_.front();
    replies_.pop();
    reply_delay_.gone();
    reply_next_ = false;
  } else if (bundle_.has_puts()) {
    bundle_.next_of_put(segment);
    reply_next_ = true;
  } else if (bundle_.has_asides()) {
    segment = Segment{};
    segment.header = bundle_.next_aside();
  } else {
    segment = Segment{};
    segment.header.type = FrameType::ack;
    segment.header.epoch = context_.epoch;
  }
  segment.header.ack = bundle_.take_ack();
}

// Takes segments up to a batch; one at a time where the wire's slots are reserved for each.
void Connection::fill(std::int64_t now_ns, bool shaped) {
  const std::size_t most = shaped ? 1 : kBatchFrames;
  while (n_batch_ < most && batch_left_ < kBatchBytes && has_segments()) {
    Out& next = out(n_batch_++);
    next_segment(next.segment);
    next.segment.header.sent_ns = now_ns;
    next.damaged = bundle_.faults() != nullptr && bundle_.faults()->take(NicFault::damage);
    write_header(next);
    batch_left_ += kFrameHeaderBytes + next.segment.header.payload_bytes();
  }
}

// Whether bytes of the first frame may go now; lowers `nbytes` to how many. A frame has one slot of the wire, reserved when its
// turn comes, so that frames leave a NIC one after the other whatever connections they take; its bytes go as the slot passes.
bool Connection::admitted(std::uint64_t rate, std::uint64_t& nbytes, std::int64_t now_ns) {
  Out& first = out(0);
  nbytes = std::min(nbytes, kFrameHeaderBytes + first.segment.header.payload_bytes() - handed_);
  if (granted_ == 0) {
    if (reserved_ == 0) {
      reserved_ = kFrameHeaderBytes + first.segment.header.payload_bytes() - handed_;
      const std::int64_t ready_ns = waited_ ? slot_end_ns_ : now_ns;
      const Shaper::Slot slot = reserved_ <= Shaper::kShortBytes ? shaper_.reserve_short(reserved_, rate, ready_ns, now_ns)
                                                                 : shaper_.reserve(reserved_, rate, ready_ns, now_ns);
      slot_end_ns_ = slot.begin_ns;
      waited_ = true;
      if (handed_ == 0) {
        out_begin_ns_ = first.segment.header.sent_ns = slot.begin_ns;
        write_header(first);
      }
    }
    granted_ = std::min(nbytes, Shaper::quantum(rate));
    reserved_ -= granted_;
    slot_end_ns_ += Shaper::duration_ns(granted_, rate);
  }
  nbytes = std::min(nbytes, granted_);
  return slot_end_ns_ <= now_ns;
}

// The next `nbytes` of the batch as parts for the kernel; returns how many parts.
std::size_t Connection::gather(std::uint64_t nbytes) {
  std::size_t n = 0;
  std::uint64_t skip = handed_;
  for (std::size_t i = 0; i < n_batch_ && nbytes > 0; ++i) {
    Out& frame = out(i);
    const auto part = [&](const std::byte* at, std::uint64_t size) {
      const std::uint64_t skipped = std::min(skip, size);
      skip -= skipped;
      const std::uint64_t take = std::min(size - skipped, nbytes);
      if (take == 0) return;
      parts_[n++] = {const_cast<std::byte*>(at + skipped), static_cast<std::size_t>(take)};
      nbytes -= take;
    };
    part(frame.bytes.data(), kFrameHeaderBytes);
    if (frame.segment.header.payload_bytes() > 0) part(frame.segment.source, frame.segment.header.payload_bytes());
  }
  return n;
}

// Frames that are over with these bytes.
void Connection::sent(std::uint64_t nbytes, std::int64_t now_ns, std::vector<Completion>& completions) {
  shaper_.count_tx(nbytes);
  granted_ -= std::min(granted_, nbytes);
  batch_left_ -= nbytes;
  handed_ += nbytes;
  while (n_batch_ > 0) {
    const Segment& segment = out(0).segment;
    const std::uint64_t size = kFrameHeaderBytes + segment.header.payload_bytes();
    if (handed_ < size) break;
    handed_ -= size;
    const bool shaped = shaper_.rate() > 0;
    std::int64_t end_ns = 0;
    if (traced()) {
      end_ns = shaped ? slot_end_ns_ : std::max(now_ns, ccl_lab::now_ns());
      if (!says_only(segment.header.type)) record(Track::nic_tx, segment.header, out_begin_ns_, end_ns);
    }
    out_begin_ns_ = shaped || n_batch_ == 1 ? 0 : end_ns;
    if (segment.header.type == FrameType::put) bundle_.done_with(segment.item, completions);
    first_ = (first_ + 1) % kBatchFrames;
    --n_batch_;
  }
}

Status Connection::send(std::int64_t now_ns, std::vector<Completion>& completions, int& done) {
  std::uint64_t budget = kTurnBytes;
  const std::uint64_t rate = shaper_.rate();
  while (budget > 0 && sendable()) {
    fill(now_ns, rate > 0);
    std::uint64_t nbytes = std::min(budget, batch_left_);
    if (rate == 0) {
      granted_ = reserved_ = 0;
    } else if (!admitted(rate, nbytes, now_ns)) {
      break;
    }
    if (out_begin_ns_ == 0 && traced()) out_begin_ns_ = ccl_lab::now_ns();
    msghdr message{};
    message.msg_iovlen = gather(nbytes);
    message.msg_iov = parts_.data();
    const ssize_t n = ::sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS) return socket_error("sendmsg");
      blocked_ = true;
      break;
    }
    sent(static_cast<std::uint64_t>(n), now_ns, completions);
    budget -= std::min(budget, static_cast<std::uint64_t>(n));
    ++done;
  }
  if (n_batch_ == 0 && !has_segments()) waited_ = false;
  return {};
}

void Connection::stop_sending() {
  if (!stopped_) ::shutdown(fd_, SHUT_WR);
  stopped_ = true;
}

// ---- receiving

// How many bytes beyond the payload are read with it: the next header, or several small frames.
std::size_t Connection::header_room() const {
  return small_ && shaper_.rate() == 0 ? kReadAheadBytes - ahead_have_ : kFrameHeaderBytes - ahead_have_;
}

// A shaped NIC is read frame after frame too, the one that left first before the others.
bool Connection::waits_for_older() const {
  const std::int64_t left_ns = reading_ns();
  return left_ns != INT64_MAX && name_.nic < context_.oldest_ns.size() && left_ns > context_.oldest_ns[name_.nic];
}

Status Connection::receive(std::int64_t now_ns, std::vector<Completion>& completions, int& done) {
  const std::uint64_t rate = shaper_.rate();
  std::uint64_t budget = kTurnBytes;
  while (budget > 0 && readable()) {
    if (held_) {
      held_ = false;
      ++done;
      if (Status status = begin_frame(); !status.ok()) return status;
      if (Status status = take_in(now_ns, completions); !status.ok()) return status;
      continue;
    }
    if (rate > 0 && (shaper_.readable_ns() > now_ns || waits_for_older())) break;
    const std::uint64_t limit = rate > 0 ? std::min(budget, Shaper::quantum(rate)) : budget;
    const std::uint64_t payload = std::min(in_payload_left_, limit);
    const std::size_t room = payload == in_payload_left_ ? header_room() : 0;
    iovec parts[2] = {{in_payload_, static_cast<std::size_t>(payload)}, {ahead_.data() + ahead_have_, room}};
    const ssize_t n = ::readv(fd_, payload > 0 ? parts : parts + 1, static_cast<int>(payload > 0) + static_cast<int>(room > 0));
    if (n == 0) return closed_by_peer();
    if (n < 0) {
      if (errno == EINTR) continue;
      readable_ = false;
      if (errno == EAGAIN || errno == EWOULDBLOCK) break;
      ended_ = true;
      return socket_error("readv");
    }
    const auto nbytes = static_cast<std::uint64_t>(n);
    // Less than asked for: there is no more, and the next bytes make an edge. Except at the end of a stream.
    if (nbytes < payload + room && !hung_up_) readable_ = false;
    Shaper::Slot slot{now_ns, now_ns};
    if (rate > 0) slot = shaper_.pay(nbytes, rate, in_.sent_ns, now_ns);
    shaper_.count_rx(nbytes);
    budget -= std::min(budget, nbytes);
    ++done;
    const std::uint64_t into_payload = std::min(nbytes, payload);
    in_payload_ += into_payload;
    in_payload_left_ -= into_payload;
    ahead_have_ += static_cast<std::size_t>(nbytes - into_payload);
    if (in_begin_ns_ == 0 && (rate > 0 || traced())) in_begin_ns_ = rate > 0 ? slot.begin_ns : ccl_lab::now_ns();
    in_end_ns_ = rate > 0 ? slot.end_ns : 0;
    if (Status status = take_in(now_ns, completions); !status.ok()) return status;
  }
  return {};
}

// What the bytes read so far complete: the payload of one frame, then whole small frames, then a header.
Status Connection::take_in(std::int64_t now_ns, std::vector<Completion>& completions) {
  for (;;) {
    if (in_payload_phase_) {
      const std::uint64_t here = std::min<std::uint64_t>(in_payload_left_, ahead_have_ - ahead_at_);
      if (here > 0) std::memcpy(in_payload_, ahead_.data() + ahead_at_, here);
      in_payload_ += here;
      in_payload_left_ -= here;
      ahead_at_ += static_cast<std::size_t>(here);
      if (in_payload_left_ > 0) break;
      if (Status status = finish_received(now_ns, completions); !status.ok()) return status;
    }
    if (ended_ || ahead_have_ - ahead_at_ < kFrameHeaderBytes) break;
    FrameBytes bytes;
    std::memcpy(bytes.data(), ahead_.data() + ahead_at_, kFrameHeaderBytes);
    ahead_at_ += kFrameHeaderBytes;
    const Result<FrameHeader> header = decode(bytes, context_.epoch, context_.signals.n_channels());
    if (!header.ok()) return refuse(header.status());
    in_ = header.value();
    bundle_.acked(in_.ack);
    if (in_.type == FrameType::ack_aside) context_.asides.push_back({name_.peer, in_});
    // What a short message says is wanted now, and confirmations can wait; they come between long ones, and alone.
    if (bundle_.has_acks() && (in_.type != FrameType::put || in_.nbytes > kAcksLaterBytes || bundle_.many_unconfirmed()))
      if (Status status = take_acks(completions); !status.ok()) return status;
    if (in_.type == FrameType::put && bundle_.place(in_.segment) == SegmentOrder::Place::early) {
      held_ = true;
      break;
    }
    if (Status status = begin_frame(); !status.ok()) return status;
  }
  ahead_have_ -= ahead_at_;
  if (ahead_have_ > 0 && ahead_at_ > 0) std::memmove(ahead_.data(), ahead_.data() + ahead_at_, ahead_have_);
  ahead_at_ = 0;
  return {};
}

Status Connection::begin_frame() {
  if (in_.payload_bytes() > 0) in_begin_ns_ = 0;  // the header came with the frame before it, or alone and early
  in_payload_ = nullptr;
  const Status status = in_.type == FrameType::put           ? judge_put()
                        : in_.type == FrameType::get_request ? judge_request()
                        : in_.type == FrameType::get_reply   ? judge_reply()
                                                             : Status();
  if (!status.ok()) return refuse(status);
  in_payload_left_ = in_.payload_bytes();
  in_payload_phase_ = true;
  small_ = in_payload_left_ <= kSmallBytes;
  return {};
}

Status Connection::judge_put() {
  if (bundle_.place(in_.segment) == SegmentOrder::Place::seen)
    return Status(Code::link_down, "bad frame: segment " + std::to_string(in_.segment) + " came before");
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
  if (replies_.size() >= kMostReplies)
    return Status(Code::link_down, "bad frame: more than " + std::to_string(kMostReplies) + " gets wait for an answer");
  Segment reply;
  reply.source = at.value();
  reply.header.type = FrameType::get_reply;
  reply.header.epoch = context_.epoch;
  reply.header.nbytes = in_.nbytes;
  reply.header.sequence = in_.sequence;
  reply.header.coll_id = in_.coll_id;
  reply.header.op_id = in_.op_id;
  replies_.push(reply);
  return {};
}

Status Connection::judge_reply() {
  if (gets_.empty())
    return Status(Code::link_down, "bad frame: an answer to get " + std::to_string(in_.sequence) + ", but none waits");
  const PendingGet& get = gets_.front();
  if (in_.sequence != get.sequence || in_.offset != 0 || in_.nbytes != get.nbytes)
    return Status(Code::link_down, "bad frame: " + std::to_string(in_.nbytes) + " bytes at " + std::to_string(in_.offset) +
                                       " of get " + std::to_string(in_.sequence) + ", expected " +
                                       std::to_string(get.nbytes) + " bytes at 0 of get " + std::to_string(get.sequence));
  in_payload_ = get.destination;
  return {};
}

Status Connection::finish_received(std::int64_t now_ns, std::vector<Completion>& completions) {
  in_payload_phase_ = false;
  if (traced() && !says_only(in_.type))
    record(Track::nic_rx, in_, in_begin_ns_, in_end_ns_ != 0 ? in_end_ns_ : std::max(now_ns, ccl_lab::now_ns()));
  in_begin_ns_ = 0;
  if (in_.type == FrameType::put) {
    Status status = bundle_.landed(in_, now_ns);
    return status.ok() ? status : refuse(status);
  }
  if (in_.type != FrameType::get_reply) return {};
  const std::uint32_t item = gets_.front().item;
  gets_.pop();
  bundle_.done_with(item, completions);
  return {};
}

// ---- both

void Connection::wake(std::int64_t now_ns, std::int64_t& wake_ns, bool mute_tx, bool mute_rx) const {
  if (readable() && !mute_rx) {
    const std::int64_t readable_ns = shaper_.rate() > 0 ? shaper_.readable_ns() : 0;
    wake_ns = std::min(wake_ns, readable_ns > now_ns ? readable_ns : 0);
  }
  if (sendable() && !mute_tx) wake_ns = std::min(wake_ns, granted_ > 0 ? slot_end_ns_ : 0);
  reply_delay_.wake(wake_ns);
}

void Connection::record(Track track, const FrameHeader& frame, std::int64_t begin_ns, std::int64_t end_ns) const {
  context_.trace->record(segment_span(track, name_.peer, name_.nic, context_.epoch, {frame.coll_id, frame.op_id, 0},
                                      frame.payload_bytes(), begin_ns == 0 ? end_ns : begin_ns, end_ns));
}

// The same error, saying on which connection.
Status Connection::blame(const Status& status) const {
  return Status(Code::link_down, name_.text(context_.rank) + ": " + status.message + "; the connection is closed", name_.peer,
                name_.nic, status.op_id);
}

Status Connection::refuse(const Status& status) {
  ended_ = bad_ = true;
  return blame(status);
}

Status Connection::socket_error(const char* call) const {
  return blame(Status(Code::link_down, std::string(call) + ": " + std::strerror(errno) + "; is the NIC up and rank " +
                                           std::to_string(name_.peer) + " alive?"));
}

Status Connection::take_acks(std::vector<Completion>& completions) {
  const Status status = bundle_.take_acks(completions);
  return status.ok() ? Status() : refuse(status);
}

Status Connection::closed_by_peer() {
  ended_ = true;
  const bool between = ahead_have_ == 0 && !in_payload_phase_;
  return blame(Status(Code::link_down, std::string("closed by the peer ") +
                                           (between ? "between frames" : "in the middle of a frame") +
                                           "; its rank ended or its NIC was taken down"));
}

}  // namespace ccl_lab
