// One rank's membership in a job: its memory, its node group, its watch.
//
// Is: what stands behind the public Communicator, in terms of Status.
// Is not: a thrower of exceptions (communicator.cpp), not safe for two threads at once.
//
// Invariants
//  - `number` counts collectives exactly as the group does: one per call that has begun.
//  - After a failure that peers may not share, every further call returns that failure.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "api/watch.hpp"
#include "base/segment.hpp"
#include "base/status.hpp"
#include "ccl_lab/communicator.hpp"
#include "comm/arena.hpp"
#include "comm/registry.hpp"
#include "node/group.hpp"
#include "trace/ring.hpp"

namespace ccl_lab::api {

class Session {
 public:
  static Result<std::unique_ptr<Session>> join(int rank, int n_ranks, const std::string& rendezvous,
                                               const Options& options);
  // Leaves: peers that still wait for this rank are told.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  Result<Memory> allocate(std::uint64_t nbytes);
  Status add(void* data, std::uint64_t nbytes);
  Status remove(void* data);

  // `call.root` and `call.peer` are ranks; `count` elements make `call.block_bytes`. False: see status(). A bool, and not a
  // Status, because a small message costs less than making and dropping a few of those.
  bool run(node::Call& call, std::uint64_t count) {
    if (failed_ || !sensible(call, count)) [[unlikely]] return refuse(call, count);
    call.block_bytes = count * itemsize(call.dtype);
    if (call.collective == Collective::send_recv) return run_message(call);
    call.coll_id = static_cast<std::uint32_t>(++number_);
    activity_.collective.store(number_, std::memory_order_relaxed);
    const Registry::Use use(*registry_, call, rank_, size_);
    if (const Status begun = group_->begin(call); !begun.ok()) [[unlikely]] return not_begun(begun);
    return group_->drive(kSliceNs) == node::Turn::done || wait_on();
  }
  // Why the last run() returned false.
  const Status& status() const { return status_; }

  MemoryUse memory_use() const;
  std::size_t take_spans(SpanRecord* out, std::size_t max_spans);
  std::uint64_t dropped_spans() const;

 private:
  Session(int rank, int n_ranks, const Options& options);
  Status make_segment();
  Status attach_peers(const std::string& rendezvous);
  // Whether a call can be made at all; in a few comparisons, for every message comes by.
  bool sensible(const node::Call& call, std::uint64_t count) const {
    if (static_cast<std::size_t>(call.dtype) >= kDTypeCount || count > most_elements_) return false;
    const RedOp last = call.dtype <= DType::float64 ? RedOp::avg : RedOp::bxor;
    if (node::reduces(call.collective) && call.redop > last) return false;
    if (call.input != nullptr && call.output != nullptr) return true;
    const node::Blocks blocks = node::blocks_of(call.collective, rank_, size_, call.root, call.peer);
    return count == 0 || ((blocks.input == 0 || call.input != nullptr) && (blocks.output == 0 || call.output != nullptr));
  }
  bool refuse(const node::Call& call, std::uint64_t count);
  bool not_begun(const Status& status);
  bool run_message(node::Call& call);
  bool wait_on();
  bool fail(const Status& status);

  // How long a wait goes on before it looks at aborts and the deadline.
  static constexpr std::int64_t kSliceNs = 20'000'000;

  int rank_;
  int size_;
  Options options_;
  std::shared_ptr<RankSegment> own_;
  std::shared_ptr<Arena> arena_;
  std::unique_ptr<SpanWriter> spans_;
  std::unique_ptr<node::Group> group_;
  std::unique_ptr<Registry> registry_;  // before the group is gone
  Activity activity_;
  std::unique_ptr<Watch> watch_;
  std::uint64_t number_ = 0;   // of the last collective begun
  std::uint64_t message_ = 0;  // sends and receives begun or ended
  std::uint64_t most_elements_ = 0;
  bool failed_ = false;
  Status status_;
};

}  // namespace ccl_lab::api
