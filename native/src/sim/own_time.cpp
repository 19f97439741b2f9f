// See own_time.hpp.
#include "own_time.hpp"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "followed_units.hpp"
#include "own_time_band.hpp"
#include "own_time_reference.hpp"
#include "own_time_sent.hpp"

namespace ccl_lab::sim {
namespace {

using Column = std::vector<std::int64_t>;

constexpr int kLaps = 3;                  // after which all messages are right
constexpr std::int64_t kRunIn = 16;       // units before the first lap
constexpr std::size_t kKept = 256;        // units from the first one on whose messages of the lap before are kept, to be compared
constexpr std::size_t kMostSent = std::size_t{1} << 21;  // numbers of theirs, or they are not
constexpr std::size_t kMostKept = std::size_t{1} << 28;  // bytes of references from which on no more are made
constexpr std::size_t kFewest = 5;        // units that are alike for a reference to be less work than they are
constexpr std::int64_t kLeastStride = 8;  // rounds between two looks at the offsets
constexpr std::size_t kLongest = 8;       // period of offsets, in strides
constexpr std::int64_t kToFollow = 2;     // rounds after which memories are what they are (FollowedUnits::memories_follow)
constexpr std::int64_t kPatience = 64;    // rounds without a jump before a unit joins the band; each time that it was in vain twice as many
// Places for which messages are taken out of the band at a time: few at first, since units that join the band have to come as far as it is, all of them.
constexpr std::int64_t kLeastAhead = 64, kMostAhead = 512;
constexpr std::int64_t kLeastBudget = 1'000'000;  // messages
constexpr std::int64_t kOfBand = 2;       // rounds that are evaluated in the time that one of the band takes
constexpr std::int64_t kFarAhead = 1024;   // places by which the band is so far ahead that another one is begun
constexpr std::int64_t kLongestPause = 64;  // strides without a look, where offsets do not come back

class OwnTime {
 public:
  OwnTime(const RingsInput& in, RingsOutput& out)
      : in_(in), out_(out), units_(in), n_(in.units), group_(static_cast<std::int64_t>(units_.group)), chains_(units_.chains) {}

  RingsStatus run() {
    if (!units_.fits() || !units_.memories_apart() || units_.messages > 2 * n_ * group_) return RingsStatus::bad_input;
    find_works();
    const std::int64_t all = n_ * in_.chains * in_.stations * units_.messages * units_.most;
    budget_ = std::min(std::max<std::int64_t>(all / 4, kLeastBudget), in_.most_own_time) / (in_.chains * in_.stations);
    allowed_ = budget_ / 4 * 3;
    band_.emplace(units_, lengths_, out_);
    patience_.assign(static_cast<std::size_t>(n_), kPatience);
    states_.resize(static_cast<std::size_t>(n_) * units_.words);
    starts_.resize(static_cast<std::size_t>(n_) * units_.group * chains_);
    for (std::size_t u = 0; u < units_.units; ++u) units_.begin(u, state_of(states_, u), starts_of(starts_, u));
    for (slice_ = 0; slice_ < units_.most; ++slice_) {
      enter();
      if (!circle()) return RingsStatus::too_much;
      states_.swap(next_states_);
      starts_.swap(next_starts_);
    }
    for (std::size_t u = 0; u < units_.units; ++u) units_.finish(u, state_of(states_, u), out_);
    return RingsStatus::ok;
  }

 private:
  // Rounds in which all stations add, and those in which none does and what it sends is not the last that it sends.
  void find_works() {
    const std::int64_t apart = group_ - in_.depth, last = units_.messages - 2 * in_.depth - apart, adding = in_.reducing * in_.depth;
    works_ = {{0, std::min(adding - apart, last), true}, {std::max<std::int64_t>(adding, 0), last, false}};
    stride_ = group_ * ((kLeastStride * (in_.chains > 4 ? 2 : 1) + group_ - 1) / group_);  // states are large where there are many chains
  }

  void enter() {
    units_.enter(slice_);
    lengths_.lay_out(units_);
    next_states_ = states_;
    next_starts_ = starts_;
    const auto& kind = units_.kind_alone;
    references_.clear();
    references_.resize((*std::ranges::max_element(kind) + 1) * works_.size());
    lags_.clear();
    kept_ = 0;
    alike_.assign(references_.size(), 0);
    for (const std::size_t each : kind) ++alike_[each];
  }

