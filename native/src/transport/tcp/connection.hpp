// One authenticated stream socket between two NICs: frames out of a queue, frames into regions.
//
// Is: two state machines over one nonblocking descriptor, which it owns and closes.
// Is not: aware of other connections, except through the peer's SignalOrder and the NIC's Shaper.
//
//   sending     idle ─(queue not empty)─► frame ─► slot reserved ─(slot over)─► sendmsg ─► more of the frame │ next │ idle
//                                                                     └─(kernel full)─► blocked ─(POLLOUT)─► sendmsg
//   receiving   header (incomplete) ─► judged ─► payload straight into its place ─► signal raised │ get completed ─► header
//                     └────────────────────────── bad: Status, the owner drops the connection ──────────────┘
//
// Invariants
//  - Of what it receives it holds at most one header; payload goes from the kernel to where it belongs.
//  - Nothing of a frame is written before all that can be judged of it was judged.
#pragma once

#include <poll.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/signals.hpp"
#include "trace/ring.hpp"
#include "transport/queue.hpp"
#include "transport/regions.hpp"
#include "transport/tcp/frame.hpp"
#include "transport/tcp/shaper.hpp"
#include "transport/tcp/signal_order.hpp"
#include "transport/transport.hpp"

namespace ccl_lab {

// What the connections of one rank share.
struct TcpContext {
  int rank = -1;
  std::uint16_t epoch = 0;
  SignalTable signals;
  Regions regions;
  SpanWriter* trace = nullptr;
};

struct ConnectionName {
  std::int32_t peer = -1;
  std::uint16_t nic = 0;
  std::uint16_t peer_nic = 0;
  std::uint16_t index = 0;

  bool operator==(const ConnectionName&) const = default;
  std::string text(int rank) const;
};

class Connection {
 public:
  Connection(const TcpContext& context, ConnectionName name, int fd, Shaper shaper, SignalOrder& order);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  const ConnectionName& name() const { return name_; }
  std::uint64_t queued_bytes() const { return queued_bytes_; }
  bool nic_up() const { return shaper_.up(); }

  void post(const Put& put, std::uint32_t sequence);
  void post(const Get& get);

  // Move bytes, at most kTurnBytes each; add to `done` what they did. A Status that is not ok ends the connection.
  Status send(std::int64_t now_ns, std::vector<Completion>& completions, int& done);
  Status receive(std::int64_t now_ns, std::vector<Completion>& completions, int& done);

  // What to wait for; lowers wake_ns where that is a time.
  pollfd interest(std::int64_t now_ns, std::int64_t& wake_ns) const;
  void writable() { blocked_ = false; }

  // Completes all that is in flight with `status`.
  void fail(const Status& status, std::vector<Completion>& completions);

 private:
  struct SendItem {
    FrameType type = FrameType::put;
    const std::byte* source = nullptr;
    std::uint64_t nbytes = 0;
    std::uint64_t framed = 0;  // bytes of it that are in frames handed over or being so
    Remote remote;
    std::int32_t signal = -1;
    std::uint32_t sequence = 0;
    std::uint64_t cookie = 0;
    Tag tag;
  };
  struct PendingGet {
    std::byte* destination = nullptr;
    std::uint64_t nbytes = 0;
    std::uint64_t done = 0;
    std::uint32_t sequence = 0;
    std::uint64_t cookie = 0;
    Tag tag;
  };

  void start_frame(std::int64_t now_ns);
  bool admitted(std::uint64_t rate, std::uint64_t& nbytes, std::int64_t now_ns);
  void sent(std::uint64_t nbytes);
  void finish_sent(std::int64_t now_ns, std::vector<Completion>& completions);
  Status take_in(std::int64_t now_ns, std::vector<Completion>& completions);
  Status judge_put();
  Status judge_request();
  Status judge_reply();
  Status finish_received(std::int64_t now_ns, std::vector<Completion>& completions);
  void record(Track track, const FrameHeader& frame, std::int64_t begin_ns, std::int64_t end_ns) const;
  Status blame(const Status& status) const;
  Status socket_error(const char* call) const;
  Status closed_by_peer() const;

  const TcpContext& context_;
  const ConnectionName name_;
  const int fd_;
  const Shaper shaper_;
  SignalOrder& order_;

  Queue<SendItem> queue_;
  std::uint64_t queued_bytes_ = 0;
  FrameHeader out_;
  FrameBytes out_bytes_{};
  std::size_t out_header_left_ = 0;
  const std::byte* out_payload_ = nullptr;
  std::uint64_t out_payload_left_ = 0;
  bool in_frame_ = false;         // a frame is being sent
  bool blocked_ = false;          // the kernel takes no more
  std::uint64_t granted_ = 0;     // bytes that have a slot of the wire
  std::int64_t slot_end_ns_ = 0;  // of the last slot
  bool waited_ = false;           // bytes have waited without a break since the last slot
  std::int64_t out_begin_ns_ = 0;

  FrameHeader in_;
  FrameBytes in_bytes_{};
  std::size_t in_have_ = 0;
  std::byte* in_payload_ = nullptr;
  std::uint64_t in_payload_left_ = 0;
  bool in_payload_phase_ = false;
  std::int64_t in_begin_ns_ = 0;
  std::int64_t in_end_ns_ = 0;  // of the emulated wire's slot; 0: not shaped

  Queue<PendingGet> gets_;
  std::uint32_t next_get_ = 0;
  std::size_t replies_queued_ = 0;
};

}  // namespace ccl_lab
