/* kernels/cuda/attention/attention_shape.h — how an attention tile is cut and what shared memory it
 * takes: arithmetic that host and device must do alike.
 *
 * Keys come in blocks of 16, or of 32 when there are more than 128 and rows are short enough; block
 * b belongs to chain b % 8. A chain is summed in order of its blocks, the eight chains are joined
 * in their order, always: that, and not how many warps share the work, decides a row's bits. A pass
 * works on up to 128 query rows: each of 1 to 8 groups of warps takes some of the chains, and
 * within it each warp 16 rows. */
#ifndef OBK_ATTENTION_SHAPE_H
#define OBK_ATTENTION_SHAPE_H

#include <stdint.h>

#include "tiles.h"

#ifdef __CUDACC__
#define OBK_SHAPE static constexpr __host__ __device__ inline
#else
#define OBK_SHAPE static constexpr inline
#endif

enum {
  kAttentionStages = 3,         /* blocks of a group on their way or in use, at most */
  kAttentionRoom = 147456,      /* bytes of shared memory for keys, values and sums */
  kAttentionFew = 81920,        /* where queries are few: the rest is for weights on their way */
  kAttentionMostQueries = 36864 /* and for queries */
};

/* What follows from the types and sizes alone; pitches are bytes of a row in shared memory. */
struct AttentionSizes {
  int32_t keys;    /* of a block */
  int32_t columns; /* of V, that a pass sums in registers */
  int32_t k_pitch, v_pitch, slot_pitch;
  int32_t stage, slot; /* bytes of K and V of a block; of a warp's sums */
  int32_t most_rows_log;
  bool over_keys; /* a warp's sums have room where its first block lay */
};

/* What follows from the rows and keys: 2^rows_log warps side by side, 2^groups_log groups. */
struct AttentionCut {
  int32_t rows_log, groups_log, stages;
  int32_t slots, slot_step, queries, parts, sums, own, bytes; /* where they begin; the end */
};

/* An odd count of 16 bytes, so that eight rows below one another meet no bank twice. */
OBK_SHAPE int32_t attention_pitch(int32_t type, int64_t columns) {
  return OBK_LIES_AS_F32(type) ? (int32_t)((columns + 3) / 4 | 1) * 16
                               : (int32_t)((columns + 15) / 16 * 2 + 1) * 16;
}

OBK_SHAPE AttentionSizes attention_sizes(int32_t type, int64_t keys, int64_t size,
                                         int64_t value_size) {
  AttentionSizes z = {};
  int64_t parts = OBK_LIES_AS_F32(type) ? (value_size + 127) / 128 : 1; /* of equal width */
  while (parts > 1 && value_size % parts != 0) ++parts;
  z.columns = (int32_t)(parts > 1 ? value_size / parts : value_size);
  z.k_pitch = attention_pitch(type, size), z.v_pitch = attention_pitch(type, z.columns);
  z.slot_pitch = ((z.columns + 15) / 16 * 16 + 8) * 4;
  z.keys = keys > 128 && 32 * 8 * (z.k_pitch + z.v_pitch) <= kAttentionRoom ? 32 : 16;
  z.stage = z.keys * (z.k_pitch + z.v_pitch), z.slot = 16 * z.slot_pitch;
  z.over_keys = z.stage >= z.slot;
  for (int32_t log = 3; log > 0; --log)
    if (z.most_rows_log == 0 && (16 << log) * z.k_pitch <= kAttentionMostQueries)
      z.most_rows_log = log;
  return z;
}

OBK_SHAPE bool attention_fits(const AttentionSizes& z, int32_t rows_log, int32_t groups_log,
                              int32_t stages) {
  const int32_t slots = groups_log == 3 && z.over_keys ? 0 : z.slot << (rows_log + groups_log);
  return (stages * z.stage << groups_log) + slots <= kAttentionRoom;
}

