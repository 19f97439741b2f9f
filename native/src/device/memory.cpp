// What this rank shows of its GPU's memory; see memory.hpp. importer.cpp has the other side.
#include "device/memory.hpp"

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace ccl_lab::device {

using cuda::DevicePtr;
using cuda::kSuccess;

namespace {

std::string at_of(DevicePtr data, std::uint64_t nbytes) {
  char text[64];
  std::snprintf(text, sizeof text, "%llu bytes at 0x%llx", static_cast<unsigned long long>(nbytes), static_cast<unsigned long long>(data));
  return text;
}

// What the driver says of an address; 0 where the address, or what is asked of it, means nothing to it.
Result<std::uint64_t> attribute(const cuda::Context& context, int which, DevicePtr of) {
  std::uint64_t value = 0;  // as large as any of them
  const cuda::CuResult result = context.api().pointer_attribute(&value, which, of);
  if (result == kSuccess) return value;
  if (result == cuda::kInvalidValue) return std::uint64_t{0};
  return status_of(context.api(), result, "asking about memory at " + at_of(of, 0));
}

// Where the memory behind `data` ends: parts of the mapping API may follow each other.
Result<DevicePtr> end_of(const cuda::Context& context, DevicePtr end, DevicePtr wanted) {
  while (end < wanted) {
    Result<std::uint64_t> mapped = attribute(context, cuda::kPointerMapped, end);
    if (!mapped.ok()) return mapped.status();
    Result<std::uint64_t> more = *mapped != 0 ? attribute(context, cuda::kPointerMappingSize, end) : Result<std::uint64_t>(std::uint64_t{0});
    if (!more.ok()) return more.status();
    if (*more == 0) break;
    end += *more;
  }
  return end;
}

}  // namespace

Status no_stream_operations(const cuda::DeviceInfo& info) {
  return Status(Code::unsupported, "GPU " + std::to_string(info.ordinal) + " (" + info.name +
                                       ") has no stream memory operations, by which ranks signal each other: expected a GPU and driver with "
                                       "CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS (bare Linux, driver for CUDA 12 or newer)");
}

Status check_memory(const cuda::Context& context, int rank, DevicePtr data, std::uint64_t nbytes, const std::string& what) {
  const cuda::Api& api = context.api();
  const int here = context.info().ordinal;
  const std::string where = what + " (" + at_of(data, nbytes) + ")";
  unsigned type = 0;
  if (const cuda::CuResult result = api.pointer_attribute(&type, cuda::kPointerMemoryType, data); result != kSuccess) {
    const Status status = status_of(api, result, where);
    return Status(cuda::is_gone(result) ? status.code : Code::registration, status.message, rank);
  }
  if (type != cuda::kMemoryTypeDevice)
    return Status(Code::usage, where + " is memory of the host, expected memory of GPU " + std::to_string(here), rank);
  int ordinal = -1;
  if (Status status = status_of(api, api.pointer_attribute(&ordinal, cuda::kPointerDevice, data), where); !status.ok()) return status;
  if (ordinal != here)
    return Status(Code::usage, where + " lies on GPU " + std::to_string(ordinal) + ", but rank " + std::to_string(rank) + " uses GPU " +
                                   std::to_string(here) + ", that of its first call; one communicator uses one GPU a rank", rank);
  DevicePtr base = 0;
  std::size_t size = 0;
  if (Status status = status_of(api, api.memory_range(&base, &size, data), where); !status.ok()) return status;
  Result<DevicePtr> end = end_of(context, base + size, data + nbytes);
  if (!end.ok()) return end.status();
  if (data < base || data + nbytes < data || *end < data + nbytes)
    return Status(Code::bounds, where + " ends behind its allocation, which has " + std::to_string(*end - base) + " bytes; was it freed, or made smaller?",
                  rank);
  return {};
}

Exporter::~Exporter() {
  for (auto& [base, held] : held_) drop(held);
}

void Exporter::drop(Held& held) {
  Allocation& entry = page_->allocation(held.number);
  if (entry.number.load(std::memory_order_relaxed) == held.number) entry.number.store(0, std::memory_order_release);
  for (const HeldPart& part : held.parts) ::close(part.fd);
  held.parts.clear();
}

Status Exporter::check(DevicePtr data, std::uint64_t nbytes, const std::string& what) const {
  if (nbytes == 0) return {};
  const cuda::Scope scope(*context_);
  if (!scope.status().ok()) return scope.status();
  return check_memory(*context_, page_->rank(), data, nbytes, what);
}

Result<Reference> Exporter::find(DevicePtr data, std::uint64_t nbytes, const std::string& what) {
  if (nbytes == 0) return Reference{};
  if (Status status = check(data, nbytes, what); !status.ok()) return status;
  const cuda::Scope scope(*context_);
  if (!scope.status().ok()) return scope.status();
  Result<std::uint64_t> legacy = attribute(*context_, cuda::kPointerLegacyIpc, data);
  if (!legacy.ok()) return legacy.status();
  if (*legacy == 0) return find_parts(data, nbytes, what);
  DevicePtr base = 0;
  std::size_t size = 0;
  if (Status status = status_of(context_->api(), context_->api().memory_range(&base, &size, data), what); !status.ok()) return status;
  Result<std::uint64_t> id = attribute(*context_, cuda::kPointerBufferId, data);
  if (!id.ok()) return id.status();
  Result<Held*> held = hold_ipc(base, size, *id, what);
  if (!held.ok()) return held.status();
  return Reference{(*held)->number, data - base};
}

// The allocations that are held and have gone since, or were allocated anew, are withdrawn.
Result<Exporter::Held*> Exporter::hold_ipc(DevicePtr base, std::uint64_t size, std::uint64_t id, const std::string& what) {
  if (const auto found = held_.find(base); found != held_.end()) {
    if (found->second.parts.empty() && found->second.size == size && found->second.buffer_id == id && id != 0) return &found->second;
    drop(found->second);
    held_.erase(found);
  }
  if (Status status = sweep(); !status.ok()) return status;
  cuda::CuIpcHandle handle{};
  if (Status status = status_of(context_->api(), context_->api().ipc_export(&handle, base), "showing " + what + " to the other ranks"); !status.ok())
    return status;
  Held held;
  held.base = base;
  held.size = size;
  held.buffer_id = id;
  Allocation& entry = vacate();
  entry.kind = AllocationKind::ipc;
  entry.n_parts = 0;
  entry.ipc = handle;
  return publish(std::move(held), entry);
}

// Whether [from, to) of what is held is the memory that it was.
Result<bool> Exporter::unchanged(const Held& held, DevicePtr from, DevicePtr to) const {
  if (held.parts.empty()) {
    Result<std::uint64_t> id = attribute(*context_, cuda::kPointerBufferId, held.base);
    if (!id.ok()) return id.status();
    return *id == held.buffer_id;
  }
  DevicePtr at = held.base;
  for (const HeldPart& part : held.parts) {
    if (at < to && from < at + part.size) {
      Result<std::uint64_t> id = attribute(*context_, cuda::kPointerBufferId, at);
      if (!id.ok()) return id.status();
      Result<std::uint64_t> size = attribute(*context_, cuda::kPointerMappingSize, at);
      if (!size.ok()) return size.status();
      if (*id != part.buffer_id || *size != part.size) return false;
    }
    at += part.size;
  }
  return true;
}

// Withdraws what has gone.
Status Exporter::sweep() {
  for (auto it = held_.begin(); it != held_.end();) {
    Result<bool> same = unchanged(it->second, it->second.base, it->second.base + it->second.size);
    if (!same.ok()) return same.status();
    if (!*same) {
      drop(it->second);
      it = held_.erase(it);
    } else {
      ++it;
    }
  }
  return {};
}

// The entry for the next number, which nobody reads any more: the allocation that had it is shown anew when it is used again.
Allocation& Exporter::vacate() {
  for (auto it = held_.begin(); it != held_.end(); ++it) {
    if (it->second.number % kAllocations != next_number_ % kAllocations) continue;
    drop(it->second);
    held_.erase(it);
    break;
  }
  Allocation& entry = page_->allocation(next_number_);
  entry.number.exchange(0, std::memory_order_acq_rel);  // what the caller writes comes behind it
  return entry;
}

Exporter::Held* Exporter::publish(Held held, Allocation& entry) {
  held.number = next_number_++;
  entry.base = held.base;
  entry.size = held.size;
  entry.number.store(held.number, std::memory_order_release);
  const DevicePtr base = held.base;
  return &(held_[base] = std::move(held));
}

// Memory of the mapping API: a range of addresses made of parts, each of which has a descriptor.
Result<Reference> Exporter::find_parts(DevicePtr data, std::uint64_t nbytes, const std::string& what) {
  Result<std::uint64_t> types = attribute(*context_, cuda::kPointerHandleTypes, data);
  if (!types.ok()) return types.status();
  if ((*types & cuda::kHandlePosixFd) == 0)
    return Status(Code::unsupported, what + " is memory that cannot be shared between processes (of a stream-ordered pool, managed, or mapped without "
                                            "descriptors): allocate it with cudaMalloc, as torch does unless told otherwise", page_->rank());
  for (auto it = held_.begin(); it != held_.end(); ++it) {
    const Held& held = it->second;
    if (held.parts.empty() || data < held.base || held.base + held.size < data + nbytes) continue;
    Result<bool> same = unchanged(held, data, data + nbytes);
    if (!same.ok()) return same.status();
    if (*same) return Reference{held.number, data - held.base};
  }
  if (Status status = sweep(); !status.ok()) return status;
  Result<Held*> held = hold_parts(data, nbytes, what);
  if (!held.ok()) return held.status();
  return Reference{(*held)->number, data - (*held)->base};
}

Status Exporter::unclear(const std::string& what) const {
  return Status(Code::unsupported, what + ": the driver does not say of what parts this memory is made; it is too old for memory of the mapping API "
                                          "(torch: expandable_segments:False)", page_->rank());
}

Result<Exporter::Held*> Exporter::hold_parts(DevicePtr data, std::uint64_t nbytes, const std::string& what) {
  ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);  // peers take descriptors by pidfd_getfd, which Yama may forbid otherwise
  Result<std::uint64_t> base = attribute(*context_, cuda::kPointerMappingBase, data);
  if (!base.ok()) return base.status();
  if (*base == 0 || *base > data) return unclear(what);
  Held held;
  held.base = *base;
  Status status;
  while (status.ok() && held.base + held.size < data + nbytes) {
    Result<HeldPart> part = export_part(held.base + held.size, what);
    status = part.status();
    if (!part.ok()) break;
    held.size += part->size;
    held.parts.push_back(*part);
  }
  Result<std::uint32_t> first = status.ok() ? room(held.parts.size(), what) : Result<std::uint32_t>(status);
  if (!first.ok()) {
    for (const HeldPart& part : held.parts) ::close(part.fd);
    return first.status();
  }
  if (const auto found = held_.find(held.base); found != held_.end()) {
    drop(found->second);
    held_.erase(found);
  }
  held.first_part = *first;
  Allocation& entry = vacate();
  for (std::size_t i = 0; i < held.parts.size(); ++i) page_->parts()[*first + i] = {held.parts[i].fd, 0, held.parts[i].size};
  entry.kind = AllocationKind::parts;
  entry.first_part = *first;
  entry.n_parts = static_cast<std::uint32_t>(held.parts.size());
  return publish(std::move(held), entry);
}

