// One collective of one rank, from start to its end.
//
// Is: what a caller holds: wait, done, the error; and what the progress thread needs: program, binding, deadline.
// Is not: the execution (progress.cpp).
//
//   queued ──head of the queue──► running ──► ended (ok, or the first error)
//      └──────────────── engine stopped ────────►┘
//
// Invariants
//  - Ends exactly once; the status does not change afterwards.
//  - Memory in use is held until it ended, whatever Python drops.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/status.hpp"
#include "comm/arena.hpp"
#include "exec/executor.hpp"
#include "exec/program.hpp"

namespace ccl_lab {

// A compiled program and what this engine keeps for it.
struct LoadedProgram {
  Program program;
  std::shared_ptr<Block> scratch;              // taken at the first start
  std::atomic<std::uint64_t> links_version{0};  // the version of the links for which all its peers were connected

  std::shared_ptr<std::atomic<std::int64_t>> alive;  // counts the loaded programs of an engine

  LoadedProgram(Program compiled, std::shared_ptr<std::atomic<std::int64_t>> counter)
      : program(std::move(compiled)), alive(std::move(counter)) {
    alive->fetch_add(1, std::memory_order_relaxed);
  }
  LoadedProgram(const LoadedProgram&) = delete;
  LoadedProgram& operator=(const LoadedProgram&) = delete;
  ~LoadedProgram() { alive->fetch_sub(1, std::memory_order_relaxed); }
};

class Work {
 public:
  Work(std::shared_ptr<LoadedProgram> program, const Binding& binding, std::vector<std::shared_ptr<Block>> memory,
       std::uint32_t coll_id, std::int64_t deadline_ns, double timeout_s);

  // Waits until it ended; false if `timeout_s` (negative: forever) passed before.
  bool wait(double timeout_s);
  bool done() const { return done_.load(std::memory_order_acquire); }
  // Only once done.
  const Status& status() const { return status_; }
  std::int64_t begin_ns() const { return begin_ns_.load(std::memory_order_relaxed); }
  std::int64_t end_ns() const { return end_ns_.load(std::memory_order_relaxed); }

  // For the progress thread.
  const std::shared_ptr<LoadedProgram>& loaded() const { return program_; }
  const Program& program() const { return program_->program; }
  const Binding& binding() const { return binding_; }
  std::uint32_t coll_id() const { return coll_id_; }
  std::int64_t deadline_ns() const { return deadline_ns_; }
  double timeout_s() const { return timeout_s_; }
  void begin(std::int64_t now_ns) { begin_ns_.store(now_ns, std::memory_order_relaxed); }
  void end(std::int64_t now_ns, Status status);
  // The blocks, for those who must hold them longer than this.
  std::vector<std::shared_ptr<Block>> take_memory() { return std::move(memory_); }

 private:
  std::shared_ptr<LoadedProgram> program_;
  Binding binding_;
  std::vector<std::shared_ptr<Block>> memory_;
  std::uint32_t coll_id_;
  std::int64_t deadline_ns_;
  double timeout_s_;
  std::atomic<std::int64_t> begin_ns_{0};
  std::atomic<std::int64_t> end_ns_{0};
  std::mutex mutex_;
  std::condition_variable ended_;
  std::atomic<bool> done_{false};
  Status status_;
};

}  // namespace ccl_lab
