/* kernels/cuda/gemm.cuh — a tile of Y[tokens, rows] = X[tokens, k] W[rows, k]^T: 16-bit inputs,
 * float sums, weights streamed.
 *
 * Operands are swapped: weight rows are the 16-row side of mma.sync, tokens its 8-column side. A
 * tile is 64 tokens by 16 * kBlocks rows over all of k, by a CTA of 256 threads: four warps share
 * the k-steps of a chunk, two share the tokens. Weights are packed for their reader: [tile][k /
 * 16][block of 16 rows][lane] of 16 bytes, a lane's fragment of the mma; so a page (kSteps k-steps
 * of a tile) is one bulk copy, and fragments are read without bank conflicts. The four partial sums
 * are added in a fixed order: same input, same bits.
 *
 *   ring.start(pages, bars)       at the kernel's start, every thread
 *   ring.ask(page, dog)           thread 0, for the next tile, right AFTER the barrier's arrive: a
 * release waits for copies Gemm<...>::tile(ring, ...)    after the barrier's wait; asks for what
 * was not asked for
 *
 * Wants: tokens a multiple of 64, rows of 16 * kBlocks, k of 16 * kSteps; sm_90. */
#ifndef OBK_GEMM_CUH
#define OBK_GEMM_CUH

#include "barrier.cuh"
#include "ptx.cuh"

namespace obk {

template <int kBlocks, int kSteps, int kPages, int kPanels, bool kBfloat>
struct Gemm {
  static constexpr int kThreads = 256, kTokens = 64, kRows = 16 * kBlocks, kChunk = 16 * kSteps;
  static constexpr int kRing = kPages, kRingBytes = kPages * kSteps * kBlocks * 512;
  static constexpr int kPageBytes = kSteps * kBlocks * 512;
  static constexpr int kPitch =
      kChunk * 2 + 16; /* a token's row of a chunk; the pad spreads ldmatrix over the banks */
  static constexpr int kPanelBytes = kTokens * kPitch;
  static constexpr int kSumPitch = kRows + 4, kSumBytes = 4 * kTokens * kSumPitch * 4;
  static constexpr int kWork = kPanels * kPanelBytes > kSumBytes ? kPanels* kPanelBytes : kSumBytes;
  static constexpr int kSharedBytes = kPages * kPageBytes + kWork + 128;
  static_assert(kSteps % 4 == 0, "four warps share a chunk's steps");

  /* Pages of weights in the order of their use, through the whole kernel. */
  struct Ring {
    uint32_t pages, bars; /* shared addresses: full[kPages], then empty[kPages] */
    uint32_t taken = 0, asked = 0;

    __device__ void start(uint32_t pages_at, uint32_t bars_at) {
      pages = pages_at, bars = bars_at;
      if (threadIdx.x == 0) {
        for (int k = 0; k < kPages; ++k)
          mbarrier_init(bars + 8 * k, 1), mbarrier_init(bars + 8 * (kPages + k), kThreads / 32);
        mbarrier_init_fence();
      }
      __syncthreads();
    }
    /* Thread 0: the next page from `from`. The page that lay in its place must be free, or on the
     * way to be. */
    __device__ void ask(const void* from, Watchdog& dog) {
      const uint32_t slot = asked % kPages, round = asked / kPages;
      if (round > 0) {
        dog.start();
        while (!mbarrier_try(bars + 8 * (kPages + slot), (round - 1) & 1))
          dog.check(2, asked, round, 0);
      }
      mbarrier_expect(bars + 8 * slot, kPageBytes);
      bulk_copy(pages + slot * kPageBytes, from, kPageBytes, bars + 8 * slot);
      ++asked;
    }
    __device__ uint32_t wait(Watchdog& dog) {
      const uint32_t slot = taken % kPages;
      dog.start();
      while (!mbarrier_try(bars + 8 * slot, (taken / kPages) & 1)) dog.check(2, taken, asked, 0);
      return pages + slot * kPageBytes;
    }
    __device__ void free() {
      __syncwarp();
      if (threadIdx.x % 32 == 0)
        asm volatile(
            "mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bars + 8 * (kPages + taken % kPages))
            : "memory");
      ++taken;
    }
  };

