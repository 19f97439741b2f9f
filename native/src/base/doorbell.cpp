// The pipe behind a doorbell; see doorbell.hpp.
#include "base/doorbell.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

namespace ccl_lab {

namespace {

// A descriptor of the same pipe that can be read and written: with a reader always present, no write raises SIGPIPE.
int reopen(const char* path) { return ::open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC); }

}  // namespace

Doorbell::Doorbell(Doorbell&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), inode_(other.inode_), sleeping_(other.sleeping_) {}

Doorbell& Doorbell::operator=(Doorbell&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(inode_, other.inode_);
  std::swap(sleeping_, other.sleeping_);
  return *this;
}

Doorbell::~Doorbell() {
  if (fd_ >= 0) ::close(fd_);
}

Result<Doorbell> Doorbell::create(std::atomic<std::uint32_t>* sleeping) {
  int ends[2];
  if (::pipe2(ends, O_NONBLOCK | O_CLOEXEC) != 0)
    return Status(Code::registration, std::string("cannot create the doorbell pipe of this rank: pipe2: ") +
                                          std::strerror(errno) + "; try a higher `ulimit -n`");
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", ends[0]);
  const int both = reopen(path);
  const int error = errno;
  ::close(ends[0]);
  ::close(ends[1]);
  struct stat info {};
  if (both < 0 || ::fstat(both, &info) != 0)
    return Status(Code::registration, std::string("cannot open ") + path + " for the doorbell of this rank: " +
                                          std::strerror(error) + "; is /proc mounted?");
  ::fcntl(both, F_SETPIPE_SZ, 4096);  // one byte is enough; the system counts pages of pipes per user
  Doorbell bell;
  bell.fd_ = both;
  bell.inode_ = static_cast<std::uint64_t>(info.st_ino);
  bell.sleeping_ = sleeping;
  return bell;
}

Result<Doorbell> Doorbell::open(int pid, int fd, std::uint64_t inode, std::atomic<std::uint32_t>* sleeping) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
  Doorbell bell;
  bell.fd_ = reopen(path);
  if (bell.fd_ < 0)
    return Status(Code::connect, std::string("cannot open the doorbell ") + path + ": " + std::strerror(errno) +
                                     "; expected a running process of the same user and pid namespace");
  struct stat info {};
  if (::fstat(bell.fd_, &info) != 0 || !S_ISFIFO(info.st_mode) || static_cast<std::uint64_t>(info.st_ino) != inode)
    return Status(Code::connect, std::string(path) + " is not the doorbell that process published (expected pipe inode " +
                                     std::to_string(inode) + ", found inode " + std::to_string(info.st_ino) +
                                     "); it probably ended, start the ranks again");
  bell.inode_ = inode;
  bell.sleeping_ = sleeping;
  return bell;
}

bool Doorbell::ring() const {
  if (sleeping_->exchange(0, std::memory_order_acq_rel) == 0) return false;
  const char byte = 1;
  while (::write(fd_, &byte, 1) < 0 && errno == EINTR) {
  }
  return true;
}

void Doorbell::finish_sleep() const {
  sleeping_->store(0, std::memory_order_release);
  char bytes[256];
  for (;;) {
    const ssize_t n = ::read(fd_, bytes, sizeof bytes);
    if (n == static_cast<ssize_t>(sizeof bytes)) continue;
    if (n < 0 && errno == EINTR) continue;
    return;
  }
}

}  // namespace ccl_lab
