// A backend of Triton's that hands inputs back as outputs, so that bench/serve.py can compare what
// the two servers add; with BUSY_US in the environment each request takes that many microseconds of
// its thread's processor time first (bench/serve_overload.py). The functions are those of its
// tritonbackend.h; only what is called is declared.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct Opaque Opaque;

Opaque* TRITONBACKEND_RequestInputByIndex(Opaque* request, uint32_t index, Opaque** input);
Opaque* TRITONBACKEND_InputProperties(Opaque* input, const char** name, int* datatype,
                                      const int64_t** shape, uint32_t* dims, uint64_t* bytes,
                                      uint32_t* buffers);
Opaque* TRITONBACKEND_InputBuffer(Opaque* input, uint32_t index, const void** buffer,
                                  uint64_t* bytes, int* memory, int64_t* id);
Opaque* TRITONBACKEND_ResponseNew(Opaque** response, Opaque* request);
Opaque* TRITONBACKEND_ResponseOutput(Opaque* response, Opaque** output, const char* name,
                                     int datatype, const int64_t* shape, uint32_t dims);
Opaque* TRITONBACKEND_OutputBuffer(Opaque* output, void** buffer, uint64_t bytes, int* memory,
                                   int64_t* id);
Opaque* TRITONBACKEND_ResponseSend(Opaque* response, uint32_t flags, Opaque* error);
Opaque* TRITONBACKEND_RequestRelease(Opaque* request, uint32_t flags);
Opaque* TRITONBACKEND_ModelInstanceReportStatistics(Opaque* instance, Opaque* request,
                                                    _Bool success, uint64_t start,
                                                    uint64_t compute_start, uint64_t compute_end,
                                                    uint64_t end);
Opaque* TRITONBACKEND_ModelInstanceReportBatchStatistics(Opaque* instance, uint64_t rows,
                                                         uint64_t start, uint64_t compute_start,
                                                         uint64_t compute_end, uint64_t end);

static uint64_t read_clock(clockid_t clock) {
  struct timespec time;
  clock_gettime(clock, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}
static uint64_t now(void) { return read_clock(CLOCK_MONOTONIC); }

static void be_busy(void) {
  const char* text = getenv("BUSY_US");
  if (!text) return;
  const uint64_t until = read_clock(CLOCK_THREAD_CPUTIME_ID) + strtoull(text, 0, 10) * 1000;
  while (read_clock(CLOCK_THREAD_CPUTIME_ID) < until) {
  }
}

Opaque* TRITONBACKEND_ModelInstanceExecute(Opaque* instance, Opaque** requests, uint32_t count) {
  for (uint32_t k = 0; k < count; ++k) {
    Opaque *input, *response, *output;
    const char* name;
    const int64_t* shape;
    const void* from;
    void* to;
    uint32_t dims, buffers;
    uint64_t bytes, piece, done = 0;
    int datatype, memory = 0;
    int64_t id = 0;
    const uint64_t start = now();
    be_busy();
    TRITONBACKEND_ResponseNew(&response, requests[k]);
    TRITONBACKEND_RequestInputByIndex(requests[k], 0, &input);
    TRITONBACKEND_InputProperties(input, &name, &datatype, &shape, &dims, &bytes, &buffers);
    TRITONBACKEND_ResponseOutput(response, &output, "y", datatype, shape, dims);
    TRITONBACKEND_OutputBuffer(output, &to, bytes, &memory, &id);
    for (uint32_t b = 0; b < buffers; ++b) {
      TRITONBACKEND_InputBuffer(input, b, &from, &piece, &memory, &id);
      memcpy((char*)to + done, from, piece);
      done += piece;
    }
    TRITONBACKEND_ResponseSend(response, 1, 0);
    const uint64_t end = now();
    TRITONBACKEND_ModelInstanceReportStatistics(instance, requests[k], 1, start, start, end, end);
    TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, 1, start, start, end, end);
    TRITONBACKEND_RequestRelease(requests[k], 1);
  }
  return 0;
}
