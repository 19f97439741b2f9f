// Creation and mapping of a page; see page.hpp.
#include "device/page.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace ccl_lab::device {

namespace {

constexpr char kMagic[8] = {'C', 'C', 'L', 'G', 'P', 'U', '\0', '\1'};
constexpr std::uint64_t kPageBytes = 4096;

constexpr std::uint64_t align_up(std::uint64_t value, std::uint64_t alignment) { return (value + alignment - 1) / alignment * alignment; }

void lay_out(PageHeader& h) {
  const auto ranks = static_cast<std::uint64_t>(h.n_ranks);
  std::uint64_t at = align_up(sizeof(PageHeader), 64);
  const auto place = [&](std::uint64_t& offset, std::uint64_t bytes) {
    offset = at;
    at = align_up(at + bytes, 64);
  };
  place(h.card_offset, sizeof(DeviceCard));
  place(h.taken_offset, ranks * sizeof(std::uint64_t));
  place(h.calls_offset, ranks * kCalls * sizeof(Call));
  place(h.allocations_offset, kAllocations * sizeof(Allocation));
  place(h.parts_offset, kParts * sizeof(Part));
  h.flags_offset = align_up(at, kPageBytes);
  h.flags_bytes = align_up(kBanks * (ranks + 1) * (static_cast<std::uint64_t>(h.n_signals) + 1) * sizeof(std::uint64_t), kPageBytes);
  h.total_bytes = h.flags_offset + h.flags_bytes;
}

Status failed(Code code, const std::string& what, int rank) { return Status(code, what + ": " + std::strerror(errno), rank); }

bool plausible(const PageHeader& h) {
  return std::memcmp(h.magic, kMagic, sizeof kMagic) == 0 && h.version == kPageVersion && h.n_ranks >= 1 && h.n_ranks <= 4096 &&
         h.rank >= 0 && h.rank < h.n_ranks && h.n_signals >= 1 && h.n_signals <= 4096;
}

Result<std::byte*> map(int fd, const PageHeader& header) {
  void* const memory = ::mmap(nullptr, header.total_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED)
    return failed(Code::registration, "cannot map the device page of rank " + std::to_string(header.rank), header.rank);
  return static_cast<std::byte*>(memory);
}

}  // namespace

Result<std::shared_ptr<Page>> Page::create(int rank, int n_ranks, int n_signals) {
  auto page = std::shared_ptr<Page>(new Page);
  PageHeader& header = page->header_;
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.version = kPageVersion;
  header.rank = rank;
  header.n_ranks = n_ranks;
  header.n_signals = n_signals;
  header.pid = ::getpid();
  if (!plausible(header))
    return Status(Code::config, "device page of rank " + std::to_string(rank) + " among " + std::to_string(n_ranks) + " ranks with " +
                                    std::to_string(n_signals) + " signal channels: expected up to 4096 of each", rank);
  lay_out(header);
  page->fd_ = ::memfd_create("ccl_lab_device", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  const std::string what = "cannot create the device page of rank " + std::to_string(rank);
  if (page->fd_ < 0 || ::ftruncate(page->fd_, static_cast<off_t>(header.total_bytes)) != 0 ||
      ::fcntl(page->fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return failed(Code::registration, what, rank);
  Result<std::byte*> base = map(page->fd_, header);
  if (!base.ok()) return base.status();
  page->base_ = *base;
  std::memcpy(page->base_, &header, sizeof header);
  return page;
}

Result<std::shared_ptr<Page>> Page::open(int pid, int fd) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
  auto page = std::shared_ptr<Page>(new Page);
  page->fd_ = ::open(path, O_RDWR | O_CLOEXEC);
  if (page->fd_ < 0) return failed(Code::connect, std::string("cannot open the device page ") + path + " (a running process of this user?)", -1);
  PageHeader& header = page->header_;
  struct stat info {};
  if (::fstat(page->fd_, &info) != 0 || ::pread(page->fd_, &header, sizeof header, 0) != static_cast<ssize_t>(sizeof header) ||
      !plausible(header))
    return Status(Code::connect, std::string(path) + " is not the device page of a rank of this version");
  lay_out(header);
  if (static_cast<std::uint64_t>(info.st_size) < header.total_bytes)
    return Status(Code::connect, std::string(path) + " is shorter than a device page");
  Result<std::byte*> base = map(page->fd_, header);
  if (!base.ok()) return base.status();
  page->base_ = *base;
  return page;
}

Page::~Page() {
  if (base_ != nullptr) ::munmap(base_, header_.total_bytes);
  if (fd_ >= 0) ::close(fd_);
}

void Page::set_waited(std::uint64_t value) const {
  for (std::size_t bank = 0; bank < kBanks; ++bank)
    for (std::uint64_t index = row(bank, 0); index < row(bank, n_ranks()); ++index) flag(index).store(value, std::memory_order_release);
}

void Page::clear() const {
  std::memset(base_ + header_.card_offset, 0, header_.total_bytes - header_.card_offset);
}

}  // namespace ccl_lab::device
