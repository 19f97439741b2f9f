// What the verbs transport carries from one machine to another, beside ib_write_bw (bench/rdma.py).
//
// Is: one put after the other, a few under way on each NIC, from registered memory to registered memory, each with a signal.
// Is not: a collective, and no peer: it is one of the sides that bench/rdma.py times.
//
//   ccl_lab_bench_verbs RANK BYTES TRANSFERS QPS ADDRESS ...
//
// Rank 0 receives, rank 1 sends; ADDRESS: of rank 0's NICs; the NICs of this machine are the ones of the
// same networks. Rank 1 prints the seconds from its first put to the last signal's answer.
//
// Invariants
//  - An idle side gives the core up, and sleeps when that brings nothing: soft RoCE needs the core.
//  - The last bytes are compared before the program says a time.
#include <sched.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/segment.hpp"
#include "drivers/verbs/discover.hpp"
#include "meeting.hpp"
#include "transport/verbs/verbs.hpp"

namespace {

using namespace ccl_lab;

constexpr int kPort = 18700;
constexpr int kUnderWay = 16;  // puts on each NIC
constexpr int kYields = 64;

class Side {
 public:
  Side(int rank, std::uint64_t nbytes, int qps, const std::vector<std::string>& addresses)
      : rank_(rank), nbytes_(nbytes), segment_(make_segment(rank, addresses.size(), nbytes)) {
    const Result<verbs::Driver*> driver = verbs::open_library();
    need(driver.status());
    const std::vector<verbs::DeviceInfo> devices = verbs::discover();
    VerbsOptions options;
    options.spread.queue_pairs = qps;
    for (const std::string& address : addresses) {
      const Result<verbs::Nic> nic = verbs::nic_of(devices, own_address(address));
      need(nic.status());
      options.nics.push_back(nic.value());
    }
    transport_ = std::make_unique<VerbsTransport>(rank, segment_.signals(), segment_.shapers(), nullptr, *driver.value(), options);
    need(transport_->register_region(1, segment_.arena(), segment_.arena_bytes()));
    for (std::size_t nic = 0; nic < addresses.size(); ++nic) {
      const auto k = static_cast<std::uint16_t>(nic);
      need(transport_->add_connection(1 - rank, k, k, 0, meet(rank, addresses[nic], kPort + static_cast<int>(nic)), 0));
    }
    while (!transport_->settled()) step();
  }

  std::byte* memory() const { return segment_.arena(); }
  std::uint64_t raised(std::size_t nic) const { return segment_.signals().value(1 - rank_, static_cast<int>(nic)); }

  void put(std::size_t nic, std::uint64_t nbytes) {
    Put put;
    put.peer = 1 - rank_;
    put.nic = put.peer_nic = static_cast<std::uint16_t>(nic);
    put.source = memory() + nic * nbytes_;
    put.nbytes = nbytes;
    put.destination = {1, nic * nbytes_};
    put.signal = static_cast<std::int32_t>(nic);
    put.cookie = nic;
    need(transport_->put(put));
  }

  // What has completed since.
  const std::vector<Completion>& step() {
    completions_.clear();
    if (transport_->poll(now_ns(), completions_, events_) > 0) {
      idle_ = 0;
    } else if (++idle_ < kYields) {
      ::sched_yield();
    } else {
      std::vector<pollfd> descriptors;
      std::int64_t wake_ns = INT64_MAX;
      transport_->wait_set(descriptors, wake_ns);
      ::poll(descriptors.data(), descriptors.size(), 1);
    }
    for (const LinkEvent& event : events_)
      if (!may_leave_) need(event.status);
    for (const Completion& each : completions_)
      if (!may_leave_) need(each.status);
    return completions_;
  }
  // The peer may be gone from now on.
  void may_leave() { may_leave_ = true; }
  void see_off() {
    while (transport_->connected(1 - rank_)) step();
  }

 private:
  static RankSegment make_segment(int rank, std::size_t nics, std::uint64_t nbytes) {
    SegmentOptions options;
    options.n_signal_channels = static_cast<int>(nics);
    options.n_nics = static_cast<int>(nics);
    options.trace_spans = 64;
    options.arena_bytes = std::max<std::uint64_t>(nics * nbytes, 4096);
    Result<RankSegment> made = RankSegment::create(rank, 2, options);
    need(made.status());
    return std::move(made).value();
  }

  int rank_;
  std::uint64_t nbytes_;
  RankSegment segment_;
  std::unique_ptr<VerbsTransport> transport_;
  std::vector<Completion> completions_;
  std::vector<LinkEvent> events_;
  int idle_ = 0;
  bool may_leave_ = false;
};

void receive(Side& side, std::size_t nics, std::uint64_t nbytes, std::uint64_t transfers) {
  for (std::size_t nic = 0; nic < nics; ++nic)
    while (side.raised(nic) < transfers) side.step();
  for (std::uint64_t i = 0; i < nics * nbytes; i += 509) need(side.memory()[i] == static_cast<std::byte>(i * 7), "wrong bytes");
  side.may_leave();
  for (std::size_t nic = 0; nic < nics; ++nic) side.put(nic, 0);
  side.see_off();
}

double send(Side& side, std::size_t nics, std::uint64_t nbytes, std::uint64_t transfers) {
  for (std::uint64_t i = 0; i < nics * nbytes; ++i) side.memory()[i] = static_cast<std::byte>(i * 7);
  std::vector<std::uint64_t> posted(nics, 0);
  std::vector<int> under_way(nics, 0);
  const std::int64_t begin_ns = now_ns();
  for (std::uint64_t done = 0; done < nics * transfers;) {
    for (std::size_t nic = 0; nic < nics; ++nic)
      for (; under_way[nic] < kUnderWay && posted[nic] < transfers; ++posted[nic], ++under_way[nic]) side.put(nic, nbytes);
    for (const Completion& each : side.step()) {
      --under_way[each.cookie];
      ++done;
    }
  }
  for (std::size_t nic = 0; nic < nics; ++nic)
    while (side.raised(nic) == 0) side.step();
  return static_cast<double>(now_ns() - begin_ns) * 1e-9;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) {
    std::fprintf(stderr, "usage: %s RANK BYTES TRANSFERS QPS ADDRESS ...\n", argv[0]);
    return 2;
  }
  const int rank = std::atoi(argv[1]);
  const std::uint64_t nbytes = std::strtoull(argv[2], nullptr, 10);
  const std::uint64_t transfers = std::strtoull(argv[3], nullptr, 10);
  const std::vector<std::string> addresses(argv + 5, argv + argc);
  Side side(rank, nbytes, std::atoi(argv[4]), addresses);
  if (rank == 0) receive(side, addresses.size(), nbytes, transfers);
  else std::printf("%.9f\n", send(side, addresses.size(), nbytes, transfers));
  return 0;
}
