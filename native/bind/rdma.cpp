// RDMA from Python: which device carries an address, and an engine that is told to use it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/engine.hpp"
#include "drivers/verbs/discover.hpp"
#include "status.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using ccl_lab::Code;
using ccl_lab::Engine;
using ccl_lab::Registration;
using ccl_lab::Status;

namespace {

using Nic = std::tuple<std::string, int, int>;  // device, port, index of its GID

Nic nic_of(const std::string& address) {
  const ccl_lab::verbs::Nic found = ccl_lab::take(ccl_lab::verbs::nic_of(ccl_lab::verbs::discover(), address));
  return {found.device, found.port, found.gid_index};
}

Registration registration_of(const std::string& name) {
  if (name == "off") return Registration::off;
  if (name == "eager") return Registration::eager;
  if (name == "async") return Registration::background;
  if (name != "lazy") ccl_lab::check(Status(Code::config, "registration is '" + name + "', expected off, eager, lazy or async"));
  return Registration::lazy;
}

ccl_lab::Reach reach_of(const std::string& name) {
  if (name == "cross_zone") return ccl_lab::Reach::cross_zone;
  if (name == "all_to_all") return ccl_lab::Reach::all_to_all;
  if (name != "same_zone") ccl_lab::check(Status(Code::config, "reach is '" + name + "', expected same_zone, cross_zone or all_to_all"));
  return ccl_lab::Reach::same_zone;
}

nb::dict spread_of(const std::string& reach) {
  const ccl_lab::Spread spread = ccl_lab::Spread::of(reach_of(reach));
  nb::dict dict;
  dict["qps"] = spread.queue_pairs;
  dict["segment_bytes"] = spread.segment_bytes;
  dict["inflight"] = spread.inflight_max;
  dict["mode"] = spread.mode == ccl_lab::SpreadMode::spray ? "spray" : "dqplb";
  return dict;
}

void use_rdma(Engine& engine, const std::vector<Nic>& nics, int qps, std::uint64_t segment_bytes, std::uint32_t inflight,
              const std::string& mode, const std::string& registration, int timeout, int retries) {
  if (qps < 1 || qps > ccl_lab::kMostQueuePairs || inflight < 2 || inflight > 1024 || (mode != "dqplb" && mode != "spray") ||
      timeout < 1 || timeout > 31 || retries < 0 || retries > 7)
    ccl_lab::check(Status(Code::config, "use_rdma: a setting is out of range"));
  ccl_lab::VerbsOptions options;
  for (const auto& [device, port, gid_index] : nics) options.nics.push_back({device, static_cast<std::uint8_t>(port), gid_index});
  options.spread = {segment_bytes, qps, inflight, mode == "spray" ? ccl_lab::SpreadMode::spray : ccl_lab::SpreadMode::dqplb};
  options.registration = registration_of(registration);
  options.timeout = static_cast<std::uint8_t>(timeout);
  options.retries = static_cast<std::uint8_t>(retries);
  ccl_lab::released([&] { return engine.set_rdma(std::move(options)); });
}

}  // namespace

void bind_rdma(nb::module_& m, nb::class_<Engine>& engine) {
  m.def("rdma_nic_of", &nic_of, "address"_a,
        "(device, port, index of the GID) of the RDMA NIC that has this address; UnsupportedError, with what there is, where none has.");
  m.def("rdma_library", [] { ccl_lab::check(ccl_lab::verbs::open_library().status()); },
        "Loads libibverbs; UnsupportedError naming what is missing, of this machine or of this build.");
  m.def("rdma_spread", &spread_of, "reach"_a, "How puts are spread over queue pairs where this lies between two nodes.");
  engine.def("use_rdma", &use_rdma, "nics"_a, nb::kw_only(), "qps"_a, "segment_bytes"_a, "inflight"_a, "mode"_a, "registration"_a,
             "timeout"_a, "retries"_a, "NICs of this node are driven by verbs from the first connection on.");
}
