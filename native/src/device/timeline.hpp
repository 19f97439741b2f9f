// When the GPU did what: spans of ops from pairs of events on its streams, in the clock of the host.
//
// Is: events around each op of a call, and their times as spans of the rank's ring once the call has ended.
// Is not: for captured calls (a graph's events have no time of their own), and not on the way where nobody records.
//
// Invariants
//  - The GPU's clock is tied to the host's by an anchor: an event on a stream with nothing else to do, and the host's time around it. A
//    new one is taken where the last is older than a second, so that the float in which the driver counts ms has steps below 0.1 µs.
//  - At most kMostOpen ops are timed at once; those beyond have no span.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "drivers/cuda/driver.hpp"
#include "exec/program.hpp"
#include "trace/ring.hpp"

namespace ccl_lab::device {

class Timeline {
 public:
  static constexpr std::size_t kMostOpen = 4096;

  Timeline(std::shared_ptr<cuda::Context> context, SpanWriter spans) : context_(std::move(context)), spans_(spans) {}

  // Whether ops of a run that begins now are timed. `quiet`: a stream; `idle`: nothing is on it. The context is current.
  bool start(cuda::CuStream quiet, bool idle, std::uint64_t run, std::uint32_t coll_id);
  // Before and after an op; begin says whether there is anything to end.
  bool begin(cuda::CuStream stream, const Op& op);
  void end(cuda::CuStream stream);
  // Spans of all runs up to `ended`.
  void harvest(std::uint64_t ended);

 private:
  struct Mark {
    std::uint64_t run = 0;
    std::uint32_t coll_id = 0;
    std::int32_t op_id = -1;
    std::int32_t peer = -1;
    std::uint64_t nbytes = 0;
    std::uint16_t channel = 0;
    Kind kind = Kind::copy;
    cuda::Event begin, end;
  };
  cuda::Event take();
  std::int64_t host_ns(const cuda::Event& event, bool& ok) const;
  void record(Mark& mark);

  std::shared_ptr<cuda::Context> context_;
  SpanWriter spans_;
  cuda::Event anchor_;
  std::int64_t anchor_ns_ = 0;
  std::uint64_t run_ = 0;
  std::uint32_t coll_id_ = 0;
  std::deque<Mark> marks_;
  std::vector<cuda::Event> free_;
};

}  // namespace ccl_lab::device
