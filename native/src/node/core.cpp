// What the protocols share but do not do on every message; see core.hpp.
#include "node/core.hpp"

#include <string>

namespace ccl_lab::node {

namespace {

// In place an all_to_all waits for all ranks after every round: worth it from so many times the least copy.
constexpr std::uint64_t kSwapPays = 8;
// A reduction reads in pieces, and an all_reduce of many twice.
constexpr std::uint64_t kSumsPay = 4;

std::string describe(std::uint64_t what, std::uint64_t nbytes) {
  const auto collective = static_cast<std::size_t>(what & 0xff);
  const auto dtype = static_cast<std::size_t>(what >> 8 & 0xff);
  const auto redop = static_cast<std::size_t>(what >> 16 & 0xff);
  const auto root = static_cast<std::int64_t>(what >> 32) - 1;
  if (collective >= kCollectiveCount || dtype >= kDTypeCount || redop >= kRedOpCount) return "something unknown";
  std::string text = std::string(kCollectiveNames[collective]) + " of " + std::to_string(nbytes) + " bytes a block, " +
                     kDTypeNames[dtype];
  if (reduces(static_cast<Collective>(collective))) text += std::string(", ") + kRedOpNames[redop];
  if (root >= 0) text += ", root " + std::to_string(root);
  return text;
}

}  // namespace

void Core::mismatch(int place_of) {
  const auto other = static_cast<std::size_t>(place_of);
  const Doing& theirs = members[other].board->doing;
  const Doing& ours = own->doing;
  const bool same_call = ours.what.load() == theirs.what.load();
  const bool same_but_type = ((ours.what.load() ^ theirs.what.load()) & ~std::uint64_t{0xff00}) == 0;
  status = Status(same_call ? Code::shape : same_but_type ? Code::dtype : Code::usage,
                  "ranks of one node called different collectives: rank " + std::to_string(ranks[static_cast<std::size_t>(place)]) +
                      " called " + describe(ours.what.load(), ours.nbytes.load()) + "; rank " + std::to_string(ranks[other]) +
                      " called " + describe(theirs.what.load(), theirs.nbytes.load()) +
                      "; call the same collective with the same sizes, type and root on all ranks",
                  ranks[other]);
}

void Core::resolve() {
  bool all_mapped = true;
  bool may_cross = true;
  bool overlaps = false;
  edges = false;
  for (int j = 0; j < n; ++j) {
    const auto i = static_cast<std::size_t>(j);
    if (j != place) std::memcpy(&where[i], header(j).data, sizeof(Where));
    const Where& at = where[i];
    const Blocks has = blocks_of(call.collective, j, n, call.root, call.peer);
    const auto mapped = [&](std::uint32_t flag, std::uint64_t offset, std::uint64_t blocks_there) -> std::byte* {
      const std::uint64_t nbytes = blocks_there * call.block_bytes;
      if (blocks_there == 0) return nullptr;
      // An offset outside the arena would be a damaged peer; its buffer then counts as plain, and fails there.
      if ((at.flags & flag) == 0 || offset > arena_bytes || nbytes > arena_bytes - offset) {
        all_mapped = false;
        return nullptr;
      }
      return members[i].arena + offset;
    };
    inputs[i] = mapped(kInputMapped, at.input, has.input);
    outputs[i] = mapped(kOutputMapped, at.output, has.output);
    edges = edges || (at.input_head | at.input_tail | at.output_head | at.output_tail) != 0;
    may_cross = may_cross && (at.flags & kCanCross) != 0;
    overlaps = overlaps || (at.flags & kOverlaps) != 0;
  }
  // Only the mapped route knows edges: elsewhere such a buffer is a plain one.
  for (std::size_t i = 0; edges && (!all_mapped || overlaps) && i < where.size(); ++i) {
    if ((where[i].input_head | where[i].input_tail) != 0) inputs[i] = nullptr;
    if ((where[i].output_head | where[i].output_tail) != 0) outputs[i] = nullptr;
  }
  route = choose_route(all_mapped, overlaps, may_cross);
  // What an output may overwrite while peers still read it goes through the stage.
  for (std::size_t i = 0; overlaps && route == Route::staged && i < where.size(); ++i)
    if ((where[i].flags & kOverlaps) != 0) inputs[i] = nullptr;
}

void Core::copy(std::byte* to, const std::byte* from, std::uint64_t nbytes, Stores stores) {
  if (stores == Stores::streaming) copy_to(&to, 1, from, nbytes, stores);
  else if (to != from) std::memcpy(to, from, nbytes);
  traffic.read_bytes += nbytes;
  traffic.written_bytes += nbytes;
}

bool Core::crossing_pays(bool overlaps, std::uint64_t from) const {
  const auto all = static_cast<std::uint64_t>(n);
  if (overlaps) return call.block_bytes * all >= from * kSwapPays;
  if (call.collective == Collective::reduce) return false;
  if (!reduces(call.collective)) return call.block_bytes >= from;
  const bool in_parts = call.collective == Collective::all_reduce && !sums_twice();
  return (in_parts ? call.block_bytes / all : call.block_bytes) >= from * kSumsPay;
}

Route Core::choose_route(bool all_mapped, bool overlaps, bool may_cross) {
  if (all_mapped && !overlaps) return Route::mapped;
  bool plain_input = false;
  for (int j = 0; j < n; ++j)
    plain_input = plain_input || (blocks_of(call.collective, j, n, call.root, -1).input > 0 && inputs[static_cast<std::size_t>(j)] == nullptr);
  // One rank decides for all: those that read and those that would have to stage must agree.
  may_cross = may_cross && where[0].cross_from != kNeverCross;
  const bool pays = crossing_pays(overlaps, where[0].cross_from);
  if (overlaps) return (may_cross || !plain_input) && pays ? Route::swapped : Route::staged;
  if (reduces(call.collective)) return may_cross && pays ? Route::pulled : Route::staged;
  return !plain_input || (may_cross && pays) ? Route::pulled : Route::staged;
}

void Core::wake(int place_of) const {
  const Member& member = members[static_cast<std::size_t>(place_of)];
  if (Parking::wake(*member.board) == Sleep::doorbell) member.segment->doorbell().ring();
}

void Core::wake_all() const {
  for (int j = 0; j < n; ++j)
    if (j != place) wake(j);
}

}  // namespace ccl_lab::node
