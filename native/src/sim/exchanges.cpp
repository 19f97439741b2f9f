// See exchanges.hpp.
#include "exchanges.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <compare>
#include <map>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

#include "exact.hpp"
#include "exchange_rank.hpp"
#include "stream.hpp"

namespace ccl_lab::sim {
namespace {

using Status = ExchangesStatus;

// What a rank has for good.
struct Ways {
  struct Way {
    std::int64_t bytes_per_s = 0, latency_ps = 0;
    bool operator==(const Way&) const = default;
  };
  std::array<Way, 2> tx, rx;  // [near]
  std::int64_t memory_bytes_per_s = 0, late_ps = 0;
  bool shared = false;  // a NIC, with another rank
  bool operator==(const Ways&) const = default;

  // Without those of NICs.
  [[nodiscard]] Ways near() const { return {{Way(), tx[1]}, {Way(), rx[1]}, memory_bytes_per_s, late_ps, false}; }
};

// A rank that is evaluated, or the one that stands for all that are alike so far. Its links but for NICs that it shares: [near], then tx, rx.
struct alignas(64) Member {
  ExchangeRank rank;
  std::array<std::array<ExchangeLink, 2>, 2> links;
};

// A put; rank -1: of all ranks that are alike.
struct Event {
  std::int32_t row = 0, rank = 0;
  std::int64_t clock_ps = 0;
  auto operator<=>(const Event&) const = default;
};

constexpr std::size_t kAhead = 8;    // puts, of which what they need is fetched
constexpr std::size_t kTypical = 0;  // the member that stands for ranks that are alike

class Exchanges {
 public:
  // merge: ranks that have what most have are one member, until they meet one that is not.
  Exchanges(const ExchangesInput& in, bool merge)
      : in_(in), n_(static_cast<std::size_t>(in.ranks)), member_of_(n_, 0), uses_(in.bytes_per_s.size(), 0), shared_(uses_.size()), place_(places_of(in.step)), wait_of_(in.step.size(), 0),
        known_(1024), end_(in.step.size()) {
    for (std::size_t i = 0; i < in.step.size(); ++i)
      if (kind(i) == Step::wait) wait_of_[static_cast<std::size_t>(in.raise[i])] = static_cast<std::int32_t>(i);
    const bool far = std::ranges::any_of(in.near, [](std::uint8_t near) { return near == 0; });
    for (std::size_t r = 0; r < n_ && far; ++r) ++uses_[static_cast<std::size_t>(in.tx[r])], ++uses_[static_cast<std::size_t>(in.rx[r])];
    ways_.push_back(usual());
    merges_ = merge && !ways_[0].shared && std::ranges::all_of(in.row, [](std::int64_t row) { return row < 0; });
    members_.reserve(n_ + 1);
    id_.reserve(n_ + 1);
    if (merges_ && far) find_groups();
    enter(-1, 0);
    for (std::size_t r = 0; r < n_; ++r) {
      const Ways own = ways_of(r);
      if (merges_ && own == ways_[0]) continue;
      if (own != ways_.back()) ways_.push_back(own);
      const auto number = static_cast<std::int32_t>(ways_.size()) - 1;
      if (merges_ && far && own.near() == ways_[0].near()) odd_.emplace(static_cast<std::int32_t>(r), number);
      else enter(static_cast<std::int32_t>(r), number);
    }
  }

  ExchangesResult run(std::span<std::int64_t> finish_ps) {
    const std::size_t others = members_.size();
    if (merges_) go_on(kTypical);
    for (std::size_t m = 1; m < others && status_ == Status::ok; ++m) go_on(m);
    serve_all();
    const std::vector<std::int32_t> alike = in_groups();
    for (std::size_t r = 0; r < n_ && status_ == Status::ok; ++r) {
      const std::size_t as = alike.empty() ? r : static_cast<std::size_t>(alike[r >> group_bits_]) << group_bits_ | (r & group_mask());
      const ExchangeRank& rank = members_[member(static_cast<std::int32_t>(as))].rank;
      if (static_cast<std::size_t>(rank.at) < in_.step.size()) status_ = Status::deadlock;
      finish_ps[r] = std::max(rank.clock_ps, rank.left_ps);
    }
    return {status_, static_cast<std::int64_t>(members_.size()) - 1};
  }

