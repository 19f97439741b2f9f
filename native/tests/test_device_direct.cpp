// NICs read and write memory of a GPU themselves: mocked NICs, a mocked driver whose memory ends the process when the host touches it.
//
// Is: registration, the transport, and repair of paths. Is not: engines and streams (test_device_direct_runs.cpp).
#include <algorithm>
#include <cstring>

#include "base/clock.hpp"
#include "conformance.hpp"
#include "device/direct.hpp"
#include "fault/rails.hpp"
#include "hidden_memory.hpp"
#include "inbox.hpp"

using namespace ccl_lab;
using namespace ccl_lab::check;
using device::DirectMemory;
using device::NicRegion;

namespace {

// Memory of a rank's GPU as NICs of a mesh reach it.
struct Direct {
  Direct(NicTransport& transport, int rank) {
    device::DirectOptions options;
    options.rank = rank;
    options.registers = [this, &transport](cuda::DevicePtr base, std::uint64_t size, int fd) -> Result<std::uint32_t> {
      const std::uint32_t key = next++;
      if (Status status = transport.register_device(key, reinterpret_cast<std::byte*>(base), size, fd); !status.ok()) return status;
      return key;
    };
    options.deregisters = [&transport](std::uint32_t key) { static_cast<void>(transport.deregister_region(key)); };
    Result<std::shared_ptr<DirectMemory>> opened = DirectMemory::open(gpu::api(), 0, std::move(options));
    status = opened.status();
    if (opened.ok()) memory = *opened;
  }
  Result<NicRegion> find(cuda::DevicePtr data, std::uint64_t nbytes, bool quiet = true) { return memory->find(data, nbytes, "x of rank 0", quiet); }

  std::uint32_t next = kFirstDeviceKey;
  Status status;
  std::shared_ptr<DirectMemory> memory;
};

Put put_of(int peer, cuda::DevicePtr source, const NicRegion& from, Remote to, std::uint64_t nbytes) {
  Put put = put_to(peer, reinterpret_cast<const std::byte*>(source), nbytes);
  put.source_key = from.key;
  put.destination = to;
  return put;
}

// A mesh of two ranks, and an allocation on the GPU for each, in one process.
struct Two {
  explicit Two(Registration registration = Registration::lazy, int n_nics = 2) : mesh(2, n_nics, options(registration), 1) {
    context = std::move(cuda::Context::retain(gpu::api(), 0)).value();
    for (int r = 0; r < 2; ++r) {
      memory.push_back(std::move(cuda::allocate(context, kBytes)).value());
      ranks.push_back(std::make_unique<Direct>(mesh.transport(r), r));
      CHECK_OK(ranks.back()->status);
      fill_gpu(memory.back().get(), r, 0);
    }
  }
  static VerbsOptions options(Registration registration) {
    VerbsOptions chosen = small_verbs();
    chosen.registration = registration;
    return chosen;
  }
  NicRegion region(int r) {
    Result<NicRegion> found = ranks[at_rank(r)]->find(memory[at_rank(r)].get(), kBytes);
    CHECK_OK(found.status());
    return found.ok() ? *found : NicRegion();
  }
  Remote at(int r, std::uint64_t offset = 0) { return {region(r).key, memory[at_rank(r)].get() - region(r).base + offset}; }

  MockVerbsMesh mesh;
  std::shared_ptr<cuda::Context> context;
  std::vector<cuda::DeviceMemory> memory;
  std::vector<std::unique_ptr<Direct>> ranks;
};

}  // namespace

TEST(bytes_go_from_gpu_to_gpu_and_the_host_touches_none) {
  for (const Registration mode : {Registration::off, Registration::lazy, Registration::background, Registration::eager}) {
    gpu::start(hidden());
    const int files = open_files();
    {
      Two two(mode);
      const NicRegion own = two.region(0);
      // One that a request could carry inline, one of several segments, and one in the middle: all from where they lie.
      for (const std::uint64_t nbytes : {std::uint64_t{100}, kBytes, std::uint64_t{5000}}) {
        const std::uint64_t offset = nbytes == 5000 ? 70'001 : 0;
        CHECK_OK(two.mesh.transport(0).put(put_of(1, two.memory[0].get() + offset, own, two.at(1, offset), nbytes)));
      }
      CHECK(two.mesh.completed(0, 3));
      CHECK(std::memcmp(gpu::host_view(two.memory[0].get()), gpu::host_view(two.memory[1].get()), kBytes) == 0);
      // And back, into the other GPU, by a read.
      fill_gpu(two.memory[1].get(), 1, 5);
      Get get;
      get.peer = 1;
      get.destination = reinterpret_cast<std::byte*>(two.memory[0].get());
      get.destination_key = own.key;
      get.nbytes = kBytes;
      get.source = two.at(1);
      CHECK_OK(two.mesh.transport(0).get(get));
      CHECK(two.mesh.completed(0, 4));
      CHECK(std::memcmp(gpu::host_view(two.memory[0].get()), gpu::host_view(two.memory[1].get()), kBytes) == 0);
      // Whole allocations, on each of both NICs of each rank; nothing was staged, nor registered as memory of the host is.
      CHECK_EQ(two.mesh.wire().dma_bufs, 4);
      for (const Completion& each : two.mesh.completions[0]) CHECK_OK(each.status);
      for (auto& rank : two.ranks) rank->memory->close();
      CHECK_EQ(two.mesh.wire().dma_bufs, 0);
    }
    nothing_left("bytes", __LINE__);
    CHECK_EQ(open_files(), files);
  }
}

