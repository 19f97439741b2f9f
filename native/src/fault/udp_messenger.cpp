// Sockets, tags and injected losses; see udp_messenger.hpp.
#include "fault/udp_messenger.hpp"

#include <arpa/inet.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace ccl_lab {

namespace {

constexpr std::size_t kMostLate = 65536;

std::string text(const Endpoint& endpoint) { return endpoint.address + " port " + std::to_string(endpoint.port); }

std::uint64_t load(const std::byte* at) {
  std::uint64_t value = 0;
  for (int i = 8; i-- > 0;) value = value << 8 | static_cast<std::uint8_t>(at[i]);
  return value;
}

std::uint16_t port_of(const sockaddr_storage& raw) {
  return ntohs(raw.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&raw)->sin6_port
                                         : reinterpret_cast<const sockaddr_in*>(&raw)->sin_port);
}

}  // namespace

UdpMessenger::UdpMessenger(UdpOptions options)
    : options_(std::move(options)), peers_(static_cast<std::size_t>(std::max(options_.n_ranks, 0))) {
  random_ = siphash(options_.key, reinterpret_cast<const std::byte*>(&options_.rank), sizeof options_.rank) | 1;
}

UdpMessenger::~UdpMessenger() {
  for (const int fd : sockets_) ::close(fd);
  if (poller_ >= 0) ::close(poller_);
}

Result<std::unique_ptr<UdpMessenger>> UdpMessenger::create(UdpOptions options) {
  if (options.rank < 0 || options.rank >= options.n_ranks)
    return Status(Code::usage, "rank " + std::to_string(options.rank) + " cannot have a messenger: expected 0 to " +
                                   std::to_string(options.n_ranks - 1), options.rank);
  std::unique_ptr<UdpMessenger> made(new UdpMessenger(std::move(options)));
  made->poller_ = ::epoll_create1(EPOLL_CLOEXEC);
  if (made->poller_ < 0)
    return Status(Code::connect, std::string("epoll_create1: ") + std::strerror(errno) + "; is `ulimit -n` high enough?");
  if (Status status = made->open(kOutOfBand, made->options_.out_of_band); !status.ok()) return status;
  for (std::size_t nic = 0; nic < made->options_.nics.size(); ++nic)
    if (Status status = made->open(static_cast<int>(nic), made->options_.nics[nic]); !status.ok()) return status;
  return made;
}

Result<UdpMessenger::Address> UdpMessenger::parse(const Endpoint& endpoint) {
  Address address;
  auto* const four = reinterpret_cast<sockaddr_in*>(&address.raw);
  auto* const six = reinterpret_cast<sockaddr_in6*>(&address.raw);
  if (::inet_pton(AF_INET, endpoint.address.c_str(), &four->sin_addr) == 1) {
    four->sin_family = AF_INET;
    four->sin_port = htons(endpoint.port);
    address.size = sizeof *four;
  } else if (::inet_pton(AF_INET6, endpoint.address.c_str(), &six->sin6_addr) == 1) {
    six->sin6_family = AF_INET6;
    six->sin6_port = htons(endpoint.port);
    address.size = sizeof *six;
  } else {
    return Status(Code::usage, "'" + endpoint.address + "' is no address: expected IPv4 or IPv6 in digits, as 10.0.0.1 or fd00::1; "
                               "resolve names before");
  }
  return address;
}

Status UdpMessenger::open(int nic, Endpoint& endpoint) {
  const std::string what = nic == kOutOfBand ? "the out-of-band messages" : "probes over NIC " + std::to_string(nic);
  Result<Address> address = parse(endpoint);
  if (!address.ok())
    return Status(Code::usage,
                  "address for " + what + " of rank " + std::to_string(options_.rank) + ": " + address.status().message,
                  options_.rank, nic);
  const int fd = ::socket(address->raw.ss_family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  epoll_event event{};
  event.events = EPOLLIN;
  if (fd >= 0) sockets_.push_back(fd);
  if (fd < 0 || ::bind(fd, reinterpret_cast<const sockaddr*>(&address->raw), address->size) != 0 ||
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&address->raw), &address->size) != 0 ||
      ::epoll_ctl(poller_, EPOLL_CTL_ADD, fd, &event) != 0)
    return Status(Code::connect,
                  "rank " + std::to_string(options_.rank) + " cannot open a UDP socket on " + text(endpoint) + " for " + what +
                      ": " + std::strerror(errno) + "; is it an address of this machine, and the port free?",
                  options_.rank, nic);
  endpoint.port = port_of(address->raw);
  return {};
}

