/* kernels/cuda/recurrent/recurrence.cuh — all steps of a direction of a recurrent layer by a gang
 * of CTAs (common/blocks.h: ObkRecurrent; what is computed: ops/recurrence.h).
 *
 *   registers   a member's rows of R for as long as the steps last: tiles of 4 units by 4 gates (an
 *               absent gate's rows are zeros), a warp a tile. What they cannot hold is read again
 * in each step, from the L2 cache shared      the state of all units, of this step and of the next
 *   exchange    a word of 8 bytes a unit and sequence: the new state and the number of its step. A
 *               word is written and read as a whole, so the number says that the value is there:
 *               no other signal, nothing to order
 *
 * A kernel of one work runs a gang as a cluster: there a few words lie in every member's own shared
 * memory, where their owners write them, and a step is shorter by the latency of the L2 cache.
 *
 * Two places for each word take turns. A member writes a place again two steps later, when it has
 * read every unit's state of the step between, which its owner computed from all states of the
 * first: so all had read the place. Numbers go on from run to run (each member keeps its own
 * count), so that what an earlier run left is never taken for an answer.
 *
 * 16-bit R meets the state on tensor cores: up to 8 sequences are the 8 columns of a product of 16
 * rows. f32 on CUDA cores, a sequence after the other, k over the lanes. The order of a sum follows
 * from the units alone, not from the gang. Members must run at once: a cooperative launch or a
 * cluster. */
#ifndef OBK_RECURRENCE_CUH
#define OBK_RECURRENCE_CUH

#include "blocks.h"
#include "core/dialect.cuh"

namespace obk {

/* How a state travels and meets R. */
static __device__ __forceinline__ uint32_t state_bits(const f16*, float h) {
  return narrow_f16(h).bits;
}
static __device__ __forceinline__ uint32_t state_bits(const bf16*, float h) {
  return narrow_bf16(h).bits;
}
static __device__ __forceinline__ uint32_t state_bits(const float*, float h) { return as_bits(h); }

/* Gates of a layer whose state travels in 16 bits: errors below 3e-6 of a value, a step's chain is
 * shorter by a third. Infinities and NaN as everywhere. */
static __device__ __forceinline__ float sigmoid_approx(float x) {
  return reciprocal_approx(1.0f + exp2_approx(-1.44269504f * x));
}
static __device__ __forceinline__ float tanh_approx(float x) {
  const float x2 = x * x;
  const float small = x + x * x2 * (-0.333333333f + x2 * (0.133333333f - x2 * 0.0539682540f));
  const float large = 1.0f - 2.0f * reciprocal_approx(1.0f + exp2_approx(2.88539008f * x));
  return x2 < 0.02f ? small : large; /* NaN takes the second */
}

#ifdef OBK_MONO
static constexpr bool kClusters = false;
#else
static constexpr bool kClusters = true;
#endif

template <class T, int kGates, int kHidden, int kGang, int kBatch>
struct Recurrence {
  static constexpr bool kHalf = sizeof(T) == 2;
  static constexpr int kUnits = (int)obk_recurrent_units(kHidden, kGang);
  static constexpr int kTiles = (kUnits + 31) / 32;
  static constexpr int kPiece = kHalf ? 32 : 128, kPieces = (kHidden + kPiece - 1) / kPiece;
  static constexpr int kPitch = (int)obk_recurrent_pitch(kHidden, sizeof(T));
  static constexpr int kState = kBatch * kPitch; /* bytes */
  static constexpr int kRegisters = kHalf ? 8 : 64;
  static constexpr int kChains = !kHalf ? 1 : kPieces >= 8 ? 4 : 2;
  static constexpr int kWords = (kBatch * kHidden + OBK_THREADS - 1) / OBK_THREADS;
  /* Pieces that registers hold: an even number, so that sums do not depend on it. */
  static constexpr int kRoom = (kTiles < 2   ? 128
                                : kTiles < 3 ? 96
                                : kTiles < 4 ? 48
                                             : 0) /
                               (kTiles * kRegisters);
  static constexpr int kHeld = kPieces <= kRoom ? kPieces : kRoom / 2 * 2;

  uint32_t r_[kTiles][kHeld > 0 ? kHeld : 1][kRegisters];
  const T* rows_; /* R of the direction */
  int warp_, lane_, member_;

