// What a GPU's kernels compute, run on the host by the same body, against the reductions of the host: bit for bit.
#include <cstring>
#include <random>
#include <vector>

#include "check.hpp"
#include "mock_cuda.hpp"
#include "reduce/cuda/body.hpp"
#include "reduce/cuda/device_reduce.hpp"
#include "reduce/reduce.hpp"

using namespace ccl_lab;
namespace gpu = ccl_lab::check::gpu;

namespace {

const std::byte kImage[] = {std::byte{1}};

struct Rig {
  explicit Rig(const gpu::Options& options = {}) {
    gpu::start(options);
    context = std::move(cuda::Context::retain(gpu::api(), 0)).value();
    reducer = std::make_unique<device::Reducer>(context, kImage);
    stream = std::move(cuda::make_stream(context)).value();
  }
  std::shared_ptr<cuda::Context> context;
  std::unique_ptr<device::Reducer> reducer;
  cuda::Stream stream;
};

// Random bits, NaNs and infinities among them; integers over their whole range.
void fill(std::mt19937_64& random, std::byte* data, std::size_t nbytes) {
  for (std::size_t i = 0; i < nbytes; ++i) data[i] = static_cast<std::byte>(random());
}

bool is_nan(DType dtype, const std::byte* at) {
  std::uint16_t half = 0;
  if (dtype == DType::float32) {
    float value = 0;
    std::memcpy(&value, at, 4);
    return value != value;
  }
  if (dtype == DType::float64) {
    double value = 0;
    std::memcpy(&value, at, 8);
    return value != value;
  }
  std::memcpy(&half, at, 2);
  if (dtype == DType::float16) return (half & 0x7fff) > 0x7c00;
  if (dtype == DType::bfloat16) return (half & 0x7fff) > 0x7f80;
  return false;
}

// The same bits, but that any NaN is as good as another.
void compare(DType dtype, RedOp redop, const std::byte* found, const std::byte* wanted, std::size_t count, std::size_t n_srcs) {
  const std::size_t item = itemsize(dtype);
  for (std::size_t i = 0; i < count; ++i) {
    const std::byte* const a = found + i * item;
    const std::byte* const b = wanted + i * item;
    if (std::memcmp(a, b, item) == 0 || (is_nan(dtype, a) && is_nan(dtype, b))) continue;
    check::fail(__FILE__, __LINE__, std::string(kRedOpNames[static_cast<std::size_t>(redop)]) + " of " + kDTypeNames[static_cast<std::size_t>(dtype)] +
                                        ", " + std::to_string(n_srcs) + " sources: element " + std::to_string(i) + " of " + std::to_string(count));
    return;
  }
}

struct Layout {
  std::size_t count;
  std::size_t shift;       // elements before the first
  std::size_t own_shift;   // of the destination: where it differs, nothing is aligned alike
  bool in_place;
};

void one(Rig& rig, std::mt19937_64& random, DType dtype, RedOp redop, std::size_t n_srcs, const Layout& layout) {
  const std::size_t item = itemsize(dtype), nbytes = layout.count * item, room = nbytes + 256;
  std::vector<cuda::DeviceMemory> memory;
  std::vector<cuda::DevicePtr> srcs;
  std::vector<const std::byte*> host_srcs;
  std::vector<std::vector<std::byte>> copies;
  for (std::size_t s = 0; s < n_srcs; ++s) {
    memory.push_back(std::move(cuda::allocate(rig.context, room)).value());
    srcs.push_back(memory.back().get() + layout.shift * item);
    fill(random, gpu::host_view(srcs.back()), nbytes);
    copies.emplace_back(gpu::host_view(srcs.back()), gpu::host_view(srcs.back()) + nbytes);
  }
  for (const auto& copy : copies) host_srcs.push_back(copy.data());
  memory.push_back(std::move(cuda::allocate(rig.context, room)).value());
  const cuda::DevicePtr dst = layout.in_place ? srcs[n_srcs / 2] : memory.back().get() + layout.own_shift * item;
  std::vector<std::byte> before(gpu::host_view(dst) - 8 * (dst > memory.back().get() + 8 && !layout.in_place), gpu::host_view(dst));
  std::vector<std::byte> wanted(nbytes);
  const std::int64_t divisor = redop == RedOp::avg ? static_cast<std::int64_t>(n_srcs) : 1;
  std::byte* wanted_dst = wanted.data();
  reduce_to(dtype, redop, &wanted_dst, 1, host_srcs.data(), n_srcs, layout.count, divisor);
  CHECK_OK(rig.reducer->prepare(dtype, redop, n_srcs));
  CHECK_OK(rig.reducer->enqueue(rig.stream.get(), dtype, redop, dst, srcs, layout.count, divisor));
  gpu::settle();
  compare(dtype, redop, gpu::host_view(dst), wanted.data(), layout.count, n_srcs);
  // Nothing behind the last element.
  if (!layout.in_place) CHECK(*(gpu::host_view(dst) + nbytes) == std::byte{0});
  CHECK_EQ(gpu::faults(), 0);
}

bool defined(DType dtype, RedOp redop) { return check_reduction(dtype, redop).ok(); }

}  // namespace

