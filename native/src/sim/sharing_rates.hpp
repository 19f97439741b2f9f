// Which rate each flow gets when all flows share links fairly (max-min), re-solved where flows came or went.
//
// Is: flows in classes, one per route, with how many there are of each; whole units of 2^-10 bytes/s, rounded down, so that nothing
// depends on the order of links, classes or calls. Is not: time (sharing.cpp). Invariants after `settle`: no link carries more than its
// rate; every flow passes a link that is full (but for rounding: less than one unit a flow) and on which no flow gets more than it;
// a flow always gets at least one unit.
//
// The rule, for links and flows that have anything to do with each other: a link's share is what is left of its rate over its flows
// that have no rate yet, rounded down. All flows of all links that have the smallest share get it, and are taken out with what they
// use; and again, until every flow has its rate.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace ccl_lab::sim {

class FairRates {
 public:
  static constexpr std::int64_t kUnits = 1024;                        // of a byte per second
  static constexpr std::int64_t kFastest = std::int64_t{1} << 52;     // bytes/s; a link from here on does not limit

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
  struct Use {
    std::int32_t cls;
    std::int32_t at;  // which place of link_of_ this is
  };

  [[nodiscard]] std::int64_t share(std::int32_t link) const {
    const std::int64_t each = left_[link] / open_[link];
    return each > 1 ? each : 1;
  }
  void touch(std::int32_t cls);
  void reach();
  void reach_links(std::int32_t cls);
  void fill();
  void give(std::int32_t link, std::int64_t rate);
  void offer(std::int32_t link);

  // per class
  std::vector<std::size_t> first_;  // in link_of_; one more than there are classes
  std::vector<std::int64_t> flows_, rate_, slowest_, next_rate_;
  std::vector<char> touched_, reached_;
  // per place on a route
  std::vector<std::int32_t> link_of_;
  std::vector<std::size_t> place_;  // in users_ of the link
  // per link that is on a route and limits
  std::vector<std::vector<Use>> users_;  // classes with flows
  std::vector<std::int64_t> rate_of_link_, flows_on_, left_, open_;
  std::vector<char> link_reached_, moved_;

  std::vector<std::int32_t> changed_;             // classes touched since the last settle; then what it returns
  std::vector<std::int32_t> links_, reached_classes_, tied_, moved_links_;
  std::vector<std::pair<std::int64_t, std::int32_t>> shares_;  // a heap of (share, link), old entries included
};

}  // namespace ccl_lab::sim
