// What drivers/cuda/api.hpp declares of the CUDA driver, against the header of a toolkit where there is one; and a driver that is not
// there, too old, or will not start.
#include <cstdlib>
#include <string>
#include <type_traits>

#include "check.hpp"
#include "drivers/cuda/driver.hpp"
#include "mock_cuda.hpp"

#if __has_include(<cuda.h>)
#include <cuda.h>
#define CCL_TEST_CUDA_H 1
#endif

using namespace ccl_lab;
namespace gpu = ccl_lab::check::gpu;

#ifdef CCL_TEST_CUDA_H
namespace {

// Handles are pointers to something, flags and results are ints: the same size, and the same class of register.
template <class A, class B>
constexpr bool passed_alike() {
  if constexpr (std::is_pointer_v<A> && std::is_pointer_v<B>) return true;
  else if constexpr ((std::is_integral_v<A> || std::is_enum_v<A>) && (std::is_integral_v<B> || std::is_enum_v<B>)) return sizeof(A) == sizeof(B);
  else return std::is_class_v<A> && std::is_class_v<B> && sizeof(A) == sizeof(B) && alignof(A) == alignof(B);
}
template <class A, class B>
struct Alike : std::false_type {};
template <class R, class... A, class S, class... B>
  requires(sizeof...(A) == sizeof...(B))
struct Alike<R(A...), S(B...)> : std::bool_constant<sizeof(R) == sizeof(S) && (passed_alike<A, B>() && ...)> {};

// cuda.h gives the plain names to today's functions; those of the table must be the same.
#define CCL_STRING(x) #x
#define CCL_EXPANDED(x) CCL_STRING(x)
bool is(const char* expanded, const char* wanted) { return std::string(expanded) == wanted; }

}  // namespace

