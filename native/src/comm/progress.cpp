// One step of a rank; see progress.hpp.
#include "comm/progress.hpp"

#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include "base/clock.hpp"

namespace ccl_lab {

namespace {

constexpr std::int64_t kStallNs = 100'000;  // how often a stall is asked
constexpr std::int64_t kLingerNs = 500'000'000;  // of a rank that closes, for what a NIC still has to send

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%g s", seconds);
  return text;
}

SpanStatus span_status(const Status& reason) { return reason.code == Code::aborted ? SpanStatus::aborted : SpanStatus::failed; }

std::uint64_t bytes_of(const Program& program) { return std::max(program.bytes(Buffer::input), program.bytes(Buffer::output)); }

std::string name_of(const Work& work) {
  return std::string("collective ") + std::to_string(work.coll_id()) + " (" +
         kCollectiveNames[static_cast<std::size_t>(work.program().identity().collective)] + ")";
}

}  // namespace

Progress::Progress(std::shared_ptr<RankSegment> own, std::vector<std::int32_t> node_of, Mode mode, Local* local)
    : own_(std::move(own)),
      spans_(*own_),
      links_(own_, std::move(node_of), mode, &spans_),
      windows_(own_, links_, spans_),
      local_(local),
      baselines_(own_->n_ranks(), own_->signals().n_channels()),
      lost_(static_cast<std::size_t>(own_->n_ranks())) {
  set_state(EngineState::idle);
}

Status Progress::post(const std::shared_ptr<Sided>& op) {
  if (own_->aborted() && !stopped_) stop(own_->abort_status());
  if (stopped_) return own_->abort_status();
  return windows_.post(op, lost_);
}

int Progress::step() {
  now_ns_ = now_ns();
  late_ = false;
  own_->control().heartbeat.store(static_cast<std::uint64_t>(now_ns_), std::memory_order_relaxed);
  if (own_->aborted() && !stopped_) stop(own_->abort_status());
  if (stopped_) {
    if (!queue_.empty()) stop(own_->abort_status());
    return 0;
  }
  // What follows a partition that has ended goes first: it was ready before anything that comes in now.
  int did = take_computed();
  if (did > 0) {
    on_time_ = true;
    did += drive();
    on_time_ = false;
    completions_.clear();
    if (current() == nullptr || current()->calls()) return did;  // bytes are for who stays
  }
  if (has_all()) links_.expects_no_more();
  did += links_.poll(now_ns_, completions_, events_);
  did += jobs_.poll(completions_);
  // Bytes were moved: what follows begins now, for whoever looks at when that was. A look at the clock may be a call of the system.
  late_ = did > 0;
  if (spans_.enabled() || stream() != nullptr) look_at_clock();
  did += handle_events();
  did += windows_.settle(completions_);
  // First who is where, then what the completions mean for each: a run that changed places in between would get them twice, or not.
  set_aside();
  if (current() == nullptr && !queue_.empty() && !stopped_ && begin_next()) ++did;
  did += drive_others();
  if (current() != nullptr) did += current()->fused() ? drive_fused() : drive();
  announce();
  completions_.clear();
  return did;
}

void Progress::look_at_clock() {
  if (std::exchange(late_, false)) now_ns_ = now_ns();
}

// Whether no run waits for anything of a peer of another node but confirmations.
bool Progress::has_all() {
  if (current() == nullptr || current()->fused()) return true;
  const Executor& executor = runs_.now().executor;
  return executor.posted_all() || executor.done();
}

// Whether what comes next waits for a stream of a GPU still. What waits behind it does not use up its time.
bool Progress::held_back() {
  Stall* const stall = queue_.front()->stall();
  if (stall == nullptr) return false;
  const Result<bool> started = stall->started();
  if (!started.ok()) stop(started.status());
  else if (started.value()) held_until_ns_ = now_ns_;
  return !started.ok() || !started.value();
}

bool Progress::begin_next() {
  if (held_back()) return stopped_;
  if (!runs_.may_begin(*queue_.front())) return false;
  // Another thread may be in a direct call; its collective comes first.
  if (queue_.front()->fused() && !local_->take()) return false;
  runs_.begin(std::move(queue_.front()));
  queue_.pop();
  look_at_clock();
  current()->begin(now_ns_);
  current()->not_before(held_until_ns_);
  own_->control().coll_id.store(current()->coll_id(), std::memory_order_relaxed);
  set_state(EngineState::running);
  if (current()->fused()) {
    const node::Call call = current()->call();
    local_->registry().notice(call, own_->rank(), local_->group().size());
    if (Status status = local_->group().begin(call, node::Timed::by_driver); !status.ok()) stop(std::move(status));
    return true;
  }
  Status counts = current()->read_counts();
  Executor& executor = runs_.now().executor;
  executor.start(current()->program(), current()->binding(), baselines_, current()->known());
  executor.fail_unless(std::move(counts));
  // A peer may have gone while this was queued.
  executor.fail_unless(check_lost(current()->program()));
  return true;
}

