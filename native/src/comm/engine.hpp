// One rank, as its process sees it.
//
// Is: the rank's segment, arena, links and queue of collectives, with the driver that moves them; callable from any thread.
// Is not: what dials, plans or lowers (Python), and not what decides about a failure: it stops, says why, and waits for
//     reset.
//
//   start ──queue──► Driver: a caller in wait(), or the rank's thread ── Progress::step ──► Work ended
//
// Invariants
//  - Works run in the order of their start, several may be outstanding. They go on without any caller, unless start() was
//    told that the caller waits.
//  - A start of a compiled program whose links have not changed takes no memory from the system and plans nothing.
//  - After fork() the child's copy does nothing: no thread came along, and the memory is the parent's.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/segment.hpp"
#include "comm/arena.hpp"
#include "comm/driver.hpp"
#include "comm/local.hpp"
#include "comm/progress.hpp"
#include "comm/windows.hpp"
#include "comm/work.hpp"

namespace ccl_lab {

struct EngineOptions {
  int n_channels = 256;
  int n_nics = 1;
  std::uint64_t arena_bytes = std::uint64_t{1} << 36;
  std::uint32_t trace_spans = 65536;  // 0: no tracing
  std::int64_t spin_us = 20;
  Mode mode = Mode::automatic;
  bool register_buffers = false;      // ordinary buffers of large messages that come again are registered
  int ranks_on_host = 0;              // 0: as many as there are ranks; with more than cores, nobody spins
};

// A caller's buffer: registered memory or nothing.
struct BufferView {
  void* data = nullptr;
  std::uint64_t nbytes = 0;
  RegionKey key = 0;       // of the region of a GPU that it lies in; 0: memory of the host
  void* region = nullptr;  // where that begins
};

// What an exchange runs on: the send buffer (any memory), the receive buffer and SCRATCH (registered).
struct ExchangeBuffers {
  BufferView send, receive, scratch;
};

struct LoadedExchange {
  std::shared_ptr<Exchange> exchange;
  std::shared_ptr<LoadedProgram> ways;  // its skeleton: what must be reachable
};

struct MemoryUse {
  std::uint64_t arena_used = 0;
  std::uint64_t arena_peak = 0;
  std::uint64_t arena_bytes = 0;
  std::uint64_t segment_bytes = 0;  // without the arena
  std::uint64_t attached = 0;
  std::uint64_t connections = 0;
  std::uint64_t programs = 0;
};

class Engine {
 public:
  static Result<std::shared_ptr<Engine>> create(int rank, std::vector<std::int32_t> node_of, const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const std::shared_ptr<RankSegment>& segment() const { return segment_; }
  const std::shared_ptr<Arena>& arena() const { return arena_; }
  Local& local() { return *local_; }
  // For direct calls: ok, or why this process may not use the engine now.
  Status ready() const;
  // The same for a run of `program`; of a NIC of its own that is down, this rank says so itself.
  Status ready_for(const Program& program);

  Status attach_peer(std::int32_t peer, int pid, int segment_fd);
  // Before the first connection: NICs are driven by verbs, those of `options` by NIC of this node.
  Status set_rdma(VerbsOptions options, verbs::Driver* driver = nullptr);  // null: libibverbs
  // Memory of a GPU for the NICs of this node and of peers: the first `size` bytes of a dma-buf, which begin at `base` on the GPU. Its key, or
  // unsupported and which NIC takes none. It stays until it is deregistered, or the engine reset.
  Result<RegionKey> register_device(std::byte* base, std::uint64_t size, int fd);
  Status deregister_device(RegionKey key);
  // Before the first connection: lost paths are repaired from here on.
  Status set_messenger(std::unique_ptr<Messenger> messenger, const RailOptions& options);
  // Takes over `fd`, also when it fails. `generation`: of the path (0 until it failed once; see wanted_paths).
  Status add_connection(std::int32_t peer, std::uint16_t nic, std::uint16_t peer_nic, std::uint16_t index, int fd,
                        std::uint32_t generation = 0);
  // The NICs of this node, of its lowest rank; that one is attached.
  Status with_node_nics(const std::function<void(std::span<NicShaper>, std::span<NicFaults>)>& look);
  Status with_messenger(const std::function<Status(Messenger*)>& look);
  // Becomes readable when the rails have news; -1 without a messenger.
  int news_fd() const { return progress_.links().news_fd(); }
  Status path_missing(const Path& path, const std::string& why);
  // Runs `look` where the rails may be touched; it gets null where nothing is repaired, or nothing is connected yet.
  Status with_rails(const std::function<void(Rails*)>& look);
  Result<bool> connected(std::int32_t peer, std::uint16_t nic, std::uint16_t peer_nic);
  Status set_nic(int nic, std::uint64_t bytes_per_s, bool up);

  Result<std::shared_ptr<LoadedProgram>> compile(const ProgramSpec& spec);
  // With `caller_waits` nothing moves until wait() or hand_over() is called. `computation`: who does the compute ops, where
  // the program has any. `stall`: of a GPU's stream, which the work waits for and which waits for it.
  Result<std::shared_ptr<Work>> start(const std::shared_ptr<LoadedProgram>& program, BufferView input, BufferView output,
                                      std::uint32_t coll_id, double timeout_s, bool caller_waits = false,
                                      std::shared_ptr<const Computation> computation = nullptr, std::shared_ptr<Stall> stall = nullptr);
  // An exchange whose counts are read when it starts, and the program that names its ways. All but the counts is fixed.
  Result<std::shared_ptr<LoadedExchange>> compile(ExchangeSpec spec);
  // `counts` stay where they are until the work has ended. `handles`: by place in the group, where in its arena the receive
  // buffer of that rank begins; empty: they are asked for.
  Result<std::shared_ptr<Work>> start(const LoadedExchange& exchange, const ExchangeBuffers& buffers, const Counts& counts,
                                      std::span<const std::uint64_t> handles, std::uint32_t coll_id, double timeout_s, bool caller_waits,
                                      std::shared_ptr<Stall> stall = nullptr);
  // Drives until a work, or an op of a window, has ended; false if `timeout_s` (negative: for ever) passed before.
  bool wait(const Goal& goal, double timeout_s);
  // The same for callers that have to look after something now and then: returns early where a signal came, and nothing
  // moves afterwards until wait, wait_slice or hand_over is called.
  bool wait_slice(const Goal& goal, double timeout_s);
  // The next partition that the caller of `work` has to compute, the one before it having ended; false where there is none
  // within `timeout_s`, or the work has ended. What is outstanding goes on while the caller computes.
  bool next_partition(const Work& work, double timeout_s, std::uint32_t& op);
  // What is outstanding goes on without a caller.
  void hand_over(bool surely = false) { driver_->hand_over(surely); }

  // One-sided (sided.cpp). A window of this rank's memory, `shown`, and that of all others; every rank makes it, in the same order.
  Result<std::shared_ptr<MemoryWindow>> make_window(WindowSpec spec, const void* shown);
  // By place of a window and rank: signals so far, of all windows that were at that place.
  std::vector<std::uint64_t> window_signals() const;
  // Where registered memory lies in the arena, of whole pages where it was not taken from it; -1 where peers do not reach it.
  std::int64_t shown_offset(const void* data, std::uint64_t nbytes);
  // An op of a window: has ended, or goes on by itself. Its memory stays as it is until then. `urgent`: the caller waits for it.
  Result<std::shared_ptr<Sided>> put(const std::shared_ptr<MemoryWindow>& window, std::int32_t rank, BufferView data, std::uint64_t offset,
                                     bool signals, bool urgent);
  Result<std::shared_ptr<Sided>> get(const std::shared_ptr<MemoryWindow>& window, std::int32_t rank, BufferView out, std::uint64_t offset);
  Result<std::shared_ptr<Sided>> signal(const std::shared_ptr<MemoryWindow>& window, std::int32_t rank);
  // Of `rank`, or of any (-1).
  Result<std::shared_ptr<Sided>> wait_signals(const std::shared_ptr<MemoryWindow>& window, std::int32_t rank, std::uint64_t count);
  Result<std::shared_ptr<Sided>> flush(const std::shared_ptr<MemoryWindow>& window, std::int32_t rank);
  // A wait that did not end in time ends with a timeout, which says who has not signalled; false where it has ended.
  void give_up(Sided& op, double after_s);
  // No op begins any more, waits end.
  void close_window(MemoryWindow& window);

  // The first reason wins. Safe from any thread, at any time.
  void abort(Code code, std::string_view reason, int culprit, int nic = -1);
  Status reset(std::uint16_t epoch);
  Result<MemoryUse> memory();
  // Idempotent; ends what runs with an aborted status.
  void close();

 private:
  Engine(std::shared_ptr<RankSegment> segment, std::vector<std::int32_t> node_of, const EngineOptions& options);

  // Runs `work` where Progress may be touched; an error where the engine is closed or of another process.
  Status run(const std::function<void()>& work);
  Status usable() const;
  Status check_memory(const Program& program, bool fused, BufferView input, BufferView output) const;
  Status check_device(const LoadedProgram& loaded, BufferView input, BufferView output) const;
  Status check_links(LoadedProgram& program);
  // Where programs of this rank run now; `placement` looks into `load_store`.
  Status place(std::vector<std::uint8_t>& load_store, Placement& placement);
  Result<std::unique_ptr<Stream>> make_stream(const Program& program, std::shared_ptr<const Computation> how) const;
  Status bind(LoadedProgram& program, BufferView input, BufferView output, Binding& binding, Memory& memory);
  Status bind(const Exchange& exchange, const ExchangeBuffers& buffers, Binding& binding, Memory& memory) const;
  std::shared_ptr<Work> make_work(const std::shared_ptr<LoadedProgram>& program, const Binding& binding, Memory memory,
                                  std::uint32_t coll_id, double timeout_s, std::unique_ptr<Stream> stream = nullptr);
  Result<std::shared_ptr<Work>> push(std::shared_ptr<Work> work, bool caller_waits);
  Status may_use(const MemoryWindow& window) const;
  std::shared_ptr<Sided> make_sided(Sided::What what, const std::shared_ptr<MemoryWindow>& window, std::int32_t peer) const;
  Result<std::shared_ptr<Sided>> post(std::shared_ptr<Sided> op, bool urgent);
  Result<std::shared_ptr<Sided>> at_once(std::shared_ptr<Sided> op, std::byte* there);

  std::shared_ptr<RankSegment> segment_;
  std::shared_ptr<Arena> arena_;
  std::unique_ptr<Local> local_;
  Progress progress_;
  int n_channels_;
  std::uint32_t forks_;
  std::shared_ptr<Pool> works_;
  std::shared_ptr<std::atomic<std::int64_t>> n_programs_;
  std::atomic<std::uint64_t> links_version_{1};
  std::atomic<RegionKey> next_device_key_{kFirstDeviceKey};
  std::unique_ptr<Driver> driver_;
};

}  // namespace ccl_lab