 private:
  [[nodiscard]] Step kind(std::size_t i) const { return static_cast<Step>(in_.step[i]); }
  [[nodiscard]] std::int32_t partner(std::int32_t rank, std::size_t i) const { return rank ^ static_cast<std::int32_t>(in_.apart[i]); }
  [[nodiscard]] std::size_t member(std::int32_t rank) const { return static_cast<std::size_t>(member_of_[static_cast<std::size_t>(rank)]); }
  // Whom member `m` meets in row i; ranks that are alike meet each other.
  [[nodiscard]] std::size_t other(std::size_t m, std::size_t i) const { return m == kTypical ? kTypical : member(partner(id_[m], i)); }
  [[nodiscard]] const Ways& ways(const Member& m) const { return ways_[static_cast<std::size_t>(m.rank.ways)]; }
  [[nodiscard]] std::int64_t bytes(std::size_t m, std::size_t i) const {
    return in_.row[i] < 0 ? in_.nbytes[i] : in_.bytes[static_cast<std::size_t>(in_.row[i]) * n_ + static_cast<std::size_t>(id_[m])];
  }
  [[nodiscard]] bool waits(const ExchangeRank& rank) const {
    return static_cast<std::size_t>(rank.at) < end_ && kind(static_cast<std::size_t>(rank.at)) == Step::wait;
  }

  [[nodiscard]] Ways ways_of(std::size_t r) const {
    const auto a = static_cast<std::size_t>(in_.tx[r]), b = static_cast<std::size_t>(in_.rx[r]);
    const auto way = [&](std::size_t link) { return Ways::Way{in_.bytes_per_s[link], in_.latency_ps[link]}; };
    return {{way(a), way(r)}, {way(b), way(n_ + r)}, in_.bytes_per_s[2 * n_ + r], in_.late_ps[r], uses_[a] > 1 || uses_[b] > 1};
  }

  // The ways of more than half of some ranks, if so many have the same.
  [[nodiscard]] Ways usual() const {
    Ways found;
    std::size_t votes = 0;
    for (std::size_t r = 0; r < n_; r += n_ / 1024 + 1) {
      const Ways own = ways_of(r);
      if (votes == 0) found = own;
      votes += found == own ? 1 : std::size_t{0} - 1;
    }
    return found;
  }

  std::int64_t busy(std::int64_t nbytes, std::int64_t rate) {
    const auto mixed = static_cast<std::uint64_t>(nbytes) * 0x9E3779B97F4A7C15ull ^ static_cast<std::uint64_t>(rate) * 0xC2B2AE3D27D4EB4Full;
    Known& known = known_[(mixed >> 32) % known_.size()];
    if (known.bytes != nbytes || known.rate != rate) known = {nbytes, rate, std::min(duration_ps(nbytes, rate), kLatest)};
    return known.ps;
  }

  // A rank of its own from now on.
  void add(std::int32_t rank, const Member& member) {
    if (rank >= 0) member_of_[static_cast<std::size_t>(rank)] = static_cast<std::int32_t>(members_.size());
    id_.push_back(rank);
    members_.push_back(member);
  }

  void serve_all() {
    while (!pending_.empty() && status_ == Status::ok) {
      serving_ = pending_.begin()->first;
      std::vector<Event> batch = std::move(pending_.begin()->second);
      pending_.erase(pending_.begin());
      found_.fill({});
      serve(batch);
    }
  }

  // The last rows in which ranks meet inside aligned groups alone, on links of their own: the rows from `end_` on.
  void find_groups() {
    std::size_t mask = 0, least = in_.step.size();
    for (std::size_t i = in_.step.size(); i-- > 0 && in_.near[i] | (in_.step[i] > 2);) {
      if (in_.step[i] <= 2) mask |= static_cast<std::size_t>(in_.apart[i]);
      if (kind(i) == Step::wait) least = std::min(least, static_cast<std::size_t>(in_.raise[i]));
      if (least < i) continue;
      end_ = mask == 0 ? end_ : i;
      group_bits_ = static_cast<std::size_t>(std::bit_width(mask));
    }
  }
  [[nodiscard]] std::size_t group_mask() const { return (std::size_t{1} << group_bits_) - 1; }

