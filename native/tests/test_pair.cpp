// Which way messages between two ranks take, by who has the cells they share.
//
// Is: real processes that send to and fro, and how many bytes each of them wrote: through the cells both write all of a message,
//     of mapped memory each writes about half of it into the receiver's.
// Is not: whether messages of all sizes on all kinds of memory come through (test_node.cpp).
#include <cstdint>
#include <cstring>
#include <vector>

#include "check.hpp"
#include "node_ranks.hpp"

using namespace ccl_lab;
using namespace ccl_lab::testing;

namespace {

constexpr std::uint64_t kAllCells = node::kPairCells * node::kSlotBytes / sizeof(float);

// A message of `count` floats from `root` to the other of two; whether it came, and went as it should.
bool send(NodeRank& self, float* data, int root, std::uint64_t count, bool through_cells) {
  const float salt = static_cast<float>(root + 1) * static_cast<float>(count % 1000);
  for (std::uint64_t i = 0; i < count; ++i) data[i] = self.rank == root ? salt + static_cast<float>(i % 5000) : -1;
  node::Call call;
  call.collective = Collective::send_recv;
  call.dtype = DType::float32;
  call.block_bytes = count * sizeof(float);
  call.root = root;
  call.peer = 1 - root;
  call.input = call.output = reinterpret_cast<std::byte*>(data);
  const std::uint64_t before = self.group->traffic().written_bytes;
  if (!self.run(call).ok()) return false;
  const std::uint64_t written = self.group->traffic().written_bytes - before;
  for (std::uint64_t i = 0; i < count; ++i)
    if (data[i] != salt + static_cast<float>(i % 5000)) return false;
  return (written == call.block_bytes) == through_cells;
}

bool to_and_fro(NodeRank& self, float* data) {
  return send(self, data, 1, 30'000, false) &&          // at first the lower rank has the cells
         send(self, data, 0, 40'000, true) &&           //
         send(self, data, 0, 40'000, false) &&          // they are the other's now
         send(self, data, 1, kAllCells, true) &&        //
         send(self, data, 0, kAllCells + 1, false) &&   // too long
         send(self, data, 1, 5000, false) &&            // still rank 0's
         send(self, data, 0, 4097, true) &&             // the shortest that does not fit a slot
         send(self, data, 1, 123'457, true);
}

node::GroupOptions cores(int n) {
  node::GroupOptions options;
  options.n_cores = n;
  return options;
}

TEST(who_received_through_the_cells_sends_through_them) {
  CHECK(run_ranks(2, [](NodeRank& self) {
    float* const data = self.mapped<float>(0);
    if (!to_and_fro(self, data)) return false;
    // Rank 0 has them now; after a new epoch too, and also where rank 1 had them before it.
    if (!send(self, data, 0, 50'000, true)) return false;
    self.barrier();
    ++self.meeting->numbers[0];
    while (self.meeting->numbers[0] < 2) ::usleep(100);
    self.group->reset(1);
    ++self.meeting->numbers[0];
    while (self.meeting->numbers[0] < 4) ::usleep(100);
    return to_and_fro(self, data);
  }, cores(2)));
}

TEST(mapped_memory_of_ranks_that_share_cores_needs_no_cells) {
  CHECK(run_ranks(2, [](NodeRank& self) {
    return send(self, self.mapped<float>(0), 0, 40'000, false) && send(self, self.mapped<float>(0), 0, 40'000, false);
  }, cores(1)));
}

// One that does not know how few the cores are takes it that its message comes through the cells; it comes all the same.
TEST(ranks_that_count_cores_differently) {
  CHECK(run_ranks(2, [](NodeRank& self) {
    float* const data = self.mapped<float>(0);
    return send(self, data, 0, 40'000, self.rank == 1) && send(self, data, 1, 40'000, false) && send(self, data, 0, 40'000, self.rank == 1);
  }, cores(2), [](int rank, node::GroupOptions options) {
    if (rank == 0) options.n_cores = 1;
    return options;
  }));
}

// Where the kernel is to copy whatever it can, it copies.
TEST(plain_messages_go_through_the_cells_unless_the_kernel_is_asked_for) {
  for (const bool always : {false, true}) {
    node::GroupOptions options = cores(1);
    if (always) options.cross = node::Cross::always;
    CHECK(run_ranks(2, [always](NodeRank& self) {
      std::vector<float> data(kAllCells);
      const std::uint64_t before = self.group->traffic().written_bytes;
      // Of pieces through slots, too, both write all.
      if (!send(self, data.data(), 0, kAllCells, !always || self.rank == 1)) {
        const std::uint64_t written = self.group->traffic().written_bytes - before;
        return always && written == kAllCells * sizeof(float);  // the kernel would not
      }
      return true;
    }, options));
  }
}

}  // namespace
