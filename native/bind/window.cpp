// Windows as Python has them: Engine.make_window and the ops of a Window.
//
// Is: arguments into native calls, and waiting. Is not: an owner of what is put or got: whoever starts an op keeps its array until
//     it has ended (ccl_lab/engine/window.py).
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <utility>

#include "gil.hpp"
#include "status.hpp"
#include "work.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using ccl_lab::BufferView;
using ccl_lab::Engine;
using ccl_lab::NicPair;
using ccl_lab::released;
using ccl_lab::Sided;
using ccl_lab::MemoryWindow;

using Bytes = nb::ndarray<nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ReadOnly = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

struct BoundWindow {
  std::shared_ptr<MemoryWindow> window;
  std::shared_ptr<Engine> engine;
};

// Put, get, flush or wait that takes time.
struct BoundOp {
  std::shared_ptr<Sided> op;
  std::shared_ptr<Engine> engine;
};

BoundWindow make(const std::shared_ptr<Engine>& engine, std::uint32_t number, int place, const Bytes& memory,
                 const std::vector<std::pair<std::uint64_t, std::uint64_t>>& parts, std::vector<std::vector<NicPair>> lanes,
                 std::vector<std::uint64_t> raised) {
  ccl_lab::WindowSpec spec;
  spec.number = number;
  spec.place = place;
  spec.raised = std::move(raised);
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    ccl_lab::WindowPart& part = spec.parts.emplace_back();
    part.offset = parts[rank].first;
    part.nbytes = parts[rank].second;
    if (rank < lanes.size()) part.lanes = std::move(lanes[rank]);
  }
  const void* const shown = memory.data();
  return {released([&] { return engine->make_window(std::move(spec), shown); }), engine};
}

// Null where it has ended, and well, or was copied and goes on by itself.
std::optional<BoundOp> started(const BoundWindow& bound, std::shared_ptr<Sided> op) {
  if (!op->done() && op->copied()) return std::nullopt;
  if (!op->done()) return BoundOp{std::move(op), bound.engine};
  ccl_lab::check(op->status());
  return std::nullopt;
}

std::optional<BoundOp> put(const BoundWindow& bound, std::int32_t rank, const ReadOnly& data, std::uint64_t offset, bool signals,
                           bool urgent) {
  const BufferView view{const_cast<void*>(data.data()), data.nbytes()};
  return started(bound, released([&] { return bound.engine->put(bound.window, rank, view, offset, signals, urgent); }));
}

std::optional<BoundOp> get(const BoundWindow& bound, std::int32_t rank, const Bytes& out, std::uint64_t offset) {
  const BufferView view{out.data(), out.nbytes()};
  return started(bound, released([&] { return bound.engine->get(bound.window, rank, view, offset); }));
}

std::optional<BoundOp> signal(const BoundWindow& bound, std::int32_t rank) {
  return started(bound, released([&] { return bound.engine->signal(bound.window, rank); }));
}

std::optional<BoundOp> flush(const BoundWindow& bound, std::int32_t rank) {
  return started(bound, released([&] { return bound.engine->flush(bound.window, rank); }));
}

// Ends it if need be: signals that come later are those of a later wait.
std::vector<std::int32_t> wait_signals(const BoundWindow& bound, std::int32_t rank, std::uint64_t count, double timeout_s) {
  const std::shared_ptr<Sided> op = released([&] { return bound.engine->wait_signals(bound.window, rank, count); });
  const auto give_up = [&] {
    const ccl_lab::Unlocked unlocked;
    bound.engine->give_up(*op, timeout_s);
  };
  if (!op->done() && !ccl_lab::wait_interruptibly(*bound.engine, *op, timeout_s, give_up)) give_up();
  ccl_lab::check(op->status());
  return op->taken();
}

bool wait(const BoundOp& bound, double timeout_s) {
  if (!bound.op->done() && !ccl_lab::wait_interruptibly(*bound.engine, *bound.op, timeout_s)) return false;
  ccl_lab::check(bound.op->status());
  return true;
}

}  // namespace

void bind_window(nb::module_& m, nb::class_<Engine>& engine) {
  nb::class_<BoundOp>(m, "WindowOp", "A put, get or flush of a window in progress.")
      .def("wait", &wait, "timeout_s"_a = -1.0,
           "Waits until it ended, or `timeout_s` (negative: for ever) passed: then False. Raises the error it ended in.")
      .def("done", [](const BoundOp& bound) { return bound.op->done(); })
      .def("failed", [](const BoundOp& bound) { return bound.op->done() && !bound.op->status().ok(); });
  nb::class_<BoundWindow>(m, "Window", "Memory of all ranks, as one of them reaches it; made by Engine.make_window.")
      .def("put", &put, "rank"_a, "data"_a, "offset"_a, "signals"_a, "urgent"_a, "None where nobody has to wait; else the caller keeps `data`.")
      .def("get", &get, "rank"_a, "out"_a, "offset"_a, "None where it has ended; else the caller keeps `out`.")
      .def("signal", &signal, "rank"_a)
      .def("flush", &flush, "rank"_a, "Of puts and gets with `rank`; -1: with all.")
      .def("wait", &wait_signals, "rank"_a, "count"_a, "timeout_s"_a, "Takes signals of `rank` (-1: any): a rank for each.")
      .def("count", [](const BoundWindow& bound, std::int32_t rank) { return bound.window->count(rank); }, "rank"_a)
      .def("close", [](const BoundWindow& bound) {
        const ccl_lab::Unlocked unlocked;
        bound.engine->close_window(*bound.window);
      });
  engine
      .def("make_window", &make, "number"_a, "place"_a, "memory"_a, "parts"_a, "lanes"_a, "raised"_a,
           "parts: by rank, (offset in its arena, bytes); lanes: by rank, pairs of NICs; raised: by rank, of window_signals.")
      .def("window_signals", [](const Engine& e) { return e.window_signals(); }, "By place of a window and rank: signals so far.")
      .def("shown_offset",
           [](Engine& e, std::uintptr_t address, std::uint64_t nbytes) {
             return e.shown_offset(reinterpret_cast<const void*>(address), nbytes);
           },
           "address"_a, "nbytes"_a, "Offset in the arena of what was taken from it or registered, whole pages; else -1.")
      .def_prop_ro_static("window_places", [](nb::handle) { return ccl_lab::kWindows; });
}
