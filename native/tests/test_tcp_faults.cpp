// Faults of NICs over tcp: each really does something, is counted as often as it did, and can be undone.
//
// Is: meshes over real sockets whose fault words a test writes as an injector does.
// Is not: how a run survives them (test_faults), nor messages about paths (test_messenger).
#include "conformance.hpp"

using namespace ccl_lab;
using namespace ccl_lab::check;

namespace {

struct Ranks : TcpMesh {
  Hearer hearers[2];

  explicit Ranks(int n_nics = 2, int n_connections = 1) : TcpMesh(2, n_nics, n_connections) {
    for (int r = 0; r < 2; ++r) transport(r).set_receiver(&hearers[r]);
  }
  NicFaults& faults(int r, int nic = 0) { return segment(r).faults()[index(nic)]; }
  std::uint64_t hits(int r, NicFault kind, int nic = 0) { return faults(r, nic).hits[NicFaults::index(kind)].load(); }
  std::uint64_t all_hits(int r) {
    std::uint64_t sum = 0;
    for (int nic = 0; nic < static_cast<int>(segment(r).faults().size()); ++nic)
      for (const auto& each : faults(r, nic).hits) sum += each.load();
    return sum;
  }
  std::vector<Completion>& done(int r) { return completions[index(r)]; }
  std::vector<LinkEvent>& lost(int r) { return events[index(r)]; }
  void poll_for(std::int64_t ns) {
    for (const std::int64_t end = now_ns() + ns; now_ns() < end;) poll();
  }
  // Everybody at one virtual time, until nothing happens for a while.
  void settle(std::int64_t at) {
    for (int quiet = 0; quiet < 5; ++quiet)
      for (int r = 0; r < 2; ++r)
        if (transport(r).poll(at, done(r), lost(r)) > 0) quiet = 0;
  }
};

Put make_put(int peer, const std::byte* source, std::uint64_t nbytes, int nic = 0, std::uint64_t cookie = 0) {
  Put put = put_to(peer, source, nbytes, nic);
  put.cookie = cookie;
  put.confirmed = put.urgent = true;
  return put;
}

}  // namespace

TEST(silence_holds_everything_back_and_is_undone) {
  struct Case {
    int who;
    NicFault kind;
  };
  std::vector<std::byte> source(3 << 20, std::byte{5});
  for (const Case& one : {Case{0, NicFault::silent_tx}, Case{1, NicFault::silent_rx}, Case{0, NicFault::unplugged},
                          Case{1, NicFault::unplugged}, Case{0, NicFault::silent_rx}, Case{1, NicFault::silent_tx}})
    for (const int connections : {1, 3}) {
      Ranks ranks(2, connections);
      ranks.poll_for(1'000'000);
      NicFaults& faults = ranks.faults(one.who);
      faults.set(one.kind, 1);
      const bool plugged = one.kind != NicFault::unplugged;
      CHECK(ranks.transport(one.who).nic_state(0) == (plugged ? NicState::up : NicState::unplugged));
      CHECK(ranks.transport(one.who).nic_state(1) == NicState::up && ranks.transport(1 - one.who).nic_state(0) == NicState::up);
      CHECK_OK(ranks.transport(0).put(make_put(1, source.data(), source.size())));
      CHECK_OK(ranks.transport(0).put(make_put(1, source.data(), 10, 1)));
      ranks.poll_for(20'000'000);
      const bool arrives = one.kind == NicFault::silent_rx ? one.who == 0 : one.kind == NicFault::silent_tx && one.who == 1;
      CHECK(ranks.until([&] {
        return !ranks.done(0).empty() && ranks.hearers[1].heard.size() > std::size_t{arrives} && ranks.hits(one.who, one.kind) > 0;
      }));
      // No confirmation, no event, nobody told; the other NIC goes on.
      CHECK_EQ(ranks.done(0).size(), std::size_t{1});
      CHECK(ranks.lost(0).empty() && ranks.lost(1).empty());
      CHECK_EQ(ranks.hearers[1].heard.size(), std::size_t{1} + arrives);
      const std::uint64_t hits = ranks.hits(one.who, one.kind);
      CHECK(hits >= 1 && hits <= static_cast<std::uint64_t>(2 * connections));
      CHECK_EQ(ranks.all_hits(one.who), hits);
      CHECK_EQ(ranks.all_hits(1 - one.who), 0u);
      // Who sleeps looks again soon; a poll of nothing is idle.
      std::vector<pollfd> descriptors;
      std::int64_t wake_ns = INT64_MAX;
      const std::int64_t now = now_ns();
      ranks.transport(one.who).poll(now, ranks.done(one.who), ranks.lost(one.who));
      ranks.transport(one.who).wait_set(descriptors, wake_ns);
      CHECK(wake_ns > now && wake_ns <= now + TcpTransport::kLookNs);
      faults.set(one.kind, 0);
      CHECK(!faults.asked());
      CHECK(ranks.until([&] { return ranks.done(0).size() == 2; }));
      CHECK(ranks.done(0)[1].status.ok() && ranks.memory(1)[source.size() - 1] == std::byte{5});
      CHECK(ranks.transport(one.who).nic_state(0) == NicState::up);
    }
}

