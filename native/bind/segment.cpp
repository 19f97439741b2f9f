// Binds the shared memory of a rank, as the notebook process sees it.
#include "base/segment.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <sched.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "arrays.hpp"
#include "fault/points.hpp"
#include "status.hpp"
#include "trace/ring.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using ccl_lab::RankSegment;
using Shared = std::shared_ptr<RankSegment>;

ccl_lab::NicShaper& shaper(const Shared& segment, int nic) {
  if (nic < 0 || nic >= segment->n_nics())
    ccl_lab::check(ccl_lab::Status(ccl_lab::Code::usage,
                                   "NIC " + std::to_string(nic) + " is outside 0.." + std::to_string(segment->n_nics() - 1),
                                   segment->rank(), nic));
  return segment->shapers()[static_cast<std::size_t>(nic)];
}

void set_nic(const Shared& segment, int nic, std::uint64_t bytes_per_s, bool up) {
  ccl_lab::NicShaper& wanted = shaper(segment, nic);
  wanted.bytes_per_s.store(bytes_per_s);
  wanted.up.store(up ? 1 : 0);
}

// Which of `names` is `kind`.
template <std::size_t n>
std::size_t kind_of(const std::array<const char*, n>& names, const std::string& kind, const char* what = "fault") {
  std::string known;
  for (std::size_t i = 0; i < n; ++i) {
    if (kind == names[i]) return i;
    known += (i == 0 ? "" : i + 1 == n ? " or " : ", ") + std::string(names[i]);
  }
  ccl_lab::check(ccl_lab::Status(ccl_lab::Code::usage, std::string("no ") + what + " is called '" + kind + "': expected " + known));
  return 0;
}

void check_value(const std::string& kind, std::int64_t value, std::int64_t most) {
  if (value >= 0 && value <= most) return;
  ccl_lab::check(ccl_lab::Status(ccl_lab::Code::usage, "fault " + kind + " = " + std::to_string(value) + ": expected 0 (none) to " +
                                                           std::to_string(most)));
}

constexpr std::int64_t kLongestNs = 3'600'000'000'000;

void set_fault(const Shared& segment, int nic, const std::string& kind, std::int64_t value) {
  ccl_lab::NicShaper& shaped = shaper(segment, nic);
  const auto fault = static_cast<ccl_lab::NicFault>(kind_of(ccl_lab::kNicFaultNames, kind));
  const bool time = fault == ccl_lab::NicFault::delay_ns || fault == ccl_lab::NicFault::jitter_ns;
  const bool count = fault == ccl_lab::NicFault::damage || fault == ccl_lab::NicFault::sever;
  check_value(kind, value, time ? kLongestNs : count ? INT32_MAX : 1);
  if (fault == ccl_lab::NicFault::down) shaped.up.store(value == 0 ? 1 : 0);
  else segment->faults()[static_cast<std::size_t>(nic)].set(fault, value);
  segment->doorbell().ring();
}

nb::dict faults(const Shared& segment) {
  nb::dict result;
  for (int nic = 0; nic < segment->n_nics(); ++nic) {
    const ccl_lab::NicFaults& of = segment->faults()[static_cast<std::size_t>(nic)];
    nb::dict values, hits, both;
    for (std::size_t i = 0; i < ccl_lab::kNicFaults; ++i) {
      values[ccl_lab::kNicFaultNames[i]] = of.values[i].load();
      hits[ccl_lab::kNicFaultNames[i]] = of.hits[i].load();
    }
    values["down"] = static_cast<int>(shaper(segment, nic).up.load() == 0);
    both["values"] = values;
    both["hits"] = hits;
    result[nb::int_(nic)] = both;
  }
  return result;
}

void set_message_fault(const Shared& segment, const std::string& kind, std::int64_t value) {
  const std::size_t at = kind_of(ccl_lab::kMessageFaultNames, kind);
  check_value(kind, value, at == static_cast<std::size_t>(ccl_lab::MessageFault::late_ns) ? kLongestNs : 1'000'000);
  segment->control().message_faults.values[at].store(static_cast<std::uint64_t>(value));
}

nb::dict message_faults(const Shared& segment) {
  const ccl_lab::MessageFaults& of = segment->control().message_faults;
  nb::dict values, hits, both;
  for (std::size_t i = 0; i < ccl_lab::kMessageFaults; ++i) {
    values[ccl_lab::kMessageFaultNames[i]] = of.values[i].load();
    hits[ccl_lab::kMessageFaultNames[i]] = of.hits[i].load();
  }
  both["values"] = values;
  both["hits"] = hits;
  return both;
}

