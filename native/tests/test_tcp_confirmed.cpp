// Confirmed puts over tcp: when they complete, what the receiver hears, and what is left after a path was retired.
//
// Is: meshes over real sockets, with one and several connections between two NICs, and peers made by hand.
// Is not: the layer that orders lanes and repairs paths (test_rails), nor faults that are injected (test_tcp_faults).
#include "confirmed.hpp"

using namespace ccl_lab;
using namespace ccl_lab::check;

namespace {

const std::uint32_t kStarts[] = {0, ~std::uint32_t{0} - 7};

void on_every_bundle(void (*run)(Ranks&)) {
  for (const int connections : {1, 4})
    for (const std::uint32_t first : kStarts) {
      const int before = failures();
      Ranks ranks(2, connections, first);
      run(ranks);
      if (failures() != before) std::fprintf(stderr, "  with %d connections from number %u\n", connections, first);
    }
}

}  // namespace

TEST(every_size_lands_is_told_and_confirmed) {
  on_every_bundle([](Ranks& ranks) {
    std::uint32_t number = 0;
    for (const std::uint64_t nbytes : {0u, 1u, 71u, 4097u, 262144u, 262145u, 5000001u}) {
      for (const bool urgent : {false, true}) {
        fill(ranks.memory(0), nbytes, number + 1);
        std::memset(ranks.memory(1), 0, nbytes + 1);
        const Put put = make_put(1, ranks.memory(0), nbytes, 0, number, urgent);
        bool whole = false;
        ranks.hearers[1].then = [&](const Hearer::Heard&) { whole = std::memcmp(ranks.memory(0), ranks.memory(1), nbytes) == 0; };
        CHECK_OK(ranks.transport(0).put(put));
        CHECK(ranks.completed(0, ++number));
        CHECK(whole && ranks.memory(1)[nbytes] == std::byte{0});
        CHECK_EQ(ranks.heard(1).size(), std::size_t{number});
        CHECK(ranks.heard(1).back().notice == put.notice);
        CHECK((ranks.heard(1).back().path == Path{0, 0, 0}));
        CHECK(ranks.done(0).back().cookie == put.cookie && ranks.done(0).back().status.ok());
      }
    }
    // The transport itself raised nothing.
    for (int channel = 0; channel < kChannels; ++channel) CHECK_EQ(ranks.signals(1).value(0, channel), 0u);
  });
}

TEST(confirmed_puts_complete_in_order_and_never_before_they_landed) {
  on_every_bundle([](Ranks& ranks) {
    constexpr std::uint32_t kPuts = 400;
    std::vector<std::byte> source(1 << 20, std::byte{3});
    std::mt19937 random(5);
    for (std::uint32_t i = 0; i < kPuts; ++i)
      CHECK_OK(ranks.transport(0).put(make_put(1, source.data(), random() % (i % 50 == 0 ? 600000 : 3000), 0, i, i % 7 == 0)));
    CHECK(ranks.until([&] {
      CHECK(ranks.done(0).size() <= ranks.heard(1).size());
      return ranks.done(0).size() == kPuts;
    }));
    for (std::uint32_t i = 0; i < kPuts; ++i) {
      CHECK_EQ(ranks.done(0)[i].cookie, std::uint64_t{i});
      CHECK_EQ(ranks.heard(1)[i].notice.number, i);
    }
  });
}

TEST(all_kinds_of_ops_share_a_path) {
  on_every_bundle([](Ranks& ranks) {
    constexpr std::uint32_t kRounds = 120;
    std::vector<std::byte> source(100000);
    fill(source.data(), source.size(), 9);
    std::vector<std::byte> got(2 * 100000);
    for (int r = 0; r < 2; ++r) fill(ranks.memory(r) + (4 << 20), 100000, 9);
    std::mt19937 random(6);
    for (std::uint32_t i = 0; i < kRounds; ++i)
      for (int r = 0; r < 2; ++r) {
        CHECK_OK(ranks.transport(r).put(make_put(1 - r, source.data(), random() % source.size(), 0, i, random() % 3 == 0)));
        Put plain = make_put(1 - r, source.data(), random() % source.size(), 1 << 20, 0);
        plain.confirmed = false;
        plain.signal = 1;
        plain.cookie = 1'000'000;
        CHECK_OK(ranks.transport(r).put(plain));
        Get get;
        get.peer = 1 - r;
        get.destination = got.data() + r * 100000;
        get.nbytes = 100000;
        get.source = {1, 4 << 20};
        get.cookie = 2'000'000;
        CHECK_OK(ranks.transport(r).get(get));
      }
    CHECK(ranks.until([&] { return ranks.done(0).size() == 3 * kRounds && ranks.done(1).size() == 3 * kRounds; }));
    for (int r = 0; r < 2; ++r) {
      CHECK_EQ(ranks.signals(r).value(1 - r, 1), std::uint64_t{kRounds});
      CHECK_EQ(ranks.heard(r).size(), std::size_t{kRounds});
      CHECK(std::memcmp(got.data() + r * 100000, source.data(), 100000) == 0);
      std::uint64_t next = 0;
      for (const Completion& each : ranks.done(r))
        if (each.cookie < 1'000'000) CHECK_EQ(each.cookie, next++);
      CHECK_EQ(next, std::uint64_t{kRounds});
      CHECK(ranks.lost(r).empty());
    }
  });
}

