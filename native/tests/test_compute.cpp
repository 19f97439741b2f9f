// Computation beside transfers: an emulated device, callers that compute, and what ends them.
//
// Is: engines of one process, their callers in threads. Is not: timing to the microsecond: this machine may be busy.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "comm/engine.hpp"
#include "comm/stream.hpp"
#include "conformance.hpp"
#include "plans.hpp"
#include "trace/ring.hpp"

namespace ccl_lab {
namespace {

using check::Columns;
using namespace std::chrono_literals;

constexpr std::int64_t kMs = 1'000'000;

std::shared_ptr<Computation> emulated(std::vector<std::int64_t> duration_ns) {
  auto how = std::make_shared<Computation>();
  how->device = Device::emulated;
  how->carries = true;
  how->duration_ns = std::move(duration_ns);
  return how;
}

std::shared_ptr<Computation> caller(bool carries = false) {
  auto how = std::make_shared<Computation>();
  how->device = Device::caller;
  how->carries = carries;
  return how;
}

// ---- the stream by itself

TEST(partitions_of_an_emulated_device_run_one_after_the_other) {
  Stream stream(emulated({100, 50}), 4);
  CHECK_EQ(stream.due_ns(), Stream::kNever);
  stream.post(1, 11, 0, 1000, false);
  stream.post(2, 12, 1, 1010, false);  // another channel: waits for the device
  CHECK_EQ(stream.due_ns(), 1100);
  CHECK(!stream.has_ended(1099));
  CHECK(stream.has_ended(1100));
  std::vector<Stream::Partition> ended;
  stream.take_ended(1120, ended);
  CHECK_EQ(ended.size(), 1u);
  CHECK_EQ(ended[0].cookie, 1u);
  CHECK_EQ(ended[0].op, 11u);
  CHECK_EQ(ended[0].begin_ns, 1000);
  CHECK_EQ(ended[0].end_ns, 1100);
  CHECK_EQ(stream.due_ns(), 1150);
  ended.clear();
  stream.take_ended(1150, ended);
  CHECK_EQ(ended.size(), 1u);
  CHECK_EQ(ended[0].begin_ns, 1100);
  CHECK_EQ(stream.due_ns(), Stream::kNever);
}

// Ends are seen late, by 20 each; what follows at once begins when the device got free, what had to wait when it came.
TEST(late_looks_do_not_add_up) {
  Stream stream(emulated({100}), 4);
  std::vector<Stream::Partition> ended;
  stream.post(0, 0, 0, 1000, false);
  for (int i = 1; i < 10; ++i) {
    stream.take_ended(stream.due_ns() + 20, ended);
    stream.post(static_cast<std::uint64_t>(i), 0, 0, ended.back().end_ns + 20, true);
    CHECK_EQ(stream.due_ns(), 1000 + 100 * (i + 1));
  }
  stream.take_ended(stream.due_ns() + 20, ended);
  stream.post(10, 0, 0, 5000, false);
  CHECK_EQ(stream.due_ns(), 5100);
}

TEST(a_caller_takes_partitions_in_order) {
  Stream stream(caller(), 4);
  std::uint32_t op = 0;
  CHECK(!stream.calls());
  CHECK(!stream.begin(op));
  CHECK(!stream.end());  // nothing was taken: nothing ends
  stream.post(1, 7, 0, 1000, false);
  stream.post(2, 8, 0, 1000, false);
  CHECK(stream.calls());
  CHECK(stream.begin(op));
  CHECK_EQ(op, 7u);
  CHECK(!stream.begin(op));  // one at a time
  CHECK(stream.calls());
  CHECK(!stream.has_ended(2000));
  stream.end();
  CHECK(stream.has_ended(2000));
  std::vector<Stream::Partition> ended;
  stream.take_ended(2000, ended);
  CHECK_EQ(ended.size(), 1u);
  CHECK_EQ(ended[0].cookie, 1u);
  CHECK(ended[0].end_ns >= ended[0].begin_ns && ended[0].begin_ns > 0);
  CHECK(stream.begin(op));
  CHECK_EQ(op, 8u);
  CHECK(!stream.calls());
}

// ---- engines

class Ranks {
 public:
  Ranks(int n, Mode mode, std::uint64_t block, std::int64_t spin_us = 20) : n_(n), block_(block) {
    EngineOptions options;
    options.n_channels = 4;
    options.arena_bytes = 64 << 20;
    options.trace_spans = 4096;
    options.mode = mode;
    options.spin_us = spin_us;
    options.ranks_on_host = spin_us == 0 ? 64 : 1;
    for (int r = 0; r < n; ++r)
      engines.push_back(Engine::create(r, std::vector<std::int32_t>(static_cast<std::size_t>(n), 0), options).value());
    for (int r = 0; r < n; ++r)
      for (int p = 0; p < n; ++p) {
        if (mode != Mode::tcp && p != r) CHECK_OK(engine(r).attach_peer(p, ::getpid(), engine(p).segment()->fd()));
        if (mode != Mode::tcp || p <= r) continue;
        const auto [a, b] = check::tcp_pair();
        CHECK_OK(engine(r).add_connection(p, 0, 0, 0, a));
        CHECK_OK(engine(p).add_connection(r, 0, 0, 0, b));
      }
    for (int r = 0; r < n; ++r) {
      const Columns columns = check::matmul_reduce_scatter(r, n, block, DType::int32);
      Result<std::shared_ptr<LoadedProgram>> made = engine(r).compile(columns.spec());
      CHECK_OK(made.status());
      programs.push_back(made.value());
      inputs.push_back(engine(r).arena()->allocate(block * static_cast<std::uint64_t>(n)).value());
      outputs.push_back(engine(r).arena()->allocate(block).value());
    }
    works.resize(at(n));
  }

