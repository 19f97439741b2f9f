// What goes to one NIC of a peer from one NIC here, before and after it is spread over the connections between them.
//
// Is: puts and gets cut into segments that connections take when they have room, so that a faster one carries more; and the
//     order in which segments of the other side count as landed. Names, items and orders, no descriptors.
// Is not: a socket (connection.hpp), nor a chooser among NICs: an op names its NICs.
//
//   post ─► item ─► next_of_put(): a segment ─► whichever connection has room ─► done_with() ─► completion
//                                                          (after the last segment of the item; a confirmed one after acked())
//   acked() ─► heard │ take_acks() ─► completions: what comes with a short message waits until that was handed on
//   landed() ─► signal raised │ receiver told ─► an ack is owed ─► in the next header that goes the other way, or by itself:
//                at once when the sender waits, kAckBytes or kAckNotices landed; after kAckDelayNs otherwise (more of a schedule).
//                where no NIC is held to a rate, those of all pairs of NICs of a peer that are owed at once are told together, when
//                nothing more is there to be read: by one of them, and later by each if nothing else said so meanwhile
//
// Invariants
//  - Segments of puts are numbered in posting order, over all connections; only the last of a put carries its signal or notice.
//  - An item completes once: ok after its last segment, or by fail() with what went wrong; confirmed ones in posting order.
//  - Once slots of items have grown to what a program posts, nothing is allocated.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/nic_faults.hpp"
#include "base/signals.hpp"
#include "trace/ring.hpp"
#include "transport/items.hpp"
#include "transport/queue.hpp"
#include "transport/regions.hpp"
#include "transport/tcp/delay.hpp"
#include "transport/tcp/frame.hpp"
#include "transport/segment_order.hpp"
#include "transport/signal_order.hpp"
#include "transport/transport.hpp"

namespace ccl_lab {

// What a peer said over one pair of NICs of another.
struct AckAside {
  std::int32_t peer = -1;
  FrameHeader frame;
};

// What the connections of one rank share.
struct TcpContext {
  int rank = -1;
  std::uint16_t epoch = 0;
  SignalTable signals;
  Regions regions;
  SpanWriter* trace = nullptr;
  Receiver* receiver = nullptr;
  std::uint32_t first_number = 0;  // of segments and signals
  bool together = false;           // confirmations of several links of a peer go in one frame: no NIC is held to a rate
  mutable std::uint32_t n_asked = 0;  // bundles whose confirmations wait for others to go with
  mutable std::vector<AckAside> asides;  // that were heard in this poll
  std::vector<std::int64_t> oldest_ns;  // by NIC, where it is shaped: when the oldest frame left that is being read from it
};

struct ConnectionName {
  std::int32_t peer = -1;
  std::uint16_t nic = 0;
  std::uint16_t peer_nic = 0;
  std::uint16_t index = 0;

  bool operator==(const ConnectionName&) const = default;
  bool same_nics(const ConnectionName& other) const {
    return peer == other.peer && nic == other.nic && peer_nic == other.peer_nic;
  }
  std::string text(int rank) const;
};

// What one connection sends or asks for at one go.
struct Segment {
  FrameHeader header;
  const std::byte* source = nullptr;  // of a put or a reply
  std::byte* destination = nullptr;   // of a get
  std::uint32_t item = 0;
};

class Bundle {
 public:
  static constexpr std::uint64_t kAckBytes = 512 * 1024;
  static constexpr std::uint32_t kAckNotices = 32;
  static constexpr std::int64_t kAckDelayNs = 200'000;
  // Of puts of a schedule: which of them somebody waits for is marked in them, and the others only fill their sender's window.
  // Rare enough that headers that go the other way carry nearly all: a frame of its own costs both ends a system call.
  static constexpr std::uint64_t kScheduledAckBytes = 4096 * 1024;
  static constexpr std::int64_t kScheduledAckDelayNs = 4'000'000;
  // One that is asked for waits so long at most for others to go with.
  static constexpr std::int64_t kTogetherNs = 100'000;

