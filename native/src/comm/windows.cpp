// Windows of one rank; see windows.hpp.
#include "comm/windows.hpp"

#include <algorithm>

#include "base/clock.hpp"
#include "transport/segment_span.hpp"

namespace ccl_lab {

namespace {

constexpr std::uint64_t kPieceAlign = 4096;
constexpr std::int32_t kNamed = 8;  // ranks, in a message

}  // namespace

// ---- a window

MemoryWindow::MemoryWindow(const void* owner, int rank, std::int32_t channel, SignalTable signals, std::uint32_t epoch, WindowSpec spec,
               std::shared_ptr<Block> held)
    : owner_(owner),
      rank_(rank),
      channel_(channel),
      signals_(signals),
      epoch_(epoch),
      spec_(std::move(spec)),
      held_(std::move(held)),
      taken_(spec_.raised) {}

std::byte* MemoryWindow::mapped(std::int32_t rank, std::uint64_t offset) const {
  const WindowPart& at = part(rank);
  return at.segment == nullptr ? nullptr : at.segment->arena() + at.offset + offset;
}

Status MemoryWindow::check_rank(const char* what, std::int32_t rank) const {
  if (rank >= 0 && rank < n_ranks()) return {};
  return Status(Code::usage, std::string(what) + " of rank " + std::to_string(rank_) + ", window " + std::to_string(number()) + ": rank " +
                                 std::to_string(rank) + " does not exist, expected 0 to " + std::to_string(n_ranks() - 1), rank_);
}

Status MemoryWindow::check(const char* what, std::int32_t rank, std::uint64_t offset, std::uint64_t nbytes) const {
  if (Status status = check_rank(what, rank); !status.ok()) return status;
  const std::uint64_t size = part(rank).nbytes;
  if (offset <= size && nbytes <= size - offset) return {};
  return Status(Code::bounds, std::string(what) + " by rank " + std::to_string(rank_) + ", window " + std::to_string(number()) + " of rank " +
                                  std::to_string(rank) + ": " + std::to_string(nbytes) + " bytes at offset " + std::to_string(offset) +
                                  " lie outside its " + std::to_string(size) + " bytes", rank);
}

std::uint64_t MemoryWindow::waiting(std::int32_t rank) const {
  return signals_.value(rank, channel_) - taken_[static_cast<std::size_t>(rank)];
}

std::uint64_t MemoryWindow::count(std::int32_t rank) const {
  const std::lock_guard lock(mutex_);
  if (rank >= 0) return waiting(rank);
  std::uint64_t all = 0;
  for (std::int32_t each = 0; each < n_ranks(); ++each) all += waiting(each);
  return all;
}

bool MemoryWindow::take(std::int32_t rank, std::uint64_t count, std::vector<std::int32_t>& taken) {
  const std::lock_guard lock(mutex_);
  if (rank >= 0) {
    if (waiting(rank) < count) return false;
    taken_[static_cast<std::size_t>(rank)] += count;
    taken.assign(count, rank);
    return true;
  }
  std::uint64_t there = 0;
  for (std::int32_t each = 0; each < n_ranks() && there < count; ++each) there += waiting(each);
  if (there < count) return false;
  while (taken.size() < count) {  // in turn, so that nobody's signals wait for ever behind those of another
    const std::int32_t each = turn_;
    turn_ = (turn_ + 1) % n_ranks();
    if (waiting(each) == 0) continue;
    ++taken_[static_cast<std::size_t>(each)];
    taken.push_back(each);
  }
  return true;
}

std::string MemoryWindow::missing(std::int32_t rank, std::uint64_t count) const {
  const std::lock_guard lock(mutex_);
  const std::string wanted = "expected " + std::to_string(count) + (count == 1 ? " signal" : " signals");
  if (rank >= 0) return wanted + " of rank " + std::to_string(rank) + ", seen " + std::to_string(waiting(rank));
  std::uint64_t seen = 0;
  std::int32_t silent = 0;
  std::string who;
  for (std::int32_t each = 0; each < n_ranks(); ++each) {
    seen += waiting(each);
    if (waiting(each) > 0 || each == rank_) continue;
    if (silent < kNamed) who += (silent > 0 ? ", " : "") + std::to_string(each);
    ++silent;
  }
  if (silent > kNamed) who += ", ...";
  return wanted + " of any rank, seen " + std::to_string(seen) + (silent == 0 ? "" : "; none came from rank " + who);
}

// ---- posting

Status Windows::post(const std::shared_ptr<Sided>& op, const std::vector<Status>& lost) {
  op->begin_ns_ = now_ns();
  const auto refused = [&](std::int32_t rank) -> const Status& { return lost[static_cast<std::size_t>(rank)]; };
  switch (op->what) {
    case Sided::What::wait:
      if (op->window->take(op->peer, op->count, op->taken_)) {
        finish(*op, {});
        return {};
      }
      for (std::int32_t rank = 0; rank < op->window->n_ranks(); ++rank)
        if ((op->peer < 0 || op->peer == rank) && !refused(rank).ok()) return refused(rank);
      waits_.push_back(op);
      return {};
    case Sided::What::flush:
      for (std::int32_t rank = 0; rank < op->window->n_ranks(); ++rank)
        if ((op->peer < 0 || op->peer == rank) && !refused(rank).ok()) return refused(rank);
      post_flush(op);
      return {};
    default:
      if (!refused(op->peer).ok()) return refused(op->peer);
      transfer(op);
      return {};
  }
}

void Windows::transfer(const std::shared_ptr<Sided>& op) {
  if (free_.empty()) {
    free_.push_back(slots_.size());
    slots_.emplace_back();
  }
  const std::size_t at = free_.back();
  free_.pop_back();
  serial_ = (serial_ + 1) & kSerials;
  slots_[at] = {op, serial_};
  ++n_live_;
  const std::uint64_t cookie = kOwn | static_cast<std::uint64_t>(serial_) << 32 | at;
  const std::uint64_t most = op->nbytes < kSpreadBytes ? 1 : op->nbytes / kPieceBytes;
  const std::size_t n = std::min<std::uint64_t>(most, op->window->part(op->peer).lanes.size());
  const std::uint64_t piece = (op->nbytes / n + kPieceAlign - 1) / kPieceAlign * kPieceAlign;
  for (std::size_t lane = n; lane-- > 0 && op->failed_.ok();) {
    const std::uint64_t begin = std::min(lane * piece, op->nbytes);
    const std::uint64_t end = lane + 1 == n ? op->nbytes : std::min(begin + piece, op->nbytes);
    op->failed_ = post_piece(*op, lane, begin, end - begin, cookie);
    if (op->failed_.ok()) ++op->open_;
  }
  if (op->open_ > 0) return;
  release(at);
  finish(*op, op->failed_);
}

Status Windows::post_piece(const Sided& op, std::size_t lane, std::uint64_t begin, std::uint64_t nbytes, std::uint64_t cookie) {
  const WindowPart& part = op.window->part(op.peer);
  const auto [nic, peer_nic] = part.lanes[lane];
  const Remote at{kArenaRegionKey, part.offset + op.offset + begin};
  const Tag tag{0, -1, static_cast<std::uint16_t>(op.window->channel())};
  if (op.what == Sided::What::get) {
    Get get;
    get.peer = op.peer;
    get.nic = nic;
    get.peer_nic = peer_nic;
    get.destination = op.memory + begin;
    get.nbytes = nbytes;
    get.source = at;
    get.cookie = cookie;
    get.tag = tag;
    return links_.get(get);
  }
  Put put;
  put.peer = op.peer;
  put.nic = nic;
  put.peer_nic = peer_nic;
  put.source = op.memory == nullptr ? nullptr : op.memory + begin;
  put.nbytes = nbytes;
  put.destination = at;
  if (lane > 0) put.signal = op.window->channel() | kSilentSignal;
  else if (op.signals) put.signal = op.window->channel();
  put.cookie = cookie;
  put.tag = tag;
  put.urgent = op.urgent;
  put.surely = true;
  return links_.put(put);
}

void Windows::post_flush(const std::shared_ptr<Sided>& op) {
  for (const Slot& slot : slots_) {
    if (slot.op == nullptr || slot.op->window != op->window || (op->peer >= 0 && slot.op->peer != op->peer)) continue;
    slot.op->flushes_.push_back(op);
    ++op->open_;
  }
  if (op->open_ == 0) finish(*op, {});
}

// ---- ending

void Windows::release(std::size_t at) {
  slots_[at].op = nullptr;
  free_.push_back(at);
  --n_live_;
}

void Windows::piece_done(const Completion& completion) {
  const std::size_t at = static_cast<std::uint32_t>(completion.cookie);
  const std::uint32_t serial = static_cast<std::uint32_t>(completion.cookie >> 32) & kSerials;
  if (at >= slots_.size() || slots_[at].op == nullptr || slots_[at].serial != serial) return;  // of before a reset
  const std::shared_ptr<Sided> op = slots_[at].op;
  if (op->failed_.ok()) op->failed_ = completion.status;
  if (--op->open_ > 0) return;
  release(at);
  finish(*op, op->failed_);
}

void Windows::finish(Sided& op, Status status) {
  if (op.done()) return;
  record(op, op.begin_ns_, now_ns(), status.ok() ? SpanStatus::ok : status.code == Code::aborted ? SpanStatus::aborted : SpanStatus::failed);
  for (const std::shared_ptr<Sided>& flush : std::exchange(op.flushes_, {})) {
    if (flush->failed_.ok()) flush->failed_ = status;
    if (--flush->open_ == 0) finish(*flush, flush->failed_);
  }
  op.status_ = std::move(status);
  ++n_ended_;
  op.done_.store(true, std::memory_order_release);
}

int Windows::settle(std::vector<Completion>& completions) {
  if (!busy()) return 0;
  const std::uint64_t before = n_ended_;
  if (n_live_ > 0)
    std::erase_if(completions, [this](const Completion& each) {
      if ((each.cookie & kOwn) == 0) return false;
      piece_done(each);
      return true;
    });
  std::erase_if(waits_, [this](const std::shared_ptr<Sided>& op) {
    if (!op->window->take(op->peer, op->count, op->taken_)) return false;
    finish(*op, {});
    return true;
  });
  return static_cast<int>(n_ended_ - before);
}

void Windows::lost(std::int32_t peer, const Status& why) {
  lost_[static_cast<std::size_t>(peer)].store(true, std::memory_order_release);
  std::erase_if(waits_, [&](const std::shared_ptr<Sided>& op) {
    if (op->peer >= 0 && op->peer != peer) return false;
    // What it signalled before it was lost counts.
    const bool there = op->window->take(op->peer, op->count, op->taken_);
    finish(*op, there ? Status() : why);
    return true;
  });
}

void Windows::give_up(Sided& op, Status why) {
  const auto found = std::find_if(waits_.begin(), waits_.end(), [&](const auto& each) { return each.get() == &op; });
  if (found == waits_.end()) return;
  const std::shared_ptr<Sided> held = *found;
  waits_.erase(found);
  finish(*held, std::move(why));
}

void Windows::give_up(const MemoryWindow& window, const Status& why) {
  std::erase_if(waits_, [&](const std::shared_ptr<Sided>& op) {
    if (op->window.get() != &window) return false;
    finish(*op, why);
    return true;
  });
}

void Windows::stop(const Status& reason) {
  for (const std::shared_ptr<Sided>& op : std::exchange(waits_, {})) finish(*op, reason);
  for (std::size_t at = 0; at < slots_.size(); ++at) {
    if (slots_[at].op == nullptr) continue;
    const std::shared_ptr<Sided> op = slots_[at].op;
    release(at);
    finish(*op, reason);
  }
}

void Windows::reset(std::uint16_t epoch) {
  epoch_.store(epoch, std::memory_order_release);
  for (std::atomic<bool>& lost : lost_) lost.store(false, std::memory_order_release);
}

void Windows::record(const Sided& op, std::int64_t begin_ns, std::int64_t end_ns, SpanStatus status) const {
  static constexpr SpanKind kKinds[] = {SpanKind::put, SpanKind::get, SpanKind::signal, SpanKind::wait, SpanKind::flush};
  if (!spans_.enabled()) return;
  SpanRecord span{};
  span.begin_ns = begin_ns;
  span.end_ns = end_ns;
  span.nbytes = static_cast<std::int64_t>(op.nbytes);
  span.op_id = -1;
  span.peer = op.peer;
  span.index = static_cast<std::uint16_t>(op.window->channel());
  span.epoch = static_cast<std::uint16_t>(op.window->epoch());
  span.track = static_cast<std::uint8_t>(Track::channel);
  span.kind = static_cast<std::uint8_t>(kKinds[static_cast<std::size_t>(op.what)]);
  span.status = static_cast<std::uint8_t>(status);
  spans_.record(span);
  const bool moved = op.nbytes > 0 && (op.what == Sided::What::put || op.what == Sided::What::get);
  if (!moved || op.window->part(op.peer).segment == nullptr) return;  // NICs say themselves what they carried
  const Tag tag{0, -1, span.index};
  spans_.record(segment_span(Track::fabric, op.peer, span.index, span.epoch, tag, op.nbytes, begin_ns, end_ns));
}

}  // namespace ccl_lab
