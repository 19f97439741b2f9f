// The reduction kernels, compiled once per instruction set by kernels_<isa>.cpp.
//
// Is: loops that keep the accumulators in registers: a strip of a few vectors is read from every source, one source
//     after the other, then stored to every destination.
// Is not: a header: each including file compiles its own copy with its own instruction set.
//
// Invariants
//  - Nothing here may be shared with another file: a function the linker merges could carry instructions that the
//    processor lacks. Hence the unnamed namespace, C headers only and no inline function of the standard library.
//  - A result is stored only when every source was read at its place, so a destination may be a source.
//  - What overlaps (the ends of a buffer) is computed before anything is stored there.
//
// Why strips: reading a few neighbouring lines of one stream before the next keeps DRAM pages open and costs least where
// streams collide in the first-level cache (AMD's way predictor hashes addresses modulo 2^28). Why no prefetch: the
// processor's own was faster at every size that was measured, but for copies with stores past the caches: beside those it
// fetched too late.
#include "reduce/elements.inl"
#include "reduce/kernels.hpp"

namespace ccl_lab::kernels {
namespace {

// How much code a reduction is worth: few bytes go vector by vector; or several at a time; or there are also loops for
// known numbers of sources in place.
enum class Effort { little, some, most };

// Passed by value: in memory it could be what a store of bytes overwrites.
struct Streams {
  unsigned char* const* dsts;
  size_t n_dsts;
  const unsigned char* const* srcs;
  size_t n_srcs;
};

// K vectors of W bytes: a part of every stream, accumulated, and as it is stored.
template <class Codec, size_t W, size_t K>
struct Strip {
  typename Codec::template Wide<holder(W)> acc[K];
  Raw<holder(W)> raw[K];

  CCL_INLINE void begin(const unsigned char* from) {
    CCL_UNROLL
    for (size_t k = 0; k < K; ++k) acc[k] = Codec::template read<W>(from + k * W);
  }
  template <class Op>
  CCL_INLINE void add(const unsigned char* from) {
    CCL_UNROLL
    for (size_t k = 0; k < K; ++k)
      acc[k] = Codec::template combine<Op, holder(W)>(acc[k], Codec::template read<W>(from + k * W));
  }
  template <class Finish>
  CCL_INLINE void end(Finish finish) {
    CCL_UNROLL
    for (size_t k = 0; k < K; ++k)
      raw[k] = finish.template operator()<holder(W)>(Codec::template narrow<holder(W)>(acc[k]));
  }
  template <bool kStreaming = false>
  CCL_INLINE void put(unsigned char* to) const {
    CCL_UNROLL
    for (size_t k = 0; k < K; ++k) {
      if constexpr (kStreaming) stream<W>(to + k * W, raw[k]);
      else store<W>(to + k * W, raw[k]);
    }
  }

