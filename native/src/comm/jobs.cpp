// Slices of local work; see jobs.hpp.
#include "comm/jobs.hpp"

#include <algorithm>
#include <cstring>

#include "reduce/reduce.hpp"

namespace ccl_lab {

int Jobs::poll(std::vector<Completion>& completions) {
  int slices = 0;
  std::uint64_t moved = 0;
  std::size_t left = jobs_.size();
  while (left-- > 0 && moved < kPollBytes) {
    turn_ = turn_ < jobs_.size() ? turn_ : 0;
    Job& job = jobs_[turn_];
    const std::uint64_t before = job.done;
    slice(job);
    moved += job.done - before;
    ++slices;
    if (job.done < job.nbytes) {
      ++turn_;
      continue;
    }
    completions.push_back({job.cookie, Status()});
    jobs_.erase(jobs_.begin() + static_cast<std::ptrdiff_t>(turn_));
  }
  return slices;
}

void Jobs::slice(Job& job) {
  const std::uint64_t n = std::min(kSliceBytes, job.nbytes - job.done);
  if (n == 0) return;
  std::byte* dst = job.dst + job.done;
  at_.clear();
  for (const std::byte* source : job.sources) at_.push_back(source + job.done);
  const std::size_t count = n / itemsize(job.dtype);
  switch (job.what) {
    case Job::What::copy:
      if (dst != at_[0]) std::memcpy(dst, at_[0], n);
      break;
    case Job::What::reduce: reduce(job.dtype, job.redop, dst, at_.data(), at_.size(), count); break;
    case Job::What::divide: divide(job.dtype, dst, job.divisor, count); break;
  }
  job.done += n;
}

}  // namespace ccl_lab
