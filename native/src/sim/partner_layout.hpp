// Which ranks are side by side in an evaluation of exchanges that are not in step (partner_octets.hpp), and which of them are due.
//
// Is: a number for each rank, so that in each step the lanes of one word have those of one other word for partners; a calendar of lanes. Is not: what
// they do then. Invariant: of two lanes that meet each one meets the other.
//
// A power of two of ranks: words are of 64 ranks, which differ in six bits in a row that lie above those of a rank in its node, as ranks of a node with a lost NIC
// come to differ. Else of eight, an eighth of all ranks apart: rank r meets (s - r) mod n, so that only those map to one another.
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

// Numbers ranks: lane l of octet k of word w is number 8 (octets w + k) + l.
class Layout {
 public:
  Layout(std::uint32_t n, std::span<const std::int32_t> node) : power_(std::has_single_bit(n)), octets_(power_ && n >= 2 * 64 ? 8 : 1), words_(n / (kLanes * octets_)) {
    std::vector<std::uint32_t> first(n, n), last(n, 0);
    for (std::uint32_t r = 0; r < n; ++r) {
      const auto at = static_cast<std::size_t>(node[r]);
      first[at] = std::min(first[at], r), last[at] = r;
    }
    for (std::size_t i = 0; i < n; ++i)
      if (first[i] < n) near_ = std::max(near_, power_ ? std::bit_ceil((first[i] ^ last[i]) + 1) : last[i] - first[i] + 1);
    bits_ = octets_ == 8 ? 6 : 3;
    low_ = power_ ? std::min(std::bit_width(near_), std::bit_width(n) - bits_) - 1 : 0;
    for (std::size_t c = 0; c < kLanes; ++c)
      crossings_[c] = power_ ? crossing([&](std::size_t l) { return l ^ c; }) : crossing([&](std::size_t l) { return place(c - eighth(l)); });
  }

  [[nodiscard]] std::uint32_t octets() const { return octets_; }
  [[nodiscard]] std::uint32_t lanes() const { return kLanes * octets_; }
  [[nodiscard]] std::uint32_t words() const { return words_; }

  [[nodiscard]] std::uint32_t rank(std::uint32_t number) const {
    const std::uint32_t word = number / lanes(), lane = number % lanes();
    if (!power_) return static_cast<std::uint32_t>(eighth(lane)) * words_ + word;
    const std::uint32_t under = word & ((1u << low_) - 1);
    return ((word >> low_) * lanes() + lane) << low_ | under;
  }

  // The word that one has for partner in a step: octet k meets k xor `apart`, as `crossing` says.
  struct Partner {
    std::uint32_t word, apart, crossing;
  };
  [[nodiscard]] Partner partner(std::uint32_t word, std::uint32_t step) const {
    if (power_) {
      const std::uint32_t lane = step >> low_ & (lanes() - 1);
      return {word ^ ((step >> (low_ + bits_)) << low_ | (step & ((1u << low_) - 1))), lane / 8, lane % 8};
    }
    const std::uint32_t whole = step / words_, rest = step - whole * words_;
    return rest >= word ? Partner{rest - word, 0, whole} : Partner{rest + words_ - word, 0, (whole - 1) & 7};
  }
  [[nodiscard]] const Crossing& by(const Partner& partner) const { return crossings_[partner.crossing]; }

  // The lane that one meets, and lanes that some meet.
  [[nodiscard]] std::uint32_t meets(const Partner& partner, std::uint32_t lane) const {
    return (lane / kLanes ^ partner.apart) * kLanes + static_cast<std::uint32_t>(by(partner).by[lane % kLanes]);
  }
  [[nodiscard]] std::uint64_t meet(const Partner& partner, std::uint64_t lanes) const {
    if (octets_ == 1) return by(partner).masks[lanes];
    const std::uint32_t apart = partner.apart * kLanes + partner.crossing;
    const auto swap = [&](std::uint32_t by, std::uint64_t upper) { lanes = (apart & by) != 0 ? (lanes & upper) >> by | (lanes << by & upper) : lanes; };
    swap(1, 0xaaaaaaaaaaaaaaaa), swap(2, 0xcccccccccccccccc), swap(4, 0xf0f0f0f0f0f0f0f0);
    swap(8, 0xff00ff00ff00ff00), swap(16, 0xffff0000ffff0000), swap(32, 0xffffffff00000000);
    return lanes;
  }

  // Whether ranks of one node may meet in a step.
  [[nodiscard]] bool near(std::uint32_t word, std::uint32_t other, std::uint32_t step) const {
    if (power_) return step < near_;
    const std::uint32_t apart = word > other ? word - other : other - word;
    return apart < near_ || apart + near_ > words_;
  }

 private:
  // In no power of two: which eighth of all ranks a lane is of, so that a half meets a half.
  static constexpr std::size_t eighth(std::size_t lane) { return lane % 4 * 2 + lane / 4; }
  static constexpr std::size_t place(std::size_t eighth) { return eighth % 2 * 4 + eighth % 8 / 2; }

  bool power_;
  std::uint32_t octets_, words_;  // of a word, and how many there are
  std::uint32_t near_ = 1;        // no step from there on is inside a node; else how far ranks of a node are apart at most
  int low_ = 0, bits_ = 0;        // bits of a rank below those of its lane in a word, and those
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
