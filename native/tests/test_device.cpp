// Collectives over memory of GPUs, on the mock of CUDA: sums bit for bit, whatever the streams do first; errors by name; nothing leaks.
#include <unistd.h>

#include <cstring>
#include <functional>

#include "check.hpp"
#include "device_ranks.hpp"
#include "reduce/reduce.hpp"

using namespace ccl_lab;
using check::DeviceRanks;
namespace gpu = ccl_lab::check::gpu;

namespace {

struct Case {
  const char* name;
  std::function<check::Columns(int rank, int n)> plan;
  bool reduces;
};

constexpr std::uint64_t kBlock = 1024;

const Case kCases[] = {
    {"ring all_gather", [](int rank, int n) { return check::ring_all_gather(rank, n, kBlock); }, false},
    {"all_gather by gets", [](int rank, int n) { return check::get_all_gather(rank, n, kBlock); }, false},
    {"direct all_reduce", [](int rank, int n) { return check::direct_all_reduce(rank, n, kBlock, DType::float32, RedOp::sum, false); }, true},
    {"all_reduce in place of peers", [](int rank, int n) { return check::direct_all_reduce(rank, n, kBlock, DType::float32, RedOp::sum, true); }, true},
    {"average of bfloat16", [](int rank, int n) { return check::direct_all_reduce(rank, n, kBlock, DType::bfloat16, RedOp::avg, false); }, true},
    {"maximum of int8", [](int rank, int n) { return check::direct_all_reduce(rank, n, kBlock, DType::int8, RedOp::max, true); }, true},
};

// One case on n ranks: buffers, programs, and what must come out.
class Job {
 public:
  Job(DeviceRanks& ranks, const Case& what) : ranks_(ranks), what_(what) {
    for (int rank = 0; rank < ranks.n_ranks; ++rank) {
      const check::Columns columns = what.plan(rank, ranks.n_ranks);
      programs_.push_back(check::compiled(columns));
      const Program& program = *programs_.back();
      buffers_.push_back({ranks.allocate(rank, program.bytes(Buffer::input) + 64), ranks.allocate(rank, program.bytes(Buffer::output) + 64)});
    }
  }

  // Fresh random input; small integers for floats, so that sums are exact in any order.
  void fill() {
    const RunIdentity& identity = programs_[0]->identity();
    inputs_.clear();
    for (int rank = 0; rank < ranks_.n_ranks; ++rank) {
      std::vector<std::byte> bytes(programs_[at(rank)]->bytes(Buffer::input));
      for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(ranks_.random());
      if (identity.dtype == DType::float32)
        for (std::size_t i = 0; i + 4 <= bytes.size(); i += 4) {
          const float value = static_cast<float>(ranks_.random() % 1000);
          std::memcpy(&bytes[i], &value, 4);
        }
      if (identity.dtype == DType::bfloat16)
        for (std::size_t i = 1; i < bytes.size(); i += 2) bytes[i] = static_cast<std::byte>(0x3f + static_cast<int>(ranks_.random() % 3));
      std::memcpy(ranks_.view(rank, buffers_[at(rank)].input), bytes.data(), bytes.size());
      std::memset(ranks_.view(rank, buffers_[at(rank)].output), 0xee, programs_[at(rank)]->bytes(Buffer::output));
      inputs_.push_back(std::move(bytes));
    }
  }
  Status begin(int rank, cuda::CuStream on = nullptr) { return ranks_.begin(rank, programs_[at(rank)], buffers_[at(rank)], on); }
  Status call() {
    Status first;
    for (int rank = 0; rank < ranks_.n_ranks; ++rank)
      if (Status status = begin(rank); !status.ok() && first.ok()) ranks_.stop(first = status);
    const Status met = ranks_.meet();
    return first.ok() ? met : first;
  }
  std::vector<std::byte> wanted() const {
    const RunIdentity& identity = programs_[0]->identity();
    std::vector<std::byte> out;
    if (!what_.reduces) {
      for (const auto& input : inputs_) out.insert(out.end(), input.begin(), input.end());
      return out;
    }
    out.resize(inputs_[0].size());
    std::vector<const std::byte*> srcs;
    for (const auto& input : inputs_) srcs.push_back(input.data());
    std::byte* dst = out.data();
    const std::int64_t divisor = identity.redop == RedOp::avg ? ranks_.n_ranks : 1;
    reduce_to(identity.dtype, identity.redop, &dst, 1, srcs.data(), srcs.size(), out.size() / itemsize(identity.dtype), divisor);
    return out;
  }
  bool right() const {
    const std::vector<std::byte> expected = wanted();
    for (int rank = 0; rank < ranks_.n_ranks; ++rank)
      if (std::memcmp(ranks_.view(rank, buffers_[at(rank)].output), expected.data(), expected.size()) != 0) return false;
    return true;
  }
  const device::Buffers& buffers(int rank) const { return buffers_[at(rank)]; }
  const std::shared_ptr<const Program>& program(int rank) const { return programs_[at(rank)]; }

