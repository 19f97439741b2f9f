// Small schedules of one rank, written out by hand, for tests of programs, executors and engines.
//
// Is: columns as Python would lower them. Is not: a planner: sizes are bytes, and all blocks are equal.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/program.hpp"

namespace ccl_lab::check {

class Columns {
 public:
  struct Ref {
    Buffer buffer = Buffer::input;
    std::uint64_t offset = 0;
    std::int32_t rank = -1;  // -1: own
  };

  Columns(int rank, int n_ranks) : rank_(rank), n_ranks_(n_ranks) {}

  void put(int channel, int peer, Ref from, Ref to, std::uint64_t nbytes, int sig_channel) {
    add(Kind::put, channel, peer, sig_channel, 0, to, nbytes, {from});
  }
  void get(int channel, int peer, Ref from, Ref to, std::uint64_t nbytes) {
    from.rank = peer;
    add(Kind::get, channel, peer, -1, 0, to, nbytes, {from});
  }
  void signal(int channel, int peer, int sig_channel) { add(Kind::signal, channel, peer, sig_channel, 0, {}, 0, {}); }
  void wait(int channel, int peer, int sig_channel, std::int64_t value) {
    add(Kind::wait, channel, peer, sig_channel, value, {}, 0, {});
  }
  void flush(int channel, int peer = -1) { add(Kind::flush, channel, peer, -1, 0, {}, 0, {}); }
  void copy(int channel, Ref from, Ref to, std::uint64_t nbytes) { add(Kind::copy, channel, -1, -1, 0, to, nbytes, {from}); }
  void reduce(int channel, std::vector<Ref> from, Ref to, std::uint64_t nbytes) {
    add(Kind::reduce, channel, -1, -1, 0, to, nbytes, std::move(from));
  }

  // A partition that only reads `from`.
  void compute(int channel, int partition, std::vector<Ref> from = {}, std::uint64_t nbytes = 0) {
    add(Kind::compute, channel, -1, -1, 0, {}, nbytes, std::move(from));
    arg.back() = partition;
  }
  // A partition that produces the first of `from`; with the others added, that goes to `to`.
  void produce(int channel, int partition, std::vector<Ref> from, Ref to, std::uint64_t nbytes) {
    add(Kind::compute, channel, -1, -1, 1, to, nbytes, std::move(from));
    arg.back() = partition;
  }

  ProgramSpec spec() const {
    ProgramSpec s = scalars;
    s.op_id = op_id;
    s.kind = kind;
    s.channel = channel;
    s.peer = peer;
    s.sig_channel = sig_channel;
    s.value = value;
    s.dst_buf = dst_buf;
    s.dst_offset = dst_offset;
    s.nbytes = nbytes;
    s.src_begin = src_begin;
    s.src_count = src_count;
    s.nic = nic;
    s.peer_nic = nic;
    s.arg = arg;
    s.src_rank = src_rank;
    s.src_buf = src_buf;
    s.src_offset = src_offset;
    s.ready_to = ready_to;
    return s;
  }

  int rank() const { return rank_; }
  int n() const { return n_ranks_; }

  ProgramSpec scalars;
  std::vector<std::int32_t> op_id, channel, peer, sig_channel, src_begin, src_count, arg, src_rank, ready_to;
  std::vector<std::uint8_t> kind, dst_buf, src_buf;
  std::vector<std::int64_t> value;
  std::vector<std::uint64_t> dst_offset, nbytes, src_offset;
  std::vector<std::uint16_t> nic;

 private:
  void add(Kind what, int on, int with, int sig, std::int64_t until, Ref to, std::uint64_t bytes, std::vector<Ref> from) {
    op_id.push_back(rank_ * 1000 + static_cast<int>(op_id.size()));
    kind.push_back(static_cast<std::uint8_t>(what));
    channel.push_back(on);
    peer.push_back(with);
    sig_channel.push_back(sig);
    value.push_back(until);
    dst_buf.push_back(static_cast<std::uint8_t>(to.buffer));
    dst_offset.push_back(to.offset);
    nbytes.push_back(bytes);
    src_begin.push_back(static_cast<std::int32_t>(src_rank.size()));
    src_count.push_back(static_cast<std::int32_t>(from.size()));
    nic.push_back(0);
    arg.push_back(-1);
    for (const Ref& source : from) {
      src_rank.push_back(source.rank < 0 ? rank_ : source.rank);
      src_buf.push_back(static_cast<std::uint8_t>(source.buffer));
      src_offset.push_back(source.offset);
    }
  }

