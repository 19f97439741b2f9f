// The span of a segment: what a NIC or the memory of a node carried at one go.
//
// Is: one record for all transports. Is not: where it is kept (trace/ring.hpp).
#pragma once

#include <cstdint>

#include "trace/ring.hpp"
#include "transport/transport.hpp"

namespace ccl_lab {

// `index`: of the track: the NIC, or the channel inside a node.
inline SpanRecord segment_span(Track track, std::int32_t peer, std::uint16_t index, std::uint16_t epoch, const Tag& tag,
                               std::uint64_t nbytes, std::int64_t begin_ns, std::int64_t end_ns) {
  SpanRecord span{};
  span.begin_ns = begin_ns;
  span.end_ns = end_ns;
  span.nbytes = static_cast<std::int64_t>(nbytes);
  span.coll_id = tag.coll_id;
  span.op_id = tag.op_id;
  span.peer = peer;
  span.index = index;
  span.epoch = epoch;
  span.track = static_cast<std::uint8_t>(track);
  span.kind = static_cast<std::uint8_t>(SpanKind::segment);
  return span;
}

}  // namespace ccl_lab
