// Vectors in registers for the kernels: see kernels.inl.
//
// Is: vectors of GCC's and Clang's extension, how they are loaded, stored and streamed, whole or in part.
// Is not: a header: each including file compiles its own copy with its own instruction set (rules in kernels.inl).
//
// Invariants
//  - No alignment is assumed but by `stream`.
//  - A part of a vector (1, 2, 4 or 8 bytes) lies in the low bytes of one of 16, and the others are zero.
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

// Arrays of vectors stay in registers only if the loops over them are unrolled and the functions around them inlined.
// Not so under a sanitizer: it checks each of the accesses, which would take minutes to compile.
#if defined(CCL_LAB_SANITIZE)
#define CCL_UNROLL
#define CCL_INLINE inline __attribute__((noinline))
#else
#define CCL_INLINE inline __attribute__((always_inline))
#if defined(__clang__)
#define CCL_UNROLL _Pragma("unroll")
#else
#define CCL_UNROLL _Pragma("GCC unroll 16")
#endif
#endif

namespace ccl_lab::kernels {
namespace {

// The bytes of the widest vector here.
#if defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
constexpr size_t kWidth = 64;
#elif defined(__AVX2__)
constexpr size_t kWidth = 32;
#else
constexpr size_t kWidth = 16;
#endif

template <class T, size_t W>
struct VectorOf {
  typedef T type __attribute__((vector_size(W)));
};
template <class T, size_t W>
using Vector = typename VectorOf<T, W>::type;
// What is loaded and stored, whatever the elements are.
template <size_t W>
using Raw = Vector<uint8_t, W>;

// The vector that holds W bytes.
constexpr size_t holder(size_t w) { return w < 16 ? 16 : w; }

template <size_t W>
struct WordOf;
template <>
struct WordOf<1> { using type = uint8_t; };
template <>
struct WordOf<2> { using type = uint16_t; };
template <>
struct WordOf<4> { using type = uint32_t; };
template <>
struct WordOf<8> { using type = uint64_t; };

// Parts go through a word: through memory, the wide load would wait for the narrow store before it.
template <size_t W>
CCL_INLINE Raw<holder(W)> load(const unsigned char* from) {
  if constexpr (W < 16) {
    typename WordOf<W>::type word;
    memcpy(&word, from, W);
    Vector<typename WordOf<W>::type, 16> words{};
    words[0] = word;
    return reinterpret_cast<Raw<16>>(words);
  } else {
    Raw<W> raw;
    memcpy(&raw, from, W);
    return raw;
  }
}

template <size_t W>
CCL_INLINE void store(unsigned char* to, const Raw<holder(W)>& raw) {
  if constexpr (W < 16) {
    const typename WordOf<W>::type word = reinterpret_cast<Vector<typename WordOf<W>::type, 16>>(raw)[0];
    memcpy(to, &word, W);
  } else {
    memcpy(to, &raw, W);
  }
}

// Past the caches; `to` is aligned to W.
template <size_t W>
CCL_INLINE void stream(unsigned char* to, const Raw<W>& raw) {
#if defined(__AVX512F__)
  if constexpr (W == 64) return _mm512_stream_si512(reinterpret_cast<__m512i*>(to), reinterpret_cast<__m512i>(raw));
#endif
#if defined(__AVX2__)
  if constexpr (W == 32) return _mm256_stream_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<__m256i>(raw));
#endif
#if defined(__SSE2__)
  if constexpr (W == 16) return _mm_stream_si128(reinterpret_cast<__m128i*>(to), reinterpret_cast<__m128i>(raw));
#endif
  store<W>(to, raw);
}

CCL_INLINE void stream_fence() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// Keeps the compiler from mixing the accesses before and after it; the processor still may.
CCL_INLINE void keep_order() { asm volatile("" ::: "memory"); }

// Has the vector computed here: the compiler would load all that goes into it first, into more registers than there
// are.
template <class V>
CCL_INLINE void settle(V& vector) {
#if defined(__x86_64__)
  asm volatile("" : "+v"(vector));
#elif defined(__aarch64__)
  asm volatile("" : "+w"(vector));
#else
  (void)vector;
#endif
}

// The address itself, of which the compiler then knows nothing: it would keep one register per vector of a strip.
template <class Byte>
CCL_INLINE Byte* one_register(Byte* at) {
  asm("" : "+r"(at));
  return at;
}

}  // namespace
}  // namespace ccl_lab::kernels
