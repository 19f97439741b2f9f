// Connections of one rank; see tcp.hpp.
#include "transport/tcp/tcp.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace ccl_lab {

TcpTransport::TcpTransport(int rank, SignalTable signals, std::span<NicShaper> nics, SpanWriter* trace)
    : nics_(nics), peers_(static_cast<std::size_t>(signals.n_ranks())) {
  context_.rank = rank;
  context_.signals = signals;
  context_.trace = trace;
}

TcpTransport::~TcpTransport() = default;

Status TcpTransport::add_connection(std::int32_t peer, std::uint16_t nic, std::uint16_t peer_nic, std::uint16_t index, int fd,
                                    std::uint16_t epoch) {
  const ConnectionName name{peer, nic, peer_nic, index};
  const auto refuse = [&](Code code, const std::string& why) {
    if (fd >= 0) ::close(fd);
    return Status(code, name.text(context_.rank) + " refused: " + why, peer, nic);
  };
  if (peer < 0 || peer >= static_cast<std::int32_t>(peers_.size()))
    return refuse(Code::usage, "expected a peer from 0 to " + std::to_string(peers_.size() - 1));
  if (!nics_.empty() && nic >= nics_.size())
    return refuse(Code::usage, "this node has " + std::to_string(nics_.size()) + " NICs");
  if (epoch != context_.epoch)
    return refuse(Code::connect, "it is of epoch " + std::to_string(epoch) + ", expected " + std::to_string(context_.epoch));
  for (const auto& other : connections_)
    if (other->name() == name) return refuse(Code::usage, "there is one already with index " + std::to_string(index));
  int type = 0;
  socklen_t size = sizeof type;
  if (::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_STREAM)
    return refuse(Code::usage, "descriptor " + std::to_string(fd) + " is not a stream socket");
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 || ::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0)
    return refuse(Code::connect, std::string("fcntl: ") + std::strerror(errno));
  const int on = 1;
  if (::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0 && errno != EOPNOTSUPP && errno != ENOPROTOOPT)
    return refuse(Code::connect, std::string("TCP_NODELAY: ") + std::strerror(errno));
  Peer& to = peers_[static_cast<std::size_t>(peer)];
  if (to.order == nullptr) to.order = std::make_unique<SignalOrder>(context_.signals.n_channels());
  const Shaper shaper = nics_.empty() ? Shaper() : Shaper(&nics_[nic]);
  connections_.push_back(std::make_unique<Connection>(context_, name, fd, shaper, *to.order));
  to.connections.push_back(connections_.back().get());
  return {};
}

bool TcpTransport::connected(std::int32_t peer) const {
  return peer >= 0 && peer < static_cast<std::int32_t>(peers_.size()) &&
         !peers_[static_cast<std::size_t>(peer)].connections.empty();
}

bool TcpTransport::connected(std::int32_t peer, std::uint16_t nic, std::uint16_t peer_nic) const {
  if (!connected(peer)) return false;
  for (const Connection* one : peers_[static_cast<std::size_t>(peer)].connections)
    if (one->name().nic == nic && one->name().peer_nic == peer_nic) return true;
  return false;
}

Status TcpTransport::register_region(RegionKey key, std::byte* base, std::uint64_t size) {
  return context_.regions.add(context_.rank, key, base, size);
}

Status TcpTransport::deregister_region(RegionKey key) { return context_.regions.remove(context_.rank, key); }

Result<Connection*> TcpTransport::choose(std::int32_t peer, std::uint16_t nic, std::uint16_t peer_nic, const Tag& tag) const {
  Connection* best = nullptr;
  if (peer >= 0 && peer < static_cast<std::int32_t>(peers_.size())) {
    for (Connection* one : peers_[static_cast<std::size_t>(peer)].connections) {
      if (one->name().nic != nic || one->name().peer_nic != peer_nic) continue;
      if (best == nullptr || one->queued_bytes() < best->queued_bytes()) best = one;
    }
  }
  if (best != nullptr) return best;
  return Status(connected(peer) ? Code::link_down : Code::connect,
                "no " + ConnectionName{peer, nic, peer_nic, 0}.text(context_.rank) + " for op " + std::to_string(tag.op_id) +
                    (connected(peer) ? "; other NICs still reach that rank" : "; connect it first, or reset after a failure"),
                peer, nic, tag.op_id);
}

