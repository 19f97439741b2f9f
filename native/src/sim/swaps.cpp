// See swaps.hpp.
#include "swaps.hpp"

#include <algorithm>
#include <map>
#include <new>
#include <unordered_map>
#include <tuple>
#include <utility>
#include <vector>

#include "stream.hpp"

namespace ccl_lab::sim {
namespace {

using Status = SwapStatus;

// What puts that a lane waits for have raised.
struct Seen {
  std::int64_t ps = 0, tick = 0, batch = 0;
  std::int32_t rows = 0;

  void add(const Seen& other) {
    ps = std::max(ps, other.ps);
    tick = std::max(tick, other.tick);
    batch = std::max(batch, other.batch);
    rows += other.rows;
  }
};

struct alignas(64) Lane {
  std::int64_t clock_ps = 0, left_ps = 0, batch = -1;
  Seen seen;            // by its next wait
  std::int32_t at = 0;  // its next row
  bool row = false;     // its last op was a put
};

// What a lane came to, and when: puts, copies or sums that begin; row < 0: sums of row ~row that end.
struct Event {
  std::int64_t clock_ps = 0;
  std::int32_t row = 0, lane = 0;
};

// Copies or sums of a lane, one a batch.
struct Work {
  std::int64_t clock_ps = 0, first = 0, last = 0, each_ps = 0;
  std::int32_t row = 0;
  std::int32_t next = -1;  // lane that works in the same memory
};

struct Memory {
  std::int64_t free_ps = 0, done = -1;  // done: the last batch that was evaluated
  std::int64_t kept = -1;               // up to that batch for those who give
  std::int32_t works = -1;              // the first lane that works there
};

class Swaps {
 public:
  explicit Swaps(const SwapsInput& in)
      : in_(in), n_(static_cast<std::size_t>(in.ranks)), rows_(in.step.size()), links_(in.bytes_per_s, in.alpha_ps, in.changes),
        lanes_(n_ * static_cast<std::size_t>(in.channels)),
        memories_(n_), works_(in.channels > 1 ? lanes_.size() : 0), wait_of_(rows_, -1), next_wait_(rows_ + 1, -1) {
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane) lanes_[lane].clock_ps = in.late_ps[lane % n_];
    for (std::size_t row = 0; row < rows_; ++row)
      for (std::int64_t i = 0; kind(row) == SwapStep::wait && i < in.raises[row]; ++i)
        if (const auto put = static_cast<std::size_t>(in.raise[row] + i); kind(put) == SwapStep::put) wait_of_[put] = static_cast<std::int32_t>(row);
    for (std::size_t row = rows_; row-- > 0;) next_wait_[row] = kind(row) == SwapStep::wait ? static_cast<std::int32_t>(row) : next_wait_[row + 1];
  }

  Status run(std::span<std::int64_t> finish_ps) {
    for (std::size_t rank = 0; rank < n_; ++rank)  // lanes that use neighbouring links and memory one after the other
      for (std::size_t lane = rank; lane < lanes_.size(); lane += n_) go_on(static_cast<std::int32_t>(lane));
    while (!pending_.empty() && status_ == Status::ok) {
      const std::int64_t batch = pending_.begin()->first;
      std::vector<Event> events = std::move(pending_.begin()->second);
      pending_.erase(pending_.begin());
      serve(batch, std::move(events));
    }
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
      if (static_cast<std::size_t>(lanes_[lane].at) < rows_ && status_ == Status::ok) status_ = Status::deadlock;
      finish_ps[lane % n_] = std::max({finish_ps[lane % n_], lanes_[lane].clock_ps, lanes_[lane].left_ps});
    }
    return status_;
  }

