// Memory of GPUs between processes: what this rank shows of its own, and what it has mapped of others'.
//
// Is: the allocation behind a pointer, exported once (CUDA IPC; where that does not fit, as with torch's expandable segments, the
//     descriptors of its parts), published in the rank's page; and the mappings of peers' allocations, opened once.
// Is not: a copy of anything, and not an allocator: memory is the user's.
//
// Invariants
//  - A pointer is looked at anew at every call: memory that was freed, is of another GPU or of the host is refused, by name; an address
//    that was allocated anew gets a new number, and peers drop what they had under the old one.
//  - Memory that has gone is withdrawn when other memory is shown: a descriptor that stays open would keep it from being freed. A range of
//    parts is the same only if every part of it is: parts are unmapped and mapped anew under an address that stays.
//  - An entry of the page is withdrawn before it is written again, and what was read of one counts only if it is still there afterwards.
//  - Mappings are closed when no stream uses them, descriptors shut with what they show.
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

// ok where [data, data + nbytes) is allocated memory of this context's GPU; `rank` and `what` are for errors. The context is current.
Status check_memory(const cuda::Context& context, int rank, cuda::DevicePtr data, std::uint64_t nbytes, const std::string& what);
// That this GPU cannot write and wait for flags.
Status no_stream_operations(const cuda::DeviceInfo& info);

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
  struct HeldPart {
    std::uint64_t size = 0;
    std::uint64_t buffer_id = 0;
    int fd = -1;
  };
  struct Held {
    std::uint64_t number = 0;
    cuda::DevicePtr base = 0;
    std::uint64_t size = 0;
    std::uint64_t buffer_id = 0;      // of a whole allocation
    std::uint32_t first_part = 0;
    std::vector<HeldPart> parts;      // of the mapping API
  };
  Result<Reference> find_parts(cuda::DevicePtr data, std::uint64_t nbytes, const std::string& what);
  Result<Held*> hold_ipc(cuda::DevicePtr base, std::uint64_t size, std::uint64_t id, const std::string& what);
  Result<Held*> hold_parts(cuda::DevicePtr data, std::uint64_t nbytes, const std::string& what);
  Result<HeldPart> export_part(cuda::DevicePtr at, const std::string& what) const;
  Result<std::uint32_t> room(std::size_t n_parts, const std::string& what) const;
  Result<bool> unchanged(const Held& held, cuda::DevicePtr from, cuda::DevicePtr to) const;
  Status sweep();
  Allocation& vacate();
  Held* publish(Held held, Allocation& entry);
  void drop(Held& held);
  Status unclear(const std::string& what) const;

  std::shared_ptr<cuda::Context> context_;
  std::shared_ptr<Page> page_;
  std::map<cuda::DevicePtr, Held> held_;  // by base
  std::uint64_t next_number_ = 1;
};

class Importer {
 public:
  // `pid`: of this process; memory of ranks that are threads of it needs no mapping.
  Importer(std::shared_ptr<cuda::Context> context, int pid) : context_(std::move(context)), pid_(pid) {}
  ~Importer();
  Importer(const Importer&) = delete;
  Importer& operator=(const Importer&) = delete;

  // The address here of what `owner` shows under `allocation`, for an access of [offset, offset + nbytes). `quiet`: no stream uses what
  // is mapped, so that what its owner has withdrawn may be closed.
  Result<cuda::DevicePtr> find(const Page& owner, std::uint64_t allocation, std::uint64_t offset, std::uint64_t nbytes, bool quiet);
  std::size_t n_mappings() const { return mappings_.size(); }

 private:
  struct Mapping {
    cuda::DevicePtr base = 0;
    std::uint64_t size = 0;
    AllocationKind kind = AllocationKind::ipc;
    bool own = false;                       // of this process: nothing to close
    std::vector<std::uint64_t> parts;       // sizes of what is mapped
  };
  // An entry of a page, copied: its owner may change it at any time.
  struct Shown {
    AllocationKind kind = AllocationKind::ipc;
    std::uint64_t base = 0;
    std::uint64_t size = 0;
    cuda::CuIpcHandle ipc{};
    std::vector<Part> parts;
  };
  Result<Shown> read(const Page& owner, std::uint64_t allocation, const std::string& what) const;
  Result<Mapping> open(const Page& owner, const Shown& shown, const std::string& what);
  Status open_ipc(const Shown& shown, Mapping& mapping, const std::string& what);
  Status open_parts(const Page& owner, const Shown& shown, Mapping& mapping, const std::string& what);
  Status map_part(int fd, cuda::DevicePtr at, std::uint64_t size, const std::string& what);
  void close(Mapping& mapping);
  void drop_withdrawn(const Page& owner);

  std::shared_ptr<cuda::Context> context_;
  int pid_;
  std::map<std::pair<int, std::uint64_t>, Mapping> mappings_;  // by owner and number
};

}  // namespace ccl_lab::device
