// Whole engines with their threads: over shared memory and over sockets, and what they do when something goes wrong.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "comm/engine.hpp"
#include "conformance.hpp"
#include "huge_pages.hpp"
#include "plans.hpp"

namespace ccl_lab {
namespace {

using check::Columns;

constexpr std::uint64_t kArena = 64 << 20;

std::shared_ptr<Engine> make_engine(int rank, int n, Mode mode) {
  EngineOptions options;
  options.n_channels = 4;
  options.n_nics = 2;
  options.arena_bytes = kArena;
  options.trace_spans = 4096;
  options.mode = mode;
  options.ranks_on_host = 64;  // never spin: every wait is a sleep that must be ended
  Result<std::shared_ptr<Engine>> made = Engine::create(rank, std::vector<std::int32_t>(static_cast<std::size_t>(n), 0), options);
  if (!made.ok()) {
    check::fail(__FILE__, __LINE__, made.status().message);
    std::abort();
  }
  return made.value();
}

class World {
 public:
  World(int n, Mode mode) : n_(n), mode_(mode) {
    for (int r = 0; r < n; ++r) engines.push_back(make_engine(r, n, mode));
    if (mode != Mode::tcp) {
      for (int r = 0; r < n; ++r)
        for (int p = 0; p < n; ++p)
          if (p != r) CHECK_OK(engine(r).attach_peer(p, ::getpid(), engine(p).segment()->fd()));
    }
    connect();
  }

  void connect() {
    if (mode_ != Mode::tcp) return;
    for (int r = 0; r < n_; ++r)
      for (int p = r + 1; p < n_; ++p) {
        const auto [a, b] = check::tcp_pair();
        CHECK_OK(engine(r).add_connection(p, 0, 0, 0, a));
        CHECK_OK(engine(p).add_connection(r, 0, 0, 0, b));
      }
  }

  Engine& engine(int r) { return *engines[static_cast<std::size_t>(r)]; }
  int n() const { return n_; }

  std::vector<std::shared_ptr<Engine>> engines;

 private:
  int n_;
  Mode mode_;
};

// One rank's part of a run: program, buffers and work.
struct Part {
  std::shared_ptr<LoadedProgram> program;
  std::shared_ptr<Block> input, output;
  std::shared_ptr<Work> work;
  ProgramSpec scalars;
  Engine* owner;

  Part(Engine& engine, const Columns& columns) : scalars(columns.scalars), owner(&engine) {
    Result<std::shared_ptr<LoadedProgram>> made = engine.compile(columns.spec());
    CHECK_OK(made.status());
    if (made.ok()) program = made.value();
    input = engine.arena()->allocate(scalars.bytes[0]).value();
    output = engine.arena()->allocate(scalars.bytes[1]).value();
  }

  Status start(Engine& engine, std::uint32_t coll_id, double timeout_s) {
    Result<std::shared_ptr<Work>> started = engine.start(program, {input->data(), scalars.bytes[0]},
                                                         {output->data(), scalars.bytes[1]}, coll_id, timeout_s);
    if (started.ok()) work = started.value();
    return started.status();
  }

