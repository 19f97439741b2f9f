// Which sockets became readable or writable since one last looked: edges of an epoll set.
//
// Is: the owner of one epoll descriptor; every socket is added once, for both directions, edge-triggered, so that waiting
//     for room or bytes costs no further call, and one descriptor stands for all of them in a sleeper's wait set.
// Is not: a memory of what is ready: whoever adds a socket keeps that, from each edge to the next EAGAIN.
#pragma once

#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/status.hpp"

namespace ccl_lab {

class Poller {
 public:
  Poller() = default;
  ~Poller() {
    if (fd_ >= 0) ::close(fd_);
  }
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  int fd() const { return fd_; }

  // Its edges come as `owner`, until remove(): closing is not enough where a forked child holds the socket too.
  Status add(int socket, void* owner) {
    if (fd_ < 0) fd_ = ::epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{};
    event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
    event.data.ptr = owner;
    if (fd_ >= 0 && ::epoll_ctl(fd_, EPOLL_CTL_ADD, socket, &event) == 0) return {};
    return Status(Code::connect, std::string(fd_ < 0 ? "epoll_create1: " : "epoll_ctl: ") + std::strerror(errno) +
                                     "; is `ulimit -n` high enough?");
  }

  void remove(int socket) const { ::epoll_ctl(fd_, EPOLL_CTL_DEL, socket, nullptr); }

  // Calls edge(owner, events) for what changed; never waits.
  template <class Edge>
  void collect(Edge&& edge) const {
    if (fd_ < 0) return;
    epoll_event events[kAtOnce];
    for (int n = kAtOnce; n == kAtOnce;) {
      n = ::epoll_wait(fd_, events, kAtOnce, 0);
      for (int i = 0; i < n; ++i) edge(events[i].data.ptr, events[i].events);
    }
  }

 private:
  static constexpr int kAtOnce = 64;
  int fd_ = -1;
};

}  // namespace ccl_lab
