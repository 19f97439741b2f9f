// Binds one rank's engine, its programs and works.
#include "comm/engine.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "base/clock.hpp"
#include "gil.hpp"
#include "status.hpp"
#include "work.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using ccl_lab::released;
using ccl_lab::BoundWork;
using ccl_lab::BufferView;
using ccl_lab::Code;
using ccl_lab::Computation;
using ccl_lab::Engine;
using ccl_lab::EngineOptions;
using ccl_lab::LoadedProgram;
using ccl_lab::Mode;
using ccl_lab::ProgramSpec;
using ccl_lab::Status;
using ccl_lab::Work;
using ccl_lab::wait_interruptibly;

template <class T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

[[noreturn]] void refuse(Code code, const std::string& message) {
  ccl_lab::check(Status(code, message));
  throw nb::value_error(message.c_str());
}

// The dict of compile(), key by key. The arrays live as long as this.
class Arrays {
 public:
  explicit Arrays(const nb::dict& dict) : dict_(dict) {}

  template <class T>
  T scalar(const char* key) const {
    try {
      return nb::cast<T>(nb::int_(find(key)));
    } catch (const nb::python_error&) {
    } catch (const nb::cast_error&) {
    }
    refuse(Code::usage, std::string("compile: ") + key + " is not an integer in range");
  }

  template <class T>
  std::span<const T> column(const char* key) {
    Column<T> array;
    if (!nb::try_cast(find(key), array))
      refuse(Code::usage, std::string("compile: ") + key + " is not a contiguous one-dimensional array of " +
                              std::to_string(sizeof(T) * 8) + "-bit integers");
    kept_.push_back(nb::cast(array));
    return {array.data(), array.shape(0)};
  }

  bool has(const char* key) const { return dict_.contains(key); }

  template <class T>
  std::span<const T> optional_column(const char* key) {
    return dict_.contains(key) ? column<T>(key) : std::span<const T>();
  }

 private:
  nb::object find(const char* key) const {
    if (!dict_.contains(key)) refuse(Code::usage, std::string("compile: the key ") + key + " is missing");
    return dict_[key];
  }

  const nb::dict& dict_;
  std::vector<nb::object> kept_;
};

ProgramSpec make_spec(Arrays& arrays) {
  ProgramSpec spec;
  spec.collective = static_cast<ccl_lab::Collective>(arrays.scalar<std::uint8_t>("collective"));
  spec.dtype = static_cast<ccl_lab::DType>(arrays.scalar<std::uint8_t>("dtype"));
  spec.redop = static_cast<ccl_lab::RedOp>(arrays.scalar<std::uint8_t>("redop"));
  spec.plan_hash = arrays.scalar<std::uint64_t>("plan_hash");
  spec.count = arrays.scalar<std::uint64_t>("count");
  spec.bytes[0] = arrays.scalar<std::uint64_t>("input_bytes");
  spec.bytes[1] = arrays.scalar<std::uint64_t>("output_bytes");
  spec.bytes[2] = arrays.scalar<std::uint64_t>("scratch_bytes");
  spec.output_elements = arrays.scalar<std::uint64_t>("output_elements");
  spec.n_ranks_avg = arrays.scalar<std::int64_t>("n_ranks_avg");
  spec.alias = static_cast<ccl_lab::Alias>(arrays.scalar<std::uint8_t>("alias"));
  spec.alias_offset = arrays.scalar<std::uint64_t>("alias_offset");
  spec.n_channels = arrays.scalar<std::int32_t>("n_channels");
  if (arrays.has("fused")) {
    spec.fused = arrays.scalar<std::uint8_t>("fused") != 0;
    spec.root = arrays.scalar<std::int32_t>("root");
    spec.receiver = arrays.scalar<std::int32_t>("receiver");
    spec.share_ops = arrays.column<std::int32_t>("share_ops");
  }
  spec.op_id = arrays.column<std::int32_t>("op_id");
  spec.kind = arrays.column<std::uint8_t>("kind");
  spec.channel = arrays.column<std::int32_t>("channel");
  spec.peer = arrays.column<std::int32_t>("peer");
  spec.sig_channel = arrays.column<std::int32_t>("sig_channel");
  spec.value = arrays.column<std::int64_t>("value");
  spec.dst_buf = arrays.column<std::uint8_t>("dst_buf");
  spec.dst_offset = arrays.column<std::uint64_t>("dst_offset");
  spec.nbytes = arrays.column<std::uint64_t>("nbytes");
  spec.src_begin = arrays.column<std::int32_t>("src_begin");
  spec.src_count = arrays.column<std::int32_t>("src_count");
  spec.nic = arrays.column<std::uint16_t>("nic");
  spec.peer_nic = arrays.column<std::uint16_t>("peer_nic");
  spec.arg = arrays.column<std::int32_t>("arg");
  spec.src_rank = arrays.column<std::int32_t>("src_rank");
  spec.src_buf = arrays.column<std::uint8_t>("src_buf");
  spec.src_offset = arrays.column<std::uint64_t>("src_offset");
  spec.ready_to = arrays.column<std::int32_t>("ready_to");
  spec.ready_nic = arrays.optional_column<std::uint16_t>("ready_nic");
  spec.ready_peer_nic = arrays.optional_column<std::uint16_t>("ready_peer_nic");
  return spec;
}

