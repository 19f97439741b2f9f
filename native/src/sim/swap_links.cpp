// See swap_links.hpp.
#include "swap_links.hpp"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "order.hpp"
#include "stream.hpp"

namespace ccl_lab::sim {
namespace {

constexpr std::size_t kKnown = 1024, kMostInTurns = 16'000'000;
constexpr std::int32_t kSeveral = -2;  // others

}  // namespace

SwapLinks::SwapLinks(std::span<const std::int64_t> bytes_per_s, std::int64_t alpha_ps, const ChangeColumns& changes)
    : bytes_per_s_(bytes_per_s), alpha_ps_(alpha_ps), changes_(changes, bytes_per_s.size()), links_(bytes_per_s.size()), known_(kKnown) {}

std::int64_t SwapLinks::busy_ps(std::int64_t nbytes, std::int32_t link) {
  const std::int64_t rate = bytes_per_s_[static_cast<std::size_t>(link)];
  const auto mixed = static_cast<std::uint64_t>(nbytes) * 0x9E3779B97F4A7C15ull ^ static_cast<std::uint64_t>(rate) * 0xC2B2AE3D27D4EB4Full;
  Known& known = known_[(mixed >> 32) % kKnown];
  if (known.bytes != nbytes || known.rate != rate) known = {nbytes, rate, std::min(duration_ps(nbytes, rate), kLatest)};
  return known.ps;
}

SwapStatus SwapLinks::fits(const SwapPut& put) {
  return put.end_ps <= kLatest && put.tick <= kLastTick ? SwapStatus::ok : SwapStatus::overflow;
}

std::int64_t SwapLinks::through_ps(const SwapPut& put, std::int32_t link, std::int64_t takes_ps, std::int64_t start_ps) const {
  if (!changes_.on(link)) return start_ps + takes_ps;
  return changes_.through_ps(link, start_ps + held_ps(put), put.nbytes, bytes_per_s_[static_cast<std::size_t>(link)]);
}

void SwapLinks::meet(std::int32_t id, std::int32_t other, std::int32_t put, std::span<SwapPut> puts) {
  Link& at = link(id);
  if (at.batch != batch_) {
    at.batch = batch_;
    at.other = other;
    at.first = at.last = put;
    return;
  }
  if (at.other != other) at.other = kSeveral;
  if (puts[static_cast<std::size_t>(put)].a != id) return;
  puts[static_cast<std::size_t>(at.last)].next = put;
  at.last = put;
}

// What it takes, where no rate changes.
SwapStatus SwapLinks::prepare(SwapPut& put) {
  put.next = -1;
  put.out_ps = held_ps(put) + busy_ps(put.nbytes, put.a);
  put.into_ps = held_ps(put) + busy_ps(put.nbytes, put.b);
  const bool fit = put.each_ps() <= kLatest && put.times <= kLastTick / std::max<std::int64_t>(put.ticks, 1);
  return fit ? SwapStatus::ok : SwapStatus::overflow;
}

SwapStatus SwapLinks::serve(std::int64_t batch, std::span<SwapPut> puts) {
  if (puts.empty()) return SwapStatus::ok;
  if (batch_ == std::numeric_limits<std::int32_t>::max()) return SwapStatus::unsupported;
  ++batch_;
  tick_ = batch >> kPlaceBits;
  odd_.clear();
  for (std::size_t i = 0; i < puts.size(); ++i) {
    SwapPut& put = puts[i];
    if (const SwapStatus status = prepare(put); status != SwapStatus::ok) return status;
    if (kept(put) >= batch) return SwapStatus::unsupported;
    meet(put.a, put.b, static_cast<std::int32_t>(i), puts);
    meet(put.b, put.a, static_cast<std::int32_t>(i), puts);
  }
  for (std::size_t i = 0; i < puts.size(); ++i) {
    const Link& from = link(puts[i].a);
    if (from.other == kSeveral || link(puts[i].b).other == kSeveral) {
      odd_.push_back(static_cast<std::int32_t>(i));
    } else if (from.first == static_cast<std::int32_t>(i)) {
      if (const SwapStatus status = line(from.first, puts); status != SwapStatus::ok) return status;
    }
  }
  return odd_.empty() ? SwapStatus::ok : in_turns(puts);
}

SwapStatus SwapLinks::give(std::int64_t batch, std::int64_t& memory_free_ps, std::span<SwapGive> gives) {
  const std::int64_t times = gives.front().put.times;
  tick_ = batch >> kPlaceBits;
  std::int64_t sum_ps = 0, all_ps = 0;
  if (kept_.empty()) kept_.assign(links_.size(), -1);
  for (SwapGive& each : gives) {
    if (const SwapStatus status = prepare(each.put); status != SwapStatus::ok) return status;
    each.first_ps = memory_free_ps = std::max(memory_free_ps, each.clock_ps) + each.work_ps;
    sum_ps += each.work_ps;
  }
  if (__builtin_mul_overflow(times, sum_ps, &all_ps) || all_ps > kLatest || memory_free_ps > kLatest) return SwapStatus::overflow;
  // From the second round on each begins when the one before it is done.
  for (SwapGive& each : gives) {
    each.second_ps = memory_free_ps += each.work_ps;
    each.clock_ps = times == 1 ? each.first_ps : each.second_ps + (times - 2) * sum_ps;
  }
  memory_free_ps = gives.back().clock_ps;
  for (std::size_t begin = 0, end = 0; begin < gives.size(); begin = end) {
    const std::int32_t a = gives[begin].put.a, b = gives[begin].put.b;
    if (kept(gives[begin].put) >= batch) return SwapStatus::unsupported;
    for (end = begin; end < gives.size() && gives[end].put.a == a && gives[end].put.b == b; ++end) {}
    if (const SwapStatus status = give_along(gives.subspan(begin, end - begin), times, sum_ps); status != SwapStatus::ok) return status;
    kept_[static_cast<std::size_t>(a)] = kept_[static_cast<std::size_t>(b)] = batch + 2 * times - 1;
  }
  return SwapStatus::ok;
}

// Those that go over the same two links; sum_ps: of all sums of a round.
SwapStatus SwapLinks::give_along(std::span<SwapGive> gives, std::int64_t times, std::int64_t sum_ps) {
  const SwapPut& first = gives.front().put;
  std::int64_t ticks = 0;
  for (const SwapGive& each : gives) ticks += each.put.ticks;
  for (std::int64_t round = 0; round < times; ++round) {
    if (round == 1 && times > 2 && !changes(first)) {
      Link &a = link(first.a), &b = link(first.b);
      a.free_ps = b.free_ps = free_after(gives, times - 2, sum_ps);
      a.free_tick = b.free_tick = a.free_tick + (times - 2) * ticks;
      if (a.free_ps > kLatest || a.free_tick > kLastTick) return SwapStatus::overflow;
      round = times - 1;
    }
    for (SwapGive& each : gives) {
      each.put.begin_ps = std::max(round == 0 ? each.first_ps : each.second_ps + (round - 1) * sum_ps, each.ready_ps);
      one(each.put);
      if (const SwapStatus status = fits(each.put); status != SwapStatus::ok) return status;
    }
  }
  return SwapStatus::ok;
}

// When the links are free after so many rounds behind the first one: each ends when it has begun with the links free, or with some sum of any
// round just done; of these sums those of the second round or of the last one make the latest.
std::int64_t SwapLinks::free_after(std::span<const SwapGive> gives, std::int64_t rounds, std::int64_t sum_ps) const {
  const SwapPut& put = gives.front().put;
  const std::int64_t free_ps = std::max(links_[static_cast<std::size_t>(put.a)].free_ps, links_[static_cast<std::size_t>(put.b)].free_ps);
  std::int64_t round_ps = 0, after_sum_ps = 0;
  for (std::size_t i = gives.size(); i-- > 0;) {
    round_ps += gives[i].put.each_ps();
    after_sum_ps = std::max(after_sum_ps, gives[i].second_ps + round_ps);
  }
  if (round_ps > 2 * kLatest / rounds) return 2 * kLatest;
  return std::max({free_ps + rounds * round_ps, after_sum_ps + (rounds - 1) * round_ps, after_sum_ps + (rounds - 1) * sum_ps});
}

// One of them, in its turn.
void SwapLinks::one(SwapPut& put) {
  Link &a = link(put.a), &b = link(put.b);
  const std::int64_t start = std::max({put.begin_ps, a.free_ps, b.free_ps});
  a.free_ps = through_ps(put, put.a, put.out_ps, start);
  b.free_ps = through_ps(put, put.b, put.into_ps, start);
  a.free_tick = b.free_tick = std::max({tick_, a.free_tick, b.free_tick}) + put.ticks;
  put.end_ps = std::max(a.free_ps, b.free_ps);
  put.tick = a.free_tick;
}

// All that goes over two links, and over no other one: rows one after the other.
SwapStatus SwapLinks::line(std::int32_t first, std::span<SwapPut> puts) {
  line_.clear();
  for (std::int32_t i = first; i >= 0; i = puts[static_cast<std::size_t>(i)].next) line_.push_back(i);
  const auto put = [&](std::int32_t i) -> const SwapPut& { return puts[static_cast<std::size_t>(i)]; };
  const auto before = [&](std::int32_t i, std::int32_t j) { return std::pair(put(i).row, put(i).lane) < std::pair(put(j).row, put(j).lane); };
  if (line_.size() > 1) std::ranges::sort(line_, before);
  for (std::size_t begin = 0, end = 0; begin < line_.size(); begin = end) {
    for (end = begin; end < line_.size() && put(line_[end]).row == put(line_[begin]).row; ++end) {}
    const std::span row = std::span(line_).subspan(begin, end - begin);
    if (const SwapStatus status = rounds(row, puts); status != SwapStatus::ok) return status;
  }
  return SwapStatus::ok;
}

SwapStatus SwapLinks::rounds(std::span<const std::int32_t> line, std::span<SwapPut> puts) {
  for (const std::int32_t i : line) {
    SwapPut& put = puts[static_cast<std::size_t>(i)];
    one(put);
    if (const SwapStatus status = fits(put); status != SwapStatus::ok) return status;
  }
  for (std::int64_t done = 1;;) {
    std::int64_t until = 0;
    active_.clear();
    for (const std::int32_t i : line) {
      const std::int64_t times = puts[static_cast<std::size_t>(i)].times;
      if (times <= done) continue;
      active_.push_back(i);
      until = until == 0 ? times : std::min(until, times);
    }
    if (active_.empty()) return SwapStatus::ok;
    if (const SwapStatus status = more(active_, puts, until - done); status != SwapStatus::ok) return status;
    done = until;
  }
}

// How many of so many rounds take as long as each other, from when both links are free on, and how long that is.
std::int64_t SwapLinks::alike(std::int64_t count, std::span<SwapPut> puts, std::int64_t& sum_ps) const {
  const SwapPut& first = puts[static_cast<std::size_t>(active_.front())];
  const std::int64_t free_ps = std::max(links_[static_cast<std::size_t>(first.a)].free_ps, links_[static_cast<std::size_t>(first.b)].free_ps);
  const auto rate = [&](std::int32_t id) { return bytes_per_s_[static_cast<std::size_t>(id)]; };
  Changes::Stretch a{0, Changes::kNever, rate(first.a)}, b{0, Changes::kNever, rate(first.b)};
  if (changes_.on(first.a)) a = changes_.stretch(first.a, free_ps, a.bytes_per_s);
  if (changes_.on(first.b)) b = changes_.stretch(first.b, free_ps, b.bytes_per_s);
  if (a.bytes_per_s == 0 || b.bytes_per_s == 0) return 0;
  sum_ps = 0;
  for (const std::int32_t i : active_) {
    const SwapPut& put = puts[static_cast<std::size_t>(i)];
    const bool same = a.bytes_per_s == rate(put.a) && b.bytes_per_s == rate(put.b);
    sum_ps += same ? put.each_ps()
                   : held_ps(put) + std::min(std::max(duration_ps(put.nbytes, a.bytes_per_s), duration_ps(put.nbytes, b.bytes_per_s)), kLatest);
    if (sum_ps > kLatest) return 0;
  }
  const std::int64_t end_ps = std::min(a.end_ps, b.end_ps);
  if (sum_ps == 0 || end_ps == Changes::kNever) return count;
  return std::min(count, (end_ps - free_ps) / sum_ps);
}

// So many more rounds of those that are active.
SwapStatus SwapLinks::more(std::span<const std::int32_t> line, std::span<SwapPut> puts, std::int64_t count) {
  std::int64_t ticks = 0;
  for (const std::int32_t i : line) ticks += puts[static_cast<std::size_t>(i)].ticks;
  const SwapPut& first = puts[static_cast<std::size_t>(line.front())];
  while (count > 0) {
    std::int64_t sum_ps = 0, far_ps = 0;
    const std::int64_t fast = count > 1 ? alike(count - 1, puts, sum_ps) : 0;  // the last one says when each is done
    if (fast > 0) {
      Link &a = link(first.a), &b = link(first.b);
      const std::int64_t free_ps = std::max(a.free_ps, b.free_ps);
      if (__builtin_mul_overflow(fast, sum_ps, &far_ps) || far_ps > kLatest) return SwapStatus::overflow;
      a.free_ps = b.free_ps = free_ps + far_ps;
      a.free_tick = b.free_tick = std::max({tick_, a.free_tick, b.free_tick}) + fast * ticks;
      if (a.free_tick > kLastTick) return SwapStatus::overflow;
      count -= fast;
    }
    for (const std::int32_t i : line) {
      SwapPut& put = puts[static_cast<std::size_t>(i)];
      one(put);
      if (const SwapStatus status = fits(put); status != SwapStatus::ok) return status;
    }
    --count;
  }
  return SwapStatus::ok;
}

std::size_t SwapLinks::joined(std::int32_t local) {
  auto at = static_cast<std::size_t>(local);
  while (joins_[at] != at) at = joins_[at] = joins_[joins_[at]];
  return at;
}

// What goes over links that several others meet: apart, as far as they share none.
SwapStatus SwapLinks::in_turns(std::span<SwapPut> puts) {
  const auto put = [&](std::int32_t i) -> const SwapPut& { return puts[static_cast<std::size_t>(i)]; };
  joins_.clear();
  for (const std::int32_t i : odd_) link(put(i).a).first = link(put(i).b).first = -1;
  for (const std::int32_t i : odd_) {
    for (const std::int32_t id : {put(i).a, put(i).b}) {
      if (link(id).first >= 0) continue;
      link(id).first = static_cast<std::int32_t>(joins_.size());
      joins_.push_back(joins_.size());
    }
    joins_[joined(link(put(i).a).first)] = joined(link(put(i).b).first);
  }
  std::vector<std::pair<std::size_t, std::int32_t>> groups;
  for (const std::int32_t i : odd_) groups.emplace_back(joined(link(put(i).a).first), i);
  const auto told = [&](const auto& one) { return std::tuple(one.first, put(one.second).row, put(one.second).lane); };
  std::ranges::sort(groups, [&](const auto& one, const auto& other) { return told(one) < told(other); });
  for (std::size_t begin = 0, end = 0; begin < groups.size(); begin = end) {
    line_.clear();
    for (end = begin; end < groups.size() && groups[end].first == groups[begin].first; ++end) line_.push_back(groups[end].second);
    if (const SwapStatus status = in_turns(line_, puts); status != SwapStatus::ok) return status;
  }
  return SwapStatus::ok;
}

SwapStatus SwapLinks::in_turns(std::span<const std::int32_t> those, std::span<SwapPut> puts) {
  const auto put = [&](std::int32_t i) -> SwapPut& { return puts[static_cast<std::size_t>(i)]; };
  std::int32_t links = 0;
  for (const std::int32_t i : those) link(put(i).a).first = link(put(i).b).first = -1;
  for (const std::int32_t i : those)
    for (const std::int32_t id : {put(i).a, put(i).b})
      if (link(id).first < 0) link(id).first = links++;
  Turns turns(static_cast<std::size_t>(links));
  turns_.clear();
  told_.clear();
  for (std::size_t begin = 0, end = 0; begin < those.size(); begin = end) {
    std::int64_t most = 0;
    for (end = begin; end < those.size() && put(those[end]).row == put(those[begin]).row; ++end) most = std::max(most, put(those[end]).times);
    for (std::int64_t round = 0; round < most; ++round) {
      if (told_.size() + (end - begin) > kMostInTurns) return SwapStatus::unsupported;
      for (const std::int32_t i : those.subspan(begin, end - begin)) {
        if (round >= put(i).times) continue;
        const auto turn = static_cast<std::uint64_t>(turns.next(link(put(i).a).first, link(put(i).b).first));
        turns_.push_back(turn << 32 | told_.size());
        told_.push_back(i);
      }
    }
  }
  if (!std::ranges::is_sorted(turns_)) std::ranges::sort(turns_);
  for (const std::uint64_t turn : turns_) {
    SwapPut& each = put(told_[turn & 0xffffffff]);
    one(each);
    if (const SwapStatus status = fits(each); status != SwapStatus::ok) return status;
  }
  return SwapStatus::ok;
}

}  // namespace ccl_lab::sim
