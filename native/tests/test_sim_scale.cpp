// Tests of the evaluations without a table of ops: streams that hold loops, rings by hand and with and without the jump, random columns.
#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "check.hpp"
#include "sim/gathers.hpp"
#include "sim/path.hpp"
#include "sim/rings.hpp"
#include "sim/stream.hpp"
#include "sim/trail.hpp"

using namespace ccl_lab;
using namespace ccl_lab::sim;

namespace {

// Units of one station in a circle; links 0, 1, 2 of each unit are its memory and the two of its path, which all chains share. bytes: of all
// messages, or of that which begins in each unit.
struct Ring {
  std::int64_t units, steps, reducing, chains = 1, own = 1;
  std::vector<std::int64_t> slices{1}, bytes{1000}, group{0}, begin;
  std::vector<std::int32_t> kind_of, memory, a, b;  // of each unit its own kind
  std::vector<std::int64_t> memory_rate, rate, latency, zeros, row, row_step, finish;
  std::vector<std::uint8_t> ticks, backward;
  std::vector<std::int32_t> far;
  bool swept = false;

  Ring(std::int64_t n, std::int64_t steps_, std::int64_t reducing_, std::int64_t chains_ = 1) : units(n), steps(steps_), reducing(reducing_), chains(chains_) {
    const auto rows = static_cast<std::size_t>(n * chains);
    memory.assign(rows, 0), a.assign(rows, 1), b.assign(rows, 2);
    memory_rate.assign(rows, 2'000'000'000), rate.assign(rows, 1'000'000'000), latency.assign(rows, 5000), zeros.assign(rows, 0);
    ticks.assign(rows, 1);
    for (std::int32_t u = 0; u < n; ++u) kind_of.push_back(u);
    for (std::int64_t c = 0; c < chains; ++c) row.push_back(c);
    row_step.assign(row.size(), chains);
  }

  // Two chains, the second one backwards, with links of their own but for the memory.
  static Ring both_ways(std::int64_t n, std::int64_t steps, std::int64_t reducing) {
    Ring ring(n, steps, reducing, 2);
    for (std::size_t i = 1; i < ring.a.size(); i += 2) ring.a[i] = 3, ring.b[i] = 4;
    ring.backward = {0, 1}, ring.slices = {1, 1}, ring.bytes = {1000, 1000}, ring.group = {0, 0};
    ring.row = {0, 2 * n - 1}, ring.row_step = {1, -1};
    return ring;
  }

  RingsStatus run(bool jumps, RingsOutput* counts = nullptr, bool followed = false, bool own_time = false) {
    finish.assign(zeros.size(), -1);
    RingsInput in;
    in.units = units, in.chains = chains, in.stations = 1, in.steps = steps, in.reducing = reducing, in.own = own, in.jumps = jumps;
    in.n_sizes = static_cast<std::int64_t>(bytes.size() / group.size()), in.followed = followed, in.own_time = own_time;
    in.backward = backward, in.swept = swept, in.far = far;
    const std::vector<std::int64_t> zero_batches(begin.size());
    in.nominal_bytes = *std::max_element(bytes.begin(), bytes.end());
    in.slices = slices, in.bytes = bytes, in.group = group, in.memory = memory, in.link_a = a, in.link_b = b;
    in.memory_bytes_per_s = memory_rate, in.a_bytes_per_s = rate, in.b_bytes_per_s = rate, in.latency_ps = latency, in.ticks = ticks;
    in.late_ps = zeros, in.ready_ps = zeros, in.row = row, in.row_step = row_step, in.kind_of = kind_of, in.begin_ps = begin, in.begin_batch = zero_batches;
    RingsOutput out;
    out.finish_ps = finish;
    const RingsStatus status = simulate_rings(in, out);
    if (counts) *counts = out;
    return status;
  }
};

}  // namespace

