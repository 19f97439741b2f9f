// Windows of whole engines with their threads: over shared memory, and over sockets of one and of several NICs.
#include <unistd.h>

#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "comm/engine.hpp"
#include "conformance.hpp"
#include "transport/signal_order.hpp"

namespace ccl_lab {
namespace {

constexpr double kLong = 120;  // seconds: nothing of this takes so long
constexpr std::uint64_t kBytes = 3 << 20;

std::shared_ptr<Engine> make_engine(int rank, int n, int n_nics, Mode mode) {
  EngineOptions options;
  options.n_channels = 4;
  options.n_nics = n_nics;
  options.arena_bytes = 64 << 20;
  options.trace_spans = 4096;
  options.mode = mode;
  options.ranks_on_host = 64;  // every wait is a sleep that must be ended
  Result<std::shared_ptr<Engine>> made = Engine::create(rank, std::vector<std::int32_t>(static_cast<std::size_t>(n), 0), options);
  CHECK_OK(made.status());
  return made.value();
}

// n ranks, each with a window of `bytes`; n_nics 0: memory is mapped.
struct Ring {
  Ring(int n, int n_nics, std::uint64_t bytes = kBytes) {
    for (int r = 0; r < n; ++r) engines.push_back(make_engine(r, n, std::max(n_nics, 1), n_nics == 0 ? Mode::automatic : Mode::tcp));
    for (int r = 0; r < n; ++r)
      for (int p = r + 1; p < n; ++p) {
        if (n_nics == 0) {
          CHECK_OK(engine(r).attach_peer(p, ::getpid(), engine(p).segment()->fd()));
          CHECK_OK(engine(p).attach_peer(r, ::getpid(), engine(r).segment()->fd()));
        }
        for (std::uint16_t nic = 0; nic < n_nics; ++nic) {
          const auto [a, b] = check::tcp_pair();
          CHECK_OK(engine(r).add_connection(p, nic, nic, 0, a));
          CHECK_OK(engine(p).add_connection(r, nic, nic, 0, b));
        }
      }
    open(n_nics, bytes);
  }

  void open(int n_nics, std::uint64_t bytes) {
    const auto n = static_cast<int>(engines.size());
    memory.clear();
    windows.clear();
    for (int r = 0; r < n; ++r) memory.push_back(engine(r).arena()->allocate(bytes).value());
    for (int r = 0; r < n; ++r) {
      std::memset(memory[static_cast<std::size_t>(r)]->data(), 0, bytes);
      WindowSpec spec;
      spec.number = 1;
      spec.raised.assign(static_cast<std::size_t>(n), 0);
      for (int p = 0; p < n; ++p) {
        WindowPart& part = spec.parts.emplace_back();
        part.offset = memory[static_cast<std::size_t>(p)]->offset();
        part.nbytes = bytes;
        for (int i = 0; i < n_nics; ++i) {
          const auto nic = static_cast<std::uint16_t>((r + p + i) % n_nics);
          part.lanes.emplace_back(nic, nic);
        }
      }
      auto made = engine(r).make_window(std::move(spec), memory[static_cast<std::size_t>(r)]->data());
      CHECK_OK(made.status());
      windows.push_back(made.value());
    }
  }

  Engine& engine(int r) { return *engines[static_cast<std::size_t>(r)]; }
  const std::shared_ptr<MemoryWindow>& window(int r) { return windows[static_cast<std::size_t>(r)]; }
  std::byte* at(int r) { return memory[static_cast<std::size_t>(r)]->data(); }

  // The op, once it has ended.
  std::shared_ptr<Sided> ended(int r, Result<std::shared_ptr<Sided>> started) {
    CHECK_OK(started.status());
    CHECK(engine(r).wait(**started, kLong));
    return *started;
  }
  void put(int r, int to, std::vector<std::byte>& data, std::uint64_t offset, bool signals) {
    CHECK_OK(ended(r, engine(r).put(window(r), to, {data.data(), data.size()}, offset, signals, true))->status());
  }
  std::vector<std::int32_t> wait(int r, int from, std::uint64_t count) {
    const std::shared_ptr<Sided> op = ended(r, engine(r).wait_signals(window(r), from, count));
    CHECK_OK(op->status());
    return op->taken();
  }