 private:
  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }
  DeviceRanks& ranks_;
  const Case& what_;
  std::vector<std::shared_ptr<const Program>> programs_;
  std::vector<device::Buffers> buffers_;
  std::vector<std::vector<std::byte>> inputs_;
};

void run_case(const Case& what, int n, int devices, const gpu::Options& options) {
  DeviceRanks ranks(n, options);
  ranks.devices = devices;
  CHECK_OK(ranks.open());
  Job job(ranks, what);
  for (int turn = 0; turn < 3; ++turn) {
    job.fill();
    CHECK_OK(job.call());
    ranks.settle();
    if (!ranks.idle() || !job.right() || gpu::faults() != 0)
      check::fail(__FILE__, __LINE__, std::string(what.name) + ", " + std::to_string(n) + " ranks, seed " + std::to_string(options.seed) +
                                          (ranks.idle() ? ": wrong " : ": stuck ") + gpu::last_fault());
  }
}

}  // namespace

TEST(sums_are_exact_in_any_order_of_streams) {
  for (const Case& what : kCases)
    for (const int n : {2, 3, 4, 8})
      for (std::uint64_t seed = 1; seed <= 12; ++seed) {
        gpu::Options options;
        options.seed = seed;
        options.n_devices = 4;
        run_case(what, n, seed % 2 == 0 ? 4 : 1, options);
      }
}

TEST(memory_of_the_mapping_api_goes_by_descriptors) {
  for (const Case& what : kCases) {
    gpu::Options options;
    options.legacy_ipc = false;
    run_case(what, 3, 1, options);
    CHECK(gpu::calls_of("cuMemImportFromShareableHandle") > 0);
    CHECK_EQ(gpu::calls_of("cuIpcOpenMemHandle_v2"), 0u);
  }
}

TEST(nothing_is_on_the_default_stream_and_mappings_are_made_once) {
  DeviceRanks ranks(4);
  CHECK_OK(ranks.open());
  Job job(ranks, kCases[2]);
  job.fill();
  CHECK_OK(job.call());
  ranks.settle();
  const std::uint64_t opened = gpu::calls_of("cuIpcOpenMemHandle_v2"), made = gpu::calls_of("cuStreamCreateWithPriority");
  for (int i = 0; i < 200; ++i) {  // more calls than a page holds
    CHECK_OK(job.call());
    if (i % 7 == 0) ranks.settle();
  }
  ranks.settle();
  CHECK(job.right());
  CHECK_EQ(gpu::calls_of("cuIpcOpenMemHandle_v2"), opened);
  CHECK_EQ(gpu::calls_of("cuStreamCreateWithPriority"), made);
  CHECK_EQ(gpu::on_default_stream(), 0u);
}

TEST(a_call_is_ordered_on_the_users_stream) {
  DeviceRanks ranks(2);
  CHECK_OK(ranks.open());
  Job job(ranks, kCases[0]);
  job.fill();
  const std::vector<std::byte> late(kBlock, std::byte{0x5a});
  // Rank 0's input is made on its stream just before the call; what it holds before that must not be sent.
  const cuda::DevicePtr from = ranks.allocate(0, kBlock);
  std::memcpy(ranks.view(0, from), late.data(), kBlock);
  gpu::enter(0);
  CHECK_EQ(gpu::api().memory_copy(job.buffers(0).input, from, kBlock, ranks.users[0].get()), 0);
  CHECK_OK(job.call());
  // And what comes after the call on rank 1's stream sees the result.
  const cuda::DevicePtr after = ranks.allocate(1, 2 * kBlock);
  gpu::enter(1);
  CHECK_EQ(gpu::api().memory_copy(after, job.buffers(1).output, 2 * kBlock, ranks.users[1].get()), 0);
  ranks.settle();
  CHECK(std::memcmp(ranks.view(1, after), late.data(), kBlock) == 0);
}

