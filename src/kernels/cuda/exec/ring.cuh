/* kernels/cuda/exec/ring.cuh — pages of packed weights in shared memory, in the order of their use,
 * for as long as the kernel lives. One a CTA.
 *
 *   ring_start(pages_at, bars_at, pages, ...)    at the kernel's start, every thread
 *   ring_load_ahead(range)     every thread, right AFTER the barrier's arrive (a release waits for
 *                              loads in flight): the next task's first pages. A barrier of the CTA
 *                              must follow before the task
 *   Ring ring; ring.open(range); ring.take(), ring.release(), ...; ring.close();    a tile
 *   ring_finish()              before the kernel ends: no load may outlive its CTA
 *
 * A range is a rectangle of packed weights: `chunks` of 64 k, each of `groups` of 8 columns side by
 * side, `pitch` groups from one to the next. Packing puts a tile's columns together, so that a page
 * is one run of bytes and one bulk copy: issuing one takes a thread some hundred cycles. Pages
 * follow from groups and chunks alone. What was loaded ahead is remembered with its range; a tile
 * that opens another range discards those pages and loads anew, so a wrong guess costs time, never
 * an answer.
 *
 * The counts lie in shared memory between tiles and in registers within one, equal in every thread:
 * local memory would be read from L2, since a grid barrier empties the L1 cache, which beside so
 * much shared memory is small. Thread 0 issues the loads; each warp waits for a page and releases
 * it by itself. Loads are bulk copies: sm_90. On older architectures a ring has no pages, and tiles
 * load weights with the activations. */
#ifndef OBK_RING_CUH
#define OBK_RING_CUH

#include "exec/barrier.cuh"

namespace obk {

/* OBK_RING: pages that every kernel of the program that streams weights has at least, so that tiles
 * that are static otherwise need no fallback, and none is compiled: with one page, with two.
 */
#if defined OBK_RING && __CUDA_ARCH__ >= 900
static constexpr bool kHasRing = OBK_RING > 0, kHasPages = OBK_RING > 1;
#else
static constexpr bool kHasRing = false, kHasPages = false;
#endif

/* Few rows by many weights, as of one token: the program is bound by loading weights. Then pages
 * are loaded early, but throttled: barrier traffic queues behind outstanding weight loads, and
 * bandwidth does not suffer from few in flight. Other programs lose by it. */
#ifdef OBK_FEW_ROWS
static constexpr bool kFewRows = true;
#else
static constexpr bool kFewRows = false;
#endif
/* A dataflow program: a warp of its own loads all pages, in the order of their use (dataflow.cuh).
 */
#ifdef OBK_DATAFLOW
static constexpr bool kDataflow = true;
#else
static constexpr bool kDataflow = false;
#endif
/* Whether an operand lies in shared memory: a CTA's own copy. */
static __device__ __forceinline__ bool in_shared(const void* operand) {
#ifdef OBK_DATAFLOW
  return __isShared(operand);
#else
  (void)operand;
  return false;
#endif
}
/* One kernel with barriers: some pages are requested while the CTA waits for the others, the rest
 * where the tile begins. */
#if defined OBK_MONO && !defined OBK_DATAFLOW
static constexpr bool kPaces = true;
#else
static constexpr bool kPaces = kFewRows;
#endif
/* Pages in flight to an SM while it waits for the others: with fewer HBM is idle, with more polls
 * of the barrier queue behind them. `h100_paced_pages.json`. */
static constexpr int kPacedPages = kFewRows ? 3 : 2;
/* Pages loaded while a task without weights runs, for the task after it: no more than have arrived
 * when it signals, for a release waits for all loads in flight. */
static constexpr int kEarlyPages = 2;

struct WeightPages {
  const char* from;
  int32_t groups, chunks, pitch;

  static constexpr int kAtomBytes = obk::kAtomBytes;
  /* Where one queue holds the pages of all tasks, a smaller page leaves less of it empty
   * (dataflow.cuh). */
  static constexpr int kPageBytes = kDataflow ? kDataflowPageBytes : kRingPageBytes,
                       kMostGroups = kPageBytes / kAtomBytes;

  /* A tile's own range: its columns were packed together. */
  static __device__ __forceinline__ WeightPages of_tile(const char* from, int groups, int chunks) {
    WeightPages range;
    range.from = from, range.groups = range.pitch = groups, range.chunks = chunks;
    return range;
  }

