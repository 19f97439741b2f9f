// Collectives of a node: every operation, on every kind of memory, by real processes, against sums that are exact.
//
// Is: small, mapped, staged and paired ways, mixed buffers, ranks that sleep, differ, stop and reset.
// Is not: timed.
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <new>
#include <string>

#include "check.hpp"
#include "node/trials.hpp"
#include "node_ranks.hpp"

using namespace ccl_lab;
using namespace ccl_lab::testing;
using namespace ccl_lab::check;

namespace {

enum class Memory { mapped, plain, mixed, aliased };

// Small integers, different for every rank, block and element; sums of 16 ranks stay exact in float32.
float value(int rank, std::uint64_t i) { return static_cast<float>((static_cast<std::uint64_t>(rank) * 7 + i * 3 + i / 251) % 101); }

// The buffers of a case, from the arena or from the heap.
class Buffers {
 public:
  Buffers(NodeRank& self, Memory memory) : self_(self), memory_(memory) {}
  ~Buffers() {
    for (void* p : aliases_) self_.group->remove_alias(p);
    for (auto& [p, bytes] : maps_) ::munmap(p, bytes);
    for (void* p : heap_) std::free(p);
  }
  float* take(std::uint64_t elements) {
    const std::uint64_t bytes = elements * sizeof(float) + 64;
    const bool plain = memory_ == Memory::plain || (memory_ == Memory::mixed && self_.rank % 2 == 1);
    if (memory_ == Memory::aliased) return alias(bytes);
    if (plain) {
      heap_.push_back(std::malloc(bytes));
      return static_cast<float*>(heap_.back());
    }
    float* const p = self_.mapped<float>(at_);
    at_ += (bytes + 4095) / 4096 * 4096;
    return p;
  }

 private:
  // What registration does: ordinary memory whose whole pages become those of the arena.
  float* alias(std::uint64_t bytes) {
    const std::uint64_t whole = (bytes + 3 * 4096) / 4096 * 4096;
    void* const p = ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    maps_.emplace_back(p, whole);
    auto* const begin = static_cast<std::byte*>(p) + 4 * (5 + static_cast<std::uint64_t>(self_.rank) * 3);
    std::byte* const pages = static_cast<std::byte*>(p) + 4096;
    std::byte* const end = begin + bytes;
    std::byte* const pages_end = end - reinterpret_cast<std::uintptr_t>(end) % 4096;
    at_ += 4096;
    if (pages_end > pages) {
      ::mmap(pages, static_cast<std::size_t>(pages_end - pages), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
             self_.segment->fd(), static_cast<off_t>(self_.segment->header().arena_offset + at_));
      self_.group->add_alias({begin, end, pages, pages_end, at_});
      aliases_.push_back(begin);
      at_ += static_cast<std::uint64_t>(pages_end - pages);
    }
    return reinterpret_cast<float*>(begin);
  }

