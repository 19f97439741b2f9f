// The runs around the current one; see runs.hpp and progress.hpp.
#include "comm/progress.hpp"

namespace ccl_lab {

// The next work need not wait until all that this one has put is confirmed.
void Progress::set_aside() {
  if (current() == nullptr || queue_.empty() || stopped_ || !runs_.may_drain(*queue_.front())) return;
  runs_.now().executor.drain();
  runs_.set_aside();
}

// Peers may begin works that follow, as far as they concern this rank's memory.
void Progress::announce() {
  while (!stopped_ && runs_.n_announced() < queue_.size()) {
    const std::shared_ptr<Work>& next = queue_[runs_.n_announced()];
    if (!runs_.may_announce(*next) || !check_lost(next->program()).ok()) return;
    Run& run = runs_.announce(next);
    run.executor.announce(next->program(), next->binding(), baselines_);
    advance(run);
  }
}

// Those that are over, and those whose turn has not come.
int Progress::drive_others() {
  int did = 0;
  for (std::size_t i = 0; i < runs_.n_draining(); ++i) {
    Run& run = runs_.draining(i);
    did += advance(run);
    if (!run.executor.failed() && now_ns_ >= run.work->deadline_ns()) run.executor.fail(deadline_passed(run));
    if (!run.executor.failed()) continue;
    const Status reason = run.executor.status();
    stop(reason);
    return did + 1;
  }
  for (std::size_t i = 0; i < runs_.n_announced(); ++i) did += advance(runs_.announced(i));
  const std::uint64_t before = n_news_;
  end_drained();
  return did + static_cast<int>(n_news_ - before);
}

void Progress::end_drained() {
  while (std::shared_ptr<Work> work = runs_.take_drained()) {
    record_end(*work, Status());
    if (current() == nullptr) set_state(EngineState::idle);
    end(std::move(work), Status());
  }
}

void Progress::stop_draining(const Status& reason) {
  while (runs_.n_draining() > 0) {
    Run& run = runs_.draining(0);
    run.executor.fail(reason);
    hold(*run.work);
    record_end(*run.work, reason);
    end(runs_.take_draining(), reason);
  }
}

}  // namespace ccl_lab
