// N executors over a loop transport in one thread: every interleaving is a seed, and results are checked byte by byte.
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "check.hpp"
#include "comm/jobs.hpp"
#include "exec/executor.hpp"
#include "plans.hpp"
#include "transport/loop/loop.hpp"

namespace ccl_lab {
namespace {

using check::Columns;

constexpr int kChannels = 4;
constexpr std::uint64_t kBufferBytes = 64 * 1024;

// One rank: memory, counters, a transport and an executor; `step` is what comm does, on a virtual clock.
class Rank {
 public:
  Rank(LoopHub& hub, int rank, int n)
      : counters_(static_cast<std::size_t>(n) * (kChannels + 1)),
        ready_(static_cast<std::size_t>(n) * kReadyDepth),
        memory_(3 * kBufferBytes),
        load_store_(static_cast<std::size_t>(n), 1),
        signals_(counters_.data(), n, kChannels + 1, kChannels + 1),
        transport_(hub, rank, signals_),
        baselines_(n, kChannels + 1),
        rank_(rank),
        n_(n) {
    auto* const ready = reinterpret_cast<std::byte*>(ready_.data());
    CHECK_OK(transport_.register_region(kControlRegionKey, ready, ready_.size() * sizeof(ReadySlot)));
    CHECK_OK(transport_.register_region(kArenaRegionKey, memory_.data(), memory_.size()));
  }

  std::byte* buffer(Buffer b) { return memory_.data() + static_cast<std::size_t>(b) * kBufferBytes; }

  Status start(const Columns& columns) {
    Placement placement;
    placement.rank = rank_;
    placement.n_ranks = n_;
    placement.n_channels = kChannels;
    placement.load_store = load_store_;
    Result<Program> made = Program::compile(columns.spec(), placement);
    if (!made.ok()) return made.status();
    program_ = std::make_unique<Program>(std::move(made).value());
    Binding binding;
    for (std::size_t b = 0; b < kBufferCount; ++b) {
      binding.base[b] = buffer(static_cast<Buffer>(b));
      binding.key[b] = kArenaRegionKey;
      binding.offset[b] = b * kBufferBytes;
    }
    executor.start(*program_, binding, baselines_);
    return {};
  }

  void step(std::int64_t now_ns, std::vector<std::unique_ptr<Rank>>& all) {
    transport_.poll(now_ns, completions_, events_);
    jobs_.poll(completions_);
    std::vector<Completion> batch = std::exchange(completions_, {});
    std::size_t at = 0;
    do {
      const std::size_t n = std::min<std::size_t>(batch.size() - at, 3);
      executor.advance(now_ns, std::span<const Completion>(batch).subspan(at, n), inbox());
      at += n;
      for (const Post& post : executor.posts()) perform(post, all);
    } while (executor.active() && (executor.more() || at < batch.size()));
  }

  Inbox inbox() const { return {signals_, ready_}; }

  Executor executor;
  std::vector<std::int32_t> ended;  // op ids, as they ended
  std::vector<Traffic> traffic;     // of puts and gets, as they were posted

 private:
  void perform(const Post& post, std::vector<std::unique_ptr<Rank>>& all) {
    switch (post.kind) {
      case PostKind::ready: CHECK_OK(transport_.put(executor.ready_put_of(post))); return;
      case PostKind::put:
        traffic.push_back(executor.put_of(post).tag.traffic);
        CHECK_OK(transport_.put(executor.put_of(post)));
        return;
      case PostKind::get:
        traffic.push_back(executor.get_of(post).tag.traffic);
        CHECK_OK(transport_.get(executor.get_of(post)));
        return;
      case PostKind::ended: ended.push_back(executor.op(post).op_id); return;
      case PostKind::waited_ready: return;
      case PostKind::compute: completions_.push_back({post.cookie, Status()}); return;
      case PostKind::copy:
      case PostKind::reduce:
      case PostKind::divide: break;
    }
    Job job;
    job.cookie = post.cookie;
    job.dtype = program_->identity().dtype;
    job.redop = program_->identity().redop;
    if (post.kind == PostKind::divide) {
      job.what = Job::What::divide;
      job.dst = executor.own(Buffer::output, 0);
      job.nbytes = program_->output_elements() * itemsize(job.dtype);
      job.divisor = program_->n_ranks_avg();
    } else {
      const Op& op = executor.op(post);
      job.what = post.kind == PostKind::reduce ? Job::What::reduce : Job::What::copy;
      job.dst = executor.own(op.dst_buffer, op.dst_offset);
      job.nbytes = op.nbytes;
      for (const Source& source : program_->sources(op)) {
        if (source.slot < 0) {
          job.sources.push_back(executor.own(source.buffer, source.offset));
          continue;
        }
        const auto peer = static_cast<std::size_t>(program_->peers()[static_cast<std::size_t>(source.slot)].rank);
        job.sources.push_back(all[peer]->memory_.data() + executor.remote(source.slot, source.buffer, source.offset).offset);
      }
    }
    jobs_.add(std::move(job));
  }