 private:
  [[nodiscard]] SwapStep kind(std::size_t row) const { return static_cast<SwapStep>(in_.step[row]); }
  [[nodiscard]] std::size_t rank_of(std::int32_t lane) const { return static_cast<std::uint32_t>(lane) % static_cast<std::uint32_t>(n_); }
  [[nodiscard]] std::size_t channel_of(std::int32_t lane) const { return static_cast<std::uint32_t>(lane) / static_cast<std::uint32_t>(n_); }
  [[nodiscard]] std::int64_t times(std::size_t row, std::size_t rank) const {
    return in_.some[row] < 0 ? in_.times[row] : in_.by_rank[static_cast<std::size_t>(in_.some[row]) * n_ + rank];
  }
  [[nodiscard]] std::size_t peer(std::size_t row, std::size_t rank) const { return rank ^ static_cast<std::size_t>(in_.apart[row]); }
  [[nodiscard]] std::int64_t tier_ps(std::size_t row, std::int32_t lane) const {
    return in_.tier_ps[in_.tier_of[static_cast<std::size_t>(in_.tier[row]) * lanes_.size() + static_cast<std::size_t>(lane)]];
  }
  [[nodiscard]] std::size_t cell(std::size_t row, std::int32_t lane) const {
    return row * static_cast<std::size_t>(in_.channels) + channel_of(lane);
  }
  [[nodiscard]] static std::uint64_t key(std::int32_t lane, std::int32_t row) {
    return std::uint64_t{static_cast<std::uint32_t>(lane)} << 32 | static_cast<std::uint32_t>(row);
  }
  [[nodiscard]] std::int64_t blocks(std::size_t row, std::int32_t lane) const {
    return in_.blocks[row] < 0 ? 1 : in_.by_rank[static_cast<std::size_t>(in_.blocks[row]) * n_ + rank_of(lane)];
  }
  [[nodiscard]] std::int64_t work_ps(std::size_t row, std::int32_t lane) {
    return links_.busy_ps(in_.nbytes[cell(row, lane)] * blocks(row, lane), static_cast<std::int32_t>(2 * n_ + rank_of(lane)));
  }
  void pend(std::int64_t batch, const Event& event) { pending_[batch].push_back(event); }
  void fail(Status status) {
    if (status_ == Status::ok) status_ = status;
  }

  // Up to work in memory that channels share, or to a wait for what is not there yet.
  void go_on(std::int32_t lane) {
    Lane& me = lanes_[static_cast<std::size_t>(lane)];
    const std::size_t rank = rank_of(lane);
    for (; static_cast<std::size_t>(me.at) < rows_ && status_ == Status::ok; ++me.at) {
      const auto row = static_cast<std::size_t>(me.at);
      const std::int64_t often = times(row, rank);
      if (often == 0) {
        if (kind(row) == SwapStep::wait) look_ahead(me, lane);
        continue;
      }
      if (kind(row) == SwapStep::put) {
        me.batch += !me.row;
        me.row = true;
        pend(me.batch, {me.clock_ps, me.at, lane});
      } else if (kind(row) == SwapStep::wait) {
        if (!satisfied(me, lane)) return;
      } else {
        const std::int64_t first = me.batch + 1, batches = kind(row) == SwapStep::give ? 2 * often : often;
        if (often > kPlaces || (first & (kPlaces - 1)) + batches > kPlaces - 8) return fail(Status::overflow);
        if (in_.channels > 1 || kind(row) == SwapStep::give) return pend(first, {me.clock_ps, me.at, lane});
        work(me, lane, often);
      }
      if ((me.batch & (kPlaces - 1)) > kPlaces - 8 || me.clock_ps > kLatest) return fail(Status::overflow);
    }
  }

  // Copies or sums where no other channel has this memory.
  void work(Lane& me, std::int32_t lane, std::int64_t often) {
    const std::int64_t each = work_ps(static_cast<std::size_t>(me.at), lane);
    if (each > kLatest / often) return fail(Status::overflow);
    Memory& memory = memories_[rank_of(lane)];
    me.clock_ps = memory.free_ps = std::max(me.clock_ps, memory.free_ps) + often * each;
    me.batch += often;
    me.row = false;
  }

  // Of the wait that a lane came to.
  bool satisfied(Lane& me, std::int32_t lane) {
    const auto row = static_cast<std::size_t>(me.at);
    const std::size_t source = peer(row, rank_of(lane));
    std::int32_t wanted = 0;
    for (std::int64_t i = 0; i < in_.raises[row]; ++i) {
      const auto put = static_cast<std::size_t>(in_.raise[row] + i);
      wanted += wait_of_[put] == me.at && times(put, source) > 0;
    }
    if (me.seen.rows < wanted) return false;
    const std::int64_t tick = std::max(std::max<std::int64_t>(me.batch, 0) >> kPlaceBits, me.seen.tick);
    me.batch = std::max(tick << kPlaceBits, std::max(me.batch, me.seen.batch) + 1);
    me.clock_ps = std::max(me.clock_ps, me.seen.ps);
    me.row = false;
    look_ahead(me, lane);
    return true;
  }

