// Best fit with merging of neighbours; see arena.hpp.
#include "comm/arena.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <string>

namespace ccl_lab {

namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kLine = 64;
// Below this the system call and the page faults of the next user cost more than the memory is worth.
constexpr std::uint64_t kReleaseBytes = 256 * 1024;
// Two buffers of 256 MiB in a row would lie where AMD's way predictor cannot tell them apart (segment.cpp); a little address
// space between large blocks prevents that.
constexpr std::uint64_t kApartFrom = 64 * 1024 * 1024;
constexpr std::uint64_t kApartBytes = 64 * 1024;

std::uint64_t align_up(std::uint64_t value, std::uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

}  // namespace

Block::~Block() { arena_->free(offset_, size_); }

std::byte* Block::data() const { return arena_->base() + offset_; }

Arena::Arena(std::shared_ptr<RankSegment> segment) : segment_(std::move(segment)), owner_pid_(::getpid()) {
  if (segment_->arena_bytes() > 0) add_hole(0, segment_->arena_bytes());
}

void Arena::add_hole(std::uint64_t offset, std::uint64_t size) {
  holes_.emplace(offset, size);
  by_size_.emplace(size, offset);
}

void Arena::drop_hole(std::map<std::uint64_t, std::uint64_t>::iterator hole) {
  by_size_.erase({hole->second, hole->first});
  holes_.erase(hole);
}

std::shared_ptr<Block> Arena::take(std::uint64_t size, std::uint64_t alignment) {
  for (auto fit = by_size_.lower_bound({size, 0}); fit != by_size_.end(); ++fit) {
    const auto [hole_size, hole_offset] = *fit;
    const std::uint64_t offset = align_up(hole_offset, alignment);
    if (offset + size > hole_offset + hole_size) continue;
    drop_hole(holes_.find(hole_offset));
    if (offset > hole_offset) add_hole(hole_offset, offset - hole_offset);
    if (offset + size < hole_offset + hole_size) add_hole(offset + size, hole_offset + hole_size - offset - size);
    auto block = std::make_shared<Block>(shared_from_this(), offset, size);
    blocks_[offset] = block;
    used_ += size;
    peak_ = std::max(peak_, used_);
    return block;
  }
  return nullptr;
}

Result<std::shared_ptr<Block>> Arena::allocate(std::uint64_t nbytes, Pages pages) {
  const std::uint64_t alignment = nbytes >= kPage ? kPage : kLine;
  std::shared_ptr<Block> block;
  if (nbytes <= segment_->arena_bytes()) {
    const std::lock_guard lock(mutex_);
    const std::uint64_t apart = nbytes >= kApartFrom && nbytes + kApartBytes <= segment_->arena_bytes() ? kApartBytes : 0;
    const std::uint64_t size = align_up(std::max<std::uint64_t>(nbytes, 1), alignment) + apart;
    if (nbytes >= kHugeFrom && nbytes < kApartFrom) block = take(size, kHugePage);
    if (block == nullptr) block = take(size, alignment);
  }
  if (block == nullptr)
    return Status(Code::registration,
                  "rank " + std::to_string(segment_->rank()) + " has no " + std::to_string(nbytes) +
                      " bytes of registered memory in one piece: " + std::to_string(used()) + " of " +
                      std::to_string(segment_->arena_bytes()) + " are in use; free arrays or raise arena_bytes",
                  segment_->rank());
  if (pages == Pages::now) make_huge(block->offset(), nbytes);
  return block;
}

void Arena::make_huge(std::uint64_t offset, std::uint64_t nbytes) const {
  // Pages that a NIC may have pinned stay as they are, and those of a parent are its own.
  if (nbytes < kHugeFrom || keeps_pages_.load(std::memory_order_relaxed) || ::getpid() != owner_pid_) return;
  static_cast<void>(::madvise(base() + offset, nbytes, MADV_HUGEPAGE));  // hints
  static_cast<void>(segment_->make_huge(offset, nbytes));
}

void Arena::free(std::uint64_t offset, std::uint64_t size) {
  // Before the block becomes a hole: afterwards the pages may be somebody else's.
  if (size >= kReleaseBytes && !keeps_pages_.load(std::memory_order_relaxed) && ::getpid() == owner_pid_) {
    const Status ignored = segment_->release(offset, size);
    (void)ignored;
  }
  const std::lock_guard lock(mutex_);
  used_ -= size;
  blocks_.erase(offset);
  auto next = holes_.lower_bound(offset);
  if (next != holes_.end() && next->first == offset + size) {
    size += next->second;
    drop_hole(next);
  }
  auto before = holes_.lower_bound(offset);
  if (before != holes_.begin() && (--before)->first + before->second == offset) {
    offset = before->first;
    size += before->second;
    drop_hole(before);
  }
  add_hole(offset, size);
}

std::shared_ptr<Block> Arena::find(const void* address, std::uint64_t nbytes) const {
  const std::int64_t offset = offset_of(address, nbytes);
  if (offset < 0) return nullptr;
  const auto at = static_cast<std::uint64_t>(offset);
  const std::lock_guard lock(mutex_);
  auto found = blocks_.upper_bound(at);
  if (found == blocks_.begin()) return nullptr;
  std::shared_ptr<Block> block = (--found)->second.lock();
  if (block == nullptr || at + nbytes > block->offset() + block->size()) return nullptr;
  return block;
}

std::int64_t Arena::offset_of(const void* address, std::uint64_t nbytes) const {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  const auto begin = reinterpret_cast<std::uintptr_t>(base());
  if (at < begin || at - begin > size() || nbytes > size() - (at - begin)) return -1;
  return static_cast<std::int64_t>(at - begin);
}

std::uint64_t Arena::used() const {
  const std::lock_guard lock(mutex_);
  return used_;
}

std::uint64_t Arena::peak() const {
  const std::lock_guard lock(mutex_);
  return peak_;
}

}  // namespace ccl_lab
