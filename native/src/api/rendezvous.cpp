// Gather and scatter of the ranks' cards; see rendezvous.hpp.
#include "api/rendezvous.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "api/packets.hpp"
#include "base/clock.hpp"
#include "base/segment.hpp"

namespace ccl_lab::api {

namespace {

// A rank that has joined waits a little longer than rank 0, which knows better what is wrong.
constexpr std::int64_t kGraceNs = 2'000'000'000;

std::string rank_name(int rank, std::int32_t pid) {
  return "rank " + std::to_string(rank) + " (process " + std::to_string(pid) + ")";
}

// "ranks 1, 2, 5 and 9 more"
std::string list_of(const std::vector<int>& ranks) {
  constexpr std::size_t kShown = 16;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < std::min(ranks.size(), kShown); ++i) text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  if (ranks.size() > kShown) text += " and " + std::to_string(ranks.size() - kShown) + " more";
  return text;
}

// Rank 0's side until all have said hello.
class Host {
 public:
  Host(int n_ranks, const std::string& path, int listener) : n_ranks_(n_ranks), path_(path), listener_(listener) {
    sockets.assign(static_cast<std::size_t>(n_ranks), -1);
    cards.resize(static_cast<std::size_t>(n_ranks));
  }
  ~Host() {
    ::close(listener_);
    ::unlink(path_.c_str());
    for (const int fd : pending_) ::close(fd);
    for (const int fd : sockets)
      if (fd >= 0) ::close(fd);
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  Status gather(std::int64_t deadline_ns) {
    for (int joined = 1; joined < n_ranks_;) {
      if (!wait(deadline_ns)) return missing();
      if (Status status = look_after_joined(); !status.ok()) return status;
      for (std::size_t i = 0; i < pending_.size();) {
        const int before = joined;
        bool through = false;
        if (Status status = greet(pending_[i], joined, through); !status.ok()) return status;
        if (joined > before || through)
          pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(i));
        else
          ++i;
      }
      accept_all();
    }
    return {};
  }

  void tell_all(const Status& status) const {
    const Verdict verdict = verdict_of(status);
    for (const int fd : sockets)
      if (fd >= 0) (void)send_packet(fd, &verdict, sizeof verdict, now_ns() + kGraceNs / 4).ok();
  }

  std::vector<int> sockets;  // by rank
  std::vector<Card> cards;

 private:
  bool wait(std::int64_t deadline_ns) {
    entries_.clear();
    entries_.push_back({listener_, POLLIN, 0});
    for (const int fd : pending_) entries_.push_back({fd, POLLIN, 0});
    for (const int fd : sockets)
      if (fd >= 0) entries_.push_back({fd, POLLIN, 0});
    for (;;) {
      const std::int64_t left = std::clamp<std::int64_t>((deadline_ns - now_ns()) / 1'000'000 + 1, 0, 1 << 30);
      const int ready = ::poll(entries_.data(), entries_.size(), static_cast<int>(left));
      if (ready > 0) return true;
      if (now_ns() >= deadline_ns) return false;
    }
  }

  void accept_all() {
    for (;;) {
      const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd < 0) return;
      pending_.push_back(fd);
    }
  }

  // Nobody who has joined has anything to say before the cards: what is readable is an end.
  Status look_after_joined() const {
    for (int rank = 1; rank < n_ranks_; ++rank) {
      const int fd = sockets[static_cast<std::size_t>(rank)];
      if (fd < 0) continue;
      pollfd entry{fd, POLLIN, 0};
      if (::poll(&entry, 1, 0) > 0)
        return Status(Code::peer_lost, rank_name(rank, cards[static_cast<std::size_t>(rank)].pid) +
                                           " ended while the other ranks were joining at " + path_ + "; see its output", rank);
    }
    return {};
  }

