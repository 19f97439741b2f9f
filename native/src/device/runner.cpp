// Waiting and watching; see runner.hpp.
#include "device/runner.hpp"

#include <chrono>

#include "base/clock.hpp"

namespace ccl_lab::device {

namespace {

constexpr auto kLook = std::chrono::milliseconds(2);
constexpr std::int64_t kSpinNs = 200'000;        // peers that are on their way come within
constexpr std::int64_t kInterruptNs = 50'000'000;

// Looks again soon at first, then less often.
void pause(std::int64_t since_ns) {
  if (now_ns() - since_ns < kSpinNs) std::this_thread::yield();
  else std::this_thread::sleep_for(std::chrono::microseconds(50));
}

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
    session_->watch(now_ns(), timeout_ns_);
    stopping_.wait_for(lock, kLook);
  }
}

Status Runner::call(std::shared_ptr<const Program> program, const Buffers& buffers, cuda::CuStream user, std::uint32_t coll_id,
                    std::int64_t timeout_ns, const std::function<Status()>& interrupted, std::uint64_t& number) {
  const std::int64_t begin = now_ns();
  std::int64_t looked = begin;
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
      const std::int64_t now = now_ns();
      Status why;
      if (now - begin > timeout_ns) why = Status(Code::timeout, session_->missing() + " within " + std::to_string(timeout_ns / 1'000'000) + " ms; do all ranks call the same collectives?");
      if (!why.ok()) {
        session_->fail(why);
        return session_->failure();
      }
    }
    if (now_ns() - looked > kInterruptNs) {
      looked = now_ns();
      if (Status why = interrupted(); !why.ok()) {
        const std::lock_guard lock(mutex_);
        if (!session_) return closed();
        session_->fail(why);
        return session_->failure();
      }
    }
    pause(begin);
  }
}

Result<bool> Runner::wait(std::uint64_t number, std::int64_t timeout_ns, const std::function<Status()>& interrupted) {
  const std::int64_t begin = now_ns();
  std::int64_t looked = begin;
  for (;;) {
    if (Status status = failure(); !status.ok()) return status;
    if (ended(number)) return true;
    if (timeout_ns >= 0 && now_ns() - begin > timeout_ns) return false;
    if (now_ns() - looked > kInterruptNs) {
      looked = now_ns();
      if (Status why = interrupted(); !why.ok()) return why;
    }
    pause(begin);
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
