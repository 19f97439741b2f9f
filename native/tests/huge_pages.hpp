// How much of this process's shared memory is mapped by huge pages, as the kernel tells.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>

// In bytes; -1: the system does not tell.
inline std::int64_t in_huge_pages() {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen("/proc/self/smaps_rollup", "re"), &std::fclose);
  long long kib = -1;
  char line[256];
  while (file != nullptr && std::fgets(line, sizeof line, file.get()) != nullptr)
    if (std::sscanf(line, "ShmemPmdMapped: %lld kB", &kib) == 1) break;
  return kib < 0 ? -1 : kib * 1024;
}
