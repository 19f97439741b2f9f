// Confirmations that wait: for others to go with, told by another pair of NICs, and those that are heard with a short message.
//
// Is: two ranks over real sockets at a time of the test's choice, a peer made by hand, and calls of the system that are counted, and may take
//     as little as the test says (they are replaced here).
// Is not: when a confirmation is owed at all (test_tcp_confirmed), nor what the layer above makes of it (test_rails).
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>

#include "confirmed.hpp"

using namespace ccl_lab;
using namespace ccl_lab::check;

namespace {

std::uint64_t send_limit = ~std::uint64_t{0};  // bytes that sendmsg still takes
int n_sends = 0;
int n_looks = 0;  // at what the system has

}  // namespace

// NOLINTBEGIN: names and types are those of the C library
extern "C" ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  ++n_sends;
  std::vector<iovec> parts;
  for (std::size_t i = 0; i < message->msg_iovlen && send_limit > 0; ++i) {
    const iovec& part = message->msg_iov[i];
    parts.push_back({part.iov_base, static_cast<std::size_t>(std::min<std::uint64_t>(part.iov_len, send_limit))});
    send_limit -= parts.back().iov_len;
  }
  if (parts.empty()) {
    errno = EAGAIN;
    return -1;
  }
  msghdr less = *message;
  less.msg_iov = parts.data();
  less.msg_iovlen = parts.size();
  return ::syscall(SYS_sendmsg, fd, &less, flags);
}

extern "C" int epoll_wait(int fd, epoll_event* events, int most, int timeout) {
  ++n_looks;
  return static_cast<int>(::syscall(SYS_epoll_pwait, fd, events, most, timeout, nullptr, 0));
}
// NOLINTEND

namespace {

constexpr std::int64_t kStart = 1'000'000'000;
constexpr std::uint16_t kNics = 4;

// Rank 0 has sent rank 1 a put over each of their NICs, and waits for them; nothing was confirmed yet.
struct Asked : Ranks {
  explicit Asked(bool together = true, std::uint64_t rate = 0, std::int64_t delay_ns = 0) : Ranks(kNics) {
    if (delay_ns > 0) segment(1).faults()[0].set(NicFault::delay_ns, delay_ns);
    for (int r = 0; r < 2; ++r)
      for (NicShaper& nic : segment(r).shapers()) nic.bytes_per_s.store(rate);
    turn_all(kStart);
    for (std::uint16_t nic = 0; nic < kNics; ++nic) {
      Put put = make_put(1, &byte, 1, nic, nic, true);
      put.nic = put.peer_nic = nic;
      put.together = together;
      CHECK_OK(transport(0).put(put));
    }
    for (std::int64_t at = kStart; at < kStart + 10'000; at += 1000)  // slots of a wire pass meanwhile
      for (int r = 0; r < 2 && heard(1).size() < kNics; ++r) turn(r, rate > 0 ? at : kStart);
    CHECK_EQ(heard(1).size(), std::size_t{kNics});
  }
  int turn(int rank, std::int64_t at) {
    const int before = n_sends;
    for (int quiet = 0; quiet < 50;) quiet = transport(rank).poll(at, done(rank), lost(rank)) > 0 ? 0 : quiet + 1;
    return n_sends - before;
  }
  void turn_all(std::int64_t at) {
    for (int i = 0; i < 3; ++i)
      for (int r = 0; r < 2; ++r) turn(r, at);
  }
  // As who drives rank 1 says it, between two polls.
  int turn_at_end(std::int64_t at) {
    const int before = n_sends;
    for (int i = 0; i < 4; ++i) {
      transport(1).expects_no_more(false);
      transport(1).poll(at, done(1), lost(1));
    }
    return n_sends - before;
  }
  std::int64_t wake_ns(int rank) {
    std::vector<pollfd> descriptors;
    std::int64_t at = INT64_MAX;
    transport(rank).wait_set(descriptors, at);
    return at;
  }
  void all_confirmed() {
    CHECK_EQ(done(0).size(), std::size_t{kNics});
    for (const Completion& each : done(0)) CHECK_OK(each.status);
  }

  std::byte byte{7};
};

// Rank 0 with a path to each of two NICs of rank 1, which is the test: its NIC 0 to 2 of the peer, its NIC 1 to 3.
struct ByHand {
  Hearer hearer;
  std::vector<std::atomic<std::uint64_t>> counters = std::vector<std::atomic<std::uint64_t>>(2 * kChannels);
  std::vector<std::byte> memory = std::vector<std::byte>(1 << 20);
  TcpTransport transport{0, SignalTable(counters.data(), 2, kChannels, kChannels), {}, nullptr};
  std::vector<Completion> completions;
  std::vector<LinkEvent> events;
  int peers[2] = {-1, -1};