TEST(streams_give_back_what_was_pushed) {
  for (std::int64_t period = 1; period < 4; ++period) {
    Stream stream(period);
    std::vector<Message> pushed;
    std::mt19937_64 random(static_cast<std::uint64_t>(period));
    for (int block = 0; block < 40; ++block) {
      const auto slope = static_cast<std::int64_t>(random() % 3);
      for (std::uint64_t i = 0; i < random() % 20; ++i) {
        const Message last = pushed.empty() ? Message{} : pushed.back();
        pushed.push_back({last.arrive_ps + 1 + slope, last.leaves + slope, last.batch + 2});
        stream.push(pushed.back());
      }
    }
    Reader reader(stream);
    for (const Message& each : pushed) CHECK(reader.next() == each);
    CHECK(reader.empty());
    CHECK(stream.parts().size() < pushed.size());
  }
}

TEST(streams_go_on_with_loops) {
  Stream stream(2);
  std::vector<Message> pushed{{7, 7, 7}, {1, 0, 0}, {3, 1, 1}, {11, 2, 2}, {13, 3, 3}};
  for (const Message& each : pushed) stream.push(each);
  stream.push_loop({{10, 2, 2}, {10, 2, 2}}, 6);
  for (std::int64_t i = 0; i < 6; ++i) pushed.push_back(pushed[pushed.size() - 2] + Message{10, 2, 2});
  Reader reader(stream);
  for (const Message& each : pushed) CHECK(reader.next() == each);
  CHECK(reader.empty());
  CHECK_EQ(stream.parts().size(), 2u);  // the first message alone, all others in one loop
}

TEST(a_ring_by_hand) {
  Ring ring(4, 6, 3);
  CHECK(ring.run(true) == RingsStatus::ok);
  // A step: 1000 bytes at 1 GB/s and 5 ns on the way; adding them reads 2000 bytes at 2 GB/s.
  for (const std::int64_t finish : ring.finish) CHECK_EQ(finish, 6 * (1'000'000 + 5000) + 3 * 1'000'000);
}

