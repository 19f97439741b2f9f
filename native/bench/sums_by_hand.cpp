// An all_reduce of two machines written by hand: what their cores can do at most for the bytes and the sums of it (bench/rdma.py).
//
// Is: the bare work. A queue pair for each pair of NICs, a write with immediate for each piece, a look at the completion queue, the sum
//     where a piece came, a write of the sum back. Requests are posted as they are, by the seam over libibverbs, which adds a call.
// Is not: an engine: no other rank may enter late, no path may be lost, nothing is registered while it runs, and there is one collective,
//     one number of ranks and one type (int32).
//
//   piece p of a rail, rank r     r's copy of the other one's half ──phase 1──► scratch of the peer
//                                 own half += scratch        ◄──phase 1── the peer's copy of it
//                                 own half ──phase 2──► the same place of the peer
//   an all_reduce is over here when all of phase 2 has come, and what was sent is confirmed
//
//   ccl_lab_bench_sums_by_hand RANK BYTES TIMES BUFFERS PIECE SUMS ADDRESS ...
//
// BYTES for each NIC, TIMES over, in BUFFERS buffers in turn, all started at once; PIECE: bytes of a write at most; SUMS 0: the same
// without the sums, which moves bytes only. ADDRESS: of rank 0's NICs. Each rank prints the seconds, and those of them in sums.
//
// Invariants
//  - Sums of the first kChecked all_reduces are compared, before a time is taken.
//  - What comes for an all_reduce that has not begun here waits, as it would have to for a caller.
//  - A look that finds nothing gives the core up: soft RoCE needs it.
#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "drivers/verbs/discover.hpp"
#include "drivers/verbs/verbs.hpp"
#include "meeting.hpp"
#include "reduce/reduce.hpp"

namespace {

using namespace ccl_lab;

constexpr int kPort = 18800;
constexpr int kDepth = 512;  // writes, and receives, under way on a NIC
constexpr std::uint64_t kChecked = 5;
constexpr std::uint32_t kSecond = 1u << 31;  // of an immediate: phase 2
constexpr std::uint32_t kOdd = 1u << 30;     // of an all_reduce with an odd number in its buffer
constexpr std::uint32_t kBufferShift = 24, kBufferMask = 63, kPieceMask = (1u << kBufferShift) - 1;

struct Sizes {
  std::uint64_t nbytes = 0;  // for each NIC
  std::uint64_t buffers = 0;
  std::uint64_t piece = 0;
  bool sums = true;

  std::uint64_t half() const { return nbytes / 2; }
  std::uint64_t pieces() const { return (half() + piece - 1) / piece; }
};

// What the peer has to know of a NIC's end.
struct End {
  std::uint32_t qpn, psn, rkey;
  std::uint64_t base;
  verbs::Gid gid;
};

// One NIC: for each buffer the bytes of this rail, both halves, and a half of scratch behind all of them.
class Rail {
 public:
  Rail(verbs::Driver& driver, const verbs::Nic& nic, const Sizes& sizes, int fd) : sizes_(sizes), memory_(sizes.buffers * (sizes.nbytes + sizes.half())) {
    device_ = made(driver.open(nic.device));
    registered_ = made(device_->register_memory(memory_.data(), memory_.size()));
    queue_ = made(device_->make_completion_queue(4 * kDepth));
    verbs::QueuePairSize size;
    size.sends = size.receives = kDepth;
    pair_ = made(device_->make_queue_pair(*queue_, size));
    const verbs::Gid gid = made(device_->gid(nic.port, nic.gid_index));
    const verbs::Port port = made(device_->port(nic.port));
    const End own{pair_->qpn, 0, registered_->rkey, reinterpret_cast<std::uintptr_t>(memory_.data()), gid};
    need(::write(fd, &own, sizeof own) == sizeof own && ::recv(fd, &peer_, sizeof peer_, MSG_WAITALL) == sizeof peer_, "exchange");
    verbs::Connect to;
    to.qpn = peer_.qpn;
    to.gid = peer_.gid;
    to.port = nic.port;
    to.gid_index = static_cast<std::uint8_t>(nic.gid_index);
    to.mtu_bytes = port.mtu_bytes;
    to.timeout = 18;
    need(pair_->connect(to));
    need(pair_->post_receives(0, kDepth));
    meet_again(fd);
  }

  std::byte* data(std::uint64_t buffer) { return memory_.data() + data_at(buffer); }
  std::byte* scratch(std::uint64_t buffer) { return memory_.data() + scratch_at(buffer); }
  std::uint64_t data_at(std::uint64_t buffer) const { return buffer * sizes_.nbytes; }
  std::uint64_t scratch_at(std::uint64_t buffer) const { return sizes_.buffers * sizes_.nbytes + buffer * sizes_.half(); }
  bool has_room() const { return under_way_ < kDepth / 2; }