  // Reads a Hello if there is one. `through`: the connection is over. An error ends the whole job.
  Status greet(int fd, int& joined, bool& through) {
    Hello hello;
    const ssize_t size = ::recv(fd, &hello, sizeof hello, 0);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) return {};
    const Result<Identity> who = identity_of(fd);
    if (size != static_cast<ssize_t>(sizeof hello) || hello.magic != kMagic || !who.ok() ||
        who.value().uid != ::geteuid()) {
      ::close(fd);  // a stranger, or somebody who only looked whether anybody listens
      through = true;
      return {};
    }
    Status fatal = disagreement(hello, who.value().pid);
    Status refusal = fatal;
    const auto at = static_cast<std::size_t>(hello.rank);
    if (fatal.ok() && (hello.rank == 0 || sockets[at] >= 0))
      refusal = Status(Code::usage, "rank " + std::to_string(hello.rank) + " has joined at " + path_ + " already (process " +
                                        std::to_string(hello.rank == 0 ? ::getpid() : cards[at].pid) +
                                        "); was it started twice?", hello.rank);
    if (refusal.ok()) {
      sockets[at] = fd;
      cards[at] = hello.card;
      ++joined;
      return {};
    }
    const Verdict verdict = verdict_of(refusal);
    (void)send_packet(fd, &verdict, sizeof verdict, now_ns() + kGraceNs / 4).ok();
    ::close(fd);
    through = true;
    return fatal;
  }

  Status disagreement(const Hello& hello, std::int32_t pid) const {
    const std::string who = rank_name(hello.rank, pid);
    if (hello.version != kRendezvousVersion || hello.segment_version != kSegmentVersion)
      return Status(Code::config, who + " joined at " + path_ + " with version " + std::to_string(hello.version) + "." +
                                      std::to_string(hello.segment_version) + " of ccl_lab's protocols, rank 0 has " +
                                      std::to_string(kRendezvousVersion) + "." + std::to_string(kSegmentVersion) +
                                      "; build all ranks against one version", hello.rank);
    if (hello.n_ranks != n_ranks_)
      return Status(Code::config, who + " joined at " + path_ + " for " + std::to_string(hello.n_ranks) +
                                      " ranks, rank 0 for " + std::to_string(n_ranks_) + "; give all ranks the same number",
                    hello.rank);
    if (hello.rank < 0 || hello.rank >= n_ranks_)
      return Status(Code::config, who + " joined at " + path_ + ": expected a rank from 0 to " + std::to_string(n_ranks_ - 1),
                    hello.rank);
    if (hello.card.pid != pid)
      return Status(Code::unsupported, "rank " + std::to_string(hello.rank) + " calls itself process " +
                                           std::to_string(hello.card.pid) + " and is process " + std::to_string(pid) +
                                           " for rank 0: start all ranks in one pid namespace, or use the Python package's "
                                           "ccl_lab.init()", hello.rank);
    return {};
  }

  Status missing() const {
    std::vector<int> ranks;
    for (int rank = 1; rank < n_ranks_; ++rank)
      if (sockets[static_cast<std::size_t>(rank)] < 0) ranks.push_back(rank);
    return Status(Code::timeout, std::to_string(ranks.size()) + " of " + std::to_string(n_ranks_) +
                                     " ranks did not join rank 0 at " + path_ + " in time: missing " + list_of(ranks) +
                                     "; are they started, with this rendezvous?", ranks.empty() ? -1 : ranks.front());
  }

  int n_ranks_;
  std::string path_;
  int listener_;
  std::vector<int> pending_;  // connected, no Hello yet
  std::vector<pollfd> entries_;
};

