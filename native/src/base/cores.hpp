// How many cores the ranks of this machine really have.
//
// Is: the smaller of what its affinity allows and what its control group pays for (cpu.max of version 2, cfs_quota_us of
//     version 1, of the group and all above it). hardware_concurrency() knows nothing of the second: in a container with
//     a quota of two of 64 cores, ranks that spin as if they had 64 are stopped by the system for most of the time.
// Is not: a topology, and not who else runs there.
//
// Invariants
//  - At least 1. Asked again at each call: affinity and quota change.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ccl_lab {

// For all ranks of a machine together: a process on a single CPU is one of several that are pinned, each to its own, and then
// what the machine has is the better guess.
int usable_cores_of_ranks();
// Whether a rank that spins takes the core of what it waits for: another rank, or, on a machine of one core, the system, which
// moves the bytes of sockets and of NICs that are software.
constexpr bool outnumbered(int ranks, int cores) { return ranks > cores || cores == 1; }

// With whom a rank shares its cores: with nobody, with other ranks, or, alone on a machine of one core, with the system's own work
// (a soft NIC's, say), which is done while the rank gives the core up.
enum class Sharing : std::uint8_t { nobody, ranks, system };
constexpr Sharing sharing(int ranks, int cores) {
  return !outnumbered(ranks, cores) ? Sharing::nobody : ranks > cores ? Sharing::ranks : Sharing::system;
}

// For tests: the parts of it. 0: no limit.
// "max 100000" or "150000 100000": whole cores, rounded down, at least 1 where there is a limit.
int cores_of_cpu_max(std::string_view text);
// The limit of the group that `membership` (the text of /proc/self/cgroup) names, with control groups mounted at `mount`.
int cores_of_groups(std::string_view membership, const std::string& mount);

}  // namespace ccl_lab
