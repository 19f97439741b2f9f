// What the simulator takes to time puts one by one, counted and not timed: tests/guard/test_costs.py.
//
// Is: direct algorithms among 256 nodes of 8 ranks, of which nothing is known that repeats, so that every put is evaluated. Is not: a measurement of
// speed. What it guards is that these loops go through vectors: a compiler that unrolls them first does not find any, and takes twice as long.
//
//   puts instructions CASE ITERATIONS    evaluates it so often; a tool such as callgrind counts. Cases: see kCases
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "sim/pairs.hpp"

namespace {

using namespace ccl_lab::sim;

constexpr std::int64_t kNodes = 256, kGroup = 8, kBytes = 8192;  // of a put
constexpr std::size_t kRanks = kNodes * kGroup;

[[noreturn]] void die(const std::string& why) {
  std::fprintf(stderr, "puts: %s\n", why.c_str());
  std::exit(1);
}

struct Case {
  const char* name;
  bool alike, pieces, in_place;  // no node faster or later; blocks in pieces over the NICs of a node, as `balance` cuts them; copies of what comes
};
constexpr Case kCases[] = {{"puts", false, false, false}, {"puts_in_pieces", true, true, false}, {"puts_in_place", false, false, true}};

// Node 3 lost NIC 2: each of its ranks puts its blocks in eight pieces, one over each NIC, of which NIC 3 has two.
struct Pieces {
  std::vector<std::int32_t> kind = std::vector<std::int32_t>(kNodes, 0), nic, left{1, 0}, first{0}, channel, size;
  std::vector<std::int64_t> bytes{kBytes, kBytes / kGroup}, near_bytes{kBytes};

  Pieces() {
    kind[3] = 1;
    for (std::int32_t of = 0; of < 2; ++of)
      for (std::int32_t c = 0; c < kGroup; ++c)
        for (std::int32_t rank = 0; rank < kGroup; ++rank) {
          const std::int32_t own = (rank + c) % kGroup;
          nic.push_back(of == 1 && own == 2 ? 3 : own);
        }
    for (std::int32_t rank = 0; rank < kGroup; ++rank) add(0, 0), first.push_back(static_cast<std::int32_t>(channel.size()));
    for (std::int32_t rank = 0; rank < kGroup; ++rank) {
      for (std::int32_t c = 0; c < kGroup; ++c) add(c, 1);
      first.push_back(static_cast<std::int32_t>(channel.size()));
    }
  }

  void add(std::int32_t of_channel, std::int32_t of_size) {
    channel.push_back(of_channel);
    size.push_back(of_size);
  }

  [[nodiscard]] PairCutsInput columns() const { return {kind, nic, left, first, channel, size, bytes, near_bytes}; }
};

void evaluate(const Case& one, long iterations) {
  const Pieces pieces;
  std::vector<std::int32_t> own(kGroup);
  std::iota(own.begin(), own.end(), 0);
  const std::vector<std::int64_t> latency(kRanks, 5'000'000), near_rate(kRanks, 450'000'000'000), near_latency(kRanks, 1'000'000);
  std::vector<std::int64_t> rate(kRanks, 50'000'000'000), late(kRanks), copy;
  for (std::int64_t i = 0; i < std::ssize(rate) && !one.alike; ++i) {
    rate[static_cast<std::size_t>(i)] -= i * 1'000'003;
    late[static_cast<std::size_t>(i)] = i * 7919 % 4093 * 1000;
  }
  const std::vector<std::int64_t> bytes{kBytes};
  if (one.in_place) copy.assign(kRanks, 20'000);
  std::vector<std::int64_t> arrived(kRanks), left(kRanks);
  PairsInput in;
  in.nodes = in.units = kNodes, in.group = in.nics = kGroup, in.channels = 1;
  in.alpha_ps = 1000;
  in.nic = own, in.bytes = bytes, in.late_ps = late, in.copy_ps = copy;
  in.tx_bytes_per_s = in.rx_bytes_per_s = rate, in.tx_latency_ps = in.rx_latency_ps = latency;
  in.near_tx_bytes_per_s = in.near_rx_bytes_per_s = near_rate, in.near_tx_latency_ps = in.near_rx_latency_ps = near_latency;
  if (one.pieces) in.cuts = pieces.columns();
  for (long i = 0; i < iterations; ++i) {
    PairsOutput out{arrived, left, {}};
    if (const PairsStatus status = simulate_pairs(in, out); status != PairsStatus::ok) die("status " + std::to_string(static_cast<int>(status)));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4 || std::string(argv[1]) != "instructions") die("usage: puts instructions CASE ITERATIONS");
  for (const Case& one : kCases) {
    if (std::string(argv[2]) != one.name) continue;
    evaluate(one, std::atol(argv[3]));
    return 0;
  }
  die(std::string("there is no case ") + argv[2]);
}
