// What only verbs have: spreading over queue pairs, keys, error completions, events of devices. Over mocked NICs.
//
// Is: each rule of transport/verbs, one test each. Is not: real NICs (test_verbs_rig), nor what all transports promise
// (test_conformance).
#include <numeric>

#include "conformance.hpp"

using namespace ccl_lab;
using namespace ccl_lab::check;

namespace {

struct Ranks : MockVerbsMesh {
  Hearer hearers[2];

  explicit Ranks(const VerbsOptions& options = small_verbs(), int n_nics = 1, std::uint64_t seed = 1, bool confirms = false)
      : MockVerbsMesh(2, n_nics, options, seed) {
    for (int r = 0; confirms && r < 2; ++r) transport(r).set_receiver(&hearers[r]);
  }
  ~Ranks() override {
    for (int r = 0; r < 2; ++r) transport(r).set_receiver(nullptr);
  }
  std::vector<Completion>& done(int r) { return completions[index(r)]; }
  std::vector<LinkEvent>& lost(int r) { return events[index(r)]; }
  // Keys are asked for once; afterwards only the data path is at work.
  void warm_up(std::uint64_t nbytes = 4 << 20) {
    CHECK_OK(transport(0).put(put_to(1, memory(0), nbytes)));
    CHECK(completed(0, 1));
    const std::int64_t acknowledged = now_ns() + 2'000'000;
    CHECK(until([&] { return now_ns() > acknowledged && poll() + poll() + poll() == 0; }));  // the last may go in the first of these rounds
    done(0).clear();
    wire().imms.clear();
    wire().used.clear();
    wire().doorbells = wire().plain_writes = wire().writes_with_imm = wire().signaled = 0;
  }
};

Put make_put(int peer, const std::byte* source, std::uint64_t nbytes, std::uint32_t number, bool confirmed = false) {
  Put put = put_to(peer, source, nbytes);
  put.cookie = number;
  put.tag = {7, static_cast<std::int32_t>(number), 0};
  put.signal = 3;
  put.confirmed = confirmed;
  if (confirmed) put.notice = {number * 3 + 1, number, static_cast<std::int32_t>(number % kChannels), number * 5};
  return put;
}

bool says(const Status& status, const char* word) { return status.message.find(word) != std::string::npos; }

}  // namespace

TEST(numbers_of_24_bits_are_widened_near_what_is_expected) {
  for (const std::uint32_t near : {0u, 5u, (1u << 24) - 3, 1u << 24, ~0u - 2, 0x80000000u})
    for (const std::int32_t off : {0, 1, -1, 2047, -2048, 4095})
      CHECK_EQ(widen((near + static_cast<std::uint32_t>(off)) & kSequenceMask, near), near + static_cast<std::uint32_t>(off));
}

TEST(defaults_by_what_lies_between_are_those_of_the_paper) {
  const Spread near = Spread::of(Reach::same_zone);
  CHECK(near.segment_bytes == 512 * 1024 && near.queue_pairs == 16 && near.inflight_max == 128 && near.mode == SpreadMode::dqplb);
  const Spread far = Spread::of(Reach::cross_zone);
  CHECK(far.segment_bytes == 1024 * 1024 && far.queue_pairs == 16 && far.inflight_max == 128 && far.mode == SpreadMode::spray);
  CHECK_EQ(Spread::of(Reach::all_to_all).queue_pairs, 4);
  CHECK_EQ(Spread::of(Reach::same_rack).segment_bytes, near.segment_bytes);
  CHECK(Spread::of(Reach::cross_building).mode == far.mode);
  Spread even;
  even.segment_bytes = 0;
  even.queue_pairs = 4;
  CHECK_EQ(even.segment_of(1001), 251u);
  CHECK_EQ(even.segment_of(0), 1u);
}

