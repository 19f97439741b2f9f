// What one rank shows the ranks of its node about its GPU: memory of the host that processes and GPUs share.
//
// Is: one sealed memfd per rank, opened by the peers through /proc/<pid>/fd/<fd>; the flags in it are registered with the driver by
//     whoever writes or waits there from a stream.
// Is not: memory of the GPU, and not an order of events: session.cpp and launch.cpp say who writes what, when.
//
//   0 ┌────────────────┐ PageHeader: sizes; written once
//     ├────────────────┤ DeviceCard: which GPU the rank uses, or why it has none
//     ├────────────────┤ taken: u64[n_ranks]: calls of each peer that the owner has read
//     ├────────────────┤ calls: Call[n_ranks][kCalls]: what the owner has called, for each peer that will touch its memory
//     ├────────────────┤ allocations: Allocation[kAllocations], and the descriptors of their parts
//     ├────────────────┤ 4 KiB aligned: flags, u64[banks][n_ranks][stride]; row: who writes. The owner's streams wait on them.
//     └────────────────┘
//
//   bank 0     calls as they come: values only grow, each rank knows how far its peers have counted
//   bank 1     captured calls: a graph writes the same values at every replay, so each flag is 0 again before the owner says READY
//   a row      READY of that rank, then its signal channels
//   last row   of bank 0: the run that the owner's streams have begun, and the one they have ended; of bank 1: 1 while a replay runs
//
// Invariants
//  - A card, call or allocation is read only after its number was read with acquire; it is not changed while a peer may read it.
//  - Whatever a page says is checked before it is used: it is another process's memory.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/segment.hpp"
#include "base/status.hpp"
#include "drivers/cuda/api.hpp"

namespace ccl_lab::device {

inline constexpr std::uint32_t kPageVersion = 1;
inline constexpr std::size_t kCalls = 64;
inline constexpr std::size_t kAllocations = 1024;
inline constexpr std::size_t kParts = 8192;
inline constexpr std::size_t kBanks = 2;

struct PageHeader {
  char magic[8];
  std::uint32_t version;
  std::int32_t rank;
  std::int32_t n_ranks;
  std::int32_t n_signals;
  std::int32_t pid;
  std::int32_t reserved;
  std::uint64_t card_offset, taken_offset, calls_offset, allocations_offset, parts_offset, flags_offset, flags_bytes, total_bytes;
};

enum class CardState : std::uint32_t { none = 0, ready = 1, failed = 2 };

struct DeviceCard {
  std::atomic<std::uint32_t> state;  // a CardState, published last
  std::int32_t ordinal;
  cuda::CuUuid uuid;
  std::uint32_t code;  // a Code, where it failed
  char why[512];
};

// The READY of a call, as over other transports: keys are numbers of allocations. flags: kCaptured.
struct Call {
  std::atomic<std::uint64_t> sequence;  // from 1; published last
  ReadySlot slot;
};
inline constexpr std::uint8_t kCaptured = 1;

enum class AllocationKind : std::uint32_t { ipc = 1, parts = 2 };

struct Allocation {
  std::atomic<std::uint64_t> number;  // from 1, slot = number % kAllocations; 0: none, or withdrawn. Published last
  AllocationKind kind;
  std::uint32_t first_part;
  std::uint32_t n_parts;
  std::uint32_t reserved;
  std::uint64_t base;  // in the owner's process
  std::uint64_t size;
  cuda::CuIpcHandle ipc;
};

// A piece of an allocation: a descriptor of the owner's process.
struct Part {
  std::int32_t fd;
  std::int32_t reserved;
  std::uint64_t size;
};

class Page {
 public:
  static Result<std::shared_ptr<Page>> create(int rank, int n_ranks, int n_signals);
  static Result<std::shared_ptr<Page>> open(int pid, int fd);
  ~Page();
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;

  int fd() const { return fd_; }
  int pid() const { return header_.pid; }
  int rank() const { return header_.rank; }
  int n_ranks() const { return header_.n_ranks; }
  int n_signals() const { return header_.n_signals; }

  DeviceCard& card() const { return *part<DeviceCard>(header_.card_offset); }
  std::atomic<std::uint64_t>& taken(int peer) const { return part<std::atomic<std::uint64_t>>(header_.taken_offset)[peer]; }
  Call& call(int peer, std::uint64_t sequence) const {
    return part<Call>(header_.calls_offset)[static_cast<std::size_t>(peer) * kCalls + sequence % kCalls];
  }
  Allocation& allocation(std::uint64_t number) const { return part<Allocation>(header_.allocations_offset)[number % kAllocations]; }
  std::span<Part> parts() const { return {part<Part>(header_.parts_offset), kParts}; }

  // Flags, by index: the same in the owner's page for all who map it.
  std::uint64_t ready_flag(std::size_t bank, int writer) const { return row(bank, writer); }
  std::uint64_t signal_flag(std::size_t bank, int writer, int channel) const {
    return row(bank, writer) + 1 + static_cast<std::uint64_t>(channel);
  }
  std::uint64_t begun_flag(std::size_t bank) const { return row(bank, n_ranks()); }
  std::uint64_t ended_flag(std::size_t bank) const { return row(bank, n_ranks()) + 1; }
  std::atomic<std::uint64_t>& flag(std::uint64_t index) const { return part<std::atomic<std::uint64_t>>(header_.flags_offset)[index]; }
  std::byte* flags() const { return base_ + header_.flags_offset; }
  std::uint64_t flags_bytes() const { return header_.flags_bytes; }
  std::uint64_t n_flags() const { return kBanks * static_cast<std::uint64_t>(n_ranks() + 1) * stride(); }
  // Flags that streams wait on, and no others, get `value`.
  void set_waited(std::uint64_t value) const;
  // As it was when it was made, for a new epoch; nobody may use it meanwhile.
  void clear() const;

 private:
  Page() = default;
  std::uint64_t stride() const { return static_cast<std::uint64_t>(header_.n_signals) + 1; }
  std::uint64_t row(std::size_t bank, int writer) const {
    return (bank * static_cast<std::uint64_t>(n_ranks() + 1) + static_cast<std::uint64_t>(writer)) * stride();
  }
  template <class T>
  T* part(std::uint64_t offset) const {
    return reinterpret_cast<T*>(base_ + offset);
  }

  int fd_ = -1;
  std::byte* base_ = nullptr;
  PageHeader header_{};  // a private copy
};

}  // namespace ccl_lab::device
