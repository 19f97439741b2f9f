// How ranks of one machine find each other: a Unix socket that rank 0 makes.
//
// Is: one gather of cards (who, which process, where its segment is) to rank 0 and one scatter of all of them back.
// Is not: a way to move data: the sockets are closed when all have attached to all.
//
//   rank r                                        rank 0
//     connect, check its user                       temporary name, listen, link to `path` (exclusive)
//     Hello {rank, n_ranks, pid, fd, versions} ──►  check user, process, rank, sizes, versions
//                                       ◄──────────  Cards (pieces of kCardsPerMessage) once all are there, or Refusal
//     map the segments of all peers                 map the segments of all peers
//     Attached {code, text}            ──────────►
//                                       ◄──────────  Refusal {ok} once all are attached, or the first failure
//
// Invariants
//  - Messages keep their boundaries (SOCK_SEQPACKET); one of an unexpected size or magic ends its connection.
//  - Every wait has a deadline; what rank 0 knows (who is missing, who disagrees, who died) reaches all who have joined.
//  - `path` is removed by the rank 0 that made it, whatever happens, unless it was killed; then the next one replaces it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.hpp"

namespace ccl_lab::api {

// Where a rank's memory is: descriptor `fd` of process `pid` (RankSegment::open).
struct Card {
  std::int32_t pid = -1;
  std::int32_t fd = -1;
};

class Meeting {
 public:
  // Returns when all ranks have said where they are. `deadline_ns` as in now_ns().
  static Result<Meeting> meet(int rank, int n_ranks, const std::string& path, Card mine, std::int64_t deadline_ns);

  Meeting(Meeting&& other) noexcept;
  Meeting& operator=(Meeting&& other) noexcept;
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;
  ~Meeting();

  const std::vector<Card>& cards() const { return cards_; }
  // Says how attaching to the peers went here; returns ok once it went well everywhere, or the first failure.
  Status finish(const Status& attached, std::int64_t deadline_ns);

 private:
  Meeting() = default;
  void close();

  int rank_ = 0;
  std::string path_;
  std::vector<int> sockets_;  // rank 0: by rank, -1 for itself; others: the one to rank 0
  std::vector<Card> cards_;
};

}  // namespace ccl_lab::api
