// What a message between two nodes costs, counted and not timed: with the layer that survives lost NICs, and without it.
//
// Is: two ranks stepped by turns in one thread, joined by sockets; each sends the other a put and, when that is there, a last one, which is
//     what an all_reduce of two ranks does. Is not: a measurement of speed: nobody waits, no other core, no clock.
//
//   messages instructions CASE ITERATIONS    runs it; a tool such as callgrind counts (tests/guard/test_costs.py). An iteration is four
//                                            messages. Cases: see kCases
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/segment.hpp"
#include "fault/rails.hpp"
#include "transport/tcp/tcp.hpp"

namespace {

using namespace ccl_lab;

constexpr RegionKey kKey = 3;

struct Case {
  const char* name;
  bool failover;
  std::uint64_t nbytes;
};
constexpr Case kCases[] = {{"messages_8", false, 8}, {"messages_8_failover", true, 8}};

[[noreturn]] void die(const std::string& why) {
  std::fprintf(stderr, "messages: %s\n", why.c_str());
  std::exit(1);
}

void check(const Status& status) {
  if (!status.ok()) die(status.message);
}

// Out of band nobody is heard: nothing is lost here.
class Silence final : public Messenger {
 public:
  void send(const Datagram&) override {}
  int poll(std::int64_t, std::vector<Datagram>&) override { return 0; }
  void wait_set(std::vector<pollfd>&, std::int64_t&) const override {}
  void reset(std::uint16_t) override {}
};

class Rank {
 public:
  Rank(int rank, bool failover, std::uint64_t nbytes) : peer_(1 - rank), memory_(2 * nbytes), nbytes_(nbytes) {
    SegmentOptions options;
    options.n_signal_channels = 2;
    options.n_nics = 1;
    options.trace_spans = 64;
    options.arena_bytes = 1 << 20;
    Result<RankSegment> segment = RankSegment::create(rank, 2, options);
    check(segment.status());
    segment_ = std::make_unique<RankSegment>(std::move(segment).value());
    tcp_ = std::make_unique<TcpTransport>(rank, segment_->signals(), segment_->shapers(), nullptr);
    check(tcp_->register_region(kKey, memory_.data(), memory_.size()));
    RailOptions rails;
    rails.copy_bytes = 0;
    rails.later_bytes = 16 * 1024;  // as links.cpp has it for sockets
    if (failover) rails_ = std::make_unique<Rails>(rank, *tcp_, silence_, segment_->signals(), nullptr, rails);
  }

  void connect(int fd) {
    check(tcp_->add_connection(peer_, 0, 0, 0, fd, 0));
    if (rails_ != nullptr) check(rails_->add_path({peer_, 0, 0}, 0));
  }

  void send(bool last) {
    Put put;
    put.peer = peer_;
    put.source = memory_.data();
    put.nbytes = nbytes_;
    put.destination = {kKey, nbytes_};
    put.signal = 0;
    put.urgent = last;
    ++open_;
    check(rails_ != nullptr ? rails_->put(put) : tcp_->put(put));
  }

  void poll(std::int64_t now_ns) {
    if (rails_ != nullptr) rails_->poll(now_ns, done_, events_);
    else tcp_->poll(now_ns, done_, events_);
    if (!events_.empty()) die(events_.front().status.message);
    open_ -= done_.size();
    done_.clear();
  }

  std::uint64_t heard() const { return segment_->signals().value(peer_, 0); }
  bool complete() const { return open_ == 0; }

 private:
  int peer_;
  std::vector<std::byte> memory_;
  std::uint64_t nbytes_;
  std::size_t open_ = 0;
  Silence silence_;
  std::unique_ptr<RankSegment> segment_;
  std::unique_ptr<TcpTransport> tcp_;
  std::unique_ptr<Rails> rails_;
  std::vector<Completion> done_;
  std::vector<LinkEvent> events_;
};

void run(bool failover, std::uint64_t nbytes, long iterations) {
  Rank a(0, failover, nbytes), b(1, failover, nbytes);
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0) die("no pair of sockets");
  a.connect(fds[0]);
  b.connect(fds[1]);
  std::int64_t now_ns = 1'000'000'000;
  std::uint64_t wanted = 0;
  for (long i = 0; i < 2 * iterations; ++i) {
    const bool last = i % 2 == 1;
    ++wanted;
    a.send(last);
    b.send(last);
    for (int turn = 0; a.heard() < wanted || b.heard() < wanted || !a.complete() || !b.complete(); ++turn) {
      if (turn > 1000) die("a message does not arrive");
      now_ns += 1000;
      a.poll(now_ns);
      b.poll(now_ns);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4 || std::string(argv[1]) != "instructions") die("usage: messages instructions CASE ITERATIONS");
  for (const Case& one : kCases) {
    if (std::string(argv[2]) != one.name) continue;
    run(one.failover, one.nbytes, std::atol(argv[3]));
    return 0;
  }
  die(std::string("there is no case ") + argv[2]);
}
