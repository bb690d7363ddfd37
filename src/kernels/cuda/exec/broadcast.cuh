/* kernels/cuda/exec/broadcast.cuh — words that carry their own ready flag: 32 bits of data, and
 * beside them the number of the run that wrote them, in one store of 64 bits.
 *
 *   broadcast_two(at, a, b, tag)          by the CTA that computed them
 *   await_all(two, from, at, tag, dog)    by those that read them: whole warps
 *
 * Only the word itself is ordered, so neither side waits for the SM's loads in flight, as a release
 * would. A place is written once a run, and runs of one instance follow one another: a stale word
 * has the number of an earlier run. The number is never zero where memory begins as zeros. Aligned
 * accesses of 64 bits are single ones in PTX's memory model (also as parts of a vector); relaxed at
 * gpu scope they are visible to all SMs. */
#ifndef OBK_BROADCAST_CUH
#define OBK_BROADCAST_CUH

#include "exec/barrier.cuh"

namespace obk {

struct BroadcastPair {
  uint64_t a, b;
  __device__ __forceinline__ uint32_t first() const { return (uint32_t)a; }
  __device__ __forceinline__ uint32_t second() const { return (uint32_t)b; }
};

OBK_DEVICE uint64_t with_tag(uint32_t word, uint32_t tag) { return (uint64_t)tag << 32 | word; }
OBK_DEVICE void broadcast_one(void* at, uint32_t word, uint32_t tag) {
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(at), "l"(with_tag(word, tag))
               : "memory");
}
/* `at`: a multiple of 16. */
OBK_DEVICE void broadcast_two(void* at, uint32_t a, uint32_t b, uint32_t tag) {
  asm volatile("st.relaxed.gpu.global.v2.b64 [%0], {%1, %2};" ::"l"(at), "l"(with_tag(a, tag)),
               "l"(with_tag(b, tag))
               : "memory");
}
OBK_DEVICE BroadcastPair read_two(const void* at) {
  BroadcastPair two;
  asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
               : "=l"(two.a), "=l"(two.b)
               : "l"(at)
               : "memory");
  return two;
}
OBK_DEVICE bool has_arrived(const BroadcastPair& two, uint32_t tag) {
  return (uint32_t)(two.a >> 32) == tag && (uint32_t)(two.b >> 32) == tag;
}
/* A whole warp waits for kCount pairs of each lane, so many times 16 bytes behind `from` (kNowhere:
 * no pair): all missing words are polled at once, for a poll takes the better part of a
 * microsecond. The warp stays together: lanes that went each their own way would look one after
 * another. */
static constexpr uint32_t kNowhere = 0xffffffffu;
template <int kCount>
OBK_DEVICE void await_all(BroadcastPair (&two)[kCount], const char* from,
                          const uint32_t (&at)[kCount], uint32_t tag, Watchdog dog) {
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    if (at[i] != kNowhere) two[i] = read_two(from + (uint64_t)at[i] * 16);
  dog.start();
  for (;;) {
    uint32_t missing = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      missing |= (at[i] != kNowhere && !has_arrived(two[i], tag) ? 1u : 0u) << i;
    if (__all_sync(0xffffffffu, missing == 0)) return;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (!(missing >> i & 1)) continue;
      dog.check(5, (uint64_t)(from + (uint64_t)at[i] * 16), tag, two[i].a >> 32);
      two[i] = read_two(from + (uint64_t)at[i] * 16);
    }
  }
}

}  // namespace obk

#endif
