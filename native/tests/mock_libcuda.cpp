// The mock of CUDA as a library of that name: what a process of the tests loads in the place of libcuda.so.1.
//
// Is: the functions of the seam under the driver's names, those that a user's package calls besides, and a thread that keeps the
//     streams going. MOCK_GPUS devices, 2 unless set.
// Is not: for anything but tests; memory of its devices is memory of the host.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "mock_cuda.hpp"

using namespace ccl_lab::cuda;
namespace gpu = ccl_lab::check::gpu;

namespace {

void start() {
  static const bool started = [] {
    gpu::Options options;
    const char* const devices = std::getenv("MOCK_GPUS");
    options.n_devices = devices != nullptr ? std::atoi(devices) : 2;
    options.legacy_ipc = std::getenv("MOCK_MAPPING_API") == nullptr;
    options.stream_memory_ops = std::getenv("MOCK_NO_STREAM_OPS") == nullptr;
    options.hidden = std::getenv("MOCK_HIDDEN") != nullptr;
    options.skew = options.hidden ? 512 : 0;
    options.dma_buf = std::getenv("MOCK_NO_DMA_BUF") == nullptr;
    options.processes = true;
    gpu::start(options);
    std::thread([] {
      for (;;)
        if (!gpu::progress()) std::this_thread::sleep_for(std::chrono::microseconds(20));
    }).detach();
    return true;
  }();
  (void)started;
}

const Api& api() {
  start();
  return gpu::api();
}

}  // namespace

#define CCL_MOCK_EXPORT extern "C" __attribute__((visibility("default"))) CuResult