TEST(a_captured_collective_is_replayed) {
  for (const Case& what : kCases)
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
      gpu::Options options;
      options.seed = seed;
      DeviceRanks ranks(3, options);
      CHECK_OK(ranks.open());
      Job job(ranks, what);
      job.fill();
      CHECK_OK(job.call());  // an ordinary one before
      ranks.settle();
      std::vector<int> graphs(3);
      for (const auto& user : ranks.users) CHECK_EQ(gpu::begin_capture(user.get()), 0);
      CHECK_OK(job.call());
      CHECK_OK(job.call());  // two collectives in one graph
      for (std::size_t i = 0; i < 3; ++i) CHECK_EQ(gpu::end_capture(ranks.users[i].get(), &graphs[i]), 0);
      for (int replay = 0; replay < 4; ++replay) {
        job.fill();
        for (std::size_t i = 0; i < 3; ++i) CHECK_EQ(gpu::launch_graph(graphs[i], ranks.users[i].get()), 0);
        if (replay == 2)  // and replays behind each other
          for (std::size_t i = 0; i < 3; ++i) CHECK_EQ(gpu::launch_graph(graphs[i], ranks.users[i].get()), 0);
        ranks.settle();
        if (!ranks.idle() || !job.right() || gpu::faults() != 0)
          check::fail(__FILE__, __LINE__, std::string(what.name) + ": replay " + std::to_string(replay) + ", seed " + std::to_string(seed));
      }
      job.fill();
      CHECK_OK(job.call());  // and one outside again
      ranks.settle();
      CHECK(job.right());
    }
}

TEST(memory_may_be_shown_and_mapped_while_a_graph_is_captured) {
  DeviceRanks ranks(2);
  CHECK_OK(ranks.open());
  Job job(ranks, kCases[2]);  // nothing was called before
  job.fill();
  int graphs[2] = {};
  for (const auto& user : ranks.users) CHECK_EQ(gpu::begin_capture(user.get()), 0);
  CHECK_OK(job.call());
  for (std::size_t i = 0; i < 2; ++i) CHECK_EQ(gpu::end_capture(ranks.users[i].get(), &graphs[i]), 0);
  for (std::size_t i = 0; i < 2; ++i) CHECK_EQ(gpu::launch_graph(graphs[i], ranks.users[i].get()), 0);
  ranks.settle();
  CHECK(job.right());
  CHECK_EQ(gpu::faults(), 0);
}

TEST(every_call_of_the_driver_may_fail_and_nothing_leaks) {
  for (const bool legacy : {true, false}) {
    gpu::Options options;
    options.legacy_ipc = legacy;
    std::uint64_t total = 0;
    for (std::uint64_t at = 0; at == 0 || at <= total; ++at) {
      bool failed = false;
      {
        DeviceRanks ranks(2, options);
        gpu::fail_call(at, cuda::kOutOfMemory);
        Status status;
        std::unique_ptr<Job> job;
        status = ranks.open();
        const bool opened = status.ok();
        if (opened) {
          const std::uint64_t before = gpu::calls();
          gpu::fail_call(0, 0);
          job = std::make_unique<Job>(ranks, kCases[2]);
          job->fill();
          if (at > before) gpu::fail_call(at - before, cuda::kOutOfMemory);
          status = job->call();
        }
        failed = !gpu::last_failed().empty();
        gpu::fail_call(0, 0);
        if (at == 0) {
          CHECK_OK(status);
          total = gpu::calls();
        } else if (failed && status.ok()) {
          ranks.settle();
          // Attributes that are only asked for to be sure may be missing.
          if (!job || !job->right()) check::fail(__FILE__, __LINE__, "call " + std::to_string(at) + " (" + gpu::last_failed() + ") failed unheard");
        } else if (failed) {
          if (status.code == Code::internal || status.code == Code::ok || status.message.size() < 40)
            check::fail(__FILE__, __LINE__, "call " + std::to_string(at) + " (" + gpu::last_failed() + "): " + status.message);
        }
        ranks.settle();
      }
      if (const auto left = gpu::alive(); !left.empty())
        check::fail(__FILE__, __LINE__, "after call " + std::to_string(at) + " (" + gpu::last_failed() + ") failed: " + std::to_string(left.begin()->second) +
                                            " of " + left.begin()->first + " left");
      CHECK_EQ(gpu::faults(), 0);
    }
    CHECK(total > 100);
  }
}
