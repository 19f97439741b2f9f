// Schedules that are timed node by node as Python sees them. No decisions; ccl_lab/simulator/chains.py and pairs.py make the columns and explain.
#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <vector>

#include "columns.hpp"
#include "gil.hpp"
#include "sim/chains.hpp"
#include "sim/meeting_puts.hpp"
#include "sim/meetings.hpp"
#include "sim/paired.hpp"
#include "sim/pairs.hpp"
#include "sim/partners.hpp"
#include "sim/rails.hpp"
#include "sim/swaps.hpp"
#include "sim/trees.hpp"

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

std::tuple<int, std::int64_t, std::int64_t, std::int64_t> simulate_trees(const nb::dict& columns) {
  const ccl_lab::bind::Columns c(columns);
  using I64 = const std::int64_t;
  using I32 = const std::int32_t;
  const ccl_lab::sim::TreesInput in{
      .nodes = c.number("nodes"), .slices = c.number("slices"), .depth = c.number("depth"), .nics = c.number("nics"),
      .count = c.number("count"), .itemsize = c.number("itemsize"), .alpha_ps = c.number("alpha_ps"), .merge = c.number("merge") != 0,
      .first_rank = c.get<I32>("first_rank"), .parent = c.get<I32>("parent"), .level = c.get<I32>("level"), .color = c.get<I32>("color"),
      .nic = c.get<const std::uint16_t>("nic"), .bytes_per_s = c.get<I64>("bytes_per_s"), .latency_ps = c.get<I64>("latency_ps"),
      .late_ps = c.get<I64>("late_ps"), .tier_ps = c.get<I64>("tier_ps"), .changes = c.changes()};
  ccl_lab::sim::TreesOutput out{.finish_ps = c.get<std::int64_t>("finish_ps")};
  const ccl_lab::Unlocked unlocked;
  const auto status = ccl_lab::sim::simulate_trees(in, out);
  return {static_cast<int>(status), out.kinds, out.evaluated, out.crossed};
}

ccl_lab::sim::PairTiersInput tiers_of(const ccl_lab::bind::Columns& c) {
  return {.group = c.get<const std::int32_t>("tier_group"), .latency_ps = c.get<const std::int64_t>("tier_latency_ps"),
          .per_rail = c.get<const std::uint8_t>("tier_per_rail")};
}

ccl_lab::sim::PartnerTiersInput partner_tiers_of(const ccl_lab::bind::Columns& c) {
  return {.above = c.get<const std::int32_t>("tier_switch"), .latency_ps = c.get<const std::int64_t>("tier_latency_ps")};
}

ccl_lab::sim::Target target_of(const ccl_lab::bind::Columns& c) { return static_cast<ccl_lab::sim::Target>(c.number("target")); }

int simulate_paired(const nb::dict& columns) {
  const ccl_lab::bind::Columns c(columns);
  using I64 = const std::int64_t;
  using I32 = const std::int32_t;
  const ccl_lab::sim::PairedInput in{
      .ranks = c.number("ranks"), .group = c.number("group"), .alike = c.number("alike") != 0,
      .in_place = c.number("in_place") != 0, .first = c.number("first"), .nic = c.get<I32>("nic"),
      .late_ps = c.get<I64>("late_ps"), .begin_ps = c.get<I64>("begin_ps"), .copy_ps = c.get<I64>("copy_ps"),
      .far = {c.get<I64>("tx_ps"), c.get<I64>("rx_ps"), c.get<I64>("tx_latency_ps"), c.get<I64>("rx_latency_ps")},
      .near = {c.get<I64>("near_tx_ps"), c.get<I64>("near_rx_ps"), c.get<I64>("near_tx_latency_ps"), c.get<I64>("near_rx_latency_ps")},
      .alpha_ps = c.number("alpha_ps"), .nbytes = c.get<I64>("nbytes"), .tx_link = c.get<I32>("tx_link"), .rx_link = c.get<I32>("rx_link"),
      .tx_bytes_per_s = c.get<I64>("tx_bytes_per_s"), .rx_bytes_per_s = c.get<I64>("rx_bytes_per_s"), .links = c.number("links"),
      .changes = c.changes(), .tiers = partner_tiers_of(c), .target = target_of(c)};
  const auto finish_ps = c.get<std::int64_t>("finish_ps");
  const ccl_lab::Unlocked unlocked;
  return static_cast<int>(ccl_lab::sim::simulate_paired(in, finish_ps));
}