TEST(segments_go_round_robin_and_only_the_last_notifies) {
  Ranks ranks;
  ranks.warm_up();
  CHECK_OK(ranks.transport(0).put(make_put(1, ranks.memory(0), 5 * 64 * 1024 + 1, 1)));
  CHECK(ranks.completed(0, 1));
  std::vector<std::uint32_t> data;
  for (const std::uint32_t imm : ranks.wire().imms)
    if ((imm & kAckBit) == 0) data.push_back(imm);
  CHECK_EQ(data.size(), std::size_t{6});
  // A doorbell for each queue pair: what they were given in turn was posted queue pair by queue pair.
  std::sort(data.begin(), data.end(), [](auto a, auto b) { return (a & kSequenceMask) < (b & kSequenceMask); });
  for (std::size_t i = 0; i < data.size(); ++i) {
    CHECK_EQ((data[i] & kNotifyBit) != 0, i == 5);
    CHECK_EQ(data[i] & kFastBit, 0u);
    if (i > 0) CHECK_EQ(data[i] & kSequenceMask, (data[i - 1] & kSequenceMask) + 1);
  }
  // Six segments over four queue pairs: all of them carry some.
  CHECK_EQ(std::set<std::uint32_t>(ranks.wire().used.begin(), ranks.wire().used.begin() + 6).size(), std::size_t{4});
}

TEST(small_puts_take_the_first_queue_pair_with_one_doorbell) {
  Ranks ranks;
  ranks.warm_up();
  const std::uint32_t first = 100;  // the first queue pair that was made
  for (std::uint32_t i = 0; i < 6; ++i) CHECK_OK(ranks.transport(0).put(make_put(1, ranks.memory(0), 1000, i)));
  const std::uint64_t before = ranks.wire().doorbells;
  ranks.wire().held = true;
  ranks.transport(0).poll(now_ns(), ranks.done(0), ranks.lost(0));
  CHECK_EQ(ranks.wire().doorbells, before + 1);
  CHECK_EQ(ranks.wire().imms.size(), std::size_t{6});
  for (std::size_t i = 0; i < 6; ++i) {
    CHECK_EQ(ranks.wire().used[i], first);
    CHECK(ranks.wire().imms[i] >> 30 == 3);  // fast and notify
  }
  // One of the chain tells of its success, for all of them.
  CHECK_EQ(ranks.wire().signaled, 1u);
  ranks.wire().held = false;
  CHECK(ranks.completed(0, 6));
  CHECK_EQ(ranks.signals(1).value(0, 3), 6u);
}

TEST(posting_stops_when_all_queue_pairs_are_full_and_goes_on_with_completions) {
  VerbsOptions options = small_verbs();
  options.spread = {4096, 3, 4, SpreadMode::dqplb};
  Ranks ranks(options);
  ranks.warm_up(1 << 20);
  ranks.wire().held = true;
  CHECK_OK(ranks.transport(0).put(make_put(1, ranks.memory(0), 1 << 20, 1)));
  for (int i = 0; i < 20; ++i) ranks.poll();
  CHECK_EQ(ranks.wire().writes_with_imm, std::uint64_t{3 * 4});
  CHECK(ranks.transport(0).unsent());
  ranks.wire().held = false;
  CHECK(ranks.completed(0, 1));
  CHECK(!ranks.transport(0).unsent());
  CHECK(ranks.wire().most_sends <= 2 * 4 + 2);
  CHECK(std::memcmp(ranks.memory(0), ranks.memory(1), 1 << 20) == 0);
}

TEST(a_receiver_that_does_not_look_is_never_without_receives) {
  VerbsOptions options = small_verbs();
  options.spread = {4096, 2, 4, SpreadMode::dqplb};
  Ranks ranks(options);
  ranks.warm_up(1 << 20);
  CHECK_OK(ranks.transport(0).put(make_put(1, ranks.memory(0), 1 << 20, 1)));
  for (int i = 0; i < 1000; ++i) ranks.transport(0).poll(now_ns(), ranks.done(0), ranks.lost(0));
  // Two queue pairs with 8 receives each; not one segment more.
  CHECK_EQ(ranks.wire().writes_with_imm, 16u);
  CHECK(ranks.completed(0, 1));
}