  std::vector<std::atomic<std::uint64_t>> counters_;
  std::vector<ReadySlot> ready_;
  std::vector<std::byte> memory_;
  std::vector<std::uint8_t> load_store_;
  SignalTable signals_;
  LoopTransport transport_;
  Baselines baselines_;
  std::unique_ptr<Program> program_;
  Jobs jobs_;
  std::vector<Completion> completions_;
  std::vector<LinkEvent> events_;
  int rank_;
  int n_;
};

class World {
 public:
  World(int n, std::uint64_t seed) : hub(n, seed), random(seed) {
    for (int r = 0; r < n; ++r) ranks.push_back(std::make_unique<Rank>(hub, r, n));
  }

  // Steps ranks at random until all are done or one has failed; false if that takes too long.
  bool run() {
    for (int steps = 0; steps < 400000; ++steps) {
      ranks[random() % ranks.size()]->step(++now_ns, ranks);
      bool active = false;
      for (const auto& rank : ranks) {
        if (rank->executor.failed()) return true;
        active = active || rank->executor.active();
      }
      if (!active) return true;
    }
    return false;
  }

  LoopHub hub;
  std::mt19937_64 random;
  std::int64_t now_ns = 0;
  std::vector<std::unique_ptr<Rank>> ranks;
};

void check_gathered(World& world, std::uint64_t block, int salt) {
  const auto n = static_cast<int>(world.ranks.size());
  int wrong = 0;
  for (const auto& rank : world.ranks)
    for (int b = 0; b < n; ++b)
      for (std::uint64_t i = 0; i < block; ++i)
        wrong += rank->buffer(Buffer::output)[block * static_cast<std::uint64_t>(b) + i] != static_cast<std::byte>(b * 7 + salt + static_cast<int>(i));
  CHECK_EQ(wrong, 0);
}

void fill(World& world, std::uint64_t block, int salt) {
  for (std::size_t r = 0; r < world.ranks.size(); ++r) {
    for (std::uint64_t i = 0; i < block; ++i)
      world.ranks[r]->buffer(Buffer::input)[i] = static_cast<std::byte>(static_cast<int>(r) * 7 + salt + static_cast<int>(i));
    std::memset(world.ranks[r]->buffer(Buffer::output), 0xee, kBufferBytes);
  }
}

TEST(gathers_are_right_in_every_interleaving) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    const int n = 1 + static_cast<int>(seed % 6);
    const std::uint64_t block = seed % 4 == 0 ? 0 : 1 + seed * 37 % 3000;
    World world(n, seed);
    for (int salt = 0; salt < 4; ++salt) {  // runs follow each other without a barrier
      fill(world, block, salt);
      for (int r = 0; r < n; ++r)
        CHECK_OK(world.ranks[static_cast<std::size_t>(r)]->start(salt % 2 ? check::get_all_gather(r, n, block)
                                                                         : check::ring_all_gather(r, n, block)));
      CHECK(world.run());
      for (const auto& rank : world.ranks) CHECK_OK(rank->executor.status());
      check_gathered(world, block, salt);
    }
  }
}

