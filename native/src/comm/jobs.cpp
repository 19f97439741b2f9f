// Slices of local work; see jobs.hpp.
#include "comm/jobs.hpp"

#include <algorithm>
#include <cstring>

#include "reduce/reduce.hpp"

namespace ccl_lab {

Job& Jobs::next() {
  if (next_ == kNone) {
    if (free_.empty()) {
      free_.push_back(slots_.size());
      slots_.emplace_back();
    }
    next_ = free_.back();
    free_.pop_back();
  }
  Job& job = slots_[next_];
  std::vector<const std::byte*> sources = std::move(job.sources);
  sources.clear();
  job = Job();
  job.sources = std::move(sources);
  return job;
}

void Jobs::clear() {
  free_.insert(free_.end(), active_.begin(), active_.end());
  active_.clear();
}

int Jobs::poll(std::vector<Completion>& completions) {
  int slices = 0;
  std::uint64_t moved = 0;
  std::size_t left = active_.size();
  while (left-- > 0 && moved < kPollBytes) {
    turn_ = turn_ < active_.size() ? turn_ : 0;
    Job& job = slots_[active_[turn_]];
    const std::uint64_t before = job.done;
    slice(job);
    moved += job.done - before;
    ++slices;
    if (job.done < job.nbytes) {
      ++turn_;
      continue;
    }
    completions.push_back({job.cookie, Status()});
    free_.push_back(active_[turn_]);
    active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(turn_));
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
      if (dst == at_[0]) break;
      // What does not fit in a cache is not fetched before it is overwritten, nor does it push out what sockets need.
      if (job.nbytes >= kStreamBytes) {
        copy_to(&dst, 1, at_[0], n, Stores::streaming);
      } else {
        std::memcpy(dst, at_[0], n);
      }
      break;
    case Job::What::reduce: reduce(job.dtype, job.redop, dst, at_.data(), at_.size(), count); break;
    case Job::What::divide: divide(job.dtype, dst, job.divisor, count); break;
  }
  job.done += n;
}

}  // namespace ccl_lab