  [[nodiscard]] std::int64_t* state_of(Column& states, std::size_t unit) const { return states.data() + unit * units_.words; }
  [[nodiscard]] std::int64_t* starts_of(Column& starts, std::size_t unit) const { return starts.data() + unit * units_.group * chains_; }

  bool circle() {
    Sent from(chains_), to(chains_), assumed(chains_);
    kept_sent_.clear();
    put_off_.clear();
    numbers_ = 0;
    for (int lap = -1; lap < kLaps; ++lap) {  // before the first one some units, for what comes to unit 0
      assumed = from;
      for (std::int64_t u = lap < 0 ? n_ - std::min(kRunIn, n_ / 8) : 0; u < n_ || !band_->empty();) {
        allowed_ = std::min(budget_, allowed_ + budget_ / (n_ * units_.most) + 1);  // what takes too much work is known long before it is done
        status_ = Status::goes;
        if (u == n_) {
          from_ = &from;
          let_go();
        } else {
          visit(u, from, to);
        }
        if (status_ == Status::too_much) return false;
        if (status_ == Status::apart) {
          u = take_apart(u, from, to);
          continue;
        }
        if (u == n_) break;
        if (sent_as_before(static_cast<std::size_t>(u), to, lap)) return true;
        std::swap(from, to);
        ++u;
      }
      if (lap >= 0 && from == assumed) return true;
    }
    return true;
  }

  // Whether a unit sent the same in the lap before; keeps it for the next one.
  bool sent_as_before(std::size_t unit, const Sent& sent, int lap) {
    if (unit >= kKept || unit > kept_sent_.size()) return false;
    if (unit == kept_sent_.size()) kept_sent_.push_back({Sent(chains_), lap});
    auto& [known, of_lap] = kept_sent_[unit];
    const bool all_known = status_ == Status::goes;  // of a unit in the band it is not
    if (all_known && of_lap < lap && known == sent) return true;
    of_lap = lap;
    numbers_ -= known.size();
    known = all_known && numbers_ + sent.size() <= kMostSent ? sent : Sent(chains_);
    numbers_ += known.size();
    return false;
  }

  [[nodiscard]] std::int64_t place(std::int64_t round) const { return round - unit_ * group_; }

  // All rounds of a unit in a slice, or those before it joins the band, or those before the band is to be taken apart.
  void visit(std::int64_t unit, Sent& from, Sent& to) {
    unit_ = unit;
    from_ = &from;
    shift_ = unit == 0 ? lengths_.all() : 0;  // the last unit is before the first
    came_.resize(chains_);
    look_ahead_ = kLeastAhead;
    round_ = 0;
    const auto found = put_off_.find(unit);
    again_ = false;
    if (found != put_off_.end()) {
      again_ = found->second.was_in_band;
      state_ = std::move(found->second.state);
      round_ = found->second.round;
      to = std::move(found->second.sent);
      put_off_.erase(found);
    } else {
      begin(to);
    }
    SentReader reader(from, shift_);
    for (std::size_t w = 0; w < works_.size(); ++w) {
      if (round_ >= works_[w].end || works_[w].begin >= works_[w].end) continue;
      pass_to(works_[w].begin, round_, reader, to);
      work(w, round_, reader, to);
    }
    pass_to(units_.messages - 1, round_, reader, to);
    if (status_ == Status::goes && round_ < units_.messages) {
      if (!pull(place(round_))) return;
      reader.take(place(round_), came_);
      ends(unit, place(round_), state_, came_);
      round_ = units_.messages;
    }
    if (status_ == Status::goes) let_go();
  }

  void begin(Sent& to) {
    const auto at = static_cast<std::size_t>(unit_);
    state_.assign(state_of(states_, at), state_of(states_, at) + units_.words);
    to.clear(place(-group_));
    for (std::size_t g = 0; g < units_.group; ++g) {
      std::copy_n(starts_of(starts_, at) + g * chains_, chains_, came_.begin());
      send(to);
    }
  }

