// What is thought to have failed when a path did.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ccl_lab {

enum class Verdict : std::uint8_t { none = 0, own_nic = 1, own_cable = 2, peer_nic = 3, path = 4, undecided = 5, transient = 6 };

constexpr const char* verdict_name(Verdict verdict) {
  constexpr const char* kNames[] = {"none", "own_nic", "own_cable", "peer_nic", "path", "undecided", "transient"};
  return kNames[static_cast<std::size_t>(verdict)];
}

}  // namespace ccl_lab
