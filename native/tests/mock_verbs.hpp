// RDMA NICs that are not there: the seam of drivers/verbs over memory of this process.
//
// Is: devices, queue pairs and completion queues that really move bytes between ranks of one process, request by request, in
//     posting order on a queue pair and in any order (seeded) among queue pairs; with every error completion and event to be
//     had when it is asked for.
// Is not: a model of time: a request is done when somebody polls, unless the wire is held.
//
// Invariants
//  - What a real NIC checks is checked: keys, bounds, room of queues, receives, states. A test fails if the transport asks for
//    what the device could refuse.
#pragma once

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "drivers/verbs/verbs.hpp"

namespace ccl_lab::check {

class MockPair;
class MockDevice;

// The wire, and what is on it.
struct MockFabric {
  explicit MockFabric(std::uint64_t seed = 0) : random(seed) {}

  std::mt19937_64 random;
  bool held = false;                         // nothing moves
  int most_sends = 0;                        // that ever waited on one queue pair
  std::uint64_t doorbells = 0;
  std::uint64_t writes_with_imm = 0;
  std::uint64_t plain_writes = 0;
  std::uint64_t signaled = 0;
  std::uint64_t arms = 0;                    // of completion queues
  std::function<void()> ahead_of_arm;        // what happens at the last moment before one is armed
  std::vector<std::uint32_t> imms;           // in the order in which they were posted
  std::vector<std::uint32_t> used;           // queue pairs, the same
  verbs::Limits limits{1000, 8192, 1 << 20, 16};
  std::uint64_t most_memory = UINT64_MAX;    // that can be registered
  std::uint64_t memory = 0;
  int inline_bytes = 220;
  std::string no_dma_bufs;                   // why the devices take none,
  std::string no_dma_bufs_of;                // all of them, or one
  std::uint64_t most_dma_buf = UINT64_MAX;   // of one
  int dma_bufs = 0;                          // that are registered
  std::map<std::uint32_t, MockPair*> pairs;  // by number
  struct Range {
    std::byte* base = nullptr;
    std::uint64_t size = 0;
    std::uint64_t iova = 0;                  // how requests name its first byte
  };
  mutable std::mutex registering;            // of memory: transports register on a thread of their own, too
  std::map<std::uint32_t, Range> memories;   // by key
  std::set<std::uint32_t> revoked;           // keys that are not good any more
  std::map<std::string, MockDevice*> devices;
  std::uint32_t next_number = 100;
  std::uint32_t next_key = 7;

  bool may_register(std::uint64_t size) const {
    const std::lock_guard lock(registering);
    return memory + size <= most_memory;
  }
  std::byte* resolve(std::uint32_t key, std::uint64_t at, std::uint64_t nbytes) const {
    const std::lock_guard lock(registering);
    const auto found = memories.find(key);
    if (found == memories.end() || revoked.contains(key)) return nullptr;
    const std::uint64_t base = found->second.iova;
    if (at < base || at - base > found->second.size || nbytes > found->second.size - (at - base)) return nullptr;
    return found->second.base + (at - base);
  }
  void step();
};

class MockQueue final : public verbs::CompletionQueue {
 public:
  MockQueue(MockFabric& fabric, int fd, int depth) : fabric_(fabric), fd_(fd), depth_(depth) {}
  int poll(std::span<verbs::Wc> wcs) override {
    fabric_.step();
    int n = 0;
    for (; n < static_cast<int>(wcs.size()) && !found_.empty(); ++n, found_.pop_front()) wcs[static_cast<std::size_t>(n)] = found_.front();
    return overrun_ ? -1 : n;
  }
  Status arm() override {
    ++fabric_.arms;
    if (fabric_.ahead_of_arm) fabric_.ahead_of_arm();
    armed_ = true;
    return {};
  }
  void push(const verbs::Wc& wc) {
    overrun_ = overrun_ || static_cast<int>(found_.size()) >= depth_;
    found_.push_back(wc);
    const std::uint64_t one = 1;
    if (std::exchange(armed_, false)) static_cast<void>(!::write(fd_, &one, sizeof one));
  }