  /* Starts the copy of chunk `c` of the activations. */
  static __device__ void load_panel(uint32_t work, const uint16_t* x, int64_t pitch, int c) {
    const uint32_t to = work + (uint32_t)(c % kPanels) * kPanelBytes;
    constexpr int kPieces = kChunk / 8; /* of 16 bytes, in a token's row */
    for (int k = threadIdx.x; k < kTokens * kPieces; k += kThreads) {
      const int token = k / kPieces, piece = k % kPieces;
      copy16(to + token * kPitch + piece * 16, x + token * pitch + (int64_t)c * kChunk + piece * 8);
    }
    copy16_commit();
  }

  /* x: the tile's first token; weights: the tile's packed pages; `ready`: how many pages of it were
   * asked for already. epilogue(token, row, float4): four neighbouring rows of one token, of the
   * tile. */
  template <class Epilogue>
  static __device__ void tile(Ring& ring, uint32_t work, const char* weights, int ready,
                              const uint16_t* x, int64_t x_pitch, int k, Watchdog& dog,
                              Epilogue epilogue) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, part = warp % 4, half = warp / 4;
    const int chunks = k / kChunk;
    float sum[kBlocks][4][4] = {};
    if (threadIdx.x == 0)
      for (; ready < chunks && ready < kPages; ++ready)
        ring.ask(weights + (int64_t)ready * kPageBytes, dog);
    for (int c = 0; c < kPanels; ++c) {
      if (c < chunks)
        load_panel(work, x, x_pitch, c);
      else
        copy16_commit(); /* empty, so that the count of groups is the same */
    }
    for (int c = 0; c < chunks; ++c) {
      copy16_wait<kPanels - 1>();
      __syncthreads();
      const uint32_t page = ring.wait(dog) + lane * 16;
      const uint32_t panel = work + (uint32_t)(c % kPanels) * kPanelBytes +
                             (half * 32 + (lane & 7) + ((lane >> 4) & 1) * 8) * kPitch +
                             ((lane >> 3) & 1) * 16;
#pragma unroll
      for (int s = 0; s < kSteps / 4; ++s) {
        const int step = part * (kSteps / 4) + s;
        uint32_t a[kBlocks][4], b[2][4];
#pragma unroll
        for (int m = 0; m < kBlocks; ++m) load_shared16(a[m], page + (step * kBlocks + m) * 512);
        load_matrices(b[0], panel + step * 32);
        load_matrices(b[1], panel + step * 32 + 16 * kPitch);
#pragma unroll
        for (int m = 0; m < kBlocks; ++m)
#pragma unroll
          for (int n = 0; n < 4; ++n)
            mma_16x8x16<kBfloat>(sum[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
      }
      ring.free();
      if (threadIdx.x == 0 && ready < chunks && c + kPages > ready)
        ring.ask(weights + (int64_t)ready * kPageBytes, dog), ++ready;
      if (c + kPanels < chunks) {
        __syncthreads(); /* all have read the panel that is filled anew */
        load_panel(work, x, x_pitch, c + kPanels);
      } else {
        copy16_commit();
      }
    }
    __syncthreads(); /* the panels become the place of the partial sums */
    const int row = lane / 4, token = half * 32 + lane % 4 * 2;
#pragma unroll
    for (int m = 0; m < kBlocks; ++m)
#pragma unroll
      for (int n = 0; n < 4; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const uint32_t at = work + 4 * ((part * kTokens + token + n * 8 + (e & 1)) * kSumPitch +
                                          m * 16 + row + (e / 2) * 8);
          asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(sum[m][n][e]) : "memory");
        }
    __syncthreads();
    for (int q = threadIdx.x; q < kTokens * kRows / 4; q += kThreads) {
      const int t = q / (kRows / 4), r = q % (kRows / 4) * 4;
      float v[4] = {};
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        uint32_t f[4];
        load_shared16(f, work + 4 * ((p * kTokens + t) * kSumPitch + r));
        for (int e = 0; e < 4; ++e) v[e] += __int_as_float((int)f[e]);
      }
      epilogue(t, r, v);
    }
  }
};

}  // namespace obk

#endif
