// Reductions against plain loops written from the definitions, for every type, reduction, instruction set, number of
// sources and destinations, alignment and way to store; bits against numpy are compared from Python.
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/cpu.hpp"
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
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  if (exponent == 31) return mantissa ? std::numeric_limits<float>::quiet_NaN() : sign * kInfinity;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
  return sign * std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
}

// Itself; a NaN becomes quiet, and in bfloat16 the one quiet NaN of its sign.
std::uint16_t survivor(DType dtype, std::uint16_t half) {
  const bool nan = (half & 0x7fff) > (dtype == DType::float16 ? 0x7c00 : 0x7f80);
  if (!nan) return half;
  return static_cast<std::uint16_t>(dtype == DType::float16 ? half | 0x0200 : (half & 0x8000) | 0x7fc0);
}

// Adding zero converts there and back: every value must survive, on every instruction set.
TEST(every_16_bit_float_survives) {
  for (const DType dtype : {DType::float16, DType::bfloat16}) {
    std::vector<std::uint16_t> all(65536), zero(65536, 0x8000), out(65536);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
    const std::byte* sources[] = {reinterpret_cast<const std::byte*>(all.data()),
                                  reinterpret_cast<const std::byte*>(zero.data())};
    for (const Isa isa : {Isa::base, Isa::avx2, Isa::avx512}) {
      reduce_with(usable_isa(isa), dtype, RedOp::sum, reinterpret_cast<std::byte*>(out.data()), sources, 2, out.size());
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < all.size(); ++i) wrong += out[i] != survivor(dtype, all[i]);
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

// The 16-bit float nearest to a value, ties to even, by its definition.
std::uint16_t to_half(DType dtype, double value) {
  const int digits = dtype == DType::float16 ? 11 : 8;
  const int least = dtype == DType::float16 ? -14 : -126;
  const int most = dtype == DType::float16 ? 15 : 127;
  const unsigned sign = std::signbit(value) ? 0x8000u : 0u;
  const unsigned infinity = dtype == DType::float16 ? 0x7c00u : 0x7f80u;
  if (std::isnan(value)) return static_cast<std::uint16_t>(sign | infinity | 1u << (digits - 2));
  if (std::isinf(value)) return static_cast<std::uint16_t>(sign | infinity);
  if (value == 0.0) return static_cast<std::uint16_t>(sign);
  const int exponent = std::max(std::ilogb(value), least);
  // In units of the last place; a carry into the next exponent is right in the bits as well.
  const auto units = static_cast<unsigned>(std::nearbyint(std::ldexp(std::fabs(value), digits - 1 - exponent)));
  if (exponent > most) return static_cast<std::uint16_t>(sign | infinity);
  const unsigned bits = (static_cast<unsigned>(exponent - least) << (digits - 1)) + units;
  return static_cast<std::uint16_t>(sign | std::min(bits, infinity));
}

template <class T>
T combined(RedOp redop, T a, T b) {
  if (redop == RedOp::min) return a < b || a != a ? a : b;
  if (redop == RedOp::max) return a > b || a != a ? a : b;
  if constexpr (std::is_floating_point_v<T>) {
    return redop == RedOp::prod ? a * b : a + b;
  } else {
    // Wraps as the wider unsigned type does, in its low bits.
    const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
    switch (redop) {
      case RedOp::prod: return static_cast<T>(x * y);
      case RedOp::band: return static_cast<T>(x & y);
      case RedOp::bor: return static_cast<T>(x | y);
      case RedOp::bxor: return static_cast<T>(x ^ y);
      default: return static_cast<T>(x + y);
    }
  }
}

template <class T>
T element(const Bytes& bytes, std::size_t i) {
  T value;
  std::memcpy(&value, &bytes[i * sizeof(T)], sizeof(T));
  return value;
}

template <class T>
void plain(RedOp redop, const std::vector<Bytes>& sources, std::size_t count, std::int64_t divisor, Bytes& out) {
  for (std::size_t i = 0; i < count; ++i) {
    T value = element<T>(sources[0], i);
    for (std::size_t s = 1; s < sources.size(); ++s) value = combined(redop, value, element<T>(sources[s], i));
    if constexpr (std::is_floating_point_v<T>) value = divisor > 1 ? value / static_cast<T>(divisor) : value;
    else value = divisor > 1 ? static_cast<T>(static_cast<std::int64_t>(value) / divisor) : value;
    std::memcpy(&out[i * sizeof(T)], &value, sizeof(T));
  }
}

void plain_half(DType dtype, RedOp redop, const std::vector<Bytes>& sources, std::size_t count, std::int64_t divisor,
                Bytes& out) {
  for (std::size_t i = 0; i < count; ++i) {
    float value = to_float(dtype, element<std::uint16_t>(sources[0], i));
    for (std::size_t s = 1; s < sources.size(); ++s)
      value = combined(redop, value, to_float(dtype, element<std::uint16_t>(sources[s], i)));
    std::uint16_t half = to_half(dtype, value);
    if (divisor > 1) half = to_half(dtype, to_float(dtype, half) / static_cast<float>(divisor));
    std::memcpy(&out[2 * i], &half, 2);
  }
}

Bytes reference(DType dtype, RedOp redop, const std::vector<Bytes>& sources, std::size_t count, std::int64_t divisor) {
  Bytes out(count * itemsize(dtype));
  switch (dtype) {
    case DType::float32: plain<float>(redop, sources, count, divisor, out); break;
    case DType::float64: plain<double>(redop, sources, count, divisor, out); break;
    case DType::int8: plain<std::int8_t>(redop, sources, count, divisor, out); break;
    case DType::int16: plain<std::int16_t>(redop, sources, count, divisor, out); break;
    case DType::int32: plain<std::int32_t>(redop, sources, count, divisor, out); break;
    case DType::int64: plain<std::int64_t>(redop, sources, count, divisor, out); break;
    case DType::uint8: plain<std::uint8_t>(redop, sources, count, divisor, out); break;
    default: plain_half(dtype, redop, sources, count, divisor, out);
  }
  return out;
}

// Random bits, and between them values of like magnitude, whose sums depend on the order.
Bytes random_elements(std::mt19937_64& random, DType dtype, std::size_t count) {
  Bytes bytes = random_bytes(random, count * itemsize(dtype));
  // The top 16 bits of 1.0, and those of its exponent.
  const unsigned one[] = {0x3c00, 0x3f80, 0x3f80, 0x3ff0}, exponent[] = {0x7c00, 0x7f80, 0x7f80, 0x7ff0};
  const auto type = static_cast<std::size_t>(dtype);
  for (std::size_t i = 0; type < 4 && i < count; i += 2) {
    std::byte* const at = &bytes[(i + 1) * itemsize(dtype) - 2];
    std::uint16_t top;
    std::memcpy(&top, at, 2);
    top = static_cast<std::uint16_t>((top & ~exponent[type]) | one[type]);
    std::memcpy(at, &top, 2);
  }
  return bytes;
}

// Where the destinations lie: apart, or each at a source, in order or from the last one.
enum class Places { apart, first_sources, last_sources, one_source };

struct Trial {
  Isa isa;
  DType dtype;
  RedOp redop;
  std::size_t n_dsts;
  Places places;
  Stores stores;
  std::int64_t divisor;
  std::size_t count;
  std::size_t shifts[16];  // of every buffer from 64-byte alignment
};

// Rooms of one piece of memory; what lies around a buffer must stay.
constexpr std::size_t kRoom = 8192, kGuard = 256;
constexpr std::byte kUntouched{0xa5};

// The room of destination d, of which the first n_srcs are the sources'.
std::size_t room_of(const Trial& trial, std::size_t n_srcs, std::size_t d) {
  switch (trial.places) {
    case Places::first_sources: return d < n_srcs ? d : d + n_srcs;
    case Places::last_sources: return d < n_srcs ? n_srcs - 1 - d : d + n_srcs;
    case Places::one_source: return d == 0 ? n_srcs / 2 : d + n_srcs;
    case Places::apart: break;
  }
  return d + n_srcs;
}

// Every room after the call against what it must be then: the result, its source, or untouched.
bool run_trial(const Trial& trial, const std::vector<Bytes>& sources, const Bytes& want, Bytes& memory) {
  const std::size_t nbytes = trial.count * itemsize(trial.dtype), n_rooms = sources.size() + trial.n_dsts;
  std::byte* const base = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
  std::fill_n(base, n_rooms * kRoom, kUntouched);
  const auto start = [&](std::size_t room) { return base + room * kRoom + kGuard + trial.shifts[room]; };
  std::vector<const std::byte*> srcs, holds(n_rooms);
  std::vector<std::byte*> dsts;
  for (std::size_t s = 0; s < sources.size(); ++s) {
    if (nbytes > 0) std::memcpy(start(s), sources[s].data(), nbytes);
    srcs.push_back(start(s));
    holds[s] = sources[s].data();
  }
  for (std::size_t d = 0; d < trial.n_dsts; ++d) {
    dsts.push_back(start(room_of(trial, sources.size(), d)));
    holds[room_of(trial, sources.size(), d)] = want.data();
  }
  reduce_to_with(trial.isa, trial.dtype, trial.redop, dsts.data(), dsts.size(), srcs.data(), srcs.size(), trial.count,
                 trial.divisor, trial.stores);
  for (std::size_t room = 0; room < n_rooms; ++room) {
    const std::byte* const at = start(room);
    const std::byte* const room_start = base + room * kRoom;
    const std::size_t used = holds[room] != nullptr ? nbytes : 0;
    for (std::size_t i = 0; i < used; i += itemsize(trial.dtype))
      if (!same(trial.dtype, at + i, holds[room] + i)) return false;
    for (const std::byte* b = room_start; b < room_start + kRoom; ++b)
      if ((b < at || b >= at + used) && *b != kUntouched) return false;
  }
  return true;
}

std::string describe(const Trial& trial, std::size_t n_srcs) {
  return std::string(isa_name(trial.isa)) + " " + kDTypeNames[static_cast<int>(trial.dtype)] + " " +
         kRedOpNames[static_cast<int>(trial.redop)] + " sources " + std::to_string(n_srcs) + " destinations " +
         std::to_string(trial.n_dsts) + " places " + std::to_string(static_cast<int>(trial.places)) + " stores " +
         std::to_string(static_cast<int>(trial.stores)) + " divisor " + std::to_string(trial.divisor) + " count " +
         std::to_string(trial.count);
}

// Buffers aligned alike, off by whole elements alike, or each off by any number of bytes.
void choose_shifts(std::mt19937_64& random, Trial& trial) {
  const std::size_t kind = random() % 3, elements = random() % 16 * itemsize(trial.dtype);
  for (std::size_t& shift : trial.shifts) shift = kind == 0 ? 0 : kind == 1 ? elements : random() % 64;
}

// Every trial of one reduction of these sources.
void try_all(std::mt19937_64& random, DType dtype, RedOp redop, const std::vector<Bytes>& sources, std::size_t most,
             std::int64_t divisor, Bytes& memory) {
  const Bytes want = reference(dtype, redop, sources, most, divisor);
  const std::size_t few[] = {0, 1, 2, 3, 5, 7, 8, 9, 15, 17, 31, 33, 63, 64, 65, 127, 129};
  for (const Isa isa : {Isa::base, Isa::avx2, Isa::avx512}) {
    for (std::size_t n_dsts = 1; n_dsts <= 4; ++n_dsts) {
      for (const Stores stores : {Stores::cached, Stores::streaming}) {
        for (const bool large : {false, true}) {
          Trial trial{usable_isa(isa), dtype, redop, n_dsts, static_cast<Places>(random() % 4), stores, divisor, 0, {}};
          trial.count = large ? most - random() % (most / 2) : std::min(most, few[random() % std::size(few)]);
          choose_shifts(random, trial);
          if (!run_trial(trial, sources, want, memory)) CHECK_EQ(describe(trial, sources.size()), "wrong");
        }
      }
    }
    // All sources in place, which has loops of its own.
    Trial trial{usable_isa(isa), dtype, redop, sources.size(), Places::first_sources, Stores::cached, divisor, 0, {}};
    trial.count = most - 1;
    choose_shifts(random, trial);
    if (sources.size() <= 8 && !run_trial(trial, sources, want, memory))
      CHECK_EQ(describe(trial, sources.size()), "wrong");
  }
}

TEST(every_reduction_is_the_plain_one) {
  std::mt19937_64 random(10);
  Bytes memory(18 * kRoom + 64);
  for (std::size_t d = 0; d < kDTypeCount; ++d) {
    const auto dtype = static_cast<DType>(d);
    const std::size_t most = 4900 / itemsize(dtype);
    for (std::size_t n_srcs = 1; n_srcs <= 9; ++n_srcs) {
      std::vector<Bytes> sources;
      for (std::size_t s = 0; s < n_srcs; ++s) sources.push_back(random_elements(random, dtype, most));
      for (std::size_t r = 0; r < kRedOpCount; ++r) {
        const auto redop = static_cast<RedOp>(r);
        if (!check_reduction(dtype, redop).ok()) continue;
        try_all(random, dtype, redop, sources, most, 1, memory);
        const std::int64_t divisors[] = {2, 3, 8, 300};
        if (n_srcs % 2 == 1) try_all(random, dtype, redop, sources, most, divisors[(n_srcs + r) % 4], memory);
      }
    }
  }
}

// Memory that must not be written: a page that cannot be.
class ReadOnly {
 public:
  ReadOnly(std::mt19937_64& random, std::size_t nbytes) : nbytes_((nbytes + 4095) / 4096 * 4096 + 4096) {
    at_ = ::mmap(nullptr, nbytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at_ != MAP_FAILED);
    const Bytes bytes = random_bytes(random, nbytes_);
    std::memcpy(at_, bytes.data(), nbytes_);
    CHECK_EQ(::mprotect(at_, nbytes_, PROT_READ), 0);
  }
  ~ReadOnly() { ::munmap(at_, nbytes_); }
  ReadOnly(const ReadOnly&) = delete;
  ReadOnly& operator=(const ReadOnly&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(at_); }

 private:
  std::size_t nbytes_;
  void* at_;
};

TEST(copies_skip_their_source_and_nothing_else) {
  std::mt19937_64 random(11);
  for (const std::size_t n_dsts : {0u, 1u, 2u, 7u, 63u, 64u, 65u, 130u}) {
    for (const std::size_t nbytes : {0u, 1u, 63u, 64u, 1000u, 8192u, 8200u}) {
      for (const Isa isa : {Isa::base, Isa::avx2, Isa::avx512}) {
        for (const Stores stores : {Stores::cached, Stores::streaming}) {
          const ReadOnly source(random, nbytes);
          std::vector<Bytes> rooms(n_dsts, Bytes(nbytes + 192, kUntouched));
          std::vector<std::byte*> dsts;
          std::vector<std::size_t> shifts;
          for (Bytes& room : rooms) {
            const std::size_t to_line = (64 - reinterpret_cast<std::uintptr_t>(room.data()) % 64) % 64;
            shifts.push_back(random() % 2 ? to_line : random() % 64);
            dsts.push_back(room.data() + shifts.back());
          }
          if (n_dsts > 2) dsts[n_dsts / 2] = source.data();
          copy_to_with(usable_isa(isa), dsts.data(), n_dsts, source.data(), nbytes, stores);
          for (std::size_t d = 0; d < n_dsts; ++d) {
            Bytes want(nbytes + 192, kUntouched);
            if (dsts[d] != source.data()) std::copy_n(source.data(), nbytes, want.data() + shifts[d]);
            CHECK(rooms[d] == want);
          }
        }
      }
    }
  }
}

TEST(averages_are_sums_that_are_divided) {
  std::mt19937_64 random(12);
  for (const DType dtype : {DType::float16, DType::bfloat16, DType::float32, DType::int8, DType::int64}) {
    const std::size_t count = 777;
    std::vector<Bytes> sources;
    std::vector<const std::byte*> at;
    for (int s = 0; s < 5; ++s) sources.push_back(random_elements(random, dtype, count));
    for (const Bytes& source : sources) at.push_back(source.data());
    Bytes two_steps(count * itemsize(dtype)), one_step(two_steps);
    reduce(dtype, RedOp::avg, two_steps.data(), at.data(), at.size(), count);
    divide(dtype, two_steps.data(), 5, count);
    std::byte* const dst = one_step.data();
    reduce_to(dtype, RedOp::avg, &dst, 1, at.data(), at.size(), count, 5);
    CHECK(all_same(dtype, one_step, two_steps));
  }
}

TEST(cache_sizes_are_those_of_a_processor) {
  const CacheSizes sizes = cache_sizes();
  CHECK(sizes.line >= 16 && sizes.line <= 1024 && (sizes.line & (sizes.line - 1)) == 0);
  CHECK(sizes.l1 >= (std::size_t{4} << 10) && sizes.l1 <= (std::size_t{1} << 20));
  CHECK(sizes.l2 >= sizes.l1 && sizes.l3 >= sizes.l2);
  CHECK(sizes.l3 <= (std::size_t{4} << 30));
}

}  // namespace
}  // namespace ccl_lab