  // Past a wait: to what was raised for the next one.
  void look_ahead(Lane& me, std::int32_t lane) {
    me.seen = {};
    if (early_.empty()) return;
    const auto found = early_.find(key(lane, next_wait_[static_cast<std::size_t>(me.at) + 1]));
    if (found == early_.end()) return;
    me.seen = found->second;
    early_.erase(found);
  }

  void serve(std::int64_t batch, std::vector<Event> events) {
    puts_.clear();
    ending_.clear();
    giving_.clear();
    for (const Event& event : events) {
      const bool starts = event.row >= 0, puts = starts && kind(static_cast<std::size_t>(event.row)) == SwapStep::put;
      if (!starts) ending_.push_back(static_cast<std::int32_t>(rank_of(event.lane)));
      else if (puts) puts_.push_back(put_of(event));
      else if (kind(static_cast<std::size_t>(event.row)) == SwapStep::give) giving_.push_back(event);
      else begin(event, batch);
    }
    events = {};  // which may be a lot of memory
    fail(links_.serve(batch, puts_));
    for (std::size_t i = 0; i < puts_.size() && status_ == Status::ok; ++i) raise(puts_[i], batch);
    std::ranges::sort(ending_);
    ending_.erase(std::ranges::unique(ending_).begin(), ending_.end());
    for (std::size_t i = 0; i < ending_.size() && status_ == Status::ok; ++i) end(memories_[static_cast<std::size_t>(ending_[i])], batch);
    if (!giving_.empty()) give(batch);
  }

  [[nodiscard]] SwapPut put_of(const Event& event) const {
    const auto row = static_cast<std::size_t>(event.row);
    const std::size_t from = rank_of(event.lane), to = peer(row, from), first = channel_of(event.lane) * n_;
    const bool near = in_.node_of[from] == in_.node_of[to];
    SwapPut put{.row = event.row, .lane = event.lane, .times = times(row, from), .begin_ps = std::max(event.clock_ps, in_.late_ps[to])};
    put.a = near ? static_cast<std::int32_t>(from) : in_.tx[first + from];
    put.b = near ? static_cast<std::int32_t>(n_ + to) : in_.rx[first + to];
    put.nbytes = in_.nbytes[cell(row, event.lane)] * blocks(row, event.lane);
    put.ticks = near ? 0 : in_.ticks[cell(row, event.lane)] * blocks(row, event.lane);
    return put;
  }

  // Who waits for a put sees it.
  void raise(const SwapPut& put, std::int64_t batch) {
    const auto row = static_cast<std::size_t>(put.row);
    const std::size_t from = rank_of(put.lane);
    Lane& me = lanes_[static_cast<std::size_t>(put.lane)];
    me.left_ps = std::max(me.left_ps, put.end_ps);
    const auto to = static_cast<std::int32_t>(channel_of(put.lane) * n_ + peer(row, from));
    Seen seen{put.end_ps + in_.latency_ps[static_cast<std::size_t>(put.a)] + in_.latency_ps[static_cast<std::size_t>(put.b)], put.tick, batch, 1};
    if (in_.tier[row] >= 0) seen.ps += tier_ps(row, put.lane);
    Lane& other = lanes_[static_cast<std::size_t>(to)];
    const std::int32_t wait = wait_of_[row];
    if (wait < 0) return;
    if (next_wait_[static_cast<std::size_t>(other.at)] != wait) return early_[key(to, wait)].add(seen);
    other.seen.add(seen);
    if (other.at == wait) go_on(to);
  }

  void begin(const Event& event, std::int64_t batch) {
    const auto row = static_cast<std::size_t>(event.row);
    const std::size_t rank = rank_of(event.lane);
    const std::int64_t last = batch + times(row, rank) - 1;
    const std::int64_t each = work_ps(row, event.lane);
    Memory& memory = memories_[rank];
    if (memory.kept >= batch) return fail(Status::unsupported);
    if (memory.works < 0) memory.done = batch - 1;
    works_[static_cast<std::size_t>(event.lane)] = {event.clock_ps, batch, last, each, event.row, memory.works};
    memory.works = event.lane;
    if (last == batch) ending_.push_back(static_cast<std::int32_t>(rank));
    else pend(last, {0, ~event.row, event.lane});
  }

