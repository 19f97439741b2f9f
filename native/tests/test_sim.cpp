// Tests of the exact simulator core: hand-computed times, refusals, and random columns that must never do harm; ops that are told one by one.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "ccl_lab/schema.hpp"
#include "check.hpp"
#include "sim/exact.hpp"
#include "sim/flow.hpp"
#include "sim/order.hpp"

using namespace ccl_lab;
using sim::ExactStatus;
using sim::Flow, sim::FlowLinks, sim::FlowOps, sim::FlowStatus;

namespace {

// Two ranks; link 2r is the way out of rank r, 2r+1 the way in, 4+r its memory.
struct Case {
  std::vector<std::int32_t> rank, channel, peer, sig_channel, value, link_a, link_b;
  std::vector<std::uint8_t> kind;
  std::vector<std::int64_t> work, hold, compute, ready, request, nominal;
  std::vector<std::uint8_t> ticks{1, 1, 1, 1, 0, 0};
  std::vector<std::int64_t> rate{1'000'000'000, 1'000'000'000, 1'000'000'000, 1'000'000'000, 2'000'000'000, 2'000'000'000};
  std::vector<std::int64_t> latency{600, 400, 600, 400, 0, 0};
  std::vector<std::int64_t> late{0, 0};
  std::vector<std::int64_t> times, finish;
  std::vector<std::int32_t> level;

  void add(Kind k, std::int32_t r, std::int32_t p, std::int64_t bytes, std::int32_t sig = -1, std::int32_t v = 0,
           std::int32_t ch = 0) {
    const bool local = k == Kind::copy || k == Kind::reduce || p == r || p < 0;
    const std::int32_t from = k == Kind::get ? p : r, to = k == Kind::get ? r : p;
    rank.push_back(r), channel.push_back(ch), kind.push_back(static_cast<std::uint8_t>(k)), peer.push_back(p);
    sig_channel.push_back(sig), value.push_back(v), work.push_back(bytes), hold.push_back(0);
    compute.push_back(k == Kind::compute ? bytes * 1000 : 0);
    ready.push_back(0), request.push_back(k == Kind::get ? 1000 : 0);
    link_a.push_back(local ? 4 + r : 2 * from), link_b.push_back(local ? 4 + r : 2 * to + 1);
  }

  sim::ExactResult run() {
    const std::size_t n = rank.size();
    times.assign(5 * n, -7), level.assign(n, -7), finish.assign(late.size(), -7);
    const auto row = [&](std::size_t i) { return std::span(times).subspan(i * n, n); };
    return sim::simulate_exact({rank, channel, kind, peer, sig_channel, value, work, hold, compute, ready, request, link_a,
                                link_b, ticks, rate, latency, late, {}, nominal},
                               {row(0), row(1), row(2), row(3), row(4), level, finish});
  }

  std::int64_t begin(std::size_t op) const { return times[op]; }
  std::int64_t end(std::size_t op) const { return times[rank.size() + op]; }
  std::int64_t start(std::size_t op) const { return times[2 * rank.size() + op]; }
  std::int64_t arrive(std::size_t op) const { return times[4 * rank.size() + op]; }
};

constexpr std::int64_t kNs = 1000;  // a byte at 1 GB/s

}  // namespace

TEST(order_is_that_of_nominal_bytes) {
  // Two channels copy after a transfer each, one a byte shorter than the other; the memory serves one copy at a time.
  const auto copies = [](std::vector<std::int64_t> nominal) {
    Case c;
    c.add(Kind::put, 1, 0, 1001);
    c.add(Kind::flush, 1, -1, 0);
    c.add(Kind::copy, 1, -1, 100);
    c.add(Kind::get, 1, 0, 1000, -1, 0, 1);
    c.add(Kind::copy, 1, -1, 100, -1, 0, 1);
    c.nominal = std::move(nominal);
    const sim::ExactResult result = c.run();
    return std::tuple(result.status, result.op, c.start(2), c.start(4));
  };
  CHECK(copies({}) == std::tuple(ExactStatus::ok, std::int64_t{-1}, 1052 * kNs, 1002 * kNs));
  CHECK(copies({1001, 0, 100, 1001, 100}) == std::tuple(ExactStatus::ok, std::int64_t{-1}, 1001 * kNs, 1051 * kNs));
  CHECK(copies({1001, 0, 100, -1, 100}) == std::tuple(ExactStatus::bad_op, std::int64_t{3}, std::int64_t{-7}, std::int64_t{-7}));
}

