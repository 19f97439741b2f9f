// See partner_octets.hpp.
#include "partner_octets.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <utility>
#include <vector>

#include "changes.hpp"
#include "order.hpp"
#include "partner_layout.hpp"
#include "partner_octet.hpp"
#include "partner_takes.hpp"
#include "partner_tiers.hpp"
#include "stream.hpp"
#include "vectors.hpp"

namespace ccl_lab::sim {
namespace {

CCL_FOR_TARGETS(meet_alike, (const Words& words, const Crossing& by, const WordMeeting& at, const Alike& alike, Met& met),
                (met = meet_words<true, false>(words, by, at, alike, nullptr)))
CCL_FOR_TARGETS(meet_any, (const Words& words, const Crossing& by, const WordMeeting& at, const Alike& alike, Met& met),
                (met = meet_words<false, false>(words, by, at, alike, nullptr)))

// What switches add between ranks of two words, from `one` and `other` on; adds: for all of them, or kMixed.
struct WordTiers {
  const PartnerTiers& tiers;
  std::size_t one, other;
  std::int64_t adds;
};

[[gnu::always_inline]] inline Met meet_through(const Words& words, const Crossing& by, const WordMeeting& at, const Alike& alike,
                                               const WordTiers& between) {
  return meet_words<false, true>(words, by, at, alike, [&](std::size_t k, std::size_t m, std::int64_t* added) {
    if (between.adds == PartnerTiers::kMixed) between.tiers.of_eight(between.one + kLanes * k, between.other + kLanes * m, by, added);
    else std::fill_n(added, kLanes, between.adds);
  });
}

CCL_FOR_TARGETS(meet_adding, (const Words& words, const Crossing& by, const WordMeeting& at, const Alike& alike, const WordTiers& between, Met& met),
                (met = meet_through(words, by, at, alike, between)))
CCL_FOR_TARGETS(find_lanes, (const std::int32_t* steps, std::int32_t step, std::uint64_t& found), (found = word_lanes_in(steps, step)))

struct Free {
  std::int64_t ps = 0;
  std::int32_t tick = 0;
};

std::vector<std::int32_t> users(const PartnersInput& in) {
  std::vector<std::int32_t> found(static_cast<std::size_t>(in.nics), 0);
  for (const std::int32_t nic : in.nic) ++found[static_cast<std::size_t>(nic)];
  return found;
}

// The number of each rank.
class Numbers {
 public:
  Numbers(const Layout& layout, std::uint32_t n) : of_(n) {
    for (std::uint32_t i = 0; i < n; ++i) of_[layout.rank(i)] = i;
  }
  std::size_t operator()(std::size_t rank) const { return of_[rank]; }

 private:
  std::vector<std::uint32_t> of_;
};

class InOctets {
 public:
  InOctets(const PartnersInput& in, PartnersOutput& out)
      : in_(in), out_(out), n_(static_cast<std::uint32_t>(in.ranks)), nics_(static_cast<std::uint32_t>(in.nics)), layout_(n_, in.node),
        all_(n_ / kLanes), takes_(n_ / kLanes), step_(n_, 0), odd_(layout_.words(), 0), hit_(odd_), met_(odd_), odd_hit_(odd_), near_(n_),
        near_free_(2 * n_, 0), arrives_ps_(n_, 0), free_(2 * nics_), turns_(2 * (nics_ + n_)), stamp_of_(2 * (nics_ + n_), 0),
        changes_(in.changes, static_cast<std::size_t>(std::max<std::int64_t>(in.links, 0))), due_(layout_.words()), again_{odd_, odd_},
        tiers_(in.tiers, n_, 0, n_, n_, kWord, Numbers(layout_, n_)), meet_adding_(meet_adding_for(in.target)),
        find_lanes_(find_lanes_for(in.target)) {}