TEST(a_region_that_is_named_before_it_is_said_is_asked_for) {
  gpu::start(hidden());
  {
    Two two;
    const NicRegion own = two.region(0);
    const Remote there = two.at(1);  // and nobody of rank 0 has looked at what rank 1 says of it
    CHECK_OK(two.mesh.transport(0).put(put_of(1, two.memory[0].get(), own, there, kBytes)));
    CHECK(two.mesh.completed(0, 1));
    CHECK_OK(two.mesh.completions[0][0].status);
    // What lies behind its end is refused, and so is a region that is not there: the path ends by name.
    SAYS(two.mesh.transport(0).put(put_of(1, two.memory[0].get(), own, {there.key, 1 << 20}, 64)), Code::bounds, "expected at most its");
    CHECK_OK(two.mesh.transport(0).put(put_of(1, two.memory[0].get(), own, {there.key + 1000, 0}, 64)));
    CHECK(two.mesh.completed(0, 2));
    SAYS(two.mesh.completions[0].back().status, Code::link_down, "and there is none");
    // So is a source that was deregistered before it was sent.
    CHECK_OK(two.mesh.transport(0).deregister_region(own.key));
    Put put = put_of(1, two.memory[0].get(), own, there, kBytes);
    put.nic = put.peer_nic = 1;
    CHECK_OK(two.mesh.transport(0).put(put));
    CHECK(two.mesh.completed(0, 3));
    SAYS(two.mesh.completions[0].back().status, Code::registration, "is not registered any more");
    two.ranks.clear();
  }
  nothing_left("a region that is asked for", __LINE__);
}

TEST(memory_is_known_by_what_it_is_and_not_by_its_address) {
  gpu::start(hidden());
  {
    Two two;
    Direct& rank = *two.ranks[0];
    const NicRegion first = two.region(0);
    CHECK_EQ(first.base % 4096, 0u);
    CHECK_EQ(two.region(0).key, first.key);
    CHECK_EQ(rank.find(two.memory[0].get() + 1000, 10)->key, first.key);
    CHECK_EQ(two.mesh.wire().dma_bufs, 2);
    // Other memory at the same address: a new name; the old one stays as long as a run may use it.
    gpu::map_anew(two.memory[0].get());
    Result<NicRegion> second = rank.find(two.memory[0].get(), kBytes, false);
    CHECK_OK(second.status());
    CHECK(second->key != first.key);
    CHECK_EQ(two.mesh.wire().dma_bufs, 4);
    CHECK_EQ(rank.find(two.memory[0].get(), kBytes)->key, second->key);
    CHECK_EQ(two.mesh.wire().dma_bufs, 2);
    // Freed memory, and what is none of this GPU.
    const cuda::DevicePtr freed = two.memory[0].get();
    two.memory[0] = {};
    SAYS(rank.find(freed, kBytes).status(), Code::registration, "freed");
    SAYS(rank.find(two.memory[1].get() + 8, kBytes).status(), Code::bounds, "ends behind its allocation");
    CHECK_OK(rank.find(two.memory[1].get(), kBytes).status());
    CHECK_EQ(two.mesh.wire().dma_bufs, 2);  // that of the freed one has gone
    rank.memory->close();
    CHECK_EQ(two.mesh.wire().dma_bufs, 0);
    SAYS(rank.find(two.memory[1].get(), kBytes).status(), Code::usage, "is closed");
  }
  nothing_left("memory that changes", __LINE__);
}

TEST(what_cannot_be_registered_says_why_and_leaves_nothing) {
  gpu::start(hidden());
  const int files = open_files();
  {
    Two two;
    Direct& rank = *two.ranks[0];
    two.mesh.wire().no_dma_bufs = "Operation not supported";
    SAYS(rank.find(two.memory[0].get(), kBytes).status(), Code::unsupported, "NIC 0 of rank 0: RDMA device mock0-0 takes no dma-bufs: Operation not supported");
    // What the first NIC has taken when the second refuses is given back.
    auto halves = cuda::allocate(two.context, kBytes);
    two.mesh.wire().no_dma_bufs_of = "mock1-0";
    SAYS(rank.find(halves->get(), kBytes).status(), Code::unsupported, "NIC 1 of rank 0: RDMA device mock1-0 takes no dma-bufs");
    CHECK_EQ(two.mesh.wire().dma_bufs, 0);
    two.mesh.wire().no_dma_bufs.clear();
    SAYS(rank.find(two.memory[0].get(), kBytes).status(), Code::unsupported, "takes no dma-bufs");  // as long as this memory lives
    auto other = cuda::allocate(two.context, 64);
    CHECK_OK(rank.find(other->get(), 64).status());
    two.mesh.wire().most_dma_buf = 4096;
    auto large = cuda::allocate(two.context, kBytes);
    SAYS(rank.find(large->get(), kBytes).status(), Code::unsupported, "does not register a dma-buf of");
    gpu::fail_call_of("cuMemGetHandleForAddressRange", 1, cuda::kNotSupported);
    auto third = cuda::allocate(two.context, kBytes);
    SAYS(rank.find(third->get(), kBytes).status(), Code::unsupported, "a dma-buf of");
    CHECK_EQ(two.mesh.wire().dma_bufs, 2);  // of `other`
    CHECK_EQ(rank.memory->n_regions(), 1u);
  }
  nothing_left("refusals", __LINE__);
  CHECK_EQ(open_files(), files);
}

