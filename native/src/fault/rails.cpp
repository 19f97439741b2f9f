// Puts over paths; see rails.hpp. Gets are in gets.cpp, what happens when a path fails in recovery.cpp.
#include "fault/rails.hpp"
#include "transport/regions.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

namespace ccl_lab {

namespace {

// The half of what a receiver can keep: segments of several paths may be ahead.
constexpr std::uint32_t kMostAhead = SegmentOrder::kMostAhead / 2;

// Every descriptor more makes a sleep dearer, by a microsecond in all. Most sleeps end with the next segment, so messages are
// waited for by those that last longer.
constexpr std::int64_t kShortSleepNs = 1'000'000;

std::uint64_t segment_cookie(std::uint32_t path, std::uint32_t generation) {
  return std::uint64_t{path} << 32 | generation;
}

template <class T>
void hand_over(std::vector<T>& from, std::vector<T>& to) {
  if (from.empty()) return;
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  from.clear();
}

}  // namespace

Rails::Rails(int rank, Transport& transport, Messenger& messenger, SignalTable signals, SpanWriter* spans, RailOptions options)
    : rank_(rank),
      transport_(transport),
      points_(options.points),
      watched_(points_.watched() ? std::make_unique<WatchedMessenger>(messenger, points_) : nullptr),
      messenger_(watched_ != nullptr ? *watched_ : messenger),
      signals_(signals),
      spans_(spans),
      options_(std::move(options)),
      peers_(static_cast<std::size_t>(signals.n_ranks())) {
  transport_.set_receiver(this);
  if (!options_.node_of.empty()) localizer_ = std::make_unique<Localizer>(rank_, messenger_);
}

Rails::~Rails() { transport_.set_receiver(nullptr); }

// ---- names

PathRecord* Rails::find(const Path& path) {
  if (path.peer < 0 || static_cast<std::size_t>(path.peer) >= peers_.size()) return nullptr;
  for (const std::uint32_t i : peer_of(path).paths)
    if (paths_[i]->name == path) return paths_[i].get();
  return nullptr;
}

const PathRecord* Rails::find(const Path& path) const { return const_cast<Rails*>(this)->find(path); }

PathRecord& Rails::record_of(const Path& path) {
  if (PathRecord* const found = find(path); found != nullptr) return *found;
  PeerRecord& peer = peer_of(path);
  if (peer.order == nullptr) peer.order = std::make_unique<SignalOrder>(signals_.n_channels());
  peer.paths.push_back(static_cast<std::uint32_t>(paths_.size()));
  auto record = std::make_unique<PathRecord>();
  record->name = path;
  record->index = static_cast<std::uint32_t>(paths_.size());
  paths_.push_back(std::move(record));
  for (const std::uint32_t i : peer.lanes)
    if (lanes_[i]->home == path) lanes_[i]->home_path = paths_.back().get();
  return *paths_.back();
}

Status Rails::may_add(const Path& path, std::uint32_t generation) const {
  if (path.peer < 0 || static_cast<std::size_t>(path.peer) >= peers_.size())
    return Status(Code::usage, "path to rank " + std::to_string(path.peer) + ": expected 0 to " +
                                   std::to_string(peers_.size() - 1), path.peer, path.nic);
  const PathRecord* const record = find(path);
  if (record != nullptr && record->state == PathState::up && record->generation == generation) return {};
  const Result<std::uint32_t> wanted = generation_wanted(path);
  if (!wanted.ok()) return wanted.status();
  if (wanted.value() == generation) return {};
  return Status(Code::connect, "a connection of generation " + std::to_string(generation) + " to rank " + std::to_string(path.peer) +
                                   " came, expected " + std::to_string(wanted.value()) + "; it is from before a failure",
                path.peer, path.nic);
}

Status Rails::add_path(const Path& path, std::uint32_t generation) {
  if (Status status = may_add(path, generation); !status.ok()) return status;
  PathRecord& record = record_of(path);
  if (record.state == PathState::up) return {};  // one more connection of the same
  const bool again = record.state != PathState::absent;
  record.state = PathState::up;
  record.generation = generation;
  record.confirmed = record.asked_until = record.received = record.in_flight_bytes = 0;
  record.window = Window(options_.segment_bytes, options_.window_bytes);
  record.why = Status();
  record.asked_ns = 0;
  PeerRecord& peer = peer_of(path);
  peer.had_path = true;
  peer.no_path_ns = 0;
  record.up_ns = now_ns_;
  if (again) {
    record.revival.back(now_ns_);
    ++counters_.back;
    note(RailEventKind::back, record, 0, "");
    record.fresh = true;
    points_.reach(ProtocolPoint::one_end_back, path);
  }
  if (peer.queued) pump(peer);
  return {};
}

bool Rails::knows(const Path& path) const {
  const PathRecord* const record = find(path);
  return record != nullptr && record->state != PathState::absent;
}

Result<std::uint32_t> Rails::generation_wanted(const Path& path) const {
  const PathRecord* const record = find(path);
  if (record == nullptr || record->state == PathState::absent) return std::uint32_t{0};
  if (record->state == PathState::down && !peers_[static_cast<std::size_t>(path.peer)].lost) return record->generation + 1;
  return Status(Code::connect, describe(*record) + (record->state == PathState::up ? " is up already" : " has failed, and what "
                                "arrived over it is not settled yet; connect it later"), path.peer, path.nic);
}

bool Rails::up(const Path& path) const {
  const PathRecord* const record = find(path);
  return record != nullptr && record->state == PathState::up;
}

bool Rails::reaches(std::int32_t peer) const {
  if (peer < 0 || static_cast<std::size_t>(peer) >= peers_.size()) return false;
  const PeerRecord& record = peers_[static_cast<std::size_t>(peer)];
  return record.had_path && !record.lost;
}

std::string Rails::describe(const PathRecord& path) const {
  return "path of rank " + std::to_string(rank_) + " (NIC " + std::to_string(path.name.nic) + ") to rank " +
         std::to_string(path.name.peer) + " (NIC " + std::to_string(path.name.peer_nic) + ")";
}

Lane& Rails::lane_of(const Put& put, std::uint32_t& index) {
  PeerRecord& peer = peers_[static_cast<std::size_t>(put.peer)];
  const std::uint32_t id = lane_id(put.nic, put.peer_nic);
  for (const std::uint32_t i : peer.lanes)
    if (lanes_[i]->id == id) {
      index = i;
      return *lanes_[i];
    }
  index = static_cast<std::uint32_t>(lanes_.size());
  peer.lanes.push_back(index);
  auto lane = std::make_unique<Lane>();
  lane->home = {put.peer, put.nic, put.peer_nic};
  lane->home_path = find(lane->home);
  lane->id = id;
  lanes_.push_back(std::move(lane));
  return *lanes_.back();
}

// ---- posting

std::uint32_t Rails::new_item(const Put& put, std::uint32_t lane) {
  if (free_items_.empty()) {
    free_items_.push_back(static_cast<std::uint32_t>(items_.size()));
    items_.emplace_back();
  }
  const std::uint32_t at = free_items_.back();
  free_items_.pop_back();
  Item& item = items_[at];
  item.live = true;
  item.lane = lane;
  item.nbytes = put.nbytes;
  item.cut = 0;
  item.open = 0;
  item.destination = put.destination;
  item.signal = put.signal;
  item.sequence = put.signal < 0 ? 0 : peers_[static_cast<std::size_t>(put.peer)].order->next_to_send(put.signal);
  item.cookie = put.cookie;
  item.tag = put.tag;
  item.order = ++n_posted_;
  item.source_key = put.source_key;
  item.copied = put.nbytes <= options_.copy_bytes && (put.nbytes == 0 || !of_device(put.source_key));
  item.completed = item.copied && !put.surely;
  // Nobody waits for what is complete already, but for what went before it: the last one of a program may be short.
  bool& owed = lanes_[lane]->owed;
  item.urgent = put.urgent && (owed || !item.completed);
  owed = (owed || !item.completed) && !put.urgent;
  item.source = put.source;
  if (item.copied && put.nbytes > 0) {
    item.copy.assign(put.source, put.source + put.nbytes);
    item.source = item.copy.data();
  }
  return at;
}

Status Rails::put(const Put& put) {
  if (!reaches(put.peer)) {
    if (put.peer >= 0 && static_cast<std::size_t>(put.peer) < peers_.size() && peers_[static_cast<std::size_t>(put.peer)].lost)
      return peers_[static_cast<std::size_t>(put.peer)].why;
    return Status(Code::connect, "rank " + std::to_string(rank_) + " has no path to rank " + std::to_string(put.peer) +
                                     " for op " + std::to_string(put.tag.op_id) + "; connect it first",
                  put.peer, put.nic, put.tag.op_id);
  }
  if (Status status = check_signal(rank_, put, signals_.n_channels()); !status.ok()) return status;
  std::uint32_t index = 0;
  Lane& lane = lane_of(put, index);
  const std::uint32_t item = new_item(put, index);
  lane.items.push(item);
  if (items_[item].completed) ready_.push_back({put.cookie, {}});
  while (home_is_up(lane) && lane.has_work() && has_room(*lane.home_path))
    send(*lane.home_path, take(lane, index, lane.home_path->window.segment_bytes()));
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
  if (path.flights.empty()) return true;
  const auto n = static_cast<std::uint32_t>(peers_[static_cast<std::size_t>(path.name.peer)].paths.size());
  return path.flights.size() < std::min(options_.window_segments, std::max(kMostAhead / n, 1u)) &&
         path.in_flight_bytes < path.window.bytes();
}

// The next lane whose segments this path may carry: its own, and those whose home is not up, in turn.
Lane* Rails::next_lane(PathRecord& path, std::uint32_t& index) {
  const PeerRecord& peer = peer_of(path.name);
  const std::size_t n = peer.lanes.size();
  for (std::size_t k = 0; k < n; ++k) {
    const std::size_t at = (path.turn + k) % n;
    Lane& lane = *lanes_[peer.lanes[at]];
    if (!lane.has_work() || (!(lane.home == path.name) && home_is_up(lane))) continue;
    path.turn = at + 1;
    index = peer.lanes[at];
    return &lane;
  }
  return nullptr;
}

Flight Rails::take(Lane& lane, std::uint32_t index, std::uint64_t most) {
  if (!lane.again.empty()) {
    const Flight flight = lane.again.back();
    lane.again.pop_back();
    ++counters_.resent;
    return flight;
  }
  const std::uint32_t at = lane.items.front();
  Item& item = items_[at];
  Flight flight;
  flight.lane = index;
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

void Rails::send(PathRecord& path, Flight flight) {
  const Item& item = items_[flight.item];
  Put put;
  put.peer = path.name.peer;
  put.nic = path.name.nic;
  put.peer_nic = path.name.peer_nic;
  put.source = item.source == nullptr ? nullptr : item.source + flight.offset;
  put.source_key = item.source_key;
  put.nbytes = flight.nbytes;
  put.destination = {item.destination.key, item.destination.offset + flight.offset};
  put.cookie = segment_cookie(path.index, path.generation);
  put.tag = item.tag;
  put.order = item.order;
  put.confirmed = true;
  put.notice = {lanes_[flight.lane]->id, flight.number, flight.last ? item.signal : -1, flight.last ? item.sequence : 0};
  if (path.flights.empty()) path.progress_ns = now_ns_;
  watch_ns_ = std::min(watch_ns_, now_ns_ + options_.silence_ns);
  flight.since_ns = now_ns_;
  flight.delivered = path.window.delivered();
  path.in_flight_bytes += flight.nbytes;
  flight.full = path.in_flight_bytes + path.window.segment_bytes() > path.window.bytes();
  path.flights.push(flight);
  // A window may be smaller than what a peer collects before it confirms. So one flight of it asks for that, when half of it is out:
  // the other half goes until the answer is here.
  const bool asks = 2 * path.in_flight_bytes > path.window.bytes() && path.confirmed >= path.asked_until;
  if (asks) path.asked_until = path.confirmed + path.flights.size();
  put.urgent = asks || (flight.last && item.urgent);
  ++n_unconfirmed_;
  points_.reach(ProtocolPoint::before_post, path.name);
  Status status = transport_.put(put);
  if (status.ok()) return points_.posted(path.name, lanes_[flight.lane]->home == path.name);
  if (status.code == Code::bounds || status.code == Code::usage) {
    // Another path would refuse it too. It was never sent, and the run ends with this.
    path.in_flight_bytes -= flight.nbytes;
    path.flights.erase(path.flights.size() - 1);
    --n_unconfirmed_;
    fail_item(flight.item, status);
    return;
  }
  lose(path, std::move(status), 0);
}

// One segment; false where the path has no room or no lane has work for it.
bool Rails::feed(PathRecord& path) {
  if (!has_room(path)) return false;
  std::uint32_t index = 0;
  Lane* const lane = next_lane(path, index);
  if (lane == nullptr) return false;
  send(path, take(*lane, index, path.window.segment_bytes()));
  return true;
}

// A segment for each path in turn, so that the lanes of a lost one are spread and not swallowed by the first with room.
void Rails::pump(PeerRecord& peer) {
  for (bool any = true; any;) {
    any = false;
    for (std::size_t i = 0; i < peer.paths.size(); ++i) any = feed(*paths_[peer.paths[i]]) || any;
  }
  const bool left = std::any_of(peer.lanes.begin(), peer.lanes.end(), [&](std::uint32_t i) { return lanes_[i]->has_work(); });
  if (peer.queued && !left) --n_queued_;
  if (!peer.queued && left) ++n_queued_;
  peer.queued = left;
}

// ---- completions

void Rails::done_with(std::uint32_t at) {
  Item& item = items_[at];
  --item.open;
  if (item.open > 0 || item.cut < item.nbytes || !item.live) return;
  if (!item.completed) ready_.push_back({item.cookie, {}});
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
  const Flight flight = path.flights.front();
  path.flights.pop();
  ++path.confirmed;
  path.in_flight_bytes -= flight.nbytes;
  --n_unconfirmed_;
  done_with(flight.item);
}

void Rails::take_completion(const Completion& completion) {
  if ((completion.cookie & kReadingBit) != 0) {
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
    return;
  }
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

int Rails::poll(std::int64_t now_ns, std::vector<Completion>& completions, std::vector<LinkEvent>& events) {
  now_ns_ = now_ns;
  int did = transport_.poll(now_ns, arrived_, failures_);
  for (std::size_t i = 0; i < arrived_.size(); ++i) take_completion(arrived_[i]);
  did += static_cast<int>(arrived_.size());
  arrived_.clear();
  for (const LinkEvent& failure : failures_) {
    PathRecord* const path = find({failure.peer, failure.nic, failure.peer_nic});
    if (path != nullptr && path->state == PathState::up) lose(*path, failure.status, 0);
    ++did;
  }
  failures_.clear();
  if (messenger_.poll(now_ns, datagrams_) > 0) {
    for (const Datagram& datagram : datagrams_) hear(datagram);
    did += static_cast<int>(datagrams_.size());
  }
  if (localizer_ != nullptr && (localizer_->busy() || !datagrams_.empty())) take_findings();
  datagrams_.clear();
  if (now_ns >= watch_ns_) {
    watch_ns_ = std::numeric_limits<std::int64_t>::max();
    for (const auto& path : paths_) watch(*path);
    for (std::size_t peer = 0; peer < peers_.size(); ++peer) watch_peer(peer);
  }
  for (std::size_t i = 0; n_queued_ > 0 && i < peers_.size(); ++i)
    if (peers_[i].queued) pump(peers_[i]);
  for (std::size_t i = 0; n_readings_ > 0 && i < readings_.size(); ++i)
    if (readings_[i].live && !readings_[i].posted && post_reading(readings_[i])) ++did;
  did += static_cast<int>(ready_.size() + lost_.size());
  hand_over(ready_, completions);
  hand_over(lost_, events);
  if (did > 0) did_ns_ = now_ns;
  return did;
}

// ---- arriving

Arriving& Rails::arriving_of(PeerRecord& peer, std::uint32_t id) {
  for (const auto& each : peer.arriving)
    if (each->id == id) return *each;
  peer.arriving.push_back(std::make_unique<Arriving>());
  peer.arriving.back()->id = id;
  return *peer.arriving.back();
}

void Rails::landed(const Path& path, const Notice& notice) {
  PathRecord* const record = find(path);
  if (record == nullptr || channel_of_signal(notice.signal) >= signals_.n_channels()) return;
  heard_over(*record);
  points_.reach(ProtocolPoint::arrived, path);
  const bool counted = points_.armed() && notice.signal >= 0 && !is_silent(notice.signal);
  const std::uint64_t before = counted ? signals_.value(path.peer, notice.signal) : 0;
  ++record->received;
  PeerRecord& peer = peer_of(path);
  Arriving& lane = arriving_of(peer, notice.lane);
  if (lane.order.place(notice.number) == SegmentOrder::Place::seen) {
    ++counters_.duplicates;
    return;
  }
  const Status status = lane.order.landed(notice.number, notice.signal, notice.sequence, [&](std::int32_t signal, std::uint32_t number) {
    return signal < 0 ? Status() : peer.order->arrived(signals_, path.peer, signal, number);
  });
  points_.told(path, notice, !counted || signals_.value(path.peer, notice.signal) > before);
  if (!status.ok()) lost_.push_back({path.peer, path.nic, status, path.peer_nic});
}

void Rails::wait_set(std::vector<pollfd>& descriptors, std::int64_t& wake_ns) const {
  transport_.wait_set(descriptors, wake_ns);
  const bool brief = n_retiring_ == 0 && now_ns_ - did_ns_ < kShortSleepNs;
  if (brief) wake_ns = std::min(wake_ns, did_ns_ + kShortSleepNs);
  else messenger_.wait_set(descriptors, wake_ns);
  wake_ns = std::min(wake_ns, watch_ns_);
  if (localizer_ != nullptr) wake_ns = std::min(wake_ns, localizer_->wake_ns());
}

void Rails::reset(std::uint16_t epoch) {
  transport_.reset(epoch);
  messenger_.reset(epoch);
  if (localizer_ != nullptr) localizer_->reset();
  epoch_ = epoch;
  for (PeerRecord& peer : peers_) peer = PeerRecord();
  paths_.clear();
  lanes_.clear();
  items_.clear();
  free_items_.clear();
  readings_.clear();
  n_readings_ = n_unconfirmed_ = n_retiring_ = n_queued_ = 0;
  arrived_.clear();
  failures_.clear();
  ready_.clear();
  lost_.clear();
  wanted_.clear();
}

std::vector<Path> Rails::wanted() { return std::exchange(wanted_, {}); }

std::vector<PathInfo> Rails::paths() const {
  std::vector<PathInfo> found;
  for (const auto& path : paths_)
    found.push_back({path->name, path->state, path->generation, path->confirmed, path->received, path->in_flight_bytes,
                     path->why.message});
  return found;
}

std::vector<RailEvent> Rails::events() { return std::exchange(events_, {}); }

}  // namespace ccl_lab