TEST(what_a_silent_nic_held_goes_out_late) {
  // The sender has given the path up; the receiver has not: a stale write, unless the receiver retires it.
  for (const bool retires : {false, true}) {
    Ranks ranks;
    std::vector<std::byte> old(200000, std::byte{1}), fresh(200000, std::byte{2});
    ranks.poll_for(1'000'000);
    ranks.faults(0).set(NicFault::silent_tx, 1);
    CHECK_OK(ranks.transport(0).put(make_put(1, old.data(), old.size(), 0)));
    ranks.poll_for(5'000'000);
    CHECK_OK(ranks.transport(0).put(make_put(1, fresh.data(), fresh.size(), 1)));
    CHECK(ranks.until([&] { return ranks.done(0).size() == 1; }));
    CHECK(ranks.memory(1)[0] == std::byte{2});
    if (retires) ranks.transport(1).retire({0, 0, 0});
    ranks.faults(0).set(NicFault::silent_tx, 0);
    ranks.poll_for(20'000'000);
    CHECK(ranks.memory(1)[0] == (retires ? std::byte{2} : std::byte{1}));
    CHECK_EQ(ranks.lost(0).size(), std::size_t{retires});
  }
}

TEST(as_many_frames_are_damaged_as_were_asked_for) {
  for (const bool shaped : {false, true}) {
    Ranks ranks;
    std::vector<std::byte> source(1000, std::byte{5});
    if (shaped) ranks.segment(0).shapers()[0].bytes_per_s = 1'000'000'000;
    ranks.faults(0).set(NicFault::damage, 3);
    for (std::uint64_t life = 1; life <= 3; ++life) {
      ranks.lost(0).clear();
      ranks.lost(1).clear();
      ranks.done(0).clear();
      CHECK_OK(ranks.transport(0).put(make_put(1, source.data(), source.size())));
      CHECK(ranks.until([&] { return !ranks.lost(0).empty() && !ranks.lost(1).empty(); }));
      CHECK(ranks.lost(1)[0].status.message.find("its check word") != std::string::npos);
      CHECK(ranks.done(0).size() == 1 && !ranks.done(0)[0].status.ok() && ranks.hearers[1].heard.empty());
      CHECK(ranks.memory(1)[0] == std::byte{0});
      CHECK_EQ(ranks.hits(0, NicFault::damage), life);
      const auto [a, b] = tcp_pair();
      CHECK_OK(ranks.transport(0).add_connection(1, 0, 0, 0, a, 0));
      CHECK_OK(ranks.transport(1).add_connection(0, 0, 0, 0, b, 0));
    }
    CHECK(!ranks.faults(0).asked());
    CHECK_OK(ranks.transport(0).put(make_put(1, source.data(), source.size())));
    CHECK(ranks.until([&] { return ranks.done(0).size() == 2; }));
    CHECK_OK(ranks.done(0)[1].status);
    CHECK_EQ(ranks.hits(0, NicFault::damage), 3u);
  }
}

