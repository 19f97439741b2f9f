// What goes wrong with collectives on GPUs, by name: ranks that do not come or differ, memory that is not what it was, machines that
// lack something. Nothing hangs, and nothing is left.
#include <cstring>
#include <filesystem>
#include <iterator>

#include "check.hpp"
#include "base/clock.hpp"
#include "device/runner.hpp"
#include "device_ranks.hpp"

using namespace ccl_lab;
using check::DeviceRanks;
namespace gpu = ccl_lab::check::gpu;

namespace {

constexpr std::uint64_t kBlock = 512;

bool says(const Status& status, Code code, const std::string& words, int line) {
  const bool right = status.code == code && status.message.find(words) != std::string::npos;
  if (!right) check::fail(__FILE__, line, std::string("expected ") + code_name(code) + " with '" + words + "', found " + code_name(status.code) + ": " + status.message);
  return right;
}
#define SAYS(status, code, words) says(status, code, words, __LINE__)

std::shared_ptr<const Program> gather_of(int rank, int n) { return check::compiled(check::ring_all_gather(rank, n, kBlock)); }
std::shared_ptr<const Program> sum_of(int rank, int n) {
  return check::compiled(check::direct_all_reduce(rank, n, kBlock, DType::float32, RedOp::sum, false));
}

device::Buffers buffers_of(DeviceRanks& ranks, int rank, const Program& program) {
  return {ranks.allocate(rank, program.bytes(Buffer::input)), ranks.allocate(rank, program.bytes(Buffer::output))};
}

// All ranks call what `plan` gives them.
template <class Plan>
Status call(DeviceRanks& ranks, Plan plan) {
  Status first;
  for (int rank = 0; rank < ranks.n_ranks; ++rank) {
    auto program = plan(rank, ranks.n_ranks);
    if (Status status = ranks.begin(rank, program, buffers_of(ranks, rank, *program)); !status.ok() && first.ok()) ranks.stop(first = status);
  }
  const Status met = ranks.meet();
  return first.ok() ? met : first;
}

void nothing_left(int line) {
  for (const auto& [kind, count] : gpu::alive()) check::fail(__FILE__, line, std::to_string(count) + " of " + kind + " left");
}

}  // namespace

TEST(ranks_that_call_different_things_hear_of_both) {
  {
    DeviceRanks ranks(2);
    CHECK_OK(ranks.open());
    const Status status = call(ranks, [](int rank, int n) { return rank == 0 ? gather_of(rank, n) : sum_of(rank, n); });
    SAYS(status, Code::usage, "ranks disagree about what they run");
    SAYS(ranks.sessions[0]->failure(), status.code, "all_gather");
    SAYS(ranks.sessions[0]->failure(), status.code, "all_reduce");
  }
  nothing_left(__LINE__);
}

TEST(a_graph_is_captured_by_all_ranks_or_by_none) {
  DeviceRanks ranks(2);
  CHECK_OK(ranks.open());
  CHECK_EQ(gpu::begin_capture(ranks.users[0].get()), 0);
  SAYS(call(ranks, gather_of), Code::usage, "is captured in a graph on rank 0 and not on rank 1");
  int graph = 0;
  CHECK_EQ(gpu::end_capture(ranks.users[0].get(), &graph), 0);
}

TEST(a_rank_that_does_not_call_is_named) {
  DeviceRanks ranks(3);
  CHECK_OK(ranks.open());
  for (const int rank : {0, 2}) {
    auto program = sum_of(rank, 3);
    CHECK_OK(ranks.begin(rank, program, buffers_of(ranks, rank, *program)));
  }
  for (int i = 0; i < 100; ++i)
    for (const int rank : {0, 2}) {
      gpu::enter(rank);
      Result<bool> stepped = ranks.sessions[static_cast<std::size_t>(rank)]->step();
      CHECK(stepped.ok() && !*stepped);
    }
  CHECK_EQ(ranks.sessions[0]->missing(), std::string("rank 1 has not called all_reduce"));
}

