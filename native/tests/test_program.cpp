// The gate of compile: what is right passes, what is wrong is refused with the op and the reason, and random damage never
// gets an index out of range (run this under the address sanitizer).
#include <random>
#include <string>

#include "check.hpp"
#include "plans.hpp"

namespace ccl_lab {
namespace {

using check::Columns;

struct Site {
  std::vector<std::uint8_t> load_store;
  Placement placement;
  Site(int rank, int n) : load_store(static_cast<std::size_t>(n), 1) {
    placement.rank = rank;
    placement.n_ranks = n;
    placement.n_channels = 4;
    placement.load_store = load_store;
  }
};

Status compile(const Columns& columns) {
  const Site site(columns.rank(), columns.n());
  return Program::compile(columns.spec(), site.placement).status();
}

void refused(const Columns& columns, Code code, const std::string& text) {
  const Status status = compile(columns);
  CHECK_EQ(status.code, code);
  if (status.message.find(text) == std::string::npos) check::fail(__FILE__, __LINE__, "no '" + text + "' in: " + status.message);
}

TEST(plans_compile) {
  for (int n = 1; n < 6; ++n)
    for (int rank = 0; rank < n; ++rank) {
      CHECK_OK(compile(check::ring_all_gather(rank, n, 100)));
      CHECK_OK(compile(check::ring_all_gather(rank, n, 0)));
      CHECK_OK(compile(check::get_all_gather(rank, n, 8)));
      CHECK_OK(compile(check::direct_all_reduce(rank, n, 64, DType::float32, RedOp::avg, n % 2 == 0)));
    }
}

TEST(program_numbers_what_the_executor_needs) {
  const Site site(1, 3);
  const Columns columns = check::direct_all_reduce(1, 3, 64, DType::float32, RedOp::sum, false);
  Result<Program> made = Program::compile(columns.spec(), site.placement);
  CHECK_OK(made.status());
  const Program& program = made.value();
  CHECK_EQ(program.n_channels(), 2u);
  CHECK_EQ(program.peers().size(), 2u);
  CHECK_EQ(program.counters().size(), 5u);
  CHECK_EQ(program.n_flights(), 5u);  // to two peers from each channel, and channel 0 to itself
  CHECK_EQ(program.max_sources(), 3u);
  CHECK_EQ(program.peers()[0].extent[2], 128u);  // this rank's slot is the second
  CHECK_EQ(program.peers()[0].extent[1], 128u);
}

TEST(damage_is_named) {
  const Columns good = check::direct_all_reduce(0, 4, 64, DType::float32, RedOp::sum, false);
  const auto damaged = [&](auto change, Code code, const std::string& text) {
    Columns bad = good;
    change(bad);
    refused(bad, code, text);
  };
  damaged([](Columns& c) { c.kind[0] = 8; }, Code::usage, "kind 8 is not known");
  damaged([](Columns& c) { c.channel[0] = 2; }, Code::bounds, "channel 2 is outside 0..1");
  damaged([](Columns& c) { c.channel[0] = -1; }, Code::bounds, "channel -1");
  damaged([](Columns& c) { c.peer[0] = 4; }, Code::bounds, "op 0 (put): peer 4 is outside 0..3");
  damaged([](Columns& c) { c.sig_channel[0] = 4; }, Code::bounds, "signal channel 4");
  damaged([](Columns& c) { c.value[1] = -1; }, Code::bounds, "waits for value -1");
  damaged([](Columns& c) { c.src_begin[0] = 1000; }, Code::bounds, "of a table of");
  damaged([](Columns& c) { c.src_count[0] = 2; }, Code::usage, "expected 1");
  damaged([](Columns& c) { c.src_offset[0] = 256; }, Code::bounds, "source bytes [256, +64) of input, which has 256");
  damaged([](Columns& c) { c.src_offset[0] = ~std::uint64_t{0}; }, Code::bounds, "source bytes");
  damaged([](Columns& c) { c.src_rank[0] = 1; }, Code::usage, "puts bytes of rank 1");
  damaged([](Columns& c) { c.nbytes[8] = 63; }, Code::shape, "no whole number of float32");
  damaged([](Columns& c) { c.dst_offset[8] = 193; }, Code::bounds, "destination bytes");
  damaged([](Columns& c) { c.dst_offset[0] = ~std::uint64_t{0}; }, Code::bounds, "destination bytes");
  damaged([](Columns& c) { c.dst_buf[8] = 3; }, Code::bounds, "buffer 3");
  damaged([](Columns& c) { c.dst_buf[8] = 2; c.dst_offset[8] = 96; }, Code::bounds, "overlap");
  damaged([](Columns& c) { c.arg.pop_back(); }, Code::usage, "op column arg");
  damaged([](Columns& c) { c.src_buf.pop_back(); }, Code::usage, "source columns");
  damaged([](Columns& c) { c.ready_to[0] = 9; }, Code::bounds, "ready_to names rank 9");
  damaged([](Columns& c) { c.scalars.n_channels = 5; }, Code::usage, "the engine has 4");
  damaged([](Columns& c) { c.scalars.output_elements = 1000; }, Code::bounds, "output_elements");
  damaged([](Columns& c) { c.scalars.n_ranks_avg = 0; }, Code::usage, "n_ranks_avg");
  damaged([](Columns& c) { c.scalars.alias = Alias::input_in_output; c.scalars.alias_offset = 1; }, Code::bounds, "in place");
}

TEST(damaged_computations_are_named) {
  const Columns good = check::matmul_reduce_scatter(1, 3, 64, DType::float32);
  const Site site(1, 3);
  Result<Program> made = Program::compile(good.spec(), site.placement);
  CHECK_OK(made.status());
  CHECK_EQ(made->partitions(), 3);
  CHECK(made->ops()[0].produces);
  CHECK_EQ(made->ops()[0].nbytes, 64u);
  const auto damaged = [&](auto change, Code code, const std::string& text) {
    Columns bad = good;
    change(bad);
    refused(bad, code, text);
  };
  damaged([](Columns& c) { c.arg[0] = -1; }, Code::bounds, "op 1000 (compute): partition -1 is outside 0..");
  damaged([](Columns& c) { c.arg[0] = 1 << 30; }, Code::bounds, "partition 1073741824 is outside 0..");
  damaged([](Columns& c) { c.value[0] = 2; }, Code::usage, "value is 2, expected 1 (it produces) or 0 (it reads)");
  damaged([](Columns& c) { c.src_count[0] = 0; }, Code::bounds, "of a table of");
  damaged([](Columns& c) { c.src_begin[0] = 100; }, Code::bounds, "of a table of");
  damaged([](Columns& c) { c.src_buf[0] = 1; }, Code::usage, "produces bytes of another buffer than INPUT");
  damaged([](Columns& c) { c.src_rank[0] = 0; }, Code::usage, "computes on bytes of rank 0");
  damaged([](Columns& c) { c.src_offset[0] = 192; }, Code::bounds, "source bytes [192, +64) of input, which has 192");
  damaged([](Columns& c) { c.dst_offset[0] = 129; }, Code::bounds, "destination bytes [129, +64) of input, which has 192");
  damaged([](Columns& c) { c.dst_offset[0] = 96; }, Code::bounds, "overlap");
  damaged([](Columns& c) { c.nbytes[0] = 63; }, Code::shape, "no whole number of float32");
  Columns reads(0, 1);
  reads.scalars.bytes[1] = 64;
  reads.compute(0, 0);
  reads.compute(0, 5, {{Buffer::output, 0}, {Buffer::output, 32}}, 32);
  CHECK_OK(compile(reads));
  reads.compute(0, 1, {{Buffer::output, 48}}, 32);
  refused(reads, Code::bounds, "source bytes [48, +32) of output, which has 64");
}

TEST(memory_of_unattached_ranks_is_refused) {
  const Columns columns = check::direct_all_reduce(0, 2, 64, DType::float32, RedOp::sum, true);
  Site site(0, 2);
  site.load_store[1] = 0;
  const Status status = Program::compile(columns.spec(), site.placement).status();
  CHECK_EQ(status.code, Code::unsupported);
}

TEST(aliased_buffers_may_not_overlap_in_part) {
  Columns c(0, 1);
  c.scalars.bytes[0] = 64;
  c.scalars.bytes[1] = 128;
  c.scalars.alias = Alias::input_in_output;
  c.scalars.alias_offset = 64;
  c.copy(0, {Buffer::input, 0}, {Buffer::output, 64}, 64);  // the same memory
  CHECK_OK(compile(c));
  c.copy(0, {Buffer::input, 0}, {Buffer::output, 32}, 64);
  refused(c, Code::bounds, "overlap");
}

TEST(random_damage_is_refused_or_harmless) {
  std::mt19937_64 random(11);
  const std::int32_t values[] = {-1000000, -2, -1, 0, 1, 2, 3, 4, 5, 100, 65536, INT32_MAX, INT32_MIN};
  int passed = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    Columns c = trial % 4 == 3 ? check::matmul_reduce_scatter(1, 3, 64, DType::float32)
                               : check::direct_all_reduce(1, 3, 64, DType::float32, RedOp::sum, trial % 2 == 0);
    for (int k = 0; k < 3; ++k) {
      std::vector<std::int32_t>* const columns[] = {&c.channel, &c.peer, &c.sig_channel, &c.src_begin, &c.src_count, &c.src_rank, &c.ready_to};
      auto& column = *columns[random() % 7];
      const std::int32_t value = values[random() % 13];
      if (k < 2) column[random() % column.size()] = value;
      else if (trial % 3 == 0) c.dst_offset[random() % c.dst_offset.size()] = random();
      else if (trial % 3 == 1) c.src_offset[random() % c.src_offset.size()] = random() % 300;
      else c.kind[random() % c.kind.size()] = static_cast<std::uint8_t>(random() % 9);
    }
    const Site site(1, 3);
    Result<Program> made = Program::compile(c.spec(), site.placement);
    if (!made.ok()) continue;
    ++passed;
    for (const Op& op : made->ops()) {
      CHECK(op.slot < static_cast<int>(made->peers().size()));
      CHECK(op.counter < static_cast<int>(made->counters().size()));
      CHECK(op.flight < static_cast<int>(made->n_flights()));
      for (const Source& source : made->sources(op)) CHECK(source.slot < static_cast<int>(made->peers().size()));
    }
  }
  CHECK(passed > 0);
}

}  // namespace
}  // namespace ccl_lab
