// libibverbs behind the seam of verbs.hpp: loaded at run time, never linked.
//
// Is: one class for each object of libibverbs, which destroys what it made.
// Is not: a policy. Posting and polling are not functions of the library but of the device's table of operations, which the
//     inline functions of its header call.
//
// Invariants
//  - The library stays loaded: device memory may outlive whoever asked for it.
#include "drivers/verbs/verbs.hpp"

#ifdef CCL_LAB_VERBS

#include <dlfcn.h>
#include <endian.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

// The header gives these names to inline functions that call other exports.
#undef ibv_query_port
#undef ibv_reg_mr

namespace ccl_lab::verbs {

namespace {

struct Library {
  decltype(&::ibv_get_device_list) get_device_list;
  decltype(&::ibv_free_device_list) free_device_list;
  decltype(&::ibv_get_device_name) get_device_name;
  decltype(&::ibv_open_device) open_device;
  decltype(&::ibv_close_device) close_device;
  decltype(&::ibv_query_device) query_device;
  decltype(&::ibv_query_port) query_port;
  decltype(&::ibv_query_gid) query_gid;
  decltype(&::ibv_alloc_pd) alloc_pd;
  decltype(&::ibv_dealloc_pd) dealloc_pd;
  decltype(&::ibv_reg_mr) reg_mr;
  decltype(&::ibv_dereg_mr) dereg_mr;
  // From rdma-core 34 on, which headers may be older than: null where this machine's library has none.
  ibv_mr* (*reg_dmabuf_mr)(ibv_pd*, std::uint64_t offset, std::size_t length, std::uint64_t iova, int fd, int access);
  decltype(&::ibv_create_comp_channel) create_comp_channel;
  decltype(&::ibv_destroy_comp_channel) destroy_comp_channel;
  decltype(&::ibv_create_cq) create_cq;
  decltype(&::ibv_destroy_cq) destroy_cq;
  decltype(&::ibv_get_cq_event) get_cq_event;
  decltype(&::ibv_ack_cq_events) ack_cq_events;
  decltype(&::ibv_create_qp) create_qp;
  decltype(&::ibv_modify_qp) modify_qp;
  decltype(&::ibv_destroy_qp) destroy_qp;
  decltype(&::ibv_get_async_event) get_async_event;
  decltype(&::ibv_ack_async_event) ack_async_event;
};

constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
constexpr std::uint64_t kPage = 4096;

std::string why() { return std::strerror(errno); }

// "; the limit on locked memory is 64 KiB: raise `ulimit -l`", where that may be the reason.
std::string locked_memory() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return {};
  return "; at most " + std::to_string(limit.rlim_cur >> 10) + " KiB of memory may be locked here: raise `ulimit -l` (memlock)";
}

ibv_mtu mtu_of(int nbytes) {
  return nbytes >= 4096 ? IBV_MTU_4096 : nbytes >= 2048 ? IBV_MTU_2048 : nbytes >= 1024 ? IBV_MTU_1024 : nbytes >= 512 ? IBV_MTU_512 : IBV_MTU_256;
}

class LibraryMemory final : public Memory {
 public:
  LibraryMemory(const Library& library, ibv_mr* mr) : library_(library), mr_(mr) {
    lkey = mr->lkey;
    rkey = mr->rkey;
  }
  ~LibraryMemory() override { library_.dereg_mr(mr_); }

 private:
  const Library& library_;
  ibv_mr* mr_;
};

class LibraryCompletionQueue final : public CompletionQueue {
 public:
  LibraryCompletionQueue(const Library& library, ibv_cq* cq) : library_(library), cq_(cq) {}
  ~LibraryCompletionQueue() override { library_.destroy_cq(cq_); }
  ibv_cq* get() const { return cq_; }

  int poll(std::span<Wc> wcs) override {
    constexpr int kMost = 32;
    ibv_wc found[kMost];
    const int n = ::ibv_poll_cq(cq_, std::min(static_cast<int>(wcs.size()), kMost), found);
    for (int i = 0; i < n; ++i) {
      const ibv_wc& from = found[i];
      Wc& wc = wcs[static_cast<std::size_t>(i)];
      wc = {};
      wc.id = from.wr_id;
      wc.status = static_cast<WcStatus>(from.status);
      wc.vendor_error = from.vendor_err;
      if (from.status != IBV_WC_SUCCESS) continue;  // then only these mean something
      wc.received = (from.opcode & IBV_WC_RECV) != 0;
      wc.nbytes = from.byte_len;
      if ((from.wc_flags & IBV_WC_WITH_IMM) != 0) wc.imm = be32toh(from.imm_data);
    }
    return n < 0 ? -1 : n;
  }

