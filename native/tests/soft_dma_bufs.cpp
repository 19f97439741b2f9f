// What soft RoCE lacks, for a process of the tests that preloads this: ibv_reg_dmabuf_mr, for files of the mocked driver of GPUs.
//
// Is: a registration of memory of the host that a descriptor stands for, at addresses that requests name as those of the GPU. The real
//     library, devices and kernel do the rest.
// Is not: a dma-buf, nor for anything but tests.
#include <dlfcn.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

namespace {

constexpr const char* kVerbs = "libibverbs.so.1";
using Dlsym = void* (*)(void*, const char*);

Dlsym real_dlsym() {
  static const Dlsym found = [] {
    void* at = ::dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (at == nullptr) at = ::dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    return reinterpret_cast<Dlsym>(at);
  }();
  return found;
}

void* register_file(void* pd, std::uint64_t offset, std::size_t length, std::uint64_t iova, int fd, int access) {
  using Register = void* (*)(void*, void*, std::size_t, std::uint64_t, unsigned);
  static const auto reg_mr = reinterpret_cast<Register>(real_dlsym()(::dlopen(kVerbs, RTLD_NOW), "ibv_reg_mr_iova2"));
  if (fd < 0) {
    errno = EBADF;
    return nullptr;
  }
  // Its pages are the NIC's until the process ends.
  void* const memory = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
  return memory == MAP_FAILED ? nullptr : reg_mr(pd, memory, length, iova, static_cast<unsigned>(access));
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void* dlsym(void* handle, const char* name) noexcept {
  if (std::strcmp(name, "ibv_reg_dmabuf_mr") == 0) return reinterpret_cast<void*>(&register_file);
  return real_dlsym()(handle, name);
}
