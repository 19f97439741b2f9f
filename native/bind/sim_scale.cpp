// The simulator at scale as Python sees it. No decisions; ccl_lab/simulator/loops.py makes the columns and explains.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <tuple>

#include "columns.hpp"
#include "gil.hpp"
#include "sim/exchanges.hpp"
#include "sim/flow.hpp"
#include "sim/gathers.hpp"
#include "sim/rings.hpp"

namespace nb = nanobind;
using ccl_lab::bind::Columns;

namespace {

template <class T>
using Column = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::tuple<int, std::int64_t, std::int64_t> simulate_rings(const nb::dict& columns) {
  const Columns c(columns);
  using I64 = const std::int64_t;
  using I32 = const std::int32_t;
  const ccl_lab::sim::RingsInput in{
      .units = c.number("units"), .chains = c.number("chains"), .stations = c.number("stations"), .depth = c.number("depth"),
      .steps = c.number("steps"), .reducing = c.number("reducing"), .own = c.number("own"), .alpha_ps = c.number("alpha_ps"), .n_sizes = c.number("n_sizes"),
      .nominal_bytes = c.number("nominal_bytes"),
      .most_both_ways = c.number("most_both_ways"), .most_rounds = c.number("most_rounds"), .most_own_time = c.number("most_own_time"),
      .copies = c.number("copies") != 0, .passes_on = c.number("passes_on") != 0, .jumps = c.number("jumps") != 0,
      .one_by_one = c.number("one_by_one") != 0, .together_at_first = c.number("together_at_first") != 0, .followed = c.number("followed") != 0, .own_time = c.number("own_time") != 0, .swept = c.number("swept") != 0,
      .timetable = c.number("timetable") != 0,
      .backward = c.get<const std::uint8_t>("backward"), .far = c.get<I32>("far"),
      .slices = c.get<I64>("slices"), .bytes = c.get<I64>("bytes"), .group = c.get<I64>("group"), .kind_of = c.get<I32>("kind_of"), .memory = c.get<I32>("memory"),
      .link_a = c.get<I32>("link_a"), .link_b = c.get<I32>("link_b"), .memory_bytes_per_s = c.get<I64>("memory_bytes_per_s"),
      .a_bytes_per_s = c.get<I64>("a_bytes_per_s"), .b_bytes_per_s = c.get<I64>("b_bytes_per_s"), .latency_ps = c.get<I64>("latency_ps"),
      .ticks = c.get<const std::uint8_t>("ticks"), .late_ps = c.get<I64>("late_ps"), .ready_ps = c.get<I64>("ready_ps"),
      .row = c.get<I64>("row"), .row_step = c.get<I64>("row_step"), .begin_ps = c.get<I64>("begin_ps"),
      .begin_batch = c.get<I64>("begin_batch"), .all_a = c.get<I32>("all_a"), .all_b = c.get<I32>("all_b"),
      .all_links = c.number("all_links"), .changes = c.changes()};
  ccl_lab::sim::RingsOutput out{.finish_ps = c.get<std::int64_t>("finish_ps"), .end_ps = c.get<std::int64_t>("end_ps"),
                                .end_batch = c.get<std::int64_t>("end_batch")};
  const ccl_lab::Unlocked unlocked;
  const auto status = ccl_lab::sim::simulate_rings(in, out);
  return {static_cast<int>(status), out.rounds, out.jumped};
}

bool simulate_gathers(const nb::dict& columns) {
  const Columns c(columns);
  using I64 = const std::int64_t;
  const ccl_lab::sim::GathersInput in{
      .nodes = c.number("nodes"), .group = c.number("group"), .slices = c.number("slices"), .classes = c.number("classes"),
      .alpha_ps = c.number("alpha_ps"), .owners = c.get<I64>("owners"), .bytes = c.get<I64>("bytes"), .rows = c.get<I64>("rows"),
      .end_ps = c.get<I64>("end_ps"), .end_batch = c.get<I64>("end_batch"), .class_of = c.get<I64>("class_of"), .bytes_per_s = c.get<I64>("bytes_per_s"),
      .late_ps = c.get<I64>("late_ps"), .tx_latency_ps = c.get<I64>("tx_latency_ps"), .rx_latency_ps = c.get<I64>("rx_latency_ps"),
      .tx_free_ps = c.get<I64>("tx_free_ps"), .rx_free_ps = c.get<I64>("rx_free_ps")};
  const auto finish = c.get<std::int64_t>("finish_ps");
  const ccl_lab::Unlocked unlocked;
  return ccl_lab::sim::simulate_gathers(in, finish);
}

std::tuple<int, std::int64_t> simulate_exchanges(const nb::dict& columns) {
  const Columns c(columns);
  using I64 = const std::int64_t;
  using U8 = const std::uint8_t;
  const ccl_lab::sim::ExchangesInput in{
      .ranks = c.number("ranks"), .alpha_ps = c.number("alpha_ps"), .step = c.get<U8>("step"), .near = c.get<U8>("near"),
      .apart = c.get<I64>("apart"), .ticks = c.get<I64>("ticks"), .raise = c.get<I64>("raise"), .nbytes = c.get<I64>("nbytes"),
      .row = c.get<I64>("row"), .bytes = c.get<I64>("bytes"), .tx = c.get<const std::int32_t>("tx"), .rx = c.get<const std::int32_t>("rx"),
      .bytes_per_s = c.get<I64>("bytes_per_s"), .latency_ps = c.get<I64>("latency_ps"), .late_ps = c.get<I64>("late_ps"),
      .merge = c.number("merge") != 0};
  const auto finish = c.get<std::int64_t>("finish_ps");
  const ccl_lab::Unlocked unlocked;
  const ccl_lab::sim::ExchangesResult found = ccl_lab::sim::simulate_exchanges(in, finish);
  return {static_cast<int>(found.status), found.members};
}

// A Flow with the columns that it reads from.
struct HeldFlow {
  nb::dict columns;
  ccl_lab::sim::Flow flow;
};

HeldFlow* make_flow(const nb::dict& columns) {
  const Columns c(columns);
  using I64 = const std::int64_t;
  using I32 = const std::int32_t;
  const ccl_lab::sim::FlowLinks links{
      .ranks = c.number("ranks"), .channels = c.number("channels"), .nodes = c.number("nodes"), .nics = c.number("nics"),
      .node_of = c.get<I32>("node_of"), .nic = c.get<const std::uint16_t>("nic"), .bytes_per_s = c.get<I64>("bytes_per_s"),
      .latency_ps = c.get<I64>("latency_ps"), .late_ps = c.get<I64>("late_ps"), .alpha_ps = c.number("alpha_ps"), .count = c.number("count"),
      .parts = c.number("parts"), .itemsize = c.number("itemsize"), .timetable = c.number("timetable") != 0, .changes = c.changes(),
      .most_waiting = c.number("most_waiting")};
  const auto ranks = static_cast<std::size_t>(links.ranks), lanes = ranks * static_cast<std::size_t>(links.channels);
  const auto below = [](std::int64_t end) { return [end](std::int64_t v) { return v >= 0 && v < end; }; };
  const auto nics = static_cast<std::size_t>(links.nodes * links.nics);
  if (links.node_of.size() != ranks || links.late_ps.size() != ranks ||
      links.nic.size() != (links.nodes > 1 ? lanes : 0) ||
      links.most_waiting < 0 || links.most_waiting > std::numeric_limits<std::int32_t>::max() ||
      links.latency_ps.size() != links.bytes_per_s.size() || links.bytes_per_s.size() < 3 * ranks + 2 * nics || links.parts < 1 ||
      !std::ranges::all_of(links.node_of, below(links.nodes)) || !std::ranges::all_of(links.nic, below(links.nics)) ||
      !ccl_lab::sim::Changes::good(links.changes, links.bytes_per_s.size()))
    throw nb::value_error("Flow: columns do not fit together");
  return new HeldFlow{columns, ccl_lab::sim::Flow(links, c.number("ordered") != 0)};
}

int run_flow(HeldFlow& held, int kind, const Column<const std::int32_t>& rank, const Column<const std::int32_t>& channel,
             const Column<const std::int32_t>& peer, const Column<const std::int32_t>& sig_channel, const Column<const std::int32_t>& value,
             const Column<const std::int32_t>& chunk, const Column<const std::int32_t>& n_chunks, std::int64_t sources,
             const Column<const std::int64_t>& ready_ps, const Column<const std::int64_t>& tier_ps, const Column<const std::int32_t>& step,
             const Column<const std::int32_t>& times) {
  const auto rows = [&](const auto& column) {
    if (column.shape(0) != rank.shape(0)) throw nb::value_error("Flow.run: columns of different lengths");
    return std::span(column.data(), column.shape(0));
  };
  const auto some = [&](const auto& column) { return column.shape(0) == 0 ? decltype(rows(column))() : rows(column); };
  const ccl_lab::sim::FlowOps ops{static_cast<std::uint8_t>(kind), rows(rank), rows(channel), rows(peer), rows(sig_channel), rows(value),
                                  rows(chunk), rows(n_chunks), sources, some(ready_ps), some(tier_ps), rows(step),
                                  some(times)};
  const ccl_lab::Unlocked unlocked;
  return static_cast<int>(held.flow.run(ops));
}

}  // namespace

