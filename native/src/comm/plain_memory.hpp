// What is known about ordinary memory before its pages may change their home without being asked.
//
// Is: whether a buffer is one live block of the C library's allocator whose pages nobody else can expect anything of; and
//     whether pages that were changed still are.
// Is not: sure about memory of other allocators, of files, of stacks: that is never touched.
//
// Why so narrow: what was pinned is read and written by devices where it lay; other allocators, and the C library's arenas of threads, give pages back with MADV_DONTNEED and expect
// zeros afterwards, which shared pages do not become; pages of files belong to their files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ccl_lab {

// The same of a range whose pages were changed: only the header in front of it can still be asked.
bool is_still_a_block(const void* data, std::uint64_t nbytes);

// Which file it is, as the kernel tells of mappings.
struct FileId {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  bool operator==(const FileId&) const = default;
};
FileId id_of(int fd);
// True for [data, data + nbytes) inside one block of malloc's: mapped on its own, or in the heap of the main arena. Some of its pages may
// show `own` file already, where an earlier block of the heap was. Reads /proc/self/maps: some tens of microseconds.
bool is_plain_block(const void* data, std::uint64_t nbytes, const FileId& own);
// True if the page at `page` shows the bytes of the file from `offset` on, shared; false also where the kernel cannot be asked of one
// address. One system call (Linux 6.11), the cheapest that is exact.
bool shows(const void* page, const FileId& file, std::uint64_t offset);
bool can_ask_of_one_address();
// For tests: as if this kernel were older.
void ask_as_an_older_kernel(bool older);
// True if the page at `page` is a page of a shared mapping. One system call. What is not `live` may be gone: it is not
// touched, and a page that the system has put aside counts as gone.
bool is_shared_page(const void* page, bool live);
// True if some part of the file `fd` that is mapped shows bytes [offset, offset + nbytes) of it; also where the system does not
// tell. A block that realloc has moved took its pages along.
bool is_mapped(int fd, std::uint64_t offset, std::uint64_t nbytes);
// Addresses [begin, end) that show the bytes of a file from `offset` on.
struct Mapping {
  std::byte* begin = nullptr;
  std::byte* end = nullptr;
  std::uint64_t offset = 0;
};
// Where this process has parts of the file `fd` mapped, shared; mappings of the whole file, as its owner and peers in the same process
// have, do not count. False: the system does not tell.
bool find_parts(int fd, std::vector<Mapping>& found);
// True if [data, data + nbytes) shows the bytes of the file `fd` from `offset` on; also where the system does not tell.
bool is_mapped_at(const void* data, int fd, std::uint64_t offset, std::uint64_t nbytes);
// False where the system does not tell, or the process runs another allocator than the C library's.
bool can_tell_pages();
// True if pages of this process may be known by their place in memory: pinned, locked, or within reach of a device (GPU, RDMA,
// VFIO) whose driver does not count what it pins. Such pages cannot change their home. Reads two files of /proc.
bool pages_may_be_pinned();
// In the child of a fork, before it asks for anything of the above.
void forget_parent();

}  // namespace ccl_lab