  Status arm() override {
    if (::ibv_req_notify_cq(cq_, 0) == 0) return {};
    return Status(Code::internal, "a completion queue cannot be armed: " + why());
  }

 private:
  const Library& library_;
  ibv_cq* cq_;
};

class LibraryQueuePair final : public QueuePair {
 public:
  LibraryQueuePair(const Library& library, ibv_qp* qp, int inline_capacity) : library_(library), qp_(qp) {
    qpn = qp->qp_num;
    inline_bytes = inline_capacity;
  }
  ~LibraryQueuePair() override {
    fail();
    library_.destroy_qp(qp_);
  }

  Status to_init(std::uint8_t port) const {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = port;
    attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    return modify(attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "INIT");
  }

  Status connect(const Connect& to) override {
    if (const Status status = to_init(to.port); !status.ok()) return status;
    ibv_qp_attr ready{};
    ready.qp_state = IBV_QPS_RTR;
    ready.path_mtu = mtu_of(to.mtu_bytes);
    ready.dest_qp_num = to.qpn;
    ready.rq_psn = to.psn;
    ready.max_dest_rd_atomic = static_cast<std::uint8_t>(to.reads);
    ready.min_rnr_timer = 12;  // 0.64 ms
    ready.ah_attr.is_global = 1;
    ready.ah_attr.dlid = to.lid;
    std::memcpy(ready.ah_attr.grh.dgid.raw, to.gid.data(), to.gid.size());
    ready.ah_attr.grh.sgid_index = to.gid_index;
    ready.ah_attr.grh.hop_limit = 64;
    ready.ah_attr.port_num = to.port;
    if (const Status status = modify(ready, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                                IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER, "RTR");
        !status.ok())
      return status;
    ibv_qp_attr sending{};
    sending.qp_state = IBV_QPS_RTS;
    sending.sq_psn = to.own_psn;
    sending.timeout = to.timeout;
    sending.retry_cnt = to.retries;
    sending.rnr_retry = 7;  // for ever: a peer whose software is slow is not a lost path
    sending.max_rd_atomic = static_cast<std::uint8_t>(to.reads);
    return modify(sending, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                               IBV_QP_MAX_QP_RD_ATOMIC, "RTS");
  }

  Status post(std::span<const Send> sends) override {
    constexpr std::size_t kMost = 32;
    ibv_send_wr requests[kMost];
    ibv_sge parts[kMost];
    while (!sends.empty()) {
      const std::size_t n = std::min(sends.size(), kMost);
      for (std::size_t i = 0; i < n; ++i) {
        fill(sends[i], requests[i], parts[i]);
        requests[i].next = i + 1 < n ? &requests[i + 1] : nullptr;
      }
      ibv_send_wr* bad = nullptr;
      if (const int error = ::ibv_post_send(qp_, requests, &bad); error != 0)
        return Status(Code::link_down, std::string("the queue pair takes no more: ") + std::strerror(error));
      sends = sends.subspan(n);
    }
    return {};
  }

  Status post_receives(std::uint64_t id, int n) override {
    constexpr int kMost = 32;
    ibv_recv_wr requests[kMost];
    while (n > 0) {
      const int now = std::min(n, kMost);
      for (int i = 0; i < now; ++i) {
        requests[i] = {};
        requests[i].wr_id = id;
        requests[i].next = i + 1 < now ? &requests[i + 1] : nullptr;
      }
      ibv_recv_wr* bad = nullptr;
      if (const int error = ::ibv_post_recv(qp_, requests, &bad); error != 0)
        return Status(Code::link_down, std::string("the queue pair takes no more receives: ") + std::strerror(error));
      n -= now;
    }
    return {};
  }

  void fail() override {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_ERR;
    static_cast<void>(library_.modify_qp(qp_, &attributes, IBV_QP_STATE));
  }

 private:
  Status modify(ibv_qp_attr& attributes, int mask, const char* state) const {
    const int error = library_.modify_qp(qp_, &attributes, mask);
    if (error == 0) return {};
    return Status(Code::connect, std::string("its queue pair does not go to ") + state + ": " + std::strerror(error) +
                                     "; is the port up, and does the GID still stand at its index (`ibv_devinfo -v`)?");
  }