#define CCL_SAME(member, plain) \
  static_assert(Alike<std::remove_pointer_t<decltype(cuda::Api::member)>, decltype(plain)>::value, #plain)

CCL_SAME(init, cuInit);
CCL_SAME(device_uuid, cuDeviceGetUuid);
CCL_SAME(device_memory, cuDeviceTotalMem);
CCL_SAME(device_attribute, cuDeviceGetAttribute);
CCL_SAME(context_retain, cuDevicePrimaryCtxRetain);
CCL_SAME(context_release, cuDevicePrimaryCtxRelease);
CCL_SAME(context_push, cuCtxPushCurrent);
CCL_SAME(memory_allocate, cuMemAlloc);
CCL_SAME(memory_copy, cuMemcpyAsync);
CCL_SAME(memory_range, cuMemGetAddressRange);
CCL_SAME(pointer_attribute, cuPointerGetAttribute);
CCL_SAME(host_register, cuMemHostRegister);
CCL_SAME(host_device_pointer, cuMemHostGetDevicePointer);
CCL_SAME(ipc_export, cuIpcGetMemHandle);
CCL_SAME(ipc_open, cuIpcOpenMemHandle);
CCL_SAME(ipc_close, cuIpcCloseMemHandle);
CCL_SAME(handle_retain, cuMemRetainAllocationHandle);
CCL_SAME(handle_export, cuMemExportToShareableHandle);
CCL_SAME(handle_import, cuMemImportFromShareableHandle);
CCL_SAME(address_reserve, cuMemAddressReserve);
CCL_SAME(address_free, cuMemAddressFree);
CCL_SAME(memory_map, cuMemMap);
CCL_SAME(memory_unmap, cuMemUnmap);
CCL_SAME(memory_access, cuMemSetAccess);
CCL_SAME(range_handle, cuMemGetHandleForAddressRange);
CCL_SAME(flush_remote_writes, cuFlushGPUDirectRDMAWrites);
CCL_SAME(stream_create, cuStreamCreateWithPriority);
CCL_SAME(stream_wait_event, cuStreamWaitEvent);
CCL_SAME(stream_write, cuStreamWriteValue64);
CCL_SAME(stream_wait, cuStreamWaitValue64);
CCL_SAME(stream_capturing, cuStreamIsCapturing);
CCL_SAME(event_create, cuEventCreate);
CCL_SAME(event_record, cuEventRecord);
CCL_SAME(event_elapsed, cuEventElapsedTime);
CCL_SAME(module_load, cuModuleLoadData);
CCL_SAME(module_function, cuModuleGetFunction);
CCL_SAME(launch, cuLaunchKernel);
static_assert(sizeof(cuda::CuIpcHandle) == sizeof(CUipcMemHandle) && sizeof(cuda::CuUuid) == sizeof(CUuuid));
static_assert(sizeof(cuda::CuAccess) == sizeof(CUmemAccessDesc) && offsetof(cuda::CuAccess, flags) == offsetof(CUmemAccessDesc, flags));

TEST(names_and_numbers_are_those_of_cuda_h) {
  CHECK(is(CCL_EXPANDED(cuDeviceTotalMem), "cuDeviceTotalMem_v2"));
  CHECK(is(CCL_EXPANDED(cuMemAlloc), "cuMemAlloc_v2"));
  CHECK(is(CCL_EXPANDED(cuMemFree), "cuMemFree_v2"));
  CHECK(is(CCL_EXPANDED(cuMemHostRegister), "cuMemHostRegister_v2"));
  CHECK(is(CCL_EXPANDED(cuMemHostGetDevicePointer), "cuMemHostGetDevicePointer_v2"));
  CHECK(is(CCL_EXPANDED(cuIpcOpenMemHandle), "cuIpcOpenMemHandle_v2"));
  CHECK(is(CCL_EXPANDED(cuStreamDestroy), "cuStreamDestroy_v2"));
  CHECK(is(CCL_EXPANDED(cuEventDestroy), "cuEventDestroy_v2"));
  CHECK(is(CCL_EXPANDED(cuCtxPushCurrent), "cuCtxPushCurrent_v2"));
  CHECK(is(CCL_EXPANDED(cuCtxPopCurrent), "cuCtxPopCurrent_v2"));
  CHECK_EQ(cuda::kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
  CHECK_EQ(cuda::kPeerUnsupported, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  CHECK_EQ(cuda::kMapFailed, CUDA_ERROR_MAP_FAILED);
  CHECK_EQ(cuda::kNotReady, CUDA_ERROR_NOT_READY);
  CHECK_EQ(cuda::kIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK_EQ(cuda::kCaptureIsolation, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  CHECK_EQ(cuda::kUnsupportedPtx, CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
  CHECK_EQ(cuda::kNeedsNewerDriver, CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER);
  CHECK_EQ(cuda::kStreamMemoryOps64, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);
  CHECK_EQ(cuda::kDmaBufSupported, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
  CHECK_EQ(cuda::kRdmaFlushOptions, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS);
  CHECK_EQ(cuda::kRdmaWritesOrdering, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING);
  CHECK_EQ(cuda::kCanFlushRemoteWrites, CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES);
  CHECK_EQ(cuda::kRangeDmaBuf, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD);
  CHECK_EQ(cuda::kFlushTargetContext, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX);
  CHECK_EQ(cuda::kFlushToAll, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES);
  CHECK_EQ(cuda::kRdmaFlushByHost, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST);
  CHECK_EQ(cuda::kRdmaOrderedForOwner, CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER);
  CHECK_EQ(cuda::kRdmaOrderedForAll, CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES);
  CHECK_EQ(cuda::kWaitFlush, CU_STREAM_WAIT_VALUE_FLUSH);
  CHECK_EQ(cuda::kPosixHandles, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
  CHECK_EQ(cuda::kPointerBufferId, CU_POINTER_ATTRIBUTE_BUFFER_ID);
  CHECK_EQ(cuda::kPointerLegacyIpc, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
  CHECK_EQ(cuda::kPointerMappingSize, CU_POINTER_ATTRIBUTE_MAPPING_SIZE);
  CHECK_EQ(cuda::kPointerHandleTypes, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES);
  CHECK_EQ(cuda::kMemoryTypeDevice, CU_MEMORYTYPE_DEVICE);
  CHECK_EQ(cuda::kHandlePosixFd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  CHECK_EQ(cuda::kAccessReadWrite, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  CHECK_EQ(cuda::kWaitGeq, CU_STREAM_WAIT_VALUE_GEQ);
  CHECK_EQ(cuda::kStreamNonBlocking, CU_STREAM_NON_BLOCKING);
  CHECK_EQ(cuda::kEventDisableTiming, CU_EVENT_DISABLE_TIMING);
  CHECK_EQ(cuda::kHostPortable | cuda::kHostDeviceMap, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
  CHECK_EQ(cuda::kCaptureActive, CU_STREAM_CAPTURE_STATUS_ACTIVE);
}
#endif

namespace {

bool says(const Status& status, Code code, const std::string& words) {
  const bool right = status.code == code && status.message.find(words) != std::string::npos;
  if (!right) check::fail(__FILE__, __LINE__, std::string(code_name(status.code)) + ": " + status.message);
  return right;
}

}  // namespace

TEST(a_driver_that_is_not_there_is_named) {
  says(cuda::open_library("libcuda_of_nowhere.so").status(), Code::unsupported, "libcuda_of_nowhere.so does not load");
  says(cuda::open_library("libc.so.6").status(), Code::unsupported, "lacks cuInit");
}

TEST(a_driver_that_is_too_old_or_will_not_start_is_named) {
  gpu::Options options;
  options.driver_version = 11040;
  gpu::start(options);
  says(cuda::start(gpu::api()), Code::unsupported, "it is for CUDA 11.4");
  gpu::start({});
  gpu::fail_call(2, cuda::kNoDevice);
  says(cuda::start(gpu::api()), Code::unsupported, "no GPU is visible");
  gpu::fail_call(2, cuda::kDriverMismatch);
  says(cuda::start(gpu::api()), Code::unsupported, "reboot");
}

TEST(devices_say_what_they_are) {
  gpu::Options options;
  options.n_devices = 3;
  gpu::start(options);
  auto found = cuda::devices(gpu::api());
  CHECK_OK(found.status());
  CHECK_EQ(found->size(), 3u);
  CHECK_EQ((*found)[2].name, std::string("Mock 2"));
  CHECK_EQ((*found)[0].capability, 90);
  says(cuda::device(gpu::api(), 3).status(), Code::usage, "GPU 3 is not here: the driver shows 3");
}

TEST(every_result_has_words) {
  gpu::start({});
  for (const cuda::CuResult result : {1, 2, 3, 4, 34, 36, 46, 100, 101, 200, 201, 205, 208, 209, 214, 217, 218, 222, 304, 400, 500, 700, 705, 709,
                                      712, 719, 800, 801, 803, 900, 901, 904, 905, 907, 999}) {
    const Status status = cuda::status_of(gpu::api(), result, "copying: rank 1");
    CHECK(!status.ok());
    CHECK(status.message.find("copying: rank 1: ") == 0);
    CHECK(status.message.find("(" + std::to_string(result)) != std::string::npos);
  }
}