  NodeRank& self_;
  Memory memory_;
  std::uint64_t at_ = 1 << 20;
  std::vector<void*> heap_;
  std::vector<void*> aliases_;
  std::vector<std::pair<void*, std::uint64_t>> maps_;
};

float expected(Collective collective, RedOp redop, int rank, int n, int root, std::uint64_t count, std::uint64_t i) {
  const auto block = i / std::max<std::uint64_t>(count, 1);
  const auto reduced = [&](std::uint64_t at) {
    float sum = 0;
    for (int j = 0; j < n; ++j) sum = redop == RedOp::max ? std::max(sum, value(j, at)) : sum + value(j, at);
    return redop == RedOp::avg ? sum / static_cast<float>(n) : sum;
  };
  switch (collective) {
    case Collective::all_reduce:
    case Collective::reduce: return reduced(i);
    case Collective::reduce_scatter: return reduced(static_cast<std::uint64_t>(rank) * count + i);
    case Collective::all_gather:
    case Collective::gather: return value(static_cast<int>(block), i % count);
    case Collective::broadcast: return value(root, i);
    case Collective::scatter: return value(root, static_cast<std::uint64_t>(rank) * count + i);
    default: return value(static_cast<int>(block), static_cast<std::uint64_t>(rank) * count + i % count);
  }
}

bool run_case(NodeRank& self, Collective collective, Memory memory, bool in_place, std::uint64_t count, int root, RedOp redop) {
  Buffers buffers(self, memory);
  const node::Blocks blocks = node::blocks_of(collective, self.rank, self.n, root, -1);
  node::Call call;
  call.collective = collective;
  call.dtype = DType::float32;
  call.redop = redop;
  call.root = root;
  call.block_bytes = count * sizeof(float);
  float* const big = buffers.take(std::max(blocks.input, blocks.output) * count);
  float* in = big;
  float* out = in_place ? big : buffers.take(blocks.output * count);
  if (in_place && collective == Collective::all_gather) in = big + static_cast<std::uint64_t>(self.rank) * count;
  if (in_place && collective == Collective::reduce_scatter) out = big + static_cast<std::uint64_t>(self.rank) * count;
  for (std::uint64_t i = 0; i < blocks.output * count; ++i) out[i] = -1;
  for (std::uint64_t i = 0; i < blocks.input * count; ++i) in[i] = value(self.rank, i);
  call.input = reinterpret_cast<std::byte*>(in);
  call.output = reinterpret_cast<std::byte*>(out);
  const Status status = self.run(call);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.message.c_str());
    return false;
  }
  for (std::uint64_t i = 0; i < blocks.output * count; ++i) {
    const float want = expected(collective, redop, self.rank, self.n, root, count, i);
    if (out[i] == want) continue;
    std::fprintf(stderr, "%s of %lu x float32, memory %d, in place %d, rank %d of %d, root %d: element %lu is %g, expected %g\n",
                 kCollectiveNames[static_cast<int>(collective)], static_cast<unsigned long>(count), static_cast<int>(memory),
                 in_place, self.rank, self.n, root, static_cast<unsigned long>(i), static_cast<double>(out[i]), static_cast<double>(want));
    return false;
  }
  return true;
}

// False in a container that refuses process_vm_readv: nothing is at address 0, so EFAULT is a yes.
bool kernel_copies() {
  std::uint64_t word = 0;
  iovec local{&word, sizeof word};
  iovec remote{nullptr, sizeof word};
  return ::process_vm_readv(::getppid(), &local, 1, &remote, 1, 0) < 0 && errno == EFAULT;
}

constexpr Collective kAll[] = {Collective::all_reduce, Collective::all_gather, Collective::reduce_scatter,
                               Collective::broadcast,  Collective::reduce,     Collective::gather,
                               Collective::scatter,    Collective::all_to_all};

bool every_collective(NodeRank& self, Memory memory) {
  const std::uint64_t counts[] = {0, 1, 3, 14, 15, 300, 4096, 20'001, 150'003};
  for (const Collective collective : kAll)
    for (const std::uint64_t count : counts)
      for (const bool in_place : {false, true}) {
        const bool alike = collective == Collective::all_reduce || collective == Collective::all_gather ||
                           collective == Collective::reduce_scatter || collective == Collective::all_to_all ||
                           collective == Collective::broadcast;
        if (in_place && !alike) continue;
        const int root = static_cast<int>(count % static_cast<std::uint64_t>(self.n));
        const RedOp redop = count % 3 == 0 ? RedOp::sum : count % 3 == 1 ? RedOp::max : RedOp::avg;
        if (!run_case(self, collective, memory, in_place, count, root, redop)) return false;
      }
  return true;
}

