/* kernels/cuda/attention/attention_short.cuh — attention of 16-bit heads (sizes of
 * attention_by_warps) to no more keys than registers hold the scores of: up to 256.
 *
 * How        2^rows_log warps have 16 rows each. For the scores, the other warps of the eight have
 *            other keys; for the GEMM with V they have other columns. Q and K are loaded
 *            asynchronously, then V, while scores are computed (of keys and values in place: K as
 *            pages, and after the scores V, where K lay). Between, warps of the same rows exchange
 *            the rows' maxima and the weights through shared memory; where a warp has all keys of
 *            its rows there is no exchange.
 * Order      a row's maximum is that of all keys, so what is summed is one chain of mma.sync over
 *            the keys, 16 a step, whatever the cut. Totals: the same chain with a column of ones.
 * KV splits  where there are many keys and few heads, several CTAs have a split of the keys each.
 *            It leaves its sums in global memory and takes a ticket; the CTA with the last ticket
 *            combines all splits in order. Tickets only grow: they are not cleared between runs. */
#ifndef OBK_ATTENTION_SHORT_CUH
#define OBK_ATTENTION_SHORT_CUH

#include "attention/attention_warps.cuh"
#include "exec/ring.cuh"

namespace obk {

/* kCount rows by all threads, zero filled; kTurn as bring_block (attention_long.cuh). */
template <int kBytes, int kPitch, bool kTurn, int kCount>
OBK_DEVICE void bring_rows(uint32_t to, const char* at, int64_t row_bytes, int there, bool plain) {
  constexpr int kChunks = kBytes / 16, kStep = 256 / kChunks;
  if (plain)
    return bring_plainly(to, kPitch, kChunks, at, row_bytes, kCount, there, kBytes, false,
                         threadIdx.x, 256, kTurn ? 4 : 0);
  const uint32_t thread = threadIdx.x, first = thread / kChunks, p = thread % kChunks;
  static_assert(kStep % 2 == 0, "a thread's rows are turned alike");
  const char* const from = at + first * row_bytes + p * 16;
  const uint32_t place = to + first * kPitch + (kTurn ? p ^ (first & 1) * 4 : p) * 16;
  if (256 % kChunks != 0 && first >= kStep) return; /* the last threads load nothing */
#pragma unroll
  for (int i = 0; i < (kCount + kStep - 1) / kStep; ++i) {
    const int row = (int)first + i * kStep;
    if (kCount % kStep != 0 && row >= kCount) break;
    copy16_partly(place + i * kStep * kPitch, from + i * kStep * row_bytes, row < there ? 16u : 0u);
  }
}

/* Rows of keys or values that lie where the caller keeps them, of type kType (f32 or the tile's
 * own), and that come as pages of the ring, whole rows in each (dataflow.cuh). */
template <int kType, bool kBfloat>
struct InPlaceRows;
template <bool kBfloat>
struct InPlaceRows<-1, kBfloat> { /* none */
  __device__ __forceinline__ explicit InPlaceRows(const ObkAttention&) {}
};
#ifdef OBK_DATAFLOW
template <int kType, bool kBfloat>
struct InPlaceRows {
  static constexpr int kBytes = kType == kObkF32 ? 4 : 2;
  FixedRing ring;
  int count;

