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

namespace {

// While bytes flow, sockets are known to be ready without asking.
constexpr int kMostUnlooked = 4;

// Between processes of one machine bytes go from cache to cache as long as few are under way: more than this in the kernel
// and each copy goes through memory (1.3 times slower on two cores). Between machines the system sizes its buffers itself,
// by the distance.
constexpr int kLocalSendBuffer = 128 * 1024;

// Whether the peer of a connected socket is on this machine: both ends have the same address, or one that never leaves it.
bool is_local(int fd) {
  sockaddr_storage ends[2]{};
  socklen_t sizes[2] = {sizeof(sockaddr_storage), sizeof(sockaddr_storage)};
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&ends[0]), &sizes[0]) != 0 ||
      ::getpeername(fd, reinterpret_cast<sockaddr*>(&ends[1]), &sizes[1]) != 0 || ends[0].ss_family != ends[1].ss_family)
    return false;
  if (ends[0].ss_family == AF_INET) {
    const auto address = [&](int i) { return reinterpret_cast<const sockaddr_in*>(&ends[i])->sin_addr.s_addr; };
    return address(0) == address(1) || (ntohl(address(1)) >> 24) == IN_LOOPBACKNET;
  }
  if (ends[0].ss_family != AF_INET6) return ends[0].ss_family == AF_UNIX;
  const auto address = [&](int i) { return reinterpret_cast<const sockaddr_in6*>(&ends[i])->sin6_addr; };
  const in6_addr own = address(0);
  const in6_addr other = address(1);
  return std::memcmp(&own, &other, sizeof own) == 0;
}

Status set_option(int fd, int level, int option, int value, const char* name) {
  // A stream socket that is not of TCP knows no options of TCP, and needs none.
  if (::setsockopt(fd, level, option, &value, sizeof value) == 0 || errno == EOPNOTSUPP || errno == ENOPROTOOPT) return {};
  return Status(Code::connect, std::string(name) + ": " + std::strerror(errno));
}

// ok, or what the system refused.
Status tune(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 || ::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0)
    return Status(Code::connect, std::string("fcntl: ") + std::strerror(errno));
  if (Status status = set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY"); !status.ok()) return status;
  if (is_local(fd)) return set_option(fd, SOL_SOCKET, SO_SNDBUF, kLocalSendBuffer, "SO_SNDBUF");
  return set_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, Connection::kUnsentBytes, "TCP_NOTSENT_LOWAT");
}

}  // namespace

TcpTransport::TcpTransport(int rank, SignalTable signals, std::span<NicShaper> nics, SpanWriter* trace, TcpOptions options)
    : nics_(nics), faults_(options.faults), peers_(static_cast<std::size_t>(signals.n_ranks())) {
  context_.rank = rank;
  context_.signals = signals;
  context_.trace = trace;
  context_.first_number = options.first_number;
}

TcpTransport::~TcpTransport() = default;

Status TcpTransport::check_connection(const ConnectionName& name, int fd, std::uint16_t epoch) const {
  if (name.peer < 0 || name.peer >= static_cast<std::int32_t>(peers_.size()))
    return Status(Code::usage, "expected a peer from 0 to " + std::to_string(peers_.size() - 1));
  if (!nics_.empty() && name.nic >= nics_.size())
    return Status(Code::usage, "this node has " + std::to_string(nics_.size()) + " NICs");
  if (epoch != context_.epoch)
    return Status(Code::connect, "it is of epoch " + std::to_string(epoch) + ", expected " + std::to_string(context_.epoch));
  if (const Link* link = find(name); link != nullptr) {
    if (!link->ended.ok()) return Status(Code::link_down, "the others between these NICs are ending; reset first");
    for (const auto& other : link->connections)
      if (other->name() == name)
        return Status(Code::usage, "there is one already with index " + std::to_string(name.index));
  }
  int type = 0;
  socklen_t size = sizeof type;
  if (::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_STREAM)
    return Status(Code::usage, "descriptor " + std::to_string(fd) + " is not a stream socket");
  return tune(fd);
}

