// Who drives a rank: callers that wait, the rank's thread when none does; and what a start costs.
//
// Is: two engines in one process, their callers in threads. Is not: the executor or the transports (their own tests).
#include <dirent.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/cores.hpp"
#include "comm/engine.hpp"
#include "comm/patience.hpp"
#include "conformance.hpp"
#include "plans.hpp"

// Every piece of memory that this process takes is counted.
namespace {
std::atomic<std::int64_t> pieces_taken{0};
void* counted(std::size_t nbytes) {
  pieces_taken.fetch_add(1, std::memory_order_relaxed);
  void* const piece = std::malloc(nbytes > 0 ? nbytes : 1);
  if (piece == nullptr) std::abort();
  return piece;
}
}  // namespace
void* operator new(std::size_t nbytes) { return counted(nbytes); }
void* operator new[](std::size_t nbytes) { return counted(nbytes); }
void operator delete(void* piece) noexcept { std::free(piece); }
void operator delete[](void* piece) noexcept { std::free(piece); }
void operator delete(void* piece, std::size_t) noexcept { std::free(piece); }
void operator delete[](void* piece, std::size_t) noexcept { std::free(piece); }

namespace ccl_lab {
namespace {

using check::Columns;
using namespace std::chrono_literals;

// Ranks of one process, each with an all_reduce of `part` bytes per rank.
class Pair {
 public:
  static constexpr int kRanks = 2;

  explicit Pair(std::uint64_t part = 512, std::int64_t spin_us = 20, int ranks_on_host = kRanks, bool load_store = false) {
    EngineOptions options;
    options.n_channels = 4;
    options.arena_bytes = 16 << 20;
    options.trace_spans = 256;
    options.spin_us = spin_us;
    options.ranks_on_host = ranks_on_host;
    for (int r = 0; r < kRanks; ++r) engines.push_back(Engine::create(r, {0, 0}, options).value());
    for (int r = 0; r < kRanks; ++r) {
      CHECK_OK(engines[at(r)]->attach_peer(1 - r, ::getpid(), engines[at(1 - r)]->segment()->fd()));
      const Columns columns = check::direct_all_reduce(r, kRanks, part, DType::int32, RedOp::sum, load_store);
      nbytes = columns.scalars.bytes[0];
      programs.push_back(engines[at(r)]->compile(columns.spec()).value());
      inputs.push_back(engines[at(r)]->arena()->allocate(nbytes).value());
      outputs.push_back(engines[at(r)]->arena()->allocate(nbytes).value());
      for (std::uint64_t i = 0; i < nbytes / 4; ++i) values(inputs[at(r)])[i] = static_cast<std::int32_t>(i) + r;
    }
  }

  static std::size_t at(int r) { return static_cast<std::size_t>(r); }
  static std::int32_t* values(const std::shared_ptr<Block>& block) { return reinterpret_cast<std::int32_t*>(block->data()); }

  std::shared_ptr<Work> start(int r, bool caller_waits, double timeout_s = 30) {
    Result<std::shared_ptr<Work>> made = engines[at(r)]->start(programs[at(r)], {inputs[at(r)]->data(), nbytes},
                                                               {outputs[at(r)]->data(), nbytes}, 1, timeout_s, caller_waits);
    CHECK_OK(made.status());
    return made.value();
  }
  // Starts and waits, `runs` times, in a thread of its own.
  std::thread caller(int r, int runs) {
    return std::thread([this, r, runs] {
      for (int i = 0; i < runs; ++i) {
        const std::shared_ptr<Work> work = start(r, true);
        if (!engines[at(r)]->wait(*work, 30)) ++unfinished;
      }
    });
  }
  void check_sums() {
    int wrong = 0;
    for (const auto& output : outputs)
      for (std::uint64_t i = 0; i < nbytes / 4; ++i) wrong += values(output)[i] != 2 * static_cast<std::int32_t>(i) + 1;
    CHECK_EQ(wrong, 0);
    CHECK_EQ(unfinished.load(), 0);
  }

