// What ranks say to each other about paths that fail, away from the data: small, resent until answered, idempotent.
//
//   offset  0 u32 magic   4 u8 kind   5 u8 flags   6 u16 world epoch   8 i32 from
//          12 u16 nic (the sender's)   14 u16 peer_nic (the receiver's)   16 u32 generation   20 u32 check
//          24 u64 position   32 u64 received   40 u64 token
//
//   kind     who says it                         position                     received                  token
//   hint     an end that lost the path           first segment not confirmed  segments landed there     -
//   request  an end with segments to send again  first segment not confirmed  segments landed there     -
//   ack      the end that was asked              segments landed there        segments landed there     -
//   ping     who misses confirmations            -                            -                         chosen by the asker
//   pong     its peer                            -                            -                         of the ping
//   probe    over the NICs it names              -                            -                         chosen by the asker
//   reply    to a probe, over the same NICs      -                            -                         of the probe
//   ask      "probe this path of yours for me"   the third rank's NIC pair    rank to probe             chosen by the asker
//   told     what came of it                     1: it answered               -                         of the ask
//
// A message may be lost, doubled, late or out of order; whoever reads it decides by generation and token.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/status.hpp"

namespace ccl_lab {

enum class MessageKind : std::uint8_t { hint = 1, request = 2, ack = 3, ping = 4, pong = 5, probe = 6, reply = 7, ask = 8, told = 9 };

inline constexpr std::size_t kMessageBytes = 48;

struct Message {
  MessageKind kind = MessageKind::ping;
  std::uint8_t flags = 0;
  std::uint16_t epoch = 0;
  std::int32_t from = -1;
  std::uint16_t nic = 0;
  std::uint16_t peer_nic = 0;
  std::uint32_t generation = 0;
  std::uint64_t position = 0;
  std::uint64_t received = 0;
  std::uint64_t token = 0;

  bool operator==(const Message&) const = default;
};

using MessageBytes = std::array<std::byte, kMessageBytes>;

void encode(const Message& message, MessageBytes& bytes);
Result<Message> decode(const std::byte* bytes, std::size_t nbytes);

}  // namespace ccl_lab
