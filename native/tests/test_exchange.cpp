// Exchanges: any counts give either a named error or a program that moves exactly the rows they name (run this under the address
// sanitizer: counts come from a router that may be wrong).
#include <algorithm>
#include <cstring>
#include <random>
#include <string>

#include "check.hpp"
#include "exec/exchange.hpp"

namespace ccl_lab {
namespace {

constexpr std::uint64_t kRow = 24;

struct Case {
  std::vector<std::int64_t> lengths, ids, blocks;
  std::uint64_t input_bytes = 6 * kRow;
  Counts counts() const {
    const auto of = [](const std::vector<std::int64_t>& values) { return Integers{values.data(), values.size(), true}; };
    return {of(lengths), of(ids), of(blocks), input_bytes, 4711};
  }
};

// Rank `rank` of `n`, its buffers, and what its puts would write at the others.
struct Site {
  std::vector<std::uint8_t> load_store;
  std::shared_ptr<Exchange> exchange;
  std::vector<std::byte> input, output, scratch;
  std::vector<std::vector<std::byte>> outputs, scratches;  // by peer
  Binding binding;

  Site(int rank, int n, std::uint64_t rows, std::uint64_t capacity, std::uint32_t n_splits, bool interleaved)
      : load_store(static_cast<std::size_t>(n), 0) {
    ExchangeSpec spec;
    spec.row_bytes = kRow;
    spec.capacity_bytes = capacity * kRow;
    spec.n_splits = n_splits;
    spec.interleaved = interleaved;
    for (int r = 0; r < n; ++r) spec.group.push_back(r);
    spec.nic.assign(static_cast<std::size_t>(n), 0);
    spec.peer_nic = spec.nic;
    Result<std::shared_ptr<Exchange>> made = Exchange::create(spec, {rank, n, 4, load_store});
    CHECK_OK(made.status());
    exchange = made.value();
    input.resize(rows * kRow);
    output.resize(exchange->output_bytes());
    scratch.resize(exchange->scratch_bytes());
    outputs.assign(static_cast<std::size_t>(n), output);
    scratches.assign(static_cast<std::size_t>(n), scratch);
    for (std::size_t i = 0; i < input.size(); ++i) input[i] = static_cast<std::byte>(i * 131 % 251);
    binding.base[0] = input.data();
    binding.base[1] = output.data();
    binding.base[2] = scratch.data();
  }

  std::vector<std::byte>& own(Buffer buffer) { return buffer == Buffer::input ? input : buffer == Buffer::output ? output : scratch; }

