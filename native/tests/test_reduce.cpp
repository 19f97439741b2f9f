// Reductions against a plain loop, for every type, reduction and instruction set; bits against numpy are compared from Python.
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "check.hpp"
#include "reduce/reduce.hpp"

namespace ccl_lab {
namespace {

using Bytes = std::vector<std::byte>;

Bytes random_bytes(std::mt19937_64& random, std::size_t n) {
  Bytes bytes(n);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// A NaN's payload is the processor's business.
bool same(DType dtype, const std::byte* a, const std::byte* b) {
  if (std::memcmp(a, b, itemsize(dtype)) == 0) return true;
  if (dtype == DType::float64) {
    double x, y;
    std::memcpy(&x, a, 8);
    std::memcpy(&y, b, 8);
    return std::isnan(x) && std::isnan(y);
  }
  if (dtype == DType::float32) {
    float x, y;
    std::memcpy(&x, a, 4);
    std::memcpy(&y, b, 4);
    return std::isnan(x) && std::isnan(y);
  }
  std::uint16_t x, y;
  std::memcpy(&x, a, 2);
  std::memcpy(&y, b, 2);
  const std::uint16_t exponent = dtype == DType::float16 ? 0x7c00 : 0x7f80;
  return static_cast<int>(dtype) < 2 && (x & 0x7fff) > exponent && (y & 0x7fff) > exponent;
}

bool all_same(DType dtype, const Bytes& a, const Bytes& b) {
  for (std::size_t i = 0; i < a.size(); i += itemsize(dtype))
    if (!same(dtype, &a[i], &b[i])) return false;
  return true;
}

TEST(instruction_sets_agree) {
  std::mt19937_64 random(7);
  for (std::size_t d = 0; d < kDTypeCount; ++d) {
    for (std::size_t r = 0; r < kRedOpCount; ++r) {
      const auto dtype = static_cast<DType>(d);
      const auto redop = static_cast<RedOp>(r);
      if (!check_reduction(dtype, redop).ok()) continue;
      for (const std::size_t count : {0u, 1u, 7u, 8u, 1023u, 1024u, 3001u}) {
        std::vector<Bytes> sources;
        std::vector<const std::byte*> at;
        for (int s = 0; s < 4; ++s) sources.push_back(random_bytes(random, count * itemsize(dtype)));
        for (const Bytes& source : sources) at.push_back(source.data());
        Bytes base(count * itemsize(dtype));
        reduce_with(Isa::base, dtype, redop, base.data(), at.data(), at.size(), count);
        for (const Isa isa : {Isa::avx2, Isa::avx512}) {
          Bytes found(count * itemsize(dtype));
          reduce_with(usable_isa(isa), dtype, redop, found.data(), at.data(), at.size(), count);
          CHECK(all_same(dtype, base, found));
        }
      }
    }
  }
}

TEST(destination_may_be_any_source) {
  std::mt19937_64 random(8);
  for (const DType dtype : {DType::float16, DType::bfloat16, DType::float32, DType::int8, DType::int64}) {
    const std::size_t count = 2500;
    std::vector<Bytes> sources;
    for (int s = 0; s < 3; ++s) sources.push_back(random_bytes(random, count * itemsize(dtype)));
    std::vector<const std::byte*> at = {sources[0].data(), sources[1].data(), sources[2].data()};
    Bytes want(count * itemsize(dtype));
    reduce(dtype, RedOp::sum, want.data(), at.data(), 3, count);
    for (std::size_t s = 0; s < 3; ++s) {
      Bytes into = sources[s];
      std::vector<const std::byte*> in_place = at;
      in_place[s] = into.data();
      reduce(dtype, RedOp::sum, into.data(), in_place.data(), 3, count);
      CHECK(all_same(dtype, into, want));
    }
  }
}

// What a 16-bit float means, by its definition.
float to_float(DType dtype, std::uint16_t half) {
  if (dtype == DType::bfloat16) {
    const std::uint32_t bits = static_cast<std::uint32_t>(half) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }
  const int exponent = (half >> 10) & 31;
  const int mantissa = half & 1023;
  const float sign = (half & 0x8000) ? -1.0f : 1.0f;
  if (exponent == 31) return mantissa ? std::numeric_limits<float>::quiet_NaN() : sign * std::numeric_limits<float>::infinity();
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
  return sign * std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
}

// Adding zero converts there and back: every value must survive, on every instruction set.
TEST(every_16_bit_float_survives) {
  for (const DType dtype : {DType::float16, DType::bfloat16}) {
    std::vector<std::uint16_t> all(65536), zero(65536, 0x8000), out(65536);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
    const std::byte* sources[] = {reinterpret_cast<const std::byte*>(all.data()), reinterpret_cast<const std::byte*>(zero.data())};
    for (const Isa isa : {Isa::base, Isa::avx2, Isa::avx512}) {
      reduce_with(usable_isa(isa), dtype, RedOp::sum, reinterpret_cast<std::byte*>(out.data()), sources, 2, out.size());
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < all.size(); ++i)
        wrong += !same(dtype, reinterpret_cast<std::byte*>(&all[i]), reinterpret_cast<std::byte*>(&out[i]));
      CHECK_EQ(wrong, 0u);
    }
  }
}

// Sums of pairs are rounded to the nearest 16-bit value, ties to even: no value is nearer.
TEST(sums_of_16_bit_floats_are_nearest) {
  std::mt19937_64 random(9);
  for (const DType dtype : {DType::float16, DType::bfloat16}) {
    for (int trial = 0; trial < 20000; ++trial) {
      std::uint16_t a = static_cast<std::uint16_t>(random()), b = static_cast<std::uint16_t>(random()), out = 0;
      const std::byte* sources[] = {reinterpret_cast<std::byte*>(&a), reinterpret_cast<std::byte*>(&b)};
      reduce_with(Isa::base, dtype, RedOp::sum, reinterpret_cast<std::byte*>(&out), sources, 2, 1);
      const float exact = to_float(dtype, a) + to_float(dtype, b);
      const float found = to_float(dtype, out);
      if (!std::isfinite(exact) || !std::isfinite(found)) continue;
      const double error = std::fabs(static_cast<double>(found) - exact);
      for (const int step : {-1, 1}) {
        const float near = to_float(dtype, static_cast<std::uint16_t>(out + step));
        if (!std::isfinite(near)) continue;
        const double other = std::fabs(static_cast<double>(near) - exact);
        CHECK(error < other || (error == other && (out & 1) == 0));
      }
    }
  }
}

TEST(integers_wrap_and_divide_toward_zero) {
  std::int8_t a[] = {127, -128, 100, -7}, b[] = {1, -1, 100, 0}, out[4];
  const std::byte* sources[] = {reinterpret_cast<std::byte*>(a), reinterpret_cast<std::byte*>(b)};
  reduce(DType::int8, RedOp::sum, reinterpret_cast<std::byte*>(out), sources, 2, 4);
  CHECK_EQ(static_cast<int>(out[0]), -128);
  CHECK_EQ(static_cast<int>(out[1]), 127);
  CHECK_EQ(static_cast<int>(out[2]), -56);
  divide(DType::int8, reinterpret_cast<std::byte*>(out), 2, 4);
  CHECK_EQ(static_cast<int>(out[2]), -28);
  CHECK_EQ(static_cast<int>(out[3]), -3);
  divide(DType::int8, reinterpret_cast<std::byte*>(out), 300, 4);
  CHECK_EQ(static_cast<int>(out[0]), 0);
}

TEST(undefined_reductions_are_refused) {
  CHECK_EQ(check_reduction(DType::float32, RedOp::bxor).code, Code::dtype);
  CHECK_EQ(check_reduction(DType::bfloat16, RedOp::band).code, Code::dtype);
  CHECK_EQ(check_reduction(static_cast<DType>(77), RedOp::sum).code, Code::dtype);
  CHECK_EQ(check_reduction(DType::int8, static_cast<RedOp>(8)).code, Code::dtype);
  CHECK_OK(check_reduction(DType::uint8, RedOp::bor));
}

}  // namespace
}  // namespace ccl_lab
