// Several connections between two NICs: what they share, what each may hold, and what happens when one of them goes.
//
// Is: bundles of real sockets, and a sendmsg that takes as little as the test says (it is replaced here).
// Is not: what one connection does (test_tcp) or the common contract over several (test_conformance).
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "conformance.hpp"

using namespace ccl_lab;
using namespace ccl_lab::check;

namespace {

constexpr std::uint64_t kNoLimit = ~std::uint64_t{0};
std::uint64_t send_limit = kNoLimit;  // bytes the next sendmsg takes

// The first `limit` bytes of the parts.
std::vector<iovec> shortened(const iovec* parts, std::size_t n, std::uint64_t limit) {
  std::vector<iovec> found;
  for (std::size_t i = 0; i < n && limit > 0; ++i) {
    found.push_back({parts[i].iov_base, static_cast<std::size_t>(std::min<std::uint64_t>(parts[i].iov_len, limit))});
    limit -= found.back().iov_len;
  }
  return found;
}

}  // namespace

// NOLINTBEGIN: names and types are those of the C library
extern "C" ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  std::vector<iovec> parts = shortened(message->msg_iov, message->msg_iovlen, std::exchange(send_limit, kNoLimit));
  msghdr less = *message;
  less.msg_iov = parts.data();
  less.msg_iovlen = parts.size();
  return ::syscall(SYS_sendmsg, fd, &less, flags);
}
// NOLINTEND

namespace {

Put make_put(const std::byte* source, std::uint64_t nbytes, std::uint64_t offset, int signal, std::uint64_t cookie = 0) {
  Put put;
  put.peer = 1;
  put.source = source;
  put.nbytes = nbytes;
  put.destination = {1, offset};
  put.signal = signal;
  put.cookie = cookie;
  put.tag = {3, 11, 0};
  return put;
}

// Rank 0, whose peer is the test: it holds the other ends of the connections.
struct HandMade {
  std::vector<std::atomic<std::uint64_t>> counters = std::vector<std::atomic<std::uint64_t>>(2 * kChannels);
  SignalTable signals{counters.data(), 2, kChannels, kChannels};
  std::vector<std::byte> memory = std::vector<std::byte>(1 << 20);
  TcpTransport transport{0, signals, {}, nullptr};
  std::vector<Completion> completions;
  std::vector<LinkEvent> events;
  std::vector<int> peers;

  explicit HandMade(int n) {
    CHECK_OK(transport.register_region(1, memory.data(), memory.size()));
    for (int i = 0; i < n; ++i) {
      const auto [ours, theirs] = tcp_pair();
      peers.push_back(theirs);
      CHECK_OK(transport.add_connection(1, 0, 0, static_cast<std::uint16_t>(i), ours, 0));
    }
  }
  ~HandMade() {
    for (const int fd : peers) ::close(fd);
  }
  void poll() { transport.poll(now_ns(), completions, events); }
  template <class End>
  bool until(End&& end) {
    const std::int64_t deadline = now_ns() + 10'000'000'000;
    while (!end() && now_ns() < deadline) poll();
    return end();
  }

