// The public Communicator over a Session: Status becomes Error here, and only here.
#include "ccl_lab/communicator.hpp"

#include <cstdlib>

#include "api/launcher.hpp"
#include "api/session.hpp"

namespace ccl_lab {

namespace {

[[noreturn]] void raise(const Status& status) { throw Error(code_name(status.code), status.message, status.rank); }

void check(const Status& status) {
  if (!status.ok()) [[unlikely]] raise(status);
}

template <class T>
T take(Result<T> result) {
  if (!result.ok()) raise(result.status());
  return std::move(result).value();
}

const std::byte* bytes(const void* data) { return static_cast<const std::byte*>(data); }
std::byte* bytes(void* data) { return static_cast<std::byte*>(data); }

}  // namespace

Error::Error(std::string code, const std::string& message, int rank)
    : std::runtime_error(message), code_(std::move(code)), rank_(rank) {}
Error::~Error() = default;

struct Communicator::State {
  std::unique_ptr<api::Session> session;

  void run(Collective collective, const void* input, void* output, std::size_t count, DType dtype,
           RedOp redop = RedOp::sum, int root = 0, int peer = -1) const {
    node::Call call;
    call.collective = collective;
    call.dtype = dtype;
    call.redop = redop;
    call.root = root;
    call.peer = peer;
    call.input = bytes(input);
    call.output = bytes(output);
    if (!session->run(call, count)) [[unlikely]] raise(session->status());
  }
  bool is(int root) const { return session->rank() == root; }
  void check_rank(const char* what, int rank) const {
    if (rank < 0 || rank >= session->size())
      raise(Status(Code::usage, std::string(what) + " is rank " + std::to_string(rank) + ", expected 0 to " +
                                    std::to_string(session->size() - 1), session->rank()));
  }
  void check_peer(const char* what, int rank) const {
    check_rank(what, rank);
    if (is(rank))
      raise(Status(Code::usage, std::string(what) + " is rank " + std::to_string(rank) +
                                    " itself: a message goes to another rank", rank));
  }
};

Communicator::Communicator(std::unique_ptr<State> state) : state_(std::move(state)) {}
Communicator::Communicator(Communicator&&) noexcept = default;
Communicator& Communicator::operator=(Communicator&&) noexcept = default;
Communicator::~Communicator() = default;

Communicator Communicator::join(int rank, int n_ranks, const std::string& rendezvous, const Options& options) {
  auto state = std::make_unique<State>();
  state->session = take(api::Session::join(rank, n_ranks, rendezvous, options));
  return Communicator(std::move(state));
}

Communicator Communicator::join(const Options& options) {
  const api::Launch launch = take(api::find_launch([](const char* name) -> const char* { return std::getenv(name); }));
  return join(launch.rank, launch.n_ranks, launch.rendezvous, options);
}

int Communicator::rank() const noexcept { return state_->session->rank(); }
int Communicator::size() const noexcept { return state_->session->size(); }

Memory Communicator::empty(std::size_t nbytes) { return take(state_->session->allocate(nbytes)); }

void Communicator::register_memory(void* data, std::size_t nbytes) { check(state_->session->add(data, nbytes)); }

void Communicator::unregister_memory(void* data) { check(state_->session->remove(data)); }

void Communicator::all_reduce(const void* input, void* output, std::size_t count, DType dtype, RedOp redop) {
  state_->run(Collective::all_reduce, input, output, count, dtype, redop);
}

void Communicator::all_gather(const void* input, void* output, std::size_t count, DType dtype) {
  state_->run(Collective::all_gather, input, output, count, dtype);
}

void Communicator::reduce_scatter(const void* input, void* output, std::size_t count, DType dtype, RedOp redop) {
  state_->run(Collective::reduce_scatter, input, output, count, dtype, redop);
}

void Communicator::all_to_all(const void* input, void* output, std::size_t count, DType dtype) {
  state_->run(Collective::all_to_all, input, output, count, dtype);
}

void Communicator::broadcast(void* data, std::size_t count, DType dtype, int root) {
  state_->check_rank("the root of broadcast", root);
  state_->run(Collective::broadcast, state_->is(root) ? data : nullptr, data, count, dtype, RedOp::sum, root);
}

void Communicator::reduce(const void* input, void* output, std::size_t count, DType dtype, RedOp redop, int root) {
  state_->check_rank("the root of reduce", root);
  state_->run(Collective::reduce, input, state_->is(root) ? output : nullptr, count, dtype, redop, root);
}

void Communicator::gather(const void* input, void* output, std::size_t count, DType dtype, int root) {
  state_->check_rank("the root of gather", root);
  state_->run(Collective::gather, input, state_->is(root) ? output : nullptr, count, dtype, RedOp::sum, root);
}

void Communicator::scatter(const void* input, void* output, std::size_t count, DType dtype, int root) {
  state_->check_rank("the root of scatter", root);
  state_->run(Collective::scatter, state_->is(root) ? input : nullptr, output, count, dtype, RedOp::sum, root);
}

void Communicator::send(const void* data, std::size_t count, DType dtype, int peer) {
  state_->check_peer("the receiver of send", peer);
  state_->run(Collective::send_recv, data, nullptr, count, dtype, RedOp::sum, rank(), peer);
}

void Communicator::recv(void* data, std::size_t count, DType dtype, int peer) {
  state_->check_peer("the sender of recv", peer);
  state_->run(Collective::send_recv, nullptr, data, count, dtype, RedOp::sum, peer, rank());
}

void Communicator::barrier() { state_->run(Collective::barrier, nullptr, nullptr, 0, DType::uint8); }

MemoryUse Communicator::memory_use() const { return state_->session->memory_use(); }

std::size_t Communicator::take_spans(SpanRecord* out, std::size_t max_spans) {
  return state_->session->take_spans(out, max_spans);
}

std::uint64_t Communicator::dropped_spans() const { return state_->session->dropped_spans(); }

}  // namespace ccl_lab
