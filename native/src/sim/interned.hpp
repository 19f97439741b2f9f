// Vectors of times that are kept once each, and what followed from them: equal ones are evaluated once.
//
// Is: numbers for vectors relative to their largest element, and a table of results by key. Is not: the evaluation. Invariant: two vectors
// have one number exactly where they are the same but for one shift, and have the same tag.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace ccl_lab::sim {

inline std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15ull;
  return hash ^ hash >> 29;
}

// A vector of times: its number, and what is added to all its elements.
struct Shifted {
  std::int32_t id = -1;
  std::int64_t base = 0;
};

class Vectors {
 public:
  Vectors() : slots_(1024, -1) {}

  // The largest element of `values` becomes 0, which they are afterwards.
  Shifted intern(std::int32_t tag, std::span<std::int64_t> values) {
    const std::int64_t base = values.empty() ? 0 : *std::max_element(values.begin(), values.end());
    for (std::int64_t& value : values) value -= base;
    const std::uint64_t hash = hash_of(tag, values);
    std::size_t at = hash & (slots_.size() - 1);
    for (; slots_[at] >= 0; at = (at + 1) & (slots_.size() - 1))
      if (same(slots_[at], hash, tag, values)) return {slots_[at], base};
    const auto id = static_cast<std::int32_t>(rows_.size());
    rows_.push_back({hash, data_.size(), static_cast<std::uint32_t>(values.size()), tag});
    data_.insert(data_.end(), values.begin(), values.end());
    slots_[at] = id;
    if (2 * rows_.size() > slots_.size()) grow();
    return {id, base};
  }

  [[nodiscard]] std::span<const std::int64_t> operator[](std::int32_t id) const {
    const Row& row = rows_[static_cast<std::size_t>(id)];
    return {data_.data() + row.begin, row.size};
  }
  [[nodiscard]] std::size_t count() const { return rows_.size(); }
  [[nodiscard]] std::size_t bytes() const { return 8 * data_.size() + 32 * rows_.size(); }
  void reserve(std::size_t elements) { data_.reserve(elements); }

  // Gives up all that is not `live`; the new number of each.
  std::vector<std::int32_t> keep(const std::vector<bool>& live) {
    std::vector<std::int32_t> now(rows_.size(), -1);
    std::size_t kept = 0, end = 0;
    for (std::size_t id = 0; id < rows_.size(); ++id) {
      if (!live[id]) continue;
      now[id] = static_cast<std::int32_t>(kept);
      Row row = rows_[id];
      std::copy_n(data_.begin() + static_cast<std::ptrdiff_t>(row.begin), row.size, data_.begin() + static_cast<std::ptrdiff_t>(end));
      row.begin = end;
      end += row.size;
      rows_[kept++] = row;
    }
    rows_.resize(kept);
    data_.resize(end);
    number();
    return now;
  }

 private:
  struct Row {
    std::uint64_t hash;
    std::size_t begin;
    std::uint32_t size;
    std::int32_t tag;
  };

  [[nodiscard]] bool same(std::int32_t id, std::uint64_t hash, std::int32_t tag, std::span<const std::int64_t> values) const {
    const Row& row = rows_[static_cast<std::size_t>(id)];
    return row.hash == hash && row.tag == tag && row.size == values.size() &&
           std::equal(values.begin(), values.end(), data_.begin() + static_cast<std::ptrdiff_t>(row.begin));
  }

  // Four sums side by side: states are hundreds of elements.
  static std::uint64_t hash_of(std::int32_t tag, std::span<const std::int64_t> values) {
    std::array<std::uint64_t, 4> sums{values.size(), static_cast<std::uint64_t>(tag), 1, 2};
    std::size_t i = 0;
    for (; i + 4 <= values.size(); i += 4)
      for (std::size_t k = 0; k < 4; ++k) sums[k] = mixed(sums[k], static_cast<std::uint64_t>(values[i + k]));
    for (; i < values.size(); ++i) sums[0] = mixed(sums[0], static_cast<std::uint64_t>(values[i]));
    return mixed(mixed(sums[0], sums[1]), mixed(sums[2], sums[3]));
  }

  void grow() {
    slots_.resize(4 * slots_.size());
    number();
  }

  void number() {
    std::fill(slots_.begin(), slots_.end(), -1);
    for (std::size_t id = 0; id < rows_.size(); ++id) {
      std::size_t at = rows_[id].hash & (slots_.size() - 1);
      while (slots_[at] >= 0) at = (at + 1) & (slots_.size() - 1);
      slots_[at] = static_cast<std::int32_t>(id);
    }
  }

  std::vector<std::int32_t> slots_;
  std::vector<Row> rows_;
  std::vector<std::int64_t> data_;
};

// Results by key, both of a few words.
template <std::size_t kKey, std::size_t kResult>
class Known {
 public:
  using Key = std::array<std::int64_t, kKey>;
  using Result = std::array<std::int64_t, kResult>;

  // Where the result of `key` is, or belongs; `found` says which. As long as nothing is added.
  Result& at(const Key& key, bool& found) {
    if (2 * (rows_.size() + 1) > slots_.size()) grow();
    std::size_t at = hash_of(key) & (slots_.size() - 1);
    for (; slots_[at] >= 0; at = (at + 1) & (slots_.size() - 1)) {
      Row& row = rows_[static_cast<std::size_t>(slots_[at])];
      found = row.key == key;
      if (found) return row.result;
    }
    found = false;
    slots_[at] = static_cast<std::int32_t>(rows_.size());
    rows_.push_back({key, {}});
    return rows_.back().result;
  }

  [[nodiscard]] std::size_t count() const { return rows_.size(); }
  void clear() {
    rows_.clear();
    std::fill(slots_.begin(), slots_.end(), -1);
  }

 private:
  struct Row {
    Key key;
    Result result;
  };

  static std::uint64_t hash_of(const Key& key) {
    std::uint64_t hash = kKey;
    for (const std::int64_t word : key) hash = mixed(hash, static_cast<std::uint64_t>(word));
    return hash;
  }

  void grow() {
    slots_.assign(std::max<std::size_t>(1024, 4 * slots_.size()), -1);
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      std::size_t at = hash_of(rows_[i].key) & (slots_.size() - 1);
      while (slots_[at] >= 0) at = (at + 1) & (slots_.size() - 1);
      slots_[at] = static_cast<std::int32_t>(i);
    }
  }

  std::vector<std::int32_t> slots_;
  std::vector<Row> rows_;
};

}  // namespace ccl_lab::sim
