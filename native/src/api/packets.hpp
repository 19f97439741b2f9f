// The messages of a rendezvous, and the sockets that carry them; see rendezvous.hpp.
//
// Is: fixed layouts between processes of one machine and one user, and calls that end by a deadline.
// Is not: fit for another host: integers have the machine's own order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "api/rendezvous.hpp"
#include "base/status.hpp"

namespace ccl_lab::api {

inline constexpr std::uint64_t kMagic = 0x3162616c6c6363ULL;
inline constexpr std::uint32_t kRendezvousVersion = 1;
inline constexpr std::size_t kTextBytes = 1024;
inline constexpr std::size_t kCardsPerMessage = 2048;

struct Hello {
  std::uint64_t magic = kMagic;
  std::uint32_t version = kRendezvousVersion;
  std::uint32_t segment_version = 0;
  std::int32_t rank = 0;
  std::int32_t n_ranks = 0;
  Card card;
};

// What became of it: both ways. Also the answer that all is well (code ok).
struct Verdict {
  std::uint64_t magic = kMagic;
  std::int32_t rank = -1;
  std::uint32_t code = 0;
  char text[kTextBytes] = {};
};
static_assert(sizeof(Verdict) != sizeof(Card) * 1 && sizeof(Verdict) > 1024);

Verdict verdict_of(const Status& status);
Status status_of(const Verdict& verdict);

// The user and process at the other end of a connected socket.
struct Identity {
  std::uint32_t uid = 0;
  std::int32_t pid = 0;
};
Result<Identity> identity_of(int socket);

// poll() on one descriptor until `deadline_ns`; false: the deadline passed.
bool wait_for(int fd, short events, std::int64_t deadline_ns);
// One whole message; code timeout when the deadline passed, peer_lost when the other end is gone.
Status send_packet(int socket, const void* data, std::size_t nbytes, std::int64_t deadline_ns);
// Returns the size of the message, at most `nbytes`; 0: the other end is gone.
Result<std::size_t> receive_packet(int socket, void* data, std::size_t nbytes, std::int64_t deadline_ns);

// A connected socket, or -1 and errno.
int connect_to(const std::string& path);
// Listens at `path`, which must be free or left over by a process that ended.
Result<int> listen_at(const std::string& path, int backlog);

}  // namespace ccl_lab::api
