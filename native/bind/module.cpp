// The Python module ccl_lab._core: binds the subjects, decides nothing. Its Python face is ccl_lab/_core.pyi.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "base/clock.hpp"
#include "base/status.hpp"
#include "ccl_lab/schema.hpp"
#include "reduce/reduce.hpp"
#include "status.hpp"

namespace nb = nanobind;

void bind_reduce(nb::module_& m);
void bind_segment(nb::module_& m);
void bind_engine(nb::module_& m);
void bind_device(nb::module_& m);
void bind_stage(nb::module_& m);
void bind_device_reduce(nb::module_& m);
void bind_sim(nb::module_& m);
void bind_sharing(nb::module_& m);
void bind_sim_scale(nb::module_& m);
void bind_sim_nodes(nb::module_& m);

namespace {

nb::dict build_info() {
  nb::dict info;
  info["compiler"] = __VERSION__;
  info["build_type"] = CCL_LAB_BUILD_TYPE;
  info["sanitize"] = CCL_LAB_SANITIZE;
  info["isa"] = ccl_lab::isa_name(ccl_lab::best_isa());
  info["ops_version"] = ccl_lab::kOpsVersion;
  info["trace_version"] = ccl_lab::kTraceVersion;
  return info;
}

}  // namespace

NB_MODULE(_core, m) {
  m.doc() = "The native engine and simulator of ccl_lab.";
  nb::set_leak_warnings(false);
  m.def("now_ns", &ccl_lab::now_ns, "CLOCK_MONOTONIC in nanoseconds: the clock of every trace of this host.");
  m.def("build_info", &build_info,
        "How this module was built: compiler, build type, sanitizer, instruction set of the reductions, versions of the "
        "schema.");
  m.def("status_codes", &ccl_lab::status_codes, "Number of each error class of ccl_lab.errors that the engine can raise.");
  bind_reduce(m);
  bind_segment(m);
  bind_engine(m);
  bind_device(m);
  bind_stage(m);
  bind_device_reduce(m);
  bind_sim(m);
  bind_sharing(m);
  bind_sim_scale(m);
  bind_sim_nodes(m);
}
