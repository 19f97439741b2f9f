// The spans of one rank on their way out: a ring in the rank's segment.
//
// Is: a queue of SpanRecord with one writing process (the rank: its progress thread, and callers that drive a collective
//     themselves) and one reader (the notebook's collector, or the rank itself), in different processes or not. Records that find the ring full are counted and lost.
// Is not: a place where anyone waits long: threads of the rank take turns for one record; neither side allocates or makes
//     a system call.
//
//   head counts records ever written, tail records ever read; slot = count & (capacity - 1).
//
// Invariants
//  - head - tail <= capacity; a record is written before head passes it, and read before tail passes it.
//  - A reader trusts nothing it reads: whatever head says, it copies only slots of the ring.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/segment.hpp"
#include "ccl_lab/schema.hpp"

namespace ccl_lab {

struct SpanRingHeader {
  alignas(64) std::atomic<std::uint64_t> head;
  std::atomic<std::uint64_t> known_tail;  // as a writer last saw it
  std::atomic<std::uint32_t> writing;     // a thread of the rank writes a record
  alignas(64) std::atomic<std::uint64_t> tail;
  alignas(64) std::atomic<std::uint64_t> dropped;
};
static_assert(sizeof(SpanRingHeader) <= kSpanRingHeaderBytes && sizeof(SpanRecord) == kSpanBytes);

class SpanWriter {
 public:
  SpanWriter() = default;  // records nothing
  // `enabled` may be switched by anyone at any time.
  SpanWriter(std::byte* memory, std::uint32_t capacity, const std::atomic<std::uint32_t>* enabled)
      : header_(reinterpret_cast<SpanRingHeader*>(memory)),
        slots_(reinterpret_cast<SpanRecord*>(memory + kSpanRingHeaderBytes)),
        enabled_(enabled),
        mask_(capacity - 1) {}
  explicit SpanWriter(const RankSegment& own)
      : SpanWriter(own.trace_memory(), own.trace_spans(), &own.control().trace_enabled) {}

  bool enabled() const { return enabled_ != nullptr && enabled_->load(std::memory_order_relaxed) != 0; }

  void record(const SpanRecord& span) {
    if (enabled()) record(1, [&](std::size_t, SpanRecord& slot) { slot = span; });
  }

  // `n` records in one turn: write(i, slot) writes the i-th, and must write all of it. Who calls has asked enabled().
  template <class Write>
  void record(std::size_t n, Write&& write) {
    while (header_->writing.exchange(1, std::memory_order_acquire) != 0) {
    }
    const std::uint64_t head = header_->head.load(std::memory_order_relaxed);
    const std::size_t fits = std::min(n, room(head, n));
    for (std::size_t i = 0; i < fits; ++i) write(i, slots_[(head + i) & mask_]);
    header_->head.store(head + fits, std::memory_order_release);
    // The ring is larger than the caches: without this each record would wait for its cold line.
    for (std::size_t i = 1; i <= fits; ++i) __builtin_prefetch(slots_ + ((head + fits + i) & mask_), 1);
    if (fits < n) header_->dropped.store(header_->dropped.load(std::memory_order_relaxed) + (n - fits), std::memory_order_relaxed);
    header_->writing.store(0, std::memory_order_release);
  }

 private:
  // Free slots: `wanted` or more, or all that there are.
  std::size_t room(std::uint64_t head, std::size_t wanted) const {
    const std::uint64_t known = head - header_->known_tail.load(std::memory_order_relaxed);
    if (known <= mask_ && mask_ + 1 - known >= wanted) return static_cast<std::size_t>(mask_ + 1 - known);
    const std::uint64_t tail = header_->tail.load(std::memory_order_acquire);
    header_->known_tail.store(tail, std::memory_order_relaxed);
    return head - tail <= mask_ ? static_cast<std::size_t>(mask_ + 1 - (head - tail)) : 0;
  }

  SpanRingHeader* header_ = nullptr;
  SpanRecord* slots_ = nullptr;
  const std::atomic<std::uint32_t>* enabled_ = nullptr;
  std::uint64_t mask_ = 0;
};

class SpanReader {
 public:
  SpanReader(std::byte* memory, std::uint32_t capacity)
      : header_(reinterpret_cast<SpanRingHeader*>(memory)),
        slots_(reinterpret_cast<const SpanRecord*>(memory + kSpanRingHeaderBytes)),
        capacity_(capacity) {}
  explicit SpanReader(const RankSegment& segment) : SpanReader(segment.trace_memory(), segment.trace_spans()) {}

  std::size_t available() const {
    const std::uint64_t head = header_->head.load(std::memory_order_acquire);
    return static_cast<std::size_t>(
        std::min<std::uint64_t>(head - header_->tail.load(std::memory_order_relaxed), capacity_));
  }

  // Copies up to `max_spans` of the oldest records to `out` and frees their slots; returns how many.
  std::size_t drain(SpanRecord* out, std::size_t max_spans) {
    const std::uint64_t tail = header_->tail.load(std::memory_order_relaxed);
    const std::size_t n = std::min(available(), max_spans);
    const std::size_t at = static_cast<std::size_t>(tail & (capacity_ - 1));
    const std::size_t first = std::min<std::size_t>(n, capacity_ - at);
    if (first > 0) std::memcpy(out, slots_ + at, first * sizeof(SpanRecord));
    if (n > first) std::memcpy(out + first, slots_, (n - first) * sizeof(SpanRecord));
    header_->tail.store(tail + n, std::memory_order_release);
    return n;
  }

  std::uint64_t dropped() const { return header_->dropped.load(std::memory_order_relaxed); }

 private:
  SpanRingHeader* header_;
  const SpanRecord* slots_;
  std::uint64_t capacity_;
};

}  // namespace ccl_lab
