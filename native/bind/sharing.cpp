// The shared-link tier as Python sees it: columns in, columns out. No decisions; ccl_lab/simulator/sharing.py checks and explains.
#include "sim/sharing.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>

#include <stdexcept>
#include <tuple>

#include "gil.hpp"
#include "sim/sharing_rates.hpp"
#include "sim_columns.hpp"

namespace nb = nanobind;
using namespace ccl_lab::bind;

namespace {

using Routes = nb::ndarray<const std::int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

std::tuple<int, std::int64_t, std::int64_t> simulate_shared(
    const I32& rank, const I32& channel, const U8& kind, const I32& peer, const I32& sig_channel, const I32& value, const I64& work_bytes,
    const I64& nominal_bytes, const I64& hold_ps, const I64& compute_ps, const I64& ready_ps, const I64& request_ps, const I32& link_a, const I32& link_b,
    const U8& link_ticks, const I64& link_bytes_per_s, const I64& link_latency_ps, const I64& late_ps, const I64& tier_ps, const I32& step,
    const I64& job_ops, const I32& route_of, const Routes& routes, const Times& times, const Column<std::int32_t>& level,
    const Column<std::int64_t>& finish_ps) {
  const std::size_t n = rank.shape(0);
  ccl_lab::sim::SharedInput in;
  in.ops = exact_input(rank, channel, kind, peer, sig_channel, value, work_bytes, nominal_bytes, hold_ps, compute_ps, ready_ps, request_ps, link_a, link_b,
                       link_ticks, link_bytes_per_s, link_latency_ps, late_ps, tier_ps, step);
  in.job_ops = {job_ops.data(), job_ops.shape(0)};
  std::int64_t total = 0;
  for (const std::int64_t ops : in.job_ops) {
    if (ops < 0 || ops > static_cast<std::int64_t>(n) - total) throw std::invalid_argument("simulate: job_ops do not add up");
    total += ops;
  }
  if (total != static_cast<std::int64_t>(n)) throw std::invalid_argument("simulate: job_ops do not add up");
  in.route_of = rows(route_of, n, "route_of");
  in.routes = {routes.data(), routes.shape(0) * routes.shape(1)};
  in.route_width = routes.shape(1);
  const ccl_lab::sim::ExactOutput out = exact_output(times, level, finish_ps, n, late_ps.shape(0));
  const ccl_lab::Unlocked unlocked;
  const auto result = ccl_lab::sim::simulate_shared(in, out);
  return {static_cast<int>(result.status), result.op, result.detail};
}

// The rates, in units of 2^-10 bytes/s, of `flows[c]` flows of each class c, set one class after the other; `again` names classes that
// lose a flow and get it back, so that the rates are solved more than once.
void fair_rates(const Routes& routes, const I64& flows, const I64& link_bytes_per_s, const I32& again, const Column<std::int64_t>& out) {
  const std::span<const std::int32_t> all{routes.data(), routes.shape(0) * routes.shape(1)};
  const std::span<const std::int64_t> rates{link_bytes_per_s.data(), link_bytes_per_s.shape(0)};
  const std::size_t n = routes.shape(0);
  const auto counts = rows(flows, n, "flows");
  const auto result = rows(out, n, "out");
  for (const std::int32_t link : all)
    if (link < -1 || link >= static_cast<std::int64_t>(rates.size())) throw std::invalid_argument("fair_rates: a link out of range");
  for (const std::int64_t rate : rates)
    if (rate <= 0) throw std::invalid_argument("fair_rates: a link without rate");
  ccl_lab::sim::FairRates fair(all, routes.shape(1), rates);
  for (std::size_t cls = 0; cls < n; ++cls)
    for (std::int64_t i = 0; i < counts[cls]; ++i) fair.add(static_cast<std::int32_t>(cls));
  fair.settle();
  for (std::size_t i = 0; i < again.shape(0); ++i) {
    const std::int32_t cls = again.data()[i];
    if (cls < 0 || static_cast<std::size_t>(cls) >= n || counts[static_cast<std::size_t>(cls)] <= 0)
      throw std::invalid_argument("fair_rates: `again` names a class without flows");
    fair.remove(cls), fair.settle(), fair.add(cls), fair.settle();
  }
  for (std::size_t cls = 0; cls < n; ++cls) result[cls] = fair.rate(static_cast<std::int32_t>(cls));
}

}  // namespace

void bind_sharing(nb::module_& m) {
  m.def("simulate_shared", &simulate_shared, nb::arg("rank"), nb::arg("channel"), nb::arg("kind"), nb::arg("peer"), nb::arg("sig_channel"),
        nb::arg("value"), nb::arg("work_bytes"), nb::arg("nominal_bytes"), nb::arg("hold_ps"), nb::arg("compute_ps"), nb::arg("ready_ps"), nb::arg("request_ps"),
        nb::arg("link_a"), nb::arg("link_b"), nb::arg("link_ticks"), nb::arg("link_bytes_per_s"), nb::arg("link_latency_ps"),
        nb::arg("late_ps"), nb::arg("tier_ps"), nb::arg("step"), nb::arg("job_ops"), nb::arg("route_of"), nb::arg("routes"), nb::arg("times").noconvert(),
        nb::arg("level").noconvert(), nb::arg("finish_ps").noconvert(),
        "Times of every op of several jobs, as simulate_exact, on links shared fairly. Use ccl_lab.simulator.simulate_shared.");
  m.def("fair_rates", &fair_rates, nb::arg("routes"), nb::arg("flows"), nb::arg("link_bytes_per_s"), nb::arg("again"),
        nb::arg("out").noconvert(), "Max-min fair rates of classes of flows, in units of 2^-10 bytes/s, into `out`.");
}
