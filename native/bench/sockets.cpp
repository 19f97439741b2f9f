// The floors under TCP rails: what the same sockets carry when plain threads push bytes and nothing else.
//
// Is: processes joined by loopback sockets, moving given numbers of bytes from memory to memory, in one of two styles:
//     `threads`: two for each socket and process, one sends, one receives, blocking;
//     `loop`: one for each process, which serves all its sockets without blocking, copies and adds the bytes that a rank copies
//     and adds in its own memory (--local), where the sockets let it: about the least that cores have to do for a collective.
//     `bench.tcp_rails` gives it the processes, sockets and bytes of a schedule.
// Is not: a transport: no frames, no signals, no order between flows, nothing that waits for what another rank computed.
//
//   sockets --ranks N --flow SOURCE:DESTINATION:SOCKETS:BYTES ... [--local RANK:COPIED:ADDED ...] [--style threads|loop]
//           [--rounds R] [--call BYTES]
//
// prints one JSON object: {"ranks", "bytes", "call", "round_us": [first thread began to last thread ended, per round]}.
//
// Invariants
//  - Flows a:b and b:a share their sockets: socket k carries the k-th share of both.
//  - What arrived is compared with what was sent once, before the rounds that are timed.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

struct Flow {
  int source = 0;
  int destination = 0;
  int sockets = 1;
  std::uint64_t nbytes = 0;
};

// What a rank does in its own memory beside its sockets, in bytes.
struct Local {
  std::uint64_t copied = 0;
  std::uint64_t added = 0;
};

struct Options {
  int ranks = 2;
  int rounds = 10;
  std::uint64_t call = 1 << 20;
  bool loop = false;
  std::vector<Flow> flows;
  std::map<int, Local> local;
};

// One direction of one socket as one process sees it.
struct Lane {
  int fd = -1;
  bool sends = false;
  std::byte* at = nullptr;
  std::uint64_t nbytes = 0;
};

constexpr int kMostRounds = 1000;

struct Shared {
  pthread_barrier_t barrier;
  std::uint64_t begin_ns[kMostRounds];  // the earliest; kept by compare and swap
  std::uint64_t end_ns[kMostRounds];    // the latest
};

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "sockets: %s\n", what.c_str());
  std::_Exit(1);
}

std::uint64_t now_ns() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(time.tv_nsec);
}

// What is on its way between processes of one machine should fit their caches (measured: a tenth of the time of `loop`).
constexpr int kSendBuffer = 128 << 10;

std::pair<int, int> connected_pair(bool loop) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const int client = ::socket(AF_INET, SOCK_STREAM, 0);
  if (::bind(listener, generic, size) != 0 || ::listen(listener, 1) != 0 || ::getsockname(listener, generic, &size) != 0 ||
      ::connect(client, generic, size) != 0)
    die(std::string("cannot connect over loopback: ") + std::strerror(errno) + "; is `lo` up?");
  const int server = ::accept(listener, nullptr, nullptr);
  const int on = 1;
  for (const int fd : {client, server}) {
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (loop) ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kSendBuffer, sizeof kSendBuffer);
  }
  ::close(listener);
  return {client, server};
}

void move(const Lane& lane, std::uint64_t call) {
  for (std::uint64_t done = 0; done < lane.nbytes;) {
    const auto wanted = static_cast<std::size_t>(std::min(call, lane.nbytes - done));
    const ssize_t n = lane.sends ? ::send(lane.fd, lane.at + done, wanted, MSG_NOSIGNAL)
                                 : ::recv(lane.fd, lane.at + done, wanted, 0);
    if (n <= 0) die(std::string(lane.sends ? "send: " : "recv: ") + (n == 0 ? "closed" : std::strerror(errno)));
    done += static_cast<std::uint64_t>(n);
  }
}

