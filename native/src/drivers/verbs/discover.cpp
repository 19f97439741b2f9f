// Files of the system about RDMA devices; see discover.hpp.
#include "drivers/verbs/discover.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace ccl_lab::verbs {

namespace {

namespace fs = std::filesystem;

std::string line_of(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Names of a directory, those that are numbers by their number.
std::vector<std::string> names_of(const fs::path& path) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error)) names.push_back(at->path().filename());
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    return a.size() != b.size() ? a.size() < b.size() : a < b;
  });
  return names;
}

bool parse(const std::string& text, Gid& gid) {
  return ::inet_pton(AF_INET6, text.c_str(), gid.data()) == 1 && std::any_of(gid.begin(), gid.end(), [](auto byte) { return byte != 0; });
}

bool is_mapped(const Gid& gid) {
  return std::all_of(gid.begin(), gid.begin() + 10, [](auto byte) { return byte == 0; }) && gid[10] == 0xff && gid[11] == 0xff;
}

PortInfo port_at(const fs::path& path, int number) {
  PortInfo port;
  port.number = static_cast<std::uint8_t>(number);
  port.state = static_cast<PortState>(std::clamp(std::atoi(line_of(path / "state").c_str()), 0, 5));
  port.link_layer = line_of(path / "link_layer");
  port.gbits_per_s = std::atof(line_of(path / "rate").c_str());
  for (const std::string& index : names_of(path / "gids")) {
    GidEntry entry;
    entry.index = std::atoi(index.c_str());
    if (!parse(line_of(path / "gids" / index), entry.gid)) continue;
    entry.type = line_of(path / "gid_attrs" / "types" / index);
    entry.netdev = line_of(path / "gid_attrs" / "ndevs" / index);
    entry.mapped = is_mapped(entry.gid);
    if (port.netdev.empty()) port.netdev = entry.netdev;
    port.gids.push_back(std::move(entry));
  }
  return port;
}

int rank_of(const GidEntry& entry) { return (entry.type.find("v2") != std::string::npos ? 2 : 0) + (entry.mapped ? 1 : 0); }

}  // namespace

std::vector<DeviceInfo> discover(const std::string& root) {
  std::vector<DeviceInfo> devices;
  for (const std::string& name : names_of(root)) {
    DeviceInfo device;
    device.name = name;
    const fs::path path = fs::path(root) / name;
    const std::string numa = line_of(path / "device" / "numa_node");
    device.numa_node = numa.empty() ? -1 : std::atoi(numa.c_str());
    std::error_code error;
    const fs::path bus = fs::canonical(path / "device", error);
    if (!error) device.pci = bus.filename();
    for (const std::string& number : names_of(path / "ports")) device.ports.push_back(port_at(path / "ports" / number, std::atoi(number.c_str())));
    devices.push_back(std::move(device));
  }
  return devices;
}

int best_gid(const PortInfo& port) {
  const auto best = std::max_element(port.gids.begin(), port.gids.end(),
                                     [](const GidEntry& a, const GidEntry& b) { return rank_of(a) < rank_of(b); });
  return best == port.gids.end() ? -1 : best->index;
}

Result<Nic> nic_of(const std::vector<DeviceInfo>& devices, const std::string& address) {
  Gid wanted{};
  in_addr v4{};
  if (::inet_pton(AF_INET, address.c_str(), &v4) == 1) {
    wanted[10] = wanted[11] = 0xff;
    std::memcpy(wanted.data() + 12, &v4, sizeof v4);
  } else if (::inet_pton(AF_INET6, address.c_str(), wanted.data()) != 1) {
    return Status(Code::usage, "'" + address + "' is not an address");
  }
  Nic best;
  int best_rank = -1;
  std::string seen;
  for (const DeviceInfo& device : devices)
    for (const PortInfo& port : device.ports) {
      seen += (seen.empty() ? "" : ", ") + device.name + " (" + (port.netdev.empty() ? "no interface" : port.netdev) + ")";
      for (const GidEntry& entry : port.gids) {
        if (entry.gid != wanted || rank_of(entry) <= best_rank) continue;
        best = {device.name, port.number, entry.index};
        best_rank = rank_of(entry);
      }
    }
  if (best_rank >= 0) return best;
  return Status(Code::unsupported, "no RDMA device has address " + address + "; there " +
                                       (seen.empty() ? "is none at all: `rdma link` lists them" : "are: " + seen));
}

}  // namespace ccl_lab::verbs
