// What results of the CUDA driver mean; see driver.hpp.
#include <string>

#include "drivers/cuda/driver.hpp"

namespace ccl_lab::cuda {

namespace {

struct Meaning {
  CuResult result;
  Code code;
  const char* what_to_try;
};

constexpr Meaning kMeanings[] = {
    {kOutOfMemory, Code::registration, "the GPU's memory is used up: free some (torch.cuda.empty_cache()), or use smaller messages"},
    {kInvalidValue, Code::registration, "the driver does not know this address or size: was the memory freed, or is it of the host?"},
    {kInvalidHandle, Code::registration, "the handle is not good any more: did the rank that owns the memory end, or free it?"},
    {kMapFailed, Code::registration, "the memory cannot be mapped here: are both ranks in one IPC namespace (docker run --ipc=host)?"},
    {kAlreadyMapped, Code::registration, "the memory is mapped already: is another communicator of this process using it?"},
    {kOperatingSystem, Code::registration, "the system refused: descriptors (`ulimit -n`), or another namespace (docker run --ipc=host --pid=host)"},
    {kHostAlreadyRegistered, Code::registration, "these pages are registered already, by another library or communicator"},
    {kPeerUnsupported, Code::unsupported, "these GPUs cannot reach each other's memory: `nvidia-smi topo -p2p r` shows which can"},
    {kPeerNotEnabled, Code::unsupported, "access between these GPUs is not enabled: `nvidia-smi topo -p2p r` shows what is possible"},
    {kNotSupported, Code::unsupported, "this GPU or driver does not have it"},
    {kNotPermitted, Code::unsupported, "the driver does not permit it here (a MIG slice, vGPU or container may forbid it)"},
    {kNeedsNewerDriver, Code::unsupported, "the driver is too old: install a newer one"},
    {kStubLibrary, Code::unsupported, "the library is the toolkit's stub: put the driver's libcuda.so.1 first in LD_LIBRARY_PATH"},
    {kDriverMismatch, Code::unsupported, "kernel module and library are of different drivers: reboot, or install one of both"},
    {kNoDevice, Code::unsupported, "no GPU is visible: look at CUDA_VISIBLE_DEVICES and nvidia-smi; in a container use --gpus all"},
    {kInvalidDevice, Code::usage, "there is no such GPU: look at CUDA_VISIBLE_DEVICES"},
    {kNoBinary, Code::unsupported, "the kernels are built for sm_80, sm_90 and sm_100 and as PTX: this GPU is older than these"},
    {kInvalidImage, Code::unsupported, "the kernels in this build cannot be read: build again with nvcc"},
    {kInvalidPtx, Code::unsupported, "the driver is older than the kernels in this build: install a newer one, or build with an older nvcc"},
    {kUnsupportedPtx, Code::unsupported, "the driver is older than the kernels in this build: install a newer one, or build with an older nvcc"},
    {kNotFound, Code::unsupported, "the driver does not find it in the loaded kernels: build again"},
    {kDeinitialized, Code::aborted, "the process is ending"},
    {kContextDestroyed, Code::aborted, "the context was destroyed: was the device reset in this process?"},
    {kInvalidContext, Code::usage, "the context is not one of this process: CUDA does not survive fork(), start processes by spawn"},
    {kNotInitialized, Code::usage, "the driver is not initialised here: CUDA does not survive fork(), start processes by spawn"},
    {kIllegalAddress, Code::peer_lost, "a copy or kernel met memory that is gone: did a rank free a buffer in use, or end? The process must end too"},
    {kLaunchFailed, Code::peer_lost, "an earlier kernel of this process failed; the process must end (compute-sanitizer finds it)"},
    {kDeviceUnavailable, Code::peer_lost, "the GPU is gone: `dmesg | grep Xid` says why; the process must end, and the GPU be reset"},
    {kHardwareStack, Code::peer_lost, "the GPU is gone: `dmesg | grep Xid` says why; the process must end, and the GPU be reset"},
    {kUnknown, Code::peer_lost, "the GPU may be gone: `dmesg | grep Xid` says more; the process must end"},
    {kNvlinkUncorrectable, Code::link_down, "an NVLink has an error that cannot be corrected: see nvidia-smi nvlink -e"},
    {kEccUncorrectable, Code::link_down, "the GPU's memory has an error that cannot be corrected: see nvidia-smi -q"},
    {kCaptureUnsupported, Code::unsupported, "this cannot be captured in a CUDA graph: run it before the capture, or outside"},
    {kCaptureInvalidated, Code::usage, "the capture was invalidated by an earlier error: begin it again"},
    {kCaptureUnjoined, Code::usage, "the capture ended before streams that it had forked came back"},
    {kCaptureIsolation, Code::usage, "work outside the capture and inside it depend on each other: warm up before capturing"},
    {kCapturedEvent, Code::usage, "an event of a capture was used outside it"},
};

}  // namespace

bool is_gone(CuResult result) {
  constexpr CuResult kGone[] = {kDeinitialized, kDeviceUnavailable, kEccUncorrectable, kNvlinkUncorrectable, kIllegalAddress,
                                kContextDestroyed, kHardwareStack, kLaunchFailed, kUnknown};
  for (const CuResult each : kGone)
    if (each == result) return true;
  return false;
}

Status status_of(const Api& api, CuResult result, const std::string& what) {
  if (result == kSuccess) return {};
  const char* name = nullptr;
  const char* text = nullptr;
  if (api.error_name(result, &name) != kSuccess || name == nullptr) name = "an unknown result";
  if (api.error_string(result, &text) != kSuccess || text == nullptr) text = "no text";
  std::string message = what + ": " + name + " (" + std::to_string(result) + ", " + text + ")";
  for (const Meaning& meaning : kMeanings)
    if (meaning.result == result) return Status(meaning.code, message + "; " + meaning.what_to_try);
  return Status(Code::internal, message);
}

std::string version_name(int version) { return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10); }

Status too_old(int version, const std::string& symbol) {
  return Status(Code::unsupported, "the CUDA driver is too old: it is for CUDA " + (version > 0 ? version_name(version) : "?") +
                                       " and lacks " + symbol + "; expected one for CUDA " + version_name(kLeastDriverVersion) +
                                       " or newer");
}

Status start(const Api& api) {
  int version = 0;
  if (Status status = status_of(api, api.driver_version(&version), "the version of the driver"); !status.ok()) return status;
  if (version < kLeastDriverVersion) return too_old(version, "stream memory operations of the second version");
  return status_of(api, api.init(0), "starting the CUDA driver");
}

}  // namespace ccl_lab::cuda
