// Ordinary memory of a rank that its peers may use in place.
//
// Is: registration: the whole pages of a range become pages of the rank's arena, at the address where they were and with
//     what they held, so that every peer that maps the arena sees them. Bytes before the first and after the last whole page
//     stay private; the node layer carries those in its slots.
//     And the cache of it: plain buffers of large messages that come again are registered without being asked, where that is
//     safe (plain_memory.hpp), and forgotten when their pages are gone.
// Is not: an owner of the range: whoever registers memory keeps it allocated until it is removed here.
//
// Invariants
//  - Contents and addresses are kept, when added and when removed.
//  - Nobody else may write to the whole pages of the range during add() and remove(); collectives on it have ended.
//  - A forked child never writes to its parent's pages: it gets copies of its own, made page by page when it first writes.
//    Until then it sees what the parent writes to registered memory; that is all that changes for a fork.
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
#include "node/group.hpp"

namespace ccl_lab {

class Registry {
 public:
  Registry(std::shared_ptr<RankSegment> segment, std::shared_ptr<Arena> arena, node::Group* group);
  // Asks for nothing: whether this buffer of a large message should be registered is found out here.
  void notice(const void* data, std::uint64_t nbytes);
  // Both buffers of a call of the rank at `place` among `n`, before it begins.
  void notice(const node::Call& call, int place, int n);
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
    std::shared_ptr<Block> block;
    int count = 1;
    bool noticed = false;  // without being asked
  };
  // A buffer that was seen once may never come again; from the second time on, the copy pays.
  struct Seen {
    const void* data = nullptr;
    std::uint64_t nbytes = 0;
    int times = 0;
  };
  static constexpr std::uint64_t kLeastBytes = 128 * 1024;  // below it the ends of a noticed buffer cost more than its stages
  static constexpr std::size_t kMostNoticed = 512;
  static constexpr std::size_t kSeen = 64;

  using Entries = std::map<std::byte*, Entry>;

  Status restore(const Entry& entry) const;
  // True while the pages of a noticed range are still those of the arena.
  // `live`: the caller is being given this memory, so it is there.
  bool intact(const Entry& entry, bool live = false) const;
  // Of a range that nobody has removed, at the end: true if its pages are still those of the arena.
  bool still_there(const std::byte* data, const Entry& entry) const;
  // Drops a noticed range from the table; its block is kept for as long as any of its pages is mapped anywhere.
  Entries::iterator forget(Entries::iterator found);
  bool still_mapped(const Entry& entry) const;
  void forget_the_gone();
  bool seen_before(const void* data, std::uint64_t nbytes);
  void take_from_parent() const;
  static void after_fork();

  std::shared_ptr<RankSegment> segment_;
  std::shared_ptr<Arena> arena_;
  node::Group* group_;
  Entries entries_;
  std::vector<Entry> kept_;              // forgotten, but some of their pages live on
  std::array<Seen, kSeen> seen_{};
  std::size_t n_noticed_ = 0;
  bool automatic_ = false;
};

}  // namespace ccl_lab