TEST(sprayed_puts_are_told_of_once_when_all_is_there) {
  VerbsOptions options = small_verbs();
  options.spread.mode = SpreadMode::spray;
  Ranks ranks(options);
  ranks.warm_up();
  CHECK_OK(ranks.transport(0).put(make_put(1, ranks.memory(0), 1 << 20, 1)));
  ranks.wire().held = true;
  for (int i = 0; i < 10; ++i) ranks.poll();
  CHECK_EQ(ranks.wire().plain_writes, 16u);
  CHECK_EQ(ranks.wire().writes_with_imm, 0u);
  ranks.wire().held = false;
  CHECK(ranks.completed(0, 1));
  CHECK_EQ(ranks.signals(1).value(0, 3), 1u);
  CHECK_EQ(ranks.wire().imms.front(), kNotifyBit | (ranks.wire().imms.front() & kSequenceMask));
}

// Queue pairs that carried bytes since `from`, and how many writes each had. Not: acknowledgements, which go when time has passed.
static std::map<std::uint32_t, int> carried(MockVerbsMesh& mesh, std::size_t from) {
  std::map<std::uint32_t, int> by_pair;
  for (std::size_t i = from; i < mesh.wire().used.size(); ++i)
    if ((mesh.wire().imms[i] & kAckBit) == 0) ++by_pair[mesh.wire().used[i]];
  return by_pair;
}

static int segments_of(const std::map<std::uint32_t, int>& by_pair) {
  return std::accumulate(by_pair.begin(), by_pair.end(), 0, [](int sum, const auto& each) { return sum + each.second; });
}

TEST(each_peer_is_reached_as_its_class_says) {
  VerbsOptions options = small_verbs();
  options.classes = {{64 * 1024, 2, 8, SpreadMode::dqplb}, {128 * 1024, 5, 8, SpreadMode::dqplb}, {256 * 1024, 3, 8, SpreadMode::spray}};
  options.class_of = {0, 0, 1, 2};
  MockVerbsMesh mesh(4, 1, options, 1);
  for (int peer = 1; peer < 4; ++peer) {
    const std::size_t before = mesh.wire().used.size();
    mesh.wire().plain_writes = 0;
    CHECK_OK(mesh.transport(0).put(put_to(peer, mesh.memory(0), 1 << 20)));
    CHECK(mesh.completed(0, static_cast<std::size_t>(peer)));
    CHECK(std::memcmp(mesh.memory(0), mesh.memory(peer), 1 << 20) == 0);
    const std::map<std::uint32_t, int> by_pair = carried(mesh, before);
    if (peer == 3) {
      CHECK_EQ(mesh.wire().plain_writes, std::uint64_t{4});
      CHECK_EQ(by_pair.size(), std::size_t{1});  // it is told of once
    } else {
      CHECK_EQ(segments_of(by_pair), peer == 1 ? 16 : 8);
      CHECK_EQ(by_pair.size(), std::size_t{2});  // the end with fewer says how many: rank 0 is of class 0, of two
    }
  }
}

TEST(an_all_to_all_has_a_spread_of_its_own_on_the_same_path) {
  VerbsOptions options = small_verbs();
  options.all_to_all = Spread{128 * 1024, 2, 3, SpreadMode::dqplb};
  Ranks ranks(options);
  ranks.warm_up();
  for (std::size_t done = 0; const Traffic traffic : {Traffic::all_to_all, Traffic::usual, Traffic::all_to_all}) {
    const std::size_t before = ranks.wire().used.size();
    Put put = make_put(1, ranks.memory(0), 1 << 20, 1);
    put.tag.traffic = traffic;
    CHECK_OK(ranks.transport(0).put(put));
    if (traffic == Traffic::all_to_all) {  // no more of it under way than its own limit, though the path has room
      ranks.wire().held = true;
      for (int i = 0; i < 10; ++i) ranks.poll();
      CHECK_EQ(segments_of(carried(ranks, before)), 2 * 3);
      ranks.wire().held = false;
    }
    CHECK(ranks.completed(0, ++done));
    CHECK_EQ(carried(ranks, before).size(), traffic == Traffic::all_to_all ? std::size_t{2} : std::size_t{4});
    CHECK_EQ(segments_of(carried(ranks, before)), traffic == Traffic::all_to_all ? 8 : 16);
  }
  CHECK(std::memcmp(ranks.memory(0), ranks.memory(1), 1 << 20) == 0);
}

