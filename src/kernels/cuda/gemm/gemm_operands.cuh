/* kernels/cuda/gemm/gemm_operands.cuh — how the operands of a 16-bit product come to shared memory,
 * and how its sums leave.
 *
 * One image serves every reader: atoms of 8 rows by 64 k, 1024 bytes, a row of 128 bytes, of which
 * piece p (16 bytes) lies at place p ^ row; so ldmatrix meets no bank twice and wgmma reads it as
 * it is. Packed weights are such atoms, tile by tile [k / 64][columns / 8]; other operands are
 * written so by their copies.
 *
 * A pass goes over all of k for a rectangle of C. Its operands come in stages of some blocks of 64
 * k, four in flight, each a group of asynchronous copies; packed weights come by the ring, in
 * pages, or with the stages where there is no ring. */
#ifndef OBK_GEMM_OPERANDS_CUH
#define OBK_GEMM_OPERANDS_CUH

#include "exec/ring.cuh"
#include "gemm/gemm_shape.h"

namespace obk {

/* Rows of 16-bit elements with any strides: an operand of a product. */
struct Rows16 {
  const uint16_t* at;
  int64_t row, col; /* strides */
  int32_t rows;     /* that are there; those after them are zero */
  int32_t k;
  int mode; /* how they are copied: 0 asynchronously, 1 by 16 bytes, 2 by elements */

  __device__ void choose() {
    const bool aligned = col == 1 && ((uint64_t)at & 15) == 0 && ((row & 7) == 0 || rows <= 1);
    mode = aligned ? (__isShared(at) ? 1 : 0) : 2;
  }
};

static __device__ inline uint32_t two(const uint16_t* p, int64_t stride, int n) {
  const uint32_t low = n > 0 ? p[0] : 0, high = n > 1 ? p[stride] : 0;
  return low | high << 16;
}

/* Blocks first .. first + blocks of 64 k to shared memory at `to`: [block][padded rows][128 bytes].
 * Any strides and alignment; threads copy where the asynchronous copies cannot. A warp takes pieces
 * of four rows, or where rows are neighbours in memory a piece of 32. */
static __device__ __noinline__ void load_rows_plainly(uint32_t to, int padded, Rows16 x, int first,
                                                      int blocks) {
  const bool neighbours = x.row == 1;
  const int first_row = neighbours ? threadIdx.x & 31 : threadIdx.x >> 3;
  const int piece = neighbours ? threadIdx.x >> 5 : threadIdx.x & 7;
#pragma unroll 1
  for (int block = 0; block < blocks; ++block, to += padded * 128) {
    const int k = (first + block) * 64 + piece * 8;
    const uint16_t* from = x.at + k * x.col;
#pragma unroll 1
    for (int r = first_row; r < padded; r += OBK_THREADS / 8) {
      const int left = r < x.rows ? x.k - k : 0;
      const uint16_t* p = from + r * x.row;
      const uint32_t at = to + r * 128 + ((piece ^ (r & 7)) << 4);
      uint32_t v[4];
      if (x.mode == 0) {
        copy16_partly(at, left > 0 ? p : x.at, left >= 8 ? 16u : left > 0 ? left * 2u : 0u);
        continue;
      }
      if (x.mode == 1 && left >= 8) {
        memcpy(v, __builtin_assume_aligned(p, 16), 16);
      } else {
#pragma unroll
        for (int e = 0; e < 4; ++e) v[e] = two(p + 2 * e * x.col, x.col, left - 2 * e);
      }
      store_shared16(at, v);
    }
  }
}

/* The same for packed weights, where no ring loads them: `groups` of 8 columns, whole atoms. */
static __device__ __noinline__ void load_atoms(uint32_t to, const char* from, int groups, int pitch,
                                               int first, int blocks) {
  const int piece = threadIdx.x & 63; /* of an atom */
#pragma unroll 1
  for (int i = threadIdx.x >> 6; i < groups * blocks; i += OBK_THREADS >> 6) {
    const int group = i % groups, block = i / groups;
    copy16(to + i * 1024 + piece * 16,
           from + ((int64_t)(first + block) * pitch + group) * 1024 + piece * 16);
  }
}

/* What a pass over k works on: a rectangle of C no larger than the registers hold. */
struct Pass16 {
  Rows16 a;
  WeightPages weights; /* packed B */
  bool ring;
  int padded, blocks16; /* rows of A, a power of two; blocks of 16 columns */
  int rows, columns;    /* of C */
  float* c;
  int64_t c_row;
  bool accumulate;
};

/* The stages of a pass, and this thread's part in their copies: pieces of row `thread / 8`, and of
 * the row 32 further. Rows that are not there repeat the first: nobody stores their sums. What is
 * called takes its arguments by value: a thread's structures must stay in registers (ring.cuh says
 * why). */
struct Stages16 {
  uint32_t work, bytes, behind; /* of a stage; where in it B begins */
  uint32_t mine, block_bytes;   /* this thread's place in a block; a block's size */
  int blocks, k_blocks, groups;
  const char *row, *row32; /* this thread's pieces of the first block */
  bool fast, here, here32;

