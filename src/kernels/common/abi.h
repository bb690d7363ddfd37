/* kernels/common/abi.h — what generated bodies and the runtime agree on. Plain C structures, no
 * includes but the integer types, so that a host compiler, a device compiler and the runtime read
 * one text. A change here changes OBK_ABI. */
#ifndef OBK_ABI_H
#define OBK_ABI_H

#include <stdint.h>

#define OBK_ABI 1

/* One task: a rectangle of a work's domain. 64 bytes, so that a record is one line of a cache and
 * four 16-byte loads. */
typedef struct ObkTask {
  uint32_t work;  /* index of the work: body, parameters, operands */
  uint32_t wave;  /* tasks of one wave run in any order; a barrier stands between waves */
  int64_t r0, r1; /* rows of the domain, linear over its row dimensions */
  int64_t c0, c1; /* columns */
  /* What the task streams, so that a machine may request it before the task. Packed weights: their
   * byte offset into the work's last operand (a GPU's loader makes it an address), bytes, 0 for
   * none, and bytes of a group of columns. Or keys and values that the caller keeps
   * (OBK_HAS_IN_PLACE_KV): OBK_IN_PLACE_KEYS and OBK_IN_PLACE_VALUES, where the ranges of the last
   * two operands begin, in units of 16 bytes; bytes of either range; and OBK_IN_PLACE_ROW, the
   * bytes of a row. */
  int64_t weights;
  int32_t weight_bytes, weight_group;
  union {
    int64_t nanos; /* in a schedule: predicted */
    int64_t block; /* in a GPU's table: its work's block (kernels/cuda/exec/layout.h) */
  };
} ObkTask;

#define OBK_HAS_IN_PLACE_KV(task) ((task)->weight_group < 0)
#define OBK_IN_PLACE_ROW(task) (-(task)->weight_group)
#define OBK_IN_PLACE_KEYS(task) ((task)->weights & 0xffffffffll)
#define OBK_IN_PLACE_VALUES(task) ((task)->weights >> 32)

struct ObkKernels; /* kernels/cpu/table.h: the tile library's entry points, called by bodies */

/* A worker: one virtual SM. `scratch` is its scratchpad memory, 64-byte aligned, private to the
 * worker while a task runs. */
typedef struct ObkWorker {
  void* scratch;
  int64_t scratch_bytes;
  int32_t sm, sms;
  const struct ObkKernels* kernels;
} ObkWorker;

/* A body. `params`: extents, strides and offsets in the order in which code generation numbered
 * them. `operands`: base addresses. */
typedef void (*ObkBody)(const ObkTask* task, const int64_t* params, void* const* operands,
                        ObkWorker* worker);

#endif