  // The last message of a slice comes to a unit.
  void ends(std::int64_t unit, std::int64_t place, Column state, const Column& came) {
    const auto at = static_cast<std::size_t>(unit);
    units_.end(at, slice_, lengths_.at(place), state.data(), came.data(), starts_of(next_starts_, at), out_);
    std::ranges::copy(state, state_of(next_states_, at));
  }

  // A message more through the band, to the unit behind it.
  bool follow() {
    const std::int64_t before = out_.rounds;
    const Band::Done done = band_->follow(*from_, before + std::max<std::int64_t>(allowed_ - spent_, 0) / kOfBand);
    spent_ += kOfBand * (out_.rounds - before);
    if (done == Band::Done::too_much) status_ = Status::too_much;
    if (done == Band::Done::ended) ends(band_->first() + band_->size(), band_->place() - 1, band_->state(), band_->came());
    if (status_ == Status::goes && !band_->empty() && (band_->in_vain() || band_->is_worth_a_look())) status_ = Status::apart;
    return status_ == Status::goes;
  }

  // Whether all messages up to a place of this unit have come out of the band.
  bool pull(std::int64_t place) {
    while (!band_->empty() && band_->place() <= place)
      if (!follow()) return false;
    return true;
  }

  // All that there are.
  void let_go() {
    while (!band_->empty() && follow()) continue;
  }

  // A unit that has waited for messages for long joins the band that ends before it, or begins one.
  void join(std::int64_t round) {
    if (!band_->empty()) {
      const std::int64_t ahead = band_->place() - place(round);
      if (ahead == 0 && band_->first() + band_->size() == unit_) {
        band_->push(state_.data());
        status_ = Status::joined;
        return;
      }
      if (ahead <= kFarAhead) return;
      let_go();
      if (status_ != Status::goes) return;
    }
    band_->begin(unit_, place(round), state_.data(), std::move(*from_), shift_, again_);
    status_ = Status::joined;
  }

  // Units of the band go on in their own time: the first of them, to be visited again. unit: that behind them, which is put off, too.
  std::int64_t take_apart(std::int64_t unit, Sent& from, Sent& to) {
    const std::int64_t first = band_->first(), place = band_->place(), behind = first + band_->size();
    if (unit < n_) put_off_.insert_or_assign(unit, PutOff{round_, state_, std::move(to), again_});
    Sent before(chains_), none(chains_);
    none.clear(place);
    const Column states = band_->take_apart(before);
    for (std::int64_t u = first; u < unit; ++u) {
      std::int64_t& patience = patience_[static_cast<std::size_t>(u)];
      if (band_->in_vain()) patience *= 2;
      const auto state = states.begin() + (std::min(u, behind - 1) - first) * static_cast<std::int64_t>(units_.words);
      const std::int64_t round = u < behind ? place + u * group_ : units_.messages;
      Column left(state, state + static_cast<std::int64_t>(units_.words));
      put_off_.insert_or_assign(u, PutOff{round, std::move(left), u == unit - 1 ? std::move(from) : none, true});
    }
    from = std::move(before);
    return first;
  }

  // What goes on; of a chain that takes no part in this slice nothing is waited for.
  void send(Sent& to) {
    for (std::size_t c = 0; c < chains_; ++c)
      if (slice_ >= in_.slices[c]) came_[c] = 0;
    to.push(came_.data());
  }

  // Round by round to that one.
  void pass_to(std::int64_t end, std::int64_t& round, SentReader& reader, Sent& to) {
    for (; round < end && status_ == Status::goes; ++round, ++spent_, ++out_.rounds) {
      if (spent_ > allowed_) status_ = Status::too_much;
      if (!pull(place(round)) || status_ != Status::goes) return;
      reader.take(place(round), came_);
      units_.pass(static_cast<std::size_t>(unit_), round, lengths_.at(place(round)), state_.data(), came_.data());
      if (round < units_.messages - group_) send(to);
    }
  }

