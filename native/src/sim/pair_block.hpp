// What a node puts to one other where no other pair of nodes has the same puts: gathered in one place, put by put.
//
// Is: the numbers that the puts of such a block read and write, each once, with what a put does to them. Is not: which puts these are
// (pair_cuts.hpp), copies, or rates that change. Invariant: as `put` of pair_puts.hpp, put after put.
//
// Columns of a table lie a row apart, so that each number is in a cache line of its own, and a put reads twelve of them. A block of 64 puts reads 80
// different ones.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "pair_puts.hpp"

namespace ccl_lab::sim {

class OddBlock {
 public:
  void add(const Rows& at) {
    puts_.push_back({written(at.a, false), written(at.b, true), written(at.left, false), written(at.arrived, true), read(at.time_a, false), read(at.time_b, true),
                     read(at.latency_a, false), read(at.latency_b, true), read(at.late_from, false), read(at.late_to, true), at.same_nic});
  }

  // Of unit u to unit v. numbers: room for them.
  void operator()(std::size_t u, std::size_t v, const PairTiers& tiers, std::vector<std::int64_t>& numbers) const {
    const std::int64_t adds[] = {tiers.of(u, v, false), tiers.of(u, v, true)};
    numbers.resize(std::max(numbers.size(), written_.size() + read_.size()));
    std::int64_t *const is = numbers.data(), *const given = is + written_.size();
    for (std::size_t i = 0; i < written_.size(); ++i) is[i] = written_[i].row[written_[i].receiver ? v : u];
    for (std::size_t i = 0; i < read_.size(); ++i) given[i] = read_[i].row[read_[i].receiver ? v : u];
    for (const Put& p : puts_) {
      const std::int64_t start = std::max(std::max(given[p.late_from], given[p.late_to]), std::max(is[p.a], is[p.b]));
      const std::int64_t a = start + given[p.time_a], b = start + given[p.time_b], leaves = std::max(a, b);
      is[p.a] = a;
      is[p.b] = b;
      is[p.left] = std::max(is[p.left], leaves);
      is[p.arrived] = std::max(is[p.arrived], leaves + given[p.latency_a] + given[p.latency_b] + adds[p.same_nic]);
    }
    for (std::size_t i = 0; i < written_.size(); ++i) written_[i].row[written_[i].receiver ? v : u] = is[i];
  }

 private:
  template <class Number>
  struct Row {
    Number* row;
    bool receiver;
  };
  struct Put {
    std::uint32_t a, b, left, arrived, time_a, time_b, latency_a, latency_b, late_from, late_to;
    bool same_nic;
  };

  template <class Number>
  static std::uint32_t number(std::vector<Row<Number>>& rows, Number* row, bool receiver) {
    const auto found = std::ranges::find_if(rows, [&](const Row<Number>& each) { return each.row == row && each.receiver == receiver; });
    const auto at = static_cast<std::uint32_t>(found - rows.begin());
    if (found == rows.end()) rows.push_back({row, receiver});
    return at;
  }
  std::uint32_t written(std::int64_t* row, bool receiver) { return number(written_, row, receiver); }
  std::uint32_t read(const std::int64_t* row, bool receiver) { return number(read_, row, receiver); }

  std::vector<Row<std::int64_t>> written_;
  std::vector<Row<const std::int64_t>> read_;
  std::vector<Put> puts_;
};

}  // namespace ccl_lab::sim