  __device__ __forceinline__ explicit InPlaceRows(const ObkAttention& g) : count((int)g.in_place) {
    ring.look();
  }
  /* Rows of kSize, narrowed, to rows kPitch bytes apart; row `at` from `instead`, unless that is
   * null: the caller's memory may have it by now or not. All threads. */
  template <int kSize, int kPitch, bool kTurn>
  __device__ __forceinline__ void take(uint32_t to, const void* instead, int64_t instead_at) {
    constexpr int kRow = kSize * kBytes, kPage = WeightPages::kPageBytes / kRow;
#pragma unroll 1
    for (int first = 0; first < count; first += kPage) {
      const uint32_t page = ring.take();
      const int rows = count - first < kPage ? count - first : kPage;
      constexpr int kParts = kRow / 16, kEach = (kPage * kParts + 255) / 256;
      uint32_t x[kEach][4]; /* all at once: one after another each would be waited for */
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int n = i * 256 + threadIdx.x;
        load_shared16(x[i], page + (n < rows * kParts ? n : 0) * 16);
      }
      ring.release();
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int n = i * 256 + threadIdx.x, row = first + n / kParts, part = n % kParts;
        if (n >= rows * kParts) break;
        if (kBytes == 2 && instead && row == instead_at) {
          const uint64_t* const from = (const uint64_t*)((const char*)instead + part * 16);
          const uint64_t low = from[0], high = from[1];
          x[i][0] = (uint32_t)low, x[i][1] = (uint32_t)(low >> 32), x[i][2] = (uint32_t)high,
          x[i][3] = (uint32_t)(high >> 32);
        }
        const uint32_t at = to + row * kPitch;
        if (kBytes == 4) {
          const int chunk = part / 2;
          store_shared8(at + (kTurn ? chunk ^ (row & 1) * 4 : chunk) * 16 + part % 2 * 8,
                        __uint_as_float(narrow_two<kBfloat>(__uint_as_float(x[i][0]),
                                                            __uint_as_float(x[i][1]))),
                        __uint_as_float(narrow_two<kBfloat>(__uint_as_float(x[i][2]),
                                                            __uint_as_float(x[i][3]))));
        } else {
          store_shared16(at + (kTurn ? part ^ (row & 1) * 4 : part) * 16, x[i]);
        }
      }
    }
  }
  /* Before the tile's last barrier. */
  __device__ __forceinline__ void close() const { ring.close(); }
};
#endif

/* kInPlace: of keys and values that lie where the caller keeps them; -1: there are none. */
template <bool kBfloat, int kSize, int kValue, int kQueries, int kKeys, int kKvSplits = 1,
          int kInPlace = -1>
struct AttentionShort {
  static constexpr ShortCut kCut =
      short_cut(kQueries, kKeys, kSize, kValue, kKvSplits, kInPlace >= 0);
  static constexpr int kRows = 16 << kCut.rows_log, kGroups = 8 >> kCut.rows_log;
  static constexpr int kTiles = kCut.own / 8, kParts = kSize / 32;
  static constexpr int kColumns = kValue / 8 < kGroups ? 1 : kValue / 8 / kGroups; /* by 8 */
  static constexpr bool kAlone = kGroups == 1, kTurn = kParts % 2 == 0;
  static constexpr uint32_t kOnes = kBfloat ? 0x3f803f80 : 0x3c003c00;

  float s[kTiles][4];              /* scores */
  uint32_t p[(kTiles + 1) / 2][4]; /* weights, as the product with V takes them */
  float o[kColumns][4], total[4];

