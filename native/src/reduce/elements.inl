// What the kernels do with elements: the reductions, and how elements are held while they are reduced; see kernels.inl.
//
// Is: reductions over vectors; codecs that widen what was loaded (16-bit floats to float32) and narrow what is stored.
// Is not: a header: each including file compiles its own copy with its own instruction set (rules in kernels.inl).
//
// Invariants
//  - Bits are those numpy computes; only the payload of a NaN that several NaNs made is the processor's business.
//  - bfloat16 is rounded by integer arithmetic: the instruction of some processors flushes subnormals to zero.
#include "reduce/vectors.inl"

namespace ccl_lab::kernels {
namespace {

struct Sum {
  template <class V>
  static CCL_INLINE V apply(const V& a, const V& b) { return a + b; }
};
struct Prod {
  template <class V>
  static CCL_INLINE V apply(const V& a, const V& b) { return a * b; }
};
// np.minimum and np.maximum: the first NaN is the result.
struct Min {
  template <class V>
  static CCL_INLINE V apply(const V& a, const V& b) { return ((a < b) | (a != a)) ? a : b; }
};
struct Max {
  template <class V>
  static CCL_INLINE V apply(const V& a, const V& b) { return ((a > b) | (a != a)) ? a : b; }
};
struct And {
  template <class V>
  static CCL_INLINE V apply(const V& a, const V& b) { return a & b; }
};
struct Or {
  template <class V>
  static CCL_INLINE V apply(const V& a, const V& b) { return a | b; }
};
struct Xor {
  template <class V>
  static CCL_INLINE V apply(const V& a, const V& b) { return a ^ b; }
};

// Elements that are reduced as they are stored.
template <class T>
struct Plain {
  static constexpr size_t kSize = sizeof(T);
  static constexpr size_t kRegisters = 1;  // for one vector of elements
  template <size_t W>
  using Wide = Vector<T, W>;
  template <size_t W>
  static CCL_INLINE Wide<W> widen(const Raw<W>& raw) { return reinterpret_cast<Wide<W>>(raw); }
  // W bytes of elements, in the vector that holds them.
  template <size_t W>
  static CCL_INLINE Wide<holder(W)> read(const unsigned char* from) { return widen<holder(W)>(load<W>(from)); }
  template <size_t W>
  static CCL_INLINE Raw<W> narrow(const Wide<W>& wide) { return reinterpret_cast<Raw<W>>(wide); }
  template <class Op, size_t W>
  static CCL_INLINE Wide<W> combine(const Wide<W>& a, const Wide<W>& b) { return Op::apply(a, b); }
};

// Two vectors of float32 for one of 16-bit floats; which element lies where is the codec's business.
template <size_t W>
struct Floats {
  Vector<float, W> a, b;
};
template <size_t W>
CCL_INLINE void settle(Floats<W>& floats) {
  settle(floats.a);
  settle(floats.b);
}

// The base of the codecs of 16-bit floats.
struct Widened {
  static constexpr size_t kSize = 2;
  static constexpr size_t kRegisters = 2;
  template <size_t W>
  using Wide = Floats<W>;
  template <class Op, size_t W>
  static CCL_INLINE Floats<W> combine(const Floats<W>& x, const Floats<W>& y) {
    return {Op::apply(x.a, y.a), Op::apply(x.b, y.b)};
  }
};

// Whether a lane of either is NaN.
template <size_t W>
CCL_INLINE bool any_nan(const Vector<float, W>& a, const Vector<float, W>& b) {
#if defined(__AVX512F__)
  if constexpr (W == 64) return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) != 0;
#endif
#if defined(__AVX2__)
  if constexpr (W == 32) return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q)) != 0;
#endif
#if defined(__SSE2__)
  if constexpr (W == 16) return _mm_movemask_ps(_mm_cmpunord_ps(a, b)) != 0;
#endif
  for (size_t i = 0; i < W / 4; ++i)
    if (a[i] != a[i] || b[i] != b[i]) return true;
  return false;
}

// Lanes of 32 bits hold two elements: the low one is a float32 after a shift, the high one after a mask. No lane moves.
struct BFloat16 : Widened {
  template <size_t W>
  static CCL_INLINE Floats<W> widen(const Raw<W>& raw) {
    using Bits = Vector<uint32_t, W>;
    const Bits bits = reinterpret_cast<Bits>(raw);
    return {reinterpret_cast<Vector<float, W>>(bits << 16), reinterpret_cast<Vector<float, W>>(bits & 0xffff0000u)};
  }
  template <size_t W>
  static CCL_INLINE Floats<holder(W)> read(const unsigned char* from) { return widen<holder(W)>(load<W>(from)); }
  // The rounded element in the high half of its lane; what is below it has no meaning. Right but for NaN.
  template <size_t W>
  static CCL_INLINE Vector<uint32_t, W> round(const Vector<float, W>& value) {
    const Vector<uint32_t, W> bits = reinterpret_cast<Vector<uint32_t, W>>(value);
    return bits + 0x7fffu + ((bits >> 16) & 1u);
  }
  template <size_t W>
  static CCL_INLINE Vector<uint32_t, W> quiet(const Vector<float, W>& value, const Vector<uint32_t, W>& rounded) {
    const Vector<uint32_t, W> bits = reinterpret_cast<Vector<uint32_t, W>>(value);
    return (value != value) ? ((bits & 0x80000000u) | 0x7fc00000u) : rounded;
  }
  template <size_t W>
  static CCL_INLINE Raw<W> narrow(const Floats<W>& wide) {
    Vector<uint32_t, W> low = round<W>(wide.a), high = round<W>(wide.b);
    if (__builtin_expect(any_nan<W>(wide.a, wide.b), 0)) {
      low = quiet<W>(wide.a, low);
      high = quiet<W>(wide.b, high);
    }
    return reinterpret_cast<Raw<W>>((low >> 16) | (high & 0xffff0000u));
  }
};