// Partitions that have ended since the last look, as completions.
int Progress::take_computed() {
  if (stream() == nullptr || !stream()->has_ended(now_ns_)) return 0;
  computed_.clear();
  stream()->take_ended(now_ns_, computed_);
  for (const Stream::Partition& partition : computed_) {
    const Op& op = current()->program().ops()[partition.op];
    record(*current(), Track::compute, op.channel, SpanKind::compute, &op, -1, partition.begin_ns, partition.end_ns, SpanStatus::ok);
    completions_.push_back({partition.cookie, Status()});
  }
  return static_cast<int>(computed_.size());
}

// A few turns: sockets and commands want a look now and then.
int Progress::drive_fused() {
  constexpr int kTurns = 64;
  for (int i = 0; i < kTurns; ++i) {
    const node::Turn turn = local_->group().step();
    if (turn == node::Turn::busy) return 1;
    if (turn == node::Turn::waiting) continue;
    now_ns_ = now_ns();
    if (turn == node::Turn::done) end_current();
    else stop(local_->group().status());
    return 1;
  }
  local_->group().rest();
  if (now_ns_ < current()->deadline_ns()) return 0;
  stop(local_->group().missing(current()->timeout_s()));
  return 1;
}

// What the completions are for this run, and what it posts then.
int Progress::advance(Run& run) {
  int did = 0;
  std::size_t at = 0;
  const Inbox seen = inbox();
  do {
    const std::size_t n = std::min(Executor::kMaxCompletions, completions_.size() - at);
    if (at > 0) now_ns_ = now_ns();
    run.executor.advance(now_ns_, std::span<const Completion>(completions_).subspan(at, n), seen);
    at += n;
    did += static_cast<int>(run.executor.posts().size());
    for (const Post& post : run.executor.posts()) perform(run, post);
  } while (run.executor.active() && (run.executor.more() || at < completions_.size()));
  return did;
}

int Progress::drive() {
  Run& run = runs_.now();
  const int did = advance(run);
  if (run.executor.done()) {
    // Who waits for this run may be the last to step for a long time: what peers wait for goes before, with the next poll.
    if (!links_.owes_confirmations()) end_current();
    return did + 1;
  }
  if (run.executor.failed()) {
    stop(run.executor.status());
    return did + 1;
  }
  if (now_ns_ >= current()->deadline_ns()) {
    stop(deadline_passed(run));
    return did + 1;
  }
  return did;
}

void Progress::perform(Run& run, const Post& post) {
  const Executor& executor = run.executor;
  Status status;
  switch (post.kind) {
    case PostKind::ready: {
      Put put = executor.ready_put_of(post);
      put.tag.coll_id = run.work->coll_id();
      status = links_.ready(put);
      break;
    }
    case PostKind::put: {
      Put put = executor.put_of(post);
      put.tag.coll_id = run.work->coll_id();
      if (run.work->stall() != nullptr && executor.forwards_on_device(post)) status = run.work->stall()->settle();
      if (status.ok()) status = links_.put(put);
      break;
    }
    case PostKind::get: {
      Get get = executor.get_of(post);
      get.tag.coll_id = run.work->coll_id();
      status = links_.get(get);
      break;
    }
    case PostKind::copy:
    case PostKind::reduce:
    case PostKind::divide: status = add_job(executor, post); break;
    case PostKind::compute: status = compute(post); break;
    case PostKind::ended:
    case PostKind::waited_ready: {
      const Op& op = executor.op(post);
      const bool entry = post.kind == PostKind::waited_ready;
      record(*run.work, Track::channel, post.channel, entry ? SpanKind::ready : static_cast<SpanKind>(op.kind), &op,
             entry ? post.peer : op.peer, post.begin_ns, now_ns_, SpanStatus::ok);
      return;
    }
  }
  if (!status.ok()) completions_.push_back({post.cookie, std::move(status)});
}

// A partition for the device. Where the engine carries its values they move meanwhile: sources hold still until it has ended.
Status Progress::compute(const Post& post) {
  Executor& executor = runs_.now().executor;
  const Op& op = executor.op(post);
  stream()->post(post.cookie, post.op, op.arg, now_ns_, on_time_);
  if (stream()->calls()) ++n_news_;
  if (!stream()->how().carries || !op.produces || op.nbytes == 0) return {};
  executor.in_two(post);
  return add_job(executor, post);
}

