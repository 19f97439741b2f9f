// What a put becomes: a numbered segment or several, in the ledgers of paths until the peer has confirmed them; see rails.hpp.
#include <algorithm>
#include <cstring>
#include <utility>

#include "fault/rails.hpp"
#include "transport/regions.hpp"

namespace ccl_lab {

namespace {

// What is copied at one go while nothing else is to be done, so that what comes meanwhile does not wait long.
constexpr std::uint64_t kCopyAtOnceBytes = 64 * 1024;

constexpr std::size_t kMostPosted = 16;

std::uint64_t segment_cookie(std::uint32_t path, std::uint32_t generation) {
  return std::uint64_t{path} << 32 | generation;
}

}  // namespace

const Named<Lane>& Rails::lane_of(const Put& put) {
  const Named<Lane>* const found = find_named(peers_[static_cast<std::size_t>(put.peer)].lanes, lane_id(put.nic, put.peer_nic));
  return found != nullptr ? *found : new_lane(put);
}

const Named<Lane>& Rails::new_lane(const Put& put) {
  PeerRecord& peer = peers_[static_cast<std::size_t>(put.peer)];
  auto lane = std::make_unique<Lane>();
  lane->home = {put.peer, put.nic, put.peer_nic};
  lane->home_path = find(lane->home);
  lane->id = lane_id(put.nic, put.peer_nic);
  peer.lanes.push_back({lane->id, static_cast<std::uint32_t>(lanes_.size()), lane.get()});
  lanes_.push_back(std::move(lane));
  return peer.lanes.back();
}

// ---- posting

std::uint32_t Rails::free_item() {
  if (free_items_.empty()) {
    free_items_.push_back(static_cast<std::uint32_t>(items_.size()));
    items_.emplace_back();
  }
  const std::uint32_t at = free_items_.back();
  free_items_.pop_back();
  return at;
}

std::uint32_t Rails::new_item(const Put& put, std::uint32_t index, Lane& lane) {
  const std::uint32_t at = free_item();
  Item& item = items_[at];
  item.live = true;
  item.lane = index;
  item.nbytes = put.nbytes;
  item.cut = 0;
  item.open = 0;
  item.destination = put.destination;
  item.signal = put.signal;
  item.sequence = put.signal < 0 ? 0 : peers_[static_cast<std::size_t>(put.peer)].order->next_to_send(put.signal);
  item.cookie = put.cookie;
  item.tag = put.tag;
  item.order = ++n_posted_;
  item.source = put.source;
  item.source_key = put.source_key;
  const bool ours = put.nbytes == 0 || !of_device(put.source_key);  // the host may read it
  item.completed = ours && put.nbytes <= options_.copy_bytes;
  if (item.completed && put.nbytes > 0) copy(item);
  const bool later = ours && !item.completed && !put.surely && put.nbytes <= options_.later_bytes;
  if (later) (put.urgent || put.nbytes <= Uncopied::kShortBytes ? uncopied_ : young_).push({at, item.order, now_ns_});
  item.completed = item.completed && !put.surely;
  if (item.completed) complete(put.cookie);
  // Nobody waits for what is complete already, or soon, but for what went before it: the last one of a program may be short.
  const bool waited_for = !item.completed && !later;
  item.urgent = put.urgent && (lane.owed || waited_for);
  lane.owed = (lane.owed || waited_for) && !put.urgent;
  return at;
}

void Rails::copy(Item& item) {
  if (item.copy.size() < item.nbytes) item.copy.resize(item.nbytes);
  std::memcpy(item.copy.data(), item.source, item.nbytes);
  item.source = item.copy.data();
}

// Whether no transport reads the sources of puts to this peer any more, but for what is sent again.
bool Rails::sources_are_free(const PeerRecord& peer) const {
  return std::all_of(peer.paths.begin(), peer.paths.end(), [this](const Named<PathRecord>& each) {
    return each.at->state != PathState::up || transport_.sources_are_free(each.at->name);
  });
}

void Rails::copy_and_complete(Item& item) {
  if (item.nbytes > 0) copy(item);
  item.completed = true;
  complete(item.cookie);
}

// There is nothing else to do: those who wait for short puts need not wait for their peers. `no_more`: nor does anything come that
// would carry a confirmation.
void Rails::copy_waiting(bool no_more) {
  std::uint64_t left = kCopyAtOnceBytes;
  for (Queue<Uncopied>* const waiting : {&uncopied_, &young_})
    for (; !waiting->empty(); waiting->pop()) {
      const Uncopied& first = waiting->front();
      Item& item = items_[first.item];
      if (!item.live || item.order != first.order) continue;  // it is confirmed
      if (waiting == &young_ && !no_more && now_ns_ - first.since_ns < Uncopied::kYoungNs) break;
      if (item.nbytes > left || !sources_are_free(peers_[static_cast<std::size_t>(lanes_[item.lane]->home.peer)])) break;
      left -= item.nbytes;
      copy_and_complete(item);
    }
}

// Whether a put need not be written down before it has gone: a short one, copied later, over its own path, which has room for many.
bool Rails::is_quick(const Put& put, const Lane& lane) const {
  if (put.nbytes > options_.later_bytes || put.surely || of_device(put.source_key)) return false;
  if (!home_is_up(lane) || lane.has_work()) return false;
  const PathRecord& path = *lane.home_path;
  return path.flights.size() + posted_.size() < path.most_flights && put.nbytes <= path.window.segment_bytes() &&
         2 * (path.in_flight_bytes + posted_bytes_ + put.nbytes) <= path.window.bytes();
}

Status Rails::put_quickly(const Put& put, const Named<Lane>& named) {
  Lane& lane = *named.at;
  if (posted_.size() >= kMostPosted) enter_posted();
  Posted& posted = posted_.add();
  posted.cookie = put.cookie;
  posted.path = lane.home_path;
  posted.lane = named.index;
  posted.since_ns = now_ns_;
  posted.awaited = put.urgent;
  posted_bytes_ += put.nbytes;
  posted.put = put;
  posted.put.cookie = segment_cookie(lane.home_path->index, lane.home_path->generation);
  posted.put.order = ++n_posted_;
  posted.put.confirmed = true;
  posted.put.urgent = put.urgent && lane.owed;
  posted.put.together = put.tag.op_id >= 0;
  lane.owed = lane.owed && !put.urgent;
  const std::uint32_t sequence = put.signal < 0 ? 0 : peers_[static_cast<std::size_t>(put.peer)].order->next_to_send(put.signal);
  posted.put.notice = {lane.id, lane.next_number++, put.signal, sequence};
  points_.reach(ProtocolPoint::before_post, lane.home);
  if (Status status = transport_.put(posted.put); !status.ok()) {
    PathRecord& path = *lane.home_path;
    enter_posted();
    refused(path, path.flights[path.flights.size() - 1].item, status);
    return {};
  }
  points_.posted(lane.home, true);
  return {};
}

// What has gone comes into the ledger, in its order.
void Rails::enter_posted() {
  posted_bytes_ = 0;
  const PathRecord* seen = nullptr;
  bool free = false;
  for (; !posted_.empty(); posted_.pop()) {
    const Posted& posted = posted_.front();
    PathRecord& path = *posted.path;
    const std::uint32_t at = free_item();
    Item& item = items_[at];
    item.live = true;
    item.completed = false;
    item.urgent = posted.put.urgent;
    item.lane = posted.lane;
    item.source = posted.put.source;
    item.source_key = posted.put.source_key;
    item.nbytes = item.cut = posted.put.nbytes;
    item.open = 1;
    item.destination = posted.put.destination;
    item.signal = posted.put.notice.signal;
    item.sequence = posted.put.notice.sequence;
    item.cookie = posted.cookie;
    item.tag = posted.put.tag;
    item.order = posted.put.order;
    if (item.nbytes <= Uncopied::kShortBytes && seen != &path) free = transport_.sources_are_free((seen = &path)->name);
    if (item.nbytes <= Uncopied::kShortBytes && free) copy_and_complete(item);
    else (posted.awaited || item.nbytes <= Uncopied::kShortBytes ? uncopied_ : young_).push({at, item.order, posted.since_ns});
    if (path.flights.empty()) path.progress_ns = posted.since_ns;
    watch_ns_ = std::min(watch_ns_, posted.since_ns + options_.silence_ns);
    path.in_flight_bytes += item.nbytes;
    ++n_unconfirmed_;
    Flight& flight = path.flights.add();
    flight = {posted.lane, at, 0, item.nbytes, posted.put.notice.number, true, posted.since_ns, path.window.delivered(), false};
  }
}

Status Rails::no_way(const Put& put) const {
  if (put.peer >= 0 && static_cast<std::size_t>(put.peer) < peers_.size() && peers_[static_cast<std::size_t>(put.peer)].lost)
    return peers_[static_cast<std::size_t>(put.peer)].why;
  return Status(Code::connect, "rank " + std::to_string(rank_) + " has no path to rank " + std::to_string(put.peer) + " for op " +
                                   std::to_string(put.tag.op_id) + "; connect it first",
                put.peer, put.nic, put.tag.op_id);
}

Status Rails::put(const Put& put) {
  if (!reaches(put.peer)) return no_way(put);
  if (channel_of_signal(put.signal) >= signals_.n_channels()) return check_signal(rank_, put, signals_.n_channels());
  const Named<Lane> named = lane_of(put);
  Lane& lane = *named.at;
  if (is_quick(put, lane)) return put_quickly(put, named);
  enter_posted();
  const std::uint32_t at = new_item(put, named.index, lane);
  // Most puts are one segment, and go as they come.
  if (home_is_up(lane) && !lane.has_work() && put.nbytes <= lane.home_path->window.segment_bytes() && has_room(*lane.home_path)) {
    Item& item = items_[at];
    item.cut = item.nbytes;
    item.open = 1;
    send(*lane.home_path, lane, {named.index, at, 0, item.nbytes, lane.next_number++, true});
    return {};
  }
  lane.items.push(at);
  while (home_is_up(lane) && lane.has_work() && has_room(*lane.home_path))
    send(*lane.home_path, lane, take(named, lane.home_path->window.segment_bytes()));
  PeerRecord& peer = peers_[static_cast<std::size_t>(put.peer)];
  if (!lane.has_work() || peer.queued) return {};
  peer.queued = true;
  ++n_queued_;
  pump(peer);
  return {};
}

// ---- from lanes to paths

bool Rails::home_is_up(const Lane& lane) const {
  return lane.home_path != nullptr && lane.home_path->state == PathState::up;
}

bool Rails::has_room(const PathRecord& path) const {
  if (path.state != PathState::up) return false;
  return path.flights.empty() || (path.flights.size() < path.most_flights && path.in_flight_bytes < path.window.bytes());
}

// The next lane whose segments this path may carry: its own, and those whose home is not up, in turn.
const Named<Lane>* Rails::next_lane(PathRecord& path) {
  const PeerRecord& peer = peer_of(path.name);
  const std::size_t n = peer.lanes.size();
  for (std::size_t k = 0; k < n; ++k) {
    const std::size_t at = (path.turn + k) % n;
    const Lane& lane = *peer.lanes[at].at;
    if (!lane.has_work() || (!(lane.home == path.name) && home_is_up(lane))) continue;
    path.turn = at + 1;
    return &peer.lanes[at];
  }
  return nullptr;
}

Flight Rails::take(const Named<Lane>& named, std::uint64_t most) {
  Lane& lane = *named.at;
  if (!lane.again.empty()) {
    const Flight flight = lane.again.back();
    lane.again.pop_back();
    ++counters_.resent;
    return flight;
  }
  const std::uint32_t at = lane.items.front();
  Item& item = items_[at];
  Flight flight;
  flight.lane = named.index;
  flight.item = at;
  flight.offset = item.cut;
  flight.nbytes = std::min(item.nbytes - item.cut, most);
  flight.number = lane.next_number++;
  item.cut += flight.nbytes;
  ++item.open;
  flight.last = item.cut == item.nbytes;
  if (flight.last) lane.items.pop();
  return flight;
}

void Rails::send(PathRecord& path, const Lane& lane, const Flight& taken) {
  const Item& item = items_[taken.item];
  if (path.flights.empty()) path.progress_ns = now_ns_;
  watch_ns_ = std::min(watch_ns_, now_ns_ + options_.silence_ns);
  path.in_flight_bytes += taken.nbytes;
  ++n_unconfirmed_;
  Flight& flight = path.flights.push(taken);
  flight.since_ns = now_ns_;
  flight.delivered = path.window.delivered();
  flight.full = path.in_flight_bytes + path.window.segment_bytes() > path.window.bytes();
  // A window may be smaller than what a peer collects before it confirms. So one flight of it asks for that, when half of it is out:
  // the other half goes until the answer is here.
  const bool asks = 2 * path.in_flight_bytes > path.window.bytes() && path.confirmed >= path.asked_until;
  if (asks) path.asked_until = path.confirmed + path.flights.size();
  Put put;
  put.peer = path.name.peer;
  put.nic = path.name.nic;
  put.peer_nic = path.name.peer_nic;
  put.source = item.source == nullptr ? nullptr : item.source + taken.offset;
  put.source_key = item.source_key;
  put.nbytes = taken.nbytes;
  put.destination = {item.destination.key, item.destination.offset + taken.offset};
  put.cookie = segment_cookie(path.index, path.generation);
  put.tag = item.tag;
  put.order = item.order;
  put.confirmed = true;
  put.urgent = asks || (taken.last && item.urgent);
  // Whoever waits for room, or for a put of a window, waits for nobody else.
  put.together = !asks && item.tag.op_id >= 0;
  put.notice = {lane.id, taken.number, taken.last ? item.signal : -1, taken.last ? item.sequence : 0};
  points_.reach(ProtocolPoint::before_post, path.name);
  const Status status = transport_.put(put);
  if (status.ok()) points_.posted(path.name, lane.home_path == &path);
  else refused(path, taken.item, status);
}

// The transport did not take the latest segment of this path.
void Rails::refused(PathRecord& path, std::uint32_t item, const Status& status) {
  if (status.code != Code::bounds && status.code != Code::usage) return lose(path, status, 0);
  // Another path would refuse it too. It was never sent, and the run ends with this.
  path.in_flight_bytes -= path.flights[path.flights.size() - 1].nbytes;
  path.flights.erase(path.flights.size() - 1);
  --n_unconfirmed_;
  fail_item(item, status);
}

// One segment; false where the path has no room or no lane has work for it.
bool Rails::feed(PathRecord& path) {
  if (!has_room(path)) return false;
  const Named<Lane>* const lane = next_lane(path);
  if (lane == nullptr) return false;
  send(path, *lane->at, take(*lane, path.window.segment_bytes()));
  return true;
}

// A segment for each path in turn, so that the lanes of a lost one are spread and not swallowed by the first with room.
void Rails::pump(PeerRecord& peer) {
  for (bool any = true; any;) {
    any = false;
    for (std::size_t i = 0; i < peer.paths.size(); ++i) any = feed(*peer.paths[i].at) || any;
  }
  const bool left = std::any_of(peer.lanes.begin(), peer.lanes.end(), [](const auto& each) { return each.at->has_work(); });
  if (peer.queued && !left) --n_queued_;
  if (!peer.queued && left) ++n_queued_;
  peer.queued = left;
}

// ---- completions

void Rails::done_with(std::uint32_t at) {
  Item& item = items_[at];
  --item.open;
  if (item.open > 0 || item.cut < item.nbytes || !item.live) return;
  if (!item.completed) complete(item.cookie);
  item.live = false;
  free_items_.push_back(at);
}

void Rails::fail_item(std::uint32_t at, const Status& status) {
  Item& item = items_[at];
  if (!item.live) return;
  if (!item.completed) ready_.push_back({item.cookie, status});
  else lost_.push_back({lanes_[item.lane]->home.peer, lanes_[item.lane]->home.nic, status, lanes_[item.lane]->home.peer_nic});
  item.live = false;  // its slot is free again after reset: segments of it may be under way
}

void Rails::confirm_front(PathRecord& path) {
  const Flight& flight = path.flights.front();
  ++path.confirmed;
  path.in_flight_bytes -= flight.nbytes;
  --n_unconfirmed_;
  done_with(flight.item);
  path.flights.pop();
}

// Of a get.
void Rails::take_answer(const Completion& completion) {
  Reading& reading = readings_[(completion.cookie & ~kReadingBit) >> 32];
  if (!reading.live || reading.serial != static_cast<std::uint32_t>(completion.cookie)) return;
  const bool final = completion.status.ok() || completion.status.code == Code::bounds || completion.status.code == Code::usage;
  if (!final) {
    reading.posted = false;  // its path is lost, as an event says; another one will be asked
    return;
  }
  ready_.push_back({reading.get.cookie, completion.status});
  reading.live = false;
  --n_readings_;
}

void Rails::take_completion(const Completion& completion) {
  if ((completion.cookie & kReadingBit) != 0) return take_answer(completion);
  PathRecord& path = *paths_[completion.cookie >> 32];
  if (path.state != PathState::up || path.generation != static_cast<std::uint32_t>(completion.cookie)) return;
  if (!completion.status.ok()) return lose(path, completion.status, 0);
  heard_over(path);
  points_.reach(ProtocolPoint::confirmed, path.name);
  const Flight& flight = path.flights.front();
  path.latency_ns = now_ns_ - flight.since_ns;
  path.window.confirmed(flight.nbytes, flight.since_ns, flight.delivered, flight.full, now_ns_);
  path.progress_ns = path.confirmed_ns = now_ns_;
  path.confirmed_order = items_[flight.item].order;
  path.asked_ns = 0;
  confirm_front(path);
}

}  // namespace ccl_lab