TEST(what_a_node_has_is_added_by_hand) {
  Ring ring(4, 6, 3);
  ring.own = 3, ring.begin = {500'000, 500'000, 500'000, 500'000};
  CHECK(ring.run(true) == RingsStatus::ok);
  // Parts come after 0.5 us; three arrays of 1000 bytes are added before the first put, and to what arrives.
  for (const std::int64_t finish : ring.finish) CHECK_EQ(finish, 500'000 + 1'500'000 + 6 * (1'000'000 + 5000) + 3 * 2'000'000);
  ring.begin.clear();  // whoever has several arrays waits for them
  CHECK(ring.run(true) == RingsStatus::bad_input);
}

TEST(the_jump_changes_nothing) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 60; ++round) {
    const auto n = static_cast<std::int64_t>(2 + random() % 12);
    Ring ring(n, 40 + static_cast<std::int64_t>(random() % 400), static_cast<std::int64_t>(random() % 200));
    for (std::size_t i = 0; i < ring.rate.size(); ++i) {
      if (random() % 3 == 0) ring.rate[i] = 1'000'000 + static_cast<std::int64_t>(random() % 4'000'000'000);
      if (random() % 4 == 0) ring.latency[i] = static_cast<std::int64_t>(random() % 3'000'000);
      if (random() % 5 == 0) ring.memory_rate[i] = 1'000'000 + static_cast<std::int64_t>(random() % 4'000'000'000);
    }
    RingsOutput with, without;
    CHECK(ring.run(true, &with) == RingsStatus::ok);
    const std::vector<std::int64_t> found = ring.finish;
    CHECK(ring.run(false, &without) == RingsStatus::ok);
    CHECK(found == ring.finish);
    CHECK_EQ(with.rounds + with.jumped, without.rounds);
    CHECK_EQ(without.jumped, 0);
  }
}

// Of many units side by side, and of fewer than go side by side; a longer message is not sooner than a shorter one.
TEST(rings_both_ways_by_every_message) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 60; ++round) {
    const auto n = static_cast<std::int64_t>(round % 3 == 0 ? 3 + random() % 10 : 30 + random() % 600);
    Ring ring = Ring::both_ways(n, 20 + static_cast<std::int64_t>(random() % 60), static_cast<std::int64_t>(random() % 40));
    for (std::size_t i = 0; i < ring.rate.size(); ++i) {
      if (random() % 3 == 0) ring.rate[i] = 1'000'000 + static_cast<std::int64_t>(random() % 4'000'000'000);
      if (random() % 4 == 0) ring.latency[i] = static_cast<std::int64_t>(random() % 3'000'000);
    }
    for (std::size_t i = 0; i < ring.memory_rate.size(); i += 2)
      if (random() % 5 == 0) ring.memory_rate[i] = ring.memory_rate[i + 1] = 1'000'000 + static_cast<std::int64_t>(random() % 4'000'000'000);
    RingsOutput each, every;
    CHECK(ring.run(false, &each) == RingsStatus::ok);
    const std::vector<std::int64_t> found = ring.finish;
    ring.swept = true;
    CHECK(ring.run(false, &every) == RingsStatus::ok);
    CHECK(found == ring.finish);
    CHECK_EQ(every.rounds, n * ring.steps);
    ring.bytes.assign(static_cast<std::size_t>(2 * n), 1000);
    for (std::size_t i = 0; i < ring.bytes.size(); i += 1 + random() % 3) ring.bytes[i] = 1004;
    CHECK(ring.run(false) == RingsStatus::ok);
    for (std::size_t i = 0; i < found.size(); ++i) CHECK(ring.finish[i] >= found[i] && ring.finish[i] <= found[i] + found[i] / 100);
    ring.bytes[0] = 5;
    CHECK(ring.run(false) == RingsStatus::bad_input);
  }
}

// Every message: where no NIC is shared as in any other way; where each receives from both sides, no sooner.
TEST(rings_both_ways_that_meet) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 60; ++round) {
    const auto n = static_cast<std::int64_t>(3 + random() % 60);
    Ring ring = Ring::both_ways(n, 20 + static_cast<std::int64_t>(random() % 60), static_cast<std::int64_t>(random() % 40));
    for (std::size_t i = 0; i < ring.rate.size(); ++i) {
      if (random() % 3 == 0) ring.rate[i] = 1'000'000 + static_cast<std::int64_t>(random() % 4'000'000'000);
      if (random() % 4 == 0) ring.latency[i] = static_cast<std::int64_t>(random() % 3'000'000);
    }
    ring.swept = true;
    CHECK(ring.run(false) == RingsStatus::ok);
    const std::vector<std::int64_t> found = ring.finish;
    for (std::int32_t u = 0; u < 2 * n; ++u) ring.far.push_back(u);
    RingsOutput counts;
    CHECK(ring.run(false, &counts) == RingsStatus::ok);
    CHECK(found == ring.finish);
    CHECK_EQ(counts.rounds, n * ring.steps);
    for (std::int64_t u = 0; u < n; ++u) {
      ring.far[static_cast<std::size_t>(2 * u)] = static_cast<std::int32_t>((u + 1) % n);
      ring.far[static_cast<std::size_t>(2 * u + 1)] = static_cast<std::int32_t>((u + n - 1) % n);
    }
    CHECK(ring.run(false) == RingsStatus::ok);
    for (std::size_t i = 0; i < found.size(); ++i) CHECK(ring.finish[i] >= found[i]);
    ring.far.pop_back();
    CHECK(ring.run(false) == RingsStatus::bad_input);
  }
}

TEST(columns_that_do_not_fit_are_refused) {
  Ring ring(4, 6, 3);
  ring.rate[2] = 0;
  CHECK(ring.run(true) == RingsStatus::bad_input);
  ring.rate[2] = 1, ring.bytes[0] = std::int64_t{1} << 58;  // longer than can be told
  CHECK(ring.run(true) == RingsStatus::overflow);
  ring.bytes.push_back(5);
  CHECK(ring.run(true) == RingsStatus::bad_input);
  std::vector<std::int64_t> finish(3);
  GathersInput gathers;
  gathers.nodes = 1, gathers.group = 2, gathers.slices = 1, gathers.classes = 1;
  CHECK(!simulate_gathers(gathers, finish));
}

