// What a unit sends to the next one, place by place (own_time_reference.hpp says what a place is): messages, and rows of them that follow a reference.
//
// Is: a list that is read in order. Is not: an approximation. Invariant: places follow one another without a gap.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "own_time_reference.hpp"

namespace ccl_lab::sim {

class Sent {
 public:
  struct Piece {
    std::int64_t begin, end;
    std::size_t first;           // in the values: of each place and chain when a message comes, or its offset from the reference
    const Reference* reference;  // null: each message by itself
    std::int64_t period;         // of offsets
    bool operator==(const Piece&) const = default;
  };

  explicit Sent(std::size_t chains) : chains_(chains) {}

  void clear(std::int64_t place) {
    pieces_.clear();
    values_.clear();
    end_ = place;
  }

  void push(const std::int64_t* comes) {
    if (pieces_.empty() || pieces_.back().reference) pieces_.push_back({end_, end_, values_.size(), nullptr, 1});
    values_.insert(values_.end(), comes, comes + chains_);
    pieces_.back().end = ++end_;
  }

  void push(const Reference& reference, std::int64_t places, const std::vector<std::int64_t>& offsets) {
    pieces_.push_back({end_, end_ + places, values_.size(), &reference, static_cast<std::int64_t>(offsets.size() / chains_)});
    values_.insert(values_.end(), offsets.begin(), offsets.end());
    end_ += places;
  }

  [[nodiscard]] const std::vector<Piece>& pieces() const { return pieces_; }
  [[nodiscard]] std::size_t size() const { return values_.size(); }
  [[nodiscard]] std::int64_t end() const { return end_; }  // the place that comes next

  [[nodiscard]] std::int64_t comes(const Piece& piece, std::int64_t place, std::size_t chain) const {
    const std::int64_t row = place - piece.begin;
    const auto value = [&](std::int64_t at) { return values_[piece.first + static_cast<std::size_t>(at) * chains_ + chain]; };
    return piece.reference ? piece.reference->goes(place, chain) + value(row % piece.period) : value(row);
  }

  // Of a row of a piece's offsets.
  [[nodiscard]] std::int64_t offset(const Piece& piece, std::int64_t row, std::size_t chain) const {
    return values_[piece.first + static_cast<std::size_t>(row) * chains_ + chain];
  }

  bool operator==(const Sent&) const = default;

 private:
  std::size_t chains_;
  std::int64_t end_ = 0;
  std::vector<Piece> pieces_;
  std::vector<std::int64_t> values_;
};

// Takes messages in order; of none that were sent, such as are not waited for.
class SentReader {
 public:
  // shift: from the sender's places to those that are asked for.
  SentReader(const Sent& sent, std::int64_t shift) : sent_(&sent), shift_(shift) {}

  void take(std::int64_t place, std::vector<std::int64_t>& out) {
    const auto& pieces = sent_->pieces();
    while (piece_ < pieces.size() && place - shift_ >= pieces[piece_].end) ++piece_;
    for (std::size_t c = 0; c < out.size(); ++c) out[c] = piece_ < pieces.size() ? sent_->comes(pieces[piece_], place - shift_, c) : 0;
  }

 private:
  const Sent* sent_;
  std::int64_t shift_;
  std::size_t piece_ = 0;
};

}  // namespace ccl_lab::sim
