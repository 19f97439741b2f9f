// What happens at a point that a trigger waits for; see points.hpp.
#include "fault/points.hpp"

#include <signal.h>
#include <unistd.h>

#include "base/clock.hpp"

namespace ccl_lab {

namespace {

ProtocolPoint sent_point(MessageKind kind) {
  switch (kind) {
    case MessageKind::hint: return ProtocolPoint::hint_sent;
    case MessageKind::request: return ProtocolPoint::request_sent;
    case MessageKind::ack: return ProtocolPoint::ack_sent;
    case MessageKind::ping: return ProtocolPoint::ping_sent;
    case MessageKind::pong: return ProtocolPoint::pong_sent;
    case MessageKind::probe: return ProtocolPoint::probe_sent;
    case MessageKind::reply: return ProtocolPoint::reply_sent;
    default: return ProtocolPoint::count;  // of a third rank: about a path of the asker
  }
}

ProtocolPoint heard_point(MessageKind kind) {
  const ProtocolPoint sent = sent_point(kind);
  return sent == ProtocolPoint::count ? sent : static_cast<ProtocolPoint>(static_cast<int>(sent) + 1);
}

// A frame or a connection is damaged once: what is left of an earlier order comes first.
bool set(NicFaults& faults, NicFault kind, std::int64_t value) {
  if (kind == NicFault::damage || kind == NicFault::sever) return faults.ask(kind, value);
  faults.set(kind, value);
  return true;
}

}  // namespace

void Points::look_posted(const Path& path, bool home) const {
  look(ProtocolPoint::posted, path);
  if (!home) look(ProtocolPoint::backup_post, path);
}

void Points::look_told(const Path& path, const Notice& notice, bool published) const {
  look(ProtocolPoint::told, path);
  if (notice.signal < 0) look(ProtocolPoint::data_before_signal, path);
  if (!published) look(ProtocolPoint::parked, path);
}

bool Points::concerns(const TriggerOrder& order, const Path& path) const {
  if (order.node < 0) return true;
  const auto is = [&](std::int32_t rank, std::uint16_t nic) {
    return rank >= 0 && static_cast<std::size_t>(rank) < node_of_.size() && node_of_[static_cast<std::size_t>(rank)] == order.node &&
           nic == order.path_nic;
  };
  return is(rank_, path.nic) || is(path.peer, path.peer_nic);
}

void Points::look(ProtocolPoint point, const Path& path) const {
  for (Trigger& trigger : triggers_->each) {
    if (trigger.state.load(std::memory_order_acquire) != TriggerState::armed) continue;
    const TriggerOrder& order = trigger.order;
    if (order.point != static_cast<std::int32_t>(point) || (order.rank >= 0 && order.rank != rank_) || !concerns(order, path)) continue;
    if (trigger.left.fetch_sub(1) != 1) continue;
    TriggerState seen = TriggerState::armed;
    if (trigger.state.compare_exchange_strong(seen, TriggerState::firing)) fire(trigger);
  }
}

void Points::fire(Trigger& trigger) const {
  const TriggerOrder& order = trigger.order;
  const auto nic = static_cast<std::size_t>(order.nic);
  trigger.fired_by = rank_;
  trigger.fired_ns = now_ns();
  trigger.did = 0;
  for (std::size_t i = 0; order.nic >= 0 && nic < faults_.size() && i < kNicFaults; ++i) {
    trigger.hits[i] = faults_[nic].hits[i].load();
    if (order.asked[i] == 0) continue;
    const auto kind = static_cast<NicFault>(i);
    if (kind == NicFault::down) nics_[nic].up.store(0);
    else if (!set(faults_[nic], kind, order.asked[i])) continue;
    trigger.did |= 1u << i;
  }
  const int signal = order.signal;
  trigger.state.store(TriggerState::fired);
  triggers_->settle();
  if (signal != 0) ::kill(::getpid(), signal);
}

void WatchedMessenger::send(const Datagram& datagram) {
  messenger_.send(datagram);
  const Message& message = datagram.message;
  points_.reach(sent_point(message.kind), {datagram.peer, message.nic, message.peer_nic});
}

int WatchedMessenger::poll(std::int64_t now_ns, std::vector<Datagram>& arrived) {
  const std::size_t before = arrived.size();
  const int done = messenger_.poll(now_ns, arrived);
  for (std::size_t i = before; i < arrived.size() && points_.armed(); ++i) {
    const Message& message = arrived[i].message;
    points_.reach(heard_point(message.kind), {arrived[i].peer, message.peer_nic, message.nic});
  }
  return done;
}

}  // namespace ccl_lab
