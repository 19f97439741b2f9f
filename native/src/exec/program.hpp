// The ops of one rank, ready to run.
//
// Is: what `compile` makes of the columns that Python hands over: every number checked, ops grouped by channel, counters,
//     peers and puts in flight numbered, so that the executor only indexes arrays.
// Is not: the schedule (that knows all ranks), and not bound to memory: one program serves many runs.
//
// Invariants
//  - Nothing in a Program is trusted input any more: offsets lie in the declared sizes of this rank's buffers; peers,
//    channels, kinds and source ranges are in range; own sources equal the destination or do not touch it.
//  - What a peer's buffers must hold (`Peer::extent`) is checked against the peer's READY before the first access.
//  - Immutable after compile; may be shared by threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.hpp"
#include "ccl_lab/schema.hpp"

namespace ccl_lab {

// How INPUT and OUTPUT of a rank share memory.
enum class Alias : std::uint8_t { none = 0, input_in_output = 1, output_in_input = 2 };

// The columns as Python gives them; all op columns have the same length, as have the source columns.
struct ProgramSpec {
  Collective collective = Collective::barrier;
  DType dtype = DType::uint8;
  RedOp redop = RedOp::sum;
  std::uint64_t plan_hash = 0;
  std::uint64_t count = 0;
  std::uint64_t bytes[kBufferCount] = {0, 0, 0};
  std::uint64_t output_elements = 0;
  std::int64_t n_ranks_avg = 1;
  Alias alias = Alias::none;
  std::uint64_t alias_offset = 0;
  std::int32_t n_channels = 1;
  // The node layer may run the whole collective in its own way: the result is the same (docs/adr/0009).
  bool fused = false;
  std::int32_t root = 0;
  std::int32_t receiver = -1;                     // of send_recv
  std::span<const std::int32_t> share_ops;        // by rank: the op_id that a span of its share of the work carries

  std::span<const std::int32_t> op_id;
  std::span<const std::uint8_t> kind;
  std::span<const std::int32_t> channel;
  std::span<const std::int32_t> peer;
  std::span<const std::int32_t> sig_channel;
  std::span<const std::int64_t> value;            // of a compute op: 1 where it produces, 0 where it only reads
  std::span<const std::uint8_t> dst_buf;
  std::span<const std::uint64_t> dst_offset;
  std::span<const std::uint64_t> nbytes;
  std::span<const std::int32_t> src_begin;
  std::span<const std::int32_t> src_count;
  std::span<const std::uint16_t> nic;
  std::span<const std::uint16_t> peer_nic;
  std::span<const std::int32_t> arg;

  std::span<const std::int32_t> src_rank;
  std::span<const std::uint8_t> src_buf;
  std::span<const std::uint64_t> src_offset;