  Bundle(const TcpContext& context, ConnectionName name, SignalOrder& order)
      : context_(context), name_(name), order_(order), segment_(context.first_number), acked_(context.first_number),
        landed_(context.first_number) {}
  ~Bundle() { unask(); }
  Bundle(const Bundle&) = delete;
  Bundle& operator=(const Bundle&) = delete;

  const ConnectionName& name() const { return name_; }

  // `order`: of this put among those of all bundles of the rank.
  void post(const Put& put, std::uint32_t sequence, std::uint64_t order = 0);
  void post(const Get& get);

  bool has_puts() const { return !waits_turn_ && may_put(); }
  // The same, though they may not go yet.
  bool holds_puts() const { return !puts_.empty(); }
  // The same, whoever's turn it is; its order then.
  bool may_put() const { return !puts_.empty() && put_delay_.open(); }
  std::uint64_t next_order() const { return items_[puts_.front()].order; }
  std::uint64_t next_bytes() const { return items_[puts_.front()].nbytes; }
  // Whether another bundle of its NIC has something older to send. Returns whether that is news and it may go now.
  bool wait_turn(bool waits) { return std::exchange(waits_turn_, waits) && !waits; }
  bool has_gets() const { return !gets_.empty() && get_delay_.open(); }
  // Cuts the next segment off; has_puts() or has_gets() holds.
  void next_of_put(Segment& segment) { cut(puts_, put_delay_, segment); }
  void next_of_get(Segment& segment) { cut(gets_, get_delay_, segment); }

  // A segment of `item` is done with: its bytes are with the kernel, or its answer is here.
  void done_with(std::uint32_t item, std::vector<Completion>& completions);

  SegmentOrder::Place place(std::uint32_t segment) const { return landed_.place(segment); }
  // The payload of a segment of the peer has been written.
  Status landed(const FrameHeader& frame, std::int64_t now_ns) {
    landed_bytes_ += frame.nbytes;
    const Mark mark{{frame.lane, frame.number, frame.signal, frame.sequence}, frame.notice, frame.asks, frame.urgent,
                    frame.together, frame.op_id >= 0};
    return landed_.landed(frame.segment, mark, [this, now_ns](const Mark& next) {
      if (next.noticed) return tell(next, now_ns);
      if (next.asks) owe_ack(next, now_ns);
      return next.notice.signal < 0 ? Status()
                                    : order_.arrived(context_.signals, name_.peer, next.notice.signal, next.notice.sequence);
    });
  }

  // From here on nobody is told of anything, though a segment that is missing should still come.
  void retire() { retired_ = true; }

  // The peer says that all segments before `number` have landed there; take_acks() looks at that.
  void acked(std::uint32_t number) {
    if (static_cast<std::int32_t>(number - acked_) > 0) acked_ = number;
  }
  bool has_acks() const { return !unconfirmed_.empty() && static_cast<std::int32_t>(acked_ - unconfirmed_.front().segment) > 0; }
  bool many_unconfirmed() const { return unconfirmed_.size() >= kAckNotices; }
  Status take_acks(std::vector<Completion>& completions);
  // Whether the peer is to hear how far its segments have landed, by a frame of its own if need be.
  bool ack_due() const { return ack_due_; }
  // The same, along with other bundles of that peer, once there is nothing to be read.
  bool ack_asked() const { return ack_asked_; }
  void demand_ack() {
    ack_due_ = true;
    stir();
    unask();
  }
  // What another bundle is to say for this one.
  FrameHeader tell_aside(std::int64_t now_ns);
  // The peer says this of the bundle that `frame` names, which is this one.
  void acked_aside(const FrameHeader& frame);
  // Frames that speak for other bundles and wait to be sent.
  bool has_asides() const { return !asides_.empty(); }
  void add_aside(const FrameHeader& header) { asides_.push(header); }
  FrameHeader next_aside() {
    const FrameHeader header = asides_.front();
    asides_.pop();
    return header;
  }
  // What to say; nothing is owed then.
  std::uint32_t take_ack() {
    ack_due_ = false;
    unask();
    ack_ns_ = INT64_MAX;
    landed_bytes_ = 0;
    landed_notices_ = 0;
    return landed_.next();
  }

