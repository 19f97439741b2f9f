// The fault simulation's loop and judge; see fault_sim.hpp. How faults are done is in fault_inject.inl.

namespace ccl_lab::check {

inline FaultSim::FaultSim(Scenario scenario)
    : scenario_(std::move(scenario)),
      network_(scenario_.network),
      random_(scenario_.seed ^ 0x5eedf00d),
      state_(static_cast<std::size_t>(scenario_.n_ranks())),
      injections_(scenario_.injections),
      culprits_(static_cast<std::size_t>(scenario_.n_ranks())) {
  for (const PlanShape& shape : scenario_.plans) plans_.emplace_back(shape);
  const int n = scenario_.n_ranks();
  for (int r = 0; r < n; ++r) {
    ranks_.push_back(std::make_unique<SimRank>(network_, r, n, scenario_.rails, scenario_.job_ns));
    ranks_.back()->on_local = [this, r] {
      state_[static_cast<std::size_t>(r)].step_ns = std::min(state_[static_cast<std::size_t>(r)].step_ns, network_.now_ns());
    };
  }
}

inline void FaultSim::wrong(const std::string& what) {
  if (out_.wrong.empty()) out_.wrong = "at " + std::to_string(network_.now_ns() / 1000) + " us: " + what;
}

inline void FaultSim::trace(int rank, const std::string& what) const {
  if (scenario_.trace) std::printf("  %10.3f us  rank %d  %s\n", static_cast<double>(network_.now_ns()) * 1e-3, rank, what.c_str());
}

inline std::string text_of(const Path& path) {
  return std::to_string(path.nic) + "-" + std::to_string(path.peer) + "." + std::to_string(path.peer_nic);
}

// ---- the loop

inline void FaultSim::connect() {
  const int n = scenario_.n_ranks(), nics = scenario_.n_nics;
  for (int a = 0; a < n; ++a)
    for (int b = a + 1; b < n; ++b)
      for (int i = 0; i < nics; ++i)
        for (int j = 0; j < nics; ++j) {
          if (i != j && !scenario_.mesh) continue;
          const Path path{b, static_cast<std::uint16_t>(i), static_cast<std::uint16_t>(j)};
          if (!network_.passes(a, i, b, j) || !network_.passes(b, j, a, i)) continue;
          const std::uint32_t link = network_.dial(a, path);
          attach(a, path, link, 0, true);
          attach(b, {a, path.peer_nic, path.nic}, link, 0, true);
        }
}

inline void FaultSim::attach(int rank, const Path& path, std::uint32_t link, std::uint32_t generation, bool first) {
  if (!alive(rank)) return;
  SimRank& here = at(rank);
  const Result<std::uint32_t> wanted = here.rails.generation_wanted(path);
  if (!wanted.ok() || wanted.value() != generation) return here.transport.refuse(link);
  if (!here.transport.attach(link).ok()) return here.transport.refuse(link);
  if (Status status = here.rails.add_path(path, generation); !status.ok()) wrong(status.message);
  state_[static_cast<std::size_t>(rank)].step_ns = network_.now_ns();
  if (first) return;
  reach(at(path.peer).rails.up({rank, path.peer_nic, path.nic}) ? SimPoint::back : SimPoint::one_end_back, rank, path);
}

// Somebody has to: the two ends connect anew, and take the connection each in its own time.
inline void FaultSim::dial(int rank, const Path& path) {
  const Path back{rank, path.peer_nic, path.nic};
  if (!alive(rank) || !alive(path.peer) || !network_.passes(rank, path.nic, path.peer, path.peer_nic) ||
      !network_.passes(path.peer, path.peer_nic, rank, path.nic))
    return;
  const Result<std::uint32_t> here = at(rank).rails.generation_wanted(path);
  const Result<std::uint32_t> there = at(path.peer).rails.generation_wanted(back);
  if (!here.ok() || !there.ok() || here.value() != there.value()) return;
  const std::uint32_t link = network_.dial(rank, path), generation = here.value();
  network_.after(random_.between(0, 2'000'000), [=, this] { attach(rank, path, link, generation, false); });
  network_.after(random_.between(0, 2'000'000), [=, this] { attach(path.peer, back, link, generation, false); });
}

// To the next thing that happens, and the steps that are due; false when nothing ever will.
inline bool FaultSim::advance() {
  std::int64_t next = network_.next_ns();
  for (std::size_t r = 0; r < state_.size(); ++r)
    if (alive(static_cast<int>(r))) next = std::min(next, std::max(state_[r].step_ns, state_[r].paused_until_ns));
  if (next == kNever) return false;
  network_.advance(next);
  for (int r = 0; r < scenario_.n_ranks(); ++r) {
    RankState& state = state_[static_cast<std::size_t>(r)];
    if (network_.take_ready(r)) state.step_ns = std::min(state.step_ns, network_.now_ns() + random_.between(0, 3'000));
    if (alive(r) && std::max(state.step_ns, state.paused_until_ns) <= network_.now_ns()) step(r);
  }
  return true;
}

inline void FaultSim::step(int rank) {
  RankState& state = state_[static_cast<std::size_t>(rank)];
  const std::int64_t now = network_.now_ns();
  SimRank& here = at(rank);
  state.step_ns = kNever;
  ++out_.steps;
  if (!state.started && !state.finished && now >= state.began_ns) begin(rank);
  here.step(now);
  for (const Path& path : here.rails.wanted()) {
    reach(SimPoint::wanted, rank, path);
    network_.after(random_.between(10'000, 1'000'000), [this, rank, path] { dial(rank, path); });
  }
  judge_paths(rank);
  if (state.started && here.executor.done()) end_plan(rank);
  else if (state.started && here.executor.failed()) end_failed(rank, here.executor.status());
  else if (state.started && now >= state.began_ns + scenario_.deadline_ns) {
    const Blocked blocked = here.executor.oldest_blocked(here.inbox());
    if (!scenario_.may_be_fatal()) out_.hung = true;
    else ++out_.ended_by_deadline;
    here.executor.fail(Status(Code::timeout, "did not end: " + blocked.text, blocked.peer));
    end_failed(rank, here.executor.status());
  }
  const std::int64_t wake = here.wake_ns(now);
  if (wake <= now) state.step_ns = std::min(state.step_ns, now + random_.between(100, 2'000));
  else if (wake < kNever) state.step_ns = std::min(state.step_ns, wake);
  if (state.started) state.step_ns = std::min(state.step_ns, state.began_ns + scenario_.deadline_ns);
  else if (!state.finished) state.step_ns = std::min(state.step_ns, state.began_ns);
}

inline void FaultSim::begin(int rank) {
  RankState& state = state_[static_cast<std::size_t>(rank)];
  state.started = true;
  state.began_ns = network_.now_ns();
  if (Status status = at(rank).start(plans_[state.plan]); !status.ok()) {
    wrong(status.message);
    state.finished = true;
    state.started = false;
  }
}

inline void FaultSim::end_plan(int rank) {
  RankState& state = state_[static_cast<std::size_t>(rank)];
  if (const std::string found = at(rank).check(plans_[state.plan]); !found.empty()) wrong("collective " + std::to_string(state.plan) + ", " + found);
  trace(rank, "collective " + std::to_string(state.plan) + " done");
  state.started = false;
  if (++state.plan == plans_.size()) {
    state.finished = true;
    if (all_finished()) reach(SimPoint::at_close, rank, {(rank + 1) % scenario_.n_ranks(), 0, 0});
    return;
  }
  state.began_ns = network_.now_ns() + random_.between(0, scenario_.pause_ns);
  state.step_ns = std::min(state.step_ns, state.began_ns);
}

// The first reason goes to all others, as World does it.
inline void FaultSim::end_failed(int rank, Status status) {
  RankState& state = state_[static_cast<std::size_t>(rank)];
  trace(rank, "failed: " + status.message);
  state.failure = status;
  state.started = false;
  state.finished = true;
  if (aborted_) return;
  aborted_ = true;
  network_.after(1'000'000, [this, status] {
    for (int r = 0; r < scenario_.n_ranks(); ++r) {
      RankState& other = state_[static_cast<std::size_t>(r)];
      if (!alive(r) || other.finished) continue;
      at(r).executor.fail(Status(Code::aborted, status.message, status.rank));
      other.failure = Status(Code::aborted, status.message, status.rank);
      other.started = false;
      other.finished = true;
    }
  });
}

inline bool FaultSim::all_finished() const {
  for (int r = 0; r < scenario_.n_ranks(); ++r)
    if (!network_.killed(r) && !state_[static_cast<std::size_t>(r)].finished) return false;
  return true;
}

inline void FaultSim::run_plans() {
  const std::int64_t bound = network_.now_ns() + scenario_.deadline_ns * static_cast<std::int64_t>(plans_.size() + 1);
  const std::uint64_t most_steps = out_.steps + 20'000'000;
  while (!all_finished() && out_.wrong.empty()) {
    if (!advance() || network_.now_ns() > bound || out_.steps > most_steps) {
      out_.hung = true;
      return wrong("nothing ends any more");
    }
  }
}

// Until nothing is under way at any rank.
inline void FaultSim::settle() {
  const std::int64_t bound = network_.now_ns() + 10'000'000'000;
  const auto busy = [this] {
    for (int r = 0; r < scenario_.n_ranks(); ++r)
      if (alive(r) && at(r).rails.unconfirmed()) return true;
    return false;
  };
  while (busy() && out_.wrong.empty()) {
    if (advance() && network_.now_ns() <= bound) continue;
    out_.hung = true;
    return wrong("what was posted is never confirmed");
  }
}

inline bool FaultSim::healed() const {
  for (int a = 0; a < scenario_.n_ranks(); ++a)
    for (int b = 0; b < scenario_.n_ranks(); ++b)
      for (int i = 0; i < scenario_.n_nics; ++i) {
        const Path path{b, static_cast<std::uint16_t>(i), static_cast<std::uint16_t>(i)};
        const Rails& rails = ranks_[static_cast<std::size_t>(a)]->rails;
        if (a != b && rails.knows(path) && !rails.up(path)) return false;
      }
  return true;
}

// Everyone sends to everyone over every NIC.
inline void FaultSim::run_again() {
  PlanShape last = scenario_.plans.back();
  last.kind = PlanKind::all_to_all;
  last.n_channels = scenario_.n_nics;
  last.block = std::min<std::uint64_t>(last.block, kSimBufferBytes / 8 / static_cast<std::uint64_t>(last.n * last.n_channels * (2 * last.slots + 1)));
  last.salt += 1;
  scenario_.plans.push_back(last);
  plans_.emplace_back(last);
  for (RankState& state : state_) {
    state.finished = false;
    state.began_ns = state.step_ns = network_.now_ns();
  }
  run_plans();
  settle();
}

// All NICs carry bytes again.
inline void FaultSim::heal() {
  undo_all();
  healing_ = true;  // what is still injected, at points of a return, is undone soon
  const std::int64_t bound = std::max(network_.now_ns(), quiet_ns_) + 60'000'000'000;
  for (std::int64_t k = 0; k < 60; ++k) network_.at(quiet_ns_ + k * 1'000'000'000, [] {});
  int probes = 0;
  while ((!healed() || network_.now_ns() < quiet_ns_) && out_.wrong.empty()) {
    // An end that came back alone, and has nothing to send, learns of it when it has.
    if (network_.now_ns() > quiet_ns_ + 10'000'000'000 * (probes + 1)) {
      ++probes;
      run_again();
    }
    if (!advance() || network_.now_ns() > bound) return wrong("a path is not back 60 s after all faults were undone");
  }
  for (Injection& each : injections_) each.over = !each.hit;
  undo_all();
  std::vector<std::uint64_t> before;
  for (int node = 0; node < scenario_.n_nodes; ++node)
    for (int k = 0; k < scenario_.n_nics; ++k) before.push_back(network_.nic(node, k).tx_bytes);
  run_again();
  std::size_t i = 0;
  for (int node = 0; node < scenario_.n_nodes; ++node)
    for (int k = 0; k < scenario_.n_nics; ++k, ++i)
      if (out_.wrong.empty() && network_.nic(node, k).tx_bytes == before[i] && has_path(node, k))
        wrong("NIC " + std::to_string(k) + " of node " + std::to_string(node) + " is healed and carries nothing");
}

// One that was there at the start to another node: a NIC that was missing then is not used later.
inline bool FaultSim::has_path(int node, int nic) const {
  const auto index = static_cast<std::uint16_t>(nic);
  const int first = node * scenario_.ranks_per_node;
  for (int peer = 0; peer < scenario_.n_ranks(); ++peer)
    if (node_of(peer) != node && ranks_[static_cast<std::size_t>(first)]->rails.knows({peer, index, index})) return true;
  return false;
}

inline Verdicts FaultSim::run() {
  hook();
  for (Injection& each : injections_)
    if (each.point == SimPoint::at_start) inject(each, static_cast<int>(random_.below(static_cast<std::uint64_t>(scenario_.n_ranks()))), {}, nullptr);
  connect();
  for (RankState& state : state_) state.began_ns = state.step_ns = random_.between(0, 20'000);
  run_plans();
  if (out_.wrong.empty() && !aborted_ && !scenario_.may_be_fatal()) settle();
  if (out_.wrong.empty() && !aborted_ && scenario_.heal && !scenario_.may_be_fatal()) heal();
  judge();
  return std::move(out_);
}

inline Verdicts FaultSim::soak(std::int64_t for_ns, const std::function<void(int hour)>& each_hour) {
  constexpr std::int64_t kHour = 3'600'000'000'000;
  hook();
  connect();
  int hour = 0;
  Injection injection;
  while (network_.now_ns() < for_ns && out_.wrong.empty()) {
    PlanShape shape = scenario_.plans[random_.below(scenario_.plans.size())];
    shape.salt = random_.next();
    shape.root = static_cast<int>(random_.below(static_cast<std::uint64_t>(shape.n)));
    plans_.assign(1, Plan(shape));
    for (RankState& state : state_) {
      state = RankState();
      state.began_ns = state.step_ns = network_.now_ns() + random_.between(0, 100'000);
    }
    injection.fault = static_cast<SimFault>(random_.below(static_cast<std::uint64_t>(SimFault::rank_killed)));
    injection.point = static_cast<SimPoint>(static_cast<int>(SimPoint::before_post) + static_cast<int>(random_.below(8)));
    injection.skip = static_cast<int>(random_.below(60));
    injection.heal_ns = random_.between(100'000, 2'000'000'000);
    injection.far = random_.one_in(2);
    injection.hit = injection.over = false;
    injections_.assign(1, injection);
    run_plans();
    settle();
    out_.faults += injections_.front().hit;
    ++out_.collectives;
    // Cut links are mended by the clock; what has no undo of its own is undone here, now and then.
    if (random_.one_in(8)) {
      undo_all();
      cut_links_.clear();
    }
    const std::int64_t until = network_.now_ns() + random_.between(0, 3'000'000'000);
    network_.at(until, [] {});
    while (network_.now_ns() < until && out_.wrong.empty()) advance();
    for (; network_.now_ns() / kHour > hour; ++hour) each_hour(hour + 1);
  }
  judge();
  return std::move(out_);
}

// ---- the judge

inline void FaultSim::judge_paths(int rank) {
  constexpr const char* kKinds[] = {"", "lost", "retired", "resumed", "verdict", "back", "peer lost"};
  for (const RailEvent& event : at(rank).rails.events()) {
    trace(rank, std::string(kKinds[static_cast<std::size_t>(event.kind)]) + " " + text_of(event.path) + " generation " +
                    std::to_string(event.generation) + ", " + std::to_string(event.segments) + " segments " + event.text);
    if (event.kind != RailEventKind::lost || disturbed_ranks_) continue;
    const bool touched = network_.nic(node_of(rank), event.path.nic).touched || network_.nic(node_of(event.path.peer), event.path.peer_nic).touched;
    if (!touched) wrong("rank " + std::to_string(rank) + " lost a path that no fault touched: " + event.text);
  }
}

// Counters are what the programs raise, no more and no less.
inline void FaultSim::judge_signals() {
  const int n = scenario_.n_ranks();
  std::vector<std::uint64_t> want(static_cast<std::size_t>(n * n * (kSimChannels + 1)), 0);
  const auto cell = [&](int to, int from, int channel) -> std::uint64_t& {
    return want[static_cast<std::size_t>((to * n + from) * (kSimChannels + 1) + channel)];
  };
  for (const Plan& plan : plans_)
    for (int r = 0; r < n; ++r) {
      const Columns c = plan.columns(r);
      for (const std::int32_t to : c.ready_to) ++cell(to, r, kSimChannels);
      for (std::size_t i = 0; i < c.kind.size(); ++i) {
        const auto kind = static_cast<Kind>(c.kind[i]);
        if ((kind == Kind::put || kind == Kind::signal) && c.sig_channel[i] >= 0) ++cell(c.peer[i], r, c.sig_channel[i]);
      }
    }
  for (int to = 0; to < n; ++to)
    for (int from = 0; from < n; ++from)
      for (int channel = 0; channel <= kSimChannels; ++channel) {
        const std::uint64_t found = at(to).counter(from, channel);
        if (to == from || found == cell(to, from, channel)) continue;
        wrong("signal channel " + std::to_string(channel) + " of rank " + std::to_string(from) + " at rank " + std::to_string(to) +
              " was raised " + std::to_string(found) + " times, expected " + std::to_string(cell(to, from, channel)));
      }
}

// The culprit, or what this rank sees of it from inside.
inline bool FaultSim::named(const Status& status, int by) const {
  if (culprits_[static_cast<std::size_t>(by)][1]) return true;
  return status.rank >= 0 && (culprits_[static_cast<std::size_t>(status.rank)][0] || culprits_[static_cast<std::size_t>(status.rank)][1]);
}

inline void FaultSim::judge_failures() {
  for (int r = 0; r < scenario_.n_ranks(); ++r) {
    const RankState& state = state_[static_cast<std::size_t>(r)];
    if (!alive(r) || state.failure.ok()) continue;
    out_.ended_in_error = true;
    if (!scenario_.may_be_fatal()) wrong("rank " + std::to_string(r) + " failed although a way was left: " + state.failure.message);
    else if (!named(state.failure, r) && !at_culprit(r) && !silence_)
      wrong("the error of rank " + std::to_string(r) + " does not name the culprit: " + state.failure.message);
  }
}

// A rank that died without a word, and to whom nobody owes an answer, is found by the deadline of those who wait for it, or for
// one who waits for it.
// An abort that began inside the cut-off node names what that node saw.
inline bool FaultSim::at_culprit(int) const {
  return std::any_of(culprits_.begin(), culprits_.end(), [](const auto& each) { return each[1]; });
}

inline void FaultSim::judge() {
  judge_failures();
  if (out_.wrong.empty() && !aborted_ && out_.collectives == 0 && std::all_of(state_.begin(), state_.end(), [](const RankState& each) { return each.finished; })) judge_signals();
  for (int r = 0; r < scenario_.n_ranks(); ++r) {
    const Rails::Counters& each = at(r).rails.counters();
    out_.rails.lost += each.lost;
    out_.rails.recovered += each.recovered;
    out_.rails.resent += each.resent;
    out_.rails.duplicates += each.duplicates;
    out_.rails.ignored += each.ignored;
    out_.rails.back += each.back;
  }
  out_.network = network_.counters;
  if (out_.network.on_retired > 0) wrong("something was posted to a path after it was retired");
  if (out_.rails.duplicates > 0) wrong("segments that had landed were sent again");
  if (!aborted_ && !scenario_.may_be_fatal() && out_.network.failed + out_.network.forgotten > 0 && out_.rails.recovered == 0) wrong("puts were lost, and no handshake followed");
  for (std::size_t i = 0; i < out_.injected.size(); ++i) {
    out_.injected[i] = network_.injected(static_cast<VirtualFault>(i));
    out_.effects[i] = network_.effects(static_cast<VirtualFault>(i));
  }
  out_.virtual_ns = network_.now_ns();
  out_.injections = injections_;
}

}  // namespace ccl_lab::check

#include "fault_inject.inl"
