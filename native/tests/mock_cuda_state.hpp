// What the mock of CUDA consists of; see mock_cuda.hpp. Shared by the parts of the mock, and by nobody else.
#pragma once

#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "mock_cuda.hpp"

namespace ccl_lab::check::gpu {

using namespace ccl_lab::cuda;

// Memory that a device has: a file, so that other processes, real or played, can map it.
struct Backing {
  int fd = -1;
  std::uint64_t size = 0;
  int device = 0;
  std::uint64_t id = 0;
  ~Backing();
};

enum class RangeKind { memory, ipc, part, host };
// Addresses of a process: [base, base + size) lie at `data` for the host.
struct Range {
  RangeKind kind = RangeKind::memory;
  DevicePtr base = 0;
  std::uint64_t size = 0;
  std::byte* data = nullptr;
  int device = 0;
  std::uint64_t id = 0;
  std::shared_ptr<Backing> backing;
  bool accessible = true;
  bool legacy_ipc = true;
  int opened = 1;
  int opened_from = 0;  // the process whose memory it is
  DevicePtr allocation = 0;  // whose part it is, by its first address
};

struct Process {
  int pid = 0;
  std::map<DevicePtr, Range> ranges;      // by base
  std::map<DevicePtr, std::uint64_t> reserved;
  std::map<CuHandle, std::shared_ptr<Backing>> handles;
  std::vector<CuContext> stack;
  CuResult sticky = kSuccess;
  bool lost = false;

  Range* at(DevicePtr address);
};

struct ContextState {
  int process = 0;
  int device = 0;
  int references = 0;
};

struct EventState {
  std::uint64_t recorded = 0;  // how often
  std::uint64_t done = 0;
  std::int64_t ns = 0;
  bool timing = true;
  int capture = 0;             // in which it was recorded last
};

struct Task {
  enum Kind { copy, write, wait, record, wait_event, kernel, graph } kind = copy;
  DevicePtr to = 0, from = 0;
  std::uint64_t nbytes = 0, done = 0, value = 0;
  EventState* event = nullptr;
  std::uint64_t version = 0;
  std::function<void(Process&)> run;
  int graph_id = 0;
  std::vector<int> lanes;  // of a graph under way
};

struct StreamState {
  int process = 0;
  std::deque<Task> tasks;
  int capture = 0;  // 0: none
  bool lane = false;  // of a graph under way
};

struct Graph {
  int id = 0;
  CuStream origin = nullptr;
  std::map<CuStream, std::vector<Task>> lanes;
  bool open = true;
};

struct Machine {
  Options options;
  std::recursive_mutex mutex;
  std::mt19937_64 random{1};
  std::map<int, Process> processes;
  std::map<CuContext, std::unique_ptr<ContextState>> contexts;
  std::map<CuStream, std::unique_ptr<StreamState>> streams;
  std::map<int, std::unique_ptr<StreamState>> lanes;
  std::map<CuEvent, std::unique_ptr<EventState>> events;
  std::vector<std::unique_ptr<EventState>> gone_events;  // tasks may refer to them still
  std::list<EventState> graph_events;
  std::map<CuModule, int> modules;
  std::map<int, Graph> graphs;
  std::map<std::string, int> alive;
  std::map<std::string, std::uint64_t> calls_of;
  std::uint64_t calls = 0, fail_at = 0, next = 1, copied = 0, kernels = 0, default_stream = 0, memory_used = 0;
  CuResult fail_with = kSuccess;
  std::string failed, fault, fail_name;
  int faults = 0;

  std::uint64_t number() { return next++; }
};

Machine& machine();
Process& here();  // of this thread's current context, or entered
int entered();
void set_fault(Process& process, const std::string& what);
StreamState* stream_of(CuStream stream);
// A capture is under way, and this thread has not said that it may allocate and map all the same.
bool forbidden_by_capture();
// The functions of kernels by name; null if there is none.
const std::function<void(const void* arguments, std::uint64_t threads)>* kernel(const std::string& name);
void enqueue(CuStream stream, Task task);

// Parts of the table.
void fill_devices(Api& api);
void fill_memory(Api& api);
void fill_streams(Api& api);

// What every function of the mock begins with.
#define CCL_MOCK_ENTER(name)                                              \
  const std::lock_guard guard(machine().mutex);                           \
  if (const CuResult injected = count_call(name); injected != kSuccess) return injected
CuResult count_call(const char* name);

}  // namespace ccl_lab::check::gpu
