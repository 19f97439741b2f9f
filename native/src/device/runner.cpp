// Waiting and watching; see runner.hpp.
#include "device/runner.hpp"

#include <chrono>

#include "base/clock.hpp"

namespace ccl_lab::device {

namespace {

constexpr auto kLook = std::chrono::milliseconds(2);

}  // namespace

Runner::Runner(std::unique_ptr<Session> session, std::int64_t timeout_ns)
    : session_(std::move(session)), ordinal_(session_->ordinal()), timeout_ns_(timeout_ns), thread_([this] { watch(); }) {}

Runner::~Runner() { close(); }

void Runner::close() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopping_.notify_all();
  if (thread_.joinable()) thread_.join();
  const std::lock_guard lock(mutex_);
  session_.reset();
}

Status Runner::closed() { return Status(Code::usage, "this communicator's session on GPU " + std::to_string(ordinal_) + " is closed"); }

void Runner::watch() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    const bool fine = session_->failure().ok();
    session_->watch(now_ns(), timeout_ns_);
    if (fine && !session_->failure().ok()) failed_.notify_all();
    stopping_.wait_for(lock, kLook);
  }
}

bool Runner::await_failure(std::int64_t timeout_ns) {
  std::unique_lock lock(mutex_);
  return failed_.wait_for(lock, std::chrono::nanoseconds(timeout_ns), [this] { return session_ && !session_->failure().ok(); });
}

Status Runner::call(std::shared_ptr<const Program> program, const Buffers& buffers, cuda::CuStream user, std::uint32_t coll_id,
                    std::int64_t timeout_ns, const Interrupted& interrupted, std::uint64_t& number) {
  Waiting waiting(interrupted);
  {
    const std::lock_guard lock(mutex_);
    if (!session_) return closed();
    if (Status status = session_->begin(std::move(program), buffers, user, coll_id); !status.ok()) return status;
  }
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (!session_) return closed();
      const std::uint64_t before = session_->scheduled();
      Result<bool> stepped = session_->step();
      if (!stepped.ok()) return stepped.status();
      if (*stepped) {
        number = session_->scheduled() > before ? session_->scheduled() : 0;
        return {};
      }
      if (waiting.waited_ns() > timeout_ns) {
        session_->fail(Status(Code::timeout, session_->missing() + " within " + std::to_string(timeout_ns / 1'000'000) + " ms; do all ranks call the same collectives?"));
        return session_->failure();
      }
    }
    if (Status why = waiting.pause(); !why.ok()) {
      const std::lock_guard lock(mutex_);
      if (!session_) return closed();
      session_->fail(why);
      return session_->failure();
    }
  }
}

Result<bool> Runner::wait(std::uint64_t number, std::int64_t timeout_ns, const Interrupted& interrupted) {
  Waiting waiting(interrupted);
  for (;;) {
    if (Status status = failure(); !status.ok()) return status;
    if (ended(number)) return true;
    if (timeout_ns >= 0 && waiting.waited_ns() > timeout_ns) return false;
    if (Status why = waiting.pause(); !why.ok()) return why;
  }
}

bool Runner::ended(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  return !session_ || session_->ended() >= number;
}

Status Runner::failure() {
  const std::lock_guard lock(mutex_);
  return session_ ? session_->failure() : closed();
}

std::uint64_t Runner::scratch_bytes() {
  const std::lock_guard lock(mutex_);
  return session_ ? session_->scratch_bytes() : 0;
}

std::size_t Runner::n_mappings() {
  const std::lock_guard lock(mutex_);
  return session_ ? session_->n_mappings() : 0;
}

}  // namespace ccl_lab::device
