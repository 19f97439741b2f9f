// Messages beside the data; see aside.hpp.
#include "transport/verbs/aside.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <type_traits>

namespace ccl_lab {

namespace {

class Writer {
 public:
  template <class T>
  Writer& put(T value) {
    static_assert(std::is_integral_v<T>);
    for (std::size_t i = 0; i < sizeof(T); ++i) bytes_.push_back(static_cast<std::uint8_t>(static_cast<std::uint64_t>(value) >> (8 * i)));
    return *this;
  }
  Writer& put_region(const RegionCard& region) {
    return put(region.key).put(region.size).put(region.base).put(region.chunk_bytes);
  }
  Writer& put_bytes(const std::uint8_t* bytes, std::size_t n) {
    bytes_.insert(bytes_.end(), bytes, bytes + n);
    return *this;
  }
  const std::vector<std::uint8_t>& bytes() const { return bytes_; }

 private:
  std::vector<std::uint8_t> bytes_;
};

class Reader {
 public:
  Reader(const std::uint8_t* at, std::size_t n) : at_(at), left_(n) {}
  template <class T>
  T take() {
    if (left_ < sizeof(T)) {
      short_ = true;
      left_ = 0;
      return {};
    }
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) value |= static_cast<std::uint64_t>(at_[i]) << (8 * i);
    at_ += sizeof(T);
    left_ -= sizeof(T);
    return static_cast<T>(value);
  }
  RegionCard take_region() {
    RegionCard region;
    region.key = take<std::uint32_t>();
    region.size = take<std::uint64_t>();
    region.base = take<std::uint64_t>();
    region.chunk_bytes = take<std::uint64_t>();
    // Chunks are counted in 32 bits, and there is one at least where there are bytes.
    if (region.size > 0 && (region.chunk_bytes == 0 || region.size / region.chunk_bytes > 0x7fffffff || region.base + region.size < region.base))
      short_ = true;
    return region;
  }
  const std::uint8_t* rest() const { return at_; }
  std::size_t left() const { return left_; }
  // Whether all of it was read, and there was enough.
  bool whole() const { return !short_ && left_ == 0; }
  bool enough() const { return !short_; }

 private:
  const std::uint8_t* at_;
  std::size_t left_;
  bool short_ = false;
};

Status bad(const std::string& what) { return Status(Code::link_down, "bad message beside the data: " + what); }

Status take_card(Reader& in, Card& card) {
  if (in.take<std::uint32_t>() != kCardMagic || !in.enough())
    return Status(Code::connect, "the other end does not speak verbs; is CCL_LAB_TRANSPORT the same on all ranks?");
  if (const auto version = in.take<std::uint16_t>(); version != kCardVersion)
    return Status(Code::connect, "the peer speaks version " + std::to_string(version) + " of the verbs transport, this rank version " +
                                     std::to_string(kCardVersion) + "; install the same ccl_lab on all nodes");
  card.rank = in.take<std::int32_t>();
  card.epoch = in.take<std::uint16_t>();
  card.nic = in.take<std::uint16_t>();
  card.peer_nic = in.take<std::uint16_t>();
  for (auto& byte : card.gid) byte = in.take<std::uint8_t>();
  card.lid = in.take<std::uint16_t>();
  card.mtu_bytes = in.take<std::uint32_t>();
  card.reads = in.take<std::uint32_t>();
  card.receives = in.take<std::uint32_t>();
  card.first_number = in.take<std::uint32_t>();
  card.notices = in.take<std::uint64_t>();
  card.notices_key = in.take<std::uint32_t>();
  const auto n_pairs = in.take<std::uint16_t>();
  if (n_pairs < 2 || n_pairs > kMostQueuePairs + 1) return bad("a card of " + std::to_string(n_pairs) + " queue pairs");
  for (int i = 0; i < n_pairs; ++i) {
    const auto qpn = in.take<std::uint32_t>();
    card.queue_pairs.push_back({qpn, in.take<std::uint32_t>()});
  }
  const auto n_regions = in.take<std::uint32_t>();
  if (n_regions > in.left()) return bad("a card of " + std::to_string(n_regions) + " regions that ends too early");
  for (std::uint32_t i = 0; i < n_regions; ++i) card.regions.push_back(in.take_region());
  return {};
}

}  // namespace

Result<AsideMessage> decode_aside(const std::uint8_t* bytes, std::size_t nbytes) {
  Reader in(bytes, nbytes);
  AsideMessage message;
  message.kind = static_cast<AsideKind>(in.take<std::uint8_t>());
  switch (message.kind) {
    case AsideKind::card:
      if (const Status status = take_card(in, message.card); !status.ok()) return status;
      break;
    case AsideKind::ready: break;
    case AsideKind::region: message.region = in.take_region(); break;
    case AsideKind::gone: message.region.key = in.take<std::uint32_t>(); break;
    case AsideKind::want:
    case AsideKind::keys:
      message.region.key = in.take<std::uint32_t>();
      message.first = in.take<std::uint32_t>();
      message.n = in.take<std::uint32_t>();
      if (message.kind == AsideKind::want) break;
      if (in.left() != std::size_t{message.n} * 4) return bad(std::to_string(in.left()) + " bytes for " + std::to_string(message.n) + " keys");
      for (std::uint32_t i = 0; i < message.n; ++i) message.keys.push_back(in.take<std::uint32_t>());
      break;
    case AsideKind::refusal:
      message.text.assign(reinterpret_cast<const char*>(in.rest()), in.left());
      return message;
    default: return bad("kind " + std::to_string(static_cast<int>(message.kind)));
  }
  if (!in.whole()) return bad("kind " + std::to_string(static_cast<int>(message.kind)) + " has the wrong length");
  return message;
}