ccl_lab::Trigger& trigger(const Shared& segment, int number) {
  if (number < 0 || static_cast<std::size_t>(number) >= ccl_lab::kTriggers)
    ccl_lab::check(ccl_lab::Status(ccl_lab::Code::usage, "trigger " + std::to_string(number) + ": expected 0 to " +
                                                             std::to_string(ccl_lab::kTriggers - 1)));
  return segment->control().triggers.each[static_cast<std::size_t>(number)];
}

int arm_trigger(const Shared& segment, const std::string& point, std::int64_t passes, int rank, std::pair<int, int> path,
                int nic, const nb::dict& asked, int signal) {
  ccl_lab::TriggerOrder order;
  order.point = static_cast<std::int32_t>(kind_of(ccl_lab::kProtocolPointNames, point, "point of the protocol"));
  if (!ccl_lab::is_live_point(static_cast<ccl_lab::ProtocolPoint>(order.point)))
    ccl_lab::check(ccl_lab::Status(ccl_lab::Code::usage, "the rails do not pass " + point + ": it is of a run, not of a path"));
  check_value("passes", passes, INT32_MAX);
  order.rank = rank;
  if (ccl_lab::is_data_point(static_cast<ccl_lab::ProtocolPoint>(order.point))) std::tie(order.node, order.path_nic) = path;
  if (nic >= 0) shaper(segment, nic);
  order.nic = nic;
  order.signal = signal;
  for (const auto& [kind, value] : asked) {
    const std::size_t at = kind_of(ccl_lab::kNicFaultNames, nb::cast<std::string>(kind));
    order.asked[at] = nb::cast<std::int64_t>(value);
    check_value(nb::cast<std::string>(kind), order.asked[at], kLongestNs);
  }
  const int number = segment->control().triggers.arm(order, std::max<std::int64_t>(passes, 1));
  if (number < 0)
    ccl_lab::check(ccl_lab::Status(ccl_lab::Code::usage, "all " + std::to_string(ccl_lab::kTriggers) + " triggers of this node wait "
                                                         "for their point already; undo one"));
  return number;
}

// None while it waits, or what came of it.
nb::object fired_trigger(const Shared& segment, int number) {
  const ccl_lab::Trigger& found = trigger(segment, number);
  if (found.state.load() != ccl_lab::TriggerState::fired) return nb::none();
  nb::dict result, hits;
  nb::list did;
  for (std::size_t i = 0; found.order.nic >= 0 && i < ccl_lab::kNicFaults; ++i) {
    hits[ccl_lab::kNicFaultNames[i]] = found.hits[i];
    if ((found.did >> i & 1) != 0) did.append(ccl_lab::kNicFaultNames[i]);
  }
  result["rank"] = found.fired_by;
  result["time_ns"] = found.fired_ns;
  result["did"] = did;
  result["hits"] = hits;
  return result;
}

// A rank is about to fire it for some ns at most, unless it was stopped or killed there: then it is free all the same.
nb::object release_trigger(const Shared& segment, int number) {
  trigger(segment, number);
  ccl_lab::Triggers& triggers = segment->control().triggers;
  const auto at = static_cast<std::size_t>(number);
  for (int i = 0; i < 1000; ++i) {
    if (triggers.call_off(at)) return nb::none();
    if (triggers.each[at].state.load() == ccl_lab::TriggerState::fired) break;
    ::sched_yield();
  }
  nb::object found = fired_trigger(segment, number);
  triggers.release(at);
  return found;
}

nb::ndarray<nb::numpy, std::uint64_t> nic_counters(const Shared& segment) {
  const auto nics = segment->shapers();
  auto* values = new std::uint64_t[nics.size() * 2 + 1];
  for (std::size_t i = 0; i < nics.size(); ++i) {
    values[2 * i] = nics[i].tx_bytes.load(std::memory_order_relaxed);
    values[2 * i + 1] = nics[i].rx_bytes.load(std::memory_order_relaxed);
  }
  nb::capsule owner(values, [](void* p) noexcept { delete[] static_cast<std::uint64_t*>(p); });
  return nb::ndarray<nb::numpy, std::uint64_t>(values, {nics.size(), 2}, owner);
}

nb::dict status(const Shared& segment) {
  static const char* const names[] = {"idle", "running", "stopped", "closed"};
  const ccl_lab::Control& control = segment->control();
  const auto state = control.state.load(std::memory_order_relaxed);
  const ccl_lab::Status aborted = segment->abort_status();
  nb::dict result;
  result["coll_id"] = control.coll_id.load(std::memory_order_relaxed);
  result["state"] = names[state < 4 ? state : 2];
  result["heartbeat_ns"] = control.heartbeat.load(std::memory_order_relaxed);
  result["aborted"] = !aborted.ok();
  result["abort_reason"] = aborted.message;
  result["culprit"] = aborted.rank;
  return result;
}

