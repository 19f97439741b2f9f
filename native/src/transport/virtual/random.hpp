// The seeded randomness of the virtual network: the same seed and calls give the same history on every machine.
#pragma once

#include <cstdint>

namespace ccl_lab {

class SeededRandom {  // splitmix64
 public:
  // Seeds that follow each other must not give streams that overlap: the state of a counter is not the seed itself.
  explicit SeededRandom(std::uint64_t seed) : state_(seed) { state_ = next() ^ 0x632be59bd9b4e019u; }

  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // Of 0 .. n - 1; 0 for n below 2.
  std::uint64_t below(std::uint64_t n) { return n < 2 ? 0 : next() % n; }
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(below(static_cast<std::uint64_t>(high - low + 1)));
  }
  bool one_in(std::uint64_t n) { return below(n) == 0; }
  bool chance_ppm(std::uint64_t ppm) { return ppm > 0 && below(1'000'000) < ppm; }

 private:
  std::uint64_t state_;
};

}  // namespace ccl_lab
