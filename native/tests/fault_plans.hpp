// Collectives over several NICs for the fault simulation, each with its inputs and its exact result.
//
// Is: the program of every rank for one collective: channel c on NIC c mod K, scratch slots used again as soon as the
//     algorithm allows, results written in place; so a stale, doubled or early write damages a sum.
// Is not: a planner. Elements are int32 and wrap; inputs follow from the seed, so results are compared bitwise.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "plans.hpp"

namespace ccl_lab::check {

enum class PlanKind : std::uint8_t { all_reduce, all_gather, reduce_scatter, broadcast, all_to_all, get_all_gather, barrier, count };
inline constexpr const char* kPlanNames[] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all",
                                             "get_all_gather", "barrier"};

struct PlanShape {
  PlanKind kind = PlanKind::all_reduce;
  int n = 2;                 // ranks
  int n_channels = 2;
  int n_nics = 2;
  std::uint64_t block = 64;  // elements of one block of one channel
  int slots = 1;             // of scratch, per channel
  int root = 0;
  bool flush = false;
  std::uint64_t salt = 0;
};

inline std::int32_t mixed(std::uint64_t salt, std::uint64_t rank, std::uint64_t i) {
  std::uint64_t z = salt * 0x9e3779b97f4a7c15u + (rank << 32) + i + 1;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return static_cast<std::int32_t>(z >> 32);
}

class Plan {
 public:
  explicit Plan(PlanShape shape) : s_(shape) {}
  const PlanShape& shape() const { return s_; }

  // Elements of each buffer of every rank.
  std::uint64_t input_elements() const {
    const bool blocks = s_.kind == PlanKind::all_reduce || s_.kind == PlanKind::reduce_scatter || s_.kind == PlanKind::all_to_all;
    return s_.kind == PlanKind::barrier ? 0 : all_channels() * (blocks ? n() : 1);
  }
  std::uint64_t output_elements() const {
    const bool one = s_.kind == PlanKind::reduce_scatter || s_.kind == PlanKind::broadcast;
    return s_.kind == PlanKind::barrier ? 0 : all_channels() * (one ? 1 : n());
  }
  std::uint64_t scratch_elements() const {
    return s_.block * static_cast<std::uint64_t>(s_.n_channels) * static_cast<std::uint64_t>(2 * s_.slots + 1);
  }

  std::int32_t input(int rank, std::uint64_t i) const { return mixed(s_.salt, static_cast<std::uint64_t>(rank), i); }

  std::int32_t output(int rank, std::uint64_t i) const {
    const std::uint64_t b = s_.block, within = i % b, chunk = i / b, c_all = static_cast<std::uint64_t>(s_.n_channels);
    switch (s_.kind) {
      case PlanKind::all_reduce: return sum(i);
      case PlanKind::reduce_scatter: return sum((chunk * n() + static_cast<std::uint64_t>(rank)) * b + within);
      case PlanKind::broadcast: return input(s_.root, i);
      case PlanKind::all_to_all:
        return input(static_cast<int>(chunk / c_all), (static_cast<std::uint64_t>(rank) * c_all + chunk % c_all) * b + within);
      default: return input(static_cast<int>(chunk / c_all), chunk % c_all * b + within);
    }
  }

  Columns columns(int rank) const {
    Columns c(rank, s_.n);
    scalars(c);
    for (int channel = 0; channel < s_.n_channels && s_.n > 1; ++channel) {
      switch (s_.kind) {
        case PlanKind::all_reduce: ring_all_reduce(c, channel); break;
        case PlanKind::all_gather: ring_all_gather_on(c, channel); break;
        case PlanKind::reduce_scatter: ring_reduce_scatter(c, channel); break;
        case PlanKind::broadcast: chain_broadcast(c, channel); break;
        case PlanKind::all_to_all: direct_all_to_all(c, channel); break;
        case PlanKind::get_all_gather: gets(c, channel); break;
        case PlanKind::barrier: everyone_signals(c, channel); break;
        case PlanKind::count: break;
      }
      if (s_.flush) c.flush(channel);
    }
    for (std::size_t i = 0; i < c.nic.size(); ++i) c.nic[i] = static_cast<std::uint16_t>(c.channel[i] % s_.n_nics);
    return c;
  }

 private:
  using Ref = Columns::Ref;

