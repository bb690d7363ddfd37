/* kernels/cuda/gemm_wgmma.cuh — a pass of a 16-bit product by wgmma: rows of C, 33 to 64, are the
 * 64-row side. For weights of the ring and rows that asynchronous copies can bring: while products
 * are under way nothing may be called.
 *
 * The first warpgroup sums the k-steps 0 and 1 of each 64, each for itself, the second the steps 2
 * and 3; then the sums are added: the order, and the bits, of gemm_mma.cuh. */
#ifndef OBK_GEMM_WGMMA_CUH
#define OBK_GEMM_WGMMA_CUH

#include "gemm_operands.cuh"
#include "wgmma.cuh"

#ifdef OBK_WGMMA

namespace obk {

/* A value that all lanes hold, known to be so. */
static __device__ __forceinline__ uint32_t uniform(uint32_t v) {
  return __shfl_sync(0xffffffffu, v, 0);
}

template <bool kBfloat, int kN>
static __device__ __forceinline__ void pass_wgmma(Ring& ring, uint32_t work, const Pass16& p) {
  const int part = uniform(threadIdx.x / 128);
  const Stages16 stages(p, work);
  float sum[kN / 2] = {}, odd[kN / 2] = {};
  const int per_page = uniform(p.weights.chunks_a_page());
  const uint32_t block = uniform(stages.block_bytes >> 4), next = uniform(stages.groups * 64);
  /* Where nothing is replaced on the way, nobody waits for a product before the end. */
  const bool stays = ring.holds_all();
  const bool refills = stages.refills();
  const uint64_t x0 = matrix_at(uniform(work) + part * 64, 1024),
                 y0 = matrix_at(part * 64, 1024);
  uint64_t y = 0;
  int in_page = 0, held = 0;
#pragma unroll 1
  for (int s = -4, k_block = 0; k_block < stages.k_blocks; ++s) {
    auto leave = [&] {
      fence_async_shared(); /* own copies before anybody's wgmma */
      if (refills && s > 0) wgmma_wait<0>();
    };
    if (!stages.enter<false>(p, s, leave)) continue;
    uint64_t x = x0 + uniform((s & 3) * stages.bytes >> 4);
    const int count = uniform(min(stages.blocks, stages.k_blocks - k_block));
#pragma unroll 1
    for (int left = count; left > 0;) {
      if (in_page == 0) y = y0 + (uniform(ring.take()) >> 4);
      const int n = min(left, per_page - in_page); /* blocks without anything between them */
#pragma unroll 2
      for (int b = 0; b < n; ++b, x += block, y += next) {
        wgmma_begin();
        Wgmma<kN, kBfloat>::multiply(sum, x, y);
        Wgmma<kN, kBfloat>::multiply(odd, x + 2, y + 2);
        wgmma_commit();
      }
      left -= n, k_block += n, in_page += n;
      if (in_page == per_page || k_block == stages.k_blocks) {
        in_page = 0;
        if (stays) {
          ++held;
        } else {
          wgmma_wait<0>();
          ring.release();
          ring.ask_more();
        }
      }
    }
  }
  wgmma_wait<0>();
#pragma unroll
  for (int e = 0; e < kN / 2; ++e) sum[e] += odd[e];
  for (; held > 0; --held) ring.release();
  copy16_wait<0>();

  const bool direct = sums_go_to_c(p);
  const int pitch = direct ? (int)p.c_row : stages.groups * 8 + 4, plane = p.padded * pitch;
  const uint32_t base = direct ? shared_address(p.c) : work;
  const bool full = p.rows == 64 && p.columns == kN;
  auto each = [&](auto&& f) {
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane / 4;
    const int column = lane % 4 * 2;
    const uint32_t at = base + 4 * (row * pitch + column);
    if (full) {
#pragma unroll
      for (int j = 0; j < kN / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          f(at + 4 * (e * 8 * pitch + j * 8), sum[4 * j + 2 * e], sum[4 * j + 2 * e + 1]);
      return;
    }
#pragma unroll
    for (int j = 0; j < kN / 8; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        if (row + e * 8 < p.rows && column + j * 8 < p.columns)
          f(at + 4 * (e * 8 * pitch + j * 8), sum[4 * j + 2 * e], sum[4 * j + 2 * e + 1]);
  };
  if (direct) {
    if (part == 1) each([](uint32_t at, float v, float w) { store_shared8(at, v, w); });
    __syncthreads();
    if (part == 0) {
      each([](uint32_t at, float& v, float& w) {
        float a, b;
        load_shared8(a, b, at);
        v += a, w += b;
      });
      each([](uint32_t at, float v, float w) { store_shared8(at, v, w); });
    }
  } else {
    __syncthreads(); /* all have read the stages, whose place the sums take */
    each([&](uint32_t at, float v, float w) { store_shared8(at + 4 * part * plane, v, w); });
    __syncthreads();
    add_planes(p.c, p.c_row, p.rows, p.columns, p.accumulate, work, pitch, plane);
  }
  if (p.ring) ring.close();
  __syncthreads();
}

}  // namespace obk

#endif
#endif
