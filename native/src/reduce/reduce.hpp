// Reductions over host memory.
//
// Is: dst = srcs[0] (+) srcs[1] (+) ... element by element in that order, any number of sources in one pass over memory;
//     and the division that ends an average.
// Is not: aware of ranks, buffers or schedules; and not parallel: whoever calls cuts the work into slices.
//
// Invariants
//  - Bitwise what numpy computes: 16-bit floats accumulate in float32 and are rounded once (to nearest, ties to even) at
//    the store, integers wrap, min and max hand on NaN. The same bits whatever instruction set is chosen.
//  - dst may be exactly one of the sources; any other overlap is the caller's error.
//  - No alignment is needed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.hpp"
#include "ccl_lab/schema.hpp"

namespace ccl_lab {

enum class Isa : std::uint8_t { base = 0, avx2 = 1, avx512 = 2 };

constexpr const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::base: return "base";
    case Isa::avx2: return "avx2";
    case Isa::avx512: return "avx512";
  }
  return "unknown";
}

// The best instruction set this processor and this build have.
Isa best_isa();
// What will be used for `wanted`: itself, or the best there is below it.
Isa usable_isa(Isa wanted);

// ok, or a dtype error that says what is not defined (a bitwise reduction of floats, an unknown number).
Status check_reduction(DType dtype, RedOp redop);

// avg adds; `divide` comes at the end. A reduction that check_reduction refuses must not be asked for.
void reduce(DType dtype, RedOp redop, std::byte* dst, const std::byte* const* srcs, std::size_t n_srcs,
            std::size_t count);
void reduce_with(Isa isa, DType dtype, RedOp redop, std::byte* dst, const std::byte* const* srcs,
                 std::size_t n_srcs, std::size_t count);

// dst[i] = dst[i] / divisor: true division for floats (16-bit through float32), toward zero for integers.
void divide(DType dtype, std::byte* dst, std::int64_t divisor, std::size_t count);
void divide_with(Isa isa, DType dtype, std::byte* dst, std::int64_t divisor, std::size_t count);

}  // namespace ccl_lab
