// Short puts, which go before rails write them down and are copied when there is time: when they complete, and what becomes of
// them where a path ends in between.
//
// Is: the moment of a decision, put by put, against a transport that does what a test says. Is not: when a path is lost (test_rails).
#include <sys/mman.h>

#include "swallowing.hpp"

namespace ccl_lab {
namespace {

using check::kMs;
using check::Mail;
using check::Swallowing;

// Rank 0 with two paths to rank 1, whose transport reads sources when it likes.
struct Brief {
  explicit Brief(bool free = false) : rails(0, transport, mail, SignalTable(words.data(), 2, 4, 4), nullptr, options()) {
    for (std::uint16_t nic = 0; nic < 2; ++nic) CHECK(rails.add_path({1, nic, nic}, 0).ok());
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7);
    before = bytes;
    transport.free = free;
    step(0);
  }

  static RailOptions options() {
    RailOptions o;
    o.node_of = {0, 1};
    o.silence_ns = 50 * kMs;
    o.copy_bytes = 0;
    o.later_bytes = 16 * 1024;
    return o;
  }

  Put make(std::uint64_t nbytes, std::uint64_t cookie) {
    Put put;
    put.peer = 1;
    put.source = bytes.data();
    put.nbytes = nbytes;
    put.destination = {9, 100};
    put.signal = 2;
    put.cookie = cookie;
    return put;
  }
  void put(std::uint64_t nbytes, std::uint64_t cookie) { CHECK(rails.put(make(nbytes, cookie)).ok()); }
  void step(std::int64_t now_ns) { rails.poll(now_ns, completions, events); }
  std::size_t told(std::uint64_t cookie) const {
    return static_cast<std::size_t>(std::count_if(completions.begin(), completions.end(), [&](const Completion& each) { return each.cookie == cookie; }));
  }
  std::uint64_t out(std::size_t path) const { return rails.paths()[path].in_flight_bytes; }

  // What the peer says of path 0: it lost it too, in this generation, and got so many segments.
  void hear(MessageKind kind, std::uint64_t received) {
    Datagram said;
    said.peer = 1;
    said.message.kind = kind;
    said.message.from = 1;
    said.message.generation = 1;
    said.message.received = received;
    mail.came.push_back(said);
  }

