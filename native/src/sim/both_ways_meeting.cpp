// See both_ways_meeting.hpp.
#include "both_ways_meeting.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "busy.hpp"
#include "unit.hpp"
#include "vectors.hpp"

namespace ccl_lab::sim {
namespace {

constexpr double kMost = static_cast<double>(std::int64_t{1} << 52);
constexpr std::size_t kBeside = 2;  // columns go on so far before their first number and behind their last one, round the ring

double later(double a, double b) { return a < b ? b : a; }

// What the messages of a station of all units of a column do. longer: 1 for those that are, which take `more`. other: when the second link is free
// of what comes from elsewhere.
struct Columns {
  double *clock, *memory, *a, *b, *left, *message;
  const double *add, *a_ps, *b_ps, *add_more, *a_more, *b_more, *latency, *longer, *other;
};

template <bool kAdds, bool kSends, bool kMeets>
[[gnu::always_inline]] inline void messages(const Columns& at, std::size_t count) {
  double *__restrict clock = at.clock, *__restrict message = at.message;
  double *memory = at.memory, *a = at.a, *b = at.b, *left = at.left;
  const double *add = at.add, *a_ps = at.a_ps, *b_ps = at.b_ps, *latency = at.latency, *other = at.other;
  const double *longer = at.longer, *add_more = at.add_more, *a_more = at.a_more, *b_more = at.b_more;
#if defined(__clang__)
#pragma clang loop vectorize(assume_safety)
#else
#pragma GCC ivdep
#endif
  for (std::size_t i = 0; i < count; ++i) {
    double now = later(clock[i], message[i]);
    if constexpr (kAdds) memory[i] = now = later(now, memory[i]) + (add[i] + longer[i] * add_more[i]);
    clock[i] = now;
    if constexpr (kSends) {
      double start = later(now, later(a[i], b[i]));
      if constexpr (kMeets) start = later(start, other[i]);
      const double on_a = start + (a_ps[i] + longer[i] * a_more[i]), on_b = start + (b_ps[i] + longer[i] * b_more[i]);
      a[i] = on_a;
      b[i] = on_b;
      left[i] = later(on_a, on_b);
      message[i] = later(on_a, on_b) + latency[i];
    }
  }
}

#define CCL_MESSAGES(name, ...) CCL_FOR_TARGETS(name, (const Columns& at, std::size_t count), (messages<__VA_ARGS__>(at, count)))
CCL_MESSAGES(take, false, false, false)
CCL_MESSAGES(add_alone, true, false, false)
CCL_MESSAGES(send_on, false, true, false)
CCL_MESSAGES(add_and_send, true, true, false)
CCL_MESSAGES(send_out, false, true, true)
CCL_MESSAGES(add_and_send_out, true, true, true)

// A number of all units that are every one, or every other one, with what comes before and behind them.
class Column {
 public:
  explicit Column(std::size_t count) : numbers_(count + 2 * kBeside) {}
  double* data() { return numbers_.data() + kBeside; }
  // Of the unit so many further on than the first one.
  const double* from(std::ptrdiff_t on) const { return numbers_.data() + kBeside + on; }
  void go_round() {
    const std::size_t count = numbers_.size() - 2 * kBeside;
    for (std::size_t i = 0; i < kBeside; ++i) {
      numbers_[kBeside - 1 - i] = data()[(count * kBeside - 1 - i) % count];
      numbers_[kBeside + count + i] = data()[i % count];
    }
  }

 private:
  std::vector<double> numbers_;
};

class Meeting {
 public:
  explicit Meeting(const RingsInput& in)
      : in_(in), units_(static_cast<std::size_t>(in.units)), chains_(static_cast<std::size_t>(in.chains)),
        stations_(static_cast<std::size_t>(in.stations)), rows_(chains_ * stations_) {}

  [[nodiscard]] bool fits() {
    if (in_.copies || in_.depth != 1 || !in_.changes.link.empty()) return false;
    const auto [least, most] = std::ranges::minmax(in_.bytes);
    bytes_ = least;
    more_ = most - least;
    if (!std::ranges::all_of(in_.bytes, [&](std::int64_t bytes) { return bytes == bytes_ || bytes == bytes_ + more_; })) return false;
    stride_ = alike_after(1) ? 1 : 2;
    if (!alike_after(stride_) || units_ % stride_ != 0) return false;
    count_ = units_ / stride_;
    form_columns();
    return find_others();
  }