  // The rounds of a kind of work.
  void work(std::size_t w, std::int64_t& round, SentReader& reader, Sent& to) {
    const Reference* const own = reference(w);
    before_.clear();
    std::int64_t pause = 0, next_pause = 1, since = round;
    for (std::int64_t end = works_[w].end; round < end && status_ == Status::goes;) {
      const std::int64_t ahead = own ? (stride_ - (place(round) - own->begin()) % stride_) % stride_ : end;
      pass_to(std::min(end, round + ahead), round, reader, to);
      if (round >= end || !own || status_ != Status::goes) continue;
      if (pause > 0) {
        --pause;
      } else if (const std::int64_t far = go_on(w, *own, round, reader, to); far > 0) {
        since = round += far;
        next_pause = 1;
        continue;
      } else if (before_.empty()) {  // they came back, but not for long
        pause = next_pause;
        next_pause = std::min(2 * next_pause, kLongestPause);
      }
      if (round - since >= patience_[static_cast<std::size_t>(unit_)] && units_.most == 1) join(round);
      pass_to(std::min(end, round + 1), round, reader, to);
    }
  }

  // How many rounds are gone over, since offsets from the reference come back and nobody waits for a message.
  std::int64_t go_on(std::size_t w, const Reference& own, std::int64_t round, SentReader& reader, Sent& to) {
    const std::int64_t end = works_[w].end;
    const auto& words = own.words();
    const std::int64_t* const plain = own.state(place(round));
    offsets_.resize(words.size());
    for (std::size_t i = 0; i < words.size(); ++i) offsets_[i] = state_[words[i]] - plain[i];
    const auto known = std::ranges::find(before_, offsets_);
    const std::int64_t period = (known - before_.begin() + 1) * stride_;
    const bool seen = known != before_.end();
    before_.push_front(offsets_);
    if (before_.size() > kLongest) before_.pop_back();
    if (!seen || round + period > end) return 0;
    before_.clear();
    if (!units_.all_entered(static_cast<std::size_t>(unit_), state_.data()) || !comes_back(own, round, period)) return 0;
    const std::int64_t ahead = std::max(place(round) + std::max(4 * period, look_ahead_), band_->place());
    const std::int64_t last = band_->empty() ? place(end) : std::min(place(end), ahead);
    const bool pulls = !band_->empty() && last > band_->place();
    if (!pull(last - 1)) return 0;
    const std::int64_t late = first_late(own, place(round), last, period), until = late - (own.asks() ? 0 : kToFollow);
    if (pulls && late == last) look_ahead_ = std::min(2 * look_ahead_, kMostAhead);
    const std::int64_t far = (until - place(round)) / period * period;
    if (far < 2 * period) return 0;
    const std::int64_t* const there = own.state(place(round + far));
    for (std::size_t i = 0; i < words.size(); ++i) state_[words[i]] = there[i] + offsets_[i];
    if (!own.asks()) {
      units_.forget(static_cast<std::size_t>(unit_), state_.data());
    } else if (!works_[w].adds) {  // the clock of a first station is when the last message came
      reader.take(place(round + far) - 1, came_);
      for (std::size_t c = 0; c < chains_; ++c) state_[c * units_.stations] = std::max(state_[c * units_.stations], came_[c]);
    }
    to.push(own, far, goes_offsets_);
    out_.jumped += far;
    return far;
  }

  // Whether the offsets of so many rounds come back, whatever lengths messages have; notes those of when messages are needed, and of when they go.
  // Where memories are not asked for they are known after a round.
  bool comes_back(const Reference& own, std::int64_t round, std::int64_t period) {
    const auto& words = own.words();
    mine_.of = state_;
    plain_.of.assign(units_.words, 0);
    for (std::size_t i = 0; i < words.size(); ++i) plain_.of[words[i]] = own.state(place(round))[i];
    for (Alone* each : {&mine_, &plain_}) each->resize(units_.most_gaps(), chains_, units_.stations);
    goes_offsets_.clear();
    needed_offsets_.clear();
    for (std::int64_t i = 0; i < period; ++i) {
      const std::size_t gaps = pass_both(own, round + i);
      if (!keeps(own, gaps, i > 0)) return false;
      for (std::size_t c = 0; c < chains_; ++c) {
        if (i == 0 && slice_ < in_.slices[c] && state_[c * units_.stations] > mine_.needed[c]) return false;
        goes_offsets_.push_back(mine_.goes[c] - plain_.goes[c]);
        needed_offsets_.push_back(mine_.needed[c] - plain_.needed[c]);
      }
    }
    for (std::size_t i = 0; i < words.size(); ++i)
      if (mine_.of[words[i]] - plain_.of[words[i]] != offsets_[i]) return false;
    return own.asks() || keeps(own, pass_both(own, round + period), true);
  }

