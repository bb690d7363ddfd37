/* A libcuda.so.1 that computes nothing: one GPU with the features of an sm_90a, whose calls are
 * written down. $STUB_DRIVER_LOG gets a line for each call that gives a GPU something to do:
 *
 *   launch            a kernel on a stream; `cooperative` for one that is launched as such
 *   graph N           a graph of N kernel nodes
 *   to_device BYTES, to_host BYTES, on_device BYTES, set BYTES         copies and fills
 *   wait              the host waits for a stream
 *   priority N        a node of a graph gets the priority N - 100; `edge N`, with
 * $STUB_DRIVER_EDGES: N edges of a graph
 *
 * A launch takes 0.1 ms, and with $STUB_DRIVER_SLOW_EDGES a tenth more for each edge of the graph
 * that was launched last, with $STUB_DRIVER_FAST_FAR a hundredth less for each node that an edge of
 * it leads over. $STUB_DRIVER_SLOW_FIRST: of so many graphs only, the first ones that are made
 * ready, which $STUB_DRIVER_READY writes down: `ready N`, of N edges. $STUB_DRIVER_VERSION is the
 * driver's version.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef unsigned long long Address;
typedef struct {
  int nodes, edges, over; /* over: nodes that edges lead over */
  int late;               /* made ready behind the first ones */
} Graph;
static Graph launched;
static int launches, at_event[2]; /* launches before the last two events */

static void say(const char* what, long long number) {
  static FILE* log;
  if (!log) log = fopen(getenv("STUB_DRIVER_LOG"), "a");
  if (!log) abort();
  if (number < 0)
    fprintf(log, "%s\n", what);
  else
    fprintf(log, "%s %lld\n", what, number);
  fflush(log);
}

static int some(void** handle) { return *handle = malloc(16), 0; }

int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int* version) {
  const char* told = getenv("STUB_DRIVER_VERSION");
  return *version = told ? atoi(told) : 13000, 0;
}
int cuDeviceGetCount(int* count) { return *count = 1, 0; }
int cuDeviceGet(int* device, int index) { return *device = index, 0; }
int cuDeviceGetName(char* name, int room, int device) { return snprintf(name, room, "stub"), 0; }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  switch (attribute) {
    case 16:
      return *value = 132, 0; /* multiprocessors */
    case 75:
      return *value = 9, 0; /* compute capability, major */
    case 97:
      return *value = 227 << 10, 0; /* shared memory that a block may ask for */
    case 95:
      return *value = 1, 0; /* cooperative launches */
    default:
      return *value = 0, 0;
  }
}
int cuDevicePrimaryCtxRetain(void** context, int device) { return some(context); }
int cuDevicePrimaryCtxRelease_v2(int device) { return 0; }
int cuCtxPushCurrent_v2(void* context) { return 0; }
int cuCtxPopCurrent_v2(void** context) { return *context = NULL, 0; }
int cuCtxSetCurrent(void* context) { return 0; }
int cuCtxSynchronize(void) { return 0; }

int cuModuleLoadData(void** module, const void* image) { return some(module); }
int cuModuleUnload(void* module) { return 0; }
int cuModuleGetFunction(void** function, void* module, const char* name) { return some(function); }
int cuFuncSetAttribute(void* function, int attribute, int value) { return 0; }
int cuFuncGetAttribute(int* value, int attribute, void* function) { return *value = 0, 0; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void* function, int threads,
                                                size_t shared) {
  return *blocks = 1, 0;
}

int cuMemAlloc_v2(Address* at, size_t bytes) {
  static Address next = 1ull << 40;
  *at = next, next += (bytes + 511) / 256 * 256;
  return 0;
}
int cuMemFree_v2(Address at) { return 0; }
int cuMemHostAlloc(void** at, size_t bytes, unsigned flags) { return *at = calloc(bytes, 1), 0; }
int cuMemFreeHost(void* at) { return free(at), 0; }
int cuMemGetInfo_v2(size_t* left, size_t* total) { return *left = *total = (size_t)64 << 30, 0; }
int cuPointerGetAttribute(void* value, int attribute, Address at) { return 1; } /* the host's */
int cuMemcpyHtoD_v2(Address to, const void* from, size_t bytes) {
  return say("to_device", bytes), 0;
}
int cuMemcpyDtoH_v2(void* to, Address from, size_t bytes) { return say("to_host", bytes), 0; }
int cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, void* stream) {
  return say("to_device", bytes), 0;
}
int cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, void* stream) {
  return say("to_host", bytes), 0;
}
int cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, void* stream) {
  return say("on_device", bytes), 0;
}
int cuMemsetD8_v2(Address at, unsigned char value, size_t bytes) { return say("set", bytes), 0; }
int cuMemsetD8Async(Address at, unsigned char value, size_t bytes, void* stream) {
  return say("set", bytes), 0;
}

