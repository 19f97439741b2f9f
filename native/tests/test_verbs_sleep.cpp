// Sleeps of who polls verbs, over mocked NICs: queues are armed ahead of a sleep only, and nothing that comes around one is missed.
//
// Is: the transport, and what drives a rank above it. Is not: a sleep: a test looks at what a sleeper would wait for.
#include <poll.h>

#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "comm/local.hpp"
#include "comm/progress.hpp"
#include "conformance.hpp"

using namespace ccl_lab;
using namespace ccl_lab::check;

namespace {

constexpr int kNics = 2;
constexpr std::int32_t kSignal = 3;
constexpr std::int64_t kNoTime = std::numeric_limits<std::int64_t>::max();

struct Sleepers : MockVerbsMesh {
  // All have said once that they sleep, and what was armed then has gone off.
  Sleepers() : MockVerbsMesh(2, kNics, small_verbs(), 1) {
    for (int r = 0; r < 2; ++r) transport(r).about_to_sleep();
    for (std::uint16_t nic = 0; nic < kNics; ++nic) send(4 << 20, nic);
    CHECK(completed(0, kNics));
    settle();
    wire().arms = 0;
  }
  void send(std::uint64_t nbytes, std::uint16_t nic = 0) {
    Put put = put_to(1, memory(0), nbytes);
    put.nic = put.peer_nic = nic;
    put.signal = kSignal;
    CHECK_OK(transport(0).put(put));
  }
  // Acknowledgements go when some time has passed; and what is looked at now and then is looked at.
  void settle() {
    const std::int64_t acknowledged = now_ns() + 2'000'000;
    CHECK(until([&] { return poll() == 0 && now_ns() > acknowledged; }));
    for (int i = 0; i < 2 * VerbsTransport::kMostUnlooked; ++i) poll();
  }
  int poll_one(int r) { return transport(r).poll(now_ns(), completions[index(r)], events[index(r)]); }
  // The wire moves on, and nobody looks.
  void move() {
    wire().held = false;
    for (int i = 0; i < 100; ++i) wire().step();
    wire().held = true;
  }
  std::uint64_t received() { return signals(1).value(0, kSignal); }
  // Of rank 1: when it wants to be called again, and whether something wakes it before.
  std::int64_t wakes_at() {
    std::vector<pollfd> descriptors;
    std::int64_t wake_ns = kNoTime;
    transport(1).wait_set(descriptors, wake_ns);
    return wake_ns;
  }
  bool woken() {
    std::vector<pollfd> descriptors;
    std::int64_t wake_ns = kNoTime;
    transport(1).wait_set(descriptors, wake_ns);
    return ::poll(descriptors.data(), descriptors.size(), 0) > 0;
  }
};

}  // namespace