std::shared_ptr<Engine> make_engine(int rank, const Column<std::int32_t>& node_of, int n_channels, int n_nics,
                                    std::uint64_t arena_bytes, std::uint32_t trace_spans, std::int64_t spin_us,
                                    const std::string& transport, int ranks_on_host, bool register_buffers) {
  EngineOptions options;
  options.n_channels = n_channels;
  options.n_nics = n_nics;
  options.arena_bytes = arena_bytes;
  options.trace_spans = trace_spans;
  options.spin_us = spin_us;
  options.ranks_on_host = ranks_on_host;
  options.register_buffers = register_buffers;
  if (transport == "shm") options.mode = Mode::shm;
  else if (transport == "tcp") options.mode = Mode::tcp;
  else if (transport != "auto") refuse(Code::config, "transport is '" + transport + "', expected auto, shm or tcp");
  std::vector<std::int32_t> nodes(node_of.data(), node_of.data() + node_of.shape(0));
  return ccl_lab::take(Engine::create(rank, std::move(nodes), options));
}

nb::tuple empty(const Engine& engine, std::uint64_t nbytes) {
  std::shared_ptr<ccl_lab::Block> block = ccl_lab::take(engine.arena()->allocate(nbytes));
  const std::uint64_t offset = block->offset();
  std::byte* const memory = block->data();
  using Held = std::shared_ptr<ccl_lab::Block>;
  return nb::make_tuple(offset, ccl_lab::byte_view(memory, nbytes, std::make_unique<Held>(std::move(block))));
}

std::shared_ptr<LoadedProgram> compile(Engine& engine, const nb::dict& dict) {
  Arrays arrays(dict);
  const ProgramSpec spec = make_spec(arrays);
  return released([&] { return engine.compile(spec); });
}

// The memory of an array or buffer, of any shape and type but contiguous, or of None. Needs the GIL. The blocks in it are
// held by the work, so that it may go once that was started.
class Lent {
 public:
  Lent(nb::handle object, bool writable) {
    if (object.is_none()) return;
    if (nb::try_cast(object, on_device_)) return;
    if (PyObject_GetBuffer(object.ptr(), &buffer_, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) != 0) throw nb::python_error();
    lent_ = true;
  }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;
  ~Lent() {
    if (lent_) PyBuffer_Release(&buffer_);
  }
  BufferView view() const {
    return lent_ ? BufferView{buffer_.buf, static_cast<std::uint64_t>(buffer_.len)} : on_device_;
  }

 private:
  Py_buffer buffer_{};
  BufferView on_device_;  // memory of a GPU, which whoever starts the run keeps
  bool lent_ = false;
};

BoundWork start(const std::shared_ptr<Engine>& engine, const std::shared_ptr<LoadedProgram>& program, nb::handle input,
                nb::handle output, std::uint32_t coll_id, double timeout_s, std::shared_ptr<const Computation> compute,
                std::shared_ptr<ccl_lab::Stall> stall) {
  const Lent source(input, false);
  const Lent target(output, true);
  const bool caller_waits = compute != nullptr && compute->device == ccl_lab::Device::caller;
  const auto go = [&] {
    return engine->start(program, source.view(), target.view(), coll_id, timeout_s, caller_waits, std::move(compute), std::move(stall));
  };
  return {released(go), engine};
}