  int rank_;
  int n_ranks_;
};

// Ring: in n - 1 steps every block goes once around. One channel. keeps: with the copy of the rank's own block, or somebody else makes it.
inline Columns ring_all_gather(int rank, int n, std::uint64_t block, bool keeps = true) {
  Columns c(rank, n);
  c.scalars.collective = Collective::all_gather;
  c.scalars.count = block;
  c.scalars.bytes[0] = block;
  c.scalars.bytes[1] = block * static_cast<std::uint64_t>(n);
  const int next = (rank + 1) % n, before = (rank + n - 1) % n;
  const auto at = [&](int b) { return Columns::Ref{Buffer::output, block * static_cast<std::uint64_t>(b)}; };
  if (keeps) c.copy(0, {Buffer::input, 0}, at(rank), block);
  for (int step = 0; step + 1 < n; ++step) {
    const int b = (rank - step + n) % n;
    if (step > 0) c.wait(0, before, 0, step);
    c.put(0, next, at(b), at(b), block, 0);
  }
  if (n > 1) {
    c.wait(0, before, 0, n - 1);
    c.flush(0);
    c.ready_to = {before};
  }
  return c;
}

// Every rank gets its peers' inputs, says so, and stays until its peers have got its own.
inline Columns get_all_gather(int rank, int n, std::uint64_t block) {
  Columns c(rank, n);
  c.scalars.collective = Collective::all_gather;
  c.scalars.count = block;
  c.scalars.bytes[0] = block;
  c.scalars.bytes[1] = block * static_cast<std::uint64_t>(n);
  for (int p = 0; p < n; ++p) c.get(0, p, {Buffer::input, 0}, {Buffer::output, block * static_cast<std::uint64_t>(p)}, block);
  for (int p = 0; p < n; ++p) {
    if (p == rank) continue;
    c.signal(0, p, 0);
    c.ready_to.push_back(p);
  }
  for (int p = 0; p < n; ++p)
    if (p != rank) c.wait(0, p, 0, 1);
  return c;
}

// Direct all_reduce of n parts: channel 0 scatters, channel 1 reduces and spreads, after channel 0 has said so.
inline Columns direct_all_reduce(int rank, int n, std::uint64_t part, DType dtype, RedOp redop, bool load_store) {
  Columns c(rank, n);
  const auto total = part * static_cast<std::uint64_t>(n);
  c.scalars.collective = Collective::all_reduce;
  c.scalars.dtype = dtype;
  c.scalars.redop = redop;
  c.scalars.count = total / itemsize(dtype);
  c.scalars.bytes[0] = c.scalars.bytes[1] = total;
  c.scalars.bytes[2] = load_store ? 0 : total;
  c.scalars.output_elements = total / itemsize(dtype);
  c.scalars.n_ranks_avg = n;
  c.scalars.n_channels = 2;
  const auto slot = [&](int i) { return part * static_cast<std::uint64_t>(i); };
  std::vector<Columns::Ref> sources;
  for (int p = 0; p < n; ++p) {
    if (load_store) sources.push_back({Buffer::input, slot(rank), p});
    else if (p == rank) sources.push_back({Buffer::input, slot(rank)});
    else sources.push_back({Buffer::scratch, slot(p)});
    if (p == rank) continue;
    c.ready_to.push_back(p);
    if (load_store) continue;
    c.put(0, p, {Buffer::input, slot(p)}, {Buffer::scratch, slot(rank)}, part, 0);
    c.wait(0, p, 0, 1);
  }
  c.signal(0, rank, 1);
  c.wait(1, rank, 1, 1);
  c.reduce(1, sources, {Buffer::output, slot(rank)}, part);
  for (int p = 0; p < n; ++p)
    if (p != rank) c.put(1, p, {Buffer::output, slot(rank)}, {Buffer::output, slot(rank)}, part, 1);
  for (int p = 0; p < n; ++p)
    if (p != rank) c.wait(1, p, 1, 1);
  return c;
}

// matmul + reduce_scatter: block d of INPUT is computed for rank d and goes off at once; the own one comes last, and what the
// others sent is added to it in the same partition. Channel 0 computes, channel 1 moves bytes.
inline Columns matmul_reduce_scatter(int rank, int n, std::uint64_t block, DType dtype) {
  Columns c(rank, n);
  const auto size = static_cast<std::uint64_t>(n);
  c.scalars.collective = Collective::reduce_scatter;
  c.scalars.dtype = dtype;
  c.scalars.count = block / itemsize(dtype);
  c.scalars.bytes[0] = block * size;
  c.scalars.bytes[1] = block;
  c.scalars.bytes[2] = block * (size - 1);
  c.scalars.output_elements = block / itemsize(dtype);
  c.scalars.n_channels = 2;
  const auto at = [&](Buffer buffer, int b) { return Columns::Ref{buffer, block * static_cast<std::uint64_t>(b)}; };
  std::vector<Columns::Ref> sum = {at(Buffer::input, rank)};
  for (int s = 1; s < n; ++s) {
    const int to = (rank + s) % n;
    c.produce(0, to, {at(Buffer::input, to)}, at(Buffer::input, to), block);
    c.signal(0, rank, 0);
    c.wait(1, rank, 0, s);
    c.put(1, to, at(Buffer::input, to), at(Buffer::scratch, n - 1 - s), block, 1);
    c.ready_to.push_back(to);
    sum.push_back(at(Buffer::scratch, s - 1));
  }
  for (int s = 1; s < n; ++s) c.wait(0, (rank + s) % n, 1, 1);
  c.produce(0, rank, sum, {Buffer::output, 0}, block);
  c.flush(1);
  return c;
}

}  // namespace ccl_lab::check
