// The spans of the running collective, until it has ended or waits.
//
// Is: the moments at which its tasks began and ended, in ticks; they become records, all in one turn of the ring, where that delays
//     nobody: after the end, or where there is nothing else to do.
// Is not: on while nobody records: whoever notes a moment has asked on() before.
//
//   begin ──► task ──► task ──► rest (waits, or turns to something else) ──► task ──► end
//             └── one look at the counter for each ──┘                                 └ all records
//
// Invariants
//  - A task begins where the one before it ended, unless the rank rested in between.
//  - What ran last ends with the collective, unless the rank rested after it: who ends last looks at nothing for it.
//  - Whether a trace is recorded is asked once, when the collective begins.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/ticks.hpp"
#include "ccl_lab/schema.hpp"
#include "node/call.hpp"
#include "trace/ring.hpp"

namespace ccl_lab::node {

// Who says when a collective begins and ends, and has its span: the group, or who drives it.
enum class Timed : std::uint8_t { by_group, by_driver };

struct Ended {
  std::int64_t begin_ns;
  std::int64_t end_ns;
  std::uint64_t nbytes;
  std::uint32_t coll_id;
  std::uint16_t epoch;
  SpanStatus status;
};

class CallSpans {
 public:
  // Null: never on.
  void connect(SpanWriter* writer) { writer_ = writer; }

  bool on() const { return on_; }
  bool ends_here() const { return on_ && timed_ == Timed::by_group; }

  void begin(const Call& call, std::uint16_t epoch, Timed timed) {
    on_ = writer_ != nullptr && writer_->enabled();
    if (!on_) return;
    coll_id_ = call.coll_id;
    epoch_ = epoch;
    timed_ = timed;
    forget();
    if (timed == Timed::by_driver) return;
    begin_ = moment();
    has_begin_ = false;
  }
  // A task begins, of the share that `op_id` stands for; where another one runs, that one ends. Those of a share that follow each other
  // have one span until it is long enough.
  void task(SpanKind kind, std::int32_t op_id, std::uint64_t nbytes) {
    if (runs_ && extends(op_id)) {
      tasks_[n_ - 1].nbytes += nbytes;
      return;
    }
    const std::int64_t now = moment();
    if (runs_) end_task(now);
    if (n_ == kMost) write_tasks();
    tasks_[n_++] = {now, 0, nbytes, op_id, kind};
    runs_ = true;
  }
  // The task that runs has ended, and no other begins at once.
  void rest() {
    if (runs_) end_task(moment());
  }
  // Writes what there is: the collective goes on, or was stopped.
  void flush();
  // The collective has ended, timed by the group.
  void end(std::uint64_t nbytes);
  // The collective has ended, as its driver says.
  void end(const Ended& whole);

 private:
  static constexpr std::size_t kMost = 16;
  static constexpr std::uint64_t kShortBytes = 64 * 1024;  // 1 µs: the least that is worth a look at the counter, 16 ns

  struct Task {
    std::int64_t begin;  // ticks, and ns once the line is to change or it is written
    std::int64_t end;
    std::uint64_t nbytes;
    std::int32_t op_id;
    SpanKind kind;
  };

  bool extends(std::int32_t op_id) const {
    const Task& last = tasks_[n_ - 1];
    return last.op_id == op_id && last.nbytes < kShortBytes;
  }
  void end_task(std::int64_t ticks) {
    tasks_[n_ - 1].end = ticks;
    runs_ = false;
  }
  // In ticks. Those of before are made times of the clock while its line still reaches them.
  std::int64_t moment() {
    const std::int64_t now = clock_.now();
    if (!clock_.reaches(now)) [[unlikely]] look_again();
    return now;
  }
  void look_again();
  void settle();
  void write_tasks();
  void write_all(const Ended& whole);
  void write_task(const Task& task, SpanRecord& slot) const;
  void forget() {
    n_ = n_begun_ = n_ended_ = 0;
    runs_ = false;
    has_begin_ = true;
  }

  SpanWriter* writer_ = nullptr;
  TickClock clock_;
  std::array<Task, kMost> tasks_{};
  std::size_t n_ = 0;
  std::size_t n_begun_ = 0;     // whose beginnings are ns, not ticks
  std::size_t n_ended_ = 0;     // and whose ends
  std::int64_t begin_ = 0;      // of the collective, if that is the group's to say; ticks until has_begin_
  std::uint32_t coll_id_ = 0;
  std::uint16_t epoch_ = 0;
  Timed timed_ = Timed::by_group;
  bool on_ = false;
  bool runs_ = false;           // the last task has not ended
  bool has_begin_ = true;
};

}  // namespace ccl_lab::node