// `op_id`: -1, of no schedule: whoever waits for it later says nothing more.
void confirm_in_time(std::int32_t op_id, std::int64_t delay_ns, std::uint64_t many) {
  Ranks ranks;
  const auto post = [&](int from, Put put) {
    put.tag.op_id = op_id;
    CHECK_OK(ranks.transport(from).put(put));
  };
  std::vector<std::byte> source(256 * 1024);
  const std::int64_t start = 1'000'000'000;
  const auto poll_all = [&](std::int64_t at) {
    for (int quiet = 0; quiet < 50; ++quiet)
      for (int r = 0; r < 2; ++r) quiet = ranks.transport(r).poll(at, ranks.done(r), ranks.lost(r)) > 0 ? 0 : quiet;
  };
  poll_all(start);
  // Little, and nobody waits: after a while. A sleeper is told when.
  post(0, make_put(1, source.data(), 100, 0, 0));
  poll_all(start);
  CHECK_EQ(ranks.heard(1).size(), std::size_t{1});
  CHECK(ranks.done(0).empty());
  std::vector<pollfd> descriptors;
  std::int64_t wake_ns = INT64_MAX;
  ranks.transport(1).wait_set(descriptors, wake_ns);
  CHECK_EQ(wake_ns, start + delay_ns);
  poll_all(wake_ns - 1);
  CHECK(ranks.done(0).empty());
  poll_all(wake_ns);
  CHECK_EQ(ranks.done(0).size(), std::size_t{1});
  // Somebody waits: at once.
  post(0, make_put(1, source.data(), 100, 0, 1, true));
  poll_all(wake_ns);
  CHECK_EQ(ranks.done(0).size(), std::size_t{2});
  // Much: at once, for all that came so far.
  const auto last = static_cast<std::uint32_t>(many / source.size() + 2);
  for (std::uint32_t i = 2; i < last; ++i) post(0, make_put(1, source.data(), source.size(), 0, i));
  poll_all(wake_ns);
  CHECK(ranks.done(0).size() == last && ranks.heard(1).size() == last);
  // Something goes the other way: with it.
  const std::size_t before = ranks.done(0).size();
  post(0, make_put(1, source.data(), 100, 0, last));
  poll_all(wake_ns);
  CHECK_EQ(ranks.done(0).size(), before);
  post(1, make_put(0, source.data(), 100, 0, 0));
  poll_all(wake_ns);
  CHECK_EQ(ranks.done(0).size(), std::size_t{last} + 1);
  // Many small ones: at once, since who sends them may have a window of so many.
  for (std::uint32_t i = last + 1; i < last + 1 + Bundle::kAckNotices; ++i) post(0, make_put(1, source.data(), 1, 0, i));
  poll_all(wake_ns);
  CHECK_EQ(ranks.done(0).size(), std::size_t{last} + 1 + Bundle::kAckNotices);
  wake_ns = INT64_MAX;
  ranks.transport(1).wait_set(descriptors, wake_ns);
  CHECK_EQ(wake_ns, INT64_MAX);
}

TEST(a_confirmation_is_sent_when_it_is_worth_it) {
  confirm_in_time(-1, Bundle::kAckDelayNs, Bundle::kAckBytes);
  confirm_in_time(7, Bundle::kScheduledAckDelayNs, Bundle::kScheduledAckBytes);
}

