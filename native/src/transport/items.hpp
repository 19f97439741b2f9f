// What is posted and not yet done, by number.
//
// Is: a table whose numbers are given out again; of an Item it knows `live` and `cookie`. Once it has grown to what a program posts,
//     it allocates no more.
// Is not: an order; and not shared between threads.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "transport/transport.hpp"

namespace ccl_lab {

template <class Item>
class Items {
 public:
  Item& operator[](std::uint32_t at) { return items_[at]; }
  const Item& operator[](std::uint32_t at) const { return items_[at]; }

  std::uint32_t add(const Item& item) {
    if (free_.empty()) {
      items_.push_back(item);
      free_.reserve(items_.capacity());
      return static_cast<std::uint32_t>(items_.size() - 1);
    }
    const std::uint32_t at = free_.back();
    free_.pop_back();
    items_[at] = item;
    return at;
  }

  void complete(std::uint32_t at, std::vector<Completion>& completions) {
    completions.emplace_back().cookie = items_[at].cookie;
    items_[at].live = false;
    free_.push_back(at);
  }
  void complete(std::uint32_t at, Status status, std::vector<Completion>& completions) {
    completions.push_back({items_[at].cookie, std::move(status)});
    items_[at].live = false;
    free_.push_back(at);
  }

  // All that are live, with `status`; nothing is left.
  void fail(const Status& status, std::vector<Completion>& completions) {
    for (const Item& item : items_)
      if (item.live) completions.push_back({item.cookie, status});
    items_.clear();
    free_.clear();
  }

 private:
  std::vector<Item> items_;
  std::vector<std::uint32_t> free_;
};

}  // namespace ccl_lab