  ByHand() {
    transport.set_receiver(&hearer);
    CHECK_OK(transport.register_region(1, memory.data(), memory.size()));
    for (std::uint16_t nic = 0; nic < 2; ++nic) join(nic);
  }
  ~ByHand() {
    send_limit = ~std::uint64_t{0};
    transport.set_receiver(nullptr);
    for (const int fd : peers) ::close(fd);
  }
  void join(std::uint16_t nic) {
    if (peers[nic] >= 0) ::close(peers[nic]);
    const auto [ours, theirs] = tcp_pair();
    CHECK_OK(transport.add_connection(1, nic, static_cast<std::uint16_t>(nic + 2), 0, ours, 0));
    peers[nic] = theirs;
  }
  void post(std::uint32_t number, std::uint64_t nbytes = 1) {
    Put put = make_put(1, memory.data(), nbytes, 0, number, true);
    put.peer_nic = 2;
    put.together = true;
    CHECK_OK(transport.put(put));
    poll();
  }
  void poll(int times = 200) {
    for (int i = 0; i < times; ++i) transport.poll(now_ns(), completions, events);
  }
  void send(int nic, const FrameHeader& header) {
    FrameBytes bytes;
    encode(header, bytes);
    const std::vector<std::byte> whole = [&] {
      std::vector<std::byte> all(bytes.begin(), bytes.end());
      all.resize(all.size() + header.payload_bytes());
      return all;
    }();
    CHECK(::send(peers[nic], whole.data(), whole.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(whole.size()));
  }
  // A short message of the peer that says how far this rank's segments have landed.
  void send_short(std::uint32_t ack, std::uint32_t segment = 0) {
    FrameHeader header;
    header.notice = true;
    header.key = 1;
    header.nbytes = 8;
    header.segment = header.number = segment;
    header.ack = ack;
    send(0, header);
  }
};

// Over NIC 1: the peer has put `number`, and all before `segment`, over NIC 0.
FrameHeader aside(std::uint32_t segment, std::uint32_t number) {
  FrameHeader header;
  header.type = FrameType::ack_aside;
  header.lane = std::uint32_t{2} << 16 | 0;  // as the peer calls them: its own first
  header.segment = segment;
  header.key = number * 3 + 1;
  header.number = number;
  return header;
}

}  // namespace

// ---- told together

TEST(one_call_of_the_system_confirms_what_came_over_all_nics) {
  Asked ranks;
  CHECK_EQ(ranks.turn(1, kStart + Bundle::kTogetherNs - 1), 0);
  CHECK_EQ(ranks.turn_at_end(kStart + Bundle::kTogetherNs - 1), 1);
  ranks.turn(0, kStart + Bundle::kTogetherNs);
  ranks.all_confirmed();
}

TEST(nobody_waits_long_for_others_to_be_confirmed_with) {
  Asked ranks;
  CHECK_EQ(ranks.wake_ns(1), kStart + Bundle::kTogetherNs);
  CHECK_EQ(ranks.turn(1, kStart + Bundle::kTogetherNs - 1), 0);
  CHECK_EQ(ranks.turn(1, kStart + Bundle::kTogetherNs), int{kNics});
  ranks.turn(0, kStart + Bundle::kTogetherNs);
  ranks.all_confirmed();
}

TEST(a_put_that_may_not_wait_for_others_is_confirmed_at_once) {
  Asked ranks(false);
  ranks.turn(0, kStart);
  ranks.all_confirmed();
}

// Their order is that of the wire's slots, which a frame of another NIC would not have.
TEST(nics_that_are_held_to_a_rate_confirm_each_by_itself) {
  Asked ranks(true, std::uint64_t{1} << 40);
  for (std::int64_t at = kStart + 10'000; at < kStart + 20'000; at += 1000) ranks.turn_all(at);
  ranks.all_confirmed();
}

TEST(an_end_is_said_once_and_holds_for_one_poll) {
  Asked ranks;
  ranks.turn_at_end(kStart);
  ranks.turn(0, kStart);
  const Put put = [&] {
    Put one = make_put(1, &ranks.byte, 1, 0, 50, true);
    one.together = true;
    return one;
  }();
  CHECK_OK(ranks.transport(0).put(put));
  ranks.turn(0, kStart);
  CHECK_EQ(ranks.turn(1, kStart), 0);
  CHECK_EQ(ranks.turn_at_end(kStart), 1);
}

// What one said for the others is lost with it; they say it again, each for itself, and who sleeps is told when.
TEST(a_confirmation_whose_carrier_is_lost_is_said_again) {
  for (std::uint16_t lost = 0; lost < kNics; ++lost) {
    Asked ranks;
    CHECK_EQ(ranks.turn_at_end(kStart), 1);
    ranks.transport(0).retire({1, lost, lost});  // with all that the kernel has from there
    ranks.turn(0, kStart);
    const std::size_t left = ranks.done(0).size();
    CHECK(left == 0 || left == kNics - 1);  // whether it was the one that carried them
    CHECK_EQ(ranks.wake_ns(1) <= kStart + Bundle::kScheduledAckDelayNs, true);
    ranks.turn(1, kStart + Bundle::kScheduledAckDelayNs);
    ranks.turn(0, kStart + Bundle::kScheduledAckDelayNs);
    CHECK_EQ(ranks.done(0).size(), std::size_t{kNics - 1});
    for (const Completion& each : ranks.done(0)) CHECK(each.status.ok() && each.cookie != lost);
  }
}

// Said once by another and once more by itself: the second time is nothing new, and nobody says it a third time.
TEST(what_is_said_again_does_no_harm) {
  Asked ranks;
  ranks.turn_at_end(kStart);
  ranks.turn(0, kStart);
  ranks.all_confirmed();
  CHECK_EQ(ranks.turn(1, kStart + Bundle::kScheduledAckDelayNs), kNics - 1);
  ranks.turn_all(kStart + Bundle::kScheduledAckDelayNs);
  ranks.all_confirmed();
  CHECK(ranks.lost(0).empty() && ranks.lost(1).empty());
  CHECK_EQ(ranks.wake_ns(1), INT64_MAX);
}

// A NIC that injectors slow down says late that something came, too.
TEST(a_nic_that_is_slow_confirms_by_itself_and_late) {
  Asked ranks(true, 0, 2'000'000);
  CHECK_EQ(ranks.turn_at_end(kStart + 1000), 1);  // for the others
  ranks.turn(0, kStart + 1000);
  CHECK_EQ(ranks.done(0).size(), std::size_t{kNics - 1});
  CHECK_EQ(ranks.turn_at_end(kStart + 1'999'999), 0);
  ranks.turn(1, kStart + 2'000'000);
  ranks.turn(0, kStart + 2'000'000);
  ranks.all_confirmed();
}

// Whoever does not poll again asks before whether it may go.
TEST(a_rank_knows_whether_it_owes_a_confirmation) {
  Asked ranks;
  CHECK(ranks.transport(1).owes_confirmations() && !ranks.transport(0).owes_confirmations());
  ranks.turn_at_end(kStart);
  CHECK(!ranks.transport(1).owes_confirmations());
  for (std::uint32_t number = 50; number < 52; ++number) {  // twice over the same NIC is one
    Put put = make_put(1, &ranks.byte, 1, 0, number, true);
    put.together = true;
    CHECK_OK(ranks.transport(0).put(put));
  }
  ranks.turn(0, kStart);
  ranks.turn(1, kStart);
  CHECK(ranks.transport(1).owes_confirmations());
  ranks.turn_at_end(kStart);
  CHECK(!ranks.transport(1).owes_confirmations());
  Asked late;
  late.turn(1, kStart + Bundle::kTogetherNs);
  CHECK(!late.transport(1).owes_confirmations());
  // Silence keeps nobody: it may have no end.
  Asked silent;
  for (NicFaults& nic : silent.segment(1).faults()) nic.set(NicFault::silent_tx, 1);
  CHECK_EQ(silent.turn_at_end(kStart), 0);
  CHECK(!silent.transport(1).owes_confirmations());
  for (NicFaults& nic : silent.segment(1).faults()) nic.set(NicFault::silent_tx, 0);
  silent.turn_all(kStart + 1'000'000'000);
  silent.all_confirmed();
  Asked retired;
  for (std::uint16_t nic = 0; nic < kNics; ++nic) retired.transport(1).retire({0, nic, nic});
  CHECK(!retired.transport(1).owes_confirmations());
}

// ---- by a peer that may be wrong

TEST(only_what_fits_is_taken_from_another_pair_of_nics) {
  for (const int what : {0, 1, 2, 3, 4, 5, 6}) {
    ByHand rank;
    rank.post(5);
    FrameHeader header = aside(1, 5);
    if (what == 1) header.segment = 2;          // was not sent
    if (what == 2) header.segment = 0;          // says nothing
    if (what == 3) header.key += 1;             // another lane
    if (what == 4) header.number += 1;          // another put
    if (what == 5) header.lane = 2;             // NICs that are not joined: the ends in the wrong order
    if (what == 6) header.lane += 0x1'0001;     // the pair that carries it, over which nothing was sent
    rank.send(1, header);
    rank.poll();
    CHECK_EQ(rank.completions.size(), what == 0 ? 1u : 0u);
    CHECK(rank.events.empty());
    if (what > 0) rank.send(1, aside(1, 5));  // and it is no worse off
    rank.poll();
    CHECK(rank.completions.size() == 1 && rank.completions[0].cookie == 5 && rank.completions[0].status.ok());
  }
}

TEST(what_has_not_all_been_sent_is_not_confirmed) {
  ByHand rank;
  send_limit = 5000;
  rank.post(5, 20000);
  rank.send(1, aside(1, 5));
  rank.poll();
  CHECK(rank.completions.empty() && rank.events.empty());
  // Nor later, when it has, by what was said before.
  send_limit = ~std::uint64_t{0};
  rank.send_short(0);
  rank.poll();
  CHECK(rank.hearer.heard.size() == 1 && rank.completions.empty() && rank.events.empty());
  rank.send(1, aside(1, 5));
  rank.poll();
  CHECK_EQ(rank.completions.size(), 1u);
}

// The frame is about the connections that were lost, and comes after new ones were made.
TEST(what_was_said_of_a_path_before_it_came_back_is_nothing_to_it) {
  ByHand rank;
  rank.post(5);
  rank.transport.retire({1, 0, 2});
  rank.send(1, aside(1, 5));  // while there is none
  rank.poll();
  rank.join(0);
  rank.post(6);
  rank.send(1, aside(1, 5));
  rank.poll();
  CHECK(rank.completions.empty() && rank.events.empty());
  rank.send(1, aside(1, 6));
  rank.poll();
  CHECK(rank.completions.size() == 1 && rank.completions[0].cookie == 6);
}

// Of two connections between the same NICs the slower one says less.
TEST(a_confirmation_that_comes_late_takes_nothing_back) {
  ByHand rank;
  const auto [ours, theirs] = tcp_pair();
  CHECK_OK(rank.transport.add_connection(1, 0, 2, 1, ours, 0));
  rank.post(5);
  rank.post(6);
  rank.send_short(2);
  const int first = std::exchange(rank.peers[0], theirs);
  rank.send_short(1, 1);
  ::usleep(1000);
  rank.poll();
  CHECK_EQ(rank.hearer.heard.size(), 2u);
  CHECK_EQ(rank.completions.size(), 2u);
  ::close(first);
}

// ---- heard with a short message

TEST(a_short_message_is_handed_on_before_what_it_confirms_and_nobody_sleeps_between) {
  ByHand rank;
  rank.post(5);
  rank.poll(1000);
  rank.send_short(1);
  CHECK(rank.completions.empty());
  const std::int64_t deadline = now_ns() + 10'000'000'000;
  while (rank.hearer.heard.empty() && now_ns() < deadline) rank.poll(1);
  CHECK_EQ(rank.hearer.heard.size(), 1u);
  if (rank.completions.empty()) {
    std::vector<pollfd> descriptors;
    std::int64_t wake_ns = INT64_MAX;
    rank.transport.wait_set(descriptors, wake_ns);
    CHECK_EQ(wake_ns, 0);
  }
  CHECK(rank.completions.empty());
  rank.poll(3);
  CHECK(rank.completions.size() == 1 && rank.completions[0].status.ok());
  std::vector<pollfd> descriptors;
  std::int64_t wake_ns = INT64_MAX;
  rank.transport.wait_set(descriptors, wake_ns);
  CHECK(wake_ns > 0);
}

// Whoever has all but confirmations has those that are here without a look at what else there may be.
TEST(confirmations_that_alone_are_missing_are_there_without_a_look) {
  for (const bool waits : {false, true}) {
    ByHand rank;
    rank.post(5);
    rank.send_short(1);
    const std::int64_t deadline = now_ns() + 10'000'000'000;
    while (rank.hearer.heard.empty() && now_ns() < deadline) rank.poll(1);
    CHECK(rank.hearer.heard.size() == 1 && rank.completions.empty());
    const int before = n_looks;
    rank.transport.expects_no_more(waits);
    rank.poll(1);
    CHECK_EQ(rank.completions.size(), 1u);
    CHECK_EQ(n_looks - before, waits ? 0 : 1);
  }
}

TEST(bytes_that_wait_for_the_kernel_are_unsent_however_often_one_looks) {
  ByHand rank;
  send_limit = 5000;
  rank.post(5, 20000);
  rank.poll();
  CHECK(rank.transport.unsent());
  const FrameHeader nothing_new = aside(0, 0);
  rank.send(1, nothing_new);
  rank.poll();
  CHECK(rank.transport.unsent());
}

TEST(what_a_short_message_confirmed_counts_though_its_path_ends_with_it) {
  ByHand rank;
  rank.post(5);
  rank.send_short(1);
  ::shutdown(rank.peers[0], SHUT_RDWR);
  const std::int64_t deadline = now_ns() + 10'000'000'000;
  while (rank.events.empty() && now_ns() < deadline) rank.poll(1);
  CHECK_EQ(rank.events.size(), 1u);
  CHECK(rank.completions.size() == 1 && rank.completions[0].cookie == 5 && rank.completions[0].status.ok());
}

TEST(a_short_message_that_confirms_what_was_not_sent_ends_its_path) {
  ByHand rank;
  rank.post(5);
  rank.send_short(2);
  rank.poll(2000);
  CHECK(rank.events.size() == 1 && rank.events[0].status.message.find("which was not sent") != std::string::npos);
  CHECK(rank.completions.size() == 1 && !rank.completions[0].status.ok());
}

// Short messages without end do not put confirmations off without end.
TEST(many_confirmations_do_not_wait_for_a_pause) {
  ByHand rank;
  for (std::uint32_t i = 0; i <= Bundle::kAckNotices; ++i) rank.post(i);
  for (std::uint32_t i = 0; i < 2; ++i) rank.send_short(i + 1, i);
  const std::int64_t deadline = now_ns() + 10'000'000'000;
  while (rank.hearer.heard.size() < 2 && now_ns() < deadline) rank.poll(1);
  CHECK_EQ(rank.completions.size(), 2u);
}
