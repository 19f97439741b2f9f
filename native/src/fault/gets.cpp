// Gets over paths: their bytes land here, so this end alone can ask for them again; see rails.hpp.
#include <algorithm>
#include <string>

#include "fault/rails.hpp"

namespace ccl_lab {

Status Rails::get(const Get& get) {
  if (!reaches(get.peer))
    return Status(Code::connect, "rank " + std::to_string(rank_) + " has no path to rank " + std::to_string(get.peer) +
                                     " for op " + std::to_string(get.tag.op_id) + "; connect it first",
                  get.peer, get.nic, get.tag.op_id);
  auto free = std::find_if(readings_.begin(), readings_.end(), [](const Reading& each) { return !each.live; });
  if (free == readings_.end()) free = readings_.insert(readings_.end(), Reading());
  *free = Reading();
  free->live = true;
  free->get = get;
  ++n_readings_;
  post_reading(*free);
  return {};
}

// Over the path it names, else over the next that is up.
bool Rails::post_reading(Reading& reading) {
  const Path home{reading.get.peer, reading.get.nic, reading.get.peer_nic};
  PathRecord* by = find(home);
  if (by == nullptr || by->state != PathState::up) {
    by = nullptr;
    for (const auto& each : peer_of(home).paths)
      if (each.at->state == PathState::up && by == nullptr) by = each.at;
  }
  reading.posted = by != nullptr;
  if (by == nullptr) return false;
  reading.serial = ++next_serial_;
  reading.path = by->index;
  reading.since_ns = now_ns_;
  watch_ns_ = std::min(watch_ns_, now_ns_ + options_.silence_ns);
  Get get = reading.get;
  get.nic = by->name.nic;
  get.peer_nic = by->name.peer_nic;
  get.cookie = kReadingBit | static_cast<std::uint64_t>(&reading - readings_.data()) << 32 | reading.serial;
  if (Status status = transport_.get(get); !status.ok()) arrived_.push_back({get.cookie, std::move(status)});
  return true;
}

}  // namespace ccl_lab
