// Flags, runs and the watch over them; see stage.hpp.
#include "device/stage.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "device/memory.hpp"

namespace ccl_lab::device {

namespace {

constexpr std::uint64_t kLetGo = std::uint64_t{1} << 62;  // more than any wait asks for
constexpr auto kLook = std::chrono::milliseconds(2);

}  // namespace

Result<std::shared_ptr<StallFlags>> StallFlags::create() {
  void* const memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return Status(Code::registration, std::string("no page for the flags of a stream: ") + std::strerror(errno));
  return std::shared_ptr<StallFlags>(new StallFlags(memory));
}

StallFlags::~StallFlags() { ::munmap(words_, kBytes); }

void StallFlags::release(std::uint64_t number) {
  std::atomic<std::uint64_t>& word = words_[done];
  std::uint64_t found = word.load(std::memory_order_relaxed);
  while (found < number && !word.compare_exchange_weak(found, number, std::memory_order_release, std::memory_order_relaxed)) {
  }
}

bool StallFlags::fail(const Status& why) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.ok()) return false;
    failure_ = why;
  }
  release(kLetGo);
  failed_.notify_all();
  return true;
}

Status StallFlags::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

bool StallFlags::await_failure(std::int64_t timeout_ns) const {
  std::unique_lock lock(mutex_);
  return failed_.wait_for(lock, std::chrono::nanoseconds(timeout_ns), [this] { return !failure_.ok(); });
}

Result<bool> Hold::started() {
  if (Status status = flags_->failure(); !status.ok()) return status;
  return flags_->value(StallFlags::started) >= number_;
}

void Hold::end(const Status& status) {
  const Status settled = status.ok() ? settle() : status;
  if (settled.ok()) flags_->release(number_);
  else flags_->fail(settled);
}

Status Hold::settle() {
  if (settles_ == nullptr) return {};
  const cuda::Scope scope(*settles_);
  if (!scope.status().ok()) return scope.status();
  const cuda::CuResult result = settles_->api().flush_remote_writes(cuda::kFlushTargetContext, cuda::kFlushToAll);
  return cuda::status_of(settles_->api(), result, "making what NICs wrote visible to GPU " + std::to_string(settles_->info().ordinal));
}

Stage::Stage(std::shared_ptr<cuda::Context> context, StageOptions options, std::shared_ptr<StallFlags> flags)
    : context_(std::move(context)), options_(std::move(options)), ordinal_(context_->info().ordinal), flags_(std::move(flags)) {}

Result<std::shared_ptr<Stage>> Stage::open(const cuda::Api& api, int ordinal, StageOptions options) {
  const int rank = options.rank;
  const auto named = [rank](const Status& why) { return Status(why.code, "rank " + std::to_string(rank) + ": " + why.message, rank); };
  Result<std::shared_ptr<cuda::Context>> context = cuda::Context::retain(api, ordinal);
  if (!context.ok()) return named(context.status());
  Result<std::shared_ptr<StallFlags>> flags = StallFlags::create();
  if (!flags.ok()) return named(flags.status());
  std::shared_ptr<Stage> stage(new Stage(std::move(context).value(), std::move(options), std::move(flags).value()));
  if (Status status = stage->set_up(); !status.ok()) return named(status);
  return stage;
}

Status Stage::set_up() {
  const cuda::DeviceInfo& info = context_->info();
  if (!info.stream_memory_ops) return no_stream_operations(info);
  Result<cuda::HostRegistration> flags = cuda::register_host(context_, flags_->data(), StallFlags::kBytes, flags_address_);
  if (!flags.ok()) return flags.status();
  registration_ = std::move(flags).value();
  for (cuda::Event* event : {&fork_, &end_}) {
    Result<cuda::Event> made = cuda::make_event(context_, false);
    if (!made.ok()) return made.status();
    *event = std::move(made).value();
  }
  Result<cuda::Stream> stream = cuda::make_stream(context_);
  if (!stream.ok()) return stream.status();
  stream_ = std::move(stream).value();
  if (options_.watched) thread_ = std::thread([this] { loop(); });
  return {};
}

Status Stage::closed() const { return Status(Code::usage, "this communicator's stage on GPU " + std::to_string(ordinal_) + " is closed"); }

Status Stage::pin(std::byte* data, std::uint64_t nbytes) {
  const std::lock_guard lock(mutex_);
  if (closed_) return closed();
  Pinned held;
  held.nbytes = nbytes;
  Result<cuda::HostRegistration> made = cuda::register_host(context_, data, nbytes, held.address);
  if (!made.ok()) return Status(made.status().code, "rank " + std::to_string(options_.rank) + ": " + made.status().message, options_.rank);
  held.registration = std::move(made).value();
  pinned_[data] = std::move(held);
  return {};
}

std::uint64_t Stage::pinned_bytes() const {
  const std::lock_guard lock(mutex_);
  std::uint64_t sum = 0;
  for (const auto& [data, held] : pinned_) sum += held.nbytes;
  return sum;
}

