/* kernels/cuda/exec/layout.h — structures that the host fills and device code reads, and numbers
 * that both need: one text for both.
 *
 * To the host an address of the GPU's memory is a number. Device code says first that it is a
 * pointer:
 *
 *   #define OBK_DEVICE_POINTER(type) type*
 *
 * What is a constant of one kernel (PipelinedGemmNumbers) stands in that kernel's text. */
#ifndef OBK_LAYOUT_H
#define OBK_LAYOUT_H

#include "abi.h"

#ifndef OBK_DEVICE_POINTER
#define OBK_DEVICE_POINTER(type) uint64_t
#endif

#ifndef OBK_THREADS
#define OBK_THREADS 256 /* of a CTA, that compute */
#endif

namespace obk {

/* ---- shared memory ---- */
static constexpr int kAtomBytes = 1024; /* of packed weights of 16 bits: 8 columns by 64 k */
static constexpr int kRingPageBytes = 24 * kAtomBytes;     /* a page of weights (ring.cuh) */
static constexpr int kDataflowPageBytes = 16 * kAtomBytes; /* of a dataflow program */
static constexpr int kPageBarBytes = 16;                   /* a page's two mbarriers */

/* ---- a dataflow program (dataflow.cuh) ---- */
static constexpr int kDataflowThreads =
    OBK_THREADS + 96; /* three more warps load weights, fetch tables, place operands */
/* At once in shared memory: blocks of works, small weights of tasks. (Those of two
 * tasks would do, but racecheck reports a read before and a write after the same barrier then; of
 * three it reports nothing.) */
static constexpr int kDataflowBlocks = 8, kDataflowSoon = 3;
static constexpr int kGatherUnit = 16; /* bytes */

/* ---- limits ---- */
static constexpr int kInlinePorts = 48;  /* ports whose addresses travel in a kernel's parameter */
static constexpr int kGridOperands = 32; /* of a kernel without a table, at most */
static constexpr int kPipelinedGemmStages =
    24;                               /* that a pipelined GEMM has mbarriers for, at most */
static constexpr int kMapBytes = 128; /* a tensor map */

}  // namespace obk

/* An operand: an address, or one of these with an index of a port or an offset into the arena or
 * the CTA's own copies. */
#define OBK_PORT (1ull << 63)
#define OBK_ARENA (1ull << 62)
#define OBK_SMEM_COPY (1ull << 61)
/* Of a dataflow program: a small weight at the lower bits, so many lines of 128 bytes above
 * OBK_SOON_AT: to be copied to shared memory a task ahead. */
#define OBK_SOON (1ull << 60)
#define OBK_SOON_AT 52
/* ObkTask::block: 64-bit words of the work's block; above OBK_BLOCK_AT its offset in bytes; above
 * OBK_FRESH_AT, of a dataflow program, which of the values that its work gathers no task before
 * has gathered. */
#define OBK_BLOCK_AT 16
#define OBK_FRESH_AT 48

/* The head of a work's block; `params` words and `operands` words follow, then what it gathers. */
struct ObkWork {
  int32_t body, params, operands;
  int32_t groups;         /* groups of lanes that have room for their staged rows */
  int64_t row_scratch;    /* bytes of a group's staged rows */
  int32_t gathers, spare; /* ObkGather behind the operands, from an even word on: dataflow.cuh */
};
#define OBK_WORK_WORDS 4
static_assert(sizeof(ObkWork) == 8 * OBK_WORK_WORDS, "host and device lay out ObkWork alike");

/* What a work reads that other CTAs broadcast: its place in the arena in units of kGatherUnit
 * bytes, where the copy goes, how many pairs of words. */
struct ObkGather {
  uint32_t from, smem_copy;
  int32_t pairs, spare;
};
static_assert(sizeof(ObkGather) == 16, "host and device lay out ObkGather alike");

/* When a task ran, in nanoseconds of the GPU's clock, and where. */
struct ObkStamp {
  uint64_t start, end;
  uint32_t sm, spare;
};
static_assert(sizeof(ObkStamp) == 24, "host and device lay out ObkStamp alike");

/* What a spin waited for when its clock ran out; in memory of the host, which outlives a trap.
 * Behind it, of one kernel with barriers, two uint32_t for each SM: all SMs' tasks that they are in
 * or wait to begin, their numbers plus one; then the same as they were when the clock ran out, for
 * the GPU goes on for a while after a trap. */
