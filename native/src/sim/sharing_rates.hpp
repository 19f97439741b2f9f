// Which rate each flow gets when all flows share links fairly (max-min), re-solved where flows came or went.
//
// Is: flows in classes, one per route, with how many there are of each; whole units of 2^-10 bytes/s, rounded down, so that nothing
// depends on the order of links, classes or calls. Is not: time (sharing.cpp). Invariants after `settle`: no link carries more than its
// rate; every flow passes a link that is full (but for rounding: less than one unit a flow) and on which no flow gets more than it;
// a flow always gets at least one unit.
//
// The rule: a link's share is what is left of its rate over its flows that have no rate yet, rounded down. All flows of all links that
// have the smallest share get it, and are taken out with what they use; and again, until every flow has its rate.
//
// Said link by link, which is what lets a part be solved alone: a link's *offer* is the share it comes to when flows of a lower rate than
// its share are taken out, lowest first, for as long as there are any (none, if all are); and a class has the smallest offer of its
// route. Rates with this property are the rule's and no others: by induction over the shares in rising order. So `settle` frees the
// classes that changed, fills the links that bind them beside what all other classes have, and looks where that no longer fits: a
// class whose smallest offer is another one is freed too, a link that was not full and may be now binds too; and again.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace ccl_lab::sim {

class FairRates {
 public:
  static constexpr std::int64_t kUnits = 1024;                     // of a byte per second
  static constexpr std::int64_t kFastest = std::int64_t{1} << 52;  // bytes/s; a link from here on does not limit

  // routes: `width` links a class, -1 where there are fewer; a link that comes twice counts once.
  FairRates(std::span<const std::int32_t> routes, std::size_t width, std::span<const std::int64_t> link_bytes_per_s);

  void add(std::int32_t cls);
  void remove(std::int32_t cls);

  // Rates after all calls of add and remove before. The classes whose rate or number of flows changed; valid until the next call.
  std::span<const std::int32_t> settle();

  [[nodiscard]] std::size_t classes() const { return flows_.size(); }
  [[nodiscard]] std::int64_t flows(std::int32_t cls) const { return flows_[cls]; }
  [[nodiscard]] std::int64_t rate(std::int32_t cls) const { return rate_[cls]; }        // units, 0 without flows
  [[nodiscard]] std::int64_t slowest(std::int32_t cls) const { return slowest_[cls]; }  // units of the slowest link; 0: nothing limits

 private:
  __extension__ typedef __int128 Load;  // flows that come are counted with their old rates at first: more than 64 bits
  static constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

  struct Use {
    std::int32_t cls;
    std::int32_t at;  // which place of link_of_ this is
  };

  struct Link {
    std::int64_t rate = 0;            // units
    std::int64_t flows = 0;
    std::int64_t offer = kNoLimit;    // as settled
    Load used = 0;                    // of the rates as settled and the flows there are now
    std::vector<Use> users;           // classes with flows
    // while settling
    bool in_region = false, candidate = false, bound = false, tied = false, moved = false;
    std::int64_t left = 0, open = 0;  // of its rate, and flows, not taken out yet
    std::int64_t free_flows = 0;      // of these, those of free classes
    std::int64_t next_offer = kNoLimit;
    Load load = 0;
    std::size_t other = 0, other_end = 0;  // in others_: what its other classes have, lowest rate first, not taken out yet
  };

  [[nodiscard]] std::span<const std::int32_t> links_of(std::int32_t cls) const {
    return std::span(link_of_).subspan(first_[cls], first_[cls + 1] - first_[cls]);
  }
  [[nodiscard]] static std::int64_t share(const Link& link) {
    const std::int64_t each = link.left / link.open;
    return each > 1 ? each : 1;
  }
  [[nodiscard]] std::int64_t smallest_offer(std::int32_t cls) const;

  void touch(std::int32_t cls);
  void enter(std::int32_t link);
  void free(std::int32_t cls);
  void free_all_that_are_joined();
  void bind();
  void list_others(Link& link);
  void take_out_lower(Link& link);
  void offer(std::int32_t link);
  void fill();
  void give(const Link& link, std::int64_t rate);
  bool fits();
  void commit();

  // per class
  std::vector<std::size_t> first_;  // in link_of_; one more than there are classes
  std::vector<std::int64_t> flows_, rate_, slowest_, next_rate_;
  std::vector<char> touched_, free_;
  // per place on a route
  std::vector<std::int32_t> link_of_;
  std::vector<std::size_t> place_;  // in users of the link

  std::vector<Link> links_;  // those that are on a route and limit
  std::size_t active_ = 0;   // classes with flows

  std::vector<std::int32_t> changed_;  // classes touched since the last settle; then what it returns
  std::vector<std::int32_t> region_, bound_, free_classes_, tied_, moved_links_, told_;
  std::vector<std::pair<std::int64_t, std::int64_t>> others_;  // (rate, flows)
  std::vector<std::pair<std::int64_t, std::int32_t>> shares_;  // a heap of (share, link), old entries included
};

}  // namespace ccl_lab::sim
