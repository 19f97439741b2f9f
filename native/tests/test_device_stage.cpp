// The host holds a stream: runs in the order of the user's stream, engines behind it, calls of the driver that fail, GPUs that go.
#include <algorithm>
#include <array>
#include <cstring>
#include <thread>

#include "base/clock.hpp"
#include "check.hpp"
#include "comm/engine.hpp"
#include "conformance.hpp"
#include "device/stage.hpp"
#include "mock_cuda.hpp"
#include "plans.hpp"

using namespace ccl_lab;
using device::Hold;
using device::Staged;
namespace gpu = ccl_lab::check::gpu;

namespace {

constexpr std::uint64_t kBytes = 1 << 16;
constexpr std::int64_t kLongNs = 60'000'000'000;

bool says(const Status& status, Code code, const std::string& words, int line) {
  const bool right = status.code == code && status.message.find(words) != std::string::npos;
  if (!right) check::fail(__FILE__, line, std::string("expected ") + code_name(code) + " with '" + words + "', found " + code_name(status.code) + ": " + status.message);
  return right;
}
#define SAYS(status, code, words) says(status, code, words, __LINE__)

void nothing_left(const std::string& where, int line) {
  for (const auto& [kind, count] : gpu::alive()) check::fail(__FILE__, line, where + ": " + std::to_string(count) + " of " + kind + " left");
}

Status nothing() { return {}; }

// Memory of the host that may be pinned: whole pages.
struct HostMemory {
  alignas(4096) std::array<std::byte, kBytes> x{}, out{};
};

// A stage, a stream of the user, and memory on both sides.
struct Rank {
  explicit Rank(bool watched = false, std::function<Status()> stopped = nullptr, std::int64_t drain_ns = 30'000'000'000) {
    device::StageOptions options;
    options.rank = 3;
    options.watched = watched;
    options.stopped = std::move(stopped);
    options.timeout_ns = 1'000'000'000;
    options.drain_ns = drain_ns;
    Result<std::shared_ptr<device::Stage>> made = device::Stage::open(gpu::api(), 0, options);
    status = made.status();
    if (!made.ok()) return;
    stage = *made;
    for (std::byte* at : {host->x.data(), host->out.data()})
      if (status.ok()) status = stage->pin(at, kBytes);
    if (!status.ok()) return;
    Result<std::shared_ptr<cuda::Context>> retained = cuda::Context::retain(gpu::api(), 0);
    if (!(status = retained.status()).ok()) return;
    context = *retained;
    for (cuda::DeviceMemory* memory : {&x, &out}) {
      Result<cuda::DeviceMemory> allocated = cuda::allocate(context, kBytes);
      if (!(status = allocated.status()).ok()) return;
      *memory = std::move(allocated).value();
    }
    Result<cuda::Stream> stream = cuda::make_stream(context);
    status = stream.status();
    if (stream.ok()) user = std::move(stream).value();
  }

  Result<std::shared_ptr<Hold>> hold() {
    const Staged in{x.get(), host->x.data(), kBytes, "x of rank 3"}, back{out.get(), host->out.data(), kBytes, "out of rank 3"};
    return stage->hold({{&in, 1}, {&back, 1}}, user.get());
  }
  void fill(unsigned char value) { std::memset(gpu::host_view(x.get()), value, kBytes); }
  bool holds(unsigned char value) const {
    const std::byte* const at = gpu::host_view(out.get());
    for (std::uint64_t i = 0; i < kBytes; ++i)
      if (at[i] != std::byte{value}) return false;
    return true;
  }
  // What an engine does: once the stream has come to it, from x to out.
  void collective() { std::transform(host->x.begin(), host->x.end(), host->out.begin(), [](std::byte b) { return std::byte(std::to_integer<int>(b) + 1); }); }

  Status status;
  std::unique_ptr<HostMemory> host = std::make_unique<HostMemory>();
  std::shared_ptr<device::Stage> stage;
  std::shared_ptr<cuda::Context> context;
  cuda::DeviceMemory x, out;
  cuda::Stream user;
};

}  // namespace

