// One unit of a ring at work: its stations, its links, and the jump over rounds that repeat (rings.hpp says why that is exact).
//
// Is: the max-plus of one unit, a function of the messages that come in. Is not: the circle of units (rings.cpp). Invariant: what it sends
// and keeps is the same whether it jumps or not.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "busy.hpp"
#include "changes.hpp"
#include "path.hpp"
#include "rings.hpp"
#include "served.hpp"
#include "stream.hpp"

namespace ccl_lab::sim {

// What a station remembers between two messages.
struct Station {
  std::int64_t clock_ps = 0;
  std::int64_t batch = 0;
  std::int64_t left_ps = 0;  // when its last message had left
};

// What does not change about a station: the columns of RingsInput, together.
struct Post {
  std::int32_t memory = 0, a = 0, b = 0;
  bool ticks = false;
  std::int64_t latency_ps = 0, ready_ps = 0;
};

// The two sides of every maximum of some rounds, as differences.
class Choices {
 public:
  void clear() { used_ = 0; }
  void note(std::int64_t gap) {
    if (used_ == gaps_.size()) gaps_.resize(2 * used_ + 64);
    gaps_[used_++] = gap;
  }
  // How often the rounds from `before` to here can be repeated until a maximum changes its mind; -1 where one did between the two. What
  // that depends on is noted in `path`, if there is one.
  [[nodiscard]] std::int64_t repeats_since(const Choices& before, Path* path) const;
  void swap(Choices& other) {
    gaps_.swap(other.gaps_);
    std::swap(used_, other.used_);
  }

 private:
  std::vector<std::int64_t> gaps_;
  std::size_t used_ = 0;
};

// In which order a unit serves its chains, as far as the order of rounds and stations does not say (rings.hpp).
struct Manner {
  bool together = false;  // puts of one batch take turns before any of them begins, as where rings come to a rank by different ways
  bool together_at_first = false;  // only of what is sent before a message comes in
};

class Unit {
 public:
  // period: rounds after which all may repeat, a multiple of the messages under way; 0: as many as those. one_state: what a unit remembers
  // is forgotten when another one begins.
  Unit(const RingsInput& in, const RingsOutput& out, Manner manner = {}, std::int64_t period = 0, bool one_state = false);

  // What can be done before a message comes in. `sent`: one stream per chain.
  RingsStatus begin(std::int64_t unit, std::vector<Stream>& sent);
  // The same, where it does what another unit did, which has begun: with the same links, each of its rows as many rows on as all others.
  void begin_like(std::int64_t unit, std::int64_t other);
  // All rounds for which `received` has messages.
  RingsStatus visit(std::int64_t unit, const std::vector<Stream>& received, std::vector<Stream>& sent);

  [[nodiscard]] bool all_done() const { return std::all_of(round_.begin(), round_.end(), [&](auto at) { return at == rounds_; }); }
  void finish() const;  // into the output

  // What lasts from visit to visit: words of a unit's state, and its next round. For runs.hpp, which also wants to know what decided about a
  // visit, and which slices ended in it (places in the output, from that of the unit on).
  [[nodiscard]] std::size_t words() const { return static_cast<std::size_t>(words_); }
  [[nodiscard]] std::int64_t* state_of(std::int64_t unit) { return states_.data() + (one_state_ ? 0 : unit * words_); }
  [[nodiscard]] std::int64_t& round_of(std::int64_t unit) { return round_[static_cast<std::size_t>(unit)]; }
  [[nodiscard]] const std::vector<std::size_t>& ended() const { return ended_; }
  // Where it becomes longer than `most` it is given up.
  void note_in(Path* path, std::size_t most = std::numeric_limits<std::size_t>::max()) {
    path_ = path;
    most_noted_ = most;
  }
  [[nodiscard]] std::int64_t period() const { return period_; }

  std::int64_t evaluated = 0, jumped = 0;

 private:
  struct At {  // a message at a station
    std::int64_t chain, station, slice, message;
    Station* state;
    Post* post;
  };

  void select(std::int64_t unit);
  [[nodiscard]] At at(std::int64_t chain, std::int64_t station, std::int64_t slice, std::int64_t message);
  void round(std::vector<Stream>& sent);
  void handle(const At& at, const Message& message, std::vector<Stream>& sent);
  void wait(Station& station, const Message& message);
  void send_first(At at, std::vector<Stream>& sent);
  void slice_ends(const At& at, std::vector<Stream>& sent);
  void reduce(const At& at);
  void add_own(At at);
  void copy_own(const At& at);
  void send(const At& at, std::vector<Stream>& sent);
  void leave(const At& at, std::vector<Stream>& sent);
  void put_together(std::vector<Stream>& sent);
  void take_turns(std::size_t first, std::size_t last);
  void warm_up(std::vector<Stream>& sent);
  void enter_slice(const At& at);

