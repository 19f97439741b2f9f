// Which way an evaluation went: the numbers that decided, so that an evaluation of other numbers is known to go the same way.
//
// Is: a list that two evaluations fill in the same order. Is not: the evaluation. Invariant (what `repeats_since` rests on): up to the first
// decision that differs, two evaluations note the same things at the same places, and every number noted is a sum of inputs, maxima that
// chose alike, and products and quotients that were noted. So if the inputs of a series of evaluations form an arithmetic progression, so do
// all numbers in them, as far as every decision stays what it was.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace ccl_lab::sim {

class Path {
 public:
  static constexpr std::int64_t kAlways = std::numeric_limits<std::int64_t>::max();

  void clear() {
    signs_.clear();
    fixed_.clear();
    products_.clear();
    quotients_.clear();
    given_up_ = false;
  }
  // It has become too long to be worth its memory: it tells nothing, until it is cleared.
  void give_up() {
    *this = Path();
    given_up_ = true;
  }
  [[nodiscard]] bool given_up() const { return given_up_; }

  // A decision by whether `value` is below, at, or above 0.
  void sign(std::int64_t value) { signs_.push_back(value); }
  // A number that must not change at all, since something that is no sum was made of it.
  void fixed(std::int64_t value) { fixed_.push_back(value); }
  void product(std::int64_t a, std::int64_t b) { products_.push_back({a, b}); }
  void quotient(std::int64_t over, std::int64_t under) { quotients_.push_back({over, under}); }

  [[nodiscard]] std::size_t size() const { return signs_.size() + fixed_.size() + 2 * (products_.size() + quotients_.size()); }

  // What another evaluation noted comes after this.
  void append(const Path& other) {
    signs_.insert(signs_.end(), other.signs_.begin(), other.signs_.end());
    fixed_.insert(fixed_.end(), other.fixed_.begin(), other.fixed_.end());
    products_.insert(products_.end(), other.products_.begin(), other.products_.end());
    quotients_.insert(quotients_.end(), other.quotients_.begin(), other.quotients_.end());
  }

  // Whether every evaluation whose inputs lie on the line between those of this one and of the other goes the same way.
  [[nodiscard]] bool same_way(const Path& other) const {
    if (signs_.size() != other.signs_.size() || fixed_ != other.fixed_ || products_.size() + quotients_.size() > 0 ||
        other.products_.size() + other.quotients_.size() > 0)
      return false;
    const auto sign = [](std::int64_t v) { return (v > 0) - (v < 0); };
    for (std::size_t i = 0; i < signs_.size(); ++i)
      if (sign(signs_[i]) != sign(other.signs_[i])) return false;
    return true;
  }

  // How many more evaluations, their inputs going on as from `before` to here, go the same way; 0 where these two did not.
  [[nodiscard]] std::int64_t repeats_since(const Path& before) const {
    if (signs_.size() != before.signs_.size() || fixed_ != before.fixed_ || products_.size() != before.products_.size() ||
        quotients_.size() != before.quotients_.size())
      return 0;
    for (std::size_t i = 0; i < products_.size(); ++i)
      if (products_[i].a != before.products_[i].a && products_[i].b != before.products_[i].b) return 0;
    for (std::size_t i = 0; i < quotients_.size(); ++i) {
      const Pair now = quotients_[i], then = before.quotients_[i];
      if (now.b != then.b || now.b == 0 || (now.a - then.a) % now.b != 0) return 0;
    }
    std::int64_t least = kAlways;
    for (std::size_t i = 0; i < signs_.size() && least > 0; ++i) least = std::min(least, stays(signs_[i], signs_[i] - before.signs_[i]));
    return least;
  }

 private:
  struct Pair {
    std::int64_t a, b;
  };

  // How often `rate` can be added to a value until its sign changes; 0 too where it did by the last time.
  static std::int64_t stays(std::int64_t value, std::int64_t rate) {
    if (rate == 0) return kAlways;
    const std::int64_t before = value - rate;
    if (value == 0 || before == 0 || (value > 0) != (before > 0)) return 0;
    if ((value > 0) == (rate > 0)) return kAlways;
    return value > 0 ? (value - 1) / -rate : (-value - 1) / rate;
  }

  std::vector<std::int64_t> signs_, fixed_;
  std::vector<Pair> products_, quotients_;
  bool given_up_ = false;
};

}  // namespace ccl_lab::sim