bool wait(const BoundWork& bound, double timeout_s) {
  if (!bound.work->done() && !wait_interruptibly(*bound.engine, *bound.work, timeout_s)) return false;
  ccl_lab::check(bound.work->status());
  return true;
}

// None where the program cannot be run on the buffers: not registered, or one and the same though they were said to be apart.
nb::object run(const std::shared_ptr<Engine>& engine, const std::shared_ptr<LoadedProgram>& program, nb::handle input,
               nb::handle output, std::uint32_t coll_id, double timeout_s, bool apart,
               std::shared_ptr<const Computation> compute) {
  constexpr double kSliceS = 0.1;
  const Lent source(input, false);
  const Lent target(output, true);
  const BufferView from = source.view();
  if (apart && from.nbytes > 0 && from.data == target.view().data) return nb::none();
  auto result = [&] {
    const ccl_lab::Unlocked unlocked;
    auto started = engine->start(program, from, target.view(), coll_id, timeout_s, true, std::move(compute));
    if (started.ok()) engine->wait_slice(**started, kSliceS);
    return started;
  }();
  if (result.status().code == Code::registration) return nb::none();
  const std::shared_ptr<Work> work = ccl_lab::take(std::move(result));
  if (!work->done()) wait_interruptibly(*engine, *work, -1);
  ccl_lab::check(work->status());
  return nb::make_tuple(work->begin_ns(), work->end_ns());
}

void cancel(const BoundWork& bound, const std::string& reason) {
  if (bound.work->done()) return;
  const int rank = bound.engine->segment()->rank();
  bound.engine->abort(Code::aborted, "cancelled on rank " + std::to_string(rank) + ": " + reason, rank);
}

nb::dict memory(Engine& engine) {
  const ccl_lab::MemoryUse use = released([&] { return engine.memory(); });
  nb::dict dict;
  dict["arena_used_bytes"] = use.arena_used;
  dict["arena_peak_bytes"] = use.arena_peak;
  dict["arena_bytes"] = use.arena_bytes;
  dict["segment_bytes"] = use.segment_bytes;
  dict["attached"] = use.attached;
  dict["connections"] = use.connections;
  dict["programs"] = use.programs;
  return dict;
}

}  // namespace

void bind_computation(nb::module_& m);
void bind_partitions(nb::class_<BoundWork>& work);
void bind_local(nb::class_<Engine>& engine);
void bind_rails(nb::class_<Engine>& engine);
void bind_rdma(nb::module_& m, nb::class_<Engine>& engine);
void bind_exchange(nb::module_& m, nb::class_<Engine>& engine);
void bind_window(nb::module_& m, nb::class_<Engine>& engine);

namespace {

void bind_work(nb::module_& m) {
  nb::class_<LoadedProgram>(m, "Program", "A compiled program of one rank; made by Engine.compile.");
  nb::class_<BoundWork> work(m, "Work", "A collective of one rank in progress; made by Engine.start.");
  bind_partitions(work);
  work.def("wait", &wait, "timeout_s"_a = -1.0,
           "Waits until it ended, or `timeout_s` (negative: for ever) passed: then False. Raises the error it ended in.")
      .def("done", [](const BoundWork& bound) { return bound.work->done(); })
      .def("error",
           [](const BoundWork& bound) -> nb::object {
             if (!bound.work->done() || bound.work->status().ok()) return nb::none();
             return ccl_lab::to_exception(bound.work->status());
           })
      .def("cancel", &cancel, "reason"_a, "Stops this rank's engine with AbortedError; nothing if the work has ended.")
      .def_prop_ro("begin_ns", [](const BoundWork& bound) { return bound.work->begin_ns(); })
      .def_prop_ro("end_ns", [](const BoundWork& bound) { return bound.work->end_ns(); });
}

}  // namespace

