// Memory of GPUs between processes: what this rank shows of its own, and what it has mapped of others'.
//
// Is: the allocation behind a pointer, exported once (CUDA IPC; where that does not fit, as with torch's expandable segments, the
//     descriptors of its parts), published in the rank's page; and the mappings of peers' allocations, opened once.
// Is not: a copy of anything, and not an allocator: memory is the user's.
//
// Invariants
//  - A pointer is looked at anew at every call: memory that was freed, is of another GPU or of the host is refused, by name; an address
//    that was allocated anew gets a new number, and peers drop what they had under the old one.
//  - Mappings are closed, and descriptors shut, when their Importer or Exporter goes; no stream may use them any more.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "device/page.hpp"
#include "drivers/cuda/driver.hpp"

namespace ccl_lab::device {

// Where memory is, for peers: an allocation of its owner's page.
struct Reference {
  std::uint64_t allocation = 0;  // 0: no memory
  std::uint64_t offset = 0;
};

class Exporter {
 public:
  Exporter(std::shared_ptr<cuda::Context> context, std::shared_ptr<Page> page) : context_(std::move(context)), page_(std::move(page)) {}
  ~Exporter();
  Exporter(const Exporter&) = delete;
  Exporter& operator=(const Exporter&) = delete;

  // What [data, data + nbytes) is for peers; `what` names it in errors: "x of rank 2".
  Result<Reference> find(cuda::DevicePtr data, std::uint64_t nbytes, const std::string& what);
  // ok where it is memory of this GPU that is allocated.
  Status check(cuda::DevicePtr data, std::uint64_t nbytes, const std::string& what) const;

 private:
  struct Held {
    std::uint64_t number = 0;
    cuda::DevicePtr base = 0;
    std::uint64_t size = 0;
    std::uint64_t buffer_id = 0;
    std::vector<int> fds;
  };
  Result<Reference> find_parts(cuda::DevicePtr data, std::uint64_t nbytes, const std::string& what);
  Result<Held*> hold_ipc(cuda::DevicePtr base, std::uint64_t size, std::uint64_t id, const std::string& what);
  Result<Held*> hold_parts(cuda::DevicePtr data, std::uint64_t nbytes, std::uint64_t id, const std::string& what);
  Status export_part(cuda::DevicePtr at, Held& held, std::uint64_t& mapped, const std::string& what);
  Result<Held*> publish(Held held, Allocation& entry);
  void drop(Held& held);
  std::uint64_t attribute(int which, cuda::DevicePtr of) const;

  std::shared_ptr<cuda::Context> context_;
  std::shared_ptr<Page> page_;
  std::map<cuda::DevicePtr, Held> held_;  // by base
  std::uint64_t next_number_ = 1;
  std::uint32_t next_part_ = 0;
};

class Importer {
 public:
  // `pid`: of this process; memory of ranks that are threads of it needs no mapping.
  Importer(std::shared_ptr<cuda::Context> context, int pid) : context_(std::move(context)), pid_(pid) {}
  ~Importer();
  Importer(const Importer&) = delete;
  Importer& operator=(const Importer&) = delete;

  // The address here of what `owner` shows under `allocation`, for an access of [offset, offset + nbytes).
  Result<cuda::DevicePtr> find(const Page& owner, std::uint64_t allocation, std::uint64_t offset, std::uint64_t nbytes);
  std::size_t n_mappings() const { return mappings_.size(); }

 private:
  struct Mapping {
    cuda::DevicePtr base = 0;
    std::uint64_t size = 0;
    AllocationKind kind = AllocationKind::ipc;
    bool own = false;                       // of this process: nothing to close
    std::vector<std::uint64_t> parts;       // sizes of what is mapped
  };
  Result<Mapping> open(const Page& owner, const Allocation& entry, const std::string& what);
  Status open_ipc(const Allocation& entry, Mapping& mapping, const std::string& what);
  Status open_parts(const Page& owner, const Allocation& entry, Mapping& mapping, const std::string& what);
  Status map_part(int fd, cuda::DevicePtr at, std::uint64_t size, const std::string& what);
  void close(Mapping& mapping);
  void drop_withdrawn(const Page& owner);

  std::shared_ptr<cuda::Context> context_;
  int pid_;
  std::map<std::pair<int, std::uint64_t>, Mapping> mappings_;  // by owner and number
};

}  // namespace ccl_lab::device
