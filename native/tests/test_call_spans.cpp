// The spans of a collective of a node: who times it, tasks that follow each other, rests, long calls, switches in between.
#include <unistd.h>

#include <vector>

#include "base/clock.hpp"
#include "check.hpp"
#include "node/call_spans.hpp"
#include "trace/ring.hpp"

using namespace ccl_lab;
using node::CallSpans;
using node::Timed;

namespace {

constexpr std::uint32_t kCapacity = 64;
constexpr std::uint64_t kLong = 128 * 1024;
constexpr std::int64_t kOffNs = 1000;  // at most, of times that are made of ticks

struct Traced {
  alignas(64) std::byte memory[kSpanRingHeaderBytes + kCapacity * kSpanBytes] = {};
  std::atomic<std::uint32_t> enabled{1};
  SpanWriter writer{memory, kCapacity, &enabled};
  CallSpans spans;
  node::Call call;

  Traced() {
    spans.connect(&writer);
    call.coll_id = 7;
  }
  void begin(Timed timed) {
    ++call.coll_id;
    spans.begin(call, 3, timed);
  }
  void task(std::int32_t op_id, std::uint64_t nbytes) { spans.task(SpanKind::reduce, op_id, nbytes); }
  std::vector<SpanRecord> take() {
    std::vector<SpanRecord> out(kCapacity);
    out.resize(SpanReader(memory, kCapacity).drain(out.data(), out.size()));
    return out;
  }
};

bool is_task(const SpanRecord& span, std::int32_t op_id, std::uint64_t nbytes) {
  return span.kind == static_cast<std::uint8_t>(SpanKind::reduce) && span.track == static_cast<std::uint8_t>(Track::copy) &&
         span.op_id == op_id && span.nbytes == static_cast<std::int64_t>(nbytes) && span.peer == -1 && span.index == 0 &&
         span.status == 0 && span.reserved == 0 && span.reserved2 == 0;
}

bool is_collective(const SpanRecord& span, std::uint64_t nbytes, SpanStatus status = SpanStatus::ok) {
  return span.kind == static_cast<std::uint8_t>(SpanKind::collective) && span.track == static_cast<std::uint8_t>(Track::control) &&
         span.op_id == -1 && span.nbytes == static_cast<std::int64_t>(nbytes) && span.peer == -1 && span.epoch == 3 &&
         span.status == static_cast<std::uint8_t>(status);
}

}  // namespace

TEST(a_group_times_its_collective_and_the_tasks_in_it) {
  Traced traced;
  for (int round = 0; round < 3; ++round) {
    const std::int64_t before = now_ns();
    traced.begin(Timed::by_group);
    CHECK(traced.spans.on() && traced.spans.ends_here());
    traced.task(1, kLong);
    traced.task(1, kLong);
    traced.spans.end(4096);
    const std::int64_t after = now_ns();
    const std::vector<SpanRecord> found = traced.take();
    CHECK_EQ(found.size(), std::size_t{3});
    CHECK(is_task(found[0], 1, kLong) && is_task(found[1], 1, kLong) && is_collective(found[2], 4096));
    for (const SpanRecord& span : found) CHECK(span.coll_id == traced.call.coll_id && span.epoch == 3);
    CHECK(found[2].begin_ns >= before - kOffNs && found[2].end_ns <= after + kOffNs);
    CHECK(found[2].begin_ns <= found[0].begin_ns && found[0].end_ns == found[1].begin_ns && found[1].end_ns == found[2].end_ns);
    CHECK(!traced.spans.on());
  }
}

TEST(short_tasks_of_a_share_have_one_span) {
  Traced traced;
  traced.begin(Timed::by_group);
  for (int i = 0; i < 3; ++i) traced.task(1, 32 * 1024);  // the third would be past a long one
  traced.task(2, 1024);
  traced.spans.rest();
  traced.task(2, 1024);  // does not follow
  traced.spans.end(0);
  const std::vector<SpanRecord> found = traced.take();
  CHECK_EQ(found.size(), std::size_t{5});
  CHECK(is_task(found[0], 1, 64 * 1024) && is_task(found[1], 1, 32 * 1024) && is_task(found[2], 2, 1024) && is_task(found[3], 2, 1024));
  CHECK(found[1].end_ns == found[2].begin_ns && found[2].end_ns <= found[3].begin_ns);
}

