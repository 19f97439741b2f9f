// The gate between columns from outside and a Program.
//
// Is: every check that needs only this rank's columns. Is not: the verifier: races, deadlocks and wrong results pass.
//
// Invariants
//  - After validate() is ok, every index that program.cpp or the executor forms is in range and no sum overflows.
#include <string>

#include "exec/program.hpp"

namespace ccl_lab {

namespace {

constexpr std::int32_t kMaxPartitions = 1 << 24;  // tables of durations have an entry each

std::string range_text(std::uint64_t offset, std::uint64_t nbytes) {
  return "[" + std::to_string(offset) + ", +" + std::to_string(nbytes) + ")";
}

// One op row under check.
class Row {
 public:
  Row(const ProgramSpec& spec, const Placement& placement, std::size_t index)
      : spec_(spec), placement_(placement), i_(index) {}

  Status check() const {
    if (spec_.kind[i_] >= kKindCount) return refuse(Code::usage, "kind " + std::to_string(spec_.kind[i_]) + " is not known");
    if (spec_.channel[i_] < 0 || spec_.channel[i_] >= spec_.n_channels)
      return refuse(Code::bounds, "channel " + std::to_string(spec_.channel[i_]) + " is outside 0.." +
                                      std::to_string(spec_.n_channels - 1));
    if (Status status = check_peer(); !status.ok()) return status;
    if (Status status = check_signal(); !status.ok()) return status;
    if (Status status = check_source_list(); !status.ok()) return status;
    if (Status status = check_computation(); !status.ok()) return status;
    if (!moves_bytes() && !computes()) return {};
    if (Status status = writes() ? check_destination() : Status(); !status.ok()) return status;
    for (std::size_t s = first_source(); s < end_source(); ++s)
      if (Status status = check_source(s); !status.ok()) return status;
    return {};
  }

 private:
  Kind kind() const { return static_cast<Kind>(spec_.kind[i_]); }
  bool moves_bytes() const {
    return kind() == Kind::put || kind() == Kind::get || kind() == Kind::copy || kind() == Kind::reduce;
  }
  bool computes() const { return kind() == Kind::compute; }
  bool writes() const { return moves_bytes() || spec_.value[i_] != 0; }
  std::size_t first_source() const { return static_cast<std::size_t>(spec_.src_begin[i_]); }
  std::size_t end_source() const { return first_source() + static_cast<std::size_t>(spec_.src_count[i_]); }

  Status refuse(Code code, const std::string& what) const {
    const std::string name = spec_.kind[i_] < kKindCount ? std::string(" (") + kKindNames[spec_.kind[i_]] + ")" : "";
    return Status(code, "rank " + std::to_string(placement_.rank) + ", op " + std::to_string(spec_.op_id[i_]) + name +
                            ": " + what, placement_.rank, -1, spec_.op_id[i_]);
  }

  Status check_computation() const {
    if (!computes()) return {};
    if (spec_.arg[i_] < 0 || spec_.arg[i_] >= kMaxPartitions)
      return refuse(Code::bounds, "partition " + std::to_string(spec_.arg[i_]) + " is outside 0.." +
                                      std::to_string(kMaxPartitions - 1));
    if (spec_.value[i_] != 0 && spec_.value[i_] != 1)
      return refuse(Code::usage, "value is " + std::to_string(spec_.value[i_]) + ", expected 1 (it produces) or 0 (it reads)");
    if (spec_.value[i_] == 1 && spec_.src_buf[first_source()] != static_cast<std::uint8_t>(Buffer::input))
      return refuse(Code::usage, "produces bytes of another buffer than INPUT");
    return {};
  }

  Status check_peer() const {
    const std::int32_t peer = spec_.peer[i_];
    const bool needed = kind() == Kind::put || kind() == Kind::get || kind() == Kind::signal || kind() == Kind::wait;
    const std::int32_t lowest = needed ? 0 : -1;
    if (peer >= lowest && peer < placement_.n_ranks) return {};
    return refuse(Code::bounds, "peer " + std::to_string(peer) + " is outside " + std::to_string(lowest) + ".." +
                                    std::to_string(placement_.n_ranks - 1));
  }

  Status check_signal() const {
    const std::int32_t channel = spec_.sig_channel[i_];
    const bool needed = kind() == Kind::signal || kind() == Kind::wait;
    if (kind() != Kind::put && !needed) return {};
    if (channel < (needed ? 0 : -1) || channel >= placement_.n_channels)
      return refuse(Code::bounds, "signal channel " + std::to_string(channel) + " is outside " + (needed ? "0" : "-1") +
                                      ".." + std::to_string(placement_.n_channels - 1));
    if (kind() == Kind::wait && (spec_.value[i_] < 0 || spec_.value[i_] > INT32_MAX))
      return refuse(Code::bounds, "waits for value " + std::to_string(spec_.value[i_]) + ", expected 0 to 2^31 - 1");
    return {};
  }

