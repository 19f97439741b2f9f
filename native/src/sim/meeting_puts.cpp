// See meeting_puts.hpp.
#include "meeting_puts.hpp"

#include <algorithm>
#include <bit>
#include <new>
#include <numeric>
#include <tuple>
#include <vector>

namespace ccl_lab::sim {
namespace {

constexpr std::int64_t kPlaces = std::int64_t{1} << 20;

bool among(const auto& column, std::size_t rows, std::size_t count) {
  return column.size() == rows &&
         std::ranges::all_of(column, [&](auto v) { return v >= 0 && static_cast<std::size_t>(v) < count; });
}

// Turns of one batch that NICs have given away: a bit each.
class Turns {
 public:
  explicit Turns(std::size_t nodes) : used_(2 * nodes) {}

  std::int64_t next(std::size_t tx, std::size_t rx) {
    auto &a = used_[2 * tx], &b = used_[2 * rx + 1];
    for (const std::size_t side : {2 * tx, 2 * rx + 1})
      if (used_[side].empty()) touched_.push_back(side);
    std::size_t word = 0;
    const auto taken = [&](std::size_t i) { return (i < a.size() ? a[i] : 0) | (i < b.size() ? b[i] : 0); };
    while (~taken(word) == 0) ++word;
    const int bit = std::countr_one(taken(word));
    for (auto* side : {&a, &b}) {
      if (side->size() <= word) side->resize(word + 1, 0);
      (*side)[word] |= std::uint64_t{1} << bit;
    }
    return static_cast<std::int64_t>(64 * word) + bit;
  }

  void clear() {
    for (const std::size_t side : touched_) used_[side].clear();
    touched_.clear();
  }

 private:
  std::vector<std::vector<std::uint64_t>> used_;
  std::vector<std::size_t> touched_;
};

}  // namespace

MeetingStatus order_puts(const PutsInput& in, std::int64_t nodes, std::span<const std::int64_t> batch, std::span<std::int32_t> order) noexcept try {
  const std::size_t rows = order.size(), count = nodes < 0 ? 0 : static_cast<std::size_t>(nodes);
  if (!among(in.source, rows, count) || !among(in.to, rows, count) || batch.size() != rows) return MeetingStatus::bad_input;
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, [&](std::int32_t op) { return std::tuple(batch[op], op); });
  std::vector<std::int64_t> turn(rows);
  Turns turns(count);
  for (std::size_t i = 0; i < rows; ++i) {
    if (i > 0 && batch[order[i]] != batch[order[i - 1]]) turns.clear();
    turn[order[i]] = turns.next(static_cast<std::size_t>(in.source[order[i]]), static_cast<std::size_t>(in.to[order[i]]));
  }
  std::ranges::sort(order, {}, [&](std::int32_t op) { return std::tuple(batch[op], turn[op], op); });
  return MeetingStatus::ok;
} catch (const std::bad_alloc&) {
  return MeetingStatus::out_of_memory;
}

MeetingStatus serve_puts(const PutsInput& in, std::span<const std::int32_t> order, std::span<std::int64_t> tx, std::span<std::int64_t> rx,
                         std::span<std::int64_t> left) noexcept {
  const std::size_t rows = left.size();
  if (!among(in.source, rows, tx.size()) || !among(in.to, rows, rx.size()) || !among(order, order.size(), rows) || in.ready.size() != rows ||
      in.tx_for.size() != rows || in.rx_for.size() != rows)
    return MeetingStatus::bad_input;
  for (const std::int32_t put : order) {
    std::int64_t &a = tx[in.source[put]], &b = rx[in.to[put]];
    const std::int64_t start = std::max({in.ready[put], a, b});
    a = start + in.tx_for[put];
    b = start + in.rx_for[put];
    left[put] = std::max(a, b);
  }
  return MeetingStatus::ok;
}

MeetingStatus pass_batches_along(std::span<std::int64_t> batch, std::span<std::int64_t> free, std::span<const std::int64_t> ticks,
                                 std::span<std::int64_t> came) noexcept {
  if (free.size() != batch.size() || ticks.size() != came.size()) return MeetingStatus::bad_input;
  for (std::size_t v = 0; v < batch.size(); ++v) {
    for (std::size_t k = 0; k < came.size(); ++k) {
      batch[v] = std::max(batch[v] + 1, came[k]) + 1;
      came[k] = free[v] = std::max(batch[v] & ~(kPlaces - 1), free[v]) + ticks[k];
    }
  }
  return MeetingStatus::ok;
}

MeetingStatus pass_times_along(const TimeSweep& in) noexcept {
  const std::size_t nodes = in.clock.size(), chunks = in.came.size();
  if (in.tx.size() != nodes || in.rx.size() != nodes || in.latency_ps.size() != nodes || chunks == 0 || in.nic.size() % chunks ||
      !among(in.tx_kind, nodes, in.nic.size() / chunks) || !among(in.rx_kind, nodes, in.nic.size() / chunks))
    return MeetingStatus::bad_input;
  for (std::size_t v = 0; v < nodes; ++v) {
    const auto tx_for = in.nic.subspan(static_cast<std::size_t>(in.tx_kind[v]) * chunks, chunks);
    const auto rx_for = in.nic.subspan(static_cast<std::size_t>(in.rx_kind[v]) * chunks, chunks);
    for (std::size_t k = 0; k < chunks; ++k) {
      in.clock[v] = std::max(in.clock[v], in.came[k]);
      const std::int64_t start = std::max({in.clock[v], in.tx[v], in.rx[v]});
      in.tx[v] = start + tx_for[k];
      in.rx[v] = start + rx_for[k];
      in.came[k] = std::max(in.tx[v], in.rx[v]) + in.latency_ps[v];
    }
  }
  return MeetingStatus::ok;
}

}  // namespace ccl_lab::sim