nb::object view(const Shared& segment, std::uint64_t offset, std::uint64_t nbytes) {
  if (offset > segment->arena_bytes() || nbytes > segment->arena_bytes() - offset)
    ccl_lab::check(ccl_lab::Status(ccl_lab::Code::bounds,
                                   "arena bytes [" + std::to_string(offset) + ", +" + std::to_string(nbytes) +
                                       ") of rank " + std::to_string(segment->rank()) + ": the arena has " +
                                       std::to_string(segment->arena_bytes()),
                                   segment->rank()));
  return ccl_lab::byte_view(segment->arena() + offset, nbytes, std::make_unique<Shared>(segment));
}

}  // namespace

void bind_segment(nb::module_& m) {
  nb::class_<RankSegment>(m, "Segment", "The shared memory of a rank: its spans, counters, NICs and arrays. Lives on when the rank ends.")
      .def_static(
          "open", [](int pid, int fd) { return std::make_shared<RankSegment>(ccl_lab::take(RankSegment::open(pid, fd))); },
          "pid"_a, "fd"_a, "Maps the segment behind descriptor `fd` of process `pid`. Raises ConnectError.")
      .def_prop_ro("rank", [](const RankSegment& s) { return s.rank(); })
      .def_prop_ro("n_ranks", [](const RankSegment& s) { return s.n_ranks(); })
      .def_prop_ro("pid", [](const RankSegment& s) { return s.pid(); })
      .def("drain_spans", [](const Shared& s, std::size_t n) { return ccl_lab::drain(*s, n); }, "max_spans"_a = 65536,
           "Takes up to `max_spans` spans out of the ring: a structured array of SPAN_DTYPE. One reader at a time.")
      .def("dropped_spans", [](const Shared& s) { return ccl_lab::SpanReader(*s).dropped(); },
           "How many spans found the ring full and were lost.")
      .def("set_tracing", [](const Shared& s, bool on) { s->control().trace_enabled.store(on ? 1 : 0); }, "on"_a)
      .def("abort",
           [](const Shared& s, int code, const std::string& reason, int culprit, int nic) {
             return s->abort(ccl_lab::code_from(code), reason, culprit, nic);
           },
           "code"_a, "reason"_a, "culprit"_a, "nic"_a = -1, "Tells the rank to stop; the first reason wins. True if it was the first.")
      .def("set_nic", &set_nic, "nic"_a, "bytes_per_s"_a, "up"_a,
           "Rate (0: unshaped) and state of a NIC of the node this rank leads.")
      .def("set_fault", &set_fault, "nic"_a, "kind"_a, "value"_a,
           "Asks something of a NIC of the node this rank leads: silent_tx, silent_rx, unplugged, down (0 or 1), damage (frames), "
           "sever (connections), delay_ns, jitter_ns; 0 undoes it. Raises UsageError.")
      .def("faults", &faults, "Of each NIC of the node this rank leads: {nic: {'values': {kind: what is asked or left}, "
                              "'hits': {kind: how often it really did something}}}.")
      .def("set_message_fault", &set_message_fault, "kind"_a, "value"_a,
           "Asks something of the messages this rank sends out of band: loss_ppm, double_ppm (of a million), late_ns (at most); "
           "0 undoes it. Raises UsageError.")
      .def("message_faults", &message_faults, "{'values': {kind: what is asked}, 'hits': {kind: messages}}.")
      .def("arm_trigger", &arm_trigger, "point"_a, "passes"_a = 1, "rank"_a = -1, "path"_a = std::pair<int, int>(-1, -1), "nic"_a = -1,
           "asked"_a = nb::dict(), "signal"_a = 0,
           "Of the node this rank leads: the `passes`-th time that rank (-1: any of the node) passes `point` of the recovery "
           "protocol, faults `asked` {kind: value} are set of NIC `nic`, and the rank sends itself `signal`. path: (node, NIC) "
           "which the path has at one end, where the point is of data; (-1, -1): any. Returns its number. Raises UsageError.")
      .def("fired_trigger", &fired_trigger, "number"_a,
           "None while it waits; then rank (which fired it), time_ns, did (kinds that were set), hits of the NIC just before.")
      .def("release_trigger", &release_trigger, "number"_a, "Calls it off, and returns None; or, where it fired, what fired_trigger says, and frees it.")
      .def("nic_counters", &nic_counters, "u64[n_nics, 2]: bytes sent and received by each NIC of the node this rank leads.")
      .def("status", &status, "coll_id, state, heartbeat_ns, aborted, abort_reason, culprit.")
      .def("view", &view, "offset"_a, "nbytes"_a, "u8 view of arena memory; keeps the segment mapped.");
}
