// The columns that both tiers of the simulator take from Python, as spans. Is not: a check of what they hold (the core's).
#pragma once

#include <nanobind/ndarray.h>

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

#include "sim/exact.hpp"

namespace ccl_lab::bind {

template <class T>
using Column = nanobind::ndarray<T, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using U8 = Column<const std::uint8_t>;
using I32 = Column<const std::int32_t>;
using I64 = Column<const std::int64_t>;
using Times = nanobind::ndarray<std::int64_t, nanobind::shape<5, -1>, nanobind::c_contig, nanobind::device::cpu>;

template <class T>
std::span<T> rows(const Column<T>& column, std::size_t expected, const char* what) {
  if (column.shape(0) != expected) throw std::invalid_argument(std::string("simulate: wrong length of ") + what);
  return {column.data(), column.shape(0)};
}

inline sim::ExactInput exact_input(const I32& rank, const I32& channel, const U8& kind, const I32& peer, const I32& sig_channel,
                                   const I32& value, const I64& work_bytes, const I64& nominal_bytes, const I64& hold_ps,
                                   const I64& compute_ps, const I64& ready_ps, const I64& request_ps, const I32& link_a, const I32& link_b, const U8& link_ticks,
                                   const I64& link_bytes_per_s, const I64& link_latency_ps, const I64& late_ps, const I64& tier_ps, const I32& step) {
  const std::size_t n = rank.shape(0), links = link_bytes_per_s.shape(0), ranks = late_ps.shape(0);
  return {rows(rank, n, "rank"), rows(channel, n, "channel"), rows(kind, n, "kind"), rows(peer, n, "peer"),
          rows(sig_channel, n, "sig_channel"), rows(value, n, "value"), rows(work_bytes, n, "work_bytes"), rows(hold_ps, n, "hold_ps"),
          rows(compute_ps, n, "compute_ps"), rows(ready_ps, n, "ready_ps"), rows(request_ps, n, "request_ps"),
          rows(link_a, n, "link_a"), rows(link_b, n, "link_b"), rows(link_ticks, links, "link_ticks"),
          rows(link_bytes_per_s, links, "link_bytes_per_s"), rows(link_latency_ps, links, "link_latency_ps"),
          rows(late_ps, ranks, "late_ps"), rows(tier_ps, tier_ps.shape(0) ? n : 0, "tier_ps"),
          rows(nominal_bytes, n, "nominal_bytes"), {}, rows(step, step.shape(0) ? n : 0, "step")};
}

inline sim::ExactOutput exact_output(const Times& times, const Column<std::int32_t>& level, const Column<std::int64_t>& finish_ps,
                                     std::size_t n, std::size_t ranks) {
  if (times.shape(1) != n) throw std::invalid_argument("simulate: wrong length of times");
  const auto time = [&](std::size_t row) { return std::span<std::int64_t>(times.data() + row * n, n); };
  return {time(0), time(1), time(2), time(3), time(4), rows(level, n, "level"), rows(finish_ps, ranks, "finish_ps")};
}

}  // namespace ccl_lab::bind