// Where in the page so many parts fit beside those that are shown.
Result<std::uint32_t> Exporter::room(std::size_t n_parts, const std::string& what) const {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> taken;
  for (const auto& [base, held] : held_)
    if (!held.parts.empty()) taken.emplace_back(held.first_part, held.first_part + held.parts.size());
  std::sort(taken.begin(), taken.end());
  std::uint64_t at = 0;
  for (const auto& [begin, end] : taken) {
    if (at + n_parts <= begin) break;
    at = std::max(at, end);
  }
  if (at + n_parts <= kParts) return static_cast<std::uint32_t>(at);
  return Status(Code::registration, "showing " + what + " to the other ranks: " + std::to_string(n_parts) + " parts more than the " +
                                        std::to_string(kParts) + " that can be shown at once", page_->rank());
}

// The part that begins at `at`, with a descriptor of its own.
Result<Exporter::HeldPart> Exporter::export_part(DevicePtr at, const std::string& what) const {
  const cuda::Api& api = context_->api();
  HeldPart part;
  for (const auto& [which, to] : {std::pair(cuda::kPointerMappingSize, &part.size), std::pair(cuda::kPointerBufferId, &part.buffer_id)}) {
    Result<std::uint64_t> found = attribute(*context_, which, at);
    if (!found.ok()) return found.status();
    *to = *found;
  }
  Result<std::uint64_t> begin = attribute(*context_, cuda::kPointerMappingBase, at);
  if (!begin.ok()) return begin.status();
  if (part.size == 0 || *begin != at) return unclear(what);
  cuda::CuHandle handle = 0;
  const std::string doing = "showing " + what + " to the other ranks";
  if (Status status = status_of(api, api.handle_retain(&handle, reinterpret_cast<void*>(at)), doing); !status.ok()) return status;
  const Status status = status_of(api, api.handle_export(&part.fd, handle, cuda::kHandlePosixFd, 0), doing);
  api.handle_release(handle);
  if (!status.ok()) return status;
  return part;
}

}  // namespace ccl_lab::device