  Status check_source_list() const {
    const std::int64_t begin = spec_.src_begin[i_];
    const std::int64_t n = spec_.src_count[i_];
    const bool one = kind() == Kind::put || kind() == Kind::get || kind() == Kind::copy;
    if (!moves_bytes() && !computes()) return {};
    if (begin < 0 || n < (writes() ? 1 : 0) || begin + n > static_cast<std::int64_t>(spec_.src_rank.size()))
      return refuse(Code::bounds, "sources " + range_text(static_cast<std::uint64_t>(begin), static_cast<std::uint64_t>(n)) +
                                      " of a table of " + std::to_string(spec_.src_rank.size()));
    if (one && n != 1) return refuse(Code::usage, "has " + std::to_string(n) + " sources, expected 1");
    return {};
  }

  Status check_range(const char* what, std::uint8_t buffer, std::uint64_t offset, bool own) const {
    const std::uint64_t nbytes = spec_.nbytes[i_];
    if (buffer >= kBufferCount)
      return refuse(Code::bounds, std::string(what) + " buffer " + std::to_string(buffer) + " is not known");
    // A peer's sizes come with its READY; here only the sum must not overflow.
    const std::uint64_t size = own ? spec_.bytes[buffer] : std::uint64_t{1} << 62;
    if (offset <= size && nbytes <= size - offset) return {};
    return refuse(Code::bounds, std::string(what) + " bytes " + range_text(offset, nbytes) + " of " +
                                    kBufferNames[buffer] + ", which has " + std::to_string(size));
  }

  Status check_destination() const {
    const bool own = kind() != Kind::put || spec_.peer[i_] == placement_.rank;
    if (Status status = check_range("destination", spec_.dst_buf[i_], spec_.dst_offset[i_], own); !status.ok())
      return status;
    if ((kind() == Kind::reduce || computes()) && spec_.nbytes[i_] % itemsize(spec_.dtype) != 0)
      return refuse(Code::shape, std::to_string(spec_.nbytes[i_]) + " bytes are no whole number of " +
                                     kDTypeNames[static_cast<std::size_t>(spec_.dtype)]);
    return {};
  }

  Status check_source(std::size_t s) const {
    const std::int32_t owner = spec_.src_rank[s];
    const bool own = owner == placement_.rank;
    if (owner < 0 || owner >= placement_.n_ranks)
      return refuse(Code::bounds, "source rank " + std::to_string(owner) + " is outside 0.." +
                                      std::to_string(placement_.n_ranks - 1));
    if (kind() == Kind::put && !own) return refuse(Code::usage, "puts bytes of rank " + std::to_string(owner));
    if (kind() == Kind::get && owner != spec_.peer[i_])
      return refuse(Code::usage, "gets from rank " + std::to_string(spec_.peer[i_]) + " bytes of rank " +
                                     std::to_string(owner));
    if (computes() && !own) return refuse(Code::usage, "computes on bytes of rank " + std::to_string(owner));
    const bool local = kind() == Kind::copy || kind() == Kind::reduce;
    if (local && !own && !placement_.load_store[static_cast<std::size_t>(owner)])
      return refuse(Code::unsupported, "reads memory of rank " + std::to_string(owner) +
                                           ", which is not attached to this process; use get, or a schedule whose copies "
                                           "and reductions stay inside a node");
    if (Status status = check_range("source", spec_.src_buf[s], spec_.src_offset[s], own); !status.ok()) return status;
    return own && writes() ? check_overlap(s) : Status();
  }

  struct Place {
    std::uint8_t memory;
    std::uint64_t offset;
  };
  Place place(std::uint8_t buffer, std::uint64_t offset) const {
    if (spec_.alias == Alias::input_in_output && buffer == 0) return {1, offset + spec_.alias_offset};
    if (spec_.alias == Alias::output_in_input && buffer == 1) return {0, offset + spec_.alias_offset};
    return {buffer, offset};
  }

  Status check_overlap(std::size_t s) const {
    if (kind() == Kind::put && spec_.peer[i_] != placement_.rank) return {};
    const Place to = place(spec_.dst_buf[i_], spec_.dst_offset[i_]);
    const Place from = place(spec_.src_buf[s], spec_.src_offset[s]);
    const std::uint64_t nbytes = spec_.nbytes[i_];
    if (to.memory != from.memory || to.offset == from.offset) return {};
    if (to.offset + nbytes <= from.offset || from.offset + nbytes <= to.offset) return {};
    return refuse(Code::bounds, "source bytes " + range_text(from.offset, nbytes) + " overlap destination bytes " +
                                    range_text(to.offset, nbytes) + " of the same buffer in part");
  }