TEST(every_reduction_of_every_type_is_that_of_the_host) {
  Rig rig;
  std::mt19937_64 random(7);
  const Layout layouts[] = {{1000, 0, 0, false}, {3, 1, 1, false}, {513, 3, 3, false}, {257, 1, 2, false}, {4096, 0, 0, true}, {65, 5, 5, true}};
  for (std::size_t d = 0; d < kDTypeCount; ++d)
    for (std::size_t r = 0; r < kRedOpCount; ++r)
      for (const std::size_t n : {1u, 2u, 3u, 5u, 8u})
        if (const auto dtype = static_cast<DType>(d); defined(dtype, static_cast<RedOp>(r)))
          for (const Layout& layout : layouts) one(rig, random, dtype, static_cast<RedOp>(r), n, layout);
  CHECK(gpu::kernels_run() > 1000);
}

TEST(all_sixteen_bit_floats_are_widened_and_rounded_as_on_the_host) {
  Rig rig;
  for (const DType dtype : {DType::float16, DType::bfloat16}) {
    constexpr std::size_t kCount = 65536;
    auto a = std::move(cuda::allocate(rig.context, 2 * kCount)).value();
    auto b = std::move(cuda::allocate(rig.context, 2 * kCount)).value();
    auto* const x = reinterpret_cast<std::uint16_t*>(gpu::host_view(a.get()));
    auto* const y = reinterpret_cast<std::uint16_t*>(gpu::host_view(b.get()));
    for (const unsigned other : {0u, 0x3c01u, 0x8001u, 0x3f81u, 0x7bffu}) {
      for (unsigned i = 0; i < kCount; ++i) {
        x[i] = static_cast<std::uint16_t>(i);
        y[i] = static_cast<std::uint16_t>(other);
      }
      for (const RedOp redop : {RedOp::sum, RedOp::prod, RedOp::avg}) {
        std::vector<std::byte> wanted(2 * kCount), one(gpu::host_view(a.get()), gpu::host_view(a.get()) + 2 * kCount);
        const std::byte* srcs[] = {one.data(), gpu::host_view(b.get())};
        std::byte* dst = wanted.data();
        const std::int64_t divisor = redop == RedOp::avg ? 2 : 1;
        reduce_to(dtype, redop, &dst, 1, srcs, 2, kCount, divisor);
        auto out = std::move(cuda::allocate(rig.context, 2 * kCount)).value();
        const cuda::DevicePtr from[] = {a.get(), b.get()};
        CHECK_OK(rig.reducer->prepare(dtype, redop, 2));
        CHECK_OK(rig.reducer->enqueue(rig.stream.get(), dtype, redop, out.get(), from, kCount, divisor));
        gpu::settle();
        compare(dtype, redop, gpu::host_view(out.get()), wanted.data(), kCount, 2);
      }
    }
  }
}

TEST(what_cannot_be_reduced_is_said) {
  Rig rig;
  CHECK(rig.reducer->prepare(DType::float32, RedOp::bxor, 2).code == Code::dtype);
  CHECK(rig.reducer->prepare(DType::float32, RedOp::sum, 65).code == Code::unsupported);
  device::Reducer without(rig.context, {});
  const Status status = without.prepare(DType::float32, RedOp::sum, 2);
  CHECK(status.code == Code::unsupported);
  CHECK(status.message.find("nvcc") != std::string::npos);
  gpu::fail_call(1, cuda::kUnsupportedPtx);
  CHECK(!rig.reducer->prepare(DType::float32, RedOp::sum, 2).ok());
}

TEST(the_image_of_a_build_with_nvcc_names_its_architectures) {
  CHECK_EQ(device::kernel_image().empty(), device::kernel_image_words().empty());
  if (!device::kernel_image().empty()) CHECK(device::kernel_image_words().find("sm_90") != std::string::npos);
}
