// What one thread of a reduction kernel does: one text for the GPU and for the host, where tests run it.
//
// Is: dst = srcs[0] (+) srcs[1] (+) ... element by element in that order, 16 bytes at a time, several of them under way.
// Is not: a kernel (kernels.cu) and not how the host reduces (../kernels.inl): this is for thousands of threads.
//
// Invariants
//  - The bits are those of ../reduce.hpp, but for the payload of a NaN, which is the processor's business: 16-bit floats accumulate
//    in float32 and round once, integers wrap, min and max hand on NaN.
//  - Each element is read from all sources before it is stored, by the thread that stores it: dst may be one of the sources.
//  - Nothing outside the elements is read or written, whatever the alignment.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define CCL_LAB_ANYWHERE __host__ __device__ __forceinline__
#define CCL_LAB_UNROLL _Pragma("unroll")
#else
#include <cstring>
#define CCL_LAB_ANYWHERE inline
#define CCL_LAB_UNROLL
#endif

namespace ccl_lab::device {

inline constexpr int kMaxSources = 64;
inline constexpr int kThreads = 256;  // of a block

struct ReduceArguments {
  std::uint64_t dst;
  std::uint64_t srcs[kMaxSources];
  std::uint64_t count;     // elements
  std::int64_t divisor;    // of an average; 1: none
  std::int32_t n_srcs;
};

template <class To, class From>
CCL_LAB_ANYWHERE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
#if defined(__CUDACC__)
  union {
    From from;
    To to;
  } both{from};
  return both.to;
#else
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
#endif
}

// -- how an element is held while it is reduced

template <class T>
struct Plain {
  using Stored = T;
  using Held = T;
  static CCL_LAB_ANYWHERE T widen(T value) { return value; }
  static CCL_LAB_ANYWHERE T narrow(T value) { return value; }
};

struct BFloat16 {
  using Stored = std::uint16_t;
  using Held = float;
  static CCL_LAB_ANYWHERE float widen(std::uint16_t value) { return bits_as<float>(static_cast<std::uint32_t>(value) << 16); }
  static CCL_LAB_ANYWHERE std::uint16_t narrow(float value) {
    const std::uint32_t bits = bits_as<std::uint32_t>(value);
    if (value != value) return static_cast<std::uint16_t>((bits >> 16 & 0x8000u) | 0x7fc0u);
    return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
  }
};

struct Float16 {
  using Stored = std::uint16_t;
  using Held = float;
#if defined(__CUDA_ARCH__)
  static __device__ __forceinline__ float widen(std::uint16_t value) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value));
    return wide;
  }
  static __device__ __forceinline__ std::uint16_t narrow(float value) {
    std::uint16_t half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
    return half;
  }
#else  // what those instructions do
  static CCL_LAB_ANYWHERE float widen(std::uint16_t value) {
    const std::uint32_t sign = (value & 0x8000u) << 16, exponent = value >> 10 & 0x1fu, mantissa = value & 0x3ffu;
    if (exponent == 31) return bits_as<float>(sign | 0x7f800000u | mantissa << 13 | (mantissa != 0 ? 0x400000u : 0u));
    const float magnitude = exponent == 0 ? static_cast<float>(mantissa) * 0x1p-24f
                                          : bits_as<float>((exponent + 112u) << 23 | mantissa << 13);
    return bits_as<float>(bits_as<std::uint32_t>(magnitude) | sign);
  }
  static CCL_LAB_ANYWHERE std::uint16_t narrow(float value) {
    const std::uint32_t bits = bits_as<std::uint32_t>(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    std::uint32_t half = 0x7c00u;
    if (magnitude > 0x7f800000u) half = 0x7e00u;
    else if (magnitude < 0x38800000u) half = bits_as<std::uint32_t>(bits_as<float>(magnitude) + 0.5f) - 0x3f000000u;
    else if (magnitude < 0x47800000u) half = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
    return static_cast<std::uint16_t>(sign | half);
  }
#endif
};

// -- reductions; sums and products of integers come as unsigned, which may wrap