TEST(a_path_has_queue_pairs_for_the_larger_of_its_two_spreads) {
  VerbsOptions options = small_verbs();
  options.all_to_all = Spread{64 * 1024, 6, 8, SpreadMode::spray};
  Ranks ranks(options);
  ranks.warm_up();
  CHECK_EQ(ranks.wire().pairs.size(), std::size_t{2 * (6 + 1)});  // and one for control at each end
  Put put = make_put(1, ranks.memory(0), 1 << 20, 1);
  put.tag.traffic = Traffic::all_to_all;
  CHECK_OK(ranks.transport(0).put(put));
  CHECK(ranks.completed(0, 1) && ranks.wire().plain_writes == 16);
  CHECK_OK(ranks.transport(0).put(make_put(1, ranks.memory(0), 1 << 20, 2)));
  CHECK(ranks.completed(0, 2));
  CHECK_EQ(ranks.wire().plain_writes, std::uint64_t{16 + 1});  // what it says of itself
  CHECK_EQ(ranks.signals(1).value(0, 3), 2u);
}

TEST(confirmed_puts_complete_in_order_and_never_before_they_landed) {
  for (const SpreadMode mode : {SpreadMode::dqplb, SpreadMode::spray})
    for (const std::uint32_t first : {0u, (1u << 24) - 100, ~0u - 100}) {
      VerbsOptions options = small_verbs();
      options.spread.mode = mode;
      options.first_number = first;
      Ranks ranks(options, 1, first + 3, true);
      constexpr std::uint32_t kPuts = 400;
      std::vector<std::byte> source(1 << 20, std::byte{3});
      std::mt19937 random(5);
      for (std::uint32_t i = 0; i < kPuts; ++i) {
        Put put = make_put(1, source.data(), random() % (i % 50 == 0 ? 600000 : 3000), i, true);
        put.urgent = i % 7 == 0;
        CHECK_OK(ranks.transport(0).put(put));
      }
      CHECK(ranks.until([&] {
        CHECK(ranks.done(0).size() <= ranks.hearers[1].heard.size());
        return ranks.done(0).size() == kPuts;
      }));
      for (std::uint32_t i = 0; i < kPuts; ++i) {
        CHECK_EQ(ranks.done(0)[i].cookie, std::uint64_t{i});
        CHECK((ranks.hearers[1].heard[i].notice == make_put(1, nullptr, 0, i, true).notice));
      }
    }
}

TEST(memory_that_is_not_registered_is_staged_and_comes_out_right) {
  VerbsOptions options = small_verbs();
  options.registration = Registration::off;
  Ranks ranks(options);
  std::vector<std::byte> source(6 << 20);
  fill(source.data(), source.size(), 4);
  CHECK_OK(ranks.transport(0).put(make_put(1, source.data(), source.size(), 1)));
  CHECK(ranks.completed(0, 1));
  CHECK(std::memcmp(source.data(), ranks.memory(1), source.size()) == 0);
  std::vector<std::byte> back(source.size());
  Get get;
  get.peer = 1;
  get.destination = back.data();
  get.nbytes = back.size();
  get.source = {1, 0};
  CHECK_OK(ranks.transport(0).get(get));
  CHECK(ranks.completed(0, 2));
  CHECK(back == source);
  CHECK_EQ(ranks.transport(0).n_registered(0), std::size_t{0});
}

TEST(links_of_a_nic_share_what_is_staged_in) {
  VerbsOptions options = small_verbs();
  options.registration = Registration::off;
  options.spread.inflight_max = 64;  // the first link could fill all of it
  MockVerbsMesh mesh(3, 1, options, 1);
  std::vector<std::byte> source(8 << 20);
  fill(source.data(), source.size(), 8);
  for (const int peer : {1, 2}) CHECK_OK(mesh.transport(0).put(put_to(peer, source.data(), 8 << 20)));
  CHECK(mesh.completed(0, 2));
  for (const int peer : {1, 2}) CHECK(std::memcmp(source.data(), mesh.memory(peer), 8 << 20) == 0);
}