  static std::size_t at(int r) { return static_cast<std::size_t>(r); }
  Engine& engine(int r) { return *engines[at(r)]; }
  int n() const { return n_; }
  std::int32_t* input(int r) { return reinterpret_cast<std::int32_t*>(inputs[at(r)]->data()); }
  std::uint64_t elements() const { return block_ / 4; }

  // What rank r makes for rank d.
  static std::int32_t value(int r, int d, std::uint64_t i) { return static_cast<std::int32_t>(i) * (r + 1) + d; }
  void make(int r, int d) {
    for (std::uint64_t i = 0; i < elements(); ++i) input(r)[elements() * at(d) + i] = value(r, d, i);
  }
  void make_all() {
    for (int r = 0; r < n_; ++r)
      for (int d = 0; d < n_; ++d) make(r, d);
  }
  void check_sums() {
    int wrong = 0;
    for (int d = 0; d < n_; ++d) {
      const auto* const out = reinterpret_cast<const std::int32_t*>(outputs[at(d)]->data());
      for (std::uint64_t i = 0; i < elements(); ++i) {
        std::int32_t sum = 0;
        for (int r = 0; r < n_; ++r) sum += value(r, d, i);
        wrong += out[i] != sum;
      }
      std::memset(outputs[at(d)]->data(), 0, block_);
    }
    CHECK_EQ(wrong, 0);
  }

  Result<std::shared_ptr<Work>> start(int r, std::shared_ptr<const Computation> how, bool caller_waits, double timeout_s = 30) {
    return engine(r).start(programs[at(r)], {inputs[at(r)]->data(), block_ * static_cast<std::uint64_t>(n_)},
                           {outputs[at(r)]->data(), block_}, 1, timeout_s, caller_waits, std::move(how));
  }

  // Computes in the calling thread until the run has ended; `partition` gets the partition and writes what it produces.
  Status run(int r, const std::function<void(const Op&)>& partition, bool carries = false, double timeout_s = 30) {
    Result<std::shared_ptr<Work>> started = start(r, caller(carries), true, timeout_s);
    if (!started.ok()) return started.status();
    const std::shared_ptr<Work> work = works[at(r)] = started.value();
    while (!work->done()) {
      std::uint32_t op = 0;
      if (engine(r).next_partition(*work, 0.1, op)) partition(work->program().ops()[op]);
    }
    return work->status();
  }
  // The sources of the last partition are added to what it makes: a fused add.
  void compute(int r, const Op& op) {
    make(r, op.arg);
    if (op.dst_buffer == Buffer::input) return;
    auto* const out = reinterpret_cast<std::int32_t*>(outputs[at(r)]->data());
    const auto* const came = reinterpret_cast<const std::int32_t*>(works[at(r)]->scratch()->data());
    for (std::uint64_t i = 0; i < elements(); ++i) {
      out[i] = value(r, r, i);
      for (int s = 0; s + 1 < n_; ++s) out[i] += came[elements() * at(s) + i];
    }
  }