  template <class Op, class Finish>
  CCL_INLINE void compute(Streams of, size_t at, Finish finish) {
    begin(one_register(of.srcs[0] + at));
    for (size_t s = 1; s < of.n_srcs; ++s) add<Op>(one_register(of.srcs[s] + at));
    end(finish);
  }
  template <bool kStreaming = false>
  CCL_INLINE void put_all(Streams of, size_t at) const {
    for (size_t d = 0; d < of.n_dsts; ++d) put<kStreaming>(one_register(of.dsts[d] + at));
  }
};

// How far ahead of such copies their source is asked for; past its end that is harmless.
constexpr size_t kAheadBytes = 512;

template <size_t kBytes>
CCL_INLINE void ask_for(const unsigned char* from) {
  CCL_UNROLL
  for (size_t line = 0; line < kBytes; line += 64) __builtin_prefetch(from + line);
}

// As many strips of K vectors as fit; returns the offset of the first byte not done.
template <class Codec, class Op, size_t K, bool kStreaming, size_t kAhead = 0, class Finish>
CCL_INLINE size_t strips(Streams of, size_t at, size_t end, Finish finish) {
  for (; end - at >= K * kWidth; at += K * kWidth) {
    if constexpr (kAhead > 0) ask_for<K * kWidth>(of.srcs[0] + at + kAhead);
    Strip<Codec, kWidth, K> strip;
    strip.template compute<Op>(of, at, finish);
    strip.template put_all<kStreaming>(of, at);
  }
  return at;
}

// N sources that are the destinations, in the same order: every address stays in a register.
template <class Codec, class Op, size_t N>
__attribute__((noinline)) size_t in_place_strips(unsigned char* const* dsts, size_t at, size_t end) {
  constexpr size_t K = kWidth == 64 || Codec::kRegisters > 1 ? 4 : 8;
  unsigned char* streams[N];
  CCL_UNROLL
  for (size_t s = 0; s < N; ++s) streams[s] = dsts[s];
  for (; end - at >= K * kWidth; at += K * kWidth) {
    Strip<Codec, kWidth, K> strip;
    strip.begin(streams[0] + at);
    CCL_UNROLL
    for (size_t s = 1; s < N; ++s) {
      keep_order();
      strip.template add<Op>(streams[s] + at);
      CCL_UNROLL
      for (size_t k = 0; k < K; ++k) settle(strip.acc[k]);
    }
    strip.end(AsItIs{});
    CCL_UNROLL
    for (size_t s = 0; s < N; ++s) {
      keep_order();
      strip.put(streams[s] + at);
    }
  }
  return at;
}

CCL_INLINE bool in_place(Streams of) {
  if (of.n_dsts != of.n_srcs) return false;
  for (size_t s = 0; s < of.n_srcs; ++s)
    if (of.dsts[s] != of.srcs[s]) return false;
  return true;
}

template <class Codec, class Op>
CCL_INLINE size_t unrolled(Streams of, size_t at, size_t end) {
  if (!in_place(of)) return at;
  switch (of.n_srcs) {
    case 2: return in_place_strips<Codec, Op, 2>(of.dsts, at, end);
    case 3: return in_place_strips<Codec, Op, 3>(of.dsts, at, end);
    case 4: return in_place_strips<Codec, Op, 4>(of.dsts, at, end);
    case 5: return in_place_strips<Codec, Op, 5>(of.dsts, at, end);
    case 6: return in_place_strips<Codec, Op, 6>(of.dsts, at, end);
    case 7: return in_place_strips<Codec, Op, 7>(of.dsts, at, end);
    case 8: return in_place_strips<Codec, Op, 8>(of.dsts, at, end);
    default: return at;
  }
}

// The bytes before the first destination is aligned, if those are whole elements.
template <class Codec>
CCL_INLINE size_t head_of(Streams of) {
  const size_t head = (kWidth - reinterpret_cast<uintptr_t>(of.dsts[0]) % kWidth) % kWidth;
  return head % Codec::kSize == 0 ? head : 0;
}

CCL_INLINE bool all_aligned(Streams of, size_t at) {
  for (size_t d = 0; d < of.n_dsts; ++d)
    if (reinterpret_cast<uintptr_t>(of.dsts[d] + at) % kWidth != 0) return false;
  return true;
}

// The reduction that is a copy where there is one source (reduce.cpp).
template <class Codec, class Op>
constexpr bool kCopies = false;
template <>
constexpr bool kCopies<Plain<uint8_t>, Sum> = true;

// Any number of bytes from two vectors on: strips, and the ends where they are not whole vectors. Those are computed
// before anything is stored, and stored last. The streams come one by one, in registers.
template <class Codec, class Op, Effort kEffort, class Finish>
__attribute__((noinline)) void large(unsigned char* const* dsts, size_t n_dsts, const unsigned char* const* srcs,
                                     size_t n_srcs, size_t nbytes, bool streaming, Finish finish) {
  const Streams of{dsts, n_dsts, srcs, n_srcs};
  constexpr size_t W = kWidth;
  constexpr size_t kMost = Finish::kSlow ? 1 : (kEffort == Effort::little ? 4 : 8) / Codec::kRegisters;
  const size_t head = nbytes >= 16 * W ? head_of<Codec>(of) : 0;
  const bool tail = (nbytes - head) % W != 0;
  Strip<Codec, W, 1> first{}, last{};
  if (head != 0) first.template compute<Op>(of, 0, finish);
  if (tail) last.template compute<Op>(of, nbytes - W, finish);
  size_t at = head;
  if (streaming && all_aligned(of, at)) {
    // Fewer vectors a strip: the buffers that combine such stores are few.
    constexpr size_t kFew = kMost > 1 ? kMost / 2 : 1;
    if constexpr (kCopies<Codec, Op>)
      if (n_srcs == 1) at = strips<Codec, Op, kFew, true, kAheadBytes>(of, at, nbytes, finish);
    at = strips<Codec, Op, kFew, true>(of, at, nbytes, finish);
    stream_fence();
  } else {
    if constexpr (kEffort == Effort::most) at = unrolled<Codec, Op>(of, at, nbytes);
    at = strips<Codec, Op, kMost, false>(of, at, nbytes, finish);
  }
  if constexpr (kMost > 1) at = strips<Codec, Op, 1, false>(of, at, nbytes, finish);
  if (head != 0) first.put_all(of, 0);
  if (tail) last.put_all(of, nbytes - W);
}

// Few bytes: K vectors from the front and K from the back, which may overlap; both are computed before either is
// stored. Bytes for which these are too many go to smaller ones.
template <class Codec, class Op, size_t W, size_t K, class Finish>
CCL_INLINE void small(Streams of, size_t nbytes, Finish finish) {
  if (nbytes >= K * W) {
    Strip<Codec, W, K> front, back;
    if (nbytes == K * W) {
      front.template compute<Op>(of, 0, finish);
      return front.put_all(of, 0);
    }
    const size_t behind = nbytes - K * W;
    front.begin(of.srcs[0]);
    back.begin(of.srcs[0] + behind);
    for (size_t s = 1; s < of.n_srcs; ++s) {
      front.template add<Op>(of.srcs[s]);
      back.template add<Op>(of.srcs[s] + behind);
    }
    front.end(finish);
    back.end(finish);
    for (size_t d = 0; d < of.n_dsts; ++d) {
      front.put(of.dsts[d]);
      back.put(of.dsts[d] + behind);
    }
    return;
  }
  if constexpr (K > 1) small<Codec, Op, W, K / 2>(of, nbytes, finish);
  else if constexpr (W / 2 >= Codec::kSize) small<Codec, Op, W / 2, 1>(of, nbytes, finish);
}

template <class Codec, class Op, Effort kEffort, class Finish>
CCL_INLINE void reduce_any(unsigned char* const* dsts, size_t n_dsts, const unsigned char* const* srcs, size_t n_srcs,
                           size_t nbytes, bool streaming, Finish finish) {
  constexpr size_t kMost = kEffort == Effort::little ? 1 : kWidth == 64 ? 4 : 4 / Codec::kRegisters;
  if (nbytes >= 2 * kMost * kWidth)
    return large<Codec, Op, kEffort>(dsts, n_dsts, srcs, n_srcs, nbytes, streaming, finish);
  small<Codec, Op, kWidth, kMost>({dsts, n_dsts, srcs, n_srcs}, nbytes, finish);
}

template <class Codec, class Op, Effort kEffort>
void reduce(unsigned char* const* dsts, size_t n_dsts, const unsigned char* const* srcs, size_t n_srcs, size_t nbytes,
            bool streaming) {
  reduce_any<Codec, Op, kEffort>(dsts, n_dsts, srcs, n_srcs, nbytes, streaming, AsItIs{});
}

template <class Codec, class Finish>
void average(unsigned char* const* dsts, size_t n_dsts, const unsigned char* const* srcs, size_t n_srcs, size_t nbytes,
             bool streaming, int64_t divisor) {
  const Finish finish{static_cast<decltype(Finish::divisor)>(divisor)};
  reduce_any<Codec, Sum, Effort::little>(dsts, n_dsts, srcs, n_srcs, nbytes, streaming, finish);
}

// Rows in the order of RedOp; sums, products and bits of signed integers are those of the unsigned, which may wrap.
template <class Signed, class Unsigned>
constexpr void fill_integer(ReduceKernel (&row)[8]) {
  row[0] = row[4] = reduce<Plain<Unsigned>, Sum, sizeof(Unsigned) >= 4 ? Effort::most : Effort::some>;
  row[1] = reduce<Plain<Unsigned>, Prod, Effort::little>;
  row[2] = reduce<Plain<Signed>, Min, Effort::little>;
  row[3] = reduce<Plain<Signed>, Max, Effort::little>;
  row[5] = reduce<Plain<uint8_t>, And, Effort::little>;
  row[6] = reduce<Plain<uint8_t>, Or, Effort::little>;
  row[7] = reduce<Plain<uint8_t>, Xor, Effort::little>;
}

template <class Codec>
constexpr void fill_float(ReduceKernel (&row)[8]) {
  row[0] = row[4] = reduce<Codec, Sum, Effort::most>;
  row[1] = reduce<Codec, Prod, Effort::little>;
  row[2] = reduce<Codec, Min, Effort::little>;
  row[3] = reduce<Codec, Max, Effort::little>;
}

constexpr Table make_table() {
  Table table{};
  fill_float<Float16>(table.reduce[0]);
  fill_float<BFloat16>(table.reduce[1]);
  fill_float<Plain<float>>(table.reduce[2]);
  fill_float<Plain<double>>(table.reduce[3]);
  fill_integer<int8_t, uint8_t>(table.reduce[4]);
  fill_integer<int16_t, uint16_t>(table.reduce[5]);
  fill_integer<int32_t, uint32_t>(table.reduce[6]);
  fill_integer<int64_t, uint64_t>(table.reduce[7]);
  fill_integer<uint8_t, uint8_t>(table.reduce[8]);
  table.average[0] = average<Float16, DividedWidened<Float16>>;
  table.average[1] = average<BFloat16, DividedWidened<BFloat16>>;
  table.average[2] = average<Plain<float>, DividedFloat<float>>;
  table.average[3] = average<Plain<double>, DividedFloat<double>>;
  table.average[4] = average<Plain<uint8_t>, DividedInteger<int8_t>>;
  table.average[5] = average<Plain<uint16_t>, DividedInteger<int16_t>>;
  table.average[6] = average<Plain<uint32_t>, DividedInteger<int32_t>>;
  table.average[7] = average<Plain<uint64_t>, DividedInteger<int64_t>>;
  table.average[8] = average<Plain<uint8_t>, DividedInteger<uint8_t>>;
  return table;
}

constexpr Table kTable = make_table();

}  // namespace
}  // namespace ccl_lab::kernels