Status TcpTransport::add_connection(std::int32_t peer, std::uint16_t nic, std::uint16_t peer_nic, std::uint16_t index, int fd,
                                    std::uint16_t epoch) {
  const ConnectionName name{peer, nic, peer_nic, index};
  const auto refuse = [&](const Status& why) {
    if (fd >= 0) ::close(fd);
    return Status(why.code, name.text(context_.rank) + " refused: " + why.message, peer, nic);
  };
  if (const Status status = check_connection(name, fd, epoch); !status.ok()) return refuse(status);
  Peer& to = peers_[static_cast<std::size_t>(peer)];
  if (to.order == nullptr)
    to.order = std::make_unique<SignalOrder>(context_.signals.n_channels(), context_.first_number);
  Link* link = find(name);
  std::unique_ptr<Link> fresh;
  if (link == nullptr) {
    fresh = std::make_unique<Link>(context_, ConnectionName{peer, nic, peer_nic, 0}, *to.order);
    link = fresh.get();
    if (nic < faults_.size()) link->faults = &faults_[nic];
  }
  const Shaper shaper = nics_.empty() ? Shaper() : Shaper(&nics_[nic]);
  auto connection = std::make_unique<Connection>(context_, name, fd, shaper, link->bundle);
  if (const Status status = poller_.add(fd, connection.get()); !status.ok()) {
    connection.reset();
    fd = -1;
    return refuse(status);
  }
  link->connections.push_back(std::move(connection));
  link->bundle.stir();
  if (fresh != nullptr) {
    to.links.push_back(link);
    links_.push_back(std::move(fresh));
  }
  return {};
}

TcpTransport::Link* TcpTransport::find(const ConnectionName& name) const {
  if (name.peer < 0 || name.peer >= static_cast<std::int32_t>(peers_.size())) return nullptr;
  for (Link* link : peers_[static_cast<std::size_t>(name.peer)].links)
    if (link->bundle.name().same_nics(name)) return link;
  return nullptr;
}

bool TcpTransport::connected(std::int32_t peer) const {
  return peer >= 0 && peer < static_cast<std::int32_t>(peers_.size()) &&
         !peers_[static_cast<std::size_t>(peer)].links.empty();
}

bool TcpTransport::connected(std::int32_t peer, std::uint16_t nic, std::uint16_t peer_nic) const {
  const Link* link = find({peer, nic, peer_nic, 0});
  return link != nullptr && link->ended.ok();
}

bool TcpTransport::unsent() const {
  return std::any_of(links_.begin(), links_.end(), [](const auto& link) {
    return !link->bundle.settled() && link->ended.ok() && (link->bundle.has_puts() || link->unsent());
  });
}

bool TcpTransport::sources_are_free(const Path& path) const {
  const Link* const link = find({path.peer, path.nic, path.peer_nic, 0});
  return link == nullptr || !link->ended.ok() || (!link->bundle.holds_puts() && !link->unsent());
}

std::size_t TcpTransport::n_connections() const {
  std::size_t n = 0;
  for (const auto& link : links_) n += link->connections.size();
  return n;
}

Status TcpTransport::register_region(RegionKey key, std::byte* base, std::uint64_t size) {
  return context_.regions.add(context_.rank, key, base, size);
}

Status TcpTransport::deregister_region(RegionKey key) { return context_.regions.remove(context_.rank, key); }

Result<TcpTransport::Link*> TcpTransport::choose(std::int32_t peer, std::uint16_t nic, std::uint16_t peer_nic,
                                                 const Tag& tag) const {
  Link* const link = find({peer, nic, peer_nic, 0});
  if (link != nullptr && link->ended.ok()) return link;
  if (link != nullptr) return link->ended;
  return no_path(ConnectionName{peer, nic, peer_nic, 0}.text(context_.rank), peer, nic, tag);
}

Status TcpTransport::put(const Put& put) {
  const Result<Link*> link = choose(put.peer, put.nic, put.peer_nic, put.tag);
  if (!link.ok()) return link.status();
  if (Status status = check_signal(context_.rank, put, context_.signals.n_channels()); !status.ok()) return status;
  std::uint32_t sequence = 0;
  if (!put.confirmed && put.signal >= 0) sequence = peers_[static_cast<std::size_t>(put.peer)].order->next_to_send(put.signal);
  link.value()->bundle.post(put, sequence, put.order != 0 ? put.order : ++n_posted_);
  return {};
}

Status TcpTransport::get(const Get& get) {
  const Result<Link*> link = choose(get.peer, get.nic, get.peer_nic, get.tag);
  if (!link.ok()) return link.status();
  link.value()->bundle.post(get);
  return {};
}

// What injectors ask of the NIC of a link; nothing but one load where they ask nothing.
void TcpTransport::look(Link& link, std::int64_t now_ns) const {
  NicFaults* const asked = link.faults != nullptr && link.faults->asked() ? link.faults : nullptr;
  const bool changed = asked != nullptr || link.bundle.faults() != nullptr;
  link.bundle.look(asked, now_ns);
  if (!changed) return;
  link.mute_tx = asked != nullptr && asked->mute_tx();
  link.mute_rx = asked != nullptr && asked->mute_rx();
  for (const auto& connection : link.connections) {
    connection->obey(now_ns);
    connection->hold(true, link.mute_tx, asked);
    connection->hold(false, link.mute_rx, asked);
  }
  if (asked != nullptr && link.ended.ok() && asked->take(NicFault::sever))
    link.connections[link.turn % link.connections.size()]->sever();
}