 private:
  MockFabric& fabric_;
  int fd_;
  int depth_;
  bool armed_ = false;
  bool overrun_ = false;
  std::deque<verbs::Wc> found_;
};

class MockMemory final : public verbs::Memory {
 public:
  MockMemory(MockFabric& fabric, std::byte* base, std::uint64_t size) : fabric_(fabric), size_(size) {
    const std::lock_guard lock(fabric.registering);
    lkey = rkey = fabric.next_key++;
    fabric.memories[lkey] = {base, size, reinterpret_cast<std::uintptr_t>(base)};
    fabric.memory += size;
  }
  ~MockMemory() override {
    const std::lock_guard lock(fabric_.registering);
    fabric_.memories.erase(lkey);
    fabric_.memory -= size_;
  }

 private:
  MockFabric& fabric_;
  std::uint64_t size_;
};

// What a NIC has of a dma-buf: a way of its own to the bytes, at no address that the host knows.
class MockDmaBuf final : public verbs::Memory {
 public:
  MockDmaBuf(MockFabric& fabric, std::byte* own, std::uint64_t size, std::uint64_t iova) : fabric_(fabric), own_(own), size_(size) {
    const std::lock_guard lock(fabric.registering);
    lkey = rkey = fabric.next_key++;
    fabric.memories[lkey] = {own, size, iova};
    ++fabric.dma_bufs;
  }
  ~MockDmaBuf() override {
    const std::lock_guard lock(fabric_.registering);
    fabric_.memories.erase(lkey);
    --fabric_.dma_bufs;
    ::munmap(own_, size_);
  }

 private:
  MockFabric& fabric_;
  std::byte* own_;
  std::uint64_t size_;
};

class MockPair final : public verbs::QueuePair {
 public:
  MockPair(MockFabric& fabric, MockDevice& device, MockQueue& queue, const verbs::QueuePairSize& size)
      : fabric_(fabric), device_(device), queue_(queue), size_(size) {
    qpn = fabric.next_number++;
    inline_bytes = std::min(size.inline_bytes, fabric.inline_bytes);
    fabric.pairs[qpn] = this;
  }
  ~MockPair() override { fabric_.pairs.erase(qpn); }

  Status connect(const verbs::Connect& to) override {
    to_ = to.qpn;
    connected_ = true;
    return {};
  }
  Status post(std::span<const verbs::Send> sends) override {
    ++fabric_.doorbells;
    for (const verbs::Send& send : sends) {
      if (!connected_ || outstanding_ >= size_.sends) return Status(Code::link_down, "the queue pair takes no more");
      if (send.inlined && send.nbytes > static_cast<std::uint32_t>(inline_bytes)) return Status(Code::link_down, "too much inline");
      Request request{send, {}};
      if (send.inlined) request.bytes.assign(send.local, send.local + send.nbytes);
      requests_.push_back(std::move(request));
      ++outstanding_;
      fabric_.signaled += send.signaled;
      fabric_.most_sends = std::max(fabric_.most_sends, outstanding_);
      if (send.opcode == verbs::Opcode::write) ++fabric_.plain_writes;
      if (send.opcode != verbs::Opcode::write_with_imm) continue;
      ++fabric_.writes_with_imm;
      fabric_.imms.push_back(send.imm);
      fabric_.used.push_back(qpn);
    }
    if (broken_) flush();
    return {};
  }
  Status post_receives(std::uint64_t id, int n) override {
    if (receives_.size() + static_cast<std::size_t>(n) > static_cast<std::size_t>(size_.receives))
      return Status(Code::link_down, "the queue pair takes no more receives");
    receives_.insert(receives_.end(), static_cast<std::size_t>(n), id);
    if (broken_) flush();
    return {};
  }
  void fail() override { break_with(verbs::WcStatus::wr_flush_err); }

  bool has_work() const { return !requests_.empty() && !broken_; }
  // The oldest request fails with `status`, those after it are flushed.
  void break_with(verbs::WcStatus status) {
    if (broken_) return;
    broken_ = true;
    if (!requests_.empty() && status != verbs::WcStatus::wr_flush_err) finish(status);
    flush();
  }
  // The oldest request; false where the peer has no receive for it.
  bool run();

