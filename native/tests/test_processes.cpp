// Transports between processes: what the conformance suite cannot show within one.
//
// Is: ranks forked from the test that then know of each other only process ids and descriptor numbers, as ranks started
//     separately do. They sleep in ppoll whenever there is nothing to do, with no timeout but the test's own.
// Is not: timed; a lost wake-up or a peer's unnoticed death shows as the alarm that ends a rank.
#include <signal.h>
#include <sys/wait.h>

#include <array>
#include <string>

#include "conformance.hpp"

using namespace ccl_lab;
using namespace ccl_lab::check;

namespace {

constexpr int kRanks = 4;

struct Address {
  int pid;
  int fd;
};

// What a launcher's rendezvous would be: where the ranks tell each other their addresses and meet.
class Board {
 public:
  Board() {
    void* memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    slots_ = static_cast<std::atomic<std::uint64_t>*>(memory);
  }
  ~Board() { ::munmap(slots_, 4096); }
  void publish(int rank, Address a) {
    slots_[rank] = (static_cast<std::uint64_t>(a.pid) << 32) | static_cast<std::uint32_t>(a.fd + 1);
  }
  Address wait(int rank) {
    while (slots_[rank] == 0) ::usleep(200);
    const std::uint64_t value = slots_[rank];
    return {static_cast<int>(value >> 32), static_cast<int>(value & 0xffffffffu) - 1};
  }
  void arrive() { ++slots_[100]; }
  void wait_all(std::uint64_t n) {
    while (slots_[100] < n) ::usleep(200);
  }

 private:
  std::atomic<std::uint64_t>* slots_;
};

// One rank: its segment, its peers' segments, and a transport; drives it as `comm` does.
struct Process {
  int rank;
  RankSegment own;
  std::vector<std::unique_ptr<RankSegment>> peers;
  std::unique_ptr<Transport> transport;
  std::vector<Completion> completions;
  std::vector<LinkEvent> events;
  std::uint64_t sleeps = 0;

  Process(int r, RankSegment segment) : rank(r), own(std::move(segment)) {}

  int poll() { return transport->poll(now_ns(), completions, events); }

  template <class Condition>
  void until(Condition condition) {
    while (!condition()) {
      if (poll() > 0) continue;
      own.doorbell().prepare_sleep();
      if (poll() == 0 && !condition()) {
        std::vector<pollfd> descriptors = {{own.doorbell().fd(), POLLIN, 0}};
        std::int64_t wake_ns = INT64_MAX;
        transport->wait_set(descriptors, wake_ns);
        const std::int64_t left = std::max<std::int64_t>(wake_ns - now_ns(), 0);
        const timespec timeout{left / 1'000'000'000, left % 1'000'000'000};
        ++sleeps;
        ::ppoll(descriptors.data(), descriptors.size(), wake_ns == INT64_MAX ? nullptr : &timeout, nullptr);
      }
      own.doorbell().finish_sleep();
    }
  }
};

Process start_shm(int rank, Board& board) {
  Process process(rank, RankSegment::create(rank, kRanks, small_segment()).value());
  board.publish(rank, {::getpid(), process.own.fd()});
  return process;
}

void attach(Process& process, Board& board) {
  auto transport = std::make_unique<ShmTransport>(process.own, nullptr);
  for (int p = 0; p < kRanks; ++p) {
    if (p == process.rank) continue;
    const Address at = board.wait(p);
    Result<RankSegment> peer = RankSegment::open(at.pid, at.fd);
    CHECK_OK(peer.status());
    process.peers.push_back(std::make_unique<RankSegment>(std::move(peer).value()));
    CHECK_OK(transport->add_peer(p, *process.peers.back()));
  }
  process.transport = std::move(transport);
  board.arrive();
  board.wait_all(kRanks);
}

Put put_of(int peer, const std::byte* source, std::uint64_t nbytes, std::uint64_t offset, int signal) {
  Put put;
  put.peer = peer;
  put.source = source;
  put.nbytes = nbytes;
  put.destination = {1, offset};
  put.signal = signal;
  return put;
}

// Runs `body(rank)` in kRanks processes; all must end well but `killed`, which must be killed.
template <class Body>
void in_processes(Body body, int killed = -1) {
  std::array<pid_t, kRanks> children{};
  std::fflush(nullptr);
  for (int rank = 0; rank < kRanks; ++rank) {
    children[Mesh::index(rank)] = ::fork();
    if (children[Mesh::index(rank)] != 0) continue;
    ::alarm(120);
    const int before = failures();
    body(rank);
    std::fflush(nullptr);
    ::_exit(failures() - before > 0 ? 1 : 0);
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    int status = 0;
    ::waitpid(children[Mesh::index(rank)], &status, 0);
    const bool as_wanted = rank == killed ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL
                                          : WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!as_wanted) fail(__FILE__, __LINE__, "rank " + std::to_string(rank) + " ended with wait status " + std::to_string(status));
  }
}