// Where the GPU sees it.
Result<cuda::DevicePtr> Stage::pinned(const Staged& copy) const {
  auto found = pinned_.upper_bound(copy.host);
  if (found != pinned_.begin()) {
    --found;
    const auto offset = static_cast<std::uint64_t>(copy.host - found->first);
    if (offset <= found->second.nbytes && copy.nbytes <= found->second.nbytes - offset) return found->second.address + offset;
  }
  return Status(Code::registration, copy.what + ": its " + std::to_string(copy.nbytes) + " bytes of the host are not pinned", options_.rank);
}

Status Stage::check(std::span<const Staged> copies) const {
  for (const Staged& copy : copies) {
    if (copy.nbytes == 0) continue;
    if (Status status = check_memory(*context_, options_.rank, copy.device, copy.nbytes, copy.what); !status.ok()) return status;
    if (Result<cuda::DevicePtr> host = pinned(copy); !host.ok()) return host.status();
  }
  return {};
}

Status Stage::refuse_capture(cuda::CuStream user) const {
  int capture = cuda::kCaptureNone;
  const cuda::Api& api = context_->api();
  if (Status status = cuda::status_of(api, api.stream_capturing(user, &capture), "looking at the stream of the call"); !status.ok()) return status;
  if (capture == cuda::kCaptureNone) return {};
  return Status(Code::unsupported, "rank " + std::to_string(options_.rank) +
                                       ": a collective that the host runs cannot be captured in a graph, which would replay it without the "
                                       "host; call it outside the capture", options_.rank);
}

Status Stage::check(const Moves& moves) const {
  Status status = check(moves.in);
  if (status.ok()) status = check(moves.out);
  for (const Kept& kept : moves.kept)
    for (const cuda::DevicePtr at : {kept.from, kept.to})
      if (status.ok() && kept.nbytes > 0) status = check_memory(*context_, options_.rank, at, kept.nbytes, kept.what);
  return status;
}

Result<std::shared_ptr<Hold>> Stage::hold(const Moves& moves, cuda::CuStream user) {
  const std::lock_guard lock(mutex_);
  if (closed_) return closed();
  if (Status status = failure(); !status.ok()) return status;
  const cuda::Scope scope(*context_);
  if (!scope.status().ok()) return scope.status();
  Status status = refuse_capture(user);
  if (status.ok()) status = check(moves);
  if (!status.ok()) return status;
  const std::uint64_t number = scheduled_ + 1;
  status = enqueue(moves, user, number);
  if (!status.ok()) {
    flags_->fail(Status(status.code, status.message, options_.rank));  // part of it is on the stream
    return failure();
  }
  scheduled_ = number;
  const cuda::DeviceInfo& info = context_->info();
  const bool settles = moves.by_nics && info.host_flush && info.rdma_ordering < cuda::kRdmaOrderedForAll;
  return std::make_shared<Hold>(flags_, number, settles ? context_ : nullptr);
}

Status Stage::enqueue(const Moves& moves, cuda::CuStream user, std::uint64_t number) {
  const cuda::Api& api = context_->api();
  const std::string who = " of rank " + std::to_string(options_.rank);
  const auto flag = [&](StallFlags::Flag which) { return flags_address_ + which * sizeof(std::uint64_t); };
  const cuda::DeviceInfo& info = context_->info();
  const bool flushes = moves.by_nics && !info.host_flush && info.rdma_ordering < cuda::kRdmaOrderedForOwner;
  const unsigned waits = cuda::kWaitGeq | (flushes ? cuda::kWaitFlush : 0);
  Status status = order(fork_, user, stream_.get());
  for (const Staged& each : moves.in)
    if (status.ok()) status = copy(each, true);
  for (const Kept& each : moves.kept)
    if (status.ok()) status = copy(each);
  if (status.ok())
    status = cuda::status_of(api, api.stream_write(stream_.get(), flag(StallFlags::started), number, cuda::kWriteDefault), "the start flag" + who);
  if (status.ok())
    status = cuda::status_of(api, api.stream_wait(stream_.get(), flag(StallFlags::done), number, waits), "the wait for the host" + who);
  for (const Staged& each : moves.out)
    if (status.ok()) status = copy(each, false);
  if (status.ok())
    status = cuda::status_of(api, api.stream_write(stream_.get(), flag(StallFlags::ended), number, cuda::kWriteDefault), "the end flag" + who);
  if (status.ok()) status = order(end_, stream_.get(), user);
  return status;
}

Status Stage::copy(const Kept& kept) const {
  if (kept.nbytes == 0 || kept.to == kept.from) return {};
  const cuda::CuResult result = context_->api().memory_copy(kept.to, kept.from, kept.nbytes, stream_.get());
  return cuda::status_of(context_->api(), result, "keeping " + std::to_string(kept.nbytes) + " bytes of " + kept.what);
}

