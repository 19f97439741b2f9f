// The ways from this rank to its peers.
//
// Is: the shared-memory transport of one rank and the one over NICs (verbs where it was given RDMA devices, else tcp), the
//     segments of its node's ranks, and the choice between them: inside a node through shared memory unless everything is to
//     go through sockets; else the NICs an op names.
// Is not: safe for threads: the progress thread owns it once it runs.
//
// Invariants
//  - The segment of a peer stays mapped as long as a transport may touch it.
//  - With a messenger, what goes to other nodes survives the loss of paths (fault/rails.hpp); without one, the loss of a
//    connection ends what needs it.
//  - READY to a rank of the node goes through shared memory whenever that rank is attached: reading a peer's memory needs
//    its READY, and may be the only thing a schedule does with that peer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/segment.hpp"
#include "exec/program.hpp"
#include "fault/rails.hpp"
#include "trace/ring.hpp"
#include "transport/shm/shm.hpp"
#include "transport/nic_transport.hpp"
#include "transport/verbs/verbs.hpp"

namespace ccl_lab {

enum class Mode : std::uint8_t { automatic, shm, tcp };

class Links {
 public:
  Links(std::shared_ptr<RankSegment> own, std::vector<std::int32_t> node_of, Mode mode, SpanWriter* trace);
  ~Links();
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;

  Status attach(std::int32_t peer, std::shared_ptr<RankSegment> segment);
  // Before the first connection: NICs are driven by verbs. unsupported where libibverbs is missing.
  Status set_rdma(VerbsOptions options, verbs::Driver* driver = nullptr);  // null: libibverbs
  // Memory of a GPU, as NicTransport has it; a region that is gone is no error where paths were reset meanwhile.
  Status register_device(RegionKey key, std::byte* base, std::uint64_t size, int fd) { return net().register_device(key, base, size, fd); }
  Status deregister_device(RegionKey key) { return net_ == nullptr ? Status() : net_->deregister_region(key); }
  // Before the first connection: from here on lost paths are repaired.
  Status set_messenger(std::unique_ptr<Messenger> messenger, const RailOptions& options);
  Messenger* messenger() const { return messenger_.get(); }
  Rails* rails() const { return rails_.get(); }
  // Becomes readable when the rails have something to say; -1 without a messenger. Of this object.
  int news_fd() const { return news_fd_; }

  // `generation`: of the path, as its two ends agreed (Rails::generation_wanted).
  Status add_connection(std::int32_t peer, std::uint16_t nic, std::uint16_t peer_nic, std::uint16_t index, int fd,
                        std::uint32_t generation);
  void missing(const Path& path, const std::string& why);
  // There is a connection, or there was one and it is being repaired.
  bool connected(std::int32_t peer, std::uint16_t nic, std::uint16_t peer_nic) const;
  // ok, or which rank the program cannot reach.
  Status check(const Program& program) const;
  // The segment whose shapers count for this node; null while its owner is not attached.
  RankSegment* leader() const;

  Status put(const Put& put);
  Status ready(const Put& put);
  Status get(const Get& get);
  // Bytes [at.offset, at.offset + nbytes) of a peer, for copy and reduce.
  Result<const std::byte*> load(std::int32_t peer, Remote at, std::uint64_t nbytes) const;

  int poll(std::int64_t now_ns, std::vector<Completion>& completions, std::vector<LinkEvent>& events);
  void about_to_sleep();
  void wait_set(std::vector<pollfd>& descriptors, std::int64_t& wake_ns) const;
  // Drops connections; attached ranks that live are attached again.
  void reset(std::uint16_t epoch);

  // Nothing but confirmations is waited for, if anything; and whether peers wait for some that have not gone (see Transport).
  void expects_no_more() {
    if (rails_ != nullptr) rails_->expects_no_more();
  }
  bool owes_confirmations() const { return rails_ != nullptr && rails_->owes_confirmations(); }

  // Whether something that was posted, and may have completed, has not left yet: somebody has to go on polling.
  bool unsent() const { return rails_ != nullptr && (rails_->waiting() || net_->unsent()); }

  // Whether nothing that peers are to get would be lost if this were closed now.
  bool quiet() const { return net_ == nullptr || (net_->quiet() && (rails_ == nullptr || !rails_->waiting())); }

  bool attached(std::int32_t peer) const { return shm_->connected(peer); }
  // The memory of a rank that is written in place; null where it is reached over NICs.
  std::shared_ptr<RankSegment> mapped(std::int32_t peer) const { return by_shm(peer) ? segments_[static_cast<std::size_t>(peer)] : nullptr; }
  std::vector<std::uint8_t> load_store() const;
  std::size_t n_connections() const { return net_ == nullptr ? 0 : net_->n_connections(); }
  std::size_t n_attached() const;

 private:
  bool by_shm(std::int32_t peer) const { return mode_ != Mode::tcp && shm_->connected(peer); }
  NicTransport& net();
  std::unique_ptr<NicTransport> make_net(RankSegment* shaped_by);
  void tell_news() const;
  bool reaches(std::int32_t peer, std::uint16_t nic, std::uint16_t peer_nic) const;
  Status no_way(std::int32_t peer, std::uint16_t nic, std::uint16_t peer_nic) const;

  std::shared_ptr<RankSegment> own_;
  std::vector<std::int32_t> node_of_;
  Mode mode_;
  SpanWriter* trace_;
  std::uint16_t epoch_ = 0;
  std::vector<std::shared_ptr<RankSegment>> segments_;  // by rank; null: not attached
  std::unique_ptr<ShmTransport> shm_;
  std::unique_ptr<Messenger> messenger_;
  RailOptions rail_options_;
  int news_fd_ = -1;
  verbs::Driver* rdma_ = nullptr;                       // null: sockets
  VerbsOptions rdma_options_;
  std::unique_ptr<NicTransport> net_;                   // from the first connection on: it needs the leader's shapers
  std::unique_ptr<Rails> rails_;                        // over net_, where there is a messenger
};

}  // namespace ccl_lab
