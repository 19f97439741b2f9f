// The memory of this rank that peers may reach.
//
// Is: key -> [base, base + size), and the one place where an offset that came from elsewhere is checked; and what a put asks for.
// Is not: an owner of the memory.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/signals.hpp"
#include "base/status.hpp"
#include "transport/transport.hpp"

namespace ccl_lab {

struct Region {
  std::byte* base = nullptr;
  std::uint64_t size = 0;
};

// ok if [offset, offset + nbytes) lies in a region of `size` bytes; `what` names the access, `owner` the rank.
inline Status check_range(const char* what, int owner, Remote at, std::uint64_t nbytes, std::uint64_t size, int op_id) {
  if (at.offset <= size && nbytes <= size - at.offset) return {};
  return Status(Code::bounds,
                std::string(what) + " of " + std::to_string(nbytes) + " bytes at offset " + std::to_string(at.offset) +
                    " of region " + std::to_string(at.key) + " of rank " + std::to_string(owner) +
                    ", expected at most its " + std::to_string(size) + " bytes (op " + std::to_string(op_id) +
                    "); do all ranks run the same schedule with the same count?",
                owner, -1, op_id);
}

inline Status unknown_region(const char* what, int owner, RegionKey key, int op_id) {
  return Status(Code::bounds,
                std::string(what) + " names region " + std::to_string(key) + " of rank " + std::to_string(owner) +
                    ", which has no region of that key (op " + std::to_string(op_id) + "); register it first",
                owner, -1, op_id);
}

// The signal channel that a put raises at its peer, or -1.
[[nodiscard]] inline std::int32_t signal_of(const Put& put) { return put.confirmed ? put.notice.signal : put.signal; }

// ok if the peer has the signal channel that a put of `rank` raises.
inline Status check_signal(int rank, const Put& put, std::int32_t n_channels) {
  const std::int32_t channel = channel_of_signal(signal_of(put));
  if (channel < n_channels) return {};
  return Status(Code::bounds,
                "put from rank " + std::to_string(rank) + " raises signal channel " + std::to_string(channel) + " of rank " +
                    std::to_string(put.peer) + ", expected less than " + std::to_string(n_channels),
                put.peer, put.nic, put.tag.op_id);
}

class Regions {
 public:
  Status add(int rank, RegionKey key, std::byte* base, std::uint64_t size) {
    if (base == nullptr && size > 0)
      return Status(Code::registration, "region " + std::to_string(key) + " of rank " + std::to_string(rank) +
                                            " has no memory but " + std::to_string(size) + " bytes", rank);
    if (!regions_.emplace(key, Region{base, size}).second)
      return Status(Code::registration, "region " + std::to_string(key) + " of rank " + std::to_string(rank) +
                                            " is registered already; deregister it first", rank);
    return {};
  }

  Status remove(int rank, RegionKey key) {
    if (regions_.erase(key) == 0) return unknown_region("deregistration", rank, key, -1);
    return {};
  }

  // The address of [at, at + nbytes), or why it may not be touched.
  Result<std::byte*> resolve(const char* what, int rank, Remote at, std::uint64_t nbytes, int op_id) const {
    const auto found = regions_.find(at.key);
    if (found == regions_.end()) return unknown_region(what, rank, at.key, op_id);
    if (Status status = check_range(what, rank, at, nbytes, found->second.size, op_id); !status.ok()) return status;
    return found->second.base + at.offset;
  }

 private:
  std::map<RegionKey, Region> regions_;
};

}  // namespace ccl_lab
