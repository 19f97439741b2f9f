// Allocations, their dma-bufs and what is registered of them; see direct.hpp.
#include "device/direct.hpp"

#include <unistd.h>

#include <algorithm>

#include "device/memory.hpp"

namespace ccl_lab::device {

using cuda::DevicePtr;

namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::size_t kMostParts = 4096;
constexpr std::size_t kMostHeld = 1024;

Status without(const cuda::DeviceInfo& info, const std::string& what) {
  return Status(Code::unsupported, "GPU " + std::to_string(info.ordinal) + " (" + info.name + ") " + what);
}

Status may_be_used(const cuda::DeviceInfo& info) {
  if (!info.dma_buf)
    return without(info, "has no dma-bufs, by which NICs reach its memory: expected a driver for CUDA 11.7 or newer with the open kernel modules, "
                         "Linux 5.12 or newer");
  if (info.rdma_ordering >= cuda::kRdmaOrderedForOwner || info.host_flush || info.stream_flush) return {};
  return without(info, "does not say how what NICs write becomes visible to it: expected ordered writes, or a flush by host or stream "
                       "(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS)");
}

}  // namespace

bool DirectMemory::Held::covers(const std::vector<Part>& wanted) const {
  return std::search(parts.begin(), parts.end(), wanted.begin(), wanted.end()) != parts.end();
}

Result<std::shared_ptr<DirectMemory>> DirectMemory::open(const cuda::Api& api, int ordinal, DirectOptions options) {
  Result<std::shared_ptr<cuda::Context>> context = cuda::Context::retain(api, ordinal);
  if (!context.ok()) return context.status();
  if (Status status = may_be_used((*context)->info()); !status.ok()) return Status(status.code, status.message, options.rank);
  return std::shared_ptr<DirectMemory>(new DirectMemory(std::move(context).value(), std::move(options)));
}

bool DirectMemory::forwards() const {
  const cuda::DeviceInfo& info = context_->info();
  return info.rdma_ordering >= cuda::kRdmaOrderedForAll || info.host_flush;
}

std::size_t DirectMemory::n_regions() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(std::count_if(held_.begin(), held_.end(), [](const Held& held) { return held.region.key != 0; }));
}

Result<NicRegion> DirectMemory::find(DevicePtr data, std::uint64_t nbytes, const std::string& what, bool quiet) {
  const std::lock_guard lock(mutex_);
  if (closed_) return Status(Code::usage, what + ": this communicator's memory on GPU " + std::to_string(context_->info().ordinal) + " is closed", options_.rank);
  const cuda::Scope scope(*context_);
  if (!scope.status().ok()) return scope.status();
  if (Status status = check_memory(*context_, options_.rank, data, nbytes, what); !status.ok()) return status;
  sweep(quiet);
  Result<std::vector<Part>> parts = parts_of(data, nbytes, what);
  if (!parts.ok()) return parts.status();
  for (const Held& held : held_)
    if (!held.gone && held.covers(*parts)) return held.region.key != 0 ? Result<NicRegion>(held.region) : Result<NicRegion>(held.why);
  if (held_.size() == kMostHeld)
    return Status(Code::unsupported, what + ": " + std::to_string(kMostHeld) + " other pieces of memory are registered already", options_.rank);
  Held held;
  held.parts = std::move(parts).value();
  if (Result<NicRegion> region = expose(held.parts, what); region.ok()) held.region = *region;
  else if (region.status().code != Code::unsupported) return region.status();
  else held.why = region.status();
  held_.push_back(std::move(held));
  if (held_.back().region.key == 0) return held_.back().why;
  return held_.back().region;
}

// What the driver made the memory of: one allocation, or parts of the mapping API that lie behind each other.
Result<std::vector<DirectMemory::Part>> DirectMemory::parts_of(DevicePtr data, std::uint64_t nbytes, const std::string& what) const {
  const cuda::Api& api = context_->api();
  std::vector<Part> parts;
  for (DevicePtr at = data; parts.empty() || at < data + nbytes; at = parts.back().base + parts.back().size) {
    Part part;
    std::size_t size = 0;
    cuda::CuResult result = api.memory_range(&part.base, &size, at);
    if (result == cuda::kSuccess) result = api.pointer_attribute(&part.buffer_id, cuda::kPointerBufferId, at);
    if (Status status = cuda::status_of(api, result, what); !status.ok()) return status;
    part.size = size;
    if (size == 0 || parts.size() == kMostParts)
      return Status(Code::unsupported, what + ": the driver does not say of what parts this memory is made", options_.rank);
    parts.push_back(part);
  }
  return parts;
}

// Descriptors are of whole pages, and so is what is registered; allocations need not be.
Result<NicRegion> DirectMemory::expose(const std::vector<Part>& parts, const std::string& what) const {
  const cuda::Api& api = context_->api();
  const DevicePtr begin = parts.front().base / kPage * kPage;
  const DevicePtr end = (parts.back().base + parts.back().size + kPage - 1) / kPage * kPage;
  int fd = -1;
  const cuda::CuResult result = api.range_handle(&fd, begin, end - begin, cuda::kRangeDmaBuf, 0);
  if (Status status = cuda::status_of(api, result, "a dma-buf of " + std::to_string(end - begin) + " bytes behind " + what); !status.ok())
    return cuda::is_gone(result) ? status : Status(Code::unsupported, status.message, options_.rank);
  Result<std::uint32_t> key = options_.registers(begin, end - begin, fd);
  ::close(fd);
  if (!key.ok()) return key.status();
  return NicRegion{*key, begin};
}

bool DirectMemory::lives(const Held& held) const {
  const cuda::Api& api = context_->api();
  for (const Part& part : held.parts) {
    std::uint64_t id = 0;
    if (api.pointer_attribute(&id, cuda::kPointerBufferId, part.base) != cuda::kSuccess || id != part.buffer_id) return false;
  }
  return true;
}

void DirectMemory::sweep(bool quiet) {
  for (Held& held : held_) held.gone = held.gone || !lives(held);
  if (!quiet) return;
  std::erase_if(held_, [this](const Held& held) {
    if (held.gone && held.region.key != 0) options_.deregisters(held.region.key);
    return held.gone;
  });
}

void DirectMemory::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  for (const Held& held : held_)
    if (held.region.key != 0) options_.deregisters(held.region.key);
  held_.clear();
}

}  // namespace ccl_lab::device
