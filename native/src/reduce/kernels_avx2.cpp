// The reduction kernels for the instruction set "avx2"; see kernels.inl.
#include "reduce/kernels.inl"

namespace ccl_lab::kernels {

const Table& avx2_table() { return kTable; }

}  // namespace ccl_lab::kernels
