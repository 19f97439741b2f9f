// A session that several threads may use: calls that wait for peers, and a thread that looks after what is on the streams.
//
// Is: the lock, the waiting and the watching around session.hpp. Is not: more than one call at a time.
//
// Invariants
//  - A call ends: its peers call too, or its deadline passes, or somebody stops the rank; so does what is on the streams, since the
//    thread lets go of what does not move for `timeout_ns`.
//  - The thread holds the lock only while it looks, and ends with this object.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "device/session.hpp"
#include "device/waiting.hpp"

namespace ccl_lab::device {

class Runner {
 public:
  Runner(std::unique_ptr<Session> session, std::int64_t timeout_ns);
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  // Enqueued when it returns ok; the number of the run is in `number` (0: captured). `interrupted` is asked now and then, without the
  // lock; what it returns, if not ok, ends the call.
  Status call(std::shared_ptr<const Program> program, const Buffers& buffers, cuda::CuStream user, std::uint32_t coll_id, std::int64_t timeout_ns,
              const Interrupted& interrupted, std::uint64_t& number);
  // True once run `number` has ended; false where `timeout_ns` passed before. An error where the session failed.
  Result<bool> wait(std::uint64_t number, std::int64_t timeout_ns, const Interrupted& interrupted);
  bool ended(std::uint64_t number);
  Status failure();
  // True once the session has failed, within `timeout_ns`: of itself, or since this rank was stopped.
  bool await_failure(std::int64_t timeout_ns);
  std::uint64_t scratch_bytes();
  std::size_t n_mappings();
  int ordinal() const { return ordinal_; }
  // Until what is on the streams is through; then everything is given back. Idempotent; calls afterwards are errors.
  void close();

 private:
  void watch();
  Status closed();

  std::unique_ptr<Session> session_;
  int ordinal_;
  std::int64_t timeout_ns_;
  std::mutex mutex_;
  std::condition_variable stopping_;
  std::condition_variable failed_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace ccl_lab::device
