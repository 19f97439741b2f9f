// From checked columns to a Program; see program.hpp.
#include "exec/program.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace ccl_lab {

// Numbers channels, peers, counters and in-flight counts in the order of their first use.
class ProgramBuilder {
 public:
  ProgramBuilder(const ProgramSpec& spec, const Placement& placement) : spec_(spec), placement_(placement) {}

  Program build() {
    program_.rank_ = placement_.rank;
    program_.ready_channel_ = placement_.n_channels;
    program_.identity_ = {spec_.plan_hash, spec_.count, spec_.collective, spec_.dtype, spec_.redop};
    std::copy(std::begin(spec_.bytes), std::end(spec_.bytes), std::begin(program_.bytes_));
    program_.output_elements_ = spec_.output_elements;
    program_.n_ranks_avg_ = spec_.n_ranks_avg;
    program_.alias_ = spec_.alias;
    program_.alias_offset_ = spec_.alias_offset;
    add_ready_to();
    order_by_channel();
    std::size_t at = 0;
    for (std::size_t channel = 0; channel < n_channels(); ++channel) {
      flights_.clear();
      program_.flight_begin_.push_back(next_flight_);
      for (; at < program_.channel_begin_[channel + 1]; ++at) add_op(order_[at]);
    }
    program_.flight_begin_.push_back(next_flight_);
    mark_awaited();
    program_.writes_ = !program_.ready_to_.empty() || std::any_of(program_.ops_.begin(), program_.ops_.end(), writes_here);
    return std::move(program_);
  }

 private:
  std::size_t n_channels() const { return static_cast<std::size_t>(spec_.n_channels); }

  static bool writes_here(const Op& op) {
    const bool elsewhere = (op.kind == Kind::put || op.kind == Kind::signal) && op.slot >= 0;
    return !elsewhere && op.kind != Kind::wait && op.kind != Kind::flush;
  }

  // A rank needs no READY of itself, and one per peer.
  void add_ready_to() {
    auto& ready_to = program_.ready_to_;
    for (std::size_t i = 0; i < spec_.ready_to.size(); ++i) {
      if (spec_.ready_to[i] == placement_.rank) continue;
      ready_to.push_back({spec_.ready_to[i], spec_.ready_nic.empty() ? std::uint16_t{0} : spec_.ready_nic[i],
                          spec_.ready_peer_nic.empty() ? std::uint16_t{0} : spec_.ready_peer_nic[i]});
    }
    std::sort(ready_to.begin(), ready_to.end(), [](const ReadyTo& a, const ReadyTo& b) { return a.peer < b.peer; });
    const auto same = [](const ReadyTo& a, const ReadyTo& b) { return a.peer == b.peer; };
    ready_to.erase(std::unique(ready_to.begin(), ready_to.end(), same), ready_to.end());
  }

  void order_by_channel() {
    auto& begin = program_.channel_begin_;
    begin.assign(n_channels() + 1, 0);
    for (const std::int32_t channel : spec_.channel) ++begin[static_cast<std::size_t>(channel) + 1];
    for (std::size_t c = 0; c < n_channels(); ++c) begin[c + 1] += begin[c];
    std::vector<std::uint32_t> next(begin.begin(), begin.end() - 1);
    order_.resize(spec_.op_id.size());
    for (std::size_t i = 0; i < order_.size(); ++i)
      order_[next[static_cast<std::size_t>(spec_.channel[i])]++] = static_cast<std::uint32_t>(i);
    program_.ops_.reserve(order_.size());
  }

  std::int32_t slot_of(std::int32_t rank) {
    if (rank == placement_.rank) return -1;
    const auto [found, is_new] = slots_.try_emplace(rank, static_cast<std::int32_t>(program_.peers_.size()));
    if (is_new) {
      Peer peer;
      peer.rank = rank;
      program_.peers_.push_back(peer);
    }
    return found->second;
  }

  void touch(std::int32_t slot, std::uint8_t buffer, std::uint64_t end) {
    if (slot < 0) return;
    std::uint64_t& extent = program_.peers_[static_cast<std::size_t>(slot)].extent[buffer];
    extent = std::max(extent, end);
  }

  std::int32_t counter_of(std::int32_t peer, std::int32_t sig_channel, std::uint64_t value) {
    const auto [found, is_new] =
        counters_.try_emplace({peer, sig_channel}, static_cast<std::int32_t>(program_.counters_.size()));
    if (is_new) program_.counters_.push_back({peer, sig_channel, 0});
    Counter& counter = program_.counters_[static_cast<std::size_t>(found->second)];
    counter.total = std::max(counter.total, value);
    return found->second;
  }