  // The last rows, in each group that is not as another one: by group, the one that it is as.
  std::vector<std::int32_t> in_groups() {
    if (end_ == in_.step.size() || status_ != Status::ok) return {};
    const std::vector<std::int32_t> as = groups_alike(numbered());
    const std::size_t end = std::exchange(end_, in_.step.size());
    const auto each = [&](const auto& visit) {
      for (std::size_t r = 0; r < n_ && status_ == Status::ok; ++r)
        if (static_cast<std::size_t>(as[r >> group_bits_]) == r >> group_bits_) visit(static_cast<std::int32_t>(r));
    };
    each([&](std::int32_t rank) {
      if (member(rank) == kTypical) leave(rank);
      if (static_cast<std::size_t>(members_[member(rank)].rank.at) != end) status_ = Status::deadlock;
    });
    each([&](std::int32_t rank) { go_on(member(rank)); });
    serve_all();
    return as;
  }

  // By group, the first one whose ranks have the same numbers.
  [[nodiscard]] std::vector<std::int32_t> groups_alike(const std::vector<std::int32_t>& numbers) const {
    std::vector<std::int32_t> as(n_ >> group_bits_);
    std::unordered_multimap<std::uint64_t, std::int32_t> known;
    const auto of = [&](std::int32_t g) { return std::span(numbers).subspan(static_cast<std::size_t>(g) << group_bits_, group_mask() + 1); };
    for (std::int32_t g = 0; static_cast<std::size_t>(g) < as.size(); ++g) {
      std::uint64_t hash = 0;
      for (const std::int32_t number : of(g)) hash = (hash ^ hash >> 29 ^ static_cast<std::uint64_t>(number)) * 0x9E3779B97F4A7C15ull;
      as[static_cast<std::size_t>(g)] = g;
      const auto [begin, end] = known.equal_range(hash);
      const auto same = std::find_if(begin, end, [&](const auto& other) { return std::ranges::equal(of(g), of(other.second)); });
      if (same != end) as[static_cast<std::size_t>(g)] = same->second;
      else known.emplace(hash, g);
    }
    return as;
  }

  // By rank: a number of all that matters in the last rows.
  std::vector<std::int32_t> numbered() {
    std::vector<std::int32_t> numbers(n_, 0);
    std::map<std::array<std::int64_t, 6>, std::int32_t> known;
    for (std::size_t m = 0; m < members_.size(); ++m) {
      ExchangeRank& me = members_[m].rank;
      if (me.left_ps <= me.clock_ps) me.left_ps = 0;
      if (me.left_tick << kPlaceBits <= me.batch) me.left_tick = 0;
      const std::array<std::int64_t, 6> key{me.clock_ps, me.batch, me.left_ps, me.left_tick, me.ways, me.at};
      const Member& typical = members_[kTypical];
      const bool same = members_[m].links[1] == typical.links[1] && std::equal(me.raised, me.raised + kRaised, typical.rank.raised);
      const auto number = static_cast<std::int32_t>(m);
      const std::int32_t found = same ? known.emplace(key, number).first->second : number;
      if (m > 0) numbers[static_cast<std::size_t>(id_[m])] = found;
    }
    return numbers;
  }

  // A rank that was never as others are.
  void enter(std::int32_t rank, std::int32_t number) {
    Member made;
    made.rank.ways = number;
    made.rank.clock_ps = ways(made).late_ps;
    add(rank, made);
  }

