// An all_to_all whose sizes are known only when it starts (all_to_allv_dynamic; NCCLX, arXiv 2510.20171).
//
// Is: the maker of one rank's program for an exchange. What goes to whom stands in memory that somebody else writes, a router
//     say; begin() reads it when the collective's turn has come, and not when it was posted. Once more run and once more read.
// Is not: a way to run it: the program is one like any other, for the executor. Not aware of threads.
//
//   send buffer    [split 0][split 1]...      split i: lengths[i] rows, one behind the other
//   ids, blocks    the first blocks[0] ids name the splits that the first rank of the group gets, in that order, and so on;
//                  a split may go to several ranks, or several times to one, or to nobody
//   at receiver    rank p of the group has a place of its own: [tag, lengths of p, rows sent here][rows, packed][what was there before]
//
// Invariants
//  - Everything that begin() read has been checked before a byte is moved: lengths against the send buffer, ids against the
//    number of splits, what goes to a rank against the room it has there.
//  - Every rank of the group sends every other one exactly one signal in each run, though it may have no bytes for it: who
//    has them all knows that all have started.
//  - Where the places of the peers are known (handles), no READY is sent: turns of memory keep runs apart (see KnownPeer), and the
//    tag says to the receiver which run it was. The signal has a channel that schedules do not use unless they use all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.hpp"
#include "exec/executor.hpp"
#include "exec/program.hpp"

namespace ccl_lab {

// What is the same in every run; equal on all ranks of the group but for the paths.
struct ExchangeSpec {
  std::uint64_t plan_hash = 0;
  DType dtype = DType::uint8;                  // for errors: bytes are moved as they are
  std::uint64_t row_bytes = 1;                 // what lengths count
  std::uint64_t capacity_bytes = 0;            // what one rank may send another in a run
  std::uint32_t n_splits = 0;
  std::vector<std::int32_t> group;             // ranks; this one among them
  std::vector<std::uint16_t> nic, peer_nic;    // by place in the group: the way there
  bool interleaved = false;                    // at the receiver, lengths lie before the bytes they belong to
};

// A number of 4 or 8 bytes, signed, at each place.
struct Integers {
  const void* data = nullptr;
  std::uint64_t count = 0;
  bool wide = true;
  std::int64_t at(std::uint64_t i) const {
    return wide ? static_cast<const std::int64_t*>(data)[i] : static_cast<const std::int32_t*>(data)[i];
  }
};

// Where the router writes; read by begin().
struct Counts {
  Integers lengths, ids, blocks;
  std::uint64_t input_bytes = 0;  // of the send buffer
  std::uint64_t tag = 0;           // of the run, the same on all ranks; travels with the lengths
};

class Exchange {
 public:
  static constexpr std::uint64_t kSmallBytes = 8192;   // up to here one put carries lengths and bytes
  static constexpr std::uint64_t kGatherBytes = 16384;  // shorter pieces are gathered at once, longer ones in slices
  static constexpr std::size_t kPieces = 8;            // more of them for one rank are gathered, not put one by one

  static Result<std::shared_ptr<Exchange>> create(ExchangeSpec spec, const Placement& placement);

  // Bytes that the receive buffer and SCRATCH must have.
  std::uint64_t output_bytes() const { return places() * output_stride(); }
  std::uint64_t scratch_bytes() const { return staging(places()); }
  // Where the part of the rank at `place` begins in the receive buffer, and its lengths where they lie.
  std::uint64_t data_offset(std::size_t place) const { return place * output_stride() + (spec_.interleaved ? header_bytes() : 0); }
  std::uint64_t lengths_offset(std::size_t place) const {
    return place * (spec_.interleaved ? output_stride() : header_bytes());
  }
  Buffer lengths_buffer() const { return spec_.interleaved ? Buffer::output : Buffer::scratch; }
  const ExchangeSpec& spec() const { return spec_; }

  // A program that uses every way this exchange uses, with nothing to send.
  Result<Program> skeleton() const;
  // Reads `counts` and makes the program of this run. `registered`: the send buffer is memory that transports may read.
  Status begin(const Counts& counts, const Binding& binding, bool registered, bool handles);
  // Of the last begin() that was ok.
  const Program& program() const { return program_; }

 private:
  struct Piece {
    std::uint64_t offset = 0;
    std::uint64_t nbytes = 0;
  };
  class Rows;

  Exchange(ExchangeSpec spec, const Placement& placement);
  std::uint64_t places() const { return spec_.group.size(); }
  std::int32_t signal_channel() const { return n_channels_ - 1; }
  std::uint64_t lengths_bytes() const { return 8 * (std::uint64_t{spec_.n_splits} + 2); }
  std::uint64_t header_bytes() const { return (lengths_bytes() + 63) / 64 * 64; }
  std::uint64_t output_stride() const {
    return spec_.interleaved ? header_bytes() + (spec_.capacity_bytes + 63) / 64 * 64 : spec_.capacity_bytes;
  }
  // In SCRATCH: the lengths of all ranks, unless interleaved; then, by rank, what is sent: lengths, and room to gather bytes.
  std::uint64_t staging(std::size_t place) const {
    return (spec_.interleaved ? 0 : places()) * header_bytes() + place * (header_bytes() + spec_.capacity_bytes);
  }
  void write_header(std::byte* to);

  Status refuse(Code code, const std::string& what) const;
  Status read_lengths(const Counts& counts);
  Status read_block(const Counts& counts, std::size_t place, std::uint64_t& next_id);
  void send(std::size_t place, const Binding& binding, bool registered, Rows& rows);
  void keep(std::size_t place, const Binding& binding, Rows& rows);
  void gather(std::size_t place, std::int32_t channel, const Binding& binding, Rows& rows) const;

  ExchangeSpec spec_;
  int rank_ = 0, n_ranks_ = 1, n_channels_ = 1;
  std::vector<std::uint8_t> load_store_;
  std::size_t own_ = 0;                       // this rank's place
  std::vector<std::int64_t> lengths_;         // as they are sent: tag, lengths, and the rows for the rank at hand
  std::vector<std::uint64_t> begins_;         // by split, in bytes of the send buffer; one more at the end
  std::vector<Piece> pieces_;                 // of the rank at hand
  std::uint64_t bytes_ = 0;
  std::shared_ptr<Rows> rows_;
  Program program_;
};

}  // namespace ccl_lab
