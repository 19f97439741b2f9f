// What switches between nodes add to the latency of puts, by the tier at which two NICs meet (ccl_lab/topo/network.py).
//
// Is: for a put from one node to another, and for those of many nodes in a row, what is added where both NICs have the same number in their
// nodes, and where not. Is not: a route, nor links that are shared.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "vectors.hpp"

namespace ccl_lab::sim {

struct PairTiersInput {
  std::span<const std::int32_t> group;       // [tiers][nodes], from the NICs up; NICs meet at the first tier where their nodes are of one group
  std::span<const std::int64_t> latency_ps;  // [tiers]; empty: switches add nothing
  std::span<const std::uint8_t> per_rail;    // [tiers] whether only NICs of one number meet there
};

// What is added to puts of units in a row; nullptr: nothing.
struct Added {
  const std::int64_t* same = nullptr;   // where both NICs have one number
  const std::int64_t* other = nullptr;

  [[nodiscard]] explicit operator bool() const { return same != nullptr; }
  [[nodiscard]] Added from(std::size_t unit) const { return *this ? Added{same + unit, other + unit} : Added{}; }
  [[nodiscard]] const std::int64_t* of(bool same_nic) const { return same_nic ? same : other; }
};

class PairTiers {
 public:
  PairTiers(const PairTiersInput& in, std::size_t nodes) : in_(in), nodes_(nodes) {}

  static bool good(const PairTiersInput& in, std::int64_t nodes) {
    const auto fits = [](std::int64_t v) { return v >= 0 && v < std::int64_t{1} << 58; };
    return in.group.size() == in.latency_ps.size() * static_cast<std::size_t>(nodes) && in.per_rail.size() == in.latency_ps.size() &&
           std::ranges::all_of(in.latency_ps, fits);
  }

  [[nodiscard]] bool any() const { return !in_.latency_ps.empty(); }
  [[nodiscard]] std::int64_t most() const { return any() ? std::ranges::max(in_.latency_ps) : 0; }

  [[nodiscard]] std::int64_t of(std::size_t u, std::size_t v, bool same_nic) const {
    for (std::size_t tier = 0; tier < in_.latency_ps.size(); ++tier)
      if ((same_nic || in_.per_rail[tier] == 0) && group(tier)[u] == group(tier)[v]) return in_.latency_ps[tier];
    return 0;
  }

  // Of units from u on, which put to those from v on, at most kWide of them. It lasts until the next call.
  [[nodiscard]] Added in_row(std::size_t u, std::size_t v, std::size_t count) {
    if (!any()) return {};
    same_.fill(0);
    other_.fill(0);
    for (std::size_t tier = in_.latency_ps.size(); tier-- > 0;) {
      const std::int32_t *const from = group(tier) + u, *const to = group(tier) + v;
      const std::int64_t adds = in_.latency_ps[tier];
      for (std::size_t w = 0; w < count; ++w) same_[w] = from[w] == to[w] ? adds : same_[w];
      for (std::size_t w = 0; in_.per_rail[tier] == 0 && w < count; ++w) other_[w] = from[w] == to[w] ? adds : other_[w];
    }
    return {same_.data(), other_.data()};
  }

 private:
  [[nodiscard]] const std::int32_t* group(std::size_t tier) const { return in_.group.data() + tier * nodes_; }

  PairTiersInput in_;
  std::size_t nodes_;
  std::array<std::int64_t, kWide> same_{}, other_{};
};

// The last rounds in which each unit is put to by so many others at least that are not odd: u puts to u + d in round d. odd_before: how many odd
// ones there are before each unit, and in all. All units, where no fewer rounds are enough.
inline std::size_t last_rounds(std::span<const std::size_t> odd_before, std::size_t wanted) {
  const std::size_t units = odd_before.size() - 1;
  for (std::size_t rounds = wanted; rounds + 1 < units; rounds *= 2) {
    const auto enough = [&](std::size_t v) {
      const std::size_t end = v + 1 + rounds, last = std::min(end, units);  // the others are the first ones
      return odd_before[last] - odd_before[v + 1] + odd_before[end - last] + wanted <= rounds;
    };
    std::size_t v = 0;
    while (v < units && enough(v)) ++v;
    if (v == units) return rounds;
  }
  return units;
}

// The first round of which tiers are asked for plain puts. Those to a NIC follow one another, `each_ps` in a round, so that what is added to early ones
// does not matter: in the last rounds so many plain units put to each one that these take longer than a latency and what is added at most.
inline std::size_t told_from(const PairTiers& tiers, std::span<const std::size_t> odd_before, std::int64_t latency_ps, std::int64_t each_ps) {
  const std::size_t units = odd_before.size() - 1;
  if (!tiers.any() || each_ps <= 0) return 0;
  return units - last_rounds(odd_before, static_cast<std::size_t>((tiers.most() + latency_ps) / each_ps + 1));
}

}  // namespace ccl_lab::sim
