// How two programs on two machines find each other's NICs and connect a socket for each pair: for what measures verbs here.
//
// Is: addresses and sockets, and `need`, which ends the program with what is wrong.
// Is not: on the measured way.
#pragma once

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "base/status.hpp"

namespace ccl_lab {

inline void need(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message.c_str());
  std::exit(1);
}

inline void need(bool right, const char* what) { need(right ? Status() : Status(Code::internal, std::string(what) + ": " + std::strerror(errno))); }

inline sockaddr_in at(const std::string& address, int port) {
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_port = htons(static_cast<std::uint16_t>(port));
  need(::inet_pton(AF_INET, address.c_str(), &where.sin_addr) == 1, "address");
  return where;
}

// The address of this machine in the same network of 256 as `address`.
inline std::string own_address(const std::string& address) {
  const std::string network = address.substr(0, address.rfind('.') + 1);
  ifaddrs* all = nullptr;
  need(::getifaddrs(&all) == 0, "getifaddrs");
  std::string found;
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET) continue;
    char text[INET_ADDRSTRLEN] = {};
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(each->ifa_addr)->sin_addr, text, sizeof text);
    if (std::string(text).rfind(network, 0) == 0) found = text;
  }
  ::freeifaddrs(all);
  need(!found.empty(), "no address in that network");
  return found;
}

inline int meet(int rank, const std::string& address, int port) {
  const sockaddr_in where = at(address, port);
  const auto* generic = reinterpret_cast<const sockaddr*>(&where);
  if (rank == 0) {
    const int door = ::socket(AF_INET, SOCK_STREAM, 0);
    const int on = 1;
    ::setsockopt(door, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    need(::bind(door, generic, sizeof where) == 0 && ::listen(door, 1) == 0, "listen");
    const int fd = ::accept(door, nullptr, nullptr);
    ::close(door);
    need(fd >= 0, "accept");
    return fd;
  }
  for (;;) {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    if (::connect(fd, generic, sizeof where) == 0) return fd;
    ::close(fd);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace ccl_lab
