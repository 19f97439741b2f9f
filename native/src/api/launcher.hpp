// Who this process is, from the environment of the launcher that started it.
//
// Is: what `Communicator::join()` without a rank knows: rank, number of ranks and where they meet.
// Is not: the Python package's configuration, though the names and their order are the same (ccl_lab/config.py).
#pragma once

#include <functional>
#include <string>

#include "base/status.hpp"

namespace ccl_lab::api {

struct Launch {
  int rank = 0;
  int n_ranks = 1;
  std::string rendezvous;  // path of a Unix socket
};

// Reads variables through `get` (null: not set), which is std::getenv but for tests.
using Variables = std::function<const char*(const char*)>;
Result<Launch> find_launch(const Variables& get);

}  // namespace ccl_lab::api