std::tuple<int, std::int64_t, std::int64_t> simulate_partners(const nb::dict& columns) {
  const ccl_lab::bind::Columns c(columns);
  using I64 = const std::int64_t;
  using I32 = const std::int32_t;
  const ccl_lab::sim::PartnersInput in{
      .ranks = c.number("ranks"), .nics = c.number("nics"), .channels = c.number("channels"), .in_place = c.number("in_place") != 0,
      .node = c.get<I32>("node"), .nic = c.get<I32>("nic"), .bytes = c.get<I64>("bytes"), .late_ps = c.get<I64>("late_ps"),
      .begin_ps = c.get<I64>("begin_ps"), .copy_ps = c.get<I64>("copy_ps"), .alpha_ps = c.number("alpha_ps"),
      .bytes_per_s = c.get<I64>("bytes_per_s"), .latency_ps = c.get<I64>("latency_ps"), .link = c.get<I32>("link"), .links = c.number("links"),
      .changes = c.changes(), .tiers = partner_tiers_of(c), .side_by_side = c.number("side_by_side") != 0, .most_puts = c.number("most_puts"),
      .target = target_of(c)};
  ccl_lab::sim::PartnersOutput out{.finish_ps = c.get<std::int64_t>("finish_ps")};
  const ccl_lab::Unlocked unlocked;
  const auto status = ccl_lab::sim::simulate_partners(in, out);
  return {static_cast<int>(status), out.puts, out.turns};
}

int simulate_swaps(const nb::dict& columns) {
  const ccl_lab::bind::Columns c(columns);
  using I64 = const std::int64_t;
  using I32 = const std::int32_t;
  const ccl_lab::sim::SwapsInput in{
      .ranks = c.number("ranks"), .channels = c.number("channels"), .alpha_ps = c.number("alpha_ps"),
      .step = c.get<const std::uint8_t>("step"), .times = c.get<I64>("times"), .some = c.get<I64>("some"),
      .apart = c.get<I64>("apart"), .raise = c.get<I64>("raise"), .raises = c.get<I64>("raises"),
      .nbytes = c.get<I64>("nbytes"), .ticks = c.get<I64>("ticks"), .blocks = c.get<I64>("blocks"), .by_rank = c.get<I32>("by_rank"),
      .tier = c.get<I64>("tier"), .tier_of = c.get<const std::uint8_t>("tier_of"), .tier_ps = c.get<I64>("tier_ps"),
      .node_of = c.get<I32>("node_of"), .tx = c.get<I32>("tx"), .rx = c.get<I32>("rx"),
      .bytes_per_s = c.get<I64>("bytes_per_s"), .latency_ps = c.get<I64>("latency_ps"), .late_ps = c.get<I64>("late_ps"),
      .changes = c.changes()};
  const auto finish_ps = c.get<std::int64_t>("finish_ps");
  const ccl_lab::Unlocked unlocked;
  return static_cast<int>(ccl_lab::sim::simulate_swaps(in, finish_ps));
}

int simulate_rails(const nb::dict& columns) {
  const ccl_lab::bind::Columns c(columns);
  using I64 = const std::int64_t;
  using I32 = const std::int32_t;
  const ccl_lab::sim::RailsInput in{
      .nodes = c.number("nodes"), .units = c.number("units"), .group = c.number("group"), .nics = c.number("nics"), .puts = c.number("puts"),
      .classes = c.number("classes"), .hop_ps = c.number("hop_ps"), .alpha_ps = c.number("alpha_ps"), .nic = c.get<I32>("nic"), .map_of = c.get<I32>("map_of"),
      .bytes = c.get<I64>("bytes"), .channel = c.number("channel"), .near_bytes = c.get<I64>("near_bytes"),
      .tx_bytes_per_s = c.get<I64>("tx_bytes_per_s"), .tx_latency_ps = c.get<I64>("tx_latency_ps"),
      .rx_bytes_per_s = c.get<I64>("rx_bytes_per_s"), .rx_latency_ps = c.get<I64>("rx_latency_ps"),
      .near_tx_bytes_per_s = c.get<I64>("near_tx_bytes_per_s"), .near_tx_latency_ps = c.get<I64>("near_tx_latency_ps"),
      .near_rx_bytes_per_s = c.get<I64>("near_rx_bytes_per_s"), .near_rx_latency_ps = c.get<I64>("near_rx_latency_ps"),
      .near_late_ps = c.get<I64>("near_late_ps"), .class_of = c.get<I32>("class_of"), .late_ps = c.get<I64>("late_ps"),
      .tx_link = c.get<I32>("tx_link"), .rx_link = c.get<I32>("rx_link"), .links = c.number("links"), .changes = c.changes(),
      .tiers = tiers_of(c), .target = target_of(c)};
  ccl_lab::sim::RailsOutput out{.arrived_ps = c.get<std::int64_t>("arrived_ps"), .left_ps = c.get<std::int64_t>("left_ps"),
                                .seen_ps = c.get<std::int64_t>("seen_ps"), .near_left_ps = c.get<std::int64_t>("near_left_ps")};
  const ccl_lab::Unlocked unlocked;
  return static_cast<int>(ccl_lab::sim::simulate_rails(in, out));
}