void bind_engine(nb::module_& m) {
  nb::class_<ccl_lab::Stall>(m, "Stall", "What holds a collective until a stream of a GPU has come to it.");
  bind_computation(m);
  bind_work(m);
  nb::class_<Engine> engine(m, "Engine", "One rank: memory, links to peers and what drives its collectives.");
  bind_local(engine);
  bind_rails(engine);
  bind_rdma(m, engine);
  bind_exchange(m, engine);
  bind_window(m, engine);
  engine
      .def(nb::new_(&make_engine), "rank"_a, "node_of"_a, nb::kw_only(), "n_channels"_a = 256, "n_nics"_a = 1,
           "arena_bytes"_a = std::uint64_t{1} << 36, "trace_spans"_a = 65536, "spin_us"_a = 20, "transport"_a = "auto", "ranks_on_host"_a = 0,
           "register_buffers"_a = false)
      .def_prop_ro("pid", [](const Engine& e) { return e.segment()->pid(); })
      .def_prop_ro("segment_fd", [](const Engine& e) { return e.segment()->fd(); })
      .def("attach_peer",
           [](Engine& e, std::int32_t peer, int pid, int fd) {
             released([&] { return e.attach_peer(peer, pid, fd); });
           },
           "peer"_a, "pid"_a, "segment_fd"_a)
      .def("add_connection",
           [](Engine& e, std::int32_t peer, std::uint16_t nic, std::uint16_t peer_nic, std::uint16_t index, int fd,
              std::uint32_t generation) {
             released([&] { return e.add_connection(peer, nic, peer_nic, index, fd, generation); });
           },
           "peer"_a, "nic"_a, "peer_nic"_a, "index"_a, "fd"_a, "generation"_a = 0)
      .def("connected",
           [](Engine& e, std::int32_t peer, std::uint16_t nic, std::uint16_t peer_nic) {
             return released([&] { return e.connected(peer, nic, peer_nic); });
           },
           "peer"_a, "nic"_a, "peer_nic"_a)
      .def("set_nic",
           [](Engine& e, int nic, std::uint64_t bytes_per_s, bool up) {
             released([&] { return e.set_nic(nic, bytes_per_s, up); });
           },
           "nic"_a, "bytes_per_s"_a, "up"_a = true)
      .def("empty", &empty, "nbytes"_a, "(arena offset, u8 view) of registered memory that is freed with its last view.")
      .def("arena_offset_of",
           [](const Engine& e, std::uintptr_t address, std::uint64_t nbytes) {
             return e.arena()->offset_of(reinterpret_cast<const void*>(address), nbytes);
           },
           "address"_a, "nbytes"_a, "Offset of an address in the arena; -1 where it is not registered memory.")
      .def("compile", &compile, "arrays"_a)
      .def("run", &run, "program"_a, "input"_a.none(), "output"_a.none(), nb::kw_only(), "coll_id"_a, "timeout_s"_a,
           "apart"_a = false, "compute"_a.none() = nb::none(),
           "Starts and waits in one call, driven by this thread: (begin_ns, end_ns). Raises the error it ended in. None where "
           "a buffer is not registered, or, with `apart`, both are the same memory.")
      .def("start", &start, "program"_a, "input"_a.none(), "output"_a.none(), nb::kw_only(), "coll_id"_a, "timeout_s"_a,
           "compute"_a.none() = nb::none(), "stall"_a.none() = nb::none(),
           "With a stall it begins when the stream of a GPU has come to it, and ends by letting that go on.")
      .def("abort",
           [](Engine& e, int code, const std::string& reason, int culprit, int nic) {
             e.abort(ccl_lab::code_from(code), reason, culprit, nic);
           },
           "code"_a, "reason"_a, "culprit"_a, "nic"_a = -1)
      .def("reset", [](Engine& e, std::uint16_t epoch) { released([&] { return e.reset(epoch); }); }, "epoch"_a)
      .def("drain_spans", [](const Engine& e, std::size_t n) { return ccl_lab::drain(*e.segment(), n); },
           "max_spans"_a = 65536)
      .def("memory", &memory)
      .def("close", [](Engine& e) {
        const ccl_lab::Unlocked unlocked;
        e.close();
      });
}
