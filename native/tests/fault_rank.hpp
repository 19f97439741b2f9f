// One rank of the fault simulation: the shipped executor and rails over a virtual network.
//
// Is: what comm does for a rank (poll, advance, perform), on the network's clock, with local work that may take time.
// Is not: a thread, or a judge: FaultSim checks.
#pragma once

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "exec/executor.hpp"
#include "fault/rails.hpp"
#include "fault/virtual_messenger.hpp"
#include "fault_plans.hpp"
#include "reduce/reduce.hpp"
#include "transport/virtual/virtual.hpp"

namespace ccl_lab::check {

inline constexpr int kSimChannels = 16;                   // signal channels; the one after them is READY
inline constexpr std::uint64_t kSimBufferBytes = 96 * 1024;

class SimRank {
 public:
  SimRank(VirtualNetwork& network, int rank, int n, const RailOptions& options, std::int64_t job_ns)
      : counters_(static_cast<std::size_t>(n) * (kSimChannels + 1)),
        ready_(static_cast<std::size_t>(n) * kReadyDepth),
        memory_(kBufferCount * kSimBufferBytes),
        load_store_(static_cast<std::size_t>(n), 0),
        network_(network),
        signals_(counters_.data(), n, kSimChannels + 1, kSimChannels + 1),
        transport(network, rank, signals_),
        messenger_(network, rank),
        rails(rank, transport, messenger_, signals_, nullptr, options),
        baselines_(n, kSimChannels + 1),
        rank_(rank),
        n_(n),
        job_ns_(job_ns) {
    transport.set_receiver(&watcher_);
    auto* const ready = reinterpret_cast<std::byte*>(ready_.data());
    refused_ = transport.register_region(kControlRegionKey, ready, ready_.size() * sizeof(ReadySlot));
    if (refused_.ok()) refused_ = transport.register_region(kArenaRegionKey, memory_.data(), memory_.size());
  }

  std::int32_t* elements(Buffer b) {
    return reinterpret_cast<std::int32_t*>(memory_.data() + static_cast<std::size_t>(b) * kSimBufferBytes);
  }

  Status start(const Plan& plan) {
    if (!refused_.ok()) return refused_;
    const Columns columns = plan.columns(rank_);
    Placement placement;
    placement.rank = rank_;
    placement.n_ranks = n_;
    placement.n_channels = kSimChannels;
    placement.load_store = load_store_;
    Result<Program> made = Program::compile(columns.spec(), placement);
    if (!made.ok()) return made.status();
    program_ = std::make_unique<Program>(std::move(made).value());
    Binding binding;
    for (std::size_t b = 0; b < kBufferCount; ++b) {
      binding.base[b] = memory_.data() + b * kSimBufferBytes;
      binding.key[b] = kArenaRegionKey;
      binding.offset[b] = b * kSimBufferBytes;
    }
    std::int32_t* const in = elements(Buffer::input);
    for (std::uint64_t i = 0; i < plan.input_elements(); ++i) in[i] = plan.input(rank_, i);
    // What no collective writes here has to stay.
    std::memset(static_cast<void*>(elements(Buffer::output)), 0xee, kSimBufferBytes);
    executor.start(*program_, binding, baselines_);
    return {};
  }

  // Empty: the result is exact, and nothing beyond it was touched.
  std::string check(const Plan& plan) {
    const std::int32_t* const out = elements(Buffer::output);
    for (std::uint64_t i = 0; i < plan.output_elements(); ++i) {
      const std::int32_t want = plan.output(rank_, i);
      if (out[i] != want)
        return std::string(kPlanNames[static_cast<std::size_t>(plan.shape().kind)]) + " on rank " + std::to_string(rank_) + ": element " +
               std::to_string(i) + " is " + std::to_string(out[i]) + ", expected " + std::to_string(want);
    }
    std::int32_t untouched;
    std::memset(&untouched, 0xee, 4);
    for (std::uint64_t i = plan.output_elements(); i < kSimBufferBytes / 4; ++i)
      if (out[i] != untouched) return "rank " + std::to_string(rank_) + ": element " + std::to_string(i) + " after the output was written";
    return {};
  }

