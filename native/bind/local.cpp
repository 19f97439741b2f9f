// Binds the direct way: a collective of the node from Python buffers to the group and back, in one call.
//
// Is: buffers of one argument each (buffers.hpp), and the wait with and without the GIL.
// Is not: a planner: a call that Python has not admitted, or whose buffers it should rather look at itself, is declined.
#include <nanobind/nanobind.h>

#include <cstdint>
#include <cstring>
#include <string>

#include "base/arithmetic.hpp"
#include "base/clock.hpp"
#include "buffers.hpp"
#include "comm/engine.hpp"
#include "gil.hpp"
#include "status.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using ccl_lab::Collective;
using ccl_lab::DType;
using ccl_lab::Engine;
using ccl_lab::RedOp;
using ccl_lab::Status;
using ccl_lab::View;
using ccl_lab::node::Call;
using ccl_lab::node::Group;
using ccl_lab::node::Turn;

bool find_redop(const char* name, RedOp& redop) {
  for (std::size_t i = 0; i < ccl_lab::kRedOpCount; ++i)
    if (std::strcmp(name, ccl_lab::kRedOpNames[i]) == 0) {
      redop = static_cast<RedOp>(i);
      return true;
    }
  return false;
}

// In place means block for block: the same memory, or the rank's own block of the larger buffer.
bool overlaps_elsewhere(const Call& call, int place, std::uint64_t in_bytes, std::uint64_t out_bytes) {
  if (call.input >= call.output + out_bytes || call.output >= call.input + in_bytes) return false;
  const std::uint64_t own = static_cast<std::uint64_t>(place) * call.block_bytes;
  switch (call.collective) {
    case Collective::all_gather:
    case Collective::gather: return call.input != call.output + own;
    case Collective::reduce_scatter:
    case Collective::scatter: return call.output != call.input + own;
    default: return call.input != call.output;
  }
}

// Fills in buffers and sizes; false where they do not fit the collective, which Python then says.
bool fill(Call& call, PyObject* x, PyObject* out, int place, int n, View& input, View& output) {
  const ccl_lab::node::Blocks blocks = ccl_lab::node::blocks_of(call.collective, place, n, call.root, call.peer);
  if (blocks.input > 0 && (x == Py_None || !input.open(x, false))) return false;
  if (blocks.output > 0 && (out == Py_None || !output.open(out, true))) return false;
  if (blocks.input > 0) {
    call.dtype = input.dtype();
    call.input = input.data();
    call.block_bytes = input.nbytes() / blocks.input;
    if (call.block_bytes * blocks.input != input.nbytes()) return false;
  }
  if (blocks.output > 0) {
    if (blocks.input > 0 && (output.dtype() != call.dtype || output.nbytes() != call.block_bytes * blocks.output)) return false;
    call.dtype = output.dtype();
    call.output = output.data();
    call.block_bytes = output.nbytes() / blocks.output;
    if (call.block_bytes * blocks.output != output.nbytes()) return false;
  }
  if (blocks.input > 0 && blocks.output > 0 && overlaps_elsewhere(call, place, input.nbytes(), output.nbytes())) return false;
  return call.block_bytes % ccl_lab::itemsize(call.dtype) == 0;
}

// Drives to the end; a short while with the GIL, then without, in slices so that signals get through.
Status wait(Engine& engine, Group& group, const Call& call, double timeout_s) {
  constexpr std::int64_t kSliceNs = 50'000'000;
  const ccl_lab::DefaultArithmetic arithmetic;
  Turn turn = Group::is_small(call.collective, call.block_bytes, group.size()) ? group.drive(0) : Turn::waiting;
  if (turn == Turn::done) return {};
  const std::int64_t begin_ns = ccl_lab::now_ns();
  while (turn != Turn::failed) {
    {
      const ccl_lab::Unlocked unlocked;
      turn = group.drive(kSliceNs);
    }
    if (turn == Turn::done) return {};
    if (turn != Turn::failed && static_cast<double>(ccl_lab::now_ns() - begin_ns) * 1e-9 > timeout_s)
      return group.missing(timeout_s);
    if (PyErr_CheckSignals() != 0) {
      const int rank = engine.segment()->rank();
      group.stop(Status(ccl_lab::Code::aborted, "interrupted on rank " + std::to_string(rank), rank));
      throw nb::python_error();
    }
  }
  return group.status();
}