  std::span<const std::int32_t> ready_to;
  std::span<const std::uint16_t> ready_nic;       // by ready_to: the NICs that carry READY; empty: NIC 0
  std::span<const std::uint16_t> ready_peer_nic;
};

// A rank that must hear that this one has entered, and over which NICs.
struct ReadyTo {
  std::int32_t peer = -1;
  std::uint16_t nic = 0;
  std::uint16_t peer_nic = 0;
};

// Where the program will run.
struct Placement {
  int rank = 0;
  int n_ranks = 1;
  int n_channels = 1;                          // schedule channels; signal channel n_channels is READY
  std::span<const std::uint8_t> load_store;    // by rank: 1 where copy and reduce may read that rank's memory
};

struct Source {
  std::int32_t slot = -1;  // index into Program::peers(); -1: this rank
  Buffer buffer = Buffer::input;
  std::uint64_t offset = 0;
};

struct Op {
  Kind kind = Kind::wait;
  Buffer dst_buffer = Buffer::output;
  std::uint16_t channel = 0;
  std::uint16_t nic = 0;
  std::uint16_t peer_nic = 0;
  bool produces = false;          // of a compute op: the first source, with the others added, goes to the destination
  bool awaited = false;           // of a put: its channel sends its peer nothing more before a flush, or before its end
  std::int32_t op_id = -1;
  std::int32_t peer = -1;
  std::int32_t slot = -1;         // of the peer in Program::peers(), where the op needs its READY
  std::int32_t sig_channel = -1;
  std::int32_t counter = -1;      // of a wait, in Program::counters()
  std::int32_t flight = -1;       // of a put or signal: which in-flight count it is in; of a flush: what it waits for
  std::int32_t arg = -1;          // partition of a compute op
  std::uint32_t src_begin = 0;
  std::uint32_t src_count = 0;
  std::uint64_t value = 0;
  std::uint64_t dst_offset = 0;
  std::uint64_t nbytes = 0;
};

// A counter that this program waits on, and how far it gets in one run.
struct Counter {
  std::int32_t peer = -1;
  std::int32_t sig_channel = -1;
  std::uint64_t total = 0;
};

// A rank whose memory or counters this program touches.
struct Peer {
  std::int32_t rank = -1;
  std::uint64_t extent[kBufferCount] = {0, 0, 0};  // bytes its buffers must have
  bool load_store = false;                         // read by copy or reduce
};

// What READY says about a run, and what an error quotes.
struct RunIdentity {
  std::uint64_t plan_hash = 0;
  std::uint64_t count = 0;
  Collective collective = Collective::barrier;
  DType dtype = DType::uint8;
  RedOp redop = RedOp::sum;
};

class Program {
 public:
  static constexpr std::size_t kMaxOps = std::size_t{1} << 30;

  static Result<Program> compile(const ProgramSpec& spec, const Placement& placement);

  int rank() const { return rank_; }
  int ready_channel() const { return ready_channel_; }
  const RunIdentity& identity() const { return identity_; }
  std::uint64_t bytes(Buffer buffer) const { return bytes_[static_cast<std::size_t>(buffer)]; }
  std::uint64_t output_elements() const { return output_elements_; }
  std::int64_t n_ranks_avg() const { return n_ranks_avg_; }
  Alias alias() const { return alias_; }
  std::uint64_t alias_offset() const { return alias_offset_; }
  // Partitions are numbered below this; 0: the program computes nothing.
  std::int32_t partitions() const { return partitions_; }

  std::span<const Op> ops() const { return ops_; }
  std::size_t n_channels() const { return channel_begin_.size() - 1; }
  std::uint32_t channel_begin(std::size_t channel) const { return channel_begin_[channel]; }
  std::span<const Source> sources(const Op& op) const { return {sources_.data() + op.src_begin, op.src_count}; }
  std::span<const Counter> counters() const { return counters_; }
  std::span<const Peer> peers() const { return peers_; }
  std::span<const ReadyTo> ready_to() const { return ready_to_; }
  // In-flight counts of a channel are those with index in [flight_begin(channel), flight_begin(channel + 1)).
  std::uint32_t flight_begin(std::size_t channel) const { return flight_begin_[channel]; }
  std::uint32_t n_flights() const { return flight_begin_.back(); }
  std::uint32_t max_sources() const { return max_sources_; }
  // Whether a run changes bytes of this rank's buffers: its own ops do, or peers may.
  bool writes() const { return writes_; }

 private:
  friend class ProgramBuilder;

  int rank_ = 0;
  int ready_channel_ = 0;
  RunIdentity identity_;
  std::uint64_t bytes_[kBufferCount] = {0, 0, 0};
  std::uint64_t output_elements_ = 0;
  std::int64_t n_ranks_avg_ = 1;
  Alias alias_ = Alias::none;
  std::uint64_t alias_offset_ = 0;
  std::int32_t partitions_ = 0;
  std::uint32_t max_sources_ = 1;
  bool writes_ = false;
  std::vector<Op> ops_;
  std::vector<std::uint32_t> channel_begin_;
  std::vector<std::uint32_t> flight_begin_;
  std::vector<Source> sources_;
  std::vector<Counter> counters_;
  std::vector<Peer> peers_;
  std::vector<ReadyTo> ready_to_;
};

// Checks the columns against the placement; what compile does first.
Status validate(const ProgramSpec& spec, const Placement& placement);

}  // namespace ccl_lab
