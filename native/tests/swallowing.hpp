// A transport and a messenger that do what a test says, for tests of rails.
//
// Is: what rails gave them, and what they are to say with the next poll. Is not: a network: nothing arrives anywhere.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "check.hpp"
#include "fault/rails.hpp"
#include "inbox.hpp"

namespace ccl_lab::check {

inline constexpr std::int64_t kMs = 1'000'000;

// Takes every put and confirms none: a NIC that swallows what it is given.
class Swallowing final : public Transport {
 public:
  const char* name() const override { return "swallowing"; }
  Status register_region(RegionKey, std::byte*, std::uint64_t) override { return {}; }
  Status deregister_region(RegionKey) override { return {}; }
  bool connected(std::int32_t) const override { return true; }
  Status put(const Put& put) override {
    if (!refusal.ok() && put.nic == 0) return refusal;
    puts.push_back(put);
    const bool readable = free && put.nbytes > 0;
    read.emplace_back(put.source, readable ? put.source + put.nbytes : put.source);
    return {};
  }
  // Of a put that it took: as it read it then, or reads it now.
  bool carries(std::size_t at, const std::vector<std::byte>& bytes) const {
    const std::byte* const from = read[at].empty() ? puts[at].source : read[at].data();
    return std::equal(from, from + puts[at].nbytes, bytes.begin());
  }
  void set_receiver(Receiver* who) override { receiver = who; }
  bool sources_are_free(const Path&) const override { return free; }
  Status get(const Get&) override { return {}; }
  void retire(const Path& path) override { retired.push_back(path); }
  std::uint64_t nic_bytes_per_s(std::uint16_t) const override { return rate; }
  int poll(std::int64_t, std::vector<Completion>& completions, std::vector<LinkEvent>& events) override {
    completions.insert(completions.end(), over.begin(), over.end());
    over.clear();
    events.insert(events.end(), failed.begin(), failed.end());
    failed.clear();
    const auto n = static_cast<int>(lands.size());
    for (const Notice& notice : lands) receiver->landed({1, 0, 0}, notice);
    lands.clear();
    return n + moved;
  }
  void wait_set(std::vector<pollfd>&, std::int64_t&) const override {}
  void reset(std::uint16_t) override {}

  std::vector<Completion> over;
  std::vector<LinkEvent> failed;
  std::vector<Notice> lands;    // with the next poll
  int moved = 0;                // by each poll, besides
  std::vector<Put> puts;
  std::vector<std::vector<std::byte>> read;
  std::vector<Path> retired;
  std::uint64_t rate = 0;
  bool free = false;            // it reads sources when it takes them, and not later
  Status refusal;               // of puts over NIC 0
  Receiver* receiver = nullptr;
};

class Mail final : public Inbox {
 public:
  void send(const Datagram& datagram) override { sent.push_back(datagram); }

  // The peer's answer to the last ping.
  void answer() {
    Datagram pong = sent.back();
    pong.message.kind = MessageKind::pong;
    pong.message.from = pong.peer;
    came.push_back(pong);
  }

  std::vector<Datagram> sent;
};

}  // namespace ccl_lab::check