TEST(transports_are_told_what_is_of_an_all_to_all) {
  const auto told = [](Collective collective, bool gets) {
    World world(3, 1);
    for (int r = 0; r < 3; ++r) {
      Columns columns = gets ? check::get_all_gather(r, 3, 100) : check::ring_all_gather(r, 3, 100);
      columns.scalars.collective = collective;
      CHECK_OK(world.ranks[static_cast<std::size_t>(r)]->start(columns));
    }
    CHECK(world.run());
    CHECK(!world.ranks[0]->traffic.empty());
    return world.ranks[0]->traffic;
  };
  for (const bool gets : {false, true}) {
    for (const Collective collective : {Collective::all_to_all, Collective::all_to_allv})
      for (const Traffic each : told(collective, gets)) CHECK(each == Traffic::all_to_all);
    for (const Traffic each : told(Collective::all_gather, gets)) CHECK(each == Traffic::usual);
  }
}

TEST(all_reduce_is_right_in_every_interleaving) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    const int n = 1 + static_cast<int>(seed % 5);
    const std::uint64_t elements = seed % 7 == 0 ? 0 : seed * 13 % 500;
    const RedOp redop = seed % 3 == 0 ? RedOp::avg : RedOp::sum;
    World world(n, seed);
    const std::uint64_t total = elements * static_cast<std::uint64_t>(n);
    for (int r = 0; r < n; ++r) {
      Rank& rank = *world.ranks[static_cast<std::size_t>(r)];
      for (std::uint64_t i = 0; i < total; ++i) {
        const auto value = static_cast<float>(static_cast<int>(i % 100) * (r + 1));
        std::memcpy(rank.buffer(Buffer::input) + 4 * i, &value, 4);
      }
      CHECK_OK(rank.start(check::direct_all_reduce(r, n, elements * 4, DType::float32, redop, seed % 2 == 0)));
    }
    CHECK(world.run());
    int wrong = 0;
    for (const auto& rank : world.ranks) {
      CHECK(rank->executor.done());
      for (std::uint64_t i = 0; i < total; ++i) {
        float found = 0;
        std::memcpy(&found, rank->buffer(Buffer::output) + 4 * i, 4);
        float want = static_cast<float>(static_cast<int>(i % 100) * n * (n + 1) / 2);
        if (redop == RedOp::avg) want /= static_cast<float>(n);
        wrong += found != want;
      }
      const auto& ops = rank->executor.program().ops();
      CHECK_EQ(rank->ended.size(), ops.size());  // every op ends once
    }
    CHECK_EQ(wrong, 0);
  }
}

TEST(ranks_that_disagree_are_told_how) {
  const auto disagree = [](auto change, Code code, const std::string& text) {
    World world(2, 3);
    CHECK_OK(world.ranks[0]->start(check::ring_all_gather(0, 2, 64)));
    Columns other = check::ring_all_gather(1, 2, 64);
    change(other);
    CHECK_OK(world.ranks[1]->start(other));
    CHECK(world.run());
    int failed = 0;
    for (const auto& rank : world.ranks) {
      if (!rank->executor.failed()) continue;
      ++failed;
      CHECK_EQ(rank->executor.status().code, code);
      CHECK(rank->executor.status().message.find(text) != std::string::npos);
    }
    CHECK(failed > 0);
  };
  disagree([](Columns& c) { c.scalars.count = 65; }, Code::shape, "same shape");
  disagree([](Columns& c) { c.scalars.dtype = DType::int8; }, Code::dtype, "same element type");
  disagree([](Columns& c) { c.scalars.redop = RedOp::max; }, Code::usage, "same reduction");
  disagree([](Columns& c) { c.scalars.plan_hash = 5; }, Code::usage, "same schedule");
  disagree([](Columns& c) { c.scalars.collective = Collective::broadcast; }, Code::usage, "same collectives");
}