 private:
  struct Request {
    verbs::Send send;
    std::vector<std::byte> bytes;
  };

  void finish(verbs::WcStatus status) {
    const verbs::Send send = requests_.front().send;
    requests_.pop_front();
    ++unreaped_;
    if (status == verbs::WcStatus::success && !send.signaled) return;
    verbs::Wc wc;
    wc.id = send.id;
    wc.status = status;
    queue_.push(wc);
    outstanding_ -= unreaped_;  // of those before it the room is free too
    unreaped_ = 0;
  }
  void flush() {
    while (!requests_.empty()) finish(verbs::WcStatus::wr_flush_err);
    for (const std::uint64_t id : receives_) {
      verbs::Wc wc;
      wc.id = id;
      wc.status = verbs::WcStatus::wr_flush_err;
      queue_.push(wc);
    }
    receives_.clear();
  }

  MockFabric& fabric_;
  MockDevice& device_;
  MockQueue& queue_;
  verbs::QueuePairSize size_;
  std::uint32_t to_ = 0;
  bool connected_ = false;
  bool broken_ = false;
  int outstanding_ = 0;
  int unreaped_ = 0;
  std::deque<Request> requests_;
  std::deque<std::uint64_t> receives_;
};

class MockDevice final : public verbs::Device {
 public:
  MockDevice(MockFabric& fabric, std::string name)
      : fabric_(fabric), name_(std::move(name)), limits_(fabric.limits), completion_fd_(::eventfd(0, EFD_NONBLOCK)),
        event_fd_(::eventfd(0, EFD_NONBLOCK | EFD_SEMAPHORE)) {
    fabric_.devices[name_] = this;
  }
  ~MockDevice() override {
    fabric_.devices.erase(name_);
    ::close(completion_fd_);
    ::close(event_fd_);
  }
  const std::string& name() const override { return name_; }
  const verbs::Limits& limits() const override { return limits_; }
  Result<verbs::Port> port(std::uint8_t) override { return verbs::Port{state, 4096}; }
  Result<verbs::Gid> gid(std::uint8_t, int index) override {
    if (index < 0 || index > 3) return Status(Code::connect, "RDMA device " + name_ + " has no GID of index " + std::to_string(index));
    return own_gid;
  }
  Result<std::unique_ptr<verbs::Memory>> register_memory(std::byte* base, std::uint64_t size) override {
    if (!fabric_.may_register(size)) return Status(Code::registration, "no memory is left to be locked: raise `ulimit -l`");
    return std::unique_ptr<verbs::Memory>(std::make_unique<MockMemory>(fabric_, base, size));
  }
  Status takes_dma_bufs() override {
    const bool takes = fabric_.no_dma_bufs.empty() || (!fabric_.no_dma_bufs_of.empty() && fabric_.no_dma_bufs_of != name_);
    return takes ? Status() : Status(Code::unsupported, "RDMA device " + name_ + " takes no dma-bufs: " + fabric_.no_dma_bufs);
  }
  Result<std::unique_ptr<verbs::Memory>> register_dma_buf(int fd, std::uint64_t offset, std::uint64_t size, std::uint64_t iova) override {
    if (Status status = takes_dma_bufs(); !status.ok()) return status;
    void* const own = size > fabric_.most_dma_buf ? MAP_FAILED
                                                  : ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
    if (own == MAP_FAILED) return Status(Code::unsupported, "RDMA device " + name_ + " does not register a dma-buf of " + std::to_string(size) + " bytes");
    return std::unique_ptr<verbs::Memory>(std::make_unique<MockDmaBuf>(fabric_, static_cast<std::byte*>(own), size, iova));
  }
  Result<std::unique_ptr<verbs::CompletionQueue>> make_completion_queue(int depth) override {
    return std::unique_ptr<verbs::CompletionQueue>(std::make_unique<MockQueue>(fabric_, completion_fd_, depth));
  }
  Result<std::unique_ptr<verbs::QueuePair>> make_queue_pair(verbs::CompletionQueue& queue, const verbs::QueuePairSize& size) override {
    if (static_cast<int>(fabric_.pairs.size()) >= limits_.queue_pairs) return Status(Code::connect, "RDMA device " + name_ + " gives no queue pair");
    return std::unique_ptr<verbs::QueuePair>(std::make_unique<MockPair>(fabric_, *this, static_cast<MockQueue&>(queue), size));
  }
  int completion_fd() const override { return completion_fd_; }
  int event_fd() const override { return event_fd_; }
  int take_completion_events() override {
    std::uint64_t n = 0;
    return ::read(completion_fd_, &n, sizeof n) == sizeof n ? static_cast<int>(n) : 0;
  }
  bool take_event(verbs::Event& event) override {
    if (events_.empty()) return false;
    event = events_.front();
    events_.pop_front();
    std::uint64_t one = 0;
    static_cast<void>(!::read(event_fd_, &one, sizeof one));
    return true;
  }
  void say(verbs::EventType type, std::uint32_t pair = 0) {
    events_.push_back({type, 1, pair});
    const std::uint64_t one = 1;
    static_cast<void>(!::write(event_fd_, &one, sizeof one));
  }

