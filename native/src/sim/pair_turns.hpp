// Which puts of a direct algorithm share a turn, where no pattern says so: NICs that are lost, or shared unevenly.
//
// Is: the turns of puts between nodes, one turn after the other, and in each of them the puts that have it. Is not: when they leave (pairs.cpp).
// Invariant: a put has the first turn that neither of its NICs has given to one that is written before it, as `Turns` of order.hpp deals them.
//
// That is the same as giving turn 0, in the order in which puts are written, to each whose two NICs have not given it away, then turn 1 to those
// that are left, and so on. In a round (d, k) no two puts of one lane meet, so that a lane of all nodes is a row of bits: those that are left, and
// whose NICs are free on both sides. Where a NIC is lost, two lanes take turns on another one, and nearly every NIC comes to be some turns behind the
// written order, in no pattern; but a turn takes its puts from a few rounds, but for few. Once few NICs are free, pairs of these are looked at.
//
// A *single* is a put of which one end is not like others: its NIC has other lanes there than in most nodes. Those of one NIC are kept in their order.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace ccl_lab::sim {

struct PairTurnsInput {
  std::size_t nodes = 0;  // as many as there are; of those that all have `nic`, one is dealt for
  std::size_t group = 0, channels = 0, nics = 0;
  std::span<const std::int32_t> nic;       // [channels * group], of most nodes
  std::span<const std::int32_t> odd_node;  // those that have others
  std::span<const std::int32_t> odd_nic;   // [odd nodes][channels * group]
  std::size_t few = 0;                     // free NICs, from which on pairs of them are looked at
};

// Lane l of the round (d, k) is row k * lanes + l. Bit i of `from`: node 64 word + i puts to the one `further` on.
struct PutsOfTurn {
  std::uint64_t from;
  std::uint32_t word, row, further;
};

struct SinglePut {
  std::uint32_t row, further, from, to;  // nodes
  std::uint32_t a, b;                    // NICs of theirs
};

// Bits in a circle: those at its beginning come once more after its end, so that 64 from any place on can be had at once.
class Circle {
 public:
  explicit Circle(std::size_t n) : n_(n), words_((n + 127) / 64 + 1, 0) {}

  [[nodiscard]] std::uint64_t from(std::size_t at) const {
    const std::size_t word = at / 64, by = at % 64;
    return by == 0 ? words_[word] : words_[word] >> by | words_[word + 1] << (64 - by);
  }

  void clear(std::size_t at, std::uint64_t bits) {
    take(at, bits);
    if (at + 64 > n_ && n_ - at < 64) take(0, bits >> (n_ - at));
    if (at < 64) take(n_ + at, bits & low(std::min<std::size_t>(n_, 64) - at));
  }

  void set(std::size_t at) {
    words_[at / 64] |= std::uint64_t{1} << at % 64;
    if (at < 64) words_[(n_ + at) / 64] |= std::uint64_t{1} << (n_ + at) % 64;
  }

 private:
  [[nodiscard]] static std::uint64_t low(std::size_t bits) { return bits >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << bits) - 1; }

  void take(std::size_t at, std::uint64_t bits) {
    const std::size_t word = at / 64, by = at % 64;
    words_[word] &= ~(bits << by);
    if (by != 0) words_[word + 1] &= ~(bits >> (64 - by));
  }

  std::size_t n_;
  std::vector<std::uint64_t> words_;
};

class PairTurns {
 public:
  explicit PairTurns(const PairTurnsInput& in);

  // Deals the next turn; false where no put is left.
  bool next();
  [[nodiscard]] std::span<const PutsOfTurn> puts() const { return puts_; }
  [[nodiscard]] std::span<const SinglePut> singles() const { return singles_; }
  [[nodiscard]] std::int64_t work() const { return work_; }  // words of bits, and pairs, that were looked at

 private:
  // Puts of one lane, as bits, of one round; made when it is come to.
  struct Round {
    std::unique_ptr<std::uint64_t[]> left;  // [lanes][words]
    std::uint32_t count = 0;
    bool made = false;
  };

  // A NIC that has other lanes than in most nodes, on one side, and its puts in their order: [rounds][lanes].
  struct OddNic {
    std::uint32_t node, nic;
    bool sends;
    std::vector<std::uint32_t> lanes;
    std::vector<std::uint32_t> order;  // receiving, [group][lanes]: lanes as their puts are written in round k
    std::vector<std::uint64_t> dealt;
    std::size_t first = 0;             // puts before it are dealt
  };

