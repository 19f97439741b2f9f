// Waits of native code that a signal of Python ends.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

#include "base/status.hpp"
#include "gil.hpp"
#include "status.hpp"

namespace ccl_lab {

// ok, or that Python has a signal to raise; takes the GIL for it.
inline Status interrupted() {
  const Locked held;
  return PyErr_CheckSignals() == 0 ? Status() : Status(Code::aborted, "interrupted from the keyboard");
}

// What a Status means, but the exception of a signal first.
inline void raise_from(const Status& status) {
  if (PyErr_Occurred() != nullptr) throw nanobind::python_error();
  check(status);
}

inline std::int64_t ns_of(double seconds) {
  return seconds < 0 || seconds > 1e9 ? INT64_MAX / 4 : static_cast<std::int64_t>(seconds * 1e9);
}

// What `wait` returns, a Result<bool>, without the GIL.
template <class Wait>
bool waited(Wait wait) {
  Result<bool> ended = false;
  {
    const Unlocked unlocked;
    ended = wait();
  }
  raise_from(ended.status());
  return *ended;
}

}  // namespace ccl_lab