TEST(durations_round_up_and_saturate) {
  CHECK_EQ(sim::duration_ps(0, 3), 0);
  CHECK_EQ(sim::duration_ps(1, 3), 333'333'333'334);
  CHECK_EQ(sim::duration_ps(1'000'000'000'000'000, 1'000'000'000), 1'000'000'000'000'000'000);
  CHECK_EQ(sim::duration_ps(std::numeric_limits<std::int64_t>::max(), 1), std::int64_t{1} << 62);
  CHECK_EQ(sim::duration_ps(1, sim::kInstant - 1), 1);
  CHECK_EQ(sim::duration_ps(std::numeric_limits<std::int64_t>::max(), sim::kInstant), 0);
}

TEST(what_a_transfer_holds_beyond_its_bytes_delays_it_and_the_next) {
  Case c;
  c.add(Kind::put, 0, 1, 100, 0);
  c.add(Kind::put, 0, 1, 50, 0);
  c.hold = {7, 11};
  CHECK(c.run().status == ExactStatus::ok);
  CHECK_EQ(c.arrive(0), 7 + 100 * kNs + 1000);
  CHECK_EQ(c.start(1), 7 + 100 * kNs);
  CHECK_EQ(c.arrive(1), 7 + 11 + 150 * kNs + 1000);
  c.hold[1] = std::int64_t{1} << 61;
  CHECK(c.run().status == ExactStatus::bad_op);
  c.hold = {(std::int64_t{1} << 61) - 1, (std::int64_t{1} << 61) - 1};
  c.work = {std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::max()};
  CHECK(c.run().status == ExactStatus::overflow);
}

TEST(nothing_to_do_ends_on_entry) {
  Case c;
  c.late = {5, 0};
  CHECK_EQ(c.run().status, ExactStatus::ok);
  CHECK_EQ(c.finish[0], 5);
  CHECK_EQ(c.finish[1], 0);
}

TEST(puts_queue_on_the_link_and_waits_see_them_in_order) {
  Case c;
  c.add(Kind::put, 0, 1, 100, 0);
  c.add(Kind::put, 0, 1, 50, 0);
  c.add(Kind::wait, 1, 0, 0, 0, 1);
  c.add(Kind::wait, 1, 0, 0, 0, 2);
  CHECK_EQ(c.run().status, ExactStatus::ok);
  CHECK_EQ(c.end(0), 0);
  CHECK_EQ(c.start(1), 100 * kNs);
  CHECK_EQ(c.end(2), 100 * kNs + 1000);
  CHECK_EQ(c.end(3), 150 * kNs + 1000);
  CHECK_EQ(c.level[1], 0);
  CHECK_EQ(c.level[3], 2);
  CHECK_EQ(c.finish[0], 150 * kNs);
}

TEST(a_signal_does_not_overtake_the_put_before_it) {
  Case c;
  c.add(Kind::put, 0, 1, 100, 0);
  c.add(Kind::signal, 0, 1, 0, 0);
  c.add(Kind::wait, 1, 0, 0, 0, 2);
  CHECK_EQ(c.run().status, ExactStatus::ok);
  CHECK_EQ(c.arrive(1), 100 * kNs + 1000);
  CHECK_EQ(c.end(2), 100 * kNs + 1000);
}

TEST(flush_waits_for_its_peer_only) {
  Case c;
  c.add(Kind::put, 0, 1, 100);
  c.add(Kind::put, 0, 0, 10);
  c.add(Kind::flush, 0, 0, 0);
  c.add(Kind::flush, 0, 1, 0);
  CHECK_EQ(c.run().status, ExactStatus::ok);
  CHECK_EQ(c.end(2), 5 * kNs);
  CHECK_EQ(c.end(3), 100 * kNs);
}

TEST(a_get_pays_for_its_request) {
  Case c;
  c.add(Kind::get, 0, 1, 100);
  CHECK_EQ(c.run().status, ExactStatus::ok);
  CHECK_EQ(c.end(0), 1000 + 100 * kNs + 1000);
}

TEST(memory_serves_one_op_at_a_time_and_computation_does_not) {
  Case c;
  c.add(Kind::copy, 0, -1, 100);
  c.add(Kind::reduce, 0, -1, 100, -1, 0, 1);
  c.add(Kind::compute, 0, -1, 7, -1, 0, 2);
  c.add(Kind::compute, 0, -1, 7, -1, 0, 3);
  CHECK_EQ(c.run().status, ExactStatus::ok);
  CHECK_EQ(c.end(1), 100 * kNs);
  CHECK_EQ(c.end(3), 7000);
}

TEST(deadlocks_name_the_wait) {
  Case c;
  c.add(Kind::signal, 0, 1, 0, 0);
  c.add(Kind::wait, 1, 0, 0, 0, 2);
  c.add(Kind::wait, 0, 1, 0, 0, 1);
  const auto result = c.run();
  CHECK_EQ(result.status, ExactStatus::deadlock);
  CHECK_EQ(result.op, 1);
  CHECK_EQ(result.detail, 1);
  CHECK_EQ(c.level[1], -1);
}

TEST(centuries_are_an_overflow) {
  Case c;
  for (int i = 0; i < 10; ++i) c.add(Kind::put, 0, 1, std::numeric_limits<std::int64_t>::max(), 0);
  CHECK_EQ(c.run().status, ExactStatus::overflow);
}

TEST(random_columns_are_refused_or_simulated) {
  std::mt19937_64 random(1);
  const auto draw = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  int counts[5] = {};
  for (int round = 0; round < 20000; ++round) {
    Case c;
    for (std::int64_t op = draw(0, 12); op > 0; --op)
      c.add(static_cast<Kind>(draw(0, 7)), static_cast<std::int32_t>(draw(0, 1)), static_cast<std::int32_t>(draw(0, 1)),
            draw(0, 5000), static_cast<std::int32_t>(draw(0, 1)), static_cast<std::int32_t>(draw(-1, 3)),
            static_cast<std::int32_t>(draw(0, 2)));
    const std::int64_t extreme[] = {-1, 2, 200, std::numeric_limits<std::int32_t>::max(), std::numeric_limits<std::int32_t>::min()};
    if (!c.rank.empty() && draw(0, 1) == 0) {
      const auto op = static_cast<std::size_t>(draw(0, static_cast<std::int64_t>(c.rank.size()) - 1));
      std::vector<std::int32_t>* columns[] = {&c.rank, &c.channel, &c.peer, &c.sig_channel, &c.value, &c.link_a, &c.link_b};
      (*columns[draw(0, 6)])[op] = static_cast<std::int32_t>(extreme[draw(0, 4)]);
      if (draw(0, 3) == 0) c.work[op] = extreme[draw(0, 4)] * 4'000'000'000;
      if (draw(0, 3) == 0) c.hold[op] = extreme[draw(0, 4)] * 4'000'000'000;
      if (draw(0, 7) == 0) c.kind[op] = static_cast<std::uint8_t>(draw(0, 255));
    }
    const auto result = c.run();
    ++counts[static_cast<int>(result.status)];
    if (result.status != ExactStatus::ok) continue;
    for (std::size_t op = 0; op < c.rank.size(); ++op)
      CHECK(c.begin(op) >= 0 && c.end(op) >= c.begin(op) && c.arrive(op) >= c.begin(op) && c.level[op] >= 0);
  }
  CHECK(counts[0] > 1000 && counts[1] > 1000 && counts[3] > 1000);
}

// Of a link that thousands want, and of those that meet it late, and then others: the first turn that neither has given away.
TEST(turns_are_the_first_that_neither_link_has_given_away) {
  std::mt19937_64 random(11);
  constexpr std::int32_t kLinks = 40;
  sim::Turns turns(kLinks);
  for (int batch = 0; batch < 20; ++batch) {
    std::vector<std::vector<bool>> given(kLinks, std::vector<bool>(8000, false));
    turns.clear();
    for (int i = 0; i < 2000; ++i) {
      const auto a = static_cast<std::int32_t>(random() % 4 < 3 ? random() % 2 : random() % kLinks);
      const auto b = static_cast<std::int32_t>(random() % kLinks);
      std::size_t want = 0;
      while (given[static_cast<std::size_t>(a)][want] || given[static_cast<std::size_t>(b)][want]) ++want;
      given[static_cast<std::size_t>(a)][want] = given[static_cast<std::size_t>(b)][want] = true;
      if (turns.next(a, b) != static_cast<std::int64_t>(want)) {
        CHECK(false);
        return;
      }
    }
  }
}

TEST(told_ops_that_are_wrong_are_refused) {
  const std::vector<std::int32_t> node{0, 1};
  const std::vector<std::uint16_t> nic{0, 0};
  const std::vector<std::int64_t> rate(10, 1'000'000'000), latency(10, 500), late{0, 0};
  const FlowLinks links{.ranks = 2, .channels = 1, .nodes = 2, .nics = 1, .node_of = node, .nic = nic, .bytes_per_s = rate,
                        .latency_ps = latency, .late_ps = late, .alpha_ps = 0, .count = 1000, .parts = 1, .itemsize = 1};
  const std::vector<std::int32_t> rank{0}, zero{0}, one{1}, far{7}, peer{1}, back{0}, nobody{-1};
  const auto ops = [&](Kind kind, const auto& r, const auto& p, const auto& value) {
    return FlowOps{static_cast<std::uint8_t>(kind), r, zero, p, zero, value, zero, one, 1, {}, {}};
  };
  Flow flow(links, false), ordered(links, true);
  CHECK(flow.run(ops(Kind::put, rank, peer, zero)) == FlowStatus::ok);
  CHECK(flow.run(ops(Kind::wait, one, back, one)) == FlowStatus::ok);
  CHECK(ordered.run(ops(Kind::wait, one, back, one)) == FlowStatus::ok);  // told before what it waits for
  CHECK(ordered.run(ops(Kind::put, rank, peer, zero)) == FlowStatus::ok);
  for (Flow* each : {&flow, &ordered}) {
    std::vector<std::int64_t> finish{0, 0};
    CHECK(each->finish(finish) == FlowStatus::ok);
    CHECK_EQ(finish[0], 1'000'000);
    CHECK_EQ(finish[1], 1'000'000 + 1000);
  }
  std::vector<std::int64_t> never{0, 0};
  CHECK(ordered.run(ops(Kind::wait, one, back, one)) == FlowStatus::ok);
  CHECK(ordered.finish(never) == FlowStatus::deadlock);
  CHECK(flow.run(ops(Kind::wait, one, back, one)) == FlowStatus::too_early);
  CHECK(flow.run(ops(Kind::put, far, peer, zero)) == FlowStatus::bad_op);
  CHECK(flow.run(ops(Kind::put, rank, far, zero)) == FlowStatus::bad_op);
  CHECK(flow.run(ops(Kind::get, rank, peer, zero)) == FlowStatus::unsupported);
  FlowLinks timed = links;
  timed.timetable = true;
  Flow table(timed, false), table_ordered(timed, true);
  for (Flow* each : {&table, &table_ordered}) {
    FlowOps flush = ops(Kind::flush, rank, nobody, zero);
    flush.step = zero;
    CHECK(each->run(flush) == FlowStatus::unsupported);
  }
}

// Two ranks put to each other in turn. A third one, which might still be told to put to either, holds them up until it is closed.
TEST(told_ops_wait_for_no_channel_that_is_closed) {
  const std::vector<std::int32_t> node{0, 1, 2}, zero{0}, one{1}, two{2};
  const std::vector<std::uint16_t> nic{0, 0, 0};
  const std::vector<std::int64_t> rate(15, 1'000'000'000), latency(15, 500), late{0, 0, 0};
  const FlowLinks links{.ranks = 3, .channels = 1, .nodes = 3, .nics = 1, .node_of = node, .nic = nic, .bytes_per_s = rate, .latency_ps = latency,
                        .late_ps = late, .alpha_ps = 0, .count = 1000, .parts = 1, .itemsize = 1, .most_waiting = 8};
  const auto told = [&](Flow& flow) {
    FlowStatus status = FlowStatus::ok;
    for (int k = 0; k < 20 && status == FlowStatus::ok; ++k) {
      for (const Kind kind : {Kind::put, Kind::wait}) {
        const auto &at = (k % 2 == 0) == (kind == Kind::put) ? zero : one, &to = &at == &zero ? one : zero;
        if (status == FlowStatus::ok) status = flow.run({static_cast<std::uint8_t>(kind), at, zero, to, zero, one, zero, one, 1, {}, {}});
      }
    }
    return status;
  };
  Flow open(links, true), closed(links, true), written(links, false);
  CHECK(told(open) == FlowStatus::too_many);
  CHECK(closed.close(two, zero) == FlowStatus::ok && written.close(two, zero) == FlowStatus::ok);
  CHECK(told(closed) == FlowStatus::ok && told(written) == FlowStatus::ok);
  for (Flow* each : {&closed, &written}) {
    std::vector<std::int64_t> finish{0, 0, 0};
    CHECK(each->finish(finish) == FlowStatus::ok);
    CHECK_EQ(finish[0], 20 * 1'001'000);
  }
  CHECK(closed.run({static_cast<std::uint8_t>(Kind::put), two, zero, one, zero, one, zero, one, 1, {}, {}}) == FlowStatus::closed);
  CHECK(closed.close(two, one) == FlowStatus::bad_op && closed.close(zero, {}) == FlowStatus::bad_op);
}
