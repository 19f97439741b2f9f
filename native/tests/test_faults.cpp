// Faults on the virtual network: that it does what RDMA and TCP do to those above, that every injection takes effect, and a
// fixed set of seeds through every fault and protocol point (fuzz_faults runs more).
#include <cstring>
#include <string>
#include <vector>

#include "check.hpp"
#include "fault_scenarios.hpp"

namespace ccl_lab::check {
namespace {

constexpr int kChannels = 4;

struct Told : Receiver {
  void landed(const Path& path, const Notice& notice) override { heard.push_back({path, notice}); }
  std::vector<std::pair<Path, Notice>> heard;
};

// Two ranks on two nodes with two NICs each, joined by two paths.
struct Pair {
  explicit Pair(VirtualOptions options = {}) : network(with_nodes(options)) {
    for (int r = 0; r < 2; ++r) {
      counters.emplace_back(static_cast<std::size_t>(2 * kChannels));
      memory.emplace_back(64 * 1024, std::byte{0});
    }
    for (int r = 0; r < 2; ++r) {
      const auto i = static_cast<std::size_t>(r);
      ends.push_back(std::make_unique<VirtualTransport>(network, r, SignalTable(counters[i].data(), 2, kChannels, kChannels)));
      ends.back()->set_receiver(&told[r]);
      CHECK_OK(ends.back()->register_region(kArenaRegionKey, memory[i].data(), memory[i].size()));
    }
    for (std::uint16_t k = 0; k < 2; ++k) join(k);
  }

  static VirtualOptions with_nodes(VirtualOptions options) {
    options.node_of = {0, 1};
    return options;
  }
  void join(std::uint16_t nic) {
    const std::uint32_t link = network.dial(0, {1, nic, nic});
    CHECK_OK(ends[0]->attach(link));
    CHECK_OK(ends[1]->attach(link));
  }
  Put put(std::uint64_t nbytes, std::uint32_t number, std::uint16_t nic = 0) {
    Put p;
    p.peer = 1;
    p.nic = p.peer_nic = nic;
    p.source = memory[0].data();
    p.nbytes = nbytes;
    p.destination = {kArenaRegionKey, 0};
    p.cookie = number;
    p.confirmed = true;
    p.notice = {7, number, -1, 0};
    return p;
  }
  void run(std::int64_t for_ns) {
    const std::int64_t until = network.now_ns() + for_ns;
    while (network.now_ns() < until) {
      network.advance(network.now_ns() + 500);
      for (auto& end : ends) end->poll(network.now_ns(), completions, events);
    }
  }