  RingsStatus run(RingsOutput& out) {
    begin();
    const std::int64_t rounds = in_.steps;
    for (std::int64_t k = 0; k < rounds; ++k) {
      for (std::size_t c = 0; c < chains_; ++c) come_in(c, k);
      for (std::size_t i = 0; i < stations_; ++i) {
        const std::int64_t message = k + static_cast<std::int64_t>(i);
        if (i > 0 && message >= rounds) break;
        for (std::size_t c = 0; c < chains_; ++c)
          for (std::size_t p = 0; p < stride_; ++p) handle(p, c, i, message, message + 1 < rounds, columns_[p].message[c].data());
      }
    }
    out.rounds = in_.units * rounds;
    return finish(out);
  }

 private:
  // Whether each unit has the links of the one so many before it; what they take may differ.
  [[nodiscard]] bool alike_after(std::size_t units) const {
    for (const auto& ids : {in_.memory, in_.link_a, in_.link_b})
      for (std::size_t u = units; u < units_; ++u)
        if (!std::equal(ids.begin() + row(u), ids.begin() + row(u) + static_cast<std::ptrdiff_t>(rows_), ids.begin() + row(u - units))) return false;
    return true;
  }
  [[nodiscard]] std::ptrdiff_t row(std::size_t unit) const { return static_cast<std::ptrdiff_t>(in_.kind_row(static_cast<std::int64_t>(unit))); }
  [[nodiscard]] std::size_t unit(std::size_t p, std::size_t i) const { return p + i * stride_; }

  // Times of a row of stations of the units of one column: of a message, and how much longer a longer one takes.
  struct Takes {
    std::vector<double> add, a, b, add_more, a_more, b_more, latency;
  };
  struct Units {
    std::vector<Column> clock, left, links, sent;  // by row; by link of a unit; by chain and round under way
    std::vector<Takes> takes;                      // by row
    std::vector<std::vector<std::size_t>> others;  // by chain: second links of the unit beyond, which are the NIC that it sends to
    std::vector<std::vector<double>> message, longer;  // by chain: under way through the unit, and which are longer ones
  };

  void form_columns() {
    std::size_t links = 0;
    for (const auto& ids : {in_.memory, in_.link_a, in_.link_b})
      for (const std::int32_t id : ids) links = std::max(links, static_cast<std::size_t>(id) + 1);
    for (std::size_t p = 0; p < stride_; ++p) {
      Units& of = columns_.emplace_back();
      of.clock.assign(rows_, Column(count_)), of.left.assign(rows_, Column(count_)), of.links.assign(links, Column(count_));
      of.sent.assign(chains_ * stations_, Column(count_));
      of.message.assign(chains_, std::vector<double>(count_)), of.longer = of.message, of.others.resize(chains_);
      for (std::size_t r = 0; r < rows_; ++r) of.takes.push_back(takes_of(p, r));
      for (std::size_t r = 0; r < rows_; ++r)
        for (std::size_t i = 0; i < count_; ++i) {
          const auto at = static_cast<std::size_t>(row(unit(p, i))) + r;
          of.clock[r].data()[i] = of.left[r].data()[i] = static_cast<double>(in_.late_ps[at]);
        }
    }
  }

  Takes takes_of(std::size_t p, std::size_t r) {
    Takes found;
    for (std::size_t i = 0; i < count_; ++i) {
      const auto at = static_cast<std::size_t>(row(unit(p, i))) + r;
      const Busy least = busy_of(in_, at, bytes_), most = busy_of(in_, at, bytes_ + more_);
      const auto put = [&](std::vector<double>& column, std::int64_t ps) { column.push_back(static_cast<double>(ps)); };
      put(found.add, least.add_ps), put(found.a, least.a_ps), put(found.b, least.b_ps), put(found.latency, in_.latency_ps[at]);
      put(found.add_more, most.add_ps - least.add_ps), put(found.a_more, most.a_ps - least.a_ps), put(found.b_more, most.b_ps - least.b_ps);
    }
    return found;
  }