  // A round of this unit and of the reference; how many maxima there were.
  std::size_t pass_both(const Reference& own, std::int64_t round) {
    spent_ += 2;
    for (Alone* each : {&mine_, &plain_})
      each->last = units_.pass_alone(static_cast<std::size_t>(unit_), round, lengths_.at(place(round)), each->of.data(),
                                     {each->goes.data(), each->needed.data(), each->gaps.data(), own.asks() ? nullptr : each->memory_gaps.data()});
    return static_cast<std::size_t>(mine_.last - mine_.gaps.data());
  }

  [[nodiscard]] bool keeps(const Reference& own, std::size_t gaps, bool is_memory_known) const {
    for (std::size_t i = 0; i < gaps; ++i)
      if (!own.keeps(i, mine_.gaps[i] - plain_.gaps[i])) return false;
    for (std::size_t i = 0; i < mine_.memory_gaps.size() && !own.asks(); ++i)
      if (is_memory_known ? !own.keeps_memory(i, mine_.memory_gaps[i] - plain_.memory_gaps[i]) : mine_.memory_gaps[i] > 0) return false;
    return true;
  }

  // The first of these places at which a message may be waited for.
  std::int64_t first_late(const Reference& own, std::int64_t begin, std::int64_t end, std::int64_t period) {
    for (const Sent::Piece& piece : from_->pieces()) {
      const std::int64_t from = std::max(begin, piece.begin + shift_), to = std::min(end, piece.end + shift_);
      if (from >= to) continue;
      const bool many = piece.reference && shift_ == 0 && to - from > 2 * Lags::kBlock;
      const std::int64_t late = many ? first_late_block(own, piece, begin, from, to, period) : first_late_place(own, piece, begin, from, to, period);
      if (late < to) return late;
    }
    return end;
  }

  std::int64_t first_late_place(const Reference& own, const Sent::Piece& piece, std::int64_t begin, std::int64_t from, std::int64_t to, std::int64_t period) {
    spent_ += (to - from) / 8;
    for (std::int64_t at = from; at < to; ++at) {
      const std::int64_t* const offsets = needed_offsets_.data() + static_cast<std::size_t>((at - begin) % period) * chains_;
      for (std::size_t c = 0; c < chains_; ++c)
        if (from_->comes(piece, at - shift_, c) > own.needed(at, c) + offsets[c]) return at;
    }
    return to;
  }

  std::int64_t first_late_block(const Reference& own, const Sent::Piece& piece, std::int64_t begin, std::int64_t from, std::int64_t to, std::int64_t period) {
    const Lags& lags = lags_.try_emplace({piece.reference, &own}, *piece.reference, own, chains_, stride_).first->second;
    find_most(lags, piece, begin, period);
    bool early = true;
    for (std::size_t c = 0; c < chains_ && early; ++c) early = lags.most(from, to - 1, c) <= most_[c];
    if (early) return to;
    while (from < to) {
      const std::int64_t until = std::min(to, lags.block_end(from));
      if (!lags.in_block(from, most_by_phase_))
        if (const std::int64_t late = first_late_place(own, piece, begin, from, until, period); late < until) return late;
      from = until;
    }
    return to;
  }

  // Lags with which no message is waited for: of all places, and of phases, which offsets may tell apart.
  void find_most(const Lags& lags, const Sent::Piece& piece, std::int64_t begin, std::int64_t period) {
    needed_least_.assign(static_cast<std::size_t>(stride_) * chains_, std::numeric_limits<std::int64_t>::max());
    goes_most_.assign(needed_least_.size(), std::numeric_limits<std::int64_t>::min());
    for (std::size_t c = 0; c < chains_; ++c) {
      for (std::int64_t i = 0; i < period; ++i) {
        std::int64_t& least = needed_least_[lags.phase(begin + i) * chains_ + c];
        least = std::min(least, needed_offsets_[static_cast<std::size_t>(i) * chains_ + c]);
      }
      for (std::int64_t row = 0; row < piece.period; ++row) {
        std::int64_t& most = goes_most_[lags.phase(piece.begin + row) * chains_ + c];
        most = std::max(most, from_->offset(piece, row, c));
      }
    }
    most_.assign(chains_, std::numeric_limits<std::int64_t>::max());
    most_by_phase_.resize(needed_least_.size());
    for (std::size_t i = 0; i < needed_least_.size(); ++i) most_by_phase_[i] = needed_least_[i] - goes_most_[i];
    for (std::size_t i = 0; i < needed_least_.size(); ++i) most_[i % chains_] = std::min(most_[i % chains_], most_by_phase_[i]);
  }

