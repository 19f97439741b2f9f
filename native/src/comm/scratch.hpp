// SCRATCH of one program: which block a run gets.
//
// Is: blocks of the arena, made when they are needed. A run gets one that nobody uses, so that runs of a program may overlap.
// Is not: a promise: where all are in use a block is shared, and runs that share it follow one another (clash() in runs.hpp).
//
// Invariants
//  - Never more blocks than runs that may overlap; one where it is so large that starting earlier saves nothing worth its memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/segment.hpp"
#include "base/status.hpp"
#include "comm/arena.hpp"

namespace ccl_lab {

class Scratch {
 public:
  static constexpr std::size_t kMost = kReadyDepth;
  static constexpr std::uint64_t kShared = std::uint64_t{64} << 20;  // as large as this: one for all

  // Safe for threads.
  Result<std::shared_ptr<Block>> take(Arena& arena, std::uint64_t nbytes);

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<Block>> blocks_;
  std::size_t next_ = 0;
};

}  // namespace ccl_lab
