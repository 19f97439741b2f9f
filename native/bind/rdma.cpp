// RDMA from Python: which device carries an address, and an engine that is told to use it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
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

// One look at all devices, however many addresses: a port has a file for each entry of its table of GIDs, 1,024 with soft RoCE.
std::vector<Nic> nics_of(const std::vector<std::string>& addresses) {
  const std::vector<ccl_lab::verbs::DeviceInfo> devices = ccl_lab::verbs::discover();
  std::vector<Nic> nics;
  for (const std::string& address : addresses) {
    const ccl_lab::verbs::Nic found = ccl_lab::take(ccl_lab::verbs::nic_of(devices, address));
    nics.emplace_back(found.device, found.port, found.gid_index);
  }
  return nics;
}

Registration registration_of(const std::string& name) {
  if (name == "off") return Registration::off;
  if (name == "eager") return Registration::eager;
  if (name == "async") return Registration::background;
  if (name != "lazy") ccl_lab::check(Status(Code::config, "registration is '" + name + "', expected off, eager, lazy or async"));
  return Registration::lazy;
}

ccl_lab::Reach reach_of(const std::string& name) {
  constexpr const char* kNames[] = {"same_rack", "same_zone", "cross_zone", "cross_building", "all_to_all"};
  for (std::uint8_t i = 0; i < 5; ++i)
    if (name == kNames[i]) return static_cast<ccl_lab::Reach>(i);
  ccl_lab::check(Status(Code::config, "reach is '" + name + "', expected same_rack, same_zone, cross_zone, cross_building or all_to_all"));
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

using Row = std::tuple<int, std::uint64_t, std::uint32_t, std::string>;  // queue pairs, segment, in flight, mode

ccl_lab::Spread spread_of_row(const Row& row) {
  const auto& [qps, segment_bytes, inflight, mode] = row;
  if (qps < 1 || qps > ccl_lab::kMostQueuePairs || inflight < 2 || inflight > 1024 || (mode != "dqplb" && mode != "spray"))
    ccl_lab::check(Status(Code::config, "use_rdma: a setting is out of range"));
  return {segment_bytes, qps, inflight, mode == "spray" ? ccl_lab::SpreadMode::spray : ccl_lab::SpreadMode::dqplb};
}

void use_rdma(Engine& engine, const std::vector<Nic>& nics, const std::vector<Row>& classes, const std::vector<std::uint8_t>& class_of,
              const Row& all_to_all, const std::string& registration, int timeout, int retries) {
  if (timeout < 1 || timeout > 31 || retries < 0 || retries > 7 || class_of.empty() ||
      std::any_of(class_of.begin(), class_of.end(), [&](std::uint8_t at) { return at >= classes.size(); }))
    ccl_lab::check(Status(Code::config, "use_rdma: a setting is out of range"));
  ccl_lab::VerbsOptions options;
  for (const auto& [device, port, gid_index] : nics) options.nics.push_back({device, static_cast<std::uint8_t>(port), gid_index});
  for (const Row& row : classes) options.classes.push_back(spread_of_row(row));
  options.class_of = class_of;
  options.all_to_all = spread_of_row(all_to_all);
  options.registration = registration_of(registration);
  options.timeout = static_cast<std::uint8_t>(timeout);
  options.retries = static_cast<std::uint8_t>(retries);
  ccl_lab::released([&] { return engine.set_rdma(std::move(options)); });
}

}  // namespace

void bind_rdma(nb::module_& m, nb::class_<Engine>& engine) {
  m.def("rdma_nics_of", &nics_of, "addresses"_a,
        "(device, port, index of the GID) of the RDMA NIC that has each address; UnsupportedError, with what there is, where none has.");
  m.def("rdma_library", [] { ccl_lab::check(ccl_lab::verbs::open_library().status()); },
        "Loads libibverbs; UnsupportedError naming what is missing, of this machine or of this build.");
  m.def("rdma_takes_dma_bufs",
        [](const std::string& device) {
          ccl_lab::released([&]() -> Status {
            const auto driver = ccl_lab::verbs::open_library();
            if (!driver.ok()) return driver.status();
            const auto opened = driver.value()->open(device);
            return opened.ok() ? opened.value()->takes_dma_bufs() : opened.status();
          });
        },
        "device"_a, "Whether memory of GPUs can be registered with an RDMA device; UnsupportedError with what is missing where it cannot.");
  m.def("rdma_spread", &spread_of, "reach"_a, "How puts are spread over queue pairs where this lies between two nodes.");
  engine.def("use_rdma", &use_rdma, "nics"_a, nb::kw_only(), "classes"_a, "class_of"_a, "all_to_all"_a, "registration"_a, "timeout"_a, "retries"_a,
             "NICs of this node are driven by verbs from the first connection on.");
}