  VirtualNetwork network;
  std::vector<std::vector<std::atomic<std::uint64_t>>> counters;
  std::vector<std::vector<std::byte>> memory;
  std::vector<std::unique_ptr<VirtualTransport>> ends;
  Told told[2];
  std::vector<Completion> completions;
  std::vector<LinkEvent> events;
};

TEST(confirmed_puts_land_and_are_confirmed_in_order) {
  Pair pair;
  for (std::size_t i = 0; i < 9000; ++i) pair.memory[0][i] = static_cast<std::byte>(i * 7);
  for (std::uint32_t k = 0; k < 20; ++k) CHECK_OK(pair.ends[0]->put(pair.put(450 * k, k)));
  pair.run(1'000'000);
  CHECK_EQ(pair.told[1].heard.size(), 20u);
  CHECK_EQ(pair.completions.size(), 20u);
  for (std::uint32_t k = 0; k < 20; ++k) {
    CHECK_EQ(pair.told[1].heard[k].second.number, k);
    CHECK(pair.told[1].heard[k].first == (Path{0, 0, 0}));
    CHECK_EQ(pair.completions[k].cookie, std::uint64_t{k});
    CHECK_OK(pair.completions[k].status);
  }
  CHECK_EQ(std::memcmp(pair.memory[0].data(), pair.memory[1].data(), 8550), 0);
  CHECK(pair.events.empty());
}

TEST(plain_puts_signal_in_order_and_gets_read) {
  Pair pair;
  std::memset(pair.memory[1].data() + 1000, 5, 100);
  for (int k = 0; k < 10; ++k) {
    Put p = pair.put(k % 2 == 0 ? 5000 : 1, 0, static_cast<std::uint16_t>(k % 2));
    p.confirmed = false;
    p.signal = 1;
    CHECK_OK(pair.ends[0]->put(p));
  }
  Get get;
  get.peer = 1;
  get.destination = pair.memory[0].data() + 20'000;
  get.nbytes = 100;
  get.source = {kArenaRegionKey, 1000};
  // The bytes are read when the request arrives, which the puts to the same place precede.
  get.source.offset = 30'000;
  std::memset(pair.memory[1].data() + 30'000, 9, 100);
  CHECK_OK(pair.ends[0]->get(get));
  pair.run(1'000'000);
  CHECK_EQ(pair.counters[1][static_cast<std::size_t>(0 * kChannels + 1)].load(), 10u);
  CHECK_EQ(pair.completions.size(), 11u);
  CHECK_EQ(pair.memory[0][20'050], std::byte{9});
}

// Why both ends have to retire a path: what the sender gave up still lands where the receiver did not.
TEST(bytes_on_the_wire_land_late_unless_the_receiver_retired) {
  for (const bool retired : {false, true}) {
    VirtualOptions options;
    options.tells_peer = false;
    Pair pair(options);
    std::memset(pair.memory[0].data(), 1, 4000);
    CHECK_OK(pair.ends[0]->put(pair.put(4000, 0)));
    pair.network.advance(4500);  // it has left, and not arrived
    const std::uint32_t link = pair.network.cut(0, {1, 0, 0}, true, false);
    pair.ends[0]->retire({1, 0, 0});
    if (retired) pair.ends[1]->retire({0, 0, 0});
    std::memset(pair.memory[1].data(), 2, 4000);
    pair.network.mend(link);
    pair.run(1'000'000);
    CHECK_EQ(pair.memory[1][0], retired ? std::byte{2} : std::byte{1});
    CHECK_EQ(pair.network.counters.late > 0, !retired);
    CHECK_EQ(pair.network.counters.stale > 0, retired);
    CHECK(pair.completions.empty());
    CHECK(!pair.ends[0]->put(pair.put(1, 1)).ok());
    CHECK_EQ(pair.network.counters.on_retired, 1u);
    if (!retired) pair.ends[1]->retire({0, 0, 0});
    pair.join(0);
    CHECK_OK(pair.ends[0]->put(pair.put(100, 2)));
    pair.run(1'000'000);
    CHECK_EQ(pair.completions.size(), 1u);
  }
}

TEST(a_broken_path_fails_what_is_under_way_and_says_so_once) {
  VirtualOptions options;
  options.tells_peer = false;
  Pair pair(options);
  for (std::uint32_t k = 0; k < 3; ++k) CHECK_OK(pair.ends[0]->put(pair.put(4000, k)));
  pair.network.set_nic(1, 0, NicState::down, ccl_lab::Told::far);
  CHECK_EQ(pair.ends[1]->nic_state(0), NicState::down);
  pair.run(1'000'000);
  CHECK_EQ(pair.completions.size(), 3u);
  for (const Completion& each : pair.completions) CHECK_EQ(each.status.code, Code::link_down);
  CHECK_EQ(pair.events.size(), 1u);
  CHECK_EQ(pair.events[0].peer, 1);
  CHECK_EQ(pair.events[0].status.rank, 1);
  CHECK(!pair.ends[0]->put(pair.put(1, 9)).ok());
  CHECK_OK(pair.ends[0]->put(pair.put(1, 10, 1)));
  pair.run(1'000'000);
  CHECK_OK(pair.completions.back().status);
}

TEST(silence_says_nothing_until_the_nic_gives_up) {
  VirtualOptions options;
  options.retry_ns = 3'000'000;
  Pair pair(options);
  pair.network.set_silent(0, 0, true, false);
  CHECK_OK(pair.ends[0]->put(pair.put(100, 0)));
  pair.run(2'000'000);
  CHECK(pair.completions.empty() && pair.events.empty());
  pair.run(2'000'000);
  CHECK_EQ(pair.completions.size(), 1u);
  CHECK(!pair.completions[0].status.ok());
  CHECK(pair.network.effects(VirtualFault::silent) > 0);
}

TEST(without_a_fault_nothing_is_said_and_nothing_repaired) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Scenario scenario = make_scenario(seed);
    scenario.injections.clear();
    scenario.heal = false;
    const Verdicts verdicts = FaultSim(scenario).run();
    CHECK_EQ(verdicts.wrong, std::string());
    CHECK_EQ(verdicts.rails.lost + verdicts.rails.resent + verdicts.rails.ignored, 0u);
    CHECK_EQ(verdicts.reached[static_cast<std::size_t>(SimPoint::request_sent)], 0u);
    for (const std::uint64_t each : verdicts.injected) CHECK_EQ(each, 0u);
  }
}

TEST(a_seed_gives_the_same_history) {
  for (std::uint64_t seed = 300; seed < 330; ++seed) {
    Tally tally;
    const Verdicts first = run_seed(seed, tally), again = run_seed(seed, tally);
    CHECK_EQ(first.virtual_ns, again.virtual_ns);
    CHECK_EQ(first.steps, again.steps);
    CHECK_EQ(first.network.pieces, again.network.pieces);
    CHECK(first.reached == again.reached);
  }
}

// Twice through all pairs of fault and point.
TEST(every_fault_at_every_point_is_survived_or_said) {
  Tally tally;
  for (std::uint64_t seed = 0; seed < 2 * kPairs; ++seed) {
    const Verdicts verdicts = run_seed(seed, tally);
    if (verdicts.wrong.empty()) continue;
    print_failure(seed, verdicts);
    fail(__FILE__, __LINE__, "seed " + std::to_string(seed));
  }
  CHECK_EQ(tally.hung, 0u);
  for (std::size_t f = 0; f < kSimFaults; ++f) {
    std::uint64_t hits = 0;
    for (const std::uint64_t each : tally.hits[f]) hits += each;
    if (hits < 20) fail(__FILE__, __LINE__, std::string(kSimFaultNames[f]) + " was injected " + std::to_string(hits) + " times, expected 20 or more");
  }
  for (std::size_t p = 0; p < kSimPoints; ++p) {
    std::uint64_t hits = 0;
    for (const auto& each : tally.hits) hits += each[p];
    if (hits == 0) fail(__FILE__, __LINE__, std::string("nothing was injected at ") + kSimPointNames[p]);
  }
  for (std::size_t i = 0; i < tally.injected.size(); ++i)
    if (tally.injected[i] > 0 && tally.effects[i] == 0)
      fail(__FILE__, __LINE__, std::string(kVirtualFaultNames[i]) + " was injected and never did anything");
  CHECK(tally.rails.recovered > 0 && tally.rails.resent > 0 && tally.rails.back > 0 && tally.rails.ignored > 0);
  CHECK_EQ(tally.rails.duplicates, 0u);
  CHECK(tally.network.stale > 0);
}

}  // namespace
}  // namespace ccl_lab::check
