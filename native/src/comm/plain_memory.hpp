// What is known about ordinary memory before its pages may change their home without being asked.
//
// Is: whether a buffer is one live block of the C library's allocator whose pages nobody else can expect anything of; and
//     whether pages that were changed still are.
// Is not: sure about memory of other allocators, of files, of stacks: that is never touched.
//
// Why so narrow: other allocators, and the C library's arenas of threads, give pages back with MADV_DONTNEED and expect
// zeros afterwards, which shared pages do not become; pages of files belong to their files.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ccl_lab {

// True for [data, data + nbytes) inside one block of malloc's: mapped on its own, or in the heap of the main arena.
// Reads /proc/self/maps: some tens of microseconds.
bool is_plain_block(const void* data, std::uint64_t nbytes);

// The same of a range whose pages were changed: only the header in front of it can still be asked.
bool is_still_a_block(const void* data, std::uint64_t nbytes);

// True if the page at `page` is a page of a shared mapping. One system call. What is not `live` may be gone: it is not
// touched, and a page that the system has put aside counts as gone.
bool is_shared_page(const void* page, bool live);
// True if some mapping outside [but_from, but_to) shows bytes [offset, offset + nbytes) of the file `fd`; also where the
// system does not tell. A block that realloc has moved took its pages along.
bool is_mapped(int fd, std::uint64_t offset, std::uint64_t nbytes, const void* but_from, const void* but_to);
// True if [data, data + nbytes) shows the bytes of the file `fd` from `offset` on; also where the system does not tell.
bool is_mapped_at(const void* data, int fd, std::uint64_t offset, std::uint64_t nbytes);
// False where the system does not tell, or the process runs another allocator than the C library's.
bool can_tell_pages();

}  // namespace ccl_lab