  void write(std::uint64_t from, std::uint64_t to, std::uint64_t nbytes, std::uint32_t imm) {
    verbs::Send send;
    send.id = imm;
    send.opcode = verbs::Opcode::write_with_imm;
    send.local = memory_.data() + from;
    send.nbytes = static_cast<std::uint32_t>(nbytes);
    send.lkey = registered_->lkey;
    send.remote = peer_.base + to;
    send.rkey = peer_.rkey;
    send.imm = imm;
    need(pair_->post({&send, 1}));
    ++under_way_;
  }

  // received(imm) and sent(imm) of what has completed; how many.
  template <class Received, class Sent>
  int look(Received&& received, Sent&& sent) {
    verbs::Wc wcs[32];
    const int n = queue_->poll(wcs);
    need(n >= 0, "completion queue");
    int came = 0;
    for (int i = 0; i < n; ++i) {
      need(wcs[i].status == verbs::WcStatus::success, verbs::name(wcs[i].status));
      came += wcs[i].received;
      if (!wcs[i].received) --under_way_;
    }
    if (came > 0) need(pair_->post_receives(0, came));
    for (int i = 0; i < n; ++i) {
      if (wcs[i].received) received(wcs[i].imm);
      else sent(static_cast<std::uint32_t>(wcs[i].id));
    }
    return n;
  }

  static void meet_again(int fd) {
    char byte = 0;
    need(::write(fd, &byte, 1) == 1 && ::read(fd, &byte, 1) == 1, "meeting");
  }

 private:
  template <class T>
  static T made(Result<T> result) {
    need(result.status());
    return std::move(result).value();
  }

  const Sizes sizes_;
  std::vector<std::byte> memory_;
  std::unique_ptr<verbs::Device> device_;
  std::unique_ptr<verbs::Memory> registered_;
  std::unique_ptr<verbs::CompletionQueue> queue_;
  std::unique_ptr<verbs::QueuePair> pair_;
  End peer_{};
  int under_way_ = 0;
};

class Sums {
 public:
  Sums(int rank, const Sizes& sizes, const std::vector<std::string>& addresses) : rank_(static_cast<std::uint64_t>(rank)), sizes_(sizes), buffers_(sizes.buffers) {
    const Result<verbs::Driver*> driver = verbs::open_library();
    need(driver.status());
    const std::vector<verbs::DeviceInfo> devices = verbs::discover();
    for (std::size_t k = 0; k < addresses.size(); ++k) {
      const Result<verbs::Nic> nic = verbs::nic_of(devices, own_address(addresses[k]));
      need(nic.status());
      fds_.push_back(meet(rank, addresses[k], kPort + static_cast<int>(k)));
      rails_.push_back(std::make_unique<Rail>(*driver.value(), nic.value(), sizes, fds_.back()));
    }
  }

  // `times` all_reduces, all started at once; each buffer has one at a time. Seconds.
  double run(std::uint64_t times) {
    Rail::meet_again(fds_[0]);
    left_ = times;
    for (std::uint64_t b = 0; b < sizes_.buffers; ++b) buffers_[b].to_start = times / sizes_.buffers + (b < times % sizes_.buffers);
    const std::int64_t begin_ns = now_ns();
    for (std::uint64_t b = 0; b < sizes_.buffers; ++b) begin(b);
    while (left_ > 0) {
      int did = flush();
      for (std::size_t k = 0; k < rails_.size(); ++k)
        did += rails_[k]->look([&](std::uint32_t imm) { arrived(k, imm); }, [&](std::uint32_t imm) { over(imm >> kBufferShift & kBufferMask); });
      if (did == 0) ::sched_yield();
    }
    const double seconds = static_cast<double>(now_ns() - begin_ns) * 1e-9;
    Rail::meet_again(fds_[0]);
    return seconds;
  }

  double sum_seconds() { return static_cast<double>(std::exchange(sum_ns_, 0)) * 1e-9; }

  void fill() {
    for (const auto& rail : rails_)
      for (std::uint64_t b = 0; b < sizes_.buffers; ++b)
        for (std::uint64_t i = 0; i < sizes_.nbytes / 4; ++i) values(*rail, b)[i] = value(rank_, i);
  }

  // After `times` of them the sum of both was doubled so often in each buffer.
  void check(std::uint64_t times) {
    for (const auto& rail : rails_)
      for (std::uint64_t b = 0; sizes_.sums && b < sizes_.buffers; ++b) {
        const std::uint64_t n = times / sizes_.buffers + (b < times % sizes_.buffers);
        for (std::uint64_t i = 0; n > 0 && i < sizes_.nbytes / 4; ++i)
          need(values(*rail, b)[i] == (value(0, i) + value(1, i)) << (n - 1), "a sum is wrong");
      }
  }

 private:
  struct Buffer {
    std::uint64_t to_start = 0;
    std::uint64_t number = 0;  // of all_reduces in it, ever
    std::uint64_t left = 0;    // completions that this one waits for
    std::vector<std::pair<std::size_t, std::uint32_t>> early;
  };
  struct Waiting {
    std::size_t rail;
    std::uint32_t imm;
  };

