// What two ends of a path say to each other beside the data: cards before it, keys of memory during it.
//
// Is: messages over the authenticated socket that the connection was made with, without blocking; and its end, which is how a
//     rank hears that its peer is gone.
// Is not: the data path: nothing here is on the way of a put whose keys are known.
//
//   u32 length │ u8 kind │ payload                             all numbers little-endian; length counts from `kind` on
//
//   card     magic, version, who and where, queue pairs, memory for notices, regions     first, both ways
//   ready    its queue pairs take what comes                                             then data may go
//   region   key, size, base, chunk bytes          one more region
//   gone     key                                   it was deregistered
//   want     key, first, n                         keys of n chunks of a region, please
//   keys     key, first, n times u32               there they are
//   refusal  text                                  why this end gives up
//
// Invariants
//  - A message is judged as a whole before anything of it is believed; one that does not parse ends the path.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "drivers/verbs/verbs.hpp"
#include "transport/transport.hpp"

namespace ccl_lab {

inline constexpr std::uint32_t kCardMagic = 0x564c4343;  // "CCLV"
inline constexpr std::uint16_t kCardVersion = 1;
inline constexpr std::uint32_t kMostAsideBytes = 1 << 20;
inline constexpr int kMostQueuePairs = 64;

enum class AsideKind : std::uint8_t { card = 1, ready = 2, region = 3, gone = 4, want = 5, keys = 6, refusal = 7 };

// A region of the peer, which it registers chunk by chunk.
struct RegionCard {
  RegionKey key = 0;
  std::uint64_t size = 0;
  std::uint64_t base = 0;
  std::uint64_t chunk_bytes = 0;
};

struct QueuePairCard {
  std::uint32_t qpn = 0;
  std::uint32_t psn = 0;
};

struct Card {
  std::int32_t rank = -1;
  std::uint16_t epoch = 0;
  std::uint16_t nic = 0;
  std::uint16_t peer_nic = 0;
  verbs::Gid gid{};
  std::uint16_t lid = 0;
  std::uint32_t mtu_bytes = 0;
  std::uint32_t reads = 0;
  std::uint32_t receives = 0;      // posted on each queue pair
  std::uint32_t first_number = 0;
  std::uint64_t notices = 0;       // address and key of the memory for notices
  std::uint32_t notices_key = 0;
  std::vector<QueuePairCard> queue_pairs;  // of data; the last one is for control
  std::vector<RegionCard> regions;
};

// A message that was received. Which members mean something depends on the kind.
struct AsideMessage {
  AsideKind kind = AsideKind::ready;
  Card card;
  RegionCard region;          // of region, gone, want and keys (the key)
  std::uint32_t first = 0;
  std::uint32_t n = 0;
  std::vector<std::uint32_t> keys;
  std::string text;
};

// The message in `bytes` (without its length), or what is wrong with it. A card of another version says so.
Result<AsideMessage> decode_aside(const std::uint8_t* bytes, std::size_t nbytes);

class Aside {
 public:
  // Takes over `fd`. Its messages are short and waited for: they are never held back to be sent together.
  explicit Aside(int fd);
  ~Aside();
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;

  int fd() const { return fd_; }
  void say(const Card& card);
  void say_ready();
  void say_region(const RegionCard& region);
  void say_gone(RegionKey key);
  void want(RegionKey key, std::uint32_t first, std::uint32_t n);
  void say_keys(RegionKey key, std::uint32_t first, const std::vector<std::uint32_t>& keys);
  void refuse(const std::string& text);

  // What the kernel did not take yet. An error: the socket is broken.
  Status flush();
  bool unsent() const { return sent_ < out_.size(); }
  // Reads what there is. An error, or closed(): nothing more will come.
  Status receive();
  bool closed() const { return closed_; }
  // Takes the next message that came whole; false where there is none. An error: what came is no message.
  Result<bool> next(AsideMessage& message);

 private:
  void frame(AsideKind kind, const std::vector<std::uint8_t>& payload);

  int fd_;
  std::vector<std::uint8_t> out_;
  std::size_t sent_ = 0;
  std::vector<std::uint8_t> in_;
  std::size_t taken_ = 0;
  bool closed_ = false;
};

}  // namespace ccl_lab
