// What travels on a connection between two ranks.
//
// Is: the 72-byte header before every payload, how it is written and how a received one is judged.
// Is not: authentication (done before a connection gets here) or a checksum of payloads (TCP's holds).
//
// All numbers little-endian.
//
//   offset  0 u32 magic     4 u8 type       5 u8 flags    6 u16 epoch    8 i32 signal   12 u32 key
//          16 u64 offset   24 u64 nbytes   32 i64 sent_ns
//          40 u32 sequence 44 u32 segment  48 u32 lane   52 u32 number  56 u32 ack
//          60 u32 coll_id  64 i32 op_id    68 u32 check
//
//   type         payload       offset, nbytes              signal (may be silent)   sequence                  segment
//   put          nbytes bytes  where it goes, <= 256 KiB   -1, or raised after it   of the signal, see below  its number, see below
//   get_request  none          what is asked, <= 256 KiB   -1                       number of the request     0
//   get_reply    nbytes bytes  0, nbytes of the request    -1                       number of the request     0
//   ack          none          0, 0                        -1                       0                         0
//
// A put of more bytes is several frames, its segments; only the last carries the signal. The segments of all puts between
// two NICs are numbered 0, 1, 2, ... (mod 2^32) in posting order whatever connection they take, and a signal is raised only
// when every segment before has landed (segment_order.hpp). Signals of one sender on one signal channel are numbered in the
// same way whatever NICs they take (signal_order.hpp). A get of more bytes is several requests; those of one connection
// are numbered, and answered in order. `sent_ns` is when the first byte took the sender's wire, for the receiver's shaper,
// which trusts it only as far as it is plausible. `check` mixes the first 68 bytes, so that bytes that are not a header are
// recognised as such.
//
// Confirmed puts: the last segment has the flag `notice` (1): lane, number, signal and sequence then are for the layer above,
// which is told instead of a signal being raised; with `urgent` (2) the sender waits for the answer, and with `together` (8) it may
// come when others do. `asks` (4) is for a put that
// has no notice: its sender wants to hear that it has landed, all the same. The answer is `ack`, in every header: how many segments
// of the other way have landed in order, as the number of the next one. A frame of type ack is sent where nothing else goes that way.
// One of type ack_aside says the same of another pair of NICs of the two ranks, so that several are told by one call of the system:
// `lane` names the NICs as its sender does, `segment` is the number of the next one, `key` and `number` are lane and number of the
// notice in the last that landed, by which its receiver knows that it is about the connections that it has now.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/status.hpp"

namespace ccl_lab {

inline constexpr std::size_t kFrameHeaderBytes = 72;
inline constexpr std::size_t kFrameCheckAt = 68;
inline constexpr std::uint32_t kFrameMagic = 0x334c4343;  // "CCL3"
inline constexpr std::uint64_t kSegmentBytes = 256 * 1024;

enum class FrameType : std::uint8_t { put = 1, get_request = 2, get_reply = 3, ack = 4, ack_aside = 5 };

struct FrameHeader {
  FrameType type = FrameType::put;
  bool notice = false;
  bool urgent = false;
  bool asks = false;
  bool together = false;
  std::uint16_t epoch = 0;
  std::int32_t signal = -1;
  std::uint32_t key = 0;
  std::uint64_t offset = 0;
  std::uint64_t nbytes = 0;
  std::int64_t sent_ns = 0;
  std::uint32_t sequence = 0;
  std::uint32_t segment = 0;
  std::uint32_t lane = 0;
  std::uint32_t number = 0;
  std::uint32_t ack = 0;
  std::uint32_t coll_id = 0;
  std::int32_t op_id = -1;

  bool operator==(const FrameHeader&) const = default;
  std::uint64_t payload_bytes() const { return type == FrameType::get_request ? 0 : nbytes; }
};

using FrameBytes = std::array<std::byte, kFrameHeaderBytes>;

void encode(const FrameHeader& header, FrameBytes& bytes);

// The mix of the first 68 bytes that a header carries in its last 4.
std::uint32_t frame_check(const FrameBytes& bytes);

// The header in `bytes`, or what is wrong with it. Judges all that can be judged without knowing regions.
Result<FrameHeader> decode(const FrameBytes& bytes, std::uint16_t epoch, int n_signal_channels);

}  // namespace ccl_lab
