// From counts in memory to a program; see exchange.hpp.
#include "exec/exchange.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace ccl_lab {

// The columns of a program under way; they are kept, so that the next run takes no memory for them.
class Exchange::Rows {
 public:
  void clear() {
    for (auto* column : {&op_id, &channel, &peer, &sig_channel, &src_begin, &src_count, &arg, &src_rank}) column->clear();
    for (auto* column : {&dst_offset, &nbytes, &src_offset}) column->clear();
    for (auto* column : {&kind, &dst_buf, &src_buf}) column->clear();
    for (auto* column : {&nic, &peer_nic}) column->clear();
    value.clear();
  }

  // `signal`: the channel of the signal it raises or waits for; -1: none.
  void add(Kind what, std::int32_t at_channel, std::int32_t to, std::int32_t signal, std::uint16_t from_nic, std::uint16_t to_nic) {
    op_id.push_back(static_cast<std::int32_t>(op_id.size()));
    kind.push_back(static_cast<std::uint8_t>(what));
    channel.push_back(at_channel);
    peer.push_back(to);
    sig_channel.push_back(signal);
    value.push_back(what == Kind::wait ? 1 : 0);
    nic.push_back(from_nic);
    peer_nic.push_back(to_nic);
    arg.push_back(-1);
    src_begin.push_back(static_cast<std::int32_t>(src_rank.size()));
    src_count.push_back(0);
    dst_buf.push_back(0);
    dst_offset.push_back(0);
    nbytes.push_back(0);
  }

  // What the row added last moves.
  void moves(std::int32_t rank, Buffer from, std::uint64_t offset, Buffer to, std::uint64_t to_offset, std::uint64_t size) {
    src_count.back() = 1;
    src_rank.push_back(rank);
    src_buf.push_back(static_cast<std::uint8_t>(from));
    src_offset.push_back(offset);
    dst_buf.back() = static_cast<std::uint8_t>(to);
    dst_offset.back() = to_offset;
    nbytes.back() = size;
  }

  void fill(ProgramSpec& spec) const {
    spec.op_id = op_id;
    spec.kind = kind;
    spec.channel = channel;
    spec.peer = peer;
    spec.sig_channel = sig_channel;
    spec.value = value;
    spec.dst_buf = dst_buf;
    spec.dst_offset = dst_offset;
    spec.nbytes = nbytes;
    spec.src_begin = src_begin;
    spec.src_count = src_count;
    spec.nic = nic;
    spec.peer_nic = peer_nic;
    spec.arg = arg;
    spec.src_rank = src_rank;
    spec.src_buf = src_buf;
    spec.src_offset = src_offset;
  }

 private:
  std::vector<std::int32_t> op_id, channel, peer, sig_channel, src_begin, src_count, arg, src_rank;
  std::vector<std::int64_t> value;
  std::vector<std::uint64_t> dst_offset, nbytes, src_offset;
  std::vector<std::uint8_t> kind, dst_buf, src_buf;
  std::vector<std::uint16_t> nic, peer_nic;
};

Exchange::Exchange(ExchangeSpec spec, const Placement& placement)
    : spec_(std::move(spec)),
      rank_(placement.rank),
      n_ranks_(placement.n_ranks),
      n_channels_(placement.n_channels),
      load_store_(placement.load_store.begin(), placement.load_store.end()),
      rows_(std::make_shared<Rows>()) {}

Status Exchange::refuse(Code code, const std::string& what) const {
  return Status(code, "all_to_allv_dynamic on rank " + std::to_string(rank_) + ": " + what, rank_);
}

Result<std::shared_ptr<Exchange>> Exchange::create(ExchangeSpec spec, const Placement& placement) {
  constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 44;
  constexpr std::uint32_t kMostSplits = 1u << 24;
  auto made = std::shared_ptr<Exchange>(new Exchange(std::move(spec), placement));
  const ExchangeSpec& its = made->spec_;
  const auto own = std::find(its.group.begin(), its.group.end(), placement.rank);
  if (own == its.group.end()) return made->refuse(Code::usage, "this rank is not in the group");
  if (its.nic.size() != its.group.size() || its.peer_nic.size() != its.group.size())
    return made->refuse(Code::usage, "expected NICs for " + std::to_string(its.group.size()) + " ranks");
  for (const std::int32_t rank : its.group)
    if (rank < 0 || rank >= placement.n_ranks || std::count(its.group.begin(), its.group.end(), rank) != 1)
      return made->refuse(Code::usage, "rank " + std::to_string(rank) + " of the group is not one of " +
                                           std::to_string(placement.n_ranks) + ", or named twice");
  if (its.row_bytes < 1 || its.n_splits < 1 || its.capacity_bytes > kMostBytes || its.n_splits > kMostSplits)
    return made->refuse(Code::usage, "expected rows of at least 1 byte, at most 2^44 bytes for a rank, and 1 to 2^24 splits");
  made->own_ = static_cast<std::size_t>(own - its.group.begin());
  Result<Program> program = made->skeleton();
  if (!program.ok()) return program.status();
  made->program_ = std::move(program).value();
  return made;
}