  std::vector<std::shared_ptr<Engine>> engines;
  std::vector<std::shared_ptr<Block>> memory;
  std::vector<std::shared_ptr<MemoryWindow>> windows;
};

std::vector<std::byte> random_bytes(std::mt19937& random, std::uint64_t n) {
  std::vector<std::byte> bytes(n);
  for (std::byte& each : bytes) each = static_cast<std::byte>(random());
  return bytes;
}

void run_ranks(Ring& ring, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int r = 0; r < static_cast<int>(ring.engines.size()); ++r) threads.emplace_back(body, r);
  for (std::thread& each : threads) each.join();
}

TEST(silent_signals_keep_their_turn_and_raise_nothing) {
  std::vector<std::atomic<std::uint64_t>> counters(2);
  const SignalTable table(counters.data(), 1, 2, 2);
  SignalOrder sender(2);
  SignalOrder receiver(2);
  const std::int32_t silent = 1 | kSilentSignal;
  for (std::uint32_t i = 0; i < 3; ++i) CHECK_EQ(sender.next_to_send(silent), i);
  CHECK_EQ(sender.next_to_send(1), 3u);
  CHECK_OK(receiver.arrived(table, 0, 1, 3));
  CHECK_OK(receiver.arrived(table, 0, silent, 2));
  CHECK_OK(receiver.arrived(table, 0, silent, 0));
  CHECK_EQ(table.value(0, 1), 0u);
  CHECK_OK(receiver.arrived(table, 0, silent, 1));
  CHECK_EQ(table.value(0, 1), 1u);
  CHECK_EQ(receiver.n_parked(), 0u);
  CHECK_EQ(receiver.arrived(table, 0, silent, 1).code, Code::link_down);
}

// What a rank put before its signal is there when the signal is seen, and what it gets is what the peer has.
void bytes_before_their_signal(int n_nics) {
  Ring ring(2, n_nics);
  std::mt19937 random(5);
  for (const std::uint64_t nbytes : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{9000}, std::uint64_t{300001}, kBytes}) {
    std::vector<std::byte> data = random_bytes(random, nbytes);
    const std::uint64_t offset = (kBytes - nbytes) / 2;
    std::thread sender([&] { ring.put(0, 1, data, offset, true); });
    CHECK_EQ(ring.wait(1, 0, 1).size(), 1u);
    CHECK(nbytes == 0 || std::memcmp(ring.at(1) + offset, data.data(), nbytes) == 0);
    sender.join();
    CHECK_EQ(ring.window(1)->count(-1), 0u);
    std::vector<std::byte> back(nbytes);
    CHECK_OK(ring.ended(0, ring.engine(0).get(ring.window(0), 1, {back.data(), nbytes}, offset))->status());
    CHECK(back == data);
  }
  // Without a signal, and then one: the same.
  std::vector<std::byte> data = random_bytes(random, kBytes);
  Result<std::shared_ptr<Sided>> put = ring.engine(0).put(ring.window(0), 1, {data.data(), kBytes}, 0, false, false);
  CHECK_OK(put.status());
  CHECK_OK(ring.engine(0).signal(ring.window(0), 1).status());
  ring.wait(1, -1, 1);
  CHECK(std::memcmp(ring.at(1), data.data(), kBytes) == 0);
  CHECK_OK(ring.ended(0, ring.engine(0).flush(ring.window(0), -1))->status());
  CHECK((*put)->done());
}

TEST(bytes_are_there_before_their_signal_in_mapped_memory) { bytes_before_their_signal(0); }
TEST(bytes_are_there_before_their_signal_over_one_nic) { bytes_before_their_signal(1); }
TEST(bytes_are_there_before_their_signal_over_four_nics) { bytes_before_their_signal(4); }

