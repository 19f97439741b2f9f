// The suite of test_conformance and test_verbs_rig.
//
// Is: each CONFORMANCE, run over what on_every_transport(name, n_ranks, run) of the file that includes this makes.
// Is not: a test program.
#pragma once

#include "conformance.hpp"

using namespace ccl_lab;
using namespace ccl_lab::check;

namespace {

Put make_put(int peer, const std::byte* source, std::uint64_t nbytes, std::uint64_t offset, int signal, std::uint64_t cookie) {
  Put put = put_to(peer, source, nbytes);
  put.destination.offset = offset;
  put.signal = signal;
  put.cookie = cookie;
  put.tag = {7, static_cast<std::int32_t>(cookie), 0};
  return put;
}

Get make_get(int peer, std::byte* destination, std::uint64_t nbytes, std::uint64_t offset, std::uint64_t cookie) {
  Get get;
  get.peer = peer;
  get.destination = destination;
  get.nbytes = nbytes;
  get.source = {1, offset};
  get.cookie = cookie;
  return get;
}

}  // namespace

#define CONFORMANCE(name, n_ranks)                                                 \
  static void conformance_##name(Mesh& mesh);                                      \
  TEST(name) { on_every_transport(#name, n_ranks, &conformance_##name); }          \
  static void conformance_##name(Mesh& mesh)

CONFORMANCE(every_size_arrives_whole, 2) {
  std::uint64_t cookie = 0;
  for (const std::uint64_t nbytes : {0u, 1u, 3u, 47u, 48u, 4095u, 65537u, 262144u, 262145u, 3000001u}) {
    fill(mesh.memory(0), nbytes, static_cast<std::uint32_t>(nbytes));
    std::memset(mesh.memory(1), 0, nbytes + 2);
    CHECK_OK(mesh.transport(0).put(make_put(1, mesh.memory(0), nbytes, 1, 2, ++cookie)));
    CHECK(mesh.until([&] { return mesh.signals(1).value(0, 2) == cookie; }));
    CHECK(std::memcmp(mesh.memory(0), mesh.memory(1) + 1, nbytes) == 0);
    CHECK_EQ(static_cast<int>(mesh.memory(1)[0]), 0);
    CHECK_EQ(static_cast<int>(mesh.memory(1)[nbytes + 1]), 0);
    CHECK(mesh.completed(0, cookie));
    CHECK_EQ(mesh.completions[0].back().cookie, cookie);
    CHECK_OK(mesh.completions[0].back().status);
  }
}

CONFORMANCE(signals_follow_their_bytes_in_order, 2) {
  // Each put carries its number; whenever the counter says k, the first k numbers are there.
  constexpr std::uint32_t kPuts = 300;
  std::vector<std::vector<std::byte>> sources(kPuts);
  const std::uint64_t stride = 20000;
  const std::string name = mesh.transport(0).name();
  const bool spreads = mesh.has_nic(2) && (name == "tcp" || name == "verbs");
  for (std::uint32_t i = 0; i < kPuts; ++i) {
    sources[i].resize(4 + (i * 7919) % (stride - 4));
    std::memset(sources[i].data(), static_cast<int>(i % 251 + 1), sources[i].size());
    Put put = make_put(1, sources[i].data(), sources[i].size(), i * stride, 3, i + 1);
    put.nic = put.peer_nic = spreads ? static_cast<std::uint16_t>(i % 3) : 0;
    CHECK_OK(mesh.transport(0).put(put));
  }
  std::uint64_t seen = 0;
  CHECK(mesh.until([&] {
    const std::uint64_t value = mesh.signals(1).value(0, 3);
    CHECK(value >= seen && value <= kPuts);
    for (; seen < value; ++seen)
      CHECK(std::memcmp(mesh.memory(1) + seen * stride, sources[seen].data(), sources[seen].size()) == 0);
    return seen == kPuts;
  }));
  CHECK(mesh.completed(0, kPuts));
  CHECK_EQ(mesh.completions[0].size(), std::size_t{kPuts});
}

CONFORMANCE(what_is_to_be_surely_there_is_there_when_it_completes, 2) {
  std::size_t posted = 0;
  for (const std::uint64_t nbytes : {1u, 100u, 70'000u, 3'000'001u}) {
    for (const int signal : {-1, 2}) {
      for (const bool urgent : {false, true}) {
        fill(mesh.memory(0), nbytes, static_cast<std::uint32_t>(++posted));
        Put put = make_put(1, mesh.memory(0), nbytes, 0, signal, posted);
        put.surely = true;
        put.urgent = urgent;
        CHECK_OK(mesh.transport(0).put(put));
        const auto completed = [&] { return mesh.completions[0].size() >= posted; };
        // The peer does nothing for a while: what needs it does not complete.
        for (int i = 0; i < 100 && !completed(); ++i) mesh.transport(0).poll(now_ns(), mesh.completions[0], mesh.events[0]);
        CHECK(completed() || mesh.until(completed));
        CHECK(std::memcmp(mesh.memory(0), mesh.memory(1), nbytes) == 0);
        CHECK_OK(mesh.completions[0].back().status);
      }
    }
  }
  CHECK_EQ(mesh.completions[0].size(), posted);
  CHECK(mesh.until([&] { return mesh.signals(1).value(0, 2) == posted / 2; }));
}

CONFORMANCE(gets_read_what_is_there, 3) {
  for (int r = 0; r < 3; ++r) fill(mesh.memory(r) + (4 << 20), 3 << 20, static_cast<std::uint32_t>(r));
  std::vector<std::byte> theirs[3];
  for (int r = 0; r < 3; ++r) theirs[r].assign(mesh.memory(r), mesh.memory(r) + kMemory);
  std::size_t posted = 0;
  for (const std::uint64_t nbytes : {0u, 1u, 5u, 262143u, 700001u}) {
    const std::uint64_t at = (4u << 20) + nbytes / 3;
    for (int p = 1; p < 3; ++p) {
      std::byte* destination = mesh.memory(0) + p * (1 << 20);
      CHECK_OK(mesh.transport(0).get(make_get(p, destination, nbytes, at, ++posted)));
      CHECK(mesh.completed(0, posted));
      CHECK_OK(mesh.completions[0].back().status);
      CHECK(std::memcmp(destination, theirs[p].data() + at, nbytes) == 0);
      CHECK(std::memcmp(mesh.memory(p), theirs[p].data(), kMemory) == 0);
    }
  }
}

CONFORMANCE(many_gets_at_once, 2) {
  fill(mesh.memory(1), 4 << 20, 5);
  for (std::uint64_t i = 0; i < 40; ++i)
    CHECK_OK(mesh.transport(0).get(make_get(1, mesh.memory(0) + i * 100000, 100000 - i, i * 99991, i)));
  CHECK(mesh.completed(0, 40));
  for (std::uint64_t i = 0; i < 40; ++i)
    CHECK(std::memcmp(mesh.memory(0) + i * 100000, mesh.memory(1) + i * 99991, 100000 - i) == 0);
}

CONFORMANCE(everybody_to_everybody_both_ways, 5) {
  const std::uint64_t block = 150001;
  std::vector<std::vector<std::byte>> sources;
  for (int r = 0; r < 5; ++r) {
    sources.emplace_back(block * 5);
    fill(sources.back().data(), block * 5, static_cast<std::uint32_t>(100 + r));
  }
  for (int r = 0; r < 5; ++r)
    for (int p = 0; p < 5; ++p) {
      if (r == p && !mesh.self_puts()) continue;
      const auto* source = sources[Mesh::index(r)].data() + block * Mesh::index(p);
      CHECK_OK(mesh.transport(r).put(make_put(p, source, block, block * Mesh::index(r), 0, Mesh::index(p))));
    }
  CHECK(mesh.until([&] {
    for (int r = 0; r < 5; ++r)
      for (int p = 0; p < 5; ++p)
        if ((r != p || mesh.self_puts()) && mesh.signals(p).value(r, 0) != 1) return false;
    return true;
  }));
  for (int r = 0; r < 5; ++r)
    for (int p = 0; p < 5; ++p)
      if (r != p || mesh.self_puts())
        CHECK(std::memcmp(mesh.memory(p) + block * Mesh::index(r), sources[Mesh::index(r)].data() + block * Mesh::index(p),
                          block) == 0);
}

CONFORMANCE(signals_are_counted_by_sender_and_channel, 3) {
  for (int i = 0; i < 10; ++i) {
    CHECK_OK(mesh.transport(0).put(make_put(2, nullptr, 0, 0, 1, 1)));
    if (i < 7) CHECK_OK(mesh.transport(1).put(make_put(2, nullptr, 0, 0, 1, 1)));
    if (i < 3) CHECK_OK(mesh.transport(0).put(make_put(2, nullptr, 0, 0, kChannels - 1, 1)));
  }
  CHECK(mesh.completed(0, 13));
  CHECK(mesh.completed(1, 7));
  CHECK(mesh.until([&] { return mesh.signals(2).value(0, 1) + mesh.signals(2).value(1, 1) == 17; }));
  CHECK(mesh.until([&] { return mesh.signals(2).value(0, kChannels - 1) == 3; }));
  CHECK_EQ(mesh.signals(2).value(0, 1), 10u);
  CHECK_EQ(mesh.signals(2).value(1, 1), 7u);
}

CONFORMANCE(a_peer_nobody_knows_is_refused, 2) {
  for (const int peer : {-1, 2, 1 << 20}) {
    CHECK(!mesh.transport(0).connected(peer));
    CHECK(!mesh.transport(0).put(make_put(peer, nullptr, 0, 0, 0, 1)).ok());
    CHECK(!mesh.transport(0).get(make_get(peer, nullptr, 0, 0, 1)).ok());
  }
  CHECK_EQ(static_cast<int>(mesh.transport(0).put(make_put(1, nullptr, 0, 0, kChannels, 1)).code),
           static_cast<int>(Code::bounds));
}

CONFORMANCE(nothing_is_written_out_of_bounds, 2) {
  // Refused when posted (the sender knows the region) or by the receiver, who ends the connection; never written.
  std::vector<std::byte> source(1000, std::byte{0x5a});
  std::vector<std::byte> before(mesh.memory(1), mesh.memory(1) + kMemory);
  for (const Remote bad : {Remote{1, kMemory - 999}, Remote{1, ~std::uint64_t{0} - 10}, Remote{9, 0}}) {
    Put put = make_put(1, source.data(), source.size(), 0, 1, 1);
    put.destination = bad;
    const Status status = mesh.transport(0).put(put);
    if (!status.ok()) continue;
    CHECK(mesh.until([&] { return !mesh.events[1].empty(); }));
    break;
  }
  CHECK_EQ(mesh.signals(1).value(0, 1), 0u);
  CHECK(std::memcmp(before.data(), mesh.memory(1), kMemory) == 0);
}

CONFORMANCE(reset_forgets_what_was_in_flight, 3) {
  std::vector<std::byte> source(2 << 20, std::byte{1});
  for (int i = 0; i < 5; ++i) CHECK_OK(mesh.transport(0).put(make_put(1, source.data(), source.size(), 0, 1, 1)));
  mesh.poll();
  for (int r = 0; r < 3; ++r) mesh.transport(r).reset(1);
  for (auto& list : mesh.completions) list.clear();
  for (auto& list : mesh.events) list.clear();
  CHECK(!mesh.transport(0).connected(1));
  CHECK(!mesh.transport(0).put(make_put(1, source.data(), 1, 0, 1, 1)).ok());
  for (int i = 0; i < 50; ++i) mesh.poll();
  CHECK(mesh.completions[0].empty());
  for (int r = 0; r < 3; ++r) mesh.signals(r).zero();
  mesh.connect_all(1);
  CHECK(mesh.transport(0).connected(1) && mesh.transport(1).connected(2));
  CHECK_OK(mesh.transport(0).put(make_put(1, source.data(), 100, 7, 1, 9)));
  CHECK(mesh.until([&] { return mesh.signals(1).value(0, 1) == 1; }));
  CHECK(mesh.completed(0, 1));
  CHECK_EQ(mesh.completions[0][0].cookie, 9u);
}

CONFORMANCE(a_lost_peer_is_reported_once, 3) {
  if (std::strcmp(mesh.transport(0).name(), "shm") == 0) return;  // needs processes: test_processes
  std::vector<std::byte> source(4 << 20);
  mesh.poll();
  mesh.kill(1);
  const Status posted = mesh.transport(0).put(make_put(1, source.data(), source.size(), 0, 1, 77));
  CHECK(mesh.until([&] { return !mesh.events[0].empty() && !mesh.events[2].empty(); }));
  CHECK(mesh.until([&] { return !mesh.transport(0).connected(1); }));
  for (int i = 0; i < 100; ++i) mesh.poll();
  CHECK_EQ(static_cast<int>(mesh.events[0].back().status.code), static_cast<int>(Code::peer_lost));
  CHECK_EQ(mesh.events[0].back().peer, 1);
  int lost = 0;
  for (const LinkEvent& event : mesh.events[0]) lost += event.status.code == Code::peer_lost;
  CHECK_EQ(lost, 1);
  CHECK_EQ(mesh.completions[0].size(), posted.ok() ? 1u : 0u);
  if (posted.ok()) CHECK(!mesh.completions[0][0].status.ok());
  // The others go on.
  CHECK_OK(mesh.transport(0).put(make_put(2, source.data(), 1000, 0, 1, 78)));
  CHECK(mesh.until([&] { return mesh.signals(2).value(0, 1) == 1; }));
}

CONFORMANCE(nothing_to_do_is_said, 2) {
  std::vector<pollfd> descriptors;
  std::int64_t wake_ns = INT64_MAX;
  CHECK(mesh.until([&] { return mesh.poll() == 0; }));
  mesh.transport(0).wait_set(descriptors, wake_ns);
  if (std::strcmp(mesh.transport(0).name(), "loop") != 0) CHECK_EQ(wake_ns, INT64_MAX);
}
