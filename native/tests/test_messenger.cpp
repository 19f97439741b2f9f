// Messages about paths, and the datagrams that carry them.
//
// Is: real UDP sockets on loopback addresses, one for each NIC; strangers, floods, and losses as injected.
// Is not: what ranks say to each other with them (test_rails).
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <map>
#include <random>

#include "base/clock.hpp"
#include "check.hpp"
#include "fault/udp_messenger.hpp"

using namespace ccl_lab;

namespace {

constexpr SipKey kKey = [] {
  SipKey key{};
  for (std::size_t i = 0; i < key.size(); ++i) key[i] = static_cast<std::byte>(i);
  return key;
}();

// Ranks on loopback, each a node of its own with two NICs.
struct Ranks {
  std::vector<RankSegment> segments;
  std::vector<std::unique_ptr<UdpMessenger>> messengers;
  std::vector<std::vector<Datagram>> arrived;

  explicit Ranks(int n, bool introduce = true, const std::vector<SipKey>& keys = {}) : arrived(static_cast<std::size_t>(n)) {
    for (int r = 0; r < n; ++r) {
      const SegmentOptions small{.n_signal_channels = 1, .n_nics = 2, .trace_spans = 64, .arena_bytes = 4096};
      segments.push_back(RankSegment::create(r, n, small).value());
      UdpOptions options;
      options.rank = r;
      options.n_ranks = n;
      options.key = keys.empty() ? kKey : keys[static_cast<std::size_t>(r)];
      options.out_of_band = {"127.0.0.1"};
      options.nics = {{"127.0.0.1"}, {"127.0.0.2"}};
      options.shapers = segments.back().shapers();
      options.nic_faults = segments.back().faults();
      options.message_faults = &segments.back().control().message_faults;
      auto made = UdpMessenger::create(std::move(options));
      CHECK_OK(made.status());
      messengers.push_back(std::move(made).value());
    }
    for (int r = 0; introduce && r < n; ++r)
      for (int p = 0; p < n; ++p)
        if (p != r) CHECK_OK(messenger(r).set_peer(p, messenger(p).out_of_band(), messenger(p).nics()));
  }
  UdpMessenger& messenger(int r) { return *messengers[static_cast<std::size_t>(r)]; }
  const RankSegment& segment(int r) { return segments[static_cast<std::size_t>(r)]; }
  std::vector<Datagram>& got(int r) { return arrived[static_cast<std::size_t>(r)]; }
  void poll(std::int64_t at) {
    for (std::size_t r = 0; r < messengers.size(); ++r) messengers[r]->poll(at, arrived[r]);
  }
  bool until(const std::function<bool()>& end) {
    const std::int64_t deadline = now_ns() + 5'000'000'000;
    while (!end() && now_ns() < deadline) poll(now_ns());
    return end();
  }
  // What was sent is there by then: loopback delivers in sendto.
  void settle() {
    for (std::int64_t until_ns = now_ns() + 2'000'000; now_ns() < until_ns;) poll(now_ns());
  }
  std::uint64_t hits(int r, int nic, NicFault kind) {
    return segment(r).faults()[static_cast<std::size_t>(nic)].hits[NicFaults::index(kind)].load();
  }
  std::uint64_t hits(int r, MessageFault kind) {
    return segment(r).control().message_faults.hits[static_cast<std::size_t>(kind)].load();
  }
};

Message some(std::uint64_t token, MessageKind kind = MessageKind::ping) {
  Message message;
  message.kind = kind;
  message.flags = 3;
  message.nic = 1;
  message.peer_nic = 0;
  message.generation = 7;
  message.position = ~std::uint64_t{0} - token;
  message.received = token << 40;
  message.token = token;
  return message;
}

Message random_message(std::mt19937& random) {
  const auto wide = [&] { return std::uint64_t{random()} << 32 | random(); };
  Message message;
  message.kind = static_cast<MessageKind>(1 + random() % 9);
  message.flags = static_cast<std::uint8_t>(random());
  message.epoch = static_cast<std::uint16_t>(random());
  message.from = static_cast<std::int32_t>(random());
  message.nic = static_cast<std::uint16_t>(random());
  message.peer_nic = static_cast<std::uint16_t>(random());
  message.generation = static_cast<std::uint32_t>(random());
  message.position = wide();
  message.received = wide();
  message.token = wide();
  return message;
}

}  // namespace