TEST(a_gpu_that_cannot_be_reached_so_says_what_it_lacks) {
  const auto status_with = [](auto&& change) {
    gpu::Options options = hidden();
    change(options);
    gpu::start(options);
    MockVerbsMesh mesh(2, 1, small_verbs(), 1);
    Direct direct(mesh.transport(0), 0);
    return std::pair(direct.status, direct.status.ok() && direct.memory->forwards());
  };
  SAYS(status_with([](auto& options) { options.dma_buf = false; }).first, Code::unsupported, "GPU 0 (Mock 0) has no dma-bufs");
  SAYS(status_with([](auto& options) { options.rdma_flushes = 0; }).first, Code::unsupported, "does not say how what NICs write becomes visible");
  CHECK(status_with([](auto&) {}).second);
  CHECK(!status_with([](auto& options) { options.rdma_flushes = 0, options.stream_flush = true; }).second);
  CHECK(!status_with([](auto& options) { options.rdma_flushes = 0, options.rdma_ordering = cuda::kRdmaOrderedForOwner; }).second);
  CHECK(status_with([](auto& options) { options.rdma_flushes = 0, options.rdma_ordering = cuda::kRdmaOrderedForAll; }).second);
  nothing_left("what is lacking", __LINE__);
}

namespace {

// Delivers to the other of two ranks what one says beside the data.
class Beside final : public check::Inbox {
 public:
  void send(const Datagram& datagram) override {
    Datagram said = datagram;
    said.peer = said.message.from = own;
    other->came.push_back(said);
  }

  int own = 0;
  Beside* other = nullptr;
};

}  // namespace

TEST(what_a_lost_nic_had_of_a_gpu_goes_over_the_other_from_where_it_lies) {
  gpu::start(hidden());
  {
    Two two;
    Beside messengers[2];
    std::vector<std::unique_ptr<Rails>> rails;
    for (int r = 0; r < 2; ++r) {
      messengers[r].own = r;
      messengers[r].other = &messengers[1 - r];
      RailOptions options;
      options.node_of = {0, 1};
      options.segment_bytes = 64 * 1024;
      rails.push_back(std::make_unique<Rails>(r, two.mesh.transport(r), messengers[r], two.mesh.signals(r), nullptr, options));
      for (const std::uint16_t nic : {std::uint16_t{0}, std::uint16_t{1}}) CHECK_OK(rails.back()->add_path({1 - r, nic, nic}, 0));
    }
    std::vector<Completion> done;
    std::vector<LinkEvent> events;
    std::int64_t clock_ns = 1'000'000;  // of the rails: nothing is late
    const auto step = [&] {
      for (int r = 0; r < 2; ++r) rails[at_rank(r)]->poll(clock_ns += 1'000, done, events);
    };
    // A small one that would be copied if it were of the host, and one of several segments, all with the NIC when it breaks.
    const NicRegion own = two.region(0);
    two.mesh.wire().held = true;
    for (const std::uint64_t nbytes : {std::uint64_t{100}, kBytes}) CHECK_OK(rails[0]->put(put_of(1, two.memory[0].get(), own, two.at(1), nbytes)));
    auto& pairs = two.mesh.wire().pairs;  // by number: those of the first NIC of rank 0 were made first
    auto busy = pairs.end();
    for (int i = 0; i < 100'000 && busy == pairs.end(); ++i) {
      step();
      busy = std::find_if(pairs.begin(), pairs.end(), [](const auto& each) { return each.second->has_work(); });
    }
    CHECK(done.empty() && busy != pairs.end());
    busy->second->break_with(verbs::WcStatus::retry_exc_err);
    two.mesh.wire().held = false;
    for (const std::int64_t until_ns = now_ns() + 60'000'000'000; done.size() < 2 && now_ns() < until_ns;) step();
    CHECK_EQ(done.size(), std::size_t{2});
    for (const Completion& each : done) CHECK_OK(each.status);
    CHECK(rails[0]->counters().lost == 1 && rails[0]->counters().resent > 0);
    CHECK(std::memcmp(gpu::host_view(two.memory[0].get()), gpu::host_view(two.memory[1].get()), kBytes) == 0);
    for (auto& rank : two.ranks) rank->memory->close();
    for (int r = 0; r < 2; ++r) two.mesh.transport(r).set_receiver(nullptr);
  }
  nothing_left("a lost NIC", __LINE__);
}
