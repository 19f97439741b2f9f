#include "sharing_rates.hpp"

#include <algorithm>
#include <functional>

namespace ccl_lab::sim {

FairRates::FairRates(std::span<const std::int32_t> routes, std::size_t width, std::span<const std::int64_t> link_bytes_per_s) {
  const std::size_t n = width == 0 ? 0 : routes.size() / width;
  std::vector<std::int32_t> number(link_bytes_per_s.size(), -1);
  first_.assign(1, 0);
  slowest_.assign(n, 0);
  for (std::size_t cls = 0; cls < n; ++cls) {
    for (const std::int32_t link : routes.subspan(cls * width, width)) {
      if (link < 0 || link_bytes_per_s[link] >= kFastest) continue;
      if (number[link] < 0) {
        number[link] = static_cast<std::int32_t>(rate_of_link_.size());
        rate_of_link_.push_back(link_bytes_per_s[link] * kUnits);
      }
      const std::int32_t own = number[link];
      if (std::find(link_of_.begin() + static_cast<std::ptrdiff_t>(first_.back()), link_of_.end(), own) != link_of_.end()) continue;
      link_of_.push_back(own);
      slowest_[cls] = slowest_[cls] == 0 ? rate_of_link_[own] : std::min(slowest_[cls], rate_of_link_[own]);
    }
    first_.push_back(link_of_.size());
  }
  flows_.assign(n, 0), rate_.assign(n, 0), next_rate_.assign(n, 0), touched_.assign(n, 0), reached_.assign(n, 0);
  place_.assign(link_of_.size(), 0);
  const std::size_t links = rate_of_link_.size();
  users_.resize(links), flows_on_.assign(links, 0), left_.assign(links, 0), open_.assign(links, 0);
  link_reached_.assign(links, 0), moved_.assign(links, 0);
}

void FairRates::touch(std::int32_t cls) {
  if (touched_[cls]) return;
  touched_[cls] = 1;
  changed_.push_back(cls);
}

void FairRates::add(std::int32_t cls) {
  touch(cls);
  const bool first = flows_[cls]++ == 0;
  for (std::size_t at = first_[cls]; at < first_[cls + 1]; ++at) {
    const std::int32_t link = link_of_[at];
    ++flows_on_[link];
    if (!first) continue;
    place_[at] = users_[link].size();
    users_[link].push_back({cls, static_cast<std::int32_t>(at)});
  }
}

void FairRates::remove(std::int32_t cls) {
  touch(cls);
  const bool last = --flows_[cls] == 0;
  for (std::size_t at = first_[cls]; at < first_[cls + 1]; ++at) {
    const std::int32_t link = link_of_[at];
    --flows_on_[link];
    if (!last) continue;
    const Use moved = users_[link].back();
    users_[link][place_[at]] = moved;
    place_[moved.at] = place_[at];
    users_[link].pop_back();
  }
}

std::span<const std::int32_t> FairRates::settle() {
  reach();
  fill();
  for (const std::int32_t cls : changed_) {
    touched_[cls] = 0;
    if (flows_[cls] == 0) rate_[cls] = 0;
  }
  // `changed_` holds the touched classes; the others that were reached are added where their rate is a new one.
  for (const std::int32_t cls : reached_classes_) {
    const bool listed = reached_[cls] == 2;
    reached_[cls] = 0;
    if (!listed && rate_[cls] != next_rate_[cls]) changed_.push_back(cls);
    rate_[cls] = next_rate_[cls];
  }
  for (const std::int32_t link : links_) link_reached_[link] = 0;
  links_.clear(), reached_classes_.clear();
  tied_.assign(changed_.begin(), changed_.end());
  changed_.clear();
  return tied_;
}

// All links and classes that can feel what changed: those joined to it by flows.
void FairRates::reach() {
  for (const std::int32_t cls : changed_) {
    if (flows_[cls] > 0) {
      reached_[cls] = 2;
      reached_classes_.push_back(cls);
    }
    reach_links(cls);
  }
  for (std::size_t i = 0; i < links_.size(); ++i)
    for (const Use use : users_[links_[i]]) {
      if (reached_[use.cls]) continue;
      reached_[use.cls] = 1;
      reached_classes_.push_back(use.cls);
      reach_links(use.cls);
    }
}

void FairRates::reach_links(std::int32_t cls) {
  for (std::size_t at = first_[cls]; at < first_[cls + 1]; ++at) {
    const std::int32_t link = link_of_[at];
    if (link_reached_[link]) continue;
    link_reached_[link] = 1;
    links_.push_back(link);
  }
}

void FairRates::offer(std::int32_t link) {
  if (open_[link] == 0) return;
  shares_.emplace_back(share(link), link);
  std::push_heap(shares_.begin(), shares_.end(), std::greater<>{});
}

void FairRates::fill() {
  for (const std::int32_t cls : reached_classes_) next_rate_[cls] = 0;
  for (const std::int32_t link : links_) {
    left_[link] = rate_of_link_[link];
    open_[link] = flows_on_[link];
    offer(link);
  }
  while (!shares_.empty()) {
    const std::int64_t smallest = shares_.front().first;
    tied_.clear();
    while (!shares_.empty() && shares_.front().first == smallest) {
      const std::int32_t link = shares_.front().second;
      std::pop_heap(shares_.begin(), shares_.end(), std::greater<>{});
      shares_.pop_back();
      if (open_[link] > 0 && share(link) == smallest) tied_.push_back(link);
    }
    for (const std::int32_t link : tied_) give(link, smallest);
    for (const std::int32_t link : moved_links_) {
      moved_[link] = 0;
      offer(link);
    }
    moved_links_.clear();
  }
}

// `rate` to every flow of `link` that has none yet.
void FairRates::give(std::int32_t link, std::int64_t rate) {
  for (const Use use : users_[link]) {
    if (next_rate_[use.cls] != 0) continue;
    next_rate_[use.cls] = rate;
    for (std::size_t at = first_[use.cls]; at < first_[use.cls + 1]; ++at) {
      const std::int32_t other = link_of_[at];
      left_[other] -= rate * flows_[use.cls];
      open_[other] -= flows_[use.cls];
      if (moved_[other]) continue;
      moved_[other] = 1;
      moved_links_.push_back(other);
    }
  }
}

}  // namespace ccl_lab::sim