// Most links of a rank have nothing to do at a time.
bool TcpTransport::idle(const Link& link, std::int64_t now_ns) const {
  const bool asked = link.faults != nullptr && link.faults->asked();
  if (!link.ended.ok() || !link.bundle.quiet(now_ns) || (takes_acks_ && link.bundle.has_acks())) return false;
  if (asked || !link.connections.front()->nic_up()) return false;
  return std::none_of(link.connections.begin(), link.connections.end(), [](const auto& connection) {
    return connection->readable() || connection->sendable() || connection->held();
  });
}

// Whether nothing but bytes can happen: no NIC is down, and injectors ask nothing of any.
bool TcpTransport::calm() const {
  return std::all_of(nics_.begin(), nics_.end(), [](const NicShaper& nic) { return nic.up.load(std::memory_order_relaxed) != 0; }) &&
         std::none_of(faults_.begin(), faults_.end(), [](const NicFaults& nic) { return nic.asked(); });
}

// Whether some NIC is held to a rate; where none is, nothing queues.
bool TcpTransport::shapes() const {
  return std::any_of(nics_.begin(), nics_.end(), [](const NicShaper& nic) { return Shaper::rate_of(nic) > 0; });
}

// Links that something may have come to since they were found to have nothing to do.
void TcpTransport::find_awake(std::int64_t now_ns) {
  awake_.clear();
  for (const auto& link : links_)
    if (!rests(*link, now_ns)) awake_.push_back(link.get());
}

// Lets the link with the oldest put of each shaped NIC go, and has the others wait. Returns whether one that waited may go now.
bool TcpTransport::line_up() {
  first_.assign(nics_.size(), UINT64_MAX);
  const auto waits = [](const Link& link) {
    return link.ended.ok() && !link.retired && !link.mute_tx && link.bundle.may_put() &&
           std::any_of(link.connections.begin(), link.connections.end(), [](const auto& one) { return one->takes(); });
  };
  for (const Link* const link : awake_) {
    const std::size_t nic = link->bundle.name().nic;
    if (nic < first_.size() && waits(*link)) first_[nic] = std::min(first_[nic], link->bundle.next_order());
  }
  bool news = false;
  for (Link* const link : awake_) {
    const std::size_t nic = link->bundle.name().nic;
    const bool later = nic < first_.size() && Shaper::rate_of(nics_[nic]) > 0 && link->bundle.may_put() &&
                       link->bundle.next_bytes() > Shaper::kShortBytes && link->bundle.next_order() > first_[nic];
    news = link->bundle.wait_turn(later) || news;
  }
  return news;
}

// Of each NIC, what is being read from it and left first.
void TcpTransport::find_oldest() {
  context_.oldest_ns.assign(nics_.size(), INT64_MAX);
  for (const Link* const link : awake_) {
    const std::size_t nic = link->bundle.name().nic;
    if (nic >= nics_.size() || link->retired || link->mute_rx) continue;
    for (const auto& connection : link->connections)
      context_.oldest_ns[nic] = std::min(context_.oldest_ns[nic], connection->reading_ns());
  }
}

// The connections of a link take segments in turn, and each at most what it has room for.
int TcpTransport::serve(Link& link, std::int64_t now_ns, std::vector<Completion>& completions) {
  const std::size_t n = link.connections.size();
  if (!link.connections.front()->nic_up()) {
    const ConnectionName& name = link.bundle.name();
    if (link.faults != nullptr) link.faults->hit(NicFault::down);
    end(link, Status(Code::link_down, name.text(context_.rank) + ": NIC " + std::to_string(name.nic) +
                                          " of this node is down; bring it up and reset", context_.rank, name.nic), true, now_ns);
    return 1;
  }
  link.bundle.stir();  // what begins here may have to wait for its slot of the wire
  look(link, now_ns);
  int done = 0;
  std::size_t held = 0;
  for (std::size_t k = 0; k < n; ++k) {
    Connection& connection = *link.connections[(link.turn + k) % n];
    Status status;
    if (!link.mute_rx && connection.readable()) status = connection.receive(now_ns, completions, done);
    if (link.retired) return done + 1;
    if (status.ok() && !link.mute_tx) status = connection.send(now_ns, completions, done);
    if (!status.ok()) {
      end(link, std::move(status), connection.bad_frame(), now_ns);
      return done + 1 + drain(link, now_ns, completions);
    }
    held += connection.held();
  }
  if (done == 0 && takes_acks_ && link.bundle.has_acks()) {
    ++done;
    Connection& connection = *link.connections[link.turn % n];
    if (Status status = connection.take_acks(completions); !status.ok()) end(link, std::move(status), true, now_ns);
  }
  link.turn = (link.turn + 1) % n;
  // Asked again at the end: the segment that the first of them waits for may have come by the last.
  if (held == n && std::none_of(link.connections.begin(), link.connections.end(), [](const auto& one) { return one->readable(); }))
    end(link, Status(Code::link_down, link.connections.front()->name().text(context_.rank) +
                                          ": bad frame: segments came, but not the one before them; the connection is closed",
                     link.bundle.name().peer, link.bundle.name().nic), true, now_ns);
  return done;
}