  PartnersStatus run() {
    if (!prepare()) return PartnersStatus::too_long;
    out_.puts = in_.ranks * (in_.ranks - 1);
    for (; remaining_ > 0; ++tick_) {
      next_ = due_.at(tick_ + 1, tick_);
      std::uint64_t* lanes = due_.at(tick_, tick_);
      for (std::uint32_t w = 0; w < layout_.words(); ++w)
        if (lanes[w] != 0) now_.push_back(w);
      for (; !now_.empty(); lanes = again_[1 - to_].data()) {
        batch(lanes);
        now_.swap(soon_);
        soon_.clear();
        to_ = 1 - to_;
      }
      if (latest_ps_ > kLatest || (tick_ % kOften == 0 && ended() > kLatest)) return PartnersStatus::overflow;
      if (tick_ >= kMostTicks || stamp_ >= kMostStamps) return PartnersStatus::too_long;
    }
    return ended() > kLatest ? PartnersStatus::overflow : PartnersStatus::ok;
  }

 private:
  static constexpr std::int32_t kMostTicks = 1 << 30, kOften = 4096;
  static constexpr std::uint32_t kMostStamps = 1u << 31, kWord = Layout::kWordLanes;

  static constexpr std::uint64_t kAll = ~std::uint64_t{0};
  // Octets whose numbers lack a bit.
  static constexpr std::array<std::uint64_t, 3> kFirst = {0x00ff00ff00ff00ff, 0x0000ffff0000ffff, 0x00000000ffffffff};

  // Lanes of words that put to one another, as the first one counts.
  struct Event {
    std::uint32_t word;
    std::int32_t step;
    Layout::Partner partner;
    std::uint64_t ours, its;
  };
  struct Put {
    std::int32_t step;
    std::uint32_t rank, from, to, a, b;  // numbers, links
    bool near;
    std::int64_t turn;
  };

  [[nodiscard]] std::uint64_t bit(std::uint32_t number) const { return std::uint64_t{1} << number % kWord; }
  [[nodiscard]] bool is_odd(std::uint32_t number) const { return (odd_[number / kWord] & bit(number)) != 0; }
  template <class Column>
  static auto& of(Column& column, std::uint32_t number) { return column[number % kLanes]; }

  bool prepare() {
    std::int64_t longest = std::max(std::ranges::max(in_.begin_ps) / in_.ranks, tiers_.most());
    const std::vector<std::int32_t> using_it = users(in_);
    std::map<Takes, std::uint32_t> kinds;
    std::vector<Takes> far(n_);
    std::vector<bool> is_regular(n_);
    for (std::uint32_t i = 0; i < n_; ++i) {
      const std::uint32_t rank = layout_.rank(i);
      const auto nic = static_cast<std::size_t>(in_.nic[rank]);
      far[i] = takes_of(in_, 2 * nic, 2 * nic + 1);
      near_[i] = takes_of(in_, 2 * (nics_ + rank), 2 * (nics_ + rank) + 1);
      longest = std::max({longest, far[i].longest(), near_[i].longest()});
      is_regular[i] = using_it[nic] == 1 && !changing(2 * nic) && !changing(2 * nic + 1);
      if (is_regular[i]) ++kinds[far[i]];
    }
    if (longest >= (kLatest << 1) / (8 * in_.ranks)) return false;
    const auto usual = std::ranges::max_element(kinds, {}, [](const auto& each) { return each.second; });
    const bool alike = alike_are_ = usual != kinds.end() && usual->first.tx_ps == usual->first.rx_ps && n_ - usual->second <= n_ / kRare;
    if (alike) alike_ = {usual->first.tx_ps, usual->first.tx_latency_ps + usual->first.rx_latency_ps};
    meet_ = alike ? meet_alike_for(in_.target) : meet_any_for(in_.target);
    for (std::uint32_t i = 0; i < n_; ++i) begin(i, far[i], is_regular[i] && (!alike || far[i] == usual->first));
    return true;
  }

  [[nodiscard]] bool changing(std::size_t link) const { return !in_.link.empty() && changes_.on(in_.link[link]); }

  void begin(std::uint32_t i, const Takes& far, bool is_regular) {
    const std::uint32_t octet = i / kLanes, lane = i % kLanes, rank = layout_.rank(i);
    OctetTakes& takes = takes_[octet];
    takes.tx[lane] = far.tx_ps, takes.rx[lane] = far.rx_ps;
    takes.tx_latency[lane] = far.tx_latency_ps, takes.rx_latency[lane] = far.rx_latency_ps;
    takes.left[lane] = all_[octet].tx[lane] = all_[octet].rx[lane] = in_.late_ps[rank];  // nothing is put to a rank before it enters
    all_[octet].clock[lane] = in_.begin_ps[rank];
    if (!is_regular) odd_[i / kWord] |= bit(i);
    step_[i] = 2;
    ++remaining_;
    due_.at(0, 0)[i / kWord] |= bit(i);
  }

