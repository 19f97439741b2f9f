// Admission and the memory of failed calls; see local.hpp.
#include "comm/local.hpp"

#include <utility>

namespace ccl_lab {

namespace {
// Neighbours of a key's place that may hold it.
constexpr std::size_t kProbes = 8;
}  // namespace

Local::Local(std::shared_ptr<RankSegment> own, std::shared_ptr<Arena> arena, std::vector<std::int32_t> node_ranks,
             const node::GroupOptions& options)
    : own_(std::move(own)),
      arena_(std::move(arena)),
      spans_(*own_),
      group_(own_, std::move(node_ranks), options, &spans_),
      registry_(own_, arena_, &group_) {}

// A bijection of the size, mixed with the rest: equal keys mean equal calls unless 64 bits collide among a thousand.
std::uint64_t Local::key_of(const node::Call& call) {
  const std::uint64_t what = static_cast<std::uint64_t>(call.collective) | static_cast<std::uint64_t>(call.dtype) << 8 |
                             static_cast<std::uint64_t>(call.redop) << 16 |
                             static_cast<std::uint64_t>(static_cast<std::uint32_t>(call.root + 1)) << 24 |
                             static_cast<std::uint64_t>(static_cast<std::uint32_t>(call.peer + 1)) << 44;
  std::uint64_t key = call.block_bytes * 0x9e3779b97f4a7c15u + what * 0xc2b2ae3d27d4eb4fu;
  key ^= key >> 31;
  key *= 0xbf58476d1ce4e5b9u;
  key ^= key >> 29;
  return key == 0 ? 1 : key;
}

bool Local::admitted(const node::Call& call) const {
  const std::uint64_t key = key_of(call);
  for (std::size_t i = 0; i < kProbes; ++i)
    if (admitted_[(key + i) % kAdmitted] == key) return true;
  return false;
}

void Local::admit(const node::Call& call) {
  const std::uint64_t key = key_of(call);
  for (std::size_t i = 0; i < kProbes; ++i) {
    std::uint64_t& place = admitted_[(key + i) % kAdmitted];
    if (place != 0 && place != key) continue;
    place = key;
    return;
  }
  admitted_[key % kAdmitted] = key;
}

void Local::hold(const node::Call& call) {
  for (const std::byte* const data : {call.input, static_cast<const std::byte*>(call.output)})
    if (data != nullptr && arena_->offset_of(data, 1) >= 0)
      if (std::shared_ptr<Block> block = arena_->find(data, 1)) held_.push_back(std::move(block));
}

void Local::reset(std::uint64_t epoch) {
  group_.reset(epoch);
  held_.clear();
}

}  // namespace ccl_lab
