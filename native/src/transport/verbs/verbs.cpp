// Links of one rank over its NICs; see verbs.hpp.
#include "transport/verbs/verbs.hpp"

#include <fcntl.h>
#include <net/if.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

namespace ccl_lab {

namespace {

// Whether the network interface behind a GID is switched on, as far as the system says.
bool switched_on(const verbs::Nic& nic) {
  std::string netdev;
  std::ifstream("/sys/class/infiniband/" + nic.device + "/ports/" + std::to_string(nic.port) + "/gid_attrs/ndevs/" +
                std::to_string(nic.gid_index)) >> netdev;
  std::string flags;
  std::ifstream("/sys/class/net/" + netdev + "/flags") >> flags;
  return flags.empty() || (std::strtoul(flags.c_str(), nullptr, 16) & IFF_UP) != 0;
}

std::string path_text(int rank, const Path& path) {
  return "verbs connection of rank " + std::to_string(rank) + " (NIC " + std::to_string(path.nic) + ") to rank " +
         std::to_string(path.peer) + " (NIC " + std::to_string(path.peer_nic) + ")";
}

}  // namespace

VerbsTransport::VerbsTransport(int rank, SignalTable signals, std::span<NicShaper> nics, SpanWriter* trace, verbs::Driver& driver,
                               VerbsOptions options)
    : owner_(::getpid()), options_(std::move(options)), nics_(nics), driver_(driver), opened_(options_.nics.size()),
      peers_(static_cast<std::size_t>(signals.n_ranks())) {
  context_.rank = rank;
  context_.signals = signals;
  context_.trace = trace;
  context_.first_number = options_.first_number;
  context_.timeout = options_.timeout;
  context_.retries = options_.retries;
}

VerbsTransport::~VerbsTransport() {
  if (::getpid() == owner_) return;
  // In a forked child: the devices would take a destruction for one of the parent's.
  for (auto& link : links_) static_cast<void>(link.release());
  for (Opened& each : opened_) static_cast<void>(each.adapter.release());
}

// ---- connecting

Status VerbsTransport::check_connection(const Path& name, std::uint16_t index, std::uint16_t epoch) const {
  if (name.peer < 0 || name.peer >= static_cast<std::int32_t>(peers_.size()))
    return Status(Code::usage, "expected a peer from 0 to " + std::to_string(peers_.size() - 1));
  if (name.nic >= opened_.size())
    return Status(Code::usage, "this node has " + std::to_string(opened_.size()) + " RDMA NICs");
  if (options_.nics[name.nic].device.empty())
    return Status(Code::unsupported, "NIC " + std::to_string(name.nic) + " of this node is no RDMA device");
  if (epoch != context_.epoch)
    return Status(Code::connect, "it is of epoch " + std::to_string(epoch) + ", expected " + std::to_string(context_.epoch));
  if (index != 0) return Status(Code::usage, "its index is " + std::to_string(index) + ", expected 0: one socket joins two NICs");
  if (find(name) != nullptr) return Status(Code::usage, "there is one already");
  return {};
}

PathSpread VerbsTransport::spread_to(std::int32_t peer) const {
  const auto at = static_cast<std::size_t>(peer);
  const Spread& usual = at < options_.class_of.size() ? options_.classes[options_.class_of[at]] : options_.spread;
  return {usual, options_.all_to_all.value_or(usual)};
}

Result<Adapter*> VerbsTransport::open(std::uint16_t nic) {
  Opened& opened = opened_[nic];
  if (opened.adapter != nullptr) return opened.adapter.get();
  Result<std::unique_ptr<Adapter>> made = Adapter::open(driver_, options_.nics[nic], options_.registration, options_.chunk_bytes);
  if (!made.ok()) return made.status();
  Adapter& adapter = *made.value();
  for (const OwnRegion& region : own_)
    if (const Status status = adapter.add_region(region.key, region.base, region.size); !status.ok()) return status;
  opened.watches[0] = {Source::completions, nullptr, nic};
  opened.watches[1] = {Source::events, nullptr, nic};
  opened.watches[2] = {Source::registered, nullptr, nic};
  const int fds[] = {adapter.device().completion_fd(), adapter.device().event_fd(), adapter.news_fd()};
  for (int i = 0; i < 3; ++i)
    if (fds[i] >= 0)
      if (const Status status = poller_.add(fds[i], &opened.watches[i]); !status.ok()) return status;
  opened.adapter = std::move(made).value();
  return opened.adapter.get();
}

Status VerbsTransport::add_connection(std::int32_t peer, std::uint16_t nic, std::uint16_t peer_nic, std::uint16_t index, int fd,
                                      std::uint16_t epoch) {
  const Path name{peer, nic, peer_nic};
  const auto refuse = [&](const Status& why) {
    return Status(why.code, path_text(context_.rank, name) + " refused: " + why.message, peer, nic);
  };
  const auto refuse_and_close = [&](const Status& why) {
    if (fd >= 0) ::close(fd);
    return refuse(why);
  };
  if (const Status status = check_connection(name, index, epoch); !status.ok()) return refuse_and_close(status);
  const Result<Adapter*> adapter = open(nic);
  if (!adapter.ok()) return refuse_and_close(adapter.status());
  const Result<verbs::Port> port = adapter.value()->port();
  if (!port.ok()) return refuse_and_close(port.status());
  if (port.value().state != verbs::PortState::active)
    return refuse_and_close(Status(Code::link_down, "port " + std::to_string(options_.nics[nic].port) + " of " + options_.nics[nic].device +
                                                        " is down; bring its interface up and look at its cable"));
  Peer& to = peers_[static_cast<std::size_t>(peer)];
  if (to.order == nullptr) to.order = std::make_unique<SignalOrder>(context_.signals.n_channels(), context_.first_number);
  const Shaper shaper = nic < nics_.size() ? Shaper(&nics_[nic]) : Shaper();
  auto link = std::make_unique<Link>(context_, name, fd, *adapter.value(), shaper, *to.order, spread_to(name.peer));
  if (const Status status = link->verbs.open(); !status.ok()) return refuse(status);
  if (const Status status = poller_.add(fd, &link->watch); !status.ok()) return refuse(status);
  to.links.push_back(link.get());
  links_.push_back(std::move(link));
  return {};
}

VerbsTransport::Link* VerbsTransport::find(const Path& name) const {
  if (name.peer < 0 || name.peer >= static_cast<std::int32_t>(peers_.size())) return nullptr;
  for (Link* link : peers_[static_cast<std::size_t>(name.peer)].links)
    if (link->verbs.name() == name) return link;
  return nullptr;
}

bool VerbsTransport::connected(std::int32_t peer) const {
  return peer >= 0 && peer < static_cast<std::int32_t>(peers_.size()) && !peers_[static_cast<std::size_t>(peer)].links.empty();
}

bool VerbsTransport::connected(std::int32_t peer, std::uint16_t nic, std::uint16_t peer_nic) const {
  const Link* const link = find({peer, nic, peer_nic});
  return link != nullptr && link->verbs.ended().ok();
}

bool VerbsTransport::unsent() const {
  return std::any_of(links_.begin(), links_.end(), [](const auto& link) { return link->verbs.ended().ok() && link->verbs.unsent(); });
}

// A NIC forgets what it was given when its queue pair goes, other than a kernel that was given bytes for a socket.
bool VerbsTransport::quiet() const {
  return std::all_of(links_.begin(), links_.end(), [](const auto& link) { return !link->verbs.ended().ok() || link->verbs.quiet(); });
}

bool VerbsTransport::settled() const {
  return std::all_of(links_.begin(), links_.end(), [](const auto& link) { return link->verbs.up(); });
}

std::size_t VerbsTransport::n_registered(std::uint16_t nic) const {
  return nic < opened_.size() && opened_[nic].adapter != nullptr ? opened_[nic].adapter->n_registered() : 0;
}

// ---- memory

Status VerbsTransport::register_region(RegionKey key, std::byte* base, std::uint64_t size) {
  if (Status status = regions_.add(context_.rank, key, base, size); !status.ok()) return status;
  for (std::size_t i = 0; i < opened_.size(); ++i) {
    Adapter* const adapter = opened_[i].adapter.get();
    if (adapter == nullptr) continue;
    if (Status status = adapter->add_region(key, base, size); !status.ok()) {
      for (std::size_t k = 0; k <= i; ++k)
        if (opened_[k].adapter != nullptr) opened_[k].adapter->remove_region(key);
      static_cast<void>(regions_.remove(context_.rank, key));
      return status;
    }
  }
  own_.push_back({key, base, size});
  tell_region({key, size, reinterpret_cast<std::uintptr_t>(base), options_.chunk_bytes});
  return {};
}

void VerbsTransport::tell_region(const RegionCard& region) {
  for (const auto& link : links_) link->verbs.tell_region(region);
}

// Every NIC of the node is opened for it: none could get at the memory later, when the descriptor is gone.
Status VerbsTransport::register_device(RegionKey key, std::byte* base, std::uint64_t size, int fd) {
  if (Status status = regions_.add(context_.rank, key, base, size); !status.ok()) return status;
  Status status;
  for (std::uint16_t nic = 0; nic < opened_.size() && status.ok(); ++nic) {
    if (options_.nics[nic].device.empty()) continue;
    const Result<Adapter*> adapter = open(nic);
    status = adapter.ok() ? adapter.value()->add_device_region(key, base, size, fd) : adapter.status();
    if (!status.ok()) status = Status(status.code, "NIC " + std::to_string(nic) + " of rank " + std::to_string(context_.rank) + ": " + status.message, context_.rank, nic);
  }
  if (!status.ok()) {
    for (Opened& each : opened_)
      if (each.adapter != nullptr) each.adapter->remove_region(key);
    static_cast<void>(regions_.remove(context_.rank, key));
    return status;
  }
  tell_region({key, size, reinterpret_cast<std::uintptr_t>(base), size});
  return {};
}

Status VerbsTransport::deregister_region(RegionKey key) {
  if (Status status = regions_.remove(context_.rank, key); !status.ok()) return status;
  std::erase_if(own_, [key](const OwnRegion& region) { return region.key == key; });
  for (const auto& link : links_) link->verbs.tell_gone(key);
  for (Opened& each : opened_)
    if (each.adapter != nullptr) each.adapter->remove_region(key);
  return {};
}

// ---- posting

Result<VerbsTransport::Link*> VerbsTransport::choose(std::int32_t peer, std::uint16_t nic, std::uint16_t peer_nic, const Tag& tag) const {
  Link* const link = find({peer, nic, peer_nic});
  if (link != nullptr && link->verbs.ended().ok()) return link;
  if (link != nullptr) return link->verbs.ended();
  return no_path(path_text(context_.rank, {peer, nic, peer_nic}), peer, nic, tag);
}

Status VerbsTransport::put(const Put& put) {
  const Result<Link*> link = choose(put.peer, put.nic, put.peer_nic, put.tag);
  if (!link.ok()) return link.status();
  if (Status status = check_signal(context_.rank, put, context_.signals.n_channels()); !status.ok()) return status;
  VerbsLink& verbs = link.value()->verbs;
  if (Status status = verbs.check("put", put.destination, put.nbytes, put.tag); !status.ok()) return status;
  std::uint32_t sequence = 0;
  if (!put.confirmed && put.signal >= 0) sequence = peers_[static_cast<std::size_t>(put.peer)].order->next_to_send(put.signal);
  verbs.post(put, sequence);
  return {};
}

Status VerbsTransport::get(const Get& get) {
  const Result<Link*> link = choose(get.peer, get.nic, get.peer_nic, get.tag);
  if (!link.ok()) return link.status();
  VerbsLink& verbs = link.value()->verbs;
  if (Status status = verbs.check("get", get.source, get.nbytes, get.tag); !status.ok()) return status;
  verbs.post(get);
  return {};
}

// ---- events of devices

void VerbsTransport::end_all(std::uint16_t nic, const Status& why) {
  for (const auto& link : links_)
    if (link->verbs.name().nic == nic) link->verbs.end(why);
}

void VerbsTransport::take_events(std::uint16_t nic) {
  Adapter& adapter = *opened_[nic].adapter;
  const verbs::Nic& which = adapter.nic();
  verbs::Event event;
  while (adapter.device().take_event(event)) {
    const std::string what = "device " + which.device + " says " + verbs::name(event.type);
    switch (event.type) {
      case verbs::EventType::port_err:
        if (event.port != which.port) break;
        end_all(nic, Status(Code::link_down, what + ": port " + std::to_string(event.port) + " is down; its interface was switched "
                                                                                        "off, or its cable is out"));
        break;
      case verbs::EventType::device_fatal:
        end_all(nic, Status(Code::link_down, what + ": the device failed, or was taken away"));
        break;
      case verbs::EventType::cq_err:
        end_all(nic, Status(Code::link_down, what + ": a completion queue ran over"));
        break;
      case verbs::EventType::gid_change: {
        const verbs::Gid before = adapter.gid();
        const Status found = adapter.look_up_gid();
        if (!found.ok() || adapter.gid() != before)
          end_all(nic, Status(Code::link_down, what + ": the GID at index " + std::to_string(which.gid_index) + " was " +
                                                   verbs::text(before) + (found.ok() ? " and is " + verbs::text(adapter.gid()) : ", and is gone")));
        break;
      }
      case verbs::EventType::qp_fatal:
      case verbs::EventType::qp_req_err:
      case verbs::EventType::qp_access_err:
        for (const auto& link : links_)
          if (link->verbs.name().nic == nic && link->verbs.owns(event.qpn))
            link->verbs.end(Status(event.type == verbs::EventType::qp_access_err ? Code::registration : Code::link_down,
                                   what + ": the peer asked for memory that is not registered, or its request was no request"));
        break;
      default: break;  // of no path, or good news: a port that is back is dialled again by the layer above
    }
  }
}

NicState VerbsTransport::nic_state(std::uint16_t nic) const {
  if (nic < nics_.size() && nics_[nic].up.load(std::memory_order_relaxed) == 0) return NicState::down;
  if (nic >= opened_.size() || opened_[nic].adapter == nullptr) return NicState::up;
  const Result<verbs::Port> port = opened_[nic].adapter->port();
  if (port.ok() && port.value().state == verbs::PortState::active) return NicState::up;
  return switched_on(options_.nics[nic]) ? NicState::unplugged : NicState::down;
}

// ---- polling

void VerbsTransport::look() {
  poller_.collect([this](void* owner, std::uint32_t) {
    const Watch& watch = *static_cast<Watch*>(owner);
    switch (watch.source) {
      case Source::aside: return watch.link->hear();
      case Source::events: return take_events(watch.nic);
      case Source::registered: static_cast<void>(opened_[watch.nic].adapter->collect()); return;
      case Source::completions:
        static_cast<void>(opened_[watch.nic].adapter->device().take_completion_events());
        for (const auto& link : links_)
          if (link->verbs.name().nic == watch.nic) link->verbs.armed_no_more();
    }
  });
}

// What injectors ask of the NIC of a link; nothing but loads where they ask nothing.
void VerbsTransport::obey(Link& link) {
  const std::uint16_t nic = link.verbs.name().nic;
  NicFaults* const faults = nic < options_.faults.size() ? &options_.faults[nic] : nullptr;
  if (!link.verbs.shaper().up()) {
    if (faults != nullptr) faults->hit(NicFault::down);
    return link.verbs.end(Status(Code::link_down, "NIC " + std::to_string(nic) + " of this node is down; bring it up and reset"));
  }
  if (faults != nullptr && faults->asked() && link.verbs.up() && faults->take(NicFault::sever)) link.verbs.sever();
}

int VerbsTransport::serve_all(std::int64_t now_ns, std::vector<Completion>& completions, std::vector<LinkEvent>& events) {
  int done = 0;
  bool ended = false;
  const std::size_t n = links_.size();
  serving_ = true;
  for (std::size_t k = 0; k < n; ++k) {
    Link& link = *links_[(next_ + k) % n];
    if (link.verbs.retired()) continue;
    if (link.verbs.ended().ok()) obey(link);
    done += link.verbs.serve(now_ns, completions);
    ended = ended || !link.verbs.ended().ok();
  }
  next_ = n == 0 ? 0 : (next_ + 1) % n;
  serving_ = false;
  for (std::size_t i = n; i-- > 0;) {
    if (!links_[i]->verbs.retired() && links_[i]->verbs.ended().ok()) continue;
    drop(i, completions, events);
    ++done;
  }
  return done;
}

void VerbsTransport::unlist(const Link& link) {
  std::vector<Link*>& of_peer = peers_[static_cast<std::size_t>(link.verbs.name().peer)].links;
  of_peer.erase(std::find(of_peer.begin(), of_peer.end(), &link));
}

void VerbsTransport::drop(std::size_t i, std::vector<Completion>& completions, std::vector<LinkEvent>& events) {
  Link& link = *links_[i];
  if (!link.verbs.retired()) {
    const Path name = link.verbs.name();
    link.verbs.retire();
    Status status = link.verbs.ended();
    unlist(link);
    if (!connected(name.peer) && status.code != Code::registration && status.code != Code::bounds) {
      status.code = Code::peer_lost;
      status.message += "; no other connection to rank " + std::to_string(name.peer) + " is left";
    } else if (status.code == Code::connect) {
      status.code = Code::link_down;
    }
    link.verbs.fail(status, completions);
    events.push_back({name.peer, name.nic, std::move(status), name.peer_nic});
    poller_.remove(link.verbs.fd());
  }
  links_.erase(links_.begin() + static_cast<std::ptrdiff_t>(i));
}

void VerbsTransport::retire(const Path& path) {
  Link* const link = find(path);
  if (link == nullptr) return;
  link->verbs.retire();
  unlist(*link);
  poller_.remove(link->verbs.fd());
  if (serving_) return;
  links_.erase(std::find_if(links_.begin(), links_.end(), [&](const auto& each) { return each.get() == link; }));
}

int VerbsTransport::poll(std::int64_t now_ns, std::vector<Completion>& completions, std::vector<LinkEvent>& events) {
  if (links_.empty()) return 0;
  if (busy_ && ++unlooked_ < kMostUnlooked) {
    const int done = serve_all(now_ns, completions, events);
    if (done > 0 || links_.empty()) return done;
  }
  unlooked_ = 0;
  look();
  // Armed before it is looked for the last time: what comes after that wakes.
  if (arms_ || !says_)
    for (const auto& link : links_) link->verbs.arm();
  arms_ = false;
  const int done = serve_all(now_ns, completions, events);
  busy_ = done > 0;
  return done;
}

void VerbsTransport::wait_set(std::vector<pollfd>& descriptors, std::int64_t& wake_ns) const {
  if (links_.empty()) return;
  descriptors.push_back({poller_.fd(), POLLIN, 0});
  for (const auto& link : links_) {
    link->verbs.wake(wake_ns);
    arms_ = arms_ || !link->verbs.armed();
  }
  if (arms_) wake_ns = 0;
}

void VerbsTransport::reset(std::uint16_t epoch) {
  for (const auto& link : links_) poller_.remove(link->verbs.fd());
  links_.clear();
  for (Peer& peer : peers_) peer = Peer{};
  context_.epoch = epoch;
  next_ = 0;
  busy_ = false;
}

}  // namespace ccl_lab
