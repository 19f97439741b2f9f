// Native code without the GIL, and with it again.
//
// Is: what nanobind's guards do, for threads too that come back when the interpreter is going.
// Is not: for code that runs before there is an interpreter.
//
// Such a thread, a daemon that was in native code, gets no GIL any more: CPython up to 3.13 ends it by unwinding its stack, which
// a destructor that may not throw turns into std::terminate, the end of the process by a signal. Here it stays where it is, as
// from 3.14 on, until the process ends.
#pragma once

#include <cxxabi.h>
#include <nanobind/nanobind.h>
#include <unistd.h>

namespace ccl_lab {

[[noreturn]] inline void stay() {
  for (;;) ::pause();
}

// Without the GIL, until it goes out of scope.
class Unlocked {
 public:
  Unlocked() : thread_(PyEval_SaveThread()) {}
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;
  ~Unlocked() noexcept(false) {  // throws nothing; that it might lets the unwinding get as far as the handler
    try {
      PyEval_RestoreThread(thread_);
    } catch (const abi::__forced_unwind&) {
      stay();
    }
  }

 private:
  PyThreadState* thread_;
};

// With the GIL, until it goes out of scope.
class Locked {
 public:
  Locked() {
    try {
      state_ = PyGILState_Ensure();
    } catch (const abi::__forced_unwind&) {
      stay();
    }
  }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;
  ~Locked() { PyGILState_Release(state_); }

 private:
  PyGILState_STATE state_;
};

}  // namespace ccl_lab
