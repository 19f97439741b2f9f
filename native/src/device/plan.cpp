// Merging channels and counting signals; see plan.hpp.
#include "device/plan.hpp"

#include <algorithm>
#include <numeric>
#include <string>

namespace ccl_lab::device {

namespace {

Status refuse(const Program& program, const Op& op, const std::string& why) {
  return Status(Code::unsupported, "on a GPU, rank " + std::to_string(program.rank()) + ", op " + std::to_string(op.op_id) + " (" +
                                       kKindNames[static_cast<std::size_t>(op.kind)] + "): " + why, program.rank(), -1, op.op_id);
}

// By op_id, but never before an earlier op of the same channel.
std::vector<std::uint32_t> merged(const Program& program) {
  const auto ops = program.ops();
  std::vector<std::int64_t> key(ops.size());
  for (std::size_t c = 0; c < program.n_channels(); ++c) {
    std::int64_t latest = -1;
    for (std::uint32_t i = program.channel_begin(c); i < program.channel_begin(c + 1); ++i)
      latest = key[i] = std::max<std::int64_t>(latest, ops[i].op_id);
  }
  std::vector<std::uint32_t> order(ops.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) { return key[a] < key[b]; });
  return order;
}

std::int32_t silent(const Program& program) {
  for (const ReadyTo& to : program.ready_to()) {
    const auto of_peer = [&](const Counter& counter) { return counter.peer == to.peer && counter.total > 0; };
    if (std::none_of(program.counters().begin(), program.counters().end(), of_peer)) return to.peer;
  }
  return -1;
}

}  // namespace

Result<StreamPlan> plan_streams(const Program& program) {
  if (program.n_channels() > kMostChannels)
    return Status(Code::unsupported, "a schedule of " + std::to_string(program.n_channels()) + " channels on a GPU: at most " +
                                         std::to_string(kMostChannels) + ", one stream each; plan it with fewer channels");
  StreamPlan plan;
  plan.order = merged(program);
  plan.raised.assign(program.ops().size(), 0);
  std::map<std::pair<std::int32_t, std::int32_t>, std::uint16_t> raiser;
  for (const std::uint32_t index : plan.order) {
    const Op& op = program.ops()[index];
    if (op.kind == Kind::compute) return refuse(program, op, "computations of a schedule run on the host; use torch's streams beside the collective");
    if (op.kind == Kind::reduce) plan.most_sources = std::max<std::size_t>(plan.most_sources, op.src_count);
    if ((op.kind != Kind::put && op.kind != Kind::signal) || op.sig_channel < 0) continue;
    const std::pair key(op.peer, op.sig_channel);
    if (raiser.try_emplace(key, op.channel).first->second != op.channel)
      return refuse(program, op, "signal channel " + std::to_string(op.sig_channel) + " of rank " + std::to_string(op.peer) +
                                     " is raised by several channels; on streams each counter has one");
    plan.raised[index] = ++plan.raises[key];
  }
  plan.silent_peer = silent(program);
  plan.divides = program.identity().redop == RedOp::avg && program.n_ranks_avg() > 1 && program.output_elements() > 0;
  return plan;
}

}  // namespace ccl_lab::device