  bool jump(std::vector<Stream>& sent);
  void watch();
  [[nodiscard]] bool repeat(std::int64_t repeats);
  void pass_on(std::int64_t repeats, bool once, std::vector<Stream>& sent);
  [[nodiscard]] bool steady();
  [[nodiscard]] bool shifted();
  [[nodiscard]] bool at_work(std::size_t chain);
  [[nodiscard]] std::int64_t rounds_alike();
  [[nodiscard]] std::int64_t periods(std::int64_t rounds) {
    if (path_ && period_ > 1) path_->quotient(rounds, period_);
    return rounds / period_;
  }
  [[nodiscard]] std::int64_t larger(std::int64_t a, std::int64_t b) {
    if (noting_) choices_.note(a - b);
    return decides(a - b) > 0 ? a : b;
  }
  // Counts; where nothing was counted yet, `a` is kAlways.
  [[nodiscard]] std::int64_t lesser(std::int64_t a, std::int64_t b) {
    if (a != Path::kAlways) decides(a - b);
    return std::min(a, b);
  }
  std::int64_t decides(std::int64_t value) {
    if (path_) path_->sign(value);
    return value;
  }
  [[nodiscard]] bool differ(std::int64_t a, std::int64_t b) { return decides(a - b) != 0; }
  [[nodiscard]] std::int64_t tick_of(std::int64_t batch) {
    if (path_) path_->fixed(batch & ((std::int64_t{1} << kPlaceBits) - 1));
    return batch >> kPlaceBits;
  }
  void note_slice(std::int64_t round);
  void stop_noting(std::vector<Stream>& sent);
  [[nodiscard]] std::int64_t through(const At& at, std::int32_t link, std::int64_t start_ps, std::int64_t busy_ps, std::int64_t bytes_per_s);
  void note_order(const Served& a, const Served& b, std::int64_t batch, std::int64_t op);
  void occupy(Served& a, Served& b, std::int64_t batch, std::int64_t op);

  [[nodiscard]] std::size_t slot(std::int64_t chain, std::int64_t slice) const {
    return static_cast<std::size_t>(chain * most_slices_ + slice);
  }
  [[nodiscard]] std::size_t slot_of_unit(const At& at) const {
    return static_cast<std::size_t>(unit_ * in_.chains * most_slices_) + slot(at.chain, at.slice);
  }
  [[nodiscard]] Served& link(std::int32_t id) { return links_of_unit_[id]; }
  void keep_busy(std::int64_t unit);
  [[nodiscard]] const Busy& busy(const At& at);
  [[nodiscard]] std::int64_t bytes_of(const At& at) const;
  [[nodiscard]] std::size_t kind_row(const At& at) const { return static_cast<std::size_t>(at.post - posts_.data()); }
  [[nodiscard]] std::int64_t op(const At& at, std::int64_t kind) const;
  // Between the stations of a unit; a message is read before the one `depth` after it is written.
  [[nodiscard]] Message& mail(std::int64_t chain, std::int64_t station, std::int64_t message) {
    const std::int64_t place = in_.depth == 1 ? 0 : message % in_.depth;
    return mail_[static_cast<std::size_t>((chain * in_.stations + station) * in_.depth + place)];
  }

  const RingsInput& in_;
  const RingsOutput& out_;
  // Messages of a chain in a slice; rounds in all; rounds after which stations are what they were; words of a unit's state.
  std::int64_t most_slices_ = 0, per_slice_, rounds_, period_, links_ = 0, words_, ops_per_group_ = 1;
  std::vector<std::int64_t> states_;  // of all units
  std::vector<std::int64_t> round_;   // per unit: the next one
  std::vector<Post> posts_;           // per station of each kind of unit
  Post* posts_of_unit_ = nullptr;
  struct Sizes {
    Busy last[2];
  };
  std::vector<Sizes> busy_;           // per station of a unit, of units with its rates: most have the same
  std::size_t busy_row_ = 0;
  Changes changes_;

  Path* path_ = nullptr;
  std::size_t most_noted_ = 0;
  std::vector<std::size_t> ended_;
  std::int64_t unit_ = 0;
  std::int64_t* state_ = nullptr;
  Station* stations_of_unit_ = nullptr;
  Served* links_of_unit_ = nullptr;
  struct Put {
    At at;
    Served *a, *b;
    std::int64_t batch, op, turn, served;  // served: turns that its links have given away before, one bit each
  };
  bool together_, together_at_first_, one_state_;
  std::vector<Put> puts_;      // of the batches that are being put together
  std::vector<Message> mail_;  // nothing is left in it after a round
  RingsStatus status_ = RingsStatus::ok;

  bool watching_ = false;  // for periods that are alike
  bool noting_ = false;    // the sides of maxima, too
  bool constant_ = false;  // a constant (when a peer enters, when a rate changes) mattered, since this began
  bool crossed_ = false;   // a rate changed under a message, since this began
  std::int64_t seen_ = 0, alike_ = 0;  // rounds since this began, and rounds from here on that do the same kind of work
  std::vector<std::int64_t> last_, change_, change_before_;
  std::vector<Reader> readers_;
  std::vector<Message> slopes_;
  Message shift_;  // of everything, in the last period
  std::vector<std::vector<Message>> sent_;  // per chain: messages of the last two periods
  Choices choices_, choices_before_;
};

}  // namespace ccl_lab::sim
