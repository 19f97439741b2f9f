// Native memory as numpy arrays.
//
// Invariants
//  - An array holds what owns its memory; it may outlive every other object here.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/segment.hpp"
#include "ccl_lab/schema.hpp"
#include "trace/ring.hpp"

namespace ccl_lab {

// u8[nbytes] over memory that `owner` keeps alive.
template <class Owner>
nanobind::object byte_view(std::byte* memory, std::uint64_t nbytes, std::unique_ptr<Owner> owner) {
  nanobind::capsule keeper(owner.release(), [](void* p) noexcept { delete static_cast<Owner*>(p); });
  return nanobind::cast(nanobind::ndarray<nanobind::numpy, std::uint8_t>(memory, {static_cast<std::size_t>(nbytes)}, keeper));
}

// Spans out of the ring, as a structured array.
inline nanobind::object drain(const RankSegment& segment, std::size_t max_spans) {
  SpanReader reader(segment);
  const std::size_t n = std::min(reader.available(), max_spans);
  auto spans = std::make_unique<std::vector<SpanRecord>>(n);
  spans->resize(reader.drain(spans->data(), n));
  auto* const memory = reinterpret_cast<std::byte*>(spans->data());
  const std::uint64_t nbytes = spans->size() * sizeof(SpanRecord);
  static std::byte nothing{};
  nanobind::object bytes = byte_view(nbytes == 0 ? &nothing : memory, nbytes, std::move(spans));
  return bytes.attr("view")(nanobind::module_::import_("ccl_lab.trace.columns").attr("SPAN_DTYPE"));
}

}  // namespace ccl_lab