  /* kMostGroups / groups, for groups of 2, 4, ..: no division on a path that waits. */
  __device__ __forceinline__ int chunks_a_page() const {
    constexpr uint64_t kEach = kDataflow ? 0x11112248ull : 0x11111122346cull;
    return (int)(kEach >> ((groups * 2 - 4) & 63)) & 15;
  }
};

struct RingState {
  uint32_t at, bars; /* shared addresses */
  int32_t pages;
  int32_t take, back, load; /* slots */
  uint32_t take_turn, load_turn;
  int32_t pending;    /* requested, not given back */
  WeightPages opened; /* the range whose pages were last requested */
  int32_t next;       /* the first page of it that was not requested */
  Watchdog dog;
};

/* What the task after the present one will stream, where no barrier of the grid stands between: a
 * tile that has requested all of its own pages goes on with those. No chunks: nothing. */
static __device__ __forceinline__ WeightPages& ring_after() {
  static __shared__ WeightPages after;
  return after;
}

static __device__ __forceinline__ RingState& ring_state() {
  static __shared__ RingState state;
  return state;
}

/* The copies of chunks first .. end of a range. */
static __device__ __forceinline__ void copy_page(uint32_t to, const WeightPages& range, int first,
                                                 int end, uint32_t full) {
  const uint32_t chunk = range.groups * WeightPages::kAtomBytes;
  const int64_t pitch = (int64_t)range.pitch * WeightPages::kAtomBytes;
  const char* from = range.from + first * pitch;
  mbarrier_expect(full, (end - first) * chunk);
  if (range.pitch == range.groups) return bulk_copy(to, from, (end - first) * chunk, full);
#pragma unroll 1
  for (; first < end; ++first, from += pitch, to += chunk) bulk_copy(to, from, chunk, full);
}

/* Thread 0: loads page `page` of a range. A place is free when every warp gave its page back. */
static __device__ __forceinline__ void load_page_here(uint32_t to, uint32_t full, uint32_t empty,
                                                      uint32_t turn, WeightPages range, int page) {
  Watchdog dog = ring_state().dog;
  dog.start();
  while (!mbarrier_try(empty, turn ^ 1)) dog.check(3, page, turn, 0);
  /* Not min(chunks - first, per_page): where `chunks` is a constant the assembler of CUDA 13.0 to
   * 13.2 forgets a sign there. */
  const int per_page = range.chunks_a_page(), first = page * per_page, beyond = first + per_page;
  const int end = beyond < range.chunks ? beyond : range.chunks;
  copy_page(to, range, first, end, full);
}
static __device__ __noinline__ void load_page(uint32_t to, uint32_t full, uint32_t empty,
                                              uint32_t turn, WeightPages range, int page) {
  load_page_here(to, full, empty, turn, range, page);
}

class Ring {
 public:
  static constexpr int kBarBytes = kPageBarBytes;

  __device__ __forceinline__ Ring() : s_(ring_state()) {}
  __device__ __forceinline__ int pages() const { return s_.pages; }
  /* The tile's range. Whatever else is pending is thrown away. */
  __device__ __forceinline__ void open(const WeightPages& range) {
    const bool ahead = s_.pending > 0 && s_.pending == s_.next && s_.opened.from == range.from &&
                       s_.opened.groups == range.groups && s_.opened.chunks == range.chunks;
    per_page_ = range.chunks_a_page();
    if (!ahead) {
#pragma unroll 1
      while (s_.pending > 0) take(), release();
      s_.opened = range, s_.next = 0;
    }
    load_more();
  }
  /* Whether the range's pages all have a place, so that none is replaced. */
  __device__ __forceinline__ bool holds_all() const {
    return s_.pages * per_page_ >= s_.opened.chunks;
  }
  /* The next page, when it is there: its shared address. */
  __device__ __forceinline__ uint32_t take() {
    s_.dog.start();
    while (!mbarrier_try(full(s_.take), s_.take_turn))
      s_.dog.check(2, s_.take, s_.next, s_.pending);
    const uint32_t page = s_.at + s_.take * WeightPages::kPageBytes;
    if (++s_.take == s_.pages) s_.take = 0, s_.take_turn ^= 1;
    return page;
  }
  /* This warp has read the page that it took first. */
  __device__ __forceinline__ void release() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(empty(s_.back));
    if (++s_.back == s_.pages) s_.back = 0;
    --s_.pending;
  }
  /* Loads the pages of the opened range that have a place. */
  __device__ __forceinline__ void load_more() {
#pragma unroll 1
    for (; s_.next * per_page_ < s_.opened.chunks && s_.pending < s_.pages;
         ++s_.next, ++s_.pending) {
      if (threadIdx.x == 0)
        load_page(s_.at + s_.load * WeightPages::kPageBytes, full(s_.load), empty(s_.load),
                  s_.load_turn, s_.opened, s_.next);
      if (++s_.load == s_.pages) s_.load = 0, s_.load_turn ^= 1;
    }
  }
  /* The tile's end, before its last barrier. */
  __device__ __forceinline__ void close() const {
    if (threadIdx.x == 0) ring_state() = s_;
  }

