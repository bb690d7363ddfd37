/* kernels/cuda/gemm/pieces.cuh — what a thread copies of an operand's blocks of k, one after
 * another: two pieces of 16 bytes of each, by cp.async. From block to block only addresses are
 * added to, for the copies of a block must cost the threads few instructions. */
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

}  // namespace obk

#endif
