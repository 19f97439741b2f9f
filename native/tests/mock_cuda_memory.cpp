// Memory of the mock: allocations, CUDA IPC, the mapping API, pages of the host; see mock_cuda.hpp.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "mock_cuda_state.hpp"

namespace ccl_lab::check::gpu {

Backing::~Backing() {
  if (fd >= 0) ::close(fd);
}

Range* Process::at(DevicePtr address) {
  auto found = ranges.upper_bound(address);
  if (found == ranges.begin()) return nullptr;
  --found;
  return address < found->second.base + found->second.size ? &found->second : nullptr;
}

namespace {

constexpr std::uint64_t kPage = 4096;
constexpr DevicePtr kHostShift = DevicePtr{1} << 60;  // registered pages have another address on the device

// What a CUDA IPC handle holds in the mock.
struct IpcWords {
  int pid;
  int fd;
  std::uint64_t size;
  std::uint64_t id;
  int device;
  int process;
};

std::shared_ptr<Backing> make_backing(std::uint64_t size, int device) {
  auto backing = std::make_shared<Backing>();
  backing->fd = ::memfd_create("mock_gpu", MFD_CLOEXEC);
  backing->size = size;
  backing->device = device;
  backing->id = machine().number();
  if (backing->fd < 0 || ::ftruncate(backing->fd, static_cast<off_t>(size)) != 0) return nullptr;
  return backing;
}

std::byte* map_fd(int fd, std::uint64_t size, void* where = nullptr) {
  void* const memory = ::mmap(where, size, PROT_READ | PROT_WRITE, MAP_SHARED | (where != nullptr ? MAP_FIXED : 0), fd, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
}

int current_device() {
  CuContext context = nullptr;
  const Api& table = api();
  // The device of the current context: pop and push leave it as it was.
  if (table.context_pop(&context) != kSuccess) return 0;
  const int device = machine().contexts.at(context)->device;
  const std::uint64_t fail_at = std::exchange(machine().fail_at, 0);
  table.context_push(context);
  --machine().calls;
  machine().fail_at = fail_at;
  return device;
}

CuResult add_parts(DevicePtr base, std::uint64_t size, int device) {
  for (std::uint64_t at = 0; at < size; at += machine().options.part_bytes) {
    const std::uint64_t bytes = std::min(machine().options.part_bytes, size - at);
    std::shared_ptr<Backing> backing = make_backing(bytes, device);
    if (!backing || map_fd(backing->fd, bytes, reinterpret_cast<void*>(base + at)) == nullptr) return kOutOfMemory;
    Range range{RangeKind::part, base + at, bytes, reinterpret_cast<std::byte*>(base + at), device, backing->id, backing, true, false, 1};
    range.allocation = base;
    here().ranges[range.base] = range;
  }
  return kSuccess;
}

CuResult memory_allocate(DevicePtr* memory, std::size_t size) {
  CCL_MOCK_ENTER("cuMemAlloc_v2");
  if (forbidden_by_capture()) return kCaptureUnsupported;
  const int device = current_device();
  if (size == 0) return kInvalidValue;
  if (machine().memory_used + size > machine().options.memory_bytes) return kOutOfMemory;
  machine().memory_used += size;
  ++machine().alive["memory"];
  if (!machine().options.legacy_ipc) {
    const std::uint64_t whole = (size + 4095) / 4096 * 4096;
    void* const place = ::mmap(nullptr, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *memory = reinterpret_cast<DevicePtr>(place);
    return add_parts(*memory, whole, device);
  }
  const std::uint64_t skew = machine().options.skew;
  std::shared_ptr<Backing> backing = make_backing(size + skew, device);
  std::byte* const data = backing ? map_fd(backing->fd, size + skew) : nullptr;
  if (data == nullptr) return kOutOfMemory;
  void* const shown = machine().options.hidden ? ::mmap(nullptr, size + skew, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : data;
  *memory = reinterpret_cast<DevicePtr>(shown) + skew;
  here().ranges[*memory] = {RangeKind::memory, *memory, size, data + skew, device, backing->id, backing, true, true, 1};
  return kSuccess;
}
CuResult memory_free(DevicePtr memory) {
  const std::lock_guard guard(machine().mutex);
  Range* range = here().at(memory);
  if (range == nullptr || range->base != memory) return kInvalidValue;
  --machine().alive["memory"];
  bool first = true;
  while (range != nullptr && (first || (range->kind == RangeKind::part && range->allocation == memory))) {
    first = false;
    const DevicePtr next = range->base + range->size;
    const bool parts = range->kind == RangeKind::part;
    machine().memory_used -= range->size;
    const std::uint64_t skew = reinterpret_cast<std::uintptr_t>(range->data) % kPage;
    if (reinterpret_cast<DevicePtr>(range->data) != range->base) ::munmap(reinterpret_cast<void*>(range->base - skew), range->size + skew);
    ::munmap(range->data - skew, range->size + skew);
    here().ranges.erase(range->base);
    range = parts ? here().at(next) : nullptr;
  }
  return kSuccess;
}
CuResult memory_range(DevicePtr* base, std::size_t* size, DevicePtr address) {
  CCL_MOCK_ENTER("cuMemGetAddressRange_v2");
  const Range* const range = here().at(address);
  if (range == nullptr) return kInvalidValue;
  *base = range->base;
  *size = range->size;
  return kSuccess;
}
CuResult pointer_attribute(void* data, int attribute, DevicePtr address) {
  CCL_MOCK_ENTER("cuPointerGetAttribute");
  const Range* const range = here().at(address);
  if (attribute == kPointerMapped) return *static_cast<int*>(data) = range != nullptr, kSuccess;
  if (range == nullptr) return kInvalidValue;
  switch (attribute) {
    case kPointerMemoryType: *static_cast<unsigned*>(data) = range->kind == RangeKind::host ? 1 : kMemoryTypeDevice; break;
    case kPointerDevice: *static_cast<int*>(data) = range->device; break;
    case kPointerBufferId: *static_cast<std::uint64_t*>(data) = range->id; break;
    case kPointerLegacyIpc: *static_cast<int*>(data) = range->legacy_ipc; break;
    case kPointerHandleTypes: *static_cast<std::uint64_t*>(data) = machine().options.shareable ? kHandlePosixFd : 0; break;
    case kPointerMappingBase: *static_cast<DevicePtr*>(data) = range->base; break;
    case kPointerMappingSize: *static_cast<std::size_t*>(data) = range->size; break;
    default: return kInvalidValue;
  }
  return kSuccess;
}

CuResult host_register(void* data, std::size_t size, unsigned) {
  CCL_MOCK_ENTER("cuMemHostRegister_v2");
  if (forbidden_by_capture()) return kCaptureUnsupported;
  const DevicePtr address = reinterpret_cast<DevicePtr>(data) + kHostShift;
  if (here().ranges.contains(address)) return kHostAlreadyRegistered;
  here().ranges[address] = {RangeKind::host, address, size, static_cast<std::byte*>(data), 0, machine().number(), nullptr, true, false, 1};
  ++machine().alive["registration"];
  return kSuccess;
}
CuResult host_unregister(void* data) {
  const std::lock_guard guard(machine().mutex);
  if (here().ranges.erase(reinterpret_cast<DevicePtr>(data) + kHostShift) == 0) return kInvalidValue;
  --machine().alive["registration"];
  return kSuccess;
}
CuResult host_device_pointer(DevicePtr* address, void* data, unsigned) {
  CCL_MOCK_ENTER("cuMemHostGetDevicePointer_v2");
  *address = reinterpret_cast<DevicePtr>(data) + kHostShift;
  return here().ranges.contains(*address) ? kSuccess : kInvalidValue;
}

// The file behind an allocation stands for its dma-buf: the mock of a NIC maps it.
CuResult range_handle(void* handle, DevicePtr address, std::size_t size, int kind, unsigned long long flags) {
  CCL_MOCK_ENTER("cuMemGetHandleForAddressRange");
  if (kind != kRangeDmaBuf || flags != 0 || address % kPage != 0 || size % kPage != 0 || size == 0) return kInvalidValue;
  const auto next = here().ranges.upper_bound(address + kPage - 1);
  Range* const range = next == here().ranges.begin() ? nullptr : &std::prev(next)->second;
  if (range == nullptr || range->backing == nullptr || !machine().options.dma_buf) return kNotSupported;
  const DevicePtr begin = range->base / kPage * kPage, end = (range->base + range->size + kPage - 1) / kPage * kPage;
  if (address != begin || address + size > end) return kNotSupported;  // of several files there is none
  const int fd = ::fcntl(range->backing->fd, F_DUPFD_CLOEXEC, 0);
  std::memcpy(handle, &fd, sizeof fd);
  return fd < 0 ? kOperatingSystem : kSuccess;
}

CuResult ipc_export(CuIpcHandle* handle, DevicePtr address) {
  CCL_MOCK_ENTER("cuIpcGetMemHandle");
  if (forbidden_by_capture()) return kCaptureUnsupported;
  const Range* const range = here().at(address);
  if (range == nullptr || range->kind != RangeKind::memory || !range->legacy_ipc) return kInvalidValue;
  const IpcWords words{::getpid(), range->backing->fd, range->size, range->id, range->device, here().pid};
  std::memcpy(handle, &words, sizeof words);
  return kSuccess;
}
CuResult ipc_open(DevicePtr* address, CuIpcHandle handle, unsigned) {
  CCL_MOCK_ENTER("cuIpcOpenMemHandle_v2");
  if (forbidden_by_capture()) return kCaptureUnsupported;
  IpcWords words{};
  std::memcpy(&words, &handle, sizeof words);
  if (words.pid == ::getpid() && words.process == here().pid) return kInvalidContext;  // a process opens no handle of its own
  for (auto& [base, range] : here().ranges)
    if (range.kind == RangeKind::ipc && range.id == words.id && range.opened_from == words.pid + words.process) return ++range.opened, ++machine().alive["ipc"], *address = base, kSuccess;
  const std::string path = "/proc/" + std::to_string(words.pid) + "/fd/" + std::to_string(words.fd);
  FILE* const file = std::fopen(path.c_str(), "r+");
  if (file == nullptr) return kInvalidHandle;
  struct stat info {};
  std::byte* const data =
      ::fstat(::fileno(file), &info) == 0 && info.st_size == static_cast<off_t>(words.size) ? map_fd(::fileno(file), words.size) : nullptr;
  std::fclose(file);
  if (data == nullptr) return kMapFailed;
  *address = reinterpret_cast<DevicePtr>(data);
  here().ranges[*address] = {RangeKind::ipc, *address, words.size, data, words.device, words.id, nullptr, true, false, 1, words.pid + words.process};
  ++machine().alive["ipc"];
  return kSuccess;
}
CuResult ipc_close(DevicePtr address) {
  const std::lock_guard guard(machine().mutex);
  const auto found = here().ranges.find(address);
  if (found == here().ranges.end() || found->second.kind != RangeKind::ipc) return kInvalidValue;
  --machine().alive["ipc"];
  if (--found->second.opened > 0) return kSuccess;
  ::munmap(found->second.data, found->second.size);
  here().ranges.erase(found);
  return kSuccess;
}

CuResult handle_retain(CuHandle* handle, void* address) {
  CCL_MOCK_ENTER("cuMemRetainAllocationHandle");
  const Range* const range = here().at(reinterpret_cast<DevicePtr>(address));
  if (range == nullptr || range->kind != RangeKind::part) return kInvalidValue;
  *handle = machine().number();
  here().handles[*handle] = range->backing;
  ++machine().alive["handle"];
  return kSuccess;
}
CuResult handle_release(CuHandle handle) {
  const std::lock_guard guard(machine().mutex);
  if (here().handles.erase(handle) == 0) return kInvalidHandle;
  --machine().alive["handle"];
  return kSuccess;
}
CuResult handle_export(void* out, CuHandle handle, int, unsigned long long) {
  CCL_MOCK_ENTER("cuMemExportToShareableHandle");
  const auto found = here().handles.find(handle);
  if (found == here().handles.end()) return kInvalidHandle;
  const int fd = ::dup(found->second->fd);
  std::memcpy(out, &fd, sizeof fd);
  return fd < 0 ? kOperatingSystem : kSuccess;
}
CuResult handle_import(CuHandle* handle, void* os, int) {
  CCL_MOCK_ENTER("cuMemImportFromShareableHandle");
  auto backing = std::make_shared<Backing>();
  struct stat info {};
  backing->fd = ::dup(static_cast<int>(reinterpret_cast<std::intptr_t>(os)));
  if (backing->fd < 0 || ::fstat(backing->fd, &info) != 0) return kInvalidValue;
  backing->size = static_cast<std::uint64_t>(info.st_size);
  *handle = machine().number();
  here().handles[*handle] = backing;
  ++machine().alive["handle"];
  return kSuccess;
}
CuResult address_reserve(DevicePtr* address, std::size_t size, std::size_t, DevicePtr, unsigned long long) {
  CCL_MOCK_ENTER("cuMemAddressReserve");
  if (forbidden_by_capture()) return kCaptureUnsupported;
  void* const place = ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  *address = reinterpret_cast<DevicePtr>(place);
  here().reserved[*address] = size;
  ++machine().alive["reservation"];
  return kSuccess;
}
// Whether anything is mapped in [at, at + size).
bool mapped_within(DevicePtr at, std::uint64_t size) {
  for (const auto& [base, range] : here().ranges)
    if (range.kind != RangeKind::host && base < at + size && at < base + range.size) return true;
  return false;
}

CuResult address_free(DevicePtr address, std::size_t size) {
  const std::lock_guard guard(machine().mutex);
  const auto found = here().reserved.find(address);
  if (found == here().reserved.end() || found->second != size || mapped_within(address, size)) return kInvalidValue;
  ::munmap(reinterpret_cast<void*>(address), size);
  here().reserved.erase(found);
  --machine().alive["reservation"];
  return kSuccess;
}
CuResult memory_map(DevicePtr at, std::size_t size, std::size_t offset, CuHandle handle, unsigned long long) {
  CCL_MOCK_ENTER("cuMemMap");
  if (forbidden_by_capture()) return kCaptureUnsupported;
  const auto found = here().handles.find(handle);
  if (found == here().handles.end() || found->second->size != size || size == 0 || offset != 0) return kInvalidValue;
  auto place = here().reserved.upper_bound(at);
  if (place == here().reserved.begin()) return kInvalidValue;
  --place;
  if (at + size > place->first + place->second || at % 4096 != 0 || mapped_within(at, size)) return kInvalidValue;
  if (map_fd(found->second->fd, size, reinterpret_cast<void*>(at)) == nullptr) return kMapFailed;
  here().ranges[at] = {RangeKind::part, at, size, reinterpret_cast<std::byte*>(at), 0, found->second->id, found->second, false, false, 1};
  ++machine().alive["mapping"];
  return kSuccess;
}
CuResult memory_unmap(DevicePtr at, std::size_t size) {
  const std::lock_guard guard(machine().mutex);
  const auto found = here().ranges.find(at);
  if (found == here().ranges.end() || found->second.size != size) return kInvalidValue;
  here().ranges.erase(found);
  ::mmap(reinterpret_cast<void*>(at), size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  --machine().alive["mapping"];
  return kSuccess;
}
CuResult memory_access(DevicePtr at, std::size_t size, const CuAccess*, std::size_t) {
  CCL_MOCK_ENTER("cuMemSetAccess");
  for (DevicePtr next = at; next < at + size;) {  // all of it must be mapped
    Range* const range = here().at(next);
    if (range == nullptr || range->kind != RangeKind::part) return kInvalidValue;
    range->accessible = true;
    next = range->base + range->size;
  }
  return kSuccess;
}

}  // namespace

void map_anew(DevicePtr address) {
  const std::lock_guard guard(machine().mutex);
  Range& range = *here().at(address);
  range.backing = make_backing(range.size, range.device);
  range.id = range.backing->id;
  map_fd(range.backing->fd, range.size, range.data);
}

std::byte* host_view(DevicePtr address) {
  const std::lock_guard guard(machine().mutex);
  Range* const range = here().at(address);
  return range == nullptr ? nullptr : range->data + (address - range->base);
}

void fill_memory(Api& api) {
  api.memory_allocate = memory_allocate;
  api.memory_free = memory_free;
  api.memory_range = memory_range;
  api.pointer_attribute = pointer_attribute;
  api.range_handle = range_handle;
  api.host_register = host_register;
  api.host_unregister = host_unregister;
  api.host_device_pointer = host_device_pointer;
  api.ipc_export = ipc_export;
  api.ipc_open = ipc_open;
  api.ipc_close = ipc_close;
  api.handle_retain = handle_retain;
  api.handle_release = handle_release;
  api.handle_export = handle_export;
  api.handle_import = handle_import;
  api.address_reserve = address_reserve;
  api.address_free = address_free;
  api.memory_map = memory_map;
  api.memory_unmap = memory_unmap;
  api.memory_access = memory_access;
}

}  // namespace ccl_lab::check::gpu
