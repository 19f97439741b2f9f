// Meshes of ranks in one process, one class per transport, behind one face for the conformance suite.
//
// Is: N ranks with memory (region key 1), signal counters and one transport each, all connected.
// Is not: a driver as `comm` is: it polls all ranks in turn and never sleeps.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "base/clock.hpp"
#include "base/segment.hpp"
#include "check.hpp"
#include "mock_verbs.hpp"
#include "transport/loop/loop.hpp"
#include "transport/shm/shm.hpp"
#include "transport/tcp/tcp.hpp"
#include "transport/verbs/verbs.hpp"
#include "transport/virtual/virtual.hpp"

namespace ccl_lab::check {

inline constexpr int kChannels = 8;
inline constexpr std::uint64_t kMemory = 8 << 20;

inline SegmentOptions small_segment(int n_nics = 1) {
  return {.n_signal_channels = kChannels, .n_nics = n_nics, .trace_spans = 4096, .arena_bytes = kMemory};
}

// A connected pair of TCP sockets over loopback.
inline std::pair<int, int> tcp_pair() {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const int client = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener, generic, size) != 0 || ::listen(listener, 1) != 0 || ::getsockname(listener, generic, &size) != 0 ||
      ::connect(client, generic, size) != 0) {
    std::perror("loopback");
    std::abort();
  }
  const int server = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  ::close(listener);
  return {client, server};
}

class Mesh {
 public:
  explicit Mesh(int n) : n_(n), completions(static_cast<std::size_t>(n)), events(static_cast<std::size_t>(n)) {}
  virtual ~Mesh() = default;

  int n() const { return n_; }
  virtual Transport& transport(int rank) = 0;
  virtual std::byte* memory(int rank) = 0;
  virtual SignalTable signals(int rank) = 0;
  virtual bool self_puts() const { return true; }
  virtual bool has_nic(int) const { return true; }
  virtual void connect_all(std::uint16_t epoch) = 0;  // after a reset of all
  virtual void kill(int rank) = 0;                    // as if its process had ended, in so far as a test can

  // Polls everybody; how many things were done.
  virtual int poll() { return poll_at(now_ns()); }
  // Polls until `end` holds; false after 20 s.
  bool until(const std::function<bool()>& end) {
    const std::int64_t deadline = now_ns() + 20'000'000'000;
    while (!end()) {
      poll();
      if (now_ns() > deadline) return false;
    }
    return true;
  }
  bool completed(int rank, std::size_t count) {
    return until([&] { return completions[index(rank)].size() >= count; });
  }
  bool dead(int rank) const { return dead_ == rank; }

  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

 protected:
  int poll_at(std::int64_t at_ns) {
    int done = 0;
    for (int r = 0; r < n_; ++r)
      if (!dead(r)) done += transport(r).poll(at_ns, completions[index(r)], events[index(r)]);
    return done;
  }

  int n_;
  int dead_ = -1;

 public:
  std::vector<std::vector<Completion>> completions;
  std::vector<std::vector<LinkEvent>> events;
};

// What a rank was told of confirmed puts.
class Hearer : public Receiver {
 public:
  struct Heard {
    Path path;
    Notice notice;
  };
  void landed(const Path& path, const Notice& notice) override {
    heard.push_back({path, notice});
    if (then) then(heard.back());
  }
  std::vector<Heard> heard;
  std::function<void(const Heard&)> then;
};

class LoopMesh : public Mesh {
 public:
  LoopMesh(int n, std::uint64_t seed) : Mesh(n), hub_(n, seed), counters_(index(n)) {
    for (int r = 0; r < n; ++r) {
      memory_.push_back(std::make_unique<std::byte[]>(kMemory));
      counters_[index(r)] = std::vector<std::atomic<std::uint64_t>>(index(n * kChannels));
      transports_.push_back(std::make_unique<LoopTransport>(hub_, r, signals(r)));
      CHECK_OK(transports_.back()->register_region(1, memory(r), kMemory));
    }
  }
  LoopTransport& transport(int rank) override { return *transports_[index(rank)]; }
  std::byte* memory(int rank) override { return memory_[index(rank)].get(); }
  SignalTable signals(int rank) override { return SignalTable(counters_[index(rank)].data(), n_, kChannels, kChannels); }
  void connect_all(std::uint16_t) override {
    for (int r = 0; r < n_; ++r)
      for (int p = 0; p < n_; ++p) transport(r).link(p);
  }
  void kill(int rank) override {
    transports_[index(rank)].reset();
    dead_ = rank;
  }

 private:
  LoopHub hub_;
  std::vector<std::vector<std::atomic<std::uint64_t>>> counters_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::vector<std::unique_ptr<LoopTransport>> transports_;
};

