// Units as followed.hpp sees them: what a message does in one, and what a unit does before one comes.
//
// Is: max-plus of a unit in ps. Is not: order, ticks and batches, which are known. Invariant: the same maxima and sums, in the same order, as
// unit.hpp.
//
// A unit's state is one vector: clocks of its stations, when the last message of each had left, and when its links are free. The messages
// that units begin are numbered in the order in which they leave a unit: `group` of them, those of its last station first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "busy.hpp"
#include "changes.hpp"
#include "rings.hpp"

namespace ccl_lab::sim {

class FollowedUnits {
 public:
  explicit FollowedUnits(const RingsInput& in);

  // Whether sizes are of few kinds, and rings long enough.
  [[nodiscard]] bool fits() const { return fits_; }

  static constexpr std::uint8_t kNone = 255;  // for a size, of a chain that has no such slice
  std::size_t units, chains, stations, depth, words = 0, group;
  std::int64_t most, messages;    // slices; messages of a chain in a slice
  std::vector<std::size_t> kind;  // of each unit: those of one kind do the same
  std::vector<std::size_t> kind_alone;  // the same for `pass_alone`, which waits for no rank to enter
  std::vector<std::uint8_t> sizes;    // of the messages that begin in a slice: [units][group][chains]

  // Which sizes messages of a slice have; a chain that has no such slice takes no part.
  void enter(std::int64_t slice);
  // What a unit does in the first slice before a message comes. starts: when each message of its group comes to the next unit, [group][chains].
  void begin(std::size_t unit, std::int64_t* state, std::int64_t* starts) const;
  // The n-th message of each chain comes to a unit's first station at `came`, and goes through all of them; came: when it comes to the next unit.
  void pass(std::size_t unit, std::int64_t n, const std::uint8_t* size, std::int64_t* state, std::int64_t* came) const;
  // The same, and the differences of both sides of all maxima are written; returns behind the last.
  std::int64_t* pass_noting(std::size_t unit, std::int64_t n, const std::uint8_t* size, std::int64_t* state, std::int64_t* came, std::int64_t* gaps) const;
  // The same, as if the messages had come before they are needed, and all ranks had entered. Memories are only looked at while something is added, and
  // clocks of first stations, which else follow from messages that come.
  struct Alone {
    std::int64_t *goes, *needed, *gaps;  // needed: when messages would have been waited for, by chain
    std::int64_t* memory_gaps;           // by chain and station; null: as all others
  };
  // memory_gaps: nobody waits for a memory, as long as these are not above 0. Then a message is needed when the links are free, less what adding it takes,
  // and a memory at which it was added is taken to be free no earlier than that.
  std::int64_t* pass_alone(std::size_t unit, std::int64_t n, const std::uint8_t* size, std::int64_t* state, const Alone& alone) const;
  // The last message of a slice, and the beginning of the next one.
  void end(std::size_t unit, std::int64_t slice, const std::uint8_t* size, std::int64_t* state, const std::int64_t* came, std::int64_t* starts,
           RingsOutput& out) const;
  void finish(std::size_t unit, const std::int64_t* state, RingsOutput& out) const;

  // How many of the messages n, n + group, … do the same kind of work.
  [[nodiscard]] std::int64_t alike(std::int64_t n) const;
  [[nodiscard]] std::size_t most_gaps() const { return 8 * chains * stations; }
  // Words of a unit's state that `pass_alone` reads and writes; asks: for memories.
  [[nodiscard]] std::vector<std::size_t> words_alone(std::size_t unit, bool adds, bool asks) const;
  // Whether others use the memories of first stations, so that after two rounds these are what they are whatever they were before.
  [[nodiscard]] bool memories_follow(std::size_t unit) const;
  // Makes these memories, and clocks of first stations, earlier than they are.
  void forget(std::size_t unit, std::int64_t* state) const;
  // Whether no memory is a link of a transfer, too.
  [[nodiscard]] bool memories_apart() const;
  // Whether the ranks that its stations put to have entered before their clocks.
  [[nodiscard]] bool all_entered(std::size_t unit, const std::int64_t* state) const;
  // Whether rates of its links change in time. Such a unit is of a kind of its own, and is not passed noting, nor alone.
  [[nodiscard]] bool changes(std::size_t unit) const { return changes_in_[unit]; }

