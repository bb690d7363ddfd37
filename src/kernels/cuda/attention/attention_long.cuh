/* kernels/cuda/attention/attention_long.cuh — attention of 16-bit heads to more than 256 keys: each
 * warp has 16 rows, groups of warps have chains of keys of their own (attention_warps.cuh). Blocks
 * of keys come by asynchronous copies, up to four ahead; one barrier of the group a block. Where
 * one group has all chains, their sums are joined in registers and Y comes straight from them. */
#ifndef OBK_ATTENTION_LONG_CUH
#define OBK_ATTENTION_LONG_CUH

#include "attention/attention_warps.cuh"

namespace obk {

/* 32 rows of kBytes by the threads of a group, zero filled; kTurn: 64-byte parts of odd rows are
 * swapped in pairs. */
template <int kBytes, int kPitch, bool kTurn, int kThreads>
OBK_DEVICE void bring_block(uint32_t to, const char* at, int64_t row_bytes, int key, int seen,
                            bool plain) {
  constexpr int kChunks = kBytes / 16, kAll = 32 * kChunks;
  const int thread = threadIdx.x % kThreads;
  if (plain)
    return bring_plainly(to, kPitch, kChunks, at + key * row_bytes, row_bytes, 32, seen - key,
                         kBytes, false, thread, kThreads, kTurn ? 4 : 0);
#pragma unroll
  for (int i = 0; i < (kAll + kThreads - 1) / kThreads; ++i) {
    const int chunk = thread + i * kThreads, row = chunk / kChunks, p = chunk % kChunks;
    if (kAll % kThreads != 0 && chunk >= kAll) break;
    const char* from = at + (key + row) * row_bytes + p * 16;
    const uint32_t place = to + row * kPitch + (kTurn ? p ^ (row & 1) * 4 : p) * 16;
    copy16_partly(place, from, key + row < seen ? 16u : 0u);
  }
}

template <bool kBfloat, int kSize, int kValue, int kQueries, int kKeys>
struct AttentionLong {
  static constexpr LongCut kCut = long_cut(kQueries, kKeys, kSize, kValue);
  static constexpr int kRows = 16 << kCut.rows_log, kThreads = 32 << kCut.rows_log;
  static constexpr int kGroups = kSize / 32, kSteps = kValue / 16;
  static constexpr bool kTurn = kGroups % 2 == 0, kJoins = kCut.groups == 1,
                        kRefills = kCut.stages < kCut.walk;

