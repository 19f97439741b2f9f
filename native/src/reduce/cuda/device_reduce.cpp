// Loading and launching the kernels; see device_reduce.hpp.
#include "reduce/cuda/device_reduce.hpp"

#include <algorithm>

#include "reduce/cuda/body.hpp"
#include "reduce/reduce.hpp"

#ifdef CCL_LAB_CUDA_IMAGE
// The file that nvcc made, as it is.
__asm__(
    ".pushsection .rodata\n"
    ".balign 64\n"
    ".hidden ccl_lab_cuda_image\n.globl ccl_lab_cuda_image\nccl_lab_cuda_image:\n"
    ".incbin \"" CCL_LAB_CUDA_IMAGE "\"\n"
    ".hidden ccl_lab_cuda_image_end\n.globl ccl_lab_cuda_image_end\nccl_lab_cuda_image_end:\n"
    ".byte 0\n"
    ".popsection\n");
extern "C" const std::byte ccl_lab_cuda_image[];
extern "C" const std::byte ccl_lab_cuda_image_end[];
#endif

namespace ccl_lab::device {

std::span<const std::byte> kernel_image() {
#ifdef CCL_LAB_CUDA_IMAGE
  return {ccl_lab_cuda_image, ccl_lab_cuda_image_end};
#else
  return {};
#endif
}

std::string kernel_image_words() {
#ifdef CCL_LAB_CUDA_IMAGE
  return CCL_LAB_CUDA_IMAGE_WORDS;
#else
  return {};
#endif
}

Status Reducer::prepare(DType dtype, RedOp redop, std::size_t n_sources) {
  if (Status status = check_reduction(dtype, redop); !status.ok()) return status;
  if (n_sources > static_cast<std::size_t>(kMaxSources))
    return Status(Code::unsupported, "a reduction of " + std::to_string(n_sources) + " sources on a GPU: at most " +
                                         std::to_string(kMaxSources) + "; use an algorithm with fewer, such as ring");
  if (functions_.contains({dtype, redop})) return {};
  if (image_.empty())
    return Status(Code::unsupported,
                  "this build has no reduction kernels for GPUs, because nvcc was not found when it was built: install the CUDA "
                  "toolkit, put nvcc into PATH and build again (copies, such as all_gather and all_to_all, need none)");
  if (!module_) {
    Result<cuda::Module> module = cuda::load_module(context_, image_.data());
    if (!module.ok()) return module.status();
    module_ = std::move(module).value();
  }
  const std::string name =
      std::string("ccl_lab_") + kRedOpNames[static_cast<std::size_t>(redop)] + "_" + kDTypeNames[static_cast<std::size_t>(dtype)];
  const cuda::Scope scope(*context_);
  if (!scope.status().ok()) return scope.status();
  cuda::CuFunction function = nullptr;
  const cuda::CuResult result = context_->api().module_function(&function, module_.get(), name.c_str());
  if (Status status = cuda::status_of(context_->api(), result, "the kernel " + name); !status.ok()) return status;
  functions_[{dtype, redop}] = function;
  return {};
}

Status Reducer::enqueue(cuda::CuStream stream, DType dtype, RedOp redop, cuda::DevicePtr dst,
                        std::span<const cuda::DevicePtr> srcs, std::uint64_t count, std::int64_t divisor) {
  if (count == 0) return {};
  ReduceArguments arguments{};
  arguments.dst = dst;
  std::copy(srcs.begin(), srcs.end(), arguments.srcs);
  arguments.count = count;
  arguments.divisor = divisor;
  arguments.n_srcs = static_cast<std::int32_t>(srcs.size());
  // A thread for every other vector, at most as many as the GPU holds at a time: the rest comes in strides.
  const std::uint64_t wanted = (count * itemsize(dtype) / 32 + kThreads) / kThreads;
  const auto most = static_cast<std::uint64_t>(std::max(context_->info().multiprocessors, 1)) * 4;
  void* parameters[] = {&arguments};
  const cuda::CuResult result = context_->api().launch(functions_.at({dtype, redop}), static_cast<unsigned>(std::min(wanted, most)), 1, 1,
                                                       kThreads, 1, 1, 0, stream, parameters, nullptr);
  return cuda::status_of(context_->api(), result, "a reduction of " + std::to_string(count) + " elements");
}

}  // namespace ccl_lab::device