CCL_MOCK_EXPORT cuInit(unsigned a0) { return api().init(a0); }
CCL_MOCK_EXPORT cuDriverGetVersion(int* a0) { return api().driver_version(a0); }
CCL_MOCK_EXPORT cuGetErrorName(CuResult a0, const char** a1) { return api().error_name(a0, a1); }
CCL_MOCK_EXPORT cuGetErrorString(CuResult a0, const char** a1) { return api().error_string(a0, a1); }
CCL_MOCK_EXPORT cuDeviceGetCount(int* a0) { return api().device_count(a0); }
CCL_MOCK_EXPORT cuDeviceGet(CuDevice* a0, int a1) { return api().device_get(a0, a1); }
CCL_MOCK_EXPORT cuDeviceGetName(char* a0, int a1, CuDevice a2) { return api().device_name(a0, a1, a2); }
CCL_MOCK_EXPORT cuDeviceGetUuid_v2(CuUuid* a0, CuDevice a1) { return api().device_uuid(a0, a1); }
CCL_MOCK_EXPORT cuDeviceTotalMem_v2(std::size_t* a0, CuDevice a1) { return api().device_memory(a0, a1); }
CCL_MOCK_EXPORT cuDeviceGetAttribute(int* a0, int a1, CuDevice a2) { return api().device_attribute(a0, a1, a2); }
CCL_MOCK_EXPORT cuDeviceCanAccessPeer(int* a0, CuDevice a1, CuDevice a2) { return api().can_access_peer(a0, a1, a2); }
CCL_MOCK_EXPORT cuDevicePrimaryCtxRetain(CuContext* a0, CuDevice a1) { return api().context_retain(a0, a1); }
CCL_MOCK_EXPORT cuDevicePrimaryCtxRelease_v2(CuDevice a0) { return api().context_release(a0); }
CCL_MOCK_EXPORT cuCtxPushCurrent_v2(CuContext a0) { return api().context_push(a0); }
CCL_MOCK_EXPORT cuCtxPopCurrent_v2(CuContext* a0) { return api().context_pop(a0); }
CCL_MOCK_EXPORT cuMemAlloc_v2(DevicePtr* a0, std::size_t a1) { return api().memory_allocate(a0, a1); }
CCL_MOCK_EXPORT cuMemFree_v2(DevicePtr a0) { return api().memory_free(a0); }
CCL_MOCK_EXPORT cuMemcpyAsync(DevicePtr a0, DevicePtr a1, std::size_t a2, CuStream a3) { return api().memory_copy(a0, a1, a2, a3); }
CCL_MOCK_EXPORT cuMemGetAddressRange_v2(DevicePtr* a0, std::size_t* a1, DevicePtr a2) { return api().memory_range(a0, a1, a2); }
CCL_MOCK_EXPORT cuPointerGetAttribute(void* a0, int a1, DevicePtr a2) { return api().pointer_attribute(a0, a1, a2); }
CCL_MOCK_EXPORT cuMemGetHandleForAddressRange(void* a0, DevicePtr a1, std::size_t a2, int a3, unsigned long long a4) { return api().range_handle(a0, a1, a2, a3, a4); }
CCL_MOCK_EXPORT cuFlushGPUDirectRDMAWrites(int a0, int a1) { return api().flush_remote_writes(a0, a1); }
CCL_MOCK_EXPORT cuMemHostRegister_v2(void* a0, std::size_t a1, unsigned a2) { return api().host_register(a0, a1, a2); }
CCL_MOCK_EXPORT cuMemHostUnregister(void* a0) { return api().host_unregister(a0); }
CCL_MOCK_EXPORT cuMemHostGetDevicePointer_v2(DevicePtr* a0, void* a1, unsigned a2) { return api().host_device_pointer(a0, a1, a2); }
CCL_MOCK_EXPORT cuIpcGetMemHandle(CuIpcHandle* a0, DevicePtr a1) { return api().ipc_export(a0, a1); }
CCL_MOCK_EXPORT cuIpcOpenMemHandle_v2(DevicePtr* a0, CuIpcHandle a1, unsigned a2) { return api().ipc_open(a0, a1, a2); }
CCL_MOCK_EXPORT cuIpcCloseMemHandle(DevicePtr a0) { return api().ipc_close(a0); }
CCL_MOCK_EXPORT cuMemRetainAllocationHandle(CuHandle* a0, void* a1) { return api().handle_retain(a0, a1); }
CCL_MOCK_EXPORT cuMemRelease(CuHandle a0) { return api().handle_release(a0); }
CCL_MOCK_EXPORT cuMemExportToShareableHandle(void* a0, CuHandle a1, int a2, unsigned long long a3) { return api().handle_export(a0, a1, a2, a3); }
CCL_MOCK_EXPORT cuMemImportFromShareableHandle(CuHandle* a0, void* a1, int a2) { return api().handle_import(a0, a1, a2); }
CCL_MOCK_EXPORT cuMemAddressReserve(DevicePtr* a0, std::size_t a1, std::size_t a2, DevicePtr a3, unsigned long long a4) { return api().address_reserve(a0, a1, a2, a3, a4); }
CCL_MOCK_EXPORT cuMemAddressFree(DevicePtr a0, std::size_t a1) { return api().address_free(a0, a1); }
CCL_MOCK_EXPORT cuMemMap(DevicePtr a0, std::size_t a1, std::size_t a2, CuHandle a3, unsigned long long a4) { return api().memory_map(a0, a1, a2, a3, a4); }
CCL_MOCK_EXPORT cuMemUnmap(DevicePtr a0, std::size_t a1) { return api().memory_unmap(a0, a1); }
CCL_MOCK_EXPORT cuMemSetAccess(DevicePtr a0, std::size_t a1, const CuAccess* a2, std::size_t a3) { return api().memory_access(a0, a1, a2, a3); }
CCL_MOCK_EXPORT cuStreamCreateWithPriority(CuStream* a0, unsigned a1, int a2) { return api().stream_create(a0, a1, a2); }
CCL_MOCK_EXPORT cuStreamDestroy_v2(CuStream a0) { return api().stream_destroy(a0); }
CCL_MOCK_EXPORT cuStreamWaitEvent(CuStream a0, CuEvent a1, unsigned a2) { return api().stream_wait_event(a0, a1, a2); }
CCL_MOCK_EXPORT cuStreamWriteValue64_v2(CuStream a0, DevicePtr a1, std::uint64_t a2, unsigned a3) { return api().stream_write(a0, a1, a2, a3); }
CCL_MOCK_EXPORT cuStreamWaitValue64_v2(CuStream a0, DevicePtr a1, std::uint64_t a2, unsigned a3) { return api().stream_wait(a0, a1, a2, a3); }
CCL_MOCK_EXPORT cuStreamIsCapturing(CuStream a0, int* a1) { return api().stream_capturing(a0, a1); }
CCL_MOCK_EXPORT cuEventCreate(CuEvent* a0, unsigned a1) { return api().event_create(a0, a1); }
CCL_MOCK_EXPORT cuEventDestroy_v2(CuEvent a0) { return api().event_destroy(a0); }
CCL_MOCK_EXPORT cuEventRecord(CuEvent a0, CuStream a1) { return api().event_record(a0, a1); }
CCL_MOCK_EXPORT cuEventQuery(CuEvent a0) { return api().event_query(a0); }
CCL_MOCK_EXPORT cuEventSynchronize(CuEvent a0) { return api().event_synchronize(a0); }
CCL_MOCK_EXPORT cuEventElapsedTime(float* a0, CuEvent a1, CuEvent a2) { return api().event_elapsed(a0, a1, a2); }
CCL_MOCK_EXPORT cuModuleLoadData(CuModule* a0, const void* a1) { return api().module_load(a0, a1); }
CCL_MOCK_EXPORT cuModuleUnload(CuModule a0) { return api().module_unload(a0); }
CCL_MOCK_EXPORT cuModuleGetFunction(CuFunction* a0, CuModule a1, const char* a2) { return api().module_function(a0, a1, a2); }
CCL_MOCK_EXPORT cuLaunchKernel(CuFunction a0, unsigned a1, unsigned a2, unsigned a3, unsigned a4, unsigned a5, unsigned a6, unsigned a7, CuStream a8, void** a9, void** a10) { return api().launch(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10); }
CCL_MOCK_EXPORT cuThreadExchangeStreamCaptureMode(int* a0) { return api().capture_mode(a0); }

