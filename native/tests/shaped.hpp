// Meshes over real sockets whose NICs are held to a rate on a clock that is not real: what the tests of those share.
//
// Is: one rate, a put, everybody polled at one virtual time. Is not: a test.
#pragma once

#include <chrono>
#include <thread>

#include "conformance.hpp"

namespace ccl_lab::check {

inline constexpr std::uint64_t kRate = 125'000'000;  // 1 Gb/s

inline Put make_put(int peer, const std::byte* source, std::uint64_t nbytes, int signal, int nic = 0) {
  Put put = put_to(peer, source, nbytes, nic);
  put.signal = signal;
  put.tag = {3, 11, 0};
  return put;
}

inline void shape(const RankSegment& segment, std::uint64_t rate) {
  for (NicShaper& nic : segment.shapers()) nic.bytes_per_s.store(rate);
}

// Polls everybody at one virtual time until nobody has anything to do. The kernel hands loopback bytes over in its own
// time, on a busy machine from a thread of its own, so "nothing to do" has to hold for a while, in which that thread may run.
inline void settle(TcpMesh& mesh, std::int64_t at) {
  for (int quiet = 0; quiet < 3;) {
    int done = 0;
    for (int r = 0; r < mesh.n(); ++r)
      done += mesh.transport(r).poll(at, mesh.completions[Mesh::index(r)], mesh.events[Mesh::index(r)]);
    quiet = done == 0 ? quiet + 1 : 0;
    if (quiet != 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

}  // namespace ccl_lab::check