 private:
  __device__ __forceinline__ uint32_t full(int k) const { return s_.bars + 8 * k; }
  __device__ __forceinline__ uint32_t empty(int k) const { return s_.bars + 8 * (s_.pages + k); }

  RingState s_;
  int32_t per_page_ = 0;
};

/* Where a tile stands in its range of pages, which are consumed in the order in which their loads
 * were issued. The code that opens the range fills it in. */
struct PageCursor {
  uint32_t at, bars, turn;
  int pages, slot;

  __device__ __forceinline__ uint32_t take() const {
    const uint32_t bar = bars + 8 * slot;
    Watchdog dog = ring_state().dog;
    dog.start();
    while (!mbarrier_try(bar, turn)) dog.check(2, slot, turn, 0);
    return at + slot * WeightPages::kPageBytes;
  }
  /* This warp has read the page: on to the next. */
  __device__ __forceinline__ void release() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(bars + 8 * (pages + slot));
    if (++slot == pages) slot = 0, turn ^= 1;
  }
  /* Page `page` takes the place of the page before the present one, which all give back soon. */
  __device__ __forceinline__ void load(const WeightPages& range, int page) const {
    if (threadIdx.x != 224) return;
    const int before = slot == 0 ? pages - 1 : slot - 1;
    load_page(at + before * WeightPages::kPageBytes, bars + 8 * before, bars + 8 * (pages + before),
              slot == 0 ? turn : turn ^ 1, range, page);
  }
  /* Before the tile's last barrier. */
  __device__ __forceinline__ void close() const {
    if (threadIdx.x != 0) return;
    RingState& s = ring_state();
    s.take = s.back = s.load = slot, s.take_turn = s.load_turn = turn, s.pending = 0;
  }
};

/* What is pending is thrown away and the range requested: a tile that was not loaded ahead. */
static __device__ __noinline__ void ring_reopen(WeightPages range) {
  __syncthreads();
  Ring ring;
  ring.open(range);
  __syncthreads(); /* all have read the state */
  ring.close();
  __syncthreads();
}

static __device__ inline void ring_start(uint32_t pages_at, uint32_t bars_at, int pages,
                                         ObkWatch* watch, uint32_t sm) {
  if (threadIdx.x == 0) {
    RingState& s = ring_state();
    s.at = pages_at, s.bars = bars_at, s.pages = pages;
    s.take = s.back = s.load = 0, s.take_turn = s.load_turn = 0, s.pending = 0;
    s.opened.from = nullptr, s.opened.groups = s.opened.chunks = s.opened.pitch = 0, s.next = 0;
    if (kFewRows) ring_after().chunks = 0;
    s.dog.watch = watch, s.dog.sm = sm, s.dog.task = kDataflow ? kTaskNow : 0, s.dog.since = 0;
    for (int k = 0; k < pages; ++k) {
      mbarrier_init(bars_at + 8 * k, 1);
      mbarrier_init(bars_at + 8 * (pages + k), OBK_THREADS / 32);
    }
    if (pages > 0) mbarrier_init_fence();
  }
  __syncthreads();
}

/* The thread that loads pages while the first warp's waits for the other SMs. */
static __device__ __forceinline__ bool issues_loads() { return threadIdx.x == OBK_THREADS - 32; }

/* That thread: loads the opened range's pages that have a place, each when the one kPacedPages
 * before it is there, until `left` becomes `wave`. */
