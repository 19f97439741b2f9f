// See chains.hpp.
#include "chains.hpp"

#include <algorithm>
#include <deque>
#include <new>
#include <vector>

#include "chain_unit.hpp"
#include "stream.hpp"

namespace ccl_lab::sim {
namespace {

using Times = std::vector<std::int64_t>;
constexpr std::size_t kPatterns = 16, kEvaluated = 4;  // that are remembered, the latest ones

bool good(const ChainsInput& in, const ChainsOutput& out) {
  const auto all = [](const auto& column, auto is_good) { return std::all_of(column.begin(), column.end(), is_good); };
  const auto time = [](std::int64_t v) { return v >= 0 && v < std::int64_t{1} << 60; };
  const std::size_t ranks = in.late_ps.size(), links = in.bytes_per_s.size();
  const auto below = [](std::size_t end) { return [end](std::int32_t v) { return v >= 0 && static_cast<std::size_t>(v) < end; }; };
  if (in.chains < 1 || in.length < 2 || in.chunks < 1 || !time(in.alpha_ps) || links < 3 * ranks || in.latency_ps.size() != links) return false;
  const auto rows = static_cast<std::size_t>(in.chains * in.length), chunks = static_cast<std::size_t>(in.chains * in.chunks);
  if (in.rank.size() != rows || in.link_a.size() != rows || in.link_b.size() != rows || !all(in.rank, below(ranks))) return false;
  if (!all(in.link_a, below(links)) || !all(in.link_b, below(links)) || (!in.tier_ps.empty() && in.tier_ps.size() != rows)) return false;
  if (in.bytes.size() != chunks || in.nominal_parts.size() != static_cast<std::size_t>(in.chains)) return false;
  if (in.node_of.size() != ranks || out.finish_ps.size() != ranks) return false;
  return all(in.bytes, [&](std::int64_t v) { return v >= 0 && time(2 * v); }) && all(in.nominal_parts, time) && all(in.late_ps, time) &&
         all(in.tier_ps, time) && all(in.latency_ps, time) && all(in.bytes_per_s, [](std::int64_t v) { return v >= 0; }) &&
         Changes::good(in.changes, links);
}

// Where each chain enters and leaves the units: positions begin(unit, chain) to begin(unit + 1, chain).
class Parts {
 public:
  explicit Parts(const ChainsInput& in) : in_(in) {
    std::vector<std::vector<Part>> parts(static_cast<std::size_t>(in.chains));
    for (std::int64_t c = 0; c < in.chains; ++c)
      for (std::int64_t p = 0; p < in.length; ++p)
        if (p == 0 || node(c, p) != node(c, p - 1)) parts[static_cast<std::size_t>(c)].push_back({node(c, p), p});
    const auto& longest = *std::ranges::max_element(parts, {}, [](const auto& each) { return each.size(); });
    for (const Part& part : longest) nodes_.push_back(part.node);
    begin_.resize((nodes_.size() + 1) * parts.size(), 0);
    for (std::size_t c = 0; c < parts.size(); ++c) fits_ = fits_ && place(c, parts[c]);
    std::vector<std::int32_t> seen(nodes_.begin(), nodes_.end());
    if (seen.size() > 1 && seen.front() == seen.back()) seen.pop_back();
    std::ranges::sort(seen);
    fits_ = fits_ && std::ranges::adjacent_find(seen) == seen.end();
  }

  // Chains come to the nodes in one order, to each once, but for the first one, which may be the last one too.
  [[nodiscard]] bool fits() const { return fits_; }
  [[nodiscard]] std::size_t units() const { return nodes_.size(); }
  [[nodiscard]] bool turns_back() const { return units() > 1 && nodes_.front() == nodes_.back(); }
  [[nodiscard]] std::int64_t begin(std::size_t unit, std::int64_t chain) const {
    return begin_[unit * static_cast<std::size_t>(in_.chains) + static_cast<std::size_t>(chain)];
  }

 private:
  struct Part {
    std::int32_t node;
    std::int64_t begin;
  };
  [[nodiscard]] std::int32_t node(std::int64_t c, std::int64_t p) const {
    return in_.node_of[static_cast<std::size_t>(in_.rank[static_cast<std::size_t>(c * in_.length + p)])];
  }

