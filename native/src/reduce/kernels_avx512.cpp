// The reduction kernels for the instruction set "avx512"; see kernels.inl.
#include "reduce/kernels.inl"

namespace ccl_lab::kernels {

const Table& avx512_table() { return kTable; }

}  // namespace ccl_lab::kernels
