// Looks at maps, page map and block headers; see plain_memory.hpp.
#include "comm/plain_memory.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>

namespace ccl_lab {

namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kPresent = std::uint64_t{1} << 63;
constexpr std::uint64_t kSwapped = std::uint64_t{1} << 62;
constexpr std::uint64_t kFileOrShared = std::uint64_t{1} << 61;
// The flags that glibc keeps in the low bits of a block's size.
constexpr std::uint64_t kMmapped = 2;
constexpr std::uint64_t kOfThreadArena = 4;

int page_map() {
  static const int fd = ::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  return fd;
}

bool shared_in(int fd, const void* page) {
  std::uint64_t entry = 0;
  const auto index = static_cast<off_t>(reinterpret_cast<std::uintptr_t>(page) / kPage * sizeof entry);
  if (::pread(fd, &entry, sizeof entry, index) != static_cast<ssize_t>(sizeof entry)) return false;
  return (entry & (kPresent | kSwapped)) != 0 && (entry & kFileOrShared) != 0;
}

// The C library's own malloc, not one that was put in its place.
bool is_glibc_malloc() {
#if defined(__GLIBC__)
  Dl_info info{};
  void* const found = ::dlsym(RTLD_DEFAULT, "malloc");
  if (found == nullptr || ::dladdr(found, &info) == 0 || info.dli_fname == nullptr) return false;
  return std::string_view(info.dli_fname).find("/libc.so") != std::string_view::npos ||
         std::string_view(info.dli_fname).find("/libc-") != std::string_view::npos;
#else
  return false;
#endif
}

struct Area {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  bool heap = false;
};

// The private, writable, anonymous area that holds the range; end 0: there is none.
Area area_of(std::uintptr_t first, std::uintptr_t last) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> maps(std::fopen("/proc/self/maps", "re"), &std::fclose);
  char line[512];
  while (maps != nullptr && std::fgets(line, sizeof line, maps.get()) != nullptr) {
    Area area;
    char permissions[8] = {};
    std::uint64_t inode = 0;
    int path_at = 0;
    if (std::sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %7s %*s %*s %" SCNu64 " %n", &area.begin, &area.end, permissions, &inode,
                    &path_at) < 4)
      continue;
    if (area.end <= first) continue;
    if (area.begin > first || area.end < last || inode != 0 || std::strcmp(permissions, "rw-p") != 0) return {};
    const std::string_view path(line + path_at);
    area.heap = path.substr(0, 6) == "[heap]";
    const bool nameless = path.empty() || path == "\n" || path.substr(0, 6) == "[anon:";
    return area.heap || nameless ? area : Area{};
  }
  return {};
}

// What glibc keeps before a block.
constexpr std::uint64_t kHeaderBytes = 16;
struct Header {
  std::uint64_t before = 0;  // of a mapped block: unused bytes before it
  std::uint64_t block = 0;   // size; 0: there is no header
  bool mmapped = false;
  bool of_thread_arena = false;
};

// Through the kernel, which does not mind where there is nothing.
Header header_of(const void* data) {
  std::uint64_t words[2] = {};
  iovec local{words, sizeof words};
  iovec remote{const_cast<std::byte*>(static_cast<const std::byte*>(data)) - kHeaderBytes, sizeof words};
  if (::process_vm_readv(::getpid(), &local, 1, &remote, 1, 0) != static_cast<ssize_t>(sizeof words)) return {};
  return {words[0], words[1] & ~std::uint64_t{7}, (words[1] & kMmapped) != 0, (words[1] & kOfThreadArena) != 0};
}

bool fits(const Header& header, std::uintptr_t at, std::uint64_t nbytes) {
  if (header.mmapped)
    return (at - kHeaderBytes - header.before) % kPage == 0 && (header.block + header.before) % kPage == 0 &&
           header.block >= nbytes + kHeaderBytes;
  return !header.of_thread_arena && header.block >= nbytes + 8;
}

struct Mapping {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  std::uint64_t offset = 0;
};

// True if some mapping of the file `fd` is one; also where the system does not tell.
template <class Is>
bool any_mapping(int fd, const Is& is_one) {
  struct stat info {};
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> maps(std::fopen("/proc/self/maps", "re"), &std::fclose);
  if (maps == nullptr || ::fstat(fd, &info) != 0) return true;
  char line[512];
  while (std::fgets(line, sizeof line, maps.get()) != nullptr) {
    Mapping m;
    std::uint64_t inode = 0;
    const int read = std::sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %*s %" SCNx64 " %*s %" SCNu64, &m.begin, &m.end, &m.offset, &inode);
    if (read == 4 && inode == info.st_ino && is_one(m)) return true;
  }
  return false;
}

}  // namespace

bool is_mapped(int fd, std::uint64_t offset, std::uint64_t nbytes, const void* but_from, const void* but_to) {
  return any_mapping(fd, [=](const Mapping& m) {
    const bool touches = m.offset < offset + nbytes && m.offset + (m.end - m.begin) > offset;
    return touches && (m.begin < reinterpret_cast<std::uintptr_t>(but_from) || m.begin >= reinterpret_cast<std::uintptr_t>(but_to));
  });
}

bool is_mapped_at(const void* data, int fd, std::uint64_t offset, std::uint64_t nbytes) {
  const auto at = reinterpret_cast<std::uintptr_t>(data);
  return any_mapping(fd, [=](const Mapping& m) { return m.begin <= at && at + nbytes <= m.end && m.offset + (at - m.begin) == offset; });
}

bool can_tell_pages() {
  static const bool told = [] {
    if (page_map() < 0 || !is_glibc_malloc()) return false;
    // It must tell a shared page from a private one.
    const auto probe = [](int kind) {
      void* const page = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS, -1, 0);
      if (page == MAP_FAILED) return -1;
      *static_cast<volatile char*>(page) = 1;
      const bool shared = shared_in(page_map(), page);
      ::munmap(page, kPage);
      return shared ? 1 : 0;
    };
    return probe(MAP_SHARED) == 1 && probe(MAP_PRIVATE) == 0;
  }();
  return told;
}

bool is_shared_page(const void* page, bool live) {
  if (live) static_cast<void>(*static_cast<const volatile char*>(page));  // present from here on
  return shared_in(page_map(), page);
}

bool is_plain_block(const void* data, std::uint64_t nbytes) {
  const auto at = reinterpret_cast<std::uintptr_t>(data);
  if (at % kHeaderBytes != 0 || at < kPage) return false;
  const Area area = area_of(at, at + nbytes);
  if (area.end == 0 || area.begin + kHeaderBytes > at) return false;
  const Header header = header_of(data);
  if (header.mmapped) return !area.heap && fits(header, at, nbytes);
  return area.heap && fits(header, at, nbytes) && at - kHeaderBytes + header.block <= area.end;
}

bool is_still_a_block(const void* data, std::uint64_t nbytes) {
  return fits(header_of(data), reinterpret_cast<std::uintptr_t>(data), nbytes);
}

}  // namespace ccl_lab
