// A collective as units of work on blocks: what a task reads, and where its result goes.
//
// Is: the table of each collective: units, and for each the blocks that are its sources and its destinations.
// Is not: an order or an assignment: units touch disjoint destinations, so any rank may run any part of any of them.
//
//   collective        units          unit u reads                 and writes
//   all_reduce        1              block 0 of all inputs        block 0 of all outputs
//   reduce            1              block 0 of all inputs        the root's output
//   reduce_scatter    n              block u of all inputs        the output of u
//   all_gather        n              the input of u               block u of all outputs
//   gather            n              the input of u               block u of the root's output
//   broadcast         1              the root's input             all outputs
//   scatter           n              block u of the root's input  the output of u
//   all_to_all        n * n          block i of the input of j    block j of the output of i        u = i * n + j
#pragma once

#include <cstdint>

#include "node/call.hpp"

namespace ccl_lab::node {

constexpr std::uint64_t n_units(Collective collective, int n) {
  const auto all = static_cast<std::uint64_t>(n);
  switch (collective) {
    case Collective::all_reduce:
    case Collective::reduce:
    case Collective::broadcast: return 1;
    case Collective::all_to_all: return all * all;
    default: return all;
  }
}

// The ranks [first, last) and which of their blocks.
struct Side {
  int first;
  int last;
  std::uint64_t block;
};

constexpr Side sources_of(const Call& call, std::uint64_t unit, int n) {
  const int u = static_cast<int>(unit);
  switch (call.collective) {
    case Collective::all_reduce:
    case Collective::reduce: return {0, n, 0};
    case Collective::reduce_scatter: return {0, n, unit};
    case Collective::all_gather:
    case Collective::gather: return {u, u + 1, 0};
    case Collective::broadcast: return {call.root, call.root + 1, 0};
    case Collective::scatter: return {call.root, call.root + 1, unit};
    default: return {u % n, u % n + 1, unit / static_cast<std::uint64_t>(n)};
  }
}

constexpr Side targets_of(const Call& call, std::uint64_t unit, int n) {
  const int u = static_cast<int>(unit);
  switch (call.collective) {
    case Collective::all_reduce:
    case Collective::broadcast: return {0, n, 0};
    case Collective::all_gather: return {0, n, unit};
    case Collective::reduce: return {call.root, call.root + 1, 0};
    case Collective::gather: return {call.root, call.root + 1, unit};
    case Collective::reduce_scatter:
    case Collective::scatter: return {u, u + 1, 0};
    default: return {u / n, u / n + 1, unit % static_cast<std::uint64_t>(n)};
  }
}

}  // namespace ccl_lab::node
