// The reduction kernels of GPUs: body.hpp, one kernel for each reduction and element type.
//
// Is: compiled by nvcc to one image for sm_80, sm_90 and sm_100, with PTX for what comes after; loaded by device_reduce.cpp.
// Invariant: built with -fmad=false, as the host is with -ffp-contract=off: a fused multiply-add rounds once where numpy rounds twice.
#include "reduce/cuda/body.hpp"

namespace ccl_lab::device {

#define CCL_LAB_DEFINE(name, Codec, Op, Finish)                                                                          \
  extern "C" __global__ void __launch_bounds__(kThreads, Body<Codec, Op, Finish>::kBlocks)                               \
      ccl_lab_##name(const __grid_constant__ ReduceArguments a) {                                                        \
    Body<Codec, Op, Finish>::run(a, static_cast<std::uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x,                   \
                                 static_cast<std::uint64_t>(gridDim.x) * blockDim.x);                                    \
  }
CCL_LAB_DEVICE_KERNELS(CCL_LAB_DEFINE)

}  // namespace ccl_lab::device