TEST(who_goes_on_polling_arms_nothing) {
  Sleepers ranks;
  for (int i = 0; i < 50; ++i) {
    ranks.send(200'000);
    CHECK(ranks.completed(0, static_cast<std::size_t>(i) + kNics + 1));
    for (int idle = 0; idle < 10; ++idle) ranks.poll();
  }
  CHECK_EQ(ranks.received(), 50u + kNics);
  CHECK_EQ(ranks.wire().arms, 0u);
}

TEST(who_is_about_to_sleep_arms_every_link_once) {
  Sleepers ranks;
  ranks.transport(1).about_to_sleep();
  CHECK_EQ(ranks.poll_one(1), 0);
  CHECK_EQ(ranks.wire().arms, std::uint64_t{kNics});
  CHECK(ranks.wakes_at() == kNoTime && !ranks.woken());
  // They still are, after a sleep in which nothing came, and after polls that go on.
  ranks.transport(1).about_to_sleep();
  for (int i = 0; i < 40; ++i) CHECK_EQ(ranks.poll_one(1), 0);
  CHECK_EQ(ranks.wire().arms, std::uint64_t{kNics});
  CHECK(ranks.wakes_at() == kNoTime);
}

TEST(what_comes_after_the_arming_wakes) {
  Sleepers ranks;
  for (std::uint64_t i = 0; i < 20; ++i) {
    ranks.wire().held = true;
    ranks.transport(1).about_to_sleep();
    // What is armed may have gone off while polls went on: then a poll does something, and the next sleep arms anew.
    CHECK_EQ(ranks.poll_one(1), 0);
    CHECK(ranks.wakes_at() == kNoTime && !ranks.woken());
    ranks.send(1000);
    ranks.poll_one(0);
    CHECK(!ranks.woken());
    ranks.move();
    CHECK(ranks.woken());
    CHECK(ranks.poll_one(1) > 0);
    CHECK_EQ(ranks.received(), kNics + 1 + i);
    ranks.wire().held = false;
    ranks.settle();
  }
  // No more than one of the two links had to be armed again for each of them.
  CHECK(ranks.wire().arms <= kNics * 20);
}

// The look that finds it has to come after the arming: a queue that has something already does not go off.
TEST(what_comes_between_the_last_look_and_the_arming_is_found_ahead_of_the_sleep) {
  Sleepers ranks;
  ranks.wire().held = true;
  ranks.send(1000);
  ranks.poll_one(0);
  CHECK_EQ(ranks.poll_one(1), 0);
  ranks.wire().ahead_of_arm = [&] { ranks.move(); };
  ranks.transport(1).about_to_sleep();
  CHECK(ranks.poll_one(1) > 0);
  CHECK_EQ(ranks.received(), kNics + 1u);
  ranks.wire().ahead_of_arm = nullptr;
  ranks.wire().held = false;
}

TEST(an_armed_queue_that_went_off_while_polls_went_on_is_armed_again) {
  Sleepers ranks;
  ranks.transport(1).about_to_sleep();
  CHECK_EQ(ranks.poll_one(1), 0);
  for (int i = 0; i < 5; ++i) {
    ranks.send(1000);
    CHECK(ranks.completed(0, static_cast<std::size_t>(i) + kNics + 1));
  }
  ranks.settle();
  ranks.wire().held = true;
  ranks.transport(1).about_to_sleep();
  CHECK_EQ(ranks.poll_one(1), 0);
  CHECK(ranks.wakes_at() == kNoTime);
  ranks.send(1000);
  ranks.poll_one(0);
  ranks.move();
  CHECK(ranks.woken());
  ranks.wire().held = false;
}

TEST(who_forgets_to_say_that_it_sleeps_is_told_to_poll_once_more) {
  Sleepers ranks;
  CHECK_EQ(ranks.poll_one(1), 0);
  CHECK_EQ(ranks.wire().arms, 0u);
  CHECK_EQ(ranks.wakes_at(), 0);
  CHECK_EQ(ranks.poll_one(1), 0);
  CHECK_EQ(ranks.wire().arms, std::uint64_t{kNics});
  CHECK(ranks.wakes_at() == kNoTime);
}

TEST(who_never_says_that_it_sleeps_is_always_woken) {
  MockVerbsMesh ranks(2, kNics, small_verbs(), 1);
  const std::int64_t acknowledged = now_ns() + 2'000'000;
  CHECK(ranks.until([&] { return ranks.poll() == 0 && now_ns() > acknowledged; }));
  std::vector<pollfd> descriptors;
  std::int64_t wake_ns = kNoTime;
  ranks.transport(1).wait_set(descriptors, wake_ns);
  CHECK_EQ(wake_ns, kNoTime);
  CHECK_EQ(::poll(descriptors.data(), descriptors.size(), 0), 0);
  CHECK_OK(ranks.transport(0).put(put_to(1, ranks.memory(0), 1000)));
  CHECK(ranks.until([&] {
    ranks.transport(0).poll(now_ns(), ranks.completions[0], ranks.events[0]);
    return ::poll(descriptors.data(), descriptors.size(), 0) > 0;
  }));
}

TEST(what_drives_a_rank_says_that_it_sleeps_and_needs_one_step_for_it) {
  MockFabric fabric(1);
  MockDriver driver(fabric);
  struct Rank {
    explicit Rank(int number) {
      SegmentOptions options = small_segment();
      options.board_bytes = node::board_bytes(1);
      segment = std::make_shared<RankSegment>(RankSegment::create(number, 2, options).value());
      local = std::make_unique<Local>(segment, std::make_shared<Arena>(segment), std::vector<std::int32_t>{number}, node::GroupOptions());
      progress = std::make_unique<Progress>(segment, std::vector<std::int32_t>{0, 1}, Mode::automatic, local.get());
    }
    std::shared_ptr<RankSegment> segment;
    std::unique_ptr<Local> local;
    std::unique_ptr<Progress> progress;
  };
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int r = 0; r < 2; ++r) {
    ranks.push_back(std::make_unique<Rank>(r));
    VerbsOptions options = small_verbs();
    for (int nic = 0; nic < kNics; ++nic) options.nics.push_back({"mock" + std::to_string(nic) + "-" + std::to_string(r), 1, 0});
    CHECK_OK(ranks.back()->progress->links().set_rdma(options, &driver));
  }
  const auto connect = [&](std::uint16_t nic) {
    const auto [a, b] = tcp_pair();
    CHECK_OK(ranks[0]->progress->links().add_connection(1, nic, nic, 0, a, 0));
    CHECK_OK(ranks[1]->progress->links().add_connection(0, nic, nic, 0, b, 0));
  };
  const auto step = [&] {
    for (int i = 0; i < 200; ++i)
      for (const auto& rank : ranks) rank->progress->step();
  };
  connect(0);
  for (const auto& rank : ranks) rank->progress->announce_sleep();
  step();
  CHECK_EQ(fabric.arms, 2u);
  connect(1);  // is armed with the next sleep, not before
  step();
  CHECK_EQ(fabric.arms, 2u);
  ranks[1]->progress->announce_sleep();
  CHECK_EQ(ranks[1]->progress->step(), 0);
  CHECK_EQ(fabric.arms, 3u);
  std::vector<pollfd> descriptors;
  std::int64_t wake_ns = kNoTime;
  ranks[1]->progress->wait_set(descriptors, wake_ns);
  CHECK(wake_ns > now_ns());
}
