// Notices peers that are gone, so that no rank waits for one.
//
// Is: a thread per rank that sleeps until a peer's process ends (pidfd) and looks at each turn whether a peer has left.
// Is not: a judge of slow ranks (that is the deadline of a collective), nor needed for progress.
//
// A peer that is gone is a loss only for collectives it did not finish: its board says how many it has. A collective that it
// finished can be finished by the others, for its memory stays mapped here. With messages between two ranks (send, recv)
// there is no such number: then waiting for the one that is gone is a loss after kGraceNs without an end.
//
// Invariants
//  - A loss aborts this rank's own segment alone, with the culprit's name; each rank finds out for itself.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "base/segment.hpp"
#include "base/status.hpp"

namespace ccl_lab::api {

// What a rank is in, for its own watch: written by the caller at each call, read by the watch.
struct Activity {
  std::atomic<std::uint64_t> collective{0};  // number of the last collective begun; they are counted alike on all ranks
  std::atomic<std::uint64_t> message{0};     // odd: inside send or recv
  std::atomic<std::int32_t> peer{-1};        // of that message
};

class Watch {
 public:
  // `segments` by rank. `activity` lives as long as this.
  static Result<std::unique_ptr<Watch>> start(int rank, std::vector<std::shared_ptr<RankSegment>> segments,
                                              const Activity* activity);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // Says to all peers that this rank leaves of its own will.
  static void say_left(const RankSegment& own);

  static constexpr std::int64_t kTurnNs = 100'000'000;
  static constexpr std::int64_t kGraceNs = 1'000'000'000;

 private:
  struct Peer {
    int rank = -1;
    int pidfd = -1;
    bool ended = false;
    bool left = false;
    std::uint64_t message = 0;         // the one seen waiting for it
    std::int64_t message_since_ns = 0;
  };

  Watch() = default;
  void run();
  bool wait();
  void look_at(Peer& peer, std::int64_t now_ns);
  void lost(const Peer& peer, const std::string& during) const;

  int rank_ = 0;
  int pid_ = 0;
  int stop_ = -1;  // eventfd
  std::vector<std::shared_ptr<RankSegment>> segments_;
  std::vector<Peer> peers_;
  const Activity* activity_ = nullptr;
  std::thread thread_;
};

// False once the process has ended, also where nobody has waited for it. For kernels without pidfd_open.
bool process_lives(int pid);

}  // namespace ccl_lab::api
