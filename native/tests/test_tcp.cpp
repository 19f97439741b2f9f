// What only the tcp transport has: rates, several NICs, frames, spans, links that go down.
//
// Is: sockets that are real and a clock that is not: rates are judged by bytes against virtual time, never by timing.
// Is not: the order of frames of a shaped NIC (test_tcp_order), several connections between two NICs (test_tcp_bundle),
//     confirmed puts (test_tcp_confirmed), injected faults (test_tcp_faults), the fuzzer of frames (test_tcp_fuzz) or the
//     common contract (test_conformance).
#include "shaped.hpp"

using namespace ccl_lab;
using namespace ccl_lab::check;

namespace {

std::uint64_t sent(TcpMesh& mesh, int rank, int nic = 0) { return mesh.segment(rank).shapers()[Mesh::index(nic)].tx_bytes; }

std::uint64_t allowance(std::int64_t ns, std::uint64_t rate) {
  return static_cast<std::uint64_t>(static_cast<double>(ns) * 1e-9 * static_cast<double>(rate));
}

}  // namespace

TEST(a_nic_keeps_its_rate_whenever_it_is_polled) {
  for (const std::int64_t step : {50'000, 700'000, 6'000'000}) {
    TcpMesh mesh(2);
    shape(mesh.segment(0), kRate);
    shape(mesh.segment(1), kRate);
    std::vector<std::byte> source(6 << 20);
    const std::int64_t start = 1'000'000'000;
    settle(mesh, start);
    CHECK_OK(mesh.transport(0).put(make_put(1, source.data(), source.size(), 1)));
    CHECK_OK(mesh.transport(1).put(make_put(0, source.data(), source.size(), 1)));
    std::int64_t now = start;
    while (mesh.signals(1).value(0, 1) + mesh.signals(0).value(1, 1) < 2 && now < start + 2'000'000'000) {
      settle(mesh, now);
      for (int r = 0; r < 2; ++r) CHECK(sent(mesh, r) <= allowance(now - start, kRate));
      now += step;
    }
    const double ideal = static_cast<double>(source.size()) / static_cast<double>(kRate) * 1e9;
    const double taken = static_cast<double>(now - step - start);
    CHECK(taken >= ideal);
    CHECK(taken <= ideal * 1.03 + 2 * static_cast<double>(step) + 1e6);
    std::printf("  poll every %lld us: %.1f %% of the rate\n", static_cast<long long>(step / 1000), 100 * ideal / taken);
  }
}

TEST(idle_time_is_not_saved_up) {
  TcpMesh mesh(2);
  shape(mesh.segment(0), kRate);
  std::vector<std::byte> source(2 << 20);
  for (std::int64_t start = 1'000'000'000; start < 5'000'000'000; start += 1'000'000'000) {
    settle(mesh, start);
    const std::uint64_t before = sent(mesh, 0);
    CHECK_OK(mesh.transport(0).put(make_put(1, source.data(), source.size(), 1)));
    for (std::int64_t now = start; now < start + 100'000'000; now += 100'000) {
      settle(mesh, now);
      CHECK(sent(mesh, 0) - before <= allowance(now - start, kRate));
    }
    CHECK(sent(mesh, 0) - before >= source.size());
  }
}

TEST(wait_set_names_the_time_of_the_next_byte) {
  TcpMesh mesh(2);
  shape(mesh.segment(0), kRate);
  std::vector<std::byte> source(1 << 20);
  std::int64_t now = 1'000'000'000;
  settle(mesh, now);
  CHECK_OK(mesh.transport(0).put(make_put(1, source.data(), source.size(), 1)));
  int wakes = 0;
  for (; mesh.completions[0].empty() && wakes < 1000; ++wakes) {
    settle(mesh, now);
    std::vector<pollfd> descriptors;
    std::int64_t wake_ns = INT64_MAX;
    mesh.transport(0).wait_set(descriptors, wake_ns);
    if (!mesh.completions[0].empty()) break;
    CHECK(wake_ns > now && wake_ns < now + 3'000'000);
    now = wake_ns;
  }
  CHECK(wakes >= 10 && wakes <= 40);  // about one for each half millisecond of 8.4 ms
}