  const Reference* reference(std::size_t w) {
    const auto at = static_cast<std::size_t>(unit_);
    const std::size_t kind = units_.kind_alone[at];
    if (alike_[kind] < kFewest) return nullptr;
    auto& known = references_[kind * works_.size() + w];
    if (!known) {
      if (kept_ > kMostKept) return nullptr;
      const bool may_not_ask = works_[w].adds && units_.memories_follow(at);
      if (may_not_ask) known = std::make_unique<Reference>(units_, lengths_, at, works_[w], stride_, false);
      if (!known || !known->fits()) known = std::make_unique<Reference>(units_, lengths_, at, works_[w], stride_, true);
      kept_ += known->bytes();
      out_.rounds += known->end() - known->begin();
    }
    return known->fits() ? known.get() : nullptr;
  }

  const RingsInput& in_;
  RingsOutput& out_;
  FollowedUnits units_;
  const std::int64_t n_, group_;
  const std::size_t chains_;
  Lengths lengths_;
  std::vector<Work> works_;
  std::int64_t stride_ = 1, budget_ = 0, allowed_ = 0, spent_ = 0;  // rounds: in all, so far, and those that were evaluated (of the band kOfBand times)
  std::size_t kept_ = 0;                                // bytes of references
  std::vector<std::unique_ptr<Reference>> references_;  // by kind of unit and work
  std::vector<std::size_t> alike_;                      // units of each kind
  std::map<std::pair<const Reference*, const Reference*>, Lags> lags_;  // of a sender and a receiver

  Column states_, starts_, next_states_, next_starts_;  // of each unit before messages of others come to it, and when its own come to the next
  std::int64_t slice_ = 0, unit_ = 0, shift_ = 0;
  Sent* from_ = nullptr;
  struct Kept {
    Sent sent;
    int lap;
  };
  std::vector<Kept> kept_sent_;   // of the first units
  std::size_t numbers_ = 0;       // in these

  enum class Status : std::uint8_t { goes, joined, apart, too_much };  // of a visit: the unit joined the band, or the band is to be taken apart
  Status status_ = Status::goes;
  std::optional<Band> band_;      // units before this one that messages are followed through
  struct PutOff {
    std::int64_t round;
    Column state;
    Sent sent;
    bool was_in_band;
  };
  std::map<std::int64_t, PutOff> put_off_;  // units that are in the middle of their rounds, or done but for what they sent
  Column patience_;               // of each unit: rounds in which it waits before it joins the band
  std::int64_t look_ahead_ = kLeastAhead;
  bool again_ = false;            // the unit was in a band before
  std::int64_t round_ = 0;        // the next one of the unit
  Column state_, came_, offsets_;
  std::deque<Column> before_;  // offsets of the strides before, the last one first
  struct Alone {  // a state that goes on as if no message had to be waited for, and what is told of that
    Column of, goes, needed, gaps, memory_gaps;
    const std::int64_t* last = nullptr;  // behind the last of gaps

    void resize(std::size_t most_gaps, std::size_t chains, std::size_t stations) {
      gaps.resize(most_gaps);
      goes.assign(chains, 0);
      needed.assign(chains, 0);
      memory_gaps.assign(chains * stations, 0);
    }
  };
  Alone mine_, plain_;
  Column goes_offsets_, needed_offsets_;  // of a period, by place and chain
  Column most_, most_by_phase_, needed_least_, goes_most_;  // find_most
};

}  // namespace

RingsStatus own_time_rings(const RingsInput& in, RingsOutput& out) { return OwnTime(in, out).run(); }

}  // namespace ccl_lab::sim
