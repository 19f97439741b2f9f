// What inputs of direct algorithms have to be like.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "changes.hpp"
#include "pairs.hpp"

namespace ccl_lab::sim {

inline bool good(const PairsInput& in, const PairsOutput& out) {
  const auto all = [](const auto& column, auto is_good) { return std::all_of(column.begin(), column.end(), is_good); };
  const auto time = [](std::int64_t v) { return v >= 0 && v < std::int64_t{1} << 58; };
  if (in.nodes < 1 || in.units < 1 || in.nodes % in.units != 0 || in.group < 1 || in.nics < 0 || in.channels < 1 || !time(in.alpha_ps)) return false;
  const auto units = static_cast<std::size_t>(in.units), ranks = static_cast<std::size_t>(in.group) * units;
  const auto lanes = static_cast<std::size_t>(in.channels * in.group), nics = static_cast<std::size_t>(in.nics) * units;
  for (const auto& column : {in.tx_bytes_per_s, in.tx_latency_ps, in.rx_bytes_per_s, in.rx_latency_ps})
    if (column.size() != nics || !all(column, [](std::int64_t v) { return v >= 0; })) return false;
  for (const auto& column : {in.near_tx_bytes_per_s, in.near_tx_latency_ps, in.near_rx_bytes_per_s, in.near_rx_latency_ps, in.late_ps})
    if (column.size() != ranks || !all(column, [](std::int64_t v) { return v >= 0; })) return false;
  const bool crosses = in.nodes > 1;
  if (in.nic.size() != (crosses ? lanes : 0) || !all(in.nic, [&](std::int32_t v) { return v >= 0 && v < in.nics; })) return false;
  const std::size_t odd = in.odd_node.size();
  if (odd > 0 && (!crosses || in.units != in.nodes || !std::ranges::is_sorted(in.odd_node))) return false;
  if (in.odd_nic.size() != odd * lanes || !all(in.odd_nic, [&](std::int32_t v) { return v >= 0 && v < in.nics; })) return false;
  if (!all(in.odd_node, [&](std::int32_t v) { return v >= 0 && v < in.nodes; }) || in.few < 0) return false;
  if (in.bytes.size() != static_cast<std::size_t>(in.channels) || !all(in.bytes, time) || !all(in.late_ps, time)) return false;
  if (!Changes::good(in.changes, static_cast<std::size_t>(std::max<std::int64_t>(in.links, 0)))) return false;
  for (const auto& ids : {in.tx_link, in.rx_link})
    if (ids.size() != (in.changes.link.empty() ? 0 : nics) || !all(ids, [&](std::int32_t v) { return v >= 0 && v < in.links; })) return false;
  if (!PairTiers::good(in.tiers, in.nodes) || (!in.tiers.latency_ps.empty() && (!crosses || in.units != in.nodes))) return false;
  if (!in.cuts.kind.empty() && (!crosses || odd > 0 || in.cuts.bytes.size() < in.bytes.size())) return false;
  if (!in.cuts.kind.empty() && in.channels > 1 && (!in.copy_ps.empty() || !out.places.empty())) return false;  // lanes in no order of their own
  if (!PairCuts::good(in.cuts, in.units, in.group, in.nics, in.channels)) return false;
  return runs(in.target) && out.arrived_ps.size() == lanes * units && out.left_ps.size() == lanes * units &&
         (out.places.empty() || out.places.size() == lanes * units) &&
         (in.copy_ps.empty() || in.copy_ps.size() == lanes * units) && all(in.copy_ps, time);
}

}  // namespace ccl_lab::sim
