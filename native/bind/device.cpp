// GPUs from Python: what the driver shows, the page of a rank, and its collectives over memory of its GPU.
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
#include "device/runner.hpp"
#include "gil.hpp"
#include "interrupts.hpp"
#include "status.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using ccl_lab::Code;
using ccl_lab::Engine;
using ccl_lab::LoadedProgram;
using ccl_lab::released;
using ccl_lab::Status;
using ccl_lab::device::Page;
using ccl_lab::device::Runner;

namespace {

namespace cuda = ccl_lab::cuda;

const cuda::Api& driver(const std::string& library) {
  return *ccl_lab::take(library.empty() ? cuda::open_library() : cuda::open_library(library.c_str()));
}

nb::dict about(const std::string& library) {
  const cuda::Api& api = driver(library);
  nb::dict found;
  int version = 0;
  api.driver_version(&version);
  found["version"] = cuda::version_name(version);
  nb::list gpus;
  const std::vector<cuda::DeviceInfo> devices = ccl_lab::take(cuda::devices(api));
  for (const cuda::DeviceInfo& device : devices) {
    nb::dict gpu;
    gpu["ordinal"] = device.ordinal;
    gpu["name"] = device.name;
    gpu["uuid"] = cuda::uuid_name(device.uuid);
    gpu["memory_bytes"] = device.memory_bytes;
    gpu["capability"] = device.capability;
    gpu["multiprocessors"] = device.multiprocessors;
    gpu["copy_engines"] = device.copy_engines;
    gpu["stream_memory_ops"] = device.stream_memory_ops;
    gpu["posix_handles"] = device.posix_handles;
    gpu["dma_buf"] = device.dma_buf;
    gpu["flushes"] = device.rdma_ordering >= cuda::kRdmaOrderedForOwner || device.host_flush || device.stream_flush;
    nb::list reach;
    for (const cuda::DeviceInfo& peer : devices) {
      int can = peer.ordinal == device.ordinal ? 1 : 0;
      if (can == 0) api.can_access_peer(&can, device.device, peer.device);
      reach.append(can != 0);
    }
    gpu["reaches"] = reach;
    gpus.append(gpu);
  }
  found["gpus"] = gpus;
  return found;
}

using PeerPage = std::tuple<int, int, int>;  // rank, pid, descriptor

std::shared_ptr<Runner> open_session(const std::shared_ptr<Engine>& engine, const std::shared_ptr<Page>& page, const std::vector<PeerPage>& peers,
                                     int ordinal, double timeout_s, const std::string& library) {
  const cuda::Api& api = driver(library);
  const std::shared_ptr<ccl_lab::RankSegment> segment = engine->segment();
  std::vector<std::shared_ptr<Page>> pages(static_cast<std::size_t>(page->n_ranks()));
  pages[static_cast<std::size_t>(page->rank())] = page;
  for (const auto& [rank, pid, fd] : peers) {
    if (rank < 0 || rank >= page->n_ranks()) ccl_lab::check(Status(Code::usage, "open_session: a peer is no rank"));
    pages[static_cast<std::size_t>(rank)] = ccl_lab::take(Page::open(pid, fd));
  }
  ccl_lab::device::SessionOptions options;
  options.pid = page->pid();
  options.image = ccl_lab::device::kernel_image();
  options.spans = ccl_lab::SpanWriter(*segment);
  options.stopped = [segment] { return segment->aborted() ? segment->abort_status() : Status(); };
  const ccl_lab::Unlocked unlocked;
  auto session = ccl_lab::device::Session::open(api, ordinal, page->rank(), std::move(pages), std::move(options));
  if (!session.ok()) {
    const ccl_lab::Locked held;
    ccl_lab::check(session.status());
  }
  return std::make_shared<Runner>(std::move(session).value(), ccl_lab::ns_of(timeout_s));
}

std::uint64_t call(const std::shared_ptr<Runner>& runner, const std::shared_ptr<LoadedProgram>& program, std::uint64_t input, std::uint64_t output,
                   std::uint64_t stream, std::uint32_t coll_id, double timeout_s) {
  std::uint64_t number = 0;
  Status status;
  {
    const ccl_lab::Unlocked unlocked;
    std::shared_ptr<const ccl_lab::Program> ops(program, &program->program);
    status = runner->call(std::move(ops), {input, output}, reinterpret_cast<cuda::CuStream>(stream), coll_id, ccl_lab::ns_of(timeout_s), ccl_lab::interrupted, number);
  }
  ccl_lab::raise_from(status);
  return number;
}

bool wait(const std::shared_ptr<Runner>& runner, std::uint64_t number, double timeout_s) {
  return ccl_lab::waited([&] { return runner->wait(number, timeout_s < 0 ? -1 : ccl_lab::ns_of(timeout_s), ccl_lab::interrupted); });
}

}  // namespace

void bind_device(nb::module_& m) {
  m.def("device_driver", &about, "library"_a = "",
        "The CUDA driver and its GPUs, as a dict; UnsupportedError, saying what is missing, where there is none. Loads libcuda.so.1.");
  m.def("device_kernels", &ccl_lab::device::kernel_image_words, "Which reduction kernels this build has for GPUs; empty without nvcc.");
  nb::class_<Page>(m, "DevicePage", "What a rank shows the ranks of its node about its GPU.")
      .def(nb::new_([](int rank, int n_ranks, int n_signals) { return ccl_lab::take(Page::create(rank, n_ranks, n_signals)); }), "rank"_a, "n_ranks"_a,
           "n_signals"_a)
      .def_prop_ro("fd", &Page::fd)
      .def("clear", [](const Page& page) { page.clear(); }, "As it was when it was made; nobody may use it.");
  nb::class_<Runner>(m, "DeviceSession", "Collectives of one rank over memory of its GPU.")
      .def(nb::new_(&open_session), "engine"_a, "page"_a, "peers"_a, "ordinal"_a, "timeout_s"_a, "library"_a = "")
      .def_prop_ro("ordinal", &Runner::ordinal)
      .def("call",
           [](const std::shared_ptr<Runner>& runner, const std::shared_ptr<LoadedProgram>& program, std::uint64_t input, std::uint64_t output,
              std::uint64_t stream, std::uint32_t coll_id, double timeout_s) { return call(runner, program, input, output, stream, coll_id, timeout_s); },
           "program"_a, "input"_a, "output"_a, "stream"_a, nb::kw_only(), "coll_id"_a, "timeout_s"_a,
           "Puts a program on the GPU's streams, ordered on `stream`, once the peers have called too: the number of the run, 0 where it was "
           "captured. Addresses, 0 for none. Raises what went wrong; what goes wrong later is raised by the next call or wait.")
      .def("wait", &wait, "number"_a, "timeout_s"_a = -1.0, "True once that run has ended; False where the time passed before.")
      .def("ended", [](Runner& runner, std::uint64_t number) { return runner.ended(number); }, "number"_a)
      .def("close", [](Runner& runner) {
        const ccl_lab::Unlocked unlocked;
        runner.close();
      })
      .def("check", [](Runner& runner) { ccl_lab::check(runner.failure()); }, "Raises why the session ended, if it did.")
      .def("await_failure",
           [](const std::shared_ptr<Runner>& runner, double timeout_s) {
             const ccl_lab::Unlocked unlocked;
             return runner->await_failure(ccl_lab::ns_of(timeout_s));
           },
           "timeout_s"_a, "True once it has failed.")
      .def("memory", [](Runner& runner) {
        nb::dict found;
        found["device_scratch_bytes"] = runner.scratch_bytes();
        found["device_mappings"] = runner.n_mappings();
        return found;
      });
}
