#include "gathers.hpp"

#include <algorithm>
#include <new>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "exact.hpp"
#include "order.hpp"
#include "path.hpp"

namespace ccl_lab::sim {
namespace {

struct Put {
  std::int32_t turn, op, slice, owner, to;
};

struct Slice {
  std::int64_t batch;
  std::int32_t slice, owner;
};

// Of an owner: where its slices of node 0 are, and how far those of the next node lie behind them.
struct Ends {
  std::int64_t first, each;
};

class Gathers {
 public:
  Gathers(const GathersInput& in, std::span<std::int64_t> finish_ps)
      : in_(in), finish_(finish_ps), group_(static_cast<std::int32_t>(in.group)), turns_(static_cast<std::size_t>(2 * in.group)),
        free_(static_cast<std::size_t>(2 * in.group)) {
    owners_ = static_cast<std::int32_t>(in.owners.size() / static_cast<std::size_t>(in.classes));
    std::int64_t first = 0;
    for (const std::int64_t rows : in.rows) {
      ends_.push_back({first, rows > 1 ? in.slices : 0});
      first += rows * in.slices;
    }
    lines_.resize(static_cast<std::size_t>(in.classes));
    const std::size_t sizes = in.bytes.size();
    busy_.resize(static_cast<std::size_t>(in.classes * in.group) * sizes);
    for (std::size_t port = 0; port < in.bytes_per_s.size(); ++port)
      for (std::size_t i = 0; i < sizes; ++i)
        busy_[port * sizes + i] = (in.bytes[i] > 0 ? in.alpha_ps : 0) + duration_ps(in.bytes[i], in.bytes_per_s[port]);
  }

  // All nodes. Where what comes in goes on from node to node in arithmetic progressions, two of them are evaluated, and those behind them follow
  // as far as every decision stays what it was (path.hpp).
  void all() {
    for (std::int64_t first = 0, last = 0, end = 0; first < in_.nodes; first = last) {
      if (first + 1 >= end) end = end_of_progression(first);
      const std::int64_t alike = end - first;
      Path paths[2];
      for (last = first; last < first + std::min<std::int64_t>(alike, 2); ++last) node(last, alike > 2 ? &paths[last - first] : nullptr);
      if (alike <= 2) continue;
      const std::int64_t followers = std::min(alike - 2, paths[1].repeats_since(paths[0]));
      for (std::int64_t i = 0; i < followers; ++i) follow(last++);
    }
  }

 private:
  // The first node behind this one that is not of its class, or whose numbers do not go on as from it to the next one.
  [[nodiscard]] std::int64_t end_of_progression(std::int64_t first) const {
    const auto goes_on = [](const std::int64_t* column, std::int64_t each, std::int64_t node) {
      const std::int64_t* const now = column + node * each;
      std::int64_t differs = 0;
      for (std::int64_t i = 0; i < each; ++i) differs |= (now[i] - now[i - each]) ^ (now[i - each] - now[i - 2 * each]);
      return differs == 0;
    };
    const auto class_of = [&](std::int64_t node) { return in_.class_of[static_cast<std::size_t>(node)]; };
    const auto ends_go_on = [&](const std::span<const std::int64_t> column, std::int64_t node) {
      return std::all_of(ends_.begin(), ends_.end(), [&](const Ends& at) { return at.each == 0 || goes_on(column.data() + at.first, at.each, node); });
    };
    std::int64_t next = first + 1;
    for (; next < in_.nodes && class_of(next) == class_of(first); ++next)
      if (next > first + 1 && !(ends_go_on(in_.end_ps, next) && ends_go_on(in_.end_batch, next) && goes_on(finish_.data(), in_.group, next))) break;
    return next;
  }

  void follow(std::int64_t node) {
    std::int64_t* const now = finish_.data() + node * in_.group;
    for (std::int32_t r = 0; r < group_; ++r) now[r] = 2 * now[r - group_] - now[r - 2 * group_];
  }