  verbs::PortState state = verbs::PortState::active;
  verbs::Gid own_gid{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 1, 1};

 private:
  MockFabric& fabric_;
  std::string name_;
  verbs::Limits limits_;
  int completion_fd_;
  int event_fd_;
  std::deque<verbs::Event> events_;
};

class MockDriver final : public verbs::Driver {
 public:
  explicit MockDriver(MockFabric& fabric) : fabric_(fabric) {}
  Result<std::unique_ptr<verbs::Device>> open(const std::string& name) override {
    return std::unique_ptr<verbs::Device>(std::make_unique<MockDevice>(fabric_, name));
  }

 private:
  MockFabric& fabric_;
};

inline bool MockPair::run() {
  const Request& request = requests_.front();
  const verbs::Send& send = request.send;
  const auto peer = fabric_.pairs.find(to_);
  if (peer == fabric_.pairs.end() || peer->second->broken_ || !peer->second->connected_) {
    break_with(verbs::WcStatus::retry_exc_err);
    return true;
  }
  MockPair& to = *peer->second;
  const std::byte* local = request.bytes.data();
  if (!send.inlined && send.nbytes > 0) {
    local = fabric_.resolve(send.lkey, reinterpret_cast<std::uintptr_t>(send.local), send.nbytes);
    if (local == nullptr) return break_with(verbs::WcStatus::loc_prot_err), true;
  }
  std::byte* const remote = send.nbytes == 0 ? nullptr : fabric_.resolve(send.rkey, send.remote, send.nbytes);
  if (send.nbytes > 0 && remote == nullptr) {
    to.device_.say(verbs::EventType::qp_access_err, to.qpn);
    break_with(verbs::WcStatus::rem_access_err);
    return true;
  }
  if (send.opcode == verbs::Opcode::write_with_imm && to.receives_.empty()) return false;
  if (send.nbytes > 0 && send.opcode == verbs::Opcode::read) std::memcpy(const_cast<std::byte*>(local), remote, send.nbytes);
  else if (send.nbytes > 0) std::memcpy(remote, local, send.nbytes);
  if (send.opcode == verbs::Opcode::write_with_imm) {
    verbs::Wc wc;
    wc.id = to.receives_.front();
    wc.received = true;
    wc.imm = send.imm;
    wc.nbytes = send.nbytes;
    to.receives_.pop_front();
    to.queue_.push(wc);
  }
  finish(verbs::WcStatus::success);
  return true;
}

inline void MockFabric::step() {
  if (held) return;
  std::vector<MockPair*> busy;
  for (const auto& [number, pair] : pairs)
    if (pair->has_work()) busy.push_back(pair);
  const std::size_t n = std::min<std::size_t>(busy.size(), 1 + random() % 24);
  for (std::size_t i = 0; i < n; ++i) {
    MockPair& pair = *busy[random() % busy.size()];
    if (pair.has_work()) pair.run();
  }
}

}  // namespace ccl_lab::check
