// Exchanges whose counts are read when they start, as Python has them.
//
// Is: Engine.compile_exchange and Engine.start_exchange. Is not: an owner of what they run on: whoever starts one keeps the
//     arrays until the work has ended.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <span>
#include <string>
#include <utility>

#include "status.hpp"
#include "work.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using ccl_lab::BoundWork;
using ccl_lab::BufferView;
using ccl_lab::Code;
using ccl_lab::Engine;
using ccl_lab::Integers;
using ccl_lab::LoadedExchange;
using ccl_lab::Status;

using Bytes = nb::ndarray<nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ReadOnly = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Handles = nb::ndarray<const std::uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::shared_ptr<LoadedExchange> compile(Engine& engine, std::uint64_t plan_hash, std::uint8_t dtype, std::uint64_t row_bytes, std::uint64_t capacity_bytes,
                                        std::uint32_t n_splits, std::vector<std::int32_t> group,
                                        std::vector<std::uint16_t> nic, std::vector<std::uint16_t> peer_nic, bool interleaved) {
  ccl_lab::ExchangeSpec spec;
  spec.plan_hash = plan_hash;
  spec.dtype = static_cast<ccl_lab::DType>(dtype);
  spec.row_bytes = row_bytes;
  spec.capacity_bytes = capacity_bytes;
  spec.n_splits = n_splits;
  spec.group = std::move(group);
  spec.nic = std::move(nic);
  spec.peer_nic = std::move(peer_nic);
  spec.interleaved = interleaved;
  return ccl_lab::released([&] { return engine.compile(std::move(spec)); });
}

BufferView view(const Bytes& array) { return {array.data(), array.nbytes()}; }

Integers integers(const ReadOnly& array, const char* what) {
  const auto type = array.dtype();
  const bool whole = type.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Int) && (type.bits == 32 || type.bits == 64);
  if (!whole) ccl_lab::check(Status(Code::dtype, std::string(what) + ": expected int32 or int64"));
  return {array.data(), array.shape(0), type.bits == 64};
}

BoundWork start(const std::shared_ptr<Engine>& engine, const std::shared_ptr<LoadedExchange>& exchange, const ReadOnly& send,
                const Bytes& receive, const Bytes& scratch, const ReadOnly& lengths, const ReadOnly& ids, const ReadOnly& blocks,
                const Handles& handles, std::uint64_t tag, std::uint32_t coll_id, double timeout_s, bool caller_waits,
                std::shared_ptr<ccl_lab::Stall> stall) {
  const ccl_lab::ExchangeBuffers buffers{{const_cast<void*>(send.data()), send.nbytes()}, view(receive), view(scratch)};
  const ccl_lab::Counts counts{integers(lengths, "lengths"), integers(ids, "ids"), integers(blocks, "blocks"), 0, tag};
  const std::span<const std::uint64_t> known(handles.data(), handles.size());
  const auto go = [&] { return engine->start(*exchange, buffers, counts, known, coll_id, timeout_s, caller_waits, std::move(stall)); };
  return {ccl_lab::released(go), engine};
}

}  // namespace

void bind_exchange(nb::module_& m, nb::class_<Engine>& engine) {
  nb::class_<LoadedExchange>(m, "Exchange", "An exchange of one rank; made by Engine.compile_exchange.")
      .def_prop_ro("output_bytes", [](const LoadedExchange& e) { return e.exchange->output_bytes(); })
      .def_prop_ro("scratch_bytes", [](const LoadedExchange& e) { return e.exchange->scratch_bytes(); })
      .def_prop_ro("lengths_in_output", [](const LoadedExchange& e) { return e.exchange->lengths_buffer() == ccl_lab::Buffer::output; })
      .def("data_offset", [](const LoadedExchange& e, std::size_t place) { return e.exchange->data_offset(place); }, "place"_a)
      .def("lengths_offset", [](const LoadedExchange& e, std::size_t place) { return e.exchange->lengths_offset(place); }, "place"_a);
  engine
      .def("compile_exchange", &compile, nb::kw_only(), "plan_hash"_a, "dtype"_a, "row_bytes"_a, "capacity_bytes"_a, "n_splits"_a,
           "group"_a, "nic"_a, "peer_nic"_a, "interleaved"_a)
      .def("start_exchange", &start, "exchange"_a, "send"_a, "receive"_a, "scratch"_a, "lengths"_a, "ids"_a, "blocks"_a, "handles"_a,
           nb::kw_only(), "tag"_a, "coll_id"_a, "timeout_s"_a, "caller_waits"_a, "stall"_a.none() = nb::none(),
           "Lengths, ids and blocks are read when its turn has come; the caller keeps all arrays until the work has ended.");
}
