// A messenger whose arrivals a test puts there.
#pragma once

#include <poll.h>

#include <cstdint>
#include <vector>

#include "fault/messenger.hpp"

namespace ccl_lab::check {

class Inbox : public Messenger {
 public:
  int poll(std::int64_t, std::vector<Datagram>& arrived) override {
    const int n = static_cast<int>(came.size());
    arrived.insert(arrived.end(), came.begin(), came.end());
    came.clear();
    return n;
  }
  void wait_set(std::vector<pollfd>&, std::int64_t&) const override {}
  void reset(std::uint16_t) override {}

  std::vector<Datagram> came;
};

}  // namespace ccl_lab::check