  // A chain may begin a unit later, or end one earlier, than others.
  bool place(std::size_t chain, const std::vector<Part>& parts) {
    for (const std::size_t shift : {std::size_t{0}, nodes_.size() - parts.size()}) {
      if (!std::ranges::equal(parts, std::span(nodes_).subspan(shift, parts.size()), {}, &Part::node)) continue;
      for (std::size_t unit = 0; unit <= nodes_.size(); ++unit) {
        const std::size_t part = unit < shift ? 0 : unit - shift;
        begin_[unit * static_cast<std::size_t>(in_.chains) + chain] = part < parts.size() ? parts[part].begin : in_.length;
      }
      return true;
    }
    return false;
  }

  const ChainsInput& in_;
  std::vector<std::int32_t> nodes_;  // of each unit
  std::vector<std::int64_t> begin_;
  bool fits_ = true;
};

class Chains {
 public:
  Chains(const ChainsInput& in, ChainsOutput& out, const Parts& parts)
      : in_(in), out_(out), parts_(parts), clock_(in), number_(in.bytes_per_s.size(), -1), messages_(in.bytes.size()), arrives_(in.bytes.size(), 0) {}

  ChainsStatus run() {
    for (std::size_t u = 0; u < parts_.units(); ++u) {
      build(u);
      const bool again = u > 0 && u + 1 == parts_.units() && parts_.turns_back();
      const bool alone = !again && in_.merge && std::ranges::none_of(unit_.stations, &ChainStation::source);
      if (const ChainsStatus status = order(again, alone); status != ChainsStatus::ok) return status;
      if (!time(again, alone)) return ChainsStatus::overflow;
      if (u == 0 && parts_.turns_back()) keep_links();
      for (std::size_t s = 0; s < unit_.stations.size(); ++s) {
        std::int64_t& finish = out_.finish_ps[static_cast<std::size_t>(unit_.stations[s].rank)];
        finish = std::max(finish, finish_[s]);
      }
    }
    out_.units = static_cast<std::int64_t>(parts_.units());
    return ChainsStatus::ok;
  }

 private:
  // A unit whose times are known.
  struct Evaluated {
    std::int64_t pattern;
    Times costs, came, sent, finish;
  };
  // A link of the first unit, for the last one, which may use it again.
  struct Kept {
    std::int64_t free_ps, free_tick, batch;
  };

  std::int32_t number_of(std::int32_t link) {
    std::int32_t& number = number_[static_cast<std::size_t>(link)];
    if (number < 0) {
      number = static_cast<std::int32_t>(unit_.links.size());
      unit_.links.push_back(link);
    }
    return number;
  }

  void build(std::size_t u) {
    unit_.stations.clear();
    unit_.links.clear();
    unit_.shape.clear();
    const auto ranks = static_cast<std::int32_t>(in_.late_ps.size());
    for (std::int64_t c = 0; c < in_.chains; ++c) {
      for (std::int64_t p = parts_.begin(u, c); p < parts_.begin(u + 1, c); ++p) {
        const auto row = static_cast<std::size_t>(c * in_.length + p);
        ChainStation at{.chain = static_cast<std::int32_t>(c), .rank = in_.rank[row], .source = p == 0, .first = p == parts_.begin(u, c)};
        if (p + 1 < in_.length) {
          at.next = in_.rank[row + 1];
          at.a = number_of(in_.link_a[row]);
          at.b = number_of(in_.link_b[row]);
          at.ticks = in_.link_a[row] >= 3 * ranks;
          at.tier_ps = in_.tier_ps.empty() ? 0 : in_.tier_ps[row];
        }
        if (in_.adds && p > 0) at.memory = number_of(2 * ranks + at.rank);
        unit_.shape.insert(unit_.shape.end(), {at.chain, at.a, at.b, at.memory, at.ticks, at.source});
        unit_.stations.push_back(at);
      }
    }
    for (const std::int32_t link : unit_.links) number_[static_cast<std::size_t>(link)] = -1;
  }

