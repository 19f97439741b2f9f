// Collectives of the host on memory of a GPU, as Python has them: the stage of a rank, and what holds its stream.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "comm/engine.hpp"
#include "device/direct.hpp"
#include "device/stage.hpp"
#include "gil.hpp"
#include "interrupts.hpp"
#include "status.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using ccl_lab::Engine;
using ccl_lab::Status;
using ccl_lab::BufferView;
using ccl_lab::device::DirectMemory;
using ccl_lab::device::Hold;
using ccl_lab::device::Kept;
using ccl_lab::device::Stage;
using ccl_lab::device::Staged;
namespace cuda = ccl_lab::cuda;

using Copy = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::string>;  // device, host, bytes, what it is

std::shared_ptr<Stage> open(const std::shared_ptr<Engine>& engine, int ordinal, double timeout_s, const std::string& library) {
  const cuda::Api& api = *ccl_lab::take(library.empty() ? cuda::open_library() : cuda::open_library(library.c_str()));
  const std::shared_ptr<ccl_lab::RankSegment> segment = engine->segment();
  ccl_lab::device::StageOptions options;
  options.rank = segment->rank();
  options.timeout_ns = ccl_lab::ns_of(timeout_s);
  options.stopped = [segment] { return segment->aborted() ? segment->abort_status() : Status(); };
  return ccl_lab::released([&] { return Stage::open(api, ordinal, std::move(options)); });
}

std::vector<Staged> staged(const std::vector<Copy>& copies) {
  std::vector<Staged> found;
  for (const auto& [device, host, nbytes, what] : copies) found.push_back({device, reinterpret_cast<std::byte*>(host), nbytes, what});
  return found;
}

std::shared_ptr<Hold> hold(Stage& stage, const std::vector<Copy>& in, const std::vector<Copy>& out, std::uint64_t stream,
                           const std::vector<Copy>& kept, bool by_nics) {
  const std::vector<Staged> before = staged(in), after = staged(out);
  std::vector<Kept> stay;
  for (const auto& [to, from, nbytes, what] : kept) stay.push_back({to, from, nbytes, what});
  return ccl_lab::released([&] { return stage.hold({before, after, stay, by_nics}, reinterpret_cast<cuda::CuStream>(stream)); });
}

std::shared_ptr<DirectMemory> open_direct(const std::shared_ptr<Engine>& engine, int ordinal, const std::string& library) {
  const cuda::Api& api = *ccl_lab::take(library.empty() ? cuda::open_library() : cuda::open_library(library.c_str()));
  ccl_lab::device::DirectOptions options;
  options.rank = engine->segment()->rank();
  options.registers = [engine](cuda::DevicePtr base, std::uint64_t size, int fd) {
    return engine->register_device(reinterpret_cast<std::byte*>(base), size, fd);
  };
  options.deregisters = [engine](std::uint32_t key) { static_cast<void>(engine->deregister_device(key)); };  // gone with its paths, if not
  return ccl_lab::released([&] { return DirectMemory::open(api, ordinal, std::move(options)); });
}

BufferView find(DirectMemory& memory, std::uint64_t address, std::uint64_t nbytes, const std::string& what, bool quiet) {
  if (nbytes == 0) return {};
  const ccl_lab::device::NicRegion found = ccl_lab::released([&] { return memory.find(address, nbytes, what, quiet); });
  return {reinterpret_cast<void*>(address), nbytes, found.key, reinterpret_cast<void*>(found.base)};
}

bool wait(const std::shared_ptr<Stage>& stage, std::uint64_t number, double timeout_s) {
  return ccl_lab::waited([&] { return stage->wait(number, timeout_s < 0 ? -1 : ccl_lab::ns_of(timeout_s), ccl_lab::interrupted); });
}

}  // namespace

void bind_stage(nb::module_& m) {
  nb::class_<Hold, ccl_lab::Stall>(m, "Hold", "A run of a stage: Engine.start takes it as its stall.")
      .def_prop_ro("number", &Hold::number)
      .def("give_up", [](Hold& held, int code, const std::string& why, int rank) { held.end(Status(ccl_lab::code_from(code), why, rank)); },
           "code"_a, "why"_a, "rank"_a, "The collective will not be run: the stage has failed, its stream goes on.");
  nb::class_<BufferView>(m, "DeviceView", "Memory of a GPU as Engine.start takes it: registered with the NICs. Made by DirectMemory.find.");
  nb::class_<DirectMemory>(m, "DirectMemory", "Memory of a GPU that NICs read and write themselves, by its dma-bufs.")
      .def(nb::new_(&open_direct), "engine"_a, "ordinal"_a, "library"_a = "")
      .def("find", &find, "address"_a, "nbytes"_a, "what"_a, "quiet"_a,
           "Registers the allocation, unless it is. UnsupportedError: no NIC can have it, and why; quiet: no run is under way, so that what "
           "was freed may be deregistered.")
      .def_prop_ro("forwards", &DirectMemory::forwards)
      .def_prop_ro("n_regions", &DirectMemory::n_regions)
      .def("close", [](const std::shared_ptr<DirectMemory>& memory) {
        const ccl_lab::Unlocked unlocked;
        memory->close();
      });
  nb::class_<Stage>(m, "DeviceStage", "Collectives of the host on memory of a GPU, through pinned memory, in the order of a stream.")
      .def(nb::new_(&open), "engine"_a, "ordinal"_a, "timeout_s"_a, "library"_a = "")
      .def_prop_ro("ordinal", &Stage::ordinal)
      .def_prop_ro("pinned_bytes", &Stage::pinned_bytes)
      .def("pin",
           [](Stage& stage, std::uint64_t address, std::uint64_t nbytes) {
             ccl_lab::released([&] { return stage.pin(reinterpret_cast<std::byte*>(address), nbytes); });
           },
           "address"_a, "nbytes"_a, "Pins whole pages of the host; their owner keeps them until close().")
      .def("hold", &hold, "into_host"_a, "from_host"_a, "stream"_a, "kept"_a = std::vector<Copy>(), "by_nics"_a = false,
           "Enqueues a run ordered on `stream`: copies to the host, the hold, copies back; each (device, host, bytes, what). kept: copies on the "
           "GPU before the hold, (to, from, bytes, what); by_nics: NICs read or write memory of the GPU meanwhile.")
      .def("ended", &Stage::ended, "number"_a)
      .def("wait", &wait, "number"_a, "timeout_s"_a = -1.0, "True once that run has ended; False where the time passed before.")
      .def("check", [](const Stage& stage) { ccl_lab::check(stage.failure()); }, "Raises why the stage failed, if it did.")
      .def("await_failure",
           [](const std::shared_ptr<Stage>& stage, double timeout_s) {
             const ccl_lab::Unlocked unlocked;
             return stage->await_failure(ccl_lab::ns_of(timeout_s));
           },
           "timeout_s"_a, "True once it has failed.")
      .def("close", [](const std::shared_ptr<Stage>& stage) {
        const ccl_lab::Unlocked unlocked;
        return stage->close();
      }, "Gives everything back once the stream is through; False where it was not in time, and may still use what it was given.");
}
