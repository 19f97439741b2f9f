// How a rank that sleeps in ppoll is woken by a process of the same host.
//
// Is: an anonymous pipe. The owner sleeps on its read end; a peer rings by writing one byte, but only when the owner's
//     `sleeping` word (in shared memory) says that it sleeps. A peer gets at the pipe by opening /proc/<pid>/fd/<fd>, as it
//     does for the owner's segment: any process of the same user can, with or without a common parent, and there is no
//     name in the file system that could leak or be squatted.
// Is not: a queue or a signal: it carries no information, and a wake-up may come for nothing.
//
// No wake-up is lost:
//
//   owner                                       ringer
//     prepare_sleep()   sleeping: exchange(1)     make the work visible (raise a signal, ...)
//     look for work again; if any: no sleep       ring()   sleeping: exchange(0); if it was 1: write a byte
//     ppoll(fd(), ...)
//     finish_sleep()    sleeping: 0, drain
//
//   Both exchanges are read-modify-writes of one word, so one of them comes second and sees the other: either the
//   ringer sees 1 and writes, or the owner's exchange synchronises with the ringer's and its second look finds the work.
//
// Invariants
//  - ring() never blocks: a full pipe is as good as a byte in it. It never raises SIGPIPE: every end is open for reading too.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/status.hpp"

namespace ccl_lab {

class Doorbell {
 public:
  Doorbell() = default;
  Doorbell(Doorbell&& other) noexcept;
  Doorbell& operator=(Doorbell&& other) noexcept;
  Doorbell(const Doorbell&) = delete;
  Doorbell& operator=(const Doorbell&) = delete;
  ~Doorbell();

  // The owner's side; `sleeping` lives as long as this.
  static Result<Doorbell> create(std::atomic<std::uint32_t>* sleeping);
  // A peer's side: the descriptor and inode as the owner published them. `pid` may be this process.
  static Result<Doorbell> open(int pid, int fd, std::uint64_t inode, std::atomic<std::uint32_t>* sleeping);

  int fd() const { return fd_; }
  std::uint64_t inode() const { return inode_; }

  // Any process; safe from several threads at once. True if the owner slept and was woken.
  bool ring() const;

  // The owner only.
  void prepare_sleep() const { sleeping_->exchange(1, std::memory_order_acq_rel); }
  void finish_sleep() const;

 private:
  int fd_ = -1;
  std::uint64_t inode_ = 0;
  std::atomic<std::uint32_t>* sleeping_ = nullptr;
};

}  // namespace ccl_lab