// What the peer sent before the link ended is there, or under way, and still counts.
int TcpTransport::drain(Link& link, std::int64_t now_ns, std::vector<Completion>& completions) {
  int done = 0;
  look(link, now_ns);
  for (int more = 1; more > 0 && now_ns < link.deadline_ns && !link.retired; done += more) {
    more = 0;
    for (const auto& connection : link.connections)
      if (!link.mute_rx && connection->readable() && !connection->receive(now_ns, completions, more).ok() &&
          connection->bad_frame())
        link.deadline_ns = now_ns;
  }
  return done;
}

void TcpTransport::end(Link& link, Status status, bool at_once, std::int64_t now_ns) {
  link.ended = std::move(status);
  link.deadline_ns = at_once ? now_ns : now_ns + (context_.receiver != nullptr ? kShortDrainNs : kDrainNs);
  for (const auto& connection : link.connections) connection->stop_sending();
}

bool TcpTransport::over(const Link& link, std::int64_t now_ns) const {
  if (link.retired) return true;
  if (link.ended.ok()) return false;
  if (now_ns >= link.deadline_ns) return true;
  return std::all_of(link.connections.begin(), link.connections.end(), [](const auto& each) { return each->ended(); });
}

void TcpTransport::forget(const Link& link) const {
  for (const auto& connection : link.connections) poller_.remove(connection->fd());
}

void TcpTransport::unlist(const Link& link) {
  std::vector<Link*>& of_peer = peers_[static_cast<std::size_t>(link.bundle.name().peer)].links;
  of_peer.erase(std::find(of_peer.begin(), of_peer.end(), &link));
}

void TcpTransport::drop(std::size_t i, std::vector<Completion>& completions, std::vector<LinkEvent>& events) {
  Link& link = *links_[i];
  if (!link.retired) {
    const ConnectionName name = link.bundle.name();
    Status status = std::move(link.ended);
    unlist(link);
    if (!connected(name.peer))
      status = Status(Code::peer_lost, status.message + "; no other connection to rank " + std::to_string(name.peer) + " is left",
                      name.peer, status.nic, status.op_id);
    static_cast<void>(link.bundle.take_acks(completions));  // what is wrong with them is no news any more
    link.bundle.fail(status, completions);
    events.push_back({name.peer, name.nic, std::move(status), name.peer_nic});
    forget(link);
  }
  links_.erase(links_.begin() + static_cast<std::ptrdiff_t>(i));
}

void TcpTransport::retire(const Path& path) {
  Link* const link = find({path.peer, path.nic, path.peer_nic, 0});
  if (link == nullptr) return;
  link->retired = true;
  link->bundle.retire();
  unlist(*link);
  forget(*link);
  for (const auto& connection : link->connections) connection->cut_off();
  if (serving_) {
    retired_ = true;
    return;
  }
  links_.erase(std::find_if(links_.begin(), links_.end(), [&](const auto& each) { return each.get() == link; }));
}

NicState TcpTransport::nic_state(std::uint16_t nic) const {
  if (nic < nics_.size() && nics_[nic].up.load(std::memory_order_relaxed) == 0) return NicState::down;
  if (nic < faults_.size() && faults_[nic].asked() && faults_[nic].on(NicFault::unplugged)) return NicState::unplugged;
  return NicState::up;
}

// What was said of links over other ones.
int TcpTransport::take_asides(std::vector<Completion>& completions) {
  const std::size_t before = completions.size();
  for (const AckAside& aside : context_.asides) {
    const auto nic = static_cast<std::uint16_t>(aside.frame.lane);  // its sender's peer is this rank
    Link* const link = find({aside.peer, nic, static_cast<std::uint16_t>(aside.frame.lane >> 16), 0});
    if (link == nullptr) continue;
    link->bundle.acked_aside(aside.frame);
    static_cast<void>(link->bundle.take_acks(completions));  // what was not sent is not taken for confirmed there
  }
  context_.asides.clear();
  return static_cast<int>(completions.size() - before);
}

