// Deterministic simulation of faults: the shipped executor and rails of N ranks on a virtual network, from a seed.
//
// Is: a world of ranks that run collectives one after the other, each going on as soon as it may; injections at protocol
//     points; and the invariants that every run is judged by. One thread; the same scenario gives the same history.
// Is not: where scenarios come from (fault_scenarios.hpp).
//
// Invariants that are checked
//  - Results are exact, bit by bit, and nothing beyond them is written; every signal is raised as often as the programs say.
//  - Nothing hangs: each collective ends within its bound of virtual time, in a result, or, where no way or no peer is left,
//    in an error on every rank that names the culprit.
//  - Paths of NICs that no fault touched are never lost; nothing is posted to a path after it was retired; nothing that had
//    landed is sent again; where a fault took puts from their path, a handshake settled it.
//  - After the faults are undone, all paths come back and carry bytes again.
#pragma once

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fault_rank.hpp"
#include "fault_script.hpp"

namespace ccl_lab::check {

struct Scenario {
  std::uint64_t seed = 0;
  int n_nodes = 2;
  int ranks_per_node = 1;
  int n_nics = 2;
  bool mesh = false;                 // paths between NICs of different number too
  VirtualOptions network;
  RailOptions rails;
  std::int64_t job_ns = 0;           // the longest that local work takes
  std::vector<PlanShape> plans;      // one after the other
  std::vector<Injection> injections;
  std::int64_t pause_ns = 5'000;     // of a rank between two, at most
  bool heal = false;                 // at the end: undo all, wait for all paths, run the last plan again
  bool trace = false;                // print what paths and messages do
  std::int64_t deadline_ns = 20'000'000'000;  // of one collective

  int n_ranks() const { return n_nodes * ranks_per_node; }
  bool may_be_fatal() const {
    return std::any_of(injections.begin(), injections.end(), [](const Injection& each) { return check::may_be_fatal(each.fault); });
  }
};

struct Verdicts {
  std::string wrong;                 // empty: all invariants hold
  bool hung = false;
  bool ended_in_error = false;       // as it may, for this scenario
  int ended_by_deadline = 0;
  std::int64_t virtual_ns = 0;
  std::uint64_t steps = 0;
  Rails::Counters rails;             // of all ranks
  VirtualNetwork::Counters network;
  std::array<std::uint64_t, static_cast<std::size_t>(VirtualFault::count)> injected{}, effects{};
  std::array<std::uint64_t, kSimPoints> reached{};
  std::vector<Injection> injections;
  std::uint64_t collectives = 0, faults = 0;   // of a soak
};

class FaultSim {
 public:
  explicit FaultSim(Scenario scenario);
  Verdicts run();
  // One world for so long: collectives and faults without end, each undone some time later. `each_hour` hears of it.
  Verdicts soak(std::int64_t for_ns, const std::function<void(int hour)>& each_hour);

 private:
  struct RankState {
    std::size_t plan = 0;            // that runs, or comes next
    std::int64_t step_ns = 0;
    std::int64_t began_ns = 0;
    std::int64_t paused_until_ns = 0;
    bool started = false;
    bool finished = false;           // all plans, or failed
    Status failure;
  };

  void wrong(const std::string& what);
  void trace(int rank, const std::string& what) const;
  void connect();
  void hook();
  void reach(SimPoint point, int rank, const Path& path);
  void fates(const Mail& mail, MailFate& fate);
  void inject(Injection& injection, int rank, Path path, MailFate* fate);
  bool inject_nic(const Injection& injection, int node, int nic);
  bool inject_link(const Injection& injection, int rank, const Path& path);
  bool inject_rank(const Injection& injection, int rank);
  bool inject_mail(const Injection& injection, int rank, MailFate* fate);
  void flap(int node, int nic, std::int64_t period_ns, int left);
  void undo_all();
  void dial(int rank, const Path& path);
  void attach(int rank, const Path& path, std::uint32_t link, std::uint32_t generation, bool first);

  bool advance();
  void step(int rank);
  void begin(int rank);
  void end_plan(int rank);
  void end_failed(int rank, Status status);
  bool all_finished() const;
  void run_plans();
  void settle();
  void heal();
  void run_again();
  bool healed() const;
  bool has_path(int node, int nic) const;
  void judge();
  void judge_signals();
  void judge_paths(int rank);
  void judge_failures();
  bool named(const Status& status, int by) const;
  bool at_culprit(int rank) const;
  int node_of(int rank) const { return scenario_.network.node_of[static_cast<std::size_t>(rank)]; }
  bool alive(int rank) const { return !network_.killed(rank); }
  SimRank& at(int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }

  Scenario scenario_;
  VirtualNetwork network_;
  SeededRandom random_;
  std::vector<Plan> plans_;
  std::vector<std::unique_ptr<SimRank>> ranks_;
  std::vector<RankState> state_;
  std::vector<Injection>& injections_;
  std::vector<std::array<bool, 2>> culprits_;  // by rank: it, or its node, may be named
  std::vector<std::uint32_t> cut_links_;
  std::vector<int> revoked_;
  Verdicts out_;
  bool disturbed_ranks_ = false;     // a rank was paused, killed or cut off: silence says nothing about NICs
  bool aborted_ = false;
  bool healing_ = false;
  std::int64_t quiet_ns_ = 0;        // from then on everything that was injected is undone, while healing
  bool silence_ = false;             // a rank died without a word
};

}  // namespace ccl_lab::check

#include "fault_sim.inl"