  std::uint64_t n() const { return static_cast<std::uint64_t>(s_.n); }
  std::uint64_t all_channels() const { return s_.block * static_cast<std::uint64_t>(s_.n_channels); }
  std::uint64_t bytes() const { return 4 * s_.block; }
  std::int32_t sum(std::uint64_t i) const {
    std::uint32_t total = 0;
    for (int r = 0; r < s_.n; ++r) total += static_cast<std::uint32_t>(input(r, i));
    return static_cast<std::int32_t>(total);
  }
  static int data(int channel) { return 2 * channel; }
  static int credit(int channel) { return 2 * channel + 1; }
  int mod(int rank) const { return ((rank % s_.n) + s_.n) % s_.n; }
  Ref at(Buffer buffer, std::uint64_t chunk) const { return {buffer, chunk * bytes()}; }
  Ref slot(int channel, int step) const {
    return at(Buffer::scratch, static_cast<std::uint64_t>(channel * (2 * s_.slots + 1) + step % s_.slots));
  }
  Ref own_slot(int channel, int step) const {
    return at(Buffer::scratch, static_cast<std::uint64_t>(channel * (2 * s_.slots + 1) + s_.slots + step % (s_.slots + 1)));
  }
  std::uint64_t by_channel(int channel, int b) const { return static_cast<std::uint64_t>(channel) * n() + static_cast<std::uint64_t>(b); }
  std::uint64_t by_rank(int channel, int b) const {
    return static_cast<std::uint64_t>(b) * static_cast<std::uint64_t>(s_.n_channels) + static_cast<std::uint64_t>(channel);
  }

  void scalars(Columns& c) const {
    constexpr Collective kWhat[] = {Collective::all_reduce, Collective::all_gather, Collective::reduce_scatter, Collective::broadcast,
                                    Collective::all_to_all, Collective::all_gather, Collective::barrier};
    c.scalars.collective = kWhat[static_cast<std::size_t>(s_.kind)];
    c.scalars.dtype = DType::int32;
    c.scalars.plan_hash = static_cast<std::uint64_t>(s_.kind) + 1;
    c.scalars.count = s_.block;
    c.scalars.bytes[0] = 4 * input_elements();
    c.scalars.bytes[1] = 4 * output_elements();
    c.scalars.bytes[2] = 4 * scratch_elements();
    c.scalars.n_channels = s_.n_channels;
    c.scalars.output_elements = output_elements();
    for (int p = 0; p < s_.n; ++p)
      if (p != c.rank() && touches(p, c.rank())) c.ready_to.push_back(p);
  }

  // Whether rank p writes to, reads from or signals rank r.
  bool touches(int p, int r) const {
    const bool from_before = mod(r - p) == 1, from_next = mod(p - r) == 1;
    const int place = mod(r - s_.root);
    switch (s_.kind) {
      case PlanKind::all_reduce:
      case PlanKind::reduce_scatter: return from_before || from_next;
      case PlanKind::all_gather: return from_before;
      case PlanKind::broadcast: return (from_before && place > 0) || (from_next && place + 1 < s_.n);
      default: return true;
    }
  }

  void ring_all_reduce(Columns& c, int channel) const {
    const int r = c.rank(), next = mod(r + 1), before = mod(r - 1);
    const auto out = [&](int b) { return at(Buffer::output, by_channel(channel, mod(b))); };
    c.copy(channel, at(Buffer::input, by_channel(channel, 0)), at(Buffer::output, by_channel(channel, 0)), n() * bytes());
    for (int s = 0; s + 1 < s_.n; ++s) {
      if (s >= s_.slots) c.wait(channel, next, credit(channel), s - s_.slots + 1);
      c.put(channel, next, out(r - s), slot(channel, s), bytes(), data(channel));
      c.wait(channel, before, data(channel), s + 1);
      c.reduce(channel, {out(r - s - 1), slot(channel, s)}, out(r - s - 1), bytes());
      c.signal(channel, before, credit(channel));
    }
    for (int s = 0; s + 1 < s_.n; ++s) {
      c.put(channel, next, out(r + 1 - s), out(r + 1 - s), bytes(), data(channel));
      c.wait(channel, before, data(channel), s_.n + s);
    }
    c.wait(channel, next, credit(channel), s_.n - 1);
  }