  std::vector<SpanRecord> computed(int r) {
    SpanReader reader(*engine(r).segment());
    std::vector<SpanRecord> spans(4096);
    spans.resize(reader.drain(spans.data(), spans.size()));
    std::erase_if(spans, [](const SpanRecord& s) { return s.track != static_cast<std::uint8_t>(Track::compute); });
    return spans;
  }

  std::vector<std::shared_ptr<Engine>> engines;
  std::vector<std::shared_ptr<LoadedProgram>> programs;
  std::vector<std::shared_ptr<Block>> inputs, outputs;
  std::vector<std::shared_ptr<Work>> works;  // by rank, that run() started last

 private:
  int n_;
  std::uint64_t block_;
};

void each_rank(int n, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r) threads.emplace_back(body, r);
  for (std::thread& thread : threads) thread.join();
}

TEST(an_emulated_device_takes_its_time_and_results_are_right) {
  for (const Mode mode : {Mode::automatic, Mode::tcp})
    for (const bool with_caller : {true, false}) {
      Ranks ranks(3, mode, 40000);
      ranks.make_all();
      const auto how = emulated({3 * kMs, 2 * kMs, 1 * kMs});
      const std::int64_t begin = now_ns();
      std::vector<std::shared_ptr<Work>> works;
      for (int r = 0; r < 3; ++r) works.push_back(ranks.start(r, how, with_caller).value());
      each_rank(3, [&](int r) { CHECK(ranks.engine(r).wait(*works[Ranks::at(r)], 30)); });
      CHECK(now_ns() - begin >= 6 * kMs);
      for (int r = 0; r < 3; ++r) {
        CHECK_OK(works[Ranks::at(r)]->status());
        const std::vector<SpanRecord> spans = ranks.computed(r);
        CHECK_EQ(spans.size(), 3u);
        std::int64_t end = 0;
        for (int s = 0; s < 3; ++s) {
          const SpanRecord& span = spans[Ranks::at(s)];
          const int partition = (r + s + 1) % 3;  // the own one is last
          CHECK_EQ(span.end_ns - span.begin_ns, (3 - partition) * kMs);
          CHECK(span.begin_ns >= end);
          CHECK_EQ(span.op_id, r * 1000 + (s < 2 ? 4 * s : 10));
          CHECK_EQ(static_cast<int>(span.status), static_cast<int>(SpanStatus::ok));
          end = span.end_ns;
        }
      }
      ranks.check_sums();
    }
}

TEST(callers_compute_while_bytes_move) {
  for (const Mode mode : {Mode::automatic, Mode::tcp})
    for (const std::int64_t spin_us : {20, 0}) {
      Ranks ranks(2, mode, 4000, spin_us);
      for (int run = 0; run < 50; ++run) {
        for (int r = 0; r < 2; ++r) std::memset(ranks.inputs[Ranks::at(r)]->data(), 0, 8000);
        each_rank(2, [&](int r) {
          const std::thread::id here = std::this_thread::get_id();
          CHECK_OK(ranks.run(r, [&](const Op& op) {
            CHECK(std::this_thread::get_id() == here);
            ranks.compute(r, op);
            if (run % 10 == 0) std::this_thread::sleep_for(1ms);
          }));
        });
        ranks.check_sums();
      }
      CHECK_EQ(ranks.computed(0).size(), 100u);
    }
}

// The load is the caller's, the values are carried by the engine.
TEST(a_caller_may_leave_the_values_to_the_engine) {
  Ranks ranks(3, Mode::tcp, 1 << 20);
  ranks.make_all();
  for (int run = 0; run < 3; ++run) {
    std::atomic<int> partitions{0};
    each_rank(3, [&](int r) { CHECK_OK(ranks.run(r, [&](const Op&) { ++partitions; }, true)); });
    CHECK_EQ(partitions.load(), 9);
    ranks.check_sums();
  }
}

// Two callers of one engine: while one computes, the other, who waits for a later work, drives and sleeps.
TEST(another_caller_who_drives_hears_of_what_was_computed) {
  Ranks ranks(2, Mode::automatic, 4000, 0);
  const std::int64_t begin = now_ns();
  for (int run = 0; run < 5; ++run) {
    std::atomic<int> first_partitions{0};
    std::shared_ptr<Work> later[2];
    each_rank(4, [&](int i) {
      const int r = i % 2;
      if (i < 2) {
        CHECK_OK(ranks.run(r, [&](const Op& op) {
          ++first_partitions;
          std::this_thread::sleep_for(10ms);
          ranks.compute(r, op);
        }));
        return;
      }
      while (first_partitions < 2) std::this_thread::sleep_for(1ms);
      later[r] = ranks.start(r, emulated({kMs, kMs}), true).value();
      CHECK(ranks.engine(r).wait(*later[r], 30));
      CHECK_OK(later[r]->status());
    });
  }
  CHECK(now_ns() - begin < 5 * 1000 * kMs);  // without a word it would be a quarter of a second for each partition
}

TEST(nothing_to_compute_with_is_refused) {
  Ranks ranks(2, Mode::automatic, 64);
  Status status = ranks.start(0, nullptr, false).status();
  CHECK_EQ(status.code, Code::usage);
  CHECK(status.message.find("has compute ops (rank 0: partitions 0..1)") != std::string::npos);
  status = ranks.start(0, emulated({5}), false).status();
  CHECK_EQ(status.code, Code::shape);
  CHECK(status.message.find("durations of 1 partitions for rank 0, whose schedule has 2") != std::string::npos);
}

TEST(a_deadline_passes_while_a_device_computes) {
  Ranks ranks(2, Mode::automatic, 64);
  const auto work = ranks.start(0, emulated({60'000 * kMs, 60'000 * kMs}), true, 0.05).value();
  CHECK(ranks.engine(0).wait(*work, 10));
  CHECK_EQ(work->status().code, Code::timeout);
  CHECK(work->status().message.find("(compute) of partition 1 has not ended") != std::string::npos);
  const std::vector<SpanRecord> spans = ranks.computed(0);
  CHECK_EQ(spans.size(), 1u);  // it was cut off
  if (!spans.empty()) CHECK_EQ(static_cast<int>(spans[0].status), static_cast<int>(SpanStatus::failed));
}

// The thread sees the abort while the caller computes; the caller hears of it when it asks for more.
TEST(an_abort_ends_a_run_whose_caller_computes) {
  for (const Mode mode : {Mode::automatic, Mode::tcp}) {
    Ranks ranks(2, mode, 64);
    std::atomic<bool> computing[2] = {};  // a rank that has not begun would be refused instead
    std::thread other([&] {
      while (!computing[0] || !computing[1]) std::this_thread::sleep_for(1ms);
      ranks.engine(0).abort(Code::aborted, "enough", 1);
      ranks.engine(1).abort(Code::aborted, "enough", 1);
    });
    each_rank(2, [&](int r) {
      const Status status = ranks.run(r, [&](const Op&) {
        computing[r] = true;
        std::this_thread::sleep_for(50ms);
      });
      CHECK_EQ(status.code, Code::aborted);
      CHECK_EQ(status.message, "enough");
    });
    other.join();
    // After a reset of all it computes again.
    for (int r = 0; r < 2; ++r) CHECK_OK(ranks.engine(r).reset(1));
    if (mode == Mode::tcp) {
      const auto [a, b] = check::tcp_pair();
      CHECK_OK(ranks.engine(0).add_connection(1, 0, 0, 0, a));
      CHECK_OK(ranks.engine(1).add_connection(0, 0, 0, 0, b));
    }
    each_rank(2, [&](int r) { CHECK_OK(ranks.run(r, [&](const Op& op) { ranks.compute(r, op); })); });
    ranks.check_sums();
  }
}

TEST(an_engine_that_is_closed_sends_its_caller_away) {
  Ranks ranks(2, Mode::automatic, 64);
  std::thread closer([&] {
    std::this_thread::sleep_for(30ms);
    ranks.engine(0).close();
  });
  const Status status = ranks.run(0, [](const Op&) {});  // rank 1 never comes
  CHECK_EQ(status.code, Code::aborted);
  closer.join();
}

}  // namespace
}  // namespace ccl_lab