std::tuple<int, std::int64_t> simulate_pairs(const nb::dict& columns) {
  const ccl_lab::bind::Columns c(columns);
  using I64 = const std::int64_t;
  using I32 = const std::int32_t;
  const ccl_lab::sim::PairsInput in{
      .nodes = c.number("nodes"), .units = c.number("units"), .group = c.number("group"), .nics = c.number("nics"),
      .channels = c.number("channels"), .alpha_ps = c.number("alpha_ps"), .nic = c.get<I32>("nic"), .bytes = c.get<I64>("bytes"),
      .tx_bytes_per_s = c.get<I64>("tx_bytes_per_s"), .tx_latency_ps = c.get<I64>("tx_latency_ps"),
      .rx_bytes_per_s = c.get<I64>("rx_bytes_per_s"), .rx_latency_ps = c.get<I64>("rx_latency_ps"),
      .near_tx_bytes_per_s = c.get<I64>("near_tx_bytes_per_s"), .near_tx_latency_ps = c.get<I64>("near_tx_latency_ps"),
      .near_rx_bytes_per_s = c.get<I64>("near_rx_bytes_per_s"), .near_rx_latency_ps = c.get<I64>("near_rx_latency_ps"),
      .late_ps = c.get<I64>("late_ps"), .tx_link = c.get<I32>("tx_link"), .rx_link = c.get<I32>("rx_link"),
      .odd_node = c.get<I32>("odd_node"), .odd_nic = c.get<I32>("odd_nic"), .few = c.number("few"), .most_work = c.number("most_work"), .links = c.number("links"),
      .changes = c.changes(), .copy_ps = c.get<I64>("copy_ps"), .flushes = c.number("flushes") != 0, .target = target_of(c),
      .tiers = tiers_of(c),
      .cuts = {.kind = c.get<I32>("cut_kind"), .nic = c.get<I32>("cut_nic"), .left = c.get<I32>("cut_left"), .first = c.get<I32>("cut_first"),
               .channel = c.get<I32>("cut_channel"), .size = c.get<I32>("cut_size"), .bytes = c.get<I64>("cut_bytes"),
               .near_bytes = c.get<I64>("cut_near_bytes"), .by_node = c.number("cut_by_node") != 0}};
  ccl_lab::sim::PairsOutput out{.arrived_ps = c.get<std::int64_t>("arrived_ps"), .left_ps = c.get<std::int64_t>("left_ps"),
                                .places = c.get<std::int64_t>("places")};
  const ccl_lab::Unlocked unlocked;
  const auto status = ccl_lab::sim::simulate_pairs(in, out);
  return {static_cast<int>(status), out.dealt};
}

int sweep_meeting_batches(const nb::dict& columns) {
  const ccl_lab::bind::Columns c(columns);
  using I64 = std::int64_t;
  const ccl_lab::sim::BatchSweep in{
      .sweep = static_cast<ccl_lab::sim::Sweep>(c.number("sweep")), .shift = c.number("shift"), .steps = c.number("steps"),
      .reducing = c.number("reducing"), .batch = c.get<I64>("batch"), .free = c.get<I64>("free"), .ticks = c.get<const I64>("ticks"),
      .came = c.get<I64>("came"), .target = target_of(c)};
  const ccl_lab::Unlocked unlocked;
  return static_cast<int>(ccl_lab::sim::sweep_batches(in));
}