void bind_sim_scale(nb::module_& m) {
  m.def("simulate_rings", &simulate_rings, nb::arg("columns"),
        "Times of a schedule made of rings, into the columns finish_ps, end_ps, end_batch; returns (status, rounds evaluated, rounds "
        "jumped over) as native/src/sim/rings.hpp says. Use ccl_lab.simulate.");
  m.def("simulate_gathers", &simulate_gathers, nb::arg("columns"),
        "Times of the puts inside nodes after their rings, into the column finish_ps; false where columns do not fit "
        "(native/src/sim/gathers.hpp).");
  m.def("simulate_exchanges", &simulate_exchanges, nb::arg("columns"),
        "Times of exchanges where some ranks share NICs, into the column finish_ps; returns (status, ranks that were evaluated) "
        "(native/src/sim/exchanges.hpp).");
  nb::class_<HeldFlow>(m, "Flow", "Ops timed as they are told (native/src/sim/flow.hpp). Use ccl_lab.simulate.")
      .def(nb::new_(&make_flow), nb::arg("columns"))
      .def("run", &run_flow, nb::arg("kind"), nb::arg("rank"), nb::arg("channel"), nb::arg("peer"), nb::arg("sig_channel"),
           nb::arg("value"), nb::arg("chunk"), nb::arg("n_chunks"), nb::arg("sources"), nb::arg("ready_ps"), nb::arg("tier_ps"),
           nb::arg("step"), nb::arg("times"),
           "Ops of one kind, one a row; returns the status.")
      .def("close", [](HeldFlow& held, const Column<const std::int32_t>& rank, const Column<const std::int32_t>& channel) {
        return static_cast<int>(held.flow.close({rank.data(), rank.shape(0)}, {channel.data(), channel.shape(0)}));
      }, nb::arg("rank"), nb::arg("channel"), "Nothing more is told of these channels; returns the status.")
      .def("finish", [](HeldFlow& held, const Column<std::int64_t>& finish_ps) {
        const ccl_lab::Unlocked unlocked;
        return static_cast<int>(held.flow.finish({finish_ps.data(), finish_ps.shape(0)}));
      }, nb::arg("finish_ps"), "All is told: raises finish_ps to the end of each rank; returns the status.")
      .def_prop_ro("ops", [](const HeldFlow& held) { return held.flow.ops(); });
}