  void ring_all_gather_on(Columns& c, int channel) const {
    const int r = c.rank(), next = mod(r + 1), before = mod(r - 1);
    const auto out = [&](int b) { return at(Buffer::output, by_rank(channel, mod(b))); };
    c.copy(channel, at(Buffer::input, static_cast<std::uint64_t>(channel)), out(r), bytes());
    for (int s = 0; s + 1 < s_.n; ++s) {
      if (s > 0) c.wait(channel, before, data(channel), s);
      c.put(channel, next, out(r - s), out(r - s), bytes(), data(channel));
    }
    c.wait(channel, before, data(channel), s_.n - 1);
  }

  // The sum so far is made in a slot of its own, which is used again once the next rank has said that it took it, though the
  // put that read it may not be confirmed yet.
  void ring_reduce_scatter(Columns& c, int channel) const {
    const int r = c.rank(), next = mod(r + 1), before = mod(r - 1);
    const auto in = [&](int b) { return at(Buffer::input, by_channel(channel, mod(b))); };
    for (int s = 0; s + 1 < s_.n; ++s) {
      if (s >= s_.slots) c.wait(channel, next, credit(channel), s - s_.slots + 1);
      c.put(channel, next, s == 0 ? in(r - 1) : own_slot(channel, s - 1), slot(channel, s), bytes(), data(channel));
      c.wait(channel, before, data(channel), s + 1);
      const bool last = s + 2 == s_.n;
      c.reduce(channel, {in(r - 2 - s), slot(channel, s)}, last ? at(Buffer::output, static_cast<std::uint64_t>(channel)) : own_slot(channel, s),
               bytes());
      c.signal(channel, before, credit(channel));
    }
    c.wait(channel, next, credit(channel), s_.n - 1);
  }

  // Down a chain, in as many chunks as the block divides into, through slots that are handed back.
  void chain_broadcast(Columns& c, int channel) const {
    const int place = mod(c.rank() - s_.root), next = mod(c.rank() + 1), before = mod(c.rank() - 1);
    const int chunks = s_.block % 4 == 0 ? 4 : s_.block % 2 == 0 ? 2 : 1;
    const std::uint64_t part = bytes() / static_cast<std::uint64_t>(chunks);
    for (int k = 0; k < chunks; ++k) {
      const std::uint64_t where = static_cast<std::uint64_t>(channel) * bytes() + static_cast<std::uint64_t>(k) * part;
      if (place == 0) {
        c.copy(channel, {Buffer::input, where}, {Buffer::output, where}, part);
      } else {
        c.wait(channel, before, data(channel), k + 1);
        c.copy(channel, slot(channel, k), {Buffer::output, where}, part);
        c.signal(channel, before, credit(channel));
      }
      if (place + 1 == s_.n) continue;
      if (k >= s_.slots) c.wait(channel, next, credit(channel), k - s_.slots + 1);
      c.put(channel, next, {Buffer::output, where}, slot(channel, k), part, data(channel));
    }
    if (place + 1 < s_.n) c.wait(channel, next, credit(channel), chunks);
  }

  void direct_all_to_all(Columns& c, int channel) const {
    const int r = c.rank();
    for (int d = 0; d < s_.n; ++d) {
      const int p = mod(r + d);
      if (p == r) c.copy(channel, at(Buffer::input, by_rank(channel, p)), at(Buffer::output, by_rank(channel, r)), bytes());
      else c.put(channel, p, at(Buffer::input, by_rank(channel, p)), at(Buffer::output, by_rank(channel, r)), bytes(), data(channel));
    }
    for (int d = 1; d < s_.n; ++d) c.wait(channel, mod(r - d), data(channel), 1);
  }

  void gets(Columns& c, int channel) const {
    const int r = c.rank();
    const Ref from = at(Buffer::input, static_cast<std::uint64_t>(channel));
    c.copy(channel, from, at(Buffer::output, by_rank(channel, r)), bytes());
    for (int d = 1; d < s_.n; ++d) c.get(channel, mod(r + d), from, at(Buffer::output, by_rank(channel, mod(r + d))), bytes());
    for (int d = 1; d < s_.n; ++d) c.signal(channel, mod(r + d), data(channel));
    for (int d = 1; d < s_.n; ++d) c.wait(channel, mod(r - d), data(channel), 1);
  }

  void everyone_signals(Columns& c, int channel) const {
    for (int d = 1; d < s_.n; ++d) c.signal(channel, mod(c.rank() + d), data(channel));
    for (int d = 1; d < s_.n; ++d) c.wait(channel, mod(c.rank() - d), data(channel), 1);
  }

  PlanShape s_;
};

}  // namespace ccl_lab::check
