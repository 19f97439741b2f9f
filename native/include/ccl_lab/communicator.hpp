// Collectives among the ranks of one machine, for C++ programs.
//
// Is: the public face of the engine's node layer: ranks meet at a Unix socket, map each other's memory, and reduce and
//     copy in place. No thread is needed to make progress: the caller of a collective drives it.
// Is not: for ranks on several hosts (use `ccl_lab.init()` of the Python package), not safe for two threads at once.
//
//   auto comm = ccl_lab::Communicator::join(rank, 4, "/tmp/my_job.sock");
//   auto memory = comm.empty(count * sizeof(float));             // registered: peers read it in place
//   float* x = memory.as<float>();
//   comm.all_reduce(x, x, count, ccl_lab::DType::float32);       // in place
//
// Invariants
//  - All ranks call the same collectives in the same order with equal counts, types and roots; where they do not, every
//    rank gets an Error that shows both calls.
//  - Every wait ends: with the result, or with an Error (`timeout`, `peer_lost`, ...). After an Error that other ranks may
//    not have seen the communicator is broken: destroy it and join again.
//  - Buffers are `input == output` (in place; for all_gather also the rank's own block of the output, for reduce_scatter
//    its own block of the input) or do not overlap.
//  - A count is in elements: of the whole message for all_reduce, broadcast, reduce, send and recv; of one rank's block for
//    all_gather, reduce_scatter, all_to_all, gather and scatter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "ccl_lab/export.hpp"
#include "ccl_lab/schema.hpp"

namespace ccl_lab {

struct Options {
  double timeout_s = 300;                              // of one collective
  double start_timeout_s = 60;                         // until all ranks have joined
  std::int64_t spin_us = 20;                           // how long a waiting rank polls before it sleeps, where cores suffice
  std::uint32_t trace_spans = 0;                       // spans kept of this rank; 0: no tracing, else a power of two
  bool register_buffers = true;                        // ordinary buffers of large messages that come again are registered
  std::uint64_t arena_bytes = std::uint64_t{1} << 36;  // address space for registered memory, at most 2^45 / n_ranks
};

// What went wrong: what() says what was expected, found and what to try.
class CCL_LAB_API Error : public std::runtime_error {
 public:
  Error(std::string code, const std::string& message, int rank);
  ~Error() override;
  // usage, shape, dtype, config, bounds, connect, registration, peer_lost, timeout, aborted, unsupported or internal
  std::string_view code() const noexcept { return code_; }
  // The rank the error is about; -1: none in particular.
  int rank() const noexcept { return rank_; }

 private:
  std::string code_;
  int rank_;
};

// Registered memory; freed when the last copy of this is gone, also after the communicator.
class Memory {
 public:
  Memory() = default;
  Memory(std::shared_ptr<std::byte> data, std::size_t nbytes) : data_(std::move(data)), nbytes_(nbytes) {}
  std::byte* data() const { return data_.get(); }
  std::size_t nbytes() const { return nbytes_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_.get());
  }

 private:
  std::shared_ptr<std::byte> data_;
  std::size_t nbytes_ = 0;
};

// What a communicator holds and has moved so far, of this rank alone.
struct MemoryUse {
  std::uint64_t registered_bytes = 0;  // in use of the arena
  std::uint64_t registered_peak_bytes = 0;
  std::uint64_t overhead_bytes = 0;    // resident of the segment beyond registered memory: board, control, spans
  std::uint64_t read_bytes = 0;        // by the kernels that reduce and copy
  std::uint64_t written_bytes = 0;
};

class CCL_LAB_API Communicator {
 public:
  // Rank, number of ranks and meeting point from CCL_LAB_RANK, CCL_LAB_WORLD_SIZE and CCL_LAB_RENDEZVOUS, or from torchrun,
  // mpirun or srun. Throws Error `usage` where nothing says who this process is, `unsupported` for ranks of several hosts.
  static Communicator join(const Options& options = {});
  // `rendezvous`: path of a Unix socket; rank 0 makes it (mode 0600, same user only) and removes it when all have joined.
  static Communicator join(int rank, int n_ranks, const std::string& rendezvous, const Options& options = {});

  Communicator(Communicator&&) noexcept;
  Communicator& operator=(Communicator&&) noexcept;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  ~Communicator();

  int rank() const noexcept;
  int size() const noexcept;

  // Registered memory of this rank, page-aligned from 4 KiB up; zero at first, not afterwards.
  Memory empty(std::size_t nbytes);
  // Memory from elsewhere is used in place by the peers too, until unregistered. Address and content stay; the memory must
  // live until it is unregistered or the communicator is gone.
  void register_memory(void* data, std::size_t nbytes);
  void unregister_memory(void* data);

  void all_reduce(const void* input, void* output, std::size_t count, DType dtype, RedOp redop = RedOp::sum);
  void all_gather(const void* input, void* output, std::size_t count, DType dtype);
  void reduce_scatter(const void* input, void* output, std::size_t count, DType dtype, RedOp redop = RedOp::sum);
  void all_to_all(const void* input, void* output, std::size_t count, DType dtype);
  void broadcast(void* data, std::size_t count, DType dtype, int root = 0);
  // `output` counts at the root only; elsewhere it may be null.
  void reduce(const void* input, void* output, std::size_t count, DType dtype, RedOp redop = RedOp::sum, int root = 0);
  void gather(const void* input, void* output, std::size_t count, DType dtype, int root = 0);
  // `input` counts at the root only; elsewhere it may be null.
  void scatter(const void* input, void* output, std::size_t count, DType dtype, int root = 0);
  // Messages between two ranks arrive in the order they were sent; both must name the same count and type.
  void send(const void* data, std::size_t count, DType dtype, int peer);
  void recv(void* data, std::size_t count, DType dtype, int peer);
  void barrier();

  MemoryUse memory_use() const;

  // Moves up to `max_spans` of the oldest spans of this rank to `out`; returns how many. Only with Options::trace_spans.
  std::size_t take_spans(SpanRecord* out, std::size_t max_spans);
  // Spans lost because nobody took them in time.
  std::uint64_t dropped_spans() const;

 private:
  struct State;
  explicit Communicator(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace ccl_lab