TEST(only_the_chunks_that_are_used_are_registered_and_none_is_left) {
  Ranks ranks;
  CHECK_OK(ranks.transport(0).put(put_to(1, ranks.memory(0) + (3 << 20), 1000)));
  CHECK(ranks.completed(0, 1));
  CHECK_EQ(ranks.transport(0).n_registered(0), std::size_t{1});
  CHECK_EQ(ranks.transport(1).n_registered(0), std::size_t{1});
  CHECK_OK(ranks.transport(1).deregister_region(1));
  CHECK_EQ(ranks.transport(1).n_registered(0), std::size_t{0});
  // The message travels by a socket of the system, which takes its time.
  const std::int64_t heard = now_ns() + 100'000'000;
  CHECK(ranks.until([&] { return now_ns() > heard; }));
  CHECK_EQ(static_cast<int>(ranks.transport(0).put(put_to(1, ranks.memory(0), 10)).code), static_cast<int>(Code::bounds));
  for (int r = 0; r < 2; ++r) ranks.transport(r).reset(1);
  CHECK(ranks.wire().pairs.empty());
}

TEST(every_error_completion_ends_the_path_and_says_what_it_means) {
  for (int at = 1; at < verbs::kWcStatuses; ++at) {
    const auto status = static_cast<verbs::WcStatus>(at);
    Ranks ranks(small_verbs(), 2);
    ranks.warm_up();
    ranks.wire().held = true;
    for (std::uint32_t i = 0; i < 3; ++i) CHECK_OK(ranks.transport(0).put(make_put(1, ranks.memory(0), 200000, i)));
    for (int i = 0; i < 5; ++i) ranks.poll();
    ranks.wire().pairs.at(ranks.wire().used.back())->break_with(status);
    CHECK(ranks.until([&] { return !ranks.lost(0).empty(); }));
    CHECK_EQ(ranks.done(0).size(), std::size_t{3});  // each once
    for (const Completion& each : ranks.done(0)) CHECK(!each.status.ok());
    const Status& told = ranks.lost(0)[0].status;
    CHECK(says(told, verbs::name(status)) && says(told, verbs::meaning(status)) && says(told, "mock0-0"));
    const bool memory = status == verbs::WcStatus::loc_prot_err || status == verbs::WcStatus::loc_access_err || status == verbs::WcStatus::rem_access_err;
    CHECK_EQ(static_cast<int>(told.code), static_cast<int>(memory ? Code::registration : Code::link_down));
    CHECK(!ranks.transport(0).connected(1, 0, 0) && ranks.transport(0).connected(1, 1, 1));
    // The other side hears of it, and the other NIC goes on.
    ranks.wire().held = false;
    CHECK(ranks.until([&] { return !ranks.lost(1).empty(); }));
    Put put = make_put(1, ranks.memory(0), 100000, 9);
    put.nic = put.peer_nic = 1;
    put.signal = 5;
    CHECK_OK(ranks.transport(0).put(put));
    CHECK(ranks.until([&] { return ranks.signals(1).value(0, 5) == 1; }));
    CHECK_EQ(ranks.lost(0).size(), std::size_t{1});
    CHECK_EQ(ranks.lost(1).size(), std::size_t{1});
  }
}

TEST(events_of_a_device_end_its_paths_and_no_others) {
  using verbs::EventType;
  for (int at = 0; at < verbs::kEventTypes; ++at) {
    const auto type = static_cast<EventType>(at);
    Ranks ranks(small_verbs(), 2);
    ranks.warm_up();
    if (type == EventType::gid_change) ranks.device(0).own_gid[15] = 99;
    ranks.device(0).say(type, 100);
    bool ends = false;
    for (const EventType each : {EventType::cq_err, EventType::qp_fatal, EventType::qp_req_err, EventType::qp_access_err,
                                 EventType::device_fatal, EventType::port_err, EventType::gid_change})
      ends = ends || each == type;
    for (int i = 0; i < 200; ++i) ranks.poll();
    CHECK_EQ(ranks.lost(0).size(), std::size_t{ends});
    if (!ends) continue;
    CHECK(says(ranks.lost(0)[0].status, verbs::name(type)));
    CHECK(ranks.transport(0).connected(1, 1, 1));
    CHECK_EQ(ranks.lost(1).size(), std::size_t{1});
  }
  // An event of which nothing follows: the GID is what it was.
  Ranks ranks;
  ranks.device(0).say(verbs::EventType::gid_change);
  for (int i = 0; i < 100; ++i) ranks.poll();
  CHECK(ranks.lost(0).empty());
}

