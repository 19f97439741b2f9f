// In which order a shaped NIC sends and reads what several connections have for it.
//
// Is: real sockets on a virtual clock, as in test_tcp: when each of several puts is over. Is not: rates.
#include "shaped.hpp"

using namespace ccl_lab;
using namespace ccl_lab::check;

namespace {

std::int64_t frame_ns(std::uint64_t nbytes) { return Shaper::duration_ns(nbytes, kRate); }

}  // namespace

TEST(frames_of_a_nic_leave_one_after_the_other_and_short_ones_do_not_queue) {
  TcpMesh mesh(4);
  shape(mesh.segment(0), kRate);
  std::vector<std::byte> source(kSegmentBytes);
  const std::int64_t start = 1'000'000'000;
  settle(mesh, start);
  for (int r = 1; r < 3; ++r) CHECK_OK(mesh.transport(0).put(make_put(r, source.data(), source.size(), 1)));
  const std::int64_t whole_ns = frame_ns(source.size());
  std::int64_t ends[4] = {};
  for (std::int64_t now = start; now < start + 3 * whole_ns; now += whole_ns / 50) {
    settle(mesh, now);
    if (now - start > whole_ns / 10 && ends[0] == 0) {
      CHECK_OK(mesh.transport(0).put(make_put(3, source.data(), 64, 1)));
      ends[0] = now;
    }
    for (int r = 1; r < 4; ++r)
      if (ends[r] == 0 && mesh.signals(r).value(0, 1) == 1) ends[r] = now;
  }
  CHECK(std::abs(std::min(ends[1], ends[2]) - start - whole_ns) < whole_ns / 10);
  CHECK(std::abs(std::max(ends[1], ends[2]) - start - 2 * whole_ns) < whole_ns / 10);
  CHECK(ends[3] > 0 && ends[3] - ends[0] < whole_ns / 10);
}

TEST(a_short_frame_is_read_while_another_peer_fills_the_nic) {
  TcpMesh mesh(3);
  for (int r = 0; r < 3; ++r) shape(mesh.segment(r), kRate);
  std::vector<std::byte> source(2 << 20);
  const std::int64_t start = 1'000'000'000;
  settle(mesh, start);
  CHECK_OK(mesh.transport(1).put(make_put(0, source.data(), source.size(), 1)));
  const std::int64_t quantum_ns = Shaper::duration_ns(Shaper::quantum(kRate), kRate);
  for (int i = 0; i < 10; ++i) settle(mesh, start + i * quantum_ns);
  CHECK_OK(mesh.transport(2).put(make_put(0, source.data(), 64, 1)));
  for (int i = 10; i < 14; ++i) settle(mesh, start + i * quantum_ns);
  CHECK_EQ(mesh.signals(0).value(2, 1), 1u);
  CHECK_EQ(mesh.signals(0).value(1, 1), 0u);
}

TEST(frames_that_meet_at_a_nic_are_read_one_after_the_other) {
  TcpMesh mesh(3);
  for (int r = 0; r < 3; ++r) shape(mesh.segment(r), kRate);
  std::vector<std::byte> source(kSegmentBytes);
  const std::int64_t start = 1'000'000'000;
  settle(mesh, start);
  const std::int64_t whole_ns = frame_ns(source.size());
  CHECK_OK(mesh.transport(1).put(make_put(0, source.data(), source.size(), 1)));
  std::int64_t ends[3] = {};
  for (std::int64_t now = start; now < start + 3 * whole_ns; now += whole_ns / 50) {
    if (now - start > whole_ns / 5 && ends[0] == 0) {
      CHECK_OK(mesh.transport(2).put(make_put(0, source.data(), source.size(), 1)));
      ends[0] = now;
    }
    settle(mesh, now);
    for (int r = 1; r < 3; ++r)
      if (ends[r] == 0 && mesh.signals(0).value(r, 1) == 1) ends[r] = now;
  }
  // Sharing would end it at 1.8. The later one may get a quantum, a quarter of a frame, between two of the earlier one.
  CHECK(static_cast<double>(ends[1] - start) < 1.3 * static_cast<double>(whole_ns));
  CHECK(std::abs(ends[2] - start - 2 * whole_ns) < whole_ns / 10);
}

TEST(puts_of_a_nic_leave_in_the_order_of_posting) {
  TcpMesh mesh(3);
  shape(mesh.segment(0), kRate);
  std::vector<std::byte> source(4 * kSegmentBytes);
  const std::int64_t start = 1'000'000'000;
  const std::int64_t whole_ns = frame_ns(source.size());
  settle(mesh, start);
  for (const int r : {2, 1}) CHECK_OK(mesh.transport(0).put(make_put(r, source.data(), source.size(), 1)));
  std::int64_t ends[3] = {};
  for (std::int64_t now = start; now < start + 3 * whole_ns; now += whole_ns / 100) {
    settle(mesh, now);
    for (int r = 1; r < 3; ++r)
      if (ends[r] == 0 && mesh.signals(r).value(0, 1) == 1) ends[r] = now;
  }
  CHECK(std::abs(ends[2] - start - whole_ns) < whole_ns / 10);
  CHECK(std::abs(ends[1] - start - 2 * whole_ns) < whole_ns / 10);
}

