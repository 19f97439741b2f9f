// What this rank has mapped of other ranks' GPU memory; see memory.hpp.
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "device/memory.hpp"

namespace ccl_lab::device {

using cuda::DevicePtr;
using cuda::kSuccess;

namespace {

// A copy of a descriptor of another process of this user.
Result<int> take_fd(int pid, int fd, const std::string& what) {
  const int process = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  const int taken = process < 0 ? -1 : static_cast<int>(::syscall(SYS_pidfd_getfd, process, fd, 0));
  const int error = errno;
  if (process >= 0) ::close(process);
  if (taken >= 0) return taken;
  return Status(Code::registration, what + ": its descriptor cannot be taken over: " + std::strerror(error) +
                                        "; expected Linux 5.6, one pid namespace and the right to trace the process "
                                        "(docker run --pid=host --cap-add=SYS_PTRACE), or torch's expandable_segments:False");
}

}  // namespace

Importer::~Importer() {
  for (auto& [key, mapping] : mappings_) close(mapping);
}

void Importer::close(Mapping& mapping) {
  if (mapping.own || mapping.base == 0) return;
  const cuda::Scope scope(*context_);
  if (!scope.status().ok()) return;
  const cuda::Api& api = context_->api();
  if (mapping.kind == AllocationKind::ipc) {
    api.ipc_close(mapping.base);
    return;
  }
  DevicePtr at = mapping.base;
  for (const std::uint64_t size : mapping.parts) {
    api.memory_unmap(at, size);
    at += size;
  }
  api.address_free(mapping.base, mapping.size);
}

void Importer::drop_withdrawn(const Page& owner) {
  for (auto it = mappings_.begin(); it != mappings_.end();) {
    const bool gone = it->first.first == owner.rank() &&
                      owner.allocation(it->first.second).number.load(std::memory_order_acquire) != it->first.second;
    if (!gone) {
      ++it;
      continue;
    }
    close(it->second);
    it = mappings_.erase(it);
  }
}

Result<DevicePtr> Importer::find(const Page& owner, std::uint64_t allocation, std::uint64_t offset, std::uint64_t nbytes, bool quiet) {
  const std::string what = "memory of rank " + std::to_string(owner.rank());
  auto found = mappings_.find({owner.rank(), allocation});
  if (found == mappings_.end()) {
    if (quiet) drop_withdrawn(owner);
    Result<Shown> shown = read(owner, allocation, what);
    if (!shown.ok()) return shown.status();
    const cuda::Scope scope(*context_);
    if (!scope.status().ok()) return scope.status();
    Result<Mapping> mapping = open(owner, *shown, what);
    if (!mapping.ok()) return mapping.status();
    // A descriptor that was shut meanwhile may have been another file's when it was taken.
    if (Result<Shown> still = read(owner, allocation, what); !still.ok()) {
      close(*mapping);
      return still.status();
    }
    found = mappings_.emplace(std::pair(owner.rank(), allocation), std::move(mapping).value()).first;
  }
  const Mapping& mapping = found->second;
  if (offset > mapping.size || nbytes > mapping.size - offset)
    return Status(Code::bounds, what + ": bytes " + std::to_string(offset) + " to " + std::to_string(offset + nbytes) +
                                    " of an allocation of " + std::to_string(mapping.size), owner.rank());
  return mapping.base + offset;
}

Result<Importer::Shown> Importer::read(const Page& owner, std::uint64_t allocation, const std::string& what) const {
  Allocation& entry = owner.allocation(allocation);
  const Status withdrawn(Code::registration, what + " was withdrawn between its call and this one: was it freed?", owner.rank());
  if (allocation == 0 || entry.number.load(std::memory_order_acquire) != allocation) return withdrawn;
  Shown shown{entry.kind, entry.base, entry.size, entry.ipc, {}};
  const std::uint64_t first = entry.first_part, n_parts = entry.n_parts;
  std::uint64_t sum = 0;
  bool sense = shown.size > 0;
  if (shown.kind == AllocationKind::parts) {
    sense = sense && n_parts > 0 && first <= kParts && n_parts <= kParts - first;
    for (std::uint64_t i = 0; sense && i < n_parts; ++i) {
      shown.parts.push_back(owner.parts()[first + i]);
      const std::uint64_t size = shown.parts.back().size;
      sense = size > 0 && size <= shown.size - sum;
      if (sense) sum += size;
    }
    sense = sense && sum == shown.size;
  } else {
    sense = sense && shown.kind == AllocationKind::ipc;
  }
  // What was read above was read before this.
  if (entry.number.fetch_add(0, std::memory_order_acq_rel) != allocation) return withdrawn;
  if (!sense) return Status(Code::registration, what + ": its page says nonsense about its parts", owner.rank());
  return shown;
}

Result<Importer::Mapping> Importer::open(const Page& owner, const Shown& shown, const std::string& what) {
  Mapping mapping;
  mapping.kind = shown.kind;
  mapping.size = shown.size;
  if (owner.pid() == pid_) {
    mapping.own = true;
    mapping.base = shown.base;
    return mapping;
  }
  Status status = shown.kind == AllocationKind::ipc ? open_ipc(shown, mapping, what) : open_parts(owner, shown, mapping, what);
  if (!status.ok()) return Status(status.code, status.message, owner.rank());
  return mapping;
}

Status Importer::open_ipc(const Shown& shown, Mapping& mapping, const std::string& what) {
  const cuda::CuResult result = context_->api().ipc_open(&mapping.base, shown.ipc, cuda::kIpcLazyPeerAccess);
  return status_of(context_->api(), result, "mapping " + what + " by CUDA IPC");
}

Status Importer::open_parts(const Page& owner, const Shown& shown, Mapping& mapping, const std::string& what) {
  const cuda::Api& api = context_->api();
  const std::string doing = "mapping " + what + " by its descriptors";
  if (Status status = status_of(api, api.address_reserve(&mapping.base, mapping.size, 0, 0, 0), doing); !status.ok()) {
    mapping.base = 0;
    return status;
  }
  DevicePtr at = mapping.base;
  Status status;
  for (const Part& part : shown.parts) {
    Result<int> fd = take_fd(owner.pid(), part.fd, what);
    status = fd.ok() ? map_part(*fd, at, part.size, doing) : fd.status();
    if (fd.ok()) ::close(*fd);
    if (!status.ok()) break;
    mapping.parts.push_back(part.size);
    at += part.size;
  }
  const cuda::CuAccess access{{cuda::kLocationDevice, context_->info().ordinal}, cuda::kAccessReadWrite};
  if (status.ok()) status = status_of(api, api.memory_access(mapping.base, mapping.size, &access, 1), doing);
  if (!status.ok()) close(mapping);
  return status;
}

Status Importer::map_part(int fd, DevicePtr at, std::uint64_t size, const std::string& what) {
  const cuda::Api& api = context_->api();
  cuda::CuHandle handle = 0;
  // The descriptor itself is passed where a pointer is declared.
  const cuda::CuResult result = api.handle_import(&handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)), cuda::kHandlePosixFd);
  if (Status status = status_of(api, result, what); !status.ok()) return status;
  Status status = status_of(api, api.memory_map(at, size, 0, handle, 0), what);
  api.handle_release(handle);  // the mapping keeps the memory
  return status;
}

}  // namespace ccl_lab::device