OBK_SHAPE AttentionCut attention_cut(int32_t type, const AttentionSizes& z, int64_t queries,
                                     int64_t keys) {
  AttentionCut c = {};
  c.rows_log = queries <= 16 ? 0 : queries <= 32 ? 1 : queries <= 64 ? 2 : 3;
  if (c.rows_log > z.most_rows_log) c.rows_log = z.most_rows_log;
  c.groups_log = 3 - c.rows_log;
  const int64_t lap = z.keys * 8;                                /* keys of a block of each chain */
  const int32_t chain = keys > 2 * lap ? 3 : keys > lap ? 2 : 1; /* its blocks, or enough */
  const bool easy = attention_fits(z, 0, 3, kAttentionStages) &&
                    attention_fits(z, 1, 2, kAttentionStages) &&
                    attention_fits(z, 2, 1, kAttentionStages);
  if (!easy) { /* as many warps as there are for the keys */
    if (c.groups_log == 3 && !attention_fits(z, c.rows_log, 3, 1)) c.groups_log = 2;
    if (c.groups_log == 2 && !attention_fits(z, c.rows_log, 2, 1)) c.groups_log = 1;
    if (c.groups_log == 1 && !attention_fits(z, c.rows_log, 1, 1)) c.groups_log = 0;
  }
  c.stages = chain << (3 - c.groups_log);
  if (c.stages > kAttentionStages) c.stages = kAttentionStages;
  if (!easy) { /* then as many stages as have room */
    if (c.stages == 3 && !attention_fits(z, c.rows_log, c.groups_log, 3)) c.stages = 2;
    if (c.stages == 2 && !attention_fits(z, c.rows_log, c.groups_log, 2)) c.stages = 1;
    while (c.rows_log == 0 && c.stages > 1 && (c.stages * z.stage << c.groups_log) > kAttentionFew)
      --c.stages;
  }
  const bool over_keys = c.groups_log == 3 && z.over_keys;
  const int32_t keys_end = c.stages * z.stage << c.groups_log;
  c.slots = over_keys ? 0 : keys_end, c.slot_step = over_keys ? z.stage : z.slot;
  c.queries = over_keys ? keys_end : keys_end + (z.slot << (c.rows_log + c.groups_log));
  c.parts = c.queries + (z.k_pitch * 16 << c.rows_log);
  c.sums = c.parts + 8 * 16 * 8;
  c.own = c.sums + (2 * 16 * 8 << c.rows_log);
  c.bytes = c.own + (type == kObkF32 ? 8 * (z.keys * 80 + 64) : 0) + 16;
  return c;
}

/* ---- 16-bit heads of a multiple of 32: attention_warps.cuh ---- */
OBK_SHAPE bool attention_by_warps(int32_t type, int64_t size, int64_t value_size) {
  return !OBK_LIES_AS_F32(type) && size % 32 == 0 && size > 0 && size <= 128 &&
         (value_size == 32 || value_size == 64 || value_size == 128);
}
/* Blocks of 32 keys of each of the four chains. */
OBK_SHAPE int32_t attention_chain(int64_t keys) {
  return keys <= 128 ? 1 : (int32_t)(((keys + 31) / 32 + 3) / 4);
}