namespace {

ProgramSpec spec_of(const ExchangeSpec& its, std::uint64_t input_bytes, std::uint64_t output_bytes, std::uint64_t scratch_bytes, int n_channels) {
  ProgramSpec spec;
  spec.collective = Collective::all_to_allv;
  spec.dtype = its.dtype;
  spec.plan_hash = its.plan_hash;
  spec.count = its.capacity_bytes;
  spec.bytes[static_cast<std::size_t>(Buffer::input)] = input_bytes;
  spec.bytes[static_cast<std::size_t>(Buffer::output)] = output_bytes;
  spec.bytes[static_cast<std::size_t>(Buffer::scratch)] = scratch_bytes;
  spec.n_channels = std::min<std::int32_t>(n_channels, static_cast<std::int32_t>(std::max<std::size_t>(its.group.size(), 1)));
  return spec;
}

}  // namespace

Result<Program> Exchange::skeleton() const {
  Rows rows;
  for (std::size_t place = 0; place < places(); ++place) {
    if (place == own_) continue;
    rows.add(Kind::signal, 0, spec_.group[place], signal_channel(), spec_.nic[place], spec_.peer_nic[place]);
    rows.add(Kind::wait, 0, spec_.group[place], signal_channel(), 0, 0);
  }
  ProgramSpec spec = spec_of(spec_, 0, output_bytes(), scratch_bytes(), n_channels_);
  rows.fill(spec);
  spec.ready_to = spec_.group;
  spec.ready_nic = spec_.nic;
  spec.ready_peer_nic = spec_.peer_nic;
  return Program::compile(spec, {rank_, n_ranks_, n_channels_, load_store_});
}

Status Exchange::read_lengths(const Counts& counts) {
  const Integers& lengths = counts.lengths;
  if (lengths.count != spec_.n_splits)
    return refuse(Code::shape, std::to_string(lengths.count) + " split lengths, expected " + std::to_string(spec_.n_splits));
  const std::uint64_t rows = counts.input_bytes / spec_.row_bytes;
  lengths_.resize(std::size_t{spec_.n_splits} + 2);
  begins_.resize(std::size_t{spec_.n_splits} + 1);
  std::uint64_t at = 0;
  for (std::size_t i = 0; i < spec_.n_splits; ++i) {
    const std::int64_t length = lengths.at(i);
    begins_[i] = at * spec_.row_bytes;
    if (length < 0 || static_cast<std::uint64_t>(length) > rows - at)
      return refuse(Code::shape, "split " + std::to_string(i) + " has length " + std::to_string(length) + ", and the send buffer has " +
                                     std::to_string(rows - at) + " of its " + std::to_string(rows) + " rows left for it");
    lengths_[i + 1] = length;
    at += static_cast<std::uint64_t>(length);
  }
  begins_.back() = at * spec_.row_bytes;
  return {};
}

// The pieces of the send buffer for one rank; splits that lie one behind the other are one piece.
Status Exchange::read_block(const Counts& counts, std::size_t place, std::uint64_t& next_id) {
  pieces_.clear();
  bytes_ = 0;
  const std::int64_t n = counts.blocks.at(place);
  if (n < 0 || static_cast<std::uint64_t>(n) > counts.ids.count - next_id)
    return refuse(Code::shape, "block " + std::to_string(place) + " has " + std::to_string(n) + " split ids, and " +
                                   std::to_string(counts.ids.count - next_id) + " of " + std::to_string(counts.ids.count) + " are left");
  for (const std::uint64_t end = next_id + static_cast<std::uint64_t>(n); next_id < end; ++next_id) {
    const std::int64_t id = counts.ids.at(next_id);
    if (id < 0 || id >= static_cast<std::int64_t>(spec_.n_splits))
      return refuse(Code::usage, "split id " + std::to_string(id) + " at position " + std::to_string(next_id) + ": expected 0 to " +
                                     std::to_string(static_cast<std::int64_t>(spec_.n_splits) - 1));
    const std::uint64_t begin = begins_[static_cast<std::size_t>(id)];
    const std::uint64_t nbytes = begins_[static_cast<std::size_t>(id) + 1] - begin;
    if (nbytes == 0) continue;
    bytes_ += nbytes;
    if (bytes_ > spec_.capacity_bytes)
      return refuse(Code::shape, "more than " + std::to_string(spec_.capacity_bytes / spec_.row_bytes) + " rows for rank " +
                                     std::to_string(spec_.group[place]) + ", which is what its receive buffer has room for; raise the capacity");
    if (!pieces_.empty() && pieces_.back().offset + pieces_.back().nbytes == begin) pieces_.back().nbytes += nbytes;
    else pieces_.push_back({begin, nbytes});
  }
  return {};
}