  // Once in each poll. `faults`: of its NIC, null while nothing is asked.
  void look(NicFaults* faults, std::int64_t now_ns) {
    if (faults != nullptr || faults_ != nullptr) obey(faults, now_ns);
    if (ack_ns_ <= now_ns) ack_due_ = true;
  }
  // Nothing is left to send, and no acknowledgement is due yet.
  bool quiet(std::int64_t now_ns) const {
    return !has_puts() && !has_gets() && ack_ns_ > now_ns && !ack_due_ && !has_asides() && faults_ == nullptr;
  }
  // Nothing is left here until something is posted or heard, or an acknowledgement is due: whoever asks once need not ask again
  // before that, or stir(), as whoever serves it does.
  bool settled() const { return settled_; }
  bool still(std::int64_t now_ns) const { return settled_ && ack_ns_ > now_ns; }
  void settle() {
    settled_ = puts_.empty() && gets_.empty() && asides_.empty() && !ack_due_ && !has_acks() && faults_ == nullptr &&
               !waits_turn_;
  }
  void stir() { settled_ = false; }
  NicFaults* faults() const { return faults_; }
  // How long something new that is sent has to wait. Where faults() is not null.
  std::int64_t waits();
  void wake(std::int64_t& wake_ns) const {
    if (!ack_due_) wake_ns = std::min(wake_ns, ack_ns_);
    put_delay_.wake(wake_ns);
    get_delay_.wake(wake_ns);
  }

  // Completes all that is under way with `status`.
  void fail(const Status& status, std::vector<Completion>& completions);

 private:
  struct Item {
    FrameType type = FrameType::put;
    bool live = false;
    const std::byte* source = nullptr;
    std::byte* destination = nullptr;
    std::uint64_t nbytes = 0;
    std::uint64_t cut = 0;   // bytes of it that are in segments
    std::uint32_t open = 0;  // segments that are not done with
    Remote remote;
    Notice notice;  // or only a signal, and its number
    std::uint64_t cookie = 0;
    Tag tag;
    bool confirmed = false;
    bool surely = false;
    bool urgent = false;
    bool together = false;
    std::uint64_t order = 0;
  };
  // What the last segment of a put says where it has landed.
  struct Mark {
    Notice notice;
    bool noticed = false;
    bool asks = false;
    bool urgent = false;
    bool together = false;
    bool scheduled = false;
  };
  struct Unconfirmed {
    std::uint32_t segment = 0;  // the last one of the item
    std::uint32_t item = 0;
  };

  void cut(Queue<std::uint32_t>& queue, Delay& delay, Segment& segment);
  Status tell(const Mark& mark, std::int64_t now_ns);
  void owe_ack(const Mark& mark, std::int64_t now_ns);
  void unask() { context_.n_asked -= std::exchange(ack_asked_, false); }
  void obey(NicFaults* faults, std::int64_t now_ns);

  bool settled_ = false;
  const TcpContext& context_;
  const ConnectionName name_;
  SignalOrder& order_;
  Items<Item> items_;
  Queue<std::uint32_t> puts_;  // items with bytes that are in no segment yet
  Queue<std::uint32_t> gets_;
  std::uint32_t segment_;      // number of the next segment sent
  Queue<Unconfirmed> unconfirmed_;
  std::uint32_t acked_;        // all segments before it have landed, the peer says

  InOrder<Mark> landed_;
  std::uint64_t landed_bytes_ = 0;     // since the last ack
  std::uint32_t landed_notices_ = 0;
  std::int64_t ack_ns_ = INT64_MAX;    // when an ack is due at the latest
  bool ack_due_ = false;
  bool ack_asked_ = false;
  std::uint32_t told_ = 0;             // the number after the last segment whose notice was told, and
  Notice last_told_;
  Queue<FrameHeader> asides_;
  bool retired_ = false;
  bool waits_turn_ = false;

  NicFaults* faults_ = nullptr;
  Delay put_delay_;
  Delay get_delay_;
  std::uint64_t random_ = 0x9e3779b97f4a7c15u;
};

}  // namespace ccl_lab
