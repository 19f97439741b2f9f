// How a call meets those of its peers, on the host, before anything is enqueued; see session.hpp.
//
//   rank a                                             rank b
//     begin: memory exported                             begin
//     call k for b ──in a's page──►  read, compared,  ──► mapped
//            mapped ◄── compared ◄── ◄──in b's page── call k for a
//     taken[b] = k                                       taken[a] = k
//
// Only ranks that touch each other's memory meet. What was mapped once stays mapped, so that a later call costs a look into the page.
#include <algorithm>
#include <string>

#include "device/session.hpp"
#include "exec/executor.hpp"

namespace ccl_lab::device {

namespace {

std::string name_of(const Program& program) { return kCollectiveNames[static_cast<std::size_t>(program.identity().collective)]; }

}  // namespace

// Once for each peer: it has a GPU, this one reaches it, and its flags can be written from streams.
Result<bool> Session::meet(int rank) {
  Neighbour& peer = neighbours_[static_cast<std::size_t>(rank)];
  if (peer.met) return true;
  if (!peer.page)
    return Status(Code::unsupported, "rank " + std::to_string(rank) + " is on another node than rank " + std::to_string(rank_) +
                                         ": memory of GPUs moves within a node only", rank);
  const DeviceCard& card = peer.page->card();
  const auto state = static_cast<CardState>(card.state.load(std::memory_order_acquire));
  if (state == CardState::none) return false;
  if (state == CardState::failed) {
    char why[sizeof card.why];
    std::copy(std::begin(card.why), std::end(card.why), why);
    why[sizeof why - 1] = '\0';
    const bool known = card.code > 0 && card.code <= static_cast<std::uint32_t>(Code::internal);
    return Status(known ? static_cast<Code>(card.code) : Code::internal, "rank " + std::to_string(rank) + ": " + why, rank);
  }
  if (Status status = reach(card, rank); !status.ok()) return status;
  Result<cuda::HostRegistration> flags = cuda::register_host(context_, peer.page->flags(), peer.page->flags_bytes(), peer.flags);
  if (!flags.ok()) return flags.status();
  peer.registration = std::move(flags).value();
  peer.met = true;
  return true;
}

Status Session::reach(const DeviceCard& card, int rank) {
  const cuda::Api& api = context_->api();
  if (card.uuid == context_->info().uuid) return {};
  Result<std::vector<cuda::DeviceInfo>> visible = cuda::devices(api);
  if (!visible.ok()) return visible.status();
  const auto found = std::find_if(visible->begin(), visible->end(), [&](const cuda::DeviceInfo& each) { return each.uuid == card.uuid; });
  const std::string both = "GPU " + cuda::uuid_name(card.uuid) + " of rank " + std::to_string(rank);
  if (found == visible->end())
    return Status(Code::unsupported, both + " is not visible to rank " + std::to_string(rank_) +
                                         ": let every rank see all GPUs of the node (CUDA_VISIBLE_DEVICES), and choose one by torch.cuda.set_device", rank);
  int can = 0;
  if (Status status = cuda::status_of(api, api.can_access_peer(&can, context_->info().device, found->device), "asking about " + both); !status.ok())
    return status;
  if (can != 0) return {};
  return Status(Code::unsupported, both + " cannot be reached from GPU " + std::to_string(context_->info().ordinal) + " of rank " + std::to_string(rank_) +
                                       " (no peer access): `nvidia-smi topo -p2p r` shows which pairs can; copy to the host and use the collectives there", rank);
}

Result<bool> Session::post(std::size_t index) {
  if (call_->posted[index]) return true;
  const int rank = call_->prepared->program->ready_to()[index].peer;
  Neighbour& peer = neighbours_[static_cast<std::size_t>(rank)];
  if (Result<bool> met = meet(rank); !met.ok() || !*met) return met;
  const Page& own = *neighbours_[static_cast<std::size_t>(rank_)].page;
  const std::uint64_t sequence = peer.sent + 1;
  if (sequence > peer.page->taken(rank_).load(std::memory_order_acquire) + kCalls) return false;
  const Program& program = *call_->prepared->program;
  const RunIdentity& identity = program.identity();
  Call& call = own.call(rank, sequence);
  call.slot.sequence = sequence;
  call.slot.plan_hash = identity.plan_hash;
  call.slot.count = identity.count;
  call.slot.collective = static_cast<std::uint8_t>(identity.collective);
  call.slot.dtype = static_cast<std::uint8_t>(identity.dtype);
  call.slot.redop = static_cast<std::uint8_t>(identity.redop);
  call.slot.flags = call_->captured ? kCaptured : 0;
  for (std::size_t b = 0; b < kBufferCount; ++b) {
    call.slot.key[b] = static_cast<std::uint32_t>(call_->references[b].allocation);
    call.slot.offset[b] = call_->references[b].offset;
    call.slot.size[b] = program.bytes(static_cast<Buffer>(b));
  }
  call.sequence.store(sequence, std::memory_order_release);
  peer.sent = sequence;
  call_->posted[index] = 1;
  return true;
}

Result<bool> Session::agree(std::size_t slot) {
  if (call_->agreed[slot]) return true;
  const Program& program = *call_->prepared->program;
  const Peer& peer = program.peers()[slot];
  Neighbour& from = neighbours_[static_cast<std::size_t>(peer.rank)];
  if (Result<bool> met = meet(peer.rank); !met.ok() || !*met) return met;
  const std::uint64_t sequence = from.read + 1;
  const Call& call = from.page->call(rank_, sequence);
  if (call.sequence.load(std::memory_order_acquire) < sequence) return false;
  const ReadySlot said = call.slot;
  if (Status status = check_ready(program, peer, said, sequence); !status.ok()) return status;
  if ((said.flags & kCaptured) != (call_->captured ? kCaptured : 0))
    return Status(Code::usage, name_of(program) + " is captured in a graph on rank " + std::to_string(call_->captured ? rank_ : peer.rank) +
                                   " and not on rank " + std::to_string(call_->captured ? peer.rank : rank_) + ": capture it on all ranks, or on none", peer.rank);
  for (std::size_t b = 0; b < kBufferCount; ++b) {
    if (peer.extent[b] == 0) continue;
    Result<cuda::DevicePtr> base = importer_.find(*from.page, said.key[b], said.offset[b], peer.extent[b], idle() && !ever_captured_);
    if (!base.ok()) return base.status();
    call_->peers[slot][b] = *base;
  }
  from.read = sequence;
  neighbours_[static_cast<std::size_t>(rank_)].page->taken(peer.rank).store(sequence, std::memory_order_release);
  call_->agreed[slot] = 1;
  return true;
}

Result<bool> Session::meet_all() {
  bool all = true;
  for (std::size_t i = 0; i < call_->posted.size(); ++i) {
    Result<bool> posted = post(i);
    if (!posted.ok()) return posted;
    all = all && *posted;
  }
  for (std::size_t slot = 0; slot < call_->agreed.size(); ++slot) {
    Result<bool> agreed = agree(slot);
    if (!agreed.ok()) return agreed;
    all = all && *agreed;
  }
  return all;
}

std::string Session::missing() const {
  if (!call_) return "nothing";
  const Program& program = *call_->prepared->program;
  std::string text;
  const auto add = [&](int rank, const char* what) {
    text += (text.empty() ? "rank " : ", rank ") + std::to_string(rank) + what;
  };
  for (std::size_t slot = 0; slot < call_->agreed.size(); ++slot)
    if (!call_->agreed[slot]) add(program.peers()[slot].rank, (" has not called " + name_of(program)).c_str());
  for (std::size_t i = 0; text.empty() && i < call_->posted.size(); ++i)
    if (!call_->posted[i]) add(program.ready_to()[i].peer, " is many calls behind");
  return text.empty() ? "nothing" : text;
}

}  // namespace ccl_lab::device
