// Exchanges of a rank: their memory, their handles, their start; see engine.hpp and exec/exchange.hpp.
#include <utility>

#include "comm/engine.hpp"

namespace ccl_lab {

Result<std::shared_ptr<LoadedExchange>> Engine::compile(ExchangeSpec spec) {
  std::vector<std::uint8_t> load_store;
  Placement placement;
  if (Status status = place(load_store, placement); !status.ok()) return status;
  Result<std::shared_ptr<Exchange>> exchange = Exchange::create(std::move(spec), placement);
  if (!exchange.ok()) return exchange.status();
  auto loaded = std::make_shared<LoadedExchange>();
  loaded->exchange = std::move(exchange).value();
  loaded->ways = std::make_shared<LoadedProgram>(loaded->exchange->program(), n_programs_);
  return loaded;
}

// The send buffer may be any memory: what transports cannot read is gathered in SCRATCH first.
Status Engine::bind(const Exchange& exchange, const ExchangeBuffers& buffers, Binding& binding, Memory& memory) const {
  const struct {
    Buffer buffer;
    BufferView view;
    std::uint64_t nbytes;
  } all[] = {{Buffer::input, buffers.send, buffers.send.nbytes},
             {Buffer::output, buffers.receive, exchange.output_bytes()},
             {Buffer::scratch, buffers.scratch, exchange.scratch_bytes()}};
  for (const auto& [buffer, view, nbytes] : all) {
    const auto b = static_cast<std::size_t>(buffer);
    const std::string who = std::string(kBufferNames[b]) + " of rank " + std::to_string(segment_->rank());
    if (view.nbytes != nbytes)
      return Status(Code::shape, who + " has " + std::to_string(view.nbytes) + " bytes, the exchange was made for " +
                                     std::to_string(nbytes), segment_->rank());
    binding.base[b] = static_cast<std::byte*>(view.data);
    binding.key[b] = kArenaRegionKey;
    if (nbytes == 0) continue;
    memory[b] = arena_->find(view.data, nbytes);
    if (memory[b] != nullptr) binding.offset[b] = static_cast<std::uint64_t>(binding.base[b] - arena_->base());
    else if (buffer != Buffer::input)
      return Status(Code::registration, who + " is not registered memory, or was freed; take it from empty()", segment_->rank());
  }
  return {};
}

Result<std::shared_ptr<Work>> Engine::start(const LoadedExchange& loaded, const ExchangeBuffers& buffers, const Counts& counts,
                                            std::span<const std::uint64_t> handles, std::uint32_t coll_id, double timeout_s,
                                            bool caller_waits, std::shared_ptr<Stall> stall) {
  if (Status status = ready(); !status.ok()) return status;
  if (Status status = check_links(*loaded.ways); !status.ok()) return status;
  const std::vector<std::int32_t>& group = loaded.exchange->spec().group;
  if (!handles.empty() && handles.size() != group.size())
    return Status(Code::usage, std::to_string(handles.size()) + " handles for a group of " + std::to_string(group.size()) + " ranks",
                  segment_->rank());
  Binding binding;
  Memory memory;
  if (Status status = bind(*loaded.exchange, buffers, binding, memory); !status.ok()) return status;
  ExchangeRun run;
  run.exchange = loaded.exchange;
  run.counts = counts;
  run.counts.input_bytes = buffers.send.nbytes;
  run.registered = memory[static_cast<std::size_t>(Buffer::input)] != nullptr;
  for (std::size_t place = 0; place < handles.size(); ++place) {
    KnownPeer& peer = run.known.emplace_back();
    peer.rank = group[place];
    peer.key[static_cast<std::size_t>(Buffer::output)] = kArenaRegionKey;
    peer.offset[static_cast<std::size_t>(Buffer::output)] = handles[place];
  }
  std::shared_ptr<Work> work = make_work(loaded.ways, binding, std::move(memory), coll_id, timeout_s);
  work->set_exchange(std::move(run));
  work->set_stall(std::move(stall));
  return push(std::move(work), caller_waits);
}

}  // namespace ccl_lab
