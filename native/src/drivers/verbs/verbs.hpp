// RDMA devices as this project needs them: the seam between the transport and libibverbs.
//
// Is: interfaces with plain values, and two makers of them: open_library() (libibverbs, loaded when first asked for) and the
//     mock of the tests. Words, states and numbers are those of libibverbs.
// Is not: a policy: who posts what on which queue pair, and what an error means for a path, is said in transport/verbs.
//
// Invariants
//  - Nothing of it throws or blocks, but opening, registering and making things, which are system calls.
//  - What was made goes before what made it: queue pairs before their completion queue, all before the device.
//  - After a QueuePair is gone no byte that its peer sent lands any more.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.hpp"

namespace ccl_lab::verbs {

using Gid = std::array<std::uint8_t, 16>;

enum class PortState : std::uint8_t { nop = 0, down = 1, init = 2, armed = 3, active = 4, active_defer = 5 };

// As in ibv_wc_status.
enum class WcStatus : std::uint8_t {
  success, loc_len_err, loc_qp_op_err, loc_eec_op_err, loc_prot_err, wr_flush_err, mw_bind_err, bad_resp_err, loc_access_err,
  rem_inv_req_err, rem_access_err, rem_op_err, retry_exc_err, rnr_retry_exc_err, loc_rdd_viol_err, rem_inv_rd_req_err,
  rem_abort_err, inv_eecn_err, inv_eec_state_err, fatal_err, resp_timeout_err, general_err,
};
inline constexpr int kWcStatuses = 22;

// As in ibv_event_type.
enum class EventType : std::uint8_t {
  cq_err, qp_fatal, qp_req_err, qp_access_err, comm_est, sq_drained, path_mig, path_mig_err, device_fatal, port_active, port_err,
  lid_change, pkey_change, sm_change, srq_err, srq_limit_reached, qp_last_wqe_reached, client_reregister, gid_change, wq_fatal,
};
inline constexpr int kEventTypes = 20;

// "RETRY_EXC_ERR", and what it means and what to try.
const char* name(WcStatus status);
const char* meaning(WcStatus status);
const char* name(EventType type);
// "10.77.1.2" for an address that IPv4 is mapped to, else groups of hex digits.
std::string text(const Gid& gid);

struct Port {
  PortState state = PortState::nop;
  int mtu_bytes = 1024;  // active
  std::uint16_t lid = 0; // of InfiniBand
};

// What a device can do at most.
struct Limits {
  int queue_pairs = 0;
  int work_requests = 0;   // of a queue
  int completions = 0;     // of a completion queue
  int reads = 1;           // under way on a queue pair
};

enum class Opcode : std::uint8_t { write, write_with_imm, read };

struct Send {
  std::uint64_t id = 0;
  Opcode opcode = Opcode::write;
  const std::byte* local = nullptr;  // written to by a read
  std::uint32_t nbytes = 0;
  std::uint32_t lkey = 0;
  std::uint64_t remote = 0;
  std::uint32_t rkey = 0;
  std::uint32_t imm = 0;
  bool signaled = true;   // its success is told; an error always is
  bool inlined = false;   // the bytes are taken when it is posted: no lkey, and the memory is free at once
};

struct Wc {
  std::uint64_t id = 0;
  WcStatus status = WcStatus::success;
  bool received = false;  // a write with immediate of the peer; else one of this side's posts
  std::uint32_t imm = 0;
  std::uint32_t nbytes = 0;
  std::uint32_t vendor_error = 0;
};

struct Event {
  EventType type = EventType::comm_est;
  std::uint8_t port = 0;       // of port events
  std::uint32_t qpn = 0;       // of queue pair events
};

class Memory {
 public:
  virtual ~Memory() = default;
  std::uint32_t lkey = 0;
  std::uint32_t rkey = 0;
};

class CompletionQueue {
 public:
  virtual ~CompletionQueue() = default;
  // How many were put in `wcs`, or -1 where the queue is broken.
  virtual int poll(std::span<Wc> wcs) = 0;
  // The next completion makes the device's event descriptor readable.
  virtual Status arm() = 0;
};

struct QueuePairSize {
  int sends = 0;
  int receives = 0;
  int inline_bytes = 0;
};

// What one side has to know of the other, and of the way there.
struct Connect {
  std::uint32_t qpn = 0;       // of the peer
  std::uint32_t psn = 0;       // of the peer's sending
  std::uint32_t own_psn = 0;
  Gid gid{};                   // of the peer
  std::uint16_t lid = 0;       // of the peer, on InfiniBand
  std::uint8_t port = 1;       // of this side, and
  std::uint8_t gid_index = 0;
  int mtu_bytes = 1024;
  int reads = 1;               // both ways
  std::uint8_t timeout = 14;   // 4.096 us * 2^timeout until a packet is sent again, in effect
  std::uint8_t retries = 6;
};

class QueuePair {
 public:
  virtual ~QueuePair() = default;
  std::uint32_t qpn = 0;
  int inline_bytes = 0;        // as the device made it

  // To RTR and RTS.
  virtual Status connect(const Connect& to) = 0;
  // Posts in order, with one doorbell.
  virtual Status post(std::span<const Send> sends) = 0;
  // Receives without memory, for immediates.
  virtual Status post_receives(std::uint64_t id, int n) = 0;
  // To the error state: what is posted is flushed, nothing of the peer is taken any more.
  virtual void fail() = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const std::string& name() const = 0;
  virtual const Limits& limits() const = 0;
  virtual Result<Port> port(std::uint8_t number) = 0;
  virtual Result<Gid> gid(std::uint8_t port, int index) = 0;
  // Local and remote access, reads and writes.
  virtual Result<std::unique_ptr<Memory>> register_memory(std::byte* base, std::uint64_t size) = 0;
  // Memory of another device: bytes [offset, offset + size) of its dma-buf, which requests name from `iova` on; the same access. The
  // descriptor may be closed afterwards.
  virtual Result<std::unique_ptr<Memory>> register_dma_buf(int fd, std::uint64_t offset, std::uint64_t size, std::uint64_t iova) = 0;
  // ok, or unsupported: why no dma-buf can be registered, whoever's it is.
  virtual Status takes_dma_bufs() = 0;
  virtual Result<std::unique_ptr<CompletionQueue>> make_completion_queue(int depth) = 0;
  virtual Result<std::unique_ptr<QueuePair>> make_queue_pair(CompletionQueue& completions, const QueuePairSize& size) = 0;
  // Readable when an armed completion queue has something; and when there is an event.
  virtual int completion_fd() const = 0;
  virtual int event_fd() const = 0;
  // Takes what made completion_fd readable; how many. Does not block.
  virtual int take_completion_events() = 0;
  virtual bool take_event(Event& event) = 0;
};

class Driver {
 public:
  virtual ~Driver() = default;
  // unsupported: no such device; registration or config: the system refused.
  virtual Result<std::unique_ptr<Device>> open(const std::string& name) = 0;
};

// libibverbs of this machine; unsupported, naming what is missing, where it, or support for it in this build, is not there.
Result<Driver*> open_library();

}  // namespace ccl_lab::verbs