  // A rank that was as others are so far.
  void leave(std::int32_t rank) {
    Member made = members_[kTypical];
    if (!odd_.empty())
      if (const auto found = odd_.find(rank); found != odd_.end()) made.rank.ways = found->second;
    for (Raised& raised : made.rank.raised) {
      if (raised.row < 0) continue;
      const auto i = static_cast<std::size_t>(raised.row);
      const std::size_t by = member(partner(rank, i));
      if (by != kTypical && members_[by].rank.at > wait_of_[i]) raised = {};  // one that was not alike came to it already
    }
    add(rank, made);
  }

  // Ranks that were alike so far and are members from now on, the first of which is returned: those with other NICs, once these are used, and
  // those whose partners in row i are members.
  std::size_t meet(std::size_t i) {
    const std::size_t before = members_.size();
    if (!in_.near[i]) {
      for (const auto& [rank, number] : odd_)
        if (member(rank) == kTypical) leave(rank);
      odd_.clear();
    }
    for (std::size_t m = 1, n = members_.size(); m < n; ++m)
      if (const std::int32_t rank = partner(id_[m], i); member(rank) == kTypical) leave(rank);
    return before;
  }

  // A rank does what it can, up to its next put, which waits for its turn, or to a wait for what was not raised.
  void go_on(std::size_t m) {
    for (; static_cast<std::size_t>(members_[m].rank.at) < end_; ++members_[m].rank.at) {
      const auto i = static_cast<std::size_t>(members_[m].rank.at);
      if (m == kTypical && kind(i) == Step::wait && kind(static_cast<std::size_t>(in_.raise[i])) == Step::signal) {
        const std::size_t first = meet(i);
        if (first < members_.size() && members_[kTypical].rank.puts > 0) status_ = Status::unsupported;  // whose puts they would not have
        for (std::size_t k = first; k < members_.size() && status_ == Status::ok; ++k) go_on(k);
      }
      ExchangeRank& me = members_[m].rank;
      if (kind(i) == Step::wait) {
        const std::size_t from = other(m, i);
        Raised& found = members_[from].rank.raised[static_cast<std::size_t>(place_[static_cast<std::size_t>(in_.raise[i])])];
        if (found.row != in_.raise[i]) return;
        take_raised(me, found, latency(m, from, i));
        if (from != kTypical || m == kTypical) found = {};
      } else {
        const Went went = go_past(me, kind(i), kind(i) == Step::work ? busy(bytes(m, i), ways(members_[m]).memory_bytes_per_s) : 0);
        if (went == Went::flushes) return;
        if (went == Went::put) of_batch(me.batch).push_back({me.at, id_[m], me.clock_ps});
        if (went == Went::signal) raise(m, i, {me.clock_ps, me.batch >> kPlaceBits, me.batch, static_cast<std::int64_t>(i)});
      }
      if (!fits(members_[m].rank, kind(i))) status_ = Status::overflow;
      if (status_ != Status::ok) return;
    }
  }

  // The puts of a batch that is not served yet.
  std::vector<Event>& of_batch(std::int64_t batch) {
    Found& found = found_[(static_cast<std::uint64_t>(batch) * 0x9E3779B97F4A7C15ull) >> 60];
    if (found.batch != batch) found = {batch, &pending_[batch]};
    return *found.puts;
  }

  // From what `from` put, as `m` sees it in row i.
  [[nodiscard]] std::int64_t latency(std::size_t m, std::size_t from, std::size_t i) const {
    return ways(members_[from]).tx[in_.near[i]].latency_ps + ways(members_[m]).rx[in_.near[i]].latency_ps;
  }

  void raise(std::size_t m, std::size_t i, const Raised& raised) {
    const std::size_t to = other(m, i);
    ExchangeRank& waiting = members_[to].rank;
    if (to != kTypical && waits(waiting) && in_.raise[static_cast<std::size_t>(waiting.at)] == raised.row) {
      take_raised(waiting, raised, latency(to, m, static_cast<std::size_t>(waiting.at)));
      ++waiting.at;
      go_on(to);
      return;
    }
    Raised& place = members_[m].rank.raised[static_cast<std::size_t>(place_[i])];
    if (place.row >= 0) status_ = Status::unsupported;
    place = raised;
  }