void lower(std::uint64_t& word, std::uint64_t value) {
  std::uint64_t seen = __atomic_load_n(&word, __ATOMIC_RELAXED);
  while (value < seen && !__atomic_compare_exchange_n(&word, &seen, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

void raise(std::uint64_t& word, std::uint64_t value) {
  std::uint64_t seen = __atomic_load_n(&word, __ATOMIC_RELAXED);
  while (value > seen && !__atomic_compare_exchange_n(&word, &seen, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

void run_lane(Shared& shared, const Lane& lane, const Options& options) {
  for (int round = 0; round < options.rounds; ++round) {
    pthread_barrier_wait(&shared.barrier);
    lower(shared.begin_ns[round], now_ns());
    move(lane, options.call);
    raise(shared.end_ns[round], now_ns());
    pthread_barrier_wait(&shared.barrier);
  }
}

// The bytes of a rank that no socket carries: a slice at a time.
class OwnMemory {
 public:
  explicit OwnMemory(const Local& local) : local_(local), from_(most() / sizeof(float), 1.0f), to_(from_.size(), 2.0f) {}

  void begin() { copied_ = added_ = 0; }
  bool over() const { return copied_ == local_.copied && added_ == local_.added; }

  void step(std::uint64_t slice) {
    if (copied_ < local_.copied) {
      const std::uint64_t n = std::min(slice, local_.copied - copied_);
      std::memcpy(reinterpret_cast<std::byte*>(to_.data()) + copied_, reinterpret_cast<const std::byte*>(from_.data()) + copied_, n);
      copied_ += n;
    } else if (added_ < local_.added) {
      const std::uint64_t n = std::min(slice, local_.added - added_);
      float* const to = to_.data() + added_ / sizeof(float);
      const float* const from = from_.data() + added_ / sizeof(float);
      for (std::uint64_t i = 0; i < n / sizeof(float); ++i) to[i] += from[i];
      added_ += n;
    }
  }

 private:
  std::uint64_t most() const { return (std::max(local_.copied, local_.added) + sizeof(float) - 1) / sizeof(float) * sizeof(float); }

  Local local_;
  std::vector<float> from_, to_;
  std::uint64_t copied_ = 0;
  std::uint64_t added_ = 0;
};

// What one socket takes or gives without blocking, at most a call; 0 if nothing.
std::uint64_t move_some(const Lane& lane, std::uint64_t done, std::uint64_t call) {
  const auto wanted = static_cast<std::size_t>(std::min(call, lane.nbytes - done));
  const ssize_t n = lane.sends ? ::send(lane.fd, lane.at + done, wanted, MSG_NOSIGNAL | MSG_DONTWAIT)
                               : ::recv(lane.fd, lane.at + done, wanted, MSG_DONTWAIT);
  if (n > 0) return static_cast<std::uint64_t>(n);
  if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) die(std::string("loop: ") + (n == 0 ? "closed" : std::strerror(errno)));
  return 0;
}

void move_all(const std::vector<Lane>& lanes, OwnMemory& own, std::uint64_t call) {
  std::vector<std::uint64_t> done(lanes.size());
  for (std::size_t over = 0; over < lanes.size() || !own.over();) {
    std::uint64_t moved = 0;
    over = 0;
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      if (done[i] < lanes[i].nbytes) {
        const std::uint64_t n = move_some(lanes[i], done[i], call);
        done[i] += n;
        moved += n;
      }
      over += done[i] == lanes[i].nbytes ? 1 : 0;
    }
    if (moved != 0) continue;
    if (own.over())
      ::sched_yield();
    else
      own.step(call);
  }
}

void run_loop(Shared& shared, const std::vector<Lane>& lanes, const Local& local, const Options& options) {
  OwnMemory own(local);
  for (int round = 0; round < options.rounds; ++round) {
    own.begin();
    pthread_barrier_wait(&shared.barrier);
    lower(shared.begin_ns[round], now_ns());
    move_all(lanes, own, options.call);
    raise(shared.end_ns[round], now_ns());
    pthread_barrier_wait(&shared.barrier);
  }
}

std::byte content(int source, int destination, std::uint64_t i) {
  return static_cast<std::byte>((i * 31 + static_cast<std::uint64_t>(source * 7 + destination * 13)) % 251);
}

// One process: its memory, its lanes, a thread for each. A first round that is not timed proves that bytes arrive.
void run_rank(int rank, Shared& shared, const Options& options, const std::map<std::pair<int, int>, std::vector<int>>& fds) {
  std::vector<Lane> lanes;
  std::vector<std::vector<std::byte>> memory;
  std::vector<std::pair<const Flow*, std::size_t>> received;
  for (const Flow& flow : options.flows) {
    if (flow.source != rank && flow.destination != rank) continue;
    memory.emplace_back(flow.nbytes);
    const bool sends = flow.source == rank;
    for (std::uint64_t i = 0; sends && i < flow.nbytes; ++i) memory.back()[i] = content(flow.source, flow.destination, i);
    if (!sends) received.emplace_back(&flow, memory.size() - 1);
    const std::vector<int>& mine = fds.at({rank, sends ? flow.destination : flow.source});
    const auto sockets = static_cast<std::uint64_t>(flow.sockets);
    for (std::uint64_t k = 0; k < sockets; ++k) {
      const std::uint64_t begin = flow.nbytes * k / sockets;
      lanes.push_back({mine[k], sends, memory.back().data() + begin, flow.nbytes * (k + 1) / sockets - begin});
    }
  }
  std::vector<std::thread> threads;
  for (const Lane& lane : lanes) threads.emplace_back([&] { move(lane, options.call); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& [flow, at] : received)
    for (std::uint64_t i = 0; i < flow->nbytes; ++i)
      if (memory[at][i] != content(flow->source, flow->destination, i)) die("bytes arrived wrong");
  threads.clear();
  if (options.loop) {
    const auto local = options.local.find(rank);
    return run_loop(shared, lanes, local == options.local.end() ? Local{} : local->second, options);
  }
  for (const Lane& lane : lanes) threads.emplace_back([&] { run_lane(shared, lane, options); });
  for (std::thread& thread : threads) thread.join();
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string key = argv[i];
    const char* value = argv[i + 1];
    if (key == "--ranks") {
      options.ranks = std::atoi(value);
    } else if (key == "--rounds") {
      options.rounds = std::clamp(std::atoi(value), 1, kMostRounds);
    } else if (key == "--call") {
      options.call = std::max(1ull, std::strtoull(value, nullptr, 10));
    } else if (key == "--flow") {
      Flow flow;
      unsigned long long nbytes = 0;
      if (std::sscanf(value, "%d:%d:%d:%llu", &flow.source, &flow.destination, &flow.sockets, &nbytes) != 4)
        die(std::string("flow ") + value + ": expected SOURCE:DESTINATION:SOCKETS:BYTES");
      flow.nbytes = nbytes;
      options.flows.push_back(flow);
    } else if (key == "--local") {
      int rank = 0;
      unsigned long long copied = 0, added = 0;
      if (std::sscanf(value, "%d:%llu:%llu", &rank, &copied, &added) != 3)
        die(std::string("local ") + value + ": expected RANK:COPIED:ADDED");
      options.local[rank] = {copied, added};
    } else if (key == "--style") {
      options.loop = std::string(value) == "loop";
      if (!options.loop && std::string(value) != "threads") die(std::string("style ") + value + ": expected threads or loop");
    } else {
      die("unknown option " + key + "; known: --ranks --flow --local --style --rounds --call");
    }
  }
  for (const Flow& flow : options.flows)
    if (flow.source < 0 || flow.destination < 0 || flow.source >= options.ranks || flow.destination >= options.ranks ||
        flow.source == flow.destination || flow.sockets < 1)
      die("a flow joins two different ranks of 0.." + std::to_string(options.ranks - 1) + " by 1 socket or more");
  if (options.flows.empty()) die("no --flow SOURCE:DESTINATION:SOCKETS:BYTES");
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  if (!options.loop && !options.local.empty()) die("--local goes with --style loop");
  auto* shared = static_cast<Shared*>(
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  if (shared == MAP_FAILED) die(std::string("mmap: ") + std::strerror(errno));
  unsigned lanes = 0;
  std::uint64_t total = 0;
  std::map<std::pair<int, int>, std::vector<int>> fds;  // (own rank, other rank) -> own ends
  for (const Flow& flow : options.flows) {
    lanes += 2 * static_cast<unsigned>(flow.sockets);
    total += flow.nbytes;
    while (fds[{flow.source, flow.destination}].size() < static_cast<std::size_t>(flow.sockets)) {
      const auto [a, b] = connected_pair(options.loop);
      fds[{flow.source, flow.destination}].push_back(a);
      fds[{flow.destination, flow.source}].push_back(b);
    }
  }
  pthread_barrierattr_t attributes;
  pthread_barrierattr_init(&attributes);
  pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&shared->barrier, &attributes, options.loop ? static_cast<unsigned>(options.ranks) : lanes);
  for (std::uint64_t& begin : shared->begin_ns) begin = ~std::uint64_t{0};
  std::vector<pid_t> children;
  for (int rank = 0; rank < options.ranks; ++rank) {
    const pid_t child = ::fork();
    if (child < 0) die(std::string("fork: ") + std::strerror(errno));
    if (child == 0) {
      run_rank(rank, *shared, options, fds);
      std::_Exit(0);
    }
    children.push_back(child);
  }
  bool failed = false;
  for (std::size_t left = children.size(); left > 0; --left) {
    int status = 0;
    if (::wait(&status) < 0 || status == 0 || failed) continue;
    failed = true;  // the others would wait for it for ever
    for (const pid_t child : children) ::kill(child, SIGKILL);
  }
  if (failed) return 1;
  std::printf("{\"ranks\": %d, \"bytes\": %llu, \"call\": %llu, \"round_us\": [", options.ranks,
              static_cast<unsigned long long>(total), static_cast<unsigned long long>(options.call));
  for (int round = 0; round < options.rounds; ++round)
    std::printf("%s%.1f", round == 0 ? "" : ", ", static_cast<double>(shared->end_ns[round] - shared->begin_ns[round]) / 1e3);
  std::printf("]}\n");
  return 0;
}
