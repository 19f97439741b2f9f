// What drives one rank's collectives: the executor's driver with real links, memory and time.
//
// Is: a step function: polls links and local jobs, advances the executor, does what it posts, ends collectives, enforces
//     deadlines and aborts, records spans. The user's computation runs beside it (stream.hpp).
// Is not: a thread or a waiting caller (driver.cpp is both) and not safe for threads.
//
//   idle ──work queued──► running ──executor done──► idle          what overlaps with a run: runs.hpp
//                            │ executor failed, deadline passed, peer lost, told to stop
//                            ▼
//                         stopped ──reset(epoch)──► idle         stopped: every work ends with the first reason; links are
//                                                                not polled, so nothing more moves
//
// Invariants
//  - One program runs at a time; collectives begin and end in the order of their start.
//  - The first reason to stop is in the rank's segment, where everybody sees it, before any work ends with it.
//  - Memory of a collective that failed is held until reset: peers and links may still touch it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/segment.hpp"
#include "comm/jobs.hpp"
#include "comm/links.hpp"
#include "comm/local.hpp"
#include "comm/runs.hpp"
#include "comm/windows.hpp"
#include "comm/work.hpp"
#include "exec/executor.hpp"
#include "trace/ring.hpp"
#include "transport/queue.hpp"

namespace ccl_lab {

enum class EngineState : std::uint32_t { idle = 0, running = 1, stopped = 2, closed = 3 };

class Progress {
 public:
  // `local` runs fused works and lives longer.
  Progress(std::shared_ptr<RankSegment> own, std::vector<std::int32_t> node_of, Mode mode, Local* local);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  Links& links() { return links_; }
  const Links& links() const { return links_; }
  Windows& windows() { return windows_; }
  const Windows& windows() const { return windows_; }
  // An op of a window; ok: it goes on by itself, or has ended already.
  Status post(const std::shared_ptr<Sided>& op);
  // Before the last step ahead of a sleep, and after the sleep: ranks of the node ring the doorbell only in between. False: nothing to take back.
  bool announce_sleep() {
    links_.about_to_sleep();
    const bool waits = current() != nullptr && current()->fused();
    if (waits) local_->group().announce_doorbell();
    return waits;
  }
  void take_back_sleep() const { local_->group().take_back_doorbell(); }
  void push(std::shared_ptr<Work> work) { queue_.push(std::move(work)); }
  // ok, or why this program cannot run now.
  Status check(const Program& program) const;

  // Returns how many things happened.
  int step();
  // What to sleep on after a step that did nothing.
  void wait_set(std::vector<pollfd>& descriptors, std::int64_t& wake_ns) const;
  // Of it, what peers that lost a path need an answer to, and what is due for paths; nothing where there is no such thing.
  void watch_set(std::vector<pollfd>& descriptors, std::int64_t& wake_ns) const;
  bool busy() const { return current() != nullptr || runs_.n_draining() > 0 || !queue_.empty() || windows_.busy(); }
  // Works, or what they left behind, still need somebody to step.
  bool outstanding() const { return busy() || links_.unsent(); }
  // Grows when a work or an op of a window has ended, or a partition waits for its caller.
  std::uint64_t n_news() const { return n_news_ + windows_.n_ended(); }
  // What comes next may be a moment in time, which nothing but a timer tells.
  bool on_the_clock() const { return stream() != nullptr && stream()->due_ns() != Stream::kNever; }
  // When the last step began.
  std::int64_t now() const { return now_ns_; }

  void stop(Status reason);
  // Of a rank that was `told` to stop: ok, or how a NIC of its own fails `program`; of that it knows more than who saw the other end.
  Status seen(const Program& program, const Status& told) const;
  void reset(std::uint16_t epoch);
  void close();

 private:
  void set_state(EngineState state) { own_->control().state.store(static_cast<std::uint32_t>(state)); }
  Inbox inbox() const { return {own_->signals(), own_->ready_slots()}; }
  Status check_lost(const Program& program) const;
  bool has_all();
  void look_at_clock();
  bool begin_next();
  bool held_back();
  const std::shared_ptr<Work>& current() const { return runs_.current(); }
  Stream* stream() const { return current() == nullptr ? nullptr : current()->stream(); }
  int take_computed();
  Status compute(const Post& post);
  int drive();
  int drive_fused();
  int advance(Run& run);
  void perform(Run& run, const Post& post);
  Status add_job(const Executor& executor, const Post& post);
  int handle_events();
  void end(std::shared_ptr<Work> work, Status status);
  void end_current();
  void fail_current(const Status& reason);
  void hold(const Work& work);
  void linger();
  Status deadline_passed(const Run& run) const;
  void record(const Work& work, Track track, std::uint16_t index, SpanKind kind, const Op* op, std::int32_t peer, std::int64_t begin_ns,
              std::int64_t end_ns, SpanStatus status);
  void record_end(const Work& work, const Status& status);
  void record_blocked(const Run& run, SpanStatus status);
  void record_computing(SpanStatus status);

  // Runs that overlap with the current one (overlap.cpp).
  void set_aside();
  void announce();
  int drive_others();
  void end_drained();
  void stop_draining(const Status& reason);

  std::shared_ptr<RankSegment> own_;
  SpanWriter spans_;
  Links links_;
  Windows windows_;
  Jobs jobs_;
  Local* local_;
  Baselines baselines_;
  Runs runs_;
  Queue<std::shared_ptr<Work>> queue_;
  std::vector<Completion> completions_;
  std::vector<LinkEvent> events_;
  std::vector<Status> lost_;                     // by rank: why it cannot be reached until reset
  std::vector<std::shared_ptr<Block>> held_;     // memory of failed collectives
  std::vector<Stream::Partition> computed_;
  std::uint64_t n_news_ = 0;
  std::int64_t now_ns_ = 0;
  bool late_ = false;               // bytes were moved since then
  std::int64_t held_until_ns_ = 0;  // when a stall let a work begin, the last time
  std::uint16_t epoch_ = 0;
  bool stopped_ = false;
  bool on_time_ = false;  // what is posted now waited for a partition only
};

}  // namespace ccl_lab
