/* kernels/cuda/gemm/pieces.cuh — the software pipeline of product tiles whose threads copy both
 * operands by cp.async: each_stage() runs it; Pieces is a thread's share of an operand's copies,
 * two pieces of 16 bytes of each block of k. From block to block only addresses are added to, for
 * the copies of a block must cost the threads few instructions. */
#ifndef OBK_PIECES_CUH
#define OBK_PIECES_CUH

#include "core/dialect.cuh"

namespace obk {

/* Elements of kElement bytes; blocks of kDepth k. A piece is some k of a row, or (of_k) some
 * columns of one k. */
template <int kElement, int kDepth>
struct Pieces {
  const char* from;             /* the first, of the next block */
  int64_t second, block;        /* bytes to the second; to the next block's */
  uint32_t to, to_second;       /* in a block in shared memory */
  uint32_t bytes, bytes_second; /* that are there; 0: nothing is copied */
  int k, k_second;              /* in a block */
  bool of_k;

  __device__ __forceinline__ uint32_t there(uint32_t most, int left) const {
    const uint32_t all = left > 0 ? (uint32_t)left * kElement : 0u;
    return of_k && left > 0 ? most : all < most ? all : most;
  }
  /* The next block, to `at`, of which `left` k are there; zeros behind them. */
  __device__ __forceinline__ void load(uint32_t at, int left) {
    uint32_t first = bytes, other = bytes_second;
    if (left < kDepth) first = there(bytes, left - k), other = there(bytes_second, left - k_second);
    copy16_if(bytes > 0, at + to, from, first);
    copy16_if(bytes_second > 0, at + to_second, from + second, other);
    from += block;
  }
};

/* load(s, at) for each stage s in order, and multiply(s, at) when it has come to shared memory at
 * `at`. There are places for kPlaces stages of kStage bytes from `work` on; all but one are on
 * their way. kMultipliesFirst: a stage is multiplied before more is requested, so that the tensor
 * cores work meanwhile. */
template <int kPlaces, int kStage, bool kMultipliesFirst, typename L, typename M>
static __device__ __forceinline__ void each_stage(int stages, uint32_t work, L&& load,
                                                  M&& multiply) {
  constexpr uint32_t kAll = kPlaces * kStage;
  uint32_t at = work, next_at = work;
  const auto load_next = [&](int s) {
    if (s < stages) {
      load(s, next_at);
      next_at = next_at + kStage == work + kAll ? work : next_at + kStage;
    }
    copy16_commit(); /* empty at the end, so that the count of groups is the same */
  };
#pragma unroll 1
  for (int s = 0; s < kPlaces - 1; ++s) load_next(s);
#pragma unroll 1
  for (int s = 0; s < stages; ++s) {
    copy16_wait<kPlaces - 2>();
    __syncthreads();
    if (kMultipliesFirst) multiply(s, at);
    load_next(s + kPlaces - 1);
    if (!kMultipliesFirst) multiply(s, at);
    at = at + kStage == work + kAll ? work : at + kStage;
  }
  copy16_wait<0>();
}

}  // namespace obk

#endif
