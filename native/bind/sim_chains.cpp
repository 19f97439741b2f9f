// Chains over all ranks as Python sees them. No decisions; ccl_lab/simulator/chains.py makes the columns and explains.
#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>

#include <tuple>

#include "columns.hpp"
#include "gil.hpp"
#include "sim/chains.hpp"

namespace nb = nanobind;

namespace {

std::tuple<int, std::int64_t, std::int64_t, std::int64_t> simulate_chains(const nb::dict& columns) {
  const ccl_lab::bind::Columns c(columns);
  using I64 = const std::int64_t;
  using I32 = const std::int32_t;
  const ccl_lab::sim::ChainsInput in{
      .chains = c.number("chains"), .length = c.number("length"), .chunks = c.number("chunks"), .adds = c.number("adds") != 0,
      .merge = c.number("merge") != 0, .alpha_ps = c.number("alpha_ps"), .rank = c.get<I32>("rank"), .link_a = c.get<I32>("link_a"),
      .link_b = c.get<I32>("link_b"), .tier_ps = c.get<I64>("tier_ps"), .bytes = c.get<I64>("bytes"), .nominal_parts = c.get<I64>("nominal_parts"),
      .node_of = c.get<I32>("node_of"), .bytes_per_s = c.get<I64>("bytes_per_s"), .latency_ps = c.get<I64>("latency_ps"),
      .late_ps = c.get<I64>("late_ps"), .changes = c.changes()};
  ccl_lab::sim::ChainsOutput out{.finish_ps = c.get<std::int64_t>("finish_ps")};
  const ccl_lab::Unlocked unlocked;
  const auto status = ccl_lab::sim::simulate_chains(in, out);
  return {static_cast<int>(status), out.units, out.evaluated, out.orders};
}

}  // namespace

void bind_sim_chains(nb::module_& m) {
  m.def("simulate_chains", &simulate_chains, nb::arg("columns"),
        "Times of chains over all ranks, into the column finish_ps; returns (status, units, units whose times were evaluated, units whose "
        "order was) as native/src/sim/chains.hpp says. Use ccl_lab.simulate.");
}
