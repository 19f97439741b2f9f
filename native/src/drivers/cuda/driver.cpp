// Devices, contexts and owners; see driver.hpp.
#include "drivers/cuda/driver.hpp"

#include <array>
#include <cstdio>

namespace ccl_lab::cuda {

Result<DeviceInfo> device(const Api& api, int ordinal) {
  int count = 0;
  if (Status status = status_of(api, api.device_count(&count), "counting devices"); !status.ok()) return status;
  if (ordinal < 0 || ordinal >= count)
    return Status(Code::usage, "GPU " + std::to_string(ordinal) + " is not here: the driver shows " + std::to_string(count) +
                                   " (CUDA_VISIBLE_DEVICES may hide some)");
  DeviceInfo info;
  info.ordinal = ordinal;
  const std::string what = "looking at GPU " + std::to_string(ordinal);
  std::array<char, 128> name{};
  std::size_t memory = 0;
  int major = 0, minor = 0, ops = 0, virtual_memory = 0, handles = 0, dma_buf = 0, flush_options = 0, stream_flush = 0;
  CuResult result = api.device_get(&info.device, ordinal);
  if (result == kSuccess) result = api.device_name(name.data(), static_cast<int>(name.size()) - 1, info.device);
  if (result == kSuccess) result = api.device_uuid(&info.uuid, info.device);
  if (result == kSuccess) result = api.device_memory(&memory, info.device);
  const struct {
    int* to;
    int attribute;
  } wanted[] = {{&major, kCapabilityMajor}, {&minor, kCapabilityMinor},         {&info.multiprocessors, kMultiprocessors},
                {&info.copy_engines, kAsyncEngines}, {&ops, kStreamMemoryOps64}, {&virtual_memory, kVirtualMemory},
                {&handles, kPosixHandles}};
  for (const auto& each : wanted)
    if (result == kSuccess) result = api.device_attribute(each.to, each.attribute, info.device);
  if (Status status = status_of(api, result, what); !status.ok()) return status;
  // Unknown to a driver from before them: then it has none of it.
  const struct {
    int* to;
    int attribute;
  } newer[] = {{&dma_buf, kDmaBufSupported}, {&flush_options, kRdmaFlushOptions}, {&info.rdma_ordering, kRdmaWritesOrdering},
               {&stream_flush, kCanFlushRemoteWrites}};
  for (const auto& each : newer) {
    result = api.device_attribute(each.to, each.attribute, info.device);
    if (result == kInvalidValue) *each.to = 0;
    else if (Status status = status_of(api, result, what); !status.ok()) return status;
  }
  info.name = name.data();
  info.memory_bytes = memory;
  info.capability = 10 * major + minor;
  info.stream_memory_ops = ops != 0;
  info.posix_handles = virtual_memory != 0 && handles != 0;
  info.dma_buf = dma_buf != 0 && api.range_handle != nullptr;
  info.host_flush = (flush_options & kRdmaFlushByHost) != 0 && api.flush_remote_writes != nullptr;
  info.stream_flush = stream_flush != 0;
  return info;
}

Result<std::vector<DeviceInfo>> devices(const Api& api) {
  int count = 0;
  if (Status status = status_of(api, api.device_count(&count), "counting devices"); !status.ok()) return status;
  std::vector<DeviceInfo> found;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    Result<DeviceInfo> one = device(api, ordinal);
    if (!one.ok()) return one.status();
    found.push_back(std::move(one).value());
  }
  return found;
}

std::string uuid_name(const CuUuid& uuid) {
  std::string text = "GPU-";
  for (std::size_t i = 0; i < sizeof uuid.bytes; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    char byte[3];
    std::snprintf(byte, sizeof byte, "%02x", static_cast<unsigned>(static_cast<unsigned char>(uuid.bytes[i])));
    text += byte;
  }
  return text;
}

Result<std::shared_ptr<Context>> Context::retain(const Api& api, int ordinal) {
  Result<DeviceInfo> info = device(api, ordinal);
  if (!info.ok()) return info.status();
  CuContext context = nullptr;
  const CuResult result = api.context_retain(&context, info->device);
  if (Status status = status_of(api, result, "the context of GPU " + std::to_string(ordinal)); !status.ok()) return status;
  return std::shared_ptr<Context>(new Context(api, std::move(info).value(), context));
}

Context::~Context() { api_.context_release(info_.device); }

Scope::Scope(const Context& context) : api_(context.api()) {
  const CuResult result = api_.context_push(context.get());
  status_ = status_of(api_, result, "making the context of GPU " + std::to_string(context.info().ordinal) + " current");
  relaxed_ = status_.ok() && api_.capture_mode(&capture_mode_) == kSuccess;
}

Scope::~Scope() {
  CuContext popped = nullptr;
  if (!status_.ok()) return;
  if (relaxed_) api_.capture_mode(&capture_mode_);
  api_.context_pop(&popped);
}

namespace {

// Runs `make` in the context; the Owner of what it made.
template <class Owner, class Handle, class Make>
Result<Owner> made(const std::shared_ptr<Context>& context, const std::string& what, Handle handle, Make make) {
  const Scope scope(*context);
  if (!scope.status().ok()) return scope.status();
  const CuResult result = make(handle);
  if (Status status = status_of(context->api(), result, what + " on GPU " + std::to_string(context->info().ordinal)); !status.ok())
    return status;
  return Owner(context, handle);
}

}  // namespace

Result<Stream> make_stream(const std::shared_ptr<Context>& context) {
  return made<Stream>(context, "a stream", CuStream{},
                      [&](CuStream& stream) { return context->api().stream_create(&stream, kStreamNonBlocking, 0); });
}

Result<Event> make_event(const std::shared_ptr<Context>& context, bool timing) {
  return made<Event>(context, "an event", CuEvent{}, [&](CuEvent& event) {
    return context->api().event_create(&event, timing ? kEventDefault : kEventDisableTiming);
  });
}

Result<DeviceMemory> allocate(const std::shared_ptr<Context>& context, std::uint64_t nbytes) {
  return made<DeviceMemory>(context, std::to_string(nbytes) + " bytes of memory", DevicePtr{},
                            [&](DevicePtr& memory) { return context->api().memory_allocate(&memory, nbytes); });
}

Result<Module> load_module(const std::shared_ptr<Context>& context, const void* image) {
  return made<Module>(context, "the reduction kernels for sm_" + std::to_string(context->info().capability), CuModule{},
                      [&](CuModule& module) { return context->api().module_load(&module, image); });
}

Result<HostRegistration> register_host(const std::shared_ptr<Context>& context, void* data, std::uint64_t nbytes, DevicePtr& address) {
  const std::string what = "registering " + std::to_string(nbytes) + " bytes of the host";
  Result<HostRegistration> held = made<HostRegistration>(context, what, data, [&](void* memory) {
    return context->api().host_register(memory, nbytes, kHostPortable | kHostDeviceMap);
  });
  if (!held.ok()) return held;
  const Scope scope(*context);
  if (!scope.status().ok()) return scope.status();
  const CuResult result = context->api().host_device_pointer(&address, data, 0);
  if (Status status = status_of(context->api(), result, what); !status.ok()) return status;
  return held;
}

}  // namespace ccl_lab::cuda