// No more comes to be confirmed at once: one link of each peer says it for all.
int TcpTransport::confirm_together(std::int64_t now_ns, std::vector<Completion>& completions) {
  int done = 0;
  for (const Peer& peer : peers_) {
    Link* by = nullptr;
    for (Link* const link : peer.links) {
      if (!link->bundle.ack_asked()) continue;
      const bool speaks = link->ended.ok() && !link->mute_tx;
      if (by != nullptr && speaks) {
        by->bundle.add_aside(link->bundle.tell_aside(now_ns));
      } else {
        link->bundle.demand_ack();
        if (speaks) by = link;
      }
    }
    if (by != nullptr) done += serve(*by, now_ns, completions);
  }
  return done;
}

int TcpTransport::serve_all(std::int64_t now_ns, bool no_more, std::vector<Completion>& completions, std::vector<LinkEvent>& events) {
  int done = 0;
  bool ended = false;
  const std::size_t n = links_.size();
  const bool shaped = shapes();
  const bool queues = shaped || lined_up_;  // once more after the last rate is gone, so that nobody waits on
  lined_up_ = shaped;
  context_.together = !queues;
  calm_ = calm();
  if (queues) find_awake(now_ns);
  if (shaped) find_oldest();
  else context_.oldest_ns.clear();
  if (queues) line_up();
  std::size_t last = next_;  // whoever had the wire of a shaped NIC is asked last when it is free again
  serving_ = true;
  for (std::size_t k = 0; k < n; ++k) {
    Link& link = *links_[(next_ + k) % n];
    if (rests(link, now_ns) || link.retired) continue;
    if (idle(link, now_ns)) {
      if (!link.unsent()) link.bundle.settle();
      continue;
    }
    const int did = link.ended.ok() ? serve(link, now_ns, completions) : drain(link, now_ns, completions);
    done += did;
    ended = ended || !link.ended.ok();
    if (did > 0) last = next_ + k;
  }
  next_ = (last + 1) % n;
  if (queues) find_awake(now_ns);  // puts may have been posted meanwhile
  if (queues && line_up()) ++done;
  if (no_more && context_.n_asked > 0) done += confirm_together(now_ns, completions);
  if (!context_.asides.empty()) done += take_asides(completions);
  serving_ = false;
  ended = std::exchange(retired_, false) || ended;
  for (std::size_t i = n; ended && i-- > 0;) {
    if (!over(*links_[i], now_ns)) continue;
    drop(i, completions, events);
    ++done;
  }
  return done;
}

int TcpTransport::poll(std::int64_t now_ns, std::vector<Completion>& completions, std::vector<LinkEvent>& events) {
  polled_ns_ = now_ns;
  if (links_.empty()) return 0;
  const bool no_more = std::exchange(no_more_, false);
  takes_acks_ = std::exchange(waits_, false);
  if (busy_ && ++unlooked_ < kMostUnlooked) {
    const int done = serve_all(now_ns, no_more, completions, events);
    if (done > 0 || links_.empty()) return done;
  }
  unlooked_ = 0;
  poller_.collect([](void* owner, std::uint32_t edges) { static_cast<Connection*>(owner)->edges(edges); });
  takes_acks_ = true;
  const int done = serve_all(now_ns, no_more, completions, events);
  busy_ = done > 0;
  return done;
}

void TcpTransport::wait_set(std::vector<pollfd>& descriptors, std::int64_t& wake_ns) const {
  if (links_.empty()) return;
  descriptors.push_back({poller_.fd(), POLLIN, 0});
  for (const auto& link : links_) {
    if (!link->ended.ok()) wake_ns = std::min(wake_ns, link->deadline_ns);
    else if (link->bundle.has_acks()) wake_ns = 0;  // whoever waits for what they complete sleeps no more
    link->bundle.wake(wake_ns);
    // Nobody rings when a silence is undone.
    if (link->mute_tx || link->mute_rx) wake_ns = std::min(wake_ns, polled_ns_ + kLookNs);
    for (const auto& connection : link->connections) connection->wake(polled_ns_, wake_ns, link->mute_tx, link->mute_rx);
  }
}

void TcpTransport::reset(std::uint16_t epoch) {
  for (const auto& link : links_) forget(*link);
  links_.clear();
  for (Peer& peer : peers_) peer = Peer{};
  context_.epoch = epoch;
  next_ = 0;
  busy_ = false;
}

}  // namespace ccl_lab
