// Collectives whose bytes NICs move from GPU to GPU: engines over mocked NICs, in the order of streams of a mocked driver.
#include <memory>
#include <vector>

#include "base/clock.hpp"
#include "comm/engine.hpp"
#include "conformance.hpp"
#include "device/direct.hpp"
#include "device/stage.hpp"
#include "hidden_memory.hpp"
#include "plans.hpp"

using namespace ccl_lab;
using namespace ccl_lab::check;
using device::DirectMemory;
using device::Kept;
using device::NicRegion;
using device::Staged;

namespace {

// Ranks with a node each, all of a ring joined over mocked NICs, driven in turn by one thread.
struct Nodes {
  explicit Nodes(int n) : driver(fabric) {
    context = std::move(cuda::Context::retain(gpu::api(), 0)).value();
    std::vector<std::int32_t> node_of;
    for (int r = 0; r < n; ++r) node_of.push_back(r);
    for (int r = 0; r < n; ++r) add(r, n, node_of);
    for (int r = 0; r < n; ++r)
      for (int p = r + 1; p < n; ++p) {
        const auto [a, b] = tcp_pair();
        CHECK_OK(engines[at_rank(r)]->add_connection(p, 0, 0, 0, a));
        CHECK_OK(engines[at_rank(p)]->add_connection(r, 0, 0, 0, b));
      }
  }
  ~Nodes() {
    for (auto& memory : direct) memory->close();
    CHECK_EQ(fabric.dma_bufs, 0);
    for (auto& stage : stages) stage->close();
    for (auto& engine : engines) engine->close();
  }
  void add(int r, int n, const std::vector<std::int32_t>& node_of) {
    EngineOptions options;
    options.n_channels = 4;
    options.arena_bytes = 64 << 20;
    options.ranks_on_host = 64;
    engines.push_back(std::move(Engine::create(r, node_of, options)).value());
    const std::shared_ptr<Engine> engine = engines.back();
    VerbsOptions rdma = small_verbs();
    rdma.nics = {{"mock-" + std::to_string(r), 1, 0}};
    CHECK_OK(engine->set_rdma(rdma, &driver));
    device::DirectOptions how;
    how.rank = r;
    how.registers = [engine](cuda::DevicePtr base, std::uint64_t size, int fd) { return engine->register_device(reinterpret_cast<std::byte*>(base), size, fd); };
    how.deregisters = [engine](std::uint32_t key) { CHECK_OK(engine->deregister_device(key)); };
    direct.push_back(std::move(DirectMemory::open(gpu::api(), 0, std::move(how))).value());
    device::StageOptions watch;
    watch.rank = r;
    watch.watched = false;
    stages.push_back(std::move(device::Stage::open(gpu::api(), 0, watch)).value());
    users.push_back(std::move(cuda::make_stream(context)).value());
    x.push_back(std::move(cuda::allocate(context, kBytes)).value());
    out.push_back(std::move(cuda::allocate(context, kBytes * static_cast<std::uint64_t>(n))).value());
  }
  BufferView view(int r, const cuda::DeviceMemory& memory, std::uint64_t nbytes) {
    Result<NicRegion> found = direct[at_rank(r)]->find(memory.get(), nbytes, "memory", false);
    CHECK_OK(found.status());
    return {reinterpret_cast<void*>(memory.get()), nbytes, found->key, reinterpret_cast<void*>(found->base)};
  }
  void run_to_the_end() {
    const std::int64_t until_ns = now_ns() + 60'000'000'000;
    for (bool open = true; open && now_ns() < until_ns;) {
      gpu::settle();
      open = false;
      for (std::size_t r = 0; r < works.size(); ++r)
        if (!works[r]->done()) open = !engines[r]->wait_slice(*works[r], 0.0005) || open;
    }
    gpu::settle();
  }

