// Ranks that share cores are spread over them.
#include "node/spread.hpp"

#include <algorithm>
#include <memory>
#include <vector>

#include "check.hpp"

using namespace ccl_lab;
using namespace ccl_lab::node;

namespace {

cpu_set_t set_of(const std::vector<int>& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(static_cast<std::size_t>(core), &set);
  return set;
}

cpu_set_t allowed_here() {
  cpu_set_t set;
  CPU_ZERO(&set);
  ::sched_getaffinity(0, sizeof set, &set);
  return set;
}

// This thread as the last of `n` ranks; the others are boards only.
struct Node {
  Node(int n, int n_cores) : spread(static_cast<std::size_t>(n)) {
    for (int j = 0; j < n; ++j) {
      boards.push_back(std::make_unique<Board>());
      core.members.push_back({nullptr, boards.back().get(), nullptr, nullptr});
    }
    core.n = n;
    core.n_cores = n_cores;
    core.place = n - 1;
    core.own = boards.back().get();
  }
  // Where this thread runs now, and all the others, as their boards say.
  int gather_here() {
    const int here = ::sched_getcpu();
    for (int j = 0; j + 1 < core.n; ++j) boards[static_cast<std::size_t>(j)]->core.store(here + 1);
    return here;
  }
  // Whether this thread has left the core where all others are; it may use the same ones as before.
  bool moves_at(std::int64_t now_ns) {
    const cpu_set_t before = allowed_here();
    // The system may move a thread too, but not to where it is shown to have been.
    const int here = gather_here();
    spread.look(core, now_ns);
    const cpu_set_t after = allowed_here();
    CHECK(CPU_EQUAL(&before, &after));
    return core.own->core.load() != here + 1;
  }

  std::vector<std::unique_ptr<Board>> boards;
  Core core;
  Spread spread;
};

}  // namespace

TEST(the_last_rank_of_a_core_goes_where_fewer_are) {
  const cpu_set_t two = set_of({0, 1});
  CHECK_EQ(Spread::better_core({0, 0, 0, 0}, 3, two), 1);
  CHECK_EQ(Spread::better_core({0, 0, 0, 0}, 2, two), -1);  // one at a time
  CHECK_EQ(Spread::better_core({0, 0, 1, 0}, 3, two), 1);
  CHECK_EQ(Spread::better_core({1, 0, 0, 0}, 0, two), -1);  // alone already
  CHECK_EQ(Spread::better_core({0, 0, 1}, 1, two), -1);     // two and one would be one and two
  CHECK_EQ(Spread::better_core({0, 0}, 1, two), 1);
  CHECK_EQ(Spread::better_core({0, 0, 1, 1}, 3, set_of({0, 1, 2})), 2);
}

TEST(the_emptiest_core_that_is_allowed_is_taken) {
  CHECK_EQ(Spread::better_core({2, 2, 2, 2, 5, 5, 7}, 3, set_of({2, 5, 7})), 7);
  CHECK_EQ(Spread::better_core({2, 2, 2, 2, 5, 5, 7}, 3, set_of({2, 5, 9})), 9);
  CHECK_EQ(Spread::better_core({2, 2, 2, 2, 5, 5, 7}, 3, set_of({2, 5})), 5);
  CHECK_EQ(Spread::better_core({2, 2, 2, 2}, 3, set_of({2})), -1);
  CHECK_EQ(Spread::better_core({-1, -1}, 1, set_of({0, 1})), -1);  // nobody knows
}

TEST(a_rank_moves_and_keeps_its_affinity) {
  const cpu_set_t allowed = allowed_here();
  Node node(4, 2);
  CHECK_EQ(node.moves_at(1'000'000'000), CPU_COUNT(&allowed) > 1);
  Node unknown(4, 2);
  unknown.spread.look(unknown.core, 1);  // the others have not looked yet
  CHECK(!unknown.spread.all_here_entered(unknown.core));
  CHECK(unknown.core.own->core.load() > 0);
}

TEST(a_move_to_where_others_work_is_not_repeated_at_once) {
  const cpu_set_t allowed = allowed_here();
  if (CPU_COUNT(&allowed) < 2) return;
  constexpr std::int64_t kMs = 1'000'000;
  Node node(4, 2);
  std::int64_t now = 1000 * kMs;
  CHECK(node.moves_at(now));
  CHECK(!node.moves_at(now + 1 * kMs));
  CHECK(node.moves_at(now += 3 * kMs));
  node.spread.away(Spread::kSliceNs / 2, now + kMs);  // a rank with work
  CHECK(node.moves_at(now += 3 * kMs));
  node.spread.away(2 * Spread::kSliceNs, now + 2 * kMs);
  CHECK(!node.moves_at(now + 15 * kMs));
  CHECK(node.moves_at(now += 20 * kMs));
  node.spread.away(2 * Spread::kSliceNs, now + 2 * kMs);
  CHECK(!node.moves_at(now + 120 * kMs));
  CHECK(node.moves_at(now += 140 * kMs));
  CHECK(node.moves_at(now += 2000 * kMs));  // that was well
  CHECK(node.moves_at(now + 3 * kMs));
}

TEST(who_is_here_is_waited_for_only_until_it_has_entered) {
  Node node(3, 2);
  node.core.number = 5;
  node.core.tag = make_tag(0, 5, 1);
  const int here = node.gather_here();
  node.boards[0]->core.store(here + 2);  // elsewhere
  cpu_set_t pinned = set_of({here});
  const cpu_set_t before = allowed_here();
  CHECK_EQ(::sched_setaffinity(0, sizeof pinned, &pinned), 0);
  node.spread.look(node.core, 1);
  CHECK(!node.spread.all_here_entered(node.core));
  node.boards[1]->headers[5].tag.store(make_tag(0, 4, 1));
  CHECK(!node.spread.all_here_entered(node.core));
  node.boards[1]->headers[5].tag.store(make_tag(0, 5, 2));
  CHECK(node.spread.all_here_entered(node.core));
  ::sched_setaffinity(0, sizeof before, &before);
}
