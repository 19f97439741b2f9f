// A first-in-first-out queue for descriptors of ops in flight.
//
// Is: a ring in one array that doubles when full; once it has grown to what a program posts, it allocates no more.
// Is not: shared between threads.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace ccl_lab {

template <class T>
class Queue {
 public:
  bool empty() const { return begin_ == end_; }
  std::size_t size() const { return end_ - begin_; }
  T& front() { return slots_[begin_ & (slots_.size() - 1)]; }
  const T& front() const { return slots_[begin_ & (slots_.size() - 1)]; }
  T& operator[](std::size_t i) { return slots_[(begin_ + i) & (slots_.size() - 1)]; }
  const T& operator[](std::size_t i) const { return slots_[(begin_ + i) & (slots_.size() - 1)]; }

  T& push(T value) {
    if (size() == slots_.size()) grow();
    T& slot = slots_[end_++ & (slots_.size() - 1)];
    slot = std::move(value);
    return slot;
  }
  // A slot at the end, with what was in it last.
  T& add() {
    if (size() == slots_.size()) grow();
    return slots_[end_++ & (slots_.size() - 1)];
  }
  void pop() { ++begin_; }
  void clear() { begin_ = end_ = 0; }

  // Takes element i out; the ones before it keep their order.
  void erase(std::size_t i) {
    for (; i > 0; --i) std::swap((*this)[i], (*this)[i - 1]);
    pop();
  }

 private:
  void grow() {
    std::vector<T> larger(slots_.empty() ? 16 : slots_.size() * 2);  // a power of two: positions are masked
    const std::size_t n = size();
    for (std::size_t i = 0; i < n; ++i) larger[i] = std::move((*this)[i]);
    slots_.swap(larger);
    begin_ = 0;
    end_ = n;
  }

  std::vector<T> slots_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

}  // namespace ccl_lab
