// The shared memory of a rank and its doorbell: layout, validation, abort, wake-ups.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "base/segment.hpp"
#include "check.hpp"
#include "huge_pages.hpp"

using namespace ccl_lab;

namespace {

const SegmentOptions kSmall{.n_signal_channels = 5, .n_nics = 3, .trace_spans = 64, .arena_bytes = 1 << 20};

RankSegment make(int rank = 1, int n_ranks = 4) {
  Result<RankSegment> segment = RankSegment::create(rank, n_ranks, kSmall);
  CHECK_OK(segment.status());
  return std::move(segment).value();
}

// A memfd that holds `bytes` and claims to be a segment.
int forge(const std::vector<char>& bytes, std::uint64_t size, bool seal) {
  const int fd = ::memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  CHECK(::ftruncate(fd, static_cast<off_t>(size)) == 0);
  CHECK(::pwrite(fd, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  if (seal) CHECK(::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  return fd;
}

}  // namespace

TEST(parts_do_not_overlap_and_are_aligned) {
  const RankSegment segment = make();
  const SegmentHeader& h = segment.header();
  std::vector<std::pair<std::uint64_t, std::uint64_t>> parts = {
      {0, sizeof(SegmentHeader)},          {h.control_offset, h.control_bytes}, {h.signals_offset, h.signals_bytes},
      {h.ready_offset, h.ready_bytes},     {h.regions_offset, h.regions_bytes}, {h.shapers_offset, h.shapers_bytes},
      {h.faults_offset, h.faults_bytes},   {h.trace_offset, h.trace_bytes},     {h.board_offset, h.board_bytes},
      {h.arena_offset, h.arena_bytes}};
  std::sort(parts.begin(), parts.end());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    CHECK_EQ(parts[i].first % 64, std::uint64_t{0});
    CHECK(parts[i].first + parts[i].second <= (i + 1 < parts.size() ? parts[i + 1].first : h.total_bytes));
  }
}

TEST(another_mapping_sees_the_same) {
  const RankSegment own = make();
  Result<RankSegment> opened = RankSegment::open(::getpid(), own.fd());
  CHECK_OK(opened.status());
  const RankSegment& peer = opened.value();
  CHECK_EQ(peer.rank(), 1);
  CHECK_EQ(peer.n_ranks(), 4);
  peer.signals().raise(3, 4);
  CHECK_EQ(own.signals().value(3, 4), 1u);
  peer.ready_slots()[2].plan_hash = 99;
  CHECK_EQ(own.ready_slots()[2].plan_hash, 99u);
  peer.shapers()[2].bytes_per_s.store(7);
  CHECK_EQ(own.shapers()[2].bytes_per_s.load(), 7u);
  CHECK_EQ(own.shapers()[0].up.load(), 1u);
  peer.faults()[2].set(NicFault::damage, 3);
  CHECK(own.faults()[2].asked() && own.faults()[2].value(NicFault::damage) == 3 && !own.faults()[1].asked());
  peer.control().message_faults.values[0] = 4;
  CHECK_EQ(own.control().message_faults.value(MessageFault::loss_ppm), 4u);
  peer.arena()[own.arena_bytes() - 1] = std::byte{3};
  CHECK_EQ(static_cast<int>(own.arena()[own.arena_bytes() - 1]), 3);
  CHECK_OK(own.release(0, own.arena_bytes()));
  CHECK_EQ(static_cast<int>(peer.arena()[own.arena_bytes() - 1]), 0);
  CHECK(!own.release(4096, own.arena_bytes()).ok());
  CHECK_EQ(own.region(0).size(), 4 * kReadyDepth * sizeof(ReadySlot));
  CHECK_EQ(own.region(1).size(), own.arena_bytes());
  CHECK(own.region(2).data() == nullptr);
}

TEST(huge_pages_are_whole_ones_and_keep_what_they_hold) {
  constexpr std::uint64_t kHuge = 2 << 20;
  SegmentOptions options = kSmall;
  options.arena_bytes = 64 * kHuge;
  const RankSegment own = std::move(RankSegment::create(0, 2, options)).value();
  Result<RankSegment> opened = RankSegment::open(::getpid(), own.fd());
  CHECK_OK(opened.status());
  const RankSegment& peer = opened.value();
  for (std::uint64_t at = kHuge; at < 30 * kHuge; at += 40000) own.arena()[at] = std::byte{7}, peer.arena()[at + 1] = std::byte{9};
  // From within the first to within the 29th.
  const std::uint64_t made = own.make_huge(kHuge - 4096, 28 * kHuge + 8192);
  CHECK(made == 0 || made == 28 * kHuge);  // 0: this system has none
  if (made > 0) CHECK(in_huge_pages() >= static_cast<std::int64_t>(made));
  for (std::uint64_t at = kHuge; at < 30 * kHuge; at += 40000)
    CHECK(own.arena()[at + 1] == std::byte{9} && peer.arena()[at] == std::byte{7});
  // Nothing around it came to be, and what never was reads as zero.
  CHECK(own.arena()[40 * kHuge] == std::byte{0} && peer.arena()[2 * kHuge + 100] == std::byte{0});
  CHECK_EQ(own.make_huge(100, kHuge), std::uint64_t{0});
  CHECK_EQ(own.make_huge(63 * kHuge, 2 * kHuge), std::uint64_t{0});  // beyond the arena
  CHECK_EQ(peer.make_huge(0, kHuge), std::uint64_t{0});              // not its memory
  CHECK_OK(own.release(0, 64 * kHuge));
  CHECK(own.arena()[kHuge] == std::byte{0});
}

TEST(huge_arena_costs_nothing) {
  SegmentOptions options = kSmall;
  options.arena_bytes = std::uint64_t{1} << 36;
  Result<RankSegment> segment = RankSegment::create(0, 1, options);
  CHECK_OK(segment.status());
  if (!segment.ok()) return;
  segment->arena()[std::uint64_t{1} << 35] = std::byte{1};
  struct stat info {};
  CHECK(::fstat(segment->fd(), &info) == 0);
  CHECK(info.st_blocks * 512 < 16 << 20);
}

TEST(no_forged_file_is_mapped) {
  const RankSegment own = make();
  const std::uint64_t size = own.header().total_bytes;
  std::vector<char> good(sizeof(SegmentHeader));
  std::memcpy(good.data(), &own.header(), sizeof(SegmentHeader));
  const int honest = forge(good, size, true);
  CHECK_OK(RankSegment::open(::getpid(), honest).status());
  ::close(honest);
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::vector<char> bytes = good;
    bytes[at] = static_cast<char>(bytes[at] + 1);
    const int fd = forge(bytes, size, true);
    const Result<RankSegment> opened = RankSegment::open(::getpid(), fd);
    // What may differ: a rank in range, whom to watch, a signal channel in the padding of its row. Never where parts are.
    // And a board that ends later in the padding before the arena.
    if (opened.ok()) {
      SegmentHeader found = opened.value().header();
      CHECK(found.board_offset + found.board_bytes <= found.arena_offset);
      found.board_bytes = own.header().board_bytes;
      CHECK_EQ(std::memcmp(&found.signals_offset, &own.header().signals_offset,
                           offsetof(SegmentHeader, doorbell_inode) - offsetof(SegmentHeader, signals_offset)), 0);
    }
    if (!opened.ok()) CHECK_EQ(static_cast<int>(opened.status().code), static_cast<int>(Code::connect));
    ::close(fd);
  }
  for (const auto& [bytes, length, seal] : {std::tuple{good, size - 4096, true}, std::tuple{good, size, false},
                                            std::tuple{std::vector<char>(10, 'x'), std::uint64_t{10}, true}}) {
    const int fd = forge(bytes, length, seal);
    CHECK(!RankSegment::open(::getpid(), fd).ok());
    ::close(fd);
  }
  CHECK(!RankSegment::open(::getpid(), -1).ok());
  CHECK(!RankSegment::open(1 << 30, 3).ok());
  const int null = ::open("/dev/null", O_RDWR);
  CHECK(!RankSegment::open(::getpid(), null).ok());
  ::close(null);
}

TEST(bad_sizes_are_refused) {
  for (const auto& [rank, n] : {std::pair{-1, 4}, std::pair{4, 4}, std::pair{0, 0}, std::pair{0, -5}})
    CHECK(!RankSegment::create(rank, n, kSmall).ok());
  SegmentOptions options = kSmall;
  options.trace_spans = 100;
  CHECK(!RankSegment::create(0, 1, options).ok());
  options = kSmall;
  options.n_signal_channels = 0;
  CHECK(!RankSegment::create(0, 1, options).ok());
  options = kSmall;
  options.arena_bytes = ~std::uint64_t{0};
  CHECK(!RankSegment::create(0, 1, options).ok());
}

TEST(the_first_reason_of_an_abort_is_kept) {
  const RankSegment own = make();
  CHECK(own.abort_status().ok() && !own.aborted());
  CHECK(own.abort(Code::peer_lost, std::string(5000, 'a'), 3, 5));
  CHECK(!own.abort(Code::timeout, "second", 2));
  CHECK(own.aborted());
  const Status status = own.abort_status();
  CHECK_EQ(static_cast<int>(status.code), static_cast<int>(Code::peer_lost));
  CHECK_EQ(status.message, std::string(kAbortReasonBytes - 1, 'a'));
  CHECK_EQ(status.rank, 3);
  CHECK_EQ(status.nic, 5);
  own.clear_abort();
  CHECK(!own.aborted());
  CHECK(own.abort(Code::timeout, "third", 2));
  CHECK_EQ(own.abort_status().nic, -1);
  CHECK_EQ(own.abort_status().message, std::string("third"));
}

TEST(an_abort_from_many_threads_has_one_winner) {
  const RankSegment own = make();
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> winners{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([&, i] { winners += own.abort(Code::aborted, "thread " + std::to_string(i), i); });
    for (std::thread& thread : threads) thread.join();
    CHECK_EQ(winners.load(), 1);
    CHECK_EQ(own.abort_status().message, "thread " + std::to_string(own.abort_status().rank));
    own.clear_abort();
  }
}

TEST(a_doorbell_rings_only_for_a_sleeper) {
  const RankSegment own = make();
  Result<RankSegment> opened = RankSegment::open(::getpid(), own.fd());
  const Doorbell& peer = opened.value().doorbell();
  const auto rung = [&] {
    pollfd one{own.doorbell().fd(), POLLIN, 0};
    return ::poll(&one, 1, 0) == 1;
  };
  CHECK(!peer.ring() && !rung());
  own.doorbell().prepare_sleep();
  CHECK(peer.ring() && !peer.ring() && rung());
  own.doorbell().finish_sleep();
  CHECK(!rung() && !peer.ring());
  CHECK(!Doorbell::open(::getpid(), own.doorbell().fd(), own.doorbell().inode() + 1, nullptr).ok());
  CHECK(!Doorbell::open(::getpid(), own.fd(), own.doorbell().inode(), nullptr).ok());
}

// Two ringers, one sleeper that sleeps without a timeout but a long one: a lost wake-up shows as a failure.
TEST(no_wake_up_is_lost) {
  const RankSegment own = make();
  constexpr std::uint64_t kRounds = 20000;
  std::vector<std::thread> ringers;
  std::atomic<std::uint64_t> consumed{0};
  for (int source = 0; source < 2; ++source)
    ringers.emplace_back([&, source] {
      for (std::uint64_t i = 0; i < kRounds; ++i) {
        while (i > consumed.load(std::memory_order_relaxed) + 3) std::this_thread::yield();
        own.signals().raise(source, 0);
        own.doorbell().ring();
      }
    });
  const auto lowest = [&] { return std::min(own.signals().value(0, 0), own.signals().value(1, 0)); };
  bool lost = false;
  for (std::uint64_t seen = 0; seen < kRounds && !lost;) {
    own.doorbell().prepare_sleep();
    if (lowest() == seen) {
      pollfd one{own.doorbell().fd(), POLLIN, 0};
      lost = ::poll(&one, 1, 20000) == 0;
    }
    own.doorbell().finish_sleep();
    seen = lowest();
    consumed.store(lost ? kRounds : seen, std::memory_order_relaxed);
  }
  CHECK(!lost);
  for (std::thread& thread : ringers) thread.join();
}
