// The CUDA driver with the manners of this code: Status instead of numbers, owners instead of handles.
//
// Is: what a failed call means in words, devices, a context for each device, and one class for each thing that must be given back.
// Is not: a policy: who copies what, when, is above.
//
// Invariants
//  - Every object gives back what it made, once, in the context it was made in; what cannot be given back any more (the context
//    is gone) is not an error.
//  - A Context is the device's primary one, that of torch and cupy; it is current only within a Scope, and whatever was current
//    before is current again after it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "drivers/cuda/api.hpp"

namespace ccl_lab::cuda {

// ok, or what the result means, where, and what to try. `what` names the call and its object: "copy of 64 bytes to rank 2".
Status status_of(const Api& api, CuResult result, const std::string& what);
// After this result no call of the process gets anything from the GPU any more.
bool is_gone(CuResult result);
// The driver (its version as cuDriverGetVersion says it) lacks a function.
Status too_old(int version, const std::string& symbol);
// cuInit and the version.
Status start(const Api& api);
std::string version_name(int version);  // "12.4"

struct DeviceInfo {
  int ordinal = 0;
  CuDevice device = 0;
  std::string name;
  CuUuid uuid{};
  std::uint64_t memory_bytes = 0;
  int capability = 0;          // 90: sm_90
  int multiprocessors = 0;
  int copy_engines = 0;
  bool stream_memory_ops = false;
  bool posix_handles = false;  // virtual memory that can be shared by descriptors
  bool dma_buf = false;        // its memory has dma-bufs, and the library gives them
  int rdma_ordering = 0;       // of what NICs write to it: kRdmaOrderedForOwner, kRdmaOrderedForAll; 0: none until it is flushed
  bool host_flush = false;     // by flush_remote_writes
  bool stream_flush = false;   // by a wait with kWaitFlush
};

Result<std::vector<DeviceInfo>> devices(const Api& api);
Result<DeviceInfo> device(const Api& api, int ordinal);
std::string uuid_name(const CuUuid& uuid);

class Context {
 public:
  static Result<std::shared_ptr<Context>> retain(const Api& api, int ordinal);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const Api& api() const { return api_; }
  const DeviceInfo& info() const { return info_; }
  CuContext get() const { return context_; }

 private:
  Context(const Api& api, DeviceInfo info, CuContext context) : api_(api), info_(std::move(info)), context_(context) {}
  const Api& api_;
  DeviceInfo info_;
  CuContext context_;
};

// Makes a context current for as long as it lives, and lets this thread map and allocate though somebody captures a graph, which the
// driver otherwise takes for a mistake. `status()` first: without it nothing else may be called.
class Scope {
 public:
  explicit Scope(const Context& context);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  const Status& status() const { return status_; }

 private:
  const Api& api_;
  Status status_;
  int capture_mode_ = kCaptureRelaxed;  // while this lives: that of before
  bool relaxed_ = false;
};

// What a handle belongs to, and how it is given back: the base of the owners below.
template <class Handle, CuResult (*Api::*destroy)(Handle)>
class Owned {
 public:
  Owned() = default;
  Owned(std::shared_ptr<Context> context, Handle handle) : context_(std::move(context)), handle_(handle) {}
  Owned(Owned&& other) noexcept : context_(std::move(other.context_)), handle_(other.handle_) { other.handle_ = {}; }
  Owned& operator=(Owned&& other) noexcept {
    std::swap(context_, other.context_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Owned() {
    if (!context_ || handle_ == Handle{}) return;
    const Scope scope(*context_);
    if (scope.status().ok()) (context_->api().*destroy)(handle_);
  }
  Handle get() const { return handle_; }
  explicit operator bool() const { return handle_ != Handle{}; }

 private:
  std::shared_ptr<Context> context_;
  Handle handle_{};
};

using Stream = Owned<CuStream, &Api::stream_destroy>;
using Event = Owned<CuEvent, &Api::event_destroy>;
using Module = Owned<CuModule, &Api::module_unload>;
using DeviceMemory = Owned<DevicePtr, &Api::memory_free>;
using HostRegistration = Owned<void*, &Api::host_unregister>;

// All of these make the context current themselves.
Result<Stream> make_stream(const std::shared_ptr<Context>& context);  // does not wait for the default stream
Result<Event> make_event(const std::shared_ptr<Context>& context, bool timing);
Result<DeviceMemory> allocate(const std::shared_ptr<Context>& context, std::uint64_t nbytes);
Result<Module> load_module(const std::shared_ptr<Context>& context, const void* image);
// Memory of the host that the device reads and writes; the address it has there is in `address`.
Result<HostRegistration> register_host(const std::shared_ptr<Context>& context, void* data, std::uint64_t nbytes, DevicePtr& address);

}  // namespace ccl_lab::cuda
