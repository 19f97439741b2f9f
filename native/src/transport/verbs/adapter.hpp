// A NIC that is open: its device, port and GID, the memory that is registered with it, and memory to stage in.
//
// Is: the cache of registrations. A region is registered in chunks, each when it is first needed, so that of an arena much
//     larger than the machine only what is used is pinned.
// Is not: a path to anybody (link.hpp).
//
// Memory of a GPU is registered whole, by its dma-buf, in every mode: nothing of it may be staged, which the host would do.
//
//   mode         a source or destination here           a chunk that a peer wants to reach
//   off          staged, always                         registered when asked for
//   lazy         registered when first used             the same
//   background   staged while it is being registered    registered beside, answered when it is
//   eager        registered with its region             the same
//
// Invariants
//  - What is registered stays so until its region is deregistered or the NIC closed: its pages are pinned, and must not be
//    exchanged for others meanwhile (Arena::keep_pages).
//  - A failed registration is kept, so that it is refused at once when it is asked for again.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "drivers/verbs/discover.hpp"
#include "drivers/verbs/verbs.hpp"
#include "transport/queue.hpp"
#include "transport/transport.hpp"
#include "transport/verbs/aside.hpp"

namespace ccl_lab {

enum class Registration : std::uint8_t { off, lazy, background, eager };

// Registered memory that bytes pass through where their own is not registered: a ring of pieces, given back in any order.
class Stage {
 public:
  static constexpr std::uint64_t kBytes = 8 * 512 * 1024;
  static constexpr std::uint64_t kMostPiece = 512 * 1024;

  Stage() = default;
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;
  ~Stage();

  Status open(verbs::Device& device);
  std::uint32_t lkey() const { return memory_->lkey; }
  // nbytes <= kMostPiece. Null while it is full.
  std::byte* take(std::uint64_t nbytes, std::uint64_t& ticket);
  void give_back(std::uint64_t ticket);

 private:
  struct Piece {
    std::uint64_t nbytes = 0;
    bool free = false;
  };

  std::byte* base_ = nullptr;
  std::unique_ptr<verbs::Memory> memory_;
  Queue<Piece> pieces_;
  std::uint64_t first_ = 0;  // ticket of the oldest piece
  std::uint64_t begin_ = 0;  // positions, counted on and on
  std::uint64_t end_ = 0;
};

// Registers beside the thread that moves bytes.
class Registrar;

enum class ChunkState : std::uint8_t { absent, pending, ready, failed };

class Adapter {
 public:
  // What is at an address of this rank.
  struct Place {
    const verbs::Memory* memory = nullptr;  // null: not registered (yet)
    std::uint64_t run = 0;                  // bytes from there to the end of the chunk; 0: in no region
  };

  static Result<std::unique_ptr<Adapter>> open(verbs::Driver& driver, const verbs::Nic& nic, Registration mode, std::uint64_t chunk_bytes);
  ~Adapter();

  verbs::Device& device() { return *device_; }
  const verbs::Nic& nic() const { return nic_; }
  const verbs::Gid& gid() const { return gid_; }
  // Anew, where the port came back with another one.
  Status look_up_gid();
  Result<verbs::Port> port() { return device_->port(nic_.port); }
  Stage& stage() { return stage_; }

  // eager: registers all of it.
  Status add_region(RegionKey key, std::byte* base, std::uint64_t size);
  // Memory of a GPU, as in NicTransport::register_device.
  Status add_device_region(RegionKey key, std::byte* base, std::uint64_t size, int fd);
  void remove_region(RegionKey key);
  std::vector<RegionCard> regions() const;
  // Registers what is at `address`, as the mode says, and tells what is there now.
  Place place(const std::byte* address);
  // Of memory of a GPU: what is at `address` of that region.
  Place place(RegionKey key, const std::byte* address);
  // Registers a chunk for a peer; `why` where it failed or there is no such chunk.
  ChunkState chunk(RegionKey key, std::uint32_t index, const verbs::Memory*& memory, Status& why);
  std::size_t n_registered() const;
  // Takes what was registered beside; whether there was something. Readable when there is; -1: nothing ever is.
  bool collect();
  int news_fd() const;

 private:
  struct Chunk {
    ChunkState state = ChunkState::absent;
    std::unique_ptr<verbs::Memory> memory;
    Status why;
  };
  struct Owned {
    RegionKey key = 0;
    std::uint64_t serial = 0;
    std::byte* base = nullptr;
    std::uint64_t size = 0;
    std::uint64_t chunk_bytes = 0;
    std::unordered_map<std::uint32_t, Chunk> chunks;
  };

  Adapter() = default;
  Chunk& touch(Owned& region, std::uint32_t index, bool may_wait);
  static std::uint64_t size_of(const Owned& region, std::uint32_t index);

  std::unique_ptr<verbs::Device> device_;
  verbs::Nic nic_;
  verbs::Gid gid_{};
  Registration mode_ = Registration::lazy;
  std::uint64_t chunk_bytes_ = 0;
  Stage stage_;
  std::vector<Owned> regions_;
  std::uint64_t next_serial_ = 0;
  std::unique_ptr<Registrar> registrar_;  // in mode background
};

}  // namespace ccl_lab