TEST(ranks_that_share_a_nic_share_its_rate) {
  // Ranks 0 and 1 use rank 0's shapers; 2 and 3 receive on a node of their own, unshaped.
  constexpr int n = 4;
  std::vector<RankSegment> segments;
  for (int r = 0; r < n; ++r) segments.push_back(RankSegment::create(r, n, small_segment()).value());
  shape(segments[0], kRate);
  std::vector<std::unique_ptr<TcpTransport>> ranks;
  for (int r = 0; r < n; ++r) {
    ranks.push_back(std::make_unique<TcpTransport>(r, segments[Mesh::index(r)].signals(),
                                                   segments[r < 2 ? 0 : 2].shapers(), nullptr));
    CHECK_OK(ranks.back()->register_region(1, segments[Mesh::index(r)].arena(), kMemory));
  }
  for (int r = 0; r < 2; ++r) {
    const auto [a, b] = tcp_pair();
    CHECK_OK(ranks[Mesh::index(r)]->add_connection(r + 2, 0, 0, 0, a, 0));
    CHECK_OK(ranks[Mesh::index(r + 2)]->add_connection(r, 0, 0, 0, b, 0));
  }
  std::vector<std::byte> source(4 << 20);
  for (int r = 0; r < 2; ++r) CHECK_OK(ranks[Mesh::index(r)]->put(make_put(r + 2, source.data(), source.size(), 1)));
  std::vector<Completion> completions[n];
  std::vector<LinkEvent> events;
  const std::int64_t start = 1'000'000'000;
  std::int64_t ends[2] = {0, 0};
  for (std::int64_t now = start; now < start + 200'000'000; now += 100'000) {
    for (int i = 0; i < 6; ++i)
      for (int r = 0; r < n; ++r) ranks[Mesh::index(r)]->poll(now, completions[r], events);
    CHECK(segments[0].shapers()[0].tx_bytes <= allowance(now - start, kRate));
    for (int r = 0; r < 2; ++r)
      if (ends[r] == 0 && !completions[r].empty()) ends[r] = now;
  }
  const double ideal = 2.0 * static_cast<double>(source.size()) / static_cast<double>(kRate) * 1e9;
  for (const std::int64_t end : ends) CHECK(end > 0 && static_cast<double>(end - start) > 0.9 * ideal);
  CHECK(static_cast<double>(std::max(ends[0], ends[1]) - start) < 1.05 * ideal);
}

TEST(an_incast_waits_its_turn) {
  TcpMesh mesh(4);
  for (int r = 0; r < 4; ++r) shape(mesh.segment(r), kRate);
  std::vector<std::byte> source(2 << 20);
  const std::int64_t start = 1'000'000'000;
  settle(mesh, start);
  for (int r = 1; r < 4; ++r) CHECK_OK(mesh.transport(r).put(make_put(0, source.data(), source.size(), 1)));
  const auto all_in = [&] { return mesh.signals(0).value(1, 1) + mesh.signals(0).value(2, 1) + mesh.signals(0).value(3, 1) == 3; };
  std::int64_t now = start;
  for (; !all_in() && now < start + 400'000'000; now += 200'000) {
    settle(mesh, now);
    const std::uint64_t in = mesh.segment(0).shapers()[0].rx_bytes;
    CHECK(in <= allowance(now - start, kRate) + 2 * Shaper::quantum(kRate));
  }
  const double ideal = 3.0 * static_cast<double>(source.size()) / static_cast<double>(kRate) * 1e9;
  CHECK(all_in());
  CHECK(static_cast<double>(now - start) < 1.05 * ideal);
  CHECK(static_cast<double>(now - start) > 0.95 * ideal);
}

TEST(a_rate_can_change_while_bytes_flow) {
  TcpMesh mesh(2);
  shape(mesh.segment(0), kRate / 100);
  std::vector<std::byte> source(4 << 20);
  std::int64_t now = 1'000'000'000;
  CHECK_OK(mesh.transport(0).put(make_put(1, source.data(), source.size(), 1)));
  for (int i = 0; i < 100; ++i) settle(mesh, now += 1'000'000);
  CHECK(mesh.completions[0].empty());
  shape(mesh.segment(0), 0);
  for (int i = 0; i < 10000 && mesh.signals(1).value(0, 1) == 0; ++i) settle(mesh, now);
  CHECK_EQ(mesh.signals(1).value(0, 1), 1u);
}

TEST(signals_that_overtake_wait_for_the_others) {
  std::vector<std::atomic<std::uint64_t>> counters(8);
  const SignalTable signals(counters.data(), 2, 4, 4);
  SignalOrder order(4);
  for (const std::uint32_t number : {3u, 1u, 2u}) CHECK_OK(order.arrived(signals, 1, 2, number));
  CHECK_OK(order.arrived(signals, 1, 0, 0));
  CHECK_EQ(signals.value(1, 2), 0u);
  CHECK_EQ(signals.value(1, 0), 1u);
  CHECK(!order.arrived(signals, 1, 2, 3).ok());
  CHECK_OK(order.arrived(signals, 1, 2, 0));
  CHECK_EQ(signals.value(1, 2), 4u);
  CHECK_EQ(order.n_parked(), std::size_t{0});
  CHECK(!order.arrived(signals, 1, 2, 3).ok());
  for (std::uint32_t i = 0; i < 5; ++i) CHECK_EQ(order.next_to_send(1), i);
}