  /* Of `row`s of this warp and keys from `keys` on, both in shared memory. */
  __device__ __forceinline__ void score(uint32_t rows, uint32_t keys) {
    const int lane = threadIdx.x % 32, line = lane / 4, swap = kTurn ? (line & 1) * 64 : 0;
    const uint32_t at = line * (kSize * 2) + lane % 4 * 16;
    uint32_t q[kParts][2][4];
#pragma unroll
    for (int j = 0; j < kParts; ++j)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        load_shared16(q[j][r], rows + at + (j * 64 ^ swap) + r * (8 * kSize * 2));
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) s[n][e] = 0.0f;
#pragma unroll
    for (int j = 0; j < kParts; ++j) {
      const uint32_t from = keys + at + (j * 64 ^ swap);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        uint32_t k[4];
        load_shared16(k, from + n * (8 * kSize * 2));
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const uint32_t a[4] = {q[j][0][2 * h], q[j][1][2 * h], q[j][0][2 * h + 1],
                                 q[j][1][2 * h + 1]};
          mma_16x8x16<kBfloat>(s[n], a, k[2 * h], k[2 * h + 1]);
        }
      }
    }
  }
  /* What a mask of keys alone adds to each: all threads, before the scores. */
  static __device__ __forceinline__ bool of_keys(const Scores& scores) {
    return scores.mask_type != 0 && scores.mask_query == 0;
  }
  static __device__ __forceinline__ void leave_bias(const Scores& scores, uint32_t at, int begin,
                                                    int there) {
    static_assert(kCut.own * kGroups <= 256, "a key a thread");
    const int k = (int)threadIdx.x;
    if (k < kCut.own * kGroups) store_shared(at + k * 4, scores.bias(0, begin, k, there));
  }
  /* What is not the scale; scores are in units of `unit` then. `bias`: of the warp's keys. */
  __device__ __forceinline__ void mask(const Scores& scores, int row, int key, bool uneven,
                                       uint32_t bias) {
    const int r = row + threadIdx.x % 32 / 4, k = threadIdx.x % 4 * 2;
    const int limit[2] = {scores.limit(r, key), scores.limit(r + 8, key)};
    const bool keys_alone = of_keys(scores);
    if (keys_alone)
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        float b[2];
        load_shared8(b[0], b[1], bias + (k + n * 8) * 4);
#pragma unroll
        for (int e = 0; e < 4; ++e)
          s[n][e] = scores.drops(b[e % 2]) ? -INFINITY
                    : scores.softcap > 0.0f
                        ? __fadd_rn(scores.scaled(s[n][e]), b[e % 2])
                        : __fmaf_rn(s[n][e], scores.scale * Scores::kLog2, b[e % 2]);
      }
    if (!scores.only_scaled() && !keys_alone)
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float b = scores.bias(r + e / 2 * 8, key, k + n * 8 + e % 2, limit[e / 2]);
          s[n][e] = scores.drops(b) ? -INFINITY : __fadd_rn(scores.scaled(s[n][e]), b);
        }
    if (!uneven || scores.limit(row, key) >= kCut.own) return;
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (k + n * 8 + e % 2 >= limit[e / 2]) s[n][e] = -INFINITY;
  }
  /* Of the lane's two rows, of this warp's keys. */
  __device__ __forceinline__ void maxima(float (&m)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float high[kTiles];
#pragma unroll
      for (int n = 0; n < kTiles; ++n) high[n] = fmaxf(s[n][2 * r], s[n][2 * r + 1]);
#pragma unroll
      for (int step = 1; step < kTiles; step *= 2)
#pragma unroll
        for (int n = 0; n + step < kTiles; n += 2 * step) high[n] = fmaxf(high[n], high[n + step]);
      m[r] = high[0];
    }
#pragma unroll
    for (int step = 1; step < 4; step *= 2)