Result<int> dial(int rank, int n_ranks, const std::string& path, std::int64_t deadline_ns) {
  for (useconds_t pause_us = 200;; pause_us = std::min<useconds_t>(pause_us * 2, 5000)) {
    const int fd = connect_to(path);
    if (fd >= 0) return fd;
    if (errno != ENOENT && errno != ECONNREFUSED && errno != EAGAIN && errno != EINTR)
      return Status(Code::connect, "rank " + std::to_string(rank) + " cannot join at " + path + ": " +
                                       std::strerror(errno) + "; expected the path of a Unix socket of this user", 0);
    if (now_ns() >= deadline_ns)
      return Status(Code::timeout, "rank " + std::to_string(rank) + " of " + std::to_string(n_ranks) +
                                       " found nobody at " + path + " in time: rank 0 is missing; is it started, with this "
                                       "rendezvous?", 0);
    ::usleep(pause_us);
  }
}

Status rank_0_gone(int rank) {
  return Status(Code::peer_lost, "rank 0 ended while rank " + std::to_string(rank) + " was joining; see its output", 0);
}

// Either all cards, in pieces, or a Verdict.
Status receive_cards(int socket, int rank, std::vector<Card>& cards, std::int64_t deadline_ns) {
  std::vector<std::byte> message(std::max(kCardsPerMessage * sizeof(Card), sizeof(Verdict)) + sizeof(std::uint64_t));
  for (std::size_t have = 0; have < cards.size();) {
    const Result<std::size_t> size = receive_packet(socket, message.data(), message.size(), deadline_ns + kGraceNs);
    if (!size.ok())
      return Status(Code::timeout, "rank " + std::to_string(rank) + " has joined rank 0, which did not answer in time", 0);
    if (size.value() == 0) return rank_0_gone(rank);
    if (size.value() == sizeof(Verdict)) {
      Verdict verdict;
      std::memcpy(&verdict, message.data(), sizeof verdict);
      if (Status status = status_of(verdict); verdict.magic == kMagic && !status.ok()) return status;
    }
    const std::size_t payload = size.value() - std::min(size.value(), sizeof kMagic);
    const std::size_t expected = std::min(kCardsPerMessage, cards.size() - have) * sizeof(Card);
    if (payload != expected || std::memcmp(message.data(), &kMagic, sizeof kMagic) != 0)
      return Status(Code::connect, "rank 0 sent " + std::to_string(size.value()) + " bytes, expected " +
                                       std::to_string(expected + sizeof kMagic) + "; is it another program?", 0);
    std::memcpy(&cards[have], message.data() + sizeof kMagic, payload);
    have += payload / sizeof(Card);
  }
  return {};
}

Status send_cards(int socket, const std::vector<Card>& cards, std::int64_t deadline_ns) {
  std::vector<std::byte> message(kCardsPerMessage * sizeof(Card) + sizeof kMagic);
  std::memcpy(message.data(), &kMagic, sizeof kMagic);
  for (std::size_t at = 0; at < cards.size(); at += kCardsPerMessage) {
    const std::size_t payload = std::min(kCardsPerMessage, cards.size() - at) * sizeof(Card);
    std::memcpy(message.data() + sizeof kMagic, &cards[at], payload);
    if (Status status = send_packet(socket, message.data(), payload + sizeof kMagic, deadline_ns); !status.ok())
      return status;
  }
  return {};
}

}  // namespace

