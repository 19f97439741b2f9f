// The machine of the mock, its devices, contexts and kernels; see mock_cuda.hpp.
#include <unistd.h>

#include <cstring>
#include <utility>

#include "mock_cuda_state.hpp"
#include "reduce/cuda/body.hpp"

namespace ccl_lab::check::gpu {

namespace {

Machine* the_machine = new Machine;  // a thread may use it until the process has ended
thread_local int the_process = 0;
thread_local std::vector<CuContext> current;

CuResult init(unsigned) {
  CCL_MOCK_ENTER("cuInit");
  return kSuccess;
}
CuResult driver_version(int* version) {
  CCL_MOCK_ENTER("cuDriverGetVersion");
  *version = machine().options.driver_version;
  return kSuccess;
}
CuResult error_name(CuResult, const char** name) {
  *name = "CUDA_ERROR_OF_THE_MOCK";
  return kSuccess;
}
CuResult error_string(CuResult, const char** text) {
  *text = "as asked for";
  return kSuccess;
}
CuResult device_count(int* count) {
  CCL_MOCK_ENTER("cuDeviceGetCount");
  *count = machine().options.n_devices;
  return kSuccess;
}
CuResult device_get(CuDevice* device, int ordinal) {
  CCL_MOCK_ENTER("cuDeviceGet");
  if (ordinal < 0 || ordinal >= machine().options.n_devices) return kInvalidDevice;
  *device = ordinal;
  return kSuccess;
}
CuResult device_name(char* name, int size, CuDevice device) {
  CCL_MOCK_ENTER("cuDeviceGetName");
  std::snprintf(name, static_cast<std::size_t>(size), "Mock %d", device);
  return kSuccess;
}
CuResult device_uuid(CuUuid* uuid, CuDevice device) {
  CCL_MOCK_ENTER("cuDeviceGetUuid_v2");
  std::memset(uuid, 0x40 + device, sizeof *uuid);
  return kSuccess;
}
CuResult device_memory(std::size_t* size, CuDevice) {
  CCL_MOCK_ENTER("cuDeviceTotalMem_v2");
  *size = machine().options.memory_bytes;
  return kSuccess;
}
CuResult device_attribute(int* value, int attribute, CuDevice) {
  CCL_MOCK_ENTER("cuDeviceGetAttribute");
  switch (attribute) {
    case kCapabilityMajor: *value = 9; break;
    case kCapabilityMinor: *value = 0; break;
    case kMultiprocessors: *value = 2; break;
    case kStreamMemoryOps64: *value = machine().options.stream_memory_ops; break;
    case kDmaBufSupported: *value = machine().options.dma_buf; break;
    case kRdmaWritesOrdering: *value = machine().options.rdma_ordering; break;
    case kRdmaFlushOptions: *value = machine().options.rdma_flushes; break;
    case kCanFlushRemoteWrites: *value = machine().options.stream_flush; break;
    default: *value = 1;
  }
  return kSuccess;
}
CuResult can_access_peer(int* can, CuDevice, CuDevice) {
  CCL_MOCK_ENTER("cuDeviceCanAccessPeer");
  *can = machine().options.peers;
  return kSuccess;
}

CuResult context_retain(CuContext* context, CuDevice device) {
  CCL_MOCK_ENTER("cuDevicePrimaryCtxRetain");
  for (auto& [handle, state] : machine().contexts) {
    if (state->process != the_process || state->device != device) continue;
    ++state->references;
    ++machine().alive["context"];
    *context = handle;
    return kSuccess;
  }
  auto state = std::make_unique<ContextState>(ContextState{the_process, device, 1});
  *context = reinterpret_cast<CuContext>(state.get());
  machine().contexts[*context] = std::move(state);
  ++machine().alive["context"];
  return kSuccess;
}
CuResult context_release(CuDevice device) {
  const std::lock_guard guard(machine().mutex);
  for (auto& [handle, state] : machine().contexts)
    if (state->process == the_process && state->device == device && state->references > 0) {
      --state->references;
      --machine().alive["context"];
      return kSuccess;
    }
  return kInvalidContext;
}
CuResult context_push(CuContext context) {
  CCL_MOCK_ENTER("cuCtxPushCurrent_v2");
  if (!machine().contexts.contains(context)) return kInvalidContext;
  current.push_back(context);
  return kSuccess;
}
CuResult context_pop(CuContext* context) {
  const std::lock_guard guard(machine().mutex);
  if (current.empty()) return kInvalidContext;
  *context = current.back();
  current.pop_back();
  return kSuccess;
}

CuResult flush_remote_writes(int target, int scope) {
  CCL_MOCK_ENTER("cuFlushGPUDirectRDMAWrites");
  return current.empty() ? kInvalidContext : target == kFlushTargetContext && scope == kFlushToAll ? kSuccess : kInvalidValue;
}

CuResult module_load(CuModule* module, const void* image) {
  CCL_MOCK_ENTER("cuModuleLoadData");
  if (image == nullptr) return kInvalidImage;
  *module = reinterpret_cast<CuModule>(machine().number());
  machine().modules[*module] = 1;
  ++machine().alive["module"];
  return kSuccess;
}
CuResult module_unload(CuModule module) {
  const std::lock_guard guard(machine().mutex);
  if (machine().modules.erase(module) == 0) return kInvalidHandle;
  --machine().alive["module"];
  return kSuccess;
}

using Kernel = std::function<void(const void*, std::uint64_t)>;

const std::map<std::string, Kernel>& kernels() {
  static const std::map<std::string, Kernel> all = [] {
    using namespace ccl_lab::device;
    std::map<std::string, Kernel> found;
#define CCL_MOCK_KERNEL(name, Codec, Op, Finish)                                                 \
  found["ccl_lab_" #name] = [](const void* arguments, std::uint64_t threads) {                   \
    const auto& a = *static_cast<const ReduceArguments*>(arguments);                             \
    for (std::uint64_t t = 0; t < threads; ++t) Body<Codec, Op, Finish>::run(a, t, threads);     \
  };
    CCL_LAB_DEVICE_KERNELS(CCL_MOCK_KERNEL)
#undef CCL_MOCK_KERNEL
    return found;
  }();
  return all;
}

CuResult module_function(CuFunction* function, CuModule, const char* name) {
  CCL_MOCK_ENTER("cuModuleGetFunction");
  const auto found = kernels().find(name);
  if (found == kernels().end()) return kNotFound;
  *function = reinterpret_cast<CuFunction>(const_cast<Kernel*>(&found->second));
  return kSuccess;
}

// Every address of the kernel, as the host sees it.
bool translate(Process& process, ccl_lab::device::ReduceArguments& a, std::uint64_t size) {
  const auto one = [&](std::uint64_t& address) {
    Range* const range = process.at(address);
    if (range == nullptr || !range->accessible || range->base + range->size < address) return false;
    address = reinterpret_cast<std::uint64_t>(range->data + (address - range->base));
    return true;
  };
  (void)size;
  bool ok = one(a.dst);
  for (int s = 0; s < a.n_srcs; ++s) ok = ok && one(a.srcs[s]);
  return ok;
}

CuResult launch(CuFunction function, unsigned gx, unsigned, unsigned, unsigned bx, unsigned, unsigned, unsigned, CuStream stream,
                void** parameters, void**) {
  CCL_MOCK_ENTER("cuLaunchKernel");
  if (stream_of(stream) == nullptr) return kInvalidHandle;
  Task task;
  task.kind = Task::kernel;
  const auto arguments = *static_cast<const ccl_lab::device::ReduceArguments*>(parameters[0]);
  const std::uint64_t threads = std::uint64_t{gx} * bx;
  const auto* const body = reinterpret_cast<const Kernel*>(function);
  task.run = [arguments, threads, body](Process& process) {
    auto a = arguments;
    if (!translate(process, a, 0)) return set_fault(process, "a kernel at an address that is not mapped");
    (*body)(&a, threads);
    ++machine().kernels;
  };
  enqueue(stream, std::move(task));
  return kSuccess;
}

}  // namespace

Machine& machine() { return *the_machine; }
int entered() { return the_process; }
Process& here() {
  const int process = current.empty() ? the_process : machine().contexts.at(current.back())->process;
  return machine().processes[process];
}

CuResult count_call(const char* name) {
  Machine& m = machine();
  ++m.calls;
  ++m.calls_of[name];
  if (m.fail_at != 0 && (m.fail_name.empty() || m.fail_name == name) && --m.fail_at == 0) {
    m.failed = name;
    return m.fail_with;
  }
  return kSuccess;
}

void start(const Options& options) {
  current.clear();
  delete std::exchange(the_machine, new Machine);
  the_machine->options = options;
  the_machine->random.seed(options.seed);
  enter(0);
}

const Api& api() {
  static const Api table = [] {
    Api made;
    fill_devices(made);
    fill_memory(made);
    fill_streams(made);
    return made;
  }();
  return table;
}

void enter(int process) {
  the_process = process;
  machine().processes[process].pid = 1000 + process;
}

void fail_call(std::uint64_t at, CuResult result) { fail_call_of({}, at, result); }
void fail_call_of(const std::string& name, std::uint64_t at, CuResult result) {
  const std::lock_guard guard(machine().mutex);
  machine().fail_name = name;
  machine().fail_at = at;
  machine().fail_with = result;
}
std::uint64_t calls() { return machine().calls; }
std::string last_failed() { return machine().failed; }
std::uint64_t calls_of(const std::string& name) { return machine().calls_of[name]; }
std::map<std::string, int> alive() {
  const std::lock_guard guard(machine().mutex);
  std::map<std::string, int> left;
  for (const auto& [kind, count] : machine().alive)
    if (count != 0) left[kind] = count;
  return left;
}
int faults() { return machine().faults; }
std::string last_fault() { return machine().fault; }
std::uint64_t copied_bytes() { return machine().copied; }
std::uint64_t kernels_run() { return machine().kernels; }
std::uint64_t on_default_stream() { return machine().default_stream; }

void lose(int process, CuResult result) {
  const std::lock_guard guard(machine().mutex);
  machine().processes[process].sticky = result;
  machine().processes[process].lost = true;
}

void set_fault(Process& process, const std::string& what) {
  process.sticky = kIllegalAddress;
  ++machine().faults;
  machine().fault = what;
}

void fill_devices(Api& api) {
  api.init = init;
  api.driver_version = driver_version;
  api.error_name = error_name;
  api.error_string = error_string;
  api.device_count = device_count;
  api.device_get = device_get;
  api.device_name = device_name;
  api.device_uuid = device_uuid;
  api.device_memory = device_memory;
  api.device_attribute = device_attribute;
  api.can_access_peer = can_access_peer;
  api.context_retain = context_retain;
  api.context_release = context_release;
  api.context_push = context_push;
  api.context_pop = context_pop;
  api.flush_remote_writes = flush_remote_writes;
  api.module_load = module_load;
  api.module_unload = module_unload;
  api.module_function = module_function;
  api.launch = launch;
}

}  // namespace ccl_lab::check::gpu