#pragma unroll
      for (int r = 0; r < 2; ++r) m[r] = fmaxf(m[r], __shfl_xor_sync(0xffffffffu, m[r], step));
  }
  /* Maxima of all warps with the same rows. `at`: [rows][groups]. */
  static __device__ __forceinline__ void exchange_maxima(float (&m)[2], uint32_t at, int row,
                                                         int group) {
    const int lane = threadIdx.x % 32;
    const uint32_t place = at + (row + lane / 4) * (kGroups * 4);
    if (lane % 4 == 0)
#pragma unroll
      for (int r = 0; r < 2; ++r) store_shared(place + r * (8 * kGroups * 4) + group * 4, m[r]);
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint32_t from = place + r * (8 * kGroups * 4);
      if (kGroups == 2) {
        float a, b;
        load_shared8(a, b, from);
        m[r] = fmaxf(a, b);
      } else {
        float high[kGroups / 4 + 1];
#pragma unroll
        for (int k = 0; k < kGroups / 4; ++k) {
          uint32_t x[4];
          load_shared16(x, from + k * 16);
          high[k] = fmaxf(fmaxf(__uint_as_float(x[0]), __uint_as_float(x[1])),
                          fmaxf(__uint_as_float(x[2]), __uint_as_float(x[3])));
        }
        m[r] = kGroups == 8 ? fmaxf(high[0], high[kGroups / 8]) : high[0];
      }
    }
  }
  __device__ __forceinline__ void weigh(const float (&m)[2], float unit) {
    float base[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) base[r] = m[r] == -INFINITY ? 0.0f : -__fmul_rn(m[r], unit);
#pragma unroll
    for (int n = 0; n < (kTiles + 1) / 2 * 2; ++n)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        p[n / 2][n % 2 * 2 + r] =
            n >= kTiles
                ? 0u
                : narrow_two<kBfloat>(
                      exp2_approx(__fmaf_rn(s[n < kTiles ? n : 0][2 * r], unit, base[r])),
                      exp2_approx(__fmaf_rn(s[n < kTiles ? n : 0][2 * r + 1], unit, base[r])));
  }
  /* The warp's weights to shared memory: its 16 rows, columns from its first key on. */
  __device__ __forceinline__ void leave_weights(uint32_t at, int first_key) const {
    const int lane = threadIdx.x % 32;
    const uint32_t to = at + lane / 4 * kCut.p_pitch + (first_key + lane % 4 * 2) * 2;
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
      if (kCut.own * kGroups <= kCut.keys || first_key + n * 8 < kCut.keys)
#pragma unroll
        for (int r = 0; r < 2; ++r)
          store_shared_word(to + r * (8 * kCut.p_pitch) + n * 16, p[n / 2][n % 2 * 2 + r]);
  }
  __device__ __forceinline__ void clear_sums() {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      total[e] = 0.0f;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) o[c][e] = 0.0f;
    }
  }
  /* Sums over all keys of the warp's columns. */
  __device__ __forceinline__ void add_own(uint32_t values) {
    const int lane = threadIdx.x % 32;
    const uint32_t at = values + lane % 16 * kCut.v_pitch + lane / 16 * 16;
#pragma unroll
    for (int i = 0; i < kCut.keys / 16; ++i) {
#pragma unroll
      for (int c = 0; c + 1 < kColumns; c += 2) {
        uint32_t x[4];
        load_matrices_transposed(x, at + i * (16 * kCut.v_pitch) + c * 16);
        mma_16x8x16<kBfloat>(o[c], p[i], x[0], x[1]);
        mma_16x8x16<kBfloat>(o[c + 1], p[i], x[2], x[3]);
      }
      mma_16x8x16<kBfloat>(total, p[i], kOnes, kOnes);
    }
  }
  __device__ __forceinline__ void add_shared(uint32_t weights, uint32_t values, int column) {
    const int lane = threadIdx.x % 32;
    const uint32_t from = weights + lane % 16 * kCut.p_pitch + lane / 16 * 16;
    const uint32_t at =
        values + column * 16 +
        (kColumns == 1 ? lane * kCut.v_pitch : lane % 16 * kCut.v_pitch + lane / 16 * 16);
    uint32_t x[4];
#pragma unroll
    for (int i = 0; i < kCut.keys / 16; ++i) {
      uint32_t a[4];
      load_matrices(a, from + i * 32);
      if (kColumns == 1) {
        if (i % 2 == 0) load_matrices_transposed(x, at + i * (16 * kCut.v_pitch));
        mma_16x8x16<kBfloat>(o[0], a, x[i % 2 * 2], x[i % 2 * 2 + 1]);
      } else {
#pragma unroll
        for (int c = 0; c + 1 < kColumns; c += 2) {
          load_matrices_transposed(x, at + i * (16 * kCut.v_pitch) + c * 16);
          mma_16x8x16<kBfloat>(o[c], a, x[0], x[1]);
          mma_16x8x16<kBfloat>(o[kColumns > 1 ? c + 1 : 0], a, x[2], x[3]);
        }
      }
      mma_16x8x16<kBfloat>(total, a, kOnes, kOnes);
    }
  }

  /* Queries, and of K and V what is not kept elsewhere; zeros behind. */
  static __device__ __forceinline__ void bring_new(const ObkAttention& g, uint32_t base,
                                                   int queries, int begin, int there) {
    constexpr int kParts16 = kSize / 8;
    const int first = (int)g.in_place;
#pragma unroll
    for (int n = threadIdx.x; n < kRows * kParts16; n += 256) {
      const int row = n / kParts16, part = n % kParts16;
      uint32_t x[4] = {};
      if (row < queries) {
        const uint64_t* const from =
            (const uint64_t*)((const char*)g.q + (row * g.q_row + part * 8) * 2);
        const uint64_t low = from[0], high = from[1];
        x[0] = (uint32_t)low, x[1] = (uint32_t)(low >> 32), x[2] = (uint32_t)high,
        x[3] = (uint32_t)(high >> 32);
      }
      store_shared16(
          base + kCut.q_at + row * (kSize * 2) + (kTurn ? part ^ (row & 1) * 4 : part) * 16, x);
    }
#pragma unroll 1
    for (int n = threadIdx.x; n < (kCut.keys - first) * kParts16; n += 256) {
      const int row = first + n / kParts16, part = n % kParts16;
      copy16_partly(
          base + kCut.k_at + row * (kSize * 2) + (kTurn ? part ^ (row & 1) * 4 : part) * 16,
          (const char*)g.k + ((begin + row) * g.k_row + part * 8) * 2, row < there ? 16u : 0u);
    }
    copy16_commit();
  }
  /* The same of V, which comes where keys lay: a thread's first 16 bytes are requested before the
   * scores. */
  struct NewValues {
    static constexpr int kParts16 = kValue / 8;
    const ObkAttention& g;
    int begin, there;
    uint32_t x[4];

    __device__ __forceinline__ void read(int n) {
      const int row = (int)g.in_place + n / kParts16;
      x[0] = x[1] = x[2] = x[3] = 0;
      if (row >= there) return;
      const uint64_t* const from =
          (const uint64_t*)((const char*)g.v + ((begin + row) * g.v_row + n % kParts16 * 8) * 2);
      const uint64_t low = from[0], high = from[1];
      x[0] = (uint32_t)low, x[1] = (uint32_t)(low >> 32), x[2] = (uint32_t)high,
      x[3] = (uint32_t)(high >> 32);
    }
    __device__ __forceinline__ void put(uint32_t values) {
#pragma unroll 1
      for (int n = threadIdx.x; n < (kCut.keys - (int)g.in_place) * kParts16; n += 256) {
        if (n >= 256) read(n);
        store_shared16(values + ((int)g.in_place + n / kParts16) * kCut.v_pitch + n % kParts16 * 16,
                       x);
      }
    }
  };

  /* Whether Y is there: of several pieces the last to come has it; where all share it, each its own
   * columns. */
  template <bool kShare = false>
  static __device__ __forceinline__ bool pass(const ObkAttention& g, uint32_t base, int rows_from,
                                              uint32_t tag = 0) {
    AttentionPlace place(g, rows_from, kRows, kKeys);
    int begin = 0;
    if (kKvSplits > 1) {
      begin = kCut.blocks * g.kv_split / kKvSplits * 16;
      place.end_at(kCut.blocks * (g.kv_split + 1) / kKvSplits * 16);
    }
    const bool uneven = g.causal || kKvSplits > 1 || kKeys != kCut.own * kGroups;
    const int warp = threadIdx.x / 32;
    const int row = warp % (kRows / 16) * 16, group = warp / (kRows / 16);
    const int there = place.seen - begin;
    auto bring = [&](bool plain) {
      bring_rows<kSize * 2, kSize * 2, kTurn, kRows>(
          base + kCut.q_at, (const char*)g.q + rows_from * g.q_row * 2, g.q_row * 2, place.queries,
          plain || in_shared(g.q));
      bring_rows<kSize * 2, kSize * 2, kTurn, kCut.keys>(
          base + kCut.k_at, (const char*)g.k + begin * g.k_row * 2, g.k_row * 2, there, plain);
      copy16_commit();
      bring_rows<kValue * 2, kCut.v_pitch, false, kCut.keys>(
          base + kCut.v_at, (const char*)g.v + begin * g.v_row * 2, g.v_row * 2, there, plain);
      copy16_commit();
    };
    if constexpr (kInPlace >= 0)
      bring_new(g, base, place.queries, begin, there);
    else if (!place.plain)
      bring(false);
    else
      bring(true);
    [[maybe_unused]] InPlaceRows<kInPlace, kBfloat> in_place(g);
    [[maybe_unused]] NewValues added{g, begin, there};
    if constexpr (kInPlace >= 0)
      added.read(threadIdx.x), in_place.template take<kSize, kSize * 2, kTurn>(
                                   base + kCut.k_at, g.new_key, g.new_at - begin);
    AttentionShort t;
    const int own = group * kCut.own;
    if (of_keys(place.scores)) leave_bias(place.scores, base + kCut.b_at, begin, there);
    copy16_wait<kInPlace >= 0 ? 0 : 1>();
    __syncthreads();
    t.score(base + kCut.q_at + row * (kSize * 2), base + kCut.k_at + own * (kSize * 2));
    t.mask(place.scores, row, begin + own, uneven, base + kCut.b_at + own * 4);
    float m[2];
    t.maxima(m);
    if (!kAlone) exchange_maxima(m, base + kCut.m_at, row, group);
    const float unit = place.scores.only_scaled() ? place.scores.scale * Scores::kLog2 : 1.0f;
    t.weigh(m, unit);
    if (!kAlone) t.leave_weights(base + kCut.p_at + row * kCut.p_pitch, own);
    t.clear_sums();
    if constexpr (kInPlace >= 0) {
      in_place.template take<kValue, kCut.v_pitch, false>(base + kCut.v_at, g.new_value,
                                                          g.new_at - begin);
      in_place.close();
      added.put(base + kCut.v_at);
    }
    copy16_wait<0>();
    __syncthreads();
    const int column = group * kColumns;
    const bool works = kValue / 8 >= kGroups || column < kValue / 8;
    if (kAlone)
      t.add_own(base + kCut.v_at);
    else if (works)
      t.add_shared(base + kCut.p_at + row * kCut.p_pitch, base + kCut.v_at, column);
    if (kKvSplits == 1) {
      if (works) t.put(g, rows_from, row, column, place.queries);
      return true;
    }
    if (works) {
#pragma unroll
      for (int r = 0; r < 2; ++r) m[r] = __fmul_rn(m[r], unit);
      if constexpr (kShare)
        t.broadcast_split(g, column, place.queries, m, tag);
      else
        t.store_split(g, column, place.queries, m);
    }
    if constexpr (kShare) {
      join_broadcast(g, place.queries, tag);
      return true;
    }
    __syncthreads();
    if (threadIdx.x == 0)
      store_shared_word(base, take_ticket((uint32_t*)g.exchange) % kKvSplits == kKvSplits - 1);
    __syncthreads();
    if (load_shared_word(base) == 0) return false;
    join_splits<kValue, kKvSplits>(RowsToY(g, rows_from, g.zero_if_masked),
                                   (const char*)g.exchange + kAttentionTicketBytes, place.queries);
    return true;
  }
  __device__ __forceinline__ void put(const ObkAttention& g, int rows_from, int row, int column,
                                      int queries) const {
    const int lane = threadIdx.x % 32;
    const bool together = g.y_row % 2 == 0 && ((uint64_t)g.y & 7) == 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int at_row = row + lane / 4 + 8 * r;
      if (at_row >= queries) continue;
      const float over = over_total(total[2 * r], g.zero_if_masked);
      float* const y = g.y + (int64_t)(rows_from + at_row) * g.y_row + column * 8 + lane % 4 * 2;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const float a = __fmul_rn(o[c][2 * r], over), b = __fmul_rn(o[c][2 * r + 1], over);
        if (together) {
          *(float2*)(y + c * 8) = make_float2(a, b);
        } else {
          y[c * 8] = a, y[c * 8 + 1] = b;
        }
      }
    }
  }
