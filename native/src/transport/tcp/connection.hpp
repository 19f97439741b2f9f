// One authenticated stream socket between two NICs: frames out of its bundle, frames into regions.
//
// Is: two state machines over one nonblocking descriptor, which it owns and closes.
// Is not: aware of the other connections of its bundle, except through what is left to send there and what has landed.
//
//   sending     batch empty ─► segments of the bundle, answers ─► slot reserved ─► sendmsg: headers and payloads of the batch
//                                                                  (shaped only)     └─(kernel full)─► blocked ─(edge)─► on
//   receiving   header (incomplete) ─► judged ─► payload straight into its place ─► landed │ get answered ─► header
//                     │                   └─ too early: not read until the other connections of the bundle caught up
//                     └── bad: Status, the owner drops the bundle
//
// Invariants
//  - In flight, here, is at most a batch: kBatchFrames frames, and no further one once they have kBatchBytes. Beyond that
//    the kernel holds kUnsentBytes not yet sent, so a slow connection leaves segments to the faster ones.
//  - Payload goes from user memory to the kernel and from the kernel to where it belongs. Only where frames are small, so that
//    several are read at one go, is their payload copied: at most kReadAheadBytes for each read.
//  - Nothing of a frame is written before all that can be judged of it was judged.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <vector>

#include "transport/tcp/bundle.hpp"
#include "transport/shaper.hpp"

namespace ccl_lab {

class Connection {
 public:
  static constexpr std::size_t kBatchFrames = 16;
  static constexpr std::uint64_t kBatchBytes = kSegmentBytes;
  static constexpr std::size_t kReadAheadBytes = 4096;
  static constexpr int kUnsentBytes = 256 * 1024;
  static constexpr std::size_t kMostRequests = 64;  // gets that wait for their answers

  Connection(const TcpContext& context, ConnectionName name, int fd, Shaper shaper, Bundle& bundle);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  const ConnectionName& name() const { return name_; }
  int fd() const { return fd_; }
  bool nic_up() const { return shaper_.up(); }

  // What the poller saw.
  void edges(std::uint32_t events);
  // Once in each poll in which something is asked of its NIC, or was in the last.
  void obey(std::int64_t now_ns);
  // Nothing is sent or received any more, not even what the kernel has.
  void cut_off();
  // As a fault that is injected does it: the peer and this side find out by themselves.
  void sever() const;
  // Counts what a silence holds back, once until it ends.
  void hold(bool sending, bool mute, NicFaults* faults);
  // Whether a call of receive or send could do something, as far as this connection knows.
  bool readable() const {
    return !ended_ && (held_ ? bundle_.place(in_.segment) != SegmentOrder::Place::early : readable_);
  }
  // When the long frame left that it is in the middle of reading; INT64_MAX: there is none, or no more of it here.
  std::int64_t reading_ns() const {
    const bool within = in_payload_phase_ && in_payload_left_ > 0 && in_.nbytes > Shaper::kShortBytes;
    return within && readable() ? in_.sent_ns : INT64_MAX;
  }
  bool sendable() const { return takes() && (n_batch_ > 0 || has_segments()); }
  // Whether it takes bytes, at once or when those before have gone.
  bool takes() const { return !blocked_ && !stopped_ && !ended_; }
  // Whether bytes it took wait for their slot, or for the kernel.
  bool unsent() const { return n_batch_ > 0 && !stopped_; }
  // Whether a frame waits that is too early.
  bool held() const { return held_; }

  // Move bytes, at most kTurnBytes each; add to `done` what they did. A Status that is not ok ends the bundle.
  Status send(std::int64_t now_ns, std::vector<Completion>& completions, int& done);
  Status receive(std::int64_t now_ns, std::vector<Completion>& completions, int& done);
  // Completes what its bundle has heard to be confirmed.
  Status take_acks(std::vector<Completion>& completions);

  // Lowers wake_ns to when there is something to do without an edge of the socket.
  void wake(std::int64_t now_ns, std::int64_t& wake_ns, bool mute_tx, bool mute_rx) const;

