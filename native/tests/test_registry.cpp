// Registration of ordinary memory: what was asked for, what was noticed, and what becomes of it.
//
// Is: one rank's registry on real memory of the C library, with frees, reallocations and forks in between.
// Is not: collectives on that memory (test_node.cpp, test_api.cpp).
#include <malloc.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "check.hpp"
#include "comm/plain_memory.hpp"
#include "huge_pages.hpp"
#include "lone_rank.hpp"

using namespace ccl_lab;

namespace {

using testing::fill;
using testing::holds;

struct Rank : testing::LoneRank {
  Rank() { registry->set_automatic(true); }
  void notice_often(const void* data, std::uint64_t nbytes) {
    for (int i = 0; i < 3; ++i) registry->notice(data, nbytes);
  }
};

constexpr std::size_t kBig = 3 << 20;

// Whether the kernel can be asked of one address, or only of the kind of a page.
#define TEST_ON_BOTH_KERNELS(name)                      \
  static void body_of_##name();                         \
  TEST(name) {                                          \
    for (const bool older : {false, true}) {            \
      ask_as_an_older_kernel(older);                    \
      body_of_##name();                                 \
    }                                                   \
    ask_as_an_older_kernel(false);                      \
  }                                                     \
  static void body_of_##name()

// From so many bytes on a block of malloc is a mapping of its own; smaller ones lie in the heap.
void map_blocks_from(int nbytes) {
  ::mallopt(M_MMAP_THRESHOLD, nbytes);
  ::malloc_trim(0);  // what is free in the heap is taken first
}
constexpr int kMapped = 128 * 1024;
constexpr int kInHeap = 64 << 20;

// Where a block was; a call that the compiler does not look into, for it warns of addresses that are used again.
[[gnu::noipa]] std::uintptr_t place_of_freed(void* data) {
  const auto where = reinterpret_cast<std::uintptr_t>(data);
  std::free(data);
  return where;
}

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
  CHECK(!is_mapped(rank.segment->fd(), 0, rank.segment->header().total_bytes));
  for (void* data : {held, others}) ::munmap(data, kBig);
}

