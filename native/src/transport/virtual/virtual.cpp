// One rank's end; see virtual.hpp.
#include "transport/virtual/virtual.hpp"

#include <algorithm>
#include <string>

namespace ccl_lab {

VirtualTransport::VirtualTransport(VirtualNetwork& network, int rank, SignalTable signals)
    : network_(network), rank_(rank), signals_(signals) {
  network_.transports_[static_cast<std::size_t>(rank)] = this;
}

VirtualTransport::~VirtualTransport() {
  for (const std::uint32_t id : links_)
    if (VirtualNetwork::Link* const link = network_.find(id); link != nullptr) {
      const int end = link->rank[0] == rank_ && link->attached[0] ? 0 : 1;
      link->retired[end] = true;
      link->way[end].ops.clear();
      link->way[end].to_send = 0;
    }
  // What is still on its way to this rank finds its ends retired.
  for (auto& [id, link] : network_.links_)
    for (int end = 0; end < 2; ++end)
      if (link.rank[end] == rank_) link.retired[end] = true;
  network_.transports_[static_cast<std::size_t>(rank_)] = nullptr;
}

Status VirtualTransport::attach(std::uint32_t id) {
  VirtualNetwork::Link* const link = network_.find(id);
  const std::string which = "link " + std::to_string(id) + " of rank " + std::to_string(rank_);
  if (link == nullptr) return Status(Code::connect, which + " is gone; dial again", rank_);
  const int end = link->rank[0] == rank_ && !link->attached[0] ? 0 : 1;
  if (link->rank[end] != rank_ || link->attached[end] || link->retired[end])
    return Status(Code::usage, which + " has no end here that is free", rank_);
  if (link->broken[end] || network_.killed(link->rank[1 - end]))
    return Status(Code::connect, which + " was closed before it was attached; dial again", link->rank[1 - end]);
  if (connected(link->path[end]))
    return Status(Code::usage, which + ": its NICs are joined already; retire that path first", link->rank[1 - end]);
  link->attached[end] = true;
  links_.push_back(id);
  network_.kick(*link);
  return {};
}

void VirtualTransport::refuse(std::uint32_t id) {
  VirtualNetwork::Link* const link = network_.find(id);
  if (link == nullptr) return;
  const int end = link->rank[0] == rank_ && !link->attached[0] ? 0 : 1;
  if (link->rank[end] != rank_) return;
  link->retired[end] = true;
  network_.tell_other(*link, end, "refused the connection");
}

int VirtualTransport::end_of(const VirtualNetwork::Link& link, const Path& path) const {
  for (int end = 0; end < 2; ++end)
    if (link.rank[end] == rank_ && link.attached[end] && !link.retired[end] && link.path[end] == path) return end;
  return -1;
}

VirtualNetwork::Link* VirtualTransport::link_of(const Path& path) const {
  for (const std::uint32_t id : links_) {
    VirtualNetwork::Link* const link = network_.find(id);
    if (link != nullptr && end_of(*link, path) >= 0) return link;
  }
  return nullptr;
}

Status VirtualTransport::register_region(RegionKey key, std::byte* base, std::uint64_t size) {
  return regions_.add(rank_, key, base, size);
}

Status VirtualTransport::deregister_region(RegionKey key) { return regions_.remove(rank_, key); }

bool VirtualTransport::connected(std::int32_t peer) const {
  for (const std::uint32_t id : links_) {
    const VirtualNetwork::Link* const link = network_.find(id);
    if (link == nullptr) continue;
    for (int end = 0; end < 2; ++end)
      if (link->rank[end] == rank_ && link->path[end].peer == peer && link->attached[end] && network_.usable(*link, end)) return true;
  }
  return false;
}

Status VirtualTransport::put(const Put& put) {
  if (Status status = check_signal(rank_, put, signals_.n_channels()); !status.ok()) return status;
  const Path path{put.peer, put.nic, put.peer_nic};
  network_.point(VirtualPoint::before_post, rank_, path, put.notice);
  VirtualNetwork::Link* const link = link_of(path);
  const auto refused = [&](const std::string& why) {
    ++network_.counters.refused;
    return Status(Code::link_down, "put of rank " + std::to_string(rank_) + " (NIC " + std::to_string(put.nic) + ") to rank " +
                                       std::to_string(put.peer) + " (NIC " + std::to_string(put.peer_nic) + "): " + why,
                  put.peer, put.nic, put.tag.op_id);
  };
  if (link == nullptr) {
    for (const auto& [which, id] : retired_) network_.counters.on_retired += which == path;
    return refused("no connection joins these NICs; attach one first");
  }
  const int end = end_of(*link, path);
  if (link->broken[end]) return refused("the connection has failed");
  VirtualNic& nic = network_.nic_at(*link, end);
  if (nic.bad_posts > 0) {
    --nic.bad_posts;
    network_.effect(VirtualFault::bad_post);
    return refused("the NIC refused it");
  }
  VirtualNetwork::Op op;
  op.put = put;
  if (!put.confirmed && put.signal >= 0) op.signal_number = signals_sent_[{put.peer, channel_of_signal(put.signal)}]++;
  network_.post(*link, end, std::move(op));
  network_.point(VirtualPoint::posted, rank_, path, put.notice);
  return {};
}

Status VirtualTransport::get(const Get& get) {
  const Path path{get.peer, get.nic, get.peer_nic};
  VirtualNetwork::Link* const link = link_of(path);
  const int end = link == nullptr ? -1 : end_of(*link, path);
  if (link == nullptr || link->broken[end]) {
    ++network_.counters.refused;
    return Status(Code::link_down, "get of rank " + std::to_string(rank_) + " from rank " + std::to_string(get.peer) +
                                       ": no connection joins NIC " + std::to_string(get.nic) + " here and NIC " +
                                       std::to_string(get.peer_nic) + " there; attach one first", get.peer, get.nic, get.tag.op_id);
  }
  VirtualNetwork::Op op;
  op.kind = VirtualNetwork::Kind::ask;
  op.get = get;
  network_.post(*link, end, std::move(op));
  return {};
}

void VirtualTransport::retire(const Path& path) {
  VirtualNetwork::Link* const link = link_of(path);
  if (link == nullptr) return;
  std::erase_if(retired_, [&](const auto& each) { return each.first == path; });
  retired_.push_back({path, link->id});
  network_.retire(*link, end_of(*link, path));
}

void VirtualTransport::forget(std::uint32_t id) {
  std::erase(links_, id);
  std::erase_if(landings_, [&](const Landing& each) { return each.link == id; });
  std::erase_if(done_, [&](const Done& each) { return each.link == id; });
  std::erase_if(failures_, [&](const Failure& each) { return each.link == id; });
}

bool VirtualTransport::sources_are_free(const Path& path) const {
  const VirtualNetwork::Link* const link = link_of(path);
  if (link == nullptr) return true;
  const VirtualNetwork::Direction& way = link->way[end_of(*link, path)];
  return way.to_send >= way.ops.size();
}

NicState VirtualTransport::nic_state(std::uint16_t nic) const {
  return network_.nic(network_.options_.node_of[static_cast<std::size_t>(rank_)], nic).state;
}

void VirtualTransport::raise(int from, std::int32_t signal, std::uint32_t number) {
  parked_.push_back({{from, signal}, number});
  while (raise_next(from, channel_of_signal(signal))) {
  }
}

bool VirtualTransport::raise_next(int from, std::int32_t channel) {
  const std::uint32_t next = signals_raised_[{from, channel}];
  const auto found = std::find_if(parked_.begin(), parked_.end(), [&](const auto& each) {
    return each.first.first == from && channel_of_signal(each.first.second) == channel && each.second == next;
  });
  if (found == parked_.end()) return false;
  const bool silent = is_silent(found->first.second);
  parked_.erase(found);
  ++signals_raised_[{from, channel}];
  if (!silent) signals_.raise(from, channel);
  return true;
}

int VirtualTransport::poll(std::int64_t, std::vector<Completion>& completions, std::vector<LinkEvent>& events) {
  int did = 0;
  std::vector<Landing> landings;
  landings.swap(landings_);
  for (const Landing& each : landings) {
    VirtualNetwork::Link* const link = network_.find(each.link);
    if (link == nullptr) continue;
    // An end that is only broken still says what came before: its bytes are here.
    const int end = link->rank[0] == rank_ && link->attached[0] ? 0 : 1;
    if (link->retired[end] || receiver_ == nullptr) continue;
    const Path path = link->path[end];
    receiver_->landed(path, each.notice);
    network_.told(each.link, end, each.serial);
    network_.point(VirtualPoint::told, rank_, path, each.notice);
    ++did;
  }
  std::vector<Done> done;
  done.swap(done_);
  for (Done& each : done) {
    completions.push_back(std::move(each.completion));
    ++did;
  }
  if (network_.on_point && !done.empty()) network_.on_point(VirtualPoint::completed, rank_, {}, {});
  std::vector<Failure> failures;
  failures.swap(failures_);
  for (std::size_t i = 0; i < failures.size(); ++i, ++did) {
    LinkEvent& event = failures[i].event;
    const auto of_peer = [&](const Failure& other) { return other.event.peer == event.peer; };
    const auto later = failures.begin() + static_cast<std::ptrdiff_t>(i) + 1;
    if (event.status.code == Code::link_down && !connected(event.peer) && std::none_of(later, failures.end(), of_peer)) {
      event.status.code = Code::peer_lost;
      event.status.message += "; no other connection to rank " + std::to_string(event.peer) + " is left";
    }
    events.push_back(event);
  }
  return did;
}

void VirtualTransport::wait_set(std::vector<pollfd>&, std::int64_t& wake_ns) const {
  if (!landings_.empty() || !done_.empty() || !failures_.empty()) wake_ns = std::min(wake_ns, network_.now_ns());
}

void VirtualTransport::reset(std::uint16_t) {
  const std::vector<std::uint32_t> all = links_;
  for (const std::uint32_t id : all)
    if (VirtualNetwork::Link* const link = network_.find(id); link != nullptr)
      for (int end = 0; end < 2; ++end)
        if (link->rank[end] == rank_ && link->attached[end] && !link->retired[end]) network_.retire(*link, end);
  links_.clear();
  retired_.clear();
  landings_.clear();
  done_.clear();
  failures_.clear();
  signals_sent_.clear();
  signals_raised_.clear();
  parked_.clear();
}

}  // namespace ccl_lab
