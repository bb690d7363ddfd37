/* kernels/cuda/ring.cuh — pages of packed weights in shared memory, in the order of their use, for
 * as long as the kernel lives.
 *
 *   ring.start(pages_at, bars_at, pages)   at the kernel's start, every thread
 *   ring.ask_ahead(range)                  every thread, right AFTER the barrier's arrive (a
 * release waits for copies in flight): the next task's first pages ring.open(range) ... ring.take()
 * ... ring.release() ...    a tile's pages, in order ring.finish()                          before
 * the kernel ends: no copy may outlive its CTA
 *
 * A range is a rectangle of packed weights: `groups` of 8 columns, each `chunks` of 64 k long and
 * contiguous. Its pages follow from groups and chunks alone. What was asked for ahead is remembered
 * with its range; a tile that opens another range throws those pages away and asks anew, so a wrong
 * guess costs time, never an answer.
 *
 * The counts are equal in every thread of the CTA, which therefore all make the same calls; thread
 * 0 asks, each warp waits for a page by itself and gives it back by itself. Pages come by bulk
 * copies: sm_90. On a lesser machine a ring has no pages and tiles bring weights with the
 * activations. */
#ifndef OBK_RING_CUH
#define OBK_RING_CUH

#include "barrier.cuh"

namespace obk {

struct WeightPages {
  const char* from = nullptr;
  int32_t groups = 0, chunks = 0;

  static constexpr int kChunkBytes = 1024; /* of a group: 8 columns by 64 k of 16 bits */
  static constexpr int kPageBytes = 24 * kChunkBytes, kMostGroups = 24;

  __device__ int chunks_a_page() const { return 24 / groups; }
  __device__ int count() const {
    return groups ? (chunks + chunks_a_page() - 1) / chunks_a_page() : 0;
  }
  __device__ bool operator==(const WeightPages& o) const {
    return from == o.from && groups == o.groups && chunks == o.chunks;
  }
};

class Ring {
 public:
  static constexpr int kBarBytes = 16; /* a page's two barriers */

  __device__ void start(uint32_t pages_at, uint32_t bars_at, int pages, int warps, ObkWatch* watch,
                        uint32_t sm) {
    at_ = pages_at, bars_ = bars_at, pages_ = pages;
    take_ = ask_ = 0, take_turn_ = ask_turn_ = 0, pending_ = 0;
    opened_ = WeightPages(), next_ = 0;
    dog_ = Watchdog{watch, sm, 0, 0};
    if (threadIdx.x == 0 && pages > 0) {
      for (int k = 0; k < pages; ++k) {
        mbarrier_init(full(k), 1);
        mbarrier_init(empty(k), warps);
      }
      mbarrier_init_fence();
    }
    __syncthreads();
  }
  __device__ int pages() const { return pages_; }
  __device__ Watchdog& dog() { return dog_; }

  /* Asks for as much of a range as fits, when no pages are pending. */
  __device__ void ask_ahead(const WeightPages& range) {
    if (pages_ == 0 || pending_ > 0 || range.groups == 0) return;
    opened_ = range, next_ = 0;
    ask_more();
  }
  /* The tile's range. Whatever else is pending is thrown away. */
  __device__ void open(const WeightPages& range) {
    if (!(pending_ > 0 && pending_ == next_ && opened_ == range)) {
      while (pending_ > 0) take(), release();
      opened_ = range, next_ = 0;
    }
    ask_more();
  }
  /* The next page, when it is there: its shared address. */
  __device__ uint32_t take() {
    dog_.start();
    while (!mbarrier_try(full(take_), take_turn_)) dog_.check(2, take_, next_, pending_);
    return at_ + take_ * WeightPages::kPageBytes;
  }
  /* This warp has read the page. */
  __device__ void release() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(empty(take_));
    if (++take_ == pages_) take_ = 0, take_turn_ ^= 1;
    --pending_;
  }
  /* Asks for the pages of the opened range that have a place. A place is free when every warp gave
   * its page back: thread 0 waits for that. */
  __device__ void ask_more() {
    const int per_page = opened_.chunks_a_page(), count = opened_.count();
    for (; next_ < count && pending_ < pages_; ++next_, ++pending_) {
      if (threadIdx.x == 0) {
        dog_.start();
        while (!mbarrier_try(empty(ask_), ask_turn_ ^ 1)) dog_.check(3, ask_, next_, pending_);
        const int first = next_ * per_page, left = opened_.chunks - first;
        const uint32_t bytes = (left < per_page ? left : per_page) * WeightPages::kChunkBytes;
        const int64_t pitch = (int64_t)opened_.chunks * WeightPages::kChunkBytes;
        const char* from = opened_.from + (int64_t)first * WeightPages::kChunkBytes;
        uint32_t to = at_ + ask_ * WeightPages::kPageBytes;
        mbarrier_expect(full(ask_), bytes * opened_.groups);
        for (int g = 0; g < opened_.groups; ++g, from += pitch, to += per_page * 1024)
          bulk_copy(to, from, bytes, full(ask_));
      }
      if (++ask_ == pages_) ask_ = 0, ask_turn_ ^= 1;
    }
  }
  __device__ void finish() {
    while (pending_ > 0) take(), release();
  }

 private:
  __device__ uint32_t full(int k) const { return bars_ + 8 * k; }
  __device__ uint32_t empty(int k) const { return bars_ + 8 * (pages_ + k); }

  uint32_t at_ = 0, bars_ = 0;
  int32_t pages_ = 0;
  int32_t take_ = 0, ask_ = 0; /* slots */
  uint32_t take_turn_ = 0, ask_turn_ = 0;
  int32_t pending_ = 0; /* asked for, not given back by this warp */
  WeightPages opened_;
  int32_t next_ = 0; /* the first page of `opened_` that was not asked for */
  Watchdog dog_ = {};
};

}  // namespace obk

#endif