Result<Meeting> Meeting::meet(int rank, int n_ranks, const std::string& path, Card mine, std::int64_t deadline_ns) {
  Meeting meeting;
  meeting.rank_ = rank;
  meeting.path_ = path;
  meeting.cards_.resize(static_cast<std::size_t>(n_ranks));
  if (n_ranks == 1) {
    meeting.cards_[0] = mine;
    return meeting;
  }
  if (rank == 0) {
    Result<int> listener = listen_at(path, std::min(n_ranks, 4096));
    if (!listener.ok()) return listener.status();
    Host host(n_ranks, path, *listener);
    host.cards[0] = mine;
    Status status = host.gather(deadline_ns);
    for (int to = 1; status.ok() && to < n_ranks; ++to)
      if (!send_cards(host.sockets[static_cast<std::size_t>(to)], host.cards, deadline_ns).ok())
        status = Status(Code::peer_lost, rank_name(to, host.cards[static_cast<std::size_t>(to)].pid) +
                                             " ended while the ranks were joining at " + path, to);
    if (!status.ok()) {
      host.tell_all(status);
      return status;
    }
    meeting.sockets_ = std::exchange(host.sockets, {});
    meeting.cards_ = std::move(host.cards);
    return meeting;
  }
  Result<int> socket = dial(rank, n_ranks, path, deadline_ns);
  if (!socket.ok()) return socket.status();
  meeting.sockets_.push_back(*socket);
  const Result<Identity> host = identity_of(*socket);
  if (!host.ok()) return host.status();
  if (host.value().uid != ::geteuid())
    return Status(Code::connect, "user " + std::to_string(host.value().uid) + " listens at " + path + ", expected user " +
                                     std::to_string(::geteuid()) + "; name a rendezvous in a folder of your own", 0);
  Hello hello;
  hello.segment_version = kSegmentVersion;
  hello.rank = rank;
  hello.n_ranks = n_ranks;
  hello.card = mine;
  if (!send_packet(*socket, &hello, sizeof hello, deadline_ns).ok()) return rank_0_gone(rank);
  if (Status status = receive_cards(*socket, rank, meeting.cards_, deadline_ns); !status.ok()) return status;
  return meeting;
}

Status Meeting::finish(const Status& attached, std::int64_t deadline_ns) {
  Status result = attached;
  Verdict verdict = verdict_of(attached);
  if (rank_ != 0) {
    const int socket = sockets_.front();
    if (!send_packet(socket, &verdict, sizeof verdict, deadline_ns).ok()) result = rank_0_gone(rank_);
    const Result<std::size_t> size = receive_packet(socket, &verdict, sizeof verdict, deadline_ns + kGraceNs);
    if (!size.ok())
      result = Status(Code::timeout, "rank " + std::to_string(rank_) + " is ready, but rank 0 did not say in time that all are", 0);
    else if (size.value() != sizeof verdict || verdict.magic != kMagic)
      result = rank_0_gone(rank_);
    else
      result = status_of(verdict);
  } else {
    for (std::size_t rank = 1; rank < sockets_.size(); ++rank) {
      Verdict heard;
      const Result<std::size_t> size = receive_packet(sockets_[rank], &heard, sizeof heard, deadline_ns);
      const std::string who = rank_name(static_cast<int>(rank), cards_[rank].pid);
      Status status;
      if (!size.ok())
        status = Status(Code::timeout, who + " joined, but did not map its peers' memory in time", static_cast<int>(rank));
      else if (size.value() != sizeof heard || heard.magic != kMagic)
        status = Status(Code::peer_lost, who + " ended while the ranks were joining; see its output", static_cast<int>(rank));
      else
        status = status_of(heard);
      if (result.ok()) result = std::move(status);
    }
    verdict = verdict_of(result);
    for (std::size_t rank = 1; rank < sockets_.size(); ++rank)
      (void)send_packet(sockets_[rank], &verdict, sizeof verdict, deadline_ns + kGraceNs / 4).ok();
  }
  close();
  return result;
}

void Meeting::close() {
  for (const int fd : sockets_)
    if (fd >= 0) ::close(fd);
  sockets_.clear();
}

Meeting::Meeting(Meeting&& other) noexcept
    : rank_(other.rank_),
      path_(std::move(other.path_)),
      sockets_(std::exchange(other.sockets_, {})),
      cards_(std::move(other.cards_)) {}

Meeting& Meeting::operator=(Meeting&& other) noexcept {
  std::swap(rank_, other.rank_);
  std::swap(path_, other.path_);
  std::swap(sockets_, other.sockets_);
  std::swap(cards_, other.cards_);
  return *this;
}

Meeting::~Meeting() { close(); }

}  // namespace ccl_lab::api