  Swallowing transport;
  Mail mail;
  std::vector<std::atomic<std::uint64_t>> words = std::vector<std::atomic<std::uint64_t>>(8);
  std::vector<std::byte> bytes = std::vector<std::byte>(65536), before;
  Rails rails;
  std::vector<Completion> completions;
  std::vector<LinkEvent> events;
};

TEST(a_short_put_is_complete_when_it_is_copied_which_waits_for_a_pause_and_for_the_transport) {
  for (const std::uint64_t nbytes : {1u, 512u, 513u, 16384u, 16385u}) {
    Brief s;
    s.put(nbytes, 5);
    CHECK_EQ(s.transport.puts.size(), 1u);
    CHECK(s.rails.unconfirmed());
    CHECK_EQ(s.out(0), nbytes);
    s.step(1 * kMs);
    s.step(2 * kMs);
    CHECK_EQ(s.told(5), 0u);  // the transport may still read it
    s.transport.free = true;
    s.transport.lands = {{0, 0, -1, 0}};
    s.step(2 * kMs);
    CHECK_EQ(s.told(5), 0u);  // there was something else to do
    s.step(2 * kMs);
    CHECK_EQ(s.told(5), nbytes <= 16384 ? 1u : 0u);
    s.transport.over.push_back({s.transport.puts[0].cookie, {}});
    s.step(3 * kMs);
    CHECK_EQ(s.told(5), 1u);
    CHECK(!s.rails.unconfirmed());
    CHECK_EQ(s.out(0), 0u);
  }
}

// The poll in which the shortest have gone completes them, though sending them was something: a wire that is held to a rate takes
// bytes some time after they were posted.
TEST(the_shortest_are_copied_as_soon_as_the_transport_is_done_with_them) {
  for (const std::uint64_t nbytes : {0u, 1u, 512u, 513u}) {
    Brief s;
    s.put(nbytes, 5);
    s.put(nbytes, 6);
    s.step(1000);
    s.step(2000);
    CHECK_EQ(s.told(5), 0u);
    s.transport.free = true;
    s.transport.moved = 1;
    s.step(3000);
    CHECK_EQ(s.told(5) + s.told(6), nbytes <= 512 ? 2u : 0u);
    std::fill(s.bytes.begin(), s.bytes.end(), std::byte{0});
    s.transport.moved = 0;
    s.step(3000);
    CHECK_EQ(s.told(5) + s.told(6), nbytes <= 512 ? 2u : 0u);
  }
}

// Longer ones are expected to be confirmed before a copy would be worth it, and whoever sleeps is woken when it is.
TEST(a_longer_short_put_is_copied_after_a_while_unless_somebody_waits_for_it) {
  for (const bool awaited : {false, true}) {
    Brief s(true);
    Put put = s.make(4096, 5);
    put.urgent = awaited;
    CHECK(s.rails.put(put).ok());
    s.step(1000);
    s.step(1000);
    CHECK_EQ(s.told(5), awaited ? 1u : 0u);
    if (awaited) continue;
    std::vector<pollfd> none;
    std::int64_t wake_ns = std::numeric_limits<std::int64_t>::max();
    s.rails.wait_set(none, wake_ns);
    CHECK_EQ(wake_ns, Uncopied::kYoungNs);
    s.step(wake_ns - 1);
    CHECK_EQ(s.told(5), 0u);
    s.step(wake_ns);
    CHECK_EQ(s.told(5), 1u);
  }
}

// Whoever has all that comes waits for copies only: these are made in the next poll, though something else may have happened in it.
TEST(where_nothing_comes_any_more_copies_wait_for_nothing) {
  for (const bool no_more : {false, true}) {
    Brief s(true);
    s.put(4096, 5);
    s.put(8192, 6);
    s.step(1000);
    CHECK_EQ(s.told(5), 0u);
    s.put(4096, 7);  // not written down yet
    if (no_more) s.rails.expects_no_more();
    s.transport.over.push_back({s.transport.puts[0].cookie, {}});
    s.transport.lands = {{0, 0, -1, 0}};
    s.step(1000);
    CHECK_EQ(s.told(5), 1u);
    CHECK_EQ(s.told(6), no_more ? 1u : 0u);
    CHECK_EQ(s.told(7), no_more ? 1u : 0u);
    s.put(4096, 8);
    s.transport.lands = {{0, 1, -1, 0}};
    if (no_more) s.rails.expects_no_more();
    s.step(2000);
    CHECK_EQ(s.told(8), no_more ? 1u : 0u);
    s.put(4096, 9);  // it was said of that poll
    s.step(2000);
    CHECK_EQ(s.told(9), 0u);
  }
}

// Ways in which path 0 may end right after a put went over it, before anything else happened.
constexpr int kEnds = 5;

void end_at_once(Brief& s, int how) {
  const Status why(Code::link_down, "pulled", 1, 0);
  s.transport.refusal = Status();
  if (how == 0) s.transport.failed.push_back({1, 0, why, 0});
  if (how == 1) s.hear(MessageKind::request, 0);
  if (how == 2) {
    s.rails.missing({1, 0, 0}, why);
    CHECK(s.mail.sent.front().message.kind == MessageKind::request);  // and not that nothing is to be sent again
  }
  if (how == 3) {  // silence
    s.step(50 * kMs);
    s.mail.answer();
    s.step(50 * kMs + 1000);
  }
  s.step(51 * kMs);  // how == 4: the transport has refused it
  CHECK(!s.rails.up({1, 0, 0}));
  CHECK_EQ(s.rails.counters().lost, 1u);
  s.hear(MessageKind::ack, 0);
  s.step(52 * kMs);
  s.step(53 * kMs);
}

TEST(what_went_over_a_path_that_ends_before_it_was_written_down_is_sent_again) {
  for (int how = 0; how < kEnds; ++how)
    for (const std::uint64_t nbytes : {100u, 4096u})
      for (const bool free : {false, true}) {
        Brief s(free);
        if (how == 4) s.transport.refusal = Status(Code::link_down, "pulled", 1, 0);
        s.put(nbytes, 5);
        s.put(nbytes, 6);
        const std::size_t first = s.transport.puts.size();
        CHECK_EQ(first, how == 4 ? 1u : 2u);  // the second one goes the other way by itself
        end_at_once(s, how);
        CHECK_EQ(s.told(5) + s.told(6), free ? 2u : 0u);
        if (free) std::fill(s.bytes.begin(), s.bytes.end(), std::byte{0});  // they are their owner's again
        CHECK_EQ(s.transport.puts.size(), first + (how == 4 ? 1u : 2u));
        for (std::size_t at = s.transport.puts.size() - 2; at < s.transport.puts.size(); ++at) {
          const Put& again = s.transport.puts[at];
          const std::uint32_t number = again.notice.number;
          CHECK(again.nic == 1 && again.nbytes == nbytes && again.destination.key == 9 && again.destination.offset == 100);
          CHECK(number < 2 && again.notice == (Notice{0, number, 2, number}));
          CHECK(s.transport.carries(at, s.before));
          s.transport.over.push_back({again.cookie, {}});
        }
        s.step(60 * kMs);
        CHECK(s.told(5) == 1 && s.told(6) == 1 && s.events.empty());
        CHECK(!s.rails.unconfirmed());
      }
}

// The peer got the first of them before the path ended: that one is done with, and only the other one goes again.
TEST(what_landed_of_it_is_not_sent_again) {
  Brief s;
  s.put(100, 5);
  s.put(100, 6);
  s.hear(MessageKind::request, 1);
  s.step(1 * kMs);
  CHECK_EQ(s.transport.puts.size(), 3u);
  CHECK_EQ(s.transport.puts[2].notice.number, 1u);
  CHECK_EQ(s.told(5), 1u);
}

TEST(short_and_long_puts_are_confirmed_in_their_order) {
  Brief s;
  s.put(100, 5);
  s.put(65536, 6);
  s.put(200, 7);
  s.put(16384, 8);
  CHECK_EQ(s.transport.puts.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK_EQ(s.transport.puts[i].notice.number, static_cast<std::uint32_t>(i));
    s.transport.over.push_back({s.transport.puts[i].cookie, {}});
    s.transport.lands = {{0, static_cast<std::uint32_t>(i), -1, 0}};  // and the peer's come with them
    s.step(1 * kMs);
    CHECK_EQ(s.completions.size(), i + 1);
    CHECK_EQ(s.completions[i].cookie, std::uint64_t{5} + i);
  }
  CHECK(!s.rails.unconfirmed());
}

TEST(a_short_put_that_no_path_would_take_ends_in_an_error_once) {
  for (const bool free : {false, true}) {
    Brief s(free);
    s.transport.refusal = Status(Code::bounds, "not there", 1, 0);
    s.put(100, 5);
    s.step(1 * kMs);
    s.step(2 * kMs);
    CHECK_EQ(s.told(5), 1u);
    CHECK_EQ(s.completions[0].status.ok(), free);      // it was complete, so
    CHECK_EQ(s.events.size(), free ? 1u : 0u);         // it is said otherwise
    CHECK(s.rails.up({1, 0, 0}) && !s.rails.unconfirmed());
    CHECK_EQ(s.out(0), 0u);
  }
}

// The peer's segments come in without a break, and what it does not confirm is missed all the same.
TEST(a_silent_path_is_asked_about_though_others_are_busy) {
  Brief s;
  s.put(100, 5);
  std::uint32_t number = 0;
  for (std::int64_t at = 0; at < 51 * kMs; at += kMs / 10) {
    s.transport.lands = {{0, number++, -1, 0}};
    s.step(at);
  }
  CHECK_EQ(s.mail.sent.size(), 1u);
  CHECK(s.mail.sent.back().message.kind == MessageKind::ping);
}

// Whoever posts after a long pause, and goes to sleep, is woken to write it down: else nobody would miss its confirmation.
TEST(what_is_not_written_down_yet_keeps_nobody_asleep) {
  Brief s;
  s.step(100 * kMs);
  s.put(100, 5);
  std::vector<pollfd> none;
  std::int64_t wake_ns = std::numeric_limits<std::int64_t>::max();
  s.rails.wait_set(none, wake_ns);
  CHECK_EQ(wake_ns, 100 * kMs);
  s.step(wake_ns);
  wake_ns = std::numeric_limits<std::int64_t>::max();
  s.rails.wait_set(none, wake_ns);
  CHECK_EQ(wake_ns, 150 * kMs);
}

// What is to be there surely, and memory of a GPU, which the host does not read, wait to be confirmed.
TEST(some_short_puts_are_complete_only_when_they_are_confirmed) {
  void* const page = ::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  for (const bool surely : {false, true}) {
    Brief s;
    Put put = s.make(100, 5);
    put.surely = surely;
    if (!surely) {
      put.source = static_cast<const std::byte*>(page);
      put.source_key = kFirstDeviceKey + 5;
    }
    CHECK(s.rails.put(put).ok());
    for (std::int64_t at = 0; at < 3 * kMs; at += kMs) {
      s.step(at);
      s.transport.free = true;
    }
    CHECK_EQ(s.told(5), 0u);
    s.transport.over.push_back({s.transport.puts[0].cookie, {}});
    s.step(4 * kMs);
    CHECK_EQ(s.told(5), 1u);
  }
  ::munmap(page, 4096);
}

TEST(a_short_last_put_asks_for_those_before_it_and_goes_with_others_of_its_schedule) {
  Brief s;
  s.put(65536, 5);
  Put last = s.make(64, 6);
  last.urgent = true;
  last.tag.op_id = 3;
  for (const bool owed : {true, false}) {
    CHECK(s.rails.put(last).ok());
    CHECK_EQ(s.transport.puts.back().urgent, owed);
    CHECK(s.transport.puts.back().together);
  }
  last.tag.op_id = -1;
  CHECK(s.rails.put(last).ok());
  CHECK(!s.transport.puts.back().together);
}

TEST(a_reset_forgets_what_was_not_written_down) {
  Brief s;
  s.put(100, 5);
  s.rails.reset(1);
  CHECK(!s.rails.unconfirmed() && s.rails.paths().empty());
  CHECK(s.rails.add_path({1, 0, 0}, 0).ok());
  s.put(200, 6);
  s.transport.over.push_back({s.transport.puts.back().cookie, {}});
  s.step(1 * kMs);
  CHECK(s.told(6) == 1 && s.told(5) == 0);
}

}  // namespace
}  // namespace ccl_lab