  // All puts of one batch: those with the first turn of their links at once, as no other comes before them there, then the others by turn.
  // Turns go to puts by (row, rank), which matters to links that several have.
  void serve(std::vector<Event>& batch) {
    for (std::size_t k = 0, n = batch.size(); k < n; ++k) {
      if (batch[k].rank >= 0) continue;
      if (members_[kTypical].rank.puts != 1) status_ = Status::unsupported;
      const Event typical = batch[k];
      for (std::size_t m = meet(static_cast<std::size_t>(typical.row)); m < members_.size(); ++m) batch.push_back({typical.row, id_[m], typical.clock_ps});
    }
    const auto by_row = [](const Event& a, const Event& b) { return a.row < b.row; };
    if (!std::is_sorted(batch.begin(), batch.end(), by_row)) std::stable_sort(batch.begin(), batch.end(), by_row);
    later_.clear();
    for (std::size_t k = 0; k < batch.size() && status_ == Status::ok; ++k) {
      if (k + kAhead < batch.size()) fetch(batch[k + kAhead]);
      if (shares(batch[k])) sharing_.push_back(batch[k]);
      else first_turn(batch[k]);
      if (k + 1 < batch.size() && batch[k + 1].row == batch[k].row) continue;
      std::ranges::sort(sharing_, {}, &Event::rank);
      for (const Event& event : sharing_)
        if (status_ == Status::ok) first_turn(event);
      sharing_.clear();
    }
    std::ranges::sort(later_);
    for (const Later& each : later_)
      if (status_ == Status::ok) put(each.event);
  }

  [[nodiscard]] std::size_t from(const Event& event) const { return event.rank < 0 ? kTypical : member(event.rank); }

  // What a put needs, into a cache.
  void fetch(const Event& event) const {
#if defined(__GNUC__)
    const auto i = static_cast<std::size_t>(event.row);
    const std::size_t m = from(event);
    for (const Member* member : {&members_[m], &members_[other(m, i)]}) {
      __builtin_prefetch(member, 1);
      __builtin_prefetch(&member->links[in_.near[i]], 1);
    }
#endif
  }

  // Whether it is on a link that other ranks have, too.
  [[nodiscard]] bool shares(const Event& event) const {
    const auto i = static_cast<std::size_t>(event.row);
    return !in_.near[i] && (ways(members_[from(event)]).shared || ways(members_[other(from(event), i)]).shared);
  }

  void first_turn(const Event& event) {
    const auto i = static_cast<std::size_t>(event.row);
    const std::size_t m = from(event), to = other(m, i);
    if (m != kTypical && to == kTypical) status_ = Status::unsupported;
    const int turn = next_turn(out(m, i), into(to, i), serving_);
    if (turn < 0) status_ = Status::unsupported;
    if (turn == 0) put(event);
    else later_.push_back({turn, event});
  }

  // The links of a put from one member to another in row i.
  [[nodiscard]] ExchangeLink& out(std::size_t m, std::size_t i) {
    const bool shared = !in_.near[i] && ways(members_[m]).shared;
    return shared ? shared_[static_cast<std::size_t>(in_.tx[static_cast<std::size_t>(id_[m])])] : members_[m].links[in_.near[i]][0];
  }
  [[nodiscard]] ExchangeLink& into(std::size_t m, std::size_t i) {
    const bool shared = !in_.near[i] && ways(members_[m]).shared;
    return shared ? shared_[static_cast<std::size_t>(in_.rx[static_cast<std::size_t>(id_[m])])] : members_[m].links[in_.near[i]][1];
  }

  void put(const Event& event) {
    const auto i = static_cast<std::size_t>(event.row), near = static_cast<std::size_t>(in_.near[i]);
    const std::size_t m = from(event), to = other(m, i);
    Member &me = members_[m], &partner = members_[to];
    const std::int64_t nbytes = bytes(m, i), held = nbytes > 0 ? in_.alpha_ps : 0;
    const PutTimes takes{held + busy(nbytes, ways(me).tx[near].bytes_per_s), held + busy(nbytes, ways(partner).rx[near].bytes_per_s), in_.ticks[i], near != 0};
    const Raised raised = serve_put(me.rank, out(m, i), into(to, i), std::max(event.clock_ps, ways(partner).late_ps), takes, serving_, event.row);
    if (!fits(raised)) status_ = Status::overflow;
    if (status_ == Status::ok) raise(m, i, raised);
    const ExchangeRank& now = members_[m].rank;
    if (status_ == Status::ok && (m == kTypical || (now.flushes && now.puts == 0))) go_on(m);
  }