// What only users call.
CCL_MOCK_EXPORT cuStreamSynchronize(CuStream stream) {
  static_cast<void>(api());
  return gpu::synchronize(stream);
}
CCL_MOCK_EXPORT cuMemcpyHtoD_v2(DevicePtr to, const void* from, std::size_t nbytes) {
  std::byte* const at = gpu::host_view(to);
  return at == nullptr ? kInvalidValue : (std::memcpy(at, from, nbytes), kSuccess);
}
CCL_MOCK_EXPORT cuMemcpyDtoH_v2(void* to, DevicePtr from, std::size_t nbytes) {
  const std::byte* const at = gpu::host_view(from);
  return at == nullptr ? kInvalidValue : (std::memcpy(to, at, nbytes), kSuccess);
}
CCL_MOCK_EXPORT cuStreamBeginCapture_v2(CuStream stream, int) { return gpu::begin_capture(stream); }
CCL_MOCK_EXPORT cuStreamEndCapture(CuStream stream, void** graph) {
  int number = 0;
  const CuResult result = gpu::end_capture(stream, &number);
  *graph = reinterpret_cast<void*>(static_cast<std::intptr_t>(number));
  return result;
}
CCL_MOCK_EXPORT cuGraphInstantiateWithFlags(void** made, void* graph, unsigned long long) {
  *made = graph;
  return kSuccess;
}
CCL_MOCK_EXPORT cuGraphLaunch(void* graph, CuStream stream) {
  return gpu::launch_graph(static_cast<int>(reinterpret_cast<std::intptr_t>(graph)), stream);
}

// What only tests call: the `at`-th call of `name` fails; this process's GPU is gone; other memory under the same addresses.
CCL_MOCK_EXPORT mock_fail(const char* name, unsigned long long at, int result) {
  static_cast<void>(api());
  gpu::fail_call_of(name, at, result);
  return kSuccess;
}
CCL_MOCK_EXPORT mock_lose(int result) {
  static_cast<void>(api());
  gpu::lose(0, result);
  return kSuccess;
}
CCL_MOCK_EXPORT mock_map_anew(DevicePtr address) {
  gpu::map_anew(address);
  return kSuccess;
}
// How many things of a kind ("registration", "stream", …) were made and not given back.
CCL_MOCK_EXPORT mock_alive(const char* kind) {
  const auto left = gpu::alive();
  const auto found = left.find(kind);
  return found == left.end() ? 0 : found->second;
}