// Puts the pieces behind each other into the staging of `place`; long ones are left to the executor, in slices.
void Exchange::gather(std::size_t place, std::int32_t channel, const Binding& binding, Rows& rows) const {
  std::uint64_t at = staging(place) + header_bytes();
  for (const Piece& piece : pieces_) {
    if (piece.nbytes < kGatherBytes) {
      std::memcpy(binding.base[static_cast<std::size_t>(Buffer::scratch)] + at,
                  binding.base[static_cast<std::size_t>(Buffer::input)] + piece.offset, piece.nbytes);
    } else {
      rows.add(Kind::copy, channel, -1, -1, 0, 0);
      rows.moves(rank_, Buffer::input, piece.offset, Buffer::scratch, at, piece.nbytes);
    }
    at += piece.nbytes;
  }
}

// What stays here needs no way.
void Exchange::keep(std::size_t place, const Binding& binding, Rows& rows) {
  write_header(binding.base[static_cast<std::size_t>(lengths_buffer())] + lengths_offset(place));
  std::uint64_t at = data_offset(place);
  for (const Piece& piece : pieces_) {
    rows.add(Kind::copy, 0, -1, -1, 0, 0);
    rows.moves(rank_, Buffer::input, piece.offset, Buffer::output, at, piece.nbytes);
    at += piece.nbytes;
  }
}

void Exchange::write_header(std::byte* to) {
  lengths_.back() = static_cast<std::int64_t>(bytes_ / spec_.row_bytes);
  std::memcpy(to, lengths_.data(), lengths_bytes());
}

void Exchange::send(std::size_t place, const Binding& binding, bool registered, Rows& rows) {
  const std::int32_t peer = spec_.group[place];
  const std::size_t turn = (place + places() - own_) % places();
  const auto channel = static_cast<std::int32_t>(turn % static_cast<std::size_t>(n_channels_));
  const auto put = [&](bool signals, Buffer from, std::uint64_t offset, Buffer to, std::uint64_t to_offset, std::uint64_t nbytes) {
    rows.add(Kind::put, channel, peer, signals ? signal_channel() : -1, spec_.nic[place], spec_.peer_nic[place]);
    rows.moves(rank_, from, offset, to, to_offset, nbytes);
  };
  const std::uint64_t staged = staging(place) + header_bytes();
  write_header(binding.base[static_cast<std::size_t>(Buffer::scratch)] + staging(place));
  // Where what is put into the peer lies: this rank's place there.
  const std::uint64_t header_there = lengths_offset(own_), data_there = data_offset(own_);
  if (spec_.interleaved && bytes_ > 0 && bytes_ <= kSmallBytes) {
    gather(place, channel, binding, rows);
    put(true, Buffer::scratch, staging(place), Buffer::output, header_there, header_bytes() + bytes_);
  } else {
    put(bytes_ == 0, Buffer::scratch, staging(place), lengths_buffer(), header_there, lengths_bytes());
    if (bytes_ > 0 && registered && pieces_.size() <= kPieces) {
      std::uint64_t at = data_there;
      for (std::size_t i = 0; i < pieces_.size(); ++i) {
        put(i + 1 == pieces_.size(), Buffer::input, pieces_[i].offset, Buffer::output, at, pieces_[i].nbytes);
        at += pieces_[i].nbytes;
      }
    } else if (bytes_ > 0) {
      gather(place, channel, binding, rows);
      put(true, Buffer::scratch, staged, Buffer::output, data_there, bytes_);
    }
  }
  rows.add(Kind::wait, channel, peer, signal_channel(), 0, 0);
}

Status Exchange::begin(const Counts& counts, const Binding& binding, bool registered, bool handles) {
  if (counts.blocks.count != places())
    return refuse(Code::shape, std::to_string(counts.blocks.count) + " block lengths, expected one for each of " +
                                   std::to_string(places()) + " ranks");
  if (Status status = read_lengths(counts); !status.ok()) return status;
  lengths_.front() = static_cast<std::int64_t>(counts.tag);
  rows_->clear();
  std::uint64_t next_id = 0;
  for (std::size_t place = 0; place < places(); ++place) {
    if (Status status = read_block(counts, place, next_id); !status.ok()) return status;
    if (place == own_) keep(place, binding, *rows_);
    else send(place, binding, registered, *rows_);
  }
  ProgramSpec spec = spec_of(spec_, counts.input_bytes, output_bytes(), scratch_bytes(), n_channels_);
  rows_->fill(spec);
  if (!handles) {
    spec.ready_to = spec_.group;
    spec.ready_nic = spec_.nic;
    spec.ready_peer_nic = spec_.peer_nic;
  }
  Result<Program> program = Program::compile(spec, {rank_, n_ranks_, n_channels_, load_store_});
  if (!program.ok()) return program.status();
  program_ = std::move(program).value();
  return {};
}

}  // namespace ccl_lab
