/* A GPU driver that computes nothing: its memory is the host's, kernels are not run. With it the
 * library's bookkeeping for a GPU (memory, contexts, bindings) is tested on any machine. The
 * functions are called with more arguments than those that do nothing take. */
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* of all below */
static size_t allowed = (size_t)-1, taken = 0, mapped = 0, pinned = 0;
static int in_flight = 0, most_in_flight = 0, launches = 0, failure = 0;
static unsigned run_us = 0;
static int calls = 0; /* that runs are made of */
#define CALLED __atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED)
static __thread int launched = 0; /* runs of this thread that it has not waited for */
static struct {
  char* at;
  size_t bytes;
} blocks[4096], hosts[4096];
static size_t top = 0; /* no block lies behind it */

#define LOCKED(...)               \
  do {                            \
    pthread_mutex_lock(&mutex);   \
    __VA_ARGS__;                  \
    pthread_mutex_unlock(&mutex); \
  } while (0)

void stub_allow(size_t bytes) { LOCKED(allowed = bytes); } /* of memory altogether */
size_t stub_taken(void) { return taken; }
size_t stub_mapped(void) { return mapped; } /* of it, behind reserved addresses */
size_t stub_pinned(void) { return pinned; } /* of the host's */
void stub_run_us(unsigned us) { LOCKED(run_us = us, most_in_flight = 0, launches = calls = 0); }
int stub_calls(void) { return calls; }
int stub_most_in_flight(void) { return most_in_flight; }
int stub_launches(void) { return launches; }
void stub_fail(int code) { LOCKED(failure = code); } /* launches end with it; 0: no more */

#define NOTHING(name) \
  int name(void) { return 0; }
NOTHING(cuInit)
NOTHING(cuDevicePrimaryCtxRelease_v2)
NOTHING(cuCtxSetCurrent)
NOTHING(cuCtxSynchronize)
NOTHING(cuModuleUnload)
NOTHING(cuFuncSetAttribute)
NOTHING(cuStreamDestroy_v2)
NOTHING(cuEventDestroy_v2)
NOTHING(cuGraphDestroy)
NOTHING(cuGraphAddDependencies)
NOTHING(cuGraphUpload)
NOTHING(cuGraphExecDestroy)
NOTHING(cuTensorMapEncodeTiled)
#define COUNTED(name) \
  int name(void) { return CALLED, 0; }
COUNTED(cuCtxPushCurrent_v2)
COUNTED(cuStreamWaitEvent)
COUNTED(cuEventRecord)
COUNTED(cuLaunchKernel)
COUNTED(cuGraphExecKernelNodeSetParams_v2)
#define MAKES(name)       \
  int name(void** made) { \
    *made = &taken;       \
    return 0;             \
  }
MAKES(cuDevicePrimaryCtxRetain)
MAKES(cuModuleLoadData)
MAKES(cuModuleGetFunction)
MAKES(cuEventCreate)
MAKES(cuGraphCreate)
MAKES(cuGraphAddKernelNode_v2)
MAKES(cuGraphInstantiateWithFlags)

/* A stream is its number and its priority. */
static int streams = 0, by_priority[8] = {0};
static struct {
  int number, priority;
} of_stream[4096];
static int make_stream(void** made, int priority) {
  LOCKED(const int k = streams++ % 4096; of_stream[k].number = k, of_stream[k].priority = priority;
         *made = &of_stream[k]);
  return 0;
}
int cuStreamCreate(void** made) { return make_stream(made, 0); }
int cuStreamCreateWithPriority(void** made, unsigned flags, int priority) {
  return (void)flags, make_stream(made, priority);
}
int cuCtxGetStreamPriorityRange(int* least, int* greatest) { return *least = 0, *greatest = -5, 0; }
int stub_launches_of(int priority) { return by_priority[-priority]; } /* of graphs */

int cuCtxPopCurrent_v2(void** made) { return CALLED, *made = &taken, 0; }
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

/* A run begins with its launch, and ends when its thread waits for it. A launch that finds the file
 * $OBELISK_STUB_FAULT, and can remove it, is this process's last: its context is broken. */
