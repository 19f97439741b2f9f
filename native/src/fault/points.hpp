// Points of the recovery protocol, where an injector may have something done.
//
// Is: their names, and a look at the triggers of this node (base/triggers.hpp) that the rails take wherever they pass one.
// Is not: part of the protocol: nothing is decided by it, and the simulation hooks the same points from outside
//     (native/tests/fault_script.hpp).
//
//   data points        a path carries something there: before_post .. parked, confirmed, backup_post. Those of one NIC are
//                      passed where the path has that NIC
//   other points       the handshake about a path, and its way back: of any path of the rank
//
//   arrived            a segment is in memory here; nobody was told, and nothing is acknowledged
//   told               its lane knows of it, and the acknowledgement is still to be sent
//   data_before_signal the same, of a segment without a signal
//   parked             the same, of one whose signal waits for something before it
//   confirmed          its sender hears that it is there, and has not yet made it a completion
//   retiring, retired  a path was found to be lost; it is quiet at this end
//   x_sent, x_heard    that message has left; it is here, and was not looked at
//   backup_post        a segment was posted over a path that is not the one its put names
//   wanted             a lost path answers again, somebody is to dial it
//   one_end_back, back it is up at this end; something came over it since
//
// Invariants
//  - While nothing is armed it costs one relaxed load.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/segment.hpp"
#include "base/triggers.hpp"
#include "fault/messenger.hpp"
#include "transport/transport.hpp"

namespace ccl_lab {

enum class ProtocolPoint : std::uint8_t {
  at_start, before_post, posted, arrived, told, data_before_signal, parked, confirmed, retiring, retired, hint_sent, hint_heard,
  request_sent, request_heard, ack_sent, ack_heard, ping_sent, ping_heard, pong_sent, pong_heard, probe_sent, probe_heard,
  reply_sent, reply_heard, backup_post, wanted, one_end_back, back, at_close, count
};
inline constexpr std::size_t kProtocolPoints = static_cast<std::size_t>(ProtocolPoint::count);
inline constexpr std::array<const char*, kProtocolPoints> kProtocolPointNames = {
    "at_start", "before_post", "posted", "arrived", "told", "data_before_signal", "parked", "confirmed", "retiring", "retired",
    "hint_sent", "hint_heard", "request_sent", "request_heard", "ack_sent", "ack_heard", "ping_sent", "ping_heard", "pong_sent",
    "pong_heard", "probe_sent", "probe_heard", "reply_sent", "reply_heard", "backup_post", "wanted", "one_end_back", "back",
    "at_close"};

constexpr bool is_data_point(ProtocolPoint point) {
  return (point >= ProtocolPoint::before_post && point <= ProtocolPoint::confirmed) || point == ProtocolPoint::backup_post;
}
// Begin and end of a run are no business of the rails: they pass every other point.
constexpr bool is_live_point(ProtocolPoint point) {
  return point != ProtocolPoint::at_start && point != ProtocolPoint::at_close && point != ProtocolPoint::count;
}

class Points {
 public:
  // Nothing is armed, ever.
  Points() = default;
  // `leader`: the segment of the lowest rank of this rank's node; outlives this.
  Points(int rank, const std::vector<std::int32_t>& node_of, const RankSegment& leader)
      : rank_(rank), node_of_(node_of), triggers_(&leader.control().triggers), nics_(leader.shapers()), faults_(leader.faults()) {}

  bool watched() const { return triggers_ != nullptr; }
  bool armed() const { return triggers_ != nullptr && triggers_->any(); }
  // This rank passes a point, on a path or about it.
  void reach(ProtocolPoint point, const Path& path) const {
    if (armed()) look(point, path);
  }
  // A segment was posted; `home`: over the path that its put names.
  void posted(const Path& path, bool home) const {
    if (armed()) look_posted(path, home);
  }
  // The layer above was told of a segment; `published`: it carries no signal, or one that is up now.
  void told(const Path& path, const Notice& notice, bool published) const {
    if (armed()) look_told(path, notice, published);
  }

 private:
  void look_posted(const Path& path, bool home) const;
  void look_told(const Path& path, const Notice& notice, bool published) const;
  void look(ProtocolPoint point, const Path& path) const;
  bool concerns(const TriggerOrder& order, const Path& path) const;
  void fire(Trigger& trigger) const;

  int rank_ = -1;
  std::vector<std::int32_t> node_of_;
  Triggers* triggers_ = nullptr;
  std::span<NicShaper> nics_;
  std::span<NicFaults> faults_;
};

// A messenger whose messages are points.
class WatchedMessenger final : public Messenger {
 public:
  // Both outlive this.
  WatchedMessenger(Messenger& messenger, const Points& points) : messenger_(messenger), points_(points) {}

  void send(const Datagram& datagram) override;
  int poll(std::int64_t now_ns, std::vector<Datagram>& arrived) override;
  void wait_set(std::vector<pollfd>& descriptors, std::int64_t& wake_ns) const override { messenger_.wait_set(descriptors, wake_ns); }
  void reset(std::uint16_t epoch) override { messenger_.reset(epoch); }

 private:
  Messenger& messenger_;
  const Points& points_;
};

}  // namespace ccl_lab
