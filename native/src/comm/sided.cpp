// What a caller does with windows: ops that end at once where the peer's memory is mapped, and are handed to Progress where it is
// not. See windows.hpp.
//
// Invariants
//  - A mapped peer costs no lock, queue or thread: the caller copies, raises the signal, rings. Its puts and signals happen in the
//    order of its calls.
//  - Nothing is copied into memory of a peer after this rank was stopped, or has heard that the peer is lost.
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/clock.hpp"
#include "comm/engine.hpp"

namespace ccl_lab {

namespace {

Status usage(int rank, std::uint32_t number, const std::string& why) {
  return Status(Code::usage, "window " + std::to_string(number) + " on rank " + std::to_string(rank) + " " + why, rank);
}

}  // namespace

std::int64_t Engine::shown_offset(const void* data, std::uint64_t nbytes) {
  const std::int64_t offset = arena_->offset_of(data, nbytes);
  return offset >= 0 ? offset : local_->registry().offset_of(data, nbytes);
}

Result<std::shared_ptr<MemoryWindow>> Engine::make_window(WindowSpec spec, const void* shown) {
  if (Status status = ready(); !status.ok()) return status;
  const int rank = segment_->rank();
  const auto n = static_cast<std::size_t>(segment_->n_ranks());
  if (spec.place < 0 || spec.place >= kWindows || spec.parts.size() != n || spec.raised.size() != n)
    return usage(rank, spec.number, "is at place " + std::to_string(spec.place) + " with " + std::to_string(spec.parts.size()) +
                                        " parts, expected 0 to " + std::to_string(kWindows - 1) + " and one part a rank");
  const WindowPart& mine = spec.parts[static_cast<std::size_t>(rank)];
  if (shown_offset(shown, mine.nbytes) != static_cast<std::int64_t>(mine.offset))
    return Status(Code::registration, "memory of window " + std::to_string(spec.number) + " of rank " + std::to_string(rank) +
                                          " is not registered; take it from empty()", rank);
  bool far = false;
  const auto find = [&] {
    for (std::size_t peer = 0; peer < n; ++peer) {
      WindowPart& part = spec.parts[peer];
      part.segment = static_cast<int>(peer) == rank ? segment_ : progress_.links().mapped(static_cast<std::int32_t>(peer));
      far = far || part.segment == nullptr;
    }
  };
  if (Status status = run(find); !status.ok()) return status;
  for (std::size_t peer = 0; peer < n; ++peer) {
    const WindowPart& part = spec.parts[peer];
    const std::uint64_t arena = segment_->arena_bytes();
    if (part.offset > arena || part.nbytes > arena - part.offset || (part.segment == nullptr && part.lanes.empty()))
      return usage(rank, spec.number, "has no way to the part of rank " + std::to_string(peer));
  }
  // Bytes come at any time from here on.
  if (far) driver_->keep_watch(true);
  const std::int32_t channel = n_channels_ + 1 + spec.place;
  return std::make_shared<MemoryWindow>(this, rank, channel, segment_->signals(), progress_.windows().epoch(), std::move(spec),
                                  arena_->find(shown, 0));
}

std::vector<std::uint64_t> Engine::window_signals() const {
  std::vector<std::uint64_t> found;
  for (int place = 0; place < kWindows; ++place)
    for (int rank = 0; rank < segment_->n_ranks(); ++rank) found.push_back(segment_->signals().value(rank, n_channels_ + 1 + place));
  return found;
}

Status Engine::may_use(const MemoryWindow& window) const {
  if (Status status = ready(); !status.ok()) return status;
  const int rank = segment_->rank();
  if (window.owner() != this) return usage(rank, window.number(), "is of another communicator");
  if (window.closed()) return usage(rank, window.number(), "is closed");
  if (window.epoch() != progress_.windows().epoch())
    return usage(rank, window.number(), "was made before the communicator was reset; make it again, on all ranks");
  return {};
}

std::shared_ptr<Sided> Engine::make_sided(Sided::What what, const std::shared_ptr<MemoryWindow>& window, std::int32_t peer) const {
  auto op = std::make_shared<Sided>();
  op->what = what;
  op->window = window;
  op->peer = peer;
  return op;
}

// A step follows at once: what fits into a socket leaves without a switch of threads.
Result<std::shared_ptr<Sided>> Engine::post(std::shared_ptr<Sided> op, bool urgent) {
  Status posted;
  const auto go = [&] {
    if (op->what == Sided::What::flush) progress_.step();  // which may find that a peer has gone: mapped memory takes bytes all the same
    posted = progress_.post(op);
    if (posted.ok() && !op->done()) progress_.step();
  };
  if (Status status = run(go); !status.ok()) return status;
  if (!posted.ok()) return posted;
  if (!op->done() && !urgent) driver_->hand_over(true);
  return op;
}

// The peer's memory is mapped, at `there`.
Result<std::shared_ptr<Sided>> Engine::at_once(std::shared_ptr<Sided> op, std::byte* there) {
  const std::int32_t peer = op->peer;
  if (progress_.windows().is_lost(peer)) return post(std::move(op), true);  // which says why
  const Windows& windows = progress_.windows();
  const bool traced = segment_->control().trace_enabled.load(std::memory_order_relaxed) != 0;
  const std::int64_t begin_ns = traced ? now_ns() : 0;
  if (op->nbytes > 0) {
    if (op->what == Sided::What::get) std::memmove(op->memory, there, op->nbytes);
    else std::memmove(there, op->memory, op->nbytes);
  }
  if (op->signals) {
    const RankSegment& segment = *op->window->part(peer).segment;
    segment.signals().raise(segment_->rank(), op->window->channel());
    segment.doorbell().ring();
  }
  if (traced) windows.record(*op, begin_ns, now_ns(), SpanStatus::ok);
  op->end();
  return op;
}

Result<std::shared_ptr<Sided>> Engine::put(const std::shared_ptr<MemoryWindow>& window, std::int32_t rank, BufferView data, std::uint64_t offset,
                                           bool signals, bool urgent) {
  if (Status status = may_use(*window); !status.ok()) return status;
  if (Status status = window->check("put", rank, offset, data.nbytes); !status.ok()) return status;
  std::shared_ptr<Sided> op = make_sided(Sided::What::put, window, rank);
  op->memory = static_cast<std::byte*>(data.data);
  op->nbytes = data.nbytes;
  op->offset = offset;
  op->signals = signals;
  if (std::byte* const there = window->mapped(rank, offset); there != nullptr) return at_once(std::move(op), there);
  if (op->nbytes <= Windows::kCopyBytes) op->copy_source();
  op->urgent = urgent && !op->copied();
  const bool waits = op->urgent;
  return post(std::move(op), waits);
}

Result<std::shared_ptr<Sided>> Engine::get(const std::shared_ptr<MemoryWindow>& window, std::int32_t rank, BufferView out, std::uint64_t offset) {
  if (Status status = may_use(*window); !status.ok()) return status;
  if (Status status = window->check("get", rank, offset, out.nbytes); !status.ok()) return status;
  std::shared_ptr<Sided> op = make_sided(Sided::What::get, window, rank);
  op->memory = static_cast<std::byte*>(out.data);
  op->nbytes = out.nbytes;
  op->offset = offset;
  std::byte* const there = window->mapped(rank, offset);
  return there != nullptr ? at_once(std::move(op), there) : post(std::move(op), false);
}

Result<std::shared_ptr<Sided>> Engine::signal(const std::shared_ptr<MemoryWindow>& window, std::int32_t rank) {
  if (Status status = may_use(*window); !status.ok()) return status;
  if (Status status = window->check_rank("signal", rank); !status.ok()) return status;
  std::shared_ptr<Sided> op = make_sided(Sided::What::signal, window, rank);
  op->signals = true;
  std::byte* const there = window->mapped(rank, 0);
  return there != nullptr ? at_once(std::move(op), there) : post(std::move(op), false);
}

Result<std::shared_ptr<Sided>> Engine::wait_signals(const std::shared_ptr<MemoryWindow>& window, std::int32_t rank, std::uint64_t count) {
  if (Status status = may_use(*window); !status.ok()) return status;
  if (Status status = rank < 0 ? Status() : window->check_rank("wait", rank); !status.ok()) return status;
  std::shared_ptr<Sided> op = make_sided(Sided::What::wait, window, rank);
  op->count = count;
  return post(std::move(op), true);
}

Result<std::shared_ptr<Sided>> Engine::flush(const std::shared_ptr<MemoryWindow>& window, std::int32_t rank) {
  if (Status status = may_use(*window); !status.ok()) return status;
  if (Status status = rank < 0 ? Status() : window->check_rank("flush", rank); !status.ok()) return status;
  return post(make_sided(Sided::What::flush, window, rank), true);
}

void Engine::give_up(Sided& op, double after_s) {
  char text[32];
  std::snprintf(text, sizeof text, "%g s", after_s);
  const std::string who = "wait of rank " + std::to_string(segment_->rank()) + ", window " + std::to_string(op.window->number());
  Status why(Code::timeout, who + ", did not end within " + text + ": " + op.window->missing(op.peer, op.count), op.peer);
  const Status status = run([&] { progress_.windows().give_up(op, std::move(why)); });
  (void)status;  // a closed engine has ended it
}

void Engine::close_window(MemoryWindow& window) {
  window.close();
  const Status why = usage(segment_->rank(), window.number(), "was closed while this waited");
  const Status status = run([&] { progress_.windows().give_up(window, why); });
  (void)status;  // a closed engine has no waits
}

}  // namespace ccl_lab