  // All copies and sums up to that batch, in which some end.
  void end(Memory& memory, std::int64_t batch) {
    while (memory.done < batch && status_ == Status::ok) advance(memory, batch);
    over_.clear();
    std::int32_t* to = &memory.works;
    for (std::int32_t lane = memory.works; lane >= 0;) {
      Work& work = works_[static_cast<std::size_t>(lane)];
      const std::int32_t next = work.next;
      if (work.last == batch) {
        over_.push_back(lane);
        *to = next;
      } else {
        to = &work.next;
      }
      lane = next;
    }
    for (std::size_t i = over_.size(); i-- > 0;) {
      Lane& me = lanes_[static_cast<std::size_t>(over_[i])];
      me.clock_ps = works_[static_cast<std::size_t>(over_[i])].clock_ps;
      me.batch = batch;
      me.row = false;
      ++me.at;
      go_on(over_[i]);
    }
  }

  // Sums that are put one by one, by ranks.
  void give(std::int64_t batch) {
    const auto told = [&](const Event& event) { return std::tuple(rank_of(event.lane), event.row, event.lane); };
    std::ranges::sort(giving_, [&](const Event& one, const Event& other) { return told(one) < told(other); });
    for (std::size_t begin = 0, end = 0; begin < giving_.size() && status_ == Status::ok; begin = end) {
      const Event& first = giving_[begin];
      const std::size_t rank = rank_of(first.lane);
      gives_.clear();
      for (end = begin; end < giving_.size() && rank_of(giving_[end].lane) == rank; ++end) {
        const Event& each = giving_[end];
        if (each.row != first.row) return fail(Status::unsupported);
        const auto row = static_cast<std::size_t>(each.row);
        SwapGive one{.put = put_of({each.clock_ps, each.row + 1, each.lane}), .clock_ps = each.clock_ps, .work_ps = work_ps(row, each.lane)};
        one.ready_ps = in_.late_ps[peer(row + 1, rank)];
        gives_.push_back(one);
      }
      Memory& memory = memories_[rank];
      if (memory.kept >= batch || memory.works >= 0) return fail(Status::unsupported);
      fail(links_.give(batch, memory.free_ps, gives_));
      memory.kept = batch + 2 * gives_.front().put.times - 1;
      for (std::size_t i = 0; i < gives_.size() && status_ == Status::ok; ++i) gave(gives_[i], memory.kept);
    }
  }

  void gave(const SwapGive& give, std::int64_t last) {
    Lane& me = lanes_[static_cast<std::size_t>(give.put.lane)];
    me.clock_ps = give.clock_ps;
    me.batch = last;
    me.row = true;
    me.at += 2;  // and the row of the puts
    raise(give.put, last);
    go_on(give.put.lane);
  }

  // Batches in which the same lanes work, as far as that one at most.
  void advance(Memory& memory, std::int64_t until) {
    const auto at = [&](std::int32_t lane) -> Work& { return works_[static_cast<std::size_t>(lane)]; };
    std::int64_t first = until;
    for (std::int32_t lane = memory.works; lane >= 0; lane = at(lane).next) first = std::min(first, std::max(at(lane).first, memory.done + 1));
    std::int64_t last = until, sum_ps = 0, far_ps = 0;
    active_.clear();
    for (std::int32_t lane = memory.works; lane >= 0; lane = at(lane).next) {
      const Work& work = at(lane);
      last = work.first > first ? std::min(last, work.first - 1) : std::min(last, work.last);
      if (work.first > first) continue;
      active_.push_back(lane);
      sum_ps += work.each_ps;
    }
    const auto told = [&](std::int32_t lane) { return std::tuple(at(lane).row, first - at(lane).first, lane); };
    std::ranges::sort(active_, [&](std::int32_t one, std::int32_t other) { return told(one) < told(other); });
    const auto all = [&] {
      for (const std::int32_t lane : active_) at(lane).clock_ps = memory.free_ps = std::max(at(lane).clock_ps, memory.free_ps) + at(lane).each_ps;
    };
    all();
    if (last > first) {
      if (__builtin_mul_overflow(last - first - 1, sum_ps, &far_ps) || far_ps > kLatest) return fail(Status::overflow);
      memory.free_ps += far_ps;
      all();
    }
    if (memory.free_ps > kLatest) return fail(Status::overflow);
    memory.done = last;
  }