bool send_all_sizes(NodeRank& self, Memory memory) {
  for (const std::uint64_t count : {std::uint64_t{1}, std::uint64_t{14}, std::uint64_t{15}, std::uint64_t{4096}, std::uint64_t{4097}, std::uint64_t{200'001}, std::uint64_t{300'007}})
    for (int repeat = 0; repeat < 40; ++repeat) {
      Buffers buffers(self, memory);
      float* const data = buffers.take(count);
      node::Call call;
      call.collective = Collective::send_recv;
      call.dtype = DType::float32;
      call.block_bytes = count * sizeof(float);
      call.root = repeat % self.n;
      call.peer = (repeat + 1 + repeat / self.n) % self.n;
      if (self.rank != call.root && self.rank != call.peer) continue;
      if (self.rank == call.root)
        for (std::uint64_t i = 0; i < count; ++i) data[i] = value(repeat, i);
      call.input = call.output = reinterpret_cast<std::byte*>(data);
      if (const Status status = self.run(call); !status.ok()) {
        std::fprintf(stderr, "%s\n", status.message.c_str());
        return false;
      }
      for (std::uint64_t i = 0; i < count; ++i)
        if (data[i] != value(repeat, i)) {
          std::fprintf(stderr, "message %d of %lu elements: element %lu is wrong\n", repeat, static_cast<unsigned long>(count),
                       static_cast<unsigned long>(i));
          return false;
        }
    }
  return true;
}

// From rank 0 to rank 1.
node::Call message_of(std::vector<float>& data) {
  node::Call call;
  call.collective = Collective::send_recv;
  call.dtype = DType::float32;
  call.block_bytes = data.size() * sizeof(float);
  call.root = 0;
  call.peer = 1;
  call.input = call.output = reinterpret_cast<std::byte*>(data.data());
  return call;
}

// What a call took, by a machine on which either way costs what `of` says.
template <class Cost>
int crossings(node::RouteTrials& trials, int calls, std::uint64_t block_bytes, Cost of) {
  int crossed = 0;
  for (int i = 0; i < calls; ++i) {
    const bool cross = trials.takes_other(Collective::all_gather, block_bytes);
    crossed += cross ? 1 : 0;
    trials.took(Collective::all_gather, block_bytes, cross, of(cross));
  }
  return crossed;
}

}  // namespace