TEST(signals_keep_their_order_over_nics_of_unequal_rate) {
  TcpMesh mesh(2, 3);
  mesh.segment(0).shapers()[0].bytes_per_s = kRate / 50;
  std::vector<std::byte> source(100000);
  std::int64_t now = 1'000'000'000;
  for (int i = 0; i < 30; ++i) CHECK_OK(mesh.transport(0).put(make_put(1, source.data(), i % 3 == 0 ? 50000 : 1, 1, i % 3)));
  std::uint64_t largest_step = 0, seen = 0;
  for (; seen < 30 && now < 3'000'000'000; now += 1'000'000) {
    settle(mesh, now);
    largest_step = std::max(largest_step, mesh.signals(1).value(0, 1) - seen);
    seen = mesh.signals(1).value(0, 1);
  }
  CHECK_EQ(seen, 30u);
  CHECK(largest_step <= 3);  // never ahead of the slow NIC
}

TEST(spans_tell_what_the_wire_did) {
  TcpMesh mesh(2, 2);
  for (int r = 0; r < 2; ++r) mesh.segment(r).control().trace_enabled = 1;
  std::vector<std::byte> source(1 << 20);
  CHECK_OK(mesh.transport(0).put(make_put(1, source.data(), source.size(), 1, 1)));
  CHECK(mesh.until([&] { return mesh.signals(1).value(0, 1) == 1; }));
  for (int r = 0; r < 2; ++r) {
    std::vector<SpanRecord> spans(100);
    const std::size_t n = mesh.spans(r).drain(spans.data(), spans.size());
    CHECK_EQ(n, std::size_t{4});
    std::int64_t nbytes = 0, last_end = 0;
    for (std::size_t i = 0; i < n; ++i) {
      nbytes += spans[i].nbytes;
      CHECK(spans[i].begin_ns <= spans[i].end_ns && spans[i].begin_ns > 0 && spans[i].end_ns >= last_end);
      last_end = spans[i].end_ns;
      CHECK_EQ(static_cast<int>(spans[i].track), static_cast<int>(r == 0 ? Track::nic_tx : Track::nic_rx));
      CHECK_EQ(static_cast<int>(spans[i].kind), static_cast<int>(SpanKind::segment));
      CHECK(spans[i].op_id == 11 && spans[i].coll_id == 3 && spans[i].index == 1 && spans[i].peer == 1 - r);
    }
    CHECK_EQ(nbytes, std::int64_t{1 << 20});
  }
}

TEST(a_nic_that_goes_down_takes_only_its_own_links) {
  TcpMesh mesh(2, 2);
  std::vector<std::byte> source(4 << 20);
  CHECK_OK(mesh.transport(0).put(make_put(1, source.data(), source.size(), 1, 0)));
  mesh.segment(0).shapers()[0].up = 0;
  CHECK(mesh.until([&] { return !mesh.events[0].empty() && !mesh.events[1].empty(); }));
  for (int r = 0; r < 2; ++r) {
    CHECK_EQ(mesh.events[Mesh::index(r)].size(), std::size_t{1});
    const LinkEvent& event = mesh.events[Mesh::index(r)][0];
    CHECK(event.peer == 1 - r && event.nic == 0 && event.status.nic == 0);
    CHECK_EQ(static_cast<int>(event.status.code), static_cast<int>(Code::link_down));
  }
  CHECK_EQ(mesh.completions[0].size(), std::size_t{1});
  CHECK_EQ(static_cast<int>(mesh.completions[0][0].status.code), static_cast<int>(Code::link_down));
  CHECK(!mesh.transport(0).connected(1, 0, 0) && mesh.transport(0).connected(1, 1, 1));
  CHECK_EQ(static_cast<int>(mesh.transport(0).put(make_put(1, source.data(), 1, 1, 0)).code), static_cast<int>(Code::link_down));
  CHECK_OK(mesh.transport(0).put(make_put(1, source.data(), 100, 2, 1)));
  CHECK(mesh.until([&] { return mesh.signals(1).value(0, 2) == 1; }));
}