  [[nodiscard]] bool backward(std::size_t c) const { return in_.backward[c] != 0; }
  [[nodiscard]] std::size_t last(std::size_t c) const { return (c + 1) * stations_ - 1; }
  [[nodiscard]] std::size_t link_of(std::span<const std::int32_t> ids, std::size_t p, std::size_t r) const {
    return static_cast<std::size_t>(ids[static_cast<std::size_t>(row(p)) + r]);
  }
  // How many units further on in a column the one is that sends to the same unit as a chain's does, from the other side.
  [[nodiscard]] std::ptrdiff_t beyond(std::size_t c) const {
    const auto on = static_cast<std::ptrdiff_t>(2 / stride_);
    return backward(c) ? -on : on;
  }

  // Which links are one with that of a chain: for all units of a column the same ones.
  bool find_others() {
    for (std::size_t p = 0; p < stride_; ++p) {
      for (std::size_t c = 0; c < chains_; ++c) {
        for (std::size_t i = 0; i < count_; ++i) {
          const std::size_t here = unit(p, i), there = (here + (backward(c) ? units_ - 2 % units_ : 2)) % units_;
          std::vector<std::size_t> found;
          for (std::size_t other = 0; other < chains_; ++other)
            if (backward(other) != backward(c) && in_.far[there * chains_ + other] == in_.far[here * chains_ + c])
              found.push_back(link_of(in_.link_b, p, last(other)));
          std::ranges::sort(found);
          found.erase(std::ranges::unique(found).begin(), found.end());
          if (i == 0) columns_[p].others[c] = found;
          if (found != columns_[p].others[c]) return false;
        }
      }
    }
    return true;
  }

  // When the NIC that a chain's message goes to is free of those from the other side, and not before `least`.
  const double* free_beyond(std::size_t p, std::size_t c, const double* least) {
    other_.assign(count_, 0);
    if (least) std::copy_n(least, count_, other_.data());
    for (const std::size_t link : columns_[p].others[c]) {
      const double* const free = columns_[p].links[link].from(beyond(c));
      for (std::size_t i = 0; i < count_; ++i) other_[i] = later(other_[i], free[i]);
    }
    return other_.data();
  }

  [[nodiscard]] Columns columns_of(std::size_t p, std::size_t c, std::size_t r, double* message) {
    Units& of = columns_[p];
    const Takes& takes = of.takes[r];
    return {of.clock[r].data(), of.links[link_of(in_.memory, p, r)].data(), of.links[link_of(in_.link_a, p, r)].data(),
            of.links[link_of(in_.link_b, p, r)].data(), of.left[r].data(), message, takes.add.data(), takes.a.data(), takes.b.data(),
            takes.add_more.data(), takes.a_more.data(), takes.b_more.data(), takes.latency.data(), of.longer[c].data(), nullptr};
  }

  // The messages of a chain's round, which the units beside have sent a while ago, and which of them are longer ones.
  void come_in(std::size_t c, std::int64_t round) {
    find_longer(c, round);
    for (std::size_t p = 0; p < stride_; ++p) {
      const std::size_t beside = backward(c) ? (p + 1) % stride_ : (p + stride_ - 1) % stride_;
      const std::ptrdiff_t on = backward(c) ? p + 1 == stride_ : -static_cast<std::ptrdiff_t>(p == 0);
      std::copy_n(sent(beside, c, round).from(on), count_, columns_[p].message[c].data());
    }
  }
  [[nodiscard]] Column& sent(std::size_t p, std::size_t c, std::int64_t round) {
    return columns_[p].sent[c * stations_ + static_cast<std::size_t>(round) % stations_];
  }

  // Which messages are longer ones: those that a station handles after so many steps (-1: that it sends at first), or, of a round, all stations.
  void find_longer(std::size_t c, std::int64_t step, std::size_t station = 0) {
    if (more_ == 0) return;
    const auto ring = static_cast<std::int64_t>(units_ * stations_);
    for (std::size_t p = 0; p < stride_; ++p)
      for (std::size_t i = 0; i < count_; ++i) {
        const std::size_t at = backward(c) ? units_ - 1 - unit(p, i) : unit(p, i);
        const auto place = (static_cast<std::int64_t>(at * stations_ + station) - 1 - step) % ring;
        const auto of = static_cast<std::size_t>(place < 0 ? place + ring : place) % static_cast<std::size_t>(in_.n_sizes);
        columns_[p].longer[c][i] = in_.bytes[c * static_cast<std::size_t>(in_.n_sizes) + of] != bytes_;
      }
  }

