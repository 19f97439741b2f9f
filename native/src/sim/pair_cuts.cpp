// See pair_cuts.hpp.
#include "pair_cuts.hpp"

#include <algorithm>
#include <utility>

#include "order.hpp"

namespace ccl_lab::sim {

bool PairCuts::good(const PairCutsInput& in, std::int64_t units, std::int64_t group, std::int64_t nics, std::int64_t channels) {
  if (in.kind.empty()) return in.left.empty();
  const auto below = [](std::span<const std::int32_t> column, std::size_t end) {
    return std::ranges::all_of(column, [&](std::int32_t v) { return v >= 0 && static_cast<std::size_t>(v) < end; });
  };
  const std::size_t kinds = in.left.size(), row = kinds * static_cast<std::size_t>(group);
  if (in.kind.size() != static_cast<std::size_t>(units) || kinds == 0 || !below(in.kind, kinds)) return false;
  if (in.nic.empty() || in.nic.size() % row != 0 || !below(in.nic, static_cast<std::size_t>(nics))) return false;
  if (in.first.size() != row + 1 || in.first[0] != 0 || !std::ranges::is_sorted(in.first)) return false;
  if (in.channel.size() != static_cast<std::size_t>(in.first[row]) || in.size.size() != in.channel.size()) return false;
  for (std::size_t l = 0; l < static_cast<std::size_t>(group); ++l) {  // of kind 0 by channel
    if (in.first[l + 1] - in.first[l] != channels) return false;
    for (std::int32_t i = in.first[l]; i < in.first[l + 1]; ++i)
      if (in.size[static_cast<std::size_t>(i)] != i - in.first[l]) return false;
  }
  const auto time = [](std::int64_t v) { return v >= 0 && v < std::int64_t{1} << 58; };
  if (in.near_bytes.empty() || in.near_bytes.size() > static_cast<std::size_t>(channels)) return false;
  return below(in.channel, in.nic.size() / row) && below(in.size, in.bytes.size()) && std::ranges::all_of(in.bytes, time) &&
         std::ranges::all_of(in.near_bytes, time);
}

std::vector<CutPut> PairCuts::puts(std::size_t from, std::size_t to) const {
  std::vector<CutPut> found;
  std::vector<std::pair<std::int64_t, CutPut>> batch;
  Turns turns(2 * nics_);
  for (std::size_t k = 0; k < group_; ++k) {
    for (const Piece& piece : round(from, to, k)) {
      const std::size_t peer = (piece.rank + k) % group_, a = nic(from, piece.channel, piece.rank), b = nic(to, piece.channel, peer);
      const std::int64_t turn = turns.next(static_cast<std::int32_t>(a), static_cast<std::int32_t>(nics_ + b));
      batch.emplace_back(turn, CutPut{piece.rank, peer, a, b, piece.size});
    }
    if (in_.by_node && k + 1 < group_) continue;
    std::ranges::stable_sort(batch, {}, &std::pair<std::int64_t, CutPut>::first);
    for (const auto& [turn, put] : batch) found.push_back(put);
    batch.clear();
    turns.clear();
  }
  return found;
}

std::vector<PairCuts::Piece> PairCuts::round(std::size_t from, std::size_t to, std::size_t k) const {
  const bool by_sender = in_.left[from] <= in_.left[to];
  std::vector<Piece> found;
  for (std::size_t rank = 0; rank < group_; ++rank) {
    const std::size_t rules = by_sender ? from * group_ + rank : to * group_ + (rank + k) % group_;
    for (auto i = static_cast<std::size_t>(in_.first[rules]); i < static_cast<std::size_t>(in_.first[rules + 1]); ++i)
      found.push_back({rank, static_cast<std::size_t>(in_.channel[i]), static_cast<std::size_t>(in_.size[i])});
  }
  if (in_.by_node) std::ranges::stable_sort(found, {}, &Piece::channel);
  return found;
}

}  // namespace ccl_lab::sim
