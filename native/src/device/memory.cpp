// What this rank shows of its GPU's memory; see memory.hpp. importer.cpp has the other side.
#include "device/memory.hpp"

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>

namespace ccl_lab::device {

using cuda::DevicePtr;
using cuda::kSuccess;

namespace {

std::string at_of(DevicePtr data, std::uint64_t nbytes) {
  char text[64];
  std::snprintf(text, sizeof text, "%llu bytes at 0x%llx", static_cast<unsigned long long>(nbytes), static_cast<unsigned long long>(data));
  return text;
}

}  // namespace

Exporter::~Exporter() {
  for (auto& [base, held] : held_) drop(held);
}

void Exporter::drop(Held& held) {
  Allocation& entry = page_->allocation(held.number);
  if (entry.number.load(std::memory_order_relaxed) == held.number) entry.number.store(0, std::memory_order_release);
  for (const int fd : held.fds) ::close(fd);
  held.fds.clear();
}

std::uint64_t Exporter::attribute(int which, DevicePtr of) const {
  std::uint64_t value = 0;  // as large as any of them
  return context_->api().pointer_attribute(&value, which, of) == kSuccess ? value : 0;
}

Status Exporter::check(DevicePtr data, std::uint64_t nbytes, const std::string& what) const {
  if (nbytes == 0) return {};
  const cuda::Scope scope(*context_);
  if (!scope.status().ok()) return scope.status();
  const cuda::Api& api = context_->api();
  const std::string where = what + " (" + at_of(data, nbytes) + ")";
  unsigned type = 0;
  if (Status status = status_of(api, api.pointer_attribute(&type, cuda::kPointerMemoryType, data), where); !status.ok())
    return Status(Code::registration, status.message, page_->rank());
  if (type != cuda::kMemoryTypeDevice)
    return Status(Code::usage, where + " is memory of the host, expected memory of GPU " + std::to_string(context_->info().ordinal), page_->rank());
  int ordinal = -1;
  if (Status status = status_of(api, api.pointer_attribute(&ordinal, cuda::kPointerDevice, data), where); !status.ok()) return status;
  if (ordinal != context_->info().ordinal)
    return Status(Code::usage, where + " lies on GPU " + std::to_string(ordinal) + ", but rank " + std::to_string(page_->rank()) +
                                   " uses GPU " + std::to_string(context_->info().ordinal) +
                                   ", that of its first call; one communicator uses one GPU a rank", page_->rank());
  DevicePtr base = 0;
  std::size_t size = 0;
  if (Status status = status_of(api, api.memory_range(&base, &size, data), where); !status.ok()) return status;
  DevicePtr end = base + size;
  while (end < data + nbytes && attribute(cuda::kPointerMapped, end) != 0) {
    const std::uint64_t more = attribute(cuda::kPointerMappingSize, end);
    if (more == 0) break;
    end += more;
  }
  if (data < base || end < data + nbytes)
    return Status(Code::bounds, where + " ends behind its allocation, which has " + std::to_string(end - base) + " bytes; was it freed, or made smaller?",
                  page_->rank());
  return {};
}

Result<Reference> Exporter::find(DevicePtr data, std::uint64_t nbytes, const std::string& what) {
  if (nbytes == 0) return Reference{};
  if (Status status = check(data, nbytes, what); !status.ok()) return status;
  const cuda::Scope scope(*context_);
  if (!scope.status().ok()) return scope.status();
  if (attribute(cuda::kPointerLegacyIpc, data) == 0) return find_parts(data, nbytes, what);
  DevicePtr base = 0;
  std::size_t size = 0;
  if (Status status = status_of(context_->api(), context_->api().memory_range(&base, &size, data), what); !status.ok()) return status;
  Result<Held*> held = hold_ipc(base, size, attribute(cuda::kPointerBufferId, data), what);
  if (!held.ok()) return held.status();
  return Reference{(*held)->number, data - base};
}

// The allocations that are held and have gone since, or were allocated anew, are withdrawn.
Result<Exporter::Held*> Exporter::hold_ipc(DevicePtr base, std::uint64_t size, std::uint64_t id, const std::string& what) {
  if (const auto found = held_.find(base); found != held_.end()) {
    if (found->second.size == size && found->second.buffer_id == id) return &found->second;
    drop(found->second);
    held_.erase(found);
  }
  Allocation& entry = page_->allocation(next_number_);
  cuda::CuIpcHandle handle{};
  if (Status status = status_of(context_->api(), context_->api().ipc_export(&handle, base), "showing " + what + " to the other ranks"); !status.ok())
    return status;
  entry.kind = AllocationKind::ipc;
  entry.n_parts = 0;
  entry.ipc = handle;
  return publish({0, base, size, id, {}}, entry);
}

Result<Exporter::Held*> Exporter::publish(Held held, Allocation& entry) {
  held.number = next_number_++;
  // A number whose slot is taken is that of the oldest allocation: it is shown anew when it is used again.
  for (auto it = held_.begin(); it != held_.end(); ++it) {
    if (it->second.number % kAllocations != held.number % kAllocations) continue;
    drop(it->second);
    held_.erase(it);
    break;
  }
  entry.base = held.base;
  entry.size = held.size;
  entry.number.store(held.number, std::memory_order_release);
  const DevicePtr base = held.base;
  return &(held_[base] = std::move(held));
}

// Memory of the mapping API: a range of addresses made of parts, each of which has a descriptor.
Result<Reference> Exporter::find_parts(DevicePtr data, std::uint64_t nbytes, const std::string& what) {
  if ((attribute(cuda::kPointerHandleTypes, data) & cuda::kHandlePosixFd) == 0)
    return Status(Code::unsupported, what + " is memory that cannot be shared between processes (of a stream-ordered pool, managed, or mapped without "
                                            "descriptors): allocate it with cudaMalloc, as torch does unless told otherwise", page_->rank());
  const std::uint64_t id = attribute(cuda::kPointerBufferId, data);
  for (auto& [base, held] : held_)
    if (!held.fds.empty() && base <= data && data + nbytes <= base + held.size && held.buffer_id == id && attribute(cuda::kPointerMappingBase, data) >= base)
      return Reference{held.number, data - base};
  Result<Held*> held = hold_parts(data, nbytes, id, what);
  if (!held.ok()) return held.status();
  return Reference{(*held)->number, data - (*held)->base};
}

Result<Exporter::Held*> Exporter::hold_parts(DevicePtr data, std::uint64_t nbytes, std::uint64_t id, const std::string& what) {
  ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);  // peers take descriptors by pidfd_getfd, which Yama may forbid otherwise
  Held held;
  held.base = attribute(cuda::kPointerMappingBase, data);
  held.buffer_id = id;
  if (held.base == 0) held.base = data;
  if (const auto found = held_.find(held.base); found != held_.end()) {
    drop(found->second);
    held_.erase(found);
  }
  Allocation& entry = page_->allocation(next_number_);
  entry.first_part = next_part_;
  Status status;
  while (status.ok() && held.base + held.size < data + nbytes) {
    std::uint64_t mapped = 0;
    status = export_part(held.base + held.size, held, mapped, what);
    held.size += mapped;
  }
  if (!status.ok()) {
    for (const int fd : held.fds) ::close(fd);
    return status;
  }
  entry.kind = AllocationKind::parts;
  entry.n_parts = static_cast<std::uint32_t>(held.fds.size());
  next_part_ = entry.first_part + entry.n_parts;
  return publish(std::move(held), entry);
}

Status Exporter::export_part(DevicePtr at, Held& held, std::uint64_t& mapped, const std::string& what) {
  const cuda::Api& api = context_->api();
  const std::size_t index = next_part_ + held.fds.size();
  if (index >= kParts)
    return Status(Code::registration, "showing " + what + " to the other ranks: more than " + std::to_string(kParts) + " parts of memory were shown", page_->rank());
  mapped = attribute(cuda::kPointerMappingSize, at);
  if (mapped == 0)
    return Status(Code::unsupported, what + ": the driver does not say of what parts this memory is made; it is too old for memory of the mapping API "
                                            "(torch: expandable_segments:False)", page_->rank());
  cuda::CuHandle handle = 0;
  const std::string doing = "showing " + what + " to the other ranks";
  if (Status status = status_of(api, api.handle_retain(&handle, reinterpret_cast<void*>(at)), doing); !status.ok()) return status;
  int fd = -1;
  Status status = status_of(api, api.handle_export(&fd, handle, cuda::kHandlePosixFd, 0), doing);
  api.handle_release(handle);
  if (!status.ok()) return status;
  held.fds.push_back(fd);
  page_->parts()[index] = {fd, 0, mapped};
  return {};
}

}  // namespace ccl_lab::device