  struct Known {
    std::int64_t bytes = -1, rate = -1, ps = 0;
  };
  struct Found {  // in `pending_`
    std::int64_t batch = -1;
    std::vector<Event>* puts = nullptr;
  };
  struct Later {
    int turn;
    Event event;
    auto operator<=>(const Later&) const = default;
  };

  const ExchangesInput& in_;
  std::size_t n_;
  bool merges_ = false;
  std::vector<Member> members_;
  std::vector<std::int32_t> id_;         // by member: its rank
  std::vector<std::int32_t> member_of_;  // by rank
  std::map<std::int32_t, std::int32_t> odd_;  // ranks that have other NICs, which nobody used yet, and their ways
  std::vector<std::int32_t> uses_;       // by link: of how many ranks it is the NIC
  std::vector<ExchangeLink> shared_;     // by link
  std::vector<Ways> ways_;
  std::vector<std::int32_t> place_, wait_of_;  // of a put or signal: where it is kept, and the row that waits for it
  std::vector<Known> known_;
  std::map<std::int64_t, std::vector<Event>> pending_;
  std::array<Found, 16> found_;
  std::int64_t serving_ = -1;  // the batch
  std::vector<Event> sharing_;
  std::vector<Later> later_;
  std::size_t end_, group_bits_ = 0;  // where ranks stop, and of the groups in which they meet from there on
  Status status_ = Status::ok;
};

bool good(const ExchangesInput& in, std::size_t finish) {
  const auto n = static_cast<std::size_t>(in.ranks), rows = in.step.size(), links = in.bytes_per_s.size();
  if (in.ranks < 1 || in.late_ps.size() != n || finish != n || in.tx.size() != n || in.rx.size() != n || in.near.size() != rows) return false;
  for (const auto& column : {in.apart, in.ticks, in.raise, in.nbytes, in.row})
    if (column.size() != rows) return false;
  const auto link = [&](std::int32_t v) { return v >= 0 && static_cast<std::size_t>(v) < links; };
  if (links < 3 * n || in.latency_ps.size() != links || !std::ranges::all_of(in.tx, link) || !std::ranges::all_of(in.rx, link)) return false;
  for (std::size_t i = 0; i < rows; ++i) {
    if (in.step[i] > 4 || in.apart[i] < 0 || in.apart[i] >= in.ranks || (in.apart[i] > 0 && !std::has_single_bit(n))) return false;
    if (in.apart[i] == 0 && in.step[i] < 3) return false;  // with itself
    if (in.row[i] >= 0 && (static_cast<std::size_t>(in.row[i]) + 1) * n > in.bytes.size()) return false;
    if (in.step[i] != 1) continue;
    const auto raise = static_cast<std::size_t>(in.raise[i]);
    if (in.raise[i] < 0 || raise >= i || in.apart[raise] != in.apart[i] || in.step[raise] % 2 != 0 || in.step[raise] > 2) return false;
  }
  return true;
}

}  // namespace

ExchangesResult simulate_exchanges(const ExchangesInput& in, std::span<std::int64_t> finish_ps) noexcept try {
  if (!good(in, finish_ps.size())) return {Status::bad_input, 0};
  if (in.merge) {
    const ExchangesResult merged = Exchanges(in, true).run(finish_ps);
    if (merged.status != Status::unsupported && merged.status != Status::deadlock) return merged;
  }
  return Exchanges(in, false).run(finish_ps);
} catch (const std::bad_alloc&) {
  return {Status::out_of_memory, 0};
}

}  // namespace ccl_lab::sim
