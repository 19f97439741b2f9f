// The allocator of a rank's registered memory.
//
// Is: best fit over the arena of the rank's segment, with blocks that free themselves when the last holder lets go: an
//     array of Python, a collective that still runs, the scratch of a program.
// Is not: a way to get at the memory of other ranks.
//
// Invariants
//  - Blocks do not overlap; they begin at a multiple of 64 bytes, of 4096 if they have 4096 or more.
//  - Large ones lie in huge pages where the system has them, and are there at once; so they begin with one.
//  - A Block keeps the arena and its mapping alive: a view outlives the engine.
//  - Pages of large freed blocks go back to the system, unless a NIC may have pinned them (keep_pages), and never from a forked
//    child: the memory is its parent's.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "base/segment.hpp"
#include "base/status.hpp"

namespace ccl_lab {

class Arena;

// From kHugeFrom on huge pages pay: copies that are larger than the caches take half of the time, first touches a tenth.
inline constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;
inline constexpr std::uint64_t kHugeFrom = std::uint64_t{4} << 20;

class Block {
 public:
  Block(std::shared_ptr<Arena> arena, std::uint64_t offset, std::uint64_t size)
      : arena_(std::move(arena)), offset_(offset), size_(size) {}
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block();

  std::uint64_t offset() const { return offset_; }
  std::uint64_t size() const { return size_; }
  std::byte* data() const;

 private:
  std::shared_ptr<Arena> arena_;
  std::uint64_t offset_;
  std::uint64_t size_;
};

class Arena : public std::enable_shared_from_this<Arena> {
 public:
  explicit Arena(std::shared_ptr<RankSegment> segment);

  // Zero bytes get a block too: an address that belongs to nobody else. Pages come when they are first touched, or, of a large block,
  // now, where the system has huge ones; `later`: when make_huge() is told which of them are wanted.
  enum class Pages : std::uint8_t { now, later };
  Result<std::shared_ptr<Block>> allocate(std::uint64_t nbytes, Pages pages = Pages::now);
  // Has huge pages under a part of a block, if it is large; what it holds stays.
  void make_huge(std::uint64_t offset, std::uint64_t nbytes) const;
  // The live block that holds [address, address + nbytes); null if none does.
  std::shared_ptr<Block> find(const void* address, std::uint64_t nbytes) const;
  // The offset of an address in the arena; -1 if it is not in it.
  std::int64_t offset_of(const void* address, std::uint64_t nbytes) const;

  // From here on pages stay where they are when blocks are freed: a NIC may have pinned them.
  void keep_pages() { keeps_pages_.store(true); }

  std::byte* base() const { return segment_->arena(); }
  std::uint64_t used() const;
  std::uint64_t peak() const;
  std::uint64_t size() const { return segment_->arena_bytes(); }

 private:
  friend class Block;
  std::shared_ptr<Block> take(std::uint64_t size, std::uint64_t alignment);
  void free(std::uint64_t offset, std::uint64_t size);
  void add_hole(std::uint64_t offset, std::uint64_t size);
  void drop_hole(std::map<std::uint64_t, std::uint64_t>::iterator hole);

  std::shared_ptr<RankSegment> segment_;
  int owner_pid_;
  std::atomic<bool> keeps_pages_{false};
  mutable std::mutex mutex_;
  std::map<std::uint64_t, std::uint64_t> holes_;                  // offset -> size
  std::set<std::pair<std::uint64_t, std::uint64_t>> by_size_;     // (size, offset) of every hole
  std::map<std::uint64_t, std::weak_ptr<Block>> blocks_;
  std::uint64_t used_ = 0;
  std::uint64_t peak_ = 0;
};

}  // namespace ccl_lab
