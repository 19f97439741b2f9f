// Blocks for runs; see scratch.hpp.
#include "comm/scratch.hpp"

#include <algorithm>

namespace ccl_lab {

Result<std::shared_ptr<Block>> Scratch::take(Arena& arena, std::uint64_t nbytes) {
  const std::lock_guard lock(mutex_);
  const auto idle = std::find_if(blocks_.begin(), blocks_.end(), [](const auto& block) { return block.use_count() == 1; });
  if (idle != blocks_.end()) return *idle;
  if (blocks_.empty() || (nbytes < kShared && blocks_.size() < kMost)) {
    Result<std::shared_ptr<Block>> made = arena.allocate(nbytes);
    if (!made.ok() && blocks_.empty()) return made.status();
    if (made.ok()) {
      blocks_.push_back(std::move(made).value());
      return blocks_.back();
    }
  }
  return blocks_[next_++ % blocks_.size()];  // in turn: the one that was taken longest ago is free first
}

}  // namespace ccl_lab
