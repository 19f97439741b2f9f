// Looks at maps, page map and block headers; see plain_memory.hpp.
#include "comm/plain_memory.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

namespace ccl_lab {

namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kPresent = std::uint64_t{1} << 63;
constexpr std::uint64_t kSwapped = std::uint64_t{1} << 62;
constexpr std::uint64_t kFileOrShared = std::uint64_t{1} << 61;
// The flags that glibc keeps in the low bits of a block's size.
constexpr std::uint64_t kMmapped = 2;
constexpr std::uint64_t kOfThreadArena = 4;

// The question of Linux 6.11 for one area of /proc/self/maps, as <linux/fs.h> has it there.
struct AreaQuery {
  std::uint64_t size = sizeof(AreaQuery);
  std::uint64_t flags = 0;
  std::uint64_t address = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t area_flags = 0;
  std::uint64_t page_size = 0;
  std::uint64_t offset = 0;
  std::uint64_t inode = 0;
  std::uint32_t major = 0;
  std::uint32_t minor = 0;
  std::uint32_t name_size = 0;
  std::uint32_t build_id_size = 0;
  std::uint64_t name = 0;
  std::uint64_t build_id = 0;
};
constexpr std::uint64_t kSharedArea = 8;
bool older_kernel = false;

// Files of /proc that stay open; they go on telling of the process that opened them.
class Told {
 public:
  explicit Told(const char* path) : path_(path), fd_(::open(path, O_RDONLY | O_CLOEXEC)) {}
  int fd() const { return fd_; }
  void open_again() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = ::open(path_, O_RDONLY | O_CLOEXEC);
  }

 private:
  const char* path_;
  int fd_;
};
Told& told_of_areas() {
  static Told file("/proc/self/maps");
  return file;
}
Told& told_of_pages() {
  static Told file("/proc/self/pagemap");
  return file;
}

bool ask(const void* address, AreaQuery& query) {
  query.address = reinterpret_cast<std::uintptr_t>(address);
  return ::ioctl(told_of_areas().fd(), _IOWR('f', 17, AreaQuery), &query) == 0;
}

int page_map() { return told_of_pages().fd(); }

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

// A line of /proc/self/maps.
struct Area {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  char permissions[8] = {};
  std::uint64_t offset = 0;
  FileId file;
  std::string_view path;
};

// Tells `use` every area of this process, by address, until it answers true. True where it did, and where the system does not tell.
template <class Use>
bool any_area(const Use& use) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> maps(std::fopen("/proc/self/maps", "re"), &std::fclose);
  if (maps == nullptr) return true;
  char line[512];
  while (std::fgets(line, sizeof line, maps.get()) != nullptr) {
    Area area;
    unsigned major = 0;
    unsigned minor = 0;
    int path_at = 0;
    if (std::sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %7s %" SCNx64 " %x:%x %" SCNu64 " %n", &area.begin, &area.end, area.permissions,
                    &area.offset, &major, &minor, &area.file.inode, &path_at) < 7)
      continue;
    area.file.device = makedev(major, minor);  // files of other devices may have the same number
    area.path = line + path_at;
    if (use(area)) return true;
  }
  return false;
}

// True if all of [first, last) is writable and either private and anonymous, in the heap or not, as asked, or shows `own` file. Advice,
// and pages that were given back, may have cut it in several areas.
bool is_ordinary_area(std::uintptr_t first, std::uintptr_t last, bool heap, const FileId& own) {
  bool ordinary = false;
  any_area([&](const Area& area) {
    if (area.end <= first) return false;
    const bool in_heap = area.path.substr(0, 6) == "[heap]";
    const bool nameless = area.path.empty() || area.path == "\n" || area.path.substr(0, 6) == "[anon:";
    const bool is_private = area.file.inode == 0 && std::strcmp(area.permissions, "rw-p") == 0 && (heap ? in_heap : nameless);
    const bool is_own = area.file == own && std::strcmp(area.permissions, "rw-s") == 0;
    if (area.begin > first || !(is_private || is_own)) return true;
    first = area.end;
    ordinary = area.end >= last;
    return ordinary;
  });
  return ordinary;
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

// Tells `use` every shared mapping of the file `fd`, as any_area does.
template <class Use>
bool any_mapping(int fd, const Use& use) {
  const FileId file = id_of(fd);
  return file.inode == 0 || any_area([&](const Area& area) {
    return area.file == file && area.permissions[3] == 's' &&
           use(Mapping{reinterpret_cast<std::byte*>(area.begin), reinterpret_cast<std::byte*>(area.end), area.offset});
  });
}

}  // namespace