struct Sum {
  template <class T>
  static CCL_LAB_ANYWHERE T apply(T a, T b) { return static_cast<T>(a + b); }
};
struct Prod {
  template <class T>
  static CCL_LAB_ANYWHERE T apply(T a, T b) {
    if constexpr (sizeof(T) < 4) return static_cast<T>(static_cast<unsigned>(a) * static_cast<unsigned>(b));
    else return a * b;
  }
};
// The first NaN is the result.
struct Min {
  template <class T>
  static CCL_LAB_ANYWHERE T apply(T a, T b) { return a < b || a != a ? a : b; }
};
struct Max {
  template <class T>
  static CCL_LAB_ANYWHERE T apply(T a, T b) { return a > b || a != a ? a : b; }
};
struct And {
  template <class T>
  static CCL_LAB_ANYWHERE T apply(T a, T b) { return static_cast<T>(a & b); }
};
struct Or {
  template <class T>
  static CCL_LAB_ANYWHERE T apply(T a, T b) { return static_cast<T>(a | b); }
};
struct Xor {
  template <class T>
  static CCL_LAB_ANYWHERE T apply(T a, T b) { return static_cast<T>(a ^ b); }
};

// -- what is done before the store

struct AsItIs {
  template <class Codec>
  static CCL_LAB_ANYWHERE typename Codec::Stored finish(typename Codec::Held held, std::int64_t) { return Codec::narrow(held); }
};
// The sum, rounded, then divided and rounded again; integers (Signed: how they are to be read) toward zero.
template <class Signed>
struct Divided {
  template <class Codec>
  static CCL_LAB_ANYWHERE typename Codec::Stored finish(typename Codec::Held held, std::int64_t divisor) {
    using Stored = typename Codec::Stored;
    const Stored sum = Codec::narrow(held);
    if constexpr (static_cast<Signed>(0.5f) != static_cast<Signed>(0)) {
      return Codec::narrow(Codec::widen(sum) / static_cast<typename Codec::Held>(divisor));
    } else {
      return static_cast<Stored>(static_cast<std::int64_t>(static_cast<Signed>(sum)) / divisor);
    }
  }
};

template <class Stored>
struct alignas(16) Vec {
  Stored lanes[16 / sizeof(Stored)];
};

template <class Codec, class Op, class Finish>
struct Body {
  using Stored = typename Codec::Stored;
  using Held = typename Codec::Held;
  static constexpr int kLanes = 16 / static_cast<int>(sizeof(Stored));
  // Vectors of each source that a thread loads before it adds them: as many as 64 registers hold, narrow elements being widened.
  static constexpr int kUnroll = sizeof(Stored) >= 4 ? 4 : 2;
  // Blocks that an SM holds, so that the grid (device_reduce.cpp: 4 an SM) is one wave of them, or two: with 3 the second wave is mostly empty
  // (float16 reached 0.83 of the copy's bandwidth). The others need more registers for what they have under way.
  static constexpr int kBlocks = sizeof(Stored) == 2 && sizeof(Held) == 4 ? 4 : 2;

  static CCL_LAB_ANYWHERE const Stored* source(const ReduceArguments& a, int s) { return reinterpret_cast<const Stored*>(a.srcs[s]); }

  static CCL_LAB_ANYWHERE void element(const ReduceArguments& a, std::uint64_t at) {
    Held held = Codec::widen(source(a, 0)[at]);
    for (int s = 1; s < a.n_srcs; ++s) held = Op::template apply<Held>(held, Codec::widen(source(a, s)[at]));
    reinterpret_cast<Stored*>(a.dst)[at] = Finish::template finish<Codec>(held, a.divisor);
  }

  // K vectors, `stride` apart, from element `at` on.
  template <int K>
  static CCL_LAB_ANYWHERE void vectors(const ReduceArguments& a, std::uint64_t at, std::uint64_t stride) {
    Held held[K][kLanes];
    Vec<Stored> loaded[K];
    CCL_LAB_UNROLL
    for (int k = 0; k < K; ++k) loaded[k] = *reinterpret_cast<const Vec<Stored>*>(source(a, 0) + at + k * stride);
    CCL_LAB_UNROLL
    for (int k = 0; k < K; ++k) {
      CCL_LAB_UNROLL
      for (int i = 0; i < kLanes; ++i) held[k][i] = Codec::widen(loaded[k].lanes[i]);
    }
    for (int s = 1; s < a.n_srcs; ++s) {
      CCL_LAB_UNROLL
      for (int k = 0; k < K; ++k) loaded[k] = *reinterpret_cast<const Vec<Stored>*>(source(a, s) + at + k * stride);
      CCL_LAB_UNROLL
      for (int k = 0; k < K; ++k) {
        CCL_LAB_UNROLL
        for (int i = 0; i < kLanes; ++i) held[k][i] = Op::template apply<Held>(held[k][i], Codec::widen(loaded[k].lanes[i]));
      }
    }
    CCL_LAB_UNROLL
    for (int k = 0; k < K; ++k) {
      Vec<Stored> stored;
      CCL_LAB_UNROLL
      for (int i = 0; i < kLanes; ++i) stored.lanes[i] = Finish::template finish<Codec>(held[k][i], a.divisor);
      *reinterpret_cast<Vec<Stored>*>(reinterpret_cast<Stored*>(a.dst) + at + k * stride) = stored;
    }
  }

