// Collectives of the host on memory of a GPU, in the order of the user's stream, with the stream held meanwhile: through pinned memory, or
// by NICs that reach the memory themselves.
//
// Is: one rank's stream for it, the pinned memory, the flags by which stream and host wait for each other (ALGORITHMS of NCCLX: the
//     stall flag, here a stream memory operation on memory of the host, so that no SM waits), and the watch over what is on the stream.
// Is not: a collective: whoever calls hold() gives the Hold to the engine of the host with one. Not aware of peers.
//
//   caller   hold: checks, enqueues all of it, returns ──► engine.start(…, stall)
//   stream   user ──event──► device → pinned ► STARTED = k ► waits for DONE >= k ► pinned → device ► ENDED = k ──event──► user
//   engine                                        └──► the collective, on pinned memory ──► DONE = k
//
// Memory that NICs reach (direct.hpp) is not copied to and fro; what stays on the GPU (blocks that a rank keeps) is copied there before STARTED.
// Before DONE such a run is settled: what NICs wrote is made visible to the GPU, where that takes a call.
//
// Invariants
//  - A caller never waits. What it hands in (memory of the GPU and pinned memory) is used until ended(k).
//  - Flags only grow. After a failure DONE is larger than any number: the stream goes on whatever comes, and what the buffers hold then
//    means nothing. The first reason wins; a stage that failed takes no more runs.
//  - The flags live as long as a Hold does; a Hold makes no call of the driver, so that the engine's thread may end it at any time; but
//    that of a run by NICs, which settles it: that call waits for no stream.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/stall.hpp"
#include "device/waiting.hpp"
#include "drivers/cuda/driver.hpp"

namespace ccl_lab::device {

// The page that host and stream share, and why it is over.
class StallFlags {
 public:
  static Result<std::shared_ptr<StallFlags>> create();
  ~StallFlags();
  StallFlags(const StallFlags&) = delete;
  StallFlags& operator=(const StallFlags&) = delete;

  static constexpr std::uint64_t kBytes = 4096;
  enum Flag : std::size_t { started = 0, done = 8, ended = 16 };  // a cache line each
  void* data() const { return words_; }
  std::uint64_t value(Flag flag) const { return words_[flag].load(std::memory_order_acquire); }
  // DONE, if it is lower.
  void release(std::uint64_t number);
  // Keeps the first reason, lets every wait go; true if this was the first.
  bool fail(const Status& why);
  Status failure() const;
  // True once it has failed, within `timeout_ns`.
  bool await_failure(std::int64_t timeout_ns) const;

 private:
  explicit StallFlags(void* memory) : words_(static_cast<std::atomic<std::uint64_t>*>(memory)) {}
  std::atomic<std::uint64_t>* words_;
  mutable std::mutex mutex_;
  mutable std::condition_variable failed_;
  Status failure_;
};

// Run `number` of a stage, as the engine of the host sees it.
class Hold : public Stall {
 public:
  // `settles`: of the GPU whose memory NICs write to, where the host has to make that visible; else null.
  Hold(std::shared_ptr<StallFlags> flags, std::uint64_t number, std::shared_ptr<cuda::Context> settles = nullptr)
      : flags_(std::move(flags)), number_(number), settles_(std::move(settles)) {}
  std::uint64_t number() const { return number_; }
  Result<bool> started() override;
  void end(const Status& status) override;
  Status settle() override;

