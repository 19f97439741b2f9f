// An all_reduce among processes of this machine, from C++.
//
//   all_reduce [ranks] [MiB]                forks the ranks itself
//   mpirun -n 4 all_reduce join [MiB]       the launcher starts them (also torchrun, srun, or CCL_LAB_RANK by hand)
//
// Every rank checks every element; rank 0 prints the median time and the bus bandwidth as nccl-tests define it.
#include <ccl_lab/communicator.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr int kRounds = 21;

// Values that float32 adds exactly in any order.
float value(int rank, std::size_t i) { return static_cast<float>(rank + static_cast<int>(i % 16)); }
float sum(int n, std::size_t i) { return static_cast<float>(n * (n - 1) / 2 + n * static_cast<int>(i % 16)); }

int run(ccl_lab::Communicator comm, std::size_t mib) {
  const std::size_t count = (mib << 20) / sizeof(float);
  // Registered memory: the other ranks read it where it lies. Memory of your own works too, see register_memory().
  const ccl_lab::Memory in = comm.empty(count * sizeof(float));
  const ccl_lab::Memory out = comm.empty(count * sizeof(float));
  for (std::size_t i = 0; i < count; ++i) in.as<float>()[i] = value(comm.rank(), i);

  std::vector<double> times_us;
  for (int round = 0; round < kRounds; ++round) {
    comm.barrier();
    const auto begin = std::chrono::steady_clock::now();
    comm.all_reduce(in.data(), out.data(), count, ccl_lab::DType::float32);
    times_us.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
  }

  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) wrong += out.as<float>()[i] != sum(comm.size(), i);
  std::int64_t wrong_anywhere = 0;
  comm.all_reduce(&wrong, &wrong_anywhere, 1, ccl_lab::DType::int64);
  std::sort(times_us.begin(), times_us.end());
  const double median_us = times_us[times_us.size() / 2];
  if (comm.rank() == 0) {
    const double algbw = static_cast<double>(count * sizeof(float)) / median_us * 1e-3;
    const double busbw = algbw * 2 * (comm.size() - 1) / comm.size();
    std::printf("all_reduce of %zu MiB among %d ranks: %.1f us, busbw %.2f GB/s, %lld wrong elements\n", mib, comm.size(),
                median_us, busbw, static_cast<long long>(wrong_anywhere));
  }
  return wrong_anywhere == 0 ? 0 : 1;
}

int run_or_say(int rank, int n, const std::string& path, std::size_t mib) {
  try {
    return run(n > 0 ? ccl_lab::Communicator::join(rank, n, path) : ccl_lab::Communicator::join(), mib);
  } catch (const ccl_lab::Error& error) {
    std::fprintf(stderr, "%s: %s\n", std::string(error.code()).c_str(), error.what());
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t mib = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 16;
  if (argc > 1 && std::strcmp(argv[1], "join") == 0) return run_or_say(0, 0, "", mib);
  const int n = argc > 1 ? std::atoi(argv[1]) : 4;
  const std::string path = "/tmp/all_reduce_example." + std::to_string(::getpid()) + ".sock";
  int failed = 0;
  for (int rank = 0; rank < n; ++rank) {
    if (::fork() == 0) {
      const int result = run_or_say(rank, n, path, mib);
      std::fflush(nullptr);
      ::_exit(result);
    }
  }
  for (int status = 0; ::wait(&status) > 0;) failed += status != 0;
  return failed == 0 && n > 0 ? 0 : 1;
}
