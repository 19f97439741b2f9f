// Which transport carries what; see links.hpp.
#include "comm/links.hpp"

#include <unistd.h>

#include <algorithm>
#include <utility>

namespace ccl_lab {

Links::Links(std::shared_ptr<RankSegment> own, std::vector<std::int32_t> node_of, Mode mode, SpanWriter* trace)
    : own_(std::move(own)),
      node_of_(std::move(node_of)),
      mode_(mode),
      trace_(trace),
      segments_(node_of_.size()),
      shm_(std::make_unique<ShmTransport>(*own_, trace)) {}

Status Links::attach(std::int32_t peer, std::shared_ptr<RankSegment> segment) {
  const auto at = static_cast<std::size_t>(peer);
  const auto own = static_cast<std::size_t>(own_->rank());
  if (peer < 0 || at >= node_of_.size() || at == own)
    return Status(Code::usage, "rank " + std::to_string(own) + " cannot attach rank " + std::to_string(peer) +
                                   ": expected another rank of 0.." + std::to_string(node_of_.size() - 1), peer);
  if (node_of_[at] != node_of_[own])
    return Status(Code::usage, "rank " + std::to_string(own) + " (node " + std::to_string(node_of_[own]) +
                                   ") cannot attach rank " + std::to_string(peer) + " (node " +
                                   std::to_string(node_of_[at]) + "): only ranks of one node share memory", peer);
  if (Status status = shm_->add_peer(peer, *segment); !status.ok()) return status;
  segments_[at] = std::move(segment);
  return {};
}

RankSegment* Links::leader() const {
  const std::int32_t node = node_of_[static_cast<std::size_t>(own_->rank())];
  const auto lowest = std::find(node_of_.begin(), node_of_.end(), node) - node_of_.begin();
  return lowest == own_->rank() ? own_.get() : segments_[static_cast<std::size_t>(lowest)].get();
}

TcpTransport& Links::tcp() {
  if (tcp_ != nullptr) return *tcp_;
  RankSegment* const shaped_by = leader();
  tcp_ = std::make_unique<TcpTransport>(own_->rank(), own_->signals(),
                                        shaped_by == nullptr ? std::span<NicShaper>() : shaped_by->shapers(), trace_);
  tcp_->reset(epoch_);
  for (const RegionKey key : {kControlRegionKey, kArenaRegionKey}) {
    const Status fresh = tcp_->register_region(key, own_->region(key).data(), own_->region(key).size());
    (void)fresh;  // cannot fail: no region is registered yet, and both have memory
  }
  return *tcp_;
}

Status Links::add_connection(std::int32_t peer, std::uint16_t nic, std::uint16_t peer_nic, std::uint16_t index, int fd) {
  return tcp().add_connection(peer, nic, peer_nic, index, fd, epoch_);
}

bool Links::connected(std::int32_t peer, std::uint16_t nic, std::uint16_t peer_nic) const {
  return tcp_ != nullptr && tcp_->connected(peer, nic, peer_nic);
}

Status Links::no_way(std::int32_t peer, std::uint16_t nic, std::uint16_t peer_nic) const {
  const bool same_node = node_of_[static_cast<std::size_t>(peer)] == node_of_[static_cast<std::size_t>(own_->rank())];
  const std::string who = "rank " + std::to_string(own_->rank()) + " has no way to rank " + std::to_string(peer) + ": ";
  if (mode_ == Mode::shm && !same_node)
    return Status(Code::unsupported, who + "it is on another node and transport is shm; use transport='auto'", peer);
  if (mode_ != Mode::tcp && same_node)
    return Status(Code::connect, who + "its memory is not attached; attach_peer first", peer);
  return Status(Code::connect, who + "no connection joins NIC " + std::to_string(nic) + " here and NIC " +
                                   std::to_string(peer_nic) + " there; add_connection first", peer, nic);
}

Status Links::check(const Program& program) const {
  for (const ReadyTo& to : program.ready_to())
    if (!shm_->connected(to.peer) && !connected(to.peer, to.nic, to.peer_nic)) return no_way(to.peer, to.nic, to.peer_nic);
  for (const Op& op : program.ops()) {
    if (op.slot < 0 || by_shm(op.peer) || connected(op.peer, op.nic, op.peer_nic)) continue;
    Status status = no_way(op.peer, op.nic, op.peer_nic);
    status.op_id = op.op_id;
    return status;
  }
  for (const Peer& peer : program.peers())
    if (peer.load_store && segments_[static_cast<std::size_t>(peer.rank)] == nullptr)
      return Status(Code::connect, "rank " + std::to_string(own_->rank()) + " reads memory of rank " +
                                       std::to_string(peer.rank) + ", which is not attached; attach_peer first", peer.rank);
  return {};
}

Status Links::put(const Put& put) { return by_shm(put.peer) ? shm_->put(put) : tcp().put(put); }

Status Links::ready(const Put& put) { return shm_->connected(put.peer) ? shm_->put(put) : tcp().put(put); }

Status Links::get(const Get& get) { return by_shm(get.peer) ? shm_->get(get) : tcp().get(get); }

Result<const std::byte*> Links::load(std::int32_t peer, Remote at, std::uint64_t nbytes) const {
  const auto& segment = segments_[static_cast<std::size_t>(peer)];
  const std::string who = "memory of rank " + std::to_string(peer);
  if (segment == nullptr) return Status(Code::connect, who + " is not attached; attach_peer first", peer);
  const std::span<std::byte> region = at.key == kArenaRegionKey ? segment->region(at.key) : std::span<std::byte>();
  if (region.data() == nullptr)
    return Status(Code::unsupported, who + " under key " + std::to_string(at.key) + " cannot be read in place; it must be "
                                           "registered memory", peer);
  if (at.offset > region.size() || nbytes > region.size() - at.offset)
    return Status(Code::bounds, who + ": bytes [" + std::to_string(at.offset) + ", +" + std::to_string(nbytes) +
                                    ") lie outside its arena of " + std::to_string(region.size()), peer);
  return static_cast<const std::byte*>(region.data() + at.offset);
}

int Links::poll(std::int64_t now_ns, std::vector<Completion>& completions, std::vector<LinkEvent>& events) {
  const int done = shm_->poll(now_ns, completions, events);
  return tcp_ == nullptr ? done : done + tcp_->poll(now_ns, completions, events);
}

void Links::wait_set(std::vector<pollfd>& descriptors, std::int64_t& wake_ns) const {
  shm_->wait_set(descriptors, wake_ns);
  if (tcp_ != nullptr) tcp_->wait_set(descriptors, wake_ns);
}

void Links::reset(std::uint16_t epoch) {
  epoch_ = epoch;
  tcp_.reset();
  shm_->reset(epoch);
  for (std::size_t peer = 0; peer < segments_.size(); ++peer)
    if (segments_[peer] != nullptr && !shm_->add_peer(static_cast<std::int32_t>(peer), *segments_[peer]).ok())
      segments_[peer].reset();
}

std::vector<std::uint8_t> Links::load_store() const {
  std::vector<std::uint8_t> reachable(segments_.size());
  for (std::size_t peer = 0; peer < segments_.size(); ++peer) reachable[peer] = segments_[peer] != nullptr;
  return reachable;
}

std::size_t Links::n_attached() const {
  return static_cast<std::size_t>(
      std::count_if(segments_.begin(), segments_.end(), [](const auto& segment) { return segment != nullptr; }));
}

}  // namespace ccl_lab