TEST_ON_BOTH_KERNELS(a_buffer_that_comes_again_is_registered) {
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

TEST_ON_BOTH_KERNELS(memory_that_was_freed_is_forgotten_and_given_back) {
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

// An input in place in an output is looked up by itself: where a smaller buffer was, it was read out of the freed one's pages.
TEST_ON_BOTH_KERNELS(a_buffer_around_what_was_freed_has_none_of_its_pages) {
  Rank rank;
  if (!can_tell_pages()) return;
  map_blocks_from(kMapped);
  std::vector<void*> fillers;
  bool around = false;
  for (int i = 0; i < 32 && !around; ++i) {
    void* const small = std::malloc(kBig);
    rank.notice_often(small, kBig);
    CHECK_EQ(rank.registry->size(), std::size_t{1});
    const std::uintptr_t was = place_of_freed(small);
    const std::size_t nbytes = 4 * kBig + 4096 * static_cast<std::size_t>(i);  // of the same place and size it would come again
    void* const large = std::malloc(nbytes);
    const auto begin = reinterpret_cast<std::uintptr_t>(large);
    around = begin < was && was + kBig <= begin + nbytes;
    rank.registry->notice(large, nbytes);
    if (around) CHECK_EQ(rank.registry->size(), std::size_t{0});
    std::free(large);
    if (!around) fillers.push_back(std::malloc(kBig));  // it went into a gap that is too small for the large one
  }
  CHECK(around);
  for (void* filler : fillers) std::free(filler);
  map_blocks_from(kInHeap);
}

TEST_ON_BOTH_KERNELS(a_reallocation_keeps_its_bytes) {
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

namespace {

// Runs `child` in a fork, after the parent has done `meanwhile`; true if the child said so.
template <class Meanwhile, class Child>
bool child_finds(const Meanwhile& meanwhile, const Child& child) {
  int ends[2];
  if (::pipe(ends) != 0) return false;
  const pid_t pid = ::fork();
  if (pid == 0) {
    char go = 0;
    const bool came = ::read(ends[0], &go, 1) == 1;
    ::_exit(came && child() ? 0 : 1);
  }
  meanwhile();
  const bool told = ::write(ends[1], "g", 1) == 1;
  int status = 1;
  ::waitpid(pid, &status, 0);
  ::close(ends[0]);
  ::close(ends[1]);
  return told && status == 0;
}

}  // namespace

TEST_ON_BOTH_KERNELS(a_fork_finds_noticed_memory_as_any_other) {
  if (!can_tell_pages()) return;
  for (const auto& [in_use, from] : {std::pair{false, kMapped}, {true, kMapped}, {false, kInHeap}, {true, kInHeap}}) {
    map_blocks_from(from);
    Rank rank;
    const Result<RankSegment> peers = RankSegment::open(::getpid(), rank.segment->fd());  // as a rank that is a thread here has it
    CHECK_OK(peers.status());
    void* const data = std::malloc(kBig);
    void* const asked = std::malloc(kBig);
    fill(data, kBig, 1);
    fill(asked, kBig, 2);
    CHECK_OK(rank.registry->add(asked, kBig));
    rank.notice_often(data, kBig);
    CHECK_EQ(rank.registry->size(), std::size_t{2});
    if (in_use) CHECK(rank.group->take());  // a collective of another thread
    CHECK(child_finds([&] { fill(data, kBig, 3); },
                      [&] {
                        const bool as_it_was = holds(data, kBig, 1);
                        fill(data, kBig, 4);
                        return as_it_was;
                      }));
    CHECK(holds(data, kBig, 3) && holds(asked, kBig, 2));
    CHECK_EQ(rank.registry->size(), std::size_t{in_use ? 2u : 1u});
    CHECK_EQ(is_shared_page(static_cast<std::byte*>(data) + 8192, true), in_use);
    if (in_use) rank.group->leave();
    // A program that forks often gets its buffers registered less often.
    for (int i = 0; i < 3; ++i) rank.registry->notice(data, kBig);
    CHECK_EQ(rank.registry->size(), std::size_t{in_use ? 2u : 1u});
    for (int i = 0; i < 20; ++i) rank.registry->notice(data, kBig);
    CHECK_EQ(rank.registry->size(), std::size_t{2});
    CHECK(holds(data, kBig, 3));
    rank.registry.reset();
    CHECK(holds(data, kBig, 3));
    std::free(data);
    std::free(asked);
  }
}

TEST_ON_BOTH_KERNELS(heap_that_was_noticed_and_freed_is_not_shared_with_a_child) {
  if (!can_tell_pages()) return;
  const std::size_t size = 1 << 20;
  map_blocks_from(kInHeap);
  Rank rank;
  void* const below = std::malloc(size);
  void* const data = std::malloc(size);
  void* const above = std::malloc(4096);  // keeps the heap from shrinking
  fill(data, size, 1);
  rank.notice_often(data, size);
  CHECK_EQ(rank.registry->size(), std::size_t{1});
  const std::uintptr_t where = place_of_freed(data);
  void* const again = std::malloc(size);
  CHECK(reinterpret_cast<std::uintptr_t>(again) == where && is_shared_page(static_cast<std::byte*>(again) + 8192, true));
  fill(again, size, 2);
  CHECK(child_finds([&] {}, [&] {
    const bool as_it_was = holds(again, size, 2);
    fill(again, size, 3);
    return as_it_was;
  }));
  CHECK(holds(again, size, 2));
  CHECK(!is_shared_page(static_cast<std::byte*>(again) + 8192, true));
  for (void* each : {below, again, above}) std::free(each);
}

TEST_ON_BOTH_KERNELS(what_lies_where_a_noticed_block_was_is_not_taken_for_it) {
  if (!can_tell_pages()) return;
  map_blocks_from(kMapped);
  for (const int kind : {MAP_PRIVATE, MAP_SHARED}) {
    for (const std::size_t nbytes : {std::size_t{20'000}, kBig}) {
      Rank rank;
      void* const data = std::aligned_alloc(2 << 20, 4 << 20);  // a mapping of its own
      fill(data, kBig, 1);
      rank.notice_often(data, kBig);
      CHECK_EQ(rank.registry->size(), std::size_t{1});
      const std::uintptr_t where = place_of_freed(data);
      void* const other =
          ::mmap(reinterpret_cast<void*>(where), 4 << 20, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
      CHECK_EQ(reinterpret_cast<std::uintptr_t>(other), where);
      fill(other, nbytes, 2);
      rank.registry->notice(other, nbytes);
      CHECK_EQ(rank.registry->size(), std::size_t{0});
      rank.notice_often(other, nbytes);
      CHECK(holds(other, nbytes, 2));
      ::munmap(other, 4 << 20);
    }
  }
}

TEST(a_buffer_that_is_freed_after_each_call_is_soon_left_alone) {
  Rank rank;
  if (!can_tell_pages()) return;
  map_blocks_from(kMapped);
  int registered = 0;
  for (int i = 0; i < 300; ++i) {
    void* const data = std::aligned_alloc(2 << 20, 4 << 20);
    fill(data, 8192, i);
    rank.registry->notice(data, kBig);
    registered += rank.registry->size() == 1 && is_shared_page(static_cast<std::byte*>(data) + 8192, true);
    std::free(data);
  }
  CHECK(registered > 0 && registered <= 4);
}

TEST(a_buffer_that_follows_a_much_used_one_is_registered_at_once) {
  Rank rank;
  if (!can_tell_pages()) return;
  map_blocks_from(kMapped);
  for (int i = 0; i < 4; ++i) {
    void* const data = std::aligned_alloc(2 << 20, 4 << 20);
    for (int use = 0; use < 20; ++use) rank.registry->notice(data, kBig);
    CHECK(is_shared_page(static_cast<std::byte*>(data) + 8192, true));
    std::free(data);
  }
}

TEST(where_pages_are_locked_nothing_is_registered_unasked) {
  Rank rank;
  if (!can_tell_pages() || pages_may_be_pinned()) return;
  void* const page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (::mlock(page, 4096) == 0) {
    CHECK(pages_may_be_pinned());
    void* const data = std::malloc(kBig);
    fill(data, kBig, 1);
    rank.notice_often(data, kBig);
    CHECK_EQ(rank.registry->size(), std::size_t{0});
    CHECK_OK(rank.registry->add(data, kBig));  // who asks for it knows
    CHECK_OK(rank.registry->remove(data));
    std::free(data);
  }
  ::munmap(page, 4096);
}

TEST_ON_BOTH_KERNELS(a_buffer_of_the_heap_is_registered_where_a_smaller_or_larger_one_was) {
  if (!can_tell_pages()) return;
  map_blocks_from(kInHeap);
  Rank rank;
  std::uintptr_t where = 0;
  for (const std::size_t nbytes : {kBig / 4, kBig, kBig / 2}) {
    void* const data = std::malloc(nbytes);
    CHECK(where == 0 || where == reinterpret_cast<std::uintptr_t>(data));
    fill(data, nbytes, 1);
    for (int i = 0; i < 12; ++i) rank.registry->notice(data, nbytes);
    CHECK_EQ(rank.registry->size(), std::size_t{1});
    CHECK(is_shared_page(static_cast<std::byte*>(data) + nbytes - 8192, true));
    CHECK(holds(data, nbytes, 1));
    where = place_of_freed(data);
  }
}

TEST(large_arrays_lie_in_the_arena_as_within_a_huge_page) {
  if (!can_tell_pages()) return;
  for (const std::size_t lead : {std::size_t{0}, std::size_t{4096}, std::size_t{kHugePage - 4096}}) {
    Rank rank;
    auto* const data = static_cast<std::byte*>(std::aligned_alloc(kHugePage, 8 << 20));
    fill(data, 8 << 20, 1);
    const bool there_are_some = rank.segment->make_huge(std::uint64_t{1} << 30, kHugePage) > 0;
    const std::int64_t before = in_huge_pages();
    CHECK_OK(rank.registry->add(data + lead, 5 << 20));
    // Both where the array is and where peers see it, but for the ends.
    const std::int64_t whole = lead == 4096 ? 1 : 2;
    if (there_are_some) CHECK_EQ((in_huge_pages() - before) / static_cast<std::int64_t>(kHugePage), 2 * whole);
    std::vector<Mapping> parts;
    CHECK(find_parts(rank.segment->fd(), parts) && parts.size() == 1);
    CHECK_EQ((reinterpret_cast<std::uintptr_t>(parts[0].begin) - parts[0].offset) % kHugePage, std::uintptr_t{0});
    CHECK_EQ(parts[0].begin, data + lead);
    CHECK(holds(data, 8 << 20, 1));
    CHECK(std::memcmp(rank.arena->base() + rank.registry->offset_of(data + lead, 5 << 20), data + lead, 5 << 20) == 0);
    CHECK_OK(rank.registry->remove(data + lead));
    CHECK(holds(data, 8 << 20, 1));
    std::free(data);
  }
}

TEST(a_part_of_a_block_then_the_whole) {
  if (!can_tell_pages()) return;
  map_blocks_from(kMapped);
  Rank rank;
  void* const data = std::malloc(kBig);
  fill(data, kBig, 1);
  rank.notice_often(data, kBig / 2);
  CHECK_EQ(rank.registry->size(), std::size_t{1});
  rank.notice_often(data, kBig);
  CHECK_EQ(rank.registry->size(), std::size_t{1});
  CHECK(is_shared_page(static_cast<std::byte*>(data) + kBig - 8192, true) && holds(data, kBig, 1));
  rank.notice_often(data, kBig / 2);  // within it
  CHECK_EQ(rank.registry->size(), std::size_t{1});
  rank.registry.reset();
  CHECK(holds(data, kBig, 1));
  std::free(data);
}