// Copies, reductions and the division, with addresses; a peer's bytes are read where they are.
Status Progress::add_job(const Executor& executor, const Post& post) {
  const Program& program = executor.program();
  Job& job = jobs_.next();
  job.cookie = post.cookie;
  job.dtype = program.identity().dtype;
  job.redop = program.identity().redop;
  if (post.kind == PostKind::divide) {
    job.what = Job::What::divide;
    job.dst = executor.own(Buffer::output, 0);
    job.nbytes = program.output_elements() * itemsize(job.dtype);
    job.divisor = program.n_ranks_avg();
    jobs_.add();
    return {};
  }
  const Op& op = executor.op(post);
  job.what = post.kind == PostKind::reduce || op.src_count > 1 ? Job::What::reduce : Job::What::copy;
  job.dst = executor.own(op.dst_buffer, op.dst_offset);
  job.nbytes = op.nbytes;
  for (const Source& source : program.sources(op)) {
    if (source.slot < 0) {
      job.sources.push_back(executor.own(source.buffer, source.offset));
      continue;
    }
    const std::int32_t peer = program.peers()[static_cast<std::size_t>(source.slot)].rank;
    const Remote at = executor.remote(source.slot, source.buffer, source.offset);
    Result<const std::byte*> bytes = links_.load(peer, at, op.nbytes);
    if (!bytes.ok()) return bytes.status();
    job.sources.push_back(*bytes);
  }
  jobs_.add();
  return {};
}

Status Progress::deadline_passed(const Run& run) const {
  const Blocked blocked = run.executor.oldest_blocked(inbox());
  std::string message = name_of(*run.work) + " on rank " + std::to_string(own_->rank()) + " did not end within " +
                        seconds_text(run.work->timeout_s());
  if (blocked.channel >= 0) message += ": " + blocked.text;
  message += blocked.peer >= 0
                 ? "; does rank " + std::to_string(blocked.peer) + " run the same collective? If it does, raise the timeout"
                 : "; raise the timeout";
  return Status(Code::timeout, message, blocked.peer, -1, blocked.op_id);
}

void Progress::record(const Work& work, Track track, std::uint16_t index, SpanKind kind, const Op* op, std::int32_t peer,
                      std::int64_t begin_ns, std::int64_t end_ns, SpanStatus status) {
  if (!spans_.enabled()) return;
  SpanRecord span{};
  span.begin_ns = begin_ns;
  span.end_ns = end_ns;
  span.nbytes = op == nullptr ? 0 : static_cast<std::int64_t>(op->nbytes);
  span.coll_id = work.coll_id();
  span.op_id = op == nullptr ? -1 : op->op_id;
  span.peer = peer;
  span.index = index;
  span.epoch = epoch_;
  span.track = static_cast<std::uint8_t>(track);
  span.kind = static_cast<std::uint8_t>(kind);
  span.status = static_cast<std::uint8_t>(status);
  if (kind == SpanKind::collective) span.nbytes = static_cast<std::int64_t>(bytes_of(work.program()));
  spans_.record(span);
}

// What each channel was waiting for when the run failed.
void Progress::record_blocked(const Run& run, SpanStatus status) {
  if (!spans_.enabled()) return;
  const Program& program = run.work->program();
  for (std::size_t c = 0; c < program.n_channels(); ++c) {
    const Executor::Position at = run.executor.position(c);
    if (at.op == nullptr) continue;
    record(*run.work, Track::channel, at.op->channel, static_cast<SpanKind>(at.op->kind), at.op, at.op->peer, at.since_ns, now_ns_,
           status);
  }
}

void Progress::record_computing(SpanStatus status) {
  if (stream() == nullptr) return;
  computed_.clear();
  stream()->running(now_ns_, computed_);
  for (const Stream::Partition& partition : computed_) {
    const Op& op = current()->program().ops()[partition.op];
    record(*current(), Track::compute, op.channel, SpanKind::compute, &op, -1, partition.begin_ns, now_ns_, status);
  }
}

void Progress::record_end(const Work& work, const Status& status) {
  if (!spans_.enabled()) return;
  const SpanStatus how = status.ok() ? SpanStatus::ok : span_status(status);
  if (work.fused()) local_->group().record_end({work.begin_ns(), now_ns_, bytes_of(work.program()), work.coll_id(), epoch_, how});
  else record(work, Track::control, 0, SpanKind::collective, nullptr, -1, work.begin_ns(), now_ns_, how);
}

void Progress::hold(const Work& work) {
  for (const std::shared_ptr<Block>& block : work.memory())
    if (block != nullptr) held_.push_back(block);
}

