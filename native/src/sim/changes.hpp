// Links whose rate changes at given times: a NIC that slows down, flaps or is lost in the middle of a run.
//
// Is: when a link that begins to serve bytes at some time is done with them. Is not: an order; that never depends on a rate (order.hpp).
// Invariant: with lower rates nothing is done earlier, and what begins later is not done before what begins earlier.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "exact.hpp"

namespace ccl_lab::sim {

class Changes {
 public:
  // From a column of links and what happens to them, by link and then by time; from_ps > 0. `links`: one more than the last link.
  Changes(const ChangeColumns& columns, std::size_t links) : columns_(columns) {
    if (columns.link.empty()) return;
    first_.assign(links + 1, 0);
    for (const std::int32_t link : columns.link) ++first_[static_cast<std::size_t>(link) + 1];
    for (std::size_t i = 1; i < first_.size(); ++i) first_[i] += first_[i - 1];
  }

  // Columns that fit together: links in range and in order, times rising, no rate below 0.
  [[nodiscard]] static bool good(const ChangeColumns& c, std::size_t links) {
    if (c.from_ps.size() != c.link.size() || c.bytes_per_s.size() != c.link.size()) return false;
    for (std::size_t i = 0; i < c.link.size(); ++i) {
      if (c.link[i] < 0 || static_cast<std::size_t>(c.link[i]) >= links || c.from_ps[i] <= 0 || c.bytes_per_s[i] < 0) return false;
      if (i > 0 && (c.link[i] < c.link[i - 1] || (c.link[i] == c.link[i - 1] && c.from_ps[i] <= c.from_ps[i - 1]))) return false;
    }
    return true;
  }

  [[nodiscard]] bool on(std::int32_t link) const {
    return !first_.empty() && first_[static_cast<std::size_t>(link)] < first_[static_cast<std::size_t>(link) + 1];
  }

  // A time in which the rate does not change: [begin_ps, end_ps).
  struct Stretch {
    std::int64_t begin_ps = 0, end_ps = kNever, bytes_per_s = 0;
  };
  [[nodiscard]] Stretch stretch(std::int32_t link, std::int64_t at_ps, std::int64_t bytes_per_s) const {
    Stretch found{0, kNever, bytes_per_s};
    for (std::size_t i = first_[static_cast<std::size_t>(link)]; i < first_[static_cast<std::size_t>(link) + 1]; ++i) {
      if (columns_.from_ps[i] > at_ps) {
        found.end_ps = columns_.from_ps[i];
        break;
      }
      found = {columns_.from_ps[i], kNever, columns_.bytes_per_s[i]};
    }
    return found;
  }

  // When bytes that a link begins to serve at `start_ps` are through, rounded up; bytes_per_s: its rate before the first change.
  [[nodiscard]] std::int64_t through_ps(std::int32_t link, std::int64_t start_ps, std::int64_t nbytes, std::int64_t bytes_per_s) const {
    __extension__ typedef unsigned __int128 Wide;
    Wide left = static_cast<Wide>(nbytes) * 1'000'000'000'000u;
    for (std::int64_t now = start_ps; left > 0;) {
      const Stretch at = stretch(link, now, bytes_per_s);
      const auto rate = static_cast<Wide>(at.bytes_per_s);
      const Wide most = static_cast<Wide>(at.end_ps - now) * rate;
      if (at.bytes_per_s >= kInstant) return now;
      if (left <= most) return now + static_cast<std::int64_t>((left + rate - 1) / rate);
      if (at.end_ps == kNever) return kNever;
      left -= most;
      now = at.end_ps;
    }
    return start_ps;
  }

  static constexpr std::int64_t kNever = std::int64_t{1} << 62;

 private:
  ChangeColumns columns_;
  std::vector<std::size_t> first_;  // per link; empty where nothing changes
};

}  // namespace ccl_lab::sim
