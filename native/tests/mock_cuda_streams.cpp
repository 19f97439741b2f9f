// Streams of the mock: queues, events, stream memory operations, capture and replay; see mock_cuda.hpp.
#include <atomic>
#include <cstring>
#include <thread>

#include "base/clock.hpp"
#include "mock_cuda_state.hpp"

namespace ccl_lab::check::gpu {

namespace {

CuStream handle_of(std::uint64_t number) { return reinterpret_cast<CuStream>(number); }

EventState* event_of(CuEvent event) {
  const auto found = machine().events.find(event);
  return found == machine().events.end() ? nullptr : found->second.get();
}

// The default stream is made when it is first used, one for each process.
StreamState* default_stream() {
  ++machine().default_stream;
  auto& state = machine().streams[handle_of(0x10000000u + static_cast<unsigned>(entered()))];
  if (!state) state = std::make_unique<StreamState>(StreamState{entered(), {}, 0, false});
  return state.get();
}

CuResult usable(const StreamState* stream) {
  if (stream == nullptr) return kInvalidHandle;
  return machine().processes[stream->process].sticky;
}

// What nothing here can bring about others may, where there are other processes; else a real driver would wait for ever.
template <class Done>
CuResult until(Done done) {
  for (;;) {
    {
      const std::lock_guard guard(machine().mutex);
      if (done()) return kSuccess;
      if (!progress() && !machine().options.processes) return kNotReady;
    }
    if (machine().options.processes) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

Graph* capture_of(const StreamState& stream) { return stream.capture == 0 ? nullptr : &machine().graphs.at(stream.capture); }

CuResult stream_create(CuStream* stream, unsigned flags, int) {
  CCL_MOCK_ENTER("cuStreamCreateWithPriority");
  if ((flags & kStreamNonBlocking) == 0) return kInvalidValue;  // it would wait for the default stream
  const int process = here().pid - 1000;
  *stream = handle_of(machine().number() + 0x1000);
  machine().streams[*stream] = std::make_unique<StreamState>(StreamState{process, {}, 0, false});
  ++machine().alive["stream"];
  return kSuccess;
}
CuResult stream_destroy(CuStream stream) {
  const std::lock_guard guard(machine().mutex);
  if (machine().streams.erase(stream) == 0) return kInvalidHandle;
  --machine().alive["stream"];
  return kSuccess;
}
CuResult stream_wait_event(CuStream stream, CuEvent event, unsigned) {
  CCL_MOCK_ENTER("cuStreamWaitEvent");
  StreamState* const state = stream_of(stream);
  EventState* const wanted = event_of(event);
  if (const CuResult bad = usable(state); bad != kSuccess || wanted == nullptr) return wanted == nullptr ? kInvalidHandle : bad;
  if (wanted->capture != 0) {
    Graph& graph = machine().graphs.at(wanted->capture);
    if (!graph.open) return kCapturedEvent;
    state->capture = wanted->capture;
  } else if (state->capture != 0) {
    return wanted->recorded == 0 ? kSuccess : kCaptureIsolation;
  }
  if (wanted->recorded == 0) return kSuccess;
  Task task;
  task.kind = Task::wait_event;
  task.event = wanted;
  task.version = wanted->recorded;
  enqueue(stream, std::move(task));
  return kSuccess;
}
CuResult memory_op(CuStream stream, DevicePtr address, std::uint64_t value, Task::Kind kind) {
  StreamState* const state = stream_of(stream);
  if (const CuResult bad = usable(state); bad != kSuccess) return bad;
  if (address % 8 != 0) return kInvalidValue;
  Task task;
  task.kind = kind;
  task.to = address;
  task.value = value;
  enqueue(stream, std::move(task));
  return kSuccess;
}
CuResult stream_write(CuStream stream, DevicePtr address, std::uint64_t value, unsigned) {
  CCL_MOCK_ENTER("cuStreamWriteValue64_v2");
  return memory_op(stream, address, value, Task::write);
}
CuResult stream_wait(CuStream stream, DevicePtr address, std::uint64_t value, unsigned flags) {
  CCL_MOCK_ENTER("cuStreamWaitValue64_v2");
  if ((flags & kWaitFlush) != 0 && !machine().options.stream_flush) return kNotSupported;
  machine().calls_of["a wait that flushes"] += (flags & kWaitFlush) != 0;
  return memory_op(stream, address, value, Task::wait);
}
CuResult stream_capturing(CuStream stream, int* status) {
  CCL_MOCK_ENTER("cuStreamIsCapturing");
  const StreamState* const state = stream_of(stream);
  if (state == nullptr) return kInvalidHandle;
  *status = state->capture != 0 ? kCaptureActive : kCaptureNone;
  return kSuccess;
}
thread_local int mode_of_thread = 0;
CuResult capture_mode(int* mode) {
  std::swap(*mode, mode_of_thread);
  return kSuccess;
}

CuResult memory_copy(DevicePtr to, DevicePtr from, std::size_t nbytes, CuStream stream) {
  CCL_MOCK_ENTER("cuMemcpyAsync");
  if (const CuResult bad = usable(stream_of(stream)); bad != kSuccess) return bad;
  Task task;
  task.kind = Task::copy;
  task.to = to;
  task.from = from;
  task.nbytes = nbytes;
  enqueue(stream, std::move(task));
  return kSuccess;
}

CuResult event_create(CuEvent* event, unsigned flags) {
  CCL_MOCK_ENTER("cuEventCreate");
  *event = reinterpret_cast<CuEvent>(machine().number() + 0x100000);
  machine().events[*event] = std::make_unique<EventState>(EventState{0, 0, 0, (flags & kEventDisableTiming) == 0, 0});
  ++machine().alive["event"];
  return kSuccess;
}
CuResult event_destroy(CuEvent event) {
  const std::lock_guard guard(machine().mutex);
  const auto found = machine().events.find(event);
  if (found == machine().events.end()) return kInvalidHandle;
  // Tasks may refer to it still: as with the driver, it goes when they are through.
  machine().gone_events.push_back(std::move(found->second));
  machine().events.erase(found);
  --machine().alive["event"];
  return kSuccess;
}
CuResult event_record(CuEvent event, CuStream stream) {
  CCL_MOCK_ENTER("cuEventRecord");
  EventState* const state = event_of(event);
  StreamState* const on = stream_of(stream);
  if (state == nullptr) return kInvalidHandle;
  if (const CuResult bad = usable(on); bad != kSuccess) return bad;
  state->capture = on->capture;
  Task task;
  task.kind = Task::record;
  task.event = state;
  task.version = ++state->recorded;
  enqueue(stream, std::move(task));
  return kSuccess;
}
CuResult event_query(CuEvent event) {
  CCL_MOCK_ENTER("cuEventQuery");
  const EventState* const state = event_of(event);
  if (state == nullptr) return kInvalidHandle;
  if (here().sticky != kSuccess) return here().sticky;
  if (state->capture != 0) return kCapturedEvent;
  if (state->done < state->recorded) progress();  // time passes for who asks
  return state->done >= state->recorded ? kSuccess : kNotReady;
}
CuResult event_synchronize(CuEvent event) {
  {
    CCL_MOCK_ENTER("cuEventSynchronize");
    if (event_of(event) == nullptr) return kInvalidHandle;
  }
  return until([event] { return event_of(event)->done >= event_of(event)->recorded; });
}
CuResult event_elapsed(float* ms, CuEvent begin, CuEvent end) {
  CCL_MOCK_ENTER("cuEventElapsedTime");
  const EventState* const from = event_of(begin);
  const EventState* const to = event_of(end);
  if (from == nullptr || to == nullptr || !from->timing || !to->timing) return kInvalidHandle;
  if (from->done < from->recorded || to->done < to->recorded) return kNotReady;
  *ms = static_cast<float>(static_cast<double>(to->ns - from->ns) * 1e-6);
  return kSuccess;
}

// Where bytes of an address are, all `nbytes` of them; null and a fault where they are not mapped.
std::byte* bytes_at(Process& process, DevicePtr address, std::uint64_t nbytes, const char* what) {
  Range* const range = process.at(address);
  std::uint64_t left = nbytes;
  DevicePtr at = address;
  for (Range* part = range; part != nullptr && part->accessible; part = process.at(at)) {
    const std::uint64_t here_bytes = part->base + part->size - at;
    if (here_bytes >= left) return range->data + (address - range->base);
    left -= here_bytes;
    at += here_bytes;
  }
  set_fault(process, std::string(what) + " at an address that is not mapped");
  return nullptr;
}

// Half of what is left, so that what races with a copy is seen to race.
bool copy_step(Process& process, Task& task) {
  const std::uint64_t left = task.nbytes - task.done;
  const std::uint64_t n = left > 64 ? left / 2 : left;
  std::byte* const to = bytes_at(process, task.to + task.done, n, "a copy to memory");
  const std::byte* const from = bytes_at(process, task.from + task.done, n, "a copy from memory");
  if (to == nullptr || from == nullptr) return true;
  std::memmove(to, from, n);
  machine().copied += n;
  task.done += n;
  return task.done == task.nbytes;
}

std::atomic_ref<std::uint64_t> word(std::byte* at) { return std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(at)); }

// The lanes of a replay, with events of their own.
void unfold(const StreamState& stream, Task& task) {
  const Graph& graph = machine().graphs.at(task.graph_id);
  std::map<std::pair<EventState*, std::uint64_t>, EventState*> own;
  for (const auto& [origin, tasks] : graph.lanes) {
    const int id = static_cast<int>(machine().number());
    auto lane = std::make_unique<StreamState>(StreamState{stream.process, {}, 0, true});
    for (Task copy : tasks) {
      if (copy.event != nullptr) {
        EventState*& fresh = own[{copy.event, copy.version}];
        if (fresh == nullptr) fresh = &machine().graph_events.emplace_back();
        copy.event = fresh;
        copy.version = 1;
      }
      lane->tasks.push_back(std::move(copy));
    }
    machine().lanes[id] = std::move(lane);
    task.lanes.push_back(id);
  }
}

bool graph_ready(Task& task) {
  for (const int lane : task.lanes)
    if (!machine().lanes.at(lane)->tasks.empty()) return false;
  return true;
}

bool can_run(StreamState& stream) {
  if (stream.tasks.empty()) return false;
  Task& task = stream.tasks.front();
  Process& process = machine().processes[stream.process];
  if (process.lost) return false;
  switch (task.kind) {
    case Task::wait: {
      std::byte* const at = bytes_at(process, task.to, 8, "a wait");
      return at == nullptr || static_cast<std::int64_t>(word(at).load() - task.value) >= 0;
    }
    case Task::wait_event: return task.event->done >= task.version;
    case Task::graph: return task.lanes.empty() || graph_ready(task);
    default: return true;
  }
}

// True if the task has ended.
bool run_step(StreamState& stream, Task& task) {
  Process& process = machine().processes[stream.process];
  switch (task.kind) {
    case Task::copy: return copy_step(process, task);
    case Task::write:
      if (std::byte* const at = bytes_at(process, task.to, 8, "a write")) word(at).store(task.value);
      return true;
    case Task::record:
      task.event->done = std::max(task.event->done, task.version);
      task.event->ns = ccl_lab::now_ns();
      return true;
    case Task::kernel: task.run(process); return true;
    case Task::graph:
      if (!task.lanes.empty()) {
        for (const int lane : task.lanes) machine().lanes.erase(lane);
        return true;
      }
      unfold(stream, task);
      return false;
    case Task::wait:
    case Task::wait_event: return true;
  }
  return true;
}

}  // namespace

bool forbidden_by_capture() {
  if (mode_of_thread == kCaptureRelaxed) return false;
  for (auto& [id, graph] : machine().graphs) {
    if (!graph.open) continue;
    set_fault(here(), "a call that invalidates a capture");
    return true;
  }
  return false;
}

StreamState* stream_of(CuStream stream) {
  if (stream == nullptr) return default_stream();
  const auto found = machine().streams.find(stream);
  return found == machine().streams.end() ? nullptr : found->second.get();
}

void enqueue(CuStream stream, Task task) {
  StreamState& state = *stream_of(stream);
  if (Graph* const graph = capture_of(state)) graph->lanes[stream].push_back(std::move(task));
  else state.tasks.push_back(std::move(task));
}

bool progress() {
  const std::lock_guard guard(machine().mutex);
  std::vector<StreamState*> ready;
  for (auto& [handle, stream] : machine().streams)
    if (can_run(*stream)) ready.push_back(stream.get());
  for (auto& [id, lane] : machine().lanes)
    if (can_run(*lane)) ready.push_back(lane.get());
  if (ready.empty()) return false;
  StreamState& chosen = *ready[machine().random() % ready.size()];
  if (run_step(chosen, chosen.tasks.front())) chosen.tasks.pop_front();
  return true;
}

void settle() {
  while (progress()) {
  }
}

int waiting(int process) {
  const std::lock_guard guard(machine().mutex);
  int n = 0;
  for (const auto& [handle, stream] : machine().streams) n += stream->process == process && !stream->tasks.empty();
  return n;
}

CuResult synchronize(CuStream stream) {
  return until([stream] { return stream_of(stream)->tasks.empty(); });
}

CuResult begin_capture(CuStream stream) {
  const std::lock_guard guard(machine().mutex);
  StreamState* const state = stream_of(stream);
  if (state == nullptr || state->capture != 0) return kInvalidValue;
  const int id = static_cast<int>(machine().number());
  machine().graphs[id] = Graph{id, stream, {}, true};
  state->capture = id;
  return kSuccess;
}

CuResult end_capture(CuStream stream, int* graph) {
  const std::lock_guard guard(machine().mutex);
  StreamState* const state = stream_of(stream);
  if (state == nullptr || state->capture == 0) return kInvalidValue;
  Graph& found = machine().graphs.at(state->capture);
  found.open = false;
  std::set<std::pair<EventState*, std::uint64_t>> waited;
  for (const auto& [lane, tasks] : found.lanes)
    for (const Task& task : tasks)
      if (task.kind == Task::wait_event) waited.emplace(task.event, task.version);
  bool joined = true;
  for (const auto& [lane, tasks] : found.lanes) {
    if (lane == found.origin || tasks.empty()) continue;
    joined = joined && tasks.back().kind == Task::record && waited.contains({tasks.back().event, tasks.back().version});
  }
  for (auto& [handle, each] : machine().streams)
    if (each->capture == found.id) each->capture = 0;
  *graph = found.id;
  return joined ? kSuccess : kCaptureUnjoined;
}

CuResult launch_graph(int graph, CuStream stream) {
  const std::lock_guard guard(machine().mutex);
  Task task;
  task.kind = Task::graph;
  task.graph_id = graph;
  enqueue(stream, std::move(task));
  return kSuccess;
}

void fill_streams(Api& api) {
  api.memory_copy = memory_copy;
  api.stream_create = stream_create;
  api.stream_destroy = stream_destroy;
  api.stream_wait_event = stream_wait_event;
  api.stream_write = stream_write;
  api.stream_wait = stream_wait;
  api.stream_capturing = stream_capturing;
  api.capture_mode = capture_mode;
  api.event_create = event_create;
  api.event_destroy = event_destroy;
  api.event_record = event_record;
  api.event_query = event_query;
  api.event_synchronize = event_synchronize;
  api.event_elapsed = event_elapsed;
}

}  // namespace ccl_lab::check::gpu
