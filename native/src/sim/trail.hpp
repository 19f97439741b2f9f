// What units are like after a message went by, unit after unit: vectors in order, as many as there are, in little memory.
//
// Is: pieces of vectors of which each is later than the one `period` before it by one step. Is not: an approximation. Invariant: pieces are as
// long as they can be, from the first one on, so that trails of the same vectors are the same.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ccl_lab::sim {

class Trail {
 public:
  struct Piece {
    std::int64_t count;
    std::size_t first;  // in `values`: a vector, then the step from each to the next
    bool operator==(const Piece&) const = default;
  };

  Trail(std::size_t words, std::size_t period) : words_(words), parts_(period) {}

  void clear() {
    for (Part& part : parts_) {
      part.pieces.clear();
      part.values.clear();
    }
    size_ = 0;
  }

  void push(const std::int64_t* vector) {
    Part& part = parts_[static_cast<std::size_t>(size_++) % parts_.size()];
    if (!part.pieces.empty()) {
      Piece& last = part.pieces.back();
      std::int64_t *const first = part.values.data() + last.first, *const step = first + words_;
      if (last.count == 1) {
        for (std::size_t i = 0; i < words_; ++i) step[i] = vector[i] - first[i];
        for (std::size_t i = 0; i < words_; ++i) part.next[i] = vector[i] + step[i];
        last.count = 2;
        return;
      }
      if (std::equal(vector, vector + words_, part.next.data())) {
        for (std::size_t i = 0; i < words_; ++i) part.next[i] += step[i];
        ++last.count;
        return;
      }
    }
    part.begin(vector, words_);
  }

  // For each of the last `period` vectors `times` more, each later than the one before it by a step of its own.
  void push_steps(const std::vector<std::int64_t>& steps, std::int64_t times) {
    const std::size_t period = parts_.size();
    for (std::size_t p = 0; p < period; ++p) {
      Part& part = parts_[(static_cast<std::size_t>(size_) + p) % period];
      const std::int64_t* const step = steps.data() + p * words_;
      Piece* last = &part.pieces.back();
      std::int64_t* of = part.values.data() + last->first + words_;
      if (last->count > 1 && !std::equal(step, step + words_, of)) {  // it ends here: the next one begins a step further on
        std::vector<std::int64_t> begin(part.next);
        for (std::size_t i = 0; i < words_; ++i) begin[i] += step[i] - of[i];
        part.begin(begin.data(), words_);
        last = &part.pieces.back();
        of = part.values.data() + last->first + words_;
        part.add(*last, step, words_, times - 1);
        continue;
      }
      part.add(*last, step, words_, times);
    }
    size_ += times * static_cast<std::int64_t>(period);
  }

  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] std::size_t words() const { return words_; }
  [[nodiscard]] std::size_t period() const { return parts_.size(); }
  [[nodiscard]] std::size_t bytes() const {
    std::size_t all = 0;
    for (const Part& part : parts_) all += part.values.size() * sizeof(std::int64_t) + part.pieces.size() * sizeof(Piece);
    return all;
  }

  [[nodiscard]] bool operator==(const Trail& other) const {
    return size_ == other.size_ && std::ranges::equal(parts_, other.parts_, [](const Part& a, const Part& b) {
      return a.pieces == b.pieces && a.values == b.values;
    });
  }

  // All of it, as a key.
  [[nodiscard]] std::string told() const {
    std::string text;
    for (const Part& part : parts_) {
      const std::size_t pieces = part.pieces.size();
      text.append(reinterpret_cast<const char*>(&pieces), sizeof pieces);
      for (const Piece& piece : part.pieces) text.append(reinterpret_cast<const char*>(&piece.count), sizeof piece.count);
      text.append(reinterpret_cast<const char*>(part.values.data()), part.values.size() * sizeof(std::int64_t));
    }
    return text;
  }

 private:
  friend class TrailReader;
  struct Part {  // every `period`-th vector
    std::vector<Piece> pieces;
    std::vector<std::int64_t> values, next;  // next: what would go on with the last piece

    void begin(const std::int64_t* vector, std::size_t words) {
      pieces.push_back({1, values.size()});
      values.insert(values.end(), vector, vector + words);
      values.resize(values.size() + words);
      next.assign(vector, vector + words);
    }
    void add(Piece& piece, const std::int64_t* step, std::size_t words, std::int64_t times) {
      if (times == 0) return;
      std::int64_t* const of = values.data() + piece.first + words;
      const std::int64_t ahead = piece.count == 1 ? times + 1 : times;  // of one vector, `next` is that one
      for (std::size_t i = 0; i < words; ++i) of[i] = step[i];
      for (std::size_t i = 0; i < words; ++i) next[i] += step[i] * ahead;
      piece.count += times;
    }
  };

  std::size_t words_;
  std::vector<Part> parts_;
  std::int64_t size_ = 0;
};

// Takes vectors from a trail in order, after one that comes before them if there is one. What comes behind the end is zeros.
class TrailReader {
 public:
  TrailReader(const Trail& trail, const std::int64_t* before) : trail_(&trail), before_(before), at_(trail.period()), place_(before ? -1 : 0) {}

  void next(std::int64_t* out) {
    const std::size_t words = trail_->words();
    if (place_ < 0 || place_ >= trail_->size()) {
      if (place_ < 0) {
        std::copy_n(before_, words, out);
      } else {
        std::fill_n(out, words, 0);
      }
      ++place_;
      return;
    }
    const std::size_t p = static_cast<std::size_t>(place_) % at_.size();
    const Trail::Part& part = trail_->parts_[p];
    auto& [piece, taken] = at_[p];
    const std::int64_t *const first = part.values.data() + part.pieces[piece].first, *const step = first + words;
    for (std::size_t i = 0; i < words; ++i) out[i] = first[i] + step[i] * taken;
    skip(p, 1);
    ++place_;
  }

  // How many vectors from here on lie in the pieces that the next `period` ones lie in.
  [[nodiscard]] std::int64_t alike() const {
    const auto period = static_cast<std::int64_t>(at_.size());
    if (place_ < 0) return 0;
    if (place_ >= trail_->size()) return std::int64_t{1} << 60;
    std::int64_t least = trail_->size() - place_;
    for (std::int64_t ahead = 0; ahead < std::min(period, least); ++ahead) {
      const std::size_t p = static_cast<std::size_t>(place_ + ahead) % at_.size();
      least = std::min(least, ahead + (trail_->parts_[p].pieces[at_[p].first].count - at_[p].second) * period);
    }
    return least;
  }

  // `times` periods, as `alike` allows.
  void skip_periods(std::int64_t times) {
    if (place_ < trail_->size())
      for (std::size_t p = 0; p < at_.size(); ++p) skip(p, times);
    place_ += times * static_cast<std::int64_t>(at_.size());
  }

 private:
  void skip(std::size_t p, std::int64_t count) {
    auto& [piece, taken] = at_[p];
    taken += count;
    if (taken == trail_->parts_[p].pieces[piece].count) {
      ++piece;
      taken = 0;
    }
  }

  const Trail* trail_;
  const std::int64_t* before_;
  std::vector<std::pair<std::size_t, std::int64_t>> at_;  // of each part: piece, and vectors of it that were taken
  std::int64_t place_;
};

}  // namespace ccl_lab::sim
