// Bytes between ranks of one node; see shm.hpp.
#include "transport/shm/shm.hpp"

#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "base/clock.hpp"
#include "transport/regions.hpp"
#include "transport/segment_span.hpp"

namespace ccl_lab {

namespace {

// How late the end of a peer's process may be noticed by a rank that never sleeps; one system call each.
constexpr std::int64_t kProcessCheckNs = 1'000'000;

int open_process(int pid) {
#ifdef SYS_pidfd_open
  return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
#else
  (void)pid;
  return -1;
#endif
}

Result<std::uint64_t> resolve_remote(const RankSegment& segment, Remote at, std::uint64_t nbytes, bool& plain,
                                     const char* what, int op_id) {
  const std::span<std::byte> mapped = segment.region(at.key);
  if (mapped.data() != nullptr) {
    if (Status status = check_range(what, segment.rank(), at, nbytes, mapped.size(), op_id); !status.ok()) return status;
    plain = false;
    return reinterpret_cast<std::uint64_t>(mapped.data()) + at.offset;
  }
  for (const RegionSlot& slot : segment.region_slots()) {
    if (slot.state.load(std::memory_order_acquire) == 0 || slot.key != at.key) continue;
    if (Status status = check_range(what, segment.rank(), at, nbytes, slot.size, op_id); !status.ok()) return status;
    plain = true;
    return slot.base + at.offset;
  }
  return unknown_region(what, segment.rank(), at.key, op_id);
}

}  // namespace

ShmTransport::ShmTransport(const RankSegment& own, SpanWriter* trace)
    : own_(own), trace_(trace), peers_(static_cast<std::size_t>(own.n_ranks())) {
  peers_[static_cast<std::size_t>(own.rank())].segment = &own;
}

ShmTransport::~ShmTransport() { drop_peers(); }

Status ShmTransport::add_peer(std::int32_t peer, const RankSegment& segment) {
  const std::string who = "rank " + std::to_string(own_.rank()) + " cannot attach rank " + std::to_string(peer);
  if (peer < 0 || peer >= own_.n_ranks())
    return Status(Code::usage, who + ": expected 0 to " + std::to_string(own_.n_ranks() - 1), peer);
  if (segment.rank() != peer || segment.n_ranks() != own_.n_ranks())
    return Status(Code::connect,
                  who + ": its segment says rank " + std::to_string(segment.rank()) + " of " +
                      std::to_string(segment.n_ranks()) + ", expected " + std::to_string(peer) + " of " +
                      std::to_string(own_.n_ranks()) + "; do all ranks belong to one world?", peer);
  Peer& slot = peers_[static_cast<std::size_t>(peer)];
  if (slot.segment != nullptr && peer != own_.rank())
    return Status(Code::usage, who + " by shm: it is attached already", peer);
  slot.segment = &segment;
  if (segment.pid() != ::getpid()) {
    slot.process = open_process(segment.pid());
    if (slot.process < 0 && errno == ESRCH) {
      slot.segment = nullptr;
      return Status(Code::peer_lost, who + ": its process " + std::to_string(segment.pid()) + " has ended", peer);
    }
  }
  if (slot.process >= 0) {
    processes_.push_back({slot.process, POLLIN, 0});
    process_ranks_.push_back(peer);
  }
  return {};
}

Status ShmTransport::register_region(RegionKey key, std::byte* base, std::uint64_t size) {
  const std::string who = "region " + std::to_string(key) + " of rank " + std::to_string(own_.rank());
  const std::span<std::byte> mapped = own_.region(key);
  if (mapped.data() != nullptr) {
    if (mapped.data() == base && mapped.size() == size) return {};
    return Status(Code::registration, who + " is a part of its segment and cannot be other memory", own_.rank());
  }
  for (const RegionSlot& slot : own_.region_slots())
    if (slot.state.load(std::memory_order_relaxed) != 0 && slot.key == key)
      return Status(Code::registration, who + " is registered already; deregister it first", own_.rank());
  for (RegionSlot& slot : own_.region_slots()) {
    if (slot.state.load(std::memory_order_relaxed) != 0) continue;
    slot.key = key;
    slot.base = reinterpret_cast<std::uint64_t>(base);
    slot.size = size;
    slot.state.store(1, std::memory_order_release);
    return {};
  }
  return Status(Code::registration,
                who + ": all " + std::to_string(kRegionSlots) + " regions of plain memory are in use; use registered memory",
                own_.rank());
}

Status ShmTransport::deregister_region(RegionKey key) {
  if (own_.region(key).data() != nullptr) return {};
  for (RegionSlot& slot : own_.region_slots()) {
    if (slot.state.load(std::memory_order_relaxed) == 0 || slot.key != key) continue;
    slot.state.store(0, std::memory_order_release);
    return {};
  }
  return unknown_region("deregistration", own_.rank(), key, -1);
}

bool ShmTransport::connected(std::int32_t peer) const {
  if (peer < 0 || peer >= static_cast<std::int32_t>(peers_.size())) return false;
  const Peer& slot = peers_[static_cast<std::size_t>(peer)];
  return slot.segment != nullptr && slot.failed.ok();
}

Status ShmTransport::check_peer(std::int32_t peer, const Tag& tag) const {
  if (connected(peer)) return {};
  if (peer >= 0 && peer < own_.n_ranks()) {
    const Peer& slot = peers_[static_cast<std::size_t>(peer)];
    if (!slot.failed.ok()) return slot.failed;
  }
  return Status(Code::connect,
                "rank " + std::to_string(own_.rank()) + ", op " + std::to_string(tag.op_id) + ": rank " +
                    std::to_string(peer) + " is not attached by shm; attach its segment first", peer, -1, tag.op_id);
}

Status ShmTransport::enqueue(std::int32_t peer, Item item, Remote remote, const char* what) {
  if (Status status = check_peer(peer, item.tag); !status.ok()) return status;
  Peer& slot = peers_[static_cast<std::size_t>(peer)];
  if (item.nbytes > 0) {
    const Result<std::uint64_t> at =
        resolve_remote(*slot.segment, remote, item.nbytes, item.plain, what, item.tag.op_id);
    if (!at.ok()) return at.status();
    item.remote = at.value();
  }
  slot.queue.push(item);
  ++queued_;
  return {};
}

Status ShmTransport::put(const Put& put) {
  const auto n_channels = static_cast<std::int32_t>(own_.header().n_signal_channels);
  if (Status status = check_signal(own_.rank(), put, n_channels); !status.ok()) return status;
  Item item;
  item.local = const_cast<std::byte*>(put.source);  // only ever read: is_get is false
  item.nbytes = put.nbytes;
  item.signal = put.signal;
  item.cookie = put.cookie;
  item.tag = put.tag;
  return enqueue(put.peer, item, put.destination, "put");
}

Status ShmTransport::get(const Get& get) {
  Item item;
  item.is_get = true;
  item.local = get.destination;
  item.nbytes = get.nbytes;
  item.cookie = get.cookie;
  item.tag = get.tag;
  return enqueue(get.peer, item, get.source, "get");
}

Status ShmTransport::copy_slice(const Peer& peer, Item& item, std::uint64_t nbytes) const {
  std::byte* local = item.local + item.done;
  if (!item.plain) {
    auto* remote = reinterpret_cast<std::byte*>(item.remote + item.done);
    std::memmove(item.is_get ? local : remote, item.is_get ? remote : local, nbytes);
    item.done += nbytes;
    return {};
  }
  iovec here{local, nbytes};
  iovec there{reinterpret_cast<void*>(item.remote + item.done), nbytes};
  const int pid = peer.segment->pid();
  const ssize_t n = item.is_get ? ::process_vm_readv(pid, &here, 1, &there, 1, 0)
                                : ::process_vm_writev(pid, &here, 1, &there, 1, 0);
  if (n > 0) {
    item.done += static_cast<std::uint64_t>(n);
    return {};
  }
  const int rank = peer.segment->rank();
  return Status(errno == ESRCH ? Code::peer_lost : Code::registration,
                std::string(item.is_get ? "get from" : "put to") + " plain memory of rank " + std::to_string(rank) +
                    " (process " + std::to_string(pid) + ") failed: " + std::strerror(errno) +
                    "; use registered memory, or allow it (kernel.yama.ptrace_scope = 0)",
                rank, -1, item.tag.op_id);
}

// The bytes are there: say so to the peer, and to the trace.
void ShmTransport::finish(const Peer& peer, std::int32_t rank, const Item& item) {
  if (item.signal >= 0 && !is_silent(item.signal)) {
    peer.segment->signals().raise(own_.rank(), item.signal);
    if (rank != own_.rank()) peer.segment->doorbell().ring();
  }
  if (trace_ == nullptr || item.begin_ns == 0) return;
  trace_->record(segment_span(Track::fabric, rank, item.tag.channel, epoch_, item.tag, item.nbytes, item.begin_ns, now_ns()));
}

void ShmTransport::fail(std::int32_t peer, const Status& status, std::vector<Completion>& completions) {
  Peer& slot = peers_[static_cast<std::size_t>(peer)];
  slot.failed = status;
  for (; !slot.queue.empty(); slot.queue.pop(), --queued_) completions.push_back({slot.queue.front().cookie, status});
}

int ShmTransport::drain(std::int32_t peer, std::uint64_t& budget, std::vector<Completion>& completions) {
  Peer& slot = peers_[static_cast<std::size_t>(peer)];
  int done = 0;
  while (!slot.queue.empty()) {
    Item& item = slot.queue.front();
    if (item.nbytes > item.done) {
      if (budget == 0) break;
      if (item.done == 0 && trace_ != nullptr && trace_->enabled()) item.begin_ns = ccl_lab::now_ns();
      const std::uint64_t n = std::min(budget, item.nbytes - item.done);
      if (Status status = copy_slice(slot, item, n); !status.ok()) {
        fail(peer, status, completions);
        return done + 1;
      }
      budget -= n;
      ++done;
    }
    if (item.done < item.nbytes) continue;
    finish(slot, peer, item);
    completions.push_back({item.cookie, {}});
    slot.queue.pop();
    --queued_;
    ++done;
  }
  return done;
}

int ShmTransport::find_ended(std::int64_t now_ns, std::vector<Completion>& completions, std::vector<LinkEvent>& events) {
  if (processes_.empty() || now_ns < next_check_ns_) return 0;
  next_check_ns_ = now_ns + kProcessCheckNs;
  if (::poll(processes_.data(), processes_.size(), 0) <= 0) return 0;
  int found = 0;
  for (std::size_t i = 0; i < processes_.size();) {
    if (processes_[i].revents == 0) {
      ++i;
      continue;
    }
    const std::int32_t rank = process_ranks_[i];
    Peer& peer = peers_[static_cast<std::size_t>(rank)];
    const Status status(Code::peer_lost,
                        "rank " + std::to_string(own_.rank()) + " lost rank " + std::to_string(rank) + " (shm): its process " +
                            std::to_string(peer.segment->pid()) + " ended; see its own output for why", rank);
    fail(rank, status, completions);
    events.push_back({rank, 0, status});
    ::close(peer.process);
    peer.process = -1;
    processes_.erase(processes_.begin() + static_cast<std::ptrdiff_t>(i));
    process_ranks_.erase(process_ranks_.begin() + static_cast<std::ptrdiff_t>(i));
    ++found;
  }
  return found;
}

int ShmTransport::poll(std::int64_t now_ns, std::vector<Completion>& completions, std::vector<LinkEvent>& events) {
  int done = find_ended(now_ns, completions, events);
  std::uint64_t budget = kShmSliceBytes;
  for (std::size_t i = 0; i < peers_.size() && queued_ > 0; ++i) {
    const std::size_t peer = (next_ + i) % peers_.size();
    if (!peers_[peer].queue.empty()) done += drain(static_cast<std::int32_t>(peer), budget, completions);
    if (budget > 0) continue;
    next_ = (peer + 1) % peers_.size();
    break;
  }
  return done;
}

void ShmTransport::wait_set(std::vector<pollfd>& descriptors, std::int64_t& wake_ns) const {
  for (const pollfd& process : processes_) descriptors.push_back({process.fd, POLLIN, 0});
  if (queued_ > 0) wake_ns = std::min<std::int64_t>(wake_ns, 0);
}

void ShmTransport::drop_peers() {
  for (Peer& peer : peers_) {
    if (peer.process >= 0) ::close(peer.process);
    peer = Peer{};
  }
  processes_.clear();
  process_ranks_.clear();
  queued_ = 0;
}

void ShmTransport::reset(std::uint16_t epoch) {
  drop_peers();
  epoch_ = epoch;
  peers_[static_cast<std::size_t>(own_.rank())].segment = &own_;
}

}  // namespace ccl_lab
