#include "trees.hpp"

#include <algorithm>
#include <bit>
#include <memory>
#include <new>
#include <numeric>
#include <unordered_map>
#include <utility>
#include <vector>

#include "changes.hpp"
#include "exact.hpp"
#include "interned.hpp"
#include "tree_unit.hpp"

namespace ccl_lab::sim {
namespace {

constexpr std::int32_t kUnasked = -2;
constexpr std::int64_t kLatest = std::int64_t{1} << 58;
constexpr std::int64_t kLongest = std::int64_t{1} << 46;        // of an op, a latency
constexpr std::size_t kMostBytes = 96'000'000;  // of states that nodes may be in again, beyond those that they are in
constexpr std::size_t kMostInside = 200'000, kMostAcross = 300'000;  // results that are kept

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

// Numbers for vectors of numbers.
class Numbers {
 public:
  std::int32_t operator()(const std::vector<std::int64_t>& columns, bool& added) {
    std::uint64_t hash = columns.size();
    for (const std::int64_t column : columns) hash = mixed(hash, static_cast<std::uint64_t>(column));
    for (auto [found, end] = ids_.equal_range(hash); found != end; ++found)
      if (all_[at(found->second)] == columns) return added = false, found->second;
    const auto id = static_cast<std::int32_t>(all_.size());
    all_.push_back(columns);
    ids_.emplace(hash, id);
    added = true;
    return id;
  }

 private:
  std::unordered_multimap<std::uint64_t, std::int32_t> ids_;
  std::vector<std::vector<std::int64_t>> all_;
};

// The puts of all slices from one node to another.
struct Crossing {
  struct Put {
    std::int64_t slice, tx, rx;  // which, and where its NICs are among those that its nodes use
    std::int64_t tx_bytes_per_s, rx_bytes_per_s, latency_ps;
    int turn;
  };
  std::vector<Put> puts;  // in the order of turns
  std::int64_t tree = 0;
};

struct Edge {
  std::int32_t from, to, crossing;
  std::int64_t begins;
  std::int32_t tree;
  bool down;
  bool changes = false;  // a NIC's rate, in time
};

struct Node {
  std::int32_t kind = -1;
  std::int64_t latest_ps = 0;  // when the last of its ranks enters
  Shifted state, tx, rx;       // tx, rx: when the NICs that it sends and receives on are free
  std::array<Shifted, 4> inbox;
};

class Rounds {
 public:
  Rounds(const TreesInput& in, TreesOutput& out)
      : in_(in), out_(out), sizes_{in.count, in.itemsize, in.slices, in.depth}, changes_(in.changes, in.bytes_per_s.size()), nodes_(at(in.nodes)),
        scratch_(at(in.slices)) {
    for (auto& each : came_) each.resize(at(in.slices));
  }

  TreesStatus run() {
    if (const TreesStatus status = begin(); status != TreesStatus::ok) return status;
    out_.rounds = in_.depth + 2 * height_ - 1;
    for (std::int64_t now = 0; now < out_.rounds; ++now) {
      for (Node& node : nodes_) node.inbox.fill({});
      for (std::size_t step = 0; step < 4; ++step)
        for (const Edge& edge : edges_[step])
          if (now >= edge.begins && now < edge.begins + in_.depth) cross(edge, step, now - edge.begins);
      for (std::size_t node = 0; node < nodes_.size(); ++node) {
        if (!inside(node, now)) return TreesStatus::turns;
        tidy();
      }
      for (const Node& node : nodes_)
        if (too_late_ || node.state.base > kLatest || node.tx.base > kLatest || node.rx.base > kLatest) return TreesStatus::overflow;
    }
    return TreesStatus::ok;
  }

 private:
  [[nodiscard]] std::int64_t ranks(std::int64_t node) const { return in_.first_rank[at(node) + 1] - in_.first_rank[at(node)]; }
  [[nodiscard]] std::int32_t parent(std::int64_t tree, std::int64_t node) const { return in_.parent[at(tree * in_.nodes + node)]; }
  [[nodiscard]] std::int64_t level(std::int64_t tree, std::int64_t node) const { return in_.level[at(tree * in_.nodes + node)]; }
  [[nodiscard]] std::int64_t entry(std::int64_t node, std::int64_t slice) const {
    return in_.first_rank[at(node)] + slice * ranks(node) / in_.slices;
  }

