// A Status of native code as an exception of ccl_lab.errors.
//
// Invariants
//  - The code decides the class; rank, nic and op_id become its attributes, so that code can act on the culprit.
//  - All functions need the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <type_traits>
#include <utility>

#include "base/status.hpp"
#include "gil.hpp"

namespace ccl_lab {

// The name of the class in ccl_lab.errors.
const char* class_name(Code code);

// The exception object; not raised.
nanobind::object to_exception(const Status& status);

// Raises unless ok.
void check(const Status& status);

template <class T>
T take(Result<T> result) {
  check(result.status());
  return std::move(result).value();
}

// What `call` returns, made without the GIL: nothing of a Status, the value of a Result. Raises what went wrong.
template <class Call>
auto released(Call call) {
  auto result = [&] {
    const Unlocked unlocked;
    return call();
  }();
  if constexpr (std::is_same_v<decltype(result), Status>) check(result);
  else return take(std::move(result));
}

// A code that came from Python; anything that is no failure means aborted.
Code code_from(int number);

// Class of ccl_lab.errors by name -> code.
nanobind::dict status_codes();

}  // namespace ccl_lab
