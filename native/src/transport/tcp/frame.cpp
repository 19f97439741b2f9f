// Frame headers in and out of bytes; see frame.hpp.
#include "transport/tcp/frame.hpp"

#include <bit>
#include <concepts>
#include <cstring>
#include <string>

#include "base/signals.hpp"

namespace ccl_lab {

namespace {

constexpr std::uint8_t kNotice = 1;
constexpr std::uint8_t kUrgent = 2;
constexpr std::uint8_t kAsks = 4;
constexpr std::uint8_t kTogether = 8;

// Plain copies where the processor counts as the wire does.
template <std::unsigned_integral T>
void store(FrameBytes& bytes, std::size_t at, T value) {
  if constexpr (std::endian::native == std::endian::little) {
    std::memcpy(bytes.data() + at, &value, sizeof value);
  } else {
    for (std::size_t i = 0; i < sizeof(T); ++i) bytes[at + i] = static_cast<std::byte>(value >> (8 * i));
  }
}

template <std::unsigned_integral T>
T load(const FrameBytes& bytes, std::size_t at) {
  T value = 0;
  if constexpr (std::endian::native == std::endian::little) {
    std::memcpy(&value, bytes.data() + at, sizeof value);
  } else {
    for (std::size_t i = sizeof(T); i-- > 0;)
      value = static_cast<T>((sizeof(T) > 1 ? value << 8 : 0) | static_cast<T>(bytes[at + i]));
  }
  return value;
}

Status bad(const std::string& what, std::uint64_t found, const std::string& expected) {
  return Status(Code::link_down, "bad frame: " + what + " is " + std::to_string(found) + ", expected " + expected);
}

}  // namespace

static_assert(kFrameCheckAt % 8 == 4, "whole words of 8 bytes, and one of 4");

std::uint32_t frame_check(const FrameBytes& bytes) {
  std::uint64_t mix = 0x243f6a8885a308d3u;
  const auto take = [&](std::uint64_t word) {
    mix = (mix ^ word) * 0x9e3779b97f4a7c15u;
    mix ^= mix >> 29;
  };
  for (std::size_t at = 0; at + 8 <= kFrameCheckAt; at += 8) take(load<std::uint64_t>(bytes, at));
  take(load<std::uint32_t>(bytes, kFrameCheckAt - 4));
  return static_cast<std::uint32_t>(mix >> 32);
}

void encode(const FrameHeader& header, FrameBytes& bytes) {
  store(bytes, 0, kFrameMagic);
  store(bytes, 4, static_cast<std::uint8_t>(header.type));
  store(bytes, 5, static_cast<std::uint8_t>((header.notice ? kNotice : 0) | (header.urgent ? kUrgent : 0) | (header.asks ? kAsks : 0) |
                                             (header.together ? kTogether : 0)));
  store(bytes, 6, header.epoch);
  store(bytes, 8, static_cast<std::uint32_t>(header.signal));
  store(bytes, 12, header.key);
  store(bytes, 16, header.offset);
  store(bytes, 24, header.nbytes);
  store(bytes, 32, static_cast<std::uint64_t>(header.sent_ns));
  store(bytes, 40, header.sequence);
  store(bytes, 44, header.segment);
  store(bytes, 48, header.lane);
  store(bytes, 52, header.number);
  store(bytes, 56, header.ack);
  store(bytes, 60, header.coll_id);
  store(bytes, 64, static_cast<std::uint32_t>(header.op_id));
  store(bytes, kFrameCheckAt, frame_check(bytes));
}

Result<FrameHeader> decode(const FrameBytes& bytes, std::uint16_t epoch, int n_signal_channels) {
  const auto magic = load<std::uint32_t>(bytes, 0);
  if (magic != kFrameMagic) return bad("its first word", magic, std::to_string(kFrameMagic));
  const auto check = load<std::uint32_t>(bytes, kFrameCheckAt);
  const std::uint32_t expected = frame_check(bytes);
  if (check != expected) return bad("its check word", check, std::to_string(expected));
  const auto type = load<std::uint8_t>(bytes, 4);
  if (type < 1 || type > 5) return bad("its type", type, "1 (put), 2 (get_request), 3 (get_reply), 4 (ack) or 5 (ack_aside)");
  const auto flags = load<std::uint8_t>(bytes, 5);
  const bool put = type == static_cast<std::uint8_t>(FrameType::put);
  const unsigned what = flags & ~unsigned{kUrgent};
  const bool known = flags == 0 || what == kNotice || what == kAsks || flags == (kNotice | kUrgent | kTogether);
  if (!known || (flags != 0 && !put))
    return bad("its flags", flags, put ? "0, 1 (notice), 3 (notice, urgent), 11 (the same, together), 4 (asks) or 6 (asks, urgent)" : "0");
  FrameHeader header;
  header.notice = (flags & kNotice) != 0;
  header.urgent = (flags & kUrgent) != 0;
  header.asks = (flags & kAsks) != 0;
  header.together = (flags & kTogether) != 0;
  header.type = static_cast<FrameType>(type);
  header.epoch = load<std::uint16_t>(bytes, 6);
  header.signal = static_cast<std::int32_t>(load<std::uint32_t>(bytes, 8));
  header.key = load<std::uint32_t>(bytes, 12);
  header.offset = load<std::uint64_t>(bytes, 16);
  header.nbytes = load<std::uint64_t>(bytes, 24);
  header.sent_ns = static_cast<std::int64_t>(load<std::uint64_t>(bytes, 32));
  header.sequence = load<std::uint32_t>(bytes, 40);
  header.segment = load<std::uint32_t>(bytes, 44);
  header.lane = load<std::uint32_t>(bytes, 48);
  header.number = load<std::uint32_t>(bytes, 52);
  header.ack = load<std::uint32_t>(bytes, 56);
  header.coll_id = load<std::uint32_t>(bytes, 60);
  header.op_id = static_cast<std::int32_t>(load<std::uint32_t>(bytes, 64));
  if (header.epoch != epoch) return bad("its epoch", header.epoch, std::to_string(epoch));
  if (header.signal < -1 || channel_of_signal(header.signal) >= n_signal_channels)
    return bad("its signal channel", static_cast<std::uint32_t>(header.signal),
               "none or less than " + std::to_string(n_signal_channels));
  if (header.type != FrameType::put && header.signal != -1)
    return bad("the signal of a get", static_cast<std::uint32_t>(header.signal), "none");
  const bool aside = header.type == FrameType::ack_aside;
  if (!header.notice && !aside && (header.lane != 0 || header.number != 0))
    return bad("the lane or number of a frame without a notice", header.lane != 0 ? header.lane : header.number, "0");
  if ((header.type == FrameType::ack || aside) && header.nbytes != 0) return bad("the size of an ack", header.nbytes, "0 bytes");
  if (header.nbytes > kSegmentBytes)
    return bad("its size", header.nbytes, "at most " + std::to_string(kSegmentBytes) + " bytes");
  return header;
}

}  // namespace ccl_lab
