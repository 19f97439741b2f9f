// Memory of a GPU that NICs read and write themselves: allocations of the user, registered by their dma-bufs.
//
// Is: the cache from memory to what it is called on the NICs: whole allocations, in whole pages, each registered once for all NICs of the
//     node; and whether this GPU can be used in that way at all.
// Is not: a transport: whoever opens it says what registers. Not an owner: memory is the user's.
//
// Invariants
//  - A pointer is looked at anew at every call. An allocation is known by the driver's number of each of its parts, not by its address: where
//    it was freed and the address given again, or a part mapped anew, it is another one, with another key.
//  - What has gone is deregistered at the next call at which no run is under way, and all of it by close(). Until then the driver keeps the
//    memory: a dma-buf of it is in use.
//  - What could not be registered is not tried again while it lives: why not is kept. No descriptor outlives find().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "drivers/cuda/driver.hpp"

namespace ccl_lab::device {

struct DirectOptions {
  int rank = 0;
  // The first `size` bytes of a dma-buf, which begin at `base`, on every NIC: a key for them, or unsupported and why.
  std::function<Result<std::uint32_t>(cuda::DevicePtr base, std::uint64_t size, int fd)> registers;
  std::function<void(std::uint32_t key)> deregisters;
};

// What memory is called on the NICs: a region, and where that begins.
struct NicRegion {
  std::uint32_t key = 0;
  cuda::DevicePtr base = 0;
};

class DirectMemory {
 public:
  // unsupported where this GPU has no dma-bufs, or nothing makes what NICs write visible to it: what is missing, and what to do.
  static Result<std::shared_ptr<DirectMemory>> open(const cuda::Api& api, int ordinal, DirectOptions options);
  ~DirectMemory() { close(); }
  DirectMemory(const DirectMemory&) = delete;
  DirectMemory& operator=(const DirectMemory&) = delete;

  // Where NICs find [data, data + nbytes); `what` names it in errors: "x of rank 2". `quiet`: no run is under way. unsupported where it cannot
  // be registered: it goes another way then; registration, usage, bounds where it is no memory of this GPU: the caller's mistake.
  Result<NicRegion> find(cuda::DevicePtr data, std::uint64_t nbytes, const std::string& what, bool quiet);
  // Whether a NIC may read what another one has just written.
  bool forwards() const;
  std::size_t n_regions() const;
  // Deregisters everything. Idempotent.
  void close();

 private:
  struct Part {
    cuda::DevicePtr base = 0;
    std::uint64_t size = 0;
    std::uint64_t buffer_id = 0;
    bool operator==(const Part&) const = default;
  };
  struct Held {
    std::vector<Part> parts;  // one behind the other
    NicRegion region;         // key 0: it cannot be registered,
    Status why;               // which is why
    bool gone = false;

    cuda::DevicePtr end() const { return parts.back().base + parts.back().size; }
    bool covers(const std::vector<Part>& wanted) const;
  };

  DirectMemory(std::shared_ptr<cuda::Context> context, DirectOptions options) : context_(std::move(context)), options_(std::move(options)) {}
  Result<std::vector<Part>> parts_of(cuda::DevicePtr data, std::uint64_t nbytes, const std::string& what) const;
  Result<NicRegion> expose(const std::vector<Part>& parts, const std::string& what) const;
  bool lives(const Held& held) const;
  void sweep(bool quiet);

  std::shared_ptr<cuda::Context> context_;
  DirectOptions options_;
  mutable std::mutex mutex_;  // of all below
  std::vector<Held> held_;
  bool closed_ = false;
};

}  // namespace ccl_lab::device