  // The lane that one meets.
  [[nodiscard]] static std::uint32_t meets(const Layout::Partner& partner, std::uint32_t lane) { return lane ^ partner.apart; }

  // Puts that begin at once, whoever makes them: `due`, which are none after it.
  void batch(std::uint64_t* due) {
    for (const std::uint32_t word : now_) {
      while (due[word] != 0) {
        const std::int32_t step = step_[kWord * word + static_cast<std::uint32_t>(std::countr_zero(due[word]))];
        const Layout::Partner partner = layout_.partner(word, static_cast<std::uint32_t>(step) / 2);
        const auto take = [&](std::uint32_t w) {
          std::uint64_t lanes = 0;
          if (due[w] != 0) find_lanes_(&step_[kWord * w], step, lanes);
          return lanes & std::exchange(due[w], due[w] & ~lanes);
        };
        const std::uint64_t ours = take(word), its = layout_.meet(partner, take(partner.word));
        add({word, step, partner, ours, its});
      }
    }
    meet_all();
    one_by_one();
  }

  // A meeting, but for puts that are made one by one.
  void add(Event event) {
    const auto [word, step, partner, ours, its] = event;
    std::uint64_t odd = odd_[word] | layout_.meet(partner, odd_[partner.word]);
    if (word == partner.word) {
      // Of two octets of the word the first one meets the other.
      if (partner.apart < kLanes) odd = kAll;
      const std::uint64_t first = partner.apart < kLanes ? kAll : kFirst[std::bit_width(partner.apart / kLanes) - 1];
      event.ours &= first;
      event.its = partner.apart < kLanes ? 0 : layout_.meet(partner, ours) & first;
    }
    if (layout_.near(static_cast<std::uint32_t>(step) / 2))
      for (std::uint32_t l = 0; l < kWord; ++l)
        odd |= std::uint64_t{is_near(kWord * word + l, kWord * partner.word + meets(partner, l))} << l;
    if (odd != 0) single(event, odd);
    if ((event.ours | event.its) == 0) return;
    const auto hit = [&](std::uint32_t w, std::uint64_t lanes) {
      met_[w] |= hit_[w] & lanes;
      hit_[w] |= lanes;
    };
    hit(partner.word, layout_.meet(partner, event.ours));
    hit(word, event.its);
    events_.push_back(event);
  }

  [[nodiscard]] bool is_near(std::uint32_t i, std::uint32_t j) const { return in_.node[layout_.rank(i)] == in_.node[layout_.rank(j)]; }

  // Puts on those lanes are made one by one, and leave the meeting.
  void single(Event& event, std::uint64_t lanes) {
    for (std::uint64_t rest = (event.ours | event.its) & lanes; rest != 0; rest &= rest - 1) {
      const auto l = static_cast<std::uint32_t>(std::countr_zero(rest));
      const std::uint32_t i = kWord * event.word + l, j = kWord * event.partner.word + meets(event.partner, l);
      if (event.ours >> l & 1) single(i, j, event.step);
      if (event.its >> l & 1) single(j, i, event.step);
    }
    event.ours &= ~lanes;
    event.its &= ~lanes;
  }

  void single(std::uint32_t from, std::uint32_t to, std::int32_t step) {
    const std::uint32_t rank = layout_.rank(from), its = layout_.rank(to);
    const bool near = in_.node[rank] == in_.node[its];
    const std::uint32_t a = 2 * (near ? nics_ + rank : static_cast<std::uint32_t>(in_.nic[rank]));
    const std::uint32_t b = 2 * (near ? nics_ + its : static_cast<std::uint32_t>(in_.nic[its])) + 1;
    if (!near) odd_hit_[to / kWord] |= bit(to);
    singles_.push_back({step, rank, from, to, a, b, near, 0});
  }