  TreesStatus begin() {
    for (std::int64_t node = 0; node < in_.nodes; ++node) {
      if (ranks(node) < 1) return TreesStatus::unlike;
      for (std::int64_t tree = 0; tree < 2; ++tree) height_ = std::max(height_, level(tree, node) + ranks(node) - 1);
    }
    if (!connect()) return TreesStatus::unlike;
    if (const TreesStatus status = begin_inside(); status != TreesStatus::ok) return status;
    return begin_across();
  }

  // Edges by step. False where a node has two in a step that begin, or end, there.
  bool connect() {
    std::array<std::vector<bool>, 4> sends, hears;
    for (auto* each : {&sends, &hears})
      for (auto& step : *each) step.assign(nodes_.size(), false);
    for (std::int64_t tree = 0; tree < 2; ++tree)
      for (std::int64_t node = 0; node < in_.nodes; ++node) {
        const std::int64_t above = parent(tree, node), color = in_.color[at(tree * in_.nodes + node)];
        if (above < 0) continue;
        if (above >= in_.nodes || color < 0 || color > 1 || level(tree, node) != level(tree, above) + 1) return false;
        const auto low = static_cast<std::int32_t>(node), high = static_cast<std::int32_t>(above);
        for (const bool down : {false, true}) {
          const auto step = at(2 * down + color);
          const std::int32_t from = down ? high : low, to = down ? low : high;
          if (sends[step][at(from)] || hears[step][at(to)]) return false;
          sends[step][at(from)] = hears[step][at(to)] = true;
          const std::int64_t begins = down ? level(tree, node) + height_ - 1 : height_ - level(tree, node);
          edges_[step].push_back({from, to, -1, begins, static_cast<std::int32_t>(tree), down});
        }
      }
    return true;
  }

  TreesStatus begin_inside() {
    std::vector<TreeKind> kinds(nodes_.size());
    for (std::size_t step = 0; step < 2; ++step)
      for (const Edge& edge : edges_[step]) kinds[at(edge.to)].child[at(edge.tree)][step] = true;
    Numbers numbers;
    std::vector<std::int64_t> state, late;
    const std::int64_t all = in_.first_rank.back();
    for (std::int64_t node = 0; node < in_.nodes; ++node) {
      TreeKind& kind = kinds[at(node)];
      kind.ranks = ranks(node);
      for (std::int64_t tree = 0; tree < 2; ++tree) {
        kind.level[at(tree)] = level(tree, node);
        kind.color[at(tree)] = parent(tree, node) < 0 ? -1 : in_.color[at(tree * in_.nodes + node)];
      }
      for (std::int64_t rank = in_.first_rank[at(node)]; rank < in_.first_rank[at(node) + 1]; ++rank)
        for (const std::int64_t column : {in_.bytes_per_s[at(rank)], in_.bytes_per_s[at(all + rank)], in_.bytes_per_s[at(2 * all + rank)],
                                          in_.latency_ps[at(rank)], in_.latency_ps[at(all + rank)]})
          kind.links.push_back(column);
      bool added = false;
      Node& made = nodes_[at(node)];
      made.kind = numbers(kind.columns(), added);
      if (added) units_.push_back(std::make_unique<TreeUnit>(std::move(kind), sizes_, height_, in_.alpha_ps));
      const TreeUnit& unit = *units_[at(made.kind)];
      if (added && unit.longest_ps() > kLongest) return TreesStatus::overflow;
      const auto enters = in_.late_ps.subspan(at(in_.first_rank[at(node)]), at(ranks(node)));
      made.latest_ps = *std::max_element(enters.begin(), enters.end());
      if (made.latest_ps > kLatest / 4) return TreesStatus::overflow;
      state.assign(unit.size(), 0);
      unit.enter(enters, state);
      made.state = keep(made.kind, state);
    }
    std::size_t most = 0;
    for (const auto& unit : units_) most = std::max(most, unit->size());
    states_.reserve(std::min(kMostBytes / 8, most * at(64 * in_.nodes)) + most * nodes_.size());  // grown by halves it would be there twice
    out_.kinds = static_cast<std::int64_t>(units_.size());
    return TreesStatus::ok;
  }

