// Moments that become records; see call_spans.hpp.
#include "node/call_spans.hpp"

#include <algorithm>

namespace ccl_lab::node {

namespace {

// Field by field into the ring: a record put together elsewhere would have to be read back before its bytes have left the core.
void write_span(SpanRecord& slot, Track track, SpanKind kind, std::int32_t op_id, const Ended& of) {
  slot.begin_ns = of.begin_ns;
  slot.end_ns = of.end_ns;
  slot.nbytes = static_cast<std::int64_t>(of.nbytes);
  slot.coll_id = of.coll_id;
  slot.op_id = op_id;
  slot.peer = -1;
  slot.index = 0;
  slot.epoch = of.epoch;
  slot.track = static_cast<std::uint8_t>(track);
  slot.kind = static_cast<std::uint8_t>(kind);
  slot.status = static_cast<std::uint8_t>(of.status);
  slot.reserved = 0;
  slot.reserved2 = 0;
}

}  // namespace

void CallSpans::flush() {
  rest();
  if (on_ && n_ > 0) write_tasks();
}

void CallSpans::look_again() {
  settle();
  clock_.look_again();
}

// Moments become times, in their order.
void CallSpans::settle() {
  if (!has_begin_) begin_ = clock_.ns_of(begin_);
  has_begin_ = true;
  for (std::size_t i = n_ended_; i < n_; ++i) {
    Task& task = tasks_[i];
    if (n_begun_ == i) {
      task.begin = clock_.ns_of(task.begin);
      ++n_begun_;
    }
    if (runs_ && i + 1 == n_) return;
    task.end = clock_.ns_of(task.end);
    ++n_ended_;
  }
}

void CallSpans::end(std::uint64_t nbytes) {
  const std::int64_t now = moment();
  if (runs_) end_task(now);
  settle();
  write_all({begin_, clock_.ns_of(now), nbytes, coll_id_, epoch_, SpanStatus::ok});
}

void CallSpans::end(const Ended& whole) {
  if (!on_) forget();
  settle();
  if (runs_) tasks_[n_ - 1].end = whole.end_ns;
  // The driver looked at another clock.
  for (std::size_t i = 0; i < n_; ++i) {
    Task& task = tasks_[i];
    task.begin = std::clamp(task.begin, whole.begin_ns, whole.end_ns);
    task.end = std::clamp(task.end, whole.begin_ns, whole.end_ns);
  }
  write_all(whole);
}

void CallSpans::write_task(const Task& task, SpanRecord& slot) const {
  write_span(slot, Track::copy, task.kind, task.op_id, {task.begin, task.end, task.nbytes, coll_id_, epoch_, SpanStatus::ok});
}

void CallSpans::write_tasks() {
  settle();
  if (writer_->enabled()) writer_->record(n_, [&](std::size_t i, SpanRecord& slot) { write_task(tasks_[i], slot); });
  n_ = n_begun_ = n_ended_ = 0;
}

void CallSpans::write_all(const Ended& whole) {
  if (writer_->enabled())
    writer_->record(n_ + 1, [&](std::size_t i, SpanRecord& slot) {
      if (i < n_) write_task(tasks_[i], slot);
      else write_span(slot, Track::control, SpanKind::collective, -1, whole);
    });
  on_ = false;
  forget();
}

}  // namespace ccl_lab::node
