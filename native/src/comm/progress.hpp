// What drives one rank's collectives: the executor's driver with real links, memory and time.
//
// Is: a step function: polls links and local jobs, advances the executor, does what it posts, ends collectives, enforces
//     deadlines and aborts, records spans.
// Is not: a thread (engine.cpp gives it one) and not safe for threads.
//
//   idle ──work queued──► running ──executor done──► idle
//                            │ executor failed, deadline passed, peer lost, told to stop
//                            ▼
//                         stopped ──reset(epoch)──► idle         stopped: every work ends with the first reason; links are
//                                                                not polled, so nothing more moves
//
// Invariants
//  - One collective runs at a time, in the order of their start.
//  - The first reason to stop is in the rank's segment, where everybody sees it, before any work ends with it.
//  - Memory of a collective that failed is held until reset: peers and links may still touch it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/segment.hpp"
#include "comm/jobs.hpp"
#include "comm/links.hpp"
#include "comm/work.hpp"
#include "exec/executor.hpp"
#include "trace/ring.hpp"

namespace ccl_lab {

enum class EngineState : std::uint32_t { idle = 0, running = 1, stopped = 2, closed = 3 };

class Progress {
 public:
  Progress(std::shared_ptr<RankSegment> own, std::vector<std::int32_t> node_of, Mode mode);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  Links& links() { return links_; }
  void push(std::shared_ptr<Work> work) { queue_.push_back(std::move(work)); }
  // ok, or why this program cannot run now.
  Status check(const Program& program) const;

  // Returns how many things happened.
  int step();
  // What to sleep on after a step that did nothing.
  void wait_set(std::vector<pollfd>& descriptors, std::int64_t& wake_ns) const;
  bool busy() const { return current_ != nullptr || !queue_.empty(); }

  void stop(Status reason);
  void reset(std::uint16_t epoch);
  void close();

 private:
  void set_state(EngineState state) { own_->control().state.store(static_cast<std::uint32_t>(state)); }
  Inbox inbox() const { return {own_->signals(), own_->ready_slots()}; }
  Status check_lost(const Program& program) const;
  void begin_next();
  int drive();
  void perform(const Post& post);
  Result<Job> local_job(const Post& post) const;
  int handle_events();
  void end_current(Status status);
  Status deadline_passed() const;
  void record(Track track, std::uint16_t index, SpanKind kind, const Op* op, std::int32_t peer, std::int64_t begin_ns,
              std::int64_t end_ns, SpanStatus status);
  void record_blocked(SpanStatus status);

  std::shared_ptr<RankSegment> own_;
  SpanWriter spans_;
  Links links_;
  Jobs jobs_;
  Baselines baselines_;
  Executor executor_;
  std::shared_ptr<Work> current_;
  std::deque<std::shared_ptr<Work>> queue_;
  std::vector<Completion> completions_;
  std::vector<LinkEvent> events_;
  std::vector<Status> lost_;                     // by rank: why it cannot be reached until reset
  std::vector<std::shared_ptr<Block>> held_;     // memory of failed collectives
  std::int64_t now_ns_ = 0;
  std::uint16_t epoch_ = 0;
  bool stopped_ = false;
};

}  // namespace ccl_lab