  // Of an edge: which of the four channels its puts have. A root puts down in the channel in which it added.
  [[nodiscard]] std::int64_t channel(const Edge& edge) const {
    return 2 * edge.tree + (edge.down && parent(edge.tree, edge.from) >= 0);
  }
  [[nodiscard]] std::int64_t nic(std::int64_t node, std::int64_t channel, std::int64_t slice) const {
    return in_.nic[at((node * 4 + channel) * in_.slices + slice)];
  }

  // Which NICs nodes send and receive on, in the order of their numbers; then the puts of each edge.
  TreesStatus begin_across() {
    const std::size_t nics = at(in_.nodes * in_.nics);
    std::array<std::vector<std::int32_t>, 2> place{std::vector<std::int32_t>(nics, -1), std::vector<std::int32_t>(nics, -1)};
    for (const auto& step : edges_)
      for (const Edge& edge : step)
        for (std::int64_t slice = 0; slice < in_.slices; ++slice)
          for (const bool receives : {false, true}) {
            const std::int64_t node = receives ? edge.to : edge.from, which = nic(node, channel(edge), slice);
            if (which >= in_.nics) return TreesStatus::unlike;
            place[receives][at(node * in_.nics + which)] = 0;
          }
    std::vector<std::int64_t> free;
    for (std::int64_t node = 0; node < in_.nodes; ++node)
      for (const bool receives : {false, true}) {
        std::int32_t used = 0;
        for (std::int64_t i = 0; i < in_.nics; ++i)
          if (std::int32_t& found = place[receives][at(node * in_.nics + i)]; found == 0) found = used++;
        // A rank by itself sends what it has as soon as it enters; elsewhere channels come to their first put later than that.
        free.assign(at(used), ranks(node) == 1 ? in_.late_ps[at(in_.first_rank[at(node)])] : 0);
        (receives ? nodes_[at(node)].rx : nodes_[at(node)].tx) = small_.intern(0, free);
      }
    Numbers numbers;
    for (auto& step : edges_)
      for (Edge& edge : step)
        if (const TreesStatus status = begin_edge(edge, place, numbers); status != TreesStatus::ok) return status;
    return TreesStatus::ok;
  }

  [[nodiscard]] std::size_t tx_link(const Edge& edge, std::int64_t slice) const {
    return at(3 * std::int64_t{in_.first_rank.back()} + edge.from * in_.nics + nic(edge.from, channel(edge), slice));
  }
  [[nodiscard]] std::size_t rx_link(const Edge& edge, std::int64_t slice) const {
    return at(3 * std::int64_t{in_.first_rank.back()} + (in_.nodes + edge.to) * in_.nics + nic(edge.to, channel(edge), slice));
  }
  [[nodiscard]] std::int64_t tier_ps(const Edge& edge, std::int64_t slice) const {
    const std::int64_t below = edge.down ? edge.to : edge.from;
    return in_.tier_ps.empty() ? 0 : in_.tier_ps[at(((2 * edge.tree + edge.down) * in_.nodes + below) * in_.slices + slice)];
  }

  TreesStatus begin_edge(Edge& edge, const std::array<std::vector<std::int32_t>, 2>& place, Numbers& numbers) {
    columns_.assign(1, edge.tree);
    const std::int64_t which = channel(edge);
    for (std::int64_t slice = 0; slice < in_.slices; ++slice) {
      const std::int64_t out = edge.from * in_.nics + nic(edge.from, which, slice), into = edge.to * in_.nics + nic(edge.to, which, slice);
      const std::size_t tx = tx_link(edge, slice), rx = rx_link(edge, slice);
      edge.changes |= changes_.on(static_cast<std::int32_t>(tx)) || changes_.on(static_cast<std::int32_t>(rx));
      for (const std::int64_t column : {std::int64_t{place[0][at(out)]}, std::int64_t{place[1][at(into)]}, in_.bytes_per_s[tx],
                                        in_.bytes_per_s[rx], in_.latency_ps[tx] + in_.latency_ps[rx] + tier_ps(edge, slice)})
        columns_.push_back(column);
    }
    bool added = false;
    edge.crossing = numbers(columns_, added);
    return added ? add_crossing(edge.tree) : TreesStatus::ok;
  }

