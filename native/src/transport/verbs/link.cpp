// Connecting two NICs, what their ends say beside the data, and how a link ends; see link.hpp.
#include "transport/verbs/link.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

namespace ccl_lab {

namespace {

constexpr std::size_t kSlotsBytes = kWindow * sizeof(NoticeSlot);
constexpr std::uint32_t kMostAsked = 1024;  // chunks in one message

std::uint32_t random_psn() {
  static thread_local std::mt19937 random(std::random_device{}());
  return static_cast<std::uint32_t>(random()) & kSequenceMask;
}

}  // namespace

VerbsLink::VerbsLink(const VerbsContext& context, const Path& name, int fd, Adapter& adapter, Shaper shaper, SignalOrder& order,
                     const PathSpread& spread)
    : context_(context), name_(name), adapter_(adapter), shaper_(shaper), spread_(spread), order_(order), aside_(fd),
      number_(context.first_number), acked_(context.first_number), landed_(context.first_number) {}

VerbsLink::~VerbsLink() {
  retire();
  completions_.reset();
  slots_memory_.reset();
  if (slots_ != nullptr) ::munmap(slots_, kSlotsBytes);
}

std::string VerbsLink::text() const {
  return "verbs connection of rank " + std::to_string(context_.rank) + " (NIC " + std::to_string(name_.nic) + ", " +
         adapter_.nic().device + ") to rank " + std::to_string(name_.peer) + " (NIC " + std::to_string(name_.peer_nic) + ")";
}

Status VerbsLink::make_pairs() {
  const verbs::Limits& limits = adapter_.device().limits();
  const auto inflight = static_cast<int>(std::max(spread_.usual.inflight_max, spread_.all_to_all.inflight_max));
  verbs::QueuePairSize size;
  size.sends = std::min(2 * inflight + 2, limits.work_requests);  // a notice and the bytes
  size.receives = std::min(2 * inflight, limits.work_requests);
  size.inline_bytes = kInlineBytes;
  receives_ = size.receives;
  inflight_max_ = static_cast<std::uint32_t>(std::min(inflight, (size.sends - 2) / 2));
  const int n = std::max(spread_.usual.queue_pairs, spread_.all_to_all.queue_pairs) + 1;
  const int depth = n * (size.sends + size.receives);
  if (limits.completions > 0 && depth > limits.completions)
    return Status(Code::connect, std::to_string(n) + " queue pairs of " + std::to_string(inflight) + " segments need " +
                                     std::to_string(depth) + " completions, the device has " + std::to_string(limits.completions) +
                                     ": lower qps or inflight of CCL_LAB_RDMA");
  Result<std::unique_ptr<verbs::CompletionQueue>> completions = adapter_.device().make_completion_queue(depth);
  if (!completions.ok()) return completions.status();
  completions_ = std::move(completions).value();
  for (int i = 0; i < n; ++i) {
    Result<std::unique_ptr<verbs::QueuePair>> pair = adapter_.device().make_queue_pair(*completions_, size);
    if (!pair.ok()) return pair.status();
    if ((*pair)->inline_bytes < static_cast<int>(sizeof(NoticeSlot)))
      return Status(Code::unsupported, "it sends at most " + std::to_string((*pair)->inline_bytes) + " bytes inline, expected " +
                                           std::to_string(sizeof(NoticeSlot)) + " or more; use CCL_LAB_TRANSPORT=tcp");
    pairs_.emplace_back();
    pairs_.back().pair = std::move(pair).value();
    psns_.push_back(random_psn());
  }
  return {};
}

Status VerbsLink::open() {
  void* const memory = ::mmap(nullptr, kSlotsBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return Status(Code::registration, std::string("no memory for notices: ") + std::strerror(errno));
  slots_ = static_cast<NoticeSlot*>(memory);
  Result<std::unique_ptr<verbs::Memory>> registered = adapter_.device().register_memory(reinterpret_cast<std::byte*>(slots_), kSlotsBytes);
  if (!registered.ok()) return registered.status();
  slots_memory_ = std::move(registered).value();
  const Result<verbs::Port> port = adapter_.port();
  if (!port.ok()) return port.status();
  if (const Status status = make_pairs(); !status.ok()) return status;
  Card card;
  card.rank = context_.rank;
  card.epoch = context_.epoch;
  card.nic = name_.nic;
  card.peer_nic = name_.peer_nic;
  card.gid = adapter_.gid();
  card.lid = port.value().lid;
  card.mtu_bytes = static_cast<std::uint32_t>(port.value().mtu_bytes);
  card.reads = static_cast<std::uint32_t>(std::min(adapter_.device().limits().reads, 16));
  card.receives = static_cast<std::uint32_t>(receives_);
  card.first_number = context_.first_number;
  card.notices = reinterpret_cast<std::uintptr_t>(slots_);
  card.notices_key = slots_memory_->rkey;
  for (std::size_t i = 0; i < pairs_.size(); ++i) card.queue_pairs.push_back({pairs_[i].pair->qpn, psns_[i]});
  card.regions = adapter_.regions();
  aside_.say(card);
  return aside_.flush();
}

Status VerbsLink::connect_pairs(const Card& card) {
  const Result<verbs::Port> port = adapter_.port();
  if (!port.ok()) return port.status();
  // The side with more leaves the others alone; the last one is for control at both ends.
  const std::size_t data = std::min(pairs_.size(), card.queue_pairs.size()) - 1;
  while (pairs_.size() > data + 1) {
    pairs_.erase(pairs_.end() - 2);
    psns_.erase(psns_.end() - 2);
  }
  for (std::size_t i = 0; i <= data; ++i) {
    const QueuePairCard& peer = i < data ? card.queue_pairs[i] : card.queue_pairs.back();
    verbs::Connect to;
    to.qpn = peer.qpn;
    to.psn = peer.psn;
    to.own_psn = psns_[i];
    to.gid = card.gid;
    to.lid = card.lid;
    to.port = adapter_.nic().port;
    to.gid_index = static_cast<std::uint8_t>(adapter_.nic().gid_index);
    to.mtu_bytes = std::min(port.value().mtu_bytes, static_cast<int>(card.mtu_bytes));
    to.reads = std::clamp(std::min(adapter_.device().limits().reads, static_cast<int>(card.reads)), 1, 16);
    to.timeout = context_.timeout;
    to.retries = context_.retries;
    if (const Status status = pairs_[i].pair->connect(to); !status.ok()) return status;
    if (const Status status = pairs_[i].pair->post_receives(std::uint64_t{kReceiveBit | i} << 32, receives_); !status.ok()) return status;
    pairs_[i].chain.reserve(2 * kChain);
  }
  return {};
}

Status VerbsLink::take_card(const Card& card) {
  if (state_ != State::greeting) return Status(Code::link_down, "the peer said its card twice");
  const auto differs = [](const char* what, auto found, auto expected) {
    return Status(Code::connect, std::string("the peer's card says ") + what + " " + std::to_string(found) + ", expected " +
                                     std::to_string(expected) + "; is it the same job, and the same version?");
  };
  if (card.rank != name_.peer) return differs("rank", card.rank, name_.peer);
  if (card.epoch != context_.epoch) return differs("epoch", card.epoch, context_.epoch);
  if (card.nic != name_.peer_nic) return differs("NIC", card.nic, name_.peer_nic);
  if (card.peer_nic != name_.nic) return differs("peer's NIC", card.peer_nic, name_.nic);
  if (card.first_number != context_.first_number) return differs("first number", card.first_number, context_.first_number);
  if (card.receives < 4 || card.mtu_bytes < 256) return Status(Code::link_down, "the peer's card has no receives, or no MTU");
  peer_receives_ = card.receives;
  peer_slots_ = card.notices;
  peer_slots_key_ = card.notices_key;
  for (const RegionCard& region : card.regions) remote_[region.key].card = region;
  if (const Status status = connect_pairs(card); !status.ok()) {
    aside_.refuse(status.message);
    return status;
  }
  aside_.say_ready();
  state_ = ready_ ? State::up : State::connecting;
  return {};
}

// Keys of chunks for the peer; pending: some are being registered.
Status VerbsLink::answer(const Request& request, bool& pending) {
  std::vector<std::uint32_t> keys;
  for (std::uint32_t i = 0; i < request.n; ++i) {
    const verbs::Memory* memory = nullptr;
    Status why;
    const ChunkState state = adapter_.chunk(request.key, request.first + i, memory, why);
    if (state == ChunkState::failed) {
      aside_.refuse(why.message);
      return why;
    }
    pending = pending || state == ChunkState::pending;
    if (!pending) keys.push_back(memory->rkey);
  }
  if (!pending) aside_.say_keys(request.key, request.first, keys);
  return {};
}

void VerbsLink::answer_pending() {
  for (std::size_t i = 0; i < pending_.size() && ended_.ok();) {
    bool still = false;
    if (Status status = answer(pending_[i], still); !status.ok()) return end(std::move(status));
    if (still) ++i;
    else pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  flush_aside();
}

Status VerbsLink::take(const AsideMessage& message) {
  const RegionKey key = message.region.key;
  const auto region = remote_.find(key);
  switch (message.kind) {
    case AsideKind::card: return take_card(message.card);
    case AsideKind::ready:
      ready_ = true;
      if (state_ == State::connecting) state_ = State::up;
      posted_ = true;
      return {};
    case AsideKind::region:
      remote_[key] = {message.region, {}, {}};
      unheard_.erase(key);
      posted_ = true;
      return {};
    case AsideKind::gone: remote_.erase(key); return {};
    case AsideKind::want: {
      if (message.n == 0 || message.n > kMostAsked) return Status(Code::link_down, "the peer wants " + std::to_string(message.n) + " keys");
      bool pending = false;
      const Request request{key, message.first, message.n};
      Status status = answer(request, pending);
      if (pending) pending_.push_back(request);
      return status;
    }
    case AsideKind::keys:
      if (region == remote_.end()) return {};  // it is gone meanwhile
      for (std::uint32_t i = 0; i < message.keys.size(); ++i) {
        region->second.keys[message.first + i] = message.keys[i];
        region->second.asked.erase(message.first + i);
      }
      posted_ = true;
      return {};
    case AsideKind::refusal: return Status(Code::connect, "the peer gave up: " + message.text);
  }
  return {};
}

void VerbsLink::hear() {
  if (!ended_.ok() || retired_) return;
  Status status = aside_.receive();
  AsideMessage message;
  while (status.ok()) {
    const Result<bool> more = aside_.next(message);
    status = more.ok() ? Status() : more.status();
    if (!more.ok() || !more.value()) break;
    status = take(message);
  }
  flush_aside();
  if (!status.ok()) return end(std::move(status));
  if (aside_.closed())
    end(Status(Code::link_down, "the peer closed it: its process ended, or its NIC or connection failed there"));
}

void VerbsLink::flush_aside() {
  if (Status status = aside_.flush(); !status.ok() && ended_.ok()) end(std::move(status));
}

void VerbsLink::tell_region(const RegionCard& region) {
  aside_.say_region(region);
  flush_aside();
}

void VerbsLink::tell_gone(RegionKey key) {
  aside_.say_gone(key);
  flush_aside();
}

bool VerbsLink::owns(std::uint32_t qpn) const {
  return !retired_ && std::any_of(pairs_.begin(), pairs_.end(), [qpn](const Pair& pair) { return pair.pair->qpn == qpn; });
}

void VerbsLink::arm() {
  if (armed_ || !ended_.ok() || retired_) return;
  if (Status status = completions_->arm(); !status.ok()) return end(std::move(status));
  armed_ = true;
}

bool VerbsLink::quiet() const {
  return !unsent() && gets_.empty() && !ack_due_ && ack_ns_ == INT64_MAX &&
         std::all_of(pairs_.begin(), pairs_.end(), [](const Pair& pair) { return pair.flights.empty(); });
}

void VerbsLink::wake(std::int64_t& wake_ns) const {
  wake_ns = std::min(wake_ns, ack_due_ || (posted_ && up()) ? 0 : ack_ns_);
}

// What a completion with an error means for the path.
Status VerbsLink::explain(const verbs::Wc& wc, const Flight* flight) const {
  Code code = Code::link_down;
  switch (wc.status) {
    case verbs::WcStatus::loc_prot_err:
    case verbs::WcStatus::loc_access_err:
    case verbs::WcStatus::rem_access_err: code = Code::registration; break;
    default: break;
  }
  int op = -1;
  std::string what = "a request";
  if (flight != nullptr && flight->item != kNoItem) {
    op = items_[flight->item].tag.op_id;
    what = std::string(items_[flight->item].is_get ? "a read" : "a write") + " of " + std::to_string(flight->nbytes) + " bytes of op " +
           std::to_string(op);
  }
  std::string message = what + " failed with " + verbs::name(wc.status);
  if (wc.vendor_error != 0) message += " (vendor error " + std::to_string(wc.vendor_error) + ")";
  message += std::string(": ") + verbs::meaning(wc.status);
  const Result<verbs::Port> port = adapter_.port();
  if (port.ok() && port.value().state != verbs::PortState::active) message += "; port " + std::to_string(adapter_.nic().port) + " of this NIC is down";
  return Status(code, message, name_.peer, name_.nic, op);
}

void VerbsLink::end(Status why) {
  if (!ended_.ok() || retired_) return;
  why.message = text() + ": " + why.message;
  why.rank = name_.peer;
  why.nic = name_.nic;
  ended_ = std::move(why);
  static_cast<void>(aside_.flush());  // a refusal; whether it arrives is not known anyway
}

void VerbsLink::retire() {
  if (retired_) return;
  retired_ = true;
  for (Pair& pair : pairs_) {
    pair.pair.reset();
    for (; !pair.flights.empty(); pair.flights.pop())
      if (pair.flights.front().ticket != kNoTicket) adapter_.stage().give_back(pair.flights.front().ticket);
  }
}

void VerbsLink::fail(const Status& status, std::vector<Completion>& completions) {
  items_.fail(status, completions);
}

}  // namespace ccl_lab
