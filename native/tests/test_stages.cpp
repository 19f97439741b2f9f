// How stages are written where ranks share cores: through the caches and past them, in turn until one is found the faster.
//
// Is: results of calls on plain buffers while the rank that decides tries both.
// Is not: timed: which of them it prefers is the machine's affair (RouteTrials in test_node.cpp).
#include <vector>

#include "check.hpp"
#include "node_ranks.hpp"

using namespace ccl_lab;

namespace {

constexpr std::uint64_t kBlock = 12 * 1024;

float value(int from, int to, int turn, std::size_t i) { return static_cast<float>(from * 64 + to * 8 + turn % 8 + static_cast<int>(i % 5)); }

// What the lowest rank said in its header of collective `number`.
bool said_streams(const testing::NodeRank& self, std::uint64_t number) {
  node::Where where;
  std::memcpy(&where, node::board_at(self.segment->board()).headers[number & (node::headers_of(self.n) - 1)].data, sizeof where);
  return (where.flags & node::kStreamsNext) != 0;
}

constexpr int kTurns = 60;

// Calls with other bytes each time. Of the lowest rank: after how many the next stages were to go past the caches; -1: a wrong result.
int streamed(testing::NodeRank& self, std::uint64_t block_bytes) {
  const std::size_t count = block_bytes / sizeof(float);
  std::vector<float> input(count * static_cast<std::size_t>(self.n));
  std::vector<float> output(input.size());
  int streams = 0;
  for (int turn = 0; turn < kTurns; ++turn) {
    for (int to = 0; to < self.n; ++to)
      for (std::size_t i = 0; i < count; ++i) input[static_cast<std::size_t>(to) * count + i] = value(self.rank, to, turn, i);
    node::Call call;
    call.collective = Collective::all_to_all;
    call.dtype = DType::float32;
    call.input = reinterpret_cast<const std::byte*>(input.data());
    call.output = reinterpret_cast<std::byte*>(output.data());
    call.block_bytes = block_bytes;
    if (!self.run(call).ok()) return -1;
    if (self.rank == 0 && said_streams(self, static_cast<std::uint64_t>(turn) + 1)) ++streams;
    for (int from = 0; from < self.n; ++from)
      for (std::size_t i = 0; i < count; ++i)
        if (output[static_cast<std::size_t>(from) * count + i] != value(from, self.rank, turn, i)) return -1;
  }
  return streams;
}

}  // namespace

TEST(ranks_that_share_cores_try_both_stores) {
  for (const node::Cross cross : {node::Cross::never, node::Cross::automatic}) {
    node::GroupOptions options;
    options.n_cores = 2;
    options.cross = cross;
    CHECK(testing::run_ranks(4, [](testing::NodeRank& self) {
            const int streams = streamed(self, kBlock);
            return self.rank == 0 ? streams > 0 && streams < kTurns : streams == 0;
          }, options));
  }
}

TEST(ranks_with_a_core_each_try_nothing) {
  node::GroupOptions options;
  options.n_cores = 4;
  options.cross = node::Cross::never;
  CHECK(testing::run_ranks(4, [](testing::NodeRank& self) { return streamed(self, kBlock) == 0; }, options));
}
