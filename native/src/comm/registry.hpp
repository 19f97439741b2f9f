// Ordinary memory of a rank that its peers may use in place.
//
// Is: registration: the whole pages of a range become pages of the rank's arena, at the address where they were and with
//     what they held, so that every peer that maps the arena sees them. Bytes before the first and after the last whole page
//     stay private; the node layer carries those in its slots.
//     And the cache of it: plain buffers of large messages that come again are registered without being asked, where that is
//     safe (plain_memory.hpp), given back before a fork, and forgotten when their pages are gone.
// Is not: an owner of the range: whoever registers memory keeps it allocated until it is removed here.
//
// Invariants
//  - Contents and addresses are kept, when added and when removed.
//  - Nobody else may write to the whole pages of the range during add() and remove(); collectives on it have ended.
//  - A forked child never writes to its parent's pages. What was registered without being asked is for it as it always was: what
//    the parent had at the fork. Of what add() was told it gets copies page by page, when it first writes; until then it
//    sees what the parent writes there. (fork() runs the handlers that see to this; _Fork() and clone() do not.)
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/segment.hpp"
#include "base/status.hpp"
#include "comm/arena.hpp"
#include "comm/plain_memory.hpp"
#include "node/group.hpp"

namespace ccl_lab {

class Registry {
 public:
  // A call of the only thread that makes any, from before it begins to its end: notices its buffers. A large one has the group
  // alone until then, for a fork in another thread would give back what it uses.
  class Use {
   public:
    Use(Registry& registry, const node::Call& call, int place, int n)
        : group_(registry.automatic_ && !node::Group::is_small(call.collective, call.block_bytes, n) ? registry.group_ : nullptr) {
      if (group_ != nullptr) registry.await_and_notice(call, place, n);
    }
    ~Use() {
      if (group_ != nullptr) group_->leave();
    }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    node::Group* group_;
  };

  Registry(std::shared_ptr<RankSegment> segment, std::shared_ptr<Arena> arena, node::Group* group);
  // Both buffers of a call of the rank at `place` among `n`, before it begins. Asks for nothing: whether those of a large message
  // should be registered is found out here. The caller has taken the group.
  void notice(const node::Call& call, int place, int n);
  void notice(const void* data, std::uint64_t nbytes);
  // Off: only what add() says is registered.
  void set_automatic(bool on) { automatic_ = on; }

  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;
  ~Registry();
  // Gives all memory its private pages back, while those who registered it still hold it. Nothing is registered after that.
  void close();

  // Ranges must not overlap. A range without a whole page is accepted and changes nothing: it is staged, as before. Adding a
  // range again counts, and as many removals end it.
  Status add(void* data, std::uint64_t nbytes);
  Status remove(void* data);
  // Where in the arena the bytes lie; -1 unless all of them are on pages that were registered by add().
  std::int64_t offset_of(const void* data, std::uint64_t nbytes) const;
  std::size_t size() const { return entries_.size(); }
  std::uint64_t registered_bytes() const;

 private:
  struct Entry {
    std::uint64_t nbytes = 0;
    std::byte* pages = nullptr;
    std::uint64_t pages_bytes = 0;
    std::uint64_t offset = 0;  // of the pages, in the arena: a page behind the begin of the block, or more
    std::shared_ptr<Block> block;
    int count = 1;
    bool noticed = false;  // without being asked
    int uses = 0;          // since it was
  };
  // A buffer that was seen once may never come again; from the second time on, the copy pays. Where it did not, because the buffer
  // was soon freed, what comes at that address is watched for longer.
  struct Seen {
    const void* data = nullptr;
    std::uint64_t nbytes = 0;
    int times = 0;
    int wanted = 0;
  };
  // Below it the ends of a noticed buffer cost more than its stages; without ends, what it takes to see that it is still there.
  static constexpr std::uint64_t kLeastBytes = 128 * 1024;
  static constexpr std::uint64_t kLeastOfWholePages = 32 * 1024;
  static constexpr std::size_t kMostNoticed = 512;
  static constexpr std::size_t kSeen = 64;
  static constexpr int kTimes = 2;
  static constexpr int kMostTimes = 4096;
  static constexpr int kLonger = 8;       // times as often
  static constexpr int kPaysFrom = 8;     // uses of a registered buffer

  using Entries = std::map<std::byte*, Entry>;

  // These change nothing while another thread forks: whoever calls them holds the lock of all registries.
  Status insert(std::byte* begin, std::uint64_t nbytes);
  Status restore(const Entry& entry) const;
  // True if it was add() that registered the page at `page`.
  bool was_asked_for(const std::byte* page) const;
  bool shows_unasked() const { return n_noticed_ > 0 || !kept_.empty(); }
  // True while the pages of a noticed range are still those of the arena.
  // `live`: the caller is being given this memory, so it is there.
  bool intact(const std::byte* data, const Entry& entry, bool live = false) const;
  // Of a range that nobody has removed, at the end: true if its pages are still those of the arena.
  bool still_there(const std::byte* data, const Entry& entry) const;
  std::uint64_t file_offset(const Entry& entry) const { return segment_->header().arena_offset + entry.offset; }
  // Drops a noticed range from the table; its block is kept for as long as any of its pages is mapped anywhere.
  Entries::iterator forget(Entries::iterator found);
  bool still_mapped(const Entry& entry) const;
  void forget_the_gone();
  // Of the ranges from `from` on that begin before `end` (null: all); returns the first of them that is left, or the one behind.
  Entries::iterator forget_the_gone(Entries::iterator from, const std::byte* end);
  void await_and_notice(const node::Call& call, int place, int n);
  Seen& seen(const void* data);
  static bool worth_it(const void* data, std::uint64_t nbytes);
  bool seen_before(const void* data, std::uint64_t nbytes);
  void give_back_unasked();
  void take_from_parent() const;
  static void before_fork();
  static void after_fork_in_parent();
  static void after_fork_in_child();

  std::shared_ptr<RankSegment> segment_;
  std::shared_ptr<Arena> arena_;
  node::Group* group_;
  FileId file_;  // of the segment
  Entries entries_;
  std::vector<Entry> kept_;              // forgotten, but some of their pages live on
  std::array<Seen, kSeen> seen_{};
  std::size_t n_noticed_ = 0;
  int times_ = kTimes;                   // how often a buffer comes before it is registered: more often after each fork
  bool automatic_ = false;
};

}  // namespace ccl_lab
