// Works that overlap: which may, in what order they begin and end, and what peers and a failure make of it.
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "comm/engine.hpp"
#include "comm/runs.hpp"
#include "conformance.hpp"
#include "plans.hpp"

namespace ccl_lab {
namespace {

using check::Columns;

constexpr std::uint64_t kBytes = 256;

Columns message(int rank, std::uint64_t nbytes) {
  Columns c(rank, 2);
  c.scalars.collective = Collective::send_recv;
  c.scalars.count = nbytes;
  c.scalars.bytes[rank == 0 ? 0 : 1] = nbytes;
  if (rank == 0) {
    c.put(0, 1, {Buffer::input, 0}, {Buffer::output, 0}, nbytes, 0);
  } else {
    c.wait(0, 0, 0, 1);
    c.ready_to = {0};
  }
  return c;
}

// A work of rank 0 (a sender) or 1 (a receiver) on its own, with memory at `base`.
std::shared_ptr<Work> work_on(int rank, std::byte* base) {
  const std::vector<std::uint8_t> load_store(2, 0);
  Result<Program> program = Program::compile(message(rank, kBytes).spec(), {rank, 2, 2, load_store});
  CHECK_OK(program.status());
  auto loaded = std::make_shared<LoadedProgram>(std::move(program).value(), std::make_shared<std::atomic<std::int64_t>>(0));
  Binding binding;
  binding.base[rank == 0 ? 0 : 1] = base;
  return std::make_shared<Work>(std::move(loaded), binding, Memory(), 1, 1'000'000'000, 1.0);
}

TEST(what_changes_bytes_that_others_use_does_not_overlap) {
  std::vector<std::byte> memory(4 * kBytes);
  std::byte* const at = memory.data();
  CHECK(!clash(*work_on(0, at), *work_on(0, at)));                // both read
  CHECK(clash(*work_on(1, at), *work_on(1, at)));                 // both are written
  CHECK(clash(*work_on(0, at), *work_on(1, at + kBytes - 1)));    // what may be sent again would be overwritten
  CHECK(clash(*work_on(1, at + 1), *work_on(0, at)));
  CHECK(!clash(*work_on(1, at), *work_on(1, at + kBytes)));
  CHECK(!clash(*work_on(0, at + kBytes), *work_on(1, at)));
}

TEST(runs_of_a_program_get_scratch_of_their_own) {
  Result<RankSegment> segment = RankSegment::create(0, 2, {.n_signal_channels = 1, .n_nics = 1, .trace_spans = 64, .arena_bytes = 2 * Scratch::kShared});
  CHECK_OK(segment.status());
  const auto arena = std::make_shared<Arena>(std::make_shared<RankSegment>(std::move(segment).value()));
  Scratch small, large;
  std::vector<std::shared_ptr<Block>> taken;
  for (std::size_t i = 0; i < Scratch::kMost; ++i) {
    taken.push_back(small.take(*arena, kBytes).value());
    for (std::size_t k = 0; k < i; ++k) CHECK(taken[k] != taken[i]);
  }
  CHECK(small.take(*arena, kBytes).value() == taken[0]);  // more than may overlap share, in turn
  CHECK(small.take(*arena, kBytes).value() == taken[1]);
  const Block* const third = taken[2].get();
  taken[2].reset();
  CHECK(small.take(*arena, kBytes).value().get() == third);  // free again
  const std::shared_ptr<Block> one = large.take(*arena, Scratch::kShared).value();
  CHECK(large.take(*arena, Scratch::kShared).value() == one);
}

// Its counters, slots and an executor's way to post are those of a peer that does nothing.
class Alone {
 public:
  Alone() : counters_(2 * 3), ready_(2 * kReadyDepth), signals_(counters_.data(), 2, 3, 3), baselines_(2, 3) {}

  std::size_t advance(Run& run, std::vector<Completion> completions = {}) {
    run.executor.advance(++now_ns_, completions, {signals_, ready_});
    for (const Post& post : run.executor.posts()) {
      if (post.kind == PostKind::ready) ready_offsets.push_back(run.executor.ready_put_of(post).destination.offset);
      if (post.kind == PostKind::ready || post.kind == PostKind::put) cookies.push_back(post.cookie);
    }
    return run.executor.posts().size();
  }
  void start(Run& run) { run.executor.start(run.work->program(), run.work->binding(), baselines_); }
  void announce(Run& run) { run.executor.announce(run.work->program(), run.work->binding(), baselines_); }
  // The peer's READY number `sequence` for a message of kBytes.
  void peer_enters(int peer, std::uint64_t sequence) {
    ReadySlot& slot = ready_[ready_slot(peer, sequence)];
    slot.sequence = sequence;
    slot.count = kBytes;
    slot.collective = static_cast<std::uint8_t>(Collective::send_recv);
    slot.dtype = static_cast<std::uint8_t>(DType::uint8);
    slot.size[1] = kBytes;
    signals_.raise(peer, 2);
  }
  void peer_signals(int peer) { signals_.raise(peer, 0); }

  std::vector<std::uint64_t> cookies, ready_offsets;

 private:
  std::vector<std::atomic<std::uint64_t>> counters_;
  std::vector<ReadySlot> ready_;
  SignalTable signals_;
  Baselines baselines_;
  std::int64_t now_ns_ = 0;
};

TEST(a_sender_goes_on_before_its_message_is_confirmed) {
  std::vector<std::byte> memory(kBytes);
  Alone rank;
  Runs runs;
  std::vector<std::shared_ptr<Work>> works;
  for (int i = 0; i < 5; ++i) works.push_back(work_on(0, memory.data()));
  for (std::uint64_t i = 0; i < Runs::kMost; ++i) rank.peer_enters(1, i + 1);  // all are there before the first is used
  for (std::size_t i = 0; i < Runs::kMost; ++i) {
    CHECK(runs.may_begin(*works[i]));
    runs.begin(works[i]);
    rank.start(runs.now());
    CHECK(!runs.may_drain(*works[i + 1]) && !runs.now().executor.posted_all());  // nothing was posted yet
    rank.advance(runs.now());
    CHECK(runs.now().executor.posted_all());
    CHECK_EQ(rank.cookies.size(), i + 1);
    const bool room = i + 1 < Runs::kMost;
    CHECK_EQ(runs.may_drain(*works[i + 1]), room);
    if (!room) break;
    runs.now().executor.drain();
    runs.set_aside();
  }
  CHECK_EQ(runs.n_draining(), Runs::kMost - 1);
  CHECK(runs.current() == works[3]);
  // Confirmed out of order: each is done by itself, the oldest leaves first.
  const auto confirm = [&](std::size_t i) {
    const std::vector<Completion> all = {{rank.cookies[i], Status()}};
    for (std::size_t k = 0; k < runs.n_draining(); ++k) rank.advance(runs.draining(k), all);
  };
  confirm(1);
  CHECK(runs.take_drained() == nullptr);
  confirm(0);
  CHECK(runs.take_drained() == works[0]);
  CHECK(runs.take_drained() == works[1]);
  CHECK(runs.take_drained() == nullptr);
  CHECK(runs.current() == works[3]);
  CHECK(runs.may_drain(*works[4]));
  CHECK(!runs.may_drain(*work_on(1, memory.data())));  // it would overwrite what may be sent again
}

TEST(a_receiver_is_ready_for_messages_whose_turn_has_not_come) {
  std::vector<std::byte> memory(8 * kBytes);
  const auto part = [&](int i) { return memory.data() + i * static_cast<std::ptrdiff_t>(kBytes); };
  Alone rank;
  Runs runs;
  runs.begin(work_on(1, part(0)));
  rank.start(runs.now());
  rank.advance(runs.now());
  CHECK(!runs.may_announce(*work_on(1, part(0))));
  CHECK(!runs.may_announce(*work_on(0, part(0) + 1)));
  for (int i = 1; i < static_cast<int>(Runs::kMost); ++i) {
    CHECK(runs.may_announce(*work_on(1, part(i))));
    Run& run = runs.announce(work_on(1, part(i)));
    rank.announce(run);
    CHECK_EQ(rank.advance(run), 1u);
  }
  CHECK(!runs.may_announce(*work_on(1, part(5))));  // its READY would take the place of one that may not have been used
  for (std::size_t i = 0; i < Runs::kMost; ++i)
    CHECK_EQ(rank.ready_offsets[i], ready_slot(1, i + 1) * sizeof(ReadySlot));
  // Two arrive before the second one's turn: it is over as soon as that comes.
  rank.peer_signals(0);
  rank.peer_signals(0);
  rank.advance(runs.now(), {{rank.cookies[0], Status()}});
  CHECK(runs.now().executor.done());
  runs.take_current();
  Run& second = runs.announced(0);
  CHECK(second.executor.announced());
  rank.advance(second, {{rank.cookies[1], Status()}});
  runs.begin(second.work);
  CHECK(&runs.now() == &second);
  rank.start(runs.now());
  CHECK_EQ(rank.cookies.size(), Runs::kMost);
  rank.advance(runs.now());
  CHECK(runs.now().executor.done());
  CHECK_EQ(rank.cookies.size(), Runs::kMost);  // READY was said once
  runs.take_current();
  runs.withdraw();
  CHECK_EQ(runs.n_announced(), std::size_t{0});
}

std::shared_ptr<Engine> make_engine(int rank, Mode mode) {
  EngineOptions options;
  options.n_channels = 2;
  options.arena_bytes = 64 << 20;
  options.mode = mode;
  options.ranks_on_host = 64;  // every wait is a sleep that must be ended
  Result<std::shared_ptr<Engine>> made = Engine::create(rank, {0, 0}, options);
  CHECK_OK(made.status());
  return made.value();
}

// Rank 0 sends, rank 1 receives: `count` messages, all started at once, in `places` places of each.
class Pair {
 public:
  explicit Pair(Mode mode) : engines{make_engine(0, mode), make_engine(1, mode)} {
    if (mode == Mode::tcp) {
      const auto [a, b] = check::tcp_pair();
      CHECK_OK(engines[0]->add_connection(1, 0, 0, 0, a));
      CHECK_OK(engines[1]->add_connection(0, 0, 0, 0, b));
    } else {
      for (int r = 0; r < 2; ++r) CHECK_OK(engine(r).attach_peer(1 - r, ::getpid(), engine(1 - r).segment()->fd()));
    }
  }

  Engine& engine(int r) { return *engines[static_cast<std::size_t>(r)]; }

  std::shared_ptr<Work> start(int rank, std::uint64_t nbytes, std::byte* at, std::uint32_t number) {
    Result<std::shared_ptr<LoadedProgram>> program = engine(rank).compile(message(rank, nbytes).spec());
    CHECK_OK(program.status());
    const BufferView view{at, nbytes};
    Result<std::shared_ptr<Work>> work = engine(rank).start(program.value(), rank == 0 ? view : BufferView(), rank == 0 ? BufferView() : view,
                                                            number, 30);
    CHECK_OK(work.status());
    return work.value();
  }

  std::vector<std::shared_ptr<Engine>> engines;
};

void stream(Mode mode, std::uint64_t nbytes, int count, int places) {
  Pair pair(mode);
  const std::uint64_t total = nbytes * static_cast<std::uint64_t>(places);
  const std::shared_ptr<Block> from = pair.engine(0).arena()->allocate(nbytes * static_cast<std::uint64_t>(count)).value();
  const std::shared_ptr<Block> to = pair.engine(1).arena()->allocate(total).value();
  std::vector<std::shared_ptr<Work>> sent, received;
  for (int i = 0; i < count; ++i) {
    std::byte* const source = from->data() + static_cast<std::uint64_t>(i) * nbytes;
    for (std::uint64_t k = 0; k < nbytes; ++k) source[k] = static_cast<std::byte>(i * 31 + static_cast<int>(k % 251));
    received.push_back(pair.start(1, nbytes, to->data() + static_cast<std::uint64_t>(i % places) * nbytes, static_cast<std::uint32_t>(i)));
    sent.push_back(pair.start(0, nbytes, source, static_cast<std::uint32_t>(i)));
  }
  for (int i = 0; i < count; ++i) {
    for (int rank : {0, 1}) {
      const auto& works = rank == 0 ? sent : received;
      const Work& work = *works[static_cast<std::size_t>(i)];
      CHECK(pair.engine(rank).wait(work, 30));
      CHECK_OK(work.status());
      if (i > 0) CHECK(work.end_ns() >= works[static_cast<std::size_t>(i) - 1]->end_ns());  // in the order of their start
    }
  }
  int wrong = 0;
  for (int i = count - places; i < count; ++i)
    wrong += std::memcmp(to->data() + static_cast<std::uint64_t>(i % places) * nbytes, from->data() + static_cast<std::uint64_t>(i) * nbytes, nbytes) != 0;
  CHECK_EQ(wrong, 0);
}

TEST(queued_messages_are_exact) {
  for (const Mode mode : {Mode::automatic, Mode::tcp})
    for (const int places : {1, 2, 7}) {  // one: each waits for the one before
      stream(mode, 1 << 20, 14, places);
      stream(mode, 500, 70, places);
    }
}

TEST(a_failure_ends_all_that_had_entered) {
  Pair pair(Mode::tcp);
  const std::shared_ptr<Block> to = pair.engine(1).arena()->allocate(8 * kBytes).value();
  std::vector<std::shared_ptr<Work>> works;
  for (std::uint32_t i = 0; i < 8; ++i) works.push_back(pair.start(1, kBytes, to->data() + i * kBytes, i));
  pair.engine(1).abort(Code::aborted, "enough", 0);
  for (const auto& work : works) {
    CHECK(pair.engine(1).wait(*work, 30));
    CHECK_EQ(work->status().code, Code::aborted);
    CHECK(work->status().message.find("enough") != std::string::npos);
  }
}

}  // namespace
}  // namespace ccl_lab
