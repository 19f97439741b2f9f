// Registration of ordinary memory: what was asked for, what was noticed, and what becomes of it.
//
// Is: one rank's registry on real memory of the C library, with frees, reallocations and forks in between.
// Is not: collectives on that memory (test_node.cpp, test_api.cpp).
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "check.hpp"
#include "comm/plain_memory.hpp"
#include "comm/registry.hpp"

using namespace ccl_lab;

namespace {

struct Rank {
  std::shared_ptr<RankSegment> segment;
  std::shared_ptr<Arena> arena;
  std::unique_ptr<node::Group> group;
  std::unique_ptr<Registry> registry;

  Rank() {
    SegmentOptions options;
    options.n_signal_channels = 1;
    options.trace_spans = 64;
    options.board_bytes = node::board_bytes(1);
    options.arena_bytes = std::uint64_t{1} << 32;
    segment = std::make_shared<RankSegment>(std::move(RankSegment::create(0, 1, options)).value());
    arena = std::make_shared<Arena>(segment);
    group = std::make_unique<node::Group>(segment, std::vector<std::int32_t>{0}, node::GroupOptions{}, nullptr);
    registry = std::make_unique<Registry>(segment, arena, group.get());
    registry->set_automatic(true);
  }
  void notice_often(const void* data, std::uint64_t nbytes) {
    for (int i = 0; i < 3; ++i) registry->notice(data, nbytes);
  }
};

void fill(void* data, std::size_t nbytes, int seed) {
  for (std::size_t i = 0; i < nbytes; ++i) static_cast<unsigned char*>(data)[i] = static_cast<unsigned char>(i * 7 + i / 4096 + static_cast<std::size_t>(seed));
}
bool holds(const void* data, std::size_t nbytes, int seed) {
  for (std::size_t i = 0; i < nbytes; ++i)
    if (static_cast<const unsigned char*>(data)[i] != static_cast<unsigned char>(i * 7 + i / 4096 + static_cast<std::size_t>(seed))) return false;
  return true;
}

constexpr std::size_t kBig = 3 << 20;

}  // namespace

TEST(registered_memory_keeps_address_and_contents) {
  Rank rank;
  std::vector<unsigned char> data(kBig + 100);
  fill(data.data(), data.size(), 1);
  CHECK_OK(rank.registry->add(data.data(), data.size()));
  CHECK(holds(data.data(), data.size(), 1));
  fill(data.data(), data.size(), 2);
  CHECK_OK(rank.registry->add(data.data(), data.size()));  // counted
  CHECK(!rank.registry->add(data.data() + 10, 4096).ok());
  CHECK_OK(rank.registry->remove(data.data()));
  CHECK_EQ(rank.registry->size(), std::size_t{1});
  CHECK_OK(rank.registry->remove(data.data()));
  CHECK_EQ(rank.registry->size(), std::size_t{0});
  CHECK(holds(data.data(), data.size(), 2));
  CHECK(!rank.registry->remove(data.data()).ok());
}

TEST(the_end_gives_back_what_is_there_and_leaves_alone_what_is_gone) {
  Rank rank;
  const auto mapped = [] { return ::mmap(nullptr, kBig, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); };
  void* const held = mapped();
  fill(held, kBig, 5);
  void* const gone = mapped();
  void* const others = mapped();
  for (void* data : {held, gone, others}) CHECK_OK(rank.registry->add(data, kBig));
  ::munmap(gone, kBig);  // freed too early, as by a collector of garbage
  ::munmap(others, kBig);
  CHECK(::mmap(others, kBig, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == others);
  fill(others, kBig, 6);
  rank.registry->close();
  CHECK_EQ(rank.registry->size(), std::size_t{0});
  CHECK(holds(held, kBig, 5) && holds(others, kBig, 6));
  const SegmentHeader& header = rank.segment->header();
  const std::byte* const base = rank.segment->arena() - header.arena_offset;
  CHECK(!is_mapped(rank.segment->fd(), 0, header.total_bytes, base, base + header.total_bytes));
  for (void* data : {held, others}) ::munmap(data, kBig);
}

TEST(a_buffer_that_comes_again_is_registered) {
  Rank rank;
  if (!can_tell_pages()) return;  // under a sanitizer malloc is another
  void* const data = std::malloc(kBig);
  fill(data, kBig, 3);
  rank.registry->notice(data, kBig);
  CHECK_EQ(rank.registry->size(), std::size_t{0});
  rank.registry->notice(data, kBig);
  CHECK_EQ(rank.registry->size(), std::size_t{1});
  CHECK(is_shared_page(static_cast<std::byte*>(data) + 8192, true));
  CHECK(holds(data, kBig, 3));
  rank.registry->notice(static_cast<std::byte*>(data) + 64, 65536);  // a part of it
  CHECK_EQ(rank.registry->size(), std::size_t{1});
  rank.registry.reset();
  CHECK(holds(data, kBig, 3));
  CHECK(!is_shared_page(static_cast<std::byte*>(data) + 8192, true));
  std::free(data);
}

TEST(memory_that_was_freed_is_forgotten_and_given_back) {
  Rank rank;
  if (!can_tell_pages()) return;
  for (int i = 0; i < 20; ++i) {
    void* const data = std::malloc(kBig + static_cast<std::size_t>(i) * 8192);
    fill(data, kBig, i);
    rank.notice_often(data, kBig);
    CHECK(holds(data, kBig, i));
    std::free(data);
  }
  CHECK(rank.arena->used() < 4 * kBig);
}

TEST(a_reallocation_keeps_its_bytes) {
  Rank rank;
  if (!can_tell_pages()) return;
  void* data = std::malloc(kBig);
  fill(data, kBig, 5);
  rank.notice_often(data, kBig);
  for (const std::size_t nbytes : {2 * kBig, 9 * kBig, kBig}) {
    data = std::realloc(data, nbytes);
    CHECK(holds(data, kBig, 5));
    void* const other = std::malloc(kBig);
    std::memset(other, 0xee, kBig);
    rank.notice_often(other, kBig);
    CHECK(holds(data, kBig, 5));
    std::free(other);
    rank.notice_often(data, kBig);
    CHECK(holds(data, kBig, 5));
  }
  rank.registry.reset();
  rank.arena.reset();
  CHECK(holds(data, kBig, 5));
  std::free(data);
}

TEST(other_memory_is_left_alone) {
  Rank rank;
  void* const shared = ::mmap(nullptr, kBig, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  void* const own = ::mmap(nullptr, kBig, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  static std::byte zeros[1 << 17];
  std::vector<std::byte> block(kBig);
  rank.notice_often(shared, kBig);
  rank.notice_often(own, kBig);
  rank.notice_often(zeros, sizeof zeros);
  rank.notice_often(block.data() + 4096 + 8, 1 << 18);
  rank.notice_often(&rank, sizeof rank);
  CHECK_EQ(rank.registry->size(), std::size_t{0});
  ::munmap(shared, kBig);
  ::munmap(own, kBig);
}

TEST(a_forked_child_writes_to_pages_of_its_own) {
  Rank rank;
  std::vector<unsigned char> data(kBig);
  fill(data.data(), data.size(), 8);
  CHECK_OK(rank.registry->add(data.data(), data.size()));
  const pid_t child = ::fork();
  if (child == 0) {
    const bool same = holds(data.data(), data.size(), 8);
    std::memset(data.data(), 0, data.size());
    ::_exit(same ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK_EQ(status, 0);
  CHECK(holds(data.data(), data.size(), 8));
  CHECK_OK(rank.registry->remove(data.data()));  // while it is allocated
}
