// The reduction kernels, compiled once per instruction set by kernels_<isa>.cpp.
//
// Is: plain loops over blocks that stay in the first-level cache, left to the compiler to vectorise, and the conversions
//     of 16-bit floats.
// Is not: a header: each including file compiles its own copy with its own instruction set.
//
// Invariants
//  - Nothing here may be shared with another file: a function the linker merges could carry instructions that the
//    processor lacks. Hence the unnamed namespace, C headers only and no inline function of the standard library.
//  - A block is accumulated in local memory before it is stored, so dst may be a source.
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "reduce/kernels.hpp"

namespace ccl_lab::kernels {
namespace {

constexpr size_t kBlock = 1024;

struct Sum {
  template <class T>
  static T apply(T a, T b) { return static_cast<T>(a + b); }
};
struct Prod {
  template <class T>
  static T apply(T a, T b) { return a * b; }
  // Narrow integers are promoted to int, which must not overflow.
  static uint8_t apply(uint8_t a, uint8_t b) { return static_cast<uint8_t>(static_cast<uint32_t>(a) * b); }
  static uint16_t apply(uint16_t a, uint16_t b) { return static_cast<uint16_t>(static_cast<uint32_t>(a) * b); }
};
// np.minimum and np.maximum: the first NaN is the result.
struct Min {
  template <class T>
  static T apply(T a, T b) { return (static_cast<int>(a < b) | static_cast<int>(a != a)) ? a : b; }
};
struct Max {
  template <class T>
  static T apply(T a, T b) { return (static_cast<int>(a > b) | static_cast<int>(a != a)) ? a : b; }
};
struct And {
  template <class T>
  static T apply(T a, T b) { return static_cast<T>(a & b); }
};
struct Or {
  template <class T>
  static T apply(T a, T b) { return static_cast<T>(a | b); }
};
struct Xor {
  template <class T>
  static T apply(T a, T b) { return static_cast<T>(a ^ b); }
};

// Elements that are reduced as they are stored.
template <class T>
struct Plain {
  using Acc = T;
  static constexpr size_t kSize = sizeof(T);
  static void load(T* acc, const unsigned char* src, size_t n) { memcpy(acc, src, n * sizeof(T)); }
  template <class Op>
  static void combine(T* acc, const unsigned char* src, size_t n) {
    for (size_t i = 0; i < n; ++i) {
      T value;
      memcpy(&value, src + i * sizeof(T), sizeof(T));
      acc[i] = Op::apply(acc[i], value);
    }
  }
  static void store(unsigned char* dst, const T* acc, size_t n) { memcpy(dst, acc, n * sizeof(T)); }
};

inline float bits_to_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
inline uint32_t float_to_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

// 16-bit floats: widened to float32, narrowed once at the store.
template <class Format>
struct Widened {
  using Acc = float;
  static constexpr size_t kSize = 2;
  static void load(float* acc, const unsigned char* src, size_t n) { Format::widen(acc, src, n); }
  template <class Op>
  static void combine(float* acc, const unsigned char* src, size_t n) {
    float value[kBlock];
    Format::widen(value, src, n);
    for (size_t i = 0; i < n; ++i) acc[i] = Op::apply(acc[i], value[i]);
  }
  static void store(unsigned char* dst, const float* acc, size_t n) { Format::narrow(dst, acc, n); }
};

struct BFloat16 {
  static void widen(float* out, const unsigned char* src, size_t n) {
    for (size_t i = 0; i < n; ++i) {
      uint16_t half;
      memcpy(&half, src + 2 * i, 2);
      out[i] = bits_to_float(static_cast<uint32_t>(half) << 16);
    }
  }
  static void narrow(unsigned char* dst, const float* in, size_t n) {
    for (size_t i = 0; i < n; ++i) {
      const uint32_t bits = float_to_bits(in[i]);
      const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
      const uint32_t quiet = ((bits >> 16) & 0x8000u) | 0x7fc0u;
      const uint16_t half = static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
      memcpy(dst + 2 * i, &half, 2);
    }
  }
};

inline float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1fu;
  const uint32_t mantissa = half & 0x3ffu;
  if (exponent == 0) return bits_to_float(sign | float_to_bits(static_cast<float>(mantissa) * 0x1p-24f));
  if (exponent == 31) return bits_to_float(sign | 0x7f800000u | (mantissa << 13) | (mantissa ? 0x400000u : 0u));
  return bits_to_float(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

inline uint16_t float_to_half(float value) {
  const uint32_t bits = float_to_bits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half = 0;
  if (magnitude > 0x7f800000u) half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  else if (magnitude >= 0x47800000u) half = 0x7c00u;
  else if (magnitude >= 0x38800000u) half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // Below the normal range: adding 0.5 leaves the bits of the subnormal, rounded by the addition, in the mantissa.
  else half = float_to_bits(bits_to_float(magnitude) + 0.5f) - 0x3f000000u;
  return static_cast<uint16_t>(sign | half);
}

struct Float16 {
  static void widen(float* out, const unsigned char* src, size_t n) {
    size_t i = 0;
#if defined(__F16C__)
    for (; i + 8 <= n; i += 8) {
      const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(src + 2 * i));
      _mm256_storeu_ps(out + i, _mm256_cvtph_ps(halves));
    }
#endif
    for (; i < n; ++i) {
      uint16_t half;
      memcpy(&half, src + 2 * i, 2);
      out[i] = half_to_float(half);
    }
  }
  static void narrow(unsigned char* dst, const float* in, size_t n) {
    size_t i = 0;
#if defined(__F16C__)
    for (; i + 8 <= n; i += 8) {
      const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(dst + 2 * i), halves);
    }
#endif
    for (; i < n; ++i) {
      const uint16_t half = float_to_half(in[i]);
      memcpy(dst + 2 * i, &half, 2);
    }
  }
};

template <class Codec, class Op>
void reduce_blocks(unsigned char* dst, const unsigned char* const* srcs, size_t n_srcs, size_t count) {
  typename Codec::Acc acc[kBlock];
  for (size_t at = 0; at < count; at += kBlock) {
    const size_t n = count - at < kBlock ? count - at : kBlock;
    Codec::load(acc, srcs[0] + at * Codec::kSize, n);
    for (size_t s = 1; s < n_srcs; ++s) Codec::template combine<Op>(acc, srcs[s] + at * Codec::kSize, n);
    Codec::store(dst + at * Codec::kSize, acc, n);
  }
}

template <class Codec, class Wide>
void divide_blocks(unsigned char* dst, int64_t divisor, size_t count) {
  typename Codec::Acc acc[kBlock];
  for (size_t at = 0; at < count; at += kBlock) {
    const size_t n = count - at < kBlock ? count - at : kBlock;
    Codec::load(acc, dst + at * Codec::kSize, n);
    for (size_t i = 0; i < n; ++i)
      acc[i] = static_cast<typename Codec::Acc>(static_cast<Wide>(acc[i]) / static_cast<Wide>(divisor));
    Codec::store(dst + at * Codec::kSize, acc, n);
  }
}

// Rows in the order of RedOp; sums, products and bits of signed integers are those of the unsigned, which may wrap.
template <class Signed, class Unsigned>
constexpr void fill_integer(ReduceKernel (&row)[8]) {
  row[0] = row[4] = reduce_blocks<Plain<Unsigned>, Sum>;
  row[1] = reduce_blocks<Plain<Unsigned>, Prod>;
  row[2] = reduce_blocks<Plain<Signed>, Min>;
  row[3] = reduce_blocks<Plain<Signed>, Max>;
  row[5] = reduce_blocks<Plain<Unsigned>, And>;
  row[6] = reduce_blocks<Plain<Unsigned>, Or>;
  row[7] = reduce_blocks<Plain<Unsigned>, Xor>;
}

template <class Codec>
constexpr void fill_float(ReduceKernel (&row)[8]) {
  row[0] = row[4] = reduce_blocks<Codec, Sum>;
  row[1] = reduce_blocks<Codec, Prod>;
  row[2] = reduce_blocks<Codec, Min>;
  row[3] = reduce_blocks<Codec, Max>;
}

constexpr Table make_table() {
  Table table{};
  fill_float<Widened<Float16>>(table.reduce[0]);
  fill_float<Widened<BFloat16>>(table.reduce[1]);
  fill_float<Plain<float>>(table.reduce[2]);
  fill_float<Plain<double>>(table.reduce[3]);
  fill_integer<int8_t, uint8_t>(table.reduce[4]);
  fill_integer<int16_t, uint16_t>(table.reduce[5]);
  fill_integer<int32_t, uint32_t>(table.reduce[6]);
  fill_integer<int64_t, uint64_t>(table.reduce[7]);
  fill_integer<uint8_t, uint8_t>(table.reduce[8]);
  table.divide[0] = divide_blocks<Widened<Float16>, float>;
  table.divide[1] = divide_blocks<Widened<BFloat16>, float>;
  table.divide[2] = divide_blocks<Plain<float>, float>;
  table.divide[3] = divide_blocks<Plain<double>, double>;
  table.divide[4] = divide_blocks<Plain<int8_t>, int64_t>;
  table.divide[5] = divide_blocks<Plain<int16_t>, int64_t>;
  table.divide[6] = divide_blocks<Plain<int32_t>, int64_t>;
  table.divide[7] = divide_blocks<Plain<int64_t>, int64_t>;
  table.divide[8] = divide_blocks<Plain<uint8_t>, int64_t>;
  return table;
}

constexpr Table kTable = make_table();

}  // namespace
