// The conformance suite over real verbs: every RDMA NIC of this machine, both ends of a queue pair on the same NIC.
//
// Is: run where there are RDMA NICs, as in the rig; elsewhere it says that there are none, and passes.
// Is not: about two machines, or about what happens when a cable is pulled (the rig's Python jobs).
#include "conformance.hpp"
#include "drivers/verbs/discover.hpp"

using namespace ccl_lab;
using namespace ccl_lab::check;

namespace {

std::vector<verbs::Nic> usable_nics() {
  std::vector<verbs::Nic> nics;
  for (const verbs::DeviceInfo& device : verbs::discover())
    for (const verbs::PortInfo& port : device.ports)
      if (port.state == verbs::PortState::active && verbs::best_gid(port) >= 0) nics.push_back({device.name, port.number, verbs::best_gid(port)});
  return nics;
}

void on_every_transport(const char* name, int n, void (*run)(Mesh&)) {
  static const std::vector<verbs::Nic> nics = usable_nics();
  if (nics.empty()) {
    std::printf("%s: skipped: no RDMA NIC with an active port and a GID\n", name);
    return;
  }
  const Result<verbs::Driver*> driver = verbs::open_library();
  CHECK_OK(driver.status());
  if (!driver.ok()) return;
  const auto one = [&](const char* what, std::size_t n_nics, const VerbsOptions& options) {
    const int before = failures();
    VerbsMesh mesh(n, *driver.value(), {nics.begin(), nics.begin() + static_cast<std::ptrdiff_t>(n_nics)}, options, false);
    run(mesh);
    if (failures() != before) std::fprintf(stderr, "  in %s over %s\n", name, what);
  };
  VerbsOptions options = small_verbs();
  one("a NIC", 1, options);
  options.first_number = (std::uint32_t{1} << 24) - 5;
  options.registration = Registration::background;
  one("NICs, numbers that wrap, registered beside", std::min<std::size_t>(nics.size(), 3), options);
  options.registration = Registration::off;
  options.spread.mode = SpreadMode::spray;
  one("NICs, sprayed, staged", std::min<std::size_t>(nics.size(), 3), options);
}

}  // namespace

#include "conformance_suite.hpp"
