// Sums are the same whoever drives.
//
// Is: the default floating-point environment for as long as this lives: flushing of denormals or another rounding, where
//     the calling thread has it on, would change results.
// Is not: a barrier for the compiler: what runs inside is in other functions.
#pragma once

#include <fenv.h>

namespace ccl_lab {

class DefaultArithmetic {
 public:
#if defined(__x86_64__)
  DefaultArithmetic() : found_(__builtin_ia32_stmxcsr()) {
    if ((found_ & ~kStickyFlags) != kDefault) __builtin_ia32_ldmxcsr(kDefault);
  }
  ~DefaultArithmetic() {
    if ((found_ & ~kStickyFlags) != kDefault) __builtin_ia32_ldmxcsr(found_);
  }
  DefaultArithmetic(const DefaultArithmetic&) = delete;
  DefaultArithmetic& operator=(const DefaultArithmetic&) = delete;

 private:
  static constexpr unsigned kStickyFlags = 0x3f;
  static constexpr unsigned kDefault = 0x1f80;
  unsigned found_;
#else
  DefaultArithmetic() {
    fegetenv(&found_);
    fesetenv(FE_DFL_ENV);
  }
  ~DefaultArithmetic() { fesetenv(&found_); }
  DefaultArithmetic(const DefaultArithmetic&) = delete;
  DefaultArithmetic& operator=(const DefaultArithmetic&) = delete;

 private:
  fenv_t found_;
#endif
};

}  // namespace ccl_lab
