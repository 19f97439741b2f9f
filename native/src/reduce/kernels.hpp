// The table of kernels that each instruction set fills; see kernels.inl.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace ccl_lab::kernels {

// Each dst = srcs[0] (+) srcs[1] (+) ...; nbytes is a multiple of the element size. `streaming` asks for stores past
// the caches, fenced before the return.
using ReduceKernel = void (*)(unsigned char* const* dsts, size_t n_dsts, const unsigned char* const* srcs,
                              size_t n_srcs, size_t nbytes, bool streaming);
// The sum, rounded to the element type, then divided and rounded again.
using AverageKernel = void (*)(unsigned char* const* dsts, size_t n_dsts, const unsigned char* const* srcs,
                               size_t n_srcs, size_t nbytes, bool streaming, int64_t divisor);

// Indexed by the values of DType and RedOp; a null kernel is a reduction that is not defined.
struct Table {
  ReduceKernel reduce[9][8];
  AverageKernel average[9];
};

const Table& base_table();
const Table& avx2_table();
const Table& avx512_table();

}  // namespace ccl_lab::kernels
