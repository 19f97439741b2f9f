// A tape holds the messages that it was given, whatever became of them inside: compared with a plain list.
#include <algorithm>
#include <random>
#include <vector>

#include "check.hpp"
#include "sim/tape.hpp"

namespace {

using ccl_lab::sim::Seen;
using ccl_lab::sim::Tape;

using Messages = std::vector<Seen>;

struct Both {
  Tape tape;
  Messages list;

  void push(const Seen& message) {
    tape.push(message);
    list.push_back(message);
  }

  void push_loop(const Messages& first, const Messages& slopes, std::int64_t count) {
    tape.push_loop(first, slopes, count);
    const auto period = static_cast<std::int64_t>(first.size());
    for (std::int64_t i = 0; i < count; ++i) {
      const auto place = static_cast<std::size_t>(i % period);
      list.push_back(first[place] + slopes[place] * (i / period));
    }
  }
};

Messages rest_of(Tape tape) {
  Messages out;
  while (!tape.empty()) out.push_back(tape.next());
  return out;
}

// Messages that go on in a rhythm of a few gaps, told one by one or as a loop, and now and then one that fits to nothing.
Both drawn(std::mt19937& random, int parts) {
  const auto below = [&](int n) { return static_cast<std::int64_t>(random() % static_cast<unsigned>(n)); };
  Both both;
  Seen now{below(1000), below(1000)};
  for (int part = 0; part < parts; ++part) {
    Messages gaps(static_cast<std::size_t>(1 + below(5)));
    for (Seen& gap : gaps) gap = {1 + below(3), 1 + below(2)};
    const std::int64_t count = 1 + below(120);
    if (below(3) == 0) {
      Messages first, slopes;
      Seen sum;
      for (const Seen& gap : gaps) sum = sum + gap;
      for (const Seen& gap : gaps) first.push_back(now = now + gap);
      slopes.assign(gaps.size(), sum);
      if (below(4) == 0) slopes[0] = slopes[0] + Seen{1, 0};
      both.push_loop(first, slopes, count);
      now = both.list.back();
    } else {
      for (std::int64_t i = 0; i < count; ++i) both.push(now = now + gaps[static_cast<std::size_t>(i) % gaps.size()]);
    }
  }
  return both;
}

}  // namespace

TEST(same_messages_whatever_is_done) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    Both both = drawn(random, 1 + static_cast<int>(random() % 5));
    CHECK(rest_of(both.tape) == both.list);
    both.tape.find_loops();
    CHECK(rest_of(both.tape) == both.list);
    const Both more = drawn(random, 2);
    both.tape.append(more.tape);
    both.list.insert(both.list.end(), more.list.begin(), more.list.end());
    CHECK(rest_of(both.tape) == both.list);
    const std::size_t taken = random() % both.list.size();
    for (std::size_t i = 0; i < taken; ++i) CHECK(both.tape.next() == both.list[i]);
    Tape kept;
    kept.keep(both.tape);
    CHECK(rest_of(kept) == Messages(both.list.begin() + static_cast<std::ptrdiff_t>(taken), both.list.end()));
  }
}

TEST(what_is_ahead_can_be_skipped) {
  std::mt19937 random(8);
  int skipped = 0;
  for (int round = 0; round < 500; ++round) {
    Both both = drawn(random, 4);
    both.tape.find_loops();
    for (std::size_t at = 0; !both.tape.empty();) {
      const Tape::Ahead ahead = both.tape.ahead();
      if (ahead.messages == 0) {
        CHECK(both.tape.next() == both.list[at++]);
        continue;
      }
      for (std::int64_t i = 0; i + ahead.messages < ahead.left; ++i) {
        const std::size_t here = at + static_cast<std::size_t>(i), later = here + static_cast<std::size_t>(ahead.messages);
        CHECK(both.list[later].leaves - both.list[here].leaves == ahead.ticks);
      }
      const std::int64_t count = 1 + static_cast<std::int64_t>(random()) % ahead.left;
      both.tape.skip(count);
      at += static_cast<std::size_t>(count);
      ++skipped;
    }
  }
  CHECK(skipped > 500);
}

// However many messages there are, a rhythm takes the memory of a period.
TEST(a_rhythm_becomes_a_loop) {
  Tape tape;
  Seen now;
  for (int i = 0; i < 300; ++i) tape.push(now = now + (i % 3 == 0 ? Seen{7, 3} : Seen{5, 2}));
  CHECK(tape.ahead().messages == 0);
  tape.find_loops();
  CHECK(tape.ahead().messages == 3 && tape.ahead().left == 300 && tape.ahead().ticks == 7);
  tape.push(now + Seen{7, 3});
  CHECK(tape.ahead().left == 301);
}