// What lies where a mapping that begins at byte 0 has it is of that mapping, which advice may have cut; a part never begins there.
bool find_parts(int fd, std::vector<Mapping>& found) {
  std::vector<const std::byte*> wholes;
  const bool ended = any_mapping(fd, [&](const Mapping& m) {
    if (m.offset == 0) wholes.push_back(m.begin);
    found.push_back(m);
    return false;
  });
  std::erase_if(found, [&](const Mapping& m) {
    return std::any_of(wholes.begin(), wholes.end(), [&](const std::byte* base) { return base + m.offset == m.begin; });
  });
  return !ended && !wholes.empty();
}

bool is_mapped(int fd, std::uint64_t offset, std::uint64_t nbytes) {
  std::vector<Mapping> parts;
  return !find_parts(fd, parts) || std::any_of(parts.begin(), parts.end(), [=](const Mapping& m) {
    return m.offset < offset + nbytes && m.offset + static_cast<std::uint64_t>(m.end - m.begin) > offset;
  });
}

bool is_mapped_at(const void* data, int fd, std::uint64_t offset, std::uint64_t nbytes) {
  const auto* const at = static_cast<const std::byte*>(data);
  return any_mapping(fd, [=](const Mapping& m) {
    return m.begin <= at && at + nbytes <= m.end && m.offset + static_cast<std::uint64_t>(at - m.begin) == offset;
  });
}

FileId id_of(int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return {};
  return {info.st_dev, info.st_ino};
}

bool shows(const void* page, const FileId& file, std::uint64_t offset) {
  AreaQuery query;
  return ask(page, query) && (query.area_flags & kSharedArea) != 0 && query.inode == file.inode &&
         makedev(query.major, query.minor) == file.device &&
         query.offset + (reinterpret_cast<std::uintptr_t>(page) - query.begin) == offset;
}

void forget_parent() {
  told_of_areas().open_again();
  told_of_pages().open_again();
}

bool can_ask_of_one_address() {
  static const bool can = [] {
    AreaQuery query;
    return ask(&query, query);
  }();
  return can && !older_kernel;
}

void ask_as_an_older_kernel(bool older) { older_kernel = older; }

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

bool is_plain_block(const void* data, std::uint64_t nbytes, const FileId& own) {
  const auto at = reinterpret_cast<std::uintptr_t>(data);
  if (at % kHeaderBytes != 0 || at < kPage) return false;
  const Header header = header_of(data);
  const std::uintptr_t begin = at - kHeaderBytes;
  return fits(header, at, nbytes) && is_ordinary_area(begin, header.mmapped ? at + nbytes : begin + header.block, !header.mmapped, own);
}

bool pages_may_be_pinned() {
  char line[512];
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> status(std::fopen("/proc/self/status", "re"), &std::fclose);
  if (status == nullptr) return true;
  while (std::fgets(line, sizeof line, status.get()) != nullptr) {
    std::uint64_t kib = 0;
    if ((std::sscanf(line, "VmLck: %" SCNu64, &kib) == 1 || std::sscanf(line, "VmPin: %" SCNu64, &kib) == 1) && kib > 0) return true;
  }
  return any_area([](const Area& area) {
    for (const char* const device : {"/dev/nvidia", "/dev/infiniband/", "/dev/kfd", "/dev/dri/", "/dev/vfio/"})
      if (area.path.find(device) != std::string_view::npos) return true;
    return false;
  });
}

bool is_still_a_block(const void* data, std::uint64_t nbytes) {
  return fits(header_of(data), reinterpret_cast<std::uintptr_t>(data), nbytes);
}

}  // namespace ccl_lab
