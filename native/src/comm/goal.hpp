// What somebody waits for: a work (work.hpp) or an op of a window (windows.hpp).
#pragma once

namespace ccl_lab {

class Goal {
 public:
  Goal() = default;
  Goal(const Goal&) = delete;
  Goal& operator=(const Goal&) = delete;
  virtual ~Goal() = default;

  // It has ended, well or not; from any thread. What it says is readable from then on.
  virtual bool done() const = 0;
  // The caller that waits is wanted: it has ended, or there is something that only the caller can do.
  virtual bool calls() const { return done(); }
};

}  // namespace ccl_lab
