// Units of merged rings at work (merged.hpp): what they remember, how they serve batch by batch, and the jump over batches that repeat.
//
// Is: the parts of a unit, one after the other: a part is chains that meet in a link of it. Is not: the choice whether rings are merged.
// Invariant: times are the same whether a part jumps or not.
//
// Jump. When a message is seen follows from the message alone, so in what order a part serves is a merge of the ticks at which its chains'
// messages are seen. Where each chain has a loop of messages ahead, later by so many ticks a period, all of that repeats after the least
// common multiple of those ticks, and a window of that length is to a part what rounds are to a unit of rings.hpp: if in two windows in a row
// the same ops were served in the same turns, every maximum chose alike, and all numbers changed by the same, they go on doing so, until a
// maximum changes its mind, a loop ends, or a chain comes to other work.
//
// Passing on. In most units nothing waits: messages leave as much later as the unit takes for each, and come to the next unit as they came to
// this one, but for one shift. So if that one has the same links and rates, nothing waits there either: what a stretch of messages that
// passed through the unit before finds is known, and it is passed on as it is, later by that shift (merged_pass.cpp).
//
// What is neither jumped over nor passed on goes through a short loop as long as one chain alone has anything to do at a tick (merged_alone.cpp).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "changes.hpp"
#include "merged.hpp"
#include "rings.hpp"
#include "tape.hpp"
#include "unit.hpp"

namespace ccl_lab::sim {

class Merged {
 public:
  Merged(const RingsInput& in, RingsOutput& out);

  [[nodiscard]] RingsStatus run();

 private:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  enum class Next : std::uint8_t { message, reduce, send, nothing };

  struct Chain {
    Next next = Next::message;
    std::int64_t slice = 0, message = -1;  // -1: what is sent before the first one
    std::int64_t batch = 0;                // of its next op; of its last one where it waits for a message
    std::int64_t clock_ps = 0, left_ps = 0;
  };

  struct Link {
    std::int64_t free_ps = 0, free_tick = 0;
  };

  struct Due {
    std::int64_t op;
    std::size_t chain;
    int turn;
  };

  // How long messages take at these rates, of the last ones that were asked for.
  struct Known {
    std::array<std::int64_t, 3> rates{};
    Busy busy;
  };

  // Chains of a unit that meet in its links, and those links.
  struct Part {
    std::vector<std::size_t> chains, links;
  };

  // What a chain does in a window.
  struct Loop {
    std::size_t chain;
    std::int64_t messages;           // that come in a window
    std::int64_t border;             // the message from which on it does another kind of work
    std::int64_t end;                // the message that is no longer one of its loop
    std::vector<Seen> sent, before;  // in the window, and in the one before
  };

  // A chain of the part at work, and all that it needs while messages go by.
  struct Post {
    Chain* chain;
    Link *memory, *a, *b;
    Tape *inbox, *sent;
    std::size_t place;
    std::int64_t latency_ps, ready_ps;
    Busy busy;
    Seen* in_hand;
  };

  // Messages that passed through a part without waiting, each of them so much later than it came. By chain of the part: from which message to
  // which one that was sent.
  struct Stretch {
    Seen later;
    std::vector<std::int64_t> from, to;
    std::int64_t breaks = 0;  // how many stretches there were before
  };

  // How far messages of a stretch can be passed on in a unit.
  struct Passing {
    std::int64_t count, add_ps;  // from the one in hand on
    Seen in_hand;
  };

  void find_parts();
  void begin(std::size_t unit);
  void visit(std::size_t unit, const std::vector<std::int64_t>& promised, std::vector<Tape>& received, std::vector<Tape>& sent);
  void serve_batches(const Part& part, const std::vector<std::int64_t>& promised, std::vector<Tape>& sent);
  void serve_batch(std::int64_t batch, const Part& part, std::vector<Tape>& sent);
  void serve(std::size_t chain, std::vector<Tape>& sent);
  void serve_alone(std::size_t chain, std::vector<Tape>& sent);
  void keep_posts(const Part& part, std::vector<Tape>& sent);
  [[nodiscard]] std::int64_t serve_each_alone(std::int64_t bound, std::int64_t most);
  [[nodiscard]] bool serve_message(const Post& post);
  // Whether times or places of batches no longer fit.
  [[nodiscard]] bool fails(const Chain& chain, std::int64_t arrive_ps, std::int64_t leaves) {
    const bool fits = arrive_ps <= kLatest && leaves <= kLastTick && (chain.batch & (kPlaces - 1)) <= kPlaces - 8;
    if (!fits) status_ = RingsStatus::overflow;
    return !fits;
  }
  [[nodiscard]] bool too_many();

