// Triggers at points of the recovery protocol: who fires them, when, what they do, and that it happens once.
//
// Is: the words an injector arms and the look that rails take, with points that a test passes.
// Is not: where the rails pass them (tests/integration/test_faults_at_points.py).
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/segment.hpp"
#include "check.hpp"
#include "fault/points.hpp"

using namespace ccl_lab;

namespace {

constexpr SegmentOptions kSmall{.n_signal_channels = 3, .n_nics = 2, .trace_spans = 8, .arena_bytes = 1 << 16};
const std::vector<std::int32_t> kNodeOf{0, 0, 1, 1};

RankSegment leader() {
  RankSegment segment = RankSegment::create(0, 4, kSmall).value();
  for (NicShaper& nic : segment.shapers()) nic.up.store(1);
  return segment;
}

TriggerOrder order_of(ProtocolPoint point, NicFault kind, std::int64_t value, int nic = 1) {
  TriggerOrder order;
  order.point = static_cast<std::int32_t>(point);
  order.nic = nic;
  order.asked[NicFaults::index(kind)] = value;
  return order;
}

}  // namespace

TEST(what_is_not_armed_does_nothing) {
  const RankSegment segment = leader();
  Triggers& triggers = segment.control().triggers;
  const Points points(0, kNodeOf, segment), none;
  CHECK(points.watched() && !none.watched() && !points.armed() && !none.armed());
  none.reach(ProtocolPoint::posted, {2, 0, 0});
  const int number = triggers.arm(order_of(ProtocolPoint::posted, NicFault::down, 1), 1);
  CHECK_EQ(number, 0);
  CHECK(points.armed());
  CHECK(triggers.call_off(0));
  CHECK(!points.armed());
  points.reach(ProtocolPoint::posted, {2, 0, 0});
  CHECK_EQ(segment.shapers()[1].up.load(), 1u);
}

TEST(the_nth_pass_fires_once) {
  const RankSegment segment = leader();
  Triggers& triggers = segment.control().triggers;
  const Points points(1, kNodeOf, segment);
  segment.faults()[1].hit(NicFault::down);
  triggers.arm(order_of(ProtocolPoint::ack_heard, NicFault::down, 1), 3);
  const int other = triggers.arm(order_of(ProtocolPoint::told, NicFault::down, 1, 0), 1);
  for (int pass = 1; pass <= 4; ++pass) {
    points.reach(ProtocolPoint::ack_sent, {2, 0, 0});
    points.reach(ProtocolPoint::ack_heard, {2, 0, 0});
    CHECK_EQ(segment.shapers()[1].up.load(), pass < 3 ? 1u : 0u);
  }
  const Trigger& fired = triggers.each[0];
  CHECK(fired.state.load() == TriggerState::fired && fired.fired_by == 1 && fired.fired_ns > 0);
  CHECK_EQ(fired.did, 1u << NicFaults::index(NicFault::down));
  CHECK_EQ(fired.hits[NicFaults::index(NicFault::down)], 1u);
  CHECK(!triggers.call_off(0));
  triggers.release(0);
  CHECK(points.armed());
  CHECK(triggers.call_off(static_cast<std::size_t>(other)));
  CHECK(!points.armed());
}

TEST(a_trigger_waits_for_its_rank_and_nic) {
  const RankSegment segment = leader();
  Triggers& triggers = segment.control().triggers;
  TriggerOrder order = order_of(ProtocolPoint::posted, NicFault::silent_tx, 1, 0);
  order.rank = 1;
  order.node = 1;
  order.path_nic = 0;
  triggers.arm(order, 1);
  const Points first(0, kNodeOf, segment), second(1, kNodeOf, segment);
  first.posted({2, 0, 0}, true);
  second.posted({2, 0, 1}, true);
  second.posted({-1, 0, 0}, true);
  CHECK(!segment.faults()[0].on(NicFault::silent_tx));
  second.posted({3, 1, 0}, false);
  CHECK(segment.faults()[0].on(NicFault::silent_tx));
}

TEST(points_of_one_segment) {
  const RankSegment segment = leader();
  Triggers& triggers = segment.control().triggers;
  const Points points(0, kNodeOf, segment);
  const ProtocolPoint all[] = {ProtocolPoint::posted, ProtocolPoint::backup_post, ProtocolPoint::told,
                               ProtocolPoint::data_before_signal, ProtocolPoint::parked};
  for (const ProtocolPoint point : all) triggers.arm(order_of(point, NicFault::delay_ns, 1, -1), 1);
  const auto fired = [&](std::size_t i) { return triggers.each[i].state.load() == TriggerState::fired; };
  points.posted({2, 0, 0}, true);
  CHECK(fired(0) && !fired(1));
  points.posted({2, 0, 0}, false);
  CHECK(fired(1));
  points.told({2, 0, 0}, Notice{.lane = 0, .number = 0, .signal = 1, .sequence = 0}, true);
  CHECK(fired(2) && !fired(3) && !fired(4));
  points.told({2, 0, 0}, Notice{}, true);
  CHECK(fired(3) && !fired(4));
  points.told({2, 0, 0}, Notice{.lane = 0, .number = 0, .signal = 1, .sequence = 0}, false);
  CHECK(fired(4));
  CHECK(!points.armed());
}

