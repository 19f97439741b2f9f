// How native code says that something failed.
//
// Is: `Status` (a code, a message and whom it concerns) and `Result<T>` (a value or a Status).
// Is not: an exception; those start in `bind`, which maps each code to a class of ccl_lab.errors.
//
// Invariants
//  - A Status that is ok holds no heap memory, so success costs nothing.
//  - A message says what, where, what was expected, what was found and what to try.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace ccl_lab {

enum class Code : std::uint8_t {
  ok = 0,
  usage = 1,
  shape = 2,
  dtype = 3,
  config = 4,
  bounds = 5,
  connect = 6,
  registration = 7,
  link_down = 8,
  peer_lost = 9,
  timeout = 10,
  aborted = 11,
  unsupported = 12,
  internal = 13,
};

constexpr const char* code_name(Code code) {
  switch (code) {
    case Code::ok: return "ok";
    case Code::usage: return "usage";
    case Code::shape: return "shape";
    case Code::dtype: return "dtype";
    case Code::config: return "config";
    case Code::bounds: return "bounds";
    case Code::connect: return "connect";
    case Code::registration: return "registration";
    case Code::link_down: return "link_down";
    case Code::peer_lost: return "peer_lost";
    case Code::timeout: return "timeout";
    case Code::aborted: return "aborted";
    case Code::unsupported: return "unsupported";
    case Code::internal: return "internal";
  }
  return "unknown";
}

struct [[nodiscard]] Status {
  Code code = Code::ok;
  std::string message;
  int rank = -1;   // the rank the error is about
  int nic = -1;    // the NIC of that rank's node
  int op_id = -1;  // the op of the schedule

  Status() = default;
  Status(Code status_code, std::string text, int about_rank = -1, int about_nic = -1, int about_op = -1)
      : code(status_code), message(std::move(text)), rank(about_rank), nic(about_nic), op_id(about_op) {}

  bool ok() const { return code == Code::ok; }
  explicit operator bool() const { return ok(); }
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) {
    if (status_.ok()) status_ = Status(Code::internal, "a Result was made from an ok Status without a value");
  }

  bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Status& status() const { return status_; }

  // Only where ok().
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return *std::move(value_); }
  T& operator*() { return *value_; }
  T* operator->() { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace ccl_lab
