// What a rank does before it leaves: two ranks of which a test decides who steps.
//
// Is: a message over sockets whose sender waits until it is confirmed, with the layer that repairs paths. Is not: what drives ranks
// (test_driver), nor runs that overlap (test_runs).
#include <unistd.h>

#include <memory>
#include <utility>
#include <vector>

#include "comm/local.hpp"
#include "comm/progress.hpp"
#include "conformance.hpp"
#include "inbox.hpp"
#include "plans.hpp"

namespace ccl_lab {
namespace {

constexpr std::uint64_t kBytes = 64 * 1024;  // too long to be complete before it is confirmed

// Out of band nobody is heard: nothing is lost here.
class Silence final : public check::Inbox {
 public:
  void send(const Datagram&) override {}
};

struct Rank {
  explicit Rank(int rank) : number(rank) {
    SegmentOptions options = check::small_segment();
    options.board_bytes = node::board_bytes(1);
    segment = std::make_shared<RankSegment>(RankSegment::create(rank, 2, options).value());
    arena = std::make_shared<Arena>(segment);
    local = std::make_unique<Local>(segment, arena, std::vector<std::int32_t>{rank}, node::GroupOptions());
    progress = std::make_unique<Progress>(segment, std::vector<std::int32_t>{0, 1}, Mode::tcp, local.get());
    CHECK_OK(progress->links().set_messenger(std::make_unique<Silence>(), RailOptions()));
    buffer = arena->allocate(kBytes).value();
  }

  // Rank 0 sends, rank 1 receives.
  void begin(std::uint32_t coll_id) {
    check::Columns c(number, 2);
    c.scalars.collective = Collective::send_recv;
    c.scalars.count = kBytes;
    c.scalars.bytes[number == 0 ? 0 : 1] = kBytes;
    if (number == 0) {
      c.put(0, 1, {Buffer::input, 0}, {Buffer::output, 0}, kBytes, 0);
    } else {
      c.wait(0, 0, 0, 1);
      c.ready_to = {0};
    }
    const std::vector<std::uint8_t> load_store(2, 0);
    Result<Program> program = Program::compile(c.spec(), {number, 2, check::kChannels - 1, load_store});
    CHECK_OK(program.status());
    auto loaded = std::make_shared<LoadedProgram>(std::move(program).value(), std::make_shared<std::atomic<std::int64_t>>(0));
    Binding binding;
    const std::size_t at = number == 0 ? 0 : 1;
    binding.base[at] = buffer->data();
    binding.key[at] = kArenaRegionKey;
    binding.offset[at] = buffer->offset();
    work = std::make_shared<Work>(std::move(loaded), binding, Memory(), coll_id, now_ns() + 60'000'000'000, 60.0);
    progress->push(work);
  }
  bool done() const { return work->done(); }

  int number;
  std::shared_ptr<RankSegment> segment;
  std::shared_ptr<Arena> arena;
  std::unique_ptr<Local> local;
  std::unique_ptr<Progress> progress;
  std::shared_ptr<Block> buffer;
  std::shared_ptr<Work> work;
};

// A receiver that has all it wants may compute for hours, and nobody steps for it then.
TEST(who_leaves_has_confirmed_what_its_peers_wait_for) {
  Rank ranks[2] = {Rank(0), Rank(1)};
  const auto [a, b] = check::tcp_pair();
  CHECK_OK(ranks[0].progress->links().add_connection(1, 0, 0, 0, a, 0));
  CHECK_OK(ranks[1].progress->links().add_connection(0, 0, 0, 0, b, 0));
  for (std::uint32_t round = 1; round <= 20; ++round) {
    std::memset(ranks[0].buffer->data(), static_cast<int>(round), kBytes);
    for (Rank& rank : ranks) rank.begin(round);
    const std::int64_t deadline = now_ns() + 20'000'000'000;
    while (!ranks[1].done() && now_ns() < deadline) {
      ranks[0].progress->step();
      ranks[1].progress->step();
    }
    CHECK(ranks[1].done());
    // From here on rank 1 is away.
    while (!ranks[0].done() && now_ns() < deadline) ranks[0].progress->step();
    CHECK(ranks[0].done());
    CHECK_OK(ranks[0].work->status());
    CHECK(std::memcmp(ranks[0].buffer->data(), ranks[1].buffer->data(), kBytes) == 0);
    if (check::failures() > 0) break;
  }
}

}  // namespace
}  // namespace ccl_lab
