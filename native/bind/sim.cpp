// The simulator as Python sees it: columns in, columns out. No decisions; ccl_lab/simulator/exact.py checks and explains.
#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>

#include <tuple>

#include "gil.hpp"
#include "sim_columns.hpp"

namespace nb = nanobind;
using namespace ccl_lab::bind;

namespace {

std::tuple<int, std::int64_t, std::int64_t> simulate_exact(
    const I32& rank, const I32& channel, const U8& kind, const I32& peer, const I32& sig_channel, const I32& value, const I64& work_bytes,
    const I64& nominal_bytes, const I64& hold_ps, const I64& compute_ps, const I64& ready_ps, const I64& request_ps, const I32& link_a, const I32& link_b,
    const U8& link_ticks, const I64& link_bytes_per_s, const I64& link_latency_ps, const I64& late_ps, const I64& tier_ps, const I32& step,
    const I32& change_link, const I64& change_ps, const I64& change_bytes_per_s,
    const Times& times, const Column<std::int32_t>& level, const Column<std::int64_t>& finish_ps) {
  auto in = exact_input(rank, channel, kind, peer, sig_channel, value, work_bytes, nominal_bytes, hold_ps, compute_ps, ready_ps, request_ps, link_a,
                              link_b, link_ticks, link_bytes_per_s, link_latency_ps, late_ps, tier_ps, step);
  const std::size_t n = change_link.shape(0);
  in.changes = {rows(change_link, n, "change_link"), rows(change_ps, n, "change_ps"), rows(change_bytes_per_s, n, "change_bytes_per_s")};
  const auto out = exact_output(times, level, finish_ps, rank.shape(0), late_ps.shape(0));
  const ccl_lab::Unlocked unlocked;
  const auto result = ccl_lab::sim::simulate_exact(in, out);
  return {static_cast<int>(result.status), result.op, result.detail};
}

}  // namespace

void bind_sim(nb::module_& m) {
  m.def("simulate_exact", &simulate_exact, nb::arg("rank"), nb::arg("channel"), nb::arg("kind"), nb::arg("peer"),
        nb::arg("sig_channel"), nb::arg("value"), nb::arg("work_bytes"), nb::arg("nominal_bytes"), nb::arg("hold_ps"), nb::arg("compute_ps"), nb::arg("ready_ps"),
        nb::arg("request_ps"), nb::arg("link_a"), nb::arg("link_b"), nb::arg("link_ticks"), nb::arg("link_bytes_per_s"),
        nb::arg("link_latency_ps"), nb::arg("late_ps"), nb::arg("tier_ps"), nb::arg("step"), nb::arg("change_link"), nb::arg("change_ps"),
        nb::arg("change_bytes_per_s"), nb::arg("times").noconvert(), nb::arg("level").noconvert(),
        nb::arg("finish_ps").noconvert(),
        "Times of every op, in ps, into `times` (begin, end, start, leave, arrive), `level`, `finish_ps`; returns "
        "(status, op, detail) as native/src/sim/exact.hpp says. Use ccl_lab.simulator.simulate.");
}
