// Memory of mocked GPUs that no host can touch, for tests of what NICs do with it.
//
// Is: devices whose memory ends the process that touches it, what the tests fill it with, and what must not be left behind. Is not: a test.
#pragma once

#include <dirent.h>

#include <string>

#include "check.hpp"
#include "drivers/cuda/driver.hpp"
#include "mock_cuda.hpp"

namespace ccl_lab::check {

inline constexpr std::uint64_t kBytes = 300'001;

inline std::size_t at_rank(int r) { return static_cast<std::size_t>(r); }

inline bool says(const char* file, const Status& status, Code code, const std::string& words, int line) {
  const bool right = status.code == code && status.message.find(words) != std::string::npos;
  if (!right) fail(file, line, std::string("expected ") + code_name(code) + " with '" + words + "', found " + code_name(status.code) + ": " + status.message);
  return right;
}
#define SAYS(status, code, words) says(__FILE__, status, code, words, __LINE__)

inline void nothing_left(const std::string& where, int line) {
  for (const auto& [kind, count] : gpu::alive()) fail(where.c_str(), line, where + ": " + std::to_string(count) + " of " + kind + " left");
}

inline int open_files() {
  DIR* const all = ::opendir("/proc/self/fd");
  int n = 0;
  while (::readdir(all) != nullptr) ++n;
  ::closedir(all);
  return n;
}

// Devices whose memory no host can touch, at places where no page begins.
inline gpu::Options hidden() {
  gpu::Options options;
  options.hidden = true;
  options.skew = 512;
  return options;
}

inline std::byte value(int rank, int turn, std::uint64_t at) { return std::byte(static_cast<unsigned char>(7 * rank + 31 * turn + static_cast<int>(at % 251))); }

inline void fill_gpu(cuda::DevicePtr memory, int rank, int turn) {
  std::byte* const at = gpu::host_view(memory);
  for (std::uint64_t i = 0; i < kBytes; ++i) at[i] = value(rank, turn, i);
}

}  // namespace ccl_lab::check
