// A Status of native code as an exception of ccl_lab.errors.
//
// Invariants
//  - The code decides the class; rank, nic and op_id become its attributes, so that code can act on the culprit.
//  - All functions need the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include "base/status.hpp"

namespace ccl_lab {

// The exception object; not raised.
nanobind::object to_exception(const Status& status);

// Raises unless ok.
void check(const Status& status);

template <class T>
T take(Result<T> result) {
  check(result.status());
  return std::move(result).value();
}

}  // namespace ccl_lab
