/* kernels/cuda/attention/attention.cuh — attention of one block of query rows of one head, by all
 * 256 threads of a CTA: what an ObkAttention says (tiles.h), as the CPU's tile has it.
 *
 *   obk::attention_tile<kObkF16, 64, 64, 16, 128>(w, g)   size, value_size, most queries, keys
 *
 * f16, bf16: mma.sync, sizes up to 256: attention_short.cuh and attention_long.cuh for heads of
 * 32, 64, 96 and 128, else the walk here with attention_mma.cuh; f32: exact (attention_fma.cuh), or
 * by tensor cores from operands rounded to tf32 (attention_tf32.cuh), up to 512. Any number of
 * queries and keys, any strides and alignment of Q, K, V in global memory. Y best lies in shared
 * memory, where an epilogue reads it. g.scratch: shared memory, as much as
 * cuda_attention_scratch_bytes says. It ends with a barrier, after which Y may be read.
 *
 * The loop here: keys are divided among warps (attention_shape.h); each warp walks its blocks with
 * a running maximum, its copies up to three blocks ahead, and holds scores and sums in registers;
 * at the end the warps' sums are combined. Up to 128 keys that is one step for each warp and three
 * barriers. A step's length is its chain of instructions, so sizes are constants, and the tile is
 * inlined: what the body sets to a constant (no mask, no causal rule) costs nothing.
 *
 * Numbers: scores, softmax and sums in float, weights rounded to the type of V. A row's bits depend
 * on its own inputs alone: not on the tile's other rows, the cut or the SM. So heads that share K
 * and V may stand as rows of one tile where there is no causal rule. Needs sm_80. */
#ifndef OBK_ATTENTION_CUH
#define OBK_ATTENTION_CUH

#include "attention/attention_scores.cuh"
#include "attention/attention_shape.h"
#include "core/dialect.cuh"
#include "tiles.h"

namespace obk {

static constexpr int log2_up(int n, int log = 0) {
  return (1 << log) < n ? log2_up(n, log + 1) : log;
}

/* kRows rows of `kBytes` that 2^kThreadsLog threads load to shared memory, `kChunks` of 16 bytes
 * each, zero filled. Neighbouring threads take neighbouring pieces. */
template <int kBytes, int kChunks, int kPitch, bool kWide, int kRows, int kThreadsLog>
struct RowsOf {
  static constexpr int kLog = kChunks > 32 ? 5 : log2_up(kChunks), kEach = (kChunks + 31) >> 5;
  static constexpr int kStep = 1 << (kThreadsLog - kLog), kTimes = (kRows + kStep - 1) / kStep;
  static constexpr bool kAll = kStep <= kRows && (kEach > 1 || kChunks == 1 << kLog);
  const char* at; /* this thread's piece of its first row */
  int32_t row;    /* bytes */
  uint32_t to;    /* offset of the piece */
  int32_t first;  /* this thread's first row */

  __device__ __forceinline__ static int thread() { return threadIdx.x & ((1 << kThreadsLog) - 1); }
  __device__ __forceinline__ static int chunk() { return threadIdx.x & ((1 << kLog) - 1); }