// A token goes round and round: whoever does not have it sleeps.
void pass_token(Process& process, int laps) {
  const int next = (process.rank + 1) % kRanks, previous = (process.rank + kRanks - 1) % kRanks;
  std::uint64_t token = 0;
  for (int lap = 0; lap < laps; ++lap) {
    const auto turn = static_cast<std::uint64_t>(lap + 1);
    if (process.rank != 0 || lap > 0) {
      const std::uint64_t expected = process.rank == 0 ? turn - 1 : turn;
      process.until([&] { return process.own.signals().value(previous, 2) >= expected; });
      std::memcpy(&token, process.own.arena() + 8, sizeof token);
      CHECK_EQ(token, static_cast<std::uint64_t>(lap * kRanks + process.rank - 1));
    }
    token = static_cast<std::uint64_t>(lap * kRanks + process.rank);
    std::memcpy(process.own.arena(), &token, sizeof token);
    CHECK_OK(process.transport->put(put_of(next, process.own.arena(), sizeof token, 8, 2)));
    const std::size_t sent = turn;
    process.until([&] { return process.completions.size() >= sent; });
  }
  if (process.rank == 0) process.until([&] { return process.own.signals().value(previous, 2) >= static_cast<std::uint64_t>(laps); });
  CHECK(process.sleeps > 0);
}

}  // namespace

TEST(a_token_wakes_sleeping_ranks_over_shm) {
  Board board;
  in_processes([&](int rank) {
    Process process = start_shm(rank, board);
    attach(process, board);
    pass_token(process, 3000);
    board.arrive();
    board.wait_all(2 * kRanks);
  });
}

TEST(a_token_wakes_sleeping_ranks_over_tcp) {
  std::pair<int, int> links[kRanks][kRanks];
  for (int a = 0; a < kRanks; ++a)
    for (int b = a + 1; b < kRanks; ++b) links[a][b] = tcp_pair();
  Board board;
  in_processes([&](int rank) {
    Process process = start_shm(rank, board);
    auto transport = std::make_unique<TcpTransport>(rank, process.own.signals(), process.own.shapers(), nullptr);
    CHECK_OK(transport->register_region(1, process.own.arena(), process.own.arena_bytes()));
    for (int a = 0; a < kRanks; ++a)
      for (int b = a + 1; b < kRanks; ++b) {
        const auto [left, right] = links[a][b];
        if (a == rank) CHECK_OK(transport->add_connection(b, 0, 0, 0, left, 0));
        if (b == rank) CHECK_OK(transport->add_connection(a, 0, 0, 0, right, 0));
        if (a != rank) ::close(left);
        if (b != rank) ::close(right);
      }
    process.transport = std::move(transport);
    pass_token(process, 2000);
    board.arrive();
    board.wait_all(kRanks);
  });
  for (int a = 0; a < kRanks; ++a)
    for (int b = a + 1; b < kRanks; ++b) ::close(links[a][b].first), ::close(links[a][b].second);
}

TEST(megabytes_cross_processes_whole) {
  Board board;
  in_processes([&](int rank) {
    Process process = start_shm(rank, board);
    attach(process, board);
    constexpr std::uint64_t kBytes = 1500001;
    std::vector<std::byte> source(kBytes), expected(kBytes);
    fill(source.data(), kBytes, static_cast<std::uint32_t>(rank));
    for (int p = 0; p < kRanks; ++p)
      CHECK_OK(process.transport->put(put_of(p, source.data(), kBytes, kBytes * Mesh::index(rank), 1)));
    for (int p = 0; p < kRanks; ++p) {
      process.until([&] { return process.own.signals().value(p, 1) == 1; });
      fill(expected.data(), kBytes, static_cast<std::uint32_t>(p));
      CHECK(std::memcmp(process.own.arena() + kBytes * Mesh::index(p), expected.data(), kBytes) == 0);
    }
    process.until([&] { return process.completions.size() == kRanks; });
    board.arrive();
    board.wait_all(2 * kRanks);
  });
}