  std::vector<std::shared_ptr<Engine>> engines;
  std::vector<std::shared_ptr<LoadedProgram>> programs;
  std::vector<std::shared_ptr<Block>> inputs, outputs;
  std::uint64_t nbytes = 0;
  std::atomic<int> unfinished{0};
};

int threads_named(const std::string& name) {
  int found = 0;
  DIR* const tasks = ::opendir("/proc/self/task");
  for (const dirent* task = ::readdir(tasks); task != nullptr; task = ::readdir(tasks)) {
    std::ifstream file("/proc/self/task/" + std::string(task->d_name) + "/comm");
    std::string text;
    found += std::getline(file, text) && text.rfind(name, 0) == 0;
  }
  ::closedir(tasks);
  return found;
}

// True if it comes within 10 s.
template <class Condition>
bool soon(const Condition& condition) {
  for (const std::int64_t until = now_ns() + 10'000'000'000; now_ns() < until; std::this_thread::sleep_for(1ms))
    if (condition()) return true;
  return false;
}

TEST(callers_that_wait_need_no_thread) {
  for (const int ranks_on_host : {2, 1000}) {  // spinning, and sleeping
    Pair pair(512, 20, ranks_on_host);
    std::thread other = pair.caller(1, 300);
    pair.caller(0, 300).join();
    other.join();
    pair.check_sums();
    CHECK_EQ(threads_named("ccl_lab/"), 0);
  }
}

TEST(works_go_on_without_a_caller) {
  Pair pair;
  for (int i = 0; i < 50; ++i) {
    const std::shared_ptr<Work> works[] = {pair.start(0, false), pair.start(1, false)};
    CHECK(soon([&] { return works[0]->done() && works[1]->done(); }));
  }
  pair.check_sums();
  CHECK_EQ(threads_named("ccl_lab/"), 2);
}

TEST(a_caller_that_leaves_hands_over) {
  Pair pair;
  for (const bool in_slices : {false, true}) {
    const std::shared_ptr<Work> early = pair.start(0, true);
    if (in_slices) CHECK(!pair.engines[0]->wait_slice(*early, 0.01));
    else CHECK(!pair.engines[0]->wait(*early, 0.01));
    if (in_slices) pair.engines[0]->hand_over();
    const std::shared_ptr<Work> late = pair.start(1, true);
    pair.engines[1]->hand_over();
    CHECK(soon([&] { return early->done() && late->done(); }));
    CHECK_OK(early->status());
    pair.check_sums();
  }
}

// A caller takes over from the thread and gives back, whatever the thread is at: running, dozing, parked.
TEST(thread_and_callers_take_turns) {
  Pair pair(512, 20, 1000);
  std::thread other([&] {
    for (int i = 0; i < 400; ++i) {
      const std::shared_ptr<Work> work = pair.start(1, i % 3 == 0);
      if (i % 5 == 0) std::this_thread::sleep_for(200us);
      if (!pair.engines[1]->wait(*work, 30)) ++pair.unfinished;
    }
  });
  for (int i = 0; i < 400; ++i) {
    const std::shared_ptr<Work> work = pair.start(0, i % 2 == 0);
    if (i % 7 == 0) std::this_thread::sleep_for(300us);
    if (!pair.engines[0]->wait(*work, 30)) ++pair.unfinished;
  }
  other.join();
  pair.check_sums();
}

// Several outstanding works, waited for by several threads in any order.
TEST(callers_wait_for_each_others_works) {
  Pair pair;
  for (int round = 0; round < 40; ++round) {
    std::vector<std::shared_ptr<Work>> mine, theirs;
    for (int i = 0; i < 4; ++i) mine.push_back(pair.start(0, round % 2 == 0));
    std::vector<std::thread> waiters;
    for (std::size_t i = 0; i < 4; ++i)
      waiters.emplace_back([&, i] {
        if (!pair.engines[0]->wait(*mine[3 - i], 30)) ++pair.unfinished;
      });
    for (int i = 0; i < 4; ++i) theirs.push_back(pair.start(1, false));
    for (std::thread& waiter : waiters) waiter.join();
    CHECK(pair.engines[1]->wait(*theirs[3], 30));
    CHECK(theirs[0]->done() && theirs[0]->end_ns() <= theirs[3]->end_ns());
  }
  pair.check_sums();
}

TEST(commands_get_in_between) {
  for (const int ranks_on_host : {2, 1000}) {
    Pair pair(512, ranks_on_host == 2 ? 1'000'000 : 20, ranks_on_host);  // spins all the time, or sleeps
    const std::shared_ptr<Work> early = pair.start(0, true);
    std::thread waiter([&] {
      if (!pair.engines[0]->wait(*early, 30)) ++pair.unfinished;
    });
    std::this_thread::sleep_for(5ms);
    const std::int64_t begin = now_ns();
    for (int i = 0; i < 20; ++i) {
      CHECK_OK(pair.engines[0]->set_nic(0, 1000, true));
      CHECK_OK(pair.engines[0]->memory().status());
    }
    CHECK(now_ns() - begin < 5'000'000'000);
    const std::shared_ptr<Work> late = pair.start(1, true);
    CHECK(pair.engines[1]->wait(*late, 30));
    waiter.join();
    pair.check_sums();
  }
}

TEST(aborts_resets_and_ends_reach_a_caller) {
  for (const int how : {0, 1, 2, 3}) {
    Pair pair(512, 20, how % 2 == 0 ? 2 : 1000);
    const std::shared_ptr<Work> work = pair.start(0, true, how == 3 ? 0.05 : 30);
    std::atomic<bool> ended{false};
    std::thread waiter([&] { ended = pair.engines[0]->wait(*work, 20); });
    CHECK(soon([&] { return work->begin_ns() != 0; }));
    if (how == 0) pair.engines[0]->abort(Code::peer_lost, "the test says so", 1);
    if (how == 1) CHECK_OK(pair.engines[0]->reset(1));
    if (how == 2) pair.engines[0]->close();
    waiter.join();
    CHECK(ended.load());
    CHECK_EQ(work->status().code, how == 0 ? Code::peer_lost : how == 3 ? Code::timeout : Code::aborted);
    CHECK(work->end_ns() - work->begin_ns() < 10'000'000'000);
  }
}

TEST(a_signal_ends_a_slice_and_nothing_else) {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  ::sigaction(SIGUSR1, &action, nullptr);
  Pair pair(512, 20, 1000);
  const std::shared_ptr<Work> work = pair.start(0, true);
  for (const bool in_slices : {true, false}) {
    std::atomic<bool> back{false};
    std::thread waiter([&] {
      if (in_slices) pair.engines[0]->wait_slice(*work, 20);
      else pair.engines[0]->wait(*work, 20);
      back = true;
    });
    const auto pester = [&] {
      ::pthread_kill(waiter.native_handle(), SIGUSR1);
      return back.load();
    };
    if (in_slices) {
      CHECK(soon(pester));
    } else {
      for (int i = 0; i < 20; ++i, std::this_thread::sleep_for(1ms)) CHECK(!pester());
      pair.start(1, false);
    }
    waiter.join();
  }
  CHECK(work->done());
}

TEST(starting_again_takes_no_memory) {
  for (const bool load_store : {false, true}) {
    Pair pair(512, 20, 2, load_store);
    const auto both = [&](int runs) {
      for (int i = 0; i < runs; ++i) {
        const std::shared_ptr<Work> early = pair.start(0, i % 4 != 0);
        const std::shared_ptr<Work> late = pair.start(1, false);
        if (!pair.engines[0]->wait(*early, 30) || !pair.engines[1]->wait(*late, 30)) ++pair.unfinished;
      }
    };
    both(50);
    const std::int64_t before = pieces_taken.load();
    both(200);
    // A queue may still grow once to what was never there at the same time before; 400 starts take nothing each.
    CHECK(pieces_taken.load() - before < 20);
    pair.check_sums();
  }
}

TEST(patience_follows_the_waits) {
  using Next = Patience::Next;
  Patience alone(20'000, Sharing::nobody, 10);
  CHECK_EQ(alone.next(1000), Next::look);
  CHECK_EQ(alone.next(5000), Next::look);
  CHECK_EQ(alone.next(6000), Next::yield);
  CHECK_EQ(alone.next(20'999), Next::yield);
  CHECK_EQ(alone.next(21'000), Next::sleep);
  for (int i = 0; i < 10; ++i) alone.slept(1000, 50'000);
  CHECK_EQ(alone.limit_ns(), 200'000);
  CHECK_EQ(alone.next(1000), Next::look);
  CHECK_EQ(alone.next(200'999), Next::yield);
  for (int i = 0; i < 10; ++i) alone.slept(1000, 5'000'000);
  CHECK_EQ(alone.limit_ns(), 20'000);
  Patience crowded(20'000, Sharing::ranks, 10);
  for (int i = 0; i < Patience::kYields; ++i) CHECK_EQ(crowded.next(1000 + i), Next::yield);
  CHECK_EQ(crowded.next(2000), Next::sleep);
  for (int i = 0; i < 10; ++i) crowded.slept(1000, 50);
  CHECK_EQ(crowded.next(3000), Next::yield);
  CHECK_EQ(crowded.limit_ns(), 0);
  CHECK_EQ(Patience(0, Sharing::nobody, 10).next(1), Next::sleep);
  Patience busy(20'000, Sharing::ranks, 10);  // a yield that takes 4 ms: somebody computes here
  CHECK_EQ(busy.next(1000), Next::yield);
  CHECK_EQ(busy.next(4'000'000), Next::sleep);
  busy.slept(5'000'000, 10'000);
  CHECK_EQ(busy.next(5'000'100), Next::sleep);
  for (int i = 0; i < 256; ++i) busy.slept(6'000'000, 10'000);
  CHECK_EQ(busy.next(7'000'000), Next::yield);
  Patience soft(20'000, Sharing::system, 10);  // the same yield moved this rank's bytes
  CHECK_EQ(soft.next(1000), Next::yield);
  CHECK_EQ(soft.next(4'000'000), Next::yield);
  for (int i = 2; i < Patience::kYieldsToSystem; ++i) CHECK_EQ(soft.next(8'000'000), Next::yield);
  CHECK_EQ(soft.next(8'000'000), Next::sleep);
  CHECK(sharing(2, 2) == Sharing::nobody && sharing(2, 1) == Sharing::ranks && sharing(1, 1) == Sharing::system);
}

TEST(cores_are_those_that_are_paid_for) {
  CHECK_EQ(cores_of_cpu_max("max 100000"), 0);
  CHECK_EQ(cores_of_cpu_max("-1 100000"), 0);
  CHECK_EQ(cores_of_cpu_max(""), 0);
  CHECK_EQ(cores_of_cpu_max("400000 100000\n"), 4);
  CHECK_EQ(cores_of_cpu_max("150000 100000"), 1);
  CHECK_EQ(cores_of_cpu_max("5000 100000"), 1);
  char mount[] = "/tmp/ccl_lab_cores_XXXXXX";
  CHECK(::mkdtemp(mount) != nullptr);
  const std::string root = mount;
  CHECK_EQ(std::system(("mkdir -p " + root + "/a/b " + root + "/cpu/c").c_str()), 0);
  std::ofstream(root + "/a/cpu.max") << "300000 100000\n";
  std::ofstream(root + "/a/b/cpu.max") << "max 100000\n";
  std::ofstream(root + "/cpu/c/cpu.cfs_quota_us") << "200000\n";
  std::ofstream(root + "/cpu/c/cpu.cfs_period_us") << "100000\n";
  CHECK_EQ(cores_of_groups("0::/a/b\n", root), 3);
  CHECK_EQ(cores_of_groups("0::/elsewhere\n", root), 0);
  CHECK_EQ(cores_of_groups("3:cpu,cpuacct:/c\n0::/a/b\n", root), 2);
  CHECK_EQ(cores_of_groups("nonsense\n:\n1:cpu\n", root), 0);
  CHECK(outnumbered(3, 2) && outnumbered(1, 1));
  CHECK(!outnumbered(2, 2) && !outnumbered(1, 2));
  CHECK_EQ(std::system(("rm -r " + root).c_str()), 0);
  CHECK(usable_cores_of_ranks() >= 1);
}

}  // namespace
}  // namespace ccl_lab