  MockFabric fabric;
  MockDriver driver;
  std::shared_ptr<cuda::Context> context;
  std::vector<std::shared_ptr<Engine>> engines;
  std::vector<std::shared_ptr<DirectMemory>> direct;
  std::vector<std::shared_ptr<device::Stage>> stages;
  std::vector<cuda::Stream> users;
  std::vector<cuda::DeviceMemory> x, out;
  std::vector<std::shared_ptr<Work>> works;
};

// Its GPU makes the copy of a rank's own block.
Columns ring(int r, int n) { return ring_all_gather(r, n, kBytes, false); }

void check_gathered(Nodes& nodes, int n, int turn) {
  for (int r = 0; r < n; ++r) {
    CHECK_OK(nodes.works[at_rank(r)]->status());
    CHECK(nodes.stages[at_rank(r)]->ended(static_cast<std::uint64_t>(turn)));
    const std::byte* const found = gpu::host_view(nodes.out[at_rank(r)].get());
    bool right = true;
    for (int from = 0; from < n; ++from)
      for (std::uint64_t i = 0; i < kBytes; ++i) right = right && found[static_cast<std::uint64_t>(from) * kBytes + i] == value(from, turn, i);
    CHECK(right);
  }
}

}  // namespace

TEST(engines_gather_from_gpu_to_gpu_in_the_order_of_streams) {
  gpu::start(hidden());
  const int files = open_files();
  constexpr int kRanks = 3;
  {
    Nodes nodes(kRanks);
    std::vector<std::shared_ptr<LoadedProgram>> programs;
    for (int r = 0; r < kRanks; ++r) programs.push_back(std::move(nodes.engines[at_rank(r)]->compile(ring(r, kRanks).spec())).value());
    for (int turn = 1; turn <= 3; ++turn) {
      nodes.works.clear();
      const std::uint64_t flushes = gpu::calls_of("cuFlushGPUDirectRDMAWrites");
      for (int r = 0; r < kRanks; ++r) {
        const BufferView in = nodes.view(r, nodes.x[at_rank(r)], kBytes), to = nodes.view(r, nodes.out[at_rank(r)], kBytes * kRanks);
        fill_gpu(nodes.x[at_rank(r)].get(), r, turn);
        const Kept own{nodes.out[at_rank(r)].get() + static_cast<std::uint64_t>(r) * kBytes, nodes.x[at_rank(r)].get(), kBytes, "x"};
        device::Moves moves;
        moves.kept = {&own, 1};
        moves.by_nics = true;
        auto held = nodes.stages[at_rank(r)]->hold(moves, nodes.users[at_rank(r)].get());
        CHECK_OK(held.status());
        auto work = nodes.engines[at_rank(r)]->start(programs[at_rank(r)], in, to, static_cast<std::uint32_t>(turn), 60, true, nullptr, *held);
        CHECK_OK(work.status());
        nodes.works.push_back(*work);
      }
      nodes.run_to_the_end();
      check_gathered(nodes, kRanks, turn);
      // Each rank forwards one block that a NIC wrote, sends its own from the same buffer, and settles at the end.
      CHECK_EQ(gpu::calls_of("cuFlushGPUDirectRDMAWrites") - flushes, std::uint64_t{3 * kRanks});
    }
    CHECK_EQ(nodes.fabric.dma_bufs, 2 * kRanks);
    nodes.works.clear();
  }
  nothing_left("engines", __LINE__);
  CHECK_EQ(gpu::faults(), 0);
  CHECK_EQ(open_files(), files);
}

TEST(a_rank_may_go_through_pinned_memory_where_the_others_do_not) {
  gpu::start(hidden());
  constexpr int kRanks = 2;
  {
    Nodes nodes(kRanks);
    const std::uint64_t rooms = (kBytes * 3 + 4095) / 4096 * 4096;
    auto host = std::move(nodes.engines[1]->arena()->allocate(rooms)).value();
    CHECK_OK(nodes.stages[1]->pin(host->data(), rooms));
    for (int r = 0; r < kRanks; ++r) {
      fill_gpu(nodes.x[at_rank(r)].get(), r, 1);
      const bool by_nics = r == 0;
      std::byte* const at = host->data() + kBytes;  // of its output
      const Staged in{nodes.x[1].get(), host->data(), kBytes, "x"}, back{nodes.out[1].get(), at, 2 * kBytes, "out"};
      const Kept own{nodes.out[0].get(), nodes.x[0].get(), kBytes, "x"};
      device::Moves moves;
      if (by_nics) moves.kept = {&own, 1}, moves.by_nics = true;
      else moves.in = {&in, 1}, moves.out = {&back, 1};
      auto held = nodes.stages[at_rank(r)]->hold(moves, nodes.users[at_rank(r)].get());
      CHECK_OK(held.status());
      auto program = nodes.engines[at_rank(r)]->compile(ring_all_gather(r, kRanks, kBytes, !by_nics).spec());
      const BufferView from = by_nics ? nodes.view(0, nodes.x[0], kBytes) : BufferView{host->data(), kBytes};
      const BufferView to = by_nics ? nodes.view(0, nodes.out[0], 2 * kBytes) : BufferView{at, 2 * kBytes};
      auto work = nodes.engines[at_rank(r)]->start(*program, from, to, 1, 60, true, nullptr, *held);
      CHECK_OK(work.status());
      nodes.works.push_back(*work);
    }
    nodes.run_to_the_end();
    check_gathered(nodes, kRanks, 1);
    nodes.works.clear();
  }
  nothing_left("both ways", __LINE__);
}

