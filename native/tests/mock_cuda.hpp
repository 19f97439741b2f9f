// GPUs that are not there: the seam of drivers/cuda over memory of this process.
//
// Is: devices, processes with address spaces of their own, streams as queues that move on when they are asked to (in any order, by a
//     seed) or by a thread, copies that take several steps, events, stream memory operations, capture and replay of graphs, CUDA IPC and
//     the mapping API with descriptors, kernels run by the body that the GPU's are made of.
// Is not: a model of time, nor of caches: a write is visible when its step is done.
//
// Invariants
//  - What a real driver checks is checked: an address must be mapped in the process whose stream touches it, a handle must be alive, a
//    capture must be joined. What would be a fault on the GPU is an error of that process from then on, and counted in `faults`.
//  - Everything made is counted until it is given back (`alive`).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "drivers/cuda/api.hpp"

namespace ccl_lab::check::gpu {

struct Options {
  int n_devices = 1;
  bool peers = true;                 // devices reach each other
  bool stream_memory_ops = true;
  bool legacy_ipc = true;            // of what memory_allocate gives; else it is of the mapping API
  bool shareable = true;             // memory of the mapping API has descriptors
  std::uint64_t part_bytes = 4096;   // of the mapping API: allocations are made of such
  int driver_version = 12040;
  std::uint64_t memory_bytes = std::uint64_t{1} << 32;
  std::uint64_t seed = 1;
  bool hidden = false;               // memory of devices is nowhere the host could touch: whoever does ends the process
  std::uint64_t skew = 0;            // where in its first page an allocation begins; not with `legacy_ipc` off
  bool dma_buf = true;               // memory has dma-bufs
  int rdma_ordering = 0;             // of what NICs write: none until it is flushed,
  int rdma_flushes = 1;              // by the host,
  bool stream_flush = false;         // or by waits
  bool processes = false;            // there are real ones, and a thread that keeps the streams going
};

// A new machine: whatever was there is forgotten.
void start(const Options& options);
const cuda::Api& api();

// The process in which calls of this thread are made from now on; `pid` is its own.
void enter(int process);

// One step of one stream that can go on, chosen by the seed; false if none can.
bool progress();
// Until nothing can go on.
void settle();
// Streams of the process that are not empty.
int waiting(int process);

// The `at`-th call of the driver from now on (1: the next) fails with `result`; 0: none. How many calls there were.
void fail_call(std::uint64_t at, cuda::CuResult result);
// The same, counting only calls of the function of this name.
void fail_call_of(const std::string& name, std::uint64_t at, cuda::CuResult result);
// The process's GPU is gone: its streams stand still, and every call about them ends in `result`.
void lose(int process, cuda::CuResult result);
// Other memory under the same addresses, as when parts of the mapping API are unmapped and mapped anew: the part that holds `address`.
void map_anew(cuda::DevicePtr address);
std::uint64_t calls();
std::string last_failed();  // the name of the function that was made to fail
// Calls of one function so far, by its name in the library.
std::uint64_t calls_of(const std::string& name);

// What was made and not given back, by kind: "stream", "event", "memory", "ipc", "registration", "context", "handle", …
std::map<std::string, int> alive();
int faults();
std::string last_fault();
// Device bytes that copy engines moved, and kernels that ran.
std::uint64_t copied_bytes();
std::uint64_t kernels_run();
// Work that was enqueued on the default stream.
std::uint64_t on_default_stream();

// Memory of the current process's device, as the host sees it (for tests to fill and read); and its end.
std::byte* host_view(cuda::DevicePtr address);

// As the driver's: until the stream is empty.
cuda::CuResult synchronize(cuda::CuStream stream);

// Capture of what is enqueued on the stream; replay on a stream of the same process.
cuda::CuResult begin_capture(cuda::CuStream stream);
cuda::CuResult end_capture(cuda::CuStream stream, int* graph);
cuda::CuResult launch_graph(int graph, cuda::CuStream stream);

}  // namespace ccl_lab::check::gpu
