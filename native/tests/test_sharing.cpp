// Tests of the shared-link core: hand-computed times, rates that are fair and the same however they came about, refusals, and random
// columns that must never do harm.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "ccl_lab/schema.hpp"
#include "check.hpp"
#include "sim/sharing.hpp"
#include "sim/sharing_rates.hpp"

using namespace ccl_lab;
using sim::ExactStatus;

namespace {

constexpr std::int64_t kNs = 1000;  // a byte at 1 GB/s

// Two jobs of two ranks each, on two nodes: link 0 out of node 0, link 1 into node 1, links 2 and 3 the way back, 4 + r the memory of
// rank r of either job.
struct Case {
  std::vector<std::int32_t> rank, channel, peer, sig_channel, value, link_a, link_b, route_of;
  std::vector<std::uint8_t> kind;
  std::vector<std::int64_t> work, hold, compute, ready, request, job_ops{0, 0};
  std::vector<std::uint8_t> ticks{1, 1, 1, 1, 0, 0};
  std::vector<std::int64_t> rate{1'000'000'000, 1'000'000'000, 1'000'000'000, 1'000'000'000, 2'000'000'000, 2'000'000'000};
  std::vector<std::int64_t> latency{600, 400, 600, 400, 0, 0}, late{0, 0, 0, 0}, tier, times, finish;
  std::vector<std::int32_t> level, routes{0, 1, 2, 3, 4, -1, 5, -1};

  // Ops of job 0 first.
  void add(int job, Kind k, std::int32_t r, std::int32_t p, std::int64_t bytes, std::int32_t sig = -1, std::int32_t v = 0,
           std::int32_t ch = 0) {
    const bool local = k == Kind::copy || k == Kind::reduce || p == r || p < 0;
    const std::int32_t from = k == Kind::get ? p : r;
    rank.push_back(2 * job + r), channel.push_back(ch), kind.push_back(static_cast<std::uint8_t>(k));
    peer.push_back(p < 0 ? p : 2 * job + p);
    sig_channel.push_back(sig), value.push_back(v), work.push_back(bytes), hold.push_back(0);
    compute.push_back(k == Kind::compute ? bytes * 1000 : 0);
    ready.push_back(0), request.push_back(k == Kind::get ? 1000 : 0);
    link_a.push_back(local ? 4 + r : 2 * from), link_b.push_back(local ? 4 + r : 2 * from + 1);
    route_of.push_back(local ? 2 + r : from);
    ++job_ops[job];
  }

  sim::ExactResult run() {
    const std::size_t n = rank.size();
    times.assign(5 * n, -7), level.assign(n, -7), finish.assign(late.size(), -7);
    const auto row = [&](std::size_t i) { return std::span(times).subspan(i * n, n); };
    return sim::simulate_shared({{rank, channel, kind, peer, sig_channel, value, work, hold, compute, ready, request, link_a, link_b,
                                  ticks, rate, latency, late, tier},
                                 job_ops, route_of, routes, 2},
                                {row(0), row(1), row(2), row(3), row(4), level, finish});
  }

  std::int64_t begin(std::size_t op) const { return times[op]; }
  std::int64_t end(std::size_t op) const { return times[rank.size() + op]; }
  std::int64_t start(std::size_t op) const { return times[2 * rank.size() + op]; }
  std::int64_t leave(std::size_t op) const { return times[3 * rank.size() + op]; }
  std::int64_t arrive(std::size_t op) const { return times[4 * rank.size() + op]; }
};

}  // namespace

TEST(two_jobs_share_a_link_and_the_longer_one_has_it_alone_afterwards) {
  Case c;
  c.add(0, Kind::put, 0, 1, 100, 0);
  c.add(0, Kind::wait, 1, 0, 0, 0, 1);
  c.add(1, Kind::put, 0, 1, 300, 0);
  c.add(1, Kind::wait, 1, 0, 0, 0, 1);
  CHECK_EQ(c.run().status, ExactStatus::ok);
  CHECK_EQ(c.leave(0), 200 * kNs);
  CHECK_EQ(c.leave(2), 400 * kNs);
  CHECK_EQ(c.end(1), 200 * kNs + 1000);
  CHECK_EQ(c.finish[3], 400 * kNs + 1000);
}