  __device__ __forceinline__ void start(const void* from, int64_t row_bytes) {
    first = thread() >> kLog, row = (int32_t)row_bytes;
    at = (const char*)from + (int64_t)first * row + chunk() * 16;
    to = first * kPitch + chunk() * 16;
    if (!kAll && chunk() >= kChunks) first = 1 << 30; /* none */
  }
  /* Rows from `skip` on, of which `there` are there. */
  __device__ __forceinline__ void bring(uint32_t base, int skip, int there, bool plain) const {
    if (plain) {
      const char* start = at + (int64_t)(skip - (thread() >> kLog)) * row - chunk() * 16;
      bring_plainly(base, kPitch, kChunks, start, row, kRows, there, kBytes, kWide, thread(),
                    1 << kThreadsLog);
      return;
    }
    const char* from = at + (int64_t)skip * row;
    const int jump = kStep * row;
#pragma unroll
    for (int i = 0; i < kTimes; ++i, from += jump) {
      const int r = first + i * kStep;
      if (kAll || r < kRows) copy_row(base + to + i * kStep * kPitch, from, r < there);
    }
  }
  __device__ __forceinline__ void copy_row(uint32_t place, const char* from, bool there) const {
#pragma unroll
    for (int q = 0; q < kEach; ++q) {
      const int p = chunk() + 32 * q;
      if (kEach > 1 && p >= kChunks) break;
      int bytes = 16;
      if (kBytes < kChunks * 16) bytes = kBytes - p * 16 < 0 ? 0 : kBytes - p * 16;
      if (kBytes < kChunks * 16 && bytes > 16) bytes = 16;
      copy16_partly(place + q * 512, from + q * 512, there ? (uint32_t)bytes : 0u);
    }
  }
};

/* Joins kGroups chains, in their order, to largest, total and v. */
template <int kGroups>
OBK_DEVICE void join_chains(uint32_t slot, int step, uint32_t part, int part_step, float& largest,
                            float& total, float (&v)[4]) {
  float m[kGroups], l[kGroups];
  uint32_t x[kGroups][4];
#pragma unroll
  for (int k = 0; k < kGroups; ++k) {
    load_shared8(m[k], l[k], part + k * part_step);
    load_shared16(x[k], slot + k * step);
  }
#pragma unroll
  for (int k = 0; k < kGroups; ++k) {
    const float d = largest - m[k], e = d != d ? 0.0f : exp2_approx(-fabsf(d));
    const float old = d < 0.0f ? e : 1.0f, now = d < 0.0f ? 1.0f : e;
    largest = fmaxf(largest, m[k]);
    total = total * old + l[k] * now;
#pragma unroll
    for (int q = 0; q < 4; ++q) v[q] = v[q] * old + __int_as_float((int)x[k][q]) * now;
  }
}

/* Joins the chains of one round to what Y holds of the rounds before. */
template <int kColumns>
static __device__ __forceinline__ void join_round(const ObkAttention& g, const AttentionSizes& z,
                                                  const AttentionCut& c, uint32_t base, int first,
                                                  int queries, int column, int round, bool last,
                                                  bool zero) {
  constexpr int kFours = (kColumns + 3) / 4;
  constexpr int kLog = log2_up(kFours);
  static_assert(kLog <= 8, "a row's columns belong to one CTA");
  const int four = (threadIdx.x & ((1 << kLog) - 1)) * 4;
  if (four >= kColumns) return;
  const bool together =
      kColumns % 4 == 0 && g.y_row % 4 == 0 && ((uint64_t)(g.y + column) & 15) == 0;
#pragma unroll 1
  for (int row = threadIdx.x >> kLog; row < queries; row += 256 >> kLog) {
    float* y = g.y + (int64_t)(first + row) * g.y_row + column + four;
    float largest = -INFINITY, total = 0.0f, v[4] = {};
    if (round > 0) {
      load_shared8(largest, total, base + c.sums + (((round & 1) * 16 << c.rows_log) + row) * 8);
      if (together) {
        const float4 old = *(const float4*)y;
        v[0] = old.x, v[1] = old.y, v[2] = old.z, v[3] = old.w;
      } else {
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (four + e < kColumns) v[e] = y[e];
      }
    }
    uint32_t slot =
        base + c.slots + (row >> 4) * c.slot_step + (row & 15) * z.slot_pitch + four * 4;
    uint32_t part = base + c.parts + row * 8;
    const int step = c.slot_step << c.rows_log, part_step = 128 << c.rows_log;
    if (c.groups_log == 3)
      join_chains<8>(slot, step, part, part_step, largest, total, v);
    else
#pragma unroll 1
      for (int k = 0; k < 1 << c.groups_log; ++k, slot += step, part += part_step)
        join_chains<1>(slot, step, part, part_step, largest, total, v);
    if (last) {
      const float over = total == 0.0f ? (zero ? 0.0f : NAN) : __fdividef(1.0f, total);
#pragma unroll
      for (int q = 0; q < 4; ++q) v[q] *= over;
    } else if (four == 0) {
      store_shared8(base + c.sums + ((((round + 1) & 1) * 16 << c.rows_log) + row) * 8, largest,
                    total);
    }
    if (together) {
      *(float4*)y = make_float4(v[0], v[1], v[2], v[3]);
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (four + e < kColumns) y[e] = v[e];
    }
  }
}

/* Blocks of keys in the order in which a group takes them. */
struct KeyWalk {
  int block, left, round; /* left: of the chain */
  __device__ __forceinline__ void next(int chain, int groups_log, int group) {
    block += 8;
    if (--left > 0) return;
    left = chain, ++round;
    block = round < 8 >> groups_log ? (round << groups_log) + group : 1 << 30;
  }
};

/* Queries from `first` on, as many as a pass takes; columns of V from `column` on. */
template <class Math>
static __device__ __forceinline__ void attention_pass(const ObkAttention& g, uint32_t base,
                                                      int first, int column) {
  constexpr AttentionSizes z = Math::kSizes;
  constexpr AttentionCut c = Math::kCut;
  constexpr bool kWide = Math::kElement == 4;
  constexpr int kE = Math::kElement, kKBytes = Math::kSize * kE, kVBytes = z.columns * kE;
  constexpr int kKChunks = kWide ? (kKBytes + 15) / 16 : (kKBytes + 31) / 32 * 2;
  constexpr int kVChunks = kWide ? (kVBytes + 15) / 16 : (kVBytes + 31) / 32 * 2;
  constexpr int kVAt = z.keys * z.k_pitch;
  constexpr int kThreadsLog = 8 - c.groups_log, kMost = 16 << c.rows_log, kStaticKeys = Math::kKeys;
  typedef RowsOf<kKBytes, kKChunks, z.k_pitch, kWide, z.keys, kThreadsLog> KeyRows;
  typedef RowsOf<kVBytes, kVChunks, z.v_pitch, kWide, z.keys, kThreadsLog> ValueRows;
  typedef RowsOf<kKBytes, kKChunks, z.k_pitch, kWide, kMost, 8> QueryRows;
  const int group = threadIdx.x >> kThreadsLog;
  const int row = (threadIdx.x & ((1 << kThreadsLog) - 1)) / 32 * 16;
  const int left = (int)g.queries - first, queries = left < kMost ? left : kMost;
  int seen = kStaticKeys, reach = 0;
  if (g.causal) {
    const int64_t wanted = first + 1 + g.causal_offset; /* row 0 sees the keys before it */
    reach = wanted > kStaticKeys ? kStaticKeys : wanted < -queries ? -queries : (int)wanted;
    const int end = reach + queries - 1;
    seen = end < 0 ? 0 : end < seen ? end : seen;
  }
  const int blocks = (seen + z.keys - 1) / z.keys;
  const int chain = blocks > 8 ? (blocks + 7) >> 3 : 1;

  const char* v_from = (const char*)g.v + column * kE;
  const bool plain = (((uint64_t)g.q | (uint64_t)g.k | (uint64_t)v_from |
                       (uint64_t)((g.q_row | g.k_row | g.v_row) * kE)) &
                      15) != 0;
  KeyRows keys;
  ValueRows values;
  keys.start(g.k, g.k_row * kE), values.start(v_from, g.v_row * kE);
  const uint32_t own = base + group * z.stage;
  constexpr int kStageStep = z.stage << c.groups_log;
  KeyWalk ask = {group, chain, 0};
  auto bring_keys = [&](int slot) {
    const int key = ask.block * z.keys;
    if (ask.block < blocks) keys.bring(own + slot * kStageStep, key, seen - key, plain);
    copy16_commit();
  };
  auto bring_values = [&](int slot) {
    const int key = ask.block * z.keys;
    if (ask.block < blocks) values.bring(own + slot * kStageStep + kVAt, key, seen - key, plain);
    copy16_commit();
  };
  QueryRows rows;
  rows.start(g.q, g.q_row * kE);
  rows.bring(base + c.queries, first, left, plain);
#pragma unroll 1
  for (int s = 0;;) {
    bring_keys(s), bring_values(s);
    if (++s == c.stages) break;
    ask.next(chain, c.groups_log, group);
  }
  const Scores scores = {g.mask,         g.mask_query, g.mask_key,    first,
                         (int)g.queries, seen,         reach,         g.scale,
                         g.softcap,      g.mask_type,  g.causal != 0, g.zero_if_masked != 0};
  Math math;
  math.start(base + c.queries + row * z.k_pitch, base + c.own);
  const int last_row = row + 15 < queries ? row + 15 : queries - 1;
  const int end_block = row >= queries ? 0 : (scores.limit(last_row, 0) + z.keys - 1) / z.keys;
  auto meet = [&] {
    if (c.groups_log == 3)
      __syncwarp();
    else
      named_barrier(1 + group, 1 << kThreadsLog);
  };
  /* While a block's keys are weighed, the values of one come in where those of the block before
   * lay; then keys where its own lay. */
  int slot = 0, before = -1;
  KeyWalk at = {group, chain, 0};
#pragma unroll 1
  for (;;) {
    const int key = at.block * z.keys;
    const bool work = at.block < end_block, masked = work && scores.masked(row, key, z.keys);
    if (masked) math.load_bias(scores, row, key);
    if (before < 0) {
      copy16_wait<2 * c.stages - 1>();
      __syncthreads(); /* the queries, too */
      math.take_queries();
      copy16_commit();
    } else {
      copy16_wait<2 * c.stages - 2>();
      meet();
      bring_values(before);
    }
    const uint32_t stage = own + slot * kStageStep;
    if (work) math.weigh(stage, scores, masked);
    if (before < 0)
      copy16_wait<2 * c.stages - 1>();
    else
      copy16_wait<2 * c.stages - 2>();
    meet();
    ask.next(chain, c.groups_log, group);
    bring_keys(slot);
    if (work) math.add(stage + kVAt);
    before = slot, slot = slot + 1 == c.stages ? 0 : slot + 1;
    const int round = at.round;
    at.next(chain, c.groups_log, group);
    if (at.round == round) continue;
    if (round > 0)
      __syncthreads(); /* the sums of the round before are read */
    else
      __syncwarp();
    if (row < queries) {
      const int place = (group << c.rows_log) + (row >> 4);
      math.leave(base + c.slots + place * c.slot_step, base + c.parts + place * 128);
      math.reset();
    }
    __syncthreads();
    const bool last = at.block == 1 << 30;
    join_round<z.columns>(g, z, c, base, first, queries, column, round, last,
                          g.zero_if_masked || kStaticKeys == 0);
    if (last) break;
  }
  __syncthreads();
}

}  // namespace obk

