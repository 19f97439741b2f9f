// Binds the shared memory of a rank, as the notebook process sees it.
#include "base/segment.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <memory>

#include "arrays.hpp"
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
           [](const Shared& s, int code, const std::string& reason, int culprit) {
             return s->abort(ccl_lab::code_from(code), reason, culprit);
           },
           "code"_a, "reason"_a, "culprit"_a, "Tells the rank to stop; the first reason wins. True if it was the first.")
      .def("set_nic", &set_nic, "nic"_a, "bytes_per_s"_a, "up"_a, "Rate (0: unshaped) and state of a NIC of the node this rank leads.")
      .def("nic_counters", &nic_counters, "u64[n_nics, 2]: bytes sent and received by each NIC of the node this rank leads.")
      .def("status", &status, "coll_id, state, heartbeat_ns, aborted, abort_reason, culprit.")
      .def("view", &view, "offset"_a, "nbytes"_a, "u8 view of arena memory; keeps the segment mapped.");
}