  // From `columns_`. Of one batch, in the order of slices: each gets the first turn that neither of its NICs has given away.
  TreesStatus add_crossing(std::int64_t tree) {
    Crossing made;
    made.tree = tree;
    std::vector<std::uint64_t> sent(at(in_.nics), 0), received(at(in_.nics), 0);
    const std::int64_t longest = (in_.count / (2 * in_.slices * in_.depth) + 1) * in_.itemsize;
    for (std::int64_t slice = 0; slice < in_.slices; ++slice) {
      const std::int64_t* column = columns_.data() + 1 + 5 * slice;
      std::uint64_t &out = sent[at(column[0])], &into = received[at(column[1])];
      const int turn = std::countr_one(out | into);
      if (turn > 63) return TreesStatus::turns;
      out |= std::uint64_t{1} << turn;
      into |= std::uint64_t{1} << turn;
      if (column[2] < 1 || column[3] < 1) return TreesStatus::unlike;
      if (std::max({duration_ps(longest, column[2]), duration_ps(longest, column[3]), column[4]}) > kLongest) return TreesStatus::overflow;
      made.puts.push_back({slice, column[0], column[1], column[2], column[3], column[4], turn});
    }
    std::stable_sort(made.puts.begin(), made.puts.end(), [](const auto& a, const auto& b) { return a.turn < b.turn; });
    crossings_.push_back(std::move(made));
    return TreesStatus::ok;
  }

  Shifted keep(std::int32_t kind, std::vector<std::int64_t>& state) {
    const Shifted kept = states_.intern(kind, state);
    if (4 * states_.count() > clocks_.size()) clocks_.resize(4 * states_.count(), {.id = kUnasked});
    return kept;
  }

  // When the channels of a node come to what they put to another one, in its state.
  Shifted clock(const Node& node, bool down, std::int64_t tree) {
    Shifted& known = clocks_[4 * at(node.state.id) + 2 * down + at(tree)];
    if (known.id == kUnasked)
      known = units_[at(node.kind)]->clocks(states_[node.state.id], tree, down, scratch_) ? small_.intern(0, scratch_) : Shifted{};
    return known;
  }

  void cross(const Edge& edge, std::size_t step, std::int64_t chunk) {
    Node &from = nodes_[at(edge.from)], &to = nodes_[at(edge.to)];
    const std::int64_t origin = from.tx.base;
    Shifted comes = clock(from, edge.down, edge.tree);
    comes.base = comes.id < 0 ? 0 : comes.base + from.state.base - origin;
    bool found = false, direct = !in_.merge || edge.changes;
    if (to.latest_ps > 0) direct |= comes.id < 0 || to.latest_ps > origin + comes.base + least(comes.id);
    typename Known<5, 5>::Result fresh{};
    auto* result = &fresh;
    if (!direct)
      result = &across_.at({edge.crossing | (sizes_.even() ? 0 : chunk + 1) << 32, std::int64_t{from.tx.id} << 32 | to.rx.id, comes.id,
                            comes.base, to.rx.base - origin}, found);
    if (!found) *result = put(edge, comes, chunk);
    const auto& [ids, came, tx_base, rx_base, came_base] = *result;
    from.tx = {static_cast<std::int32_t>(ids >> 32), origin + tx_base};
    to.rx = {static_cast<std::int32_t>(ids & 0xffffffff), origin + rx_base};
    to.inbox[step] = {static_cast<std::int32_t>(came), origin + came_base};
    if (chunk + 1 < in_.depth) return;
    for (const Crossing::Put& each : crossings_[at(edge.crossing)].puts) {  // those before had left by then
      std::int64_t& end = out_.finish_ps[at(entry(edge.from, each.slice))];
      end = std::max(end, small_[to.inbox[step].id][at(each.slice)] + to.inbox[step].base - each.latency_ps);
    }
  }

  [[nodiscard]] std::int64_t least(std::int32_t id) const {
    const auto values = small_[id];
    return *std::min_element(values.begin(), values.end());
  }

