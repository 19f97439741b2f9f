// How bytes move; see network.hpp. What is done to them is in faults.cpp.
#include "transport/virtual/network.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "transport/virtual/virtual.hpp"

namespace ccl_lab {

VirtualNetwork::VirtualNetwork(VirtualOptions options)
    : options_(std::move(options)),
      random_(options_.seed),
      transports_(options_.node_of.size(), nullptr),
      ready_(options_.node_of.size(), 0),
      dead_(options_.node_of.size(), 0),
      mail_cut_(options_.node_of.size(), 0),
      mailboxes_(options_.node_of.size()) {
  const int n_nodes = options_.node_of.empty() ? 0 : 1 + *std::max_element(options_.node_of.begin(), options_.node_of.end());
  nics_.resize(static_cast<std::size_t>(n_nodes * options_.n_nics));
  for (VirtualNic& each : nics_) each.bytes_per_ns = options_.bytes_per_ns;
}

VirtualNetwork::~VirtualNetwork() = default;

// ---- the clock

void VirtualNetwork::at(std::int64_t when_ns, std::function<void()> act) {
  events_.push_back({std::max(when_ns, now_ns_), next_order_++, std::move(act)});
  std::push_heap(events_.begin(), events_.end());
}

void VirtualNetwork::advance(std::int64_t to_ns) {
  while (!events_.empty() && events_.front().at_ns <= to_ns) {
    std::pop_heap(events_.begin(), events_.end());
    Event event = std::move(events_.back());
    events_.pop_back();
    now_ns_ = std::max(now_ns_, event.at_ns);
    event.act();
  }
  now_ns_ = std::max(now_ns_, to_ns);
}

bool VirtualNetwork::take_ready(int rank) { return std::exchange(ready_[static_cast<std::size_t>(rank)], 0) != 0; }

std::int64_t VirtualNetwork::flight_ns() { return options_.latency_ns + random_.between(0, options_.jitter_ns); }

// ---- links

std::uint32_t VirtualNetwork::dial(int rank, const Path& path) {
  std::erase_if(links_, [](const auto& each) { return each.second.gone(); });
  Link& link = links_[++next_link_];
  link.id = next_link_;
  link.rank[0] = rank;
  link.rank[1] = path.peer;
  link.path[0] = path;
  link.path[1] = {rank, path.peer_nic, path.nic};
  return link.id;
}

VirtualNetwork::Link* VirtualNetwork::find(std::uint32_t id) {
  const auto found = links_.find(id);
  return found == links_.end() ? nullptr : &found->second;
}

// The newest link of these NICs that this rank has not given up.
VirtualNetwork::Link* VirtualNetwork::link_of(int rank, const Path& path) {
  for (auto each = links_.rbegin(); each != links_.rend(); ++each)
    for (int end = 0; end < 2; ++end)
      if (each->second.rank[end] == rank && each->second.path[end] == path && !each->second.retired[end]) return &each->second;
  return nullptr;
}

VirtualNic& VirtualNetwork::nic_at(const Link& link, int end) {
  return nic(options_.node_of[static_cast<std::size_t>(link.rank[end])], link.path[end].nic);
}

bool VirtualNetwork::usable(const Link& link, int end) const {
  return !link.retired[end] && !link.broken[end] && !dead_[static_cast<std::size_t>(link.rank[end])];
}

std::string VirtualNetwork::where(const Link& link, int end) const {
  return "rank " + std::to_string(link.rank[end]) + " (NIC " + std::to_string(link.path[end].nic) + ") to rank " +
         std::to_string(link.path[end].peer) + " (NIC " + std::to_string(link.path[end].peer_nic) + ")";
}

void VirtualNetwork::point(VirtualPoint what, int rank, const Path& path, const Notice& notice) {
  if (on_point) on_point(what, rank, path, notice);
}

// Whether nothing gets from this end to the other now. Where that lasts, the NIC gives up.
bool VirtualNetwork::blocked(Link& link, int from) {
  Direction& way = link.way[from];
  const int to = 1 - from;
  bool stops = stopped(link.rank[from], link.path[from].nic, link.rank[to], link.path[to].nic);
  if (way.cut) {
    effect(VirtualFault::cut);
    stops = true;
  }
  if (!stops) {
    way.blocked_ns = -1;
    return false;
  }
  if (way.blocked_ns < 0) {
    way.blocked_ns = now_ns_;
    if (options_.retry_ns < kNever)
      after(options_.retry_ns, [this, id = link.id, from] { tried_long(id, from); });
  }
  return true;
}

void VirtualNetwork::tried_long(std::uint32_t id, int from) {
  Link* const link = find(id);
  if (link == nullptr || !usable(*link, from)) return;
  const Direction& way = link->way[from];
  if (way.blocked_ns < 0 || now_ns_ - way.blocked_ns < options_.retry_ns) return;
  if (way.ops.empty()) return;  // nobody waits for an answer
  break_end(*link, from, Status(Code::link_down, "path of " + where(*link, from) + ": no answer to " +
                                                     std::to_string(options_.retry_ns / 1000) + " us of tries",
                                link->path[from].peer, link->path[from].nic));
}

// ---- sending

void VirtualNetwork::post(Link& link, int end, Op op) {
  Direction& way = link.way[end];
  op.serial = way.next_serial++;
  VirtualNic& nic = nic_at(link, end);
  if (op.kind == Kind::put && op.put.confirmed && nic.bad_completions > 0) {
    --nic.bad_completions;
    op.bad = true;
  }
  way.ops.push_back(std::move(op));
  schedule_tx(link, end, now_ns_);
}

void VirtualNetwork::schedule_tx(Link& link, int from, std::int64_t when_ns) {
  if (link.way[from].tx_waits) return;
  link.way[from].tx_waits = true;
  at(when_ns, [this, id = link.id, from] {
    Link* const found = find(id);
    if (found == nullptr) return;
    found->way[from].tx_waits = false;
    tx(*found, from);
  });
}

// One piece leaves.
void VirtualNetwork::tx(Link& link, int from) {
  Direction& way = link.way[from];
  if (!usable(link, from) || way.to_send >= way.ops.size() || blocked(link, from)) return;
  VirtualNic& nic = nic_at(link, from);
  if (nic.free_ns > now_ns_) return schedule_tx(link, from, nic.free_ns + random_.between(0, 50));
  Op& op = way.ops[way.to_send];
  if (op.bad && op.sent == 0 && random_.one_in(2)) {
    effect(VirtualFault::bad_completion);
    return break_end(link, from, Status(Code::link_down, "path of " + where(link, from) + ": a put ended with an error; nothing of "
                                        "it arrived", link.path[from].peer, link.path[from].nic));
  }
  Piece piece;
  piece.op = op;
  piece.offset = op.sent;
  if (!read_source(link, from, op, piece)) return;
  const auto n = static_cast<std::uint64_t>(piece.bytes.size());
  nic.free_ns = now_ns_ + 20 + static_cast<std::int64_t>(static_cast<double>(n) / nic.bytes_per_ns);
  nic.tx_bytes += n;
  op.sent += n;
  const std::int64_t extra = nic.delay_ns + random_.between(0, nic.jitter_ns);
  if (extra > 0) effect(VirtualFault::delay);
  if (nic.bytes_per_ns < options_.bytes_per_ns) effect(VirtualFault::rate);
  piece.arrives_ns = std::max(way.last_arrival_ns, nic.free_ns + flight_ns() + extra);
  way.last_arrival_ns = piece.arrives_ns;
  const bool last = piece.last;
  way.wire.push_back(std::move(piece));
  if (way.wire.size() == 1) schedule_rx(link, from);
  if (last) {
    ++way.to_send;
    sent_whole(link, from, op);
  }
  if (way.to_send < way.ops.size()) schedule_tx(link, from, nic.free_ns);
}

// The bytes of the next piece as they are now: a source that changes before it is confirmed is damaged on purpose.
bool VirtualNetwork::read_source(Link& link, int from, const Op& op, Piece& piece) {
  const std::uint64_t total = op.kind == Kind::put ? op.put.nbytes : op.kind == Kind::reply ? op.get.nbytes : 0;
  const std::uint64_t most = options_.piece_bytes / 2 + random_.below(options_.piece_bytes / 2 + 1);
  const std::uint64_t n = std::min(total - op.sent, std::max<std::uint64_t>(most, 1));
  piece.last = op.sent + n == total;
  if (n == 0) return true;
  const std::byte* source = op.kind == Kind::put ? op.put.source : nullptr;
  if (op.kind == Kind::reply) {
    const auto& regions = transports_[static_cast<std::size_t>(link.rank[from])]->regions_;
    Result<std::byte*> found = regions.resolve("get", link.rank[from], op.get.source, op.get.nbytes, op.get.tag.op_id);
    if (!found.ok()) {
      effect(VirtualFault::revoked);
      break_ends(link, 1 - from, Told::both, Status(Code::registration, found.status().message, link.rank[from], link.path[from].nic));
      return false;
    }
    source = *found;
  }
  piece.bytes.assign(source + op.sent, source + op.sent + n);
  return true;
}

void VirtualNetwork::sent_whole(Link& link, int from, Op& op) {
  if (op.kind == Kind::put && !op.put.confirmed && !op.put.surely) {
    transports_[static_cast<std::size_t>(link.rank[from])]->done_.push_back({link.id, {op.put.cookie, {}}});
    wake(link.rank[from]);
    op.left = true;
  }
  if (op.kind == Kind::reply) op.left = true;
  drop_left(link.way[from]);
}

void VirtualNetwork::drop_left(Direction& way) {
  while (!way.ops.empty() && way.ops.front().left) {
    way.ops.pop_front();
    --way.to_send;
  }
}

// ---- arriving

void VirtualNetwork::schedule_rx(Link& link, int from) {
  Direction& way = link.way[from];
  if (way.rx_waits || way.wire.empty()) return;
  way.rx_waits = true;
  at(std::max(way.wire.front().arrives_ns, now_ns_), [this, id = link.id, from] {
    Link* const found = find(id);
    if (found == nullptr) return;
    found->way[from].rx_waits = false;
    rx(*found, from);
  });
}

void VirtualNetwork::rx(Link& link, int from) {
  Direction& way = link.way[from];
  const int to = 1 - from;
  if (way.wire.empty() || way.wire.front().arrives_ns > now_ns_) return schedule_rx(link, from);
  if (usable(link, to) && !link.attached[to]) return;  // attach() goes on
  if (blocked(link, from)) return;                     // kick() goes on
  Piece piece = std::move(way.wire.front());
  way.wire.pop_front();
  if (usable(link, to)) {
    if (!usable(link, from)) ++counters.late;
    land(link, from, piece);
  } else {
    ++counters.stale;
    if (usable(link, from)) tell_other(link, to, "has no such connection any more");
  }
  schedule_rx(link, from);
}

void VirtualNetwork::land(Link& link, int from, Piece& piece) {
  const int to = 1 - from;
  const int owner = link.rank[to];
  VirtualTransport& there = *transports_[static_cast<std::size_t>(owner)];
  const Op& op = piece.op;
  const std::uint64_t n = piece.bytes.size();
  ++counters.pieces;
  nic_at(link, to).rx_bytes += n;
  if (n > 0 && op.kind == Kind::reply) std::memcpy(op.get.destination + piece.offset, piece.bytes.data(), n);
  if (n > 0 && op.kind == Kind::put) {
    Result<std::byte*> found = there.regions_.resolve("put", owner, op.put.destination, op.put.nbytes, op.put.tag.op_id);
    if (!found.ok()) {
      effect(VirtualFault::revoked);
      return break_ends(link, from, Told::both, Status(Code::registration, found.status().message, owner, link.path[to].nic));
    }
    std::memcpy(*found + piece.offset, piece.bytes.data(), n);
  }
  if (piece.last) landed_whole(link, from, op);
}

void VirtualNetwork::landed_whole(Link& link, int from, const Op& op) {
  const int to = 1 - from;
  VirtualTransport& there = *transports_[static_cast<std::size_t>(link.rank[to])];
  wake(link.rank[to]);
  switch (op.kind) {
    case Kind::ask: {
      Op reply;
      reply.kind = Kind::reply;
      reply.get = op.get;
      reply.asked = op.serial;
      return post(link, to, std::move(reply));
    }
    case Kind::reply: {
      for (Op& asked : link.way[to].ops)
        if (asked.serial == op.asked && asked.kind == Kind::ask) asked.left = true;
      drop_left(link.way[to]);
      there.done_.push_back({link.id, {op.get.cookie, {}}});
      return point(VirtualPoint::read, link.rank[to], link.path[to], {});
    }
    case Kind::put: break;
  }
  if (op.put.confirmed) there.landings_.push_back({link.id, op.serial, op.put.notice});
  else if (op.put.signal >= 0) there.raise(link.rank[from], op.put.signal, op.signal_number);
  if (op.put.surely && !op.put.confirmed) told(link.id, to, op.serial);
  if (op.bad) {
    effect(VirtualFault::bad_completion);
    return break_end(link, from, Status(Code::link_down, "path of " + where(link, from) + ": a put ended with an error, though its "
                                        "bytes arrived", link.path[from].peer, link.path[from].nic));
  }
  if (op.put.confirmed) point(VirtualPoint::arrived, link.rank[to], link.path[to], op.put.notice);
}

// The receiver was told of everything before and including `serial`.
void VirtualNetwork::told(std::uint32_t id, int receiver, std::uint64_t serial) {
  Link* const link = find(id);
  if (link == nullptr) return;
  link->way[1 - receiver].told = serial + 1;
  after(flight_ns(), [this, id, from = 1 - receiver] {
    if (Link* const found = find(id); found != nullptr) ack(*found, from);
  });
}

// The confirmation travels the other way: it waits where that is blocked.
void VirtualNetwork::ack(Link& link, int from) {
  Direction& way = link.way[from];
  if (way.mute) return effect(VirtualFault::unconfirmed);
  way.ack_waits = blocked(link, 1 - from);
  if (way.ack_waits || way.acked >= way.told) return;
  way.acked = way.told;
  confirm(link, from);
}

void VirtualNetwork::confirm(Link& link, int from) {
  if (!usable(link, from)) return;
  Direction& way = link.way[from];
  const std::uint64_t upto = way.acked;
  const int rank = link.rank[from];
  const Path path = link.path[from];
  std::vector<Notice> confirmed;
  for (Op& op : way.ops) {
    if (op.serial >= upto) break;
    if (op.kind != Kind::put || op.left || !(op.put.confirmed || op.put.surely)) continue;
    op.left = true;
    transports_[static_cast<std::size_t>(rank)]->done_.push_back({link.id, {op.put.cookie, {}}});
    if (op.put.confirmed) confirmed.push_back(op.put.notice);
  }
  drop_left(way);
  wake(rank);
  for (const Notice& notice : confirmed) point(VirtualPoint::confirmed, rank, path, notice);
}

}  // namespace ccl_lab