namespace {

template <NicFault kind>
void ask(const RankSegment& segment, bool on) {
  segment.faults()[0].set(kind, on);
}

}  // namespace

TEST(siphash_is_as_published) {
  // The vectors of the reference implementation: key 00 01 .. 0f, message 00 01 .. (n - 1).
  std::array<std::byte, 63> bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
  CHECK_EQ(siphash(kKey, bytes.data(), 0), 0x726fdb47dd0e0e31u);
  CHECK_EQ(siphash(kKey, bytes.data(), 1), 0x74f839c593dc67fdu);
  CHECK_EQ(siphash(kKey, bytes.data(), 8), 0x93f5f5799a932462u);
  CHECK_EQ(siphash(kKey, bytes.data(), 15), 0xa129ca6149be45e5u);
}

TEST(messages_survive_a_round_trip_and_nothing_else_does) {
  std::mt19937 random(3);
  for (int i = 0; i < 20000; ++i) {
    const Message message = random_message(random);
    MessageBytes bytes;
    encode(message, bytes);
    const Result<Message> back = decode(bytes.data(), bytes.size());
    CHECK(back.ok() && back.value() == message);
    CHECK(!decode(bytes.data(), random() % kMessageBytes).ok());
    bytes[random() % bytes.size()] ^= static_cast<std::byte>(1 + random() % 255);
    CHECK(!decode(bytes.data(), bytes.size()).ok());
  }
}

TEST(messages_arrive_out_of_band_and_over_nics) {
  Ranks ranks(3);
  for (int from = 0; from < 3; ++from)
    for (int to = 0; to < 3; ++to) {
      if (from == to) continue;
      ranks.messenger(from).send({to, kOutOfBand, kOutOfBand, some(1)});
      for (int nic = 0; nic < 2; ++nic)
        for (int peer_nic = 0; peer_nic < 2; ++peer_nic)
          ranks.messenger(from).send({to, nic, peer_nic, some(2, MessageKind::probe)});
    }
  CHECK(ranks.until([&] { return ranks.got(0).size() + ranks.got(1).size() + ranks.got(2).size() == 3 * 2 * 5; }));
  for (int r = 0; r < 3; ++r) {
    std::map<std::tuple<int, int, int>, int> seen;
    for (const Datagram& each : ranks.got(r)) {
      ++seen[{each.peer, each.nic, each.peer_nic}];
      CHECK_EQ(each.message.from, each.peer);
      Message expected = some(each.nic == kOutOfBand ? 1 : 2, each.nic == kOutOfBand ? MessageKind::ping : MessageKind::probe);
      expected.from = each.peer;
      if (each.nic != kOutOfBand) {
        expected.nic = static_cast<std::uint16_t>(each.peer_nic);
        expected.peer_nic = static_cast<std::uint16_t>(each.nic);
      }
      CHECK(each.message == expected);
    }
    CHECK_EQ(seen.size(), std::size_t{10});
    CHECK_EQ(ranks.messenger(r).counters().strange, 0u);
  }
}

TEST(a_sleeper_is_woken_by_a_message) {
  Ranks ranks(2);
  std::vector<pollfd> descriptors;
  std::int64_t wake_ns = INT64_MAX;
  ranks.settle();
  ranks.messenger(1).wait_set(descriptors, wake_ns);
  CHECK(descriptors.size() == 1 && wake_ns == INT64_MAX && ::poll(descriptors.data(), 1, 0) == 0);
  ranks.messenger(0).send({1, 1, 1, some(1)});
  CHECK_EQ(::poll(descriptors.data(), 1, 1000), 1);
  CHECK(ranks.until([&] { return ranks.got(1).size() == 1; }));
  CHECK_EQ(::poll(descriptors.data(), 1, 0), 0);
}

