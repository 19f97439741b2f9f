// Copies, reductions and divisions of a running program, a slice at a time.
//
// Is: the list of local work; each poll does at most one slice of each job and a bounded number of bytes in all, so that
//     sockets and other channels keep moving.
// Is not: a resolver of addresses: jobs come with pointers that were checked.
//
// Invariants
//  - Each job completes exactly once, unless clear() forgets it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
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

  void add(Job job) { jobs_.push_back(std::move(job)); }
  bool empty() const { return jobs_.empty(); }
  void clear() { jobs_.clear(); }
  // Returns how many slices it did.
  int poll(std::vector<Completion>& completions);

 private:
  void slice(Job& job);

  std::vector<Job> jobs_;
  std::vector<const std::byte*> at_;
  std::size_t turn_ = 0;
};

}  // namespace ccl_lab