TEST(frames_survive_a_round_trip) {
  std::mt19937 random(1);
  for (int i = 0; i < 10000; ++i) {
    FrameHeader header;
    header.type = static_cast<FrameType>(1 + random() % 4);
    header.notice = header.type == FrameType::put && random() % 2 == 0;
    header.asks = header.type == FrameType::put && !header.notice && random() % 2 == 0;
    header.urgent = (header.notice || header.asks) && random() % 2 == 0;
    if (header.notice) {
      header.lane = static_cast<std::uint32_t>(random());
      header.number = static_cast<std::uint32_t>(random());
    }
    header.ack = static_cast<std::uint32_t>(random());
    header.epoch = static_cast<std::uint16_t>(random());
    header.signal = header.type == FrameType::put ? static_cast<std::int32_t>(random() % 9) - 1 : -1;
    header.key = static_cast<std::uint32_t>(random());
    header.offset = (std::uint64_t{random()} << 32) | random();
    header.nbytes = header.type == FrameType::ack ? 0 : random() % (kSegmentBytes + 1);
    header.sent_ns = static_cast<std::int64_t>(header.offset * 3);
    header.sequence = static_cast<std::uint32_t>(random());
    header.segment = static_cast<std::uint32_t>(random());
    header.coll_id = static_cast<std::uint32_t>(random());
    header.op_id = static_cast<std::int32_t>(random());
    FrameBytes bytes;
    encode(header, bytes);
    const Result<FrameHeader> back = decode(bytes, header.epoch, 8);
    CHECK_OK(back.status());
    CHECK(back.ok() && back.value() == header);
    CHECK(!decode(bytes, static_cast<std::uint16_t>(header.epoch + 1), 8).ok());
    bytes[random() % bytes.size()] ^= static_cast<std::byte>(1 + random() % 255);
    CHECK(!decode(bytes, header.epoch, 8).ok());
  }
}

TEST(descriptors_that_are_no_connection_are_refused) {
  TcpMesh mesh(2);
  const auto fresh = [] {
    const auto [a, b] = tcp_pair();
    ::close(b);
    return a;
  };
  TcpTransport& transport = mesh.transport(0);
  CHECK(!transport.add_connection(1, 0, 0, 0, fresh(), 0).ok());   // exists
  CHECK(!transport.add_connection(1, 1, 0, 0, fresh(), 0).ok());   // no such NIC
  CHECK(!transport.add_connection(2, 0, 0, 0, fresh(), 0).ok());   // no such rank
  CHECK(!transport.add_connection(-1, 0, 0, 0, fresh(), 0).ok());
  CHECK(!transport.add_connection(1, 0, 0, 1, fresh(), 3).ok());   // another epoch
  CHECK(!transport.add_connection(1, 0, 0, 1, -1, 0).ok());
  CHECK(!transport.add_connection(1, 0, 0, 1, ::memfd_create("x", 0), 0).ok());
  CHECK_EQ(transport.n_connections(), std::size_t{1});
}

TEST(what_a_peer_sent_before_it_went_still_arrives) {
  TcpMesh mesh(2);
  std::vector<std::byte> source(3 << 20, std::byte{7});
  CHECK_OK(mesh.transport(1).put(make_put(0, source.data(), source.size(), 1)));
  // Rank 1 hands everything to the kernel and goes, while rank 0 only reads as much as rank 1 needs, and writes itself.
  for (int i = 0; i < 1000 && mesh.completions[1].empty(); ++i) mesh.poll();
  CHECK_EQ(mesh.completions[1].size(), std::size_t{1});
  CHECK_OK(mesh.transport(0).put(make_put(1, source.data(), source.size(), 1)));
  mesh.kill(1);
  CHECK(mesh.until([&] { return !mesh.events[0].empty(); }));
  CHECK_EQ(mesh.signals(0).value(1, 1), 1u);
  CHECK_EQ(static_cast<int>(mesh.memory(0)[source.size() - 1]), 7);
}

namespace {

// Rank 0 of a mesh of two whose peer is the test itself, writing frames by hand.
struct HandMade {
  std::vector<std::atomic<std::uint64_t>> counters = std::vector<std::atomic<std::uint64_t>>(2 * kChannels);
  SignalTable signals{counters.data(), 2, kChannels, kChannels};
  std::vector<std::byte> memory = std::vector<std::byte>(10000);
  TcpTransport transport{0, signals, {}, nullptr};
  std::vector<Completion> completions;
  std::vector<LinkEvent> events;
  int peer = -1;

