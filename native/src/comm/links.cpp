// Which transport carries what; see links.hpp.
#include "comm/links.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "transport/tcp/tcp.hpp"

namespace ccl_lab {

namespace {

// The layer that repairs gives a NIC of its own queue pairs pieces large enough to be spread over them.
constexpr std::uint64_t kRdmaSegmentBytes = 8 << 20;
constexpr std::uint64_t kRdmaWindowBytes = 64 << 20;
// Where a path is quick, a put has few entries in its ledger. (all_reduce of 64 MiB, failover on / off: 1.014 with 256 KiB, 1.008.)
constexpr std::uint64_t kSocketsSegmentBytes = 1 << 20;
// To copy so much takes no longer than to be told by a frame of its own that it is there.
constexpr std::uint64_t kSocketsLaterBytes = 16 * 1024;

}  // namespace

Links::Links(std::shared_ptr<RankSegment> own, std::vector<std::int32_t> node_of, Mode mode, SpanWriter* trace)
    : own_(std::move(own)),
      node_of_(std::move(node_of)),
      mode_(mode),
      trace_(trace),
      segments_(node_of_.size()),
      shm_(std::make_unique<ShmTransport>(*own_, trace)) {}

Links::~Links() {
  if (news_fd_ >= 0) ::close(news_fd_);
}

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

std::unique_ptr<NicTransport> Links::make_net(RankSegment* shaped_by) {
  const std::span<NicShaper> shapers = shaped_by == nullptr ? std::span<NicShaper>() : shaped_by->shapers();
  const std::span<NicFaults> faults = shaped_by == nullptr ? std::span<NicFaults>() : shaped_by->faults();
  if (rdma_ != nullptr) {
    VerbsOptions options = rdma_options_;
    options.faults = faults;
    return std::make_unique<VerbsTransport>(own_->rank(), own_->signals(), shapers, trace_, *rdma_, std::move(options));
  }
  TcpOptions options;
  options.faults = faults;
  return std::make_unique<TcpTransport>(own_->rank(), own_->signals(), shapers, trace_, options);
}

NicTransport& Links::net() {
  if (net_ != nullptr) return *net_;
  RankSegment* const shaped_by = leader();
  net_ = make_net(shaped_by);
  net_->reset(epoch_);
  for (const RegionKey key : {kControlRegionKey, kArenaRegionKey}) {
    const Status fresh = net_->register_region(key, own_->region(key).data(), own_->region(key).size());
    (void)fresh;  // cannot fail: no region is registered yet, both have memory, and no NIC is open
  }
  if (messenger_ != nullptr) {
    rail_options_.points = shaped_by == nullptr ? Points() : Points(own_->rank(), node_of_, *shaped_by);
    RailOptions options = rail_options_;
    if (rdma_ != nullptr) {
      options.segment_bytes = options.first_segment_bytes = kRdmaSegmentBytes;
      options.window_bytes = kRdmaWindowBytes;
    } else {
      options.segment_bytes = kSocketsSegmentBytes;
      options.copy_bytes = 0;  // what is with the system need not be copied before
      options.later_bytes = kSocketsLaterBytes;
    }
    rails_ = std::make_unique<Rails>(own_->rank(), *net_, *messenger_, own_->signals(), trace_, options);
    rails_->reset(epoch_);
  }
  return *net_;
}

Status Links::set_rdma(VerbsOptions options, verbs::Driver* given) {
  if (net_ != nullptr)
    return Status(Code::usage, "rank " + std::to_string(own_->rank()) + " has connections already; choose RDMA first", own_->rank());
  const Result<verbs::Driver*> driver = given != nullptr ? Result<verbs::Driver*>(given) : verbs::open_library();
  if (!driver.ok()) return driver.status();
  rdma_ = driver.value();
  rdma_options_ = std::move(options);
  return {};
}

Status Links::set_messenger(std::unique_ptr<Messenger> messenger, const RailOptions& options) {
  if (net_ != nullptr)
    return Status(Code::usage, "rank " + std::to_string(own_->rank()) + " has connections already; open the messenger first",
                  own_->rank());
  news_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (news_fd_ < 0)
    return Status(Code::config, std::string("eventfd: ") + std::strerror(errno) + "; is `ulimit -n` high enough?", own_->rank());
  messenger_ = std::move(messenger);
  messenger_->reset(epoch_);
  rail_options_ = options;
  return {};
}

Status Links::add_connection(std::int32_t peer, std::uint16_t nic, std::uint16_t peer_nic, std::uint16_t index, int fd,
                             std::uint32_t generation) {
  NicTransport& transport = net();
  if (rails_ == nullptr) return transport.add_connection(peer, nic, peer_nic, index, fd, epoch_);
  const Path path{peer, nic, peer_nic};
  if (Status status = rails_->may_add(path, generation); !status.ok()) {
    ::close(fd);
    return status;
  }
  if (Status status = transport.add_connection(peer, nic, peer_nic, index, fd, epoch_); !status.ok()) return status;
  return rails_->add_path(path, generation);
}

void Links::missing(const Path& path, const std::string& why) {
  net();
  if (rails_ != nullptr) rails_->missing(path, Status(Code::connect, why, path.peer, path.nic));
}

bool Links::connected(std::int32_t peer, std::uint16_t nic, std::uint16_t peer_nic) const {
  if (rails_ != nullptr) return rails_->knows({peer, nic, peer_nic});
  return net_ != nullptr && net_->connected(peer, nic, peer_nic);
}

bool Links::reaches(std::int32_t peer, std::uint16_t nic, std::uint16_t peer_nic) const {
  return rails_ != nullptr ? rails_->reaches(peer) : connected(peer, nic, peer_nic);
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
    if (!shm_->connected(to.peer) && !reaches(to.peer, to.nic, to.peer_nic)) return no_way(to.peer, to.nic, to.peer_nic);
  for (const Op& op : program.ops()) {
    if (op.slot < 0 || by_shm(op.peer) || reaches(op.peer, op.nic, op.peer_nic)) continue;
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

Status Links::put(const Put& put) {
  if (by_shm(put.peer)) return shm_->put(put);
  return rails_ != nullptr ? rails_->put(put) : net().put(put);
}

Status Links::ready(const Put& put) { return shm_->connected(put.peer) ? shm_->put(put) : this->put(put); }

Status Links::get(const Get& get) {
  if (by_shm(get.peer)) return shm_->get(get);
  return rails_ != nullptr ? rails_->get(get) : net().get(get);
}

Result<const std::byte*> Links::load(std::int32_t peer, Remote at, std::uint64_t nbytes) const {
  const auto& segment = segments_[static_cast<std::size_t>(peer)];
  const bool mapped = segment != nullptr && at.key == kArenaRegionKey;
  if (mapped && at.offset <= segment->arena_bytes() && nbytes <= segment->arena_bytes() - at.offset)
    return static_cast<const std::byte*>(segment->arena() + at.offset);
  const std::string who = "memory of rank " + std::to_string(peer);
  if (segment == nullptr) return Status(Code::connect, who + " is not attached; attach_peer first", peer);
  if (at.key != kArenaRegionKey)
    return Status(Code::unsupported, who + " under key " + std::to_string(at.key) + " cannot be read in place; it must be "
                                           "registered memory", peer);
  return Status(Code::bounds, who + ": bytes [" + std::to_string(at.offset) + ", +" + std::to_string(nbytes) +
                                  ") lie outside its arena of " + std::to_string(segment->arena_bytes()), peer);
}

void Links::tell_news() const {
  const std::uint64_t one = 1;
  const ssize_t told = ::write(news_fd_, &one, sizeof one);
  (void)told;  // fails only where it is readable already
}

int Links::poll(std::int64_t now_ns, std::vector<Completion>& completions, std::vector<LinkEvent>& events) {
  const int done = shm_->poll(now_ns, completions, events);
  if (rails_ != nullptr) {
    const int moved = rails_->poll(now_ns, completions, events);
    if (rails_->take_news()) tell_news();
    return done + moved;
  }
  return net_ == nullptr ? done : done + net_->poll(now_ns, completions, events);
}

void Links::about_to_sleep() {
  if (net_ != nullptr) net_->about_to_sleep();
}

void Links::wait_set(std::vector<pollfd>& descriptors, std::int64_t& wake_ns) const {
  shm_->wait_set(descriptors, wake_ns);
  if (rails_ != nullptr) rails_->wait_set(descriptors, wake_ns);
  else if (net_ != nullptr) net_->wait_set(descriptors, wake_ns);
}

void Links::reset(std::uint16_t epoch) {
  epoch_ = epoch;
  rails_.reset();
  net_.reset();
  if (messenger_ != nullptr) messenger_->reset(epoch);
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
