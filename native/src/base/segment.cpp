// Creation, validation and mapping of a rank's shared memory; see segment.hpp.
#include "base/segment.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

namespace ccl_lab {

namespace {

constexpr char kMagic[8] = {'C', 'C', 'L', 'L', 'A', 'B', '\0', '\1'};
constexpr std::uint64_t kArenaAlignment = std::uint64_t{1} << 21;  // so that the kernel may use huge pages

// Older headers lack the word.
#if defined(MADV_COLLAPSE)
constexpr int kCollapse = MADV_COLLAPSE;
#else
constexpr int kCollapse = 25;
#endif
// Where no huge page is to be had, the kernel looks long for one: not for each of many.
constexpr std::uint64_t kCollapsedAtOnce = std::uint64_t{16} << 20;

constexpr std::uint64_t align_up(std::uint64_t value, std::uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

std::uint64_t row_stride(std::uint64_t n_signal_channels) {
  return align_up(n_signal_channels * sizeof(std::uint64_t), 64) / sizeof(std::uint64_t);
}

// Bounds that keep all the sums below far from overflow.
Status check_sizes(const SegmentHeader& h) {
  const auto refuse = [&](const char* what, std::uint64_t found, const char* expected) {
    return Status(Code::config, std::string("shared memory of rank ") + std::to_string(h.rank) + ": " + what + " is " +
                                    std::to_string(found) + ", expected " + expected, h.rank);
  };
  if (h.n_ranks < 1 || h.n_ranks > 1 << 20) return refuse("n_ranks", static_cast<std::uint32_t>(h.n_ranks), "1 to 2^20");
  if (h.rank < 0 || h.rank >= h.n_ranks) return refuse("rank", static_cast<std::uint32_t>(h.rank), "0 to n_ranks - 1");
  if (h.n_signal_channels < 1 || h.n_signal_channels > 4096)
    return refuse("n_signal_channels", h.n_signal_channels, "1 to 4096");
  if (h.n_nics > 4096) return refuse("n_nics", h.n_nics, "0 to 4096");
  if (!std::has_single_bit(h.trace_spans) || h.trace_spans > 1u << 26)
    return refuse("trace_spans", h.trace_spans, "a power of two up to 2^26");
  if (h.board_bytes > std::uint64_t{1} << 36) return refuse("board_bytes", h.board_bytes, "at most 2^36");
  if (h.arena_bytes > std::uint64_t{1} << 46) return refuse("arena_bytes", h.arena_bytes, "at most 2^46");
  return {};
}

void lay_out(SegmentHeader& h) {
  std::uint64_t offset = align_up(sizeof(SegmentHeader), 64);
  const auto place = [&](std::uint64_t& at, std::uint64_t& bytes, std::uint64_t size) {
    at = offset;
    bytes = size;
    offset = align_up(offset + size, 64);
  };
  const auto ranks = static_cast<std::uint64_t>(h.n_ranks);
  place(h.control_offset, h.control_bytes, sizeof(Control));
  place(h.signals_offset, h.signals_bytes, ranks * row_stride(h.n_signal_channels) * sizeof(std::uint64_t));
  place(h.ready_offset, h.ready_bytes, ranks * kReadyDepth * sizeof(ReadySlot));
  place(h.regions_offset, h.regions_bytes, kRegionSlots * sizeof(RegionSlot));
  place(h.shapers_offset, h.shapers_bytes, h.n_nics * sizeof(NicShaper));
  place(h.faults_offset, h.faults_bytes, h.n_nics * sizeof(NicFaults));
  place(h.trace_offset, h.trace_bytes, kSpanRingHeaderBytes + h.trace_spans * kSpanBytes);
  offset = align_up(offset, 4096);
  place(h.board_offset, h.board_bytes, h.board_bytes);
  offset = align_up(offset, kArenaAlignment);
  place(h.arena_offset, h.arena_bytes, align_up(h.arena_bytes, 4096));
  h.total_bytes = offset;
}

Status system_error(Code code, const std::string& what, int rank, const char* advice) {
  return Status(code, what + ": " + std::strerror(errno) + "; " + advice, rank);
}

// Where each rank's segment lies in a process: at a place of its own modulo 2^28. AMD's way predictor of the first-level
// cache looks at a hash of address bits 12 to 27, so streaming through two buffers that are equal there costs 2.5 to 7
// times (bench/kernels.cpp). Multiples of 2 MiB, so that the kernel may use huge pages.
constexpr std::uint64_t kPredictorPeriod = std::uint64_t{1} << 28;
constexpr std::uint64_t kPlacePerRank = std::uint64_t{1} << 21;

Result<std::byte*> map(int fd, std::uint64_t bytes, int rank) {
  const std::uint64_t reserved_bytes = bytes + kPredictorPeriod;
  void* const reserved = ::mmap(nullptr, reserved_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved != MAP_FAILED) {
    const auto first = reinterpret_cast<std::uint64_t>(reserved);
    const std::uint64_t place = static_cast<std::uint64_t>(rank) * kPlacePerRank % kPredictorPeriod;
    const std::uint64_t base = first + (kPredictorPeriod + place - first % kPredictorPeriod) % kPredictorPeriod;
    if (base > first) ::munmap(reserved, base - first);
    const std::uint64_t end = align_up(base + bytes, 4096);
    if (end < first + reserved_bytes) ::munmap(reinterpret_cast<void*>(end), first + reserved_bytes - end);
    void* const memory = ::mmap(reinterpret_cast<void*>(base), bytes, PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, 0);
    if (memory != MAP_FAILED) return static_cast<std::byte*>(memory);
    ::munmap(reinterpret_cast<void*>(base), end - base);
  }
  return system_error(Code::registration,
                      "cannot map the shared memory of rank " + std::to_string(rank) + " (" + std::to_string(bytes) + " bytes)",
                      rank, "try a higher `ulimit -v` or a smaller arena");
}

}  // namespace

RankSegment::RankSegment(RankSegment&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      base_(std::exchange(other.base_, nullptr)),
      header_(other.header_),
      doorbell_(std::move(other.doorbell_)) {}

RankSegment& RankSegment::operator=(RankSegment&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(base_, other.base_);
  std::swap(header_, other.header_);
  std::swap(doorbell_, other.doorbell_);
  return *this;
}

RankSegment::~RankSegment() {
  if (base_ != nullptr) ::munmap(base_, header_.total_bytes);
  if (fd_ >= 0) ::close(fd_);
}

Result<RankSegment> RankSegment::create(int rank, int n_ranks, const SegmentOptions& options) {
  SegmentHeader header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.version = kSegmentVersion;
  header.rank = rank;
  header.n_ranks = n_ranks;
  header.n_signal_channels = static_cast<std::uint32_t>(options.n_signal_channels);
  header.n_nics = static_cast<std::uint32_t>(options.n_nics);
  header.trace_spans = options.trace_spans;
  header.board_bytes = options.board_bytes;
  header.arena_bytes = options.arena_bytes;
  header.pid = ::getpid();
  if (Status status = check_sizes(header); !status.ok()) return status;
  lay_out(header);

  RankSegment segment;
  segment.header_ = header;
  segment.fd_ = ::memfd_create("ccl_lab", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (segment.fd_ < 0)
    return system_error(Code::registration, "cannot create the shared memory of rank " + std::to_string(rank), rank,
                        "memfd_create needs Linux 3.17 and a free descriptor (`ulimit -n`)");
  if (::ftruncate(segment.fd_, static_cast<off_t>(header.total_bytes)) != 0 ||
      ::fcntl(segment.fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return system_error(Code::registration,
                        "cannot give the shared memory of rank " + std::to_string(rank) + " its size of " +
                            std::to_string(header.total_bytes) + " bytes",
                        rank, "try a higher `ulimit -f` or a smaller arena");
  Result<std::byte*> base = map(segment.fd_, header.total_bytes, rank);
  if (!base.ok()) return base.status();
  segment.base_ = *base;
  Result<Doorbell> bell = Doorbell::create(&segment.control().sleeping);
  if (!bell.ok()) return bell.status();
  segment.doorbell_ = std::move(bell).value();
  segment.header_.doorbell_fd = segment.doorbell_.fd();
  segment.header_.doorbell_inode = segment.doorbell_.inode();
  for (NicShaper& nic : segment.shapers()) nic.up.store(1, std::memory_order_relaxed);
  std::memcpy(segment.base_, &segment.header_, sizeof header);
  return segment;
}

Result<RankSegment> RankSegment::open(int pid, int fd) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
  RankSegment segment;
  segment.fd_ = ::open(path, O_RDWR | O_CLOEXEC);
  if (segment.fd_ < 0)
    return system_error(Code::connect, std::string("cannot open the shared memory ") + path, -1,
                        "expected a running process of the same user and pid namespace");
  const auto refuse = [&](const std::string& why) {
    return Status(Code::connect, std::string(path) + " is not the shared memory of a rank: " + why +
                                     "; it was probably made by another version or the process ended");
  };
  struct stat info {};
  SegmentHeader found{};
  if (::fstat(segment.fd_, &info) != 0 || !S_ISREG(info.st_mode) ||
      ::pread(segment.fd_, &found, sizeof found, 0) != static_cast<ssize_t>(sizeof found))
    return refuse("it is not a file with a header");
  if (std::memcmp(found.magic, kMagic, sizeof kMagic) != 0) return refuse("its first 8 bytes differ");
  if (found.version != kSegmentVersion)
    return refuse("its version is " + std::to_string(found.version) + ", expected " + std::to_string(kSegmentVersion));
  if (Status status = check_sizes(found); !status.ok()) return refuse(status.message);
  SegmentHeader expected = found;
  lay_out(expected);
  if (std::memcmp(&expected, &found, sizeof found) != 0) return refuse("its offsets do not follow from its sizes");
  if (static_cast<std::uint64_t>(info.st_size) < expected.total_bytes)
    return refuse("it has " + std::to_string(info.st_size) + " bytes, expected " + std::to_string(expected.total_bytes));
  const int seals = ::fcntl(segment.fd_, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return refuse("it can shrink");
  segment.header_ = expected;
  Result<std::byte*> base = map(segment.fd_, expected.total_bytes, expected.rank);
  if (!base.ok()) return base.status();
  segment.base_ = *base;
  ::close(std::exchange(segment.fd_, -1));  // the mapping stays; a rank has many peers and few descriptors
  Result<Doorbell> bell =
      Doorbell::open(pid, expected.doorbell_fd, expected.doorbell_inode, &segment.control().sleeping);
  if (!bell.ok()) return bell.status();
  segment.doorbell_ = std::move(bell).value();
  return segment;
}

SignalTable RankSegment::signals() const {
  return SignalTable(part<std::atomic<std::uint64_t>>(header_.signals_offset), header_.n_ranks,
                     static_cast<int>(header_.n_signal_channels), row_stride(header_.n_signal_channels));
}

std::span<ReadySlot> RankSegment::ready_slots() const {
  return {part<ReadySlot>(header_.ready_offset), static_cast<std::size_t>(header_.n_ranks) * kReadyDepth};
}

std::span<RegionSlot> RankSegment::region_slots() const {
  return {part<RegionSlot>(header_.regions_offset), kRegionSlots};
}

std::span<NicShaper> RankSegment::shapers() const {
  return {part<NicShaper>(header_.shapers_offset), header_.n_nics};
}

std::span<NicFaults> RankSegment::faults() const {
  return {part<NicFaults>(header_.faults_offset), header_.n_nics};
}

std::span<std::byte> RankSegment::region(std::uint32_t key) const {
  if (key == kControlRegionKey) return {base_ + header_.ready_offset, header_.ready_bytes};
  if (key == kArenaRegionKey) return {arena(), header_.arena_bytes};
  return {};
}

Status RankSegment::release(std::uint64_t offset, std::uint64_t nbytes) const {
  if (fd_ < 0) return Status(Code::usage, "only rank " + std::to_string(rank()) + " itself gives back its memory", rank());
  if (offset > header_.arena_bytes || nbytes > header_.arena_bytes - offset)
    return Status(Code::bounds, "release of arena bytes [" + std::to_string(offset) + ", +" + std::to_string(nbytes) +
                                    ") of rank " + std::to_string(rank()) + ": the arena has " +
                                    std::to_string(header_.arena_bytes), rank());
  if (nbytes == 0) return {};
  if (::fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(header_.arena_offset + offset),
                  static_cast<off_t>(nbytes)) != 0)
    return system_error(Code::registration, "cannot give back arena memory of rank " + std::to_string(rank()), rank(),
                        "the memory stays in use until the rank ends");
  return {};
}

// Shared memory gets huge pages of itself only where shmem_enabled says so, which as a rule it does not; to this advice the kernel listens
// all the same. It wants a page to be there in each.
std::uint64_t RankSegment::make_huge(std::uint64_t offset, std::uint64_t nbytes) const {
  if (fd_ < 0 || offset > header_.arena_bytes || nbytes > header_.arena_bytes - offset) return 0;
  const std::uint64_t begin = align_up(offset, kArenaAlignment);
  const std::uint64_t end = (offset + nbytes) / kArenaAlignment * kArenaAlignment;
  std::uint64_t done = begin;
  for (std::uint64_t size = kArenaAlignment; done < end; done += size, size = std::min(kCollapsedAtOnce, end - done)) {
    for (std::uint64_t at = done; at < done + size; at += kArenaAlignment) static_cast<void>(*static_cast<volatile std::byte*>(arena() + at));
    if (::madvise(arena() + done, size, kCollapse) != 0) break;
  }
  return done > begin ? done - begin : 0;
}

bool RankSegment::abort(Code code, std::string_view reason, int culprit, int nic) const {
  Control& shared = control();
  if (code == Code::ok) code = Code::aborted;
  std::uint32_t unclaimed = 0;
  const bool first = shared.abort_claim.compare_exchange_strong(unclaimed, 1, std::memory_order_acq_rel);
  std::uint32_t no_code = 0;
  if (first) {
    const std::size_t n = std::min(reason.size(), kAbortReasonBytes - 1);
    std::memcpy(shared.abort_reason, reason.data(), n);
    shared.abort_reason[n] = '\0';
    shared.culprit = culprit;
    shared.culprit_nic = nic;
    shared.abort_epoch.fetch_add(1, std::memory_order_acq_rel);
    shared.abort_code.compare_exchange_strong(no_code, static_cast<std::uint32_t>(code), std::memory_order_acq_rel);
  } else {
    // Whoever claimed first may have been killed before it published: then this call publishes, so that abort is certain.
    for (int i = 0; i < 1000 && !aborted(); ++i) ::sched_yield();
    shared.abort_code.compare_exchange_strong(no_code, static_cast<std::uint32_t>(code), std::memory_order_acq_rel);
  }
  doorbell_.ring();
  return first;
}

Status RankSegment::abort_status() const {
  const Control& shared = control();
  const std::uint32_t code = shared.abort_code.load(std::memory_order_acquire);
  if (code == 0) return {};
  char reason[kAbortReasonBytes];
  std::memcpy(reason, shared.abort_reason, sizeof reason);
  reason[sizeof reason - 1] = '\0';
  const Code known = code <= static_cast<std::uint32_t>(Code::internal) ? static_cast<Code>(code) : Code::aborted;
  return Status(known, reason, shared.culprit, shared.culprit_nic);
}

void RankSegment::clear_abort() const {
  Control& shared = control();
  shared.abort_code.store(0, std::memory_order_release);
  shared.abort_reason[0] = '\0';
  shared.culprit = shared.culprit_nic = -1;
  shared.abort_claim.store(0, std::memory_order_release);
}

}  // namespace ccl_lab