  static void fill(const Send& from, ibv_send_wr& request, ibv_sge& part) {
    request = {};
    request.wr_id = from.id;
    request.opcode = from.opcode == Opcode::read    ? IBV_WR_RDMA_READ
                     : from.opcode == Opcode::write ? IBV_WR_RDMA_WRITE
                                                    : IBV_WR_RDMA_WRITE_WITH_IMM;
    request.imm_data = htobe32(from.imm);
    request.wr.rdma.remote_addr = from.remote;
    request.wr.rdma.rkey = from.rkey;
    request.send_flags = (from.signaled ? unsigned{IBV_SEND_SIGNALED} : 0u) | (from.inlined ? unsigned{IBV_SEND_INLINE} : 0u);
    part.addr = reinterpret_cast<std::uintptr_t>(from.local);
    part.length = from.nbytes;
    part.lkey = from.lkey;
    if (from.nbytes == 0) return;
    request.sg_list = &part;
    request.num_sge = 1;
  }

  const Library& library_;
  ibv_qp* qp_;
};

class LibraryDevice final : public Device {
 public:
  LibraryDevice(const Library& library, ibv_context* context, std::string name)
      : library_(library), context_(context), name_(std::move(name)) {}
  ~LibraryDevice() override {
    if (pd_ != nullptr) library_.dealloc_pd(pd_);
    if (channel_ != nullptr) library_.destroy_comp_channel(channel_);
    library_.close_device(context_);
  }

  Status prepare() {
    ibv_device_attr attributes{};
    if (library_.query_device(context_, &attributes) != 0) return refused("cannot be asked what it can do");
    limits_ = {attributes.max_qp, attributes.max_qp_wr, attributes.max_cqe, std::max(attributes.max_qp_rd_atom, 1)};
    pd_ = library_.alloc_pd(context_);
    if (pd_ == nullptr) return refused("gives no protection domain");
    channel_ = library_.create_comp_channel(context_);
    if (channel_ == nullptr) return refused("gives no completion channel");
    for (const int fd : {channel_->fd, context_->async_fd})
      if (::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK) != 0) return refused("has a descriptor that blocks");
    return {};
  }

  const std::string& name() const override { return name_; }
  const Limits& limits() const override { return limits_; }
  int completion_fd() const override { return channel_->fd; }
  int event_fd() const override { return context_->async_fd; }

  Result<Port> port(std::uint8_t number) override {
    ibv_port_attr attributes{};
    errno = 0;
    if (library_.query_port(context_, number, reinterpret_cast<_compat_ibv_port_attr*>(&attributes)) != 0)
      return refused("has no port " + std::to_string(number));
    return Port{static_cast<PortState>(attributes.state), 128 << attributes.active_mtu, attributes.lid};
  }

  Result<Gid> gid(std::uint8_t port, int index) override {
    ibv_gid found;
    std::memset(&found, 0, sizeof found);
    errno = 0;
    const bool known = index >= 0 && library_.query_gid(context_, port, index, &found) == 0;
    if (!known || std::all_of(std::begin(found.raw), std::end(found.raw), [](auto byte) { return byte == 0; }))
      return refused("port " + std::to_string(port) + " has no GID of index " + std::to_string(index) + " (`ibv_devinfo -v` lists them)");
    Gid gid;
    std::memcpy(gid.data(), found.raw, gid.size());
    return gid;
  }

  Result<std::unique_ptr<Memory>> register_memory(std::byte* base, std::uint64_t size) override {
    ibv_mr* const mr = library_.reg_mr(pd_, base, size, kAccess);
    if (mr == nullptr)
      return Status(Code::registration, "device " + name_ + " does not register " + std::to_string(size) + " bytes: " + why() +
                                            (errno == ENOMEM || errno == EPERM ? locked_memory() : std::string()));
    return std::unique_ptr<Memory>(std::make_unique<LibraryMemory>(library_, mr));
  }

  // A descriptor that is none is refused as such (EBADF) by whoever would have taken a good one.
  Status takes_dma_bufs() override {
    if (library_.reg_dmabuf_mr == nullptr)
      return Status(Code::unsupported, "libibverbs.so.1 of this machine has no ibv_reg_dmabuf_mr; install rdma-core 34 or newer");
    errno = 0;
    ibv_mr* const mr = library_.reg_dmabuf_mr(pd_, 0, kPage, 0, -1, kAccess);
    if (mr != nullptr) library_.dereg_mr(mr);
    if (mr != nullptr || errno == EBADF) return {};
    return Status(Code::unsupported, "RDMA device " + name_ + " takes no dma-bufs: " + why() + "; expected a driver with them, as mlx5_ib of Linux 5.12 or newer");
  }

