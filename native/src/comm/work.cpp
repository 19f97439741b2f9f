// The end of a collective; see work.hpp.
#include "comm/work.hpp"

#include <utility>

namespace ccl_lab {

void Work::end(std::int64_t now_ns, Status status) {
  if (done()) return;
  status_ = std::move(status);
  end_ns_.store(now_ns, std::memory_order_relaxed);
  for (std::shared_ptr<Block>& block : memory_) block.reset();
  if (stall_ != nullptr) stall_->end(status_);
  stall_.reset();
  done_.store(true, std::memory_order_release);
}

}  // namespace ccl_lab
