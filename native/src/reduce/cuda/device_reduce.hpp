// Reductions over memory of a GPU, on a stream.
//
// Is: the image of the kernels that this build has, and a launch of the one for a reduction and element type.
// Is not: the arithmetic (body.hpp), and not a copy: bytes are moved by copy engines.
//
// Invariants
//  - A build without nvcc has no image; asking for a reduction then is an unsupported error that says so, and nothing else differs.
//  - At most kMaxSources sources.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/status.hpp"
#include "ccl_lab/schema.hpp"
#include "drivers/cuda/driver.hpp"

namespace ccl_lab::device {

// Empty in a build without nvcc.
std::span<const std::byte> kernel_image();
// Which architectures are in it, and by which nvcc it was made: "sm_80 sm_90 sm_100, PTX of compute_80 (nvcc 13.0)"; empty without.
std::string kernel_image_words();

class Reducer {
 public:
  // `image`: kernel_image(), or a test's.
  Reducer(std::shared_ptr<cuda::Context> context, std::span<const std::byte> image) : context_(std::move(context)), image_(image) {}

  // ok where `enqueue` could run it: the reduction exists, there is an image, the sources are not too many. Loads what is needed.
  Status prepare(DType dtype, RedOp redop, std::size_t n_sources);
  // dst = srcs[0] (+) srcs[1] ... on `stream`; the context is current, and prepare() was ok. avg: divided by `divisor`.
  Status enqueue(cuda::CuStream stream, DType dtype, RedOp redop, cuda::DevicePtr dst, std::span<const cuda::DevicePtr> srcs,
                 std::uint64_t count, std::int64_t divisor);

 private:
  std::shared_ptr<cuda::Context> context_;
  std::span<const std::byte> image_;
  cuda::Module module_;
  std::map<std::pair<DType, RedOp>, cuda::CuFunction> functions_;
};

}  // namespace ccl_lab::device