Status Stage::copy(const Staged& copy, bool to_host) const {
  if (copy.nbytes == 0) return {};
  Result<cuda::DevicePtr> host = pinned(copy);
  if (!host.ok()) return host.status();
  const cuda::Api& api = context_->api();
  const cuda::CuResult result = to_host ? api.memory_copy(*host, copy.device, copy.nbytes, stream_.get())
                                        : api.memory_copy(copy.device, *host, copy.nbytes, stream_.get());
  return cuda::status_of(api, result, copy.what + (to_host ? " to the host" : " from the host"));
}

Status Stage::order(const cuda::Event& event, cuda::CuStream before, cuda::CuStream after) const {
  const cuda::Api& api = context_->api();
  cuda::CuResult result = api.event_record(event.get(), before);
  if (result == cuda::kSuccess) result = api.stream_wait_event(after, event.get(), 0);
  return cuda::status_of(api, result, "ordering streams on rank " + std::to_string(options_.rank));
}

Result<bool> Stage::wait(std::uint64_t number, std::int64_t timeout_ns, const Interrupted& interrupted) const {
  Waiting waiting(interrupted);
  for (;;) {
    if (Status status = failure(); !status.ok()) return status;
    if (ended(number)) return true;
    if (timeout_ns >= 0 && waiting.waited_ns() > timeout_ns) return false;
    if (Status why = waiting.pause(); !why.ok()) return why;
  }
}

// What the driver knows of the last run: an error there is the GPU's, which no flag would tell.
Status Stage::ask_driver() const {
  const cuda::Scope scope(*context_);
  if (!scope.status().ok()) return scope.status();
  const cuda::CuResult result = context_->api().event_query(end_.get());
  if (result == cuda::kNotReady) return {};
  return cuda::status_of(context_->api(), result, "GPU " + std::to_string(ordinal_) + " of rank " + std::to_string(options_.rank));
}

void Stage::watch(std::int64_t now_ns) {
  const std::lock_guard lock(mutex_);
  if (closed_ || !failure().ok()) return;
  if (idle()) {
    seen_ns_ = 0;
    return;
  }
  Status status = options_.stopped ? options_.stopped() : Status();
  if (status.ok()) status = ask_driver();
  if (!status.ok()) {
    flags_->fail(Status(status.code, status.message, status.rank >= 0 ? status.rank : options_.rank));
    return;
  }
  // A run that has not begun waits for the user's work, one that is held for the collective: both have deadlines of their own.
  const std::uint64_t done = flags_->value(StallFlags::done);
  const std::uint64_t now_at = flags_->value(StallFlags::ended);
  if (done <= now_at || now_at != seen_ || seen_ns_ == 0) {
    seen_ = now_at;
    seen_ns_ = now_ns;
  } else if (now_ns - seen_ns_ > options_.timeout_ns) {
    flags_->fail(Status(Code::timeout, "the GPU of rank " + std::to_string(options_.rank) + " did not copy a result back within its timeout: is a kernel stuck?",
                        options_.rank));
  }
}

void Stage::loop() {
  std::unique_lock lock(mutex_);
  while (!closed_) {
    lock.unlock();
    watch(now_ns());
    lock.lock();
    if (!closed_) stopping_.wait_for(lock, kLook);
  }
}

// What still waits for a host that does not come is let go. False where the stream has not come through.
bool Stage::drain() {
  const std::int64_t begin = now_ns();
  while (failure().ok() && !idle() && now_ns() - begin < options_.drain_ns) std::this_thread::sleep_for(kLook);
  if (failure().ok() && !idle()) fail(Status(Code::aborted, "the communicator was closed in the middle of a call", options_.rank));
  const cuda::Scope scope(*context_);
  if (!scope.status().ok() || !stream_ || !fork_) return true;
  const cuda::Api& api = context_->api();
  if (api.event_record(fork_.get(), stream_.get()) != cuda::kSuccess) return true;  // the GPU is gone
  const std::int64_t let_go = now_ns();
  cuda::CuResult found = api.event_query(fork_.get());
  for (; found == cuda::kNotReady && now_ns() - let_go < options_.drain_ns; found = api.event_query(fork_.get())) std::this_thread::sleep_for(kLook);
  return found != cuda::kNotReady;
}

bool Stage::close() {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return true;
  }
  const bool drained = drain();  // watched, if it is, until here
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  stopping_.notify_all();
  if (thread_.joinable()) thread_.join();
  const std::lock_guard lock(mutex_);
  if (!drained) {
    static std::mutex* const guard = new std::mutex;
    static auto* const kept = new std::vector<LeftBehind>;
    const std::lock_guard held(*guard);
    kept->push_back({flags_, std::move(registration_), std::move(pinned_), std::move(stream_), std::move(fork_), std::move(end_)});
  }
  stream_ = {};
  fork_ = {};
  end_ = {};
  pinned_.clear();
  registration_ = {};
  context_.reset();
  return drained;
}

}  // namespace ccl_lab::device