  void meet_all() {
    const bool any_single = !singles_.empty();
    for (std::size_t i = 0; i < events_.size(); ++i) {
      Event& event = events_[i];
      const std::uint32_t other = event.partner.word;
      if (i + 1 < events_.size()) fetch(events_[i + 1]);
      if (any_single) leave(event, layout_.meet(event.partner, odd_hit_[other]), odd_hit_[event.word]);
      const std::uint64_t ours = met_[other] == 0 ? 0 : event.ours & layout_.meet(event.partner, met_[other]);
      const std::uint64_t its = event.its & met_[event.word];
      if ((ours | its) == 0) {
        meet_now(event);
      } else {
        out_.turns += std::popcount(ours) + std::popcount(its);
        in_turn_.push_back(event);
      }
    }
    std::ranges::sort(in_turn_, {}, &Event::step);
    for (const Event& event : in_turn_) meet_now(event);
    in_turn_.clear();
    for (const Event& event : events_)
      for (const std::uint32_t word : {event.word, event.partner.word}) hit_[word] = met_[word] = 0;
    events_.clear();
  }

  // Puts that share a NIC with one that is made by itself, and are made so.
  void leave(Event& event, std::uint64_t ours, std::uint64_t its) {
    Event some = event;
    some.ours &= ours, some.its &= its;
    event.ours &= ~ours;
    event.its &= ~its;
    single(some, kAll);
  }

  void fetch(const Event& event) {
    for (const std::uint32_t word : {event.word, event.partner.word})
      for (std::size_t line = 0; line < 2 * sizeof(Octet) / 64; ++line)
        __builtin_prefetch(reinterpret_cast<const char*>(&all_[word * kWordOctets]) + 64 * line, 1);
  }

  void meet_now(const Event& event) {
    const auto& [word, step, partner, ours, its] = event;
    const std::size_t one = word * kWordOctets, other = partner.word * kWordOctets;
    Met met;
    const Words words{&all_[one], &all_[other], &takes_[one], &takes_[other], &step_[kLanes * one], &step_[kLanes * other],
                      partner.apart / kLanes};
    const WordMeeting at{step, tick_, ours, its};
    if (!tiers_.any()) meet_(words, layout_.by(partner), at, alike_, met);
    else meet_through_tiers(event, words, at, met);
    go_on(word, step + 2, met.later, met.not_next, partner, partner.word);
    go_on(partner.word, step + 2, met.its_later, met.its_not_next, partner, word);
  }

  void meet_through_tiers(const Event& event, const Words& words, const WordMeeting& at, Met& met) {
    const auto& [word, step, partner, ours, its] = event;
    const std::int64_t adds = tiers_.between(word, word, partner.word, partner.word);
    if (alike_are_ && adds != PartnerTiers::kMixed)
      meet_(words, layout_.by(partner), at, {alike_.takes_ps, alike_.latency_ps + adds}, met);
    else
      meet_adding_(words, layout_.by(partner), at, alike_, {tiers_, kWord * word, kWord * partner.word, adds}, met);
  }

  // Lanes of a word come to a step, as the puts of their partners in the one before, of word `its`, have left.
  void go_on(std::uint32_t word, std::int32_t step, std::uint64_t later, std::uint64_t not_next, const Layout::Partner& before,
             std::uint32_t its) {
    const auto leaves = [&](std::uint64_t rest) {
      const std::uint32_t j = kWord * its + meets(before, static_cast<std::uint32_t>(std::countr_zero(rest)));
      return of(all_[j / kLanes].leaves, j);
    };
    if ((later | not_next) == 0) return;
    if (static_cast<std::uint32_t>(step) >= 2 * n_) {
      remaining_ -= static_cast<std::size_t>(std::popcount(later | not_next));
      return;
    }
    next_[word] |= later & ~not_next;
    if (const std::uint64_t again = not_next & ~later; again != 0) put_again(word, again);
    for (std::uint64_t rest = later & not_next; rest != 0; rest &= rest - 1)
      put_at(leaves(rest), kWord * word + static_cast<std::uint32_t>(std::countr_zero(rest)));
  }

  void put_again(std::uint32_t word, std::uint64_t lanes) {
    std::uint64_t& due = again_[to_][word];
    if (due == 0) soon_.push_back(word);
    due |= lanes;
  }