  const ProgramSpec& spec_;
  const Placement& placement_;
  std::size_t i_;
};

Status check_columns(const ProgramSpec& spec) {
  const std::size_t n = spec.op_id.size();
  const struct {
    const char* name;
    std::size_t size;
  } columns[] = {
      {"kind", spec.kind.size()},           {"channel", spec.channel.size()},     {"peer", spec.peer.size()},
      {"sig_channel", spec.sig_channel.size()}, {"value", spec.value.size()},     {"dst_buf", spec.dst_buf.size()},
      {"dst_offset", spec.dst_offset.size()}, {"nbytes", spec.nbytes.size()},     {"src_begin", spec.src_begin.size()},
      {"src_count", spec.src_count.size()}, {"nic", spec.nic.size()},             {"peer_nic", spec.peer_nic.size()},
      {"arg", spec.arg.size()},
  };
  for (const auto& column : columns)
    if (column.size != n)
      return Status(Code::usage, std::string("op column ") + column.name + " has " + std::to_string(column.size) +
                                     " rows, op_id has " + std::to_string(n));
  if (n > Program::kMaxOps) return Status(Code::usage, "a program has at most 2^30 ops, this has " + std::to_string(n));
  if (spec.src_buf.size() != spec.src_rank.size() || spec.src_offset.size() != spec.src_rank.size())
    return Status(Code::usage, "source columns src_rank, src_buf, src_offset have " + std::to_string(spec.src_rank.size()) +
                                   ", " + std::to_string(spec.src_buf.size()) + ", " +
                                   std::to_string(spec.src_offset.size()) + " rows, expected the same");
  return {};
}

Status check_alias(const ProgramSpec& spec) {
  if (spec.alias > Alias::output_in_input)
    return Status(Code::usage, "alias is " + std::to_string(static_cast<int>(spec.alias)) + ", expected 0, 1 or 2");
  if (spec.alias == Alias::none) return {};
  const bool input_inside = spec.alias == Alias::input_in_output;
  const std::uint64_t outer = spec.bytes[input_inside ? 1 : 0];
  const std::uint64_t inner = spec.bytes[input_inside ? 0 : 1];
  if (inner <= outer && spec.alias_offset <= outer - inner) return {};
  return Status(Code::bounds, "in place: " + std::to_string(inner) + " bytes at offset " +
                                  std::to_string(spec.alias_offset) + " do not fit in " + std::to_string(outer));
}

Status check_scalars(const ProgramSpec& spec, const Placement& placement) {
  if (static_cast<std::size_t>(spec.collective) >= kCollectiveCount)
    return Status(Code::usage, "collective number " + std::to_string(static_cast<int>(spec.collective)) + " is not known");
  if (static_cast<std::size_t>(spec.dtype) >= kDTypeCount)
    return Status(Code::dtype, "element type number " + std::to_string(static_cast<int>(spec.dtype)) + " is not known");
  if (static_cast<std::size_t>(spec.redop) >= kRedOpCount)
    return Status(Code::dtype, "reduction number " + std::to_string(static_cast<int>(spec.redop)) + " is not known");
  if (spec.n_channels < 1 || spec.n_channels > placement.n_channels)
    return Status(Code::usage, "the program has " + std::to_string(spec.n_channels) + " channels, the engine has " +
                                   std::to_string(placement.n_channels) + "; raise n_channels of the engine");
  for (const std::uint64_t bytes : spec.bytes)
    if (bytes > std::uint64_t{1} << 62) return Status(Code::bounds, "a buffer has " + std::to_string(bytes) + " bytes");
  if (spec.n_ranks_avg < 1)
    return Status(Code::usage, "n_ranks_avg is " + std::to_string(spec.n_ranks_avg) + ", expected >= 1");
  if (spec.output_elements > spec.bytes[1] / itemsize(spec.dtype))
    return Status(Code::bounds, "output_elements is " + std::to_string(spec.output_elements) + ", the output has " +
                                    std::to_string(spec.bytes[1]) + " bytes");
  for (const std::size_t nics : {spec.ready_nic.size(), spec.ready_peer_nic.size()})
    if (nics != 0 && nics != spec.ready_to.size())
      return Status(Code::usage, "ready_to has " + std::to_string(spec.ready_to.size()) + " ranks, its NICs " +
                                     std::to_string(nics) + " entries; expected one per rank");
  for (const std::int32_t peer : spec.ready_to)
    if (peer < 0 || peer >= placement.n_ranks)
      return Status(Code::bounds, "ready_to names rank " + std::to_string(peer) + " of " + std::to_string(placement.n_ranks));
  return {};
}

}  // namespace

Status validate(const ProgramSpec& spec, const Placement& placement) {
  if (Status status = check_columns(spec); !status.ok()) return status;
  if (Status status = check_scalars(spec, placement); !status.ok()) return status;
  if (Status status = check_alias(spec); !status.ok()) return status;
  for (std::size_t i = 0; i < spec.op_id.size(); ++i)
    if (Status status = Row(spec, placement, i).check(); !status.ok()) return status;
  return {};
}

}  // namespace ccl_lab
