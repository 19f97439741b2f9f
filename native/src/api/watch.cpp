// The thread that watches peers; see watch.hpp.
#include "api/watch.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>

#include "base/clock.hpp"
#include "node/board.hpp"

namespace ccl_lab::api {

namespace {

// Control::state of a rank that left of its own will.
constexpr std::uint32_t kLeft = 2;

int open_pidfd(int pid) {
#ifdef SYS_pidfd_open
  return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
#else
  errno = ENOSYS;
  return -1;
#endif
}

}  // namespace

bool process_lives(int pid) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/stat", pid);
  std::FILE* file = std::fopen(path, "re");
  if (file == nullptr) return false;
  char text[512];
  const std::size_t size = std::fread(text, 1, sizeof text - 1, file);
  std::fclose(file);
  text[size] = '\0';
  const char* name_end = std::strrchr(text, ')');  // a name may hold anything, its end is the last bracket
  return name_end == nullptr || (name_end[2] != 'Z' && name_end[2] != 'X');
}

Result<std::unique_ptr<Watch>> Watch::start(int rank, std::vector<std::shared_ptr<RankSegment>> segments,
                                            const Activity* activity) {
  std::unique_ptr<Watch> watch(new Watch);
  watch->rank_ = rank;
  watch->pid_ = ::getpid();
  watch->segments_ = std::move(segments);
  watch->activity_ = activity;
  const auto refuse = [&](const char* what, int reason) {
    return Status(Code::registration, "rank " + std::to_string(rank) + " cannot watch its peers: " + what + ": " +
                                          std::strerror(reason) + "; see `ulimit -n` and `ulimit -u`", rank);
  };
  watch->stop_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (watch->stop_ < 0) return refuse("eventfd", errno);
  for (std::size_t at = 0; at < watch->segments_.size(); ++at) {
    if (static_cast<int>(at) == rank) continue;
    Peer peer;
    peer.rank = static_cast<int>(at);
    const int pid = watch->segments_[at]->pid();
    if (pid != ::getpid()) {  // ranks that are threads of one process end with it
      peer.pidfd = open_pidfd(pid);
      if (peer.pidfd < 0 && errno == ESRCH) peer.ended = true;
      if (peer.pidfd < 0 && (errno == EMFILE || errno == ENFILE)) return refuse("pidfd_open", errno);
    }
    watch->peers_.push_back(peer);
  }
  if (watch->peers_.empty()) return watch;
  // Signals are for the program's own threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  int failed = 0;
  try {
    watch->thread_ = std::thread([self = watch.get()] { self->run(); });
  } catch (const std::system_error& error) {
    failed = error.code().value();
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (failed != 0) return refuse("thread", failed);
  return watch;
}

Watch::~Watch() {
  if (::getpid() != pid_ && thread_.joinable()) {
    thread_.detach();  // a child of the rank has a copy of this, but not the thread
  } else if (thread_.joinable()) {
    const std::uint64_t one = 1;
    while (::write(stop_, &one, sizeof one) < 0 && errno == EINTR) {
    }
    thread_.join();
  }
  for (const Peer& peer : peers_)
    if (peer.pidfd >= 0) ::close(peer.pidfd);
  if (stop_ >= 0) ::close(stop_);
}

void Watch::say_left(const RankSegment& own) { own.control().state.store(kLeft, std::memory_order_release); }

void Watch::run() {
  while (wait()) {
    const std::int64_t now = now_ns();
    for (Peer& peer : peers_) look_at(peer, now);
  }
}

// Until a process ends or a turn is over; false: to stop.
bool Watch::wait() {
  std::vector<pollfd> entries{{stop_, POLLIN, 0}};
  std::vector<Peer*> of;
  for (Peer& peer : peers_) {
    if (peer.pidfd < 0 || peer.ended) continue;
    entries.push_back({peer.pidfd, POLLIN, 0});
    of.push_back(&peer);
  }
  if (::poll(entries.data(), entries.size(), static_cast<int>(kTurnNs / 1'000'000)) > 0) {
    if (entries[0].revents != 0) return false;
    for (std::size_t i = 0; i < of.size(); ++i)
      if (entries[i + 1].revents != 0) of[i]->ended = true;
  }
  return true;
}

void Watch::look_at(Peer& peer, std::int64_t now_ns) {
  const RankSegment& segment = *segments_[static_cast<std::size_t>(peer.rank)];
  if (!peer.ended && peer.pidfd < 0 && segment.pid() != ::getpid()) peer.ended = !process_lives(segment.pid());
  peer.left = segment.control().state.load(std::memory_order_acquire) == kLeft;
  if (!peer.ended && !peer.left) return;
  const std::uint64_t finished = node::board_at(segment.board()).done.load(std::memory_order_acquire);
  if (activity_->collective.load(std::memory_order_relaxed) > finished) return lost(peer, "a collective");
  const std::uint64_t message = activity_->message.load(std::memory_order_acquire);
  if (message % 2 == 0 || activity_->peer.load(std::memory_order_relaxed) != peer.rank) {
    peer.message = 0;
  } else if (peer.message != message) {
    peer.message = message;
    peer.message_since_ns = now_ns;
  } else if (now_ns - peer.message_since_ns > kGraceNs) {
    lost(peer, "a send or recv");
  }
}

void Watch::lost(const Peer& peer, const std::string& during) const {
  const RankSegment& own = *segments_[static_cast<std::size_t>(rank_)];
  if (own.aborted()) return;
  const RankSegment& other = *segments_[static_cast<std::size_t>(peer.rank)];
  // A rank that gave up for a reason hands that on: the first reason reaches every rank.
  if (const Status first = other.abort_status(); !first.ok()) {
    own.abort(first.code, first.message, first.rank, first.nic);
    return;
  }
  const std::string who = "rank " + std::to_string(peer.rank) + " (process " + std::to_string(other.pid()) + ")";
  own.abort(Code::peer_lost, who + (peer.left ? " left its communicator" : " ended") + " while rank " +
                                 std::to_string(rank_) + " waits for it in " + during +
                                 "; see its output, then join again without it", peer.rank);
}

}  // namespace ccl_lab::api