  static std::uint32_t value(std::uint64_t rank, std::uint64_t i) { return static_cast<std::uint32_t>(3 + i * 7 + rank * (i * i + 11)); }
  static std::uint32_t* values(Rail& rail, std::uint64_t buffer) { return reinterpret_cast<std::uint32_t*>(rail.data(buffer)); }

  void begin(std::uint64_t b) {
    Buffer& buffer = buffers_[b];
    if (buffer.to_start == 0) return;
    --buffer.to_start;
    ++buffer.number;
    buffer.left = rails_.size() * sizes_.pieces() * 3;  // two writes that are confirmed, and the sum that comes
    for (std::uint64_t p = 0; p < sizes_.pieces(); ++p)
      for (std::size_t k = 0; k < rails_.size(); ++k) send(k, imm_of(b, p, false));
    const auto early = std::exchange(buffer.early, {});
    for (const auto& [rail, imm] : early) arrived(rail, imm);
  }

  std::uint32_t imm_of(std::uint64_t b, std::uint64_t p, bool second) const {
    return (second ? kSecond : 0) | (buffers_[b].number % 2 ? kOdd : 0) | static_cast<std::uint32_t>(b << kBufferShift | p);
  }

  void send(std::size_t k, std::uint32_t imm) {
    if (!waiting_.empty() || !rails_[k]->has_room()) waiting_.push_back({k, imm});
    else post(k, imm);
  }
  int flush() {
    std::size_t n = 0;
    for (; n < waiting_.size() && rails_[waiting_[n].rail]->has_room(); ++n) post(waiting_[n].rail, waiting_[n].imm);
    waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(n));
    return static_cast<int>(n);
  }

  std::uint64_t begin_of(std::uint32_t imm) const { return (imm & kPieceMask) * sizes_.piece; }
  std::uint64_t bytes_of(std::uint32_t imm) const { return std::min(sizes_.piece, sizes_.half() - begin_of(imm)); }

  void post(std::size_t k, std::uint32_t imm) {
    Rail& rail = *rails_[k];
    const std::uint64_t b = imm >> kBufferShift & kBufferMask, at = begin_of(imm);
    const std::uint64_t own = rail.data_at(b) + rank_ * sizes_.half() + at, other = rail.data_at(b) + (1 - rank_) * sizes_.half() + at;
    if ((imm & kSecond) != 0) rail.write(own, own, bytes_of(imm), imm);
    else rail.write(other, rail.scratch_at(b) + at, bytes_of(imm), imm);
  }

  void arrived(std::size_t k, std::uint32_t imm) {
    const std::uint64_t b = imm >> kBufferShift & kBufferMask;
    Buffer& buffer = buffers_[b];
    if (buffer.left == 0 || ((imm & kOdd) != 0) != (buffer.number % 2 != 0)) return buffer.early.emplace_back(k, imm), void();
    if ((imm & kSecond) != 0) return over(static_cast<std::uint32_t>(b));
    Rail& rail = *rails_[k];
    std::byte* const own = rail.data(b) + rank_ * sizes_.half() + begin_of(imm);
    const std::byte* const sources[] = {own, rail.scratch(b) + begin_of(imm)};
    const std::int64_t begin_ns = now_ns();
    if (sizes_.sums) reduce(DType::int32, RedOp::sum, own, sources, 2, bytes_of(imm) / 4);
    sum_ns_ += now_ns() - begin_ns;
    send(k, imm | kSecond);
  }

  void over(std::uint32_t b) {
    if (--buffers_[b].left > 0) return;
    --left_;
    begin(b);
  }

  const std::uint64_t rank_;
  const Sizes sizes_;
  std::vector<int> fds_;
  std::vector<std::unique_ptr<Rail>> rails_;
  std::vector<Buffer> buffers_;
  std::vector<Waiting> waiting_;
  std::uint64_t left_ = 0;  // that are not over
  std::int64_t sum_ns_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 8) {
    std::fprintf(stderr, "usage: %s RANK BYTES TIMES BUFFERS PIECE SUMS ADDRESS ...\n", argv[0]);
    return 2;
  }
  const auto number = [&](int i) { return std::strtoull(argv[i], nullptr, 10); };
  Sizes sizes;
  sizes.nbytes = number(2);
  sizes.buffers = number(4);
  sizes.piece = number(5);
  sizes.sums = number(6) != 0;
  need(sizes.nbytes % 8 == 0 && sizes.piece % 4 == 0 && sizes.piece > 0 && sizes.buffers <= kBufferMask, "sizes");
  Sums sums(std::atoi(argv[1]), sizes, {argv + 7, argv + argc});
  sums.fill();
  sums.run(kChecked);
  sums.check(kChecked);
  sums.sum_seconds();
  const double seconds = sums.run(number(3));
  std::printf("%.9f %.9f\n", seconds, sums.sum_seconds());
  return 0;
}
