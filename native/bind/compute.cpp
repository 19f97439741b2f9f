// Binds the computation of a run: who does it, and the partitions that the calling thread takes.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "comm/stream.hpp"
#include "gil.hpp"
#include "status.hpp"
#include "work.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using ccl_lab::BoundWork;
using ccl_lab::Code;
using ccl_lab::Computation;
using ccl_lab::Device;
using ccl_lab::Status;

using Durations = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::shared_ptr<Computation> emulated(const Durations& duration_ns) {
  constexpr std::int64_t kLongest = std::int64_t{1} << 53;  // 104 days; any sum of a run's partitions stays in range
  auto how = std::make_shared<Computation>();
  how->device = Device::emulated;
  how->carries = true;
  how->duration_ns.assign(duration_ns.data(), duration_ns.data() + duration_ns.shape(0));
  for (const std::int64_t duration : how->duration_ns)
    if (duration < 0 || duration > kLongest)
      ccl_lab::check(Status(Code::usage, "a partition lasts " + std::to_string(duration) + " ns, expected 0 to 2^53"));
  return how;
}

std::shared_ptr<Computation> caller(bool carries) {
  auto how = std::make_shared<Computation>();
  how->device = Device::caller;
  how->carries = carries;
  return how;
}

// In slices, so that Ctrl-C gets through: at once while asleep, else soon.
std::int64_t next_partition(const BoundWork& bound) {
  constexpr double kSliceS = 0.1;
  for (;;) {
    std::uint32_t op = 0;
    bool found = false;
    {
      const ccl_lab::Unlocked unlocked;
      found = bound.engine->next_partition(*bound.work, kSliceS, op);
    }
    if (found) return bound.work->program().ops()[op].op_id;
    if (bound.work->done()) {
      ccl_lab::check(bound.work->status());
      return -1;
    }
    if (PyErr_CheckSignals() == 0) continue;
    bound.engine->hand_over(true);
    throw nb::python_error();
  }
}

nb::object scratch(const BoundWork& bound) {
  using Held = std::shared_ptr<ccl_lab::Block>;
  const Held& block = bound.work->scratch();
  if (block == nullptr) return nb::none();
  return ccl_lab::byte_view(block->data(), bound.work->program().bytes(ccl_lab::Buffer::scratch), std::make_unique<Held>(block));
}

}  // namespace

void bind_partitions(nb::class_<BoundWork>& work);
void bind_computation(nb::module_& m);

void bind_partitions(nb::class_<BoundWork>& work) {
  work.def("next_partition", &next_partition,
           "The op_id of the compute op that the calling thread has to do now, the one before it having ended; waits for it. -1 "
           "once the work has ended. Raises the error it ended in.")
      .def_prop_ro("scratch", &scratch, "u8 view of SCRATCH, or None.");
}

void bind_computation(nb::module_& m) {
  nb::class_<Computation>(m, "Computation", "Who does the compute ops of a run.")
      .def_static("emulated", &emulated, "duration_ns"_a, "A device that is only a clock: i64 ns by partition.")
      .def_static("caller", &caller, "carries"_a = false,
                  "The thread that calls Work.next_partition. carries: what a partition produces lies in INPUT already.");
}