// Everybody writes into everybody's window, at its own places, round after round.
void all_to_all(int n_nics) {
  constexpr int kRanks = 3;
  constexpr std::uint64_t kPart = kBytes / kRanks / 2;
  Ring ring(kRanks, n_nics);
  run_ranks(ring, [&](int r) {
    for (unsigned round = 0; round < 12; ++round) {
      const std::uint64_t base = (round % 2) * kPart * kRanks;  // the other half is still read
      std::mt19937 random(static_cast<unsigned>(r) + 17 * round);
      const std::uint64_t nbytes = round % 3 == 0 ? kPart : random() % 4000 + 1;
      std::vector<std::byte> data = random_bytes(random, nbytes);
      for (int p = 0; p < kRanks; ++p) ring.put(r, p, data, base + static_cast<std::uint64_t>(r) * kPart, true);
      for (int p = 0; p < kRanks; ++p) {
        ring.wait(r, p, 1);
        std::mt19937 theirs(static_cast<unsigned>(p) + 17 * round);
        const std::uint64_t n = round % 3 == 0 ? kPart : theirs() % 4000 + 1;
        const std::vector<std::byte> wanted = random_bytes(theirs, n);
        CHECK(std::memcmp(ring.at(r) + base + static_cast<std::uint64_t>(p) * kPart, wanted.data(), n) == 0);
      }
    }
  });
}

TEST(everybody_writes_to_everybody_in_mapped_memory) { all_to_all(0); }
TEST(everybody_writes_to_everybody_over_two_nics) { all_to_all(2); }

TEST(a_wait_for_any_takes_signals_in_turn) {
  Ring ring(3, 0, 64);
  for (int i = 0; i < 3; ++i)
    for (int r = 1; r < 3; ++r) CHECK_OK(ring.engine(r).signal(ring.window(r), 0).status());
  CHECK_EQ(ring.window(0)->count(1), 3u);
  CHECK_EQ(ring.window(0)->count(-1), 6u);
  CHECK(ring.wait(0, -1, 4) == std::vector<std::int32_t>({1, 2, 1, 2}));
  CHECK(ring.wait(0, 2, 1) == std::vector<std::int32_t>({2}));
  CHECK_EQ(ring.window(0)->count(-1), 1u);
}

TEST(a_wait_that_is_given_up_takes_nothing_and_says_who_is_missing) {
  Ring ring(3, 0, 64);
  CHECK_OK(ring.engine(1).signal(ring.window(1), 0).status());
  Result<std::shared_ptr<Sided>> op = ring.engine(0).wait_signals(ring.window(0), -1, 2);
  CHECK_OK(op.status());
  CHECK(!ring.engine(0).wait(**op, 0.01));
  ring.engine(0).give_up(**op, 0.01);
  CHECK((*op)->done());
  CHECK_EQ((*op)->status().code, Code::timeout);
  CHECK((*op)->status().message.find("expected 2 signals of any rank, seen 1; none came from rank 2") != std::string::npos);
  CHECK_EQ(ring.window(0)->count(-1), 1u);
}

TEST(two_threads_of_a_rank_wait_at_once) {
  Ring ring(3, 2, 64);
  std::thread first([&] { ring.wait(0, 1, 2); });
  std::thread second([&] { ring.wait(0, 2, 2); });
  for (int i = 0; i < 2; ++i)
    for (int r = 2; r > 0; --r) CHECK_OK(ring.engine(r).signal(ring.window(r), 0).status());
  first.join();
  second.join();
  CHECK_EQ(ring.window(0)->count(-1), 0u);
}