  std::int32_t flight_of(std::int32_t peer) {
    const auto [found, is_new] = flights_.try_emplace(peer, static_cast<std::int32_t>(next_flight_));
    if (is_new) ++next_flight_;
    return found->second;
  }

  void add_sources(Op& op, std::size_t row) {
    op.src_begin = static_cast<std::uint32_t>(program_.sources_.size());
    op.src_count = static_cast<std::uint32_t>(spec_.src_count[row]);
    program_.max_sources_ = std::max(program_.max_sources_, op.src_count);
    for (std::size_t s = 0; s < op.src_count; ++s) {
      const std::size_t at = static_cast<std::size_t>(spec_.src_begin[row]) + s;
      Source source;
      source.slot = slot_of(spec_.src_rank[at]);
      source.buffer = static_cast<Buffer>(spec_.src_buf[at]);
      source.offset = spec_.src_offset[at];
      touch(source.slot, spec_.src_buf[at], source.offset + op.nbytes);
      if (source.slot >= 0 && op.kind != Kind::get)
        program_.peers_[static_cast<std::size_t>(source.slot)].load_store = true;
      program_.sources_.push_back(source);
    }
  }

  void add_op(std::size_t row) {
    Op op;
    op.kind = static_cast<Kind>(spec_.kind[row]);
    op.channel = static_cast<std::uint16_t>(spec_.channel[row]);
    op.op_id = spec_.op_id[row];
    op.peer = spec_.peer[row];
    op.nic = spec_.nic[row];
    op.peer_nic = spec_.peer_nic[row];
    const bool computes = op.kind == Kind::compute;
    const bool moves = op.kind == Kind::put || op.kind == Kind::get || op.kind == Kind::copy || op.kind == Kind::reduce;
    if (moves || (computes && spec_.src_count[row] > 0)) {
      op.dst_buffer = static_cast<Buffer>(spec_.dst_buf[row]);
      op.dst_offset = spec_.dst_offset[row];
      op.nbytes = spec_.nbytes[row];
      add_sources(op, row);
    }
    switch (op.kind) {
      case Kind::put:
      case Kind::signal:
        op.slot = slot_of(op.peer);
        op.sig_channel = spec_.sig_channel[row];
        op.flight = flight_of(op.peer);
        if (moves) touch(op.slot, spec_.dst_buf[row], op.dst_offset + op.nbytes);
        break;
      case Kind::get: op.slot = slot_of(op.peer); break;
      case Kind::wait:
        op.sig_channel = spec_.sig_channel[row];
        op.value = static_cast<std::uint64_t>(spec_.value[row]);
        op.counter = counter_of(op.peer, op.sig_channel, op.value);
        break;
      case Kind::flush:
        if (const auto found = flights_.find(op.peer); found != flights_.end()) op.flight = found->second;
        break;
      case Kind::compute:
        op.arg = spec_.arg[row];
        op.produces = spec_.value[row] != 0;
        program_.partitions_ = std::max(program_.partitions_, op.arg + 1);
        break;
      case Kind::copy:
      case Kind::reduce: break;
    }
    program_.ops_.push_back(op);
  }

  // Whose completion will be missed: others have time to be confirmed along with what goes the other way.
  void mark_awaited() {
    std::vector<std::uint8_t> later(program_.peers_.size());  // by slot: a put after this one goes there
    for (std::size_t c = 0; c + 1 < program_.channel_begin_.size(); ++c) {
      std::fill(later.begin(), later.end(), 0);
      for (std::size_t i = program_.channel_begin_[c + 1]; i-- > program_.channel_begin_[c];) {
        Op& op = program_.ops_[i];
        if (op.kind == Kind::flush) std::fill(later.begin(), later.end(), 0);
        if ((op.kind != Kind::put && op.kind != Kind::signal) || op.slot < 0) continue;
        op.awaited = std::exchange(later[static_cast<std::size_t>(op.slot)], 1) == 0;
      }
    }
  }

  const ProgramSpec& spec_;
  const Placement& placement_;
  Program program_;
  std::vector<std::uint32_t> order_;
  std::map<std::int32_t, std::int32_t> slots_;
  std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> counters_;
  std::map<std::int32_t, std::int32_t> flights_;
  std::uint32_t next_flight_ = 0;
};

Result<Program> Program::compile(const ProgramSpec& spec, const Placement& placement) {
  if (Status status = validate(spec, placement); !status.ok()) return status;
  return ProgramBuilder(spec, placement).build();
}

}  // namespace ccl_lab
