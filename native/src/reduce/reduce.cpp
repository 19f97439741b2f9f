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

void reduce_with(Isa isa, DType dtype, RedOp redop, std::byte* dst, const std::byte* const* srcs,
                 std::size_t n_srcs, std::size_t count) {
  const auto kernel = table(isa).reduce[static_cast<std::size_t>(dtype)][static_cast<std::size_t>(redop)];
  kernel(reinterpret_cast<unsigned char*>(dst), reinterpret_cast<const unsigned char* const*>(srcs), n_srcs, count);
}

void reduce(DType dtype, RedOp redop, std::byte* dst, const std::byte* const* srcs, std::size_t n_srcs,
            std::size_t count) {
  reduce_with(best_isa(), dtype, redop, dst, srcs, n_srcs, count);
}

void divide_with(Isa isa, DType dtype, std::byte* dst, std::int64_t divisor, std::size_t count) {
  table(isa).divide[static_cast<std::size_t>(dtype)](reinterpret_cast<unsigned char*>(dst), divisor, count);
}

void divide(DType dtype, std::byte* dst, std::int64_t divisor, std::size_t count) {
  divide_with(best_isa(), dtype, dst, divisor, count);
}

}  // namespace ccl_lab
