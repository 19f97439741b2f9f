// Anchors, marks and spans; see timeline.hpp.
#include "device/timeline.hpp"

#include "base/clock.hpp"

namespace ccl_lab::device {

namespace {

constexpr std::int64_t kAnchorNs = 1'000'000'000;

Track track_of(Kind kind) {
  switch (kind) {
    case Kind::put:
    case Kind::get: return Track::fabric;
    case Kind::copy:
    case Kind::reduce: return Track::copy;
    default: return Track::channel;
  }
}

}  // namespace

cuda::Event Timeline::take() {
  if (!free_.empty()) {
    cuda::Event event = std::move(free_.back());
    free_.pop_back();
    return event;
  }
  Result<cuda::Event> made = cuda::make_event(context_, true);
  return made.ok() ? std::move(made).value() : cuda::Event();
}

bool Timeline::start(cuda::CuStream quiet, bool idle, std::uint64_t run, std::uint32_t coll_id) {
  if (!spans_.enabled()) return false;
  run_ = run;
  coll_id_ = coll_id;
  const std::int64_t now = now_ns();
  if (anchor_ && (now - anchor_ns_ < kAnchorNs || !idle || !marks_.empty())) return true;
  if (!idle) return false;
  if (!anchor_) anchor_ = take();
  const cuda::Api& api = context_->api();
  const bool ok = anchor_ && api.event_record(anchor_.get(), quiet) == cuda::kSuccess && api.event_synchronize(anchor_.get()) == cuda::kSuccess;
  anchor_ns_ = now + (now_ns() - now) / 2;
  return ok;
}

bool Timeline::begin(cuda::CuStream stream, const Op& op) {
  if (marks_.size() >= kMostOpen) return false;
  Mark mark{run_, coll_id_, op.op_id, op.peer, op.nbytes, op.channel, op.kind, take(), take()};
  if (!mark.begin || !mark.end || context_->api().event_record(mark.begin.get(), stream) != cuda::kSuccess) return false;
  marks_.push_back(std::move(mark));
  return true;
}

void Timeline::end(cuda::CuStream stream) {
  if (context_->api().event_record(marks_.back().end.get(), stream) != cuda::kSuccess) marks_.pop_back();
}

std::int64_t Timeline::host_ns(const cuda::Event& event, bool& ok) const {
  float ms = 0;
  ok = ok && context_->api().event_elapsed(&ms, anchor_.get(), event.get()) == cuda::kSuccess;
  return anchor_ns_ + static_cast<std::int64_t>(static_cast<double>(ms) * 1e6);
}

void Timeline::record(Mark& mark) {
  bool ok = true;
  SpanRecord span{};
  span.begin_ns = host_ns(mark.begin, ok);
  span.end_ns = host_ns(mark.end, ok);
  span.nbytes = static_cast<std::int64_t>(mark.nbytes);
  span.coll_id = mark.coll_id;
  span.op_id = mark.op_id;
  span.peer = mark.peer;
  span.index = mark.channel;
  span.track = static_cast<std::uint8_t>(track_of(mark.kind));
  span.kind = static_cast<std::uint8_t>(mark.kind);
  if (ok) spans_.record(span);
  free_.push_back(std::move(mark.begin));
  free_.push_back(std::move(mark.end));
}

void Timeline::harvest(std::uint64_t ended) {
  if (marks_.empty() || marks_.front().run > ended) return;
  const cuda::Scope scope(*context_);
  if (!scope.status().ok()) return;
  while (!marks_.empty() && marks_.front().run <= ended) {
    record(marks_.front());
    marks_.pop_front();
  }
}

}  // namespace ccl_lab::device
