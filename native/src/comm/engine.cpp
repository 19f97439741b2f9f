// Threads, commands and binding of one rank; see engine.hpp.
#include "comm/engine.hpp"

#include <fenv.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "base/clock.hpp"
#include "reduce/reduce.hpp"

namespace ccl_lab {

namespace {

// How late a sleeping rank notices an abort by a process that died before it rang, and how often it shows that it lives.
constexpr std::int64_t kHeartbeatNs = 250'000'000;
// With more ranks than cores a peer needs the core that this rank gives up.
constexpr int kYields = 2;

std::int64_t deadline_after(double timeout_s) {
  if (!(timeout_s >= 0) || timeout_s > 1e9) return std::numeric_limits<std::int64_t>::max();
  return now_ns() + static_cast<std::int64_t>(timeout_s * 1e9);
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

Result<std::shared_ptr<Engine>> Engine::create(int rank, std::vector<std::int32_t> node_of, const EngineOptions& options) {
  const int n_ranks = static_cast<int>(node_of.size());
  if (n_ranks < 1 || rank < 0 || rank >= n_ranks)
    return Status(Code::usage, "rank is " + std::to_string(rank) + ", expected 0.." + std::to_string(n_ranks - 1) +
                                   ": node_of has an entry per rank");
  if (options.n_channels < 1 || options.n_channels > 4095)
    return Status(Code::config, "n_channels is " + std::to_string(options.n_channels) + ", expected 1 to 4095");
  SegmentOptions segment_options;
  segment_options.n_signal_channels = options.n_channels + 1;
  segment_options.n_nics = options.n_nics;
  segment_options.trace_spans = std::bit_ceil(std::clamp<std::uint32_t>(options.trace_spans, 64, 1u << 26));
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
      progress_(segment_, std::move(node_of), options.mode),
      n_channels_(options.n_channels),
      spin_ns_(0),
      owner_pid_(::getpid()),
      n_programs_(std::make_shared<std::atomic<std::int64_t>>(0)) {
  const int on_host = options.ranks_on_host > 0 ? options.ranks_on_host : segment_->n_ranks();
  if (on_host <= static_cast<int>(std::thread::hardware_concurrency())) spin_ns_ = options.spin_us * 1000;
}

Engine::~Engine() {
  close();
  // A forked child has no such thread to join; destroying the handle would end the process.
  if (::getpid() != owner_pid_) static_cast<void>(thread_.release());
}

Status Engine::usable() const {
  if (::getpid() != owner_pid_)
    return Status(Code::usage, "this engine belongs to process " + std::to_string(owner_pid_) +
                                   ", which forked this one; make an engine after the fork", segment_->rank());
  return {};
}

Status Engine::run(const std::function<void()>& work) {
  if (Status status = usable(); !status.ok()) return status;
  std::unique_lock lock(mutex_);
  if (closed_)
    return Status(Code::usage, "the engine of rank " + std::to_string(segment_->rank()) + " is closed", segment_->rank());
  if (thread_ == nullptr) {
    work();
    return {};
  }
  Command command{&work};
  commands_.push_back(&command);
  pending_.store(true, std::memory_order_release);
  wake();
  handled_.wait(lock, [&] { return command.done; });
  return {};
}

Status Engine::attach_peer(std::int32_t peer, int pid, int segment_fd) {
  if (Status status = usable(); !status.ok()) return status;
  Result<RankSegment> opened = RankSegment::open(pid, segment_fd);
  if (!opened.ok()) return opened.status();
  auto segment = std::make_shared<RankSegment>(std::move(opened).value());
  Status attached;
  if (Status status = run([&] { attached = progress_.links().attach(peer, std::move(segment)); }); !status.ok())
    return status;
  links_version_.fetch_add(1);
  return attached;
}

Status Engine::add_connection(std::int32_t peer, std::uint16_t nic, std::uint16_t peer_nic, std::uint16_t index, int fd) {
  Status added;
  const Status status = run([&] { added = progress_.links().add_connection(peer, nic, peer_nic, index, fd); });
  if (!status.ok()) {
    ::close(fd);
    return status;
  }
  links_version_.fetch_add(1);
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

Result<std::shared_ptr<LoadedProgram>> Engine::compile(const ProgramSpec& spec) {
  std::vector<std::uint8_t> load_store;
  if (Status status = run([&] { load_store = progress_.links().load_store(); }); !status.ok()) return status;
  Placement placement;
  placement.rank = segment_->rank();
  placement.n_ranks = segment_->n_ranks();
  placement.n_channels = n_channels_;
  placement.load_store = load_store;
  Result<Program> program = Program::compile(spec, placement);
  if (!program.ok()) return program.status();
  if (program->has_compute())
    return Status(Code::unsupported, "this engine runs no compute ops; simulate the schedule, or leave them out");
  for (const Op& op : program->ops())
    if (op.kind == Kind::reduce)
      if (Status status = check_reduction(spec.dtype, spec.redop); !status.ok()) return status;
  return std::make_shared<LoadedProgram>(std::move(program).value(), n_programs_);
}

Status Engine::check_memory(const Program& program, BufferView input, BufferView output) const {
  const struct {
    Buffer buffer;
    BufferView view;
    bool inside;
  } buffers[] = {{Buffer::input, input, program.alias() == Alias::input_in_output},
                 {Buffer::output, output, program.alias() == Alias::output_in_input}};
  for (const auto& [buffer, view, inside] : buffers) {
    const std::string who = std::string(kBufferNames[static_cast<std::size_t>(buffer)]) + " of rank " +
                            std::to_string(segment_->rank());
    if (inside && view.data == nullptr) continue;
    if (view.nbytes != program.bytes(buffer))
      return Status(Code::shape, who + " has " + std::to_string(view.nbytes) + " bytes, the program was compiled for " +
                                     std::to_string(program.bytes(buffer)), segment_->rank());
    if (view.nbytes > 0 && arena_->offset_of(view.data, view.nbytes) < 0)
      return Status(Code::registration, who + " is not registered memory; take it from empty()", segment_->rank());
  }
  return {};
}

Status Engine::bind(LoadedProgram& loaded, BufferView input, BufferView output, Binding& binding,
                    std::vector<std::shared_ptr<Block>>& memory) const {
  const Program& program = loaded.program;
  if (Status status = check_memory(program, input, output); !status.ok()) return status;
  std::byte* base[kBufferCount] = {static_cast<std::byte*>(input.data), static_cast<std::byte*>(output.data), nullptr};
  if (program.alias() == Alias::input_in_output) base[0] = base[1] + program.alias_offset();
  if (program.alias() == Alias::output_in_input) base[1] = base[0] + program.alias_offset();
  if (loaded.scratch == nullptr && program.bytes(Buffer::scratch) > 0) {
    Result<std::shared_ptr<Block>> scratch = arena_->allocate(program.bytes(Buffer::scratch));
    if (!scratch.ok()) return scratch.status();
    loaded.scratch = std::move(scratch).value();
  }
  if (loaded.scratch != nullptr) {
    base[2] = loaded.scratch->data();
    memory.push_back(loaded.scratch);
  }
  for (std::size_t b = 0; b < kBufferCount; ++b) {
    const std::uint64_t nbytes = program.bytes(static_cast<Buffer>(b));
    binding.base[b] = base[b];
    binding.key[b] = kArenaRegionKey;
    // An empty buffer is never touched, but its offset goes through the same arithmetic.
    if (nbytes == 0) continue;
    binding.offset[b] = static_cast<std::uint64_t>(base[b] - arena_->base());
    std::shared_ptr<Block> block = arena_->find(base[b], nbytes);
    if (block == nullptr)
      return Status(Code::registration, std::string(kBufferNames[b]) + " of rank " + std::to_string(segment_->rank()) +
                                            " is registered memory that was freed, or spans several blocks",
                    segment_->rank());
    memory.push_back(std::move(block));
  }
  return {};
}

Result<std::shared_ptr<Work>> Engine::start(const std::shared_ptr<LoadedProgram>& program, BufferView input,
                                            BufferView output, std::uint32_t coll_id, double timeout_s) {
  if (Status status = usable(); !status.ok()) return status;
  if (segment_->aborted()) {
    Status status = segment_->abort_status();
    return Status(Code::aborted, "rank " + std::to_string(segment_->rank()) + " was stopped: " + status.message +
                                     "; reset all ranks, then go on", status.rank);
  }
  const std::uint64_t version = links_version_.load();
  if (program->links_version.load() != version) {
    Status reachable;
    if (Status status = run([&] { reachable = progress_.check(program->program); }); !status.ok()) return status;
    if (!reachable.ok()) return reachable;
    program->links_version.store(version);
  }
  Binding binding;
  std::vector<std::shared_ptr<Block>> memory;
  const std::lock_guard lock(mutex_);
  if (closed_) return Status(Code::usage, "the engine of rank " + std::to_string(segment_->rank()) + " is closed");
  if (Status status = bind(*program, input, output, binding, memory); !status.ok()) return status;
  auto work = std::make_shared<Work>(program, binding, std::move(memory), coll_id, deadline_after(timeout_s), timeout_s);
  incoming_.push_back(work);
  pending_.store(true, std::memory_order_release);
  if (thread_ == nullptr) start_thread();
  wake();
  return work;
}

void Engine::abort(Code code, std::string_view reason, int culprit) { segment_->abort(code, reason, culprit); }

Status Engine::reset(std::uint16_t epoch) {
  const Status status = run([&] {
    // Works that were started and not yet seen belong to the old epoch too.
    for (std::shared_ptr<Work>& work : std::exchange(incoming_, {})) progress_.push(std::move(work));
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
  if (::getpid() != owner_pid_) return;
  std::unique_ptr<std::thread> thread;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    closed_ = true;
    thread = std::move(thread_);
    pending_.store(true, std::memory_order_release);
    wake();
  }
  if (thread != nullptr) thread->join();
  // Nobody else comes here any more: every call looks at closed_ first.
  for (std::shared_ptr<Work>& work : std::exchange(incoming_, {})) progress_.push(std::move(work));
  progress_.close();
}

void Engine::start_thread() {
  // The thread inherits the mask: Python's signals belong to Python's main thread.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::make_unique<std::thread>([this] { loop(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  const std::string name = "ccl_lab/" + std::to_string(segment_->rank());
  pthread_setname_np(thread_->native_handle(), name.substr(0, 15).c_str());
}

// Commands and works of other threads; false when the thread has to end.
bool Engine::take_commands() {
  std::unique_lock lock(mutex_);
  pending_.store(false, std::memory_order_relaxed);
  for (std::shared_ptr<Work>& work : incoming_) progress_.push(std::move(work));
  incoming_.clear();
  // Under the lock: whoever waits for a command may return, and end the closure, as soon as it is done.
  for (Command* command : commands_) {
    (*command->work)();
    command->done = true;
  }
  commands_.clear();
  handled_.notify_all();
  return !closed_;
}

void Engine::loop() {
  // Flushing of denormals, where the starting thread had it on, would change sums.
  fesetenv(FE_DFL_ENV);
  std::int64_t idle_since_ns = now_ns();
  int yields = 0;
  for (;;) {
    if (pending_.load(std::memory_order_acquire) && !take_commands()) return;
    if (progress_.step() > 0) {
      idle_since_ns = now_ns();
      yields = 0;
      continue;
    }
    if (spin_ns_ > 0 && now_ns() - idle_since_ns < spin_ns_) {
      relax();
      continue;
    }
    if (progress_.busy() && yields < kYields) {
      ++yields;
      ::sched_yield();
      continue;
    }
    sleep();
    yields = 0;
  }
}

void Engine::sleep() {
  const Doorbell& bell = segment_->doorbell();
  bell.prepare_sleep();
  if (!pending_.load(std::memory_order_acquire) && progress_.step() == 0) {
    descriptors_.clear();
    descriptors_.push_back({bell.fd(), POLLIN, 0});
    const std::int64_t now = now_ns();
    std::int64_t wake_ns = now + kHeartbeatNs;
    progress_.wait_set(descriptors_, wake_ns);
    if (wake_ns > now) {
      const std::int64_t left = wake_ns - now;
      const timespec timeout{left / 1'000'000'000, left % 1'000'000'000};
      ::ppoll(descriptors_.data(), static_cast<nfds_t>(descriptors_.size()), &timeout, nullptr);
    }
  }
  bell.finish_sleep();
}

}  // namespace ccl_lab
