// From a seed to a scenario, and from many scenarios to a table.
//
// Is: the choice of world, collectives, faults and protocol points for a seed: seeds go through all pairs of fault and point in
//     turn, everything else is drawn; and the sums over many runs.
// Is not: the simulation.
#pragma once

#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "fault_sim.hpp"

namespace ccl_lab::check {

constexpr std::uint64_t kPairs = kSimFaults * kSimPoints;

// The first fault, which makes the points of a repair happen: what breaks a path, loudly or silently.
inline Injection opening(SeededRandom& random) {
  constexpr SimFault kOpenings[] = {SimFault::nic_down_both, SimFault::nic_down_near, SimFault::nic_down_far, SimFault::silent_tx,
                                    SimFault::silent_rx, SimFault::reset_near, SimFault::reset_both, SimFault::cut_there,
                                    SimFault::unconfirmed, SimFault::late_data};
  Injection first;
  first.fault = kOpenings[random.below(std::size(kOpenings))];
  constexpr SimPoint kWhere[] = {SimPoint::posted, SimPoint::arrived, SimPoint::told, SimPoint::confirmed, SimPoint::before_post};
  first.point = kWhere[random.below(std::size(kWhere))];
  first.skip = static_cast<int>(random.below(60));
  first.far = random.one_in(2);
  first.heal_ns = random.one_in(2) ? 0 : random.between(100'000, 30'000'000);
  return first;
}

inline bool needs_opening(SimPoint point) {
  return point == SimPoint::parked || (point >= SimPoint::retiring && point != SimPoint::at_close);
}
inline bool needs_return(SimPoint point) {
  return (point >= SimPoint::probe_sent && point <= SimPoint::reply_heard) || (point >= SimPoint::wanted && point <= SimPoint::back);
}
inline bool needs_silence(SimPoint point) { return point >= SimPoint::ping_sent && point <= SimPoint::pong_heard; }

inline void choose_world(Scenario& s, SeededRandom& random) {
  s.n_nodes = 2 + static_cast<int>(random.below(3));
  s.ranks_per_node = random.one_in(4) && s.n_nodes < 4 ? 2 : 1;
  s.n_nics = 2 + static_cast<int>(random.below(3));
  s.mesh = s.n_nics == 2 && random.one_in(3);
  s.job_ns = random.one_in(2) ? 0 : random.between(100, 20'000);
  s.heal = random.one_in(2);
  VirtualOptions& net = s.network;
  net.seed = random.next();
  net.n_nics = s.n_nics;
  for (int r = 0; r < s.n_ranks(); ++r) net.node_of.push_back(r / s.ranks_per_node);
  net.jitter_ns = random.between(0, 10'000);
  net.piece_bytes = std::uint64_t{512} << random.below(4);
  net.mail_latency_ns = random.between(10'000, 200'000);
  net.mail_jitter_ns = random.between(0, 1'000'000);
  net.tells_peer = random.one_in(2);
  net.retry_ns = random.one_in(2) ? kNever : random.between(2'000'000, 300'000'000);
  RailOptions& rails = s.rails;
  rails.segment_bytes = std::uint64_t{1024} << random.below(4);
  rails.window_bytes = rails.segment_bytes << random.below(6);
  rails.window_segments = 1u << random.below(7);
  rails.copy_bytes = random.one_in(3) ? 0 : std::uint64_t{128} << random.below(6);
  rails.later_bytes = random.one_in(3) ? 0 : std::uint64_t{128} << random.below(8);
  rails.alive_wanted = 1 + static_cast<std::uint32_t>(random.below(5));
  rails.silence_ns = random.between(5'000'000, 200'000'000);
  rails.ping_ns = random.between(5'000'000, 100'000'000);
  rails.resend_ns = random.between(500'000, 10'000'000);
  rails.hold_off_ns = random.one_in(2) ? random.between(0, 2'000'000) : 200'000'000;
}

inline void choose_plans(Scenario& s, SeededRandom& random) {
  const int n_plans = 2 + static_cast<int>(random.below(4));
  PlanShape shape;
  for (int k = 0; k < n_plans; ++k) {
    if (k == 0 || random.one_in(3)) {
      shape.kind = static_cast<PlanKind>(random.below(static_cast<std::uint64_t>(PlanKind::count)));
      shape.n = s.n_ranks();
      shape.n_nics = s.n_nics;
      shape.n_channels = 1 + static_cast<int>(random.below(4));
      // All buffers fit; some blocks are one segment, some many.
      const std::uint64_t most = kSimBufferBytes / 4 / static_cast<std::uint64_t>(shape.n * shape.n_channels);
      shape.slots = 1 + static_cast<int>(random.below(2));
      shape.block = 1 + random.below(std::min<std::uint64_t>(most * static_cast<std::uint64_t>(shape.n) / std::max<std::uint64_t>(static_cast<std::uint64_t>(2 * shape.slots + 1), static_cast<std::uint64_t>(shape.n)), 4096));
      if (random.one_in(4)) shape.block = 1 + random.below(64);
      shape.flush = random.one_in(4);
    }
    shape.root = static_cast<int>(random.below(static_cast<std::uint64_t>(shape.n)));
    shape.salt = random.next();
    s.plans.push_back(shape);
  }
}

// Messages of an earlier loss arrive during a later one: paths come back quickly, are lost again under traffic, and mail is
// doubled or late by more than that takes.
inline void old_mail(Scenario& s, SeededRandom& random) {
  s.rails.alive_wanted = 1;
  s.rails.hold_off_ns = 0;
  s.rails.silence_ns = random.between(5'000'000, 20'000'000);
  s.rails.resend_ns = random.between(500'000, 2'000'000);
  s.pause_ns = random.between(10'000'000, 100'000'000);
  s.plans.push_back(s.plans.back());
  s.plans.push_back(s.plans.back());
  Injection mail;
  mail.fault = random.one_in(2) ? SimFault::mail_doubled : SimFault::mail_late;
  mail.at_ns = 1;
  s.injections.push_back(mail);
  for (int k = 0; k < 3; ++k) {
    Injection again = opening(random);
    again.point = random.one_in(2) ? SimPoint::posted : SimPoint::backup_post;
    again.skip += 40 * k;
    again.heal_ns = random.between(100'000, 3'000'000);
    s.injections.push_back(again);
  }
}

inline Scenario make_scenario(std::uint64_t seed) {
  Scenario s;
  s.seed = seed;
  SeededRandom random(seed);
  choose_world(s, random);
  choose_plans(s, random);
  Injection main;
  main.fault = static_cast<SimFault>(seed % kSimFaults);
  main.point = static_cast<SimPoint>(seed / kSimFaults % kSimPoints);
  main.at_ns = random.between(0, 300'000);
  main.far = random.one_in(2);
  constexpr std::int64_t kHeals[] = {0, 50'000, 2'000'000, 30'000'000, 400'000'000};
  main.heal_ns = kHeals[random.below(5)];
  const bool rare = main.point >= SimPoint::retiring || main.point == SimPoint::parked;
  main.skip = static_cast<int>(random.below(rare ? 3 : 100));
  if (main.fault == SimFault::mail_cut) main.heal_ns = random.between(1'000'000, 300'000'000);
  if (main.fault == SimFault::rank_paused) main.heal_ns = random.between(100'000, 1'000'000'000);
  if (needs_opening(main.point)) {
    s.injections.push_back(opening(random));
    Injection& first = s.injections.back();
    if (needs_silence(main.point)) first.fault = random.one_in(2) ? SimFault::silent_tx : SimFault::unconfirmed;
    if (needs_return(main.point)) {
      first.heal_ns = random.between(100'000, 3'000'000);
      s.heal = true;
    }
    if (main.point == SimPoint::hint_sent || main.point == SimPoint::hint_heard) first.far = true;
  } else if (random.one_in(3)) {
    s.injections.push_back(opening(random));
  }
  s.injections.push_back(main);
  if (random.one_in(3)) {  // long enough for a path to come back, and to be lost again
    s.pause_ns = random.between(1'000'000, 300'000'000);
    for (std::uint64_t n = random.below(3); n > 0; --n) {
      s.injections.push_back(opening(random));
      s.injections.back().point = SimPoint::at_time;
      s.injections.back().at_ns = random.between(0, 1'000'000'000);
      if (random.one_in(2)) s.injections.back().heal_ns = random.between(100'000, 30'000'000);
    }
  }
  if (random.one_in(4)) {
    old_mail(s, random);
  } else if (random.one_in(4)) {  // a background of bad mail
    Injection mail;
    mail.fault = static_cast<SimFault>(static_cast<int>(SimFault::mail_lost) + static_cast<int>(random.below(3)));
    mail.at_ns = 1;
    s.injections.push_back(mail);
  }
  return s;
}

inline std::string describe(const Scenario& s) {
  std::string text = std::to_string(s.n_nodes) + " nodes x " + std::to_string(s.ranks_per_node) + " ranks x " + std::to_string(s.n_nics) + " NICs";
  for (const PlanShape& each : s.plans) text += std::string(", ") + kPlanNames[static_cast<std::size_t>(each.kind)];
  for (const Injection& each : s.injections)
    text += std::string("; ") + kSimFaultNames[static_cast<std::size_t>(each.fault)] + " at " + kSimPointNames[static_cast<std::size_t>(each.point)] +
            " #" + std::to_string(each.skip) + (each.far ? " far" : " near") + (each.heal_ns > 0 ? " for " + std::to_string(each.heal_ns / 1000) + " us" : "");
  return text;
}

struct Tally {
  std::uint64_t runs = 0, failed = 0, hung = 0, ended_in_error = 0, steps = 0;
  double virtual_s = 0;
  std::array<std::array<std::uint64_t, kSimPoints>, kSimFaults> hits{};
  std::array<std::uint64_t, kSimPoints> reached{};
  std::array<std::uint64_t, static_cast<std::size_t>(VirtualFault::count)> injected{}, effects{};
  Rails::Counters rails;
  VirtualNetwork::Counters network;

  void add(const Verdicts& v) {
    ++runs;
    failed += !v.wrong.empty();
    hung += v.hung;
    ended_in_error += v.ended_in_error;
    steps += v.steps;
    virtual_s += static_cast<double>(v.virtual_ns) * 1e-9;
    for (const Injection& each : v.injections)
      hits[static_cast<std::size_t>(each.fault)][static_cast<std::size_t>(each.point)] += each.hit;
    for (std::size_t i = 0; i < reached.size(); ++i) reached[i] += v.reached[i];
    for (std::size_t i = 0; i < injected.size(); ++i) injected[i] += v.injected[i];
    for (std::size_t i = 0; i < effects.size(); ++i) effects[i] += v.effects[i];
    rails.lost += v.rails.lost;
    rails.recovered += v.rails.recovered;
    rails.resent += v.rails.resent;
    rails.duplicates += v.rails.duplicates;
    rails.ignored += v.rails.ignored;
    rails.back += v.rails.back;
    network.pieces += v.network.pieces;
    network.stale += v.network.stale;
    network.late += v.network.late;
    network.failed += v.network.failed;
    network.forgotten += v.network.forgotten;
  }
};

// One line says what to run to see it again.
inline Verdicts run_seed(std::uint64_t seed, Tally& tally, bool trace = false) {
  Scenario scenario = make_scenario(seed);
  scenario.trace = trace;
  Verdicts verdicts = FaultSim(scenario).run();
  tally.add(verdicts);
  return verdicts;
}

inline void print_failure(std::uint64_t seed, const Verdicts& verdicts) {
  std::fprintf(stderr, "seed %llu: %s%s [%s]; to see it again: fuzz_faults --seed %llu\n", static_cast<unsigned long long>(seed),
               verdicts.hung ? "hangs: " : "", verdicts.wrong.c_str(), describe(make_scenario(seed)).c_str(),
               static_cast<unsigned long long>(seed));
}

}  // namespace ccl_lab::check