TEST(a_driver_says_when_a_collective_began_and_ended) {
  Traced traced;
  traced.begin(Timed::by_driver);
  CHECK(!traced.spans.ends_here());
  const std::int64_t begin_ns = now_ns();
  traced.task(5, kLong);
  traced.spans.rest();
  traced.task(6, kLong);
  const std::int64_t end_ns = now_ns() + 5000;
  traced.spans.end({begin_ns, end_ns, 77, 9, 3, SpanStatus::ok});
  std::vector<SpanRecord> found = traced.take();
  CHECK_EQ(found.size(), std::size_t{3});
  CHECK(is_collective(found[2], 77) && found[2].begin_ns == begin_ns && found[2].end_ns == end_ns && found[2].coll_id == 9);
  CHECK(found[0].begin_ns >= begin_ns && found[0].end_ns <= found[1].begin_ns && found[1].end_ns == end_ns);
  // Tasks stay inside, whatever clock the driver looked at.
  traced.begin(Timed::by_driver);
  traced.task(5, kLong);
  traced.spans.rest();
  traced.spans.end({begin_ns, end_ns - 5000, 77, 9, 3, SpanStatus::failed});
  found = traced.take();
  CHECK_EQ(found.size(), std::size_t{2});
  CHECK(found[0].begin_ns == end_ns - 5000 && found[0].end_ns == end_ns - 5000 && is_collective(found[1], 77, SpanStatus::failed));
}

TEST(more_tasks_than_are_kept_come_out_in_order) {
  Traced traced;
  traced.begin(Timed::by_group);
  for (std::int32_t i = 0; i < 50; ++i) traced.task(i, kLong);
  traced.spans.flush();
  traced.spans.flush();  // nothing left
  std::vector<SpanRecord> found = traced.take();
  CHECK_EQ(found.size(), std::size_t{50});
  for (std::int32_t i = 0; i < 50; ++i) {
    const auto at = static_cast<std::size_t>(i);
    CHECK(is_task(found[at], i, kLong));
    CHECK(i == 0 || found[at].begin_ns == found[at - 1].end_ns);
  }
  traced.spans.end(0);
  CHECK(is_collective(traced.take().at(0), 0));
}

TEST(times_of_a_long_call_are_right_to_a_microsecond) {
  Traced traced;
  traced.begin(Timed::by_group);
  const std::int64_t began_ns = now_ns();
  ::usleep(30'000);
  const std::int64_t before = now_ns();
  traced.task(0, kLong);
  const std::int64_t middle = now_ns();
  ::usleep(5'000);
  traced.spans.rest();
  const std::int64_t after = now_ns();
  ::usleep(30'000);
  traced.spans.end(0);
  const std::int64_t ended_ns = now_ns();
  const std::vector<SpanRecord> found = traced.take();
  CHECK_EQ(found.size(), std::size_t{2});
  CHECK(found[0].begin_ns >= before - kOffNs && found[0].begin_ns <= middle + kOffNs);
  CHECK(found[0].end_ns >= middle + 5'000'000 - kOffNs && found[0].end_ns <= after + kOffNs);
  CHECK(found[1].begin_ns <= began_ns + kOffNs && found[1].end_ns >= after + 30'000'000 - kOffNs && found[1].end_ns <= ended_ns + kOffNs);
}

TEST(a_trace_that_is_switched_within_a_call_misses_no_later_one) {
  Traced traced;
  traced.enabled = 0;
  traced.begin(Timed::by_driver);
  CHECK(!traced.spans.on());
  traced.enabled = 1;
  traced.spans.end({10, 20, 5, 1, 3, SpanStatus::ok});
  CHECK(traced.take().size() == 1);
  traced.begin(Timed::by_driver);
  traced.task(1, 10);
  traced.enabled = 0;  // and then nobody says that it has ended
  traced.begin(Timed::by_group);
  traced.enabled = 1;
  traced.spans.end({10, 20, 5, 1, 3, SpanStatus::ok});
  CHECK(traced.take().size() == 1);
  traced.begin(Timed::by_group);
  traced.task(1, 10);
  traced.spans.end(5);
  const std::vector<SpanRecord> found = traced.take();
  CHECK(found.size() == 2 && is_task(found[0], 1, 10) && is_collective(found[1], 5));
}

TEST(what_is_lost_is_counted) {
  Traced traced;
  traced.begin(Timed::by_group);
  for (std::int32_t i = 0; i < 100; ++i) traced.task(i, kLong);
  traced.spans.end(0);
  CHECK_EQ(SpanReader(traced.memory, kCapacity).dropped(), std::uint64_t{101 - kCapacity});
  const std::vector<SpanRecord> found = traced.take();
  CHECK(found.size() == kCapacity && is_task(found.back(), static_cast<std::int32_t>(kCapacity) - 1, kLong));
  CallSpans nothing;
  nothing.begin(traced.call, 0, Timed::by_group);
  CHECK(!nothing.on());
}