  /* Of a lane: which of a tile's units it computes, of which sequence. */
  __device__ __forceinline__ int own_unit(int tile) const {
    const int unit = kHalf ? lane_ >> 2 & 3 : lane_ >> 3;
    return (tile * 8 + warp_) * 4 + unit;
  }
  __device__ __forceinline__ int own_sequence() const {
    return kHalf ? (lane_ & 3) * 2 + (lane_ >> 4) : lane_ & 7;
  }

  /* `n` registers of a row of R from column k; zeros where there are none. */
  template <int n>
  static __device__ __forceinline__ void load_row(const T* r, int gate, int local, int unit, int k,
                                                  uint32_t* to) {
    constexpr int kEach = n * 4 / (int)sizeof(T);
    const bool there = gate < kGates && local < kUnits && unit < kHidden;
    const T* from = r + ((int64_t)gate * kHidden + unit) * kHidden + k;
    if constexpr (kHidden % kEach == 0) {
      const uint4 v = there && k < kHidden ? *(const uint4*)from : make_uint4(0, 0, 0, 0);
      to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
    } else {
#pragma unroll
      for (int e = 0; e < n; ++e) to[e] = 0;
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        if (!there || k + e >= kHidden) continue;
        if constexpr (kHalf)
          to[e / 2] |= (uint32_t)from[e].bits << (e % 2 * 16);
        else
          to[e] = as_bits(from[e]);
      }
    }
  }

