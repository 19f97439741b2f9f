// The processor: what is known of its caches, and how to spin on it.
//
// Is: sizes in bytes as the processor describes them (cpuid), else as the C library does, else small ones.
// Is not: a topology: who shares a cache with whom is not asked.
//
// Invariants
//  - Every size is positive, and they do not shrink from level to level.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace ccl_lab {

struct CacheSizes {
  std::size_t line;
  std::size_t l1;  // data, of one core
  std::size_t l2;  // of one core
  std::size_t l3;  // of those cores that share it; l2 where there is no third level
};

namespace detail {

// The cache lists of AMD (0x8000001d) and of Intel (4) have one form. The C library is asked second: some versions
// multiply the third level by the number of cores that the machine might have.
inline void describe_caches(CacheSizes& found) {
#if defined(__x86_64__)
  for (const unsigned leaf : {0x8000001du, 4u}) {
    for (unsigned index = 0; index < 16; ++index) {
      unsigned a = 0, b = 0, c = 0, d = 0;
      if (__get_cpuid_count(leaf, index, &a, &b, &c, &d) == 0) break;
      const unsigned kind = a & 31u, level = (a >> 5) & 7u;
      if (kind == 0) break;
      if (kind == 2) continue;  // instructions
      const std::size_t line = (b & 0xfffu) + 1;
      const std::size_t size = line * (((b >> 12) & 0x3ffu) + 1) * ((b >> 22) + 1) * (std::size_t{c} + 1);
      if (level == 1) found.line = line;
      if (level >= 1 && level <= 3) (level == 1 ? found.l1 : level == 2 ? found.l2 : found.l3) = size;
    }
    if (found.l1 != 0) return;
  }
#endif
  (void)found;
}

}  // namespace detail

// Asked once.
inline CacheSizes cache_sizes() {
  static const CacheSizes sizes = [] {
    CacheSizes found{};
    detail::describe_caches(found);
    const auto or_else = [](std::size_t known, int name, std::size_t fallback) {
      const long said = known == 0 ? ::sysconf(name) : 0;
      return known != 0 ? known : said > 0 ? static_cast<std::size_t>(said) : fallback;
    };
    found.line = or_else(found.line, _SC_LEVEL1_DCACHE_LINESIZE, 64);
    found.l1 = or_else(found.l1, _SC_LEVEL1_DCACHE_SIZE, std::size_t{32} << 10);
    found.l2 = std::max(found.l1, or_else(found.l2, _SC_LEVEL2_CACHE_SIZE, std::size_t{512} << 10));
    found.l3 = std::max(found.l2, or_else(found.l3, _SC_LEVEL3_CACHE_SIZE, found.l2));
    return found;
  }();
  return sizes;
}

// Between two looks at memory that another core is to change.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace ccl_lab
