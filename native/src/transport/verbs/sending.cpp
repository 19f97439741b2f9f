// Puts and gets, cut and spread over queue pairs; see link.hpp.
#include <algorithm>
#include <cstring>

#include "base/clock.hpp"
#include "transport/verbs/link.hpp"

namespace ccl_lab {

namespace {

constexpr std::uint32_t kMostAsked = 1024;  // chunks in one message
constexpr std::uint32_t kMostAcks = 32;     // with the NIC

std::uint32_t chunk_of(const RegionCard& region, std::uint64_t offset) { return static_cast<std::uint32_t>(offset / region.chunk_bytes); }

}  // namespace

// ---- posting

std::uint32_t VerbsLink::add(const Item& item) {
  posted_ = true;
  return items_.add(item);
}

void VerbsLink::post(const Put& put, std::uint32_t sequence) {
  Item item;
  item.live = true;
  item.source = put.source;
  item.local_key = put.source_key;
  item.nbytes = put.nbytes;
  item.remote = put.destination;
  item.notice = put.confirmed ? put.notice : Notice{0, 0, put.signal, sequence};
  item.cookie = put.cookie;
  item.tag = put.tag;
  item.confirmed = put.confirmed;
  item.urgent = put.urgent;
  const Spread& spread = spread_of(item);
  item.spray = spread.mode == SpreadMode::spray && put.nbytes > spread.segment_of(put.nbytes);
  puts_.push(add(item));
}

void VerbsLink::post(const Get& get) {
  Item item;
  item.live = item.is_get = true;
  item.destination = get.destination;
  item.local_key = get.destination_key;
  item.nbytes = get.nbytes;
  item.remote = get.source;
  item.cookie = get.cookie;
  item.tag = get.tag;
  gets_.push(add(item));
}

Status VerbsLink::check(const char* what, Remote at, std::uint64_t nbytes, const Tag& tag) const {
  if (nbytes == 0 || state_ == State::greeting) return {};
  const auto region = remote_.find(at.key);
  if (region == remote_.end() && of_device(at.key)) return {};
  if (region == remote_.end()) return unknown_region(what, name_.peer, at.key, tag.op_id);
  return check_range(what, name_.peer, at, nbytes, region->second.card.size, tag.op_id);
}

// ---- where a segment comes from and goes to

// The peer's address and key; false while the key is asked for. Cuts ends.nbytes at the end of the peer's chunk.
bool VerbsLink::find_remote(const Item& item, Ends& ends) {
  const auto found = remote_.find(item.remote.key);
  if (found == remote_.end() && of_device(item.remote.key) && item.cut == 0) {
    if (unheard_.insert(item.remote.key).second) aside_.want(item.remote.key, 0, 1);
    return false;
  }
  if (found == remote_.end()) {  // it was deregistered in the middle of the item
    end(unknown_region(item.is_get ? "get" : "put", name_.peer, item.remote.key, item.tag.op_id));
    return false;
  }
  RemoteRegion& region = found->second;
  const RegionCard& card = region.card;
  const std::uint64_t offset = item.remote.offset + item.cut;
  const std::uint32_t first = chunk_of(card, offset);
  const auto known = region.keys.find(first);
  if (known != region.keys.end()) {
    ends.rkey = known->second;
    ends.remote = card.base + offset;
    ends.nbytes = std::min(ends.nbytes, (first + std::uint64_t{1}) * card.chunk_bytes - offset);
    return true;
  }
  // All that the item still needs, at one go.
  const std::uint32_t last = std::min(chunk_of(card, item.remote.offset + item.nbytes - 1), first + kMostAsked - 1);
  std::uint32_t n = 0;
  while (first + n <= last && !region.keys.contains(first + n) && region.asked.insert(first + n).second) ++n;
  if (n > 0) aside_.want(item.remote.key, first, n);
  return false;
}

// Where the bytes lie here: registered, to be sent inline, or staged. False while there is no room to stage.
bool VerbsLink::find_local(const Item& item, int inline_bytes, Ends& ends) {
  std::byte* const local = (item.is_get ? item.destination : const_cast<std::byte*>(item.source)) + item.cut;
  ends.local = local;
  if (of_device(item.local_key)) return find_on_device(item, ends);
  ends.inlined = !item.is_get && ends.nbytes <= static_cast<std::uint64_t>(inline_bytes);
  if (ends.inlined) return true;
  const Adapter::Place place = adapter_.place(local);
  if (place.memory != nullptr) {
    ends.lkey = place.memory->lkey;
    ends.nbytes = std::min(ends.nbytes, place.run);
    return true;
  }
  ends.nbytes = std::min(ends.nbytes, Stage::kMostPiece);
  ends.local = adapter_.stage().take(ends.nbytes, ends.ticket);
  starved_ = ends.local == nullptr;
  if (starved_) return false;
  ends.lkey = adapter_.stage().lkey();
  if (!item.is_get) std::memcpy(ends.local, local, ends.nbytes);
  return true;
}

bool VerbsLink::find_on_device(const Item& item, Ends& ends) {
  const Adapter::Place place = adapter_.place(item.local_key, ends.local);
  if (place.memory == nullptr) {
    end(Status(Code::registration, "memory of a GPU (region " + std::to_string(item.local_key) + ") is not registered any more; was it freed in the middle of op " +
                                       std::to_string(item.tag.op_id) + "?"));
    return false;
  }
  ends.lkey = place.memory->lkey;
  ends.nbytes = std::min(ends.nbytes, place.run);
  return true;
}

// ---- chains

bool VerbsLink::room(const Pair& pair, const Item& item, bool numbered) const {
  return pair.flights.size() < std::min(inflight_max_, spread_of(item).inflight_max) && (!numbered || pair.unacked < peer_receives_);
}

// The queue pair of data that takes the next segment of `item`; -1: none has room.
int VerbsLink::next_pair(const Item& item, bool numbered) {
  const int n = std::min(spread_of(item).queue_pairs, n_data());
  return turn_.next(n, [&](int i) { return room(pairs_[static_cast<std::size_t>(i)], item, numbered); });
}

void VerbsLink::chain(Pair& pair, std::span<const verbs::Send> sends, const Flight& flight) {
  const auto at = static_cast<std::uint64_t>(&pair - pairs_.data());
  for (const verbs::Send& send : sends) {
    pair.chain.push_back(send);
    pair.chain.back().id = at << 32 | pair.posted;
    pair.chain.back().signaled = false;
  }
  ++pair.posted;
  pair.flights.push(flight);
  if (++pair.n_chained == kChain) ring(pair);
}

void VerbsLink::ring(Pair& pair) {
  if (pair.chain.empty()) return;
  pair.chain.back().signaled = true;
  if (Status status = pair.pair->post(pair.chain); !status.ok()) end(std::move(status));
  pair.chain.clear();
  pair.n_chained = 0;
}

// What the last segment says, in its slot at the peer.
void VerbsLink::write_slot(Pair& pair, const Item& item, std::uint32_t number, verbs::Send& send) {
  NoticeSlot& slot = pair.slots[pair.n_chained];
  slot = {};
  slot.number = number;
  slot.flags = (item.confirmed ? NoticeSlot::kNotice : 0) | (item.urgent ? NoticeSlot::kUrgent : 0) |
               (item.nbytes == 0 || item.spray ? NoticeSlot::kBare : 0);
  slot.plain_bytes = item.spray ? item.nbytes : 0;
  slot.lane = item.notice.lane;
  slot.notice = item.notice.number;
  slot.signal = item.notice.signal;
  slot.sequence = item.notice.sequence;
  slot.ack = landed_.next();
  slot.coll_id = item.tag.coll_id;
  slot.op_id = item.tag.op_id;
  send.local = reinterpret_cast<const std::byte*>(&slot);
  send.nbytes = sizeof slot;
  send.inlined = true;
  send.remote = peer_slots_ + (number % kWindow) * sizeof slot;
  send.rkey = peer_slots_key_;
  if (ack_due_ || ack_ns_ != INT64_MAX) ack_said();
}

void VerbsLink::number_segment(std::size_t pair, std::uint32_t at, bool last) {
  unacked_.push(static_cast<std::uint32_t>(pair));
  ++pairs_[pair].unacked;
  items_[at].number = number_;
  if (last && items_[at].confirmed) unconfirmed_.push({number_, at});
  ++number_;
}

void VerbsLink::put_segment(Pair& pair, std::uint32_t at, const Ends& ends, bool fast, std::int64_t now_ns) {
  Item& item = items_[at];
  const bool last = item.cut + ends.nbytes == item.nbytes;
  const bool tells = last && item.tells() && !item.spray;
  verbs::Send sends[2];
  std::size_t n = 0;
  if (tells) write_slot(pair, item, number_, sends[n++]);
  if (!tells || ends.nbytes > 0) {
    verbs::Send& bytes = sends[n++];
    bytes.local = ends.local;
    bytes.nbytes = static_cast<std::uint32_t>(ends.nbytes);
    bytes.lkey = ends.lkey;
    bytes.inlined = ends.inlined && ends.nbytes > 0;
    bytes.remote = ends.remote;
    bytes.rkey = ends.rkey;
  }
  Flight flight;
  flight.item = at;
  flight.large = item.cut > 0 || !last;
  flight.nbytes = ends.nbytes;
  flight.ticket = ends.ticket;
  flight.begin_ns = traced() ? ccl_lab::now_ns() : now_ns;
  n_large_ += flight.large;
  item.cut += ends.nbytes;
  ++item.open;
  if (!item.spray) {
    sends[n - 1].opcode = verbs::Opcode::write_with_imm;
    sends[n - 1].imm = (number_ & kSequenceMask) | (tells ? kNotifyBit : 0) | (fast && last ? kFastBit : 0);
    number_segment(static_cast<std::size_t>(&pair - pairs_.data()), at, last);
  }
  chain(pair, {sends, n}, flight);
}

// ---- cutting

// The first of `queue` is failed where the peer has no such memory. True: it was.
bool VerbsLink::refuse_unreachable(Queue<std::uint32_t>& queue, std::vector<Completion>& completions) {
  const Item& item = items_[queue.front()];
  if (item.cut > 0) return false;
  Status status = check(item.is_get ? "get" : "put", item.remote, item.nbytes, item.tag);
  if (status.ok()) return false;
  items_.complete(queue.front(), std::move(status), completions);
  queue.pop();
  return true;
}

// One segment of the oldest put; false where it has to wait.
bool VerbsLink::cut_put(std::int64_t now_ns, std::vector<Completion>& completions) {
  const std::uint32_t at = puts_.front();
  Item& item = items_[at];
  if (number_ - acked_ >= kWindow) return false;
  if (refuse_unreachable(puts_, completions)) return true;
  Ends ends;
  ends.nbytes = std::min(item.nbytes - item.cut, spread_of(item).segment_of(item.nbytes));
  if (item.nbytes > 0 && !find_remote(item, ends)) return false;
  if (item.spray && control().unacked >= peer_receives_ / 2) return false;  // the other half is for acknowledgements
  // Small ones do not queue behind bulk, and are rung for together.
  const bool fast = item.cut == 0 && ends.nbytes == item.nbytes && n_large_ == 0 && room(pairs_[0], item, true);
  const int chosen = fast ? 0 : next_pair(item, !item.spray);
  if (chosen < 0) return false;
  Pair& pair = pairs_[static_cast<std::size_t>(chosen)];
  if (item.nbytes > 0 && !find_local(item, pair.pair->inline_bytes, ends)) return false;
  put_segment(pair, at, ends, fast, now_ns);
  if (items_[at].cut < items_[at].nbytes) return true;
  puts_.pop();
  if (items_[at].spray) {
    ++items_[at].open;  // until it is told of
    number_segment(pairs_.size() - 1, at, true);
    sprayed_.push(at);
  }
  return true;
}

// The bytes of the oldest sprayed put are at the peer's NIC: now its software may know.
bool VerbsLink::tell_sprayed(std::int64_t now_ns) {
  const std::uint32_t at = sprayed_.front();
  Item& item = items_[at];
  if (item.open > 1 || control().flights.size() >= inflight_max_) return false;
  Pair& pair = control();
  verbs::Send send;
  const bool tells = item.tells();
  if (tells) write_slot(pair, item, item.number, send);
  send.opcode = verbs::Opcode::write_with_imm;
  send.imm = (item.number & kSequenceMask) | (tells ? kNotifyBit : 0);
  Flight flight;
  flight.item = at;
  flight.begin_ns = now_ns;
  chain(pair, {&send, 1}, flight);
  sprayed_.pop();
  return true;
}

bool VerbsLink::cut_get(std::int64_t now_ns, std::vector<Completion>& completions) {
  const std::uint32_t at = gets_.front();
  Item& item = items_[at];
  if (refuse_unreachable(gets_, completions)) return true;
  if (item.nbytes == 0) {
    gets_.pop();
    items_.complete(at, Status(), completions);
    return true;
  }
  Ends ends;
  ends.nbytes = std::min(item.nbytes - item.cut, spread_of(item).segment_of(item.nbytes));
  if (!find_remote(item, ends)) return false;
  const int chosen = next_pair(item, false);
  if (chosen < 0 || !find_local(item, 0, ends)) return false;
  verbs::Send send;
  send.opcode = verbs::Opcode::read;
  send.local = ends.local;
  send.nbytes = static_cast<std::uint32_t>(ends.nbytes);
  send.lkey = ends.lkey;
  send.remote = ends.remote;
  send.rkey = ends.rkey;
  Flight flight;
  flight.item = at;
  flight.nbytes = ends.nbytes;
  flight.ticket = ends.ticket;
  flight.staged = ends.local;
  flight.copy_to = ends.ticket == kNoTicket ? nullptr : item.destination + item.cut;
  flight.begin_ns = traced() ? ccl_lab::now_ns() : now_ns;
  item.cut += ends.nbytes;
  ++item.open;
  if (item.cut == item.nbytes) gets_.pop();
  chain(pairs_[static_cast<std::size_t>(chosen)], {&send, 1}, flight);
  return true;
}

void VerbsLink::ack_said() {
  ack_due_ = false;
  ack_ns_ = INT64_MAX;
  landed_bytes_ = 0;
  landed_segments_ = 0;
}

// By itself, where nothing with a notice went the other way.
void VerbsLink::send_ack(std::int64_t now_ns) {
  if (control().flights.size() >= std::min(kMostAcks, inflight_max_)) return;
  verbs::Send send;
  send.opcode = verbs::Opcode::write_with_imm;
  send.imm = kAckBit | (landed_.next() & kSequenceMask);
  Flight flight;
  flight.begin_ns = now_ns;
  chain(control(), {&send, 1}, flight);
  ack_said();
}

void VerbsLink::pump(std::int64_t now_ns, std::vector<Completion>& completions) {
  posted_ = starved_ = false;
  if (!up() || !ended_.ok()) return;
  while (!sprayed_.empty() && ended_.ok() && tell_sprayed(now_ns)) {}
  while (!puts_.empty() && ended_.ok() && cut_put(now_ns, completions)) {}
  while (!gets_.empty() && ended_.ok() && cut_get(now_ns, completions)) {}
  if (ack_due_ && ended_.ok()) send_ack(now_ns);
  for (Pair& pair : pairs_)
    if (ended_.ok()) ring(pair);
  if (aside_.unsent()) flush_aside();
}

// ---- done

void VerbsLink::item_done(std::uint32_t at, std::vector<Completion>& completions) {
  Item& item = items_[at];
  --item.open;
  if (item.open > 0 || item.cut < item.nbytes) return;
  if (item.confirmed) confirm(completions);
  else items_.complete(at, Status(), completions);
}

void VerbsLink::flight_done(Pair& pair, std::int64_t now_ns, std::vector<Completion>& completions) {
  const Flight flight = pair.flights.front();
  pair.flights.pop();
  ++pair.done;
  n_large_ -= flight.large;
  if (flight.copy_to != nullptr) std::memcpy(flight.copy_to, flight.staged, flight.nbytes);
  if (flight.ticket != kNoTicket) adapter_.stage().give_back(flight.ticket);
  if (flight.item == kNoItem) return;
  const Item& item = items_[flight.item];
  if (item.is_get) shaper_.count_rx(flight.nbytes);
  else shaper_.count_tx(flight.nbytes);
  if (traced() && flight.nbytes > 0)
    record(item.is_get ? Track::nic_rx : Track::nic_tx, flight.nbytes, item.tag, flight.begin_ns, std::max(now_ns, ccl_lab::now_ns()));
  item_done(flight.item, completions);
}

// The peer has all segments before `number`.
Status VerbsLink::acked(std::uint32_t number) {
  const std::uint32_t n = number - acked_;
  if (n == 0 || static_cast<std::int32_t>(n) < 0) return {};  // older than what is known: acks take two ways
  if (n > number_ - acked_)
    return Status(Code::link_down, "bad immediate: it acknowledges segment " + std::to_string(number - 1) + ", which was not sent; "
                                       "expected at most " + std::to_string(number_ - 1));
  for (; acked_ != number; ++acked_) {
    --pairs_[unacked_.front()].unacked;
    unacked_.pop();
  }
  return {};
}

void VerbsLink::confirm(std::vector<Completion>& completions) {
  for (; !unconfirmed_.empty(); unconfirmed_.pop()) {
    const Unconfirmed& first = unconfirmed_.front();
    if (static_cast<std::int32_t>(acked_ - first.number) <= 0 || items_[first.item].open > 0) return;
    items_.complete(first.item, Status(), completions);
  }
}

}  // namespace ccl_lab