  HandMade() {
    const auto [ours, theirs] = tcp_pair();
    peer = theirs;
    CHECK_OK(transport.register_region(1, memory.data(), memory.size()));
    CHECK_OK(transport.add_connection(1, 0, 0, 0, ours, 0));
  }
  ~HandMade() { ::close(peer); }

  void write(const FrameHeader& header, std::size_t payload, std::size_t at_once) {
    FrameBytes head;
    encode(header, head);
    std::vector<std::byte> bytes(head.begin(), head.end());
    for (std::size_t i = 0; i < payload; ++i) bytes.push_back(static_cast<std::byte>(i % 251));
    for (std::size_t at = 0; at < bytes.size(); at += at_once) {
      CHECK(::send(peer, bytes.data() + at, std::min(at_once, bytes.size() - at), MSG_NOSIGNAL) > 0);
      for (int i = 0; i < 3; ++i) poll();
    }
  }
  void poll() { transport.poll(now_ns(), completions, events); }
  Get get(std::uint64_t nbytes) {
    Get wanted;
    wanted.peer = 1;
    wanted.destination = memory.data() + 5000;
    wanted.nbytes = nbytes;
    wanted.source = {1, 0};
    wanted.cookie = 5;
    return wanted;
  }
};

}  // namespace

TEST(frames_may_come_in_any_pieces) {
  for (const std::size_t at_once : {1u, 7u, 55u, 57u, 100u}) {
    HandMade mine;
    for (std::uint32_t i = 0; i < 3; ++i) {
      FrameHeader header;
      header.signal = 2;
      header.sequence = header.segment = i;
      header.key = 1;
      header.offset = 100 * i;
      header.nbytes = 99;
      mine.write(header, 99, at_once);
    }
    for (int i = 0; i < 100000 && mine.signals.value(1, 2) < 3; ++i) mine.poll();
    CHECK_EQ(mine.signals.value(1, 2), 3u);
    for (std::size_t i = 0; i < 300; ++i)
      CHECK_EQ(static_cast<std::size_t>(mine.memory[i]), i % 100 == 99 ? std::size_t{0} : i % 100);
    CHECK(mine.events.empty());
  }
}

TEST(an_answer_goes_only_where_it_was_asked) {
  struct Case {
    std::uint32_t sequence;
    std::uint64_t offset, nbytes;
  };
  for (const Case& one : {Case{1, 0, 10}, Case{0, 1, 10}, Case{0, 0, 1001}, Case{0, 4999, 10}, Case{0, 0, 0}}) {
    HandMade mine;
    CHECK_OK(mine.transport.get(mine.get(1000)));
    mine.poll();
    FrameHeader header;
    header.type = FrameType::get_reply;
    header.sequence = one.sequence;
    header.offset = one.offset;
    header.nbytes = one.nbytes;
    mine.write(header, one.nbytes, 1 << 20);
    for (int i = 0; i < 100000 && mine.events.empty(); ++i) mine.poll();
    CHECK_EQ(mine.events.size(), std::size_t{1});
    CHECK_EQ(mine.completions.size(), std::size_t{1});
    CHECK(!mine.completions.empty() && mine.completions[0].cookie == 5 && !mine.completions[0].status.ok());
    for (const std::byte byte : mine.memory) CHECK(byte == std::byte{0});
  }
}

TEST(a_full_socket_is_waited_for) {
  TcpMesh mesh(2);
  std::vector<std::byte> source(kMemory);
  for (int i = 0; i < 4; ++i) CHECK_OK(mesh.transport(0).put(make_put(1, source.data(), kMemory, 1)));
  for (int quiet = 0; quiet < 100;) {
    const int done = mesh.transport(0).poll(now_ns(), mesh.completions[0], mesh.events[0]);
    quiet = done == 0 ? quiet + 1 : 0;
  }
  CHECK(mesh.completions[0].size() < 4);
  std::vector<pollfd> descriptors;
  std::int64_t wake_ns = INT64_MAX;
  mesh.transport(0).wait_set(descriptors, wake_ns);
  CHECK_EQ(wake_ns, INT64_MAX);
  CHECK(descriptors.size() == 1 && ::poll(descriptors.data(), 1, 0) == 0);
  // Room in the socket, made by the peer that reads, wakes whoever sleeps on it.
  for (int i = 0; i < 1000; ++i) mesh.transport(1).poll(now_ns(), mesh.completions[1], mesh.events[1]);
  CHECK_EQ(::poll(descriptors.data(), 1, 1000), 1);
  CHECK(mesh.until([&] { return mesh.signals(1).value(0, 1) == 4; }));
}
