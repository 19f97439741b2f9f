// See followed_units.hpp.
#include "followed_units.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "exact.hpp"
#include "order.hpp"
#include "stream.hpp"

namespace ccl_lab::sim {
namespace {

template <bool kNotes>
[[gnu::always_inline]] inline std::int64_t later(std::int64_t a, std::int64_t b, std::int64_t*& gaps) {
  if constexpr (kNotes) *gaps++ = a - b;
  return a < b ? b : a;
}

}  // namespace

FollowedUnits::FollowedUnits(const RingsInput& in)
    : units(static_cast<std::size_t>(in.units)), chains(static_cast<std::size_t>(in.chains)), stations(static_cast<std::size_t>(in.stations)),
      depth(static_cast<std::size_t>(in.depth)), group(stations * depth), most(*std::ranges::max_element(in.slices)), messages(in.steps * in.depth), in_(in),
      changes_(in.changes, static_cast<std::size_t>(in.all_links)) {
  for (const auto& ids : {in.memory, in.link_a, in.link_b})
    for (const std::int32_t id : ids) words = std::max(words, static_cast<std::size_t>(id) + 1);
  words += 2 * chains * stations;
  fits_ = in.steps >= in.stations && in.n_sizes == in.units * in.stations;
  if (fits_) find_sizes();
  if (fits_) find_kinds();
}

void FollowedUnits::find_sizes() {
  size_.resize(in_.bytes.size());
  for (std::size_t i = 0; i < size_.size() && fits_; ++i) {
    auto known = std::ranges::find(bytes_, in_.bytes[i]);
    if (known == bytes_.end()) known = bytes_.insert(known, in_.bytes[i]);
    size_[i] = static_cast<std::uint8_t>(known - bytes_.begin());
    fits_ = bytes_.size() <= kMostSizes;
  }
}

FollowedUnits::Post FollowedUnits::post(std::size_t kind_row) const {
  const std::size_t links = 2 * chains * stations;
  const auto link = [&](const auto& ids) { return links + static_cast<std::size_t>(ids[kind_row]); };
  Post made{link(in_.memory), link(in_.link_a), link(in_.link_b), in_.latency_ps[kind_row], in_.ready_ps[kind_row], {}};
  for (std::size_t i = 0; i < bytes_.size(); ++i) made.busy[i] = busy_of(in_, kind_row, bytes_[i]);
  return made;
}

void FollowedUnits::find_kinds() {
  std::map<std::vector<std::int64_t>, std::size_t> known, known_alone, known_links;
  const std::size_t each = chains * stations;
  std::vector<std::int64_t> key, ready;
  kind.resize(units);
  kind_alone.resize(units);
  changes_in_.assign(units, false);
  for (std::size_t row = 0; row < in_.all_a.size(); ++row)
    if (changes_.on(in_.all_a[row]) || changes_.on(in_.all_b[row])) changes_in_[row / each] = true;
  for (std::size_t u = 0; u < units; ++u) {
    key.assign(1, changes(u) ? static_cast<std::int64_t>(u) : -1);
    const std::size_t first = kind_row(u);
    for (std::size_t row = first; row < first + each; ++row)
      key.insert(key.end(), {in_.memory[row], in_.link_a[row], in_.link_b[row], in_.memory_bytes_per_s[row], in_.a_bytes_per_s[row], in_.b_bytes_per_s[row],
                             in_.latency_ps[row]});
    kind_alone[u] = known_alone.try_emplace(key, known_alone.size()).first->second;
    ready.assign(in_.ready_ps.begin() + static_cast<std::ptrdiff_t>(first), in_.ready_ps.begin() + static_cast<std::ptrdiff_t>(first + each));
    key.insert(key.end(), ready.begin(), ready.end());
    const auto [at, is_new] = known.try_emplace(key, known.size());
    kind[u] = at->second;
    if (!is_new) continue;
    for (std::size_t row = first; row < first + each; ++row) {
      posts_.push_back(post(row));
      users_.push_back({posts_.back().memory, row % each / stations, row % stations});
    }
    std::ranges::stable_sort(users_.end() - static_cast<std::ptrdiff_t>(each), users_.end(), {}, &User::memory);
    key.clear();
    for (std::size_t row = first; row < first + each; ++row) key.insert(key.end(), {in_.link_a[row], in_.link_b[row]});
    const auto [which, is_other] = known_links.try_emplace(key, first_puts_.size());
    first_puts_of_.push_back(which->second);
    if (!is_other) continue;
    auto& puts = first_puts_.emplace_back();
    for (std::size_t i = 0; i < stations; ++i) puts.push_back(in_turns(u, i, i == 0 ? depth : 1));
  }
}

std::uint8_t FollowedUnits::size_of(std::size_t chain, std::int64_t slice, std::size_t position, std::size_t i) const {
  const std::size_t slot = chain * static_cast<std::size_t>(most) + static_cast<std::size_t>(slice);
  return size_[(slot * depth + i) * units * stations + position];
}

void FollowedUnits::enter(std::int64_t slice) {
  sizes.resize(units * group * chains);
  for (std::size_t u = 0; u < units; ++u)
    for (std::size_t g = 0; g < group; ++g)
      for (std::size_t c = 0; c < chains; ++c)
        sizes[(u * group + g) * chains + c] = slice < in_.slices[c] ? size_of(c, slice, (u + 1) * stations - 1 - g / depth, g % depth) : kNone;
}

FollowedUnits::Work FollowedUnits::work(std::int64_t message) const {
  return {message < in_.reducing * in_.depth, message < messages - in_.depth, message >= messages - 2 * in_.depth};
}

std::int64_t FollowedUnits::alike(std::int64_t n) const {
  const auto each = static_cast<std::int64_t>(group);
  std::int64_t least = std::int64_t{1} << 60;
  for (std::size_t i = 0; i < stations; ++i) {
    const std::int64_t message = n + static_cast<std::int64_t>(i) * in_.depth;
    for (const std::int64_t border : {in_.reducing * in_.depth, messages - 2 * in_.depth, messages - in_.depth, messages})
      if (message < border) least = std::min(least, (border - message + each - 1) / each);
  }
  return least;
}

template <FollowedUnits::How kHow>
std::int64_t* FollowedUnits::through(std::size_t unit, std::int64_t n, const std::uint8_t* size, std::int64_t* state, const Alone& told) const {
  constexpr bool kUnasked = kHow == How::unasked, kChanging = kHow == How::changing, kNotes = kHow != How::plain && !kChanging, kAlone = kHow == How::alone || kUnasked;
  const Post* const posts = posts_of(unit);
  std::int64_t *const left = state + chains * stations, *const came = told.goes, *gaps = told.gaps;
  for (std::size_t i = 0; i < stations; ++i) {
    const std::int64_t message = n + static_cast<std::int64_t>(i * depth);
    if (message >= messages) break;
    const Work does = work(message);
    for (std::size_t c = 0; c < chains; ++c) {
      if (size[c] == kNone) continue;
      const std::size_t at = c * stations + i;
      const Post& post = posts[at];
      const Busy& busy = post.busy[size[c]];
      const bool comes = kAlone && i == 0, links_decide = comes && (kUnasked || !does.adds);
      std::int64_t clock = comes ? state[at] : later<kNotes>(state[at], came[c], gaps);
      if (kUnasked && does.adds) {
        if (!comes) {
          told.memory_gaps[at] = state[post.memory] - clock;
          clock = state[post.memory] = clock + busy.add_ps;
        }
      } else if (does.adds) {
        clock = later<kNotes>(clock, state[post.memory], gaps);
        if (comes) told.needed[c] = clock;
        clock = state[post.memory] = clock + busy.add_ps;
      }
      state[at] = clock;
      if (!does.sends) continue;
      const std::int64_t entered = kAlone ? clock : later<kNotes>(clock, post.ready_ps, gaps), free = later<kNotes>(state[post.a], state[post.b], gaps);
      if (links_decide) told.needed[c] = does.adds ? free - busy.add_ps : free;
      if (links_decide && does.adds) {
        told.memory_gaps[at] = state[post.memory] - told.needed[c];
        state[post.memory] = free;
      }
      const std::int64_t start = links_decide ? free : later<kNotes>(entered, free, gaps);
      if constexpr (kChanging) {
        occupy(unit * chains * stations + at, kind_row(unit) + at, post, busy, start, state);
      } else {
        state[post.a] = start + busy.a_ps;
        state[post.b] = start + busy.b_ps;
      }
      const std::int64_t end = std::max(state[post.a], state[post.b]);
      if (does.last) left[at] = end;
      came[c] = end + post.latency_ps;
    }
  }
  return kAlone || n < in_.reducing * in_.depth ? gaps : rest<kNotes>(users_.data() + kind[unit] * chains * stations, size, state, gaps);
}

// Nothing is added any more: a memory is not asked for before the clock of a station that uses it, so that when it was free before that does not
// matter. As it was, it would tell apart what goes on alike.
template <bool kNotes>
std::int64_t* FollowedUnits::rest(const User* users, const std::uint8_t* size, std::int64_t* state, std::int64_t* gaps) const {
  for (std::size_t i = 0, all = chains * stations; i < all;) {
    const std::size_t memory = users[i].memory;
    std::int64_t first = -1;
    for (; i < all && users[i].memory == memory; ++i) {
      if (size[users[i].chain] == kNone) continue;
      const std::int64_t clock = state[users[i].chain * stations + users[i].station];
      first = first < 0 ? clock : -later<kNotes>(-first, -clock, gaps);
    }
    if (first >= 0) state[memory] = later<kNotes>(state[memory], first, gaps);
  }
  return gaps;
}

void FollowedUnits::pass(std::size_t unit, std::int64_t n, const std::uint8_t* size, std::int64_t* state, std::int64_t* came) const {
  const Alone told{came, nullptr, nullptr, nullptr};
  changes(unit) ? through<How::changing>(unit, n, size, state, told) : through<How::plain>(unit, n, size, state, told);
}

std::int64_t* FollowedUnits::pass_noting(std::size_t unit, std::int64_t n, const std::uint8_t* size, std::int64_t* state, std::int64_t* came,
                                         std::int64_t* gaps) const {
  return through<How::noting>(unit, n, size, state, {came, nullptr, gaps, nullptr});
}

std::int64_t* FollowedUnits::pass_alone(std::size_t unit, std::int64_t n, const std::uint8_t* size, std::int64_t* state, const Alone& alone) const {
  return alone.memory_gaps ? through<How::unasked>(unit, n, size, state, alone) : through<How::alone>(unit, n, size, state, alone);
}

std::vector<std::size_t> FollowedUnits::words_alone(std::size_t unit, bool adds, bool asks) const {
  std::vector<std::size_t> found;
  const Post* const posts = posts_of(unit);
  for (std::size_t at = 0; at < chains * stations; ++at) {
    found.insert(found.end(), {posts[at].a, posts[at].b});
    if (adds && asks) found.push_back(posts[at].memory);
    if ((adds && asks) || at % stations > 0) found.push_back(at);
  }
  std::ranges::sort(found);
  found.erase(std::ranges::unique(found).begin(), found.end());
  return found;
}

bool FollowedUnits::memories_follow(std::size_t unit) const {
  std::vector<bool> is_used(words), follows(words);
  const Post* const posts = posts_of(unit);
  for (std::size_t c = 0; c < chains; ++c) {
    if (sizes[c] == kNone) continue;
    for (std::size_t i = 0; i < stations; ++i) (i == 0 ? is_used : follows)[posts[c * stations + i].memory] = true;
  }
  for (std::size_t word = 0; word < words; ++word)
    if (is_used[word] && !follows[word]) return false;
  return true;
}

void FollowedUnits::forget(std::size_t unit, std::int64_t* state) const {
  const Post* const posts = posts_of(unit);
  for (std::size_t at = 0; at < chains * stations; ++at) {
    if (sizes[at / stations] == kNone) continue;
    state[posts[at].memory] = 0;
    if (at % stations == 0) state[at] = 0;
  }
}

bool FollowedUnits::memories_apart() const {
  std::vector<bool> is_memory(words);
  for (const Post& post : posts_) is_memory[post.memory] = true;
  return std::ranges::none_of(posts_, [&](const Post& post) { return is_memory[post.a] || is_memory[post.b]; });
}

bool FollowedUnits::all_entered(std::size_t unit, const std::int64_t* state) const {
  const Post* const posts = posts_of(unit);
  for (std::size_t at = 0; at < chains * stations; ++at)
    if (posts[at].ready_ps > state[at]) return false;
  return true;
}

std::int64_t FollowedUnits::sends(std::size_t unit, std::size_t at, std::uint8_t size, std::int64_t* state, std::int64_t* left) const {
  const Post& post = posts_of(unit)[at];
  const Busy& busy = post.busy[size];
  const std::int64_t start = std::max(std::max(state[at], post.ready_ps), std::max(state[post.a], state[post.b]));
  if (changes(unit)) {
    occupy(unit * chains * stations + at, kind_row(unit) + at, post, busy, start, state);
  } else {
    state[post.a] = start + busy.a_ps;
    state[post.b] = start + busy.b_ps;
  }
  const std::int64_t end = std::max(state[post.a], state[post.b]);
  if (left) *left = end;
  return end + post.latency_ps;
}

// The puts of a batch in the order in which links serve them: in turns, and in each in the order of ops. Of stations from `first` on, each its first `often`.
std::vector<std::uint32_t> FollowedUnits::in_turns(std::size_t unit, std::size_t first, std::size_t often) const {
  const std::size_t each = chains * stations;
  std::vector<std::uint32_t> rows, puts;
  for (std::size_t row = 0; row < each; ++row)
    if (row % stations >= first) rows.push_back(static_cast<std::uint32_t>(row));
  if (in_.begin_ps.empty()) std::ranges::sort(rows, {}, [&](std::uint32_t row) { return in_.place(static_cast<std::int64_t>(unit), row); });
  for (std::size_t own = 0; own < often; ++own)
    for (const std::uint32_t row : rows) puts.push_back(static_cast<std::uint32_t>(own * each) + row);
  std::vector<std::pair<std::int64_t, std::uint32_t>> by_turn;
  Turns turns(words);
  for (const std::uint32_t put : puts) {
    const Post& post = posts_of(unit)[put % each];
    // Chains that wait for their node begin one by one, or it is another's work (`one_by_one`).
    by_turn.emplace_back(in_.begin_ps.empty() ? turns.next(static_cast<std::int32_t>(post.a), static_cast<std::int32_t>(post.b)) : put % each, put);
  }
  std::ranges::stable_sort(by_turn, {}, &std::pair<std::int64_t, std::uint32_t>::first);
  std::ranges::transform(by_turn, puts.begin(), &std::pair<std::int64_t, std::uint32_t>::second);
  return puts;
}

// As Unit::enter_slice; row: of the chain's only station.
void FollowedUnits::begin_slice(std::size_t unit, std::size_t row, std::int64_t slice, std::int64_t* state) const {
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < depth; ++i) bytes += bytes_[size_of(row, slice, unit, i)];
  std::int64_t& memory = state[posts_of(unit)[row].memory];
  const std::int64_t there = in_.begin_ps[(unit * chains + row) * static_cast<std::size_t>(most) + static_cast<std::size_t>(slice)];
  state[row] = memory = std::max({state[row], there, memory}) + own_ps(in_, kind_row(unit) + row, bytes);
}

