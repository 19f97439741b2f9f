// A work as Python holds it.
#pragma once

#include <memory>

#include "comm/engine.hpp"

namespace ccl_lab {

// A work with the engine it runs on, so that it can be cancelled, and waited for.
struct BoundWork {
  std::shared_ptr<Work> work;
  std::shared_ptr<Engine> engine;
};

}  // namespace ccl_lab