ccl_lab::sim::TimeSweep time_sweep(const ccl_lab::bind::Columns& c) {
  using I64 = std::int64_t;
  return {.sweep = static_cast<ccl_lab::sim::Sweep>(c.number("sweep")), .shift = c.number("shift"), .steps = c.number("steps"),
          .reducing = c.number("reducing"), .clock = c.get<I64>("clock"), .tx = c.get<I64>("tx"), .rx = c.get<I64>("rx"),
          .latency_ps = c.get<const I64>("latency_ps"), .add = c.get<const I64>("add"), .nic = c.get<const I64>("nic"),
          .memory_kind = c.get<const I64>("memory_kind"), .tx_kind = c.get<const I64>("tx_kind"), .rx_kind = c.get<const I64>("rx_kind"),
          .came = c.get<I64>("came"), .target = target_of(c)};
}

int sweep_meeting_times(const nb::dict& columns) {
  const ccl_lab::sim::TimeSweep in = time_sweep(ccl_lab::bind::Columns(columns));
  const ccl_lab::Unlocked unlocked;
  return static_cast<int>(ccl_lab::sim::sweep_times(in));
}

int pass_meeting_batches_along(const nb::dict& columns) {
  const ccl_lab::bind::Columns c(columns);
  using I64 = std::int64_t;
  const auto batch = c.get<I64>("batch"), free = c.get<I64>("free"), came = c.get<I64>("came");
  const auto ticks = c.get<const I64>("ticks");
  const ccl_lab::Unlocked unlocked;
  return static_cast<int>(ccl_lab::sim::pass_batches_along(batch, free, ticks, came));
}

int pass_meeting_times_along(const nb::dict& columns) {
  const ccl_lab::sim::TimeSweep in = time_sweep(ccl_lab::bind::Columns(columns));
  const ccl_lab::Unlocked unlocked;
  return static_cast<int>(ccl_lab::sim::pass_times_along(in));
}

int order_meeting_puts(const nb::dict& columns) {
  const ccl_lab::bind::Columns c(columns);
  const ccl_lab::sim::PutsInput in{.source = c.get<const std::int32_t>("source"), .to = c.get<const std::int32_t>("to")};
  const auto batch = c.get<const std::int64_t>("batch");
  const auto order = c.get<std::int32_t>("order");
  const std::int64_t nodes = c.number("nodes");
  const ccl_lab::Unlocked unlocked;
  return static_cast<int>(ccl_lab::sim::order_puts(in, nodes, batch, order));
}

int serve_meeting_puts(const nb::dict& columns) {
  const ccl_lab::bind::Columns c(columns);
  using I64 = const std::int64_t;
  const ccl_lab::sim::PutsInput in{.source = c.get<const std::int32_t>("source"), .to = c.get<const std::int32_t>("to"),
                                   .ready = c.get<I64>("ready"), .tx_for = c.get<I64>("tx_for"), .rx_for = c.get<I64>("rx_for")};
  const auto order = c.get<const std::int32_t>("order");
  const auto tx = c.get<std::int64_t>("tx"), rx = c.get<std::int64_t>("rx"), left = c.get<std::int64_t>("left");
  const ccl_lab::Unlocked unlocked;
  return static_cast<int>(ccl_lab::sim::serve_puts(in, order, tx, rx, left));
}

int serve_fabrics(const nb::dict& columns) {
  const ccl_lab::bind::Columns c(columns);
  using I64 = std::int64_t;
  using I32 = std::int32_t;
  const ccl_lab::sim::FabricsInput in{
      .nodes = c.number("nodes"), .group = c.number("group"), .puts = c.number("puts"), .alpha_ps = c.number("alpha_ps"),
      .batch = c.get<const I64>("batch"), .source = c.get<const I32>("source"), .to = c.get<const I32>("to"), .nbytes = c.get<const I64>("nbytes"),
      .bytes_per_s = c.get<const I64>("bytes_per_s"), .latency_ps = c.get<const I64>("latency_ps"), .late_ps = c.get<const I64>("late_ps")};
  const auto order = c.get<I32>("order");
  const auto ready_ps = c.get<const I64>("ready_ps");
  const auto next = c.get<I64>("next"), tx_ps = c.get<I64>("tx_ps"), rx_ps = c.get<I64>("rx_ps"), left_ps = c.get<I64>("left_ps"), seen_ps = c.get<I64>("seen_ps");
  const bool first = c.number("first") != 0;
  const ccl_lab::Unlocked unlocked;
  if (first) return static_cast<int>(ccl_lab::sim::order_fabrics(in, order));
  return static_cast<int>(ccl_lab::sim::serve_fabrics(in, order, ready_ps, next, tx_ps, rx_ps, left_ps, seen_ps));
}

}  // namespace