static __device__ __noinline__ void ring_follow(volatile int* left, int wave) {
  RingState& s = ring_state();
  const WeightPages range = s.opened;
  const int per_page = range.chunks_a_page();
  int page = s.next, first = page * per_page, slot = s.load;
  if (s.pending == 0 || page != s.pending) return;
  for (; first < range.chunks && page < s.pages; ++page, first += per_page) {
    int before = s.take + page - kPacedPages;
    if (page >= kPacedPages) {
      const uint32_t turn = before >= s.pages ? s.take_turn ^ 1 : s.take_turn;
      if (before >= s.pages) before -= s.pages;
      bool there;
      while (!(there = mbarrier_test(s.bars + 8 * before, turn)) && *left < wave) {
      }
      if (!there) break;
    }
    if (*left >= wave) break;
    const int beyond = first + per_page;
    copy_page(s.at + slot * WeightPages::kPageBytes, range, first,
              beyond < range.chunks ? beyond : range.chunks, s.bars + 8 * slot);
    if (++slot == s.pages) slot = 0;
  }
  if (slot < s.load || (slot == s.load && page > s.next)) s.load_turn ^= 1;
  s.load = slot, s.next = s.pending = page;
}
/* Where a tile begins, every thread: what is left to be loaded, each warp a page. */
static __device__ __noinline__ void ring_load_others(WeightPages range, int issued) {
  const int per_page = range.chunks_a_page();
  const RingState& s = ring_state();
  int page = issued + (int)threadIdx.x / 32;
  if (threadIdx.x % 32 == 0) {
    for (; page < s.pages && page * per_page < range.chunks; page += (int)OBK_THREADS / 32) {
      const int first = page * per_page, beyond = first + per_page;
      int slot = s.load + page - issued;
      if (slot >= s.pages) slot -= s.pages;
      copy_page(s.at + slot * WeightPages::kPageBytes, range, first,
                beyond < range.chunks ? beyond : range.chunks, s.bars + 8 * slot);
    }
  }
  __syncwarp();
}
static __device__ __forceinline__ void ring_load_rest(const WeightPages& range, int issued,
                                                      int pages) {
  if (issued < pages && issued * range.chunks_a_page() < range.chunks)
    ring_load_others(range, issued);
}

/* Every thread, after all have met since the last tile: as much of a range as fits, when no pages
 * are pending; in one kernel with barriers the first `most` pages, of few rows also when this
 * range's first are pending. Warps share the pages; the first has none, for its thread waits for
 * the other SMs next. */
static __device__ inline void ring_load_ahead(const WeightPages& range, int most = 1 << 30) {
  const RingState s = ring_state();
  __syncthreads(); /* the signal of thread 0 before the copies of others; the state is read */
  const int warp = (int)threadIdx.x / 32 - 1, warps = (int)OBK_THREADS / 32 - 1;
  const bool again = kFewRows && s.pending > 0;
  if (s.pages == 0 || (s.pending > 0 && !again) || range.groups == 0) return;
  if (again && (s.pending != s.next || s.opened.from != range.from ||
                s.opened.groups != range.groups || s.opened.chunks != range.chunks))
    return;
  if (warp < 0 || threadIdx.x % 32 != 0) return;
  const int per_page = range.chunks_a_page();
  const int had = again ? s.next : 0;
  int slot = s.load, page = had, first = had * per_page;
#pragma unroll 1
  for (; first < range.chunks && page < s.pages && (!kPaces || page < most);
       ++page, first += per_page) {
    const int beyond = first + per_page;
    if (page % warps == warp)
      copy_page(s.at + slot * WeightPages::kPageBytes, range, first,
                beyond < range.chunks ? beyond : range.chunks, s.bars + 8 * slot);
    if (++slot == s.pages) slot = 0;
  }
  if (kFewRows ? issues_loads() : warp == 0) {
    RingState& kept = ring_state();
    kept.opened = range, kept.load = slot;
    kept.load_turn = s.load_turn ^ (s.load + page - had >= s.pages);
    kept.next = kept.pending = page;
  }
}

static __device__ inline void ring_finish() {
  __syncthreads();
  Ring ring;
  WeightPages none = {};
  if (ring.pages() > 0) ring.open(none);
}

}  // namespace obk

#endif