  bool wait(double timeout_s) const { return owner->wait(*work, timeout_s); }
};

std::vector<Part> make_all_reduce(World& world, std::uint64_t part, bool load_store) {
  std::vector<Part> parts;
  for (int r = 0; r < world.n(); ++r) {
    parts.emplace_back(world.engine(r), check::direct_all_reduce(r, world.n(), part, DType::int32, RedOp::sum, load_store));
    auto* const values = reinterpret_cast<std::int32_t*>(parts.back().input->data());
    for (std::uint64_t i = 0; i < parts.back().scalars.bytes[0] / 4; ++i) values[i] = static_cast<std::int32_t>(i) * (r + 1);
  }
  return parts;
}

void check_all_reduce(std::vector<Part>& parts) {
  const auto n = static_cast<std::int32_t>(parts.size());
  int wrong = 0;
  for (Part& part : parts) {
    const auto* const values = reinterpret_cast<const std::int32_t*>(part.output->data());
    for (std::uint64_t i = 0; i < part.scalars.bytes[1] / 4; ++i)
      wrong += values[i] != static_cast<std::int32_t>(i) * (n * (n + 1) / 2);
  }
  CHECK_EQ(wrong, 0);
}

void run_all_reduces(Mode mode, int n, std::uint64_t part, bool load_store, int runs) {
  World world(n, mode);
  std::vector<Part> parts = make_all_reduce(world, part, load_store);
  for (int run = 0; run < runs; ++run) {
    for (int r = 0; r < n; ++r) CHECK_OK(parts[static_cast<std::size_t>(r)].start(world.engine(r), static_cast<std::uint32_t>(run), 30));
    for (Part& each : parts) {
      CHECK(each.wait(30));
      CHECK_OK(each.work->status());
    }
    if (run == 0 || run == runs - 1) check_all_reduce(parts);
  }
  for (const auto& engine : world.engines) {
    SpanReader reader(*engine->segment());
    std::vector<SpanRecord> spans(4096);
    CHECK(reader.drain(spans.data(), spans.size()) > 0);
  }
}

TEST(all_reduce_over_shared_memory) {
  run_all_reduces(Mode::automatic, 4, 4096, false, 200);
  run_all_reduces(Mode::automatic, 3, 1 << 20, true, 5);
}

TEST(all_reduce_over_sockets) {
  run_all_reduces(Mode::tcp, 4, 4096, false, 100);
  run_all_reduces(Mode::tcp, 2, 1 << 20, false, 5);
}

TEST(nothing_is_a_size_too) {
  run_all_reduces(Mode::automatic, 3, 0, false, 20);
  run_all_reduces(Mode::tcp, 2, 0, false, 20);
  run_all_reduces(Mode::automatic, 1, 64, false, 3);
}

// Works queue up; a rank that is ahead does not disturb one that is behind.
TEST(works_run_in_the_order_of_their_start) {
  World world(3, Mode::automatic);
  std::vector<std::vector<Part>> runs;
  for (int i = 0; i < 10; ++i) runs.push_back(make_all_reduce(world, 400, i % 2 == 0));
  for (int r = 0; r < 3; ++r) {
    for (auto& parts : runs) CHECK_OK(parts[static_cast<std::size_t>(r)].start(world.engine(r), 1, 30));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  for (auto& parts : runs) {
    for (Part& part : parts) {
      CHECK(part.wait(30));
      CHECK_OK(part.work->status());
      CHECK(part.work->end_ns() >= part.work->begin_ns());
    }
    check_all_reduce(parts);
  }
}

TEST(a_missing_rank_is_named_by_the_deadline) {
  World world(2, Mode::automatic);
  Part part(world.engine(0), check::ring_all_gather(0, 2, 64));
  CHECK_OK(part.start(world.engine(0), 9, 0.05));
  CHECK(part.wait(10));
  const Status& status = part.work->status();
  CHECK_EQ(status.code, Code::timeout);
  CHECK_EQ(status.rank, 1);
  CHECK_EQ(status.op_id, 1);
  CHECK(status.message.find("did not end within 0.05 s: rank 0, channel 0, op 1 (put) waits for rank 1 to enter") !=
        std::string::npos);
  // Stopped until reset, and it says why.
  const Status again = part.start(world.engine(0), 10, 1);
  CHECK_EQ(again.code, Code::aborted);
  CHECK(again.message.find("waits for rank 1") != std::string::npos);
}

TEST(the_first_reason_to_abort_wins) {
  for (const Mode mode : {Mode::automatic, Mode::tcp}) {
    World world(2, mode);
    std::vector<Part> parts = make_all_reduce(world, 4096, false);
    CHECK_OK(parts[0].start(world.engine(0), 1, 30));
    Part queued(world.engine(0), check::ring_all_gather(0, 2, 64));
    CHECK_OK(queued.start(world.engine(0), 2, 30));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    world.engine(0).abort(Code::peer_lost, "rank 1 was eaten", 1);
    world.engine(0).abort(Code::aborted, "too late", 0);
    CHECK(parts[0].wait(10));
    CHECK_EQ(parts[0].work->status().code, Code::peer_lost);
    CHECK_EQ(parts[0].work->status().message, std::string("rank 1 was eaten"));
    CHECK_EQ(parts[0].work->status().rank, 1);
    CHECK(queued.wait(10));
    CHECK_EQ(queued.work->status().code, Code::aborted);
    CHECK(queued.work->status().message.find("rank 1 was eaten") != std::string::npos);
    for (int r = 0; r < 2; ++r) CHECK_OK(world.engine(r).reset(1));
    world.connect();
    for (int r = 0; r < 2; ++r) CHECK_OK(parts[static_cast<std::size_t>(r)].start(world.engine(r), 3, 30));
    for (Part& part : parts) {
      CHECK(part.wait(30));
      CHECK_OK(part.work->status());
    }
    check_all_reduce(parts);
  }
}

// Its peer is told the same by a connection that closes, and may say so first.
TEST(a_rank_says_itself_that_its_nic_is_down) {
  World world(2, Mode::tcp);
  const auto [a, b] = check::tcp_pair();
  CHECK_OK(world.engine(0).add_connection(1, 1, 1, 0, a));
  CHECK_OK(world.engine(1).add_connection(0, 1, 1, 0, b));
  std::vector<Part> parts = make_all_reduce(world, 4096, false);
  Columns copy(0, 2);
  copy.scalars.collective = Collective::all_gather;
  copy.scalars.count = copy.scalars.bytes[0] = copy.scalars.bytes[1] = 64;
  copy.copy(0, {Buffer::input, 0}, {Buffer::output, 0}, 64);
  Part alone(world.engine(0), copy);
  CHECK_OK(world.engine(0).set_nic(0, 0, false));
  CHECK_OK(alone.start(world.engine(0), 1, 30));
  CHECK(alone.wait(30));  // meanwhile the rank finds its connection lost, which this does not need
  CHECK_OK(alone.work->status());
  world.engine(0).abort(Code::link_down, "closed by the peer", 0);
  const Status status = parts[0].start(world.engine(0), 2, 30);
  CHECK_EQ(status.code, Code::link_down);
  CHECK_EQ(status.rank, 0);
  CHECK_EQ(status.nic, 0);
  CHECK(status.message.find("NIC 0 of this node is down") != std::string::npos);
  CHECK_EQ(alone.start(world.engine(0), 3, 30).code, Code::aborted);
  CHECK_OK(world.engine(0).set_nic(0, 0, true));
  CHECK_OK(world.engine(0).reset(1));
  CHECK_OK(world.engine(1).reset(1));
  world.engine(0).abort(Code::aborted, "cancelled", -1);
  CHECK_EQ(parts[0].start(world.engine(0), 4, 30).code, Code::aborted);
}

// Its peer may find the connection closed and tell it to stop before it says so itself.
TEST(a_rank_that_is_told_to_stop_says_that_its_nic_is_down) {
  World world(2, Mode::tcp);
  const auto [a, b] = check::tcp_pair();
  CHECK_OK(world.engine(0).add_connection(1, 1, 1, 0, a));
  CHECK_OK(world.engine(1).add_connection(0, 1, 1, 0, b));
  const auto columns = [](int rank) {
    Columns made(rank, 2);
    made.scalars.collective = Collective::all_gather;
    made.scalars.count = made.scalars.bytes[0] = made.scalars.bytes[1] = 64;
    return made;
  };
  Columns waits = columns(0), heard = columns(1);
  waits.signal(0, 1, 0);
  waits.wait(0, 0, 1, 1);  // for what never comes; it needs no peer any more
  heard.wait(0, 0, 0, 1);
  heard.ready_to = {0};
  Part part(world.engine(0), waits), first(world.engine(1), heard), other(world.engine(1), check::ring_all_gather(1, 2, 64));
  CHECK_OK(part.start(world.engine(0), 1, 30));
  CHECK_OK(first.start(world.engine(1), 1, 30));
  CHECK(first.wait(30));
  CHECK_OK(first.work->status());
  CHECK_OK(other.start(world.engine(1), 2, 30));
  CHECK_OK(world.engine(0).set_nic(0, 0, false));
  CHECK(other.wait(30));
  CHECK_EQ(other.work->status().code, Code::link_down);
  CHECK(!part.wait(0));
  world.engine(0).abort(Code::link_down, "closed by the peer", 1);
  CHECK(part.wait(30));
  const Status status = part.work->status();
  CHECK_EQ(status.code, Code::link_down);
  CHECK_EQ(status.rank, 0);
  CHECK_EQ(status.nic, 0);
  CHECK(status.message.find("NIC 0 of this node is down") != std::string::npos);
}

TEST(what_cannot_start_is_refused) {
  World world(2, Mode::automatic);
  Engine& engine = world.engine(0);
  Part part(engine, check::ring_all_gather(0, 2, 64));
  std::vector<std::byte> plain(64);
  CHECK_EQ(engine.start(part.program, {plain.data(), 64}, {part.output->data(), 128}, 1, 1).status().code, Code::registration);
  CHECK_EQ(engine.start(part.program, {part.input->data(), 63}, {part.output->data(), 128}, 1, 1).status().code, Code::shape);
  const std::byte* const gone = part.output->data();
  part.output.reset();
  CHECK_EQ(engine.start(part.program, {part.input->data(), 64}, {const_cast<std::byte*>(gone), 128}, 1, 1).status().code,
           Code::registration);
  World apart(2, Mode::tcp);
  for (int r = 0; r < 2; ++r) CHECK_OK(apart.engine(r).reset(1));  // no connections any more
  Part lonely(apart.engine(0), check::ring_all_gather(0, 2, 64));
  CHECK_EQ(lonely.start(apart.engine(0), 1, 1).code, Code::connect);
  engine.close();
  engine.close();
  part.output = part.input;
  CHECK_EQ(engine.start(part.program, {part.input->data(), 64}, {part.input->data(), 128}, 1, 1).status().code, Code::usage);
  CHECK_EQ(engine.compile(ProgramSpec()).status().code, Code::usage);
}

TEST(closing_ends_what_runs) {
  World world(2, Mode::tcp);
  Part part(world.engine(0), check::ring_all_gather(0, 2, 64));
  CHECK_OK(part.start(world.engine(0), 1, 60));
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  world.engine(0).close();
  CHECK(part.wait(0));
  CHECK_EQ(part.work->status().code, Code::aborted);
  // The other side loses its last connection to a rank that it needs.
  Part other(world.engine(1), check::ring_all_gather(1, 2, 64));
  const Status started = other.start(world.engine(1), 1, 20);
  if (started.ok()) CHECK(other.wait(30));
  const Code code = started.ok() ? other.work->status().code : started.code;
  CHECK(code == Code::peer_lost || code == Code::connect || code == Code::link_down);
}

TEST(a_killed_peer_is_noticed_at_once) {
  int ends[2];
  CHECK_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const std::shared_ptr<Engine> engine = make_engine(1, 2, Mode::automatic);
    const int fd = engine->segment()->fd();
    if (::write(ends[1], &fd, sizeof fd) != sizeof fd) ::_exit(1);
    for (;;) ::pause();
  }
  int fd = -1;
  CHECK_EQ(::read(ends[0], &fd, sizeof fd), static_cast<ssize_t>(sizeof fd));
  const std::shared_ptr<Engine> engine = make_engine(0, 2, Mode::automatic);
  CHECK_OK(engine->attach_peer(1, child, fd));
  Part part(*engine, check::ring_all_gather(0, 2, 64));
  CHECK_OK(part.start(*engine, 1, 60));
  CHECK(!part.wait(0.05));
  ::kill(child, SIGKILL);
  CHECK(part.wait(10));
  CHECK_EQ(part.work->status().code, Code::peer_lost);
  CHECK_EQ(part.work->status().rank, 1);
  ::waitpid(child, nullptr, 0);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(a_forked_copy_is_inert) {
  std::shared_ptr<Engine> engine = make_engine(0, 1, Mode::automatic);
  std::vector<Part> parts;
  parts.emplace_back(*engine, check::ring_all_gather(0, 1, 1 << 20));
  CHECK_OK(parts[0].start(*engine, 1, 10));
  CHECK(parts[0].wait(10));
  std::memset(parts[0].input->data(), 5, 1 << 20);
  const pid_t child = ::fork();
  if (child == 0) {
    const bool refused = engine->reset(1).code == Code::usage && engine->compile(ProgramSpec()).status().code == Code::usage;
    parts.clear();
    engine.reset();
    ::_exit(refused ? 0 : 1);
  }
  int how = -1;
  ::waitpid(child, &how, 0);
  CHECK_EQ(how, 0);
  // The child's end has not given our memory back.
  CHECK_EQ(static_cast<int>(parts[0].input->data()[1000]), 5);
  CHECK_OK(parts[0].start(*engine, 2, 10));
  CHECK(parts[0].wait(10));
  CHECK_OK(parts[0].work->status());
}

TEST(large_blocks_begin_with_a_huge_page_where_there_is_room) {
  constexpr std::uint64_t kHuge = 2 << 20;
  const std::shared_ptr<Engine> engine = make_engine(0, 1, Mode::automatic);
  Arena& arena = *engine->arena();
  const std::shared_ptr<Block> small = arena.allocate(100).value();
  const std::shared_ptr<Block> large = arena.allocate(4 << 20).value();
  CHECK_EQ(large->offset() % kHuge, 0u);
  CHECK_EQ(large->size(), std::uint64_t{4 << 20});
  if (engine->segment()->make_huge(kArena - kHuge, kHuge) > 0) CHECK(in_huge_pages() >= static_cast<std::int64_t>(3 * kHuge));
  // What lies between them is still there for others, and so is all the rest in one piece.
  CHECK(arena.allocate(kHuge - 8192).value()->offset() < large->offset());
  const Result<std::shared_ptr<Block>> rest = arena.allocate(kArena - large->offset() - large->size());
  CHECK_OK(rest.status());
  CHECK_OK(arena.allocate(kHuge - 8192).status());
}

TEST(blocks_never_overlap) {
  const std::shared_ptr<Engine> engine = make_engine(0, 1, Mode::automatic);
  Arena& arena = *engine->arena();
  std::mt19937_64 random(3);
  std::vector<std::shared_ptr<Block>> blocks;
  for (int i = 0; i < 20000; ++i) {
    if (random() % 2 == 0 && !blocks.empty()) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      blocks.pop_back();
      continue;
    }
    const std::uint64_t nbytes = random() % (random() % 10 == 0 ? 300000 : 5000);
    Result<std::shared_ptr<Block>> made = arena.allocate(nbytes);
    if (!made.ok()) continue;
    const Block& block = **made;
    CHECK_EQ(block.offset() % (nbytes >= 4096 ? 4096u : 64u), 0u);
    CHECK(block.size() >= nbytes);
    CHECK(arena.find(block.data(), nbytes) == made.value());
    blocks.push_back(std::move(made).value());
  }
  std::sort(blocks.begin(), blocks.end(), [](const auto& a, const auto& b) { return a->offset() < b->offset(); });
  for (std::size_t i = 1; i < blocks.size(); ++i) CHECK(blocks[i - 1]->offset() + blocks[i - 1]->size() <= blocks[i]->offset());
  blocks.clear();
  CHECK_EQ(arena.used(), 0u);
  CHECK(arena.peak() > 0);
  const Result<std::shared_ptr<Block>> whole = arena.allocate(kArena);  // all holes have merged
  CHECK_OK(whole.status());
  CHECK_EQ(arena.allocate(1).status().code, Code::registration);
  CHECK_EQ(arena.offset_of(&arena, 1), -1);
}

}  // namespace
}  // namespace ccl_lab
