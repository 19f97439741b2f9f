// Joining, running and leaving; see session.hpp.
#include "api/session.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "api/rendezvous.hpp"
#include "base/clock.hpp"
#include "node/board.hpp"
#include "reduce/reduce.hpp"

namespace ccl_lab::api {

namespace {


constexpr std::uint64_t kMostArenas = std::uint64_t{1} << 45;
constexpr std::uint64_t kArenaStep = std::uint64_t{1} << 21;
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 60;

std::int64_t to_ns(double seconds) { return static_cast<std::int64_t>(std::clamp(seconds, 0.0, 1e9) * 1e9); }

Status check_options(int rank, int n_ranks, const std::string& rendezvous, const Options& options) {
  const auto refuse = [&](const std::string& what) { return Status(Code::config, what, rank); };
  if (n_ranks < 1 || n_ranks > 4096)
    return refuse("a job of " + std::to_string(n_ranks) + " ranks: expected 1 to 4096 on one machine");
  if (rank < 0 || rank >= n_ranks)
    return refuse("rank " + std::to_string(rank) + " of " + std::to_string(n_ranks) + ": expected 0 <= rank < n_ranks");
  if (n_ranks > 1 && rendezvous.empty())
    return refuse("the rendezvous is empty: expected the path of a Unix socket that rank 0 is to make, say /tmp/my_job.sock");
  if (!(options.timeout_s > 0) || !(options.start_timeout_s > 0)) return refuse("timeouts must be above 0 seconds");
  if (options.trace_spans > 1u << 26) return refuse("trace_spans is " + std::to_string(options.trace_spans) + ": at most 2^26");
  return {};
}

}  // namespace

Session::Session(int rank, int n_ranks, const Options& options)
    : rank_(rank),
      size_(n_ranks),
      options_(options),
      most_elements_(kMostBytes / static_cast<std::uint64_t>(n_ranks) / sizeof(std::uint64_t)) {}

Result<std::unique_ptr<Session>> Session::join(int rank, int n_ranks, const std::string& rendezvous,
                                               const Options& options) {
  if (Status status = check_options(rank, n_ranks, rendezvous, options); !status.ok()) return status;
  std::unique_ptr<Session> session(new Session(rank, n_ranks, options));
  if (Status status = session->make_segment(); !status.ok()) return status;
  if (Status status = session->attach_peers(rendezvous); !status.ok()) return status;
  return session;
}

Status Session::make_segment() {
  SegmentOptions wanted;
  wanted.n_signal_channels = 1;
  wanted.n_nics = 0;
  wanted.trace_spans = std::bit_ceil(std::max<std::uint32_t>(options_.trace_spans, 1));
  wanted.board_bytes = node::board_bytes(static_cast<std::uint64_t>(size_));
  // Every rank maps the arenas of all: they must fit the address space together.
  wanted.arena_bytes = std::min(options_.arena_bytes, kMostArenas / static_cast<std::uint64_t>(size_) / kArenaStep * kArenaStep);
  Result<RankSegment> made = RankSegment::create(rank_, size_, wanted);
  if (!made.ok()) return made.status();
  own_ = std::make_shared<RankSegment>(std::move(made).value());
  own_->control().trace_enabled.store(options_.trace_spans > 0 ? 1 : 0, std::memory_order_relaxed);
  arena_ = std::make_shared<Arena>(own_);
  if (options_.trace_spans > 0) spans_ = std::make_unique<SpanWriter>(*own_);
  std::vector<std::int32_t> ranks(static_cast<std::size_t>(size_));
  for (int at = 0; at < size_; ++at) ranks[static_cast<std::size_t>(at)] = at;
  node::GroupOptions group;
  group.spin_ns = options_.spin_us * 1000;
  group_ = std::make_unique<node::Group>(own_, std::move(ranks), group, spans_.get());
  registry_ = std::make_unique<Registry>(own_, arena_, group_.get());
  registry_->set_automatic(options_.register_buffers);
  return {};
}

Status Session::attach_peers(const std::string& rendezvous) {
  const std::int64_t deadline_ns = now_ns() + to_ns(options_.start_timeout_s);
  Result<Meeting> meeting = Meeting::meet(rank_, size_, rendezvous, Card{own_->pid(), own_->fd()}, deadline_ns);
  if (!meeting.ok()) return meeting.status();
  std::vector<std::shared_ptr<RankSegment>> segments(static_cast<std::size_t>(size_));
  Status attached;
  for (int peer = 0; attached.ok() && peer < size_; ++peer) {
    const auto at = static_cast<std::size_t>(peer);
    if (peer == rank_) {
      segments[at] = own_;
      continue;
    }
    const Card card = meeting->cards()[at];
    Result<RankSegment> opened = RankSegment::open(card.pid, card.fd);
    if (!opened.ok()) {
      attached = Status(opened.status().code, "rank " + std::to_string(rank_) + ": " + opened.status().message, peer);
    } else if (opened->rank() != peer || opened->n_ranks() != size_) {
      attached = Status(Code::connect, "the shared memory of rank " + std::to_string(peer) + " says it is rank " +
                                           std::to_string(opened->rank()) + " of " + std::to_string(opened->n_ranks()) +
                                           ", expected one of " + std::to_string(size_), peer);
    } else {
      segments[at] = std::make_shared<RankSegment>(std::move(opened).value());
      attached = group_->attach(peer, segments[at]);
    }
  }
  if (Status status = meeting->finish(attached, deadline_ns); !status.ok()) return status;
  Result<std::unique_ptr<Watch>> watch = Watch::start(rank_, std::move(segments), &activity_);
  if (!watch.ok()) return watch.status();
  watch_ = std::move(watch).value();
  return {};
}

Session::~Session() {
  // Not from a forked child that drops its copy: the rank goes on.
  if (own_ != nullptr && own_->pid() == ::getpid()) Watch::say_left(*own_);
}

Result<Memory> Session::allocate(std::uint64_t nbytes) {
  Result<std::shared_ptr<Block>> block = arena_->allocate(nbytes);
  if (!block.ok()) return block.status();
  std::byte* data = (*block)->data();
  return Memory(std::shared_ptr<std::byte>(std::move(block).value(), data), nbytes);
}

bool Session::refuse(const node::Call& call, std::uint64_t count) {
  if (failed_) return false;
  const std::string name = kCollectiveNames[static_cast<std::size_t>(call.collective)];
  if (static_cast<std::size_t>(call.dtype) >= kDTypeCount) {
    status_ = Status(Code::dtype, "there is no element type " + std::to_string(static_cast<int>(call.dtype)), rank_);
  } else if (Status found = check_reduction(call.dtype, call.redop); node::reduces(call.collective) && !found.ok()) {
    status_ = std::move(found);
  } else if (count > most_elements_) {
    status_ = Status(Code::shape, name + " of " + std::to_string(count) + " elements on " + std::to_string(size_) +
                                      " ranks: no memory holds that; is a size negative?", rank_);
  } else {
    status_ = Status(Code::usage, name + " on rank " + std::to_string(rank_) + " was given a null buffer for " +
                                      std::to_string(count) +
                                      " elements; expected memory where this rank contributes or receives", rank_);
  }
  return false;
}

bool Session::not_begun(const Status& status) {
  activity_.collective.store(--number_, std::memory_order_relaxed);
  status_ = status;
  return false;
}

bool Session::run_message(node::Call& call) {
  activity_.peer.store(call.root == rank_ ? call.peer : call.root, std::memory_order_relaxed);
  activity_.message.store(++message_, std::memory_order_release);
  const Registry::Use use(*registry_, call, rank_, size_);
  status_ = group_->begin(call);
  const bool done = status_.ok() && (group_->drive(kSliceNs) == node::Turn::done || wait_on());
  activity_.message.store(++message_, std::memory_order_release);
  return done;
}

// What has begun did not end at once: waits until it does, another rank is lost, or the deadline passes.
bool Session::wait_on() {
  if (!group_->running()) return fail(group_->status());
  const std::int64_t deadline_ns = now_ns() + to_ns(options_.timeout_s);
  for (;;) {
    if (own_->aborted()) return fail(own_->abort_status());
    if (now_ns() >= deadline_ns) return fail(group_->missing(options_.timeout_s));
    const node::Turn turn = group_->drive(kSliceNs);
    if (turn == node::Turn::done) return true;
    if (turn == node::Turn::failed) return fail(group_->status());
  }
}

bool Session::fail(const Status& status) {
  status_ = status;
  failed_ = true;
  group_->stop(status_);
  // Peers that find this rank gone hand on why (Watch).
  if (!own_->aborted()) own_->abort(status_.code, status_.message, status_.rank, status_.nic);
  return false;
}

Status Session::add(void* data, std::uint64_t nbytes) { return registry_->add(data, nbytes); }

Status Session::remove(void* data) { return registry_->remove(data); }

MemoryUse Session::memory_use() const {
  MemoryUse use;
  use.registered_bytes = arena_->used();
  use.registered_peak_bytes = arena_->peak();
  use.read_bytes = group_->traffic().read_bytes;
  use.written_bytes = group_->traffic().written_bytes;
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t nbytes = own_->header().arena_offset;
  std::vector<unsigned char> resident((nbytes + page - 1) / page);
  std::byte* base = own_->arena() - nbytes;
  if (::mincore(base, nbytes, resident.data()) == 0)
    for (const unsigned char state : resident) use.overhead_bytes += (state & 1) * page;
  return use;
}

std::size_t Session::take_spans(SpanRecord* out, std::size_t max_spans) {
  return SpanReader(*own_).drain(out, max_spans);
}

std::uint64_t Session::dropped_spans() const { return SpanReader(*own_).dropped(); }

}  // namespace ccl_lab::api
