// Binds the reductions, for tests and for Python code that reduces like the engine does.
#include "reduce/reduce.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <vector>

#include "gil.hpp"
#include "status.hpp"

namespace nb = nanobind;

namespace {

using ccl_lab::Code;
using ccl_lab::DType;
using ccl_lab::Isa;
using ccl_lab::RedOp;
using ccl_lab::Status;
using Bytes = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ConstBytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

Status check_sizes(DType dtype, RedOp redop, const Bytes& dst, const std::vector<ConstBytes>& srcs) {
  if (auto status = ccl_lab::check_reduction(dtype, redop); !status.ok()) return status;
  if (srcs.empty()) return Status(Code::shape, "a reduction needs at least one source");
  if (dst.nbytes() % ccl_lab::itemsize(dtype) != 0)
    return Status(Code::shape, "dst has " + std::to_string(dst.nbytes()) + " bytes, not a multiple of the element size " +
                                   std::to_string(ccl_lab::itemsize(dtype)));
  for (std::size_t s = 0; s < srcs.size(); ++s)
    if (srcs[s].nbytes() != dst.nbytes())
      return Status(Code::shape, "source " + std::to_string(s) + " has " + std::to_string(srcs[s].nbytes()) +
                                     " bytes, dst has " + std::to_string(dst.nbytes()));
  return {};
}

void reduce(int dtype_number, int redop_number, Bytes dst, const std::vector<ConstBytes>& srcs, int isa) {
  const auto dtype = static_cast<DType>(dtype_number < 0 || dtype_number > 255 ? 255 : dtype_number);
  const auto redop = static_cast<RedOp>(redop_number < 0 || redop_number > 255 ? 255 : redop_number);
  ccl_lab::check(check_sizes(dtype, redop, dst, srcs));
  std::vector<const std::byte*> sources;
  for (const auto& src : srcs) sources.push_back(reinterpret_cast<const std::byte*>(src.data()));
  const Isa chosen = isa < 0 || isa > 2 ? ccl_lab::best_isa() : ccl_lab::usable_isa(static_cast<Isa>(isa));
  const std::size_t count = dst.nbytes() / ccl_lab::itemsize(dtype);
  const ccl_lab::Unlocked unlocked;
  ccl_lab::reduce_with(chosen, dtype, redop, reinterpret_cast<std::byte*>(dst.data()), sources.data(), sources.size(),
                       count);
}

void divide(int dtype_number, Bytes dst, std::int64_t divisor) {
  const auto dtype = static_cast<DType>(dtype_number < 0 || dtype_number > 255 ? 255 : dtype_number);
  ccl_lab::check(check_sizes(dtype, RedOp::sum, dst, {ConstBytes(dst)}));
  if (divisor < 1) ccl_lab::check(Status(Code::usage, "the divisor is " + std::to_string(divisor) + ", expected >= 1"));
  const ccl_lab::Unlocked unlocked;
  ccl_lab::divide(dtype, reinterpret_cast<std::byte*>(dst.data()), divisor, dst.nbytes() / ccl_lab::itemsize(dtype));
}

}  // namespace

void bind_reduce(nb::module_& m) {
  m.def("reduce", &reduce, nb::arg("dtype"), nb::arg("redop"), nb::arg("dst"), nb::arg("srcs"), nb::arg("isa") = -1,
        "dst = srcs[0] (+) srcs[1] (+) ...: u8 views of equal size; dst may be one of the sources. isa: 0 base, 1 AVX2, "
        "2 AVX-512 where there is one; -1 the best. Raises DtypeError, ShapeError. Cost: one pass over all bytes.");
  m.def("divide", &divide, nb::arg("dtype"), nb::arg("dst"), nb::arg("divisor"),
        "dst /= divisor, as an average ends: true division for floats, toward zero for integers.");
}
