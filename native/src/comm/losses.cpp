// The peers that a rank has lost, and which runs that ends; see progress.hpp.
#include <utility>

#include "comm/progress.hpp"

namespace ccl_lab {

int Progress::handle_events() {
  const int n = static_cast<int>(events_.size());
  for (LinkEvent& event : events_) {
    const auto peer = static_cast<std::size_t>(event.peer);
    if (peer >= lost_.size()) continue;
    if (lost_[peer].ok()) lost_[peer] = event.status;
    windows_.lost(event.peer, lost_[peer]);
    for (std::size_t i = 0; i < runs_.n_draining(); ++i)
      if (Executor& executor = runs_.draining(i).executor; executor.needs(event.peer, inbox())) executor.fail(event.status);
    if (current() == nullptr || current()->fused()) continue;
    if (Executor& executor = runs_.now().executor; executor.needs(event.peer, inbox())) executor.fail(std::move(event.status));
  }
  events_.clear();
  return n;
}

Status Progress::check_lost(const Program& program) const {
  for (const Peer& peer : program.peers())
    if (const Status& lost = lost_[static_cast<std::size_t>(peer.rank)]; !lost.ok()) return lost;
  for (const Counter& counter : program.counters())
    if (const Status& lost = lost_[static_cast<std::size_t>(counter.peer)]; !lost.ok()) return lost;
  return {};
}

Status Progress::seen(const Program& program, const Status& told) const {
  if (told.code == Code::aborted) return {};  // on purpose
  Status lost = check_lost(program);
  return lost.rank == own_->rank() ? lost : Status();
}

Status Progress::check(const Program& program) const {
  if (Status status = check_lost(program); !status.ok()) return status;
  return links_.check(program);
}

}  // namespace ccl_lab
