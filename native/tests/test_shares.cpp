// Who runs which task of a round, and what a copy to many writes.
//
// Is: rounds of two ranks in one thread, task by task; bytes that real ranks moved.
// Is not: timed.
#include <memory>
#include <vector>

#include "check.hpp"
#include "node/tasks.hpp"
#include "node_ranks.hpp"

using namespace ccl_lab;
using namespace ccl_lab::node;

namespace {

constexpr std::uint64_t kTasks = 6;

// Two ranks, each with a round of its own view.
struct Two {
  explicit Two(int n_cores) {
    for (int j = 0; j < 2; ++j) boards.push_back(std::make_unique<Board>());
    for (int j = 0; j < 2; ++j) {
      Core& core = cores[static_cast<std::size_t>(j)];
      for (const auto& board : boards) core.members.push_back({nullptr, board.get(), nullptr, nullptr});
      core.n = 2;
      core.n_cores = n_cores;
      core.place = j;
      core.own = boards[static_cast<std::size_t>(j)].get();
      core.parking.connect(core.own, boards[0].get());
    }
    begin();
  }
  void begin() {
    ran.assign(kTasks, 0);
    for (std::size_t j = 0; j < 2; ++j) rounds[j].open(cores[j], kTasks);
  }
  // How many tasks a rank runs until it finds none.
  int run(std::size_t rank) {
    int count = 0;
    for (std::uint64_t task = 0; rounds[rank].claim(cores[rank], task); ++count) ++ran[task];
    return count;
  }
  // After how many looks a rank that has nothing to do finds tasks again; -1: never.
  int looks_until_more(std::size_t rank) {
    for (int looks = 1; looks < 1000; ++looks) {
      if (rounds[rank].over(cores[rank])) return -1;
      if (run(rank) > 0) return looks;
    }
    return -1;
  }
  bool each_once() const { return ran == std::vector<int>(kTasks, 1); }

  std::vector<std::unique_ptr<Board>> boards;
  Core cores[2];
  Round rounds[2];
  std::vector<int> ran;
};

}  // namespace

TEST(a_rank_with_a_core_leaves_others_their_shares_for_a_while) {
  Two two(2);
  CHECK(two.run(0) == 3);
  const int looks = two.looks_until_more(0);
  CHECK(looks > 16 && looks < 200);
  // Who comes late finds nothing, and is not waited for.
  CHECK(two.rounds[0].over(two.cores[0]));
  CHECK(two.run(1) == 0);
  CHECK(two.rounds[1].over(two.cores[1]));
  CHECK(two.each_once());
}

TEST(ranks_that_come_together_do_not_touch_the_claims_of_each_other) {
  Two two(2);
  for (int round = 0; round < 20; ++round) {
    CHECK(two.run(0) == 3);
    CHECK(!two.rounds[0].over(two.cores[0]));
    CHECK(two.run(1) == 3);
    CHECK(two.rounds[1].over(two.cores[1]) && two.rounds[0].over(two.cores[0]));
    CHECK(two.each_once());
    two.begin();
  }
}

// The share of a rank that went away after some of its tasks: the others' count is said a second time.
TEST(what_is_taken_from_others_counts) {
  Two two(2);
  std::uint64_t task = 0;
  CHECK(two.rounds[1].claim(two.cores[1], task));
  ++two.ran[task];
  CHECK(two.run(0) == 3);
  CHECK(two.looks_until_more(0) > 0);
  CHECK(!two.rounds[0].over(two.cores[0]));
  CHECK(two.run(1) == 0);
  CHECK(two.rounds[1].over(two.cores[1]) && two.rounds[0].over(two.cores[0]));
  CHECK(two.each_once());
}

TEST(ranks_that_share_cores_take_all_that_is_left_at_once) {
  Two two(1);
  CHECK(two.run(0) == 6);
  CHECK(two.rounds[0].over(two.cores[0]) && two.rounds[1].over(two.cores[1]));
  CHECK(two.each_once());
}

// What lies in its place already is neither read nor written, and each block goes to every other output once.
TEST(a_gather_in_place_writes_no_block_onto_itself) {
  CHECK(testing::run_ranks(2, [](testing::NodeRank& self) {
    constexpr std::uint64_t kBlock = 96 * 1024;
    auto* const output = self.mapped<std::byte>(1 << 20);
    Call call;
    call.collective = Collective::all_gather;
    call.output = output;
    call.input = output + static_cast<std::uint64_t>(self.rank) * kBlock;
    call.block_bytes = kBlock;
    std::memset(output, 0, 2 * kBlock);
    std::memset(output + static_cast<std::uint64_t>(self.rank) * kBlock, 5 + self.rank, kBlock);
    if (!self.run(call).ok()) return false;
    self.meeting->numbers[self.rank] = static_cast<std::int64_t>(self.group->traffic().written_bytes);
    self.barrier();
    for (std::uint64_t i = 0; i < 2 * kBlock; ++i)
      if (output[i] != static_cast<std::byte>(i < kBlock ? 5 : 6)) return false;
    return self.meeting->numbers[0] + self.meeting->numbers[1] == static_cast<std::int64_t>(2 * kBlock);
  }));
}