// True once the collective has ended; false where Python has to look first. Raises the error it ended in.
bool collective(Engine& engine, std::uint8_t kind, nb::handle x, nb::handle out, const char* redop, int root, int peer,
                double timeout_s) {
  ccl_lab::Local& local = engine.local();
  if (kind >= ccl_lab::kCollectiveCount || !local.complete()) return false;
  Group& group = local.group();
  Call call;
  call.collective = static_cast<Collective>(kind);
  call.root = root;
  call.peer = peer;
  if (static_cast<unsigned>(root) >= static_cast<unsigned>(group.size()) || !find_redop(redop, call.redop)) return false;
  View input;
  View output;
  if (!fill(call, x.ptr(), out.ptr(), engine.segment()->rank(), group.size(), input, output)) return false;
  if (!local.admitted(call) || !engine.ready().ok() || !local.enter()) return false;
  call.coll_id = local.next_coll_id();
  Status status;
  try {
    local.registry().notice(call, engine.segment()->rank(), group.size());
    status = group.begin(call);
    if (status.ok()) status = wait(engine, group, call, timeout_s);
  } catch (...) {
    local.hold(call);
    local.leave();
    throw;
  }
  local.leave();
  if (status.ok()) return true;
  local.hold(call);
  group.stop(status);
  ccl_lab::check(status);
  return true;
}

// The direct way is open for calls like this one from now on; whoever says so has proved a schedule for it.
void admit(Engine& engine, std::uint8_t kind, std::uint8_t dtype, std::uint8_t redop, int root, int peer,
           std::uint64_t block_bytes) {
  Call call;
  call.collective = static_cast<Collective>(kind);
  call.dtype = static_cast<DType>(dtype);
  call.redop = static_cast<RedOp>(redop);
  call.root = root;
  call.peer = peer;
  call.block_bytes = block_bytes;
  if (kind >= ccl_lab::kCollectiveCount || dtype >= ccl_lab::kDTypeCount || redop >= ccl_lab::kRedOpCount)
    ccl_lab::check(Status(ccl_lab::Code::usage, "admit: unknown collective, element type or reduction"));
  engine.local().admit(call);
}

void register_memory(Engine& engine, std::uintptr_t address, std::uint64_t nbytes) {
  ccl_lab::check(engine.local().registry().add(reinterpret_cast<void*>(address), nbytes));
}
void unregister_memory(Engine& engine, std::uintptr_t address) {
  ccl_lab::check(engine.local().registry().remove(reinterpret_cast<void*>(address)));
}

}  // namespace

void bind_local(nb::class_<Engine>& engine) {
  engine
      .def("collective", &collective, "collective"_a, "x"_a.none(), "out"_a.none(), "redop"_a, "root"_a, "peer"_a, "timeout_s"_a,
           "Runs a collective of the node that was admitted, driven by this thread. False: not this way (see Communicator).")
      .def("admit", &admit, "collective"_a, "dtype"_a, "redop"_a, "root"_a, "peer"_a, "block_bytes"_a,
           "Opens the direct way for calls like this; a schedule for it was proved.")
      .def_prop_ro("node_complete", [](Engine& e) { return e.local().complete(); },
                   "All ranks are on this node, and attached.")
      .def("register", &register_memory, "address"_a, "nbytes"_a,
           "Lets peers use ordinary memory in place; it must stay allocated until unregister.")
      .def("unregister", &unregister_memory, "address"_a)
      .def_prop_ro("registered_bytes", [](Engine& e) { return e.local().registry().registered_bytes(); })
      .def_prop_ro("traffic", [](Engine& e) {
        const ccl_lab::node::Traffic& traffic = e.local().group().traffic();
        return nb::make_tuple(traffic.read_bytes, traffic.written_bytes);
      }, "(bytes read, bytes written) by the node collectives of this rank so far.");
}
