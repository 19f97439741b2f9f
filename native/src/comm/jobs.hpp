// Copies, reductions and divisions of a running program, a slice at a time.
//
// Is: the list of local work; each poll does at most one slice of each job and a bounded number of bytes in all, so that
//     sockets and other channels keep moving.
// Is not: a resolver of addresses: jobs come with pointers that were checked.
//
// Invariants
//  - Each job completes exactly once, unless clear() forgets it.
//  - Jobs live in slots that are used again, with the memory of their source lists: once a program has run, running it again
//    takes none from the system.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "ccl_lab/schema.hpp"
#include "transport/transport.hpp"

namespace ccl_lab {

struct Job {
  enum class What : std::uint8_t { copy, reduce, divide };
  What what = What::copy;
  DType dtype = DType::uint8;
  RedOp redop = RedOp::sum;
  std::byte* dst = nullptr;
  std::uint64_t nbytes = 0;
  std::uint64_t done = 0;
  std::int64_t divisor = 1;
  std::uint64_t cookie = 0;
  std::vector<const std::byte*> sources;
};

class Jobs {
 public:
  static constexpr std::uint64_t kSliceBytes = 256 * 1024;
  static constexpr std::uint64_t kPollBytes = 512 * 1024;
  static constexpr std::uint64_t kStreamBytes = 4 << 20;  // copies of this size go past the caches

  // A blank job to fill in; valid, and not to be done, until add().
  Job& next();
  void add() { active_.push_back(std::exchange(next_, kNone)); }
  void add(const Job& job) {
    next() = job;
    add();
  }
  bool empty() const { return active_.empty(); }
  void clear();
  // Returns how many slices it did.
  int poll(std::vector<Completion>& completions);

 private:
  void slice(Job& job);

  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  std::vector<Job> slots_;
  std::vector<std::size_t> active_;  // slots of jobs to do
  std::vector<std::size_t> free_;
  std::size_t next_ = kNone;         // the slot that next() gave and add() has not taken
  std::vector<const std::byte*> at_;
  std::size_t turn_ = 0;
};

}  // namespace ccl_lab