TEST(a_severed_connection_ends_its_path_at_both_ends) {
  for (const int connections : {1, 4}) {
    Ranks ranks(2, connections);
    std::vector<std::byte> source(3 << 20);
    for (int nic = 0; nic < 2; ++nic) CHECK_OK(ranks.transport(0).put(make_put(1, source.data(), source.size(), nic)));
    ranks.poll();
    ranks.faults(1).set(NicFault::sever, 1);
    CHECK(ranks.until([&] { return !ranks.lost(0).empty() && !ranks.lost(1).empty() && ranks.done(0).size() == 2; }));
    CHECK(ranks.lost(0).size() == 1 && ranks.lost(1).size() == 1 && ranks.lost(0)[0].nic == 0);
    CHECK_EQ(ranks.hits(1, NicFault::sever), 1u);
    CHECK_EQ(ranks.all_hits(1), 1u);
    CHECK(!ranks.faults(1).asked());
    CHECK(ranks.transport(0).connected(1, 1, 1) && !ranks.transport(0).connected(1, 0, 0));
  }
}

TEST(latency_shifts_a_stream_and_does_not_slow_it_down) {
  constexpr std::int64_t kDelay = 5'000'000;
  Ranks ranks;
  std::vector<std::byte> source(100000);
  ranks.faults(0).set(NicFault::delay_ns, kDelay);
  std::int64_t now = 1'000'000'000;
  ranks.settle(now);
  // Ten puts, 1 ms apart: each takes 5 ms, and all of them 14.
  std::vector<std::int64_t> heard;
  for (int ms = 0; ms < 16; ++ms, now += 1'000'000) {
    if (ms < 10) CHECK_OK(ranks.transport(0).put(make_put(1, source.data(), source.size(), 0, static_cast<std::uint64_t>(ms))));
    ranks.settle(now);
    CHECK_EQ(ranks.hearers[1].heard.size(), static_cast<std::size_t>(std::clamp(ms - 4, 0, 10)));
    if (ms == 3) {
      std::vector<pollfd> descriptors;
      std::int64_t wake_ns = INT64_MAX;
      ranks.transport(0).wait_set(descriptors, wake_ns);
      CHECK_EQ(wake_ns, std::int64_t{1'000'000'000} + kDelay);
    }
  }
  CHECK_EQ(ranks.hits(0, NicFault::delay_ns), 10u);
  CHECK_EQ(ranks.done(0).size(), std::size_t{10});
  // Confirmations and answers of a slow NIC are late too; what waits goes at once when the delay is taken back.
  ranks.faults(0).set(NicFault::delay_ns, 0);
  ranks.faults(1).set(NicFault::delay_ns, kDelay);
  CHECK_OK(ranks.transport(0).put(make_put(1, source.data(), 10)));
  Get get;
  get.peer = 1;
  get.destination = source.data();
  get.nbytes = source.size();
  get.source = {1, 0};
  CHECK_OK(ranks.transport(0).get(get));
  ranks.settle(now);
  ranks.settle(now + kDelay - 1);
  CHECK_EQ(ranks.done(0).size(), std::size_t{10});
  ranks.settle(now + kDelay);
  CHECK_EQ(ranks.done(0).size(), std::size_t{12});
  CHECK_EQ(ranks.hits(1, NicFault::delay_ns), 2u);
  CHECK_OK(ranks.transport(0).get(get));
  ranks.settle(now + kDelay);
  CHECK_EQ(ranks.done(0).size(), std::size_t{12});
  ranks.faults(1).set(NicFault::delay_ns, 0);
  ranks.settle(now + kDelay);
  CHECK_EQ(ranks.done(0).size(), std::size_t{13});
}

TEST(jitter_keeps_the_order) {
  for (const int connections : {1, 3}) {
    Ranks ranks(1, connections);
    std::vector<std::byte> source(5000);
    ranks.faults(0).set(NicFault::jitter_ns, 2'000'000);
    std::int64_t now = 1'000'000'000;
    ranks.settle(now);
    std::vector<std::int64_t> at;
    for (std::uint32_t i = 0; i < 200 || at.size() < 200; ++i, now += 100'000) {
      Put put = make_put(1, source.data(), source.size(), 0, i);
      put.notice.number = i;
      if (i < 200) CHECK_OK(ranks.transport(0).put(put));
      ranks.settle(now);
      while (at.size() < ranks.hearers[1].heard.size())
        at.push_back(now - 1'000'000'000 - static_cast<std::int64_t>(at.size()) * 100'000);
      if (i > 1000) break;
    }
    CHECK_EQ(at.size(), std::size_t{200});
    for (std::uint32_t i = 0; i < 200; ++i) CHECK_EQ(ranks.hearers[1].heard[i].notice.number, i);
    CHECK(*std::min_element(at.begin(), at.end()) < 1'500'000 && *std::max_element(at.begin(), at.end()) > 1'500'000);
    CHECK(*std::max_element(at.begin(), at.end()) <= 2'100'000);
    CHECK_EQ(ranks.hits(0, NicFault::jitter_ns), 200u);
  }
}

TEST(a_nic_taken_down_is_told_and_counted) {
  Ranks ranks;
  ranks.poll_for(1'000'000);
  ranks.segment(0).shapers()[0].up = 0;
  CHECK(ranks.transport(0).nic_state(0) == NicState::down && ranks.transport(0).nic_state(1) == NicState::up);
  CHECK(ranks.until([&] { return !ranks.lost(0).empty() && !ranks.lost(1).empty(); }));
  CHECK_EQ(ranks.hits(0, NicFault::down), 1u);
  CHECK_EQ(ranks.all_hits(0) + ranks.all_hits(1), 1u);
}

TEST(ranks_of_a_node_share_what_is_counted) {
  // Both ranks obey the words of rank 0, as two ranks of a node do.
  RankSegment leader = RankSegment::create(0, 2, small_segment()).value();
  RankSegment other = RankSegment::create(1, 2, small_segment()).value();
  NicFaults& faults = leader.faults()[0];
  faults.set(NicFault::damage, 1000);
  std::uint64_t taken[2] = {0, 0};
  for (int i = 0; i < 1200; ++i) taken[i % 2] += faults.take(NicFault::damage);
  CHECK_EQ(taken[0] + taken[1], 1000u);
  CHECK(!faults.asked() && faults.value(NicFault::damage) == 0);
  CHECK_EQ(other.faults()[0].hits[NicFaults::index(NicFault::damage)].load(), 0u);
  faults.set(NicFault::delay_ns, 5);
  faults.set(NicFault::sever, 1);
  CHECK(faults.take(NicFault::sever) && !faults.take(NicFault::sever) && faults.asked());
  faults.set(NicFault::delay_ns, 0);
  CHECK(!faults.asked());
}

TEST(a_silence_in_which_nothing_moved_did_nothing) {
  Ranks ranks(1, 2);
  for (int r = 0; r < 2; ++r) ranks.faults(r).set(NicFault::unplugged, 1);
  ranks.poll_for(2'000'000);
  CHECK_EQ(ranks.all_hits(0) + ranks.all_hits(1), 0u);
  for (int r = 0; r < 2; ++r) ranks.faults(r).set(NicFault::unplugged, 0);
  ranks.poll_for(2'000'000);
  CHECK(ranks.lost(0).empty() && ranks.lost(1).empty());
}

TEST(where_nothing_is_asked_nothing_is_counted) {
  Ranks ranks(2, 2);
  std::vector<std::byte> source(1 << 20);
  for (std::uint64_t i = 0; i < 20; ++i)
    for (int nic = 0; nic < 2; ++nic) CHECK_OK(ranks.transport(0).put(make_put(1, source.data(), source.size(), nic, i)));
  CHECK(ranks.until([&] { return ranks.done(0).size() == 40; }));
  CHECK_EQ(ranks.all_hits(0) + ranks.all_hits(1), 0u);
}
