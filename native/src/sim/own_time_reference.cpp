// See own_time_reference.hpp.
#include "own_time_reference.hpp"

#include <algorithm>
#include <limits>

namespace ccl_lab::sim {
namespace {

constexpr std::int64_t kWarmUp = 64;  // strides before the first place, after which what it begins with has been forgotten
constexpr std::int64_t kFar = std::int64_t{1} << 62;

}  // namespace

void Lengths::lay_out(const FollowedUnits& units) {
  const std::size_t each = units.group * units.chains;
  all_ = static_cast<std::int64_t>(units.units * units.group);
  chains_ = units.chains;
  sizes_.clear();
  for (std::size_t u = units.units; u-- > 0;)  // what comes to unit 0 was sent by the last unit, before it by the one before that
    sizes_.insert(sizes_.end(), units.sizes.begin() + static_cast<std::ptrdiff_t>(u * each), units.sizes.begin() + static_cast<std::ptrdiff_t>((u + 1) * each));
}

Reference::Reference(const FollowedUnits& units, const Lengths& lengths, std::size_t unit, const Work& work, std::int64_t stride, bool asks)
    : chains_(units.chains), begin_(work.begin - static_cast<std::int64_t>((units.units - 1) * units.group)), end_(work.end), stride_(stride),
      words_(units.words_alone(unit, work.adds, asks)), asks_(asks), most_memory_(units.chains * units.stations, -kFar) {
  std::vector<std::int64_t> state(units.words), goes(chains_), needed(chains_), gaps(units.most_gaps()), memory_gaps(most_memory_.size(), -kFar);
  const FollowedUnits::Alone alone{goes.data(), needed.data(), gaps.data(), asks ? nullptr : memory_gaps.data()};
  const auto round = [&](std::int64_t place) {
    const std::int64_t* const last = units.pass_alone(unit, work.begin, lengths.at(place), state.data(), alone);
    return static_cast<std::size_t>(last - gaps.data());
  };
  const auto rounds = static_cast<std::size_t>(end_ - begin_);
  states_.reserve((rounds / static_cast<std::size_t>(stride) + 1) * words_.size());
  at_.reserve(rounds);
  needed_.reserve(rounds * chains_);
  goes_.reserve(rounds * chains_);
  for (std::int64_t place = begin_ - kWarmUp * stride; place < begin_; ++place) round(place);
  for (std::int64_t place = begin_; place <= end_ && fits_; ++place) {
    if ((place - begin_) % stride == 0)
      for (const std::size_t word : words_) states_.push_back(state[word]);
    if (place == end_) break;
    note(gaps.data(), round(place), memory_gaps);
    keep(needed, goes, lengths.at(place));
  }
}

// A chain that takes no part in the slice has no times: whatever stands for them is the same for what is needed and what goes.
void Reference::keep(const std::vector<std::int64_t>& needed, const std::vector<std::int64_t>& goes, const std::uint8_t* size) {
  at_.push_back(*std::ranges::max_element(goes));
  const auto after = [&](std::int64_t time, std::size_t c) {
    const std::int64_t far = size[c] == FollowedUnits::kNone ? 0 : time - at_.back();
    fits_ = fits_ && far == static_cast<std::int32_t>(far);
    return static_cast<std::int32_t>(far);
  };
  for (std::size_t c = 0; c < chains_; ++c) {
    needed_.push_back(after(needed[c], c));
    goes_.push_back(after(goes[c], c));
  }
}

void Reference::note(const std::int64_t* gaps, std::size_t count, const std::vector<std::int64_t>& memory_gaps) {
  if (least_.empty()) {
    least_.assign(gaps, gaps + count);
    most_ = least_;
  }
  for (std::size_t i = 0; i < count; ++i) {
    least_[i] = std::min(least_[i], gaps[i]);
    most_[i] = std::max(most_[i], gaps[i]);
  }
  for (std::size_t i = 0; i < memory_gaps.size(); ++i) most_memory_[i] = std::max(most_memory_[i], memory_gaps[i]);
  fits_ = fits_ && std::ranges::all_of(most_memory_, [](std::int64_t most) { return most <= 0; });
}

Lags::Lags(const Reference& sends, const Reference& needs, std::size_t chains, std::int64_t phases)
    : chains_(chains), phases_(phases), begin_(std::max(sends.begin(), needs.begin())) {
  const std::int64_t end = std::min(sends.end(), needs.end());
  if (end <= begin_) return;
  most_.assign((block(end - 1) + 1) * chains, -kFar);
  by_phase_.assign(most_.size() * static_cast<std::size_t>(phases), -kFar);
  for (std::int64_t place = begin_; place < end; ++place) {
    std::int64_t* const most = most_.data() + block(place) * chains;
    std::int64_t* const by_phase = by_phase_.data() + (block(place) * static_cast<std::size_t>(phases) + phase(place)) * chains;
    for (std::size_t c = 0; c < chains; ++c) {
      const std::int64_t lag = sends.goes(place, c) - needs.needed(place, c);
      most[c] = std::max(most[c], lag);
      by_phase[c] = std::max(by_phase[c], lag);
    }
  }
}

bool Lags::in_block(std::int64_t place, const std::vector<std::int64_t>& most) const {
  const std::int64_t* const lags = by_phase_.data() + block(place) * most.size();
  bool early = true;
  for (std::size_t i = 0; i < most.size(); ++i) early &= lags[i] <= most[i];
  return early;
}

std::int64_t Lags::most(std::int64_t place, std::int64_t last, std::size_t chain) const {
  std::int64_t found = -kFar;
  for (std::size_t b = block(place); b <= block(last); ++b) found = std::max(found, most_[b * chains_ + chain]);
  return found;
}

}  // namespace ccl_lab::sim
