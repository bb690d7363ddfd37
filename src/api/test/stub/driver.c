/* A GPU driver that computes nothing: its memory is the host's, kernels are not run. With it the
 * library's bookkeeping for a GPU (memory, contexts, bindings) is tested on any machine. The
 * functions are called with more arguments than those that do nothing take. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static size_t allowed = (size_t)-1, taken = 0;
static struct {
  char* at;
  size_t bytes;
} blocks[4096];

void stub_allow(size_t bytes) { allowed = bytes; } /* of memory altogether */
size_t stub_taken(void) { return taken; }

#define NOTHING(name) \
  int name(void) { return 0; }
NOTHING(cuInit)
NOTHING(cuDevicePrimaryCtxRelease_v2)
NOTHING(cuCtxPushCurrent_v2)
NOTHING(cuCtxSetCurrent)
NOTHING(cuCtxSynchronize)
NOTHING(cuModuleUnload)
NOTHING(cuFuncSetAttribute)
NOTHING(cuStreamDestroy_v2)
NOTHING(cuStreamSynchronize)
NOTHING(cuStreamWaitEvent)
NOTHING(cuEventDestroy_v2)
NOTHING(cuEventRecord)
NOTHING(cuEventSynchronize)
NOTHING(cuLaunchCooperativeKernel)
NOTHING(cuLaunchKernel)
NOTHING(cuGraphDestroy)
NOTHING(cuGraphAddDependencies)
NOTHING(cuGraphUpload)
NOTHING(cuGraphLaunch)
NOTHING(cuGraphExecKernelNodeSetParams_v2)
NOTHING(cuGraphExecDestroy)
NOTHING(cuTensorMapEncodeTiled)
#define MAKES(name)       \
  int name(void** made) { \
    *made = &taken;       \
    return 0;             \
  }
MAKES(cuDevicePrimaryCtxRetain)
MAKES(cuCtxPopCurrent_v2)
MAKES(cuModuleLoadData)
MAKES(cuModuleGetFunction)
MAKES(cuStreamCreate)
MAKES(cuEventCreate)
MAKES(cuGraphCreate)
MAKES(cuGraphAddKernelNode_v2)
MAKES(cuGraphInstantiateWithFlags)

int cuDriverGetVersion(int* version) { return *version = 13020, 0; }
int cuDeviceGetCount(int* count) { return *count = 1, 0; }
int cuDeviceGet(int* device, int index) { return *device = index, 0; }
int cuDeviceGetName(char* name, int bytes, int device) {
  return (void)device, strncpy(name, "a stub", (size_t)bytes), 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  (void)device;
  *value = attribute == 16   ? 132
           : attribute == 75 ? 9
           : attribute == 76 ? 0
           : attribute == 95 ? 1
           : attribute == 97 ? 232448
                             : 0;
  return 0;
}
int cuFuncGetAttribute(int* value) { return *value = 0, 0; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks_of_one) {
  return *blocks_of_one = 1, 0;
}

int cuMemAlloc_v2(unsigned long long* at, size_t bytes) {
  if (bytes > allowed || taken > allowed - bytes) return 2;
  for (size_t k = 0; k < sizeof blocks / sizeof *blocks; ++k) {
    if (blocks[k].at) continue;
    blocks[k].at = aligned_alloc(256, (bytes + 255) / 256 * 256), blocks[k].bytes = bytes;
    taken += bytes, *at = (unsigned long long)(size_t)blocks[k].at;
    return 0;
  }
  return 2;
}
int cuMemFree_v2(unsigned long long at) {
  for (size_t k = 0; k < sizeof blocks / sizeof *blocks; ++k)
    if ((size_t)blocks[k].at == at)
      return taken -= blocks[k].bytes, free(blocks[k].at), blocks[k].at = NULL, 0;
  return 1;
}
int cuPointerGetAttribute(void* value, int attribute, unsigned long long at) {
  (void)attribute;
  for (size_t k = 0; k < sizeof blocks / sizeof *blocks; ++k)
    if (blocks[k].at && at >= (size_t)blocks[k].at && at < (size_t)blocks[k].at + blocks[k].bytes)
      return *(unsigned*)value = 2, 0;
  return 1;
}
int cuMemHostAlloc(void** at, size_t bytes) { return *at = calloc(1, bytes), 0; }
int cuMemFreeHost(void* at) { return free(at), 0; }
int cuMemGetInfo_v2(size_t* left, size_t* all) { return *left = *all = (size_t)80 << 30, 0; }
#define COPIES(name) \
  int name(void* to, const void* from, size_t bytes) { return memcpy(to, from, bytes), 0; }
COPIES(cuMemcpyHtoD_v2)
COPIES(cuMemcpyDtoH_v2)
COPIES(cuMemcpyHtoDAsync_v2)
COPIES(cuMemcpyDtoHAsync_v2)
COPIES(cuMemcpyDtoDAsync_v2)
#define SETS(name) \
  int name(void* to, unsigned char value, size_t bytes) { return memset(to, value, bytes), 0; }
SETS(cuMemsetD8_v2) SETS(cuMemsetD8Async) int cuEventElapsedTime(float* ms) { return *ms = 1, 0; }
int cuGetErrorName(int code, const char** name) {
  return *name = code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR", 0;
}
int cuGetErrorString(int code, const char** text) {
  return *text = code == 2 ? "out of memory" : "an error", 0;
}