  const SwapsInput& in_;
  std::size_t n_, rows_;
  SwapLinks links_;
  std::vector<Lane> lanes_;
  std::vector<Memory> memories_;
  std::vector<Work> works_;              // by lane, where several of them share a memory
  std::vector<std::int32_t> wait_of_;    // by row of puts
  std::vector<std::int32_t> next_wait_;  // by row: it, or the first one behind it
  std::map<std::int64_t, std::vector<Event>> pending_;  // by batch
  std::unordered_map<std::uint64_t, Seen> early_;       // what was raised for a wait before its lane was past the one before
  std::vector<SwapPut> puts_;
  std::vector<Event> giving_;
  std::vector<SwapGive> gives_;
  std::vector<std::int32_t> ending_;  // ranks in whose memories something ends
  std::vector<std::int32_t> over_, active_;  // lanes that work in a memory: those that are done, those that do now
  Status status_ = Status::ok;
};

// Whether every rank that does something at a row has a peer.
bool paired(const SwapsInput& in, std::size_t row) {
  const auto n = static_cast<std::size_t>(in.ranks), apart = static_cast<std::size_t>(in.apart[row]);
  if (in.apart[row] < 0) return false;
  if (apart == 0 || ((n & (n - 1)) == 0 && apart < n)) return true;
  for (std::size_t rank = 0; rank < n; ++rank)
    if ((rank ^ apart) >= n && (in.some[row] < 0 || in.by_rank[static_cast<std::size_t>(in.some[row]) * n + rank] != 0)) return false;
  return true;
}

bool good_row(const SwapsInput& in, std::size_t row) {
  const auto rows = in.step.size(), n = static_cast<std::size_t>(in.ranks), lanes = n * static_cast<std::size_t>(in.channels);
  const auto inside = [&](std::int64_t at, std::size_t size, std::size_t each) { return at < 0 || (static_cast<std::size_t>(at) + 1) * each <= size; };
  if (in.step[row] > 3 || !inside(in.blocks[row], in.by_rank.size(), n) || !inside(in.some[row], in.by_rank.size(), n)) return false;
  if (in.step[row] == 3 && (row + 1 == rows || in.step[row + 1] != 0)) return false;
  if (!inside(in.tier[row], in.tier_of.size(), lanes) || in.raise[row] < 0 || in.raises[row] < 0) return false;
  return static_cast<std::size_t>(in.raise[row] + in.raises[row]) <= rows && paired(in, row);
}

bool good(const SwapsInput& in) {
  const auto rows = in.step.size(), n = static_cast<std::size_t>(in.ranks), lanes = n * static_cast<std::size_t>(in.channels);
  if (in.ranks < 1 || in.channels < 1 || lanes >= std::size_t{1} << 31) return false;
  for (const auto& column : {in.times, in.some, in.apart, in.raise, in.raises, in.tier, in.blocks})
    if (column.size() != rows) return false;
  if (in.nbytes.size() != rows * static_cast<std::size_t>(in.channels) || in.ticks.size() != in.nbytes.size()) return false;
  if (in.node_of.size() != n || in.late_ps.size() != n || in.tx.size() != lanes || in.rx.size() != lanes) return false;
  for (std::size_t row = 0; row < rows; ++row)
    if (!good_row(in, row)) return false;
  const auto links = in.bytes_per_s.size();
  const auto within = [](const auto& ids, std::size_t end) {
    return std::ranges::all_of(ids, [end](auto id) { return std::cmp_less_equal(0, id) && std::cmp_less(id, end); });
  };
  return links >= 3 * n && in.latency_ps.size() == links && within(in.tx, links) && within(in.rx, links) && within(in.tier_of, in.tier_ps.size()) &&
         Changes::good(in.changes, links);
}

}  // namespace

SwapStatus simulate_swaps(const SwapsInput& in, std::span<std::int64_t> finish_ps) noexcept {
  try {
    if (!good(in) || finish_ps.size() != static_cast<std::size_t>(in.ranks)) return Status::bad_input;
    return Swaps(in).run(finish_ps);
  } catch (const std::bad_alloc&) {
    return Status::out_of_memory;
  }
}

}  // namespace ccl_lab::sim