 private:
  std::shared_ptr<StallFlags> flags_;
  std::uint64_t number_;
  std::shared_ptr<cuda::Context> settles_;
};

struct Staged {
  cuda::DevicePtr device = 0;
  std::byte* host = nullptr;  // in pinned memory
  std::uint64_t nbytes = 0;
  std::string what;           // for errors: "x of rank 2"
};

// A copy on the GPU, before the collective.
struct Kept {
  cuda::DevicePtr to = 0;
  cuda::DevicePtr from = 0;
  std::uint64_t nbytes = 0;
  std::string what;
};

// What a run does with memory of the GPU.
struct Moves {
  std::span<const Staged> in;
  std::span<const Staged> out;
  std::span<const Kept> kept = {};
  bool by_nics = false;  // NICs read and write some of it
};

struct StageOptions {
  int rank = 0;
  std::int64_t timeout_ns = 30'000'000'000;  // for what the GPU has begun and does not end
  std::int64_t drain_ns = 30'000'000'000;    // for what is on the stream when it is closed
  std::function<Status()> stopped;           // ok, or why this rank was told to stop
  bool watched = true;                       // by a thread; else watch() is called by somebody
};

class Stage {
 public:
  static Result<std::shared_ptr<Stage>> open(const cuda::Api& api, int ordinal, StageOptions options);
  ~Stage() { close(); }
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  int ordinal() const { return ordinal_; }
  // Pins whole pages of the host, until close(). Their owner keeps them as long.
  Status pin(std::byte* data, std::uint64_t nbytes);
  // Enqueues a run that is ordered on `user`: copies `in` to the host and what is kept, holds the stream, copies `out` back.
  Result<std::shared_ptr<Hold>> hold(const Moves& moves, cuda::CuStream user);
  // Ends what waits, with a reason.
  void fail(const Status& why) { flags_->fail(why); }
  Status failure() const { return flags_->failure(); }
  bool await_failure(std::int64_t timeout_ns) const { return flags_->await_failure(timeout_ns); }
  bool ended(std::uint64_t number) const { return flags_->value(StallFlags::ended) >= number; }
  // True once run `number` has ended; false where `timeout_ns` (negative: never) passed before. An error where the stage failed.
  Result<bool> wait(std::uint64_t number, std::int64_t timeout_ns, const Interrupted& interrupted) const;
  void watch(std::int64_t now_ns);
  std::uint64_t pinned_bytes() const;
  // Until what is on the stream is through; then everything is given back. False where the user's stream did not come to it in time: it
  // may still touch what was handed in, which is kept until the process ends, as its owner must too. Idempotent.
  bool close();

 private:
  struct Pinned {
    std::uint64_t nbytes = 0;
    cuda::DevicePtr address = 0;
    cuda::HostRegistration registration;
  };

  // What a stream that did not come through may still use.
  struct LeftBehind {
    std::shared_ptr<StallFlags> flags;
    cuda::HostRegistration registration;
    std::map<std::byte*, Pinned> pinned;
    cuda::Stream stream;
    cuda::Event fork, end;
  };

  Stage(std::shared_ptr<cuda::Context> context, StageOptions options, std::shared_ptr<StallFlags> flags);
  Status set_up();
  Status closed() const;
  Status check(std::span<const Staged> copies) const;
  Result<cuda::DevicePtr> pinned(const Staged& copy) const;
  Status refuse_capture(cuda::CuStream user) const;
  Status check(const Moves& moves) const;
  Status enqueue(const Moves& moves, cuda::CuStream user, std::uint64_t number);
  Status copy(const Kept& kept) const;
  Status copy(const Staged& copy, bool to_host) const;
  Status order(const cuda::Event& event, cuda::CuStream before, cuda::CuStream after) const;
  Status ask_driver() const;
  bool idle() const { return ended(scheduled_); }
  bool drain();
  void loop();

  std::shared_ptr<cuda::Context> context_;
  StageOptions options_;
  int ordinal_;
  std::shared_ptr<StallFlags> flags_;
  mutable std::mutex mutex_;  // of all below
  cuda::HostRegistration registration_;
  cuda::DevicePtr flags_address_ = 0;
  std::map<std::byte*, Pinned> pinned_;
  cuda::Stream stream_;
  cuda::Event fork_, end_;
  std::atomic<std::uint64_t> scheduled_{0};
  std::uint64_t seen_ = 0;      // what watch() saw last, and when that was new
  std::int64_t seen_ns_ = 0;
  bool closed_ = false;
  std::condition_variable stopping_;
  std::thread thread_;
};

}  // namespace ccl_lab::device
