// Affinity and control groups; see cores.hpp.
#include "base/cores.hpp"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

namespace ccl_lab {

namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  return text.str();
}

int smaller(int a, int b) {
  if (a == 0 || b == 0) return std::max(a, b);
  return std::min(a, b);
}

int limit_in(const std::string& folder, bool version_1) {
  if (!version_1) return cores_of_cpu_max(text_of(folder + "/cpu.max"));
  const std::string quota = text_of(folder + "/cpu.cfs_quota_us");
  return quota.empty() ? 0 : cores_of_cpu_max(quota + " " + text_of(folder + "/cpu.cfs_period_us"));
}

// The limits of a group and of all above it; inside a container the path may name a group that is not to be seen there.
int limit_of(const std::string& root, std::string path, bool version_1) {
  int least = limit_in(root, version_1);
  while (path.size() > 1) {
    least = smaller(least, limit_in(root + path, version_1));
    path.resize(path.rfind('/'));
  }
  return least;
}

int cores_by_affinity() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  // More than 1024 processors do not fit the set; then the system refuses, and there are surely enough.
  return ::sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : CPU_SETSIZE;
}

int within_groups(int cores) {
  return std::max(1, smaller(cores, cores_of_groups(text_of("/proc/self/cgroup"), "/sys/fs/cgroup")));
}

}  // namespace

int cores_of_cpu_max(std::string_view text) {
  std::istringstream words{std::string(text)};
  std::string quota;
  double period = 0;
  if (!(words >> quota >> period) || period <= 0) return 0;
  const double found = std::strtod(quota.c_str(), nullptr);  // "max" reads as 0, a quota of -1 as no limit
  return found > 0 ? std::max(1, static_cast<int>(std::min(found / period, 1e6))) : 0;
}

int cores_of_groups(std::string_view membership, const std::string& mount) {
  int least = 0;
  std::istringstream lines{std::string(membership)};
  for (std::string line; std::getline(lines, line);) {  // "0::/path", or "4:cpu,cpuacct:/path"
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos || second + 1 >= line.size() || line[second + 1] != '/') continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) {
      least = smaller(least, limit_of(mount, path, false));
    } else if (("," + controllers + ",").find(",cpu,") != std::string::npos) {
      least = smaller(least, limit_of(mount + "/" + controllers, path, true));
      least = smaller(least, limit_of(mount + "/cpu", path, true));
    }
  }
  return least;
}

int usable_cores_of_ranks() {
  const int affinity = cores_by_affinity();
  return within_groups(affinity > 1 ? affinity : static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace ccl_lab