#ifdef OBK_DATAFLOW
  /* Of a piece, in words that carry `tag`: [8 rows][value_size] sums and [8 rows] maxima and
   * totals. */
  static constexpr int kMostShared = 8;
  static __device__ __forceinline__ char* shared_split(const ObkAttention& g, int kv_split) {
    static_assert(kMostShared * (kValue + 2) * 8 <= kv_split_bytes(kValue), "a piece has a place");
    return (char*)g.exchange + kAttentionTicketBytes + kv_split * kv_split_bytes(kValue);
  }
  __device__ __forceinline__ void broadcast_split(const ObkAttention& g, int column, int queries,
                                                  const float (&m)[2], uint32_t tag) const {
    const int lane = threadIdx.x % 32, row = lane / 4; /* no more than kMostShared */
    if (row >= queries) return;
    char* const to = shared_split(g, g.kv_split);
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
      broadcast_two(to + (row * kValue + (column + c) * 8 + lane % 4 * 2) * 8,
                    __float_as_uint(o[c][0]), __float_as_uint(o[c][1]), tag);
    if (column == 0 && lane % 4 == 0)
      broadcast_two(to + (kMostShared * kValue + row * 2) * 8, __float_as_uint(m[0]),
                    __float_as_uint(total[0]), tag);
  }
  /* The columns of this piece's number, of all pieces, joined in their order. */
  static __device__ __forceinline__ void join_broadcast(const ObkAttention& g, int queries,
                                                        uint32_t tag) {
    constexpr int kOwn = kValue / kKvSplits, kTwos = (kOwn + 1) / 2;
    static_assert(kOwn % 2 == 0, "columns are given by twos");
    static_assert(32 % kKvSplits == 0, "lanes of a warp, a piece each, join two columns");
    const int count = queries * kTwos * kKvSplits;
#pragma unroll 1
    for (int n = threadIdx.x; n - (int)threadIdx.x % 32 < count; n += 256) {
      const int of = (n < count ? n : count - 1) / kKvSplits, kv_split = n % kKvSplits,
                lane0 = threadIdx.x % 32 - kv_split;
      const int row = of / kTwos, two = of % kTwos * 2;
      const uint32_t from = kv_split * (kv_split_bytes(kValue) / 16);
      const uint32_t at[2] = {from + (kMostShared * kValue + row * 2) / 2,
                              from + (row * kValue + g.kv_split * kOwn + two) / 2};
      BroadcastPair seen[2];
      await_all(seen, shared_split(g, 0), at, tag, ring_state().dog);
      float largest = 0, all = 0, v[2] = {};
#pragma unroll
      for (int k = 0; k < kKvSplits; ++k) {
        auto of_lane = [&](uint32_t word) {
          return __uint_as_float(__shfl_sync(0xffffffffu, word, lane0 + k));
        };
        const float m = of_lane(seen[0].first()), l = of_lane(seen[0].second());
        const float a = of_lane(seen[1].first()), b = of_lane(seen[1].second());
        if (k == 0) {
          largest = m, all = l, v[0] = a, v[1] = b;
        } else {
          float old, now;
          join_rows(largest, all, m, l, old, now);
          v[0] = join_values(v[0], old, a, now), v[1] = join_values(v[1], old, b, now);
        }
      }
      const float over = over_total(all, g.zero_if_masked);
      float* const y = g.y + row * g.y_row + two;
      if (n < count && kv_split == 0) y[0] = __fmul_rn(v[0], over), y[1] = __fmul_rn(v[1], over);
    }
  }
#else
  __device__ __forceinline__ void broadcast_split(const ObkAttention&, int, int, const float (&)[2],
                                                  uint32_t) const {}
  static __device__ __forceinline__ void join_broadcast(const ObkAttention&, int, uint32_t) {}
#endif
  __device__ __forceinline__ void store_split(const ObkAttention& g, int column, int queries,
                                              const float (&m)[2]) const {
    const int lane = threadIdx.x % 32;
    float* const sums =
        (float*)((char*)g.exchange + kAttentionTicketBytes + g.kv_split * kv_split_bytes(kValue));
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = lane / 4 + 8 * r;
      if (row >= queries) continue;
#pragma unroll
      for (int c = 0; c < kColumns; ++c)
        *(float2*)(sums + row * kValue + (column + c) * 8 + lane % 4 * 2) =
            make_float2(o[c][2 * r], o[c][2 * r + 1]);
      if (column == 0 && lane % 4 == 0)
        *(float2*)(sums + 16 * kValue + row * 2) = make_float2(m[r], total[2 * r]);
    }
  }
};

}  // namespace obk

#endif
