// The life of a session and its calls; see session.hpp. meeting.cpp has how a call meets those of its peers, launch.cpp what follows.
#include "device/session.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/clock.hpp"
#include "device/launch.hpp"

namespace ccl_lab::device {

namespace {

constexpr std::uint64_t kLetGo = std::uint64_t{1} << 62;  // more than any wait asks for
constexpr std::int64_t kDrainNs = 30'000'000'000;
constexpr std::int64_t kLetGoNs = 5'000'000'000;
constexpr std::size_t kMostPrepared = 512;

void publish_failure(const Page& page, const Status& why) {
  DeviceCard& card = page.card();
  card.code = static_cast<std::uint32_t>(why.code);
  const std::size_t n = std::min(why.message.size(), sizeof card.why - 1);
  std::memcpy(card.why, why.message.data(), n);
  card.why[n] = '\0';
  card.state.store(static_cast<std::uint32_t>(CardState::failed), std::memory_order_release);
}

}  // namespace

Session::Session(std::shared_ptr<cuda::Context> context, int rank, std::vector<std::shared_ptr<Page>> pages, SessionOptions options)
    : context_(std::move(context)),
      rank_(rank),
      options_(std::move(options)),
      neighbours_(pages.size()),
      exporter_(context_, pages[static_cast<std::size_t>(rank)]),
      importer_(context_, options_.pid),
      reducer_(context_, options_.image),
      timeline_(context_, options_.spans) {
  for (std::size_t i = 0; i < pages.size(); ++i) neighbours_[i].page = std::move(pages[i]);
}

Result<std::unique_ptr<Session>> Session::open(const cuda::Api& api, int ordinal, int rank, std::vector<std::shared_ptr<Page>> pages,
                                               SessionOptions options) {
  const std::shared_ptr<Page> own = pages[static_cast<std::size_t>(rank)];
  Result<std::shared_ptr<cuda::Context>> context = cuda::Context::retain(api, ordinal);
  std::unique_ptr<Session> session;
  Status status = context.status();
  if (context.ok()) {
    session.reset(new Session(std::move(context).value(), rank, std::move(pages), std::move(options)));
    status = session->set_up();
  }
  if (!status.ok()) {
    publish_failure(*own, status);
    return Status(status.code, "rank " + std::to_string(rank) + ": " + status.message, rank);
  }
  const cuda::DeviceInfo& info = session->context_->info();
  DeviceCard& card = own->card();
  card.ordinal = info.ordinal;
  card.uuid = info.uuid;
  card.state.store(static_cast<std::uint32_t>(CardState::ready), std::memory_order_release);
  return session;
}

Status Session::set_up() {
  const cuda::DeviceInfo& info = context_->info();
  if (!info.stream_memory_ops) return no_stream_operations(info);
  Neighbour& own = neighbours_[static_cast<std::size_t>(rank_)];
  Result<cuda::HostRegistration> flags = cuda::register_host(context_, own.page->flags(), own.page->flags_bytes(), own.flags);
  if (!flags.ok()) return flags.status();
  own.registration = std::move(flags).value();
  own.met = true;
  for (cuda::Event* event : {&fork_, &end_, &probe_}) {
    Result<cuda::Event> made = cuda::make_event(context_, false);
    if (!made.ok()) return made.status();
    *event = std::move(made).value();
  }
  return need_streams(1);
}

Session::~Session() {
  if (call_ && failure_.ok()) fail(Status(Code::aborted, "the communicator was closed in the middle of a call", rank_));
  drain();
  timeline_.harvest(scheduled_);
}

// Until the streams are through; what waits for peers that do not come is let go.
void Session::drain() {
  const cuda::Scope scope(*context_);
  if (!scope.status().ok()) return;
  const cuda::Api& api = context_->api();
  const Page& page = *neighbours_[static_cast<std::size_t>(rank_)].page;
  const std::int64_t begin = now_ns();
  for (std::size_t c = 0; c < streams_.size(); ++c) {
    if (api.event_record(joins_[c].get(), streams_[c].get()) != cuda::kSuccess) continue;
    while (api.event_query(joins_[c].get()) == cuda::kNotReady && now_ns() - begin < kDrainNs + kLetGoNs) {
      if (!failure_.ok() || now_ns() - begin > kDrainNs) page.set_waited(kLetGo);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

Status Session::need_streams(std::size_t n) {
  while (streams_.size() < n) {
    Result<cuda::Stream> stream = cuda::make_stream(context_);
    if (!stream.ok()) return stream.status();
    Result<cuda::Event> event = cuda::make_event(context_, false);
    if (!event.ok()) return event.status();
    streams_.push_back(std::move(stream).value());
    joins_.push_back(std::move(event).value());
  }
  return {};
}

Result<std::shared_ptr<const Session::Prepared>> Session::prepare(std::shared_ptr<const Program> program) {
  if (const auto found = prepared_.find(program.get()); found != prepared_.end()) return found->second;
  Result<StreamPlan> plan = plan_streams(*program);
  if (!plan.ok()) return plan.status();
  const RunIdentity& identity = program->identity();
  if (plan->most_sources > 1) {
    const RedOp redop = identity.redop == RedOp::avg ? RedOp::sum : identity.redop;
    if (Status status = reducer_.prepare(identity.dtype, redop, plan->most_sources); !status.ok()) return status;
  }
  if (plan->divides)
    if (Status status = reducer_.prepare(identity.dtype, RedOp::avg, 1); !status.ok()) return status;
  if (Status status = need_streams(program->n_channels()); !status.ok()) return status;
  if (prepared_.size() >= kMostPrepared) prepared_.clear();
  auto prepared = std::make_shared<const Prepared>(Prepared{program, std::move(plan).value()});
  prepared_[program.get()] = prepared;
  return prepared;
}

Status Session::begin(std::shared_ptr<const Program> program, const Buffers& buffers, cuda::CuStream user, std::uint32_t coll_id) {
  if (!failure_.ok()) return failure_;
  if (call_) return Status(Code::usage, "rank " + std::to_string(rank_) + " is in a call already: calls of a communicator come from one thread", rank_);
  Result<std::shared_ptr<const Prepared>> prepared = prepare(std::move(program));
  if (!prepared.ok()) return prepared.status();
  PendingCall call;
  call.prepared = std::move(prepared).value();
  call.user = user;
  call.coll_id = coll_id;
  const Program& what = *call.prepared->program;
  {
    const cuda::Scope scope(*context_);
    if (!scope.status().ok()) return scope.status();
    int capture = cuda::kCaptureNone;
    const cuda::CuResult result = context_->api().stream_capturing(user, &capture);
    if (Status status = cuda::status_of(context_->api(), result, "looking at the stream of the call"); !status.ok()) return status;
    call.captured = capture == cuda::kCaptureActive;
  }
  if (call.captured && call.prepared->plan.silent_peer >= 0)
    return Status(Code::unsupported, "this schedule cannot be captured in a graph: rank " + std::to_string(rank_) + " hears nothing from rank " +
                                         std::to_string(call.prepared->plan.silent_peer) + ", which uses its memory; choose another algorithm", rank_);
  if (Status status = bind(call, buffers); !status.ok()) return status;
  call.posted.assign(what.ready_to().size(), 0);
  call.peers.assign(what.peers().size(), {});
  call.agreed.assign(what.peers().size(), 0);
  ever_captured_ = ever_captured_ || call.captured;
  call_ = std::move(call);
  return {};
}

// Where the buffers are, here and for peers.
Status Session::bind(PendingCall& call, const Buffers& buffers) {
  const Program& program = *call.prepared->program;
  cuda::DevicePtr(&base)[kBufferCount] = call.base;
  base[0] = buffers.input;
  base[1] = buffers.output;
  if (program.alias() == Alias::input_in_output) base[0] = base[1] + program.alias_offset();
  if (program.alias() == Alias::output_in_input) base[1] = base[0] + program.alias_offset();
  if (program.bytes(Buffer::scratch) > 0)
    if (Status status = need_scratch(call, program.bytes(Buffer::scratch)); !status.ok()) return status;
  for (std::size_t b = 0; b < kBufferCount; ++b) {
    const std::uint64_t nbytes = program.bytes(static_cast<Buffer>(b));
    const std::string what = std::string(kBufferNames[b]) + " of rank " + std::to_string(rank_);
    if (program.ready_to().empty()) {
      if (Status status = exporter_.check(base[b], nbytes, what); !status.ok()) return status;
      continue;
    }
    Result<Reference> reference = exporter_.find(base[b], nbytes, what);
    if (!reference.ok()) return reference.status();
    call.references[b] = *reference;
  }
  return {};
}

// What graphs were captured with stays; else the streams still use the old one, which goes when they are through.
Status Session::need_scratch(PendingCall& call, std::uint64_t nbytes) {
  if (scratch_.empty() || scratch_.back().size < nbytes) {
    if (!ever_captured_ && idle()) scratch_.clear();
    constexpr std::uint64_t kGranularity = std::uint64_t{2} << 20;
    const std::uint64_t size = (nbytes + kGranularity - 1) / kGranularity * kGranularity;
    Result<cuda::DeviceMemory> memory = cuda::allocate(context_, size);
    if (!memory.ok()) return memory.status();
    scratch_.push_back({std::move(memory).value(), size});
  }
  call.base[static_cast<std::size_t>(Buffer::scratch)] = scratch_.back().memory.get();
  return {};
}

std::uint64_t Session::scratch_bytes() const {
  std::uint64_t sum = 0;
  for (const Scratch& scratch : scratch_) sum += scratch.size;
  return sum;
}

Result<bool> Session::step() {
  if (!failure_.ok()) return failure_;
  if (!call_) return Status(Code::usage, "rank " + std::to_string(rank_) + " is in no call", rank_);
  if (Status status = options_.stopped ? options_.stopped() : Status(); !status.ok()) {
    fail(status);
    return failure_;
  }
  Result<bool> met = meet_all();
  if (met.ok() && !*met) return false;
  const Status status = met.ok() ? enqueue() : met.status();
  if (!status.ok()) {
    fail(status);
    return failure_;
  }
  call_.reset();
  return true;
}

Status Session::enqueue() {
  const cuda::Scope scope(*context_);
  if (!scope.status().ok()) return scope.status();
  const std::uint64_t before = scheduled_;
  const Status status = Launch(*this, *call_).run();
  if (!status.ok()) scheduled_ = before;  // its end is not on the streams
  else if (!call_->captured) probed_ = context_->api().event_record(probe_.get(), streams_[0].get()) == cuda::kSuccess;
  return status;
}

void Session::fail(const Status& why) {
  call_.reset();
  if (!failure_.ok()) return;
  failure_ = Status(why.code, why.message, why.rank >= 0 ? why.rank : rank_, why.nic, why.op_id);
  neighbours_[static_cast<std::size_t>(rank_)].page->set_waited(kLetGo);
}

std::uint64_t Session::ended() const {
  const Page& page = *neighbours_[static_cast<std::size_t>(rank_)].page;
  return page.flag(page.ended_flag(0)).load(std::memory_order_acquire);
}

bool Session::idle() const {
  const Page& page = *neighbours_[static_cast<std::size_t>(rank_)].page;
  return ended() >= scheduled_ && page.flag(page.begun_flag(1)).load(std::memory_order_acquire) == 0;
}

// Whether anything in the page has changed since the last look: a sum that any write changes.
bool Session::moved() {
  const Page& page = *neighbours_[static_cast<std::size_t>(rank_)].page;
  std::uint64_t sum = scheduled_;
  for (std::uint64_t i = 0; i < page.n_flags(); ++i) sum = sum * 0x9e3779b97f4a7c15u + page.flag(i).load(std::memory_order_relaxed);
  return std::exchange(seen_, sum) != sum;
}

// What the driver knows of the runs: an error there is the GPU's, which no flag would tell.
Status Session::ask_driver(std::int64_t now_ns) {
  constexpr std::int64_t kAskNs = 20'000'000;
  if (!probed_ || now_ns - asked_ns_ < kAskNs) return {};
  asked_ns_ = now_ns;
  const cuda::Scope scope(*context_);
  if (!scope.status().ok()) return scope.status();
  const cuda::CuResult result = context_->api().event_query(probe_.get());
  if (result == cuda::kNotReady) return {};
  return cuda::status_of(context_->api(), result, "GPU " + std::to_string(ordinal()) + " of rank " + std::to_string(rank_));
}

void Session::watch(std::int64_t now_ns, std::int64_t timeout_ns) {
  if (failure_.ok())
    if (Status status = options_.stopped ? options_.stopped() : Status(); !status.ok()) fail(status);
  const Page& page = *neighbours_[static_cast<std::size_t>(rank_)].page;
  timeline_.harvest(ended());
  if (idle()) {
    seen_ns_ = 0;
    return;
  }
  if (!failure_.ok()) return page.set_waited(kLetGo);
  if (Status status = ask_driver(now_ns); !status.ok()) return fail(status);
  // Until its own streams have come to it a call may take as long as the user's work before it.
  const bool begun = page.flag(page.begun_flag(0)).load(std::memory_order_acquire) > ended() ||
                     page.flag(page.begun_flag(1)).load(std::memory_order_acquire) != 0;
  if (moved() || !begun || seen_ns_ == 0) seen_ns_ = now_ns;
  else if (now_ns - seen_ns_ > timeout_ns) fail(Status(Code::timeout, stuck(), rank_));
}

std::string Session::stuck() const {
  const Page& page = *neighbours_[static_cast<std::size_t>(rank_)].page;
  std::string late;
  for (std::size_t peer = 0; peer < neighbours_.size(); ++peer) {
    const Neighbour& each = neighbours_[peer];
    if (!each.page || static_cast<int>(peer) == rank_) continue;
    const bool ready = page.flag(page.ready_flag(0, static_cast<int>(peer))).load(std::memory_order_acquire) >= each.ready_seen;
    std::string what = ready ? "" : "its stream has not come to the collective";
    for (const auto& [channel, count] : each.counted)
      if (ready && page.flag(page.signal_flag(0, static_cast<int>(peer), channel)).load(std::memory_order_acquire) < count)
        what = "its signals on channel " + std::to_string(channel) + " are missing";
    if (!what.empty()) late += (late.empty() ? "" : "; ") + std::string("rank ") + std::to_string(peer) + ": " + what;
  }
  return "a collective on the GPU of rank " + std::to_string(rank_) + " has not moved within its timeout: " +
         (late.empty() ? "all signals came, so a copy, kernel or a graph's replay is stuck here" : late) +
         ". Do all ranks replay the same graphs, and does each stream come to its call?";
}

}  // namespace ccl_lab::device
