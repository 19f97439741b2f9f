// What travels on a connection between two ranks.
//
// Is: the 56-byte header before every payload, how it is written and how a received one is judged.
// Is not: authentication (done before a connection gets here) or a checksum of payloads (TCP's holds).
//
// All numbers little-endian.
//
//    0        4     5      6       8        12     16       24       32        40         44        48      52      56
//    ┌────────┬─────┬──────┬───────┬────────┬──────┬────────┬────────┬─────────┬──────────┬─────────┬───────┬───────┐
//    │ magic  │type │flags │ epoch │ signal │ key  │ offset │ nbytes │ sent_ns │ sequence │ coll_id │ op_id │ check │
//    │ u32    │ u8  │ u8=0 │ u16   │ i32    │ u32  │ u64    │ u64    │ i64     │ u32      │ u32     │ i32   │ u32   │
//    └────────┴─────┴──────┴───────┴────────┴──────┴────────┴────────┴─────────┴──────────┴─────────┴───────┴───────┘
//
//   type          payload       offset, nbytes                signal                   sequence
//   put           nbytes bytes  where it goes, <= 256 KiB     -1, or raised after it   of the signal, see below
//   get_request   none          what is asked for             -1                       number of the get on this connection
//   get_reply     nbytes bytes  offset within the get         -1                       number of the get it answers
//
// A put of more bytes is several frames; only the last carries the signal. Signals of one sender on one signal channel are
// numbered 0, 1, 2, ... (mod 2^32) whatever connection they take; the receiver raises them in that order. Gets of one
// connection are answered in order, each by consecutive pieces. `sent_ns` is when the first byte took the sender's wire, for
// the receiver's shaper, which trusts it only as far as it is plausible. `check` mixes the first 52 bytes, so that bytes
// that are not a header are recognised as such.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/status.hpp"

namespace ccl_lab {

inline constexpr std::size_t kFrameHeaderBytes = 56;
inline constexpr std::size_t kFrameCheckAt = 52;
inline constexpr std::uint32_t kFrameMagic = 0x314c4343;  // "CCL1"
inline constexpr std::uint64_t kSegmentBytes = 256 * 1024;

enum class FrameType : std::uint8_t { put = 1, get_request = 2, get_reply = 3 };

struct FrameHeader {
  FrameType type = FrameType::put;
  std::uint16_t epoch = 0;
  std::int32_t signal = -1;
  std::uint32_t key = 0;
  std::uint64_t offset = 0;
  std::uint64_t nbytes = 0;
  std::int64_t sent_ns = 0;
  std::uint32_t sequence = 0;
  std::uint32_t coll_id = 0;
  std::int32_t op_id = -1;

  bool operator==(const FrameHeader&) const = default;
  std::uint64_t payload_bytes() const { return type == FrameType::get_request ? 0 : nbytes; }
};

using FrameBytes = std::array<std::byte, kFrameHeaderBytes>;

void encode(const FrameHeader& header, FrameBytes& bytes);

// The mix of the first 52 bytes that a header carries in its last 4.
std::uint32_t frame_check(const FrameBytes& bytes);

// The header in `bytes`, or what is wrong with it. Judges all that can be judged without knowing regions.
Result<FrameHeader> decode(const FrameBytes& bytes, std::uint16_t epoch, int n_signal_channels);

}  // namespace ccl_lab
