/* kernels/cuda/attention_few.cuh — attention of up to 16 rows by the warps of a CTA, which share the
 * keys: four chains (attention_warps.cuh) by two halves of V's columns. Operands come from global
 * memory straight into registers, all of a block at once, so that one task waits once; shared
 * memory holds the chains' sums alone. */
#ifndef OBK_ATTENTION_FEW_CUH
#define OBK_ATTENTION_FEW_CUH

#include "attention_warps.cuh"

namespace obk {

template <bool kBfloat, int kSize, int kValue, int kKeys>
struct AttentionFew {
  static constexpr int kGroups = kSize / 32;        /* of columns of Q and K */
  static constexpr int kColumns = kValue / 16;      /* of V, side by side, that a lane has */
  static constexpr int kWords = kColumns / 2;
  static constexpr FewCut kCut = few_cut(kKeys, kValue);

  uint32_t k[4][kGroups][4]; /* of key n * 8 + lane / 4 eight columns of each 32 */
  uint32_t v[2][4][kWords];  /* of the keys whose weights the lane has, its columns */

  __device__ __forceinline__ void load_keys(const char* at, int64_t row, int key, int seen,
                                            bool plain) {
    const int lane = threadIdx.x % 32, first = key + lane / 4;
    const char* from = at + first * row + lane % 4 * 16;
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int j = 0; j < kGroups; ++j)
        load_words(k[n][j], from + n * 8 * row + j * 64, first + n * 8 < seen, plain);
  }
  __device__ __forceinline__ void load_values(const char* at, int64_t row, int key, int seen,
                                              bool plain) {
    const int lane = threadIdx.x % 32, first = key + lane % 4 * 2;
    const char* from = at + first * row + lane / 4 * (kColumns * 2);
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int skip = i * 16 + e / 2 * 8 + e % 2;
        load_words(v[i][e], from + skip * row, first + skip < seen, plain);
      }
  }
  __device__ __forceinline__ void add(float (&o)[kColumns][4], const uint32_t (&p)[2][4]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const uint32_t pick = c % 2 ? 0x7632 : 0x5410; /* a column's pair of neighbouring keys */
        mma_16x8x16<kBfloat>(o[c], p[i], __byte_perm(v[i][0][c / 2], v[i][1][c / 2], pick),
                             __byte_perm(v[i][2][c / 2], v[i][3][c / 2], pick));
      }
  }

  static __device__ __forceinline__ void pass(const ObkAttention& g, uint32_t base, int rows_from) {
    AttentionPlace place(g, rows_from, 16, kKeys);
    place.uneven = g.causal || kKeys != kCut.chain * 128;
    const int warp = threadIdx.x / 32, chain = warp / 2, half = warp % 2, lane = threadIdx.x % 32;
    const int64_t k_row = g.k_row * 2, v_row = g.v_row * 2;
    const char* const k_at = (const char*)g.k;
    const char* const v_at = (const char*)g.v + half * kValue;
    const int first = chain * kCut.chain;
    AttentionFew t;
    QueryParts<kSize> q;
    MoreScores more;
    const char* const q_at = (const char*)g.q + rows_from * g.q_row * 2;
    if (!place.plain) {
      q.load(q_at, g.q_row * 2, place.queries, false);
      t.load_keys(k_at, k_row, first * 32, place.seen, false);
      t.load_values(v_at, v_row, first * 32, place.seen, false);
    } else {
      q.load(q_at, g.q_row * 2, place.queries, true);
    }
    float o[kColumns][4] = {};
    ChainRows rows;
    rows.reset();
#pragma unroll 1
    for (int block = first;;) {
      const int key = block * 32;
      if (place.plain) {
        t.load_keys(k_at, k_row, key, place.seen, true);
        t.load_values(v_at, v_row, key, place.seen, true);
      }
      more.ask(place.scores, 0, key, place.uneven);
      float s[4][4] = {};
#pragma unroll
      for (int j = 0; j < kGroups; ++j)
#pragma unroll
        for (int n = 0; n < 4; ++n) q.template score<kBfloat>(s[n], j, t.k[n][j]);
      const bool goes_on = kCut.chain > 1 && ++block < first + kCut.chain && block * 32 < place.seen;
      if (goes_on && !place.plain) t.load_keys(k_at, k_row, block * 32, place.seen, false);
      more.apply(s, place.scores, 0, key);
      uint32_t p[2][4];
      float factor[2];
      rows.weigh<kBfloat>(s, p, factor);
      if (kCut.chain > 1)
#pragma unroll
        for (int c = 0; c < kColumns; ++c)
#pragma unroll
          for (int e = 0; e < 4; ++e) o[c][e] = __fmul_rn(o[c][e], factor[e / 2]);
      t.add(o, p);
      if (!goes_on) break;
      if (!place.plain) t.load_values(v_at, v_row, block * 32, place.seen, false);
    }
    rows.share();
    /* The lane has the columns lane % 4 * 2 and the next, times kColumns, of its half. */
    const uint32_t slot = base + chain * kCut.slot;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = lane / 4 + 8 * r;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const uint32_t to =
            slot + row * kCut.pitch + (half * kValue / 2 + (lane % 4 * 2 + e) * kColumns) * 4;
        if (kColumns == 2)
          store_shared8(to, o[0][2 * r + e], o[1][2 * r + e]);
        else
#pragma unroll
          for (int c = 0; c + 3 < kColumns; c += 4)
            store_shared_floats(to + c * 4, o[c][2 * r + e], o[c + 1][2 * r + e],
                                o[c + 2][2 * r + e], o[c + 3][2 * r + e]);
      }
      if (half == 0 && lane % 4 == 0)
        store_shared8(base + kCut.parts + (chain * 16 + row) * 8, rows.largest[r], rows.sum[r]);
    }
    __syncthreads();
    join_slots<kValue>(g, base, base + kCut.parts, 16, kCut.pitch, rows_from, place.queries,
                       g.zero_if_masked || kKeys == 0);
  }
};

}  // namespace obk

#endif