static int launch(void) {
  static const char* fault;
  static int asked = 0;
  int code = 0;
  LOCKED(if (!asked) asked = 1, fault = getenv("OBELISK_STUB_FAULT"));
  if (fault && unlink(fault) == 0) stub_fail(700);
  LOCKED(code = failure; if (!code) {
    ++launches, ++launched;
    if (++in_flight > most_in_flight) most_in_flight = in_flight;
  });
  return code;
}
static int await(void) {
  if (!launched) return 0;
  if (run_us) usleep(run_us);
  LOCKED(in_flight -= launched, launched = 0);
  return failure;
}
int cuGraphLaunch(void* graph, __typeof__(&of_stream[0]) stream) {
  (void)graph;
  LOCKED(++by_priority[-stream->priority]);
  return CALLED, launch();
}
int cuLaunchCooperativeKernel(void) { return CALLED, launch(); }
int cuStreamWaitValue32_v2(void) { return CALLED, 0; } /* its runs take no notice of streams */
/* The GPU writes behind a run, unless it is to forget it (1), or cannot (2: 801, not supported). */
static int forgets_words = 0, forgotten = 0;
void stub_forget_words(int how) { LOCKED(forgets_words = how, forgotten = 0); }
int stub_forgotten(void) { return forgotten; }
int cuStreamWriteValue32_v2(void* stream, unsigned long long at, unsigned value) {
  (void)stream, CALLED;
  if (forgets_words) {
    LOCKED(++forgotten);
    return forgets_words == 2 ? 801 : 0;
  }
  const int code = await();
  if (!code) __atomic_store_n((unsigned*)at, value, __ATOMIC_RELEASE);
  return code;
}
int cuStreamSynchronize(void) { return await(); }
int cuEventSynchronize(void) { return CALLED, await(); }

/* All streams are captured, or none; meanwhile memory is for threads that relaxed their mode. */
static int captured = 0, children = 0;
static __thread int mode = 0;
void stub_capture(int on) { LOCKED(captured = on, children = 0); }
int stub_children(void) { return children; } /* of the captured graph */
int cuStreamIsCapturing(void* stream, int* is) { return (void)stream, *is = captured, 0; }
int cuStreamGetCaptureInfo_v2(void* stream, int* is, unsigned long long* number, void** graph,
                              void*** behind, size_t* count) {
  static void* node = &children;
  (void)stream;
  return *is = captured, *number = 1, *graph = &captured, *behind = &node, *count = 1, 0;
}
int cuGraphAddChildGraphNode(void** made, void* graph, void** behind, size_t count) {
  if (graph != &captured || count != 1 || *behind != &children) return 1;
  LOCKED(++children);
  return *made = &captured, 0;
}
int cuStreamUpdateCaptureDependencies(void* stream, void** nodes, size_t count, unsigned how) {
  return (void)stream, count == 1 && *nodes == &captured && how == 1 ? 0 : 1;
}
int cuThreadExchangeStreamCaptureMode(int* other) {
  const int before = mode;
  return mode = *other, *other = before, 0;
}

static int allocate(char** made, size_t bytes, size_t* count, void* list) {
  int code = 2;
  LOCKED(for (size_t k = 0; k < sizeof blocks / sizeof *blocks; ++k) {
    __typeof__(blocks[0])* block = (__typeof__(blocks[0])*)list + k;
    if (block->at) continue;
    block->at = aligned_alloc(256, (bytes + 255) / 256 * 256), block->bytes = bytes;
    *count += bytes, *made = block->at, code = 0;
    if (list == (void*)blocks && k >= top) top = k + 1;
    break;
  });
  return code;
}
static int release(char* at, size_t* count, void* list) {
  int code = 1;
  LOCKED(for (size_t k = 0; k < sizeof blocks / sizeof *blocks; ++k) {
    __typeof__(blocks[0])* block = (__typeof__(blocks[0])*)list + k;
    if (!at || block->at != at) continue;
    *count -= block->bytes, free(block->at), block->at = NULL, code = 0;
    break;
  });
  return code;
}
int cuMemAlloc_v2(unsigned long long* at, size_t bytes) {
  char* made = NULL;
  if (captured && mode != 2) return 900;
  if (bytes > allowed || taken > allowed - bytes) return 2;
  const int code = allocate(&made, bytes, &taken, blocks);
  return *at = (unsigned long long)(size_t)made, code;
}
int cuMemFree_v2(unsigned long long at) { return release((char*)(size_t)at, &taken, blocks); }
int cuPointerGetAttribute(void* value, int attribute, unsigned long long at) {
  (void)attribute, CALLED;
  int code = 1;
  LOCKED(for (size_t k = 0; k < top; ++k) if (blocks[k].at && at >= (size_t)blocks[k].at &&
                                              at < (size_t)blocks[k].at + blocks[k].bytes) *
             (unsigned*)value = 2,
         code = 0;
         for (size_t k = 0; k < sizeof hosts / sizeof *hosts;
              ++k) if (hosts[k].at && at >= (size_t)hosts[k].at &&
                       at < (size_t)hosts[k].at + hosts[k].bytes) *
             (unsigned*)value = 1,
         code = 0);
  return code;
}
int cuMemHostAlloc(void** at, size_t bytes) {
  char* made = NULL;
  const int code = allocate(&made, bytes, &pinned, hosts);
  if (!code) memset(made, 0, bytes);
  return *at = made, code;
}
int cuMemFreeHost(void* at) { return release(at, &pinned, hosts); }