  __device__ __forceinline__ Stages16(const Pass16& p, uint32_t at) : work(at) {
    k_blocks = (p.a.k + 63) >> 6, groups = p.blocks16 * 2;
    const int rows = p.padded + (p.ring ? 0 : groups * 8);
    blocks = gemm_stages(rows, k_blocks, p.ring ? p.padded == 16 : true).blocks;
    bytes = blocks * rows * 128, behind = blocks * p.padded * 128, block_bytes = p.padded * 128;
    const int r = threadIdx.x >> 3, piece = threadIdx.x & 7;
    mine = r * 128 + ((piece ^ (r & 7)) << 4);
    fast = p.a.mode == 0 && (p.a.k & 63) == 0 && p.ring;
    here = r < p.padded, here32 = p.padded > 32;
    row = (const char*)(p.a.at + (r < p.rows ? r * p.a.row : 0)) + piece * 16;
    row32 = (const char*)(p.a.at + (r + 32 < p.rows ? (r + 32) * p.a.row : 0)) + piece * 16;
  }
  __device__ __forceinline__ uint32_t at(int stage) const { return work + (stage & 3) * bytes; }
  __device__ __forceinline__ bool refills() const { return blocks * 4 < k_blocks; }
  __device__ __forceinline__ void load(const Pass16& p, int stage) const {
    const int first = stage * blocks, left = k_blocks - first;
    const int count = left < blocks ? left : blocks;
    if (!fast) {
      if (count > 0) {
        load_rows_plainly(at(stage), p.padded, p.a, first, count);
        const uint32_t to = at(stage) + behind;
        if (!p.ring) load_atoms(to, p.weights.from, groups, p.weights.pitch, first, count);
      }
    } else {
      uint32_t to = at(stage) + mine;
      const char *from = row + first * 128, *from32 = row32 + first * 128;
#pragma unroll 1
      for (int b = 0; b < count; b += 4, to += 4 * block_bytes, from += 512, from32 += 512) {
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (b + e < count) {
            if (here) copy16(to + e * block_bytes, from + e * 128);
            if (here32) copy16(to + e * block_bytes + 4096, from32 + e * 128);
          }
      }
    }
    copy16_commit(); /* empty at the end, so that the count of groups is the same */
  }
  /* Round s of a pass, from -4: requests a stage, and from round 0 on returns true when stage s is
   * there. */
  __device__ __forceinline__ bool enter(const Pass16& p, int s) const {
    if (s == 0)
      copy16_wait<3>();
    else if (s > 0)
      copy16_wait<2>();
    if (s >= 0) __syncthreads();
    if (s < 0 || (s > 0 && refills()))
      load(p, s < 0 ? s + 4 : s + 3);
    else if (s > 0)
      copy16_commit();
    return s >= 0;
  }
};

/* Whether sums may be written to C two by two, while they are added: C in shared memory. */
static __device__ __forceinline__ bool sums_go_to_c(const Pass16& p) {
  return __isShared(p.c) && !p.accumulate &&
         (((uint32_t)p.c_row | (uint32_t)p.columns | (uint32_t)((uint64_t)p.c >> 2)) & 1) == 0;
}

/* C = or += the sum of two planes in scratch, neighbours by neighbours. */
static __device__ __noinline__ void add_planes(float* c, int64_t c_row, int rows, int columns,
                                               bool accumulate, uint32_t work, int pitch,
                                               int plane) {
#pragma unroll 1
  for (int y = threadIdx.x / 32; y < rows; y += 8) {
    float* to = c + y * c_row;
#pragma unroll 1
    for (int x = threadIdx.x % 32; x < columns; x += 32) {
      const uint32_t at = work + 4 * (y * pitch + x);
      const float both = load_shared(at) + load_shared(at + 4 * plane);
      to[x] = accumulate ? to[x] + both : both;
    }
  }
}

}  // namespace obk

#endif