/* Up to 256 keys, or pieces of so many: attention_short.cuh. */
struct ShortCut {
  int32_t rows_log;          /* warps with rows of their own */
  int32_t blocks, keys, own; /* 16 keys each, of all; keys of a CTA; of a warp, for scores */
  int32_t v_pitch, p_pitch;  /* bytes */
  int32_t q_at, k_at, v_at, p_at, b_at, m_at, bytes;
};
OBK_SHAPE int32_t short_rows_log(int64_t queries, int64_t keys) {
  return queries <= 16 ? 0 : queries <= 32 ? 1 : queries <= 64 || keys > 128 ? 2 : 3;
}
OBK_SHAPE bool attention_short(int64_t keys, int64_t kv_splits) {
  return keys > 0 && ((keys + 15) / 16 + kv_splits - 1) / kv_splits <= 16;
}
OBK_SHAPE ShortCut short_cut(int64_t queries, int64_t keys, int64_t size, int64_t value_size,
                             int64_t kv_splits, bool in_place) {
  ShortCut c = {};
  c.rows_log = short_rows_log(queries, keys);
  c.blocks = (int32_t)((keys + 15) / 16),
  c.keys = (int32_t)((c.blocks + kv_splits - 1) / kv_splits) * 16;
  const int32_t groups = 8 >> c.rows_log, rows = 16 << c.rows_log;
  c.own = (c.keys + 8 * groups - 1) / (8 * groups) * 8;
  c.v_pitch = (int32_t)value_size * 2 + 16, c.p_pitch = c.keys * 2 + 16;
  c.k_at = rows * (int32_t)size * 2;
  const int32_t keys_end = c.k_at + c.own * groups * (int32_t)size * 2;
  /* Weights come where queries and keys lay, behind them kept values; V is read 32 rows at a time.
   */
  const int32_t weights = groups > 1 ? (rows * c.p_pitch + 15) / 16 * 16 : 0;
  c.v_at = in_place || keys_end < weights ? weights : keys_end;
  const int32_t values_end = c.v_at + (c.keys + 31) / 32 * 32 * c.v_pitch;
  c.b_at = values_end > keys_end ? values_end : keys_end, c.m_at = c.b_at + c.own * groups * 4;
  c.bytes = c.m_at + (groups > 1 ? rows * groups * 4 : 0) + 16;
  return c;
}

/* What the pieces of one head leave: a count, then of each piece [16 rows][value_size] sums and
 * [16 rows] maxima and totals. */
enum { kAttentionTicketBytes = 128 };
OBK_SHAPE int64_t kv_split_bytes(int64_t value_size) { return 16 * (value_size + 2) * 4; }

/* More keys (attention_long.cuh): 2^rows_log warps with 16 rows each, the others of the eight have
 * other keys. */
struct LongCut {
  int32_t rows_log, groups, own; /* groups of warps; chains of each */
  int32_t chain, walk, stages; /* blocks: of a chain, that a group walks, that are there at once */
  int32_t k_pitch, v_pitch, stage, pitch;
  int32_t slots, parts, bytes;
};
OBK_SHAPE int32_t long_rows_log(int64_t queries, int64_t size, int64_t value_size) {
  return queries <= 32 || value_size > 64 ? 1 : queries <= 64 || size > 96 ? 2 : 3;
}
OBK_SHAPE LongCut long_cut(int64_t queries, int64_t keys, int64_t size, int64_t value_size) {
  LongCut c = {};
  c.rows_log = long_rows_log(queries, size, value_size);
  c.groups = 8 >> c.rows_log, c.own = 4 / c.groups;
  c.chain = attention_chain(keys), c.walk = c.own * c.chain;
  /* Of a row's groups of 64 bytes those of odd rows are swapped, or their count is odd. */
  c.k_pitch = (int32_t)size * 2, c.v_pitch = (int32_t)value_size * 2 + 16;
  c.stage = 32 * (c.k_pitch + c.v_pitch);
  const int32_t blocks = (int32_t)((keys + 31) / 32), most = blocks < c.walk ? blocks : c.walk;
  c.stages = 81920 / (c.groups * c.stage);
  c.stages = c.stages < 2 ? 2 : c.stages > 4 ? 4 : c.stages;
  if (c.stages > most) c.stages = most > 0 ? most : 1;
  c.pitch = (int32_t)value_size * 4 + 32;
  const int32_t rows = 16 << c.rows_log, stages = c.groups * c.stages * c.stage;
  const int32_t slots = c.groups > 1 ? 4 * rows * c.pitch : 0;
  c.slots = c.own > 1 ? stages : 0; /* over the keys where a group has one chain */
  c.parts = c.own > 1 ? stages + slots : slots > stages ? slots : stages;
  c.bytes = c.parts + (c.groups > 1 ? 4 * rows * 8 : 0) + 16;
  return c;
}

#endif
