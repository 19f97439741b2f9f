// The table of kernels that each instruction set fills; see kernels.inl.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace ccl_lab::kernels {

using ReduceKernel = void (*)(unsigned char* dst, const unsigned char* const* srcs, size_t n_srcs, size_t count);
using DivideKernel = void (*)(unsigned char* dst, int64_t divisor, size_t count);

// Indexed by the values of DType and RedOp; a null kernel is a reduction that is not defined.
struct Table {
  ReduceKernel reduce[9][8];
  DivideKernel divide[9];
};

const Table& base_table();
const Table& avx2_table();
const Table& avx512_table();

}  // namespace ccl_lab::kernels
