// When rails decide that a path is lost, against a transport and a messenger that do what a test says.
//
// Is: the moment of a decision, message by message. Is not: what becomes of bytes (test_faults, which plays millions of faults).
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "swallowing.hpp"

namespace ccl_lab {
namespace {

using check::kMs;
using check::Mail;
using check::Swallowing;

// Rank 0 with one path to rank 1, and a put on it at time 0 that nobody confirms.
struct Silent {
  Silent() : rails(0, transport, mail, SignalTable(words.data(), 2, 4, 4), nullptr, options()) {
    CHECK(rails.add_path(path, 0).ok());
    Put put;
    put.peer = 1;
    put.source = bytes.data();
    put.nbytes = bytes.size();
    step(0);
    CHECK(rails.put(put).ok());
    step(0);
  }

  static RailOptions options() {
    RailOptions o;
    o.node_of = {0, 1};
    o.silence_ns = 50 * kMs;
    return o;
  }

  void step(std::int64_t now_ns) {
    rails.poll(now_ns, completions, events);
    for (const RailEvent& event : rails.events()) seen.push_back(event);
  }

  std::int64_t wake_ns() const {
    std::vector<pollfd> none;
    std::int64_t at = std::numeric_limits<std::int64_t>::max();
    rails.wait_set(none, at);
    return at;
  }