  // All relative to when the sender's NICs are free.
  Known<5, 5>::Result put(const Edge& edge, const Shifted& comes, std::int64_t chunk) {
    const Node &from = nodes_[at(edge.from)], &to = nodes_[at(edge.to)];
    const std::int64_t origin = from.tx.base;
    const Crossing& crossing = crossings_[at(edge.crossing)];
    const auto tx_before = small_[from.tx.id], rx_before = small_[to.rx.id];
    tx_.assign(tx_before.begin(), tx_before.end());
    rx_.assign(rx_before.begin(), rx_before.end());
    for (std::int64_t& each : rx_) each += to.rx.base - origin;
    for (const Crossing::Put& each : crossing.puts) {
      const std::int64_t nbytes = sizes_.bytes(crossing.tree, each.slice, chunk), held = nbytes > 0 ? in_.alpha_ps : 0;
      std::int64_t &tx = tx_[at(each.tx)], &rx = rx_[at(each.rx)];
      std::int64_t start = std::max({tx, rx, in_.late_ps[at(entry(edge.to, each.slice))] - origin});
      if (comes.id >= 0) start = std::max(start, small_[comes.id][at(each.slice)] + comes.base);
      tx = rx = start + held;
      if (edge.changes) {
        tx = through(nbytes, tx_link(edge, each.slice), tx + origin) - origin;
        rx = through(nbytes, rx_link(edge, each.slice), rx + origin) - origin;
      } else {
        tx += duration_ps(nbytes, each.tx_bytes_per_s);
        rx += duration_ps(nbytes, each.rx_bytes_per_s);
      }
      scratch_[at(each.slice)] = std::max(tx, rx) + each.latency_ps;
    }
    ++out_.crossed;
    const Shifted tx = small_.intern(0, tx_), rx = small_.intern(0, rx_), came = small_.intern(0, scratch_);
    return {std::int64_t{tx.id} << 32 | rx.id, came.id, tx.base, rx.base, came.base};
  }

  std::int64_t through(std::int64_t nbytes, std::size_t link, std::int64_t start_ps) {
    const std::int64_t done = changes_.through_ps(static_cast<std::int32_t>(link), start_ps, nbytes, in_.bytes_per_s[link]);
    too_late_ |= done > kLatest;
    return std::min(done, kLatest);
  }

  bool inside(std::size_t which, std::int64_t now) {
    Node& node = nodes_[which];
    TreeUnit& unit = *units_[at(node.kind)];
    if (unit.idle(now)) return true;
    std::array<std::int64_t, 4> apart{};
    for (std::size_t i = 0; i < 4; ++i)
      if (node.inbox[i].id >= 0) apart[i] = node.inbox[i].base - node.state.base;
    const auto both = [&](std::size_t i) { return std::int64_t{node.inbox[i].id} << 32 | static_cast<std::uint32_t>(node.inbox[i + 1].id); };
    bool found = false;
    typename Known<8, 4>::Result fresh{};
    auto* result = &fresh;
    if (in_.merge)
      result = &inside_.at({node.kind | unit.phase(now) << 32, node.state.id, both(0), both(2), apart[0], apart[1], apart[2], apart[3]}, found);
    if (!found) {
      const auto before = states_[node.state.id];
      state_.assign(before.begin(), before.end());
      Inbox inbox;
      for (std::size_t i = 0; i < 4; ++i) {
        if (node.inbox[i].id < 0) continue;
        const auto came = small_[node.inbox[i].id];
        std::transform(came.begin(), came.end(), came_[i].begin(), [&](std::int64_t each) { return each + apart[i]; });
        inbox[i] = came_[i];
      }
      ended_.resize(unit.ending(now) ? at(ranks(static_cast<std::int64_t>(which))) : 0);
      if (!unit.round(now, state_, inbox, ended_)) return false;
      ++out_.evaluated;
      const Shifted kept = keep(node.kind, state_), ended = ended_.empty() ? Shifted{} : end();
      *result = {kept.id, kept.base, ended.id, ended.base};
    }
    const auto& [state, base, ended, end_base] = *result;
    for (std::size_t i = 0; ended >= 0 && i < small_[static_cast<std::int32_t>(ended)].size(); ++i) {
      std::int64_t& end = out_.finish_ps[at(in_.first_rank[which]) + i];
      end = std::max(end, small_[static_cast<std::int32_t>(ended)][i] + node.state.base + end_base);
    }
    node.state = {static_cast<std::int32_t>(state), node.state.base + base};
    return true;
  }