  Result<std::unique_ptr<Memory>> register_dma_buf(int fd, std::uint64_t offset, std::uint64_t size, std::uint64_t iova) override {
    if (Status status = takes_dma_bufs(); !status.ok()) return status;
    ibv_mr* const mr = library_.reg_dmabuf_mr(pd_, offset, size, iova, fd, kAccess);
    if (mr == nullptr)
      return Status(Code::unsupported, "RDMA device " + name_ + " does not register a dma-buf of " + std::to_string(size) + " bytes: " + why() +
                                           "; can it reach that GPU (`nvidia-smi topo -m`), and has the GPU a BAR that large?");
    return std::unique_ptr<Memory>(std::make_unique<LibraryMemory>(library_, mr));
  }

  Result<std::unique_ptr<CompletionQueue>> make_completion_queue(int depth) override {
    errno = 0;
    ibv_cq* const cq = library_.create_cq(context_, depth, nullptr, channel_, 0);
    if (cq == nullptr) return refused("gives no completion queue of " + std::to_string(depth) + " entries");
    return std::unique_ptr<CompletionQueue>(std::make_unique<LibraryCompletionQueue>(library_, cq));
  }

  Result<std::unique_ptr<QueuePair>> make_queue_pair(CompletionQueue& completions, const QueuePairSize& size) override {
    errno = 0;
    ibv_qp_init_attr wanted{};
    wanted.send_cq = wanted.recv_cq = static_cast<LibraryCompletionQueue&>(completions).get();
    wanted.qp_type = IBV_QPT_RC;
    wanted.cap = {static_cast<std::uint32_t>(size.sends), static_cast<std::uint32_t>(size.receives), 1, 1,
                  static_cast<std::uint32_t>(size.inline_bytes)};
    ibv_qp* const qp = library_.create_qp(pd_, &wanted);
    if (qp == nullptr)
      return refused("gives no queue pair of " + std::to_string(size.sends) + " sends and " + std::to_string(size.receives) +
                     " receives (at most " + std::to_string(limits_.queue_pairs) + " queue pairs of " +
                     std::to_string(limits_.work_requests) + "): lower CCL_LAB_RDMA's qps");
    return std::unique_ptr<QueuePair>(std::make_unique<LibraryQueuePair>(library_, qp, static_cast<int>(wanted.cap.max_inline_data)));
  }

  int take_completion_events() override {
    int n = 0;
    ibv_cq* cq = nullptr;
    for (void* context = nullptr; library_.get_cq_event(channel_, &cq, &context) == 0; ++n) library_.ack_cq_events(cq, 1);
    return n;
  }

  bool take_event(Event& event) override {
    ibv_async_event found{};
    if (library_.get_async_event(context_, &found) != 0) return false;
    event = {};
    event.type = static_cast<EventType>(found.event_type);
    switch (found.event_type) {
      case IBV_EVENT_QP_FATAL:
      case IBV_EVENT_QP_REQ_ERR:
      case IBV_EVENT_QP_ACCESS_ERR:
      case IBV_EVENT_COMM_EST:
      case IBV_EVENT_SQ_DRAINED:
      case IBV_EVENT_PATH_MIG:
      case IBV_EVENT_PATH_MIG_ERR:
      case IBV_EVENT_QP_LAST_WQE_REACHED: event.qpn = found.element.qp->qp_num; break;
      case IBV_EVENT_PORT_ACTIVE:
      case IBV_EVENT_PORT_ERR:
      case IBV_EVENT_GID_CHANGE: event.port = static_cast<std::uint8_t>(found.element.port_num); break;
      default: break;
    }
    library_.ack_async_event(&found);
    return true;
  }

 private:
  Status refused(const std::string& what) const {
    return Status(Code::connect, "RDMA device " + name_ + " " + what + (errno != 0 ? ": " + why() : std::string()) +
                                     (errno == ENOMEM ? locked_memory() : std::string()));
  }

  const Library& library_;
  ibv_context* context_;
  std::string name_;
  Limits limits_;
  ibv_pd* pd_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
};