// As Unit::begin and Unit::warm_up.
void FollowedUnits::begin(std::size_t unit, std::int64_t* state, std::int64_t* starts) const {
  const Post* const posts = posts_of(unit);
  const std::size_t each = chains * stations, first = kind_row(unit);
  std::fill_n(state, words, 0);
  std::vector<std::int64_t> mail(each * depth);
  const auto goes = [&](std::size_t c, std::size_t i, std::int64_t message, std::size_t origin) {  // message: after `depth` own ones
    const auto n = static_cast<std::size_t>(message), own = n % depth;
    const bool last = work(message - in_.depth).last;
    const std::int64_t arrives = sends(unit, c * stations + i, size_of(c, 0, unit * stations + origin, own), state,
                                       last ? state + each + c * stations + i : nullptr);
    if (i + 1 < stations) {
      mail[(c * stations + i + 1) * depth + own] = arrives;
    } else {
      starts[n * chains + c] = arrives;
    }
  };
  for (std::size_t row = 0; row < each; ++row) {
    state[row] = in_.late_ps[first + row];
    if (in_.own > 1) begin_slice(unit, row, 0, state);
  }
  const auto& puts = first_puts_[first_puts_of_[kind[unit]]];
  for (const std::size_t put : puts[0]) goes(put % each / stations, put % stations, static_cast<std::int64_t>(put / each), put % stations);
  for (std::size_t row = 0; in_.copies && row < each; ++row) {
    const std::int64_t bytes = bytes_[size_of(row / stations, 0, unit * stations + row % stations, 0)];
    std::int64_t& memory = state[posts[row].memory];
    state[row] = memory = std::max(state[row], memory) + std::min(duration_ps(bytes, in_.memory_bytes_per_s[first + row]), kLatest);
  }
  for (std::size_t m = 0; m < (stations - 1) * depth; ++m) {
    const Work does = work(static_cast<std::int64_t>(m));
    const std::size_t passed = m / depth;
    for (std::size_t c = 0; c < chains; ++c) {
      for (std::size_t i = stations - 1; i > passed; --i) {
        const std::size_t at = c * stations + i;
        const Post& post = posts[at];
        state[at] = std::max(state[at], mail[at * depth + m % depth]);
        if (does.adds) state[at] = state[post.memory] = std::max(state[at], state[post.memory]) + post.busy[size_of(c, 0, unit * stations + i - 1 - passed, m % depth)].add_ps;
      }
    }
    if (!does.sends) continue;
    for (const std::size_t row : puts[passed + 1]) goes(row / stations, row % stations, static_cast<std::int64_t>(m + depth), row % stations - 1 - passed);
  }
}

