// A rank's collectives within its node, on whatever memory the caller has.
//
// Is: the group of the node's ranks, the registered memory, and the calls that were proved: what a caller needs to run a
//     collective without a schedule, a queue or another thread on the way.
// Is not: a judge of schedules: whoever admits a call has proved the schedule that says what it does.
//
//   caller ──call that was admitted, engine idle──► group, driven by the caller
//   caller ──otherwise──► Work in the engine's queue ──► Progress ──► group, driven by whoever drives
//
// Invariants
//  - The group is driven by one thread at a time: the direct way is taken only while no work is outstanding, so the order of
//    collectives is that of the calls, on every rank.
//  - Memory of a call that failed is held until reset: peers may still touch it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/segment.hpp"
#include "comm/arena.hpp"
#include "comm/registry.hpp"
#include "node/group.hpp"

namespace ccl_lab {

class Local {
 public:
  // `node_ranks`: all ranks of this node, ascending.
  Local(std::shared_ptr<RankSegment> own, std::shared_ptr<Arena> arena, std::vector<std::int32_t> node_ranks,
        const node::GroupOptions& options);
  Local(const Local&) = delete;
  Local& operator=(const Local&) = delete;

  node::Group& group() { return group_; }
  Registry& registry() { return registry_; }
  // True where this node holds all ranks, and all of them are attached.
  bool complete() const { return group_.complete() && group_.size() == own_->n_ranks(); }

  // Calls are told apart by collective, element type, reduction, root and size.
  void admit(const node::Call& call);
  bool admitted(const node::Call& call) const;

  // Works that were started and have not ended; direct calls wait behind them in the queue.
  void work_started() { outstanding_.fetch_add(1, std::memory_order_relaxed); }
  void work_ended() { outstanding_.fetch_sub(1, std::memory_order_release); }
  // True if the caller may drive the group now; then it must leave().
  bool enter() {
    return outstanding_.load(std::memory_order_acquire) == 0 && take();
  }
  // The group, for as long as one collective lasts; then leave().
  bool take() { return group_.take(); }
  std::uint32_t next_coll_id() { return ++coll_id_; }
  void leave() { group_.leave(); }

  // After a failure: keeps what the buffers of the call lie in.
  void hold(const node::Call& call);
  void reset(std::uint64_t epoch);

 private:
  static constexpr std::size_t kAdmitted = 1024;
  static std::uint64_t key_of(const node::Call& call);

  std::shared_ptr<RankSegment> own_;
  std::shared_ptr<Arena> arena_;
  SpanWriter spans_;
  node::Group group_;
  Registry registry_;
  std::atomic<int> outstanding_{0};
  std::uint32_t coll_id_ = 0;  // of direct calls
  std::array<std::uint64_t, kAdmitted> admitted_{};  // by key, open; the oldest gives way
  std::vector<std::shared_ptr<Block>> held_;
};

}  // namespace ccl_lab