TEST(every_collective_on_mapped_memory) {
  for (const int n : {1, 2, 3, 4, 7}) CHECK(run_ranks(n, [](NodeRank& self) { return every_collective(self, Memory::mapped); }));
}
TEST(every_collective_on_plain_memory) {
  for (const int n : {2, 3, 5}) CHECK(run_ranks(n, [](NodeRank& self) { return every_collective(self, Memory::plain); }));
}
TEST(every_collective_through_the_stages_or_by_the_kernel) {
  node::GroupOptions options;
  for (const node::Cross cross : {node::Cross::never, node::Cross::always})
    for (const int n : {2, 4, 5, 8})
      for (const Memory memory : {Memory::plain, Memory::mixed, Memory::aliased}) {
        options.cross = cross;
        CHECK(run_ranks(n, [memory](NodeRank& self) { return every_collective(self, memory); }, options));
      }
}
// Calls back to back, of sizes that are staged before their headers and of others, by ranks that dawdle at different ones.
TEST(what_was_staged_early_lasts_until_all_have_read_it) {
  node::GroupOptions options;
  options.cross = node::Cross::never;
  for (const int n : {2, 3, 6})
    CHECK(run_ranks(n, [](NodeRank& self) {
      const std::uint64_t counts[] = {2500, 9000, 15'999, 2500, 40'000, 30, 7000};
      for (std::uint64_t k = 0; k < 280; ++k) {
        const std::uint64_t count = counts[k % std::size(counts)];
        const bool in_place = k % 2 == 0 && kAll[k % 8] != Collective::reduce && kAll[k % 8] != Collective::gather && kAll[k % 8] != Collective::scatter;
        const Memory memory = k % 11 == 0 ? Memory::mixed : Memory::plain;
        if ((k * 5 + static_cast<std::uint64_t>(self.rank) * 3) % 17 == 0) ::usleep(700);
        if (!run_case(self, kAll[k % 8], memory, in_place, count, static_cast<int>(k) % self.n, RedOp::sum)) return false;
      }
      return true;
    }, options));
}
TEST(a_rank_that_has_staged_its_input_is_not_waited_for) {
  node::GroupOptions options;
  options.cross = node::Cross::never;
  void* const page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  struct Progress {
    std::atomic<int> begun, others_done;
  };
  auto& seen = *new (page) Progress{};
  CHECK(run_ranks(3, [&seen](NodeRank& self) {
    std::vector<float> in(10'000, static_cast<float>(self.rank)), out(30'000);
    node::Call call;
    call.collective = Collective::all_gather;
    call.dtype = DType::float32;
    call.block_bytes = in.size() * sizeof(float);
    call.input = reinterpret_cast<std::byte*>(in.data());
    call.output = reinterpret_cast<std::byte*>(out.data());
    const auto wait_for = [](const std::atomic<int>& count, int least) {
      for (int ms = 0; count < least && ms < 20'000; ++ms) ::usleep(1000);
      return count >= least;
    };
    if (self.rank != 0) {
      if (!wait_for(seen.begun, 1) || !self.run(call).ok()) return false;
      ++seen.others_done;
    } else {
      if (!self.group->begin(call).ok() || self.group->step() != node::Turn::waiting) return false;
      ++seen.begun;
      if (!wait_for(seen.others_done, 2) || self.group->drive(5'000'000'000) != node::Turn::done) return false;
    }
    return out[0] == 0 && out[10'000] == 1 && out[29'999] == 2;
  }, options));
  ::munmap(page, 4096);
}
// A stage costs one more copy of every contribution, which tells the two ways apart.
TEST(plain_memory_takes_the_way_that_was_asked_for) {
  for (const node::Cross cross : {node::Cross::never, node::Cross::always}) {
    node::GroupOptions options;
    options.cross = cross;
    CHECK(run_ranks(2, [cross](NodeRank& self) {
      // Before the first call nobody knows that nothing need be staged.
      if (!run_case(self, Collective::all_gather, Memory::plain, false, 50'000, 0, RedOp::sum)) return false;
      const std::uint64_t before = self.group->traffic().read_bytes;
      if (!run_case(self, Collective::all_gather, Memory::plain, false, 50'000, 0, RedOp::sum)) return false;
      const std::uint64_t moved = self.group->traffic().read_bytes - before;
      return moved == (cross == node::Cross::always && kernel_copies() ? 2u : 3u) * 200'000;
    }, options));
  }
}
// One rank of which may not read the others' memory: all ranks stage.
TEST(a_rank_that_may_not_cross_keeps_all_from_it) {
  node::GroupOptions options;
  options.cross = node::Cross::always;
  const auto options_of = [](int rank, node::GroupOptions own) {
    if (rank == 1) own.cross = node::Cross::never;
    return own;
  };
  CHECK(run_ranks(3, [](NodeRank& self) {
    const std::uint64_t before = self.group->traffic().read_bytes;
    if (!run_case(self, Collective::all_gather, Memory::plain, false, 50'000, 0, RedOp::sum)) return false;
    return self.group->traffic().read_bytes - before == 4 * 200'000 && every_collective(self, Memory::mixed);
  }, options, options_of));
}
TEST(the_faster_way_of_plain_memory_is_found_and_the_other_tried_now_and_then) {
  node::RouteTrials trials;
  const int by_kernel = crossings(trials, 1000, 1 << 20, [](bool cross) { return cross ? 20'000 : 30'000; });
  CHECK(by_kernel > 980 && by_kernel < 998);
  // Other sizes and collectives have a choice of their own.
  const int by_stages = crossings(trials, 1000, 1 << 16, [](bool cross) { return cross ? 90'000 : 30'000; });
  CHECK(by_stages > 2 * 8 && by_stages < 5 * 8);
}
// Ranks that share a core: every second call is short because the others were there already.
TEST(short_calls_are_judged_by_what_a_run_of_them_takes) {
  node::RouteTrials trials;
  int calls = 0;
  const int by_kernel = crossings(trials, 4000, 1 << 16, [&calls](bool cross) { return cross ? (++calls % 2 == 0 ? 10'000 : 70'000) : 30'000; });
  CHECK(by_kernel < 200);
}
TEST(a_machine_that_changes_its_mind_is_followed) {
  node::RouteTrials trials;
  CHECK(crossings(trials, 500, 1 << 20, [](bool cross) { return cross ? 20'000 : 30'000; }) > 480);
  CHECK(crossings(trials, 500, 1 << 20, [](bool cross) { return cross ? 200'000 : 30'000; }) < 100);
  CHECK(crossings(trials, 2000, 1 << 20, [](bool cross) { return cross ? 20'000 : 100'000; }) > 1000);
}
// Sums in order of rank: 1 is lost in 2^24 (+) 1, and not in 1 (+) ... (+) 2^24.
TEST(sums_by_the_kernel_are_in_order_of_rank) {
  node::GroupOptions options;
  options.cross = node::Cross::always;
  for (const int n : {3, 5})
    CHECK(run_ranks(n, [](NodeRank& self) {
      constexpr std::uint64_t kCount = 70'001;
      std::vector<float> in(kCount), out(kCount);
      const auto given = [](int rank, std::uint64_t i) {
        return static_cast<std::uint64_t>(rank) == i % 3 ? 16777216.0f : 1.0f + static_cast<float>(rank) * 0.25f;
      };
      for (std::uint64_t i = 0; i < kCount; ++i) in[i] = given(self.rank, i);
      node::Call call;
      call.collective = Collective::all_reduce;
      call.dtype = DType::float32;
      call.block_bytes = kCount * sizeof(float);
      call.input = reinterpret_cast<std::byte*>(in.data());
      call.output = reinterpret_cast<std::byte*>(out.data());
      if (!self.run(call).ok()) return false;
      for (std::uint64_t i = 0; i < kCount; ++i) {
        volatile float sum = given(0, i);
        for (int j = 1; j < self.n; ++j) sum = sum + given(j, i);
        if (out[i] != sum || in[i] != given(self.rank, i)) return false;
      }
      return true;
    }, options));
}
TEST(every_collective_on_mixed_memory) {
  for (const int n : {2, 3, 4}) CHECK(run_ranks(n, [](NodeRank& self) { return every_collective(self, Memory::mixed); }));
}
TEST(every_collective_on_registered_memory_with_edges) {
  for (const int n : {2, 3}) CHECK(run_ranks(n, [](NodeRank& self) { return every_collective(self, Memory::aliased); }));
}
TEST(messages_between_pairs) {
  for (const Memory memory : {Memory::mapped, Memory::plain, Memory::mixed, Memory::aliased})
    for (const int n : {2, 3}) CHECK(run_ranks(n, [memory](NodeRank& self) { return send_all_sizes(self, memory); }));
  node::GroupOptions options;
  for (const node::Cross cross : {node::Cross::never, node::Cross::always}) {
    options.cross = cross;
    for (const Memory memory : {Memory::plain, Memory::mixed})
      CHECK(run_ranks(3, [memory](NodeRank& self) { return send_all_sizes(self, memory); }, options));
  }
}
// Pieces are written and read once more than what the kernel copies; the sender writes none of the latter.
TEST(a_long_plain_message_takes_the_way_that_was_asked_for) {
  for (const node::Cross cross : {node::Cross::never, node::Cross::always}) {
    node::GroupOptions options;
    options.cross = cross;
    CHECK(run_ranks(2, [cross](NodeRank& self) {
      std::vector<float> data(600'001, static_cast<float>(self.rank));
      const node::Call call = message_of(data);
      if (!self.run(call).ok() || data.back() != 0) return false;
      const bool across = cross == node::Cross::always && kernel_copies();
      return self.group->traffic().written_bytes == (across && self.rank == 0 ? 0 : call.block_bytes);
    }, options));
  }
}
// Whoever was stopped may have given its buffer away while it was read.
TEST(a_message_of_a_sender_that_was_stopped_is_refused) {
  node::GroupOptions options;
  options.cross = node::Cross::always;
  CHECK(run_ranks(2, [](NodeRank& self) {
    std::vector<float> data(600'001);
    const node::Call call = message_of(data);
    if (!kernel_copies()) return true;
    if (self.rank == 0) {
      const bool waits = self.group->begin(call).ok() && self.group->step() == node::Turn::waiting;
      self.group->stop(Status(Code::timeout, "too late"));
      self.meeting->numbers[0] = 1;
      while (self.meeting->numbers[1] == 0) ::usleep(100);
      return waits;
    }
    while (self.meeting->numbers[0] == 0) ::usleep(100);
    const Status status = self.run(call);
    self.meeting->numbers[1] = 1;
    return status.code == Code::aborted && status.rank == 0 && self.run(call).code == Code::aborted;
  }, options));
}

// The pieces of a long message use the slots of short ones, which a late receiver has still to read.
TEST(a_long_message_overtakes_no_short_one) {
  CHECK(run_ranks(2, [](NodeRank& self) {
    constexpr std::uint64_t kCounts[] = {1, 4096, 3000, 200'001, 4000, 5};
    if (self.rank == 1) ::usleep(20'000);
    for (std::uint64_t m = 0; m < std::size(kCounts); ++m) {
      std::vector<float> data(kCounts[m]);
      for (std::uint64_t i = 0; self.rank == 0 && i < data.size(); ++i) data[i] = value(static_cast<int>(m), i);
      const node::Call call = message_of(data);
      if (!self.run(call).ok()) return false;
      for (std::uint64_t i = 0; i < data.size(); ++i)
        if (data[i] != value(static_cast<int>(m), i)) return false;
    }
    return true;
  }));
}

// Ranks that come late find the others asleep; roots that run ahead are held back; nothing is lost.
TEST(ranks_that_sleep_are_woken) {
  CHECK(run_ranks(3, [](NodeRank& self) {
    for (int i = 0; i < 6; ++i) {
      if (self.rank == i % 3) ::usleep(15'000);
      if (!run_case(self, Collective::all_reduce, Memory::mapped, true, i % 2 == 0 ? 4 : 40'000, 0, RedOp::sum)) return false;
    }
    return true;
  }));
}
TEST(a_root_that_runs_ahead) {
  CHECK(run_ranks(3, [](NodeRank& self) {
    for (int i = 0; i < 2000; ++i) {
      if (self.rank == 1 && i % 500 == 0) ::usleep(3000);
      if (!run_case(self, Collective::broadcast, Memory::mapped, true, i % 7 == 0 ? 300 : 2, i / 100 % 3, RedOp::sum)) return false;
    }
    return true;
  }));
}

TEST(different_calls_are_named_on_both_ranks) {
  CHECK(run_ranks(2, [](NodeRank& self) {
    float data[4] = {};
    node::Call call;
    call.collective = self.rank == 0 ? Collective::all_reduce : Collective::all_gather;
    call.dtype = DType::float32;
    call.block_bytes = 8;
    call.input = call.output = reinterpret_cast<std::byte*>(data);
    const Status status = self.run(call);
    const bool named = status.code == Code::usage && status.message.find("all_reduce") != std::string::npos &&
                       status.message.find("all_gather") != std::string::npos;
    if (!named) std::fprintf(stderr, "found: %s\n", status.message.c_str());
    // After that nothing begins; after a reset everything does.
    const bool stopped = self.run(call).code == Code::aborted;
    ++self.meeting->numbers[1];
    while (self.meeting->numbers[1] < 2) ::usleep(100);
    self.group->reset(1);
    ++self.meeting->numbers[0];
    while (self.meeting->numbers[0] < 2) ::usleep(100);
    return named && stopped && run_case(self, Collective::all_reduce, Memory::mapped, false, 5000, 0, RedOp::sum);
  }));
}

TEST(a_rank_that_does_not_come_is_named) {
  CHECK(run_ranks(3, [](NodeRank& self) {
    if (self.rank == 2) return true;
    node::Call call;
    const Status status = self.run(call, 50'000'000);
    return status.code == Code::timeout && status.rank == 2;
  }));
}

TEST(an_abort_ends_a_wait) {
  CHECK(run_ranks(2, [](NodeRank& self) {
    if (self.rank == 1) return true;
    self.segment->abort(Code::peer_lost, "rank 1 was killed", 1);
    node::Call call;
    const Status status = self.run(call);
    return status.code == Code::peer_lost && status.rank == 1;
  }));
}