class LibraryDriver final : public Driver {
 public:
  explicit LibraryDriver(const Library& library) : library_(library) {}

  Result<std::unique_ptr<Device>> open(const std::string& name) override {
    int n = 0;
    ibv_device** const all = library_.get_device_list(&n);
    ibv_context* context = nullptr;
    std::string known;
    for (int i = 0; all != nullptr && i < n; ++i) {
      const std::string each = library_.get_device_name(all[i]);
      known += (known.empty() ? "" : ", ") + each;
      if (each == name) context = library_.open_device(all[i]);
    }
    if (all != nullptr) library_.free_device_list(all);
    if (context == nullptr)
      return Status(Code::unsupported, "RDMA device '" + name + "' cannot be opened; expected one of: " +
                                           (known.empty() ? "(none)" : known) + ". Are /dev/infiniband/uverbs* there and readable, "
                                           "and is its provider installed (ibverbs-providers)?");
    auto device = std::make_unique<LibraryDevice>(library_, context, name);
    errno = 0;
    if (const Status status = device->prepare(); !status.ok()) return status;
    return std::unique_ptr<Device>(std::move(device));
  }

 private:
  const Library& library_;
};

template <class F>
bool find(void* handle, const char* name, F& function, std::string& missing) {
  function = reinterpret_cast<F>(::dlsym(handle, name));
  if (function == nullptr) missing = name;
  return function != nullptr;
}

Result<Driver*> load() {
  static Library library;
  void* const handle = ::dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr)
    return Status(Code::unsupported, std::string("RDMA needs libibverbs.so.1, which cannot be loaded: ") + ::dlerror() +
                                         "; install libibverbs1 and ibverbs-providers (Debian) or rdma-core");
  std::string missing;
  const bool whole =
      find(handle, "ibv_get_device_list", library.get_device_list, missing) &&
      find(handle, "ibv_free_device_list", library.free_device_list, missing) &&
      find(handle, "ibv_get_device_name", library.get_device_name, missing) &&
      find(handle, "ibv_open_device", library.open_device, missing) &&
      find(handle, "ibv_close_device", library.close_device, missing) &&
      find(handle, "ibv_query_device", library.query_device, missing) &&
      find(handle, "ibv_query_port", library.query_port, missing) && find(handle, "ibv_query_gid", library.query_gid, missing) &&
      find(handle, "ibv_alloc_pd", library.alloc_pd, missing) && find(handle, "ibv_dealloc_pd", library.dealloc_pd, missing) &&
      find(handle, "ibv_reg_mr", library.reg_mr, missing) && find(handle, "ibv_dereg_mr", library.dereg_mr, missing) &&
      find(handle, "ibv_create_comp_channel", library.create_comp_channel, missing) &&
      find(handle, "ibv_destroy_comp_channel", library.destroy_comp_channel, missing) &&
      find(handle, "ibv_create_cq", library.create_cq, missing) && find(handle, "ibv_destroy_cq", library.destroy_cq, missing) &&
      find(handle, "ibv_get_cq_event", library.get_cq_event, missing) &&
      find(handle, "ibv_ack_cq_events", library.ack_cq_events, missing) &&
      find(handle, "ibv_create_qp", library.create_qp, missing) && find(handle, "ibv_modify_qp", library.modify_qp, missing) &&
      find(handle, "ibv_destroy_qp", library.destroy_qp, missing) &&
      find(handle, "ibv_get_async_event", library.get_async_event, missing) &&
      find(handle, "ibv_ack_async_event", library.ack_async_event, missing);
  if (!whole)
    return Status(Code::unsupported, "libibverbs.so.1 of this machine has no " + missing + "; install a newer rdma-core (1.1.8 or later)");
  library.reg_dmabuf_mr = reinterpret_cast<decltype(library.reg_dmabuf_mr)>(::dlsym(handle, "ibv_reg_dmabuf_mr"));
  static LibraryDriver driver(library);
  return static_cast<Driver*>(&driver);
}

}  // namespace

Result<Driver*> open_library() {
  static const Result<Driver*> loaded = load();
  return loaded;
}

}  // namespace ccl_lab::verbs

#else

namespace ccl_lab::verbs {

Result<Driver*> open_library() {
  return Status(Code::unsupported, "this build has no RDMA: infiniband/verbs.h was missing when it was made; install libibverbs-dev "
                                   "(Debian) or rdma-core-devel and build again");
}

}  // namespace ccl_lab::verbs

#endif
