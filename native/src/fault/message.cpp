// Messages in and out of bytes; see message.hpp.
#include "fault/message.hpp"

#include <concepts>
#include <string>

namespace ccl_lab {

namespace {

constexpr std::uint32_t kMagic = 0x4d4c4343;  // "CCLM"
constexpr std::size_t kCheckAt = 20;
constexpr auto kLastKind = static_cast<std::uint8_t>(MessageKind::told);

template <std::unsigned_integral T>
void store(std::byte* at, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) at[i] = static_cast<std::byte>(value >> (8 * i));
}

template <std::unsigned_integral T>
T load(const std::byte* at) {
  std::uint64_t value = 0;
  for (std::size_t i = sizeof(T); i-- > 0;) value = (value << 8) | static_cast<std::uint8_t>(at[i]);
  return static_cast<T>(value);
}

// Mixes all words but the one it is kept in.
std::uint32_t check_word(const std::byte* bytes) {
  std::uint64_t mix = 0x13198a2e03707344u;
  for (std::size_t at = 0; at < kMessageBytes; at += 4) {
    if (at == kCheckAt) continue;
    mix = (mix ^ load<std::uint32_t>(bytes + at)) * 0x9e3779b97f4a7c15u;
    mix ^= mix >> 29;
  }
  return static_cast<std::uint32_t>(mix >> 32);
}

Status bad(const char* what, std::uint64_t found, const std::string& expected) {
  return Status(Code::link_down, std::string("bad message: ") + what + " is " + std::to_string(found) + ", expected " + expected +
                                     "; it is dropped: a stranger sent it, or another version of ccl_lab");
}

}  // namespace

void encode(const Message& message, MessageBytes& bytes) {
  std::byte* const at = bytes.data();
  store(at, kMagic);
  store(at + 4, static_cast<std::uint8_t>(message.kind));
  store(at + 5, message.flags);
  store(at + 6, message.epoch);
  store(at + 8, static_cast<std::uint32_t>(message.from));
  store(at + 12, message.nic);
  store(at + 14, message.peer_nic);
  store(at + 16, message.generation);
  store(at + 24, message.position);
  store(at + 32, message.received);
  store(at + 40, message.token);
  store(at + kCheckAt, check_word(at));
}

Result<Message> decode(const std::byte* bytes, std::size_t nbytes) {
  if (nbytes != kMessageBytes) return bad("its size", nbytes, std::to_string(kMessageBytes) + " bytes");
  const auto magic = load<std::uint32_t>(bytes);
  if (magic != kMagic) return bad("its first word", magic, std::to_string(kMagic));
  const auto check = load<std::uint32_t>(bytes + kCheckAt);
  if (check != check_word(bytes)) return bad("its check word", check, std::to_string(check_word(bytes)));
  const auto kind = load<std::uint8_t>(bytes + 4);
  if (kind < 1 || kind > kLastKind) return bad("its kind", kind, "1 (hint) to " + std::to_string(kLastKind) + " (told)");
  Message message;
  message.kind = static_cast<MessageKind>(kind);
  message.flags = load<std::uint8_t>(bytes + 5);
  message.epoch = load<std::uint16_t>(bytes + 6);
  message.from = static_cast<std::int32_t>(load<std::uint32_t>(bytes + 8));
  message.nic = load<std::uint16_t>(bytes + 12);
  message.peer_nic = load<std::uint16_t>(bytes + 14);
  message.generation = load<std::uint32_t>(bytes + 16);
  message.position = load<std::uint64_t>(bytes + 24);
  message.received = load<std::uint64_t>(bytes + 32);
  message.token = load<std::uint64_t>(bytes + 40);
  return message;
}

}  // namespace ccl_lab