TEST(what_is_counted_is_not_asked_twice) {
  const RankSegment segment = leader();
  Triggers& triggers = segment.control().triggers;
  const Points points(0, kNodeOf, segment);
  segment.faults()[1].set(NicFault::sever, 5);
  triggers.arm(order_of(ProtocolPoint::retired, NicFault::sever, 2), 1);
  points.reach(ProtocolPoint::retired, {2, 1, 1});
  CHECK_EQ(segment.faults()[1].value(NicFault::sever), 5);
  CHECK_EQ(triggers.each[0].did, 0u);
  while (segment.faults()[1].take(NicFault::sever)) continue;
  triggers.release(0);
  triggers.arm(order_of(ProtocolPoint::retired, NicFault::sever, 2), 1);
  points.reach(ProtocolPoint::retired, {2, 1, 1});
  CHECK_EQ(segment.faults()[1].value(NicFault::sever), 2);
  CHECK(segment.faults()[1].asked());
}

TEST(many_ranks_pass_and_one_fires) {
  const RankSegment segment = leader();
  Triggers& triggers = segment.control().triggers;
  for (int round = 0; round < 200; ++round) {
    const int number = triggers.arm(order_of(ProtocolPoint::confirmed, NicFault::damage, 1), 50);
    CHECK_EQ(number, 0);
    std::vector<std::thread> ranks;
    for (int r = 0; r < 2; ++r)
      ranks.emplace_back([&, r] {
        const Points points(r, kNodeOf, segment);
        for (int i = 0; i < 100; ++i) points.reach(ProtocolPoint::confirmed, {2, 1, 1});
      });
    for (std::thread& rank : ranks) rank.join();
    CHECK(triggers.each[0].state.load() == TriggerState::fired);
    CHECK(segment.faults()[1].take(NicFault::damage) && !segment.faults()[1].take(NicFault::damage));
    triggers.release(0);
  }
}

TEST(no_more_than_there_is_room_for) {
  const RankSegment segment = leader();
  Triggers& triggers = segment.control().triggers;
  for (std::size_t i = 0; i < kTriggers; ++i)
    CHECK_EQ(triggers.arm(order_of(ProtocolPoint::back, NicFault::down, 1), 1), static_cast<int>(i));
  CHECK_EQ(triggers.arm(order_of(ProtocolPoint::back, NicFault::down, 1), 1), -1);
  CHECK(triggers.call_off(7));
  CHECK_EQ(triggers.arm(order_of(ProtocolPoint::back, NicFault::down, 1), 1), 7);
}

TEST(a_rank_ends_itself_at_its_point) {
  const RankSegment segment = leader();
  Triggers& triggers = segment.control().triggers;
  TriggerOrder order = order_of(ProtocolPoint::told, NicFault::down, 0, -1);
  order.rank = 0;
  order.signal = SIGKILL;
  triggers.arm(order, 1);
  const pid_t child = ::fork();
  if (child == 0) {
    Points(0, kNodeOf, segment).reach(ProtocolPoint::told, {2, 0, 0});
    ::_exit(0);
  }
  int status = 0;
  CHECK_EQ(::waitpid(child, &status, 0), child);
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  CHECK(triggers.each[0].state.load() == TriggerState::fired);
}

namespace {

struct Echo final : Messenger {
  std::vector<Datagram> sent;
  void send(const Datagram& datagram) override { sent.push_back(datagram); }
  int poll(std::int64_t, std::vector<Datagram>& arrived) override {
    arrived.insert(arrived.end(), sent.begin(), sent.end());
    return static_cast<int>(sent.size());
  }
  void wait_set(std::vector<pollfd>&, std::int64_t&) const override {}
  void reset(std::uint16_t) override { sent.clear(); }
};

}  // namespace

TEST(messages_are_points) {
  const RankSegment segment = leader();
  Triggers& triggers = segment.control().triggers;
  const Points points(0, kNodeOf, segment);
  Echo echo;
  WatchedMessenger watched(echo, points);
  const std::pair<MessageKind, const char*> kinds[] = {
      {MessageKind::hint, "hint"}, {MessageKind::request, "request"}, {MessageKind::ack, "ack"}, {MessageKind::ping, "ping"},
      {MessageKind::pong, "pong"}, {MessageKind::probe, "probe"}, {MessageKind::reply, "reply"}};
  for (const auto& [kind, name] : kinds) {
    for (const char* suffix : {"_sent", "_heard"}) {
      std::int32_t point = 0;
      while (std::string(kProtocolPointNames[static_cast<std::size_t>(point)]) != std::string(name) + suffix) ++point;
      triggers.arm(order_of(static_cast<ProtocolPoint>(point), NicFault::down, 1, -1), 1);
    }
    Datagram datagram;
    datagram.peer = 2;
    datagram.message.kind = kind;
    watched.send(datagram);
    CHECK(triggers.each[0].state.load() == TriggerState::fired && triggers.each[1].state.load() == TriggerState::armed);
    std::vector<Datagram> arrived;
    CHECK_EQ(watched.poll(0, arrived), 1);
    CHECK(triggers.each[1].state.load() == TriggerState::fired);
    triggers.release(0);
    triggers.release(1);
    watched.reset(0);
  }
}