// What runs has ended well. Those before it end first.
void Progress::end_current() {
  if (runs_.n_draining() > 0) return runs_.set_aside();
  record_end(*current(), Status());
  set_state(EngineState::idle);
  if (current()->fused()) local_->leave();
  end(runs_.take_current(), Status());
}

void Progress::fail_current(const Status& reason) {
  const SpanStatus how = span_status(reason);
  if (current()->fused()) {
    local_->group().stop(reason);
  } else {
    runs_.now().executor.fail(reason);
    record_blocked(runs_.now(), how);
  }
  record_computing(how);
  hold(*current());
  record_end(*current(), reason);
  if (current()->fused()) local_->leave();
  end(runs_.take_current(), reason);
}

void Progress::end(std::shared_ptr<Work> work, Status status) {
  ++n_news_;
  local_->work_ended();
  look_at_clock();
  work->end(now_ns_, std::move(status));
}

void Progress::stop(Status reason) {
  const bool first = own_->abort(reason.code, reason.message, reason.rank, reason.nic);
  if (!first) reason = own_->abort_status();
  stopped_ = true;
  set_state(EngineState::stopped);
  windows_.stop(reason);
  jobs_.clear();
  completions_.clear();
  stop_draining(reason);
  if (current() != nullptr) {
    const Status own = first ? Status() : seen(current()->program(), reason);
    fail_current(own.ok() ? reason : own);
  }
  for (std::size_t i = 0; i < runs_.n_announced(); ++i) hold(*queue_[i]);
  runs_.withdraw();
  while (!queue_.empty()) {
    std::shared_ptr<Work> work = std::move(queue_.front());
    queue_.pop();
    Status status = seen(work->program(), reason);
    if (status.ok())
      status = Status(Code::aborted, name_of(*work) + " on rank " + std::to_string(own_->rank()) + " was not run: " + reason.message,
                      reason.rank);
    end(std::move(work), std::move(status));
  }
}

void Progress::wait_set(std::vector<pollfd>& descriptors, std::int64_t& wake_ns) const {
  if (stopped_) return;
  links_.wait_set(descriptors, wake_ns);
  if (!jobs_.empty()) wake_ns = 0;
  if (current() == nullptr && !queue_.empty() && queue_.front()->stall() != nullptr) wake_ns = std::min(wake_ns, now_ns_ + kStallNs);
  for (std::size_t i = 0; i < runs_.n_draining(); ++i) wake_ns = std::min(wake_ns, runs_.draining(i).work->deadline_ns());
  if (current() == nullptr) return;
  wake_ns = std::min(wake_ns, current()->deadline_ns());
  if (stream() != nullptr) wake_ns = std::min(wake_ns, stream()->due_ns());
  if (current()->fused()) wake_ns = std::min(wake_ns, now_ns_ + node::Parking::kLongestNs);
}

void Progress::watch_set(std::vector<pollfd>& descriptors, std::int64_t& wake_ns) const {
  if (!stopped_ && links_.rails() != nullptr) links_.rails()->watch_set(descriptors, wake_ns);
}

void Progress::reset(std::uint16_t epoch) {
  now_ns_ = now_ns();
  if (busy()) stop(Status(Code::aborted, "rank " + std::to_string(own_->rank()) + " was reset", own_->rank()));
  epoch_ = epoch;
  held_until_ns_ = 0;
  links_.reset(epoch);
  windows_.reset(epoch);
  local_->reset(epoch);
  jobs_.clear();
  completions_.clear();
  events_.clear();
  held_.clear();
  std::fill(lost_.begin(), lost_.end(), Status());
  own_->signals().zero();
  std::memset(static_cast<void*>(own_->ready_slots().data()), 0, own_->ready_slots().size_bytes());
  baselines_.zero();
  own_->clear_abort();
  stopped_ = false;
  set_state(EngineState::idle);
}

// Puts that were copied have completed, but their bytes may be with a NIC still.
void Progress::linger() {
  const std::int64_t until_ns = now_ns_ + kLingerNs;
  while (!stopped_ && !own_->aborted() && !links_.quiet() && now_ns_ < until_ns) {
    links_.expects_no_more();
    links_.poll(now_ns_, completions_, events_);
    completions_.clear();
    events_.clear();
    ::sched_yield();
    now_ns_ = now_ns();
  }
}

void Progress::close() {
  now_ns_ = now_ns();
  if (busy()) stop(Status(Code::aborted, "rank " + std::to_string(own_->rank()) + " closed its engine", own_->rank()));
  else linger();
  links_.reset(static_cast<std::uint16_t>(epoch_ + 1));
  held_.clear();
  stopped_ = true;
  set_state(EngineState::closed);
}

}  // namespace ccl_lab