TEST(a_run_is_ordered_on_the_users_stream_and_held_until_the_host_is_done) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    gpu::Options options;
    options.seed = seed;
    gpu::start(options);
    {
      Rank rank;
      CHECK_OK(rank.status);
      // x is made on the stream just before the call, and what comes after it sees the result.
      auto before = cuda::allocate(rank.context, kBytes), after = cuda::allocate(rank.context, kBytes);
      std::memset(gpu::host_view(before->get()), 41, kBytes);
      CHECK_EQ(gpu::api().memory_copy(rank.x.get(), before->get(), kBytes, rank.user.get()), 0);
      auto held = rank.hold();
      CHECK_OK(held.status());
      CHECK_EQ(gpu::api().memory_copy(after->get(), rank.out.get(), kBytes, rank.user.get()), 0);
      for (int i = 0; i < 3; ++i) {
        Result<bool> started = (*held)->started();
        CHECK(started.ok());
        if (*started) CHECK(rank.host->x[kBytes - 1] == std::byte{41});
        gpu::progress();
      }
      gpu::settle();
      CHECK(*(*held)->started());
      CHECK(!rank.stage->ended(1));
      rank.collective();
      (*held)->end({});
      gpu::settle();
      CHECK(rank.stage->ended(1) && rank.holds(42));
      CHECK(*gpu::host_view(after->get()) == std::byte{42});
      CHECK_EQ(gpu::on_default_stream(), 0u);
    }
    nothing_left("seed " + std::to_string(seed), __LINE__);
    CHECK_EQ(gpu::faults(), 0);
  }
}

TEST(runs_follow_each_other) {
  gpu::start({});
  {
    Rank rank;
    CHECK_OK(rank.status);
    rank.fill(1);
    auto first = rank.hold(), second = rank.hold();
    CHECK_OK(second.status());
    gpu::settle();
    CHECK(*(*first)->started());
    CHECK(!*(*second)->started());
    rank.collective();
    (*first)->end({});
    gpu::settle();
    CHECK(*(*second)->started());
    CHECK(!rank.stage->ended(2));
    rank.collective();
    (*second)->end({});
    gpu::settle();
    Result<bool> ended = rank.stage->wait(2, -1, nothing);
    CHECK(ended.ok() && *ended && rank.holds(2));
  }
  nothing_left("two runs", __LINE__);
}

TEST(a_collective_that_fails_lets_the_stream_go_and_ends_the_stage) {
  gpu::start({});
  {
    Rank rank;
    CHECK_OK(rank.status);
    auto first = rank.hold(), second = rank.hold();
    (*first)->end(Status(Code::peer_lost, "rank 1 died", 1));
    gpu::settle();
    CHECK_EQ(gpu::waiting(0), 0);
    SAYS((*second)->started().status(), Code::peer_lost, "rank 1 died");
    (*second)->end(Status(Code::aborted, "was not run"));
    SAYS(rank.hold().status(), Code::peer_lost, "rank 1 died");
    CHECK(rank.stage->await_failure(0));
    SAYS(rank.stage->wait(1, -1, nothing).status(), Code::peer_lost, "rank 1 died");
  }
  nothing_left("a failure", __LINE__);
}

TEST(what_cannot_be_held_is_refused_by_name) {
  gpu::start({});
  {
    Rank rank;
    CHECK_OK(rank.status);
    const auto refused = [&](const Staged& copy, Code code, const char* words) {
      SAYS(rank.stage->hold({{&copy, 1}, {}}, rank.user.get()).status(), code, words);
      SAYS(rank.stage->hold({{}, {&copy, 1}}, rank.user.get()).status(), code, words);
    };
    refused({rank.x.get() + kBytes, rank.host->x.data(), 1, "x"}, Code::registration, "was the memory freed");
    refused({rank.x.get() + 8, rank.host->x.data(), kBytes, "x"}, Code::bounds, "ends behind its allocation");
    std::byte elsewhere[64];
    refused({rank.x.get(), elsewhere, 64, "x"}, Code::registration, "are not pinned");
    refused({rank.x.get(), rank.host->x.data() + 1, kBytes, "x"}, Code::registration, "are not pinned");
    CHECK_EQ(gpu::begin_capture(rank.user.get()), 0);
    SAYS(rank.hold().status(), Code::unsupported, "cannot be captured in a graph");
    int graph = 0;
    CHECK_EQ(gpu::end_capture(rank.user.get(), &graph), 0);
    CHECK_OK(rank.stage->failure());
    SAYS(rank.stage->pin(rank.host->x.data(), kBytes), Code::registration, "registered already");
    rank.stage->close();
    SAYS(rank.hold().status(), Code::usage, "is closed");
    SAYS(rank.stage->pin(rank.host->x.data(), kBytes), Code::usage, "is closed");
  }
  nothing_left("refusals", __LINE__);
  gpu::Options options;
  options.stream_memory_ops = false;
  gpu::start(options);
  SAYS(Rank().status, Code::unsupported, "has no stream memory operations");
  nothing_left("no stream operations", __LINE__);
}

