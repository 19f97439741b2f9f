// A work as Python holds it, and waiting as Python does it.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <memory>

#include "base/clock.hpp"
#include "comm/engine.hpp"
#include "gil.hpp"

namespace ccl_lab {

// A work with the engine it runs on, so that it can be cancelled, and waited for.
struct BoundWork {
  std::shared_ptr<Work> work;
  std::shared_ptr<Engine> engine;
};

// True once a work, or an op of a window, has ended. Without the GIL, in slices, so that Ctrl-C gets through: at once while
// asleep, else soon. `timeout_s`: negative for ever. Where a signal handler raised, `interrupted` is called, and the error goes on.
template <class Interrupted>
bool wait_interruptibly(Engine& engine, const Goal& goal, double timeout_s, Interrupted interrupted) {
  constexpr double kSliceS = 0.1;
  const double deadline = static_cast<double>(now_ns()) * 1e-9 + timeout_s;
  for (;;) {
    const double left = timeout_s < 0 ? kSliceS : deadline - static_cast<double>(now_ns()) * 1e-9;
    bool ended = false;
    {
      const Unlocked unlocked;
      ended = engine.wait_slice(goal, std::clamp(left, 0.0, kSliceS));
    }
    if (ended) return true;
    const bool raised = PyErr_CheckSignals() != 0;
    if (!raised && (timeout_s < 0 || left > 0)) continue;
    engine.hand_over();
    if (!raised) return false;
    nanobind::python_error error;  // takes it, so that what follows may call Python
    interrupted();
    throw error;
  }
}

inline bool wait_interruptibly(Engine& engine, const Goal& goal, double timeout_s) {
  return wait_interruptibly(engine, goal, timeout_s, [] {});
}

}  // namespace ccl_lab
