// What holds a collective of the host back until a stream of a GPU has come to it, and the stream until the collective has ended.
//
// Is: the host's side of the stall flag (NCCLX, arXiv 2510.20171: the host starts when it sees STARTED, and terminates the stall).
// Is not: the flag itself, nor anything of a GPU: native/src/device/stage.hpp has both.
//
//   UNSET ──hold──► SCHEDULED ──the stream has come──► STARTED ──end()──► TERMINATE
//                        │ the stream never will: started() is an error, which ends the collective
//
// Invariants
//  - started() only ever turns from false to true, or to an error; it may be asked at any rate, by the one who drives the engine.
//  - end() is called once, however the collective ends, also when it was never begun.
#pragma once

#include "base/status.hpp"

namespace ccl_lab {

class Stall {
 public:
  Stall() = default;
  Stall(const Stall&) = delete;
  Stall& operator=(const Stall&) = delete;
  virtual ~Stall() = default;

  virtual Result<bool> started() = 0;
  virtual void end(const Status& status) = 0;
  // What NICs have written to memory of the GPU is there for a NIC that reads it after this.
  virtual Status settle() { return {}; }
};

}  // namespace ccl_lab