  // Says to the peer that no more will come; what it sent can still be received.
  void stop_sending();
  // Nothing more will be received: the peer closed it, or it is broken.
  bool ended() const { return ended_; }
  // It ended by a frame that must not be; what else it holds is not to be trusted.
  bool bad_frame() const { return bad_; }

 private:
  struct Out {
    Segment segment;
    bool damaged = false;
    FrameBytes bytes{};
  };
  struct PendingGet {
    std::byte* destination = nullptr;
    std::uint64_t nbytes = 0;
    std::uint32_t sequence = 0;
    std::uint32_t item = 0;
  };

  Out& out(std::size_t i) { return batch_[(first_ + i) % kBatchFrames]; }
  void fill(std::int64_t now_ns, bool shaped);
  bool has_segments() const {
    return has_replies() || bundle_.has_puts() || (bundle_.has_gets() && gets_.size() < kMostRequests) || bundle_.ack_due() ||
           bundle_.has_asides();
  }
  bool has_replies() const { return !replies_.empty() && reply_delay_.open(); }
  void next_segment(Segment& segment);
  static void write_header(Out& frame);
  bool admitted(std::uint64_t rate, std::uint64_t& nbytes, std::int64_t now_ns);
  std::size_t gather(std::uint64_t nbytes);
  void sent(std::uint64_t nbytes, std::int64_t now_ns, std::vector<Completion>& completions);

  std::size_t header_room() const;
  bool waits_for_older() const;
  Status take_in(std::int64_t now_ns, std::vector<Completion>& completions);
  Status begin_frame();
  Status judge_put();
  Status judge_request();
  Status judge_reply();
  Status finish_received(std::int64_t now_ns, std::vector<Completion>& completions);

  bool traced() const { return context_.trace != nullptr && context_.trace->enabled(); }
  void record(Track track, const FrameHeader& frame, std::int64_t begin_ns, std::int64_t end_ns) const;
  Status blame(const Status& status) const;
  Status refuse(const Status& status);
  Status socket_error(const char* call) const;
  Status closed_by_peer();

  const TcpContext& context_;
  const ConnectionName name_;
  const int fd_;
  const Shaper shaper_;
  Bundle& bundle_;

  bool readable_ = true;
  bool hung_up_ = false;
  bool blocked_ = false;  // the kernel takes no more
  bool stopped_ = false;  // nothing more is sent
  bool ended_ = false;
  bool bad_ = false;

  std::array<Out, kBatchFrames> batch_;
  std::size_t first_ = 0;
  std::size_t n_batch_ = 0;
  std::uint64_t batch_left_ = 0;  // bytes of the batch not handed over, headers included
  std::uint64_t handed_ = 0;      // of its first frame
  bool reply_next_ = false;
  std::array<iovec, 2 * kBatchFrames> parts_;
  std::uint64_t reserved_ = 0;    // bytes of the frame whose part of its slot has not begun
  std::uint64_t granted_ = 0;     // bytes that go when theirs has passed
  std::int64_t slot_end_ns_ = 0;  // of the part that was granted last
  bool waited_ = false;           // bytes have waited without a break since the last slot
  std::int64_t out_begin_ns_ = 0;

  FrameHeader in_;
  std::array<std::byte, kReadAheadBytes> ahead_;
  std::size_t ahead_at_ = 0;
  std::size_t ahead_have_ = 0;
  std::byte* in_payload_ = nullptr;
  std::uint64_t in_payload_left_ = 0;
  bool in_payload_phase_ = false;
  bool held_ = false;
  bool small_ = false;  // the last frame was, so the next may be
  std::int64_t in_begin_ns_ = 0;
  std::int64_t in_end_ns_ = 0;  // of the emulated wire's slot; 0: not shaped

  Queue<PendingGet> gets_;
  std::uint32_t next_get_ = 0;
  Queue<Segment> replies_;
  Delay reply_delay_;
  bool held_back_[2] = {false, false};  // bytes to read, bytes to send
};

}  // namespace ccl_lab
