// The seam to the CUDA driver: what of libcuda.so.1 the project calls, declared here, so that no toolkit is needed to build.
//
// Is: the driver's ABI (types, constants, a table of its functions), and the table of this machine's library, loaded when asked for.
// Is not: a wrapper: results are the driver's numbers. Status and owners of what was made are in driver.hpp.
//
// Invariants
//  - The table is the only way to the driver, so a test that fills it with functions of its own sees every call.
//  - Names with a suffix (_v2) are those that cuda.h gives to callers today; tests/test_cuda_abi.cpp compares all of this with
//    cuda.h where there is a toolkit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.hpp"

namespace ccl_lab::cuda {

using CuResult = int;  // CUresult
using CuDevice = int;
using DevicePtr = std::uint64_t;  // CUdeviceptr
using CuHandle = unsigned long long;  // CUmemGenericAllocationHandle

struct CuContextOpaque;
struct CuStreamOpaque;
struct CuEventOpaque;
struct CuModuleOpaque;
struct CuFunctionOpaque;
using CuContext = CuContextOpaque*;
using CuStream = CuStreamOpaque*;
using CuEvent = CuEventOpaque*;
using CuModule = CuModuleOpaque*;
using CuFunction = CuFunctionOpaque*;

struct CuUuid {
  char bytes[16];
  bool operator==(const CuUuid&) const = default;
};
struct CuIpcHandle {
  char reserved[64];
};
struct CuLocation {
  int type;  // kLocationDevice
  int id;
};
struct CuAccess {
  CuLocation location;
  int flags;  // kAccessReadWrite
};

// CUresult, those that mean something here.
inline constexpr CuResult kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kNotInitialized = 3, kDeinitialized = 4, kStubLibrary = 34, kDeviceUnavailable = 46,
                          kNeedsNewerDriver = 36, kNoDevice = 100, kInvalidDevice = 101, kInvalidImage = 200, kInvalidContext = 201,
                          kMapFailed = 205, kAlreadyMapped = 208, kNoBinary = 209, kEccUncorrectable = 214, kPeerUnsupported = 217, kNvlinkUncorrectable = 220,
                          kInvalidPtx = 218, kUnsupportedPtx = 222, kOperatingSystem = 304, kInvalidHandle = 400, kNotFound = 500,
                          kNotReady = 600, kIllegalAddress = 700, kPeerAlreadyEnabled = 704, kPeerNotEnabled = 705,
                          kContextDestroyed = 709, kHostAlreadyRegistered = 712, kHardwareStack = 714, kLaunchFailed = 719, kNotPermitted = 800,
                          kNotSupported = 801, kDriverMismatch = 803, kCaptureUnsupported = 900, kCaptureInvalidated = 901,
                          kCaptureUnjoined = 904, kCaptureIsolation = 905, kCapturedEvent = 907, kUnknown = 999;

// CUdevice_attribute.
inline constexpr int kMultiprocessors = 16, kAsyncEngines = 40, kUnifiedAddressing = 41, kCapabilityMajor = 75, kCapabilityMinor = 76,
                     kCanFlushRemoteWrites = 98, kVirtualMemory = 102, kPosixHandles = 103, kRdmaFlushOptions = 117, kRdmaWritesOrdering = 118,
                     kStreamMemoryOps64 = 122, kDmaBufSupported = 124;
// CUpointer_attribute.
inline constexpr int kPointerMemoryType = 2, kPointerBufferId = 7, kPointerDevice = 9, kPointerLegacyIpc = 10, kPointerMapped = 13,
                     kPointerHandleTypes = 14, kPointerMappingSize = 18,
                     kPointerMappingBase = 19;
inline constexpr unsigned kMemoryTypeDevice = 2;
// Flags.
inline constexpr unsigned kStreamNonBlocking = 1, kEventDefault = 0, kEventDisableTiming = 2, kIpcLazyPeerAccess = 1, kHostPortable = 1,
                          kHostDeviceMap = 2, kWaitGeq = 0, kWaitFlush = 1u << 30, kWriteDefault = 0;
inline constexpr int kHandlePosixFd = 1, kLocationDevice = 1, kAccessReadWrite = 3, kCaptureNone = 0, kCaptureActive = 1,
                     kCaptureRelaxed = 2, kRangeDmaBuf = 1, kFlushTargetContext = 0, kFlushToAll = 200, kRdmaFlushByHost = 1,
                     kRdmaOrderedForOwner = 100, kRdmaOrderedForAll = 200;

// X(member, symbol, parameters): every function that is called.
#define CCL_LAB_CUDA_CALLS(X)                                                                                              \
  X(init, cuInit, (unsigned))                                                                                              \
  X(driver_version, cuDriverGetVersion, (int*))                                                                            \
  X(error_name, cuGetErrorName, (CuResult, const char**))                                                                  \
  X(error_string, cuGetErrorString, (CuResult, const char**))                                                              \
  X(device_count, cuDeviceGetCount, (int*))                                                                                \
  X(device_get, cuDeviceGet, (CuDevice*, int))                                                                             \
  X(device_name, cuDeviceGetName, (char*, int, CuDevice))                                                                  \
  X(device_uuid, cuDeviceGetUuid_v2, (CuUuid*, CuDevice))                                                                  \
  X(device_memory, cuDeviceTotalMem_v2, (std::size_t*, CuDevice))                                                          \
  X(device_attribute, cuDeviceGetAttribute, (int*, int, CuDevice))                                                         \
  X(can_access_peer, cuDeviceCanAccessPeer, (int*, CuDevice, CuDevice))                                                    \
  X(context_retain, cuDevicePrimaryCtxRetain, (CuContext*, CuDevice))                                                      \
  X(context_release, cuDevicePrimaryCtxRelease_v2, (CuDevice))                                                             \
  X(context_push, cuCtxPushCurrent_v2, (CuContext))                                                                        \
  X(context_pop, cuCtxPopCurrent_v2, (CuContext*))                                                                         \
  X(memory_allocate, cuMemAlloc_v2, (DevicePtr*, std::size_t))                                                             \
  X(memory_free, cuMemFree_v2, (DevicePtr))                                                                                \
  X(memory_copy, cuMemcpyAsync, (DevicePtr, DevicePtr, std::size_t, CuStream))                                             \
  X(memory_range, cuMemGetAddressRange_v2, (DevicePtr*, std::size_t*, DevicePtr))                                          \
  X(pointer_attribute, cuPointerGetAttribute, (void*, int, DevicePtr))                                                     \
  X(host_register, cuMemHostRegister_v2, (void*, std::size_t, unsigned))                                                   \
  X(host_unregister, cuMemHostUnregister, (void*))                                                                         \
  X(host_device_pointer, cuMemHostGetDevicePointer_v2, (DevicePtr*, void*, unsigned))                                      \
  X(ipc_export, cuIpcGetMemHandle, (CuIpcHandle*, DevicePtr))                                                              \
  X(ipc_open, cuIpcOpenMemHandle_v2, (DevicePtr*, CuIpcHandle, unsigned))                                                  \
  X(ipc_close, cuIpcCloseMemHandle, (DevicePtr))                                                                           \
  X(handle_retain, cuMemRetainAllocationHandle, (CuHandle*, void*))                                                        \
  X(handle_release, cuMemRelease, (CuHandle))                                                                              \
  X(handle_export, cuMemExportToShareableHandle, (void*, CuHandle, int, unsigned long long))                               \
  X(handle_import, cuMemImportFromShareableHandle, (CuHandle*, void*, int))                                                \
  X(address_reserve, cuMemAddressReserve, (DevicePtr*, std::size_t, std::size_t, DevicePtr, unsigned long long))           \
  X(address_free, cuMemAddressFree, (DevicePtr, std::size_t))                                                              \
  X(memory_map, cuMemMap, (DevicePtr, std::size_t, std::size_t, CuHandle, unsigned long long))                             \
  X(memory_unmap, cuMemUnmap, (DevicePtr, std::size_t))                                                                    \
  X(memory_access, cuMemSetAccess, (DevicePtr, std::size_t, const CuAccess*, std::size_t))                                 \
  X(stream_create, cuStreamCreateWithPriority, (CuStream*, unsigned, int))                                                 \
  X(stream_destroy, cuStreamDestroy_v2, (CuStream))                                                                        \
  X(stream_wait_event, cuStreamWaitEvent, (CuStream, CuEvent, unsigned))                                                   \
  X(stream_write, cuStreamWriteValue64_v2, (CuStream, DevicePtr, std::uint64_t, unsigned))                                 \
  X(stream_wait, cuStreamWaitValue64_v2, (CuStream, DevicePtr, std::uint64_t, unsigned))                                   \
  X(stream_capturing, cuStreamIsCapturing, (CuStream, int*))                                                               \
  X(capture_mode, cuThreadExchangeStreamCaptureMode, (int*))                                                               \
  X(event_create, cuEventCreate, (CuEvent*, unsigned))                                                                     \
  X(event_destroy, cuEventDestroy_v2, (CuEvent))                                                                           \
  X(event_record, cuEventRecord, (CuEvent, CuStream))                                                                      \
  X(event_query, cuEventQuery, (CuEvent))                                                                                  \
  X(event_synchronize, cuEventSynchronize, (CuEvent))                                                                      \
  X(event_elapsed, cuEventElapsedTime, (float*, CuEvent, CuEvent))                                                         \
  X(module_load, cuModuleLoadData, (CuModule*, const void*))                                                               \
  X(module_unload, cuModuleUnload, (CuModule))                                                                             \
  X(module_function, cuModuleGetFunction, (CuFunction*, CuModule, const char*))                                            \
  X(launch, cuLaunchKernel,                                                                                                \
    (CuFunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CuStream, void**, void**))

// Those that an older library may lack; null then, and whoever calls them says what that means.
#define CCL_LAB_CUDA_OPTIONAL(X)                                                                                           \
  X(range_handle, cuMemGetHandleForAddressRange, (void*, DevicePtr, std::size_t, int, unsigned long long))                 \
  X(flush_remote_writes, cuFlushGPUDirectRDMAWrites, (int, int))

struct Api {
#define CCL_LAB_CUDA_MEMBER(member, symbol, parameters) CuResult(*member) parameters = nullptr;
  CCL_LAB_CUDA_CALLS(CCL_LAB_CUDA_MEMBER)
  CCL_LAB_CUDA_OPTIONAL(CCL_LAB_CUDA_MEMBER)
#undef CCL_LAB_CUDA_MEMBER
};

// The driver of this machine, initialised; the same at every call. unsupported, naming what is missing and what to do: no
// library, a library too old for one of the functions (`too_old` says which), no device, or a driver that will not start.
Result<const Api*> open_library();
// The same from a library of this name, for tests and unusual places.
Result<const Api*> open_library(const char* name);

// The first driver whose library has all of CCL_LAB_CUDA_CALLS: CUDA 11.7.
inline constexpr int kLeastDriverVersion = 11070;

}  // namespace ccl_lab::cuda