// Of three ranks the last and the first own slices of 1000 and 500 bytes. Ports carry 1000 bytes in a microsecond:
//   turn 0   2 -> 0 until 1.0, 0 -> 1 until 0.5      turn 1   2 -> 1 from 1.0 to 2.0, 0 -> 2 from 0.5 to 1.0
TEST(only_owners_of_slices_put_them_to_their_node) {
  const std::vector<std::int64_t> bytes{1000, 500}, ended(4, 0), batch(4, 1), rows(2, 2), class_of{0, 1}, rate(6, 1'000'000'000), zero(6, 0), latency(6, 7);
  std::vector<std::int64_t> owners{2, 0, 1, 2}, finish(6, 0);
  GathersInput in;
  in.nodes = 2, in.group = 3, in.slices = 1, in.classes = 2;
  in.owners = owners, in.bytes = bytes, in.rows = rows, in.end_ps = ended, in.end_batch = batch, in.class_of = class_of, in.bytes_per_s = rate;
  in.late_ps = zero, in.tx_latency_ps = zero, in.rx_latency_ps = latency, in.tx_free_ps = zero, in.rx_free_ps = zero;
  CHECK(simulate_gathers(in, finish));
  CHECK_EQ(finish[0], 1'000'000 + 7);
  CHECK_EQ(finish[1], 2'000'000 + 7);
  CHECK_EQ(finish[2], 2'000'000);
  // The ranks of the other node do what those of the first one do, one number down.
  for (std::size_t rank = 0; rank < 3; ++rank) CHECK_EQ(finish[3 + (rank + 2) % 3], finish[rank]);
  for (const std::int64_t wrong : {std::int64_t{3}, std::int64_t{-1}}) {
    owners[1] = wrong;
    CHECK(!simulate_gathers(in, finish));
  }
}

// Of three ranks the last one owns both slices, and puts them distance by distance, one after the other.
TEST(a_rank_may_own_several_slices) {
  const std::vector<std::int64_t> bytes{1000, 500}, ended(2, 0), batch(2, 1), rows(2, 1), class_of{0}, rate(3, 1'000'000'000), zero(3, 0), latency(3, 7);
  const std::vector<std::int64_t> owners{2, 2};
  std::vector<std::int64_t> finish(3, 0);
  GathersInput in;
  in.nodes = 1, in.group = 3, in.slices = 1, in.classes = 1;
  in.owners = owners, in.bytes = bytes, in.rows = rows, in.end_ps = ended, in.end_batch = batch, in.class_of = class_of, in.bytes_per_s = rate;
  in.late_ps = zero, in.tx_latency_ps = zero, in.rx_latency_ps = latency, in.tx_free_ps = zero, in.rx_free_ps = zero;
  CHECK(simulate_gathers(in, finish));
  CHECK_EQ(finish[0], 1'500'000 + 7);
  CHECK_EQ(finish[1], 3'000'000 + 7);
  CHECK_EQ(finish[2], 3'000'000);
}

// Odd links here and there in a long ring: the units between them do the same, and are passed over.
TEST(units_in_a_row_end_as_if_each_was_visited) {
  std::mt19937_64 random(7);
  for (int block = 0; block < 20; ++block) {
    const auto units = static_cast<std::int64_t>(100 + random() % 200);
    Ring ring(units, 2 * (units - 1), units - 1);
    ring.bytes[0] = static_cast<std::int64_t>(1 + random() % 5000);
    for (int odd = 0; odd < block % 4; ++odd) {
      const std::size_t at = random() % static_cast<std::size_t>(units);
      ring.rate[at] = static_cast<std::int64_t>(1 + random() % 2'000'000'000);
      ring.latency[at] += static_cast<std::int64_t>(random() % 3'000'000);
    }
    RingsOutput counts;
    CHECK(ring.run(true, &counts) == RingsStatus::ok);
    const std::vector<std::int64_t> found = ring.finish;
    CHECK(ring.run(false) == RingsStatus::ok);
    CHECK(found == ring.finish);
    CHECK(counts.rounds + counts.jumped == units * 2 * (units - 1));
    if (block % 4 == 0) CHECK(counts.rounds < units);
  }
}

// Of two lengths, in no order: as each message by itself.
TEST(messages_are_followed_as_if_each_unit_was_told) {
  std::mt19937_64 random(11);
  for (int block = 0; block < 60; ++block) {
    const auto units = static_cast<std::int64_t>(3 + random() % 150);
    Ring ring(units, block % 5 == 0 ? 1 + static_cast<std::int64_t>(random() % 20) : 2 * (units - 1), units - 1);
    const auto bytes = static_cast<std::int64_t>(1 + random() % 5000);
    ring.bytes.clear();
    for (std::int64_t u = 0; u < units; ++u) ring.bytes.push_back(bytes + static_cast<std::int64_t>(random() % 3 == 0) * 4);
    for (std::int64_t& latency : ring.latency) latency = block % 2 ? 5000 : 700'000;
    for (int odd = 0; odd < block % 4; ++odd) {
      const std::size_t at = random() % static_cast<std::size_t>(units);
      ring.rate[at] = static_cast<std::int64_t>(1'000'000 + random() % 2'000'000'000);
      ring.latency[at] += static_cast<std::int64_t>(random() % 3'000'000);
    }
    ring.own = 1 + static_cast<std::int64_t>(random() % 4);
    if (ring.own > 1) ring.begin.assign(static_cast<std::size_t>(units), 1'000'000);
    CHECK(ring.run(true) == RingsStatus::ok);
    const std::vector<std::int64_t> want = ring.finish;
    RingsOutput counts;
    CHECK(ring.run(true, &counts, true) == RingsStatus::ok);
    CHECK(ring.finish == want);
  }
  Ring alike(40, 78, 39);
  CHECK(alike.run(true, nullptr, true) == RingsStatus::bad_input);  // is made for others
}

// Of two lengths, in no order, on chains that take turns at the links of a unit, so that units go on in their own time, or nearly so: as one by one.
TEST(units_go_on_in_their_own_time_as_if_each_message_was_told) {
  std::mt19937_64 random(13);
  std::int64_t jumped = 0, done = 0;
  for (int block = 0; block < 150; ++block) {
    const auto units = static_cast<std::int64_t>(3 + random() % (block % 10 == 1 ? 500 : 120)), chains = static_cast<std::int64_t>(1 + random() % 3);
    Ring ring(units, block % 5 == 0 ? 1 + static_cast<std::int64_t>(random() % 20) : 2 * (units - 1), block % 3 ? units - 1 : 0, chains);
    const auto bytes = static_cast<std::int64_t>(1 + random() % 5000);
    ring.slices.assign(static_cast<std::size_t>(chains), 1);
    ring.group.assign(static_cast<std::size_t>(chains), 0);
    ring.bytes.clear();
    const std::uint64_t often = 1 + random() % 20;
    for (std::int64_t i = 0; i < units * chains; ++i) ring.bytes.push_back(bytes + static_cast<std::int64_t>(random() % often == 0) * 4);
    for (std::int64_t& latency : ring.latency) latency = block % 2 ? 5000 : 700'000;
    for (int odd = 0; odd < block % 4; ++odd) {
      const std::size_t at = random() % static_cast<std::size_t>(units * chains);
      ring.rate[at] = static_cast<std::int64_t>(1'000'000 + random() % 2'000'000'000);
      ring.latency[at] += static_cast<std::int64_t>(random() % 3'000'000);
    }
    if (ring.run(true) != RingsStatus::ok) continue;
    const std::vector<std::int64_t> want = ring.finish;
    RingsOutput counts;
    if (ring.run(true, &counts, false, true) != RingsStatus::ok) continue;  // a few that wait for one another are too much work
    CHECK(ring.finish == want);
    jumped += counts.jumped;
    ++done;
  }
  CHECK(done > 100);
  CHECK(jumped > 50'000);
  Ring alike(40, 78, 39);
  CHECK(alike.run(true, nullptr, false, true) == RingsStatus::bad_input);  // is made for others
}

// However its vectors are told: those of one row are one trail, and come out as they went in.
TEST(trails_of_the_same_vectors_are_the_same) {
  std::mt19937_64 random(12);
  for (int block = 0; block < 200; ++block) {
    const std::size_t period = 1 + random() % 2;
    Trail told(2, period), pushed(2, period);
    std::vector<std::vector<std::int64_t>> all;
    const auto push = [&](std::vector<std::int64_t> vector) {
      pushed.push(vector.data());
      all.push_back(std::move(vector));
    };
    for (std::size_t run = 0; run < 1 + random() % 5; ++run) {
      for (std::size_t i = 0; i < period * (1 + random() % 3); ++i) {
        push({static_cast<std::int64_t>(random() % 3), static_cast<std::int64_t>(random() % 2)});
        told.push(all.back().data());
      }
      std::vector<std::int64_t> steps;
      for (std::size_t i = 0; i < 2 * period; ++i) steps.push_back(static_cast<std::int64_t>(random() % 2));
      const auto times = static_cast<std::int64_t>(1 + random() % 4);
      for (std::int64_t i = 0; i < times * static_cast<std::int64_t>(period); ++i) {
        const auto& last = all[all.size() - period];
        const std::size_t of = 2 * (static_cast<std::size_t>(i) % period);
        push({last[0] + steps[of], last[1] + steps[of + 1]});
      }
      told.push_steps(steps, times);
    }
    CHECK(told == pushed);
    CHECK(told.told() == pushed.told());
    TrailReader reader(told, nullptr);
    std::vector<std::int64_t> vector(2);
    for (std::size_t i = 0; i < all.size();) {
      const auto periods = reader.alike() / static_cast<std::int64_t>(period);
      if (periods > 1 && random() % 2 == 0) {
        reader.skip_periods(periods - 1);
        i += static_cast<std::size_t>(periods - 1) * period;
        continue;
      }
      reader.next(vector.data());
      CHECK(vector == all[i++]);
    }
  }
}

TEST(a_path_goes_on_until_a_number_would_reach_zero) {
  const auto path = [](std::int64_t sign, std::int64_t fixed, std::int64_t a, std::int64_t b, std::int64_t over) {
    Path made;
    made.sign(sign), made.fixed(fixed), made.product(a, b), made.quotient(over, 3);
    return made;
  };
  const Path before = path(12, 5, 2, 7, 30);
  CHECK(path(10, 5, 2, 9, 33).repeats_since(before) == 4);  // 8, 6, 4, 2
  CHECK(path(12, 5, 3, 7, 30).repeats_since(before) == Path::kAlways);
  CHECK(path(14, 5, 2, 7, 30).repeats_since(before) == Path::kAlways);
  CHECK(path(0, 5, 2, 7, 30).repeats_since(before) == 0);    // decided otherwise
  CHECK(path(-2, 5, 2, 7, 30).repeats_since(before) == 0);
  CHECK(path(10, 6, 2, 7, 30).repeats_since(before) == 0);   // no sum
  CHECK(path(10, 5, 3, 8, 30).repeats_since(before) == 0);   // both factors changed
  CHECK(path(10, 5, 2, 7, 31).repeats_since(before) == 0);   // rounds differently each time
}

// The last message of a slice is added, too, before the next slice begins.
TEST(slices_whose_every_message_is_added_are_the_same_with_jumps) {
  std::mt19937_64 random(5);
  int compared = 0;
  for (int drawn = 0; drawn < 200; ++drawn) {
    const auto up_to = [&](std::uint64_t most) { return static_cast<std::int64_t>(1 + random() % most); };
    const std::int64_t units = up_to(12), steps = up_to(40), chains = up_to(3), slices = up_to(4);
    Ring ring(units, steps, random() % 4 > 0 ? steps : up_to(40), chains);
    ring.own = 1 + up_to(4);
    const auto slots = static_cast<std::size_t>(chains * slices);
    ring.slices.assign(static_cast<std::size_t>(chains), slices);
    ring.bytes.assign(slots, up_to(5000));
    ring.group.clear();
    for (std::size_t i = 0; i < slots; ++i) ring.group.push_back(static_cast<std::int64_t>(i));
    for (std::size_t i = 0; i < static_cast<std::size_t>(units) * slots; ++i) ring.begin.push_back(up_to(3'000'000));
    for (std::size_t r = 0; r < ring.rate.size(); ++r) {
      ring.rate[r] = up_to(3) * 700'000'000;
      ring.memory_rate[r] = up_to(3) * 400'000'000;
      ring.latency[r] = up_to(4000);
    }
    if (ring.run(false) != RingsStatus::ok) continue;
    const std::vector<std::int64_t> want = ring.finish;
    RingsOutput counts;
    CHECK(ring.run(true, &counts) == RingsStatus::ok);
    CHECK(ring.finish == want);
    CHECK_EQ(counts.rounds + counts.jumped, units * slices * steps);
    ++compared;
  }
  CHECK(compared >= 100);
}