TEST(after_retire_nothing_lands_and_nothing_completes) {
  Ranks ranks(small_verbs(), 1, 1, true);
  ranks.warm_up();
  std::vector<std::byte> source(1 << 20, std::byte{9});
  ranks.wire().held = true;
  CHECK_OK(ranks.transport(0).put(make_put(1, source.data(), source.size(), 1, true)));
  for (int i = 0; i < 5; ++i) ranks.poll();
  const std::vector<std::byte> before(ranks.memory(1), ranks.memory(1) + source.size());
  ranks.transport(1).retire({0, 0, 0});
  ranks.wire().held = false;
  for (int i = 0; i < 100; ++i) ranks.poll();
  CHECK(std::memcmp(before.data(), ranks.memory(1), before.size()) == 0);
  CHECK(ranks.hearers[1].heard.empty() && ranks.lost(1).empty());
  CHECK_EQ(static_cast<int>(ranks.lost(0).back().status.code), static_cast<int>(Code::peer_lost));
  // The same NICs can be joined again.
  const auto [a, b] = tcp_pair();
  CHECK_OK(ranks.transport(0).add_connection(1, 0, 0, 0, a, 0));
  CHECK_OK(ranks.transport(1).add_connection(0, 0, 0, 0, b, 0));
  CHECK_OK(ranks.transport(0).put(make_put(1, source.data(), source.size(), 2, true)));
  CHECK(ranks.until([&] { return ranks.hearers[1].heard.size() == 1; }));
  CHECK(std::memcmp(source.data(), ranks.memory(1), source.size()) == 0);
}

TEST(a_receiver_may_retire_the_path_it_hears_of) {
  Ranks ranks(small_verbs(), 1, 1, true);
  ranks.hearers[1].then = [&](const Hearer::Heard& heard) { ranks.transport(1).retire(heard.path); };
  for (std::uint32_t i = 0; i < 5; ++i) CHECK_OK(ranks.transport(0).put(make_put(1, ranks.memory(0), 100, i, true)));
  CHECK(ranks.until([&] { return !ranks.lost(0).empty(); }));
  CHECK_EQ(ranks.hearers[1].heard.size(), std::size_t{1});
}

TEST(what_a_device_refuses_is_said_and_nothing_stays_open) {
  Ranks ranks;
  const auto connect = [&] {
    for (int r = 0; r < 2; ++r) ranks.transport(r).retire({1 - r, 0, 0});
    const auto [a, b] = tcp_pair();
    ::close(b);
    return ranks.transport(0).add_connection(1, 0, 0, 0, a, 0);
  };
  ranks.device(0).state = verbs::PortState::down;
  CHECK(says(connect(), "port 1 of mock0-0 is down"));
  CHECK_EQ(static_cast<int>(ranks.transport(0).nic_state(0)), static_cast<int>(NicState::unplugged));
  ranks.device(0).state = verbs::PortState::active;
  ranks.wire().most_memory = ranks.wire().memory;
  CHECK(says(connect(), "ulimit -l"));
  ranks.wire().most_memory = UINT64_MAX;
  ranks.wire().inline_bytes = 16;
  CHECK_EQ(static_cast<int>(connect().code), static_cast<int>(Code::unsupported));
  ranks.wire().inline_bytes = 220;
  CHECK(ranks.wire().pairs.empty());
  CHECK_OK(connect());
}

TEST(a_nic_without_rdma_and_a_gid_that_is_not_there_are_named) {
  MockFabric fabric;
  MockDriver driver(fabric);
  Ranks ranks;
  VerbsOptions options = small_verbs();
  options.nics = {{"mock", 1, 17}, {}};
  VerbsTransport transport(0, ranks.signals(0), {}, nullptr, driver, options);
  const auto connect = [&](std::uint16_t nic, std::uint16_t index) {
    const auto [a, b] = tcp_pair();
    ::close(b);
    return transport.add_connection(1, nic, 0, index, a, 0);
  };
  CHECK(says(connect(0, 0), "no GID of index 17"));
  CHECK_EQ(static_cast<int>(connect(1, 0).code), static_cast<int>(Code::unsupported));
  CHECK_EQ(static_cast<int>(connect(2, 0).code), static_cast<int>(Code::usage));
  CHECK(says(connect(0, 1), "index is 1"));
  CHECK(fabric.pairs.empty() && fabric.memories.empty() && fabric.devices.empty());
}