  // What decides is noted in `path`, if there is one.
  void node(std::int64_t node, Path* path) {
    node_ = node;
    path_ = path;
    class_ = in_.class_of[static_cast<std::size_t>(node)];
    for (std::int32_t r = 0; r < group_; ++r) {
      free_[static_cast<std::size_t>(r)] = in_.tx_free_ps[port(r)];
      free_[static_cast<std::size_t>(group_ + r)] = in_.rx_free_ps[port(r)];
    }
    ended_.clear();
    for (std::int32_t o = 0; o < owners_; ++o)
      for (std::int32_t s = 0; s < in_.slices; ++s) ended_.push_back({in_.end_batch[end_of(o, s)], s, o});
    std::sort(ended_.begin(), ended_.end(), [](const Slice& a, const Slice& b) {
      return std::tie(a.batch, a.slice, a.owner) < std::tie(b.batch, b.slice, b.owner);
    });
    for (std::size_t i = 0; path_ && i < ended_.size(); ++i) {
      path_->fixed(ended_[i].owner * in_.slices + ended_[i].slice);
      if (i > 0) path_->sign(ended_[i].batch - ended_[i - 1].batch);
    }
    for (std::size_t first = 0, last = 0; first < ended_.size(); first = last) {
      while (last < ended_.size() && ended_[last].batch == ended_[first].batch) ++last;
      batch({ended_.data() + first, last - first});
    }
  }

  [[nodiscard]] std::int64_t larger(std::int64_t a, std::int64_t b) {
    if (path_) path_->sign(a - b);
    return std::max(a, b);
  }
  [[nodiscard]] std::size_t port(std::int32_t rank) const { return static_cast<std::size_t>(class_ * in_.group + rank); }
  [[nodiscard]] std::int32_t rank_of(std::int32_t owner) const {
    return static_cast<std::int32_t>(in_.owners[static_cast<std::size_t>(class_ * owners_ + owner)]);
  }
  // Where end_ps and end_batch of this node have a slice.
  [[nodiscard]] std::size_t end_of(std::int32_t owner, std::int32_t slice) const {
    const Ends& at = ends_[static_cast<std::size_t>(owner)];
    return static_cast<std::size_t>(at.first + node_ * at.each + slice);
  }

  // Slices that ended in one batch, by (slice, owner). The order of their puts depends on which owners these are, and is kept.
  void batch(std::span<const Slice> slices) {
    const bool one_slice = slices.front().slice == slices.back().slice && owners_ <= 64;
    if (!one_slice) {
      line_up(slices);
      for (const Put& put : puts_) take(put, put.slice);
      return;
    }
    std::uint64_t ended = 0;
    for (const Slice& each : slices) ended |= std::uint64_t{1} << each.owner;
    const auto [known, is_new] = lines_[static_cast<std::size_t>(class_)].try_emplace(ended);
    if (is_new) {
      line_up(slices);
      known->second = puts_;
    }
    for (const Put& put : known->second) take(put, slices.front().slice);
  }

  // Puts are ops slice by slice, distance by distance, owner by owner; they are served by (turn, op).
  void line_up(std::span<const Slice> slices) {
    puts_.clear();
    turns_.clear();
    for (std::size_t first = 0, last = 0; first < slices.size(); first = last) {
      while (last < slices.size() && slices[last].slice == slices[first].slice) ++last;
      for (std::int32_t distance = 1; distance < group_; ++distance) {
        for (std::size_t i = first; i < last; ++i) {
          const std::int32_t owner = slices[i].owner, from = rank_of(owner), to = (from + distance) % group_;
          const auto turn = static_cast<std::int32_t>(turns_.next(from, group_ + to));
          puts_.push_back({turn, static_cast<std::int32_t>(puts_.size()), slices[i].slice, owner, to});
        }
      }
    }
    const auto earlier = [](const Put& a, const Put& b) { return std::tie(a.turn, a.op) < std::tie(b.turn, b.op); };
    std::sort(puts_.begin(), puts_.end(), earlier);
  }