#include "attention/attention_fma.cuh"
#include "attention/attention_long.cuh"
#include "attention/attention_mma.cuh"
#include "attention/attention_short.cuh"
#include "attention/attention_tf32.cuh"

namespace obk {

/* The arithmetic for a type, with every size a constant. */
template <int kType, int kSize, int kValue, int kQueries, int kKeys>
struct AttentionMath {
  typedef AttentionMma<kType == kObkBf16, kSize, kValue, kQueries, kKeys> Is;
};
template <int kSize, int kValue, int kQueries, int kKeys>
struct AttentionMath<kObkF32, kSize, kValue, kQueries, kKeys> {
  typedef AttentionFma<kSize, kValue, kQueries, kKeys> Is;
};

template <int kSize, int kValue, int kQueries, int kKeys>
struct AttentionMath<kObkTf32, kSize, kValue, kQueries, kKeys> {
  typedef AttentionTf32<kSize, kValue, kQueries, kKeys> Is;
};

/* Heads of multiples of 32. */
template <int kType, int kSize, int kValue, int kQueries, int kKeys>
static __device__ __forceinline__ void attention_by_warps_tile(const ObkAttention& g,
                                                               uint32_t base) {
  constexpr bool kBfloat = kType == kObkBf16;
  constexpr bool kShort = attention_short(kKeys, 1);
  constexpr int kMost =
      16 << (kShort ? short_rows_log(kQueries, kKeys) : long_rows_log(kQueries, kSize, kValue));
#pragma unroll 1
  for (int first = 0;;) {
    if constexpr (kShort)
      AttentionShort<kBfloat, kSize, kValue, kQueries, kKeys>::pass(g, base, first);
    else
      AttentionLong<kBfloat, kSize, kValue, kQueries, kKeys>::pass(g, base, first);
    __syncthreads();
    first += kMost;
    if (kQueries <= kMost || first >= (int)g.queries) return;
  }
}

template <int kType, int kSize, int kValue, int kQueries, int kKeys>
static __device__ __forceinline__ void attention_tile(ObkLanes*, const ObkAttention& g) {
  const uint32_t base = (shared_address(g.scratch) + 15) & ~15u;
  if constexpr (attention_by_warps(kType, kSize, kValue)) {
    attention_by_warps_tile<kType, kSize, kValue, kQueries, kKeys>(g, base);
  } else {
    typedef typename AttentionMath<kType, kSize, kValue, kQueries, kKeys>::Is Math;
    constexpr int kMost = 16 << Math::kCut.rows_log, kColumns = Math::kSizes.columns;
    int column = 0, first = 0;
#pragma unroll 1
    do {
      attention_pass<Math>(g, base, first, column);
      first += kMost;
      if (kQueries <= kMost || first >= (int)g.queries) first = 0, column += kColumns;
    } while (column < kValue);
  }
}

/* A split of the keys (g.kv_split) for up to 16 rows, the splits of a head sharing g.exchange;
 * whether this was the last of them, which has Y. */
template <int kType, int kSize, int kValue, int kKeys, int kKvSplits>
static __device__ __forceinline__ bool attention_split(ObkLanes*, const ObkAttention& g) {
  const uint32_t base = (shared_address(g.scratch) + 15) & ~15u;
  const bool last =
      AttentionShort<kType == kObkBf16, kSize, kValue, 16, kKeys, kKvSplits>::pass(g, base, 0);
  __syncthreads();
  return last;
}

#ifdef OBK_DATAFLOW
/* The same of a dataflow program: Y has the split's own columns, [queries][value_size / splits].
 */
template <int kType, int kSize, int kValue, int kKeys, int kKvSplits, int kInPlace = -1>
static __device__ __forceinline__ void attention_share(ObkLanes* w, const ObkAttention& g) {
  const uint32_t base = (shared_address(g.scratch) + 15) & ~15u;
  AttentionShort<kType == kObkBf16, kSize, kValue, 16, kKeys, kKvSplits,
                 kInPlace>::template pass<true>(g, base, 0, w->tag);
  __syncthreads();
}
#endif

}  // namespace obk

#endif