 private:
  static constexpr std::size_t kMostSizes = 8;

  struct Post {
    std::size_t memory, a, b;
    std::int64_t latency_ps, ready_ps;
    Busy busy[kMostSizes];
  };
  struct User {  // of a memory: a station, in the order of memories
    std::size_t memory, chain, station;
  };
  struct Work {
    bool adds, sends, last;  // last: of those that it sends
  };

  void find_sizes();
  void find_kinds();
  [[nodiscard]] std::vector<std::uint32_t> in_turns(std::size_t unit, std::size_t first, std::size_t often) const;
  [[nodiscard]] Post post(std::size_t kind_row) const;
  [[nodiscard]] std::size_t kind_row(std::size_t unit) const { return static_cast<std::size_t>(in_.kind_row(static_cast<std::int64_t>(unit))); }
  [[nodiscard]] Work work(std::int64_t message) const;
  [[nodiscard]] const Post* posts_of(std::size_t unit) const { return posts_.data() + kind[unit] * chains * stations; }
  enum class How : std::uint8_t { plain, changing, noting, alone, unasked };  // unasked: alone, and nobody waits for a memory; both note, too
  template <How kHow>
  std::int64_t* through(std::size_t unit, std::int64_t n, const std::uint8_t* size, std::int64_t* state, const Alone& told) const;
  template <bool kNotes>
  std::int64_t* rest(const User* users, const std::uint8_t* size, std::int64_t* state, std::int64_t* gaps) const;
  // A station of a unit sends on what it has; when that comes.
  std::int64_t sends(std::size_t unit, std::size_t at, std::uint8_t size, std::int64_t* state, std::int64_t* left) const;
  void begin_slice(std::size_t unit, std::size_t row, std::int64_t slice, std::int64_t* state) const;
  // When a link that is given a message at `start` is free again.
  [[nodiscard]] std::int64_t through_link(std::int32_t link, std::int64_t start, std::int64_t busy_ps, std::int64_t bytes, std::int64_t bytes_per_s) const {
    return changes_.on(link) ? changes_.through_ps(link, start + (bytes > 0 ? in_.alpha_ps : 0), bytes, bytes_per_s) : start + busy_ps;
  }
  // row: of the station; kind_row: in columns that are told by kind of unit.
  void occupy(std::size_t row, std::size_t kind_row, const Post& post, const Busy& busy, std::int64_t start, std::int64_t* state) const {
    state[post.a] = through_link(in_.all_a[row], start, busy.a_ps, busy.bytes, in_.a_bytes_per_s[kind_row]);
    state[post.b] = through_link(in_.all_b[row], start, busy.b_ps, busy.bytes, in_.b_bytes_per_s[kind_row]);
  }
  [[nodiscard]] std::uint8_t size_of(std::size_t chain, std::int64_t slice, std::size_t position, std::size_t i) const;

  const RingsInput& in_;
  Changes changes_;
  std::vector<bool> changes_in_;        // by unit
  bool fits_ = true;
  std::vector<std::int64_t> bytes_;     // the sizes that there are
  std::vector<std::uint8_t> size_;      // of each of in.bytes
  std::vector<Post> posts_;             // [kinds][chains][stations]
  std::vector<User> users_;             // the same
  // What is put before a message comes from elsewhere, in the order in which links serve it: [ways of links][how far the first messages have come], rows of
  // stations, of the messages that they begin with one after the other. And by kind the way of its links.
  std::vector<std::vector<std::vector<std::uint32_t>>> first_puts_;
  std::vector<std::size_t> first_puts_of_;
};

}  // namespace ccl_lab::sim