void bind_sim_nodes(nb::module_& m) {
  m.def("simulate_chains", &simulate_chains, nb::arg("columns"),
        "Times of chains over all ranks, into the column finish_ps; returns (status, units, units whose times were evaluated, units whose "
        "order was) as native/src/sim/chains.hpp says. Use ccl_lab.simulate.");
  m.def("simulate_trees", &simulate_trees, nb::arg("columns"),
        "Times of a double binary tree over nodes, into the column finish_ps; returns (status, kinds of nodes, rounds of nodes and puts between "
        "them that were evaluated) as native/src/sim/trees.hpp says. Use ccl_lab.simulate.");
  m.def("simulate_pairs", &simulate_pairs, nb::arg("columns"),
        "Times of the puts of every rank to every other one, into the columns arrived_ps, left_ps, turns; returns the status, as "
        "native/src/sim/pairs.hpp says. Use ccl_lab.simulate.");
  m.def("simulate_rails", &simulate_rails, nb::arg("columns"),
        "Times of the puts of a hierarchical all_to_all, into the columns arrived_ps, left_ps, seen_ps, near_left_ps; returns the status, as "
        "native/src/sim/rails.hpp says. Use ccl_lab.simulate.");
  m.def("simulate_paired", &simulate_paired, nb::arg("columns"),
        "Times of pairwise exchanges, into the column finish_ps; returns the status, as native/src/sim/paired.hpp says. Use ccl_lab.simulate.");
  m.def("simulate_partners", &simulate_partners, nb::arg("columns"),
        "Times of pairwise exchanges out of step, into the column finish_ps; returns (status, puts, those that took turns) (native/src/sim/partners.hpp).");
  m.def("simulate_swaps", &simulate_swaps, nb::arg("columns"),
        "Times of partners that swap many blocks, into the column finish_ps; returns the status (native/src/sim/swaps.hpp).");
  m.def("sweep_meeting_batches", &sweep_meeting_batches, nb::arg("columns"),
        "Batches of messages that go from node to node, in the columns batch, free, came; returns the status, as native/src/sim/meetings.hpp says. "
        "Use ccl_lab.simulate.");
  m.def("sweep_meeting_times", &sweep_meeting_times, nb::arg("columns"),
        "Times of messages that go from node to node, in the columns clock, tx, rx, came; returns the status, as native/src/sim/meetings.hpp says. "
        "Use ccl_lab.simulate.");
  m.def("pass_meeting_batches_along", &pass_meeting_batches_along, nb::arg("columns"),
        "Batches of a few messages that pass all nodes, in the columns batch, free, came; returns the status, as "
        "native/src/sim/meeting_puts.hpp says. Use ccl_lab.simulate.");
  m.def("pass_meeting_times_along", &pass_meeting_times_along, nb::arg("columns"),
        "Times of a few messages that pass all nodes, in the columns clock, tx, rx, came; returns the status, as "
        "native/src/sim/meeting_puts.hpp says. Use ccl_lab.simulate.");
  m.def("order_meeting_puts", &order_meeting_puts, nb::arg("columns"),
        "In which order NICs serve puts, into the column order; returns the status, as native/src/sim/meeting_puts.hpp says. Use "
        "ccl_lab.simulate.");
  m.def("serve_meeting_puts", &serve_meeting_puts, nb::arg("columns"),
        "Puts in that order, into the columns tx, rx, left; returns the status, as native/src/sim/meeting_puts.hpp says. Use ccl_lab.simulate.");
  m.def("serve_fabrics", &serve_fabrics, nb::arg("columns"),
        "Puts inside nodes: their order (`first`), or, in it, what is ready, into the columns next, tx_ps, rx_ps, left_ps, seen_ps; returns the "
        "status, as native/src/sim/meetings.hpp says. Use ccl_lab.simulate.");
  m.def("vector_targets", [] {
    std::vector<int> found;
    for (const auto target : {ccl_lab::sim::Target::base, ccl_lab::sim::Target::avx2, ccl_lab::sim::Target::avx512})
      if (ccl_lab::sim::runs(target)) found.push_back(static_cast<int>(target));
    return found;
  }, "Numbers of the targets (native/src/sim/vectors.hpp) that this processor can run: what `target` of pairs and rails may be, besides 0.");
}
