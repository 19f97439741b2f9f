// Beginning, driving and ending collectives of a node; see group.hpp.
#include "node/group.hpp"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/clock.hpp"
#include "base/cores.hpp"
#include "base/cpu.hpp"
#include "node/across.hpp"

namespace ccl_lab::node {

namespace {

// How long a rank without a core's worth of work gives its core away before it sleeps: a wake-up across cores costs
// 13 to 22 us, a hand-over by yield 1.2 us.
constexpr std::int64_t kYieldNs = 1'000'000;
constexpr int kPollsPerLook = 64;
// After that the peer may be waiting for this very core: ranks that started together often share one at first.
constexpr std::int64_t kSpinAloneNs = 3'000;
// With more ranks than cores, the peer that is waited for may be running on another core.
constexpr int kPollsBeforeYield = 1;
constexpr std::uint64_t kSmallBytes = 8192;
// The least block that the kernel may copy: between two processes both ways were equal at 4 to 8 KiB.
constexpr std::uint32_t kCrossFrom = 8192;
constexpr std::uint64_t kSmallBytesOfAll = 65536;

bool rooted(Collective collective) {
  return collective == Collective::broadcast || collective == Collective::reduce || collective == Collective::gather ||
         collective == Collective::scatter;
}

std::uint64_t what_of(const Call& call) {
  return static_cast<std::uint64_t>(call.collective) | static_cast<std::uint64_t>(call.dtype) << 8 |
         static_cast<std::uint64_t>(call.redop) << 16 | static_cast<std::uint64_t>(rooted(call.collective) ? call.root + 1 : 0) << 32;
}

std::uint64_t signature_of(std::uint64_t what, std::uint64_t nbytes) {
  std::uint64_t mixed = what * 0x9e3779b97f4a7c15u ^ (nbytes + 1) * 0xc2b2ae3d27d4eb4fu;
  mixed ^= mixed >> 29;
  return (mixed * 0xbf58476d1ce4e5b9u) >> 48;
}

}  // namespace

Group::Group(std::shared_ptr<RankSegment> own, std::vector<std::int32_t> ranks, const GroupOptions& options, SpanWriter* spans)
    : spread_(ranks.size()), own_(std::move(own)), options_(options) {
  core_.ranks = std::move(ranks);
  core_.n = static_cast<int>(core_.ranks.size());
  core_.n_cores = options.n_cores > 0 ? options.n_cores : usable_cores_of_ranks();
  core_.spans.connect(spans);
  core_.place = place_of(own_->rank());
  core_.arena_bytes = own_->arena_bytes();
  const auto n = core_.ranks.size();
  core_.members.resize(n);
  core_.inputs.resize(n);
  core_.outputs.resize(n);
  core_.where.resize(n);
  core_.sources.resize(n);
  core_.targets.resize(n + 1);
  core_.sent.resize(n);
  core_.has_cells.resize(n);
  deal_cells();
  core_.received.resize(n);
  Member& self = core_.members[static_cast<std::size_t>(core_.place)];
  self = {own_, &board_at(own_->board()), own_->board(), own_->arena()};
  core_.own = self.board;
  core_.parking.connect(core_.own, core_.place == 0 ? core_.own : nullptr);
}

int Group::place_of(std::int32_t rank) const {
  const auto found = std::lower_bound(core_.ranks.begin(), core_.ranks.end(), rank);
  if (found == core_.ranks.end() || *found != rank) return -1;
  return static_cast<int>(found - core_.ranks.begin());
}

Status Group::attach(std::int32_t rank, std::shared_ptr<RankSegment> segment) {
  const int place = place_of(rank);
  if (place < 0 || place == core_.place) return {};
  if (segment->board_bytes() != own_->board_bytes() || segment->arena_bytes() != own_->arena_bytes())
    return Status(Code::config, "rank " + std::to_string(rank) + " has a board of " + std::to_string(segment->board_bytes()) +
                                    " and an arena of " + std::to_string(segment->arena_bytes()) + " bytes, this rank of " +
                                    std::to_string(own_->board_bytes()) + " and " + std::to_string(own_->arena_bytes()) +
                                    "; start all ranks with the same options", rank);
  Member& member = core_.members[static_cast<std::size_t>(place)];
  if (member.segment == nullptr) ++n_attached_;
  member.board = &board_at(segment->board());
  member.memory = segment->board();
  member.arena = segment->arena();
  member.segment = std::move(segment);
  if (place == 0) core_.parking.connect(core_.own, member.board);
  if (complete() && core_.place == 0 && core_.n > core_.n_cores) store_trials_ = std::make_unique<RouteTrials>();
  if (complete() && options_.cross != Cross::never) {
    can_cross_ = may_read_across(core_);
    if (options_.cross == Cross::always) cross_from_ = 0;
    else if (can_cross_ && core_.place == 0) begin_trials();
  }
  return {};
}

bool Group::is_small(Collective collective, std::uint64_t block_bytes, int n) {
  const std::uint64_t nbytes = contribution_bytes(collective, block_bytes, n);
  return nbytes <= kSmallBytes && nbytes * static_cast<std::uint64_t>(n) <= kSmallBytesOfAll;
}

Status Group::check(const Call& call) const {
  if (broken_)
    return Status(Code::aborted, "rank " + std::to_string(own_->rank()) + " was stopped: " + core_.status.message +
                                     "; reset all ranks, then go on", core_.status.rank);
  if (!complete())
    return Status(Code::usage, "only " + std::to_string(n_attached_) + " of " + std::to_string(core_.n) +
                                   " ranks of this node are attached", own_->rank());
  if (running_) return Status(Code::usage, "a collective is running on rank " + std::to_string(own_->rank()), own_->rank());
  if (call.root < 0 || call.root >= core_.n)
    return Status(Code::usage, "root " + std::to_string(call.root) + " is not a rank of this node", own_->rank());
  return {};
}

Status Group::begin(const Call& call, Timed timed) {
  if (broken_ || running_ || !complete() || static_cast<unsigned>(call.root) >= static_cast<unsigned>(core_.n)) [[unlikely]]
    return check(call);
  core_.call = call;
  core_.blocks = blocks_of(call.collective, core_.place, core_.n, call.root, call.peer);
  core_.stage = 0;
  const std::uint64_t what = what_of(call);
  core_.own->doing.what.store(what, std::memory_order_relaxed);
  core_.own->doing.nbytes.store(call.block_bytes, std::memory_order_relaxed);
  if (call.collective == Collective::send_recv) {
    begin_pair();
  } else {
    ++core_.number;
    core_.tag = make_tag(core_.epoch, core_.number, signature_of(what, call.block_bytes));
    small_ = is_small(call.collective, call.block_bytes, core_.n);
    if (!small_) describe_buffers();
  }
  running_ = true;
  core_.spans.begin(call, static_cast<std::uint16_t>(core_.epoch), timed);
  return {};
}

// The two ranks count their messages; the other ranks of the node know nothing of them.
void Group::begin_pair() {
  const Call& call = core_.call;
  if (core_.place != call.root && core_.place != call.peer) return;
  const bool sends = core_.place == call.root;
  std::uint64_t& count = sends ? core_.sent[static_cast<std::size_t>(call.peer)] : core_.received[static_cast<std::size_t>(call.root)];
  core_.message = ++count;
  core_.tag = make_tag(core_.epoch, count, signature_of(what_of(call), call.block_bytes));
  if (call.block_bytes <= kSlotBytes) return;
  const bool chooses = !sends && can_cross_ && options_.cross == Cross::automatic && call.block_bytes >= kPairCrossFrom;
  if (chooses && !asked_) begin_trials();
  describe_buffers();
}

// Who has the cells sends through them; to whom another rank's come does not.
bool Group::by_cells(const Call& call) const {
  if (call.collective != Collective::send_recv || call.block_bytes <= kSlotBytes || call.block_bytes > kPairCells * kSlotBytes) return false;
  if (core_.n > core_.n_cores || cross_from_ == 0 || call.root == call.peer) return false;
  if (core_.place == call.root) return core_.has_cells[static_cast<std::size_t>(call.peer)];
  return core_.place == call.peer && !core_.has_cells[static_cast<std::size_t>(call.root)];
}

void Group::begin_trials() {
  asked_ = true;
  if (reading_across_pays()) trials_ = std::make_unique<RouteTrials>();
}

bool Group::locate(const std::byte* data, std::uint64_t nbytes, std::uint64_t& offset, std::uint16_t& head,
                   std::uint16_t& tail) const {
  const auto distance = static_cast<std::uint64_t>(data - own_->arena());
  head = tail = 0;
  if (data >= own_->arena() && distance < core_.arena_bytes && nbytes <= core_.arena_bytes - distance) {
    offset = distance;
    return true;
  }
  auto found = std::upper_bound(aliases_.begin(), aliases_.end(), data,
                                [](const std::byte* at, const Alias& alias) { return at < alias.begin; });
  if (found == aliases_.begin()) return false;
  --found;
  const std::byte* const end = data + nbytes;
  if (end > found->end || reinterpret_cast<std::uintptr_t>(data) % itemsize(core_.call.dtype) != 0) return false;
  if (data < found->pages) head = static_cast<std::uint16_t>(found->pages - data);
  if (end > found->pages_end) tail = static_cast<std::uint16_t>(end - found->pages_end);
  if (std::uint64_t{head} + tail >= nbytes) return false;
  offset = found->offset + static_cast<std::uint64_t>(data - found->pages);  // the head is never looked up there
  return true;
}

void Group::describe_buffers() {
  const Call& call = core_.call;
  Where& at = core_.where[static_cast<std::size_t>(core_.place)];
  at = {};
  const std::uint64_t in_bytes = core_.blocks.input * call.block_bytes;
  const std::uint64_t out_bytes = core_.blocks.output * call.block_bytes;
  at.output_address = reinterpret_cast<std::uint64_t>(call.output);
  at.cross_from = cross_from_;
  const bool overlaps = call.collective == Collective::all_to_all && call.input < call.output + out_bytes &&
                        call.output < call.input + in_bytes;
  if (overlaps) at.flags |= kOverlaps;
  at.address = reinterpret_cast<std::uint64_t>(call.input);
  // Nobody has made sure that such buffers still are where they were.
  const bool by_cells_only = by_cells(call);
  if (in_bytes > 0 && !by_cells_only && locate(call.input, in_bytes, at.input, at.input_head, at.input_tail))
    at.flags |= kInputMapped;
  if (out_bytes > 0 && !by_cells_only && locate(call.output, out_bytes, at.output, at.output_head, at.output_tail))
    at.flags |= kOutputMapped;
  if (can_cross_) at.flags |= kCanCross;
  const bool pair = call.collective == Collective::send_recv;
  const bool crosses = !pair && foretold_.says(call);
  if (!pair && !crosses && in_bytes > 0 && (at.flags & kInputMapped) == 0 && fits_early(core_)) at.flags |= kStagedEarly;
  core_.streams = !pair && foretold_streams_.says(call);
  if (store_trials_ != nullptr && !pair && (at.flags & kInputMapped) == 0 && either_stores_may_pay(core_) &&
      store_trials_->takes_other(call.collective, call.block_bytes))
    at.flags |= kStreamsNext;
  const bool tries_routes = trials_ != nullptr && core_.place == (pair ? call.peer : 0);
  if (tries_routes || store_trials_ != nullptr) described_ns_ = now_ns();
  if (!tries_routes) return;
  if (!pair && !core_.crossing_pays(overlaps, kCrossFrom)) return;
  const bool chosen = trials_->takes_other(call.collective, call.block_bytes);
  at.cross_from = (pair ? chosen : crosses) ? kCrossFrom : kNeverCross;
  if (chosen && !pair) at.flags |= kCrossesNext;
}

Turn Group::advance() {
  if (core_.call.collective == Collective::send_recv) return advance_pair();
  return small_ ? step_small(core_) : advance_large();
}

Turn Group::advance_large() {
  const Turn turn = step_large(core_, large_);
  if (turn != Turn::done) return turn;
  const Where& first = core_.where[0];
  foretold_.hear(core_.call, (first.flags & kCrossesNext) != 0 || (core_.crossed() && first.cross_from == 0));
  foretold_streams_.hear(core_.call, (first.flags & kStreamsNext) != 0);
  if (core_.place == 0 && core_.route != Route::mapped && (trials_ != nullptr || store_trials_ != nullptr)) learn();
  return turn;
}

Turn Group::advance_pair() {
  const Turn turn = step_pair(core_);
  const Call& call = core_.call;
  const bool chose = core_.place == call.peer && call.root != call.peer && call.block_bytes >= kPairCrossFrom;
  if (turn == Turn::done && trials_ != nullptr && chose && core_.coming_ns != 0)
    trials_->took(call.collective, call.block_bytes, core_.route == Route::pulled, now_ns() - core_.coming_ns);
  return turn;
}

// A call that went another way than was asked for, as mapped buffers do, says nothing of the two.
void Group::learn() {
  const bool asked = core_.where[static_cast<std::size_t>(core_.place)].cross_from != kNeverCross;
  const std::int64_t ns = now_ns() - described_ns_;
  if (trials_ != nullptr && asked == core_.crossed()) trials_->took(core_.call.collective, core_.call.block_bytes, asked, ns);
  if (store_trials_ != nullptr && core_.route == Route::staged && either_stores_may_pay(core_))
    store_trials_->took(core_.call.collective, core_.call.block_bytes, core_.streams, ns);
}

Turn Group::step() {
  const Turn turn = advance();
  if (turn == Turn::busy || turn == Turn::waiting) return turn;
  if (turn == Turn::failed) {
    // The first reason wins: a peer that was stopped may have freed what could not be read.
    stop(own_->aborted() ? own_->abort_status() : core_.status);
    return turn;
  }
  running_ = false;
  if (core_.spans.ends_here()) [[unlikely]]
    core_.spans.end(std::max(core_.blocks.input, core_.blocks.output) * core_.call.block_bytes);
  return turn;
}

Turn Group::drive(std::int64_t for_ns) {
  const bool crowded = core_.n > core_.n_cores;
  Turn turn = Turn::waiting;
  for (int polls = crowded ? kPollsBeforeYield : kPollsPerLook; polls > 0; --polls) {
    turn = step();
    if (turn == Turn::done || turn == Turn::failed) return turn;
    if (turn == Turn::waiting && !crowded) relax();
  }
  return for_ns <= 0 ? Turn::waiting : wait_for(for_ns, turn);
}

// `turn` is what the last step was.
Turn Group::wait_for(std::int64_t for_ns, Turn turn) {
  rest();
  const bool crowded = core_.n > core_.n_cores;
  const std::int64_t begin_ns = now_ns();
  std::int64_t now = begin_ns, idle_ns = begin_ns;
  for (int polls = 1;; ++polls) {
    if (turn == Turn::busy) {
      while (turn == Turn::busy) turn = step();
      idle_ns = now = now_ns();
    }
    if (turn == Turn::done || turn == Turn::failed) return turn;
    if (!crowded && polls % kPollsPerLook != 0) {
      relax();
    } else {
      if (own_->aborted()) {
        stop(own_->abort_status());
        return Turn::failed;
      }
      if (!crowded) now = now_ns();
      if (now - begin_ns > for_ns) return Turn::waiting;
      if (now - idle_ns < options_.spin_ns + kYieldNs) {
        now = give_way(now - idle_ns, now);
      } else {
        turn = sleep(for_ns - (now - begin_ns));
        if (turn == Turn::done || turn == Turn::failed) return turn;
        now = now_ns();
      }
    }
    turn = step();
  }
}

// To whoever else needs this core, where there may be one. The time afterwards.
std::int64_t Group::give_way(std::int64_t idle_for_ns, std::int64_t now) {
  const bool crowded = core_.n > core_.n_cores;
  if (!crowded && idle_for_ns < std::min(options_.spin_ns, kSpinAloneNs)) return now;
  if (spread_.due()) spread_.look(core_, now);
  if (crowded && idle_for_ns < options_.spin_ns && mates_wait_too()) {
    relax();
    return now_ns();
  }
  ::sched_yield();
  const std::int64_t back_ns = now_ns();
  spread_.away(back_ns - now, back_ns);
  return back_ns;
}

Turn Group::sleep(std::int64_t longest_ns) {
  core_.parking.announce(Sleep::futex);
  const Turn turn = step();
  if (turn == Turn::waiting) core_.parking.sleep(longest_ns);
  core_.parking.take_back();
  return turn;
}

// Whoever is on this core waits, as this rank does, for ranks of other cores. Of small messages: those who wait in a large one can run
// the tasks of others, and spinning was no faster there.
bool Group::mates_wait_too() const {
  const Collective collective = core_.call.collective;
  const bool from_all = small_ && collective != Collective::send_recv && !rooted(collective);
  return from_all && core_.stage == 1 && spread_.all_here_entered(core_);
}

Status Group::missing(double timeout_s) const {
  std::string late;
  int culprit = -1;
  const Call& call = core_.call;
  const bool pair = call.collective == Collective::send_recv;
  for (int j = 0; j < core_.n; ++j) {
    if (pair && j != (core_.place == call.root ? call.peer : call.root)) continue;
    const Board& board = *core_.members[static_cast<std::size_t>(j)].board;
    const std::uint64_t tag = board.headers[core_.number & (headers_of(core_.n) - 1)].tag.load(std::memory_order_acquire);
    if (j == core_.place || (!pair && same_number(tag, core_.tag))) continue;
    late += (late.empty() ? "" : ", ") + std::to_string(core_.ranks[static_cast<std::size_t>(j)]);
    if (culprit < 0) culprit = core_.ranks[static_cast<std::size_t>(j)];
  }
  return Status(Code::timeout,
                std::string(kCollectiveNames[static_cast<std::size_t>(call.collective)]) + " #" +
                    std::to_string(call.coll_id) + " on rank " + std::to_string(own_->rank()) + " is not done after " +
                    std::to_string(timeout_s) + " s; " +
                    (late.empty() ? "all ranks of the node have entered it" : "not entered by rank " + late) +
                    "; is a rank slow or stopped, or was another collective called there?",
                culprit);
}

void Group::stop(Status reason) {
  core_.own->stopped.store(1, std::memory_order_release);
  core_.spans.flush();
  running_ = false;
  broken_ = true;
  core_.status = std::move(reason);
}

void Group::reset(std::uint64_t epoch) {
  core_.own->done.store(0);
  core_.own->claim.store(0);
  core_.own->ran.store(0);
  core_.own->staged.store(0);
  core_.own->taken.store(0);
  core_.own->parked.store(0);
  core_.own->stopped.store(0);
  for (Line& line : core_.own->headers) line.tag.store(0);
  for (int j = 0; j < core_.n; ++j) {
    PairBoard& pair = core_.pair(core_.place, j);
    // Untouched boards stay untouched.
    if (core_.sent[static_cast<std::size_t>(j)] + core_.received[static_cast<std::size_t>(j)] == 0) continue;
    for (Line& line : pair.lines) line.tag.store(0);
    pair.answer.tag.store(0);
    pair.received.store(0);
    pair.copied.store(0);
    pair.pieces_in.store(0);
    pair.pieces_out.store(0);
  }
  core_.epoch = epoch;
  core_.number = core_.phase = core_.all_done = 0;
  deal_cells();
  std::fill(core_.sent.begin(), core_.sent.end(), 0);
  std::fill(core_.received.begin(), core_.received.end(), 0);
  core_.status = {};
  running_ = broken_ = false;
}

// At first the lower of two ranks has them.
void Group::deal_cells() {
  for (int j = 0; j < core_.n; ++j) core_.has_cells[static_cast<std::size_t>(j)] = core_.place < j;
}

void Group::add_alias(const Alias& alias) {
  const auto at = std::upper_bound(aliases_.begin(), aliases_.end(), alias.begin,
                                   [](const std::byte* address, const Alias& other) { return address < other.begin; });
  aliases_.insert(at, alias);
}

void Group::remove_alias(const void* begin) {
  std::erase_if(aliases_, [&](const Alias& alias) { return alias.begin == begin; });
}

}  // namespace ccl_lab::node