Status UdpMessenger::set_peer(std::int32_t peer, const Endpoint& out_of_band, const std::vector<Endpoint>& nics) {
  if (peer < 0 || static_cast<std::size_t>(peer) >= peers_.size())
    return Status(Code::usage, "no rank " + std::to_string(peer) + " to send messages to: expected 0 to " +
                                   std::to_string(options_.n_ranks - 1), peer);
  Peer found;
  const auto add = [&](const Endpoint& endpoint, Address& to) {
    if (endpoint.address.empty()) return Status();
    Result<Address> address = parse(endpoint);
    if (!address.ok())
      return Status(Code::usage, "address of rank " + std::to_string(peer) + ": " + address.status().message, peer);
    to = *address;
    return Status();
  };
  if (Status status = add(out_of_band, found.out_of_band); !status.ok()) return status;
  found.nics.resize(nics.size());
  for (std::size_t nic = 0; nic < nics.size(); ++nic)
    if (Status status = add(nics[nic], found.nics[nic]); !status.ok()) return status;
  peers_[static_cast<std::size_t>(peer)] = std::move(found);
  return {};
}

// xorshift64: cheap, and repeatable for a rank of a job.
std::uint64_t UdpMessenger::random() {
  random_ ^= random_ << 13;
  random_ ^= random_ >> 7;
  random_ ^= random_ << 17;
  return random_ * 0x2545f4914f6cdd1du >> 16;
}

// Whether a NIC of the lab lets no message through; counts it then.
bool UdpMessenger::mute(std::int32_t nic, bool sending) const {
  const auto at = static_cast<std::size_t>(nic);
  NicFaults* const faults = at < options_.nic_faults.size() ? &options_.nic_faults[at] : nullptr;
  if (at < options_.shapers.size() && options_.shapers[at].up.load(std::memory_order_relaxed) == 0) {
    if (faults != nullptr) faults->hit(NicFault::down);
    return true;
  }
  if (faults == nullptr || !faults->asked() || !(sending ? faults->mute_tx() : faults->mute_rx())) return false;
  faults->hit_mute(sending ? NicFault::silent_tx : NicFault::silent_rx);
  return true;
}

// How long a message waits before it leaves, as injectors asked.
std::int64_t UdpMessenger::waits(std::int32_t nic) {
  if (nic == kOutOfBand) {
    const std::uint64_t late = options_.message_faults == nullptr ? 0 : options_.message_faults->value(MessageFault::late_ns);
    if (late == 0) return 0;
    options_.message_faults->hit(MessageFault::late_ns);
    return static_cast<std::int64_t>(1 + random() % late);
  }
  const auto at = static_cast<std::size_t>(nic);
  if (at >= options_.nic_faults.size() || !options_.nic_faults[at].asked()) return 0;
  NicFaults& faults = options_.nic_faults[at];
  std::int64_t wait_ns = 0;
  if (const std::int64_t delay_ns = faults.value(NicFault::delay_ns); delay_ns > 0) {
    faults.hit(NicFault::delay_ns);
    wait_ns = delay_ns;
  }
  if (const std::int64_t jitter_ns = faults.value(NicFault::jitter_ns); jitter_ns > 0) {
    faults.hit(NicFault::jitter_ns);
    wait_ns += static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(jitter_ns + 1));
  }
  return wait_ns;
}

void UdpMessenger::send(const Datagram& datagram) {
  MessageFaults* const faults = datagram.nic == kOutOfBand ? options_.message_faults : nullptr;
  const auto hits = [&](MessageFault kind) {
    if (faults == nullptr || random() % 1'000'000 >= faults->value(kind)) return false;
    faults->hit(kind);
    return true;
  };
  if (datagram.nic != kOutOfBand && mute(datagram.nic, true)) return;
  if (hits(MessageFault::loss_ppm)) return;
  for (int left = hits(MessageFault::double_ppm) ? 2 : 1; left > 0; --left) {
    const std::int64_t wait_ns = waits(datagram.nic);
    if (wait_ns == 0) send_now(datagram);
    if (wait_ns > 0 && late_.size() < kMostLate) late_.push_back({polled_ns_ + wait_ns, datagram});
  }
}

