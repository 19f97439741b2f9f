// Two ranks over tcp whose puts are confirmed.
//
// Is: a mesh of the two with somebody who hears what landed, a put that says who it is, and polls at a time of the test's choice.
// Is not: the layer that repairs paths: nobody sends anything again.
#pragma once

#include "conformance.hpp"

namespace ccl_lab::check {

struct Ranks : TcpMesh {
  Hearer hearers[2];

  explicit Ranks(int n_nics = 1, int n_connections = 1, std::uint32_t first = 0)
      : TcpMesh(2, n_nics, n_connections, TcpOptions{.first_number = first}) {
    for (int r = 0; r < 2; ++r) transport(r).set_receiver(&hearers[r]);
  }
  ~Ranks() override {
    for (int r = 0; r < 2; ++r) transport(r).set_receiver(nullptr);
  }
  std::vector<Hearer::Heard>& heard(int r) { return hearers[r].heard; }
  std::vector<Completion>& done(int r) { return completions[index(r)]; }
  std::vector<LinkEvent>& lost(int r) { return events[index(r)]; }
};

inline Put make_put(int peer, const std::byte* source, std::uint64_t nbytes, std::uint64_t offset, std::uint32_t number,
                    bool urgent = false) {
  Put put;
  put.peer = peer;
  put.source = source;
  put.nbytes = nbytes;
  put.destination = {1, offset};
  put.cookie = number;
  put.tag = {7, static_cast<std::int32_t>(number), 0};
  put.confirmed = true;
  put.urgent = urgent;
  put.notice = {number * 3 + 1, number, static_cast<std::int32_t>(number % kChannels), number * 5};
  return put;
}

}  // namespace ccl_lab::check