TEST(another_key_or_epoch_is_not_heard) {
  SipKey other = kKey;
  other[15] ^= std::byte{1};
  Ranks ranks(3, true, {kKey, kKey, other});
  ranks.messenger(2).send({1, kOutOfBand, kOutOfBand, some(1)});
  ranks.messenger(2).send({1, 0, 0, some(1)});
  ranks.settle();
  CHECK(ranks.got(1).empty());
  CHECK_EQ(ranks.messenger(1).counters().strange, 2u);
  ranks.messenger(0).reset(5);
  ranks.messenger(0).send({1, kOutOfBand, kOutOfBand, some(2)});
  ranks.settle();
  CHECK(ranks.got(1).empty());
  CHECK_EQ(ranks.messenger(1).counters().stale, 1u);
  ranks.messenger(1).reset(5);
  ranks.messenger(0).send({1, kOutOfBand, kOutOfBand, some(3)});
  CHECK(ranks.until([&] { return ranks.got(1).size() == 1; }));
  CHECK(ranks.got(1)[0].message.token == 3 && ranks.got(1)[0].message.epoch == 5);
}

TEST(no_datagram_of_a_stranger_is_heard) {
  Ranks ranks(2);
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  std::mt19937 random(11);
  MessageBytes good;
  constexpr int kDatagrams = 100'000;
  std::uint64_t sent = 0;
  for (int i = 0; i < kDatagrams; ++i) {
    const bool nic = random() % 2 == 0;
    to.sin_port = htons(nic ? ranks.messenger(0).nics()[1].port : ranks.messenger(0).out_of_band().port);
    ::inet_pton(AF_INET, nic ? "127.0.0.2" : "127.0.0.1", &to.sin_addr);
    std::byte bytes[100];
    std::size_t n = random() % 3 == 0 ? random() % sizeof bytes : UdpMessenger::kDatagramBytes;
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    if (random() % 2 == 0) {  // a whole message whose tag is not right
      Message message = random_message(random);
      message.from = 1;
      message.epoch = 0;
      message.peer_nic = 1;
      encode(message, good);
      std::copy(good.begin(), good.end(), bytes);
    }
    sent += ::sendto(fd, bytes, n, 0, reinterpret_cast<const sockaddr*>(&to), sizeof to) == static_cast<ssize_t>(n);
    if (i % 50 == 0) ranks.poll(i * std::int64_t{1'000'000});
  }
  ::close(fd);
  for (std::int64_t i = 0; i < 100; ++i) ranks.poll((kDatagrams + i) * 1'000'000);
  CHECK(ranks.got(0).empty());
  CHECK_EQ(ranks.messenger(0).counters().strange, sent);
  // A flood keeps nobody from a message, for long.
  ranks.messenger(1).send({0, kOutOfBand, kOutOfBand, some(1)});
  CHECK(ranks.until([&] { return ranks.got(0).size() == 1; }));
}

TEST(a_poll_reads_no_more_than_its_share) {
  Ranks ranks(2);
  for (std::uint64_t i = 0; i < 150; ++i) ranks.messenger(1).send({0, kOutOfBand, kOutOfBand, some(i)});
  const std::int64_t now = now_ns();
  std::vector<pollfd> descriptors;
  std::size_t seen = 0;
  for (const std::size_t most : {std::size_t{64}, std::size_t{128}, std::size_t{150}}) {
    ranks.messenger(0).poll(now, ranks.got(0));
    CHECK_EQ(ranks.got(0).size(), most);
    std::int64_t wake_ns = INT64_MAX;
    ranks.messenger(0).wait_set(descriptors, wake_ns);
    CHECK_EQ(wake_ns, most < 150 ? now : INT64_MAX);
    for (; seen < most; ++seen) CHECK_EQ(ranks.got(0)[seen].message.token, std::uint64_t{seen});
  }
}

