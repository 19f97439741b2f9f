// Bytes from a peer that are not what they should be.
//
// Is: a seeded fuzzer of everything that reads a connection: streams of valid, mutated and random frames, cut anywhere.
//     CCL_LAB_FUZZ_FRAMES in the environment sets how many (default 30,000); run it with 1,000,000 under a sanitizer.
// Is not: a judge of what was delivered, but of what must not happen: no crash, nothing written outside the region, no
//     signal of a rank or channel that does not exist, and a bad frame ends the connection with one event.
#include "conformance.hpp"

using namespace ccl_lab;
using namespace ccl_lab::check;

namespace {

constexpr std::uint64_t kGuard = 4096;
constexpr std::uint64_t kRegion = 100000;
constexpr std::byte kGuardByte{0xa5};

struct Victim {
  Hearer hearer;
  std::vector<std::byte> memory = std::vector<std::byte>(kGuard + kRegion + kGuard, kGuardByte);
  std::vector<std::atomic<std::uint64_t>> counters = std::vector<std::atomic<std::uint64_t>>(2 * kChannels);
  TcpTransport transport{0, SignalTable(counters.data(), 2, kChannels, kChannels), {}, nullptr};
  std::vector<Completion> completions;
  std::vector<LinkEvent> events;
  std::vector<std::byte> destination = std::vector<std::byte>(5000);