  /* A lane's part of a piece of a tile's rows. */
  __device__ __forceinline__ void load_piece(int tile, int j, uint32_t* to) const {
    const int base = (tile * 8 + warp_) * 4;
    if constexpr (kHalf) {
      const int group = lane_ >> 2, local = base + (group & 3), unit = member_ * kUnits + local;
      const int k = j * 32 + (lane_ & 3) * 8;
      uint32_t low[4], high[4];
      load_row<4>(rows_, group >> 2, local, unit, k, low);
      load_row<4>(rows_, 2 + (group >> 2), local, unit, k, high);
      /* Two products' A: rows group and group + 8, the lane's eight k two by two. */
      to[0] = low[0], to[1] = high[0], to[2] = low[1], to[3] = high[1];
      to[4] = low[2], to[5] = high[2], to[6] = low[3], to[7] = high[3];
    } else {
#pragma unroll
      for (int row = 0; row < 16; ++row) {
        const int local = base + row / 4;
        load_row<4>(rows_, row % 4, local, member_ * kUnits + local, j * 128 + lane_ * 4,
                    to + row * 4);
      }
    }
  }
  __device__ __forceinline__ void hold_weights() {
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int j = 0; j < kHeld; ++j) load_piece(t, j, r_[t][j]);
  }

  /* The gates' sums of the lane's unit and sequence, by tile. */
  __device__ __forceinline__ void multiply(uint32_t state, int count,
                                           float (&sums)[kTiles][4]) const {
    if constexpr (kHalf) {
      float d[kTiles][kChains][4] = {};
      const int group = lane_ >> 2;
      /* Columns beyond the sequences repeat the first: nobody reads their sums. */
      const uint32_t own_state = state + (group < kBatch ? group : 0) * kPitch + (lane_ & 3) * 16;
      const auto state_of = [&](int j, uint32_t(&b)[4]) { load_shared16(b, own_state + j * 64); };
      const auto meet = [&](const uint32_t* r, const uint32_t(&b)[4], float(&even)[4],
                            float(&odd)[4]) {
        const uint32_t first[4] = {r[0], r[1], r[2], r[3]}, second[4] = {r[4], r[5], r[6], r[7]};
        constexpr bool kBfloat = is_bfloat((const T*)nullptr);
        mma_16x8x16<kBfloat>(even, first, b[0], b[1]);
        mma_16x8x16<kBfloat>(odd, second, b[2], b[3]);
      };
      uint32_t all[kHeld > 0 ? kHeld : 1][4]; /* requested at once */
#pragma unroll
      for (int j = 0; j < kHeld; ++j) state_of(j, all[j]);
#pragma unroll
      for (int j = 0; j < kHeld; ++j)
#pragma unroll
        for (int t = 0; t < kTiles; ++t)
          meet(r_[t][j], all[j], d[t][2 * j % kChains], d[t][(2 * j + 1) % kChains]);
#pragma unroll 1
      for (int j = kHeld; j < kPieces; j += 2) {
        uint32_t r[kTiles][2][8], b[2][4];
#pragma unroll
        for (int t = 0; t < kTiles; ++t) load_piece(t, j, r[t][0]), load_piece(t, j + 1, r[t][1]);
        state_of(j, b[0]);
        if (j + 1 < kPieces) state_of(j + 1, b[1]);
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          meet(r[t][0], b[0], d[t][0], d[t][1]);
          if (j + 1 < kPieces) meet(r[t][1], b[1], d[t][2 % kChains], d[t][3 % kChains]);
        }
      }
      const bool high = lane_ & 16;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        float c[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          c[e] = d[t][0][e] + d[t][1][e];
          if (kChains == 4) c[e] += d[t][kChains - 2][e] + d[t][kChains - 1][e];
        }
        /* Lane l and lane l ^ 16 hold two gates each of one unit's two sequences: each takes one.
         */
        const float a = other_lane(high ? c[0] : c[1], 16), b = other_lane(high ? c[2] : c[3], 16);
        sums[t][0] = high ? a : c[0], sums[t][1] = high ? c[1] : a;
        sums[t][2] = high ? b : c[2], sums[t][3] = high ? c[3] : b;
      }
    } else {
#pragma unroll 1
      for (int sequence = 0; sequence < count; ++sequence) {
        const auto meet = [&](const uint32_t* r, int j, float(&v)[16]) {
          uint32_t h[4];
          load_shared16(h, state + sequence * kPitch + j * 512 + lane_ * 16);
#pragma unroll
          for (int row = 0; row < 16; ++row)
#pragma unroll
            for (int e = 0; e < 4; ++e)
              v[row] = fmaf(as_float(r[row * 4 + e]), as_float(h[e]), v[row]);
        };
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          float v[16] = {};
#pragma unroll
          for (int j = 0; j < kHeld; ++j) meet(r_[t][j], j, v);
#pragma unroll 1
          for (int j = kHeld; j < kPieces; ++j) {
            uint32_t r[64];
            load_piece(t, j, r);
            meet(r, j, v);
          }
          /* Sixteen sums of 32 lanes, halved from round to round: lane l ends with row l / 2. */
#pragma unroll
          for (int round = 0; round < 4; ++round) {
            const int left = 8 >> round;
            const bool up = lane_ & (left * 2);
#pragma unroll
            for (int k = 0; k < 8; ++k) {
              if (k >= left) continue;
              const float low = v[k], high = v[k + left];
              v[k] = (up ? high : low) + other_lane(up ? low : high, left * 2);
            }
          }
          v[0] += other_lane(v[0], 1);
#pragma unroll
          for (int gate = 0; gate < 4; ++gate) {
            const float sum = __shfl_sync(0xffffffffu, v[0], (lane_ & 24) | gate * 2);
            if (own_sequence() == sequence) sums[t][gate] = sum;
          }
        }
      }
    }
  }
  static __device__ constexpr bool is_bfloat(const bf16*) { return true; }
  static __device__ constexpr bool is_bfloat(const void*) { return false; }

  static __device__ __forceinline__ void put(uint32_t state, int sequence, int unit,
                                             uint32_t bits) {
    const uint32_t at = state + sequence * kPitch + unit * (int)sizeof(T);
    if constexpr (kHalf)
      store_shared_half(at, bits);
    else
      store_shared_word(at, bits);
  }

  /* Waits for every unit's state of a step and puts it into shared memory: a few words a thread at
   * a time. `poll(k)`: word k. */
  template <class Poll>
  static __device__ __forceinline__ void collect(const Poll& poll, uint32_t number, int count,
                                                 uint32_t state, Watchdog dog, uint64_t where) {
    constexpr int kTogether = kWords < 8 ? kWords : 8;
    dog.start();
#pragma unroll 1
    for (int first = 0; first < kWords; first += kTogether) {
      uint64_t word[kTogether] = {};
      const auto place = [&](int k) { return (first + k) * OBK_THREADS + (int)threadIdx.x; };
      for (bool all = false; !all;) {
        all = true;
#pragma unroll
        for (int k = 0; k < kTogether; ++k)
          if (place(k) < count * kHidden) word[k] = poll(place(k));
#pragma unroll
        for (int k = 0; k < kTogether; ++k)
          if (place(k) < count * kHidden) all = all && (uint32_t)(word[k] >> 32) == number;
        if (!all) dog.check(4, where, number, word[0] >> 32);
      }
#pragma unroll
      for (int k = 0; k < kTogether; ++k)
        if (place(k) < count * kHidden)
          put(state, place(k) / kHidden, place(k) % kHidden, (uint32_t)word[k]);
    }
  }
  static __device__ __forceinline__ void collect(const uint64_t* words, uint32_t number, int count,
                                                 uint32_t state, Watchdog dog) {
    collect([&](int k) { return poll_relaxed(words + k); }, number, count, state, dog,
            (uint64_t)words);
  }
  static __device__ __forceinline__ void collect_dsmem(uint32_t words, uint32_t number, int count,
                                                       uint32_t state, Watchdog dog) {
    collect([&](int k) { return poll_dsmem(words + k * 8); }, number, count, state, dog, words);
  }
  static __device__ __forceinline__ void post_to_all(uint32_t words, int place, uint64_t word) {
#pragma unroll
    for (int m = 0; m < kGang; ++m) post_dsmem(dsmem_address(words + place * 8, m), word);
  }

  static __device__ __forceinline__ float sigmoid(float x) {
    return kHalf ? sigmoid_approx(x) : sigmoid_of(x);
  }
  static __device__ __forceinline__ float tangent(float x) {
    return kHalf ? tanh_approx(x) : tanh_of(x);
  }
  /* One step of the lane's unit: sums of R's rows, fed values, the state and the cell. */
  static __device__ __forceinline__ void advance(const float (&sums)[4], const float (&fed)[kGates],
                                                 float bias, float& h, float& c) {
    if constexpr (kGates == 4) {
      const float in = sigmoid(fed[0] + sums[0]), out = sigmoid(fed[1] + sums[1]);
      const float forget = sigmoid(fed[2] + sums[2]), candidate = tangent(fed[3] + sums[3]);
      c = forget * c + in * candidate;
      h = out * tangent(c);
    } else if constexpr (kGates == 3) {
      const float update = sigmoid(fed[0] + sums[0]), reset = sigmoid(fed[1] + sums[1]);
      const float candidate = tangent(fed[2] + reset * (sums[2] + bias));
      h = (1.0f - update) * candidate + update * h;
    } else {
      h = tangent(fed[0] + sums[0]);
    }
  }
};

