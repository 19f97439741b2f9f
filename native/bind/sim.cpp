// The simulator as Python sees it: columns in, columns out. No decisions; ccl_lab/simulator/exact.py checks and explains.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>

#include <span>
#include <stdexcept>
#include <string>
#include <tuple>

#include "sim/exact.hpp"

namespace nb = nanobind;

namespace {

template <class T>
using Column = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using I32 = Column<const std::int32_t>;
using I64 = Column<const std::int64_t>;

template <class T>
std::span<T> rows(const Column<T>& column, std::size_t expected, const char* what) {
  if (column.shape(0) != expected) throw std::invalid_argument(std::string("simulate_exact: wrong length of ") + what);
  return {column.data(), column.shape(0)};
}

std::tuple<int, std::int64_t, std::int64_t> simulate_exact(
    const I32& rank, const I32& channel, const Column<const std::uint8_t>& kind, const I32& peer, const I32& sig_channel,
    const I32& value, const I64& work_bytes, const I64& hold_ps, const I64& compute_ps, const I64& ready_ps, const I64& request_ps,
    const I32& link_a, const I32& link_b, const Column<const std::uint8_t>& link_ticks, const I64& link_bytes_per_s,
    const I64& link_latency_ps, const I64& late_ps, const I64& tier_ps,
    const nb::ndarray<std::int64_t, nb::shape<5, -1>, nb::c_contig, nb::device::cpu>& times,
    const Column<std::int32_t>& level, const Column<std::int64_t>& finish_ps) {
  const std::size_t n = rank.shape(0), links = link_bytes_per_s.shape(0), ranks = late_ps.shape(0);
  if (times.shape(1) != n) throw std::invalid_argument("simulate_exact: wrong length of times");
  const ccl_lab::sim::ExactInput in{
      rows(rank, n, "rank"), rows(channel, n, "channel"), rows(kind, n, "kind"), rows(peer, n, "peer"),
      rows(sig_channel, n, "sig_channel"), rows(value, n, "value"), rows(work_bytes, n, "work_bytes"),
      rows(hold_ps, n, "hold_ps"), rows(compute_ps, n, "compute_ps"), rows(ready_ps, n, "ready_ps"), rows(request_ps, n, "request_ps"),
      rows(link_a, n, "link_a"), rows(link_b, n, "link_b"), rows(link_ticks, links, "link_ticks"),
      rows(link_bytes_per_s, links, "link_bytes_per_s"), rows(link_latency_ps, links, "link_latency_ps"), rows(late_ps, ranks, "late_ps"),
      rows(tier_ps, tier_ps.shape(0) ? n : 0, "tier_ps")};
  const auto time = [&](std::size_t row) { return std::span<std::int64_t>(times.data() + row * n, n); };
  const ccl_lab::sim::ExactOutput out{time(0), time(1), time(2), time(3), time(4), rows(level, n, "level"),
                                      rows(finish_ps, ranks, "finish_ps")};
  const nb::gil_scoped_release unlocked;
  const auto result = ccl_lab::sim::simulate_exact(in, out);
  return {static_cast<int>(result.status), result.op, result.detail};
}

}  // namespace

void bind_sim(nb::module_& m) {
  m.def("simulate_exact", &simulate_exact, nb::arg("rank"), nb::arg("channel"), nb::arg("kind"), nb::arg("peer"),
        nb::arg("sig_channel"), nb::arg("value"), nb::arg("work_bytes"), nb::arg("hold_ps"), nb::arg("compute_ps"), nb::arg("ready_ps"),
        nb::arg("request_ps"), nb::arg("link_a"), nb::arg("link_b"), nb::arg("link_ticks"), nb::arg("link_bytes_per_s"),
        nb::arg("link_latency_ps"), nb::arg("late_ps"), nb::arg("tier_ps"), nb::arg("times").noconvert(), nb::arg("level").noconvert(),
        nb::arg("finish_ps").noconvert(),
        "Times of every op, in ps, into `times` (begin, end, start, leave, arrive), `level`, `finish_ps`; returns "
        "(status, op, detail) as native/src/sim/exact.hpp says. Use ccl_lab.simulator.simulate.");
}