// Ranks with real segments; each maps its peers' as another process would.
class SegmentMesh : public Mesh {
 public:
  SegmentMesh(int n, int n_nics = 1) : Mesh(n) {
    for (int r = 0; r < n; ++r) {
      Result<RankSegment> segment = RankSegment::create(r, n, small_segment(n_nics));
      CHECK_OK(segment.status());
      own_.push_back(std::make_unique<RankSegment>(std::move(segment).value()));
      writers_.push_back(std::make_unique<SpanWriter>(*own_.back()));
    }
  }
  const RankSegment& segment(int rank) const { return *own_[index(rank)]; }
  std::byte* memory(int rank) override { return segment(rank).arena(); }
  SignalTable signals(int rank) override { return segment(rank).signals(); }

 protected:
  std::vector<std::unique_ptr<RankSegment>> own_;
  std::vector<std::unique_ptr<SpanWriter>> writers_;
};

class ShmMesh : public SegmentMesh {
 public:
  explicit ShmMesh(int n) : SegmentMesh(n), mapped_(index(n)) {
    for (int r = 0; r < n; ++r)
      transports_.push_back(std::make_unique<ShmTransport>(segment(r), writers_[index(r)].get()));
    connect_all(0);
  }
  ShmTransport& transport(int rank) override { return *transports_[index(rank)]; }
  void connect_all(std::uint16_t) override {
    for (int r = 0; r < n_; ++r) {
      CHECK_OK(transport(r).register_region(1, memory(r), kMemory));
      mapped_[index(r)].clear();
      for (int p = 0; p < n_; ++p) {
        if (p == r) continue;
        Result<RankSegment> peer = RankSegment::open(::getpid(), segment(p).fd());
        CHECK_OK(peer.status());
        mapped_[index(r)].push_back(std::make_unique<RankSegment>(std::move(peer).value()));
        CHECK_OK(transport(r).add_peer(p, *mapped_[index(r)].back()));
      }
    }
  }
  void kill(int) override {}  // the end of a process shows only where there are processes: test_processes

 private:
  std::vector<std::vector<std::unique_ptr<RankSegment>>> mapped_;
  std::vector<std::unique_ptr<ShmTransport>> transports_;
};

// Every pair of ranks is joined on every NIC k by connections (k, k). Rank 0 is the node's lowest for all.
class TcpMesh : public SegmentMesh {
 public:
  explicit TcpMesh(int n, int n_nics = 1, int n_connections = 1, TcpOptions options = {})
      : SegmentMesh(n, n_nics), n_nics_(n_nics), n_connections_(n_connections) {
    for (int r = 0; r < n; ++r) {
      options.faults = segment(r).faults();
      transports_.push_back(
          std::make_unique<TcpTransport>(r, signals(r), segment(r).shapers(), writers_[index(r)].get(), options));
      CHECK_OK(transport(r).register_region(1, memory(r), kMemory));
    }
    connect_all(0);
  }
  TcpTransport& transport(int rank) override { return *transports_[index(rank)]; }
  bool self_puts() const override { return false; }
  bool has_nic(int nic) const override { return nic < n_nics_; }
  void connect_all(std::uint16_t epoch) override {
    for (int r = 0; r < n_; ++r)
      for (int p = r + 1; p < n_; ++p)
        for (int k = 0; k < n_nics_ * n_connections_; ++k) {
          const auto nic = static_cast<std::uint16_t>(k % n_nics_);
          const auto at = static_cast<std::uint16_t>(k / n_nics_);
          const auto [a, b] = tcp_pair();
          CHECK_OK(transport(r).add_connection(p, nic, nic, at, a, epoch));
          CHECK_OK(transport(p).add_connection(r, nic, nic, at, b, epoch));
        }
  }
  void kill(int rank) override {
    transports_[index(rank)].reset();
    dead_ = rank;
  }
  SpanReader spans(int rank) { return SpanReader(segment(rank)); }

 private:
  int n_nics_;
  int n_connections_;
  std::vector<std::unique_ptr<TcpTransport>> transports_;
};

// Every pair of ranks is joined on every NIC k by a link (k, k). Where NICs are mocked, one device for each rank and NIC; of
// real ones the ranks share a device, and talk over its loopback.
class VerbsMesh : public SegmentMesh {
 public:
  VerbsMesh(int n, verbs::Driver& driver, std::vector<verbs::Nic> nics, const VerbsOptions& wanted, bool own_devices)
      : SegmentMesh(n, static_cast<int>(nics.size())), nics_(std::move(nics)) {
    for (int r = 0; r < n; ++r) {
      VerbsOptions options = wanted;
      options.nics = nics_;
      for (verbs::Nic& nic : options.nics) nic.device += own_devices ? "-" + std::to_string(r) : "";
      options.faults = segment(r).faults();
      transports_.push_back(std::make_unique<VerbsTransport>(r, signals(r), segment(r).shapers(), writers_[index(r)].get(), driver, options));
      CHECK_OK(transport(r).register_region(1, memory(r), kMemory));
    }
    connect_all(0);
  }
  VerbsTransport& transport(int rank) override { return *transports_[index(rank)]; }
  bool self_puts() const override { return false; }
  bool has_nic(int nic) const override { return index(nic) < nics_.size(); }
  void connect_all(std::uint16_t epoch) override {
    for (int r = 0; r < n_; ++r)
      for (int p = r + 1; p < n_; ++p)
        for (std::size_t k = 0; k < nics_.size(); ++k) {
          const auto nic = static_cast<std::uint16_t>(k);
          const auto [a, b] = tcp_pair();
          CHECK_OK(transport(r).add_connection(p, nic, nic, 0, a, epoch));
          CHECK_OK(transport(p).add_connection(r, nic, nic, 0, b, epoch));
        }
    CHECK(until([&] {
      return std::all_of(transports_.begin(), transports_.end(), [](const auto& each) { return each->settled(); });
    }));
  }
  void kill(int rank) override {
    transports_[index(rank)].reset();
    dead_ = rank;
  }
  SpanReader spans(int rank) { return SpanReader(segment(rank)); }

