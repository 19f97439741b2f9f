// Ranks with GPUs, played in one thread over the mock of CUDA: each rank is a process of its own, on one device or on several.
//
// Is: pages, sessions and buffers of n ranks, a call on all of them, driven in any order by a seed.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "device/session.hpp"
#include "mock_cuda.hpp"
#include "plans.hpp"

namespace ccl_lab::check {

inline constexpr std::byte kTestImage[] = {std::byte{1}};

struct DeviceRanks {
  explicit DeviceRanks(int n, const gpu::Options& options = {}, int n_signals = 4) : n_ranks(n), random(options.seed) {
    gpu::start(options);
    for (int rank = 0; rank < n; ++rank) pages.push_back(std::move(device::Page::create(rank, n, n_signals)).value());
    stops.resize(static_cast<std::size_t>(n));
    sessions.resize(static_cast<std::size_t>(n));
    users.resize(static_cast<std::size_t>(n));
  }
  ~DeviceRanks() {
    gpu::fail_call(0, 0);
    for (int rank = 0; rank < n_ranks; ++rank) close(rank);
  }

  // ok once all have sessions and a stream of the user.
  Status open() {
    for (int rank = 0; rank < n_ranks; ++rank)
      if (Status status = open(rank); !status.ok()) return status;
    return {};
  }
  Status open(int rank) {
    const auto at = static_cast<std::size_t>(rank);
    gpu::enter(rank);
    device::SessionOptions options;
    options.pid = 1000 + rank;
    options.image = image ? std::span<const std::byte>(kTestImage) : std::span<const std::byte>();
    options.stopped = [this, at] { return stops[at]; };
    options.spans = spans.empty() ? SpanWriter() : spans[at];
    // Every process maps the pages for itself, as processes do.
    std::vector<std::shared_ptr<device::Page>> mapped;
    for (int peer = 0; peer < n_ranks; ++peer)
      mapped.push_back(peer == rank ? pages[at] : std::move(device::Page::open(::getpid(), pages[static_cast<std::size_t>(peer)]->fd())).value());
    const int ordinal = rank % devices;
    Result<std::unique_ptr<device::Session>> session = device::Session::open(gpu::api(), ordinal, rank, std::move(mapped), std::move(options));
    if (!session.ok()) return session.status();
    sessions[at] = std::move(session).value();
    Result<std::shared_ptr<cuda::Context>> context = cuda::Context::retain(gpu::api(), ordinal);
    if (!context.ok()) return context.status();
    contexts[rank] = *context;
    Result<cuda::Stream> stream = cuda::make_stream(*context);
    if (!stream.ok()) return stream.status();
    users[at] = std::move(stream).value();
    return {};
  }
  void close(int rank) {
    const auto at = static_cast<std::size_t>(rank);
    gpu::enter(rank);
    if (sessions[at]) {
      gpu::settle();
      if (!sessions[at]->idle() || !sessions[at]->failure().ok()) pages[at]->set_waited(std::uint64_t{1} << 62);
      gpu::settle();
      sessions[at].reset();
    }
    users[at] = {};
    memory.erase(rank);
    contexts.erase(rank);
  }

  cuda::DevicePtr allocate(int rank, std::uint64_t nbytes) {
    gpu::enter(rank);
    memory[rank].push_back(std::move(cuda::allocate(contexts.at(rank), nbytes)).value());
    return memory[rank].back().get();
  }
  std::byte* view(int rank, cuda::DevicePtr address) {
    gpu::enter(rank);
    return gpu::host_view(address);
  }

  Status begin(int rank, const std::shared_ptr<const Program>& program, const device::Buffers& buffers, cuda::CuStream on = nullptr) {
    const auto at = static_cast<std::size_t>(rank);
    gpu::enter(rank);
    return sessions[at]->begin(program, buffers, on != nullptr ? on : users[at].get(), ++coll_id);
  }
  // All calls that were begun are met and enqueued, streams moving meanwhile; the first error, on all ranks.
  Status meet() {
    Status first;
    for (int idle = 0; idle < 1000;) {
      bool calling = false;
      for (int i = 0; i < n_ranks; ++i) {
        const auto at = static_cast<std::size_t>(random() % static_cast<unsigned>(n_ranks));
        if (!sessions[at] || !sessions[at]->calling()) continue;
        gpu::enter(static_cast<int>(at));
        Result<bool> stepped = sessions[at]->step();
        if (!stepped.ok() && first.ok()) first = stepped.status();
        if (stepped.ok() && *stepped) idle = 0;
        if (random() % 4 == 0) gpu::progress();
      }
      for (const auto& session : sessions) calling = calling || (session && session->calling());
      if (!calling) break;
      ++idle;
      if (!first.ok()) stop(first);
    }
    return first;
  }
  // What the hub does when a rank fails.
  void stop(const Status& why) {
    for (Status& each : stops)
      if (each.ok()) each = why;
  }
  // Streams run dry; every rank looks after what is on them.
  void settle() {
    gpu::settle();
    std::int64_t now = 1;
    for (int rank = 0; rank < n_ranks; ++rank)
      if (sessions[static_cast<std::size_t>(rank)]) {
        gpu::enter(rank);
        sessions[static_cast<std::size_t>(rank)]->watch(now, 1'000'000'000'000);
      }
  }
  bool idle() const {
    for (const auto& session : sessions)
      if (session && !session->idle()) return false;
    return true;
  }

  int n_ranks;
  int devices = 1;
  bool image = true;
  std::uint32_t coll_id = 0;
  std::mt19937_64 random;
  std::vector<std::shared_ptr<device::Page>> pages;
  std::vector<Status> stops;
  std::vector<SpanWriter> spans;
  std::map<int, std::shared_ptr<cuda::Context>> contexts;
  std::vector<std::unique_ptr<device::Session>> sessions;
  std::vector<cuda::Stream> users;
  std::map<int, std::vector<cuda::DeviceMemory>> memory;
};

inline std::shared_ptr<const Program> compiled(const Columns& columns, bool load_store = true) {
  const std::vector<std::uint8_t> reach(static_cast<std::size_t>(columns.n()), load_store ? 1 : 0);
  Placement placement;
  placement.rank = columns.rank();
  placement.n_ranks = columns.n();
  placement.n_channels = 4;
  placement.load_store = reach;
  Result<Program> program = Program::compile(columns.spec(), placement);
  if (!program.ok()) fail(__FILE__, __LINE__, program.status().message);
  return std::make_shared<const Program>(std::move(program).value());
}

}  // namespace ccl_lab::check