  // The pattern of the unit, and what it sends on, in nominal time. alone: nothing but its messages decides.
  ChainsStatus order(bool again, bool alone) {
    shift_ = 0;
    for (const Pattern& each : patterns_) {
      if (!alone || !fits(each)) continue;
      pattern_ = &each;
      for (std::size_t i = 0; i < messages_.size(); ++i)
        messages_[i] = {each.sent[i].leaves + shift_, each.sent[i].batch + (shift_ << kPlaceBits)};
      return ChainsStatus::ok;
    }
    Times free_ticks(unit_.links.size(), 0);
    for (std::size_t i = 0; again && i < free_ticks.size(); ++i)
      if (const Kept* kept = kept_of(unit_.links[i])) free_ticks[i] = kept->free_tick;
    if (patterns_.size() == kPatterns) patterns_.pop_back();
    patterns_.emplace_front();
    Pattern& found = patterns_.front();
    found.number = out_.orders++;
    if (!find_pattern(in_, unit_, messages_, free_ticks, found)) return ChainsStatus::too_long;
    for (std::size_t i = 0; again && i < free_ticks.size(); ++i)
      if (const Kept* kept = kept_of(unit_.links[i]); kept && kept->batch >= found.first[i].batch) return ChainsStatus::disorder;
    messages_ = found.sent;
    pattern_ = &found;
    if (!alone) found.shape.clear();  // no other unit is like it
    return ChainsStatus::ok;
  }

  // Whether the unit is as the one that a pattern was found for, later by `shift_` ticks.
  bool fits(const Pattern& pattern) {
    if (pattern.shape != unit_.shape) return false;
    shift_ = messages_[0].leaves - pattern.came[0].leaves;
    for (std::size_t i = 0; i < messages_.size(); ++i)
      if (messages_[i].leaves - pattern.came[i].leaves != shift_ || messages_[i].batch - pattern.came[i].batch != shift_ << kPlaceBits) return false;
    return true;
  }

  bool time(bool again, bool alone) {
    const bool merges = clock_.load(unit_) && alone;
    for (const Evaluated& each : evaluated_) {
      if (!merges || each.pattern != pattern_->number || each.costs != clock_.costs()) continue;
      const std::int64_t shift = arrives_[0] - each.came[0];
      if (!std::ranges::equal(arrives_, each.came, [&](std::int64_t now, std::int64_t then) { return now - then == shift; })) continue;
      const auto later = [&](const Times& from, Times& to) { std::ranges::transform(from, to.begin(), [&](std::int64_t v) { return v + shift; }); };
      finish_.resize(each.finish.size());
      later(each.sent, arrives_);
      later(each.finish, finish_);
      return std::ranges::all_of(arrives_, [](std::int64_t v) { return v <= kLatest; });
    }
    ++out_.evaluated;
    free_ps_.assign(unit_.links.size(), 0);
    for (std::size_t i = 0; again && i < free_ps_.size(); ++i)
      if (const Kept* kept = kept_of(unit_.links[i])) free_ps_[i] = kept->free_ps;
    Times came = merges ? arrives_ : Times();
    if (!clock_.run(unit_, *pattern_, arrives_, free_ps_, finish_)) return false;
    if (!merges) return true;
    if (evaluated_.size() == kEvaluated) evaluated_.pop_back();
    evaluated_.push_front({pattern_->number, clock_.costs(), std::move(came), arrives_, finish_});
    return true;
  }

  void keep_links() {
    for (std::size_t i = 0; i < unit_.links.size(); ++i) {
      kept_links_.push_back(unit_.links[i]);
      kept_.push_back({free_ps_[i], pattern_->last[i].leaves, pattern_->last[i].batch});
    }
  }
  [[nodiscard]] const Kept* kept_of(std::int32_t link) const {
    const auto at = std::ranges::find(kept_links_, link);
    return at == kept_links_.end() ? nullptr : &kept_[static_cast<std::size_t>(at - kept_links_.begin())];
  }

  const ChainsInput& in_;
  ChainsOutput& out_;
  const Parts& parts_;
  ChainClock clock_;
  ChainUnit unit_;
  std::vector<std::int32_t> number_;  // by link, of those of a unit
  std::vector<Nominal> messages_;     // [chains][chunks], between two units
  Times arrives_, free_ps_, finish_;
  std::deque<Pattern> patterns_;      // places of others do not move
  const Pattern* pattern_ = nullptr;
  std::int64_t shift_ = 0;
  std::deque<Evaluated> evaluated_;
  std::vector<std::int32_t> kept_links_;
  std::vector<Kept> kept_;
};

}  // namespace

ChainsStatus simulate_chains(const ChainsInput& in, ChainsOutput& out) noexcept try {
  if (!good(in, out)) return ChainsStatus::bad_input;
  const Parts parts(in);
  return parts.fits() ? Chains(in, out, parts).run() : ChainsStatus::apart;
} catch (const std::bad_alloc&) {
  return ChainsStatus::out_of_memory;
}

}  // namespace ccl_lab::sim