TEST(a_stream_that_does_not_come_is_named_and_let_go) {
  {
    DeviceRanks ranks(2);
    CHECK_OK(ranks.open());
    // Rank 1's stream waits for something that never happens before it gets to the collective.
    gpu::enter(1);
    const auto page = ranks.pages[1];
    std::uint64_t word[512] = {};
    cuda::DevicePtr never = 0;
    auto held = cuda::register_host(ranks.contexts.at(1), word, sizeof word, never);
    CHECK_OK(held.status());
    CHECK_EQ(gpu::api().stream_wait(ranks.users[1].get(), never, 1, 0), 0);
    CHECK_OK(call(ranks, sum_of));
    gpu::settle();
    gpu::enter(0);
    device::Session& waits = *ranks.sessions[0];
    CHECK(!waits.idle());
    waits.watch(1'000, 5'000'000);
    CHECK_OK(waits.failure());
    waits.watch(2'000'000, 5'000'000);
    CHECK_OK(waits.failure());
    waits.watch(9'000'000, 5'000'000);
    SAYS(waits.failure(), Code::timeout, "rank 1: its stream has not come to the collective");
    // Rank 1 itself has not begun: it may take as long as the user's work before it.
    gpu::enter(1);
    ranks.sessions[1]->watch(1'000, 5'000'000);
    ranks.sessions[1]->watch(9'000'000, 5'000'000);
    CHECK_OK(ranks.sessions[1]->failure());
    ranks.stop(waits.failure());
    ranks.sessions[1]->watch(9'000'001, 5'000'000);
    CHECK(!ranks.sessions[1]->failure().ok());
    word[0] = 1;
    gpu::settle();
    CHECK(ranks.idle());
    auto program = sum_of(0, 2);
    SAYS(ranks.begin(0, program, buffers_of(ranks, 0, *program)), Code::timeout, "has not moved");
  }
  nothing_left(__LINE__);
}

TEST(a_rank_that_is_stopped_lets_its_streams_go) {
  DeviceRanks ranks(2);
  CHECK_OK(ranks.open());
  auto program = sum_of(0, 2);
  CHECK_OK(ranks.begin(0, program, buffers_of(ranks, 0, *program)));
  ranks.stop(Status(Code::peer_lost, "rank 1 died", 1));
  gpu::enter(0);
  Result<bool> stepped = ranks.sessions[0]->step();
  SAYS(stepped.status(), Code::peer_lost, "rank 1 died");
  CHECK_EQ(ranks.sessions[0]->failure().rank, 1);
  CHECK(!ranks.sessions[0]->calling());
}

TEST(memory_is_looked_at_before_anything_moves) {
  gpu::Options options;
  options.n_devices = 2;
  DeviceRanks ranks(2, options);
  CHECK_OK(ranks.open());
  auto program = gather_of(0, 2);
  const device::Buffers good = buffers_of(ranks, 0, *program);
  SAYS(ranks.begin(0, program, {0x1000, good.output}), Code::registration, "was the memory freed, or is it of the host");
  std::uint64_t host[1024] = {};
  cuda::DevicePtr registered = 0;
  gpu::enter(0);
  auto held = cuda::register_host(ranks.contexts.at(0), host, sizeof host, registered);
  CHECK_OK(held.status());
  SAYS(ranks.begin(0, program, {registered, good.output}), Code::usage, "is memory of the host, expected memory of GPU 0");
  auto other = cuda::Context::retain(gpu::api(), 1);
  auto there = cuda::allocate(*other, 4096);
  SAYS(ranks.begin(0, program, {there->get(), good.output}), Code::usage, "lies on GPU 1, but rank 0 uses GPU 0");
  SAYS(ranks.begin(0, program, {good.input, good.output + kBlock}), Code::bounds, "ends behind its allocation");
  CHECK_OK(ranks.sessions[0]->failure());  // none of these has begun
  CHECK_OK(call(ranks, gather_of));
}

TEST(an_address_that_was_allocated_anew_is_shown_anew) {
  DeviceRanks ranks(2);
  CHECK_OK(ranks.open());
  for (int turn = 0; turn < 3; ++turn) {
    CHECK_OK(call(ranks, gather_of));
    ranks.settle();
    for (int rank = 0; rank < 2; ++rank) {
      gpu::enter(rank);
      ranks.memory[rank].clear();
    }
  }
  CHECK_EQ(gpu::faults(), 0);
  // What was freed is not kept mapped for ever: a later call drops what its owner has withdrawn.
  CHECK(ranks.sessions[0]->n_mappings() <= 3);
}

TEST(machines_that_lack_something_say_what) {
  gpu::Options options;
  options.stream_memory_ops = false;
  {
    DeviceRanks ranks(2, options);
    SAYS(ranks.open(), Code::unsupported, "has no stream memory operations");
    CHECK_EQ(ranks.pages[0]->card().state.load(), static_cast<std::uint32_t>(device::CardState::failed));
  }
  nothing_left(__LINE__);
  options = {};
  options.n_devices = 2;
  options.peers = false;
  {
    DeviceRanks ranks(2, options);
    ranks.devices = 2;
    CHECK_OK(ranks.open());
    SAYS(call(ranks, gather_of), Code::unsupported, "(no peer access)");
  }
  options = {};
  options.legacy_ipc = false;
  options.shareable = false;
  {
    DeviceRanks ranks(2, options);
    CHECK_OK(ranks.open());
    SAYS(call(ranks, gather_of), Code::unsupported, "cannot be shared between processes");
  }
  {
    DeviceRanks ranks(2);
    ranks.image = false;
    CHECK_OK(ranks.open());
    CHECK_OK(call(ranks, gather_of));  // copies need no kernels
    ranks.settle();
    SAYS(call(ranks, sum_of), Code::unsupported, "nvcc was not found when it was built");
  }
  nothing_left(__LINE__);
}

TEST(a_peer_whose_gpu_failed_says_why) {
  DeviceRanks ranks(2);
  CHECK_OK(ranks.open(0));
  gpu::fail_call(1, cuda::kNoDevice);
  CHECK(!ranks.open(1).ok());
  gpu::fail_call(0, 0);
  auto program = sum_of(0, 2);
  CHECK_OK(ranks.begin(0, program, buffers_of(ranks, 0, *program)));
  SAYS(ranks.meet(), Code::unsupported, "rank 1: ");
}

TEST(schedules_that_streams_cannot_run_are_refused) {
  DeviceRanks ranks(2);
  CHECK_OK(ranks.open());
  check::Columns computes(0, 2);
  computes.scalars.bytes[0] = computes.scalars.bytes[1] = kBlock;
  computes.compute(0, 0);
  SAYS(ranks.begin(0, check::compiled(computes), {}), Code::unsupported, "computations of a schedule run on the host");
  check::Columns twice(0, 2);
  twice.scalars.n_channels = 2;
  twice.signal(0, 1, 0);
  twice.signal(1, 1, 0);
  SAYS(ranks.begin(0, check::compiled(twice), {}), Code::unsupported, "is raised by several channels");
  check::Columns silent(0, 2);
  silent.signal(0, 1, 0);
  silent.ready_to = {1};
  CHECK_EQ(gpu::begin_capture(ranks.users[0].get()), 0);
  SAYS(ranks.begin(0, check::compiled(silent), {}), Code::unsupported, "hears nothing from rank 1");
  int graph = 0;
  CHECK_EQ(gpu::end_capture(ranks.users[0].get(), &graph), 0);
}

TEST(ops_are_timed_by_the_gpu_in_the_clock_of_the_host) {
  alignas(64) static std::byte ring[kSpanRingHeaderBytes + 1024 * kSpanBytes];
  std::atomic<std::uint32_t> on{1};
  DeviceRanks ranks(2);
  ranks.spans = {SpanWriter(ring, 1024, &on), SpanWriter()};
  CHECK_OK(ranks.open());
  const std::int64_t before = now_ns();
  for (int turn = 0; turn < 3; ++turn) {
    CHECK_OK(call(ranks, sum_of));
    ranks.settle();
  }
  const std::int64_t after = now_ns();
  SpanReader reader(ring, 1024);
  std::vector<SpanRecord> spans(reader.available());
  spans.resize(reader.drain(spans.data(), spans.size()));
  CHECK_EQ(spans.size(), 3 * check::compiled(check::direct_all_reduce(0, 2, kBlock, DType::float32, RedOp::sum, false))->ops().size());
  for (const SpanRecord& span : spans) {
    CHECK(span.begin_ns <= span.end_ns);
    CHECK(span.begin_ns > before - 50'000'000 && span.end_ns < after + 50'000'000);
  }
}

TEST(a_runner_ends_calls_that_nobody_joins) {
  gpu::start({});
  std::vector<std::shared_ptr<device::Page>> pages;
  for (int rank = 0; rank < 2; ++rank) pages.push_back(std::move(device::Page::create(rank, 2, 4)).value());
  device::SessionOptions options;
  options.pid = 1000;
  options.image = check::kTestImage;
  auto session = device::Session::open(gpu::api(), 0, 0, pages, options);
  CHECK_OK(session.status());
  auto context = cuda::Context::retain(gpu::api(), 0);
  auto program = sum_of(0, 2);
  auto in = cuda::allocate(*context, program->bytes(Buffer::input));
  auto out = cuda::allocate(*context, program->bytes(Buffer::output));
  auto user = cuda::make_stream(*context);
  device::Runner runner(std::move(session).value(), 1'000'000'000);
  std::uint64_t number = 0;
  const Status status = runner.call(program, {in->get(), out->get()}, user->get(), 1, 30'000'000, [] { return Status(); }, number);
  SAYS(status, Code::timeout, "rank 1 has not called all_reduce within 30 ms");
  SAYS(runner.wait(1, -1, [] { return Status(); }).status(), Code::timeout, "rank 1");
}

namespace {

std::size_t open_descriptors() {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator()));
}

// Two ranks that gather blocks of several parts of the mapping API each.
struct Parts {
  static constexpr std::uint64_t kPartBytes = 4096;
  explicit Parts(std::uint64_t n_parts) : bytes(n_parts * kPartBytes), ranks(2, options()) { CHECK_OK(ranks.open()); }
  static gpu::Options options() {
    gpu::Options made;
    made.legacy_ipc = false;
    made.part_bytes = kPartBytes;
    return made;
  }
  void allocate() {
    for (std::size_t rank = 0; rank < 2; ++rank)
      buffers[rank] = {ranks.allocate(static_cast<int>(rank), bytes), ranks.allocate(static_cast<int>(rank), 2 * bytes)};
  }
  void free() {
    for (int rank = 0; rank < 2; ++rank) {
      gpu::enter(rank);
      ranks.memory[rank].clear();
    }
  }
  // A call on new values; whether all of it is right.
  bool right(unsigned char value) {
    for (int rank = 0; rank < 2; ++rank) std::memset(ranks.view(rank, buffers[static_cast<std::size_t>(rank)].input), value + rank, bytes);
    for (int rank = 0; rank < 2; ++rank)
      CHECK_OK(ranks.begin(rank, check::compiled(check::ring_all_gather(rank, 2, bytes)), buffers[static_cast<std::size_t>(rank)]));
    CHECK_OK(ranks.meet());
    ranks.settle();
    for (int rank = 0; rank < 2; ++rank)
      for (std::uint64_t at = 0; at < 2 * bytes; at += kPartBytes / 2) {
        const std::byte found = *ranks.view(rank, buffers[static_cast<std::size_t>(rank)].output + at);
        if (found != std::byte(value + (at < bytes ? 0 : 1))) return false;
      }
    return true;
  }

  std::uint64_t bytes;
  DeviceRanks ranks;
  device::Buffers buffers[2];
};

}  // namespace

TEST(parts_that_were_mapped_anew_under_their_addresses_are_shown_anew) {
  {
    Parts parts(3);
    parts.allocate();
    CHECK(parts.right(10));
    for (int part = 0; part < 6; ++part) {
      const int rank = part % 2;
      gpu::enter(rank);
      gpu::map_anew(parts.buffers[rank].output + static_cast<std::uint64_t>(part) * Parts::kPartBytes);
      gpu::map_anew(parts.buffers[rank].input + static_cast<std::uint64_t>(part % 3) * Parts::kPartBytes);
      CHECK(parts.right(static_cast<unsigned char>(20 + 2 * part)));
    }
    CHECK_EQ(gpu::faults(), 0);
  }
  nothing_left(__LINE__);
}

TEST(memory_that_has_gone_makes_room_for_other_memory) {
  {
    Parts parts(20);
    std::size_t descriptors = 0;
    for (int turn = 0; turn < 150; ++turn) {  // more parts than a page holds at once
      parts.allocate();
      CHECK(parts.right(static_cast<unsigned char>(turn)));
      if (turn == 2) descriptors = open_descriptors();
      parts.free();
    }
    parts.allocate();
    CHECK(parts.right(1));
    CHECK(open_descriptors() <= descriptors);
    CHECK(parts.ranks.sessions[0]->n_mappings() <= 4);
  }
  nothing_left(__LINE__);
}

TEST(a_page_that_says_nonsense_is_refused) {
  gpu::start({});
  {
    auto context = cuda::Context::retain(gpu::api(), 0);
    auto page = std::move(device::Page::create(1, 2, 4)).value();
    device::Importer importer(*context, 1);
    device::Allocation& entry = page->allocation(7);
    entry.base = 0x1000;
    const auto refused = [&](device::AllocationKind kind, std::uint32_t first, std::uint32_t n, std::uint64_t size, int line) {
      entry.kind = kind;
      entry.first_part = first;
      entry.n_parts = n;
      entry.size = size;
      entry.number = 7;
      says(importer.find(*page, 7, 0, 1, true).status(), Code::registration, "says nonsense about its parts", line);
    };
    using device::AllocationKind;
    page->parts()[0] = page->parts()[1] = {0, 0, 4096};
    refused(AllocationKind::parts, 0xffffffffu, 1, 4096, __LINE__);
    refused(AllocationKind::parts, device::kParts, 1, 4096, __LINE__);
    refused(AllocationKind::parts, 0, 0, 4096, __LINE__);
    refused(AllocationKind::parts, 0, 2, 4096, __LINE__);
    refused(AllocationKind::parts, 0, 2, 12288, __LINE__);
    refused(AllocationKind::parts, 2, 1, 4096, __LINE__);  // a part of no bytes
    refused(AllocationKind::ipc, 0, 0, 0, __LINE__);
    refused(static_cast<AllocationKind>(9), 0, 1, 4096, __LINE__);
    SAYS(importer.find(*page, 8, 0, 1, true).status(), Code::registration, "was withdrawn");
    SAYS(importer.find(*page, 0, 0, 1, true).status(), Code::registration, "was withdrawn");
    CHECK_EQ(importer.n_mappings(), 0u);
  }
  nothing_left(__LINE__);
}

TEST(a_gpu_that_is_gone_is_named_while_nobody_calls) {
  {
    DeviceRanks ranks(2);
    CHECK_OK(ranks.open());
    auto program = sum_of(0, 2);
    CHECK_OK(call(ranks, sum_of));
    gpu::lose(1, cuda::kDeviceUnavailable);
    gpu::enter(1);
    ranks.sessions[1]->watch(1'000'000'000, 5'000'000'000);
    SAYS(ranks.sessions[1]->failure(), Code::peer_lost, "GPU 0 of rank 1");
    SAYS(ranks.sessions[1]->failure(), Code::peer_lost, "the GPU is gone");
    ranks.stop(ranks.sessions[1]->failure());
    gpu::enter(0);
    ranks.sessions[0]->watch(1'000'000'000, 5'000'000'000);
    SAYS(ranks.sessions[0]->failure(), Code::peer_lost, "GPU 0 of rank 1");
  }
}