/* Addresses without memory cannot be read; memory that comes back is not what it was. */
enum { PAGE = 1 << 16 };
int cuMemGetAllocationGranularity(size_t* bytes) { return *bytes = PAGE, 0; }
int cuMemAddressReserve(unsigned long long* at, size_t bytes) {
  void* made = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return *at = (unsigned long long)(size_t)made, made == MAP_FAILED ? 2 : 0;
}
int cuMemAddressFree(unsigned long long at, size_t bytes) {
  return munmap((void*)(size_t)at, bytes);
}
int cuMemCreate(unsigned long long* memory, size_t bytes) {
  *memory = bytes;
  return bytes % PAGE ? 1 : bytes > allowed || taken > allowed - bytes ? 2 : 0;
}
int cuMemRelease(unsigned long long memory) { return (void)memory, 0; }
int cuMemMap(unsigned long long at, size_t bytes) {
  if (mprotect((void*)(size_t)at, bytes, PROT_READ | PROT_WRITE)) return 1;
  memset((void*)(size_t)at, 0xee, bytes);
  LOCKED(taken += bytes, mapped += bytes);
  return 0;
}
int cuMemUnmap(unsigned long long at, size_t bytes) {
  LOCKED(taken -= bytes, mapped -= bytes);
  madvise((void*)(size_t)at, bytes, MADV_DONTNEED);
  return mprotect((void*)(size_t)at, bytes, PROT_NONE);
}
int cuMemSetAccess(void) { return 0; }

int cuMemGetInfo_v2(size_t* left, size_t* all) { return *left = *all = (size_t)80 << 30, failure; }
#define COPIES(name) \
  int name(void* to, const void* from, size_t bytes) { return CALLED, memcpy(to, from, bytes), 0; }
COPIES(cuMemcpyHtoD_v2)
COPIES(cuMemcpyDtoH_v2)
static const void* watched = NULL;
static int copied_from_watched = 0;
void stub_watch(const void* from) { LOCKED(watched = from, copied_from_watched = 0); }
int stub_copied_from_watched(void) { return copied_from_watched; }
int cuMemcpyHtoDAsync_v2(void* to, const void* from, size_t bytes) {
  LOCKED(copied_from_watched += from == watched);
  return CALLED, memcpy(to, from, bytes), 0;
}
COPIES(cuMemcpyDtoHAsync_v2)
COPIES(cuMemcpyDtoDAsync_v2)
#define SETS(name) \
  int name(void* to, unsigned char value, size_t bytes) { return memset(to, value, bytes), 0; }
SETS(cuMemsetD8_v2)
static int memsets = 0, memsets_beside = 0;
int stub_memsets(int beside) { return beside ? memsets_beside : memsets; }
int cuMemsetD8Async(void* to, unsigned char value, size_t bytes) {
  LOCKED(++memsets; memsets_beside += in_flight > 0);
  return memset(to, value, bytes), 0;
}
int cuEventElapsedTime(float* ms) { return *ms = 1, 0; }
int cuGetErrorName(int code, const char** name) {
  return *name = code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR", 0;
}
int cuGetErrorString(int code, const char** text) {
  return *text = code == 2 ? "out of memory" : "an error", 0;
}
