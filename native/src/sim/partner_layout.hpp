// Which ranks are side by side in an evaluation of exchanges that are not in step (partner_octets.hpp), and which of them are due.
//
// Is: a number for each rank, so that in each step the 64 lanes of one word have those of one other word for partners, and the eight of
// an octet those of one other; a calendar of lanes. Is not: what they do then. Ranks of a word differ in six bits in a row, if possible
// in such as lie above those of a rank in its node: where a NIC is lost, ranks of a node come to differ in what they do, and nodes less.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "partner_octet.hpp"

namespace ccl_lab::sim {

// Lane l of word w is number 64 w + l; of a power of two of ranks.
class Layout {
 public:
  Layout(std::uint32_t n, std::span<const std::int32_t> node) : words_(n / kWordLanes) {
    std::vector<std::uint32_t> first(n, n);
    for (std::uint32_t r = 0; r < n; ++r) {
      std::uint32_t& from = first[static_cast<std::size_t>(node[r])];
      from = std::min(from, r);
      near_ = std::max(near_, std::bit_ceil((from ^ r) + 1));
    }
    low_ = std::min(std::bit_width(near_), std::bit_width(words_)) - 1;
    for (std::size_t c = 0; c < kLanes; ++c) crossings_[c] = crossing([&](std::size_t l) { return l ^ c; });
  }

  static constexpr std::uint32_t kWordLanes = kWordOctets * kLanes;

  [[nodiscard]] std::uint32_t words() const { return words_; }

  [[nodiscard]] std::uint32_t rank(std::uint32_t number) const {
    const std::uint32_t word = number / kWordLanes;
    return ((word >> low_) * kWordLanes + number % kWordLanes) << low_ | (word & below());
  }

  // The word that one has for partner in a step: lane l meets lane l xor `apart`.
  struct Partner {
    std::uint32_t word, apart;
  };
  [[nodiscard]] Partner partner(std::uint32_t word, std::uint32_t step) const {
    return {word ^ ((step >> low_) / kWordLanes << low_ | (step & below())), step >> low_ & (kWordLanes - 1)};
  }
  [[nodiscard]] const Crossing& by(const Partner& partner) const { return crossings_[partner.apart % kLanes]; }

  // The lanes that some meet.
  [[nodiscard]] static std::uint64_t meet(const Partner& partner, std::uint64_t lanes) {
    const auto swap = [&](std::uint32_t bit, std::uint64_t upper) {
      lanes = (partner.apart & bit) != 0 ? (lanes & upper) >> bit | (lanes << bit & upper) : lanes;
    };
    swap(1, 0xaaaaaaaaaaaaaaaa), swap(2, 0xcccccccccccccccc), swap(4, 0xf0f0f0f0f0f0f0f0);
    swap(8, 0xff00ff00ff00ff00), swap(16, 0xffff0000ffff0000), swap(32, 0xffffffff00000000);
    return lanes;
  }

  // Whether ranks of one node may meet in a step.
  [[nodiscard]] bool near(std::uint32_t step) const { return step < near_; }

 private:
  [[nodiscard]] std::uint32_t below() const { return (1u << low_) - 1; }

  std::uint32_t words_, near_ = 1;
  int low_ = 0;  // bits of a rank below those of its lane
  std::array<Crossing, kLanes> crossings_;
};

// Lanes that put at a tick, by word, from `now` on.
class Due {
 public:
  explicit Due(std::size_t words) : words_(words), lanes_(kFirst * words_, 0) {}

  std::uint64_t* at(std::int32_t tick, std::int32_t now) {
    while (static_cast<std::size_t>(tick - now) >= slots_) grow(now);
    return &lanes_[(static_cast<std::size_t>(tick) & (slots_ - 1)) * words_];
  }

 private:
  static constexpr std::size_t kFirst = 16;

  void grow(std::int32_t now) {
    std::vector<std::uint64_t> lanes(2 * slots_ * words_, 0);
    for (std::size_t i = 0; i < slots_; ++i) {
      const std::size_t tick = static_cast<std::size_t>(now) + i;
      std::copy_n(&lanes_[(tick & (slots_ - 1)) * words_], words_, &lanes[(tick & (2 * slots_ - 1)) * words_]);
    }
    lanes_.swap(lanes);
    slots_ *= 2;
  }

  std::size_t words_, slots_ = kFirst;
  std::vector<std::uint64_t> lanes_;  // [slots][words]
};

}  // namespace ccl_lab::sim
