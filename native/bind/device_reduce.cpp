// The reduction kernels of GPUs by themselves, for those who measure or check them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <vector>

#include "reduce/cuda/device_reduce.hpp"
#include "status.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

namespace cuda = ccl_lab::cuda;
using ccl_lab::DType;
using ccl_lab::RedOp;
using ccl_lab::Status;

struct DeviceReducer {
  std::shared_ptr<cuda::Context> context;
  ccl_lab::device::Reducer reducer;

  DeviceReducer(const std::string& library, int ordinal)
      : context(ccl_lab::take(cuda::Context::retain(*ccl_lab::take(cuda::open_library(library.c_str())), ordinal))),
        reducer(context, ccl_lab::device::kernel_image()) {}

  Status run(DType dtype, RedOp redop, std::uint64_t target, const std::vector<std::uint64_t>& sources, std::uint64_t count, std::uint64_t stream) {
    const cuda::Scope scope(*context);
    if (!scope.status().ok()) return scope.status();
    if (Status status = reducer.prepare(dtype, redop, sources.size()); !status.ok()) return status;
    return reducer.enqueue(reinterpret_cast<cuda::CuStream>(stream), dtype, redop, target, sources, count, 1);
  }
};

}  // namespace

void bind_device_reduce(nb::module_& m) {
  nb::class_<DeviceReducer>(m, "DeviceReducer", "The reduction kernels of this build on one GPU.")
      .def(nb::init<const std::string&, int>(), "library"_a, "ordinal"_a)
      .def("run",
           [](DeviceReducer& self, int dtype, int redop, std::uint64_t target, const std::vector<std::uint64_t>& sources, std::uint64_t count,
              std::uint64_t stream) { ccl_lab::check(self.run(static_cast<DType>(dtype), static_cast<RedOp>(redop), target, sources, count, stream)); },
           "dtype"_a, "redop"_a, "target"_a, "sources"_a, "count"_a, "stream"_a,
           "target = sources[0] (+) sources[1] ..., `count` elements each, on `stream`; all addresses of the GPU.");
}