  // One step; returns how many things it did.
  int step(std::int64_t now_ns) {
    int did = rails.poll(now_ns, completions_, failures_);
    for (LinkEvent& failure : failures_) {
      if (first_failure.ok()) first_failure = failure.status;
      if (executor.active() && executor.needs(failure.peer, inbox())) executor.fail(std::move(failure.status));
    }
    did += static_cast<int>(failures_.size());
    failures_.clear();
    std::vector<Completion> batch = std::exchange(completions_, {});
    std::size_t at = 0;
    do {
      const std::size_t n = std::min(Executor::kMaxCompletions, batch.size() - at);
      executor.advance(now_ns, std::span<const Completion>(batch).subspan(at, n), inbox());
      at += n;
      did += static_cast<int>(executor.posts().size());
      for (const Post& post : executor.posts()) perform(post);
    } while (executor.active() && (executor.more() || at < batch.size()));
    return did;
  }

  std::int64_t wake_ns(std::int64_t now_ns) const {
    std::int64_t wake = kNever;
    std::vector<pollfd> none;
    rails.wait_set(none, wake);
    return completions_.empty() ? wake : now_ns;
  }

  Inbox inbox() const { return {signals_, ready_}; }
  std::uint64_t counter(int source, int channel) const { return signals_.value(source, channel); }

  // Told of what landed, after the rails: whether its signal is up, or waits for something earlier.
  std::function<void(const Path&, const Notice&, bool published)> on_landed;

 private:
  class Watcher final : public Receiver {
   public:
    explicit Watcher(SimRank& rank) : rank_(rank) {}
    void landed(const Path& path, const Notice& notice) override {
      const std::uint64_t before = notice.signal < 0 ? 0 : rank_.counter(path.peer, notice.signal);
      rank_.rails.landed(path, notice);
      const bool published = notice.signal < 0 || rank_.counter(path.peer, notice.signal) > before;
      if (rank_.on_landed) rank_.on_landed(path, notice, published);
    }

   private:
    SimRank& rank_;
  };

  void perform(const Post& post) {
    Status status;
    switch (post.kind) {
      case PostKind::ready: status = rails.put(executor.ready_put_of(post)); break;
      case PostKind::put: status = rails.put(executor.put_of(post)); break;
      case PostKind::get: status = rails.get(executor.get_of(post)); break;
      case PostKind::copy:
      case PostKind::reduce: return local(post);
      case PostKind::compute:
      case PostKind::divide: break;
      case PostKind::ended:
      case PostKind::waited_ready: return;
    }
    if (!status.ok()) completions_.push_back({post.cookie, std::move(status)});
    else if (post.kind == PostKind::compute || post.kind == PostKind::divide) completions_.push_back({post.cookie, {}});
  }

  // Its bytes are read and written when it ends.
  void local(const Post& post) {
    const Op op = executor.op(post);
    const auto act = [this, op, cookie = post.cookie, of = program_.get()] {
      if (of != program_.get()) return;
      std::vector<const std::byte*> sources;
      for (const Source& source : program_->sources(op)) sources.push_back(executor.own(source.buffer, source.offset));
      std::byte* const to = executor.own(op.dst_buffer, op.dst_offset);
      if (op.kind == Kind::reduce) reduce(DType::int32, RedOp::sum, to, sources.data(), sources.size(), op.nbytes / 4);
      else std::memmove(to, sources.front(), op.nbytes);
      completions_.push_back({cookie, {}});
      if (on_local) on_local();
    };
    if (job_ns_ == 0) act();
    else network_.after(network_.random().between(0, job_ns_), act);
  }

  std::vector<std::atomic<std::uint64_t>> counters_;
  std::vector<ReadySlot> ready_;
  std::vector<std::byte> memory_;
  std::vector<std::uint8_t> load_store_;
  VirtualNetwork& network_;
  SignalTable signals_;

 public:
  VirtualTransport transport;

 private:
  VirtualMessenger messenger_;
  Watcher watcher_{*this};

 public:
  Rails rails;
  Executor executor;
  Status first_failure;
  std::function<void()> on_local;  // a local job ended: this rank wants a step

 private:
  Baselines baselines_;
  std::unique_ptr<Program> program_;
  std::vector<Completion> completions_;
  std::vector<LinkEvent> failures_;
  const int rank_;
  const int n_;
  const std::int64_t job_ns_;
  Status refused_;
};

}  // namespace ccl_lab::check
