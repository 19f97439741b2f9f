// Memory of a peer's process, read by the kernel (process_vm_readv).
//
// Is: one read that is complete or says why not, and what it costs on this machine.
// Is not: a way to write there: a peer whose call has failed may have given its buffer back. What is read then is never
//     used; what were written would lie in somebody else's array.
#pragma once

#include <cstddef>
#include <cstdint>

#include "node/core.hpp"

namespace ccl_lab::node {

// False where the kernel refuses, or the peer is gone: core.status says so.
bool read_across(Core& core, int place, std::uint64_t address, std::byte* to, std::uint64_t nbytes);

// True if this process may read the memory of all other members.
bool may_read_across(const Core& core);

// False where the kernel's copies are so slow that they need no trial (sandboxes that trace system calls).
bool reading_across_pays();

}  // namespace ccl_lab::node