TEST(a_path_is_retired_in_the_middle_and_added_again) {
  for (int life = 0; life < 8; ++life) {
    Ranks ranks(2, life % 2 == 0 ? 1 : 3);
    std::vector<std::byte> source(4 << 20, std::byte{1});
    for (std::uint32_t i = 0; i < 3; ++i) CHECK_OK(ranks.transport(0).put(make_put(1, source.data(), source.size(), 0, i)));
    for (int i = 0; i < 4 * life; ++i) ranks.poll();
    // The receiver first: from here on nothing lands.
    ranks.transport(1).retire({0, 0, 0});
    const std::size_t heard = ranks.heard(1).size();
    std::memset(ranks.memory(1), 0x55, source.size());
    CHECK(!ranks.transport(1).connected(0, 0, 0) && ranks.transport(1).connected(0, 1, 1));
    CHECK(ranks.until([&] { return !ranks.lost(0).empty(); }));
    CHECK_EQ(ranks.lost(0).size(), std::size_t{1});
    CHECK(ranks.lost(0)[0].peer == 1 && ranks.lost(0)[0].nic == 0 && ranks.lost(0)[0].peer_nic == 0);
    CHECK(ranks.lost(1).empty());
    CHECK_EQ(ranks.done(0).size(), std::size_t{3});
    for (const Completion& each : ranks.done(0)) CHECK(each.cookie < heard || !each.status.ok());
    CHECK_EQ(ranks.heard(1).size(), heard);
    for (const std::size_t at : {std::size_t{0}, source.size() / 2, source.size() - 1})
      CHECK(ranks.memory(1)[at] == std::byte{0x55});
    ranks.transport(0).retire({1, 0, 0});  // is gone already: nothing happens
    const auto [a, b] = tcp_pair();
    CHECK_OK(ranks.transport(0).add_connection(1, 0, 0, 0, a, 0));
    CHECK_OK(ranks.transport(1).add_connection(0, 0, 0, 0, b, 0));
    CHECK_OK(ranks.transport(0).put(make_put(1, source.data(), 1000, 0, 77, true)));
    CHECK(ranks.until([&] { return ranks.done(0).size() == 4; }));
    CHECK(ranks.done(0)[3].cookie == 77 && ranks.done(0)[3].status.ok() && ranks.heard(1).back().notice.number == 77);
    CHECK(std::memcmp(ranks.memory(1), source.data(), 1000) == 0);
  }
}

TEST(what_is_under_way_on_a_retired_path_is_forgotten) {
  Ranks ranks(2);
  std::vector<std::byte> source(4 << 20);
  std::vector<std::byte> got(100);
  for (std::uint32_t i = 0; i < 3; ++i) CHECK_OK(ranks.transport(0).put(make_put(1, source.data(), source.size(), 0, i)));
  Get get;
  get.peer = 1;
  get.destination = got.data();
  get.nbytes = got.size();
  get.source = {1, 0};
  CHECK_OK(ranks.transport(0).get(get));
  ranks.transport(0).retire({1, 0, 0});
  ranks.transport(1).retire({0, 0, 0});
  for (int i = 0; i < 200; ++i) ranks.poll();
  CHECK(ranks.done(0).empty() && ranks.lost(0).empty() && ranks.lost(1).empty() && ranks.heard(1).empty());
  CHECK_EQ(ranks.transport(0).n_connections(), std::size_t{1});
  Put put = make_put(1, source.data(), 5, 0, 9);
  CHECK_EQ(static_cast<int>(ranks.transport(0).put(put).code), static_cast<int>(Code::link_down));
  ranks.transport(0).retire({1, 1, 1});
  CHECK_EQ(static_cast<int>(ranks.transport(0).put(put).code), static_cast<int>(Code::connect));
  for (const Path& nowhere : {Path{-1, 0, 0}, Path{5, 0, 0}, Path{1, 9, 9}}) ranks.transport(0).retire(nowhere);
}

TEST(a_receiver_may_retire_the_path_it_hears_of) {
  for (const int connections : {1, 3}) {
    Ranks ranks(2, connections);
    std::vector<std::byte> source(100);
    for (std::uint32_t i = 0; i < 50; ++i) CHECK_OK(ranks.transport(0).put(make_put(1, source.data(), source.size(), 0, i)));
    ranks.hearers[1].then = [&](const Hearer::Heard& one) {
      if (one.notice.number == 20) ranks.transport(1).retire(one.path);
    };
    CHECK(ranks.until([&] { return !ranks.lost(0).empty(); }));
    CHECK_EQ(ranks.heard(1).size(), std::size_t{21});
    CHECK(ranks.lost(1).empty() && !ranks.transport(1).connected(0, 0, 0) && ranks.transport(1).connected(0, 1, 1));
    CHECK_EQ(ranks.transport(1).n_connections(), static_cast<std::size_t>(connections));
  }
}

