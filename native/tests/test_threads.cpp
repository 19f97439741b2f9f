// The shm transport with its ranks in threads that share one mapping, so that the thread sanitizer sees both sides.
//
// Is: the memory-order half of the contract: bytes are visible when a signal is, a sleeper is woken.
// Is not: how ranks run (they are processes): test_processes.
#include <thread>

#include "conformance.hpp"

using namespace ccl_lab;
using namespace ccl_lab::check;

namespace {

constexpr int kRanks = 3;
constexpr std::uint32_t kRounds = 3000;
constexpr std::uint64_t kSlot = 8192;
constexpr std::uint64_t kWindow = 16;

std::uint64_t size_of(std::uint32_t round) { return 4 + (round * 131) % (kSlot - 4); }

// Puts kRounds messages to `next` in a window the receiver acknowledges, and checks those of `previous`.
void run(int rank, std::vector<RankSegment>& segments, std::atomic<int>& wrong) {
  const RankSegment& own = segments[Mesh::index(rank)];
  ShmTransport transport(own, nullptr);
  for (int p = 0; p < kRanks; ++p)
    if (p != rank && !transport.add_peer(p, segments[Mesh::index(p)]).ok()) ++wrong;
  const int next = (rank + 1) % kRanks, previous = (rank + kRanks - 1) % kRanks;
  std::vector<std::vector<std::byte>> sources(kWindow, std::vector<std::byte>(kSlot));
  std::vector<Completion> completions;
  std::vector<LinkEvent> events;
  std::uint32_t sent = 0, checked = 0;
  const auto step = [&] {
    int done = transport.poll(now_ns(), completions, events);
    if (sent < kRounds && sent < own.signals().value(next, 1) + kWindow) {
      auto& source = sources[sent % kWindow];
      std::memset(source.data(), static_cast<int>(sent % 255), size_of(sent));
      Put put;
      put.peer = next;
      put.source = source.data();
      put.nbytes = size_of(sent);
      put.destination = {1, sent % kWindow * kSlot};
      put.signal = 0;
      wrong += !transport.put(put).ok();
      ++sent, ++done;
    }
    for (; checked < own.signals().value(previous, 0); ++checked, ++done) {
      const std::byte* at = own.arena() + checked % kWindow * kSlot;
      for (std::uint64_t i = 0; i < size_of(checked); ++i) wrong += at[i] != static_cast<std::byte>(checked % 255);
      Put acknowledge;
      acknowledge.peer = previous;
      acknowledge.signal = 1;
      wrong += !transport.put(acknowledge).ok();
    }
    return done;
  };
  while (checked < kRounds || own.signals().value(next, 1) < kRounds || completions.size() < 2 * kRounds) {
    if (step() > 0) continue;
    own.doorbell().prepare_sleep();
    pollfd bell{own.doorbell().fd(), POLLIN, 0};
    if (step() == 0 && ::poll(&bell, 1, 20000) == 0) ++wrong;
    own.doorbell().finish_sleep();
  }
}

}  // namespace

TEST(bytes_are_there_when_their_signal_is) {
  std::vector<RankSegment> segments;
  for (int r = 0; r < kRanks; ++r) segments.push_back(RankSegment::create(r, kRanks, small_segment()).value());
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) threads.emplace_back([&, r] { run(r, segments, wrong); });
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(wrong.load(), 0);
}
