// What a collective costs, counted and not timed: what the regression guard looks at (tests/guard/test_costs.py).
//
// Is: all ranks of a node stepped by turns in one thread, so that every run executes the same instructions.
// Is not: a measurement of speed: no waiting, no other core, no cache.
//
//   costs instructions CASE ITERATIONS    runs it; a tool such as callgrind counts. Cases: see kCases
//   costs bytes                           prints, per collective, ranks and memory, the bytes the kernels of all ranks
//                                         read and wrote, one JSON object a line
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "ccl_lab/communicator.hpp"
#include "node/group.hpp"

namespace {

using namespace ccl_lab;

constexpr std::uint64_t kArenaBytes = std::uint64_t{1} << 28;

[[noreturn]] void die(const std::string& why) {
  std::fprintf(stderr, "costs: %s\n", why.c_str());
  std::exit(1);
}

void check(const Status& status) {
  if (!status.ok()) die(status.message);
}

// The ranks of a node, all of them here.
class Node {
 public:
  explicit Node(int n) {
    SegmentOptions options;
    options.n_signal_channels = 1;
    options.n_nics = 0;
    options.trace_spans = 1;
    options.board_bytes = node::board_bytes(static_cast<std::uint64_t>(n));
    options.arena_bytes = kArenaBytes;
    std::vector<std::int32_t> ranks(static_cast<std::size_t>(n));
    std::iota(ranks.begin(), ranks.end(), 0);
    node::GroupOptions group;
    group.n_cores = 2;
    group.cross = ccl_lab::node::Cross::never;
    for (const int rank : ranks) {
      Result<RankSegment> made = RankSegment::create(rank, n, options);
      check(made.status());
      segments.push_back(std::make_shared<RankSegment>(std::move(made).value()));
      groups.push_back(std::make_unique<node::Group>(segments.back(), ranks, group, nullptr));
    }
    for (const auto& one : groups)
      for (const int rank : ranks) check(one->attach(rank, segments[static_cast<std::size_t>(rank)]));
  }

  // One collective; `calls` by rank.
  void run(const std::vector<node::Call>& calls) {
    for (std::size_t rank = 0; rank < groups.size(); ++rank)
      if (const Status status = groups[rank]->begin(calls[rank]); !status.ok()) die(status.message);
    std::size_t open = groups.size();
    for (int turn = 0; open > 0; ++turn) {
      if (turn > 10'000'000) die("a collective does not end");
      for (const auto& group : groups) {
        if (!group->running()) continue;
        const node::Turn result = group->step();
        if (result == node::Turn::failed) die(group->status().message);
        open -= result == node::Turn::done;
      }
    }
  }

  std::vector<std::shared_ptr<RankSegment>> segments;
  std::vector<std::unique_ptr<node::Group>> groups;
};

node::Call call_of(Collective collective, std::byte* input, std::byte* output, std::uint64_t block_bytes) {
  node::Call call;
  call.collective = collective;
  call.dtype = DType::float32;
  call.input = input;
  call.output = output;
  call.block_bytes = block_bytes;
  return call;
}

struct Case {
  const char* name;
  Collective collective;
  std::uint64_t block_bytes;
};
constexpr Case kCases[] = {
    {"all_reduce_8", Collective::all_reduce, 8},
    {"all_reduce_1024", Collective::all_reduce, 1024},
    {"broadcast_8", Collective::broadcast, 8},
    {"barrier", Collective::barrier, 0},
};

// The whole way of a call through the public header, where there is nobody to wait for.
void run_alone(long iterations) {
  Options options;
  options.arena_bytes = kArenaBytes;
  Communicator comm = Communicator::join(0, 1, "", options);
  float in[2] = {1, 2};
  float out[2] = {0, 0};
  for (long i = 0; i < iterations; ++i) comm.all_reduce(in, out, 2, DType::float32);
  if (out[1] != 2) die("wrong sum");
}

void run_case(const std::string& name, long iterations) {
  if (name == "public_all_reduce_8") return run_alone(iterations);
  for (const Case& one : kCases) {
    if (name != one.name) continue;
    Node node(2);
    std::vector<node::Call> calls;
    for (const auto& segment : node.segments)
      calls.push_back(call_of(one.collective, segment->arena(), segment->arena() + 4096, one.block_bytes));
    for (long i = 0; i < iterations; ++i) node.run(calls);
    return;
  }
  die("there is no case " + name);
}

void print_bytes(Collective collective, int n, bool mapped, std::uint64_t message_bytes) {
  Node node(n);
  const node::Blocks most = node::blocks_of(collective, 0, n, 0, -1);
  const std::uint64_t block = message_bytes / std::max<std::uint64_t>({most.input, most.output, 1}) / 64 * 64;
  std::vector<std::vector<std::byte>> heap;
  std::vector<node::Call> calls;
  for (const auto& segment : node.segments) {
    std::byte* memory = segment->arena();
    if (!mapped) memory = heap.emplace_back(2 * message_bytes).data();
    calls.push_back(call_of(collective, memory, memory + message_bytes, block));
    if (collective == Collective::broadcast) calls.back().output = memory;
  }
  node.run(calls);
  std::uint64_t read = 0;
  std::uint64_t written = 0;
  for (const auto& group : node.groups) {
    read += group->traffic().read_bytes;
    written += group->traffic().written_bytes;
  }
  std::printf("{\"collective\": \"%s\", \"ranks\": %d, \"memory\": \"%s\", \"bytes\": %llu, \"read\": %llu, \"written\": %llu}\n",
              kCollectiveNames[static_cast<std::size_t>(collective)], n, mapped ? "registered" : "plain",
              static_cast<unsigned long long>(message_bytes), static_cast<unsigned long long>(read),
              static_cast<unsigned long long>(written));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "instructions" && argc == 4) {
    run_case(argv[2], std::atol(argv[3]));
    return 0;
  }
  if (what != "bytes") die("usage: costs instructions CASE ITERATIONS | costs bytes");
  for (const Collective collective : {Collective::all_reduce, Collective::all_gather, Collective::reduce_scatter,
                                      Collective::all_to_all, Collective::broadcast, Collective::reduce})
    for (const int n : {2, 4, 8})
      for (const bool mapped : {true, false}) print_bytes(collective, n, mapped, std::uint64_t{4} << 20);
  return 0;
}
