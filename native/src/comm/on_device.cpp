// Memory of GPUs in an engine: its regions, and which programs leave it to NICs; see engine.hpp.
#include <string>

#include "comm/engine.hpp"

namespace ccl_lab {

std::string host_work_of(const Program& program, std::span<const std::uint8_t> load_store) {
  const auto shared = [&](std::int32_t peer) { return peer >= 0 && load_store[static_cast<std::size_t>(peer)] != 0; };
  for (const Op& op : program.ops()) {
    const bool moves = op.kind == Kind::put || op.kind == Kind::get;
    const bool done_here = op.kind == Kind::copy || op.kind == Kind::reduce || op.kind == Kind::compute || (moves && op.slot < 0);
    if (!done_here && !(moves && shared(op.peer))) continue;
    const std::string what = "op " + std::to_string(op.op_id) + " (" + kKindNames[static_cast<std::size_t>(op.kind)] + ")";
    if (done_here) return what + " is done by the processor";
    return what + " goes to rank " + std::to_string(op.peer) + " of the same node, through memory of the host";
  }
  for (const ReadyTo& to : program.ready_to())
    if (shared(to.peer)) return "rank " + std::to_string(to.peer) + " of the same node writes to it, through memory of the host";
  const bool averages = program.identity().redop == RedOp::avg && program.output_elements() > 0 && program.n_ranks_avg() > 1;
  return averages ? "the average is divided by the processor" : std::string();
}

Status Engine::check_device(const LoadedProgram& loaded, BufferView input, BufferView output) const {
  if (!of_device(input.key) && !of_device(output.key)) return {};
  const std::string why = loaded.fused ? "ranks of one node share memory of the host" : loaded.host_work;
  if (why.empty()) return {};
  return Status(Code::unsupported, "this program cannot be run on memory of a GPU by NICs alone: " + why + " (rank " + std::to_string(segment_->rank()) + ")",
                segment_->rank());
}

Result<RegionKey> Engine::register_device(std::byte* base, std::uint64_t size, int fd) {
  if (Status status = ready(); !status.ok()) return status;
  const RegionKey key = next_device_key_.fetch_add(1);
  Status registered;
  if (Status status = run([&] { registered = progress_.links().register_device(key, base, size, fd); }); !status.ok()) return status;
  if (!registered.ok()) return registered;
  return key;
}

Status Engine::deregister_device(RegionKey key) {
  Status gone;
  if (Status status = run([&] { gone = progress_.links().deregister_device(key); }); !status.ok()) return status;
  return gone;
}

}  // namespace ccl_lab