  // Thread `thread` of `threads`.
  static CCL_LAB_ANYWHERE void run(const ReduceArguments& a, std::uint64_t thread, std::uint64_t threads) {
    std::uint64_t apart = 0;
    for (int s = 0; s < a.n_srcs; ++s) apart |= a.srcs[s] ^ a.dst;
    std::uint64_t begin = a.count, end = a.count;  // of what goes in vectors
    if ((apart & 15) == 0 && a.dst % sizeof(Stored) == 0) {
      const std::uint64_t head = (16 - a.dst % 16) % 16 / sizeof(Stored);
      begin = head < a.count ? head : a.count;
      end = begin + (a.count - begin) / kLanes * kLanes;
    }
    for (std::uint64_t at = thread; at < begin; at += threads) element(a, at);
    const std::uint64_t stride = threads * kLanes;
    std::uint64_t at = begin + thread * kLanes;
    for (; at < end && end - at > (kUnroll - 1) * stride; at += kUnroll * stride) vectors<kUnroll>(a, at, stride);
    for (; at < end; at += stride) vectors<1>(a, at, stride);
    for (std::uint64_t rest = end + thread; rest < a.count; rest += threads) element(a, rest);
  }
};

// X(name, codec, op, finish): every kernel, named as the schema names reduction and element type.
#define CCL_LAB_DEVICE_FLOATS(X, type, Codec, Read)        \
  X(sum_##type, Codec, Sum, AsItIs)                        \
  X(prod_##type, Codec, Prod, AsItIs)                      \
  X(min_##type, Codec, Min, AsItIs)                        \
  X(max_##type, Codec, Max, AsItIs)                        \
  X(avg_##type, Codec, Sum, Divided<Read>)
#define CCL_LAB_DEVICE_INTEGERS(X, type, Signed, Unsigned) \
  X(sum_##type, Plain<Unsigned>, Sum, AsItIs)              \
  X(prod_##type, Plain<Unsigned>, Prod, AsItIs)            \
  X(min_##type, Plain<Signed>, Min, AsItIs)                \
  X(max_##type, Plain<Signed>, Max, AsItIs)                \
  X(avg_##type, Plain<Unsigned>, Sum, Divided<Signed>)     \
  X(band_##type, Plain<Unsigned>, And, AsItIs)             \
  X(bor_##type, Plain<Unsigned>, Or, AsItIs)               \
  X(bxor_##type, Plain<Unsigned>, Xor, AsItIs)
#define CCL_LAB_DEVICE_KERNELS(X)                                 \
  CCL_LAB_DEVICE_FLOATS(X, float16, Float16, float)               \
  CCL_LAB_DEVICE_FLOATS(X, bfloat16, BFloat16, float)             \
  CCL_LAB_DEVICE_FLOATS(X, float32, Plain<float>, float)          \
  CCL_LAB_DEVICE_FLOATS(X, float64, Plain<double>, double)        \
  CCL_LAB_DEVICE_INTEGERS(X, int8, std::int8_t, std::uint8_t)     \
  CCL_LAB_DEVICE_INTEGERS(X, int16, std::int16_t, std::uint16_t)  \
  CCL_LAB_DEVICE_INTEGERS(X, int32, std::int32_t, std::uint32_t)  \
  CCL_LAB_DEVICE_INTEGERS(X, int64, std::int64_t, std::uint64_t)  \
  CCL_LAB_DEVICE_INTEGERS(X, uint8, std::uint8_t, std::uint8_t)

}  // namespace ccl_lab::device