  Swallowing transport;
  Mail mail;
  std::vector<std::atomic<std::uint64_t>> words = std::vector<std::atomic<std::uint64_t>>(8);
  std::vector<std::byte> bytes = std::vector<std::byte>(65536);
  Path path{1, 0, 0};
  Rails rails;
  std::vector<Completion> completions;
  std::vector<LinkEvent> events;
  std::vector<RailEvent> seen;
};

TEST(a_silent_path_is_lost_when_the_answer_comes_and_not_when_it_would_be_asked_again) {
  Silent s;
  CHECK_EQ(s.transport.puts.size(), 1u);
  s.step(49 * kMs);
  CHECK(s.mail.sent.empty());
  s.step(50 * kMs);
  CHECK_EQ(s.mail.sent.size(), 1u);
  CHECK(s.mail.sent.back().message.kind == MessageKind::ping);
  CHECK(s.rails.up(s.path));
  s.mail.answer();
  s.step(50 * kMs + 1000);
  CHECK(!s.rails.up(s.path));
  CHECK_EQ(s.seen.size(), 1u);
  CHECK(s.seen.front().kind == RailEventKind::lost);
  CHECK_EQ(s.seen.front().at_ns, 50 * kMs + 1000);
  CHECK_EQ(s.transport.retired.size(), 1u);
}

TEST(what_queues_for_a_slow_nic_is_given_its_time) {
  Silent s;
  s.transport.rate = s.bytes.size() * 10;  // takes 100 ms, and four times that where others send as much to the same NIC
  s.step(60 * kMs);
  s.step(449 * kMs);
  CHECK(s.mail.sent.empty());
  s.step(450 * kMs);
  CHECK_EQ(s.mail.sent.size(), 1u);
  s.mail.answer();
  s.step(450 * kMs + 1000);
  CHECK(!s.rails.up(s.path));
}

// Another put over the same NIC, to another NIC of the peer, and `which` of the two is confirmed after 800 ms; true if the other one is then
// given time, once it has been asked about.
bool given_time(std::size_t which) {
  Silent s;
  s.transport.rate = s.bytes.size() * 10;
  CHECK(s.rails.add_path({1, 0, 1}, 0).ok());
  Put put;
  put.peer = 1;
  put.peer_nic = 1;
  put.source = s.bytes.data();
  put.nbytes = s.bytes.size();
  CHECK(s.rails.put(put).ok());
  s.step(0);
  CHECK_EQ(s.transport.puts.size(), 2u);
  s.step(800 * kMs);  // both in flight: 50 ms and four times 200
  CHECK(s.mail.sent.empty());
  s.transport.over.push_back({s.transport.puts[which].cookie, {}});
  s.step(800 * kMs);
  s.step(1200 * kMs);
  const bool given = s.mail.sent.empty();
  s.step(1250 * kMs);
  CHECK(!s.mail.sent.empty());
  return given;
}

TEST(who_comes_later_on_a_slow_nic_is_not_silent_while_those_before_it_move) {
  CHECK(given_time(0));
  CHECK(!given_time(1));  // what comes later says nothing about what should have come before
}

TEST(a_short_last_put_has_those_before_it_confirmed_at_once) {
  Silent s;
  CHECK(!s.transport.puts.back().urgent);
  Put last;
  last.peer = 1;
  last.source = s.bytes.data();
  last.nbytes = 64;  // copied, so complete when it is posted
  last.urgent = true;
  CHECK(s.rails.put(last).ok());
  CHECK(s.transport.puts.back().urgent);
  CHECK(s.rails.put(last).ok());  // by now nothing is owed
  CHECK(!s.transport.puts.back().urgent);
}

TEST(a_window_half_out_asks_to_be_confirmed_once) {
  Silent s;
  std::vector<std::byte> large(4 << 20);
  Put put;
  put.peer = 1;
  put.source = large.data();
  put.nbytes = large.size();
  put.tag.op_id = 3;
  CHECK(s.rails.put(put).ok());
  CHECK(s.transport.puts.size() > 3u && s.transport.puts.size() < 8u);  // 1 MiB in segments of 256 KiB, beside the 64 KiB
  std::uint64_t out = 0;
  int asked = 0;
  for (const Put& each : s.transport.puts) {
    out += each.nbytes;
    asked += each.urgent;
    CHECK_EQ(each.order, each.nbytes == s.bytes.size() && &each == &s.transport.puts.front() ? 1u : 2u);
    if (each.urgent) CHECK(2 * out > (1u << 20) && 2 * (out - each.nbytes) <= (1u << 20));
  }
  CHECK_EQ(asked, 1);
  // Who waits for room waits for nobody else, nor does what is of no schedule.
  for (const Put& each : s.transport.puts) CHECK_EQ(each.together, !each.urgent && each.tag.op_id >= 0);
}

TEST(an_answer_from_before_the_silence_decides_nothing) {
  Silent s;
  Datagram old;
  old.peer = 1;
  old.message.kind = MessageKind::pong;
  old.message.from = 1;
  old.message.token = static_cast<std::uint64_t>(40 * kMs);
  s.step(50 * kMs);
  s.mail.came.push_back(old);
  s.step(51 * kMs);
  CHECK(s.rails.up(s.path));
  s.mail.answer();
  s.step(52 * kMs);
  CHECK(!s.rails.up(s.path));
}

TEST(a_peer_that_does_not_answer_is_asked_again_and_its_path_stays) {
  Silent s;
  s.step(50 * kMs);
  const std::int64_t again_ns = s.wake_ns();
  CHECK(again_ns > 50 * kMs && again_ns <= 150 * kMs);
  s.step(again_ns);
  CHECK_EQ(s.mail.sent.size(), 2u);
  CHECK(s.rails.up(s.path));
}

// A path with all that it may have under way, confirmed at `bytes_per_ns`: what its segments and its window are then.
TEST(segments_grow_on_a_quick_path_and_shrink_on_a_slow_one) {
  constexpr std::uint64_t kKiB = 1024;
  const auto after = [](double bytes_per_ns) {
    Window window(1024 * kKiB, 256 * kKiB, 8192 * kKiB);
    CHECK_EQ(window.segment_bytes(), 256 * kKiB);
    CHECK_EQ(window.bytes(), 1024 * kKiB);
    const std::uint64_t nbytes = window.bytes();
    window.confirmed(nbytes, 0, 0, true, static_cast<std::int64_t>(static_cast<double>(nbytes) / bytes_per_ns));
    return window;
  };
  CHECK_EQ(after(2.0).segment_bytes(), 1024 * kKiB);
  CHECK_EQ(after(2.0).bytes(), 8192 * kKiB);
  CHECK_EQ(after(0.08).segment_bytes(), 256 * kKiB);  // 4 ms of it are 312 KiB
  CHECK_EQ(after(0.01).segment_bytes(), 32 * kKiB);
  CHECK_EQ(after(0.001).segment_bytes(), Window::kLeastSegment);
  CHECK_EQ(after(0.001).bytes(), Window::kLeastSegments * Window::kLeastSegment);
  CHECK_EQ(Window(64 * kKiB, 256 * kKiB, 8192 * kKiB).segment_bytes(), 64 * kKiB);
}

// Small ones are copied when they are posted; of a GPU none is, though it waits for the path to come back.
TEST(memory_of_a_gpu_is_not_read_by_the_host) {
  Silent s;
  void* const page = ::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  Put put;
  put.peer = 1;
  put.source = static_cast<const std::byte*>(page) + 64;
  put.source_key = kFirstDeviceKey + 5;
  put.nbytes = 100;
  put.cookie = 77;
  CHECK(s.rails.put(put).ok());
  s.step(1 * kMs);
  const auto told = [&] { return std::count_if(s.completions.begin(), s.completions.end(), [](const Completion& each) { return each.cookie == 77; }); };
  CHECK_EQ(told(), 0);
  CHECK_EQ(s.transport.puts.size(), 2u);
  CHECK(s.transport.puts.back().source == put.source && s.transport.puts.back().source_key == put.source_key);
  for (const Put& each : s.transport.puts) s.transport.over.push_back({each.cookie, {}});
  s.step(2 * kMs);
  CHECK_EQ(told(), 1);
  ::munmap(page, 4096);
}

}  // namespace
}  // namespace ccl_lab