TEST(a_connection_is_a_queue_and_channels_share) {
  Case c;
  c.add(0, Kind::put, 0, 1, 100);
  c.add(0, Kind::put, 0, 1, 100);
  c.add(0, Kind::put, 0, 1, 100, -1, 0, 1);
  c.add(0, Kind::flush, 0, 1, 0);
  CHECK_EQ(c.run().status, ExactStatus::ok);
  CHECK_EQ(c.leave(0), 200 * kNs);
  CHECK_EQ(c.leave(2), 200 * kNs);
  CHECK_EQ(c.start(1), 200 * kNs);
  CHECK_EQ(c.end(3), 300 * kNs);
}

TEST(what_switches_add_is_latency) {
  Case c;
  c.add(0, Kind::put, 0, 1, 100, 0);
  c.tier = {77};
  CHECK_EQ(c.run().status, ExactStatus::ok);
  CHECK_EQ(c.leave(0), 100 * kNs);
  CHECK_EQ(c.arrive(0), 100 * kNs + 1000 + 77);
  c.tier = {-1};
  CHECK_EQ(c.run().status, ExactStatus::bad_op);
}

TEST(what_a_transfer_holds_is_work_at_the_slowest_link) {
  Case c;
  c.add(0, Kind::put, 0, 1, 100);
  c.hold = {7};
  CHECK_EQ(c.run().status, ExactStatus::ok);
  CHECK_EQ(c.leave(0), 100 * kNs + 7);
  c.rate[0] = c.rate[1] = sim::kInstant;
  CHECK_EQ(c.run().status, ExactStatus::ok);
  CHECK_EQ(c.leave(0), 7);
}

TEST(deadlocks_and_centuries_name_the_op_among_all_jobs) {
  Case c;
  c.add(0, Kind::put, 0, 1, 100, 0);
  c.add(1, Kind::wait, 1, 0, 0, 0, 2);
  const auto lost = c.run();
  CHECK_EQ(lost.status, ExactStatus::deadlock);
  CHECK_EQ(lost.op, 1);
  Case slow;
  slow.add(0, Kind::put, 0, 1, 100, 0);
  slow.add(1, Kind::put, 1, 0, std::numeric_limits<std::int64_t>::max(), 0);
  const auto late = slow.run();
  CHECK_EQ(late.status, ExactStatus::overflow);
  CHECK_EQ(late.op, 1);
}

TEST(routes_that_are_none_are_refused) {
  for (const std::int32_t route : {-1, 4, 1000}) {
    Case c;
    c.add(0, Kind::put, 0, 1, 100);
    c.route_of[0] = route;
    CHECK_EQ(c.run().status, ExactStatus::bad_op);
  }
  Case c;
  c.add(0, Kind::put, 0, 1, 100);
  c.routes[1] = 6;
  CHECK_EQ(c.run().status, ExactStatus::bad_op);
  c.routes[1] = 1, c.rate[1] = 0;
  CHECK_EQ(c.run().status, ExactStatus::bad_op);
}

