// What switches between nodes add to the latency of exchanges, by the tier at which two NICs meet (ccl_lab/topo/network.py).
//
// Is: that of one put, of eight at a time, and whether it is the same one for all ranks of some blocks. Is not: a route, nor links that are
// shared. Numbers: those of ranks in whatever order an evaluation has them in; blocks are of so many of them in a row.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "partner_octet.hpp"
#include "partner_tiers_input.hpp"

namespace ccl_lab::sim {

class PartnerTiers {
 public:
  static constexpr std::int64_t kMixed = -1;

  // Of the ranks of streams first, first + 1, …; number(rank): below n.
  template <class Number>
  PartnerTiers(const PartnerTiersInput& in, std::size_t streams, std::size_t first, std::size_t n, std::size_t ranks, std::size_t block,
               const Number& number)
      : latency_(in.latency_ps.begin(), in.latency_ps.end()), size_(n + kLanes), block_(block), blocks_((n + block - 1) / block),
        above_(latency_.size() * size_, 0), spans_(latency_.size() * blocks_) {
    for (std::size_t tier = 0; tier < latency_.size(); ++tier)
      for (std::size_t r = 0; r < ranks; ++r) {
        const std::size_t i = number(r);
        const std::int32_t above = in.above[tier * streams + first + r];
        Span& span = spans_[tier * blocks_ + i / block_];
        span = {std::min(span.least, above), std::max(span.most, above)};
        above_[tier * size_ + i] = above;
      }
  }

  static bool good(const PartnerTiersInput& in, std::size_t streams) {
    const auto fits = [](std::int64_t v) { return v >= 0 && v < std::int64_t{1} << 58; };
    return in.above.size() == in.latency_ps.size() * streams && std::ranges::all_of(in.latency_ps, fits);
  }

  [[nodiscard]] bool any() const { return !latency_.empty(); }
  [[nodiscard]] std::int64_t most() const { return any() ? std::ranges::max(latency_) : 0; }

  [[nodiscard]] std::int64_t of(std::size_t i, std::size_t j) const {
    for (std::size_t tier = 0; tier < latency_.size(); ++tier)
      if (above_[tier * size_ + i] == above_[tier * size_ + j]) return latency_[tier];
    return 0;
  }

  // What is added between any number of blocks `one` to `end` and any of blocks `other` to `its_end`, the last ones included; kMixed: that may differ.
  [[nodiscard]] std::int64_t between(std::size_t one, std::size_t end, std::size_t other, std::size_t its_end) const {
    for (std::size_t tier = 0; tier < latency_.size(); ++tier) {
      const Span *const spans = &spans_[tier * blocks_], ours = over(spans, one, end), its = over(spans, other, its_end);
      if (ours.most < its.least || its.most < ours.least) continue;
      return ours.least == its.most && ours.most == its.least ? latency_[tier] : kMixed;
    }
    return 0;
  }

  [[nodiscard]] std::size_t block_of(std::size_t number) const { return number / block_; }

  // Of eight numbers from i on, which meet eight from j on: each the one that `by` says.
  [[gnu::always_inline]] inline void of_eight(std::size_t i, std::size_t j, const Crossing& by, std::int64_t* added) const {
    I64x4 halves[2] = {};
    for (std::size_t tier = latency_.size(); tier-- > 0;) {
      const std::int32_t* const above = &above_[tier * size_];
      alignas(32) std::array<std::array<std::int32_t, 4>, 2> same;
      store(same.data(), loaded<I32x8>(above + i) == crossed(loaded<I32x8>(above + j), by.by));
      const I64x4 latency = I64x4{} + latency_[tier];
#pragma GCC unroll 2
      for (std::size_t k = 0; k < 2; ++k)
        halves[k] = __builtin_convertvector(loaded<I32x4>(same[k].data()), I64x4) != 0 ? latency : halves[k];
    }
    store(added, halves[0]);
    store(added + kLanes / 2, halves[1]);
  }

 private:
  // Of switches.
  struct Span {
    std::int32_t least = std::numeric_limits<std::int32_t>::max(), most = -1;
  };

  [[nodiscard]] static Span over(const Span* spans, std::size_t block, std::size_t end) {
    Span all = spans[block];
    while (block++ < end) all = {std::min(all.least, spans[block].least), std::max(all.most, spans[block].most)};
    return all;
  }

  std::vector<std::int64_t> latency_;
  std::size_t size_, block_, blocks_;
  std::vector<std::int32_t> above_;  // [tiers][numbers], and as many more as eight in a row may reach beyond the last one
  std::vector<Span> spans_;          // [tiers][blocks]
};

}  // namespace ccl_lab::sim
