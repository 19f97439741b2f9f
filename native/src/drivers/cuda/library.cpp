// libcuda.so.1 behind the table of api.hpp: loaded at run time, never linked.
//
// Invariants
//  - The library stays loaded: device memory may outlive whoever asked for it.
//  - Nothing of the driver runs before somebody asks for it; what the first attempt found is kept.
#include <dlfcn.h>

#include <mutex>
#include <string>

#include "drivers/cuda/api.hpp"
#include "drivers/cuda/driver.hpp"

namespace ccl_lab::cuda {

namespace {

constexpr const char* kLibrary = "libcuda.so.1";

Status no_library(const char* name) {
  const char* const why = ::dlerror();
  return Status(Code::unsupported, std::string("memory of GPUs needs the CUDA driver: ") + name + " does not load (" +
                                       (why != nullptr ? why : "no reason given") +
                                       "); install the NVIDIA driver, in a container use --gpus all");
}

Status load(const char* name, Api& api) {
  void* const handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return no_library(name);
  const char* missing = nullptr;
#define CCL_LAB_CUDA_LOAD(member, symbol, parameters)                                    \
  api.member = reinterpret_cast<decltype(api.member)>(::dlsym(handle, #symbol));         \
  if (api.member == nullptr && missing == nullptr) missing = #symbol;
  CCL_LAB_CUDA_CALLS(CCL_LAB_CUDA_LOAD)
#undef CCL_LAB_CUDA_LOAD
#define CCL_LAB_CUDA_LOOK(member, symbol, parameters) api.member = reinterpret_cast<decltype(api.member)>(::dlsym(handle, #symbol));
  CCL_LAB_CUDA_OPTIONAL(CCL_LAB_CUDA_LOOK)
#undef CCL_LAB_CUDA_LOOK
  if (missing != nullptr) {
    int version = 0;
    if (api.driver_version != nullptr) api.driver_version(&version);
    return too_old(version, missing);
  }
  return start(api);
}

}  // namespace

Result<const Api*> open_library(const char* name) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  Api* const api = new Api;  // stays: whoever got the table may keep it
  if (Status status = load(name, *api); !status.ok()) {
    delete api;
    return status;
  }
  return api;
}

Result<const Api*> open_library() {
  static const Result<const Api*> found = open_library(kLibrary);
  return found;
}

}  // namespace ccl_lab::cuda