TEST(rates_are_the_same_however_they_came_about) {
  std::mt19937_64 random(2);
  const auto draw = [&](std::int64_t low, std::int64_t high) { return std::uniform_int_distribution<std::int64_t>(low, high)(random); };
  for (int round = 0; round < 300; ++round) {
    const auto links = draw(1, 12), classes = draw(1, 12);
    std::vector<std::int64_t> rates(static_cast<std::size_t>(links));
    for (auto& rate : rates) rate = draw(1, 50'000'000'000);
    std::vector<std::int32_t> routes(static_cast<std::size_t>(3 * classes));
    for (std::size_t i = 0; i < routes.size(); ++i) routes[i] = static_cast<std::int32_t>(draw(i % 3 == 0 ? 0 : -1, links - 1));
    sim::FairRates grown(routes, 3, rates);
    std::vector<std::int64_t> flows(static_cast<std::size_t>(classes), 0);
    for (int step = 0; step < 40; ++step) {
      for (auto changes = draw(1, 4); changes > 0; --changes) {
        const auto cls = static_cast<std::int32_t>(draw(0, classes - 1));
        if (flows[cls] > 0 && draw(0, 1) == 0) {
          --flows[cls], grown.remove(cls);
        } else {
          ++flows[cls], grown.add(cls);
        }
      }
      std::vector<std::int64_t> before(flows.size());
      for (std::size_t i = 0; i < before.size(); ++i) before[i] = grown.rate(static_cast<std::int32_t>(i));
      std::vector<char> told(flows.size(), 0);
      for (const std::int32_t cls : grown.settle()) told[cls] = 1;
      sim::FairRates anew(routes, 3, rates);
      for (std::int32_t cls = 0; cls < classes; ++cls)
        for (std::int64_t i = 0; i < flows[cls]; ++i) anew.add(cls);
      anew.settle();
      for (std::int32_t cls = 0; cls < classes; ++cls) {
        CHECK_EQ(grown.rate(cls), anew.rate(cls));
        CHECK(told[cls] || before[cls] == grown.rate(cls));
      }
    }
  }
}

TEST(random_columns_are_refused_or_simulated) {
  std::mt19937_64 random(1);
  const auto draw = [&](std::int64_t low, std::int64_t high) { return std::uniform_int_distribution<std::int64_t>(low, high)(random); };
  int counts[5] = {};
  for (int round = 0; round < 20000; ++round) {
    Case c;
    for (int job = 0; job < 2; ++job)
      for (std::int64_t op = draw(0, 6); op > 0; --op)
        c.add(job, static_cast<Kind>(draw(0, 7)), static_cast<std::int32_t>(draw(0, 1)), static_cast<std::int32_t>(draw(0, 1)), draw(0, 5000),
              static_cast<std::int32_t>(draw(0, 1)), static_cast<std::int32_t>(draw(-1, 2)), static_cast<std::int32_t>(draw(0, 2)));
    const std::int64_t extreme[] = {-1, 2, 200, std::numeric_limits<std::int32_t>::max(), std::numeric_limits<std::int32_t>::min()};
    if (!c.rank.empty() && draw(0, 1) == 0) {
      const auto op = static_cast<std::size_t>(draw(0, static_cast<std::int64_t>(c.rank.size()) - 1));
      std::vector<std::int32_t>* columns[] = {&c.rank, &c.channel, &c.peer, &c.sig_channel, &c.value, &c.link_a, &c.link_b, &c.route_of};
      (*columns[draw(0, 7)])[op] = static_cast<std::int32_t>(extreme[draw(0, 4)]);
      if (draw(0, 3) == 0) c.work[op] = extreme[draw(0, 4)] * 4'000'000'000;
      if (draw(0, 3) == 0) c.hold[op] = extreme[draw(0, 4)] * 4'000'000'000;
      if (draw(0, 7) == 0) c.kind[op] = static_cast<std::uint8_t>(draw(0, 255));
    }
    const auto result = c.run();
    ++counts[static_cast<int>(result.status)];
    if (result.status != ExactStatus::ok) continue;
    for (std::size_t op = 0; op < c.rank.size(); ++op)
      CHECK(c.begin(op) >= 0 && c.end(op) >= c.begin(op) && c.arrive(op) >= c.leave(op) && c.leave(op) >= c.start(op) && c.level[op] >= 0);
  }
  CHECK(counts[0] > 1000 && counts[1] > 1000 && counts[3] > 1000);
}