  // A station's message `number` comes, and goes on to `next`, or to the next unit.
  void handle(std::size_t p, std::size_t c, std::size_t i, std::int64_t number, bool sends, double* message) {
    const std::size_t r = c * stations_ + i;
    Columns at = columns_of(p, c, r, message);
    const bool adds = number < in_.reducing;
    if (!sends) return (adds ? add_ : take_)(at, count_);
    if (i + 1 < stations_) return (adds ? add_send_ : send_)(at, count_);
    at.other = free_beyond(p, c, nullptr);
    (adds ? add_send_out_ : send_out_)(at, count_);
    leave(p, c, r, number + 1, message);
  }

  void leave(std::size_t p, std::size_t c, std::size_t r, std::int64_t number, const double* message) {
    Column& column = sent(p, c, number);
    std::copy_n(message, count_, column.data());
    column.go_round();
    columns_[p].links[link_of(in_.link_b, p, r)].go_round();
  }

  // What stations send without a message from outside the unit, as Unit::warm_up does.
  void begin() {
    std::vector<std::vector<double>> mail(stride_ * rows_, std::vector<double>(count_));
    for (std::size_t c = 0; c < chains_; ++c) {
      for (std::size_t i = 0; i < stations_; ++i) {
        find_longer(c, -1, i);
        for (std::size_t p = 0; p < stride_; ++p) send_first(p, c, i, mail);
      }
    }
    for (std::size_t m = 0; m + 1 < stations_; ++m) {
      for (std::size_t c = 0; c < chains_; ++c) {
        for (std::size_t i = stations_ - 1; i > m; --i) {
          find_longer(c, static_cast<std::int64_t>(m), i);
          for (std::size_t p = 0; p < stride_; ++p) {
            std::vector<double>& message = mail[p * rows_ + c * stations_ + i];
            handle(p, c, i, static_cast<std::int64_t>(m), true, message.data());
            if (i + 1 < stations_) mail[p * rows_ + c * stations_ + i + 1] = message;
          }
        }
      }
    }
  }

  // Its own message, once the rank that it goes to has entered.
  void send_first(std::size_t p, std::size_t c, std::size_t i, std::vector<std::vector<double>>& mail) {
    const std::size_t r = c * stations_ + i;
    std::vector<double> ready(count_), message(count_, 0);
    for (std::size_t k = 0; k < count_; ++k) ready[k] = static_cast<double>(in_.ready_ps[static_cast<std::size_t>(row(unit(p, k))) + r]);
    Columns at = columns_of(p, c, r, message.data());
    const bool out = i + 1 == stations_;
    at.other = out ? free_beyond(p, c, ready.data()) : ready.data();
    send_out_(at, count_);
    if (out) return leave(p, c, r, 0, message.data());
    mail[p * rows_ + r + 1] = message;
  }

  RingsStatus finish(RingsOutput& out) {
    for (std::size_t p = 0; p < stride_; ++p)
      for (std::size_t r = 0; r < rows_; ++r)
        for (std::size_t i = 0; i < count_; ++i) {
          const double end = later(columns_[p].clock[r].data()[i], columns_[p].left[r].data()[i]);
          if (!(end < kMost)) return RingsStatus::bad_input;
          out.finish_ps[unit(p, i) * rows_ + r] = static_cast<std::int64_t>(end);
        }
    return RingsStatus::ok;
  }

  const RingsInput& in_;
  const std::size_t units_, chains_, stations_, rows_;
  std::size_t stride_ = 1, count_ = 0;        // from one unit of a column to the next one, and how many it has
  std::int64_t bytes_ = 0, more_ = 0;         // of a message, and how many more a longer one has
  std::vector<Units> columns_;
  std::vector<double> other_;
  decltype(&take_base) take_ = take_for(Target::best), add_ = add_alone_for(Target::best), send_ = send_on_for(Target::best),
                       add_send_ = add_and_send_for(Target::best), send_out_ = send_out_for(Target::best),
                       add_send_out_ = add_and_send_out_for(Target::best);
};

}  // namespace

bool fits_both_ways_meeting(const RingsInput& in) {
  return in.far.size() == static_cast<std::size_t>(in.units * in.chains) && in.steps > in.stations;
}

RingsStatus both_ways_meeting(const RingsInput& in, RingsOutput& out) {
  out.jumped = 0;
  Meeting meeting(in);
  return meeting.fits() ? meeting.run(out) : RingsStatus::bad_input;
}

}  // namespace ccl_lab::sim