TEST(what_the_processor_would_have_to_touch_is_refused_before_it_begins) {
  gpu::start(hidden());
  {
    Nodes nodes(2);
    const auto refused = [&](const Columns& columns, const std::string& words) {
      auto program = nodes.engines[0]->compile(columns.spec());
      CHECK_OK(program.status());
      const BufferView in = nodes.view(0, nodes.x[0], kBytes), to = nodes.view(0, nodes.out[0], 2 * kBytes);
      SAYS(nodes.engines[0]->start(*program, in, to, 1, 60, true).status(), Code::unsupported, words);
    };
    refused(ring_all_gather(0, 2, kBytes), "op 0 (copy) is done by the processor");
    Columns reduces = ring(0, 2);
    reduces.reduce(0, {{Buffer::output, 0}, {Buffer::output, kBytes}}, {Buffer::output, 0}, 64);
    refused(reduces, "(reduce) is done by the processor");
    Columns to_itself = ring(0, 2);
    to_itself.put(0, 0, {Buffer::input, 0}, {Buffer::output, 0}, 64, 1);
    refused(to_itself, "(put) is done by the processor");
    // Over sockets nothing of it can be moved.
    EngineOptions options;
    options.arena_bytes = 1 << 20;
    options.mode = Mode::tcp;
    auto plain = std::move(Engine::create(0, {0, 1}, options)).value();
    SAYS(plain->register_device(reinterpret_cast<std::byte*>(nodes.x[0].get()), 4096, -1).status(), Code::unsupported, "over tcp");
    plain->close();
  }
  nothing_left("refusals", __LINE__);
}

TEST(writes_that_cannot_be_made_visible_end_the_run_by_name) {
  gpu::start(hidden());
  {
    Nodes nodes(2);
    fill_gpu(nodes.x[0].get(), 0, 1);
    device::Moves moves;
    moves.by_nics = true;
    auto held = nodes.stages[0]->hold(moves, nodes.users[0].get());
    gpu::settle();
    gpu::fail_call_of("cuFlushGPUDirectRDMAWrites", 1, cuda::kUnknown);
    (*held)->end({});
    CHECK(!nodes.stages[0]->failure().ok());
    CHECK(nodes.stages[0]->failure().message.find("making what NICs wrote visible to GPU 0") != std::string::npos);
    gpu::settle();
    CHECK_EQ(gpu::waiting(0), 0);
  }
  nothing_left("a flush that fails", __LINE__);
  // By the stream, where the host has no such call.
  gpu::Options options = hidden();
  options.rdma_flushes = 0;
  options.stream_flush = true;
  gpu::start(options);
  {
    Nodes nodes(2);
    device::Moves moves;
    moves.by_nics = true;
    auto held = nodes.stages[0]->hold(moves, nodes.users[0].get());
    CHECK_OK(held.status());
    (*held)->end({});
    gpu::settle();
    CHECK(nodes.stages[0]->ended(1));
    CHECK_EQ(gpu::calls_of("cuFlushGPUDirectRDMAWrites"), 0u);
    CHECK_EQ(gpu::calls_of("a wait that flushes"), 1u);
  }
  nothing_left("a flush of the stream", __LINE__);
}