  void write(std::size_t connection, std::uint32_t segment, int signal, std::uint32_t sequence, std::uint64_t nbytes = 0) {
    FrameHeader header;
    header.segment = segment;
    header.signal = signal;
    header.sequence = sequence;
    header.key = 1;
    header.offset = segment * nbytes;
    header.nbytes = nbytes;
    FrameBytes head;
    encode(header, head);
    std::vector<std::byte> bytes(head.begin(), head.end());
    bytes.resize(bytes.size() + nbytes, static_cast<std::byte>(segment + 1));
    CHECK(::send(peers[connection], bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
  }
};

// Frames read from the other end of a connection, without waiting.
struct Reader {
  int fd;
  std::vector<std::byte> bytes;
  std::vector<FrameHeader> frames;
  std::uint64_t payload = 0;

  void read() {
    std::byte scrap[65536];
    for (ssize_t n = 0; (n = ::recv(fd, scrap, sizeof scrap, MSG_DONTWAIT)) > 0;) bytes.insert(bytes.end(), scrap, scrap + n);
    std::size_t at = 0;
    for (; bytes.size() - at >= kFrameHeaderBytes;) {
      FrameBytes head;
      std::memcpy(head.data(), bytes.data() + at, head.size());
      const Result<FrameHeader> header = decode(head, 0, kChannels);
      CHECK_OK(header.status());
      if (!header.ok() || bytes.size() - at < kFrameHeaderBytes + header.value().payload_bytes()) break;
      at += kFrameHeaderBytes + header.value().payload_bytes();
      payload += header.value().payload_bytes();
      frames.push_back(header.value());
    }
    bytes.erase(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(at));
  }
};

}  // namespace

TEST(segments_fire_in_order_and_wrap) {
  SegmentOrder order(~std::uint32_t{0} - 1);
  std::vector<int> fired;
  const auto landed = [&](std::uint32_t number, int signal) {
    return order.landed(number, signal, 0, [&](std::int32_t which, std::uint32_t) {
      fired.push_back(which);
      return Status();
    });
  };
  const auto from = [](std::uint32_t i) { return ~std::uint32_t{0} - 1 + i; };  // 2^32 - 2, 2^32 - 1, 0, 1, ...
  for (const std::uint32_t i : {3u, 1u, 5u}) CHECK_OK(landed(from(i), static_cast<int>(i)));
  CHECK(fired.empty());
  CHECK_EQ(order.n_kept(), std::size_t{3});
  CHECK(order.place(from(3)) == SegmentOrder::Place::seen && order.place(from(2)) == SegmentOrder::Place::wanted);
  CHECK(!landed(from(3), 3).ok());
  CHECK_OK(landed(from(0), 0));
  CHECK((fired == std::vector<int>{0, 1}));
  CHECK(!landed(from(1), 1).ok());
  CHECK_OK(landed(from(2), 2));
  CHECK_OK(landed(from(4), 4));
  CHECK((fired == std::vector<int>{0, 1, 2, 3, 4, 5}));
  CHECK_EQ(order.n_kept(), std::size_t{0});
  CHECK_EQ(order.next(), std::uint32_t{4});
  CHECK(order.place(order.next() + SegmentOrder::kMostAhead - 1) == SegmentOrder::Place::wanted);
  CHECK(order.place(order.next() + SegmentOrder::kMostAhead) == SegmentOrder::Place::early);
}

TEST(connections_take_turns_and_the_faster_one_carries_more) {
  HandMade mine(2);
  std::vector<std::byte> source(32 << 20);
  CHECK_OK(mine.transport.put(make_put(source.data(), source.size(), 0, 1, 9)));
  Reader stuck{mine.peers[0], {}, {}, 0}, fast{mine.peers[1], {}, {}, 0};
  for (int quiet = 0; quiet < 1000; ++quiet) {
    const std::uint64_t before = fast.payload;
    mine.poll();
    fast.read();
    if (fast.payload != before) quiet = 0;
    else ::usleep(100);  // the kernel brings the bytes when it comes to it
  }
  // What the stuck one holds is bounded by its batch and what the kernel takes; the rest went round it.
  CHECK(mine.completions.empty());
  const std::uint64_t held = source.size() - fast.payload;
  CHECK(held > 0 && held <= (8u << 20) + Connection::kBatchBytes + kSegmentBytes);
  std::printf("  the stuck connection holds %.1f MiB of %zu\n", static_cast<double>(held) / (1 << 20), source.size() >> 20);
  CHECK(mine.until([&] {
    stuck.read();
    fast.read();
    return stuck.payload + fast.payload == source.size();
  }));
  CHECK(mine.until([&] { return mine.completions.size() == 1; }));
  // Every segment once, and the signal on the last one only.
  std::vector<int> seen(source.size() / kSegmentBytes);
  for (const Reader* each : {&stuck, &fast})
    for (const FrameHeader& frame : each->frames) {
      ++seen[frame.segment];
      CHECK_EQ(frame.signal, frame.segment + 1 == seen.size() ? 1 : -1);
      CHECK_EQ(frame.offset, frame.segment * kSegmentBytes);
    }
  for (const int times : seen) CHECK_EQ(times, 1);
}

TEST(a_signal_waits_for_segments_on_other_connections) {
  HandMade mine(3);
  // Segment 2 carries the signal and comes first, on connection 2; segment 0 comes last.
  mine.write(2, 2, 5, 0, 1000);
  mine.write(1, 1, -1, 0, 1000);
  CHECK(mine.until([&] { return mine.memory[2999] == std::byte{3} && mine.memory[1999] == std::byte{2}; }));
  for (int i = 0; i < 100; ++i) mine.poll();
  CHECK_EQ(mine.signals.value(1, 5), 0u);
  mine.write(0, 0, -1, 0, 1000);
  CHECK(mine.until([&] { return mine.signals.value(1, 5) == 1; }));
  CHECK(mine.memory[999] == std::byte{1} && mine.events.empty());
}

TEST(a_connection_far_ahead_waits_for_the_others) {
  HandMade mine(2);
  constexpr std::uint32_t kAhead = SegmentOrder::kMostAhead + 500;
  for (std::uint32_t i = 1; i <= kAhead; ++i) {
    mine.write(0, i, 1, i - 1);
    mine.poll();
  }
  for (int i = 0; i < 1000; ++i) mine.poll();
  CHECK_EQ(mine.signals.value(1, 1), 0u);
  CHECK(mine.events.empty());
  mine.write(1, 0, -1, 0);
  CHECK(mine.until([&] { return mine.signals.value(1, 1) == kAhead; }));
  CHECK(mine.events.empty());
}

TEST(where_all_are_too_far_ahead_a_segment_is_missing) {
  HandMade mine(2);
  mine.write(0, SegmentOrder::kMostAhead, -1, 0);
  mine.write(1, SegmentOrder::kMostAhead + 1, -1, 0);
  CHECK(mine.until([&] { return !mine.events.empty(); }));
  CHECK(mine.events.size() == 1 && mine.events[0].status.message.find("not the one before them") != std::string::npos);
}

TEST(a_segment_that_comes_twice_is_refused_before_it_writes) {
  for (const bool kept : {false, true}) {
    HandMade mine(2);
    const std::uint32_t number = kept ? 1 : 0;
    mine.write(0, number, -1, 0, 100);
    CHECK(mine.until([&] { return mine.memory[number * 100] != std::byte{0}; }));
    mine.memory[number * 100] = std::byte{77};
    mine.write(1, number, -1, 0, 100);
    CHECK(mine.until([&] { return !mine.events.empty(); }));
    CHECK(mine.memory[number * 100] == std::byte{77});
  }
}

TEST(one_of_several_connections_lost_ends_them_all_and_spoils_nothing) {
  for (int life = 0; life < 6; ++life) {
    TcpMesh mesh(2, 2, 1);
    int cut = -1;  // a second descriptor of one socket, as if someone on the way cut it
    for (std::uint16_t index = 1; index < 4; ++index) {
      const auto [a, b] = tcp_pair();
      if (index == 2) cut = ::dup(life % 2 == 0 ? a : b);
      CHECK_OK(mesh.transport(0).add_connection(1, 0, 0, index, a, 0));
      CHECK_OK(mesh.transport(1).add_connection(0, 0, 0, index, b, 0));
    }
    constexpr std::uint64_t kPuts = 7, kBytes = 1000001;
    std::vector<std::byte> source(kPuts * kBytes);
    fill(source.data(), source.size(), static_cast<std::uint32_t>(life));
    for (std::uint64_t i = 0; i < kPuts; ++i)
      CHECK_OK(mesh.transport(0).put(make_put(source.data() + i * kBytes, kBytes, i * kBytes, 1, i)));
    for (int i = 0; i < 3 * life; ++i) mesh.poll();
    ::shutdown(cut, SHUT_RDWR);
    ::close(cut);
    CHECK(mesh.until([&] { return !mesh.events[0].empty() && !mesh.events[1].empty(); }));
    for (int i = 0; i < 100; ++i) mesh.poll();
    for (int r = 0; r < 2; ++r) {
      CHECK_EQ(mesh.events[Mesh::index(r)].size(), std::size_t{1});
      const LinkEvent& event = mesh.events[Mesh::index(r)][0];
      CHECK(event.peer == 1 - r && event.nic == 0);
      CHECK_EQ(static_cast<int>(event.status.code), static_cast<int>(Code::link_down));
      CHECK(!mesh.transport(r).connected(1 - r, 0, 0) && mesh.transport(r).connected(1 - r, 1, 1));
      CHECK_EQ(mesh.transport(r).n_connections(), std::size_t{1});
    }
    CHECK_EQ(mesh.completions[0].size(), std::size_t{kPuts});
    const std::uint64_t raised = mesh.signals(1).value(0, 1);
    CHECK(raised <= kPuts);
    CHECK(std::memcmp(mesh.memory(1), source.data(), raised * kBytes) == 0);
    Put other = make_put(source.data(), 100, 0, 2);
    other.nic = other.peer_nic = 1;
    CHECK_OK(mesh.transport(0).put(other));
    CHECK(mesh.until([&] { return mesh.signals(1).value(0, 2) == 1; }));
  }
}

TEST(what_a_peer_sent_on_any_connection_before_it_went_still_arrives) {
  TcpMesh mesh(2, 1, 3);
  std::vector<std::byte> source(2 << 20, std::byte{7});
  CHECK_OK(mesh.transport(1).put([&] {
    Put put = make_put(source.data(), source.size(), 0, 1);
    put.peer = 0;
    return put;
  }()));
  for (int i = 0; i < 100000 && mesh.completions[1].empty(); ++i) mesh.poll();
  CHECK_EQ(mesh.completions[1].size(), std::size_t{1});
  mesh.kill(1);
  CHECK(mesh.until([&] { return !mesh.events[0].empty(); }));
  CHECK_EQ(mesh.signals(0).value(1, 1), 1u);
  CHECK_EQ(static_cast<int>(mesh.memory(0)[source.size() - 1]), 7);
  CHECK_EQ(mesh.events[0].size(), std::size_t{1});
  CHECK_EQ(static_cast<int>(mesh.events[0][0].status.code), static_cast<int>(Code::peer_lost));
}

TEST(a_send_may_stop_at_every_byte_of_a_batch) {
  TcpMesh mesh(2);
  const std::uint64_t sizes[] = {0, 1, 60, 300, 5};
  std::uint64_t total = 0;
  for (const std::uint64_t size : sizes) total += kFrameHeaderBytes + size;
  std::vector<std::byte> source(1000);
  std::uint64_t posted = 0;
  for (std::uint64_t stop = 1; stop <= total; ++stop) {
    fill(source.data(), source.size(), static_cast<std::uint32_t>(stop));
    std::memset(mesh.memory(1), 0, source.size());
    std::uint64_t offset = 0;
    for (const std::uint64_t size : sizes) {
      CHECK_OK(mesh.transport(0).put(make_put(source.data() + offset, size, offset, 1, ++posted)));
      offset += size;
    }
    send_limit = stop;
    CHECK(mesh.until([&] { return mesh.signals(1).value(0, 1) == posted; }));
    CHECK_EQ(send_limit, kNoLimit);
    CHECK(std::memcmp(mesh.memory(1), source.data(), offset) == 0);
  }
  CHECK(mesh.completed(0, posted));
  CHECK(mesh.events[0].empty() && mesh.events[1].empty());
}

TEST(a_read_may_stop_at_every_byte_of_several_frames) {
  const std::uint64_t sizes[] = {0, 1, 60, 300, 3000, 5};
  HandMade mine(1);
  std::uint32_t number = 0;
  std::size_t total = 1;
  for (std::size_t stop = 1; stop <= total; ++stop) {
    std::vector<std::byte> stream, expected;
    for (const std::uint64_t size : sizes) {
      FrameHeader header;
      header.segment = header.sequence = number++;
      header.signal = 1;
      header.key = 1;
      header.offset = expected.size();
      header.nbytes = size;
      FrameBytes head;
      encode(header, head);
      stream.insert(stream.end(), head.begin(), head.end());
      for (std::uint64_t i = 0; i < size; ++i) {
        stream.push_back(static_cast<std::byte>((i + stop) % 251 + 1));
        expected.push_back(stream.back());
      }
    }
    total = stream.size();
    CHECK(::send(mine.peers[0], stream.data(), stop, MSG_NOSIGNAL) == static_cast<ssize_t>(stop));
    for (int i = 0; i < 3; ++i) mine.poll();
    if (stop < total) CHECK(::send(mine.peers[0], stream.data() + stop, total - stop, MSG_NOSIGNAL) > 0);
    CHECK(mine.until([&] { return mine.signals.value(1, 1) == number; }));
    CHECK(std::memcmp(mine.memory.data(), expected.data(), expected.size()) == 0);
    std::memset(mine.memory.data(), 0, expected.size());
    if (failures() > 5) return;
  }
  CHECK(mine.events.empty());
}

TEST(a_get_larger_than_a_segment_uses_all_connections) {
  TcpMesh mesh(2, 1, 4);
  for (const std::uint64_t nbytes : {std::uint64_t{1}, kSegmentBytes, 5 * kSegmentBytes + 3}) {
    fill(mesh.memory(1), nbytes, 3);
    std::memset(mesh.memory(0), 0, nbytes + 1);
    Get get;
    get.peer = 1;
    get.destination = mesh.memory(0);
    get.nbytes = nbytes;
    get.source = {1, 0};
    mesh.completions[0].clear();
    CHECK_OK(mesh.transport(0).get(get));
    CHECK(mesh.completed(0, 1));
    CHECK_OK(mesh.completions[0][0].status);
    CHECK(std::memcmp(mesh.memory(0), mesh.memory(1), nbytes) == 0);
    CHECK(mesh.memory(0)[nbytes] == std::byte{0});
  }
}