TEST(plain_memory_is_copied_across_processes) {
  Board board;
  in_processes([&](int rank) {
    Process process = start_shm(rank, board);
    std::vector<std::byte> plain(400000);
    fill(plain.data(), plain.size(), static_cast<std::uint32_t>(50 + rank));
    ShmTransport before(process.own, nullptr);
    CHECK_OK(before.register_region(5, plain.data(), plain.size()));
    CHECK(!before.register_region(5, plain.data(), plain.size()).ok());
    attach(process, board);
    const int next = (rank + 1) % kRanks, previous = (rank + kRanks - 1) % kRanks;
    std::vector<std::byte> got(300000), expected(400000);
    Get get;
    get.peer = next;
    get.destination = got.data();
    get.nbytes = got.size();
    get.source = {5, 1000};
    CHECK_OK(process.transport->get(get));
    process.until([&] { return process.completions.size() == 1; });
    const Status status = process.completions[0].status;
    if (!status.ok()) {
      CHECK_EQ(static_cast<int>(status.code), static_cast<int>(Code::registration));
      std::printf("  plain memory skipped: %s\n", status.message.c_str());
      board.arrive(), board.wait_all(2 * kRanks);
      return;
    }
    fill(expected.data(), expected.size(), static_cast<std::uint32_t>(50 + next));
    CHECK(std::memcmp(got.data(), expected.data() + 1000, got.size()) == 0);
    board.arrive();
    board.wait_all(2 * kRanks);
    Put put = put_of(next, got.data(), got.size(), 100, 3);
    put.destination.key = 5;
    CHECK_OK(process.transport->put(put));
    process.until([&] { return process.own.signals().value(previous, 3) == 1 && process.completions.size() == 2; });
    fill(expected.data(), expected.size(), static_cast<std::uint32_t>(50 + rank));
    CHECK(std::memcmp(plain.data() + 100, expected.data() + 1000, got.size()) == 0);
    put.destination.offset = plain.size() - got.size() + 1;
    CHECK_EQ(static_cast<int>(process.transport->put(put).code), static_cast<int>(Code::bounds));
    put.destination.key = 6;
    CHECK_EQ(static_cast<int>(process.transport->put(put).code), static_cast<int>(Code::bounds));
    board.arrive();
    board.wait_all(3 * kRanks);
  });
}

TEST(a_killed_rank_is_noticed_by_sleepers) {
  Board board;
  in_processes(
      [&](int rank) {
        Process process = start_shm(rank, board);
        attach(process, board);
        if (rank == 2) {
          ::usleep(20000);
          ::kill(::getpid(), SIGKILL);
        }
        process.until([&] { return !process.events.empty(); });
        CHECK_EQ(process.events.size(), std::size_t{1});
        CHECK_EQ(process.events[0].peer, 2);
        CHECK_EQ(static_cast<int>(process.events[0].status.code), static_cast<int>(Code::peer_lost));
        CHECK(!process.transport->connected(2));
        CHECK(!process.transport->put(put_of(2, nullptr, 0, 0, 1)).ok());
        board.arrive();
        board.wait_all(2 * kRanks - 1);
      },
      2);
}

TEST(an_abort_wakes_a_sleeper) {
  Board board;
  in_processes([&](int rank) {
    Process process = start_shm(rank, board);
    attach(process, board);
    if (rank == 0) {
      ::usleep(10000);
      for (const auto& peer : process.peers) peer->abort(Code::timeout, "rank 0 waited too long", 0);
    } else {
      process.until([&] { return process.own.aborted(); });
      CHECK_EQ(process.own.abort_status().message, std::string("rank 0 waited too long"));
    }
    board.arrive();
    board.wait_all(2 * kRanks);
  });
}