TEST(a_peer_with_too_small_a_buffer_is_refused) {
  World world(2, 4);
  CHECK_OK(world.ranks[0]->start(check::ring_all_gather(0, 2, 64)));
  Columns small = check::ring_all_gather(1, 2, 16);
  small.scalars.count = 64;
  CHECK_OK(world.ranks[1]->start(small));
  CHECK(world.run());
  CHECK(world.ranks[0]->executor.failed());
  CHECK_EQ(world.ranks[0]->executor.status().code, Code::shape);
  CHECK_EQ(world.ranks[0]->executor.status().rank, 1);
}

TEST(what_blocks_is_said) {
  World world(2, 0);
  Rank& rank = *world.ranks[0];
  CHECK_OK(rank.start(check::ring_all_gather(0, 2, 64)));
  for (int i = 0; i < 50; ++i) rank.step(++world.now_ns, world.ranks);
  Blocked blocked = rank.executor.oldest_blocked(rank.inbox());
  CHECK_EQ(blocked.text, std::string("rank 0, channel 0, op 1 (put) waits for rank 1 to enter the collective"));
  CHECK_EQ(blocked.peer, 1);
  CHECK(rank.executor.needs(1, rank.inbox()));
  CHECK(!rank.executor.needs(0, rank.inbox()));
  Columns silent(1, 2);  // enters, and never signals
  silent.scalars = check::ring_all_gather(1, 2, 64).scalars;
  silent.ready_to = {0};
  CHECK_OK(world.ranks[1]->start(silent));
  for (int i = 0; i < 50; ++i)
    for (const auto& each : world.ranks) each->step(++world.now_ns, world.ranks);
  blocked = rank.executor.oldest_blocked(rank.inbox());
  CHECK_EQ(blocked.text,
           std::string("rank 0, channel 0, op 2 (wait) waits for signal 1 of rank 1 on signal channel 0, has 0"));
  CHECK_EQ(blocked.op_id, 2);
}

TEST(completions_of_an_earlier_run_are_ignored) {
  World world(1, 0);
  Rank& rank = *world.ranks[0];
  Columns c(0, 1);
  c.scalars.bytes[0] = c.scalars.bytes[1] = 64;
  c.copy(0, {Buffer::input, 0}, {Buffer::output, 0}, 64);
  CHECK_OK(rank.start(c));
  rank.executor.advance(1, {}, rank.inbox());
  CHECK_EQ(rank.executor.posts().size(), 1u);
  const Completion old{rank.executor.posts()[0].cookie, Status()};
  rank.executor.fail(Status(Code::aborted, "test"));
  CHECK_OK(rank.start(c));
  rank.executor.advance(2, std::span<const Completion>(&old, 1), rank.inbox());
  CHECK(!rank.executor.done());
  const Completion current{rank.executor.posts()[0].cookie, Status()};
  rank.executor.advance(3, std::span<const Completion>(&current, 1), rank.inbox());
  CHECK(rank.executor.done());
}

// More posts than fit at once: advance says so and goes on.
TEST(many_puts_are_posted_in_turns) {
  World world(2, 0);
  for (int r = 0; r < 2; ++r) {
    Columns c(r, 2);
    c.scalars.bytes[0] = c.scalars.bytes[1] = 5000;
    for (int i = 0; i < 5000; ++i) c.put(0, 1 - r, {Buffer::input, static_cast<std::uint64_t>(i)}, {Buffer::output, static_cast<std::uint64_t>(i)}, 1, 0);
    c.wait(0, 1 - r, 0, 5000);
    c.ready_to = {1 - r};
    for (int i = 0; i < 5000; ++i) world.ranks[static_cast<std::size_t>(r)]->buffer(Buffer::input)[i] = static_cast<std::byte>(i * 3 + r);
    CHECK_OK(world.ranks[static_cast<std::size_t>(r)]->start(c));
  }
  CHECK(world.run());
  for (int r = 0; r < 2; ++r) {
    CHECK(world.ranks[static_cast<std::size_t>(r)]->executor.done());
    CHECK_EQ(std::memcmp(world.ranks[static_cast<std::size_t>(r)]->buffer(Buffer::output),
                         world.ranks[static_cast<std::size_t>(1 - r)]->buffer(Buffer::input), 5000), 0);
  }
}

}  // namespace
}  // namespace ccl_lab
