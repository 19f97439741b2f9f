// The choice of kernels by instruction set; see reduce.hpp.
#include "reduce/reduce.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <string>

#include "reduce/kernels.hpp"

namespace ccl_lab {

static_assert(kDTypeCount == 9 && kRedOpCount == 8, "the kernel tables have a row per type and a column per reduction");
static_assert(static_cast<int>(DType::uint8) == 8 && static_cast<int>(RedOp::bxor) == 7);

namespace {

const kernels::Table& table(Isa isa) {
#if defined(__x86_64__)
  switch (isa) {
    case Isa::avx512: return kernels::avx512_table();
    case Isa::avx2: return kernels::avx2_table();
    case Isa::base: return kernels::base_table();
  }
#endif
  (void)isa;
  return kernels::base_table();
}

#if defined(__x86_64__)
// Not every compiler has a name for this feature in __builtin_cpu_supports.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

const kernels::Table& best_table() {
  static const kernels::Table& best = table(best_isa());
  return best;
}

auto bytes_of(std::byte* const* at) { return reinterpret_cast<unsigned char* const*>(at); }
auto bytes_of(const std::byte* const* at) { return reinterpret_cast<const unsigned char* const*>(at); }

void reduced_to(const kernels::Table& with, DType dtype, RedOp redop, std::byte* const* dsts, std::size_t n_dsts,
                const std::byte* const* srcs, std::size_t n_srcs, std::size_t count, Stores stores) {
  const auto kernel = with.reduce[static_cast<std::size_t>(dtype)][static_cast<std::size_t>(redop)];
  kernel(bytes_of(dsts), n_dsts, bytes_of(srcs), n_srcs, count * itemsize(dtype), stores == Stores::streaming);
}

void copied_to(const kernels::Table& with, std::byte* const* dsts, std::size_t n_dsts, const std::byte* src,
               std::size_t nbytes, Stores stores) {
  // A sum of one source is a copy.
  const auto kernel = with.reduce[static_cast<std::size_t>(DType::uint8)][static_cast<std::size_t>(RedOp::sum)];
  constexpr std::size_t kAtOnce = 64;
  std::byte* others[kAtOnce];
  std::size_t n = 0;
  for (std::size_t d = 0; d < n_dsts; ++d) {
    if (dsts[d] != src) others[n++] = dsts[d];
    if (n == kAtOnce || (d + 1 == n_dsts && n > 0)) {
      kernel(bytes_of(others), n, bytes_of(&src), 1, nbytes, stores == Stores::streaming);
      n = 0;
    }
  }
}

void averaged_to(const kernels::Table& with, DType dtype, RedOp redop, std::byte* const* dsts, std::size_t n_dsts,
                 const std::byte* const* srcs, std::size_t n_srcs, std::size_t count, std::int64_t divisor,
                 Stores stores) {
  const auto type = static_cast<std::size_t>(dtype);
  const std::size_t nbytes = count * itemsize(dtype);
  const bool streaming = stores == Stores::streaming;
  if (redop == RedOp::sum || redop == RedOp::avg)
    return with.average[type](bytes_of(dsts), n_dsts, bytes_of(srcs), n_srcs, nbytes, streaming, divisor);
  // Nothing else is divided in practice; defined all the same, in two passes.
  reduced_to(with, dtype, redop, dsts, 1, srcs, n_srcs, count, Stores::cached);
  const std::byte* const first = dsts[0];
  with.average[type](bytes_of(dsts), 1, bytes_of(&first), 1, nbytes, false, divisor);
  copied_to(with, dsts + 1, n_dsts - 1, first, nbytes, stores);
}

}  // namespace

Isa best_isa() {
#if defined(__x86_64__)
  static const Isa best = [] {
    if (!__builtin_cpu_supports("avx2") || !has_f16c()) return Isa::base;
    const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    return wide ? Isa::avx512 : Isa::avx2;
  }();
  return best;
#else
  return Isa::base;
#endif
}

Isa usable_isa(Isa wanted) { return wanted < best_isa() ? wanted : best_isa(); }

Status check_reduction(DType dtype, RedOp redop) {
  const auto type = static_cast<std::size_t>(dtype);
  const auto op = static_cast<std::size_t>(redop);
  if (type >= kDTypeCount) return Status(Code::dtype, "element type number " + std::to_string(type) + " is not known");
  if (op >= kRedOpCount) return Status(Code::dtype, "reduction number " + std::to_string(op) + " is not known");
  if (kernels::base_table().reduce[type][op] == nullptr)
    return Status(Code::dtype, std::string("the reduction ") + kRedOpNames[op] + " is not defined for " +
                                   kDTypeNames[type] + "; it needs integers");
  return {};
}

void reduce_to_with(Isa isa, DType dtype, RedOp redop, std::byte* const* dsts, std::size_t n_dsts,
                    const std::byte* const* srcs, std::size_t n_srcs, std::size_t count, std::int64_t divisor,
                    Stores stores) {
  if (divisor > 1) return averaged_to(table(isa), dtype, redop, dsts, n_dsts, srcs, n_srcs, count, divisor, stores);
  reduced_to(table(isa), dtype, redop, dsts, n_dsts, srcs, n_srcs, count, stores);
}

void reduce_to(DType dtype, RedOp redop, std::byte* const* dsts, std::size_t n_dsts, const std::byte* const* srcs,
               std::size_t n_srcs, std::size_t count, std::int64_t divisor, Stores stores) {
  if (divisor > 1) return averaged_to(best_table(), dtype, redop, dsts, n_dsts, srcs, n_srcs, count, divisor, stores);
  reduced_to(best_table(), dtype, redop, dsts, n_dsts, srcs, n_srcs, count, stores);
}

void reduce_with(Isa isa, DType dtype, RedOp redop, std::byte* dst, const std::byte* const* srcs,
                 std::size_t n_srcs, std::size_t count) {
  reduced_to(table(isa), dtype, redop, &dst, 1, srcs, n_srcs, count, Stores::cached);
}

void reduce(DType dtype, RedOp redop, std::byte* dst, const std::byte* const* srcs, std::size_t n_srcs,
            std::size_t count) {
  reduced_to(best_table(), dtype, redop, &dst, 1, srcs, n_srcs, count, Stores::cached);
}

void divide_with(Isa isa, DType dtype, std::byte* dst, std::int64_t divisor, std::size_t count) {
  const std::byte* const src = dst;
  averaged_to(table(isa), dtype, RedOp::sum, &dst, 1, &src, 1, count, divisor, Stores::cached);
}

void divide(DType dtype, std::byte* dst, std::int64_t divisor, std::size_t count) {
  divide_with(best_isa(), dtype, dst, divisor, count);
}

void copy_to_with(Isa isa, std::byte* const* dsts, std::size_t n_dsts, const std::byte* src, std::size_t nbytes,
                  Stores stores) {
  copied_to(table(isa), dsts, n_dsts, src, nbytes, stores);
}

void copy_to(std::byte* const* dsts, std::size_t n_dsts, const std::byte* src, std::size_t nbytes, Stores stores) {
  copied_to(best_table(), dsts, n_dsts, src, nbytes, stores);
}

}  // namespace ccl_lab