/* Operands: fed, R, bias, lengths, initial h and c, Y, last h and c, exchange. A cluster's members
 * are its CTAs in order. */
template <class T, int kGates, int kHidden, int kGang, int kBatch,
          bool kDsmem = kClusters && (kGang > 1) && kBatch * kHidden <= OBK_RECURRENT_DSMEM>
static __device__ __forceinline__ void recurrence(const int64_t* p, void* const* x, int64_t item,
                                                  ObkLanes* w) {
  typedef Recurrence<T, kGates, kHidden, kGang, kBatch> Own;
  const ObkRecurrent& g = *(const ObkRecurrent*)p;
  const int steps = (int)g.steps, batch = (int)g.batch, directions = (int)g.directions;
  const int member = (int)(item % kGang), part = (int)(item / kGang);
  const int parts = (batch + kBatch - 1) / kBatch;
  const int direction = part / parts, first = part % parts * kBatch;
  const int count = min(kBatch, batch - first);
  const bool backwards = direction == 1 || g.first_backwards != 0;
  const T* const initial_h = (const T*)x[4];
  const T* const initial_c = (const T*)x[5];
  uint64_t* const counts = (uint64_t*)x[9] + (int64_t)part * (kGang + 2 * kBatch * kHidden);
  uint64_t* const words = counts + kGang;
  const uint32_t states = shared_address(w->scratch);
  const int64_t states_row = (int64_t)direction * batch + first; /* of [D, B, H] */

  Own own;
  own.warp_ = threadIdx.x / 32, own.lane_ = threadIdx.x % 32;
  own.rows_ = (const T*)x[1] + (int64_t)direction * kGates * kHidden * kHidden;
  own.member_ = member;
  own.hold_weights();
  const uint32_t base = kGang > 1 && !kDsmem ? (uint32_t)poll_relaxed(counts + member) : 0;
  const uint32_t dsmem_words = states + 2 * Own::kState;
  constexpr int kClear = 2 * Own::kState / 4 + (kDsmem ? 4 * kBatch * kHidden : 0);
  for (int k = threadIdx.x; k < kClear; k += OBK_THREADS) store_shared_word(states + k * 4, 0);
  if (kDsmem)
    cluster_meet();
  else
    __syncthreads();
  if (initial_h)
    for (int k = threadIdx.x; k < count * kHidden; k += OBK_THREADS)
      Own::put(states, k / kHidden, k % kHidden,
               state_bits((const T*)nullptr, load(initial_h, states_row * kHidden + k)));

  const int sequence = own.own_sequence();
  const int length = sequence >= count ? 0
                     : x[3]            ? ((const int32_t*)x[3])[first + sequence]
                                       : steps;
  int unit[Own::kTiles];
  bool mine[Own::kTiles];
  float h[Own::kTiles], c[Own::kTiles], bias[Own::kTiles], fed[Own::kTiles][kGates];
#pragma unroll
  for (int t = 0; t < Own::kTiles; ++t) {
    const int local = own.own_unit(t);
    unit[t] = member * Own::kUnits + local;
    mine[t] = local < Own::kUnits && unit[t] < kHidden && sequence < count;
    const int64_t at = (states_row + sequence) * kHidden + unit[t];
    h[t] = mine[t] && initial_h ? load(initial_h, at) : 0.0f;
    c[t] = mine[t] && initial_c ? load(initial_c, at) : 0.0f;
    bias[t] = mine[t] && x[2] ? ((const float*)x[2])[direction * kHidden + unit[t]] : 0.0f;
  }
  /* Where the lane's values of step 0 stand, and how far apart steps are: read once from memory,
   * since a step's loads may not pass its exchange. */
  const int64_t turn = backwards ? -1 : 1, start = backwards ? steps - 1 : 0;
  const int64_t fed_step = turn * batch * directions * (kGates * kHidden);
  const float* fed_at = (const float*)x[0] + direction * (kGates * kHidden) +
                        (start * batch + first + sequence) * directions * (kGates * kHidden);
  const int64_t y_step = turn * directions * batch * kHidden;
  T* const y = (T*)x[6];
  int64_t y_at = ((start * directions + direction) * batch + first + sequence) * kHidden;
  const auto feed = [&] {
#pragma unroll
    for (int t = 0; t < Own::kTiles; ++t)
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate)
        fed[t][gate] = mine[t] ? fed_at[gate * kHidden + unit[t]] : 0.0f;
    fed_at += fed_step;
  };
  feed();
  __syncthreads();
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    const int time = backwards ? steps - 1 - step : step;
    const uint32_t next = states + (step & 1 ? 0 : Own::kState);
    uint64_t* const posted = words + (step & 1) * (kBatch * kHidden);
    const uint32_t posted_dsmem = dsmem_words + (step & 1) * (8 * kBatch * kHidden);
    const bool last = step + 1 == steps, alive = time < length;
    float sums[Own::kTiles][4];
    own.multiply(states + (step & 1 ? Own::kState : 0), count, sums);