  // Does what the program says; the number of signals each rank gets.
  std::vector<int> play() {
    const Program& program = exchange->program();
    std::vector<int> signals(outputs.size(), 0);
    for (const Op& op : program.ops()) {
      if (op.kind != Kind::copy && op.kind != Kind::put) continue;
      const Source& source = program.sources(op).front();
      const auto peer = static_cast<std::size_t>(std::max(op.peer, 0));
      std::vector<std::byte>& to = op.kind == Kind::copy ? own(op.dst_buffer)
                                   : op.dst_buffer == Buffer::output ? outputs[peer] : scratches[peer];
      CHECK(op.dst_offset + op.nbytes <= to.size());
      std::memcpy(to.data() + op.dst_offset, own(source.buffer).data() + source.offset, op.nbytes);
      if (op.kind == Kind::put && op.sig_channel >= 0) ++signals[peer];
    }
    return signals;
  }
};

// What `counts` send to the rank at `place`, by the words of the documentation.
std::vector<std::byte> expected(const Site& site, const Case& counts, std::size_t place) {
  std::vector<std::byte> rows;
  std::size_t at = 0;
  for (std::size_t p = 0; p < place; ++p) at += static_cast<std::size_t>(counts.blocks[p]);
  for (std::int64_t k = 0; k < counts.blocks[place]; ++k) {
    const auto id = static_cast<std::size_t>(counts.ids[at + static_cast<std::size_t>(k)]);
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < id; ++i) begin += counts.lengths[i];
    const auto from = site.input.begin() + begin * static_cast<std::int64_t>(kRow);
    rows.insert(rows.end(), from, from + counts.lengths[id] * static_cast<std::int64_t>(kRow));
  }
  return rows;
}

TEST(programs_move_exactly_what_the_counts_name) {
  std::mt19937 random(6);
  const auto below = [&](int n) { return static_cast<std::int64_t>(random() % static_cast<unsigned>(n)); };
  for (int seed = 0; seed < 400; ++seed) {
    const int n = 1 + static_cast<int>(below(4)), rank = static_cast<int>(below(n));
    const auto n_splits = static_cast<std::uint32_t>(1 + below(12));
    const bool interleaved = seed % 2 == 0, long_rows = seed % 5 == 0;
    Case counts;
    counts.input_bytes = 12 * 1500 * kRow;
    for (std::uint32_t i = 0; i < n_splits; ++i) counts.lengths.push_back(below(long_rows ? 1500 : 4));
    for (int r = 0; r < n; ++r) counts.blocks.push_back(below(14));
    for (const std::int64_t block : counts.blocks)
      for (std::int64_t k = 0; k < block; ++k) counts.ids.push_back(below(static_cast<int>(n_splits)));
    Site site(rank, n, 12 * 1500, 14 * 1500, n_splits, interleaved);
    CHECK_OK(site.exchange->begin(counts.counts(), site.binding, seed % 3 != 0, seed % 2 == 0));
    const std::vector<int> signals = site.play();
    for (int r = 0; r < n; ++r) {
      const auto place = static_cast<std::size_t>(r);
      const std::vector<std::byte> want = expected(site, counts, place);
      const std::vector<std::byte>& there = r == rank ? site.output : site.outputs[place];
      const std::uint64_t at = site.exchange->data_offset(static_cast<std::size_t>(rank));
      CHECK(std::equal(want.begin(), want.end(), there.begin() + static_cast<std::ptrdiff_t>(at)));
      CHECK_EQ(signals[place], r == rank ? 0 : 1);
      const std::vector<std::byte>& headers = interleaved ? there : r == rank ? site.scratch : site.scratches[place];
      std::vector<std::int64_t> header(n_splits + 2);
      std::memcpy(header.data(), headers.data() + site.exchange->lengths_offset(static_cast<std::size_t>(rank)), 8 * header.size());
      CHECK_EQ(header.back(), static_cast<std::int64_t>(want.size() / kRow));
      CHECK_EQ(header.front(), 4711);
      header.pop_back();
      header.erase(header.begin());
      CHECK(header == counts.lengths);
    }
  }
}

TEST(wrong_counts_are_refused_before_a_byte_moves) {
  const Case good{{1, 2, 3}, {0, 1, 2}, {2, 1}};
  const auto refused = [](Case counts, Code code, const std::string& text) {
    Site site(0, 2, 6, 4, 3, true);
    const Status status = site.exchange->begin(counts.counts(), site.binding, true, true);
    CHECK_EQ(status.code, code);
    if (status.message.find(text) == std::string::npos) check::fail(__FILE__, __LINE__, "no '" + text + "' in: " + status.message);
  };
  Site site(0, 2, 6, 4, 3, true);
  CHECK_OK(site.exchange->begin(good.counts(), site.binding, true, true));
  refused({{1, 2, 4}, good.ids, good.blocks}, Code::shape, "split 2 has length 4");
  refused({{1, -1, 3}, good.ids, good.blocks}, Code::shape, "split 1 has length -1");
  refused({{INT64_MAX, INT64_MAX, 3}, good.ids, good.blocks}, Code::shape, "split 0 has length");
  refused({{1, 2}, good.ids, good.blocks}, Code::shape, "2 split lengths, expected 3");
  refused({good.lengths, {0, 3, 2}, good.blocks}, Code::usage, "split id 3 at position 1");
  refused({good.lengths, {0, INT64_MIN, 2}, good.blocks}, Code::usage, "split id -9223372036854775808");
  refused({good.lengths, good.ids, {2, 2}}, Code::shape, "block 1 has 2 split ids");
  refused({good.lengths, good.ids, {-1, 2}}, Code::shape, "block 0 has -1 split ids");
  refused({good.lengths, good.ids, {3}}, Code::shape, "1 block lengths, expected one for each of 2");
  refused({good.lengths, {2, 2, 0}, {2, 1}}, Code::shape, "more than 4 rows for rank 0");
}

TEST(random_damage_never_gets_out_of_bounds) {
  std::mt19937_64 random(7);
  for (int seed = 0; seed < 2000; ++seed) {
    Case counts{{1, 2, 3}, {0, 1, 2, 2, 0}, {2, 1, 2}};
    std::vector<std::int64_t>* const columns[] = {&counts.lengths, &counts.ids, &counts.blocks};
    std::vector<std::int64_t>& hit = *columns[random() % 3];
    hit[random() % hit.size()] = seed % 2 ? static_cast<std::int64_t>(random()) : static_cast<std::int64_t>(random() % 9) - 3;
    Site site(1, 3, 6, 4, 3, seed % 4 < 2);
    if (site.exchange->begin(counts.counts(), site.binding, seed % 3 == 0, false).ok()) site.play();
  }
}

TEST(what_can_never_run_is_refused_when_it_is_made) {
  const std::vector<std::uint8_t> load_store(2, 0);
  const auto made = [&](ExchangeSpec spec) { return Exchange::create(std::move(spec), {0, 2, 4, load_store}).status().code; };
  ExchangeSpec spec;
  spec.n_splits = 1;
  spec.group = {0, 1};
  spec.nic = spec.peer_nic = {0, 0};
  CHECK_EQ(made(spec), Code::ok);
  for (const std::vector<std::int32_t>& group : {std::vector<std::int32_t>{1, 1}, {0, 0}, {0, 2}, {0, -1}, {1, 0, 0}}) {
    ExchangeSpec other = spec;
    other.group = group;
    other.nic.assign(group.size(), 0);
    other.peer_nic = other.nic;
    CHECK_EQ(made(other), Code::usage);
  }
  for (auto change : {+[](ExchangeSpec& s) { s.n_splits = 0; }, +[](ExchangeSpec& s) { s.row_bytes = 0; },
                      +[](ExchangeSpec& s) { s.capacity_bytes = std::uint64_t{1} << 60; }, +[](ExchangeSpec& s) { s.nic.clear(); }}) {
    ExchangeSpec other = spec;
    change(other);
    CHECK_EQ(made(other), Code::usage);
  }
}

}  // namespace
}  // namespace ccl_lab