  void take(const Put& put, std::int32_t slice) {
    const auto size = static_cast<std::size_t>(put.owner * in_.slices + slice), sizes = in_.bytes.size();
    const std::int32_t from = rank_of(put.owner);
    std::int64_t &tx = free_[static_cast<std::size_t>(from)], &rx = free_[static_cast<std::size_t>(group_ + put.to)];
    const std::int64_t start = larger(larger(in_.end_ps[end_of(put.owner, slice)], in_.late_ps[port(put.to)]), larger(tx, rx));
    tx = start + busy_[port(from) * sizes + size];
    rx = start + busy_[port(put.to) * sizes + size];
    const std::int64_t left = larger(tx, rx);
    raise(from, left);
    raise(put.to, left + in_.tx_latency_ps[port(from)] + in_.rx_latency_ps[port(put.to)]);
  }

  void raise(std::int32_t rank, std::int64_t ps) {
    std::int64_t& finish = finish_[static_cast<std::size_t>(node_ * in_.group + rank)];
    finish = larger(finish, ps);
  }

  const GathersInput& in_;
  const std::span<std::int64_t> finish_;
  const std::int32_t group_;
  std::int64_t node_ = 0, class_ = 0;
  Path* path_ = nullptr;
  std::int32_t owners_ = 0;
  std::vector<Ends> ends_;          // of each owner
  std::vector<std::int64_t> busy_;  // [classes][group][owners][slices]: of a port, for each size
  Turns turns_;
  std::vector<std::int64_t> free_;  // sending sides, then receiving sides
  std::vector<Slice> ended_;
  std::vector<Put> puts_;
  std::vector<std::unordered_map<std::uint64_t, std::vector<Put>>> lines_;  // of a class, by the owners whose slice ended
};

bool good(const GathersInput& in, std::span<const std::int64_t> finish_ps) {
  const auto rows = static_cast<std::size_t>(in.nodes * in.group), ports = static_cast<std::size_t>(in.classes * in.group);
  if (in.nodes < 1 || in.group < 1 || in.slices < 1 || in.classes < 1 || in.group > 1 << 15) return false;
  const std::size_t owners = in.owners.size() / static_cast<std::size_t>(in.classes);
  const std::size_t sizes = owners * static_cast<std::size_t>(in.slices);
  if (in.owners.size() != owners * static_cast<std::size_t>(in.classes) || in.rows.size() != owners) return false;
  std::size_t ends = 0;
  for (const std::int64_t rows : in.rows) {
    if (rows != 1 && rows != in.nodes) return false;
    ends += static_cast<std::size_t>(rows * in.slices);
  }
  if (!std::all_of(in.owners.begin(), in.owners.end(), [&](auto rank) { return rank >= 0 && rank < in.group; })) return false;
  if (in.bytes.size() != sizes || in.end_ps.size() != ends || in.end_batch.size() != ends || finish_ps.size() != rows) return false;
  for (const auto& column : {in.bytes_per_s, in.late_ps, in.tx_latency_ps, in.rx_latency_ps, in.tx_free_ps, in.rx_free_ps})
    if (column.size() != ports) return false;
  return in.class_of.size() == static_cast<std::size_t>(in.nodes) &&
         std::all_of(in.bytes_per_s.begin(), in.bytes_per_s.end(), [](auto rate) { return rate > 0; }) &&
         std::all_of(in.class_of.begin(), in.class_of.end(), [&](auto c) { return c >= 0 && c < in.classes; });
}

}  // namespace

bool simulate_gathers(const GathersInput& in, std::span<std::int64_t> finish_ps) noexcept try {
  if (!good(in, finish_ps)) return false;
  Gathers(in, finish_ps).all();
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

}  // namespace ccl_lab::sim