  void put_at(std::int32_t tick, std::uint32_t i) {
    due_.at(tick, tick_)[i / kWord] |= bit(i);
    next_ = due_.at(tick_ + 1, tick_);
  }

  // One rank comes to its next step, whose partner's put leaves at tick `leaves`.
  void go_on(std::uint32_t i, std::int32_t leaves) {
    if (static_cast<std::uint32_t>(step_[i]) >= 2 * n_) --remaining_;
    else if (leaves <= tick_) put_again(i / kWord, bit(i));
    else put_at(leaves, i);
  }

  void one_by_one() {
    if (singles_.empty()) return;
    const std::uint32_t stamp = stamp_ += 2;
    for (const Put& put : singles_)
      for (const std::uint32_t link : {put.a, put.b}) stamp_of_[link] = stamp_of_[link] >= stamp ? stamp + 1 : stamp;
    const auto alone = std::ranges::partition(singles_, [&](const Put& put) { return ((stamp_of_[put.a] | stamp_of_[put.b]) & 1) == 0; });
    std::ranges::sort(alone, {}, [](const Put& each) { return std::pair{each.step, each.rank}; });
    for (Put& each : alone) each.turn = turns_.next(static_cast<std::int32_t>(each.a), static_cast<std::int32_t>(each.b));
    turns_.clear();
    out_.turns += std::ssize(alone);
    std::ranges::stable_sort(alone, {}, &Put::turn);
    for (const Put& put : singles_) {
      take(put);
      odd_hit_[put.to / kWord] = 0;
    }
    singles_.clear();
  }

  void take(const Put& put) {
    const std::uint32_t i = put.from, j = put.to;
    Octet &own = all_[i / kLanes], &its = all_[j / kLanes];
    const OctetTakes &takes = takes_[i / kLanes], &its_takes = takes_[j / kLanes];
    const Takes sends = put.near ? near_[i] : Takes{of(takes.tx, i), 0, of(takes.tx_latency, i), 0};
    const Takes receives = put.near ? near_[j] : Takes{0, of(its_takes.rx, j), 0, of(its_takes.rx_latency, j)};
    std::int64_t& a = put.near ? near_free_[2 * i] : is_odd(i) ? free_[put.a].ps : of(own.tx, i);
    std::int64_t& b = put.near ? near_free_[2 * j + 1] : is_odd(j) ? free_[put.b].ps : of(its.rx, j);
    if (!put.near) {
      std::int32_t& a_tick = is_odd(i) ? free_[put.a].tick : of(own.leaves, i);
      std::int32_t& b_tick = is_odd(j) ? free_[put.b].tick : of(its.rx_tick, j);
      of(own.leaves, i) = a_tick = b_tick = std::max({tick_, a_tick, b_tick}) + 1;
    }
    const std::int64_t start = std::max({of(own.clock, i), a, b, in_.late_ps[layout_.rank(j)]});
    a = put.near ? start + sends.tx_ps : through(start, start + sends.tx_ps, put.a);
    b = put.near ? start + receives.rx_ps : through(start, start + receives.rx_ps, put.b);
    const std::int64_t leaves = std::max(a, b);
    of(takes_[i / kLanes].left, i) = std::max(of(takes.left, i), leaves);
    arrives_ps_[i] = leaves + sends.tx_latency_ps + receives.rx_latency_ps + (put.near ? 0 : tiers_.of(i, j));
    latest_ps_ = std::max(latest_ps_, arrives_ps_[i]);
    if ((step_[i] |= 1) != step_[j]) return;  // it has not come so far
    const std::int64_t here = arrives(j, i, put.near), there = arrives(i, j, put.near);
    of(own.clock, i) = std::max(of(own.clock, i), here);
    of(its.clock, j) = std::max(of(its.clock, j), there);
    const std::int32_t seen = put.near ? tick_ : of(its.leaves, j), its_seen = put.near ? tick_ : of(own.leaves, i);
    ++step_[i], ++step_[j];
    go_on(j, its_seen);
    go_on(i, seen);
  }

