// Frame headers in and out of bytes; see frame.hpp.
#include "transport/tcp/frame.hpp"

#include <concepts>
#include <string>

namespace ccl_lab {

namespace {

template <std::unsigned_integral T>
void store(FrameBytes& bytes, std::size_t at, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) bytes[at + i] = static_cast<std::byte>(value >> (8 * i));
}

template <std::unsigned_integral T>
T load(const FrameBytes& bytes, std::size_t at) {
  T value = 0;
  for (std::size_t i = sizeof(T); i-- > 0;)
    value = static_cast<T>((sizeof(T) > 1 ? value << 8 : 0) | static_cast<T>(bytes[at + i]));
  return value;
}

Status bad(const std::string& what, std::uint64_t found, const std::string& expected) {
  return Status(Code::link_down, "bad frame: " + what + " is " + std::to_string(found) + ", expected " + expected);
}

}  // namespace

std::uint32_t frame_check(const FrameBytes& bytes) {
  std::uint64_t mix = 0x243f6a8885a308d3u;
  for (std::size_t at = 0; at < kFrameCheckAt; at += 4) {
    mix = (mix ^ load<std::uint32_t>(bytes, at)) * 0x9e3779b97f4a7c15u;
    mix ^= mix >> 29;
  }
  return static_cast<std::uint32_t>(mix >> 32);
}

void encode(const FrameHeader& header, FrameBytes& bytes) {
  store(bytes, 0, kFrameMagic);
  store(bytes, 4, static_cast<std::uint8_t>(header.type));
  store(bytes, 5, std::uint8_t{0});
  store(bytes, 6, header.epoch);
  store(bytes, 8, static_cast<std::uint32_t>(header.signal));
  store(bytes, 12, header.key);
  store(bytes, 16, header.offset);
  store(bytes, 24, header.nbytes);
  store(bytes, 32, static_cast<std::uint64_t>(header.sent_ns));
  store(bytes, 40, header.sequence);
  store(bytes, 44, header.coll_id);
  store(bytes, 48, static_cast<std::uint32_t>(header.op_id));
  store(bytes, kFrameCheckAt, frame_check(bytes));
}

Result<FrameHeader> decode(const FrameBytes& bytes, std::uint16_t epoch, int n_signal_channels) {
  const auto magic = load<std::uint32_t>(bytes, 0);
  if (magic != kFrameMagic) return bad("its first word", magic, std::to_string(kFrameMagic));
  const auto check = load<std::uint32_t>(bytes, kFrameCheckAt);
  if (check != frame_check(bytes)) return bad("its check word", check, std::to_string(frame_check(bytes)));
  const auto type = load<std::uint8_t>(bytes, 4);
  if (type < 1 || type > 3) return bad("its type", type, "1 (put), 2 (get_request) or 3 (get_reply)");
  const auto flags = load<std::uint8_t>(bytes, 5);
  if (flags != 0) return bad("its flags", flags, "0");
  FrameHeader header;
  header.type = static_cast<FrameType>(type);
  header.epoch = load<std::uint16_t>(bytes, 6);
  header.signal = static_cast<std::int32_t>(load<std::uint32_t>(bytes, 8));
  header.key = load<std::uint32_t>(bytes, 12);
  header.offset = load<std::uint64_t>(bytes, 16);
  header.nbytes = load<std::uint64_t>(bytes, 24);
  header.sent_ns = static_cast<std::int64_t>(load<std::uint64_t>(bytes, 32));
  header.sequence = load<std::uint32_t>(bytes, 40);
  header.coll_id = load<std::uint32_t>(bytes, 44);
  header.op_id = static_cast<std::int32_t>(load<std::uint32_t>(bytes, 48));
  if (header.epoch != epoch) return bad("its epoch", header.epoch, std::to_string(epoch));
  if (header.signal < -1 || header.signal >= n_signal_channels)
    return bad("its signal channel", static_cast<std::uint32_t>(header.signal),
               "none or less than " + std::to_string(n_signal_channels));
  if (header.type != FrameType::put && header.signal != -1)
    return bad("the signal of a get", static_cast<std::uint32_t>(header.signal), "none");
  if (header.payload_bytes() > kSegmentBytes)
    return bad("its payload", header.nbytes, "at most " + std::to_string(kSegmentBytes) + " bytes");
  return header;
}

}  // namespace ccl_lab