TEST(what_waits_for_a_missing_segment_is_not_told_after_its_path_was_retired) {
  // Segments 1 and 2 are kept; 0 comes, is told, and its receiver retires the path.
  std::vector<std::atomic<std::uint64_t>> counters(2 * kChannels);
  TcpTransport transport(0, SignalTable(counters.data(), 2, kChannels, kChannels), {}, nullptr);
  Hearer hearer;
  transport.set_receiver(&hearer);
  hearer.then = [&](const Hearer::Heard& one) { transport.retire(one.path); };
  int peers[2];
  for (std::uint16_t i = 0; i < 2; ++i) {
    const auto [ours, theirs] = tcp_pair();
    CHECK_OK(transport.add_connection(1, 0, 0, i, ours, 0));
    peers[i] = theirs;
  }
  std::vector<Completion> completions;
  std::vector<LinkEvent> events;
  for (const std::uint32_t segment : {1u, 2u, 0u}) {
    FrameHeader header;
    header.notice = true;
    header.number = header.segment = segment;
    FrameBytes bytes;
    encode(header, bytes);
    CHECK(::send(peers[segment == 0], bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
    for (int i = 0; i < 2000; ++i) transport.poll(now_ns(), completions, events);
  }
  CHECK(hearer.heard.size() == 1 && hearer.heard[0].notice.number == 0);
  CHECK(completions.empty() && events.empty() && transport.n_connections() == 0);
  for (const int fd : peers) ::close(fd);
}

TEST(a_confirmation_of_what_was_not_sent_is_refused) {
  for (const std::uint32_t ack : {std::uint32_t{2}, std::uint32_t{1} << 30}) {
    std::vector<std::atomic<std::uint64_t>> counters(2 * kChannels);
    TcpTransport transport(0, SignalTable(counters.data(), 2, kChannels, kChannels), {}, nullptr);
    const auto [ours, theirs] = tcp_pair();
    CHECK_OK(transport.add_connection(1, 0, 0, 0, ours, 0));
    std::byte source{};
    CHECK_OK(transport.put(make_put(1, &source, 1, 0, 0)));
    std::vector<Completion> completions;
    std::vector<LinkEvent> events;
    transport.poll(now_ns(), completions, events);
    FrameHeader header;
    header.type = FrameType::ack;
    header.ack = ack;
    FrameBytes bytes;
    encode(header, bytes);
    CHECK(::send(theirs, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
    for (int i = 0; i < 100000 && events.empty(); ++i) transport.poll(now_ns(), completions, events);
    CHECK(events.size() == 1 && events[0].status.message.find("which was not sent") != std::string::npos);
    CHECK(completions.size() == 1 && !completions[0].status.ok());
    ::close(theirs);
  }
}

TEST(a_notice_that_nobody_hears_ends_the_path) {
  Ranks ranks;
  ranks.transport(1).set_receiver(nullptr);
  CHECK_OK(ranks.transport(0).put(make_put(1, nullptr, 0, 0, 0)));
  CHECK(ranks.until([&] { return !ranks.lost(0).empty() && !ranks.lost(1).empty(); }));
  CHECK(ranks.lost(1)[0].status.message.find("nobody on this rank hears") != std::string::npos);
  Put put = make_put(1, nullptr, 0, 0, 0);
  put.notice.signal = kChannels;
  Ranks fresh;
  CHECK_EQ(static_cast<int>(fresh.transport(0).put(put).code), static_cast<int>(Code::bounds));
}

TEST(where_paths_are_repaired_an_end_is_said_soon) {
  // Of two connections the peer shuts one, and is not there to shut the other: the event does not wait for that one.
  for (const bool repaired : {false, true}) {
    Hearer hearer;
    TcpMesh mesh(2, 1, 2);
    if (repaired) mesh.transport(0).set_receiver(&hearer);
    mesh.poll();
    mesh.segment(1).faults()[0].set(NicFault::sever, 1);
    mesh.transport(1).poll(now_ns(), mesh.completions[1], mesh.events[1]);
    const std::int64_t start = 1'000'000'000;
    const std::int64_t most = repaired ? TcpTransport::kShortDrainNs : TcpTransport::kDrainNs;
    const auto poll_at = [&](std::int64_t at) {
      for (int i = 0; i < 100; ++i) mesh.transport(0).poll(at, mesh.completions[0], mesh.events[0]);
    };
    poll_at(start);
    poll_at(start + most - 1);
    CHECK(mesh.events[0].empty());
    poll_at(start + most);
    CHECK_EQ(mesh.events[0].size(), std::size_t{1});
    mesh.transport(0).set_receiver(nullptr);
  }
}

TEST(an_event_names_both_ends_of_its_path) {
  TcpMesh mesh(2, 3, 0);
  const auto [a, b] = tcp_pair();
  CHECK_OK(mesh.transport(0).add_connection(1, 1, 2, 0, a, 0));
  CHECK_OK(mesh.transport(1).add_connection(0, 2, 1, 0, b, 0));
  mesh.transport(1).reset(1);
  CHECK(mesh.until([&] { return !mesh.events[0].empty(); }));
  const LinkEvent& event = mesh.events[0][0];
  CHECK(event.peer == 1 && event.nic == 1 && event.peer_nic == 2);
}