TEST(a_gpu_that_is_gone_and_one_that_is_stuck_are_named) {
  gpu::start({});
  {
    Rank rank;
    CHECK_OK(rank.status);
    auto held = rank.hold();
    rank.stage->watch(1);
    CHECK_OK(rank.stage->failure());
    gpu::lose(0, cuda::kDeviceUnavailable);
    rank.stage->watch(2);
    SAYS(rank.stage->failure(), Code::peer_lost, "GPU 0 of rank 3");
    SAYS((*held)->started().status(), Code::peer_lost, "the GPU is gone");
  }
  gpu::start({});
  {
    Rank rank;
    CHECK_OK(rank.status);
    auto held = rank.hold();
    (*held)->end({});  // and nothing moves
    rank.stage->watch(1);
    rank.stage->watch(500'000'000);
    CHECK_OK(rank.stage->failure());
    rank.stage->watch(2'000'000'000);
    SAYS(rank.stage->failure(), Code::timeout, "did not copy a result back");
    gpu::settle();
  }
  nothing_left("a stuck GPU", __LINE__);
  gpu::start({});
  {
    Status stop;
    Rank rank(false, [&stop] { return stop; });
    auto held = rank.hold();
    stop = Status(Code::peer_lost, "rank 1 died", 1);
    rank.stage->watch(1);
    SAYS(rank.stage->failure(), Code::peer_lost, "rank 1 died");
    CHECK_EQ(rank.stage->failure().rank, 1);
    gpu::settle();
  }
  nothing_left("a stop", __LINE__);
}

TEST(what_a_stream_may_still_use_is_not_given_back) {
  gpu::start({});
  alignas(4096) static std::array<std::uint64_t, 512> never;
  never.fill(0);
  static Rank& rank = *new Rank(false, nullptr, 20'000'000);  // its memory too
  CHECK_OK(rank.status);
  cuda::DevicePtr address = 0;
  auto registered = cuda::register_host(rank.context, never.data(), sizeof never, address);
  CHECK_OK(registered.status());
  CHECK_EQ(gpu::api().stream_wait(rank.user.get(), address, 1, 0), 0);
  rank.fill(1);
  CHECK_OK(rank.hold().status());
  CHECK(!rank.stage->close());
  CHECK_EQ(gpu::alive()["registration"], 4);  // flags, x, out, and that of this test
  never[0] = 1;
  gpu::settle();
  CHECK_EQ(gpu::faults(), 0);
  CHECK(rank.host->x[0] == std::byte{1});
  CHECK(rank.stage->close());
}

TEST(every_call_of_the_driver_may_fail_and_nothing_leaks) {
  std::uint64_t total = 0;
  for (std::uint64_t at = 0; at == 0 || at <= total; ++at) {
    gpu::start({});
    {
      gpu::fail_call(at, cuda::kOutOfMemory);
      Rank rank;
      Status status = rank.status;
      for (int turn = 0; status.ok() && turn < 2; ++turn) {
        rank.fill(static_cast<unsigned char>(7 + turn));
        auto held = rank.hold();
        status = held.status();
        if (!held.ok()) break;
        gpu::settle();
        if (*(*held)->started()) rank.collective();
        rank.stage->watch(now_ns());
        (*held)->end({});
        gpu::settle();
        status = rank.stage->failure();
      }
      const std::string failed = gpu::last_failed();
      if (at == 0) total = gpu::calls();
      if (status.ok() && !rank.holds(9)) check::fail(__FILE__, __LINE__, "call " + std::to_string(at) + " (" + failed + ") failed unheard");
      if (!status.ok() && (failed.empty() || status.code == Code::internal || status.message.size() < 40))
        check::fail(__FILE__, __LINE__, "call " + std::to_string(at) + " (" + failed + "): " + status.message);
      if (at > 0 && failed.empty()) check::fail(__FILE__, __LINE__, "call " + std::to_string(at) + " was not made");
      gpu::fail_call(0, 0);
      gpu::settle();
    }
    nothing_left("after call " + std::to_string(at) + " (" + gpu::last_failed() + ") failed", __LINE__);
    CHECK_EQ(gpu::faults(), 0);
  }
  CHECK(total > 40);
}

namespace {

// Keeps the streams of the mock going, as a GPU does.
class Going {
 public:
  Going() : thread_([this] {
    while (!stop_)
      if (!gpu::progress()) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }) {}
  ~Going() {
    stop_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

std::shared_ptr<Engine> make_engine(int rank) {
  EngineOptions options;
  options.n_channels = 4;
  options.arena_bytes = 64 << 20;
  options.mode = Mode::tcp;
  options.ranks_on_host = 64;  // never spin
  return std::move(Engine::create(rank, {0, 0}, options)).value();
}

// Two ranks whose collectives go over sockets, each with a stage and arrays on the GPU.
struct Pair {
  Pair() {
    for (int rank = 0; rank < 2; ++rank) engines.push_back(make_engine(rank));
    const auto [a, b] = check::tcp_pair();
    CHECK_OK(engines[0]->add_connection(1, 0, 0, 0, a));
    CHECK_OK(engines[1]->add_connection(0, 0, 0, 0, b));
    context = std::move(cuda::Context::retain(gpu::api(), 0)).value();
    for (std::size_t rank = 0; rank < 2; ++rank) {
      device::StageOptions options;
      options.rank = static_cast<int>(rank);
      options.stopped = [segment = engines[rank]->segment()] { return segment->aborted() ? segment->abort_status() : Status(); };
      stages.push_back(std::move(device::Stage::open(gpu::api(), 0, options)).value());
      users.push_back(std::move(cuda::make_stream(context)).value());
      const check::Columns columns = check::ring_all_gather(static_cast<int>(rank), 2, kBytes);
      programs.push_back(std::move(engines[rank]->compile(columns.spec())).value());
      host.push_back(std::move(engines[rank]->arena()->allocate(4 * kBytes)).value());
      CHECK_OK(stages[rank]->pin(host[rank]->data(), 4 * kBytes));
      x.push_back(std::move(cuda::allocate(context, kBytes)).value());
      out.push_back(std::move(cuda::allocate(context, 2 * kBytes)).value());
    }
  }
  ~Pair() {
    for (auto& stage : stages) stage->close();
    for (auto& engine : engines) engine->close();
  }
  // Rank's call, at once; the work runs when the stream has come to it.
  std::shared_ptr<Work> call(std::size_t rank) {
    std::byte* const at = host[rank]->data();
    const Staged in{x[rank].get(), at, kBytes, "x"}, back{out[rank].get(), at + kBytes, 2 * kBytes, "out"};
    auto held = stages[rank]->hold({{&in, 1}, {&back, 1}}, users[rank].get());
    CHECK_OK(held.status());
    if (!held.ok()) return nullptr;
    auto work = engines[rank]->start(programs[rank], {at, kBytes}, {at + kBytes, 2 * kBytes}, ++calls, 60, false, nullptr, *held);
    CHECK_OK(work.status());
    return work.ok() ? *work : nullptr;
  }
  void fill(std::size_t rank, int value) { std::memset(gpu::host_view(x[rank].get()), value, kBytes); }

  std::vector<std::shared_ptr<Engine>> engines;
  std::shared_ptr<cuda::Context> context;
  std::vector<std::shared_ptr<device::Stage>> stages;
  std::vector<cuda::Stream> users;
  std::vector<std::shared_ptr<LoadedProgram>> programs;
  std::vector<std::shared_ptr<Block>> host;
  std::vector<cuda::DeviceMemory> x, out;
  std::uint32_t calls = 0;
};

}  // namespace

TEST(engines_run_what_streams_have_come_to) {
  gpu::start({});
  {
    const Going going;
    Pair pair;
    for (int turn = 1; turn <= 5; ++turn) {
      for (std::size_t rank = 0; rank < 2; ++rank) {
        pair.fill(rank, 10 * turn + static_cast<int>(rank));
        CHECK(pair.call(rank) != nullptr);
      }
      for (std::size_t rank = 0; rank < 2; ++rank) {
        Result<bool> ended = pair.stages[rank]->wait(static_cast<std::uint64_t>(turn), kLongNs, nothing);
        CHECK(ended.ok() && *ended);
        const std::byte* const found = gpu::host_view(pair.out[rank].get());
        for (int from = 0; from < 2; ++from)
          CHECK(found[static_cast<std::size_t>(from) * kBytes] == std::byte(10 * turn + from) && found[(static_cast<std::size_t>(from) + 1) * kBytes - 1] == std::byte(10 * turn + from));
      }
    }
  }
  nothing_left("engines", __LINE__);
}

TEST(an_engine_that_is_told_to_stop_lets_streams_go_that_never_came) {
  gpu::start({});
  {
    const Going going;
    Pair pair;
    // The stream of rank 0 waits for what never happens; behind its call is one of the host.
    alignas(4096) static std::array<std::uint64_t, 512> never;
    never.fill(0);
    cuda::DevicePtr address = 0;
    auto registered = cuda::register_host(pair.context, never.data(), sizeof never, address);
    CHECK_OK(registered.status());
    CHECK_EQ(gpu::api().stream_wait(pair.users[0].get(), address, 1, 0), 0);
    const std::shared_ptr<Work> work = pair.call(0);
    CHECK(!pair.engines[0]->wait(*work, 0.05));
    pair.engines[0]->abort(Code::peer_lost, "rank 1 died", 1);
    CHECK(pair.engines[0]->wait(*work, 60));
    CHECK(!work->status().ok());
    CHECK(pair.stages[0]->await_failure(kLongNs));
    const Status heard = pair.stages[0]->wait(1, kLongNs, nothing).status();  // of the work that was not run, or of the abort: whoever saw it first
    SAYS(heard, heard.code == Code::aborted ? Code::aborted : Code::peer_lost, "rank 1 died");
    std::atomic_ref<std::uint64_t>(never[0]).store(1);
    while (gpu::waiting(0) != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  nothing_left("a stop of engines", __LINE__);
}