TEST(messages_are_lost_doubled_and_late_as_asked) {
  constexpr std::uint64_t kMessages = 20000;
  Ranks ranks(2);
  MessageFaults& faults = ranks.segment(0).control().message_faults;
  const auto send_all = [&] {
    ranks.got(1).clear();
    for (std::uint64_t i = 0; i < kMessages; ++i) {
      ranks.messenger(0).send({1, kOutOfBand, kOutOfBand, some(i)});
      if (i % 32 == 31) ranks.messenger(1).poll(now_ns() + static_cast<std::int64_t>(i) * 1'000'000, ranks.got(1));
    }
    for (std::int64_t i = 0; i < 100; ++i)
      ranks.messenger(1).poll(now_ns() + static_cast<std::int64_t>(kMessages) * 1'000'000 + i * 1'000'000, ranks.got(1));
  };
  send_all();
  CHECK_EQ(ranks.got(1).size(), std::size_t{kMessages});
  faults.values[0] = 300'000;
  send_all();
  const std::uint64_t lost = ranks.hits(0, MessageFault::loss_ppm);
  CHECK(lost > kMessages * 27 / 100 && lost < kMessages * 33 / 100);
  CHECK_EQ(ranks.got(1).size(), std::size_t{kMessages - lost});
  faults.values[0] = 0;
  faults.values[1] = 100'000;
  send_all();
  const std::uint64_t doubled = ranks.hits(0, MessageFault::double_ppm);
  CHECK(doubled > kMessages * 8 / 100 && doubled < kMessages * 12 / 100);
  CHECK_EQ(ranks.got(1).size(), std::size_t{kMessages + doubled});
  // Probes are not meant.
  faults.values[0] = faults.values[1] = 1'000'000;
  ranks.got(1).clear();
  ranks.messenger(0).send({1, 0, 0, some(1)});
  CHECK(ranks.until([&] { return ranks.got(1).size() == 1; }));
  ranks.messenger(0).send({1, kOutOfBand, kOutOfBand, some(1)});
  ranks.settle();
  CHECK_EQ(ranks.got(1).size(), std::size_t{1});
}

TEST(late_messages_come_in_another_order) {
  constexpr std::int64_t kLate = 10'000'000;
  Ranks ranks(2);
  ranks.segment(0).control().message_faults.values[2] = kLate;
  std::int64_t now = 1'000'000'000;
  ranks.poll(now);
  for (std::uint64_t i = 0; i < 50; ++i) ranks.messenger(0).send({1, kOutOfBand, kOutOfBand, some(i)});
  CHECK_EQ(ranks.hits(0, MessageFault::late_ns), 50u);
  std::vector<pollfd> descriptors;
  std::int64_t wake_ns = INT64_MAX;
  ranks.messenger(0).wait_set(descriptors, wake_ns);
  CHECK(wake_ns > now && wake_ns < now + kLate);
  ranks.poll(wake_ns - 1);
  CHECK(ranks.got(1).empty());
  for (std::int64_t at = now; at <= now + kLate + 1'000'000; at += 100'000) {
    ranks.poll(at);
    if (at == now + kLate / 2) CHECK(ranks.got(1).size() > 10 && ranks.got(1).size() < 40);
  }
  CHECK_EQ(ranks.got(1).size(), std::size_t{50});
  int inversions = 0;
  for (std::size_t i = 1; i < ranks.got(1).size(); ++i)
    inversions += ranks.got(1)[i].message.token < ranks.got(1)[i - 1].message.token;
  CHECK(inversions > 5);
}