TEST(bad_calls_are_refused) {
  Ring ring(2, 0, 64);
  Ring other(2, 0, 64);
  std::byte data[64]{};
  const auto put = [&](const std::shared_ptr<MemoryWindow>& window, int rank, std::uint64_t nbytes, std::uint64_t offset) {
    return ring.engine(0).put(window, rank, {data, nbytes}, offset, false, true).status();
  };
  const Status outside = put(ring.window(0), 1, 33, 32);
  CHECK_EQ(outside.code, Code::bounds);
  CHECK_EQ(outside.rank, 1);
  CHECK(outside.message.find("33 bytes at offset 32 lie outside its 64 bytes") != std::string::npos);
  CHECK_EQ(put(ring.window(0), 1, 1, ~std::uint64_t{0}).code, Code::bounds);
  CHECK_EQ(put(ring.window(0), 2, 1, 0).code, Code::usage);
  CHECK_EQ(put(other.window(0), 1, 1, 0).code, Code::usage);
  WindowSpec spec;
  spec.parts.resize(2);
  spec.raised.resize(2);
  spec.parts[0].nbytes = 64;
  CHECK_EQ(ring.engine(0).make_window(spec, data).status().code, Code::registration);
  spec.place = kWindows;
  CHECK_EQ(ring.engine(0).make_window(spec, data).status().code, Code::usage);
  ring.engine(0).close_window(*ring.window(0));
  const Status closed = put(ring.window(0), 1, 1, 0);
  CHECK_EQ(closed.code, Code::usage);
  CHECK(closed.message.find("is closed") != std::string::npos);
}

// A wait, while `how` is done; whichever comes first.
Status stopped(int n_nics, const std::function<void(Ring&)>& how) {
  Ring ring(2, n_nics, 64);
  Status status;
  std::thread waiting([&] {
    Result<std::shared_ptr<Sided>> op = ring.engine(0).wait_signals(ring.window(0), 1, 1);
    status = op.status();
    if (!op.ok()) return;
    CHECK(ring.engine(0).wait(**op, kLong));
    status = (*op)->status();
  });
  how(ring);
  waiting.join();
  return status;
}

TEST(a_wait_ends_with_the_rank) {
  for (const int n_nics : {0, 1}) {
    const Status told = stopped(n_nics, [](Ring& ring) { ring.engine(0).abort(Code::peer_lost, "rank 1 is gone", 1); });
    CHECK(told.code == Code::peer_lost || told.code == Code::aborted);
    CHECK(told.message.find("rank 1 is gone") != std::string::npos);
    CHECK(!stopped(n_nics, [](Ring& ring) { ring.engine(0).close(); }).ok());
    CHECK(!stopped(n_nics, [](Ring& ring) { ring.engine(0).close_window(*ring.window(0)); }).ok());
  }
}

TEST(a_peer_that_goes_in_the_middle_ends_puts_and_waits) {
  Ring ring(3, 1);
  std::vector<std::byte> data(kBytes);
  Result<std::shared_ptr<Sided>> put = ring.engine(0).put(ring.window(0), 1, {data.data(), kBytes}, 0, true, false);
  CHECK_OK(put.status());
  ring.windows[1] = nullptr;
  ring.engines[1]->close();
  Result<std::shared_ptr<Sided>> wait = ring.engine(0).wait_signals(ring.window(0), 1, 1);
  if (wait.ok()) CHECK(ring.engine(0).wait(**wait, kLong));
  CHECK(!(wait.ok() ? (*wait)->status() : wait.status()).ok());
  CHECK(ring.engine(0).wait(**put, kLong));
  // The others go on.
  ring.put(0, 2, data, 0, true);
  ring.wait(2, 0, 1);
}

TEST(after_a_reset_old_windows_are_refused_and_new_ones_work) {
  for (const int n_nics : {0, 2}) {
    Ring ring(2, n_nics, 4096);
    std::vector<std::byte> data(4096, std::byte{7});
    ring.put(0, 1, data, 0, true);
    for (int r = 0; r < 2; ++r) CHECK_OK(ring.engine(r).reset(1));
    CHECK_EQ(ring.engine(0).signal(ring.window(0), 1).status().code, Code::usage);
    for (std::uint16_t nic = 0; nic < n_nics; ++nic) {
      const auto [a, b] = check::tcp_pair();
      CHECK_OK(ring.engine(0).add_connection(1, nic, nic, 0, a));
      CHECK_OK(ring.engine(1).add_connection(0, nic, nic, 0, b));
    }
    ring.open(n_nics, 4096);
    ring.put(0, 1, data, 0, true);
    ring.wait(1, 0, 1);
    CHECK(std::memcmp(ring.at(1), data.data(), 4096) == 0);
  }
}

}  // namespace
}  // namespace ccl_lab
