// The columns of a dict, by name, as spans. Is not: a check of what they hold, nor of their lengths (the core's).
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <span>

#include "sim/exact.hpp"

namespace ccl_lab::bind {

class Columns {
 public:
  explicit Columns(const nanobind::dict& columns) : columns_(columns) {}

  template <class T>
  [[nodiscard]] std::span<T> get(const char* name) const {
    const auto column = nanobind::cast<nanobind::ndarray<T, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>>(columns_[name]);
    return {column.data(), column.shape(0)};
  }
  [[nodiscard]] std::int64_t number(const char* name) const { return nanobind::cast<std::int64_t>(columns_[name]); }
  [[nodiscard]] sim::ChangeColumns changes() const {
    return {get<const std::int32_t>("change_link"), get<const std::int64_t>("change_ps"), get<const std::int64_t>("change_bytes_per_s")};
  }

 private:
  const nanobind::dict& columns_;
};

}  // namespace ccl_lab::bind