TEST(a_nic_that_is_down_or_silent_answers_no_probe) {
  struct Case {
    const char* what;
    void (*set)(const RankSegment&, bool);
    bool sends, reads;
    NicFault counted;
  };
  const Case cases[] = {
      {"down", [](const RankSegment& s, bool on) { s.shapers()[0].up = !on; }, false, false, NicFault::down},
      {"silent_tx", &ask<NicFault::silent_tx>, false, true, NicFault::silent_tx},
      {"silent_rx", &ask<NicFault::silent_rx>, true, false, NicFault::silent_rx},
      {"unplugged", &ask<NicFault::unplugged>, false, false, NicFault::unplugged}};
  for (const Case& one : cases) {
    Ranks ranks(2);
    one.set(ranks.segment(0), true);
    for (int from = 0; from < 2; ++from)
      for (int nic = kOutOfBand; nic < 2; ++nic) ranks.messenger(from).send({1 - from, nic, nic, some(1)});
    ranks.settle();
    // Out of band and over NIC 1 both ways; over NIC 0 only what that one lets through.
    CHECK_EQ(ranks.got(1).size(), std::size_t{2} + one.sends);
    CHECK_EQ(ranks.got(0).size(), std::size_t{2} + one.reads);
    CHECK_EQ(ranks.hits(0, 0, one.counted), std::uint64_t{!one.sends} + !one.reads);
    one.set(ranks.segment(0), false);
    CHECK(!ranks.segment(0).faults()[0].asked());
    ranks.messenger(1).send({0, 0, 0, some(9)});
    CHECK(ranks.until([&] { return !ranks.got(0).empty() && ranks.got(0).back().message.token == 9; }));
  }
}

TEST(a_probe_takes_as_long_as_its_nic) {
  Ranks ranks(2);
  const std::int64_t now = 1'000'000'000;
  ranks.segment(0).faults()[1].set(NicFault::delay_ns, 3'000'000);
  ranks.poll(now);
  ranks.messenger(0).send({1, 1, 0, some(1)});
  ranks.messenger(0).send({1, 0, 0, some(2)});
  ranks.poll(now + 2'900'000);
  CHECK(ranks.got(1).size() == 1 && ranks.got(1)[0].message.token == 2);
  ranks.poll(now + 3'000'000);
  ranks.poll(now + 3'100'000);
  CHECK(ranks.got(1).size() == 2 && ranks.got(1)[1].nic == 0 && ranks.got(1)[1].peer_nic == 1);
  CHECK_EQ(ranks.hits(0, 1, NicFault::delay_ns), 1u);
}

TEST(what_nobody_can_send_is_dropped) {
  Ranks ranks(2, false);
  ranks.messenger(0).send({1, kOutOfBand, kOutOfBand, some(1)});  // not introduced
  CHECK_OK(ranks.messenger(0).set_peer(1, ranks.messenger(1).out_of_band(), {Endpoint{}, ranks.messenger(1).nics()[1]}));
  for (const Datagram& bad : {Datagram{-1, kOutOfBand, kOutOfBand, {}}, Datagram{2, kOutOfBand, kOutOfBand, {}},
                              Datagram{1, 0, 0, {}}, Datagram{1, 2, 1, {}}, Datagram{1, -2, 1, {}}, Datagram{1, 0, 7, {}},
                              Datagram{1, 0, -1, {}}})
    ranks.messenger(0).send(bad);
  CHECK_EQ(ranks.messenger(0).counters().unsent, 8u);
  ranks.messenger(0).send({1, 0, 1, some(5)});
  CHECK(ranks.until([&] { return ranks.got(1).size() == 1; }));
  CHECK(!ranks.messenger(0).set_peer(2, {"127.0.0.1", 1}, {}).ok());
  CHECK(!ranks.messenger(0).set_peer(1, {"localhost", 1}, {}).ok());
  UdpOptions options;
  options.rank = 0;
  options.n_ranks = 1;
  options.out_of_band = {"192.0.2.1"};  // of nobody (RFC 5737)
  const auto refused = UdpMessenger::create(options);
  CHECK(!refused.ok() && refused.status().message.find("192.0.2.1") != std::string::npos);
  options.out_of_band = {"::1"};
  CHECK_OK(UdpMessenger::create(options).status());
}