TEST(segments_of_an_older_put_go_first_whenever_they_are_posted) {
  TcpMesh mesh(3);
  shape(mesh.segment(0), kRate);
  std::vector<std::byte> source(kSegmentBytes);
  const std::int64_t start = 1'000'000'000;
  const std::int64_t whole_ns = frame_ns(source.size());
  settle(mesh, start);
  const auto post = [&](int peer, std::uint64_t order, int signal) {
    Put put = make_put(peer, source.data(), source.size(), signal);
    put.order = order;
    CHECK_OK(mesh.transport(0).put(put));
  };
  post(1, 7, 1);
  for (int i = 0; i < 4; ++i) post(2, 8, i == 3 ? 1 : 2);
  std::int64_t ends[3] = {};
  bool more = true;
  for (std::int64_t now = start; now < start + 7 * whole_ns; now += whole_ns / 50) {
    if (std::exchange(more, now - start < whole_ns / 2) && !more) post(1, 7, 1);
    settle(mesh, now);
    if (ends[1] == 0 && mesh.signals(1).value(0, 1) == 2) ends[1] = now;
    if (ends[2] == 0 && mesh.signals(2).value(0, 1) == 1) ends[2] = now;
  }
  CHECK(ends[1] > 0 && ends[1] - start < 4 * whole_ns);  // after those that had their slots already
  CHECK(ends[2] - start > 5 * whole_ns);
}

TEST(pieces_of_a_message_queue_however_short) {
  TcpMesh mesh(2);
  shape(mesh.segment(0), kRate);
  std::vector<std::byte> source(2048);
  const std::int64_t start = 1'000'000'000;
  settle(mesh, start);
  const std::int64_t whole_ns = 500 * frame_ns(source.size());
  for (int i = 0; i < 500; ++i) CHECK_OK(mesh.transport(0).put(make_put(1, source.data(), source.size(), 1)));
  for (std::int64_t now = start; now < start + whole_ns / 2; now += whole_ns / 200) settle(mesh, now);
  const std::uint64_t half = mesh.signals(1).value(0, 1);
  CHECK(half > 150 && half < 270);
  for (std::int64_t now = start + whole_ns / 2; now < start + 2 * whole_ns; now += whole_ns / 200) settle(mesh, now);
  CHECK_EQ(mesh.signals(1).value(0, 1), 500u);
}

TEST(a_put_to_a_peer_that_does_not_read_holds_up_nobody) {
  TcpMesh mesh(3);
  shape(mesh.segment(0), kRate);
  std::vector<std::byte> source(6 << 20);
  const std::int64_t start = 1'000'000'000;
  settle(mesh, start);
  CHECK_OK(mesh.transport(0).put(make_put(1, source.data(), source.size(), 1)));
  CHECK_OK(mesh.transport(0).put(make_put(2, source.data(), kSegmentBytes, 1)));
  const std::int64_t whole_ns = frame_ns(source.size());
  for (std::int64_t now = start; now < start + 2 * whole_ns; now += whole_ns / 200)
    for (int i = 0; i < 4; ++i)
      for (const int r : {0, 2}) mesh.transport(r).poll(now, mesh.completions[Mesh::index(r)], mesh.events[Mesh::index(r)]);
  CHECK_EQ(mesh.signals(2).value(0, 1), 1u);
  CHECK_EQ(mesh.signals(1).value(0, 1), 0u);
  for (std::int64_t now = start + 2 * whole_ns; now < start + 4 * whole_ns; now += whole_ns / 200) settle(mesh, now);
  CHECK_EQ(mesh.signals(1).value(0, 1), 1u);
}

TEST(a_confirmation_that_falls_due_while_nothing_else_happens_goes) {
  TcpMesh mesh(2);
  for (int r = 0; r < 2; ++r) shape(mesh.segment(r), kRate);
  std::vector<std::byte> source(64);
  const std::int64_t start = 1'000'000'000;
  settle(mesh, start);
  Put put = make_put(1, source.data(), source.size(), 1);
  put.surely = true;
  const std::int64_t delay_ns = Bundle::kScheduledAckDelayNs;
  CHECK_OK(mesh.transport(0).put(put));
  for (std::int64_t now = start; now < start + delay_ns / 2; now += delay_ns / 40) settle(mesh, now);
  CHECK_EQ(mesh.signals(1).value(0, 1), 1u);
  CHECK(mesh.completions[0].empty());  // its link has nothing to do until then
  for (std::int64_t now = start + delay_ns / 2; now < start + 2 * delay_ns; now += delay_ns / 40)
    settle(mesh, now);
  CHECK_EQ(mesh.completions[0].size(), 1u);
}
