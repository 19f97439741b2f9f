// What happens when a path is lost, and how it comes back; the protocol is drawn in rails.hpp.
//
// CCL_LAB_MUTANT leaves one rule of the protocol out, so that a test can show that the suite notices: 1 the test of
// generations, 2 the retirement of the old path, 3 the rule that a receiver never skips forward, 4 the position: all is sent
// again, though its source may be somebody else's by then.
#include <algorithm>
#include <limits>
#include <utility>

#include "fault/rails.hpp"

#ifndef CCL_LAB_MUTANT
#define CCL_LAB_MUTANT 0
#endif

namespace ccl_lab {

namespace {

constexpr std::size_t kMostEvents = 65536;
constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kSlowestByteNs = 100;  // of a get: 10 MB/s
constexpr int kMostBackOff = 4;  // doublings of the time between two requests

}  // namespace

void Rails::note(RailEventKind kind, const PathRecord& path, std::uint64_t segments, std::string text) {
  if (events_.size() >= kMostEvents) return;
  RailEvent event;
  event.kind = kind;
  event.path = path.name;
  event.generation = path.generation;
  event.at_ns = now_ns_;
  event.segments = segments;
  event.text = std::move(text);
  events_.push_back(std::move(event));
  news_ = true;
}

void Rails::say(PathRecord& path, MessageKind kind, std::uint32_t generation, std::uint64_t position, std::uint64_t received,
                std::uint64_t token) {
  Datagram datagram;
  datagram.peer = path.name.peer;
  Message& message = datagram.message;
  message.kind = kind;
  message.epoch = epoch_;
  message.from = rank_;
  message.nic = path.name.nic;
  message.peer_nic = path.name.peer_nic;
  message.generation = generation;
  message.position = position;
  message.received = received;
  message.token = token;
  messenger_.send(datagram);
}

// ---- losing

// This end lost it, at_least: the generation the peer is in. Quiet first, then the peer is asked what it got.
void Rails::lose(PathRecord& path, Status why, std::uint32_t at_least) {
  if (path.state != PathState::up) return;
  enter_posted();  // what was given to it last is to be sent again, too
  points_.reach(ProtocolPoint::retiring, path.name);
#if CCL_LAB_MUTANT != 2
  transport_.retire(path.name);
#endif
  path.state = PathState::retiring;
  path.generation = std::max(path.generation + 1, at_least);
  path.why = std::move(why);
  path.lost_ns = now_ns_;
  path.resend_ns = now_ns_;
  path.tries = 0;
  ++n_retiring_;
  ++counters_.lost;
  note(RailEventKind::lost, path, path.flights.size(), path.why.message);
  points_.reach(ProtocolPoint::retired, path.name);
  if (at_least == 0) judge(path);
  // Memory that may not be touched is no fault of a path: another one would be refused too.
  if (path.why.code == Code::bounds || path.why.code == Code::registration)
    lost_.push_back({path.name.peer, path.name.nic, path.why, path.name.peer_nic});
  for (Reading& reading : readings_)
    if (reading.live && reading.posted && reading.path == path.index) reading.posted = false;
  watch_ns_ = now_ns_;
  if (!peer_of(path.name).lost && at_least == 0) ask(path);
}

// What came over it says that both ends have it.
void Rails::back_to_use(PathRecord& path) {
  path.fresh = false;
  points_.reach(ProtocolPoint::back, path.name);
}

void Rails::missing(const Path& path, Status why) {
  if (path.peer < 0 || static_cast<std::size_t>(path.peer) >= peers_.size()) return;
  PathRecord& record = record_of(path);
  if (record.state == PathState::absent) record.state = PathState::up;
  lose(record, std::move(why), 0);
}

void Rails::ask(PathRecord& path) {
  say(path, path.flights.empty() ? MessageKind::hint : MessageKind::request, path.generation, path.confirmed, path.received);
  path.resend_ns = now_ns_ + (options_.resend_ns << std::min(path.tries, kMostBackOff));
  ++path.tries;
  watch_ns_ = std::min(watch_ns_, path.resend_ns);
}

void Rails::answer(PathRecord& path, std::uint32_t generation, std::uint64_t received) {
#if CCL_LAB_MUTANT == 3
  received += 1;
#endif
  say(path, MessageKind::ack, generation, received, received);
}

// The peer has retired too, and says how many segments it got: those are done with, the others go back to their lanes.
void Rails::settle(PathRecord& path, std::uint64_t received) {
  PeerRecord& peer = peer_of(path.name);
#if CCL_LAB_MUTANT == 4
  received = 0;
#endif
  while (!path.flights.empty() && path.confirmed < received) confirm_front(path);
  const std::uint64_t lost = path.flights.size();
  for (std::size_t i = 0; i < path.flights.size(); ++i) lanes_[path.flights[i].lane]->again.push_back(path.flights[i]);
  n_unconfirmed_ -= path.flights.size();
  path.flights.clear();
  path.in_flight_bytes = 0;
  for (const auto& each : peer.lanes)
    std::sort(each.at->again.begin(), each.at->again.end(),
              [](const Flight& a, const Flight& b) { return static_cast<std::int32_t>(a.number - b.number) > 0; });
  path.settled_generation = path.generation;
  path.settled_received = path.received;
  if (path.state == PathState::retiring) --n_retiring_;
  path.state = PathState::down;
  path.revival.lost(now_ns_, options_.hold_off_ns, options_.longest_hold_off_ns);
  ++counters_.recovered;
  note(RailEventKind::resumed, path, lost, path.why.message);
  if (spans_ != nullptr && spans_->enabled()) {
    SpanRecord span{};
    span.begin_ns = path.lost_ns;
    span.end_ns = now_ns_;
    span.op_id = -1;
    span.peer = path.name.peer;
    span.index = path.name.nic;
    span.epoch = epoch_;
    span.track = static_cast<std::uint8_t>(Track::nic_tx);
    span.kind = static_cast<std::uint8_t>(SpanKind::recovery);
    span.status = static_cast<std::uint8_t>(SpanStatus::ok);
    spans_->record(span);
  }
  watch_ns_ = now_ns_;
  pump(peer);
}

// Where the fault is: probes say it in a moment, while the repair goes on.
void Rails::judge(const PathRecord& path) {
  if (localizer_ == nullptr) return;
  const Thirds thirds = choose_thirds(rank_, path.name, options_.node_of, options_.n_nics);
  localizer_->begin(path.name, transport_.nic_state(path.name.nic), thirds, epoch_, now_ns_);
}

void Rails::take_findings() {
  for (Finding& finding : localizer_->poll(datagrams_, now_ns_)) {
    const PathRecord* const path = find(finding.path);
    if (path == nullptr) continue;
    note(RailEventKind::verdict, *path, 0, std::move(finding.evidence));
    if (!events_.empty()) events_.back().verdict = finding.verdict;
  }
}

// ---- messages

void Rails::hear(const Datagram& datagram) {
  const Message& message = datagram.message;
  if (datagram.peer < 0 || static_cast<std::size_t>(datagram.peer) >= peers_.size()) return;
  PeerRecord& peer = peers_[static_cast<std::size_t>(datagram.peer)];
  Datagram reply;
  reply.peer = datagram.peer;
  reply.nic = datagram.nic;
  reply.peer_nic = datagram.peer_nic;
  reply.message = message;
  reply.message.from = rank_;
  std::swap(reply.message.nic, reply.message.peer_nic);
  switch (message.kind) {
    case MessageKind::probe:
      if (PathRecord* const path = find({datagram.peer, message.peer_nic, message.nic}); path != nullptr) hear_probe(message, *path);
      [[fallthrough]];
    case MessageKind::ping:
      reply.message.kind = message.kind == MessageKind::ping ? MessageKind::pong : MessageKind::reply;
      messenger_.send(reply);
      break;
    case MessageKind::reply: {
      PathRecord* const path = find({datagram.peer, message.peer_nic, message.nic});
      if (path != nullptr && path->state == PathState::down && path->revival.answer(message.token)) watch_ns_ = now_ns_;
      break;
    }
    case MessageKind::hint:
    case MessageKind::request:
    case MessageKind::ack:
      hear_of_path(message, record_of({datagram.peer, message.peer_nic, message.nic}));
      break;
    // It was there when this was asked; any other message may be from long before.
    case MessageKind::pong:
      if (const std::int64_t asked_ns = std::min(static_cast<std::int64_t>(message.token), now_ns_); asked_ns > peer.heard_ns) {
        peer.heard_ns = asked_ns;
        watch_ns_ = now_ns_;  // who waits for this decides now, not when it would have asked again
      }
      break;
    case MessageKind::ask:
    case MessageKind::told: break;
  }
}

// The other end asks whether this path lives, though it is up here: it never got the connection that this end has.
void Rails::hear_probe(const Message& message, PathRecord& path) {
  if (path.state != PathState::up || message.generation == 0 || message.generation + 1 != path.generation) return;
  if (now_ns_ - path.up_ns < options_.half_open_ns) return;
  lose(path, Status(Code::link_down, describe(path) + ": it came back at this end only", path.name.peer, path.name.nic), 0);
}

void Rails::hear_of_path(const Message& message, PathRecord& path) {
  const std::uint32_t generation = message.generation;
  if (message.kind == MessageKind::ack) {
#if CCL_LAB_MUTANT == 1
    if (path.state == PathState::retiring) return settle(path, message.received);
#endif
    if (path.state == PathState::retiring && generation == path.generation) return settle(path, message.received);
    ++counters_.ignored;
    return;
  }
#if CCL_LAB_MUTANT == 1
  if (path.state == PathState::up) {
    lose(path, Status(Code::link_down, describe(path) + ": the other end lost it", path.name.peer, path.name.nic), generation);
    settle(path, message.received);
    return answer(path, generation, path.received);
  }
#endif
  if (generation < path.generation) {
    // What was agreed about is said again, as often as it is asked for; it changes nothing here.
    if (generation == path.settled_generation && generation > 0) answer(path, generation, path.settled_received);
    else ++counters_.ignored;
    return;
  }
  if (generation == path.generation) {
    if (path.state == PathState::retiring) settle(path, message.received);
    if (path.state == PathState::down) answer(path, generation, path.settled_received);
    else ++counters_.ignored;
    return;
  }
  if (path.state == PathState::retiring) {
    ++counters_.ignored;  // first this end hears what became of the generation it asks about
    return;
  }
  if (path.state == PathState::up) {
    lose(path, Status(Code::link_down, describe(path) + ": the other end lost it", path.name.peer, path.name.nic), generation);
  } else {
    path.generation = generation;  // a connection that this end never had
    path.received = path.confirmed = 0;
  }
  settle(path, message.received);
  answer(path, generation, path.settled_received);
}

// ---- watching

// Until when the gets that this path was asked for may take; nothing is heard of one before all of it is here.
std::int64_t Rails::reading_ends_ns(const PathRecord& path) const {
  std::int64_t ends_ns = kNever;
  for (const Reading& reading : readings_)
    if (reading.live && reading.posted && reading.path == path.index)
      ends_ns = std::min(ends_ns, reading.since_ns + options_.silence_ns + static_cast<std::int64_t>(reading.get.nbytes) * kSlowestByteNs);
  return ends_ns;
}

// How long what is under way over a NIC that is held to a rate may take, where it meets as much of others at the other end.
std::int64_t Rails::queue_ns(std::uint16_t nic) const {
  const std::uint64_t rate = transport_.nic_bytes_per_s(nic);
  if (rate == 0) return 0;
  std::uint64_t bytes = 0;
  for (const auto& path : paths_)
    if (path->name.nic == nic && path->state == PathState::up) bytes += path->in_flight_bytes;
  return static_cast<std::int64_t>(4'000'000'000 * bytes / rate);
}

// Until when this path could expect nothing: a NIC that is held to a rate takes puts in their order, whatever paths they go, so that what
// was put later stands still while what was put before moves.
std::int64_t Rails::in_turn_ns(const PathRecord& path) const {
  if (path.flights.empty() || transport_.nic_bytes_per_s(path.name.nic) == 0) return 0;
  const std::uint64_t order = items_[path.flights.front().item].order;
  std::int64_t last_ns = 0;
  for (const auto& other : paths_)
    if (other->name.nic == path.name.nic && other->confirmed_order < order) last_ns = std::max(last_ns, other->confirmed_ns);
  return last_ns;
}

// What time does to one path: silence, requests without an answer, alive messages.
void Rails::watch(PathRecord& path) {
  PeerRecord& peer = peer_of(path.name);
  if (peer.lost) return;
  const auto at = [this](std::int64_t ns) { watch_ns_ = std::min(watch_ns_, ns); };
  if (path.state == PathState::retiring) {
    if (now_ns_ >= path.resend_ns) ask(path);
    return at(path.resend_ns);
  }
  if (path.state == PathState::up) {
    const std::int64_t patience_ns = std::max(options_.silence_ns + queue_ns(path.name.nic), 8 * path.latency_ns);
    const std::int64_t moved_ns = std::max(path.progress_ns, in_turn_ns(path));
    const std::int64_t silent_ns = std::min(path.flights.empty() ? kNever : moved_ns + patience_ns, reading_ends_ns(path));
    if (now_ns_ < silent_ns) return silent_ns < kNever ? at(silent_ns) : void();
    if (path.asked_ns != 0 && peer.heard_ns >= path.asked_ns) {
      lose(path, Status(Code::link_down, describe(path) + ": nothing was confirmed for " + std::to_string(patience_ns / 1'000'000) +
                                             " ms although rank " + std::to_string(path.name.peer) + " answers out of band",
                        path.name.peer, path.name.nic), 0);
      return;
    }
    // Whether the peer is there at all: one that is stopped, or gone, is not a fault of a NIC.
    if (path.asked_ns == 0) path.asked_ns = now_ns_;
    if (now_ns_ >= path.ping_ns) {
      say(path, MessageKind::ping, path.generation, 0, 0, static_cast<std::uint64_t>(now_ns_));
      path.ping_ns = now_ns_ + options_.ping_ns / 4;
    }
    return at(path.ping_ns);
  }
  if (path.state != PathState::down || rank_ > path.name.peer || transport_.nic_state(path.name.nic) != NicState::up) {
    if (path.state == PathState::down && rank_ < path.name.peer) at(now_ns_ + Revival::kEveryNs);
    return;
  }
  if (path.revival.answered() >= options_.alive_wanted) {
    points_.reach(ProtocolPoint::wanted, path.name);
    wanted_.push_back(path.name);
    news_ = true;
    path.revival.reported(now_ns_);
  }
  if (now_ns_ >= path.revival.next_ns()) {
    Datagram probe;
    probe.peer = path.name.peer;
    probe.nic = path.name.nic;
    probe.peer_nic = path.name.peer_nic;
    probe.message.kind = MessageKind::probe;
    probe.message.epoch = epoch_;
    probe.message.from = rank_;
    probe.message.nic = path.name.nic;
    probe.message.peer_nic = path.name.peer_nic;
    probe.message.generation = path.generation;
    probe.message.token = ++next_token_;
    path.revival.ask(now_ns_, next_token_);
    messenger_.send(probe);
  }
  at(path.revival.next_ns());
}

void Rails::watch_peer(std::size_t index) {
  PeerRecord& peer = peers_[index];
  if (!peer.had_path || peer.lost) return;
  std::string reasons;
  for (const auto& each : peer.paths) {
    const PathRecord& path = *each.at;
    if (path.state == PathState::up) {
      peer.no_path_ns = 0;
      return;
    }
    if (!path.why.ok()) reasons += (reasons.empty() ? "" : "; ") + path.why.message;
  }
  if (peer.no_path_ns == 0) peer.no_path_ns = now_ns_;
  if (now_ns_ - peer.no_path_ns < options_.lost_ns) {
    watch_ns_ = std::min(watch_ns_, peer.no_path_ns + options_.lost_ns);
    return;
  }
  give_up(index, Status(Code::peer_lost, "rank " + std::to_string(rank_) + " has lost rank " + std::to_string(index) +
                                             ": no path to it is left, and none came back within " +
                                             std::to_string(options_.lost_ns / 1'000'000) + " ms (" + reasons +
                                             "); is its node up?", static_cast<int>(index)));
}

// Everything to and from that peer ends; a reset begins anew.
void Rails::give_up(std::size_t index, Status why) {
  PeerRecord& peer = peers_[index];
  if (peer.lost) return;
  peer.lost = true;
  peer.why = why;
  for (const auto& each : peer.paths) {
    PathRecord& path = *each.at;
    n_unconfirmed_ -= path.flights.size();
    path.flights.clear();
    if (path.state == PathState::retiring) --n_retiring_;
    if (path.state == PathState::up) transport_.retire(path.name);
    path.state = PathState::down;
  }
  for (const auto& each : peer.lanes) {
    each.at->again.clear();
    each.at->items.clear();
  }
  if (peer.queued) --n_queued_;
  peer.queued = false;
  for (Item& item : items_)
    if (item.live && static_cast<std::size_t>(lanes_[item.lane]->home.peer) == index) {
      if (!item.completed) ready_.push_back({item.cookie, why});
      item.live = false;
    }
  for (Reading& reading : readings_)
    if (reading.live && static_cast<std::size_t>(reading.get.peer) == index) {
      ready_.push_back({reading.get.cookie, why});
      reading.live = false;
      --n_readings_;
    }
  if (!peer.paths.empty()) note(RailEventKind::peer_lost, *peer.paths.front().at, 0, why.message);
  const std::uint16_t nic = peer.paths.empty() ? std::uint16_t{0} : peer.paths.front().at->name.nic;
  lost_.push_back({static_cast<std::int32_t>(index), nic, std::move(why)});
}

}  // namespace ccl_lab