  struct Put {
    std::size_t round, lane, from, to, to_lane;
  };

  struct Candidate {
    std::uint64_t key;  // when it is written
    std::uint32_t lane, from;
  };

  static constexpr std::uint32_t kNobody = std::numeric_limits<std::uint32_t>::max();
  using Due = std::pair<std::uint64_t, std::uint32_t>;  // when a put is written, and the odd NIC whose put it is

  [[nodiscard]] std::uint32_t nic_of(std::size_t node, std::size_t lane) const {
    return odd_of_[node] < 0 ? static_cast<std::uint32_t>(in_.nic[lane])
                             : static_cast<std::uint32_t>(in_.odd_nic[static_cast<std::size_t>(odd_of_[node]) * lanes_ + lane]);
  }
  [[nodiscard]] std::size_t to_lane(std::size_t lane, std::size_t k) const { return lane / group_ * group_ + (lane % group_ + k) % group_; }
  [[nodiscard]] std::size_t from_lane(std::size_t lane, std::size_t k) const { return lane / group_ * group_ + (lane % group_ + group_ - k) % group_; }
  [[nodiscard]] bool tx_free(std::size_t node, std::size_t nic) const { return tx_[nic * words_ + node / 64] >> node % 64 & 1; }
  [[nodiscard]] bool rx_free(std::size_t node, std::size_t nic) const { return rx_[nic].from(node) & 1; }
  // Which odd NIC that is, or kNobody.
  [[nodiscard]] std::uint32_t odd_nic(bool sends, std::size_t node, std::size_t nic) const {
    return odd_of_[node] < 0 ? kNobody : odd_nics_at_[(static_cast<std::size_t>(odd_of_[node]) * nics_ + nic) * 2 + sends];
  }

  void find_odd();
  void add_odd(std::size_t node, std::size_t nic, std::vector<std::uint32_t> lanes);
  void begin();
  Round& round(std::size_t s);
  void deal_round(std::size_t s);
  void deal_lane(Round& round, std::size_t s, std::size_t lane);
  void deal_pairs(std::size_t from);
  void offer(std::size_t from, std::size_t u, std::size_t a, std::size_t v, std::size_t b);
  void deal(const Candidate& put);
  [[nodiscard]] Put put_of(const OddNic& nic, std::size_t i) const;
  [[nodiscard]] bool left(const OddNic& nic, std::size_t s, std::size_t lane) const;
  [[nodiscard]] std::size_t place(const OddNic& nic, std::size_t s, std::size_t lane) const;
  void odd_until(std::uint64_t key);
  void push(std::uint32_t odd, std::size_t from);
  void deal_single(const Put& put);
  void mark(std::uint32_t odd, std::size_t s, std::size_t lane);
  [[nodiscard]] std::span<const std::uint32_t> lanes_at(std::size_t node, std::size_t nic) const;
  [[nodiscard]] bool left_of_plain(std::size_t s, std::size_t lane, std::size_t from);

  PairTurnsInput in_;
  std::size_t group_, lanes_, nics_, nodes_, words_, rounds_;  // nodes_: those that are dealt for
  std::vector<std::int32_t> odd_of_;                  // by node: its place among odd ones, or -1
  std::vector<OddNic> odd_;
  std::vector<std::uint32_t> odd_nics_at_;            // [odd nodes][nics][2]: which of `odd_`, or kNobody
  std::vector<std::vector<std::uint32_t>> lanes_of_;  // by NIC, in most nodes
  std::vector<Circle> plain_;                         // by lane: nodes in which it is as in most
  std::vector<std::uint64_t> tx_, all_tx_;            // [nics][words]: free in this turn; used at all
  std::vector<Circle> rx_, all_rx_;
  std::vector<std::vector<std::uint32_t>> active_;    // by NIC: words with free ones
  std::vector<std::uint32_t> all_words_;
  std::vector<Round> round_;
  std::vector<std::vector<std::uint32_t>> ahead_;     // by round that is not made: lane * nodes + node of those that are dealt
  std::vector<Due> due_;                              // a heap, what is written first
  std::vector<Candidate> candidates_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> free_tx_, free_rx_;
  std::vector<PutsOfTurn> puts_;
  std::vector<SinglePut> singles_;
  std::size_t first_ = 0, all_free_ = 0, free_ = 0;
  std::uint64_t remaining_;
  std::int64_t work_ = 0;
};

}  // namespace ccl_lab::sim
