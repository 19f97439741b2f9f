// Ranks in one thread; see loop.hpp.
#include "transport/loop/loop.hpp"

#include <algorithm>
#include <cstring>
#include <string>

namespace ccl_lab {

LoopTransport::LoopTransport(LoopHub& hub, int rank, SignalTable signals)
    : hub_(hub),
      rank_(rank),
      signals_(signals),
      random_state_(hub.seed_ * 0x9e3779b97f4a7c15u + static_cast<std::uint64_t>(rank) + 1),
      linked_(hub.ranks_.size(), kLinked) {
  hub_.ranks_[static_cast<std::size_t>(rank)] = this;
}

LoopTransport::~LoopTransport() { hub_.ranks_[static_cast<std::size_t>(rank_)] = nullptr; }

void LoopTransport::link(std::int32_t peer) { linked_[static_cast<std::size_t>(peer)] = kLinked; }

std::uint64_t LoopTransport::random() {  // splitmix64
  std::uint64_t z = (random_state_ += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

Status LoopTransport::register_region(RegionKey key, std::byte* base, std::uint64_t size) {
  return regions_.add(rank_, key, base, size);
}

Status LoopTransport::deregister_region(RegionKey key) { return regions_.remove(rank_, key); }

bool LoopTransport::connected(std::int32_t peer) const {
  if (peer < 0 || peer >= static_cast<std::int32_t>(hub_.ranks_.size())) return false;
  const LoopTransport* other = hub_.ranks_[static_cast<std::size_t>(peer)];
  return other != nullptr && other->epoch_ == epoch_ && linked_[static_cast<std::size_t>(peer)] != kUnlinked &&
         other->linked_[static_cast<std::size_t>(rank_)] != kUnlinked;
}

Status LoopTransport::check_peer(std::int32_t peer, const Tag& tag) const {
  if (connected(peer)) return {};
  return Status(Code::connect,
                "rank " + std::to_string(rank_) + ", op " + std::to_string(tag.op_id) + ": rank " +
                    std::to_string(peer) + " is not connected by loop; expected a rank of the hub, linked in epoch " +
                    std::to_string(epoch_),
                peer, -1, tag.op_id);
}

Status LoopTransport::put(const Put& put) {
  if (Status status = check_peer(put.peer, put.tag); !status.ok()) return status;
  const LoopTransport& peer = *hub_.ranks_[static_cast<std::size_t>(put.peer)];
  if (put.signal >= 0 && !peer.signals_.contains(rank_, put.signal))
    return Status(Code::bounds, "rank " + std::to_string(put.peer) + " has no signal channel " +
                                    std::to_string(put.signal), put.peer, -1, put.tag.op_id);
  if (put.nbytes > 0) {
    const Result<std::byte*> at = peer.regions_.resolve("put", put.peer, put.destination, put.nbytes, put.tag.op_id);
    if (!at.ok()) return at.status();
  }
  Item item;
  item.peer = put.peer;
  item.source = put.source;
  item.nbytes = put.nbytes;
  item.remote = put.destination;
  item.signal = put.signal;
  item.cookie = put.cookie;
  item.tag = put.tag;
  queue_.push(item);
  return {};
}

Status LoopTransport::get(const Get& get) {
  if (Status status = check_peer(get.peer, get.tag); !status.ok()) return status;
  const LoopTransport& peer = *hub_.ranks_[static_cast<std::size_t>(get.peer)];
  const Result<std::byte*> at = peer.regions_.resolve("get", get.peer, get.source, get.nbytes, get.tag.op_id);
  if (!at.ok()) return at.status();
  Item item;
  item.is_get = true;
  item.peer = get.peer;
  item.destination = get.destination;
  item.nbytes = get.nbytes;
  item.remote = get.source;
  item.cookie = get.cookie;
  item.tag = get.tag;
  queue_.push(item);
  return {};
}

// Whether item i may raise its signal: no earlier item raises the same counter.
bool LoopTransport::may_finish(std::size_t i) {
  for (std::size_t j = 0; j < i && queue_[i].signal >= 0; ++j)
    if (queue_[j].peer == queue_[i].peer && queue_[j].signal == queue_[i].signal) return false;
  return true;
}

// Moves up to nbytes of an item; true if that finished it. A region can have gone since the op was posted.
bool LoopTransport::advance(Item& item, std::uint64_t nbytes, bool may_signal, Status& status) {
  LoopTransport& peer = *hub_.ranks_[static_cast<std::size_t>(item.peer)];
  if (item.nbytes > 0) {
    const char* what = item.is_get ? "get" : "put";
    const Result<std::byte*> at = peer.regions_.resolve(what, item.peer, item.remote, item.nbytes, item.tag.op_id);
    if (!at.ok()) {
      status = at.status();
      return true;
    }
    const std::uint64_t n = std::min(nbytes, item.nbytes - item.done);
    std::byte* remote = at.value() + item.done;
    if (n > 0 && item.is_get) std::memmove(item.destination + item.done, remote, n);
    if (n > 0 && !item.is_get) std::memmove(remote, item.source + item.done, n);
    item.done += n;
  }
  if (item.done < item.nbytes || !may_signal) return false;
  if (item.signal >= 0 && !is_silent(item.signal)) peer.signals_.raise(rank_, item.signal);
  return true;
}

// A peer that was connected and is no more, or for which ops wait in vain.
void LoopTransport::report_lost(std::vector<Completion>& completions, std::vector<LinkEvent>& events) {
  for (std::size_t p = 0; p < linked_.size(); ++p) {
    const auto peer = static_cast<std::int32_t>(p);
    if (connected(peer)) {
      linked_[p] = kSeen;
      continue;
    }
    const Status status(Code::peer_lost,
                        "rank " + std::to_string(rank_) + " lost rank " + std::to_string(peer) +
                            " (loop): it left the hub or was reset; reset this rank too and link again", peer);
    bool lost = linked_[p] == kSeen;
    for (std::size_t i = 0; i < queue_.size();) {
      if (queue_[i].peer != peer) {
        ++i;
        continue;
      }
      completions.push_back({queue_[i].cookie, status});
      queue_.erase(i);
      lost = true;
    }
    if (!lost) continue;
    linked_[p] = kUnlinked;
    events.push_back({peer, 0, status});
  }
}

int LoopTransport::poll(std::int64_t, std::vector<Completion>& completions, std::vector<LinkEvent>& events) {
  const std::size_t before = completions.size() + events.size();
  report_lost(completions, events);
  int moved = 0;
  const std::size_t steps = hub_.seed_ == 0 ? queue_.size() : static_cast<std::size_t>(random() % 4);
  for (std::size_t step = 0; step < steps && !queue_.empty(); ++step) {
    const std::size_t i = hub_.seed_ == 0 ? 0 : static_cast<std::size_t>(random() % queue_.size());
    Item& item = queue_[i];
    const std::uint64_t part = hub_.seed_ == 0 ? item.nbytes : 1 + random() % (item.nbytes + 1);
    Status status;
    ++moved;
    if (!advance(item, part, may_finish(i), status)) continue;
    completions.push_back({item.cookie, status});
    queue_.erase(i);
  }
  return moved + static_cast<int>(completions.size() + events.size() - before);
}

void LoopTransport::wait_set(std::vector<pollfd>&, std::int64_t& wake_ns) const {
  wake_ns = std::min<std::int64_t>(wake_ns, 0);  // nothing to sleep on: the other ranks run in this thread
}

void LoopTransport::reset(std::uint16_t epoch) {
  queue_.clear();
  epoch_ = epoch;
  std::fill(linked_.begin(), linked_.end(), kUnlinked);
}

}  // namespace ccl_lab