  // Passing on (merged_pass.cpp).
  void watch_stretches(const Part& part);
  [[nodiscard]] bool meets_stretch() const { return at_ != nullptr && before_ < passed_before_.size() && next_ < passed_before_[before_].size(); }
  void begin_stretch(const Part& part);
  void end_stretch(const Part& part);
  void waited(std::size_t chain, const Seen& later);
  [[nodiscard]] bool pass(std::int64_t bound, const Part& part, const std::vector<std::int64_t>& promised, std::vector<Tape>& sent);
  [[nodiscard]] Passing passing(std::size_t chain, std::size_t place, const Stretch& stretch);
  [[nodiscard]] bool all_free(std::int64_t begin_ps, std::int64_t tick, const Part& part) const;
  void pass_chain(std::size_t chain, const Passing& each, const Seen& later, Tape& sent);
  [[nodiscard]] std::size_t part_before(const Part& part) const;
  [[nodiscard]] std::int64_t sends(std::size_t chain) const;
  [[nodiscard]] std::int64_t reads(std::size_t chain) const;
  [[nodiscard]] std::int64_t here(std::size_t chain) const;
  [[nodiscard]] Seen least_later(std::size_t chain);
  // Whether a message waits for anything is told by how much later it leaves than it came.
  void note_sent(std::size_t chain, const Seen& message) {
    if (at_ == nullptr) return;
    const Seen later = message - in_hand_[chain];
    if (!(later == stretch_.later) || (state_[row(chain)].batch & (kPlaces - 1)) > 2) waited(chain, later);
  }
  void promise(std::vector<std::int64_t>& promised);
  // A channel comes to a wait: it goes on when the message has been seen, and not before the op before it.
  void wait(Chain& chain, std::int64_t arrive_ps, std::int64_t tick, std::int64_t batch) {
    chain.batch = std::max(std::max(chain.batch >> kPlaceBits, tick) << kPlaceBits, std::max(chain.batch, batch) + 1);
    chain.clock_ps = larger(chain.clock_ps, arrive_ps);
  }
  void receive(std::size_t chain);
  void after_reduce(std::size_t chain);
  void end_slice(std::size_t chain);
  void enter_slice(std::size_t chain);
  void reduce(std::size_t chain);
  void send(std::size_t chain, Tape& sent);
  void line_up();
  void keep_busy();
  [[nodiscard]] const Busy& busy(std::size_t chain);
  [[nodiscard]] std::int64_t through(std::int32_t link, std::int64_t start_ps, std::int64_t busy_ps, std::int64_t bytes, std::int64_t bytes_per_s) const;
  [[nodiscard]] std::int64_t bytes_of(std::size_t chain) const;
  [[nodiscard]] std::int64_t op_of(std::size_t chain) const;
  void at_unit(std::size_t unit) {
    unit_ = unit;
    kind_row_ = static_cast<std::size_t>(in_.kind_row(static_cast<std::int64_t>(unit)));
  }
  [[nodiscard]] std::size_t row(std::size_t chain) const { return unit_ * chains_ + chain; }
  [[nodiscard]] std::size_t kind_row(std::size_t chain) const { return kind_row_ + chain; }  // in columns that are told by kind of unit
  [[nodiscard]] std::size_t slot(std::size_t chain) const {
    return chain * slices_ + static_cast<std::size_t>(state_[row(chain)].slice);
  }
  [[nodiscard]] Link& link(std::int32_t id) { return links_[unit_ * links_of_unit_ + static_cast<std::size_t>(id)]; }
  [[nodiscard]] std::int64_t larger(std::int64_t a, std::int64_t b) {
    if (noting_) choices_.note(a - b);
    return a > b ? a : b;
  }

  // The jump (merged_jump.cpp).
  [[nodiscard]] bool varies(const Part& part) const;
  [[nodiscard]] bool jump(std::int64_t batch, const Part& part, std::vector<Tape>& sent);
  [[nodiscard]] bool watch(std::int64_t batch, const Part& part);
  [[nodiscard]] std::int64_t windows_left(const Loop& loop) const;
  [[nodiscard]] std::int64_t repeats() const;
  void end_window(const Part& part);
  void keep_state(const Part& part);
  void go_on(const Part& part, std::int64_t windows);
  void pass_on(std::int64_t windows, std::vector<Tape>& sent);

  const RingsInput& in_;
  RingsOutput& out_;
  Changes changes_;
  std::size_t chains_, slices_, links_of_unit_ = 0, unit_ = 0, kind_row_ = 0;
  std::int64_t ops_per_group_ = 1;
  std::vector<std::vector<Part>> kinds_;  // of units, by the chains that meet
  std::vector<std::size_t> kind_of_;      // per unit
  std::vector<Chain> state_;              // [units][chains]
  std::vector<Link> links_;               // [units][links of a unit]
  std::vector<Tape> unread_;              // [units][chains] received, and beyond what could be served
  std::vector<Tape> inbox_;               // [chains] of the unit at work
  std::vector<Known> known_;              // [chains]
  std::vector<Post> posts_;               // of the part at work
  std::vector<Post*> at_work_;            // those of them that have something to do
  std::vector<Due> due_;                  // ops of one batch
  std::vector<std::uint64_t> turns_;      // per link of a unit: turns of this batch that are given away
  RingsStatus status_ = RingsStatus::ok;
  std::int64_t messages_, evaluated_ = 0, jumped_ = 0, look_ = in_.most_merged / 16;  // look_: how many are evaluated before the next look

  const Part* at_ = nullptr;           // the part at work, if what passes through it is noted
  std::size_t part_ = 0, before_ = 0;  // its number, and that of the same part in the unit before
  std::size_t next_ = 0;               // of the stretches there the one that is met next
  std::int64_t tries_ = 0;             // batches until the next look whether it can be passed on
  Stretch stretch_;                    // that goes on
  std::vector<Seen> in_hand_;          // [chains] the message that a chain received and has not sent on
  std::vector<std::int64_t> reads_, sends_;                 // [chains] of the unit at work before this visit
  std::vector<std::vector<Stretch>> passed_, passed_before_;  // by part: of this unit, and of the one before
  std::size_t passed_unit_ = 0;        // that one

  bool noting_ = false;                // windows are watched
  std::int64_t pause_ = 0;             // batches until the next look whether they can be
  std::int64_t window_ = 0, border_ = 0, windows_ = 0;  // length of one, the batch at which it ends, and how many there were
  std::int64_t breaks_ = 0;            // stretches that ended before they were watched
  std::vector<Loop> loops_;            // of the part at work
  std::vector<std::size_t> loop_of_;   // [chains]
  std::vector<std::int64_t> state_now_, last_, change_, change_before_;
  std::vector<std::int64_t> served_, served_before_;    // ops and their turns
  Choices choices_, choices_before_;
};

}  // namespace ccl_lab::sim