void FollowedUnits::end(std::size_t unit, std::int64_t slice, const std::uint8_t* size, std::int64_t* state, const std::int64_t* came,
                        std::int64_t* starts, RingsOutput& out) const {
  const Post* const posts = posts_of(unit);
  const bool adds = work(messages - 1).adds;
  for (std::size_t c = 0; c < chains; ++c) {
    if (size[c] == kNone) continue;
    const std::size_t at = c * stations, slot = (unit * chains + c) * static_cast<std::size_t>(most) + static_cast<std::size_t>(slice);
    state[at] = std::max(state[at], came[c]);
    if (adds) state[at] = state[posts[at].memory] = std::max(state[at], state[posts[at].memory]) + posts[at].busy[size[c]].add_ps;
    if (!out.end_ps.empty()) out.end_ps[slot] = state[at];
    if (slice + 1 == in_.slices[c]) continue;
    if (in_.own > 1) begin_slice(unit, at, slice + 1, state);
    std::int64_t* const left = state + chains * stations + at;
    *left = 0;
    for (std::size_t own = 0; own < depth; ++own)
      starts[own * chains + c] = sends(unit, at, size_of(c, slice + 1, unit, own), state, work(static_cast<std::int64_t>(own) - in_.depth).last ? left : nullptr);
  }
}

void FollowedUnits::finish(std::size_t unit, const std::int64_t* state, RingsOutput& out) const {
  const std::size_t each = chains * stations;
  for (std::size_t i = 0; i < each; ++i) out.finish_ps[unit * each + i] = std::max(state[i], state[each + i]);
}

}  // namespace ccl_lab::sim
