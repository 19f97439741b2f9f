// See own_time.hpp.
#include "own_time.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "followed_units.hpp"
#include "own_time_reference.hpp"
#include "own_time_sent.hpp"

namespace ccl_lab::sim {
namespace {

using Column = std::vector<std::int64_t>;

constexpr int kLaps = 3;                  // after which all messages are right
constexpr std::size_t kKept = 256;        // units whose messages of the lap before are kept, to be compared
constexpr std::size_t kMostSent = std::size_t{1} << 14;  // numbers of one, or they are not
constexpr std::size_t kMostKept = std::size_t{1} << 28;  // bytes of references from which on no more are made
constexpr std::size_t kFewest = 5;        // units that are alike for a reference to be less work than they are
constexpr std::int64_t kLeastStride = 8;  // rounds between two looks at the offsets
constexpr std::size_t kLongest = 8;       // period of offsets, in strides
constexpr std::int64_t kLongestPause = 64;  // strides without a look, where offsets do not come back

class OwnTime {
 public:
  OwnTime(const RingsInput& in, RingsOutput& out)
      : in_(in), out_(out), units_(in), n_(in.units), group_(static_cast<std::int64_t>(units_.group)), chains_(units_.chains) {}

  RingsStatus run() {
    if (!units_.fits() || !units_.memories_apart() || units_.messages > 2 * n_ * group_) return RingsStatus::bad_input;
    find_works();
    const std::int64_t all = n_ * in_.chains * in_.stations * units_.messages * units_.most;
    budget_ = std::clamp<std::int64_t>(all / 16, 1'000'000, 400'000'000) / (in_.chains * in_.stations);
    allowed_ = budget_ / 4 * 3;
    states_.resize(static_cast<std::size_t>(n_) * units_.words);
    starts_.resize(static_cast<std::size_t>(n_) * units_.group * chains_);
    for (std::size_t u = 0; u < units_.units; ++u) units_.begin(u, state_of(states_, u), starts_of(starts_, u));
    for (slice_ = 0; slice_ < units_.most; ++slice_) {
      enter();
      if (!circle()) return RingsStatus::bad_input;
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
    std::vector<Sent> kept(std::min(static_cast<std::size_t>(n_), kKept), from);
    for (int lap = 0; lap < kLaps; ++lap) {
      assumed = from;
      for (std::int64_t u = 0; u < n_; ++u) {
        allowed_ = std::min(budget_, allowed_ + budget_ / (n_ * units_.most) + 1);  // what takes too much work is known long before it is done
        if (!visit(u, from, to)) return false;
        if (const auto at = static_cast<std::size_t>(u); at < kept.size()) {
          if (lap > 0 && kept[at] == to) return true;
          kept[at] = to.size() > kMostSent ? Sent(chains_) : to;
        }
        std::swap(from, to);
      }
      if (from == assumed) return true;
    }
    return true;
  }

  [[nodiscard]] std::int64_t place(std::int64_t round) const { return round - unit_ * group_; }

  // All rounds of a unit in a slice. False where that is too much work.
  bool visit(std::int64_t unit, const Sent& from, Sent& to) {
    unit_ = unit;
    from_ = &from;
    shift_ = unit == 0 ? lengths_.all() : 0;  // the last unit is before the first
    const auto at = static_cast<std::size_t>(unit);
    state_.assign(state_of(states_, at), state_of(states_, at) + units_.words);
    came_.resize(chains_);
    to.clear(place(-group_));
    for (std::size_t g = 0; g < units_.group; ++g) {
      std::copy_n(starts_of(starts_, at) + g * chains_, chains_, came_.begin());
      send(to);
    }
    SentReader reader(from, shift_);
    std::int64_t round = 0;
    for (std::size_t w = 0; w < works_.size(); ++w) {
      if (works_[w].begin >= works_[w].end) continue;
      pass_to(works_[w].begin, round, reader, to);
      work(w, round, reader, to);
    }
    pass_to(units_.messages - 1, round, reader, to);
    if (spent_ > allowed_) return false;
    reader.take(place(round), came_);
    units_.end(at, slice_, lengths_.at(place(round)), state_.data(), came_.data(), starts_of(next_starts_, at), out_);
    std::ranges::copy(state_, state_of(next_states_, at));
    return true;
  }

  // What goes on; of a chain that takes no part in this slice nothing is waited for.
  void send(Sent& to) {
    for (std::size_t c = 0; c < chains_; ++c)
      if (slice_ >= in_.slices[c]) came_[c] = 0;
    to.push(came_.data());
  }

  // Round by round to that one.
  void pass_to(std::int64_t end, std::int64_t& round, SentReader& reader, Sent& to) {
    for (; round < end && spent_ <= allowed_; ++round, ++spent_, ++out_.rounds) {
      reader.take(place(round), came_);
      units_.pass(static_cast<std::size_t>(unit_), round, lengths_.at(place(round)), state_.data(), came_.data());
      if (round < units_.messages - group_) send(to);
    }
  }

  // The rounds of a kind of work.
  void work(std::size_t w, std::int64_t& round, SentReader& reader, Sent& to) {
    const Reference* const own = reference(w);
    before_.clear();
    std::int64_t pause = 0, next_pause = 1;
    for (std::int64_t end = works_[w].end; round < end && spent_ <= allowed_;) {
      const std::int64_t ahead = own ? (stride_ - (place(round) - own->begin()) % stride_) % stride_ : end;
      pass_to(std::min(end, round + ahead), round, reader, to);
      if (round >= end || !own || spent_ > allowed_) continue;
      if (pause > 0) {
        --pause;
      } else if (const std::int64_t far = go_on(w, *own, round, reader, to); far > 0) {
        round += far;
        next_pause = 1;
        continue;
      } else if (before_.empty()) {  // they came back, but not for long
        pause = next_pause;
        next_pause = std::min(2 * next_pause, kLongestPause);
      }
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
    const std::int64_t until = first_late(own, place(round), place(end), period);
    const std::int64_t far = (until - place(round)) / period * period;
    if (far < 2 * period) return 0;
    const std::int64_t* const there = own.state(place(round + far));
    for (std::size_t i = 0; i < words.size(); ++i) state_[words[i]] = there[i] + offsets_[i];
    if (!works_[w].adds) {  // the clock of a first station is when the last message came
      reader.take(place(round + far) - 1, came_);
      for (std::size_t c = 0; c < chains_; ++c) state_[c * units_.stations] = std::max(state_[c * units_.stations], came_[c]);
    }
    to.push(own, far, goes_offsets_);
    out_.jumped += far;
    return far;
  }

  // Whether the offsets of so many rounds come back, whatever lengths messages have; notes those of when messages are needed, and of when they go.
  bool comes_back(const Reference& own, std::int64_t round, std::int64_t period) {
    const auto at = static_cast<std::size_t>(unit_);
    const auto& words = own.words();
    mine_ = state_;
    plain_.assign(units_.words, 0);
    for (std::size_t i = 0; i < words.size(); ++i) plain_[words[i]] = own.state(place(round))[i];
    for (Column* column : {&gaps_, &plain_gaps_}) column->resize(units_.most_gaps());
    for (Column* column : {&goes_, &plain_goes_, &needed_, &plain_needed_}) column->assign(chains_, 0);
    goes_offsets_.clear();
    needed_offsets_.clear();
    for (std::int64_t i = 0; i < period; ++i) {
      const std::uint8_t* const size = lengths_.at(place(round + i));
      const std::int64_t* const last = units_.pass_alone(at, round + i, size, mine_.data(), goes_.data(), needed_.data(), gaps_.data());
      units_.pass_alone(at, round + i, size, plain_.data(), plain_goes_.data(), plain_needed_.data(), plain_gaps_.data());
      spent_ += 2;
      for (std::size_t gap = 0; gap < static_cast<std::size_t>(last - gaps_.data()); ++gap)
        if (!own.keeps(gap, gaps_[gap] - plain_gaps_[gap])) return false;
      for (std::size_t c = 0; c < chains_; ++c) {
        if (i == 0 && slice_ < in_.slices[c] && state_[c * units_.stations] > needed_[c]) return false;
        goes_offsets_.push_back(goes_[c] - plain_goes_[c]);
        needed_offsets_.push_back(needed_[c] - plain_needed_[c]);
      }
    }
    for (std::size_t i = 0; i < words.size(); ++i)
      if (mine_[words[i]] - plain_[words[i]] != offsets_[i]) return false;
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
    const Lags& lags = lags_.try_emplace({piece.reference, &own}, *piece.reference, own, chains_).first->second;
    Column most(chains_);
    for (std::size_t c = 0; c < chains_; ++c) {
      std::int64_t least = needed_offsets_[c];
      for (std::size_t i = c; i < needed_offsets_.size(); i += chains_) least = std::min(least, needed_offsets_[i]);
      most[c] = least - from_->latest(piece, c);
    }
    const auto all = [&](const auto& is_good) {
      for (std::size_t c = 0; c < chains_; ++c)
        if (!is_good(c)) return false;
      return true;
    };
    if (all([&](std::size_t c) { return lags.most(from, to - 1, c) <= most[c]; })) return to;
    while (from < to) {
      const std::int64_t until = std::min(to, lags.block_end(from));
      if (!all([&](std::size_t c) { return lags.in_block(from, c) <= most[c]; }))
        if (const std::int64_t late = first_late_place(own, piece, begin, from, until, period); late < until) return late;
      from = until;
    }
    return to;
  }

  const Reference* reference(std::size_t w) {
    const auto at = static_cast<std::size_t>(unit_);
    const std::size_t kind = units_.kind_alone[at];
    if (alike_[kind] < kFewest) return nullptr;
    auto& known = references_[kind * works_.size() + w];
    if (!known) {
      if (kept_ > kMostKept) return nullptr;
      known = std::make_unique<Reference>(units_, lengths_, at, works_[w], stride_);
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
  std::int64_t stride_ = 1, budget_ = 0, allowed_ = 0, spent_ = 0;  // rounds: in all, so far, and those that were evaluated
  std::size_t kept_ = 0;                                // bytes of references
  std::vector<std::unique_ptr<Reference>> references_;  // by kind of unit and work
  std::vector<std::size_t> alike_;                      // units of each kind
  std::map<std::pair<const Reference*, const Reference*>, Lags> lags_;  // of a sender and a receiver

  Column states_, starts_, next_states_, next_starts_;  // of each unit before messages of others come to it, and when its own come to the next
  std::int64_t slice_ = 0, unit_ = 0, shift_ = 0;
  const Sent* from_ = nullptr;
  Column state_, came_, offsets_;
  std::deque<Column> before_;  // offsets of the strides before, the last one first
  Column mine_, plain_, gaps_, plain_gaps_, goes_, plain_goes_, needed_, plain_needed_;
  Column goes_offsets_, needed_offsets_;  // of a period, by place and chain
};

}  // namespace

RingsStatus own_time_rings(const RingsInput& in, RingsOutput& out) { return OwnTime(in, out).run(); }

}  // namespace ccl_lab::sim
