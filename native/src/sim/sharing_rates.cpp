#include "sharing_rates.hpp"

#include <algorithm>
#include <functional>

namespace ccl_lab::sim {
namespace {

constexpr int kRounds = 16;  // after so many, everything that is joined is solved at once

}  // namespace

FairRates::FairRates(std::span<const std::int32_t> routes, std::size_t width, std::span<const std::int64_t> link_bytes_per_s) {
  const std::size_t n = width == 0 ? 0 : routes.size() / width;
  std::vector<std::int32_t> number(link_bytes_per_s.size(), -1);
  first_.assign(1, 0);
  slowest_.assign(n, 0);
  for (std::size_t cls = 0; cls < n; ++cls) {
    for (const std::int32_t link : routes.subspan(cls * width, width)) {
      if (link < 0 || link_bytes_per_s[link] >= kFastest) continue;
      if (number[link] < 0) {
        number[link] = static_cast<std::int32_t>(links_.size());
        links_.emplace_back().rate = link_bytes_per_s[link] * kUnits;
      }
      const std::int32_t own = number[link];
      if (std::find(link_of_.begin() + static_cast<std::ptrdiff_t>(first_.back()), link_of_.end(), own) != link_of_.end()) continue;
      link_of_.push_back(own);
      slowest_[cls] = slowest_[cls] == 0 ? links_[own].rate : std::min(slowest_[cls], links_[own].rate);
    }
    first_.push_back(link_of_.size());
  }
  flows_.assign(n, 0), rate_.assign(n, 0), next_rate_.assign(n, 0), touched_.assign(n, 0), free_.assign(n, 0);
  place_.assign(link_of_.size(), 0);
}

void FairRates::touch(std::int32_t cls) {
  if (touched_[cls]) return;
  touched_[cls] = 1;
  changed_.push_back(cls);
}

void FairRates::add(std::int32_t cls) {
  touch(cls);
  const bool first = flows_[cls]++ == 0;
  if (first) ++active_;
  for (std::size_t at = first_[cls]; at < first_[cls + 1]; ++at) {
    Link& link = links_[link_of_[at]];
    ++link.flows;
    link.used += rate_[cls];
    if (!first) continue;
    place_[at] = link.users.size();
    link.users.push_back({cls, static_cast<std::int32_t>(at)});
  }
}

void FairRates::remove(std::int32_t cls) {
  touch(cls);
  const bool last = --flows_[cls] == 0;
  if (last) --active_;
  for (std::size_t at = first_[cls]; at < first_[cls + 1]; ++at) {
    Link& link = links_[link_of_[at]];
    --link.flows;
    link.used -= rate_[cls];
    if (!last) continue;
    const Use moved = link.users.back();
    link.users[place_[at]] = moved;
    place_[moved.at] = place_[at];
    link.users.pop_back();
  }
  if (last) rate_[cls] = 0;
}

std::span<const std::int32_t> FairRates::settle() {
  for (const std::int32_t cls : changed_) {
    for (const std::int32_t link : links_of(cls)) enter(link);
    if (flows_[cls] > 0) free(cls);
  }
  for (int round = 0;; ++round) {
    if (round == kRounds || (round > 0 && 4 * free_classes_.size() > active_)) free_all_that_are_joined();
    bind();
    fill();
    if (fits()) break;
    for (const std::int32_t link : bound_) links_[link].bound = links_[link].tied = false;
  }
  commit();
  return told_;
}

void FairRates::enter(std::int32_t link) {
  if (links_[link].in_region) return;
  links_[link].in_region = true;
  region_.push_back(link);
}

void FairRates::free(std::int32_t cls) {
  if (free_[cls]) return;
  free_[cls] = 1;
  free_classes_.push_back(cls);
  for (const std::int32_t link : links_of(cls)) enter(link);
}

void FairRates::free_all_that_are_joined() {
  for (std::size_t i = 0; i < region_.size(); ++i) {  // grows as classes lead to further links
    links_[region_[i]].candidate = true;
    for (const Use use : links_[region_[i]].users) free(use.cls);
  }
}

// Which links limit the free classes: those that did limit somebody, those that may, and all of a class that has none of these.
void FairRates::bind() {
  const auto binds = [&](std::int32_t link) { return links_[link].offer != kNoLimit || links_[link].candidate; };
  for (const std::int32_t cls : free_classes_) {
    const auto links = links_of(cls);
    if (std::none_of(links.begin(), links.end(), binds))
      for (const std::int32_t link : links) links_[link].candidate = true;
  }
  bound_.clear(), others_.clear();
  for (const std::int32_t number : region_) {
    if (!binds(number)) continue;
    bound_.push_back(number);
    Link& link = links_[number];
    link.bound = true;
    link.left = link.rate, link.open = link.flows;
    link.next_offer = kNoLimit;
    list_others(link);
  }
}

void FairRates::list_others(Link& link) {
  link.other = others_.size();
  link.free_flows = 0;
  for (const Use use : link.users) {
    if (free_[use.cls]) {
      link.free_flows += flows_[use.cls];
    } else {
      others_.emplace_back(rate_[use.cls], flows_[use.cls]);
    }
  }
  link.other_end = others_.size();
  std::sort(others_.begin() + static_cast<std::ptrdiff_t>(link.other), others_.end());
}

void FairRates::take_out_lower(Link& link) {
  for (; link.other < link.other_end && others_[link.other].first < share(link); ++link.other) {
    link.left -= others_[link.other].first * others_[link.other].second;
    link.open -= others_[link.other].second;
    if (link.open == 0) return;
  }
}

void FairRates::offer(std::int32_t number) {
  Link& link = links_[number];
  if (link.open > 0) take_out_lower(link);
  link.next_offer = link.open > 0 ? share(link) : kNoLimit;
  if (link.free_flows == 0) return;
  shares_.emplace_back(link.next_offer, number);
  std::push_heap(shares_.begin(), shares_.end(), std::greater<>{});
}

// Rates of the free classes on the bound links, beside what the others have.
void FairRates::fill() {
  for (const std::int32_t cls : free_classes_) next_rate_[cls] = 0;
  for (const std::int32_t link : bound_) offer(link);
  while (!shares_.empty()) {
    const std::int64_t smallest = shares_.front().first;
    tied_.clear();
    while (!shares_.empty() && shares_.front().first == smallest) {
      const std::int32_t number = shares_.front().second;
      std::pop_heap(shares_.begin(), shares_.end(), std::greater<>{});
      shares_.pop_back();
      Link& link = links_[number];
      if (link.tied || link.free_flows == 0 || link.next_offer != smallest) continue;
      link.tied = true;
      tied_.push_back(number);
    }
    for (const std::int32_t link : tied_) give(links_[link], smallest);
    for (const std::int32_t number : moved_links_) {
      links_[number].moved = false;
      if (!links_[number].tied) offer(number);
    }
    moved_links_.clear();
  }
}

// `rate` to every free flow of `link` that has none yet.
void FairRates::give(const Link& link, std::int64_t rate) {
  for (const Use use : link.users) {
    if (!free_[use.cls] || next_rate_[use.cls] != 0) continue;
    next_rate_[use.cls] = rate;
    const std::int64_t flows = flows_[use.cls];
    for (const std::int32_t number : links_of(use.cls)) {
      Link& other = links_[number];
      if (!other.bound) continue;
      other.left -= rate * flows;
      other.open -= flows;
      other.free_flows -= flows;
      if (other.moved) continue;
      other.moved = true;
      moved_links_.push_back(number);
    }
  }
}

std::int64_t FairRates::smallest_offer(std::int32_t cls) const {
  std::int64_t smallest = kNoLimit;
  for (const std::int32_t link : links_of(cls))
    smallest = std::min(smallest, links_[link].bound ? links_[link].next_offer : links_[link].offer);
  return smallest;
}

// Whether the new rates go with what was not solved again. What does not go is freed, or made a candidate.
bool FairRates::fits() {
  bool good = true;
  for (const std::int32_t link : region_) links_[link].load = links_[link].used;
  for (const std::int32_t cls : free_classes_) {
    const Load more = static_cast<Load>(next_rate_[cls] - rate_[cls]) * flows_[cls];
    for (const std::int32_t link : links_of(cls)) links_[link].load += more;
  }
  // A link with a unit to spare for each of its flows takes them all out: at each of them its share is at least one unit higher.
  for (const std::int32_t number : region_) {
    Link& link = links_[number];
    if (link.bound || link.rate - link.load >= link.flows) continue;
    link.candidate = true;
    good = false;
  }
  for (const std::int32_t number : bound_) {
    const Link& link = links_[number];
    if (link.next_offer == link.offer) continue;
    for (const Use use : link.users) {
      if (free_[use.cls] || smallest_offer(use.cls) == rate_[use.cls]) continue;
      free(use.cls);
      good = false;
    }
  }
  return good;
}

void FairRates::commit() {
  told_.assign(changed_.begin(), changed_.end());
  for (const std::int32_t cls : free_classes_) {
    if (!touched_[cls] && rate_[cls] != next_rate_[cls]) told_.push_back(cls);
    rate_[cls] = next_rate_[cls];
    free_[cls] = 0;
  }
  for (const std::int32_t cls : changed_) touched_[cls] = 0;
  for (const std::int32_t number : region_) {
    Link& link = links_[number];
    link.used = link.load;
    if (link.bound) link.offer = link.next_offer;
    link.in_region = link.candidate = link.bound = link.tied = false;
  }
  changed_.clear(), region_.clear(), free_classes_.clear();
}

}  // namespace ccl_lab::sim
