// The ring of spans: order, wrapping, drops, one writer and one reader at once, hostile counters.
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "check.hpp"
#include "trace/ring.hpp"

using namespace ccl_lab;

namespace {

constexpr std::uint32_t kCapacity = 64;

struct Ring {
  alignas(64) std::byte memory[kSpanRingHeaderBytes + kCapacity * kSpanBytes] = {};
  std::atomic<std::uint32_t> enabled{1};
  SpanWriter writer() { return SpanWriter(memory, kCapacity, &enabled); }
  SpanReader reader() { return SpanReader(memory, kCapacity); }
  SpanRingHeader& header() { return *reinterpret_cast<SpanRingHeader*>(memory); }
};

SpanRecord span(std::int64_t n) {
  SpanRecord record{};
  record.begin_ns = n;
  record.end_ns = ~n;
  return record;
}

}  // namespace

TEST(records_come_out_as_they_went_in) {
  Ring ring;
  SpanWriter writer = ring.writer();
  SpanReader reader = ring.reader();
  std::vector<SpanRecord> out(kCapacity);
  std::int64_t in = 0, seen = 0;
  for (int round = 0; round < 200; ++round) {
    for (int i = 0; i < round % 60; ++i) writer.record(span(in++));
    const std::size_t n = reader.drain(out.data(), static_cast<std::size_t>(1 + round % 64));
    for (std::size_t i = 0; i < n; ++i, ++seen) CHECK(out[i].begin_ns == seen && out[i].end_ns == ~seen);
    while (reader.available() > 0) {
      CHECK_EQ(reader.drain(out.data(), 1), std::size_t{1});
      CHECK_EQ(out[0].begin_ns, seen++);
    }
  }
  CHECK_EQ(seen, in);
  CHECK_EQ(reader.dropped(), std::uint64_t{0});
}

TEST(a_full_ring_counts_what_it_loses) {
  Ring ring;
  SpanWriter writer = ring.writer();
  for (int i = 0; i < 100; ++i) writer.record(span(i));
  SpanReader reader = ring.reader();
  CHECK_EQ(reader.dropped(), std::uint64_t{100 - kCapacity});
  std::vector<SpanRecord> out(200);
  CHECK_EQ(reader.drain(out.data(), 200), std::size_t{kCapacity});
  CHECK_EQ(out[kCapacity - 1].begin_ns, std::int64_t{kCapacity - 1});
  writer.record(span(7));
  CHECK_EQ(reader.drain(out.data(), 200), std::size_t{1});
  ring.enabled = 0;
  writer.record(span(8));
  CHECK_EQ(reader.available(), std::size_t{0});
}

TEST(several_records_in_one_turn_wrap_and_are_lost_one_by_one) {
  Ring ring;
  SpanWriter writer = ring.writer();
  SpanReader reader = ring.reader();
  std::vector<SpanRecord> out(kCapacity);
  std::int64_t in = 0;
  std::int64_t seen = 0;
  const auto write = [&](std::size_t i, SpanRecord& slot) { slot = span(in + static_cast<std::int64_t>(i)); };
  for (std::size_t n = 0; n <= kCapacity; ++n) {
    writer.record(n, write);
    in += static_cast<std::int64_t>(n);
    CHECK_EQ(reader.drain(out.data(), out.size()), n);
    for (std::size_t i = 0; i < n; ++i, ++seen) CHECK(out[i].begin_ns == seen && out[i].end_ns == ~seen);
  }
  writer.record(kCapacity - 3, write);
  writer.record(5, write);
  CHECK_EQ(reader.dropped(), std::uint64_t{2});
  CHECK_EQ(reader.drain(out.data(), out.size()), std::size_t{kCapacity});
  CHECK(out[kCapacity - 4].begin_ns == in + kCapacity - 4 && out[kCapacity - 1].begin_ns == in + 2);
}

TEST(a_writer_survives_a_hostile_tail) {
  Ring ring;
  SpanWriter writer = ring.writer();
  for (const std::uint64_t tail : {std::uint64_t{1} << 63, ~std::uint64_t{0}, std::uint64_t{1000}})
    for (const std::uint64_t known : {tail, std::uint64_t{0}}) {
      ring.header().tail = tail;
      ring.header().known_tail = known;
      const std::uint64_t before = ring.header().head + ring.header().dropped;
      writer.record(200, [](std::size_t i, SpanRecord& slot) { slot = span(static_cast<std::int64_t>(i)); });
      CHECK_EQ(ring.header().head + ring.header().dropped, before + 200);
    }
}

TEST(a_writer_continues_where_another_ended) {
  Ring ring;
  ring.writer().record(span(1));
  ring.writer().record(span(2));
  std::vector<SpanRecord> out(4);
  CHECK_EQ(ring.reader().drain(out.data(), 4), std::size_t{2});
  SpanWriter nothing;
  nothing.record(span(1));
  CHECK(!nothing.enabled());
}

TEST(a_reader_survives_hostile_counters) {
  Ring ring;
  std::vector<SpanRecord> out(1000);
  for (const std::uint64_t head : {std::uint64_t{1} << 40, ~std::uint64_t{0}, std::uint64_t{63}})
    for (const std::uint64_t tail : {std::uint64_t{5}, ~std::uint64_t{0} - 3, std::uint64_t{1} << 63}) {
      ring.header().head = head;
      ring.header().tail = tail;
      CHECK(ring.reader().drain(out.data(), out.size()) <= kCapacity);
    }
}

TEST(writer_and_reader_at_once) {
  auto ring = std::make_unique<Ring>();
  constexpr std::int64_t kSpans = 300000;
  std::thread writing([&] {
    SpanWriter writer = ring->writer();
    for (std::int64_t i = 0; i < kSpans; ++i) writer.record(span(i));
    ring->enabled = 2;
  });
  SpanReader reader = ring->reader();
  std::vector<SpanRecord> out(kCapacity);
  std::int64_t last = -1;
  std::uint64_t read = 0;
  bool ended = false;
  for (;;) {
    const std::size_t n = reader.drain(out.data(), out.size());
    for (std::size_t i = 0; i < n; ++i) {
      CHECK(out[i].begin_ns > last && out[i].end_ns == ~out[i].begin_ns);
      last = out[i].begin_ns;
    }
    read += n;
    if (n == 0 && ended) break;
    ended = ring->enabled == 2;
  }
  writing.join();
  CHECK_EQ(read + reader.dropped(), static_cast<std::uint64_t>(kSpans));
}

TEST(cost_of_a_record_is_shown) {
  Ring ring;
  SpanWriter writer = ring.writer();
  SpanReader reader = ring.reader();
  std::vector<SpanRecord> out(kCapacity);
  const std::int64_t begin = now_ns();
  constexpr int kRounds = 2000;
  for (int round = 0; round < kRounds; ++round) {
    for (std::int64_t i = 0; i < 50; ++i) writer.record(span(i));
    reader.drain(out.data(), out.size());
  }
  std::printf("a record costs %.1f ns (written and drained)\n", static_cast<double>(now_ns() - begin) / (kRounds * 50));
}
