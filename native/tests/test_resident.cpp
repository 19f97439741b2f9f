// What collectives cost in page faults and in memory, as the kernel counts them.
//
// Is: faults of first calls on mapped buffers and of registration, and what ranks hold beyond their buffers.
// Is not: timed; and nothing to see under sanitizers, whose own memory counts too.
#include <malloc.h>
#include <sys/resource.h>

#include <memory>

#include "api_ranks.hpp"
#include "check.hpp"
#include "lone_rank.hpp"
#include "node_ranks.hpp"

using namespace ccl_lab;

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kCounts = false;
#else
constexpr bool kCounts = true;
#endif

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::int64_t kPagesPerMiB = 256;

std::int64_t faults_so_far() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

// Anonymous and shared pages of this process, those of several in parts. -1: the system does not tell.
double resident_bytes() {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen("/proc/self/smaps_rollup", "re"), &std::fclose);
  char line[256];
  double kib = -1;
  long long found = 0;
  while (file != nullptr && std::fgets(line, sizeof line, file.get()) != nullptr)
    if (std::sscanf(line, "Pss_Anon: %lld", &found) == 1 || std::sscanf(line, "Pss_Shmem: %lld", &found) == 1)
      kib = std::max(kib, 0.0) + static_cast<double>(found);
  return kib * 1024;
}

// The faults of one registration; -1: the contents changed.
std::int64_t faults_of_registering(std::uint64_t nbytes) {
  testing::LoneRank rank;
  auto* const data = static_cast<std::byte*>(::memalign(4096, nbytes));
  testing::fill(data, nbytes, 0);
  const std::int64_t before = faults_so_far();
  const bool registered = rank.registry->add(data, nbytes).ok();
  const std::int64_t faults = faults_so_far() - before;
  bool same = registered && rank.registry->offset_of(data, nbytes) >= 0;
  same = same && testing::holds(data, nbytes, 0);
  rank.registry->close();
  same = same && testing::holds(data, nbytes, 0);
  std::free(data);
  return same ? faults : -1;
}

// Whether all ranks hold less than `most` bytes beyond `nbytes` in each of two buffers that `take` makes; 0 if so, or untold.
int holds_little(Communicator& comm, double before, std::uint64_t nbytes, double most, const std::function<float*(int)>& take) {
  float* const input = take(0);
  float* const output = take(1);
  std::memset(input, 0, nbytes);
  std::memset(output, 0, nbytes);
  for (int i = 0; i < 3; ++i) comm.all_reduce(input, output, nbytes / sizeof(float), DType::float32);
  comm.barrier();
  const double mine = resident_bytes() - before;
  double sum = 0;
  comm.all_reduce(&mine, &sum, 1, DType::float64);  // which rank came to a shared page first is chance
  const double beyond = sum / comm.size() - 2.0 * static_cast<double>(nbytes);
  comm.barrier();
  if (!kCounts || before < 0 || beyond < most) return 0;
  std::fprintf(stderr, "%.0f bytes a rank beyond two buffers of %llu\n", beyond, static_cast<unsigned long long>(nbytes));
  return 1;
}

}  // namespace

TEST(pages_of_peers_are_mapped_many_at_a_time) {
  const bool ok = testing::run_ranks(2, [](testing::NodeRank& self) {
    bool few = true;
    for (const Collective collective : {Collective::broadcast, Collective::all_reduce, Collective::all_gather}) {
      const std::uint64_t block = collective == Collective::all_gather ? kMiB / 2 : kMiB;
      const std::uint64_t at = 16 * kMiB * (1 + static_cast<std::uint64_t>(collective));
      node::Call call;
      call.collective = collective;
      call.dtype = DType::float32;
      call.block_bytes = block;
      call.input = self.mapped<std::byte>(at);
      call.output = self.mapped<std::byte>(at + 4 * kMiB);
      std::memset(const_cast<std::byte*>(call.input), 0, block);
      std::memset(call.output, 0, kMiB);
      self.barrier();
      const std::int64_t before = faults_so_far();
      if (!self.run(call).ok()) return false;
      self.meeting->numbers[static_cast<int>(collective)] += faults_so_far() - before;
      self.barrier();
      // Every page of an output is written by somebody who is not its owner, or by its owner only.
      few = few && (!kCounts || self.meeting->numbers[static_cast<int>(collective)] < kPagesPerMiB / 2);
    }
    return few;
  });
  CHECK(ok);
}

TEST(registering_takes_few_faults) {
  const std::int64_t faults = faults_of_registering(2 * kMiB + 4096);
  CHECK(faults >= 0);
  if (kCounts) CHECK(faults < kPagesPerMiB);
}

// Whoever writes beyond such a limit is ended by a signal.
TEST(registering_minds_no_limit_of_file_sizes) {
  const pid_t child = testing::start([] {
    testing::LoneRank made_before;
    auto* const data = static_cast<std::byte*>(::memalign(4096, kMiB));
    std::memset(data, 3, kMiB);
    const rlimit limit{4096, 4096};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0 || !made_before.registry->add(data, kMiB).ok()) return 1;
    for (std::uint64_t i = 0; i < kMiB; ++i)
      if (data[i] != std::byte{3}) return 2;
    return 0;
  });
  CHECK_EQ(testing::end_of(child), 0);
}

TEST(eight_ranks_hold_little_beyond_registered_buffers) {
  constexpr int kRanks = 8;
  // Of the second the last huge page is half a buffer's.
  for (const std::uint64_t nbytes : {kMiB, 5 * kMiB}) {
    const testing::Folder folder;
    std::vector<pid_t> children;
    for (int rank = 0; rank < kRanks; ++rank)
      children.push_back(testing::start([&] {
        const double before = resident_bytes();
        return testing::as_rank(rank, kRanks, folder.socket(), Options{}, nullptr, [&](Communicator& comm) {
          std::vector<Memory> memories;
          const int made = holds_little(comm, before, nbytes, static_cast<double>(kMiB), [&](int) {
            memories.push_back(comm.empty(nbytes));
            return memories.back().as<float>();
          });
          memories.clear();
          comm.barrier();
          std::unique_ptr<void, void (*)(void*)> arrays[] = {{::memalign(kMiB, nbytes), &std::free}, {::memalign(kMiB, nbytes), &std::free}};
          const int given = holds_little(comm, before, nbytes, static_cast<double>(kMiB), [&](int i) {
            comm.register_memory(arrays[i].get(), nbytes);
            return static_cast<float*>(arrays[i].get());
          });
          for (const auto& array : arrays) comm.unregister_memory(array.get());
          return made | given << 1;
        });
      }));
    for (const pid_t child : children) CHECK_EQ(testing::end_of(child), 0);
  }
}