#if defined(__F16C__)
// The halves of a vector in the order of memory; the smallest vector is widened as a whole.
struct Float16 : Widened {
  template <size_t W>
  static CCL_INLINE Floats<W> widen(const Raw<W>& raw) {
#if defined(__AVX512F__)
    if constexpr (W == 64) {
      const __m512i halves = reinterpret_cast<__m512i>(raw);
      return {_mm512_cvtph_ps(_mm512_castsi512_si256(halves)), _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1))};
    }
#endif
    if constexpr (W == 32) {
      const __m256i halves = reinterpret_cast<__m256i>(raw);
      return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
    } else if constexpr (W == 16) {
      const __m128i halves = reinterpret_cast<__m128i>(raw);
      return {_mm_cvtph_ps(halves), _mm_cvtph_ps(_mm_unpackhi_epi64(halves, halves))};
    }
  }
  // The conversions take memory, so that no vector has to be parted.
  template <size_t W>
  static CCL_INLINE Floats<holder(W)> read(const unsigned char* from) {
#if defined(__AVX512F__)
    if constexpr (W == 64)
      return {_mm512_cvtph_ps(reinterpret_cast<__m256i>(load<32>(from))),
              _mm512_cvtph_ps(reinterpret_cast<__m256i>(load<32>(from + 32)))};
#endif
    if constexpr (W == 32)
      return {_mm256_cvtph_ps(reinterpret_cast<__m128i>(load<16>(from))),
              _mm256_cvtph_ps(reinterpret_cast<__m128i>(load<16>(from + 16)))};
    else if constexpr (W <= 16) return widen<16>(load<W>(from));
  }
  template <size_t W>
  static CCL_INLINE Raw<W> narrow(const Floats<W>& wide) {
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
#if defined(__AVX512F__)
    if constexpr (W == 64)
      return reinterpret_cast<Raw<W>>(_mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtps_ph(wide.a, kNearest)),
                                                         _mm512_cvtps_ph(wide.b, kNearest), 1));
#endif
    if constexpr (W == 32)
      return reinterpret_cast<Raw<W>>(
          _mm256_set_m128i(_mm256_cvtps_ph(wide.b, kNearest), _mm256_cvtps_ph(wide.a, kNearest)));
    else if constexpr (W == 16)
      return reinterpret_cast<Raw<W>>(
          _mm_unpacklo_epi64(_mm_cvtps_ph(wide.a, kNearest), _mm_cvtps_ph(wide.b, kNearest)));
  }
};
#else
CCL_INLINE float bits_to_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
CCL_INLINE uint32_t float_to_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

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

// Lane by lane, for processors without the conversions.
struct Float16 : Widened {
  template <size_t W>
  static CCL_INLINE Floats<holder(W)> read(const unsigned char* from) { return widen<holder(W)>(load<W>(from)); }
  template <size_t W>
  static __attribute__((noinline)) Floats<W> widen(const Raw<W>& raw) {
    uint16_t halves[W / 2];
    float wide[W / 2];
    Floats<W> floats;
    memcpy(halves, &raw, W);
    for (size_t i = 0; i < W / 2; ++i) wide[i] = half_to_float(halves[i]);
    memcpy(&floats, wide, 2 * W);
    return floats;
  }
  template <size_t W>
  static __attribute__((noinline)) Raw<W> narrow(const Floats<W>& floats) {
    uint16_t halves[W / 2];
    float wide[W / 2];
    Raw<W> raw;
    memcpy(wide, &floats, 2 * W);
    for (size_t i = 0; i < W / 2; ++i) halves[i] = float_to_half(wide[i]);
    memcpy(&raw, halves, W);
    return raw;
  }
};
#endif

// What is done with a result before it is stored: nothing, or the division of an average. kSlow: longer than any load,
// so that strips of several vectors gain nothing.
struct AsItIs {
  static constexpr bool kSlow = false;
  template <size_t W>
  CCL_INLINE Raw<W> operator()(const Raw<W>& raw) const { return raw; }
};

template <class T>
struct DividedInteger {
  static constexpr bool kSlow = true;
  int64_t divisor;
  template <size_t W>
  __attribute__((noinline)) Raw<W> operator()(const Raw<W>& raw) const {
    T lanes[W / sizeof(T)];
    Raw<W> divided;
    memcpy(lanes, &raw, W);
    for (T& lane : lanes) lane = static_cast<T>(static_cast<int64_t>(lane) / divisor);
    memcpy(&divided, lanes, W);
    return divided;
  }
};

template <class T>
struct DividedFloat {
  static constexpr bool kSlow = false;
  T divisor;
  template <size_t W>
  CCL_INLINE Raw<W> operator()(const Raw<W>& raw) const {
    return reinterpret_cast<Raw<W>>(reinterpret_cast<Vector<T, W>>(raw) / divisor);
  }
};

template <class Codec>
struct DividedWidened {
  static constexpr bool kSlow = false;
  float divisor;
  template <size_t W>
  CCL_INLINE Raw<W> operator()(const Raw<W>& raw) const {
    Floats<W> wide = Codec::template widen<W>(raw);
    wide.a = wide.a / divisor;
    wide.b = wide.b / divisor;
    return Codec::template narrow<W>(wide);
  }
};

}  // namespace
}  // namespace ccl_lab::kernels
