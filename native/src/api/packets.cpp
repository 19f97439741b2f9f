// Sockets of a rendezvous; see packets.hpp.
#include "api/packets.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/clock.hpp"

namespace ccl_lab::api {

namespace {

int new_socket() { return ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }

bool fill(sockaddr_un& address, const std::string& path) {
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) return false;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return true;
}

Status failed(const std::string& what, const std::string& path, const char* advice) {
  return Status(Code::connect, what + " " + path + ": " + std::strerror(errno) + "; " + advice, 0);
}

// A socket that listens under a name nobody looks for.
Result<int> listen_aside(const std::string& aside, int backlog) {
  sockaddr_un address{};
  if (!fill(address, aside))
    return Status(Code::config, "the rendezvous " + aside + " is no path of a Unix socket: expected 1 to " +
                                    std::to_string(sizeof address.sun_path - 16) + " bytes, say /tmp/my_job.sock", 0);
  const int fd = new_socket();
  if (fd < 0) return failed("cannot make a socket for", aside, "see `ulimit -n`");
  ::unlink(aside.c_str());
  // The mode of an unbound socket is the mode its name will get: nobody else can connect, not even for a moment.
  if (::fchmod(fd, 0600) != 0 || ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(fd, backlog) != 0) {
    Status status = failed("cannot listen at", aside, "its folder must exist and be writable by this user");
    ::close(fd);
    ::unlink(aside.c_str());
    return status;
  }
  return fd;
}

}  // namespace

Verdict verdict_of(const Status& status) {
  Verdict verdict;
  verdict.rank = status.rank;
  verdict.code = static_cast<std::uint32_t>(status.code);
  const std::size_t length = std::min(status.message.size(), kTextBytes - 1);
  std::memcpy(verdict.text, status.message.data(), length);
  return verdict;
}

Status status_of(const Verdict& verdict) {
  if (verdict.code == 0) return {};
  const bool known = verdict.code <= static_cast<std::uint32_t>(Code::internal);
  const std::string text(verdict.text, ::strnlen(verdict.text, kTextBytes));
  return Status(known ? static_cast<Code>(verdict.code) : Code::connect, text, verdict.rank);
}

Result<Identity> identity_of(int socket) {
  ucred found{};
  socklen_t size = sizeof found;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &found, &size) != 0)
    return Status(Code::connect, std::string("cannot see who is at the other end of a socket: ") + std::strerror(errno));
  return Identity{static_cast<std::uint32_t>(found.uid), static_cast<std::int32_t>(found.pid)};
}

bool wait_for(int fd, short events, std::int64_t deadline_ns) {
  for (;;) {
    const std::int64_t left = deadline_ns - now_ns();
    pollfd entry{fd, events, 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(std::clamp<std::int64_t>(left / 1'000'000 + 1, 0, 1 << 30)));
    if (ready > 0) return true;
    if (left <= 0 && (ready == 0 || errno == EINTR)) return false;
    if (ready < 0 && errno != EINTR) return true;  // the call that follows says what is wrong
  }
}

Status send_packet(int socket, const void* data, std::size_t nbytes, std::int64_t deadline_ns) {
  for (;;) {
    const ssize_t sent = ::send(socket, data, nbytes, MSG_NOSIGNAL);
    if (sent == static_cast<ssize_t>(nbytes)) return {};
    if (sent >= 0) return Status(Code::internal, "a message of a rendezvous was cut");
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return Status(Code::peer_lost, std::string("the connection is gone: ") + std::strerror(errno));
    if (!wait_for(socket, POLLOUT, deadline_ns)) return Status(Code::timeout, "the other end takes no message");
  }
}

Result<std::size_t> receive_packet(int socket, void* data, std::size_t nbytes, std::int64_t deadline_ns) {
  for (;;) {
    const ssize_t found = ::recv(socket, data, nbytes, 0);
    if (found >= 0) return static_cast<std::size_t>(found);
    if (errno == EINTR) continue;
    if (errno == ECONNRESET) return std::size_t{0};
    if (errno != EAGAIN) return Status(Code::connect, std::string("cannot receive: ") + std::strerror(errno));
    if (!wait_for(socket, POLLIN, deadline_ns)) return Status(Code::timeout, "no message came");
  }
}

int connect_to(const std::string& path) {
  sockaddr_un address{};
  if (!fill(address, path)) {
    errno = ENAMETOOLONG;
    return -1;
  }
  const int fd = new_socket();
  if (fd < 0) return -1;
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return fd;
  const int reason = errno;
  ::close(fd);
  errno = reason;
  return -1;
}

Result<int> listen_at(const std::string& path, int backlog) {
  const std::string aside = path + "." + std::to_string(::getpid());
  Result<int> made = listen_aside(aside, backlog);
  if (!made.ok()) return made.status();
  const int fd = *made;
  Status status;
  // A second name is given only where there is none, and what it names listens already: no rank can meet half a socket.
  for (int turn = 0; ::link(aside.c_str(), path.c_str()) != 0; ++turn) {
    struct stat found {};
    if (errno != EEXIST) {
      status = failed("cannot make the rendezvous", path, "its folder must exist and be writable by this user");
    } else if (::lstat(path.c_str(), &found) == 0 && !S_ISSOCK(found.st_mode)) {
      status = Status(Code::config, "the rendezvous " + path + " exists and is no socket; name another path", 0);
    } else if (const int other = connect_to(path); other >= 0 || errno == EAGAIN) {
      if (other >= 0) ::close(other);
      status = Status(Code::usage, "another rank 0 listens at the rendezvous " + path +
                                       " already; was rank 0 started twice, or does another job use this path?", 0);
    } else if (turn == 8) {
      status = failed("cannot replace the rendezvous", path, "remove it, or name another path");
    } else {
      ::unlink(path.c_str());  // nobody listens: left over by a process that was killed
      continue;
    }
    break;
  }
  ::unlink(aside.c_str());
  if (status.ok()) return fd;
  ::close(fd);
  return status;
}

}  // namespace ccl_lab::api
