// Eight ranks side by side, and what an exchange of eight with eight others does to them (partner_octets.hpp).
//
// Is: puts of some of the lanes of two octets to one another, in vectors. Is not: which ones they are, nor when. Invariant: a lane ends
// as if its puts had been made one by one. Vectors are of 32 bytes, which every compiler splits where a processor has shorter ones.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace ccl_lab::sim {

inline constexpr std::size_t kLanes = 8, kWordOctets = 8;  // ranks of an octet, octets of a word

// Never handed to a function that is no part of its caller.
using I64x4 = std::int64_t __attribute__((vector_size(32)));
using I32x8 = std::int32_t __attribute__((vector_size(32)));
using I32x4 = std::int32_t __attribute__((vector_size(16)));

// When a rank goes on, when its NIC is free on both sides, and in ticks: when its last put leaves, and its NIC is free to receive.
struct alignas(64) Octet {
  std::array<std::int64_t, kLanes> clock, tx, rx;
  std::array<std::int32_t, kLanes> leaves, rx_tick;
};

// What puts take on both sides, latencies; and when all that a rank put had left.
struct alignas(64) OctetTakes {
  std::array<std::int64_t, kLanes> tx, rx, tx_latency, rx_latency, left;
};

// Which lane meets which: lanes of one half meet those of one other, and a lane meets the one that meets it.
struct Crossing {
  alignas(32) std::array<std::int32_t, kLanes> by;                      // of numbers of 32 bits
  alignas(32) std::array<std::array<std::int32_t, kLanes>, 2> half_by;  // of 64 bits, in halves of them
  std::size_t swapped = 0;                                              // 1: the first half meets the second one
  std::array<std::uint8_t, 256> masks;
};

// meets(lane): the lane that it meets.
template <class Meets>
Crossing crossing(const Meets& meets) {
  Crossing made;
  for (std::size_t l = 0; l < kLanes; ++l) {
    const auto other = static_cast<std::int32_t>(meets(l));
    made.by[l] = other;
    made.half_by[l / 4][2 * (l % 4)] = 2 * (other % 4);
    made.half_by[l / 4][2 * (l % 4) + 1] = 2 * (other % 4) + 1;
  }
  made.swapped = static_cast<std::size_t>(made.by[0] / 4);
  for (std::size_t mask = 0; mask < made.masks.size(); ++mask) {
    std::size_t crossed = 0;
    for (std::size_t l = 0; l < kLanes; ++l) crossed |= (mask >> l & 1) << made.by[l];
    made.masks[mask] = static_cast<std::uint8_t>(crossed);
  }
  return made;
}

// The lanes `ours` of one octet and `its` of another one, as the first one counts, put in a step; `step` is twice that one.
struct Meeting {
  std::int32_t step, tick;
  std::uint8_t ours, its;
};