  Victim() {
    transport.set_receiver(&hearer);
    CHECK_OK(transport.register_region(1, memory.data() + kGuard, kRegion));
  }
  bool guards_hold() const {
    for (std::uint64_t i = 0; i < kGuard; ++i)
      if (memory[i] != kGuardByte || memory[kGuard + kRegion + i] != kGuardByte) return false;
    return true;
  }
};

// What the next frames of a stream are numbered.
struct Numbers {
  std::uint32_t signal = 0;
  std::uint32_t segment = 0;
};

// A plausible header: mostly valid, sometimes just past a bound.
FrameHeader plausible(std::mt19937& random, Numbers& next) {
  FrameHeader header;
  if (random() % 12 == 0) {
    header.type = FrameType::ack;
    header.ack = random() % 3;
    if (random() % 2 == 0) return header;
    header.type = FrameType::ack_aside;
    header.lane = random() % 4 == 0 ? static_cast<std::uint32_t>(random()) : 0;
    header.segment = random() % 10 == 0 ? static_cast<std::uint32_t>(random()) : random() % 4;
    header.key = random() % 4 == 0;
    header.number = random() % 4 == 0;
    return header;
  }
  header.type = static_cast<FrameType>(random() % 10 < 8 ? 1 : 2 + (random() % 20 == 0));
  header.key = random() % 200 == 0 ? static_cast<std::uint32_t>(random()) : 1;
  header.nbytes = random() % 4 == 0 ? 0 : random() % 600;
  header.offset = random() % (kRegion - header.nbytes + 1);
  if (random() % 200 == 0) header.offset += random() % 2 == 0 ? kRegion - header.offset - header.nbytes + 1 : ~std::uint64_t{0} / 2;
  if (random() % 200 == 0) header.nbytes = (std::uint64_t{random()} << 32) | random();
  if (header.type == FrameType::put && random() % 2 == 0) {
    const std::int32_t silent = random() % 4 == 0 ? kSilentSignal : 0;
    header.signal = random() % 200 == 0 ? static_cast<std::int32_t>(random()) : silent;
    header.sequence = random() % 200 == 0 ? static_cast<std::uint32_t>(random()) : next.signal++;
  }
  if (header.type == FrameType::put)
    header.segment = random() % 300 == 0 ? next.segment + random() % 8000 : next.segment++;
  if (header.type == FrameType::get_reply) header.sequence = random() % 3;
  if (header.type == FrameType::put && random() % 3 == 0) {
    header.notice = true;
    header.urgent = random() % 2 == 0;
    header.together = header.urgent && random() % 2 == 0;
    header.lane = static_cast<std::uint32_t>(random());
    header.number = static_cast<std::uint32_t>(random());
  } else if (header.type == FrameType::put && random() % 3 == 0) {
    header.asks = true;
    header.urgent = random() % 2 == 0;
  }
  if (random() % 3 == 0) header.ack = random() % 50 == 0 ? static_cast<std::uint32_t>(random()) : random() % 4;
  return header;
}

void append_frame(std::vector<std::byte>& stream, std::mt19937& random, Numbers& next) {
  const FrameHeader header = plausible(random, next);
  FrameBytes bytes;
  encode(header, bytes);
  const unsigned how = random() % 150;
  if (how < 1) {
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  } else if (how < 3) {
    bytes[random() % bytes.size()] ^= static_cast<std::byte>(1u << random() % 8);
    if (how < 2) {  // a wrong field under a right check word
      const std::uint32_t check = frame_check(bytes);
      for (std::size_t i = 0; i < 4; ++i) bytes[kFrameCheckAt + i] = static_cast<std::byte>(check >> (8 * i));
    }
  }
  stream.insert(stream.end(), bytes.begin(), bytes.end());
  const std::uint64_t payload = std::min<std::uint64_t>(header.payload_bytes(), 2000);
  const std::uint64_t cut = random() % 300 == 0 ? random() % (payload + 1) : payload;
  for (std::uint64_t i = 0; i < cut; ++i) stream.push_back(static_cast<std::byte>(random()));
}

// Writes the stream in pieces cut anywhere and lets the victim read; true if the victim ended the connection.
bool feed(Victim& victim, int fd, const std::vector<std::byte>& stream, std::mt19937& random) {
  std::size_t at = 0;
  std::byte scrap[65536];
  while (at < stream.size() && victim.events.empty()) {
    const std::size_t n = std::min<std::size_t>(stream.size() - at, 1 + random() % (random() % 3 == 0 ? 60 : 30000));
    const ssize_t written = ::send(fd, stream.data() + at, n, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (written > 0) at += static_cast<std::size_t>(written);
    victim.transport.poll(0, victim.completions, victim.events);
    while (::recv(fd, scrap, sizeof scrap, MSG_DONTWAIT) > 0) {
    }
  }
  return !victim.events.empty();
}

}  // namespace

TEST(no_stream_of_bytes_does_harm) {
  const char* wanted = std::getenv("CCL_LAB_FUZZ_FRAMES");
  const long frames = wanted == nullptr ? 30000 : std::atol(wanted);
  std::mt19937 random(20261121);
  long written = 0, connections = 0, refused = 0;
  while (written < frames) {
    Victim victim;
    for (int life = 0; life < 20; ++life, ++connections) {
      int pair[2];
      CHECK(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
      CHECK_OK(victim.transport.add_connection(1, 0, 0, 0, pair[0], 0));
      for (unsigned i = 0; i < random() % 3; ++i) {
        Get get;
        get.peer = 1;
        get.destination = victim.destination.data();
        get.nbytes = victim.destination.size();
        get.source = {1, 0};
        CHECK_OK(victim.transport.get(get));
      }
      for (unsigned i = 0; i < random() % 3; ++i) {
        Put put;
        put.peer = 1;
        put.source = victim.destination.data();
        put.nbytes = 700;
        put.destination = {1, 0};
        put.confirmed = true;
        CHECK_OK(victim.transport.put(put));
      }
      std::vector<std::byte> stream;
      Numbers next;
      for (unsigned i = 0, n = 1 + random() % 60; i < n; ++i, ++written) append_frame(stream, random, next);
      std::mt19937 cuts(static_cast<std::uint32_t>(connections));  // its own: how much a socket takes is not ours to fix
      const bool ended = feed(victim, pair[1], stream, cuts);
      ::close(pair[1]);
      for (int i = 0; i < 100 && victim.events.empty(); ++i) victim.transport.poll(0, victim.completions, victim.events);
      CHECK_EQ(victim.events.size(), std::size_t{1});
      CHECK_EQ(static_cast<int>(victim.events[0].status.code), static_cast<int>(Code::peer_lost));
      CHECK(victim.guards_hold());
      for (int channel = 0; channel < kChannels; ++channel) CHECK_EQ(victim.counters[Mesh::index(channel)].load(), 0u);
      refused += ended;
      victim.events.clear();
      victim.transport.reset(0);
    }
    if (failures() > 20) break;
  }
  std::printf("  %ld frames on %ld connections, %ld of them ended by a bad frame\n", written, connections, refused);
}

TEST(no_header_is_taken_for_another) {
  const char* wanted = std::getenv("CCL_LAB_FUZZ_FRAMES");
  const long headers = wanted == nullptr ? 30000 : std::atol(wanted);
  std::mt19937 random(7);
  long accepted = 0;
  for (long i = 0; i < headers; ++i) {
    FrameBytes bytes;
    Numbers next;
    encode(plausible(random, next), bytes);
    for (unsigned k = random() % 4; k > 0; --k) bytes[random() % kFrameCheckAt] = static_cast<std::byte>(random());
    const std::uint32_t check = frame_check(bytes);
    for (std::size_t k = 0; k < 4; ++k) bytes[kFrameCheckAt + k] = static_cast<std::byte>(check >> (8 * k));
    const Result<FrameHeader> header = decode(bytes, 0, kChannels);
    if (!header.ok()) continue;
    ++accepted;
    CHECK(header.value().signal >= -1 && channel_of_signal(header.value().signal) < kChannels);
    CHECK(header.value().payload_bytes() <= kSegmentBytes);
    FrameBytes again;
    encode(header.value(), again);
    CHECK(again == bytes);
  }
  std::printf("  %ld headers, %ld accepted\n", headers, accepted);
}