Status TcpTransport::put(const Put& put) {
  const Result<Connection*> connection = choose(put.peer, put.nic, put.peer_nic, put.tag);
  if (!connection.ok()) return connection.status();
  std::uint32_t sequence = 0;
  if (put.signal >= 0) {
    if (put.signal >= context_.signals.n_channels())
      return Status(Code::bounds,
                    "put from rank " + std::to_string(context_.rank) + " raises signal channel " + std::to_string(put.signal) +
                        " of rank " + std::to_string(put.peer) + ", expected less than " +
                        std::to_string(context_.signals.n_channels()), put.peer, put.nic, put.tag.op_id);
    sequence = peers_[static_cast<std::size_t>(put.peer)].order->next_to_send(put.signal);
  }
  connection.value()->post(put, sequence);
  return {};
}

Status TcpTransport::get(const Get& get) {
  const Result<Connection*> connection = choose(get.peer, get.nic, get.peer_nic, get.tag);
  if (!connection.ok()) return connection.status();
  connection.value()->post(get);
  return {};
}

int TcpTransport::serve(Connection& connection, short ready, std::int64_t now_ns, std::vector<Completion>& completions,
                        Status& status) {
  int done = 0;
  if (!connection.nic_up()) {
    status = Status(Code::link_down,
                    connection.name().text(context_.rank) + ": NIC " + std::to_string(connection.name().nic) +
                        " of this node is down; bring it up and reset",
                    connection.name().peer, connection.name().nic);
    return 1;
  }
  if ((ready & (POLLIN | POLLHUP | POLLERR)) != 0) status = connection.receive(now_ns, completions, done);
  if (!status.ok()) return done + 1;
  if ((ready & POLLOUT) != 0) connection.writable();
  status = connection.send(now_ns, completions, done);
  if (status.ok()) return done;
  // The peer went; what it sent before is there and still counts.
  for (int more = 1; more > 0;) {
    more = 0;
    if (!connection.receive(now_ns, completions, more).ok()) break;
    done += more;
  }
  return done + 1;
}

void TcpTransport::drop(std::size_t i, Status status, std::vector<Completion>& completions, std::vector<LinkEvent>& events) {
  Connection& connection = *connections_[i];
  const ConnectionName name = connection.name();
  std::vector<Connection*>& of_peer = peers_[static_cast<std::size_t>(name.peer)].connections;
  of_peer.erase(std::find(of_peer.begin(), of_peer.end(), &connection));
  if (of_peer.empty()) {
    status.code = Code::peer_lost;
    status.message += "; no other connection to rank " + std::to_string(name.peer) + " is left";
  }
  connection.fail(status, completions);
  events.push_back({name.peer, name.nic, std::move(status)});
  connections_.erase(connections_.begin() + static_cast<std::ptrdiff_t>(i));
}

int TcpTransport::poll(std::int64_t now_ns, std::vector<Completion>& completions, std::vector<LinkEvent>& events) {
  polled_ns_ = now_ns;
  if (connections_.empty()) return 0;
  ready_.clear();
  std::int64_t unused = 0;
  for (const auto& connection : connections_) ready_.push_back(connection->interest(now_ns, unused));
  if (::poll(ready_.data(), ready_.size(), 0) < 0)
    for (pollfd& one : ready_) one.revents = one.events;  // interrupted: simply try them all
  int done = 0;
  std::vector<std::pair<std::size_t, Status>> ended;
  const std::size_t n = connections_.size();
  for (std::size_t k = 0; k < n; ++k) {
    const std::size_t i = (next_ + k) % n;
    Status status;
    done += serve(*connections_[i], ready_[i].revents, now_ns, completions, status);
    if (!status.ok()) ended.emplace_back(i, std::move(status));
  }
  next_ = n > 0 ? (next_ + 1) % n : 0;
  std::sort(ended.begin(), ended.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  for (auto& [i, status] : ended) drop(i, std::move(status), completions, events);
  return done;
}

void TcpTransport::wait_set(std::vector<pollfd>& descriptors, std::int64_t& wake_ns) const {
  for (const auto& connection : connections_) descriptors.push_back(connection->interest(polled_ns_, wake_ns));
}

void TcpTransport::reset(std::uint16_t epoch) {
  connections_.clear();
  for (Peer& peer : peers_) peer = Peer{};
  context_.epoch = epoch;
  next_ = 0;
}

}  // namespace ccl_lab
