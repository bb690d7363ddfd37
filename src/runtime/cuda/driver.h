/// runtime/cuda/driver.h — the GPU driver, loaded at run time: its entry points in one table,
/// declared by us, so that Obelisk builds with no toolkit.
///
///   TRY(const Driver* driver, load_driver());      once a process; kDevice with a hint when the
///   machine has none TRY_STATUS(check(driver->MemAlloc(&p, n), "memory for the arena"));
///
/// Types and numbers are those of the driver's documented C interface, version 12.0 and later.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/base.h"

namespace obelisk::runtime::cuda {

using DevicePointer = uint64_t;
using Handle = struct OpaqueHandle*;  // a context, module, function, stream or event

enum Attribute : int {
  kSharedPerBlockOptin = 97,
  kSmCount = 16,
  kMajor = 75,
  kMinor = 76,
  kCooperative = 95,
};
enum FunctionAttribute : int {
  kStaticShared = 1,
  kLocalBytes = 3,
  kRegisters = 4,
  kDynamicShared = 8
};
enum { kHostMapped = 2, kStreamNonBlocking = 1 };

// name, the exported symbol, the arguments
#define OBELISK_DRIVER_CALLS(X)                                                                    \
  X(Init, "cuInit", (unsigned))                                                                    \
  X(DriverGetVersion, "cuDriverGetVersion", (int*))                                                \
  X(DeviceGetCount, "cuDeviceGetCount", (int*))                                                    \
  X(DeviceGet, "cuDeviceGet", (int*, int))                                                         \
  X(DeviceGetName, "cuDeviceGetName", (char*, int, int))                                           \
  X(DeviceGetAttribute, "cuDeviceGetAttribute", (int*, int, int))                                  \
  X(PrimaryRetain, "cuDevicePrimaryCtxRetain", (Handle*, int))                                     \
  X(PrimaryRelease, "cuDevicePrimaryCtxRelease_v2", (int))                                         \
  X(CtxSetCurrent, "cuCtxSetCurrent", (Handle))                                                    \
  X(CtxSynchronize, "cuCtxSynchronize", ())                                                        \
  X(ModuleLoadData, "cuModuleLoadData", (Handle*, const void*))                                    \
  X(ModuleUnload, "cuModuleUnload", (Handle))                                                      \
  X(ModuleGetFunction, "cuModuleGetFunction", (Handle*, Handle, const char*))                      \
  X(FuncSetAttribute, "cuFuncSetAttribute", (Handle, int, int))                                    \
  X(FuncGetAttribute, "cuFuncGetAttribute", (int*, int, Handle))                                   \
  X(Occupancy, "cuOccupancyMaxActiveBlocksPerMultiprocessor", (int*, Handle, int, size_t))         \
  X(MemAlloc, "cuMemAlloc_v2", (DevicePointer*, size_t))                                           \
  X(MemFree, "cuMemFree_v2", (DevicePointer))                                                      \
  X(MemHostAlloc, "cuMemHostAlloc", (void**, size_t, unsigned))                                    \
  X(MemFreeHost, "cuMemFreeHost", (void*))                                                         \
  X(CopyToDevice, "cuMemcpyHtoD_v2", (DevicePointer, const void*, size_t))                         \
  X(CopyToHost, "cuMemcpyDtoH_v2", (void*, DevicePointer, size_t))                                 \
  X(MemsetD8, "cuMemsetD8_v2", (DevicePointer, unsigned char, size_t))                             \
  X(StreamCreate, "cuStreamCreate", (Handle*, unsigned))                                           \
  X(StreamDestroy, "cuStreamDestroy_v2", (Handle))                                                 \
  X(StreamSynchronize, "cuStreamSynchronize", (Handle))                                            \
  X(EventCreate, "cuEventCreate", (Handle*, unsigned))                                             \
  X(EventDestroy, "cuEventDestroy_v2", (Handle))                                                   \
  X(EventRecord, "cuEventRecord", (Handle, Handle))                                                \
  X(EventSynchronize, "cuEventSynchronize", (Handle))                                              \
  X(EventElapsed, "cuEventElapsedTime", (float*, Handle, Handle))                                  \
  X(LaunchCooperative, "cuLaunchCooperativeKernel",                                                \
    (Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle,         \
     void**))                                                                                      \
  X(Launch, "cuLaunchKernel",                                                                      \
    (Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void**, \
     void**))                                                                                      \
  X(ErrorName, "cuGetErrorName", (int, const char**))                                              \
  X(ErrorString, "cuGetErrorString", (int, const char**))

struct Driver {
#define OBELISK_DECLARE(name, symbol, arguments) int(*name) arguments = nullptr;
  OBELISK_DRIVER_CALLS(OBELISK_DECLARE)
#undef OBELISK_DECLARE
};

/// The driver of this machine, loaded and initialised once. Errors: kDevice, when there is none or
/// it finds no GPU.
Result<const Driver*> load_driver();

/// A call's return code as a status: "memory for the arena: out of memory
/// (CUDA_ERROR_OUT_OF_MEMORY)".
Status check(int code, const std::string& what);

}  // namespace obelisk::runtime::cuda
