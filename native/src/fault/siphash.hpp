// SipHash-2-4 (Aumasson, Bernstein, 2012): a 64-bit tag over a short message that only holders of a 16-byte key can make.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace ccl_lab {

using SipKey = std::array<std::byte, 16>;

inline std::uint64_t siphash(const SipKey& key, const std::byte* bytes, std::size_t nbytes) {
  const auto word = [](const std::byte* at, std::size_t n) {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < n; ++i) value |= std::uint64_t{static_cast<std::uint8_t>(at[i])} << (8 * i);
    return value;
  };
  const std::uint64_t k0 = word(key.data(), 8);
  const std::uint64_t k1 = word(key.data() + 8, 8);
  std::uint64_t v0 = k0 ^ 0x736f6d6570736575u, v1 = k1 ^ 0x646f72616e646f6du;
  std::uint64_t v2 = k0 ^ 0x6c7967656e657261u, v3 = k1 ^ 0x7465646279746573u;
  const auto rounds = [&](int n) {
    for (; n > 0; --n) {
      v0 += v1, v1 = std::rotl(v1, 13) ^ v0, v0 = std::rotl(v0, 32);
      v2 += v3, v3 = std::rotl(v3, 16) ^ v2;
      v0 += v3, v3 = std::rotl(v3, 21) ^ v0;
      v2 += v1, v1 = std::rotl(v1, 17) ^ v2, v2 = std::rotl(v2, 32);
    }
  };
  const auto take = [&](std::uint64_t m) {
    v3 ^= m;
    rounds(2);
    v0 ^= m;
  };
  std::size_t at = 0;
  for (; at + 8 <= nbytes; at += 8) take(word(bytes + at, 8));
  take(word(bytes + at, nbytes - at) | std::uint64_t{nbytes} << 56);
  v2 ^= 0xff;
  rounds(4);
  return v0 ^ v1 ^ v2 ^ v3;
}

}  // namespace ccl_lab