  // When what i put to j arrives; between regular ranks that follows from when the NIC of i is free again.
  [[nodiscard]] std::int64_t arrives(std::uint32_t i, std::uint32_t j, bool near) const {
    if (near || is_odd(i) || is_odd(j)) return arrives_ps_[i];
    const OctetTakes &takes = takes_[i / kLanes], &its = takes_[j / kLanes];
    const std::int64_t longer = std::max<std::int64_t>(0, of(its.rx, j) - of(takes.tx, i));
    return of(all_[i / kLanes].tx, i) + longer + of(takes.tx_latency, i) + of(its.rx_latency, j) + tiers_.of(i, j);
  }

  // Saturated where nothing passes any more.
  [[nodiscard]] std::int64_t through(std::int64_t start, std::int64_t else_ps, std::uint32_t link) const {
    if (!changing(link)) return else_ps;
    const std::int64_t from = std::min(start, 2 * kLatest) + (in_.bytes[0] > 0 ? in_.alpha_ps : 0);
    return std::min(changes_.through_ps(in_.link[link], from, in_.bytes[0], in_.bytes_per_s[link]), 2 * kLatest);
  }

  // When each rank has ended so far; the last of them.
  std::int64_t ended() {
    for (std::uint32_t i = 0; i < n_; ++i) {
      const Octet& octet = all_[i / kLanes];
      out_.finish_ps[layout_.rank(i)] = std::max({of(octet.clock, i), of(octet.tx, i), of(takes_[i / kLanes].left, i)});
    }
    return std::ranges::max(out_.finish_ps);
  }

  const PartnersInput& in_;
  PartnersOutput& out_;
  std::uint32_t n_, nics_;
  Layout layout_;
  std::vector<Octet> all_;
  std::vector<OctetTakes> takes_;
  std::vector<std::int32_t> step_;                     // by number: twice the step, and one more while its put is under way
  std::vector<std::uint64_t> odd_;                     // by word: lanes that are not regular
  std::vector<std::uint64_t> hit_, met_, odd_hit_;     // lanes that are put to in a batch; by several; by puts that are made one by one
  std::vector<Takes> near_;                             // by number
  std::vector<std::int64_t> near_free_;                // by number: sending, receiving
  std::vector<std::int64_t> arrives_ps_;               // by number: of puts that no meeting made
  std::vector<Free> free_;                             // of NICs of ranks that are not regular: sending, receiving
  Turns turns_;
  std::vector<std::uint32_t> stamp_of_;                // of links: the last batch of single puts, twice; one more if it had several
  Changes changes_;
  Due due_;
  std::array<std::vector<std::uint64_t>, 2> again_;    // by word: lanes that put in the next batch of this tick
  std::uint64_t* next_ = nullptr;                      // those of the next tick
  std::vector<std::uint32_t> now_, soon_;              // words of which some lanes are due, in this batch and the next one
  std::vector<Event> events_, in_turn_;
  std::vector<Put> singles_;
  Alike alike_{};
  decltype(&meet_any_base) meet_ = nullptr;
  PartnerTiers tiers_;                                  // by number, and word
  bool alike_are_ = false;                              // regular ranks are
  decltype(&meet_adding_base) meet_adding_;
  decltype(&find_lanes_base) find_lanes_;
  std::int32_t tick_ = 0;
  std::uint32_t stamp_ = 0;
  std::size_t to_ = 0, remaining_ = 0;  // ranks that have not come to their end
  std::int64_t latest_ps_ = 0;
};

}  // namespace

bool in_octets(const PartnersInput& in) {
  const auto n = static_cast<std::uint64_t>(in.ranks);
  if (in.channels != 1 || in.in_place || !std::has_single_bit(n) || n < 2 * Layout::kWordLanes) return false;
  if (std::ranges::any_of(in.node, [&](std::int32_t node) { return node < 0 || node >= in.ranks; })) return false;
  // Each of them sets nodes apart: with one in 4,096 that is some 8 ns a put, with one in a hundred nearly as many as one by one.
  const bool many = in.ranks * in.ranks > in.most_puts;
  const std::vector<std::int32_t> using_it = users(in);
  const auto shares = [&](std::int32_t nic) { return using_it[static_cast<std::size_t>(nic)] > 1; };
  return std::ranges::count_if(in.nic, shares) <= in.ranks / (many ? 4096 : 8);
}

PartnersStatus simulate_in_octets(const PartnersInput& in, PartnersOutput& out) { return InOctets(in, out).run(); }

}  // namespace ccl_lab::sim