 private:
  std::vector<verbs::Nic> nics_;
  std::vector<std::unique_ptr<VerbsTransport>> transports_;
};

// Over a mocked fabric of its own.
struct MockNet {
  explicit MockNet(std::uint64_t seed) : fabric(seed), driver(fabric) {}
  MockFabric fabric;
  MockDriver driver;
};
class MockVerbsMesh : private MockNet, public VerbsMesh {
 public:
  MockVerbsMesh(int n, int n_nics, const VerbsOptions& options, std::uint64_t seed)
      : MockNet(seed), VerbsMesh(n, MockNet::driver, nics(n_nics), options, true) {}
  MockFabric& wire() { return MockNet::fabric; }
  MockDevice& device(int rank, int nic = 0) { return *wire().devices.at("mock" + std::to_string(nic) + "-" + std::to_string(rank)); }

 private:
  static std::vector<verbs::Nic> nics(int n) {
    std::vector<verbs::Nic> all;
    for (int k = 0; k < n; ++k) all.push_back({"mock" + std::to_string(k), 1, 0});
    return all;
  }
};

// Few queue pairs and small segments: the same rules at less cost.
inline VerbsOptions small_verbs() {
  VerbsOptions options;
  options.spread = {64 * 1024, 4, 8, SpreadMode::dqplb};
  options.chunk_bytes = 1 << 20;
  return options;
}

// Every rank on a node of its own, each pair joined on every NIC; time goes on by a step with every poll.
class VirtualMesh : public Mesh {
 public:
  VirtualMesh(int n, int n_nics, std::uint64_t seed) : Mesh(n), n_nics_(n_nics), network_(options(n, n_nics, seed)), counters_(index(n)) {
    for (int r = 0; r < n; ++r) {
      memory_.push_back(std::make_unique<std::byte[]>(kMemory));
      counters_[index(r)] = std::vector<std::atomic<std::uint64_t>>(index(n * kChannels));
      transports_.push_back(std::make_unique<VirtualTransport>(network_, r, signals(r)));
      CHECK_OK(transports_.back()->register_region(1, memory(r), kMemory));
    }
    connect_all(0);
  }
  VirtualTransport& transport(int rank) override { return *transports_[index(rank)]; }
  std::byte* memory(int rank) override { return memory_[index(rank)].get(); }
  SignalTable signals(int rank) override { return SignalTable(counters_[index(rank)].data(), n_, kChannels, kChannels); }
  bool self_puts() const override { return false; }
  bool has_nic(int nic) const override { return nic < n_nics_; }
  int poll() override {
    network_.advance(network_.now_ns() + kStepNs);
    return poll_at(network_.now_ns());
  }
  void connect_all(std::uint16_t) override {
    for (int r = 0; r < n_; ++r)
      for (int p = r + 1; p < n_; ++p)
        for (int k = 0; k < n_nics_; ++k) {
          const auto nic = static_cast<std::uint16_t>(k);
          const std::uint32_t link = network_.dial(r, {p, nic, nic});
          CHECK_OK(transport(r).attach(link));
          CHECK_OK(transport(p).attach(link));
        }
  }
  void kill(int rank) override {
    network_.kill(rank, Told::both);
    dead_ = rank;
  }

 private:
  static constexpr std::int64_t kStepNs = 2'000;
  static VirtualOptions options(int n, int n_nics, std::uint64_t seed) {
    VirtualOptions options;
    for (int r = 0; r < n; ++r) options.node_of.push_back(r);
    options.n_nics = n_nics;
    options.seed = seed;
    return options;
  }

  int n_nics_;
  VirtualNetwork network_;
  std::vector<std::vector<std::atomic<std::uint64_t>>> counters_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::vector<std::unique_ptr<VirtualTransport>> transports_;
};

// A put to the beginning of the peer's memory.
inline Put put_to(int peer, const std::byte* source, std::uint64_t nbytes, int nic = 0) {
  Put put;
  put.peer = peer;
  put.nic = put.peer_nic = static_cast<std::uint16_t>(nic);
  put.source = source;
  put.nbytes = nbytes;
  put.destination = {1, 0};
  return put;
}

inline void fill(std::byte* at, std::uint64_t nbytes, std::uint32_t seed) {
  std::mt19937 random(seed);
  for (std::uint64_t i = 0; i < nbytes; ++i) at[i] = static_cast<std::byte>(random());
}

}  // namespace ccl_lab::check