template <class V>
[[gnu::always_inline]] inline V loaded(const void* from) {
  V v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

template <class V>
[[gnu::always_inline]] inline void store(void* to, V v) {
  std::memcpy(to, &v, sizeof v);
}

[[gnu::always_inline]] inline I32x8 crossed(I32x8 v, const std::array<std::int32_t, kLanes>& by) {
#if defined(__clang__)
  I32x8 out;
  for (std::size_t l = 0; l < kLanes; ++l) out[l] = v[by[l]];
  return out;
#else
  return __builtin_shuffle(v, loaded<I32x8>(by.data()));
#endif
}

[[gnu::always_inline]] inline I64x4 crossed(I64x4 v, const std::array<std::int32_t, kLanes>& by) {
  return reinterpret_cast<I64x4>(crossed(reinterpret_cast<I32x8>(v), by));
}

[[gnu::always_inline]] inline I64x4 latest(I64x4 a, I64x4 b) { return a > b ? a : b; }
[[gnu::always_inline]] inline I32x8 latest(I32x8 a, I32x8 b) { return a > b ? a : b; }
[[gnu::always_inline]] inline I32x8 all_lanes(std::int32_t v) { return I32x8{} + v; }

inline constexpr I32x8 kBits = {1, 2, 4, 8, 16, 32, 64, 128};

[[gnu::always_inline]] inline I32x8 lanes_of(std::uint8_t mask) { return (all_lanes(mask) & kBits) != 0; }

// Lanes, as bits of whatever stands in them.
[[gnu::always_inline]] inline std::uint32_t together(I32x8 v) {
  const auto wide = reinterpret_cast<I64x4>(v);
  const auto all = static_cast<std::uint64_t>((wide[0] | wide[1]) | (wide[2] | wide[3]));
  return static_cast<std::uint32_t>(all | all >> 32);
}

// What puts take where all take as long.
struct Alike {
  std::int64_t takes_ps, latency_ps;
};

// Half k of what a meeting of eight lanes does to times; both: lanes that have put on both sides now; added: to the latency between two
// lanes, by those of the first one, if kAdds.
template <bool kAlike, bool kFully, bool kAdds, class Lanes, class Takes>
[[gnu::always_inline]] inline void pass(Lanes& one, Lanes& other, Takes* takes, Takes* its_takes, const Crossing& by, std::size_t k,
                                        const Alike& alike, const std::int64_t* added, I64x4 ours, I64x4 its, I64x4 both) {
  const std::size_t at = 4 * k, there = 4 * (k ^ by.swapped);
  const auto &here_by = by.half_by[k], &there_by = by.half_by[k ^ by.swapped];
  const auto brought = [&](const auto& column) { return crossed(loaded<I64x4>(&column[there]), here_by); };
  const auto clock = loaded<I64x4>(&one.clock[at]), tx = loaded<I64x4>(&one.tx[at]), rx = loaded<I64x4>(&one.rx[at]);
  const I64x4 its_clock = brought(other.clock), its_tx = brought(other.tx), its_rx = brought(other.rx);
  const I64x4 go = latest(clock, latest(tx, its_rx)), come = latest(its_clock, latest(its_tx, rx));
  I64x4 tx_ps, rx_ps, its_tx_ps, its_rx_ps, latency, its_latency;
  if constexpr (kAlike) {
    tx_ps = rx_ps = its_tx_ps = its_rx_ps = I64x4{} + alike.takes_ps;
    latency = its_latency = I64x4{} + alike.latency_ps;
  } else {
    tx_ps = loaded<I64x4>(&takes->tx[at]), rx_ps = loaded<I64x4>(&takes->rx[at]);
    its_tx_ps = brought(its_takes->tx), its_rx_ps = brought(its_takes->rx);
    latency = loaded<I64x4>(&takes->tx_latency[at]) + brought(its_takes->rx_latency);
    its_latency = brought(its_takes->tx_latency) + loaded<I64x4>(&takes->rx_latency[at]);
  }
  if constexpr (kAdds) latency += loaded<I64x4>(added + at), its_latency += loaded<I64x4>(added + at);
  if constexpr (kFully) ours = its = both = I64x4{} - 1;
  const I64x4 new_tx = ours ? go + tx_ps : tx, its_new_tx = its ? come + its_tx_ps : its_tx;
  const I64x4 new_rx = its ? come + rx_ps : rx, its_new_rx = ours ? go + its_rx_ps : its_rx;
  I64x4 gone = new_tx, came = its_new_tx;
  if constexpr (!kAlike) {
    gone += latest(I64x4{}, its_rx_ps - tx_ps), came += latest(I64x4{}, rx_ps - its_tx_ps);
    const auto left = loaded<I64x4>(&takes->left[at]);
    const I64x4 its_left = brought(its_takes->left);
    store(&takes->left[at], ours ? latest(left, gone) : left);
    store(&its_takes->left[there], crossed(its ? latest(its_left, came) : its_left, there_by));
  }
  store(&one.tx[at], new_tx);
  store(&one.rx[at], new_rx);
  store(&one.clock[at], both ? latest(clock, came + its_latency) : clock);
  store(&other.tx[there], crossed(its_new_tx, there_by));
  store(&other.rx[there], crossed(its_new_rx, there_by));
  store(&other.clock[there], crossed(both ? latest(its_clock, gone + latency) : its_clock, there_by));
}

// Two octets and what a lane has done: twice its step, and one more while its put is under way.
struct Octets2 {
  Octet &one, &other;
  OctetTakes *takes, *its_takes;
  std::int32_t *steps, *its_steps;
};

// Lanes that both have put, as bits in four bytes: of the first octet those that go on later than now, those that do not so at the next
// tick; then the same of their partners. Who does at the next tick is in the first ones alone, who does now in the second ones, who does
// later than that in both.
[[gnu::always_inline]] inline std::uint32_t gone_on(I32x8 both, I32x8 now, I32x8 leaves, I32x8 its_leaves) {
  return together((both & (its_leaves > now) & kBits) | (both & (its_leaves != now + 1) & kBits << 8) |
                  (both & (leaves > now) & kBits << 16) | (both & (leaves != now + 1) & kBits << 24));
}

// All lanes of both put.
template <bool kAlike, bool kAdds>
[[gnu::always_inline]] inline std::uint32_t meet_fully(const Octets2& two, const Crossing& by, const Meeting& at, const Alike& alike,
                                                       const std::int64_t* added) {
  const I32x8 now = all_lanes(at.tick), all = all_lanes(-1);
  const auto leaves = loaded<I32x8>(two.one.leaves.data()), rx_tick = loaded<I32x8>(two.one.rx_tick.data());
  const I32x8 its_leaves = crossed(loaded<I32x8>(two.other.leaves.data()), by.by);
  const I32x8 its_rx_tick = crossed(loaded<I32x8>(two.other.rx_tick.data()), by.by);
  const I32x8 goes = latest(now, latest(leaves, its_rx_tick)) + 1, comes = latest(now, latest(its_leaves, rx_tick)) + 1;
  const I32x8 there_goes = crossed(goes, by.by), there_comes = crossed(comes, by.by);
  store(two.one.leaves.data(), goes);
  store(two.one.rx_tick.data(), comes);
  store(two.other.leaves.data(), there_comes);
  store(two.other.rx_tick.data(), there_goes);
  store(two.steps, all_lanes(at.step + 2));
  store(two.its_steps, all_lanes(at.step + 2));
#pragma GCC unroll 2
  for (std::size_t k = 0; k < 2; ++k)
    pass<kAlike, true, kAdds>(two.one, two.other, two.takes, two.its_takes, by, k, alike, added, I64x4{}, I64x4{}, I64x4{});
  return gone_on(all, now, goes, comes);
}

template <bool kAlike, bool kAdds>
[[gnu::always_inline]] inline std::uint32_t meet_partly(const Octets2& two, const Crossing& by, const Meeting& at, const Alike& alike,
                                                        const std::int64_t* added) {
  const I32x8 ours = lanes_of(at.ours), its = lanes_of(at.its), now = all_lanes(at.tick);
  const auto steps = loaded<I32x8>(two.steps), leaves = loaded<I32x8>(two.one.leaves.data());
  const auto rx_tick = loaded<I32x8>(two.one.rx_tick.data());
  const I32x8 its_steps = crossed(loaded<I32x8>(two.its_steps), by.by), its_leaves = crossed(loaded<I32x8>(two.other.leaves.data()), by.by);
  const I32x8 its_rx_tick = crossed(loaded<I32x8>(two.other.rx_tick.data()), by.by);
  const I32x8 goes = latest(now, latest(leaves, its_rx_tick)) + 1, comes = latest(now, latest(its_leaves, rx_tick)) + 1;
  const I32x8 new_leaves = ours ? goes : leaves, its_new_leaves = its ? comes : its_leaves;
  const I32x8 put = ours | (steps == at.step + 1), its_put = its | (its_steps == at.step + 1), both = put & its_put;
  store(two.one.leaves.data(), new_leaves);
  store(two.one.rx_tick.data(), its ? comes : rx_tick);
  store(two.other.leaves.data(), crossed(its_new_leaves, by.by));
  store(two.other.rx_tick.data(), crossed(ours ? goes : its_rx_tick, by.by));
  store(two.steps, both ? all_lanes(at.step + 2) : ours ? all_lanes(at.step + 1) : steps);
  store(two.its_steps, crossed(both ? all_lanes(at.step + 2) : its ? all_lanes(at.step + 1) : its_steps, by.by));
  alignas(32) std::array<std::array<std::int32_t, 4>, 2> halves;
  store(halves.data(), both);
  constexpr I64x4 bits[2] = {{1, 2, 4, 8}, {16, 32, 64, 128}};
#pragma GCC unroll 2
  for (std::size_t k = 0; k < 2; ++k)
    pass<kAlike, false, kAdds>(two.one, two.other, two.takes, two.its_takes, by, k, alike, added, ((I64x4{} + at.ours) & bits[k]) != 0,
                               ((I64x4{} + at.its) & bits[k]) != 0, __builtin_convertvector(loaded<I32x4>(halves[k].data()), I64x4));
  return gone_on(both, now, new_leaves, its_new_leaves);
}

// The octets of two words, which meet those whose numbers differ in `apart`: from the first one on.
struct Words {
  Octet *one, *other;
  OctetTakes *takes, *its_takes;
  std::int32_t *steps, *its_steps;
  std::size_t apart;
};

// `ours` and `its` lanes of two words, as the first one counts, put.
struct WordMeeting {
  std::int32_t step, tick;
  std::uint64_t ours, its;
};

// Lanes of both words, each as it counts, that go on (gone_on).
struct Met {
  std::uint64_t later = 0, not_next = 0, its_later = 0, its_not_next = 0;
};

// add(k, m, lanes): what is added between octet k of the first word and m of the other one, if kAdds.
template <bool kAlike, bool kAdds, class Add>
[[gnu::always_inline]] inline Met meet_words(const Words& words, const Crossing& by, const WordMeeting& at, const Alike& alike, const Add& add) {
  Met met;
  alignas(64) std::array<std::int64_t, kLanes> added;
  for (std::size_t k = 0; k < kWordOctets; ++k) {
    const auto ours = static_cast<std::uint8_t>(at.ours >> 8 * k), its = static_cast<std::uint8_t>(at.its >> 8 * k);
    if ((ours | its) == 0) continue;
    const std::size_t m = k ^ words.apart;
    const Octets2 two{words.one[k],      words.other[m],           words.takes + k, words.its_takes + m,
                      words.steps + kLanes * k, words.its_steps + kLanes * m};
    const Meeting octets{at.step, at.tick, ours, its};
    if constexpr (kAdds) add(k, m, added.data());
    const bool full = (ours & its) == 255;
    const std::uint32_t all = full ? meet_fully<kAlike, kAdds>(two, by, octets, alike, added.data())
                                   : meet_partly<kAlike, kAdds>(two, by, octets, alike, added.data());
    met.later |= std::uint64_t{all & 255} << 8 * k;
    met.not_next |= std::uint64_t{all >> 8 & 255} << 8 * k;
    met.its_later |= std::uint64_t{by.masks[all >> 16 & 255]} << 8 * m;
    met.its_not_next |= std::uint64_t{by.masks[all >> 24]} << 8 * m;
  }
  return met;
}

// Lanes of a word whose step is this one.
[[gnu::always_inline]] inline std::uint64_t word_lanes_in(const std::int32_t* steps, std::int32_t step) {
  std::uint64_t found = 0;
  for (std::size_t k = 0; k < kWordOctets; ++k)
    found |= std::uint64_t{together((loaded<I32x8>(steps + kLanes * k) == step) & kBits)} << 8 * k;
  return found;
}

}  // namespace ccl_lab::sim