struct ObkWatch {
  uint32_t hit, sm, task, kind; /* kind: 1 the grid barrier, 2 and 3 a page of the ring,
                                   4 another member of a gang, 5 a broadcast word, 6 rows of A */
  uint64_t counter, want, have;
};
static_assert(sizeof(ObkWatch) == 40, "host and device lay out ObkWatch alike");

/* The only parameter of a kernel with a table. */
struct ObkProgram {
  OBK_DEVICE_POINTER(const ObkTask) tasks;
  OBK_DEVICE_POINTER(const int32_t)
  first; /* SM s runs tasks first[s] .. first[s + 1]; null: CTA b runs tasks b, b + CTAs, .. */
  OBK_DEVICE_POINTER(const char) blocks;
  OBK_DEVICE_POINTER(char) arena;
  OBK_DEVICE_POINTER(void* const) ports; /* inputs, then outputs; null: `inline_ports` */
  OBK_DEVICE_POINTER(uint64_t) counter;  /* the barrier's, this instance's own */
  OBK_DEVICE_POINTER(ObkWatch) watch;    /* memory of the host, or null */
  OBK_DEVICE_POINTER(ObkStamp) stamps;   /* by task, or null */
  int32_t waves, ring_pages;             /* a kernel of one work: its tasks instead of waves */
  int32_t scratch_at, block_at;          /* where in dynamic shared memory these lie */
  int32_t block_bytes;         /* of the place of a block; one kernel has two, a dataflow program
                                  kDataflowBlocks */
  int32_t smem_copies_at;      /* the CTA's copies of values: dataflow.cuh */
  int32_t soon_at, soon_bytes; /* of the small weights of a task, of kDataflowSoon tasks in a row */
  int64_t block;               /* a kernel of one work: its block, as a task's `block` says it */
  int32_t early, unused;       /* of a graph: whether the next kernel may start when this begins */
  OBK_DEVICE_POINTER(void) inline_ports[obk::kInlinePorts];
};
static_assert(sizeof(ObkProgram) == 112 + 8 * obk::kInlinePorts,
              "host and device lay out ObkProgram alike");

/* The only parameter of a kernel of several instances (OBK_INSTANCES): programs of the same code,
 * each with tables, weights and memory of its own. Instance blockIdx.y has its record, one of the
 * structs here, `at` bytes into its records. */
struct ObkInstances {
  OBK_DEVICE_POINTER(const uint64_t) records; /* by instance: where its records begin */
  uint64_t at;
};
static_assert(sizeof(ObkInstances) == 16, "host and device lay out ObkInstances alike");

/* The only parameter of a kernel launched as a grid (grid.cuh). */
struct ObkGrid {
  int32_t rows, columns, tile_rows, tile_columns;
  int32_t across, scratch_bytes;       /* rectangles side by side; of shared memory, for each CTA */
  int32_t early, unused;               /* whether the next kernel may start when this begins */
  OBK_DEVICE_POINTER(ObkStamp) stamps; /* by task, or null */
  OBK_DEVICE_POINTER(void) operands[obk::kGridOperands];
  OBK_DEVICE_POINTER(ObkWatch) watch;
};
static_assert(sizeof(ObkGrid) == 48 + 8 * obk::kGridOperands,
              "host and device lay out ObkGrid alike");

/* The only parameter of a pipelined GEMM's kernel (pipelined_gemm.cuh). What the first copies of
 * weights follow from is one line of its cache, which is cold then. */
struct alignas(64) ObkPipelinedGemm {
  char map[obk::kMapBytes]; /* of the matrix in which A's rows lie: [k / 64][rows][64] */
  OBK_DEVICE_POINTER(const char) weights;
  OBK_DEVICE_POINTER(const char)
  next; /* weights of the GEMM after this one, which all CTAs together prefetch */
  int64_t next_bytes, next_share;         /* and of which each prefetches so many bytes */
  ObkGrid grid;                           /* operands, stamps, watch */
  alignas(64) char b_map[obk::kMapBytes]; /* of the matrix in which B lies, where B is not packed */
};
static_assert(sizeof(ObkPipelinedGemm) ==
                  (obk::kMapBytes + 32 + sizeof(ObkGrid) + 63) / 64 * 64 + obk::kMapBytes,
              "host and device lay out ObkPipelinedGemm alike");
#ifndef __CUDACC_RTC__ /* which knows no offsets */
static_assert(obk::kMapBytes % 64 == 0 &&
                  __builtin_offsetof(ObkPipelinedGemm, grid) == obk::kMapBytes + 32,
              "the first copies of weights follow from one line");
#endif

#endif