  static __device__ __forceinline__ void score(float (&s)[4][4], const QueryParts<kSize>& q,
                                               uint32_t keys) {
    const int lane = threadIdx.x % 32, row = lane / 4, odd = row & 1;
    const uint32_t at = keys + row * kCut.k_pitch + lane % 4 * 16;
    const uint32_t even_at = at + (kTurn ? odd * 64 : 0), odd_at = at + 64 - (kTurn ? odd * 64 : 0);
#pragma unroll
    for (int j = 0; j < kGroups; ++j)
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        uint32_t k[4];
        load_shared16(k, (j % 2 ? odd_at : even_at) + j / 2 * 128 + n * 8 * kCut.k_pitch);
        q.template score<kBfloat>(s[n], j, k);
      }
  }
  static __device__ __forceinline__ void add(float (&o)[2 * kSteps][4], const uint32_t (&p)[2][4],
                                             uint32_t values) {
    const int lane = threadIdx.x % 32;
    const uint32_t at = values + lane % 16 * kCut.v_pitch + lane / 16 * 16;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int c = 0; c < kSteps; ++c) {
        uint32_t x[4];
        load_matrices_transposed(x, at + i * 16 * kCut.v_pitch + c * 32);
        mma_16x8x16<kBfloat>(o[2 * c], p[i], x[0], x[1]);
        mma_16x8x16<kBfloat>(o[2 * c + 1], p[i], x[2], x[3]);
      }
  }

  static __device__ __forceinline__ void pass(const ObkAttention& g, uint32_t base, int rows_from) {
    const AttentionPlace place(g, rows_from, kRows, kKeys);
    const int lane = threadIdx.x % 32;
    const int group = kJoins ? 0 : threadIdx.x / kThreads;
    const int row = threadIdx.x % kThreads / 32 * 16;
    const char* const k_at = (const char*)g.k;
    const char* const v_at = (const char*)g.v;
    const uint32_t own = base + group * (kCut.stages * kCut.stage);
    const int first = group * kCut.walk, all = (place.seen + 31) / 32;
    const int end = first + kCut.walk < all ? first + kCut.walk : all;
    auto bring = [&](int block, int stage) {
      const uint32_t to = own + stage * kCut.stage;
      if (block < end) {
        bring_block<kSize * 2, kCut.k_pitch, kTurn, kThreads>(to, k_at, g.k_row * 2, block * 32,
                                                              place.seen, place.plain);
        bring_block<kValue * 2, kCut.v_pitch, false, kThreads>(
            to + 32 * kCut.k_pitch, v_at, g.v_row * 2, block * 32, place.seen, place.plain);
      }
      copy16_commit();
    };
#pragma unroll 1
    for (int s = 0; s < kCut.stages; ++s) bring(first + s, s);
    QueryParts<kSize> q;
    q.load((const char*)g.q + (rows_from + row) * g.q_row * 2, g.q_row * 2, place.queries - row,
           place.plain);
    const bool has_rows = row < place.queries;
    const int last_row = row + 15 < place.queries ? row + 15 : place.queries - 1;
    const int work_end = has_rows ? (place.scores.limit(last_row, 0) + 31) / 32 : 0;
    float o[2 * kSteps][4], all_o[kJoins ? 2 * kSteps : 1][4];
    ChainRows rows, all_rows;
    MoreScores more;
    int stage = 0;
#pragma unroll 1
    for (int chain = 0, block = first; chain < kCut.own; ++chain) {
      rows.reset();
#pragma unroll
      for (int c = 0; c < 2 * kSteps; ++c)
#pragma unroll
        for (int e = 0; e < 4; ++e) o[c][e] = 0.0f;
#pragma unroll 1
      for (int b = 0; b < kCut.chain; ++b, ++block) {
        /* The first round commits nothing that it loads: a block that came to the place of another
         * is one group later. */
        if (kRefills && block > first)
          copy16_wait<(kCut.stages > 2 ? kCut.stages - 2 : 0)>();
        else
          copy16_wait<kCut.stages - 1>();
        if (kJoins)
          __syncthreads();
        else
          named_barrier(1 + group, kThreads);
        /* All have read the block before: the next that has no place yet comes there. */
        if (kRefills && block > first)
          bring(block - 1 + kCut.stages, stage == 0 ? kCut.stages - 1 : stage - 1);
        else
          copy16_commit();
        const uint32_t keys = own + stage * kCut.stage;
        stage = stage + 1 == kCut.stages ? 0 : stage + 1;
        if (block >= work_end) continue;
        const int key = block * 32;
        more.ask(place.scores, row, key, place.uneven);
        float s[4][4] = {};
        score(s, q, keys);
        more.apply(s, place.scores, row, key);
        uint32_t p[2][4];
        float factor[2];
        rows.weigh<kBfloat>(s, p, factor);
        if (kCut.chain > 1 && __any_sync(0xffffffffu, !(factor[0] == 1.0f && factor[1] == 1.0f)))
#pragma unroll
          for (int c = 0; c < 2 * kSteps; ++c)
#pragma unroll
            for (int e = 0; e < 4; ++e) o[c][e] = __fmul_rn(o[c][e], factor[e / 2]);
        add(o, p, keys + 32 * kCut.k_pitch);
      }
      rows.share();
      if (kJoins) {
        if (chain == 0) {
          all_rows = rows;
#pragma unroll
          for (int c = 0; c < 2 * kSteps; ++c)
#pragma unroll
            for (int e = 0; e < 4; ++e) all_o[c][e] = o[c][e];
          continue;
        }
        float old[2], now[2];
#pragma unroll
        for (int r = 0; r < 2; ++r)
          join_rows(all_rows.largest[r], all_rows.sum[r], rows.largest[r], rows.sum[r], old[r],
                    now[r]);
#pragma unroll
        for (int c = 0; c < 2 * kSteps; ++c)
#pragma unroll
          for (int e = 0; e < 4; ++e)
            all_o[c][e] = join_values(all_o[c][e], old[e / 2], o[c][e], now[e / 2]);
      } else {
        if (kCut.own == 1) __syncthreads(); /* sums lie where keys lay */
        leave(base, group * kCut.own + chain, row + lane / 4, o, rows);
      }
    }
    const bool zero = g.zero_if_masked || kKeys == 0;
    if (!kJoins) {
      __syncthreads();
      join_slots<kValue>(RowsToY(g, rows_from, zero), base + kCut.slots, base + kCut.parts, kRows,
                         kCut.pitch, place.queries);
      return;
    }
    const bool together = g.y_row % 2 == 0 && ((uint64_t)g.y & 7) == 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int at_row = row + lane / 4 + 8 * r;
      if (at_row >= place.queries) continue;
      const float over = over_total(all_rows.sum[r], zero);
      float* y = g.y + (int64_t)(rows_from + at_row) * g.y_row + lane % 4 * 2;
#pragma unroll
      for (int c = 0; c < 2 * kSteps; ++c) {
        const float a = __fmul_rn(all_o[c][2 * r], over), b = __fmul_rn(all_o[c][2 * r + 1], over);
        if (together) {
          *(float2*)(y + c * 8) = make_float2(a, b);
        } else {
          y[c * 8] = a, y[c * 8 + 1] = b;
        }
      }
    }
  }
  static __device__ __forceinline__ void leave(uint32_t base, int chain, int row,
                                               const float (&o)[2 * kSteps][4],
                                               const ChainRows& rows) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int place = chain * kRows + row + 8 * r;
      const uint32_t to = base + kCut.slots + place * kCut.pitch + lane % 4 * 8;
#pragma unroll
      for (int c = 0; c < 2 * kSteps; ++c) store_shared8(to + c * 32, o[c][2 * r], o[c][2 * r + 1]);
      if (lane % 4 == 0) store_shared8(base + kCut.parts + place * 8, rows.largest[r], rows.sum[r]);
    }
  }
};

}  // namespace obk

#endif
