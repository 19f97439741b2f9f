// Ranks of one node as forked processes, for tests and measurements of the node layer.
//
// Is: run_ranks(n, body): every rank with its own segment and a Group with all others attached; true if all bodies
//     returned true. A rank that dies, or hangs for a minute, counts as false.
// Is not: a launcher.
#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#include "base/clock.hpp"
#include "node/group.hpp"

namespace ccl_lab::testing {

constexpr std::uint64_t kNodeArena = std::uint64_t{1} << 33;

// What all ranks of a run share: who is where, and a place for results.
struct Meeting {
  std::atomic<std::uint64_t> address[256];
  std::atomic<int> arrived;
  std::atomic<std::int64_t> numbers[64];
};

struct NodeRank {
  int rank;
  int n;
  std::shared_ptr<RankSegment> segment;
  SpanWriter spans;
  std::unique_ptr<node::Group> group;
  Meeting* meeting;

  // Memory of the arena at an offset that the test keeps track of itself.
  template <class T>
  T* mapped(std::uint64_t offset) {
    return reinterpret_cast<T*>(segment->arena() + offset);
  }
  Status run(const node::Call& call, std::int64_t for_ns = 20'000'000'000) {
    if (Status status = group->begin(call); !status.ok()) return status;
    const std::int64_t deadline = now_ns() + for_ns;
    for (;;) {
      const node::Turn turn = group->drive(10'000'000);
      if (turn == node::Turn::done) return {};
      if (turn == node::Turn::failed) return group->status();
      if (now_ns() > deadline) return group->missing(static_cast<double>(for_ns) * 1e-9);
    }
  }
  void barrier() {
    node::Call call;
    call.collective = Collective::barrier;
    if (!run(call).ok()) ::_exit(3);
  }
};

inline bool one_rank(int rank, int n, Meeting* meeting, const node::GroupOptions& options,
                     const std::function<bool(NodeRank&)>& body) {
  SegmentOptions segment_options;
  segment_options.trace_spans = 1024;
  segment_options.n_signal_channels = 1;
  segment_options.board_bytes = node::board_bytes(static_cast<std::uint64_t>(n));
  segment_options.arena_bytes = kNodeArena;
  Result<RankSegment> made = RankSegment::create(rank, n, segment_options);
  if (!made.ok()) return false;
  NodeRank self{rank, n, std::make_shared<RankSegment>(std::move(made).value()), {}, nullptr, meeting};
  self.spans = SpanWriter(*self.segment);
  std::vector<std::int32_t> ranks(static_cast<std::size_t>(n));
  std::iota(ranks.begin(), ranks.end(), 0);
  self.group = std::make_unique<node::Group>(self.segment, ranks, options, &self.spans);
  meeting->address[rank] = static_cast<std::uint64_t>(::getpid()) << 32 | static_cast<std::uint32_t>(self.segment->fd() + 1);
  for (int peer = 0; peer < n; ++peer) {
    if (peer == rank) continue;
    while (meeting->address[peer] == 0) ::usleep(100);
    const std::uint64_t at = meeting->address[peer];
    Result<RankSegment> opened = RankSegment::open(static_cast<int>(at >> 32), static_cast<int>(at & 0xffffffffu) - 1);
    if (!opened.ok()) return false;
    if (!self.group->attach(peer, std::make_shared<RankSegment>(std::move(opened).value())).ok()) return false;
  }
  ++meeting->arrived;
  while (meeting->arrived < n) ::usleep(100);
  const bool ok = body(self);
  // Nobody unmaps what another may still read.
  ++meeting->arrived;
  for (int i = 0; i < 20000 && meeting->arrived < 2 * n; ++i) ::usleep(100);
  return ok;
}

using OptionsOf = std::function<node::GroupOptions(int rank, node::GroupOptions options)>;

// `options_of` changes the options of single ranks.
inline bool run_ranks(int n, const std::function<bool(NodeRank&)>& body, const node::GroupOptions& options = {},
                      const OptionsOf& options_of = {}) {
  void* memory = ::mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* meeting = new (memory) Meeting();
  std::fflush(nullptr);
  std::vector<pid_t> children;
  for (int rank = 0; rank < n; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(60);
      ::_exit(one_rank(rank, n, meeting, options_of ? options_of(rank, options) : options, body) ? 0 : 1);
    }
    children.push_back(child);
  }
  bool all = true;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    all = all && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  ::munmap(memory, sizeof(Meeting));
  return all;
}

}  // namespace ccl_lab::testing
