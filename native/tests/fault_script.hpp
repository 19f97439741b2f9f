// What can go wrong in the fault simulation, and where in the protocol.
//
// Is: names of faults and of protocol points, and one injection: the n-th time that a point is reached, this happens.
// Is not: how a fault is done (that is VirtualNetwork), or which are combined (fault_scenarios.hpp).
#pragma once

#include <cstddef>
#include <cstdint>

#include "fault/message.hpp"

namespace ccl_lab::check {

enum class SimPoint : std::uint8_t {
  at_time, at_start, before_post, posted, arrived, told, data_before_signal, parked, confirmed, retiring, retired,
  hint_sent, hint_heard, request_sent, request_heard, ack_sent, ack_heard, ping_sent, ping_heard, pong_sent, pong_heard,
  probe_sent, probe_heard, reply_sent, reply_heard, backup_post, wanted, one_end_back, back, at_close, count
};
inline constexpr const char* kSimPointNames[] = {
    "at_time", "at_start", "before_post", "posted", "arrived", "told", "data_before_signal", "parked", "confirmed", "retiring",
    "retired", "hint_sent", "hint_heard", "request_sent", "request_heard", "ack_sent", "ack_heard", "ping_sent", "ping_heard",
    "pong_sent", "pong_heard", "probe_sent", "probe_heard", "reply_sent", "reply_heard", "backup_post", "wanted", "one_end_back",
    "back", "at_close"};
inline constexpr std::size_t kSimPoints = static_cast<std::size_t>(SimPoint::count);

enum class SimFault : std::uint8_t {
  nic_down_both, nic_down_near, nic_down_far, unplugged, silent_tx, silent_rx, silent_both, flap, rate_cap, jitter, cut_there,
  cut_back, reset_both, reset_near, reset_far, unconfirmed, bad_completion, bad_post, late_data, rank_paused, mail_lost,
  mail_doubled, mail_late, mail_cut, rank_killed, rank_killed_silently, node_dark, revoked, count
};
inline constexpr const char* kSimFaultNames[] = {
    "nic_down_both", "nic_down_near", "nic_down_far", "unplugged", "silent_tx", "silent_rx", "silent_both", "flap", "rate_cap",
    "jitter", "cut_there", "cut_back", "reset_both", "reset_near", "reset_far", "unconfirmed", "bad_completion", "bad_post",
    "late_data", "rank_paused", "mail_lost", "mail_doubled", "mail_late", "mail_cut", "rank_killed", "rank_killed_silently",
    "node_dark", "revoked"};
inline constexpr std::size_t kSimFaults = static_cast<std::size_t>(SimFault::count);

// Nothing is left to carry the data, or nobody to send it: such a run may end in an error.
constexpr bool may_be_fatal(SimFault fault) { return fault >= SimFault::rank_killed; }

// A message of these kinds is heard out of band, or over the NICs it names.
constexpr SimPoint sent_point(MessageKind kind) {
  switch (kind) {
    case MessageKind::hint: return SimPoint::hint_sent;
    case MessageKind::request: return SimPoint::request_sent;
    case MessageKind::ack: return SimPoint::ack_sent;
    case MessageKind::ping: return SimPoint::ping_sent;
    case MessageKind::pong: return SimPoint::pong_sent;
    case MessageKind::probe: return SimPoint::probe_sent;
    case MessageKind::reply: return SimPoint::reply_sent;
    default: return SimPoint::count;
  }
}
constexpr bool is_sent_point(SimPoint point) {
  return point == SimPoint::hint_sent || point == SimPoint::request_sent || point == SimPoint::ack_sent || point == SimPoint::ping_sent ||
         point == SimPoint::pong_sent || point == SimPoint::probe_sent || point == SimPoint::reply_sent;
}

struct Injection {
  SimFault fault = SimFault::nic_down_both;
  SimPoint point = SimPoint::at_time;
  int skip = 0;                 // how often the point passes before
  std::int64_t at_ns = 0;       // of at_time
  bool far = false;             // at the peer's end of the path in question
  std::int64_t heal_ns = 0;     // undone after so long; 0: only at the end
  // What came of it.
  bool hit = false;
  bool over = false;            // it is too late
  std::int64_t hit_ns = 0;
};

}  // namespace ccl_lab::check
