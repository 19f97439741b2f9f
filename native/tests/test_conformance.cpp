// What the contract of transport.hpp promises, checked on every transport.
//
// Is: one suite; each CONFORMANCE is run on loop (plain and with seeds that reorder), shm, tcp (one and three NICs, one and
//     four connections), virtual (seeds) and verbs: over mocked NICs here, over real ones in test_verbs_rig.
// Is not: about processes (test_processes) or about what only one transport has (test_tcp, test_segment).
#include "conformance.hpp"

using namespace ccl_lab;
using namespace ccl_lab::check;

namespace {

void on_every_transport(const char* name, int n, void (*run)(Mesh&)) {
  const auto one = [&](const char* transport, auto make) {
    const int before = failures();
    auto mesh = make();
    run(*mesh);
    if (failures() != before) std::fprintf(stderr, "  in %s over %s\n", name, transport);
  };
  one("loop", [&] { return std::make_unique<LoopMesh>(n, 0); });
  for (std::uint64_t seed = 1; seed <= 8; ++seed) one("loop, reordering", [&] { return std::make_unique<LoopMesh>(n, seed); });
  one("shm", [&] { return std::make_unique<ShmMesh>(n); });
  one("tcp", [&] { return std::make_unique<TcpMesh>(n); });
  one("tcp, 3 NICs", [&] { return std::make_unique<TcpMesh>(n, 3); });
  one("tcp, 3 NICs of 4 connections, numbers that wrap",
      [&] { return std::make_unique<TcpMesh>(n, 3, 4, TcpOptions{.first_number = ~std::uint32_t{0} - 5}); });
  for (std::uint64_t seed = 1; seed <= 4; ++seed)
    one("virtual, 3 NICs", [&] { return std::make_unique<VirtualMesh>(n, 3, seed); });
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    VerbsOptions options = small_verbs();
    one("verbs", [&] { return std::make_unique<MockVerbsMesh>(n, 1, options, seed); });
    options.first_number = (std::uint32_t{1} << 24) - 5;
    options.registration = seed % 2 == 0 ? Registration::off : Registration::background;
    one("verbs, 3 NICs, numbers that wrap", [&] { return std::make_unique<MockVerbsMesh>(n, 3, options, seed); });
    options.spread.mode = SpreadMode::spray;
    options.first_number = ~std::uint32_t{0} - 5;
    options.registration = Registration::eager;
    one("verbs, sprayed", [&] { return std::make_unique<MockVerbsMesh>(n, 3, options, seed); });
    options.spread.segment_bytes = 0;
    one("verbs, sprayed, split evenly", [&] { return std::make_unique<MockVerbsMesh>(n, 1, options, seed); });
  }
}

}  // namespace

#include "conformance_suite.hpp"
