/// runtime/cuda/driver.h — the GPU driver, loaded at run time: its entry points in one table,
/// declared by us, so that Obelisk builds with no toolkit.
///
///   TRY(const Driver* driver, load_driver());      once a process; kDevice with a hint when the
///   machine has none TRY_STATUS(check(driver->MemAlloc(&p, n), "memory for the arena"));
///
/// Types and numbers are those of the driver's documented C interface, version 12.0 and later.
/// Entry points that only newer drivers have are null where they are missing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/base.h"

namespace obelisk::runtime::cuda {

using DevicePointer = uint64_t;
using Handle = struct OpaqueHandle*;  // a context, module, function, stream, event, graph or node

enum Attribute : int {
  kSharedPerBlockOptin = 97,
  kSmCount = 16,
  kMajor = 75,
  kMinor = 76,
  kCooperative = 95,
};
enum FunctionAttribute : int { kLocalBytes = 3, kRegisters = 4, kDynamicShared = 8 };
inline constexpr int kNotSupported = 801;  // CUDA_ERROR_NOT_SUPPORTED
enum { kHostMapped = 2, kStreamNonBlocking = 1, kEventBlockingSync = 1, kEventNoTiming = 2 };
enum { kPointerMemoryType = 2, kMemoryHost = 1, kMemoryDevice = 2 };  // of PointerAttribute

/// Physical memory of a GPU (CUmemAllocationProp), and who may use it where it is mapped
/// (CUmemAccessDesc).
struct MemoryKind {
  int type = 1, handle = 0;   // pinned; not for other processes
  int place = 1, device = 0;  // of a GPU, which one
  void* unused = nullptr;
  unsigned char flags[8] = {};
};
struct MemoryAccess {
  int place = 1, device = 0, access = 3;  // of a GPU, which one; read and write
};

/// A kernel of a graph (CUDA_KERNEL_NODE_PARAMS_v2).
struct KernelNode {
  Handle function;
  unsigned grid[3], block[3], shared_bytes;
  void** parameters;
  void** extra;
  Handle kernel, context;
};
/// An edge's kind (CUgraphEdgeData): from the moment when every block of the first has allowed it,
/// or, with zeros, from its end.
struct GraphEdge {
  unsigned char from_port, to_port, type, reserved[5];
};
inline constexpr GraphEdge kProgrammaticEdge = {1, 0, 1, {}};

/// A kernel's priority in its graph (CU_LAUNCH_ATTRIBUTE_PRIORITY of CUlaunchAttributeValue), and
/// the flag without which it is not looked at.
inline constexpr int kNodePriority = 8;
inline constexpr unsigned long long kGraphNodePriorities = 8;
struct NodeAttribute {
  int priority;
  char others[60] = {};
};

// name, the exported symbol, the arguments
#define OBELISK_DRIVER_CALLS(X)                                                                    \
  X(Init, "cuInit", (unsigned))                                                                    \
  X(DeviceGetCount, "cuDeviceGetCount", (int*))                                                    \
  X(DeviceGet, "cuDeviceGet", (int*, int))                                                         \
  X(DeviceGetName, "cuDeviceGetName", (char*, int, int))                                           \
  X(DeviceGetAttribute, "cuDeviceGetAttribute", (int*, int, int))                                  \
  X(PrimaryRetain, "cuDevicePrimaryCtxRetain", (Handle*, int))                                     \
  X(PrimaryRelease, "cuDevicePrimaryCtxRelease_v2", (int))                                         \
  X(CtxPush, "cuCtxPushCurrent_v2", (Handle))                                                      \
  X(CtxPop, "cuCtxPopCurrent_v2", (Handle*))                                                       \
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
  X(CopyToDeviceAsync, "cuMemcpyHtoDAsync_v2", (DevicePointer, const void*, size_t, Handle))       \
  X(CopyToHostAsync, "cuMemcpyDtoHAsync_v2", (void*, DevicePointer, size_t, Handle))               \
  X(CopyAsync, "cuMemcpyDtoDAsync_v2", (DevicePointer, DevicePointer, size_t, Handle))             \
  X(PointerAttribute, "cuPointerGetAttribute", (void*, int, DevicePointer))                        \
  X(MemInfo, "cuMemGetInfo_v2", (size_t*, size_t*))                                                \
  X(MemsetD8, "cuMemsetD8_v2", (DevicePointer, unsigned char, size_t))                             \
  X(MemsetAsync, "cuMemsetD8Async", (DevicePointer, unsigned char, size_t, Handle))                \
  X(StreamCreate, "cuStreamCreate", (Handle*, unsigned))                                           \
  X(StreamDestroy, "cuStreamDestroy_v2", (Handle))                                                 \
  X(StreamSynchronize, "cuStreamSynchronize", (Handle))                                            \
  X(StreamWaitEvent, "cuStreamWaitEvent", (Handle, Handle, unsigned))                              \
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
  X(GraphCreate, "cuGraphCreate", (Handle*, unsigned))                                             \
  X(GraphDestroy, "cuGraphDestroy", (Handle))                                                      \
  X(GraphAddKernel, "cuGraphAddKernelNode_v2",                                                     \
    (Handle*, Handle, const Handle*, size_t, const KernelNode*))                                   \
  X(GraphAddEdges, "cuGraphAddDependencies", (Handle, const Handle*, const Handle*, size_t))       \
  X(GraphInstantiate, "cuGraphInstantiateWithFlags", (Handle*, Handle, unsigned long long))        \
  X(GraphUpload, "cuGraphUpload", (Handle, Handle))                                                \
  X(GraphLaunch, "cuGraphLaunch", (Handle, Handle))                                                \
  X(GraphSetKernel, "cuGraphExecKernelNodeSetParams_v2", (Handle, Handle, const KernelNode*))      \
  X(GraphExecDestroy, "cuGraphExecDestroy", (Handle))                                              \
  X(ErrorName, "cuGetErrorName", (int, const char**))                                              \
  X(ErrorString, "cuGetErrorString", (int, const char**))

#define OBELISK_OPTIONAL_DRIVER_CALLS(X)                                                         \
  X(GraphAddTypedEdges, "cuGraphAddDependencies_v2",                                             \
    (Handle, const Handle*, const Handle*, const GraphEdge*, size_t))                            \
  X(GraphNodeAttribute, "cuGraphKernelNodeSetAttribute", (Handle, int, const NodeAttribute*))    \
  X(StreamIsCapturing, "cuStreamIsCapturing", (Handle, int*))                                    \
  X(StreamCaptureInfo, "cuStreamGetCaptureInfo_v2",                                              \
    (Handle, int*, unsigned long long*, Handle*, const Handle**, size_t*))                       \
  X(StreamCaptureDependencies, "cuStreamUpdateCaptureDependencies",                              \
    (Handle, const Handle*, size_t, unsigned))                                                   \
  X(ThreadCaptureMode, "cuThreadExchangeStreamCaptureMode", (int*))                              \
  X(GraphAddChild, "cuGraphAddChildGraphNode", (Handle*, Handle, const Handle*, size_t, Handle)) \
  X(StreamPriorities, "cuCtxGetStreamPriorityRange", (int*, int*))                               \
  X(StreamCreateWithPriority, "cuStreamCreateWithPriority", (Handle*, unsigned, int))            \
  X(StreamWriteValue, "cuStreamWriteValue32_v2", (Handle, DevicePointer, uint32_t, unsigned))    \
  X(StreamWaitValue, "cuStreamWaitValue32_v2", (Handle, DevicePointer, uint32_t, unsigned))      \
  X(AddressReserve, "cuMemAddressReserve",                                                       \
    (DevicePointer*, size_t, size_t, DevicePointer, unsigned long long))                         \
  X(AddressFree, "cuMemAddressFree", (DevicePointer, size_t))                                    \
  X(MemCreate, "cuMemCreate",                                                                    \
    (unsigned long long*, size_t, const MemoryKind*, unsigned long long))                        \
  X(MemRelease, "cuMemRelease", (unsigned long long))                                            \
  X(MemMap, "cuMemMap", (DevicePointer, size_t, size_t, unsigned long long, unsigned long long)) \
  X(MemUnmap, "cuMemUnmap", (DevicePointer, size_t))                                             \
  X(MemSetAccess, "cuMemSetAccess", (DevicePointer, size_t, const MemoryAccess*, size_t))        \
  X(MemGranularity, "cuMemGetAllocationGranularity", (size_t*, const MemoryKind*, int))          \
  X(MapEncode, "cuTensorMapEncodeTiled",                                                         \
    (void*, int, unsigned, DevicePointer, const uint64_t*, const uint64_t*, const unsigned*,     \
     const unsigned*, int, int, int, int))

/// What TMA must know to load `blocks` blocks of 128 bytes by `together` rows at once of a matrix,
/// rows `pitch` elements of `size` bytes apart: 16-byte pieces swapped by row, zeros below its end.
/// Of 2 bytes 16-bit numbers, of 4 floats, as they are or rounded to tf32. `map`: 128 bytes.
Status encode_rows(DevicePointer at, int64_t rows, int64_t pitch, int64_t blocks, int64_t together,
                   int64_t size, bool tf32, void* map);
/// The same of boxes of 128 bytes of a row, from any column on, by `together` rows: zeros beyond
/// `columns`, too.
Status encode_boxes(DevicePointer at, int64_t rows, int64_t columns, int64_t pitch,
                    int64_t together, int64_t size, bool tf32, void* map);

struct Driver {
#define OBELISK_DECLARE(name, symbol, arguments) int(*name) arguments = nullptr;
  OBELISK_DRIVER_CALLS(OBELISK_DECLARE)
  OBELISK_OPTIONAL_DRIVER_CALLS(OBELISK_DECLARE)
#undef OBELISK_DECLARE
};

/// The driver of this machine, loaded and initialised once. Errors: kDevice, when there is none or
/// it finds no GPU.
Result<const Driver*> load_driver();

/// The CUDA version of this machine's driver, 12040 of 12.4, also where it finds no GPU; 0 without
/// a driver. It loads machine code of its own major version and of older ones.
int driver_version();

/// A call's return code as a status: "memory for the arena: out of memory
/// (CUDA_ERROR_OUT_OF_MEMORY)".
Status check(int code, const std::string& what);

}  // namespace obelisk::runtime::cuda