int cuStreamCreate(void** stream, unsigned flags) { return some(stream); }
int cuStreamDestroy_v2(void* stream) { return 0; }
int cuStreamSynchronize(void* stream) { return say("wait", -1), 0; }
int cuStreamWaitEvent(void* stream, void* event, unsigned flags) { return 0; }
int cuEventCreate(void** event, unsigned flags) { return some(event); }
int cuEventDestroy_v2(void* event) { return 0; }
int cuEventRecord(void* event, void* stream) {
  at_event[0] = at_event[1], at_event[1] = launches;
  return 0;
}
int cuEventSynchronize(void* event) { return 0; }
int cuEventElapsedTime(float* milliseconds, void* from, void* to) {
  *milliseconds = 1;
  if (getenv("STUB_DRIVER_SLOW_EDGES") && !launched.late) *milliseconds += 0.1f * launched.edges;
  if (getenv("STUB_DRIVER_FAST_FAR")) *milliseconds -= 0.01f * launched.over;
  *milliseconds *= 0.1f * (at_event[1] - at_event[0]);
  return 0;
}

int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void* stream, void** parameters, void** extra) {
  return ++launches, say("launch", -1), 0;
}
int cuLaunchCooperativeKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                              unsigned by, unsigned bz, unsigned shared, void* stream,
                              void** parameters) {
  return ++launches, say("cooperative", -1), 0;
}
int cuGraphCreate(void** graph, unsigned flags) { return *graph = calloc(1, sizeof(Graph)), 0; }
int cuGraphDestroy(void* graph) { return 0; }
int cuGraphAddKernelNode_v2(void** node, void* graph, void* const* before, size_t count,
                            const void* what) {
  return *node = (void*)(intptr_t)++((Graph*)graph)->nodes, 0;
}
/* Edges are told where a test asks for them. */
int cuGraphAddDependencies(void* graph, void* const* from, void* const* to, size_t count) {
  ((Graph*)graph)->edges += count;
  for (size_t k = 0; k < count; ++k)
    ((Graph*)graph)->over += (int)((intptr_t)to[k] - (intptr_t)from[k]) - 1;
  return getenv("STUB_DRIVER_EDGES") ? say("edge", count), 0 : 0;
}
int cuGraphAddDependencies_v2(void* graph, void* const* from, void* const* to, const void* kinds,
                              size_t count) {
  return cuGraphAddDependencies(graph, from, to, count);
}
int cuGraphKernelNodeSetAttribute(void* node, int attribute, const int* value) {
  return attribute == 8 ? say("priority", *value + 100), 0 : 1;
}
int cuGraphInstantiateWithFlags(void** ready, void* graph, unsigned long long flags) {
  static int count;
  const char* first = getenv("STUB_DRIVER_SLOW_FIRST");
  Graph* made = malloc(sizeof(Graph));
  *made = *(Graph*)graph, *ready = made, made->late = first && count++ >= atoi(first);
  return getenv("STUB_DRIVER_READY") ? say("ready", made->edges), 0 : 0;
}
int cuGraphUpload(void* ready, void* stream) { return 0; }
int cuGraphLaunch(void* ready, void* stream) {
  launched = *(Graph*)ready, ++launches;
  return say("graph", ((Graph*)ready)->nodes), 0;
}
int cuGraphExecKernelNodeSetParams_v2(void* ready, void* node, const void* what) { return 0; }
int cuGraphExecDestroy(void* ready) { return 0; }
int cuTensorMapEncodeTiled(void* map, int type, unsigned rank, Address at, const uint64_t* extent,
                           const uint64_t* bytes, const unsigned* box, const unsigned* step,
                           int interleave, int swizzle, int promotion, int fill) {
  return 0;
}

int cuGetErrorName(int code, const char** name) { return *name = "CUDA_ERROR", 0; }
int cuGetErrorString(int code, const char** text) { return *text = "an error of the stub", 0; }