  // Who did nothing in this round is as far behind the last one in every round.
  Shifted end() {
    const std::int64_t last = *std::max_element(ended_.begin(), ended_.end());
    for (std::int64_t& each : ended_)
      if (each == kNobody) each = last + kNobody;
    return small_.intern(0, ended_);
  }

  // Gives up what no node is in any more, where it has become much.
  void tidy() {
    if (states_.bytes() + small_.bytes() < most_bytes_ && inside_.count() < kMostInside && across_.count() < kMostAcross) return;
    inside_.clear();
    across_.clear();
    clocks_.clear();
    std::vector<bool> states(states_.count(), false), small(small_.count(), false);
    for (const Node& node : nodes_) {
      states[at(node.state.id)] = small[at(node.tx.id)] = small[at(node.rx.id)] = true;
      for (const Shifted& each : node.inbox)
        if (each.id >= 0) small[at(each.id)] = true;
    }
    const auto state_now = states_.keep(states), small_now = small_.keep(small);
    for (Node& node : nodes_) {
      node.state.id = state_now[at(node.state.id)];
      for (Shifted* each : {&node.tx, &node.rx}) each->id = small_now[at(each->id)];
      for (Shifted& each : node.inbox)
        if (each.id >= 0) each.id = small_now[at(each.id)];
    }
    clocks_.assign(4 * states_.count(), {.id = kUnasked});
    most_bytes_ = states_.bytes() + small_.bytes() + kMostBytes;
  }

  const TreesInput& in_;
  TreesOutput& out_;
  ChunkSizes sizes_;
  Changes changes_;
  std::int64_t height_ = 0;
  std::vector<Node> nodes_;
  std::array<std::vector<Edge>, 4> edges_;  // by step
  std::vector<std::unique_ptr<TreeUnit>> units_;
  std::vector<Crossing> crossings_;
  Vectors states_, small_;
  std::vector<Shifted> clocks_;  // per state: up in tree 0 and 1, down in tree 0 and 1
  Known<8, 4> inside_;
  Known<5, 5> across_;
  bool too_late_ = false;
  std::size_t most_bytes_ = kMostBytes;
  std::vector<std::int64_t> scratch_, state_, ended_, tx_, rx_, columns_;
  std::array<std::vector<std::int64_t>, 4> came_;
};

bool fits(const TreesInput& in, const TreesOutput& out) {
  if (in.nodes < 2 || in.slices < 1 || in.depth < 1 || in.nics < 1 || in.count < 0 || in.itemsize < 1) return false;
  const std::size_t nodes = at(in.nodes);
  if (in.first_rank.size() != nodes + 1 || in.parent.size() != 2 * nodes || in.level.size() != 2 * nodes || in.color.size() != 2 * nodes ||
      in.nic.size() != 4 * nodes * at(in.slices) || (!in.tier_ps.empty() && in.tier_ps.size() != in.nic.size()) || in.first_rank.front() != 0)
    return false;
  const std::size_t ranks = at(in.first_rank.back()), links = 3 * ranks + 2 * nodes * at(in.nics);
  for (const std::int32_t link : in.changes.link)
    if (link < 0 || static_cast<std::size_t>(link) < 3 * ranks) return false;
  return Changes::good(in.changes, links) && in.late_ps.size() == ranks && out.finish_ps.size() == ranks && in.bytes_per_s.size() == links && in.latency_ps.size() == links;
}

}  // namespace

TreesStatus simulate_trees(const TreesInput& in, TreesOutput& out) noexcept {
  if (!fits(in, out)) return TreesStatus::unlike;
  if (in.alpha_ps < 0 || in.alpha_ps > kLongest || in.count > kLatest / in.itemsize / 2) return TreesStatus::overflow;
  try {
    return Rounds(in, out).run();
  } catch (const std::bad_alloc&) {
    return TreesStatus::out_of_memory;
  }
}

}  // namespace ccl_lab::sim
