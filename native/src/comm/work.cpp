// Waiting for a collective; see work.hpp.
#include "comm/work.hpp"

#include <chrono>
#include <utility>

namespace ccl_lab {

Work::Work(std::shared_ptr<LoadedProgram> program, const Binding& binding, std::vector<std::shared_ptr<Block>> memory,
           std::uint32_t coll_id, std::int64_t deadline_ns, double timeout_s)
    : program_(std::move(program)),
      binding_(binding),
      memory_(std::move(memory)),
      coll_id_(coll_id),
      deadline_ns_(deadline_ns),
      timeout_s_(timeout_s) {}

bool Work::wait(double timeout_s) {
  if (done()) return true;
  std::unique_lock lock(mutex_);
  if (timeout_s < 0 || timeout_s > 1e9) {
    ended_.wait(lock, [this] { return done(); });
    return true;
  }
  return ended_.wait_for(lock, std::chrono::duration<double>(timeout_s), [this] { return done(); });
}

void Work::end(std::int64_t now_ns, Status status) {
  const std::lock_guard lock(mutex_);
  if (done()) return;
  status_ = std::move(status);
  end_ns_.store(now_ns, std::memory_order_relaxed);
  memory_.clear();
  done_.store(true, std::memory_order_release);
  ended_.notify_all();
}

}  // namespace ccl_lab