Aside::Aside(int fd) : fd_(fd) {
  const int on = 1;
  // Refused by a stream socket that is not of TCP, which needs none of this.
  static_cast<void>(::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
  static_cast<void>(::fcntl(fd, F_SETFD, FD_CLOEXEC));
}

Aside::~Aside() {
  if (fd_ >= 0) ::close(fd_);
}

void Aside::frame(AsideKind kind, const std::vector<std::uint8_t>& payload) {
  Writer head;
  head.put(static_cast<std::uint32_t>(payload.size() + 1)).put(static_cast<std::uint8_t>(kind));
  out_.insert(out_.end(), head.bytes().begin(), head.bytes().end());
  out_.insert(out_.end(), payload.begin(), payload.end());
}

void Aside::say(const Card& card) {
  Writer out;
  out.put(kCardMagic).put(kCardVersion).put(card.rank).put(card.epoch).put(card.nic).put(card.peer_nic);
  out.put_bytes(card.gid.data(), card.gid.size()).put(card.lid).put(card.mtu_bytes).put(card.reads).put(card.receives);
  out.put(card.first_number).put(card.notices).put(card.notices_key);
  out.put(static_cast<std::uint16_t>(card.queue_pairs.size()));
  for (const QueuePairCard& pair : card.queue_pairs) out.put(pair.qpn).put(pair.psn);
  out.put(static_cast<std::uint32_t>(card.regions.size()));
  for (const RegionCard& region : card.regions) out.put_region(region);
  frame(AsideKind::card, out.bytes());
}

void Aside::say_ready() { frame(AsideKind::ready, {}); }

void Aside::say_region(const RegionCard& region) { frame(AsideKind::region, Writer().put_region(region).bytes()); }

void Aside::say_gone(RegionKey key) { frame(AsideKind::gone, Writer().put(key).bytes()); }

void Aside::want(RegionKey key, std::uint32_t first, std::uint32_t n) {
  frame(AsideKind::want, Writer().put(key).put(first).put(n).bytes());
}

void Aside::say_keys(RegionKey key, std::uint32_t first, const std::vector<std::uint32_t>& keys) {
  Writer out;
  out.put(key).put(first).put(static_cast<std::uint32_t>(keys.size()));
  for (const std::uint32_t each : keys) out.put(each);
  frame(AsideKind::keys, out.bytes());
}

void Aside::refuse(const std::string& text) {
  const std::string most = text.substr(0, 4096);
  frame(AsideKind::refusal, Writer().put_bytes(reinterpret_cast<const std::uint8_t*>(most.data()), most.size()).bytes());
}

Status Aside::flush() {
  while (unsent()) {
    const ssize_t n = ::send(fd_, out_.data() + sent_, out_.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return {};
    if (n < 0) return Status(Code::link_down, std::string("the socket beside the data: send: ") + std::strerror(errno));
    sent_ += static_cast<std::size_t>(n);
  }
  out_.clear();
  sent_ = 0;
  return {};
}

Status Aside::receive() {
  constexpr std::size_t kBytes = 16 * 1024;
  for (;;) {
    const std::size_t have = in_.size();
    in_.resize(have + kBytes);
    const ssize_t n = ::recv(fd_, in_.data() + have, kBytes, MSG_DONTWAIT);
    in_.resize(have + static_cast<std::size_t>(n > 0 ? n : 0));
    if (n > 0) continue;
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) closed_ = true;
    if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
      closed_ = true;
      if (errno != ECONNRESET) return Status(Code::link_down, std::string("the socket beside the data: recv: ") + std::strerror(errno));
    }
    return {};
  }
}

Result<bool> Aside::next(AsideMessage& message) {
  const std::size_t have = in_.size() - taken_;
  std::uint32_t length = 0;
  for (std::size_t i = 0; i < 4 && have >= 4; ++i) length |= static_cast<std::uint32_t>(in_[taken_ + i]) << (8 * i);
  if (have >= 4 && (length == 0 || length > kMostAsideBytes)) return bad("a length of " + std::to_string(length));
  if (have < 4 || have - 4 < length) {
    in_.erase(in_.begin(), in_.begin() + static_cast<std::ptrdiff_t>(taken_));
    taken_ = 0;
    return false;
  }
  Result<AsideMessage> found = decode_aside(in_.data() + taken_ + 4, length);
  if (!found.ok()) return found.status();
  taken_ += 4 + length;
  message = std::move(found).value();
  return true;
}

}  // namespace ccl_lab
