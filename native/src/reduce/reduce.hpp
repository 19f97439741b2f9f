// Reductions over host memory.
//
// Is: dst = srcs[0] (+) srcs[1] (+) ... element by element in that order, any number of sources and of destinations in
//     one pass over memory; the division that ends an average; and the copy to several destinations.
// Is not: aware of ranks, buffers or schedules; and not parallel: whoever calls cuts the work into slices.
//
// Invariants
//  - Bitwise what numpy computes: 16-bit floats accumulate in float32 and are rounded once (to nearest, ties to even) at
//    the store, integers wrap, min and max hand on NaN. The same bits whatever instruction set is chosen.
//  - A destination may be exactly one of the sources; any other overlap is the caller's error.
//  - No alignment is needed; elements aligned to their size, and buffers aligned to 64 bytes, are fastest.
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

// cached: ordinary stores. streaming: stores past the caches, faster for destinations that are not sources and do not
// fit in them; used where all dsts are aligned alike to 64 bytes, and fenced before the call returns, so that a release
// store that follows publishes them too.
enum class Stores : std::uint8_t { cached = 0, streaming = 1 };

// Each of dsts = srcs[0] (+) ... (+) srcs[n_srcs - 1] in that order, in one pass; n_dsts and n_srcs at least 1. A
// divisor above 1 divides the result before it is stored: the bits are those of `reduce` followed by `divide`. Any dst
// may be exactly one of the sources (several dsts, several sources); there is no other overlap. Up to eight sources that
// are the dsts, in the same order, are fastest. Buffers should begin at one offset within a page, but not at addresses
// that are equal modulo 2^28: some processors hold only one line of those at a time (bench/kernels.cpp shows it).
void reduce_to(DType dtype, RedOp redop, std::byte* const* dsts, std::size_t n_dsts, const std::byte* const* srcs,
               std::size_t n_srcs, std::size_t count, std::int64_t divisor = 1, Stores stores = Stores::cached);
void reduce_to_with(Isa isa, DType dtype, RedOp redop, std::byte* const* dsts, std::size_t n_dsts,
                    const std::byte* const* srcs, std::size_t n_srcs, std::size_t count, std::int64_t divisor = 1,
                    Stores stores = Stores::cached);

// Each of dsts = src, read once; a dst that is exactly src is skipped.
void copy_to(std::byte* const* dsts, std::size_t n_dsts, const std::byte* src, std::size_t nbytes,
             Stores stores = Stores::cached);
void copy_to_with(Isa isa, std::byte* const* dsts, std::size_t n_dsts, const std::byte* src, std::size_t nbytes,
                  Stores stores = Stores::cached);

// dst[i] = dst[i] / divisor: true division for floats (16-bit through float32), toward zero for integers.
void divide(DType dtype, std::byte* dst, std::int64_t divisor, std::size_t count);
void divide_with(Isa isa, DType dtype, std::byte* dst, std::int64_t divisor, std::size_t count);

}  // namespace ccl_lab
