// One rank, as its process sees it.
//
// Is: the rank's segment, arena, links and queue of collectives, with the progress thread that moves them; callable from
//     any thread.
// Is not: what dials, plans or lowers (Python), and not what decides about a failure: it stops, says why, and waits for
//     reset.
//
//   callers ──start: queue, ring──► progress thread: loop { commands; Progress::step; nothing to do: spin, yield, sleep }
//           ◄──Work ended──────────
//
// Invariants
//  - The progress thread starts with the first collective; until then calls run on the caller. It never takes the GIL and
//    no signal is delivered to it.
//  - Only the progress thread touches Progress once it runs; a call that needs it is handed over and waited for.
//  - An idle rank sleeps in ppoll. No wake-up is lost: it says that it sleeps, looks again, then sleeps (doorbell.hpp).
//  - After fork() the child's copy does nothing: no thread came along, and the memory is the parent's.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/segment.hpp"
#include "comm/arena.hpp"
#include "comm/progress.hpp"
#include "comm/work.hpp"

namespace ccl_lab {

struct EngineOptions {
  int n_channels = 64;
  int n_nics = 1;
  std::uint64_t arena_bytes = std::uint64_t{1} << 36;
  std::uint32_t trace_spans = 65536;  // 0: no tracing
  std::int64_t spin_us = 20;
  Mode mode = Mode::automatic;
  int ranks_on_host = 0;              // 0: as many as there are ranks
};

// A caller's buffer: registered memory or nothing.
struct BufferView {
  void* data = nullptr;
  std::uint64_t nbytes = 0;
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

  Status attach_peer(std::int32_t peer, int pid, int segment_fd);
  // Takes over `fd`, also when it fails.
  Status add_connection(std::int32_t peer, std::uint16_t nic, std::uint16_t peer_nic, std::uint16_t index, int fd);
  Result<bool> connected(std::int32_t peer, std::uint16_t nic, std::uint16_t peer_nic);
  Status set_nic(int nic, std::uint64_t bytes_per_s, bool up);

  Result<std::shared_ptr<LoadedProgram>> compile(const ProgramSpec& spec);
  Result<std::shared_ptr<Work>> start(const std::shared_ptr<LoadedProgram>& program, BufferView input, BufferView output,
                                      std::uint32_t coll_id, double timeout_s);
  // The first reason wins. Safe from any thread, at any time.
  void abort(Code code, std::string_view reason, int culprit);
  Status reset(std::uint16_t epoch);
  Result<MemoryUse> memory();
  // Idempotent; ends what runs with an aborted status.
  void close();

 private:
  Engine(std::shared_ptr<RankSegment> segment, std::vector<std::int32_t> node_of, const EngineOptions& options);

  // Runs `work` where Progress may be touched; false where the engine is closed or of another process.
  Status run(const std::function<void()>& work);
  Status usable() const;
  Status check_memory(const Program& program, BufferView input, BufferView output) const;
  Status bind(LoadedProgram& program, BufferView input, BufferView output, Binding& binding,
              std::vector<std::shared_ptr<Block>>& memory) const;
  void wake() const { segment_->doorbell().ring(); }
  void start_thread();
  void loop();
  bool take_commands();
  void sleep();

  std::shared_ptr<RankSegment> segment_;
  std::shared_ptr<Arena> arena_;
  Progress progress_;
  int n_channels_;
  std::int64_t spin_ns_;
  pid_t owner_pid_;
  std::shared_ptr<std::atomic<std::int64_t>> n_programs_;
  std::atomic<std::uint64_t> links_version_{1};

  mutable std::mutex mutex_;
  std::condition_variable handled_;
  struct Command {
    const std::function<void()>* work;
    bool done = false;
  };
  std::vector<Command*> commands_;
  std::vector<std::shared_ptr<Work>> incoming_;
  std::atomic<bool> pending_{false};   // commands_, incoming_ or closed_ changed
  bool closed_ = false;
  std::unique_ptr<std::thread> thread_;
  std::vector<pollfd> descriptors_;    // of the progress thread
};

}  // namespace ccl_lab