void UdpMessenger::send_now(const Datagram& datagram) {
  const auto peer = static_cast<std::size_t>(datagram.peer);
  const auto socket = static_cast<std::size_t>(datagram.nic + 1);  // kOutOfBand is -1
  const Address* to = nullptr;
  if (peer < peers_.size() && socket < sockets_.size()) {
    const Peer& known = peers_[peer];
    const auto nic = static_cast<std::size_t>(datagram.peer_nic);
    if (datagram.nic == kOutOfBand) to = &known.out_of_band;
    else if (nic < known.nics.size()) to = &known.nics[nic];
  }
  if (to == nullptr || to->size == 0) {
    ++counters_.unsent;
    return;
  }
  Message message = datagram.message;
  message.from = options_.rank;
  message.epoch = epoch_;
  if (datagram.nic != kOutOfBand) {
    message.nic = static_cast<std::uint16_t>(datagram.nic);
    message.peer_nic = static_cast<std::uint16_t>(datagram.peer_nic);
  }
  MessageBytes body;
  encode(message, body);
  std::array<std::byte, kDatagramBytes> bytes;
  std::copy(body.begin(), body.end(), bytes.begin());
  const std::uint64_t tag = siphash(options_.key, body.data(), body.size());
  for (std::size_t i = 0; i < 8; ++i) bytes[kMessageBytes + i] = static_cast<std::byte>(tag >> (8 * i));
  const ssize_t n = ::sendto(sockets_[socket], bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL,
                             reinterpret_cast<const sockaddr*>(&to->raw), to->size);
  ++(n == static_cast<ssize_t>(bytes.size()) ? counters_.sent : counters_.unsent);
}

void UdpMessenger::take(std::size_t socket, const std::byte* bytes, std::size_t nbytes, std::vector<Datagram>& arrived) {
  const std::int32_t nic = static_cast<std::int32_t>(socket) - 1;
  if (nic != kOutOfBand && mute(nic, false)) return;
  const bool ours = nbytes == kDatagramBytes && siphash(options_.key, bytes, kMessageBytes) == load(bytes + kMessageBytes);
  const Result<Message> message = ours ? decode(bytes, kMessageBytes) : Result<Message>(Status(Code::link_down, "a stranger's"));
  if (!message.ok() || message.value().from < 0 || message.value().from >= options_.n_ranks ||
      message.value().from == options_.rank || (nic != kOutOfBand && message.value().peer_nic != nic)) {
    ++counters_.strange;
    return;
  }
  if (message.value().epoch != epoch_) {
    ++counters_.stale;
    return;
  }
  ++counters_.received;
  arrived.push_back({message.value().from, nic, nic == kOutOfBand ? kOutOfBand : message.value().nic, message.value()});
}

int UdpMessenger::poll(std::int64_t now_ns, std::vector<Datagram>& arrived) {
  polled_ns_ = now_ns;
  int done = 0;
  for (std::size_t i = late_.size(); i-- > 0;) {
    if (late_[i].at_ns > now_ns) continue;
    const Datagram datagram = late_[i].datagram;
    late_[i] = late_.back();
    late_.pop_back();
    send_now(datagram);
    ++done;
  }
  if (!more_ && now_ns < looked_ns_ + kLookNs && now_ns >= looked_ns_) return done;
  looked_ns_ = now_ns;
  more_ = false;
  epoll_event any{};
  if (::epoll_wait(poller_, &any, 1, 0) <= 0) return done;
  int left = kMostReads;
  std::byte bytes[kDatagramBytes + 1];
  const std::size_t n = sockets_.size();
  const std::size_t before = arrived.size();
  for (std::size_t k = 0; k < n && left > 0; ++k) {
    const std::size_t socket = (first_ + k) % n;
    while (left > 0) {
      const ssize_t got = ::recv(sockets_[socket], bytes, sizeof bytes, MSG_DONTWAIT);
      if (got < 0 && errno == EINTR) continue;
      // What an earlier datagram met (port unreachable, say) is said here, once for each: not an end.
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
      --left;
      if (got >= 0) take(socket, bytes, static_cast<std::size_t>(got), arrived);
    }
  }
  first_ = (first_ + 1) % n;
  more_ = left == 0;
  return done + static_cast<int>(arrived.size() - before);
}

void UdpMessenger::wait_set(std::vector<pollfd>& descriptors, std::int64_t& wake_ns) const {
  descriptors.push_back({poller_, POLLIN, 0});
  if (more_) wake_ns = std::min(wake_ns, polled_ns_);
  for (const Late& each : late_) wake_ns = std::min(wake_ns, each.at_ns);
}

void UdpMessenger::reset(std::uint16_t epoch) {
  epoch_ = epoch;
  late_.clear();
}

}  // namespace ccl_lab
