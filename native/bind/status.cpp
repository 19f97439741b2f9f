// The mapping of codes to classes; see status.hpp.
#include "status.hpp"

#include <nanobind/stl/string.h>

namespace nb = nanobind;

namespace ccl_lab {

const char* class_name(Code code) {
  switch (code) {
    case Code::usage: return "UsageError";
    case Code::shape: return "ShapeError";
    case Code::dtype: return "DtypeError";
    case Code::config: return "ConfigError";
    case Code::bounds: return "BoundsError";
    case Code::connect: return "ConnectError";
    case Code::registration: return "RegistrationError";
    case Code::link_down: return "LinkDownError";
    case Code::peer_lost: return "PeerLostError";
    case Code::timeout: return "OpTimeout";
    case Code::aborted: return "AbortedError";
    case Code::unsupported: return "UnsupportedError";
    case Code::ok:
    case Code::internal: break;
  }
  return "CclError";
}

nb::object to_exception(const Status& status) {
  nb::object error_class = nb::module_::import_("ccl_lab.errors").attr(class_name(status.code));
  return error_class(status.message, nb::arg("rank") = status.rank, nb::arg("nic") = status.nic,
                     nb::arg("op_id") = status.op_id);
}

void check(const Status& status) {
  if (status.ok()) return;
  nb::object error = to_exception(status);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

Code code_from(int number) {
  return number > 0 && number <= static_cast<int>(Code::internal) ? static_cast<Code>(number) : Code::aborted;
}

nb::dict status_codes() {
  nb::dict out;
  for (int number = 1; number <= static_cast<int>(Code::internal); ++number)
    out[class_name(static_cast<Code>(number))] = number;
  return out;
}

}  // namespace ccl_lab