#pragma unroll
    for (int t = 0; t < Own::kTiles; ++t) {
      float new_h = h[t], new_c = c[t];
      Own::advance(sums[t], fed[t], bias[t], new_h, new_c);
      if (alive) h[t] = new_h, c[t] = new_c;
      if (last || !mine[t]) continue;
      const uint32_t bits = state_bits((const T*)nullptr, h[t]);
      const uint64_t word = (uint64_t)(base + step + 1) << 32 | bits;
      if (kDsmem)
        Own::post_to_all(posted_dsmem, sequence * kHidden + unit[t], word);
      else if (kGang > 1)
        post_relaxed(posted + sequence * kHidden + unit[t], word);
      else
        Own::put(next, sequence, unit[t], bits);
    }
    if (!last) feed();
    if (y) {
#pragma unroll
      for (int t = 0; t < Own::kTiles; ++t)
        if (mine[t]) store(y, y_at + unit[t], alive ? h[t] : 0.0f);
      y_at += y_step;
    }
    if (last) break;
    if (kDsmem)
      Own::collect_dsmem(posted_dsmem, base + step + 1, count, next, ring_state().dog);
    else if (kGang > 1)
      Own::collect(posted, base + step + 1, count, next, ring_state().dog);
    __syncthreads();
  }
#pragma unroll
  for (int t = 0; t < Own::kTiles; ++t) {
    const int64_t at = (states_row + sequence) * kHidden + unit[t];
    if (mine[t] && x[7]) store((T*)x[7], at, h[t]);
    if (mine[t] && x[8]) store((T*)x[8], at, c[t]);
  }
  if (kGang > 1 && !kDsmem && threadIdx.x == 0)
    post_relaxed(counts + member, base + (uint32_t)steps);
}

}  // namespace obk

#endif
