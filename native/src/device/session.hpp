// One rank's collectives over memory of its GPU: schedules as work on streams.
//
// Is: the rank's context, streams, flags and mappings; a call that meets those of the peers it has to do with, and then enqueues the
//     whole program: copies for copy engines, writes and waits of flags, reduction kernels.
// Is not: a thread, a planner or a judge of schedules; the program was proved. Nothing here waits: `step` is called until it says so,
//     and `watch` now and then.
//
//   call     begin ──posted to the ranks that will touch this one's memory──► meeting ──all peers have called, their memory
//            is mapped──► enqueued
//   stream   user ──event──► own streams: BEGUN written ► READY to peers ► READY of peers awaited ► ops ► ENDED written ──event──► user
//   run      UNSET ──begin──► SCHEDULED ──BEGUN──► STARTED ──ENDED──► TERMINATED: what the page shows of it (ALGORITHMS of NCCLX)
//
// Invariants
//  - Everything is on streams of this session, ordered behind the user's stream and before what it gets later; nothing on the default
//    stream. Calls of a session follow each other on its own streams, whatever stream they came on.
//  - No memory of a peer is touched before its READY of this call was seen on the stream.
//  - A flag only grows (bank 0), or is 0 whenever its owner says READY (bank 1, captured calls): so a graph may be replayed.
//  - The first reason wins. After it every wait on a flag of this rank is let go, again and again, until the streams are through;
//    what the buffers hold then means nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "device/memory.hpp"
#include "device/page.hpp"
#include "device/plan.hpp"
#include "device/timeline.hpp"
#include "drivers/cuda/driver.hpp"
#include "exec/program.hpp"
#include "reduce/cuda/device_reduce.hpp"

namespace ccl_lab::device {

struct SessionOptions {
  int pid = 0;                                  // of this process: ranks with the same one share its addresses
  std::span<const std::byte> image;             // of the kernels
  std::function<Status()> stopped;              // ok, or why this rank was told to stop
  SpanWriter spans;
};

struct Buffers {
  cuda::DevicePtr input = 0;
  cuda::DevicePtr output = 0;
};

class Session {
 public:
  // `pages`: by rank, this rank's among them; null for ranks of other nodes. Says in the own page which GPU it is, or why there is none.
  static Result<std::unique_ptr<Session>> open(const cuda::Api& api, int ordinal, int rank, std::vector<std::shared_ptr<Page>> pages,
                                               SessionOptions options);
  // Lets go of what still waits, and gives everything back.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  int ordinal() const { return context_->info().ordinal; }
  // A call; one at a time, until step() is true or fails. `user`: the stream it is ordered on (null: the default stream of old).
  Status begin(std::shared_ptr<const Program> program, const Buffers& buffers, cuda::CuStream user, std::uint32_t coll_id);
  // Goes on with the call: true once all of it is on the streams; false while a peer has not called. An error ends the call.
  Result<bool> step();
  bool calling() const { return call_.has_value(); }
  // Whom the call waits for: "rank 2 has not called all_reduce".
  std::string missing() const;
  // Gives the call up, and the session with it.
  void fail(const Status& why);
  const Status& failure() const { return failure_; }

  // Looks after what is on the streams: an abort, a run that has not moved for `timeout_ns`, spans of what has ended.
  void watch(std::int64_t now_ns, std::int64_t timeout_ns);
  // Every call has ended; captured ones as far as replays are under way.
  bool idle() const;
  // Runs that were enqueued, and those that have ended; captured ones do not count.
  std::uint64_t scheduled() const { return scheduled_; }
  std::uint64_t ended() const;
  std::uint64_t scratch_bytes() const;
  std::size_t n_mappings() const { return importer_.n_mappings(); }

 private:
  friend class Launch;

  struct Neighbour {
    std::shared_ptr<Page> page;
    bool met = false;                 // its GPU can be reached, its flags are registered
    cuda::HostRegistration registration;
    cuda::DevicePtr flags = 0;        // of its page, here
    std::uint64_t sent = 0;           // calls posted to it
    std::uint64_t read = 0;           // calls of it that were read
    std::uint64_t ready_sent = 0;     // READYs, in bank 0
    std::uint64_t ready_seen = 0;     // READYs that were waited for
    std::map<int, std::uint64_t> raised;   // by signal channel: how far this rank has raised it, in bank 0
    std::map<int, std::uint64_t> counted;  // … and this rank has waited for
  };
  struct Prepared {
    std::shared_ptr<const Program> program;
    StreamPlan plan;
  };
  struct PendingCall {
    std::shared_ptr<const Prepared> prepared;
    cuda::CuStream user = nullptr;
    std::uint32_t coll_id = 0;
    bool captured = false;
    cuda::DevicePtr base[kBufferCount] = {0, 0, 0};
    Reference references[kBufferCount];
    std::vector<std::uint8_t> posted;                             // by index in ready_to
    std::vector<std::array<cuda::DevicePtr, kBufferCount>> peers;  // by slot: where its buffers are here
    std::vector<std::uint8_t> agreed;                             // by slot
  };
  struct Scratch {
    cuda::DeviceMemory memory;
    std::uint64_t size = 0;
  };

  Session(std::shared_ptr<cuda::Context> context, int rank, std::vector<std::shared_ptr<Page>> pages, SessionOptions options);
  Status set_up();
  void drain();
  Result<std::shared_ptr<const Prepared>> prepare(std::shared_ptr<const Program> program);
  Status bind(PendingCall& call, const Buffers& buffers);
  Status need_scratch(PendingCall& call, std::uint64_t nbytes);
  Status need_streams(std::size_t n);
  Result<bool> meet(int rank);
  Status reach(const DeviceCard& card, int rank);
  Result<bool> post(std::size_t index);
  Result<bool> agree(std::size_t slot);
  Result<bool> meet_all();
  Status enqueue();
  bool moved();
  Status ask_driver(std::int64_t now_ns);
  std::string stuck() const;

  std::shared_ptr<cuda::Context> context_;
  int rank_;
  SessionOptions options_;
  std::vector<Neighbour> neighbours_;  // by rank; the own one too
  Exporter exporter_;
  Importer importer_;
  Reducer reducer_;
  Timeline timeline_;
  std::vector<cuda::Stream> streams_;  // by channel; the first is also what begins and ends a run
  std::vector<cuda::Event> joins_;     // by channel
  cuda::Event fork_;
  cuda::Event end_;
  cuda::Event probe_;                  // behind the last run that was not captured
  bool probed_ = false;
  std::vector<Scratch> scratch_;       // the last one is used; graphs may hold the others
  bool ever_captured_ = false;
  std::map<const Program*, std::shared_ptr<const Prepared>> prepared_;
  std::optional<PendingCall> call_;
  std::uint64_t scheduled_ = 0;
  Status failure_;
  // What watch() saw last.
  std::uint64_t seen_ = 0;
  std::int64_t seen_ns_ = 0;
  std::int64_t asked_ns_ = 0;
};

}  // namespace ccl_lab::device
