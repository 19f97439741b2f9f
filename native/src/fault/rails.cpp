// Paths, polls and what arrives; see rails.hpp. Puts are in sending.cpp, gets in gets.cpp, what happens when a path fails in
// recovery.cpp.
#include "fault/rails.hpp"

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

// How long messages wait while segments come in without a break.
constexpr std::int64_t kUnheardNs = 200'000;

template <class T>
void hand_over(std::vector<T>& from, std::vector<T>& to) {
  if (from.empty()) return;
  if (to.empty()) return from.swap(to);
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
  const Named<PathRecord>* const found = find_named(peer_of(path).paths, lane_id(path.nic, path.peer_nic));
  return found == nullptr ? nullptr : found->at;
}

const PathRecord* Rails::find(const Path& path) const { return const_cast<Rails*>(this)->find(path); }

PathRecord& Rails::record_of(const Path& path) {
  if (PathRecord* const found = find(path); found != nullptr) return *found;
  PeerRecord& peer = peer_of(path);
  if (peer.order == nullptr) peer.order = std::make_unique<SignalOrder>(signals_.n_channels());
  auto record = std::make_unique<PathRecord>();
  record->name = path;
  record->index = static_cast<std::uint32_t>(paths_.size());
  peer.paths.push_back({lane_id(path.nic, path.peer_nic), record->index, record.get()});
  paths_.push_back(std::move(record));
  for (const auto& each : peer.lanes)
    if (each.at->home == path) each.at->home_path = paths_.back().get();
  const auto n = static_cast<std::uint32_t>(peer.paths.size());
  for (const auto& each : peer.paths) each.at->most_flights = std::min(options_.window_segments, std::max(kMostAhead / n, 1u));
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
  enter_posted();
  PathRecord& record = record_of(path);
  if (record.state == PathState::up) return {};  // one more connection of the same
  const bool again = record.state != PathState::absent;
  record.state = PathState::up;
  record.generation = generation;
  record.confirmed = record.asked_until = record.received = record.in_flight_bytes = 0;
  record.window = Window(options_.segment_bytes, options_.first_segment_bytes, options_.window_bytes);
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

// ---- polling

int Rails::poll(std::int64_t now_ns, std::vector<Completion>& completions, std::vector<LinkEvent>& events) {
  now_ns_ = now_ns;
  const bool no_more = std::exchange(no_more_, false);
  const std::uint64_t landed_before = n_landed_;
  int did = transport_.poll(now_ns, arrived_, failures_);
  // What came goes first: somebody waits for it, and the rest can wait.
  const bool came = n_landed_ != landed_before;
  const bool quiet = arrived_.empty() && failures_.empty();
  const bool due = now_ns >= listen_ns_ || now_ns >= watch_ns_ || n_queued_ > 0 || n_readings_ > 0 || !ready_.empty() || !lost_.empty();
  if (came && quiet && !due && !no_more) {
    did_ns_ = now_ns;
    return did;
  }
  enter_posted();
  if (!quiet) did += take_over();
  did += listen();
  if (now_ns >= watch_ns_) {
    watch_ns_ = std::numeric_limits<std::int64_t>::max();
    for (const auto& path : paths_) watch(*path);
    for (std::size_t peer = 0; peer < peers_.size(); ++peer) watch_peer(peer);
  }
  for (std::size_t i = 0; n_queued_ > 0 && i < peers_.size(); ++i)
    if (peers_[i].queued) pump(peers_[i]);
  for (std::size_t i = 0; n_readings_ > 0 && i < readings_.size(); ++i)
    if (readings_[i].live && !readings_[i].posted && post_reading(readings_[i])) ++did;
  // The shortest take less time than the poll until nothing else is to be done.
  const bool brief = !uncopied_.empty() && items_[uncopied_.front().item].nbytes <= Uncopied::kShortBytes;
  if ((did == 0 || no_more || brief) && !(uncopied_.empty() && young_.empty())) copy_waiting(no_more);
  if (!ready_.empty() || !lost_.empty()) {
    did += static_cast<int>(ready_.size() + lost_.size());
    hand_over(ready_, completions);
    hand_over(lost_, events);
  }
  if (did > 0) did_ns_ = now_ns;
  return did;
}

// What is said out of band.
int Rails::listen() {
  listen_ns_ = now_ns_ + kUnheardNs;
  const int heard = messenger_.poll(now_ns_, datagrams_) > 0 ? static_cast<int>(datagrams_.size()) : 0;
  for (const Datagram& datagram : datagrams_) hear(datagram);
  if (localizer_ != nullptr && (localizer_->busy() || !datagrams_.empty())) take_findings();
  datagrams_.clear();
  return heard;
}

// What the transport has completed, and what it lost.
int Rails::take_over() {
  const auto did = static_cast<int>(arrived_.size() + failures_.size());
  for (std::size_t i = 0; i < arrived_.size(); ++i) take_completion(arrived_[i]);
  arrived_.clear();
  for (const LinkEvent& failure : failures_) {
    PathRecord* const path = find({failure.peer, failure.nic, failure.peer_nic});
    if (path != nullptr && path->state == PathState::up) lose(*path, failure.status, 0);
  }
  failures_.clear();
  return did;
}

// ---- arriving

SegmentOrder& Rails::arriving_of(PeerRecord& peer, std::uint32_t id) {
  if (const Named<SegmentOrder>* const found = find_named(peer.arriving, id); found != nullptr) return *found->at;
  arriving_.push_back(std::make_unique<SegmentOrder>());
  peer.arriving.push_back({id, static_cast<std::uint32_t>(arriving_.size() - 1), arriving_.back().get()});
  return *arriving_.back();
}

void Rails::landed(const Path& path, const Notice& notice) {
  PathRecord* const record = find(path);
  if (record == nullptr || channel_of_signal(notice.signal) >= signals_.n_channels()) return;
  heard_over(*record);
  points_.reach(ProtocolPoint::arrived, path);
  const bool counted = points_.armed() && notice.signal >= 0 && !is_silent(notice.signal);
  const std::uint64_t before = counted ? signals_.value(path.peer, notice.signal) : 0;
  ++record->received;
  ++n_landed_;
  PeerRecord& peer = peer_of(path);
  SegmentOrder& lane = arriving_of(peer, notice.lane);
  if (notice.number != lane.next() && lane.place(notice.number) == SegmentOrder::Place::seen) {
    ++counters_.duplicates;
    return;
  }
  const Status status = lane.landed(notice.number, notice.signal, notice.sequence, [&](std::int32_t signal, std::uint32_t number) {
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
  wake_ns = std::min(wake_ns, due_ns());
  if (!posted_.empty()) wake_ns = std::min(wake_ns, now_ns_);  // nobody watches over what is not in the ledger
  const std::int64_t old_ns = young_.empty() ? 0 : young_.front().since_ns + Uncopied::kYoungNs;
  if (old_ns > now_ns_) wake_ns = std::min(wake_ns, old_ns);
}

void Rails::watch_set(std::vector<pollfd>& descriptors, std::int64_t& wake_ns) const {
  messenger_.wait_set(descriptors, wake_ns);
  wake_ns = std::min(wake_ns, due_ns());
}

std::int64_t Rails::due_ns() const {
  return localizer_ == nullptr ? watch_ns_ : std::min(watch_ns_, localizer_->wake_ns());
}

void Rails::reset(std::uint16_t epoch) {
  transport_.reset(epoch);
  messenger_.reset(epoch);
  if (localizer_ != nullptr) localizer_->reset();
  epoch_ = epoch;
  for (PeerRecord& peer : peers_) peer = PeerRecord();
  paths_.clear();
  lanes_.clear();
  arriving_.clear();
  items_.clear();
  free_items_.clear();
  posted_.clear();
  posted_bytes_ = 0;
  uncopied_.clear();
  young_.clear();
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
  for (std::size_t i = 0; i < posted_.size(); ++i) found[posted_[i].path->index].in_flight_bytes += posted_[i].put.nbytes;
  return found;
}

std::vector<RailEvent> Rails::events() { return std::exchange(events_, {}); }

}  // namespace ccl_lab
