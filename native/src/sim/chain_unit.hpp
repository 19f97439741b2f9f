// One unit of chains.hpp: its stations, the order in which its links serve them, and when that is.
#pragma once

#include <cstdint>
#include <vector>

#include "chains.hpp"
#include "changes.hpp"

namespace ccl_lab::sim {

// A rank on a chain, in a unit. Links are numbered within the unit, in the order in which stations use them; -1: none.
struct ChainStation {
  std::int32_t chain = 0, rank = 0, next = -1;
  std::int32_t a = -1, b = -1, memory = -1;
  std::int64_t tier_ps = 0;
  bool source = false;  // its chunks are its own
  bool first = false;   // of its chain in this unit
  bool ticks = false;   // its puts take nominal time
};

// What a message is to the order: when it is seen, and the batch in which it was sent.
struct Nominal {
  std::int64_t leaves = 0, batch = 0;
};

struct ChainUnit {
  std::vector<ChainStation> stations;  // chain by chain, along each
  std::vector<std::int32_t> links;     // global, by number in the unit
  std::vector<std::int32_t> shape;     // all of `stations` but ranks
};

// An op in the order of service.
struct ChainStep {
  std::int32_t station, chunk;
  bool works;  // adds, in memory; else puts
};

struct Pattern {
  std::vector<std::int32_t> shape;
  std::vector<Nominal> came, sent;     // [chains][chunks]
  std::vector<ChainStep> steps;
  std::vector<Nominal> first, last;    // by link, of its first and its last op: when it is free then, and the batch
  std::int64_t number = 0;
};

// The order of a unit for messages that come in as in `came`, its links free from the tick in `free_ticks` on. False: nominal time does not fit.
bool find_pattern(const ChainsInput& in, const ChainUnit& unit, const std::vector<Nominal>& came, const std::vector<std::int64_t>& free_ticks,
                  Pattern& found);

// Times in one unit. Durations are looked up by size: chunks have few sizes.
class ChainClock {
 public:
  explicit ChainClock(const ChainsInput& in);

  // What the unit's time depends on, besides its order and messages; true where it goes on from 0, so that messages that come later by some
  // number make it later by that.
  bool load(const ChainUnit& unit);
  [[nodiscard]] const std::vector<std::int64_t>& costs() const { return costs_; }
  // Goes through the steps. `arrives`: [chains][chunks], of what comes in, then of what goes out; `free_ps` by link; `finish` by station.
  bool run(const ChainUnit& unit, const Pattern& pattern, std::vector<std::int64_t>& arrives, std::vector<std::int64_t>& free_ps,
           std::vector<std::int64_t>& finish);

 private:
  struct Known {
    std::int64_t bytes = -1, rate = -1, ps = 0;
  };
  [[nodiscard]] std::int64_t busy(std::int64_t nbytes, std::int32_t link);
  template <bool kChanging>
  bool go(const ChainUnit& unit, const Pattern& pattern, std::vector<std::int64_t>& arrives, std::vector<std::int64_t>& free_ps,
          std::vector<std::int64_t>& finish);

  const ChainsInput& in_;
  Changes changes_;
  bool changing_ = false;
  std::vector<std::int64_t> sizes_;      // different ones
  std::vector<std::uint16_t> size_of_;   // [chains][chunks]
  std::vector<Known> known_;
  // Per station: latency, when it enters, when the next rank does, then for each size what it takes on a, on b, in memory.
  std::vector<std::int64_t> costs_;
  std::vector<std::int64_t> clock_, left_;
};

}  // namespace ccl_lab::sim
