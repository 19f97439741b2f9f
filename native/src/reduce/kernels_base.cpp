// The reduction kernels for the instruction set "base"; see kernels.inl.
#include "reduce/kernels.inl"

namespace ccl_lab::kernels {

const Table& base_table() { return kTable; }

}  // namespace ccl_lab::kernels
