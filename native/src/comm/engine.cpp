// Starting, binding and changing one rank; see engine.hpp.
#include "comm/engine.hpp"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "base/clock.hpp"
#include "base/cores.hpp"
#include "reduce/reduce.hpp"

namespace ccl_lab {

namespace {

// How often this process is a fork of one that had an engine: asking the system each time would cost more than a small
// collective.
std::atomic<std::uint32_t> forks{0};

std::uint32_t count_forks() {
  static const int registered = ::pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  (void)registered;  // fails only without memory
  return forks.load(std::memory_order_relaxed);
}

std::int64_t deadline_after(double timeout_s) {
  if (!(timeout_s >= 0) || timeout_s > 1e9) return std::numeric_limits<std::int64_t>::max();
  return now_ns() + static_cast<std::int64_t>(timeout_s * 1e9);
}

// All ranks of the node, whether they will be attached or not.
std::unique_ptr<Local> make_local(const std::shared_ptr<RankSegment>& own, const std::shared_ptr<Arena>& arena,
                                  const std::vector<std::int32_t>& node_of, const EngineOptions& options) {
  std::vector<std::int32_t> ranks;
  const std::int32_t node = node_of[static_cast<std::size_t>(own->rank())];
  for (std::size_t rank = 0; rank < node_of.size(); ++rank)
    if (node_of[rank] == node) ranks.push_back(static_cast<std::int32_t>(rank));
  node::GroupOptions group;
  group.spin_ns = options.spin_us * 1000;
  auto local = std::make_unique<Local>(own, arena, std::move(ranks), group);
  local->registry().set_automatic(options.register_buffers);
  return local;
}

node::Call call_of(const ProgramSpec& spec) {
  node::Call call;
  call.collective = spec.collective;
  call.dtype = spec.dtype;
  call.redop = spec.redop;
  call.root = spec.root;
  call.peer = spec.receiver;
  call.block_bytes = spec.count * itemsize(spec.dtype);
  return call;
}

}  // namespace

Status Engine::ready() const {
  if (Status status = usable(); !status.ok()) return status;
  if (driver_->closed()) return driver_->refuse_closed();
  if (!segment_->aborted()) return {};
  const Status status = segment_->abort_status();
  return Status(Code::aborted, "rank " + std::to_string(segment_->rank()) + " was stopped: " + status.message +
                                   "; reset all ranks, then go on", status.rank);
}

Status Engine::ready_for(const Program& program) {
  const Status status = ready();
  if (status.ok() || !segment_->aborted()) return status;
  Status seen;
  const Status asked = run([&] { seen = progress_.seen(program, segment_->abort_status()); });
  return asked.ok() && !seen.ok() ? seen : status;
}

Result<std::shared_ptr<Engine>> Engine::create(int rank, std::vector<std::int32_t> node_of, const EngineOptions& options) {
  const int n_ranks = static_cast<int>(node_of.size());
  if (n_ranks < 1 || rank < 0 || rank >= n_ranks)
    return Status(Code::usage, "rank is " + std::to_string(rank) + ", expected 0.." + std::to_string(n_ranks - 1) +
                                   ": node_of has an entry per rank");
  if (options.n_channels < 1 || options.n_channels > 4095)
    return Status(Code::config, "n_channels is " + std::to_string(options.n_channels) + ", expected 1 to 4095");
  SegmentOptions segment_options;
  segment_options.n_signal_channels = options.n_channels + 1 + kWindows;
  segment_options.n_nics = options.n_nics;
  segment_options.trace_spans = std::bit_ceil(std::clamp<std::uint32_t>(options.trace_spans, 64, 1u << 26));
  segment_options.board_bytes = node::board_bytes(static_cast<std::uint64_t>(
      std::count(node_of.begin(), node_of.end(), node_of[static_cast<std::size_t>(rank)])));
  segment_options.arena_bytes = options.arena_bytes;
  Result<RankSegment> made = RankSegment::create(rank, n_ranks, segment_options);
  if (!made.ok()) return made.status();
  auto segment = std::make_shared<RankSegment>(std::move(made).value());
  segment->control().trace_enabled.store(options.trace_spans > 0 ? 1 : 0);
  return std::shared_ptr<Engine>(new Engine(std::move(segment), std::move(node_of), options));
}

Engine::Engine(std::shared_ptr<RankSegment> segment, std::vector<std::int32_t> node_of, const EngineOptions& options)
    : segment_(std::move(segment)),
      arena_(std::make_shared<Arena>(segment_)),
      local_(make_local(segment_, arena_, node_of, options)),
      progress_(segment_, std::move(node_of), options.mode, local_.get()),
      n_channels_(options.n_channels),
      forks_(count_forks()),
      works_(std::make_shared<Pool>()),
      n_programs_(std::make_shared<std::atomic<std::int64_t>>(0)) {
  const int on_host = options.ranks_on_host > 0 ? options.ranks_on_host : segment_->n_ranks();
  driver_ = std::make_unique<Driver>(progress_, segment_, options.spin_us * 1000, sharing(on_host, usable_cores_of_ranks()));
}

Engine::~Engine() {
  close();
  // A forked child has no such thread to join, and its locks are as they were at the fork.
  if (!usable().ok()) static_cast<void>(driver_.release());
}

Status Engine::usable() const {
  if (forks.load(std::memory_order_relaxed) != forks_)
    return Status(Code::usage, "this engine belongs to process " + std::to_string(segment_->pid()) +
                                   ", which forked this one; make an engine after the fork", segment_->rank());
  return {};
}

Status Engine::run(const std::function<void()>& work) {
  if (Status status = usable(); !status.ok()) return status;
  return driver_->alone(work);
}

Status Engine::attach_peer(std::int32_t peer, int pid, int segment_fd) {
  if (Status status = usable(); !status.ok()) return status;
  Result<RankSegment> opened = RankSegment::open(pid, segment_fd);
  if (!opened.ok()) return opened.status();
  auto segment = std::make_shared<RankSegment>(std::move(opened).value());
  Status attached;
  const auto attach = [&] {
    attached = local_->group().attach(peer, segment);
    if (attached.ok()) attached = progress_.links().attach(peer, std::move(segment));
  };
  if (Status status = run(attach); !status.ok()) return status;
  links_version_.fetch_add(1);
  return attached;
}

Status Engine::set_rdma(VerbsOptions options, verbs::Driver* driver) {
  arena_->keep_pages();
  Status result;
  if (Status status = run([&] { result = progress_.links().set_rdma(std::move(options), driver); }); !status.ok()) return status;
  return result;
}

Status Engine::set_messenger(std::unique_ptr<Messenger> messenger, const RailOptions& options) {
  Status result;
  if (Status status = run([&] { result = progress_.links().set_messenger(std::move(messenger), options); }); !status.ok())
    return status;
  return result;
}

Status Engine::with_node_nics(const std::function<void(std::span<NicShaper>, std::span<NicFaults>)>& look) {
  Status result;
  const auto find = [&] {
    const RankSegment* const leader = progress_.links().leader();
    if (leader == nullptr) result = Status(Code::usage, "the NICs of this node belong to its lowest rank, which is not attached");
    else look(leader->shapers(), leader->faults());
  };
  if (Status status = run(find); !status.ok()) return status;
  return result;
}

Status Engine::with_messenger(const std::function<Status(Messenger*)>& look) {
  Status result;
  if (Status status = run([&] { result = look(progress_.links().messenger()); }); !status.ok()) return status;
  return result;
}

Status Engine::path_missing(const Path& path, const std::string& why) {
  return run([&] { progress_.links().missing(path, why); });
}

Status Engine::with_rails(const std::function<void(Rails*)>& look) {
  return run([&] { look(progress_.links().rails()); });
}

Status Engine::add_connection(std::int32_t peer, std::uint16_t nic, std::uint16_t peer_nic, std::uint16_t index, int fd,
                              std::uint32_t generation) {
  Status added;
  const Status status = run([&] { added = progress_.links().add_connection(peer, nic, peer_nic, index, fd, generation); });
  if (!status.ok()) {
    ::close(fd);
    return status;
  }
  links_version_.fetch_add(1);
  if (progress_.links().messenger() != nullptr) driver_->keep_watch(false);
  return added;
}

Result<bool> Engine::connected(std::int32_t peer, std::uint16_t nic, std::uint16_t peer_nic) {
  bool found = false;
  if (Status status = run([&] { found = progress_.links().connected(peer, nic, peer_nic); }); !status.ok()) return status;
  return found;
}

Status Engine::set_nic(int nic, std::uint64_t bytes_per_s, bool up) {
  Status result;
  const auto set = [&] {
    RankSegment* const leader = progress_.links().leader();
    if (leader == nullptr) {
      result = Status(Code::usage, "the NICs of this node are shaped by its lowest rank, which is not attached");
    } else if (nic < 0 || nic >= leader->n_nics()) {
      result = Status(Code::usage, "NIC " + std::to_string(nic) + " is outside 0.." + std::to_string(leader->n_nics() - 1),
                      leader->rank(), nic);
    } else {
      NicShaper& shaper = leader->shapers()[static_cast<std::size_t>(nic)];
      shaper.bytes_per_s.store(bytes_per_s);
      shaper.up.store(up ? 1 : 0);
    }
  };
  if (Status status = run(set); !status.ok()) return status;
  return result;
}

Status Engine::place(std::vector<std::uint8_t>& load_store, Placement& placement) {
  if (Status status = run([&] { load_store = progress_.links().load_store(); }); !status.ok()) return status;
  placement = {segment_->rank(), segment_->n_ranks(), n_channels_, load_store};
  return {};
}

Result<std::shared_ptr<LoadedProgram>> Engine::compile(const ProgramSpec& spec) {
  std::vector<std::uint8_t> load_store;
  Placement placement;
  if (Status status = place(load_store, placement); !status.ok()) return status;
  Result<Program> program = Program::compile(spec, placement);
  if (!program.ok()) return program.status();
  for (const Op& op : program->ops())
    if (op.kind == Kind::reduce || (op.kind == Kind::compute && op.produces && op.src_count > 1))
      if (Status status = check_reduction(spec.dtype, spec.redop); !status.ok()) return status;
  auto loaded = std::make_shared<LoadedProgram>(std::move(program).value(), n_programs_);
  loaded->host_work = host_work_of(loaded->program, load_store);
  if (spec.fused && loaded->program.partitions() == 0 && local_->complete()) {
    loaded->fused = call_of(spec);
    loaded->share_ops.assign(spec.share_ops.begin(), spec.share_ops.end());
    if (loaded->share_ops.size() == static_cast<std::size_t>(segment_->n_ranks())) loaded->fused->share_ops = loaded->share_ops.data();
  }
  return loaded;
}

// The node layer takes any memory; the executor's peers reach only the arena.
Status Engine::check_memory(const Program& program, bool fused, BufferView input, BufferView output) const {
  const struct {
    Buffer buffer;
    BufferView view;
    bool inside;
  } buffers[] = {{Buffer::input, input, program.alias() == Alias::input_in_output},
                 {Buffer::output, output, program.alias() == Alias::output_in_input}};
  for (const auto& [buffer, view, inside] : buffers) {
    if (inside && view.data == nullptr) continue;
    const bool fits = view.nbytes == program.bytes(buffer);
    if (fits && (fused || of_device(view.key) || view.nbytes == 0 || arena_->offset_of(view.data, view.nbytes) >= 0)) continue;
    const std::string who = std::string(kBufferNames[static_cast<std::size_t>(buffer)]) + " of rank " +
                            std::to_string(segment_->rank());
    if (!fits)
      return Status(Code::shape, who + " has " + std::to_string(view.nbytes) + " bytes, the program was compiled for " +
                                     std::to_string(program.bytes(buffer)), segment_->rank());
    return Status(Code::registration, who + " is not registered memory; take it from empty()", segment_->rank());
  }
  return {};
}

Status Engine::bind(LoadedProgram& loaded, BufferView input, BufferView output, Binding& binding, Memory& memory) {
  const Program& program = loaded.program;
  if (Status status = check_memory(program, loaded.fused.has_value(), input, output); !status.ok()) return status;
  std::byte* base[kBufferCount] = {static_cast<std::byte*>(input.data), static_cast<std::byte*>(output.data), nullptr};
  if (program.alias() == Alias::input_in_output) base[0] = base[1] + program.alias_offset();
  if (program.alias() == Alias::output_in_input) base[1] = base[0] + program.alias_offset();
  if (loaded.fused) {
    for (std::size_t b = 0; b < 2; ++b) {
      binding.base[b] = base[b];
      const std::uint64_t nbytes = program.bytes(static_cast<Buffer>(b));
      if (nbytes > 0 && arena_->offset_of(base[b], nbytes) >= 0) memory[b] = arena_->find(base[b], nbytes);
    }
    return {};
  }
  if (program.bytes(Buffer::scratch) > 0) {
    Result<std::shared_ptr<Block>> scratch = loaded.scratch.take(*arena_, program.bytes(Buffer::scratch));
    if (!scratch.ok()) return scratch.status();
    memory[2] = std::move(scratch).value();
    base[2] = memory[2]->data();
  }
  const BufferView& of_input = program.alias() == Alias::input_in_output ? output : input;
  const BufferView& of_output = program.alias() == Alias::output_in_input ? input : output;
  for (std::size_t b = 0; b < kBufferCount; ++b) {
    const std::uint64_t nbytes = program.bytes(static_cast<Buffer>(b));
    binding.base[b] = base[b];
    binding.key[b] = kArenaRegionKey;
    if (const BufferView& view = b == 0 ? of_input : of_output; b < 2 && of_device(view.key)) {
      binding.key[b] = view.key;
      binding.offset[b] = static_cast<std::uint64_t>(base[b] - static_cast<std::byte*>(view.region));
      continue;
    }
    // An empty buffer is never touched, but its offset goes through the same arithmetic.
    if (nbytes == 0) continue;
    binding.offset[b] = static_cast<std::uint64_t>(base[b] - arena_->base());
    if (memory[b] == nullptr) memory[b] = arena_->find(base[b], nbytes);
    if (memory[b] == nullptr)
      return Status(Code::registration, std::string(kBufferNames[b]) + " of rank " + std::to_string(segment_->rank()) +
                                            " is registered memory that was freed, or spans several blocks",
                    segment_->rank());
  }
  return {};
}

// Links change rarely: what was reachable at their last change still is.
Status Engine::check_links(LoadedProgram& loaded) {
  const std::uint64_t version = links_version_.load();
  if (loaded.links_version.load() == version) return {};
  Status reachable;
  if (Status status = run([&] { reachable = progress_.check(loaded.program); }); !status.ok()) return status;
  if (reachable.ok()) loaded.links_version.store(version);
  return reachable;
}

Result<std::unique_ptr<Stream>> Engine::make_stream(const Program& program, std::shared_ptr<const Computation> how) const {
  const std::int32_t partitions = program.partitions();
  if (partitions == 0) return std::unique_ptr<Stream>();
  const int rank = segment_->rank();
  if (how == nullptr || how->device == Device::none)
    return Status(Code::usage, "the schedule has compute ops (rank " + std::to_string(rank) + ": partitions 0.." +
                                   std::to_string(partitions - 1) + ") and nothing was given to compute them", rank);
  if (how->device == Device::emulated && how->duration_ns.size() < static_cast<std::size_t>(partitions))
    return Status(Code::shape, "durations of " + std::to_string(how->duration_ns.size()) + " partitions for rank " +
                                   std::to_string(rank) + ", whose schedule has " + std::to_string(partitions), rank);
  return std::make_unique<Stream>(std::move(how), program.n_channels());
}

Result<std::shared_ptr<Work>> Engine::start(const std::shared_ptr<LoadedProgram>& program, BufferView input,
                                            BufferView output, std::uint32_t coll_id, double timeout_s, bool caller_waits,
                                            std::shared_ptr<const Computation> computation, std::shared_ptr<Stall> stall) {
  if (Status status = ready_for(program->program); !status.ok()) return status;
  if (!program->fused)
    if (Status status = check_links(*program); !status.ok()) return status;
  Result<std::unique_ptr<Stream>> stream = make_stream(program->program, std::move(computation));
  if (!stream.ok()) return stream.status();
  if (Status status = check_device(*program, input, output); !status.ok()) return status;
  Binding binding;
  Memory memory;
  if (Status status = bind(*program, input, output, binding, memory); !status.ok()) return status;
  std::shared_ptr<Work> work = make_work(program, binding, std::move(memory), coll_id, timeout_s, std::move(stream).value());
  work->set_stall(std::move(stall));
  return push(std::move(work), caller_waits);
}

std::shared_ptr<Work> Engine::make_work(const std::shared_ptr<LoadedProgram>& program, const Binding& binding, Memory memory,
                                        std::uint32_t coll_id, double timeout_s, std::unique_ptr<Stream> stream) {
  return std::allocate_shared<Work>(PoolAllocator<Work>(works_), program, binding, std::move(memory), coll_id,
                                    deadline_after(timeout_s), timeout_s, std::move(stream));
}

Result<std::shared_ptr<Work>> Engine::push(std::shared_ptr<Work> work, bool caller_waits) {
  local_->work_started();
  if (Status status = driver_->push(work, caller_waits); !status.ok()) {
    local_->work_ended();
    return status;
  }
  return work;
}

bool Engine::wait(const Goal& goal, double timeout_s) {
  const std::int64_t until_ns = deadline_after(timeout_s < 0 ? std::numeric_limits<double>::infinity() : timeout_s);
  if (goal.done() || !usable().ok()) return goal.done();
  if (driver_->wait(goal, until_ns, false)) return true;
  // Where the engine is being closed, its works end as soon as no caller drives.
  while (driver_->closed() && !goal.done() && now_ns() < until_ns) ::sched_yield();
  return goal.done();
}

bool Engine::wait_slice(const Goal& goal, double timeout_s) {
  if (goal.done() || !usable().ok()) return goal.done();
  if (driver_->closed()) return wait(goal, timeout_s);
  return driver_->wait(goal, deadline_after(timeout_s), true);
}

// The caller drives until it is wanted: what follows its partition is posted by itself, without a switch of threads.
bool Engine::next_partition(const Work& work, double timeout_s, std::uint32_t& op) {
  Stream* const stream = work.stream();
  if (stream == nullptr) {
    wait_slice(work, timeout_s);
    return false;
  }
  if (stream->end()) driver_->wake_caller();  // of another work: it has the seat
  if (!work.done() && !work.calls()) wait_slice(work, timeout_s);
  if (work.done() || !stream->begin(op)) return false;
  driver_->hand_over(true);
  return true;
}

void Engine::abort(Code code, std::string_view reason, int culprit, int nic) { segment_->abort(code, reason, culprit, nic); }

Status Engine::reset(std::uint16_t epoch) {
  // Works that were started and not yet seen belong to the old epoch too.
  const Status status = run([&] {
    driver_->take_incoming();
    progress_.reset(epoch);
  });
  links_version_.fetch_add(1);
  return status;
}

Result<MemoryUse> Engine::memory() {
  MemoryUse use;
  const Status status = run([&] {
    use.attached = progress_.links().n_attached();
    use.connections = progress_.links().n_connections();
  });
  if (!status.ok()) return status;
  use.arena_used = arena_->used();
  use.arena_peak = arena_->peak();
  use.arena_bytes = arena_->size();
  use.segment_bytes = segment_->header().arena_offset;
  use.programs = static_cast<std::uint64_t>(n_programs_->load());
  return use;
}

void Engine::close() {
  if (!usable().ok()) return;
  if (!driver_->close()) return;
  progress_.close();
  local_->registry().close();
}

}  // namespace ccl_lab
