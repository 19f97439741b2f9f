// A program made ready for streams: what can be known of it before anything is enqueued.
//
// Is: the order in which ops are enqueued, the values that signals have within one run, and what is refused, by name.
// Is not: bound to memory, streams or peers: one plan serves many calls of a program.
//
// Invariants
//  - Ops of a channel stay in program order; channels are merged by op_id, the order in which the schedule's rows were written: in most
//    schedules a signal's row is before those that wait for it, so that streams may share a hardware queue. There are no more channels
//    than such queues all the same.
//  - A flag is written with values, not added to: each (peer, signal channel) is raised by one channel of this rank only.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "exec/program.hpp"

namespace ccl_lab::device {

inline constexpr std::size_t kMostChannels = 8;  // hardware queues that a context has unless CUDA_DEVICE_MAX_CONNECTIONS says more

struct StreamPlan {
  std::vector<std::uint32_t> order;   // indices into Program::ops()
  std::vector<std::uint64_t> raised;  // by op: what a put or signal makes of the counter, counted from the start of the run; 0: none
  // How far this rank raises counters in one run, by (peer, signal channel); its own among them.
  std::map<std::pair<std::int32_t, std::int32_t>, std::uint64_t> raises;
  // Of peers whose READY this rank sends but which signal nothing back: such a call cannot be captured. -1: none.
  std::int32_t silent_peer = -1;
  std::size_t most_sources = 0;       // of a reduction
  bool divides = false;
};

Result<StreamPlan> plan_streams(const Program& program);

}  // namespace ccl_lab::device