TEST(a_peer_of_another_version_or_another_job_is_refused_by_name) {
  Aside ours(-1);
  const auto decode_with = [](std::size_t at, std::uint8_t value) {
    const auto [a, b] = tcp_pair();
    Aside from(a);
    Card card;
    card.queue_pairs.resize(3);
    from.say(card);
    CHECK_OK(from.flush());
    std::uint8_t bytes[512];
    const auto n = static_cast<std::size_t>(::recv(b, bytes, sizeof bytes, 0));
    ::close(b);
    bytes[4 + at] = value;
    return decode_aside(bytes + 4, n - 4).status();
  };
  CHECK_OK(decode_with(0, static_cast<std::uint8_t>(AsideKind::card)));
  CHECK(says(decode_with(5, 9), "version 9"));
  CHECK(says(decode_with(1, 0), "CCL_LAB_TRANSPORT"));
  CHECK(!decode_with(0, 77).ok());
  // Whatever comes: an answer, never more.
  std::mt19937 random(3);
  for (int i = 0; i < 20000; ++i) {
    std::uint8_t bytes[96];
    for (auto& each : bytes) each = static_cast<std::uint8_t>(random());
    bytes[0] = static_cast<std::uint8_t>(1 + random() % 7);
    static_cast<void>(decode_aside(bytes, random() % sizeof bytes));
  }
}

TEST(what_is_no_message_beside_the_data_ends_the_path) {
  Ranks ranks;
  for (int r = 0; r < 2; ++r) ranks.transport(r).retire({1 - r, 0, 0});
  const auto [a, b] = tcp_pair();
  CHECK_OK(ranks.transport(0).add_connection(1, 0, 0, 0, a, 0));
  const char* const http = "GET / HTTP/1.1\r\n\r\n";
  CHECK(::send(b, http, std::strlen(http), 0) > 0);
  CHECK(ranks.until([&] { return !ranks.lost(0).empty(); }));
  ::close(b);
}

TEST(a_severed_queue_pair_is_found_out_by_both_ends) {
  Ranks ranks(small_verbs(), 2);
  ranks.warm_up();
  ranks.segment(0).faults()[0].set(NicFault::sever, 1);
  CHECK(ranks.until([&] { return !ranks.lost(0).empty() && !ranks.lost(1).empty(); }));
  CHECK_EQ(ranks.segment(0).faults()[0].hits[NicFaults::index(NicFault::sever)].load(), 1u);
  CHECK(ranks.transport(0).connected(1, 1, 1));
}

TEST(discovery_reads_what_the_system_says) {
  CHECK(verbs::discover("/nowhere").empty());
  verbs::DeviceInfo device;
  device.name = "rxe1";
  verbs::PortInfo port;
  port.netdev = "eth1";
  const verbs::Gid mapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 1, 1};
  port.gids = {{0, {0xfe, 0x80}, "RoCE v2", "eth1", false}, {1, mapped, "IB/RoCE v1", "eth1", true}, {2, mapped, "RoCE v2", "eth1", true}};
  device.ports = {port};
  CHECK_EQ(verbs::best_gid(port), 2);
  CHECK((verbs::nic_of({device}, "10.77.1.1").value() == verbs::Nic{"rxe1", 1, 2}));
  const Status none = verbs::nic_of({device}, "10.77.0.1").status();
  CHECK(none.code == Code::unsupported && says(none, "10.77.0.1") && says(none, "rxe1 (eth1)"));
  CHECK_EQ(static_cast<int>(verbs::nic_of({device}, "here").status().code), static_cast<int>(Code::usage));
  CHECK_EQ(verbs::text(mapped), std::string("10.77.1.1"));
}
