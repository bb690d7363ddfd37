/* kernels/cuda/gemm/pipelined_gemm.cuh — a persistent kernel of one GEMM of 16-bit numbers, or of
 * f32 (pipelined_gemm_tf32.cuh and pipelined_gemm_f32.cuh have its tiles; here is how operands
 * come), of 33 rows and more, whose B is packed weights or an activation:
 * C[m, n] = A[m, k] B[k, n], tiles of up to 64 rows by up to 160 columns, or of 65 to 128 rows
 * (tall tiles), which read B half as often. sm_90a.
 *
 *   OBK_PIPELINED_GEMM_KERNEL(k, body, N)     an entry: a CTA an SM
 *   pipe->begin()      in the body, before it reads anything but weights
 *   pipelined_gemm_sums<kObkF16, S, stage, other, statistics, N>(w, g)    then: the tile to g.c
 *   pipelined_gemm_tall<kObkF16, S, stage, chains, statistics, N>(w, g)   or a tall one
 *
 *   OBK_PIPELINED_GEMM_CLUSTER_KERNEL(k, body, N)    the same with split-K over a cluster
 *   pipelined_gemm_split_k<kObkF16, S, stage, plane, adds, N>(w, g)
 *   pipelined_gemm_tall_split_k<kObkF16, S, stage, chains, plane, adds, N>(w, g)
 *
 * A stage is `stage` blocks of 64 k: rows of A by a TMA tensor map of the whole matrix (blocks of
 * 64 columns by the tile's rows, swizzled in 16-byte chunks, zeros below the matrix), and weights
 * as they were packed, both on one mbarrier. As many stages as have a place are loaded before the
 * tile, by a thread of each warp in turn, their weights before the kernel waits for the one before
 * it; then thread 0 loads one more whenever a stage has been read, across tile boundaries. Between
 * that wait and the first load of rows nothing is computed, for there the whole kernel waits.
 *
 * A B that is an activation comes as A does, after that wait: by a TMA tensor map of its own, box
 * by box. Where its columns are rows in memory (k_rows false) a box is 64 k of a tile's columns,
 * and lies in shared memory as packed weights do. Where its rows of k are (k_rows) boxes are 64 k
 * by 64 columns, one behind another, and wgmma transposes them. What is beyond the matrix is zeros,
 * beside it others' numbers: nobody reads their sums.
 *
 * The order of a sum is that of gemm_mma.cuh: the first warpgroup sums the k-steps 0 and 1 of each
 * 64, each for itself, the second the steps 2 and 3: (0 + 1) + (2 + 3). Where the body adds the
 * warpgroups' sums itself they are left as two planes. In a tall tile each warpgroup has 64 rows
 * and all k: the same four chains, so the same bits, of up to 96 columns; or one chain over k, as
 * tiles of a grid have (conv_grid.cuh), of up to 192.
 *
 * Tiles of a cluster that share weights load each some of them, by multicast to all, so that
 * the L2 cache is read less: bench/results/h200_multicast.json.
 *
 * Split-K: each CTA of a cluster computes a part of k, and then the epilogue of its slice of the
 * tile's rows. Partial sums go to the shared memory of the CTA that has their rows, a plane for
 * each part, are counted there by an mbarrier, and are added in order of the parts. The cluster's
 * barrier says that a CTA has begun, or has read the tile before.
 *
 * There is no table: tiles follow from constants N that the kernel is compiled with, for the whole
 * GPU may wait for what a CTA does before its first loads (PipelinedGemmNumbers in
 * runtime/cuda/tables.h):
 *
 *   split_k, share                CTAs of a cluster: parts of k; tiles that share weights
 *   tasks, across, each           tiles; side by side; one below another in a matrix
 *   span, tile_rows               rows of a matrix, of a tile
 *   tile_columns, columns         of a tile, of the whole
 *   weights_step                  bytes of weights from matrix to matrix of a batch
 *   tile_bytes                    bytes of weights from a tile to the next one beside it
 *   bytes, last_bytes             of a stage's weights; in the last tile of a row of tiles
 *   rows_bytes, stage_bytes       of a stage's rows, behind which its weights lie; of a place.
 *                                 A warpgroup multiplies 64 rows: of those beyond the tile's it
 *                                 reads what lies there, and nobody reads their sums
 *   panel                         bytes from one of a stage's panels of f32 weights to the next:
 *                                 what it has, for CUDA cores 64 more, so that two of them lie in
 *                                 different banks
 *   stage, tile_stages, stages    blocks of 64 k in a stage; stages of a CTA's part of k; places
 *   row, block                    where A begins in the map, in rows and in blocks of 64 k
 *   row_step, block_step          from matrix to matrix of a batch
 *   boxes                         copies of a block of 64 k of B by its map; 0: packed weights.
 *                                 bytes are then those of all tiles, last_bytes, tile_bytes and
 *                                 weights_step nothing
 *   block_k                       k of a block, 128 bytes of a row: 64, of f32 32
 *   k_rows                        rows of B in memory are those of k, else those of its columns
 *   b_row, b_column               where B begins in its map, in elements
 *   b_row_step, b_column_step     from matrix to matrix of a batch
 *   single                        CTAs have one tile each
 *   refills                       some places are loaded more than once
 *   overlaid, scratch_bytes       bytes of the sums that lie on the last places, which are free by
 *                                 then; of all scratch
 *
 * Addresses are the kernel's parameter, ObkPipelinedGemm (layout.h). */
#ifndef OBK_PIPELINED_GEMM_CUH
#define OBK_PIPELINED_GEMM_CUH

#include "exec/grid.cuh"
#include "gemm/statistics.cuh"

namespace obk {

/* Rectangles are numbered one below another, those with the same weights in sequence. */
template <class N>
struct PipelinedGemmTask {
  int32_t r0, r1, c0, c1;

  __device__ __forceinline__ PipelinedGemmTask(int at) {
    const int beside = (unsigned)at / N::each, batch = (unsigned)beside / N::across;
    r0 = batch * N::span + (unsigned)at % N::each * N::tile_rows;
    r1 = min(r0 + N::tile_rows, (batch + 1) * N::span);
    c0 = (unsigned)beside % N::across * N::tile_columns, c1 = min(c0 + N::tile_columns, N::columns);
  }
};

/* mbarriers: that a stage has come; that it has been read; what counts a cluster's sums. Where they
 * are follows from no parameter: they are ready when the first ones have come from HBM. */
static constexpr int kMostStages = kPipelinedGemmStages;
#ifndef OBK_OWN_PIPELINED_GEMM_BARS
static __device__ __forceinline__ uint32_t pipelined_gemm_bars() {
  __shared__ uint64_t words[2 * kMostStages + 1];
  return shared_address(words);
}
#endif
static __device__ __forceinline__ uint32_t read_bar(uint32_t bars, int place) {
  return bars + 8 * (kMostStages + place);
}

/* A cluster's CTAs: N::share tiles one below another, which have the same weights, each computed by
 * N::split_k. */
template <class N>
struct PipelinedGemmCluster {
  static __device__ __forceinline__ int part() {
    return (int)(blockIdx.x % (N::split_k * N::share)) / N::share;
  }
  static __device__ __forceinline__ int sharer() { return (int)blockIdx.x % N::share; }
  /* Where each CTA of a matrix has one tile, clusters that follow one another have the same rows
   * and other columns. Clusters go to GPCs in turn, so each GPC reads few of the weights, and its
   * reads of them are coalesced. */
  static __device__ __forceinline__ int first_tile() {
    const int cluster = (int)(blockIdx.x / (N::split_k * N::share));
    if (N::single && N::tasks == N::across * N::each)
      return cluster % N::across * N::each + cluster / N::across * N::share + sharer();
    return cluster * N::share + sharer();
  }
  static __device__ __forceinline__ int rank_of(int part, int sharer) {
    return part * N::share + sharer;
  }
  /* Those that take the same weights. */
  static __device__ __forceinline__ uint16_t sharers() {
    return (uint16_t)(((1 << N::share) - 1) << rank_of(part(), 0));
  }
};

/* B of the stage that is loaded next, and how it lies there: packed weights, requested before the
 * kernel waits for the one before. */
template <class N, bool kMapped = (N::boxes > 0)>
struct PipelinedGemmB {
  const char* from;
  uint32_t bytes;

  static constexpr int kStep = 32; /* bytes from 16 k to the next */
  /* Of 64 k; groups: of 8 columns of the tile. */
  static __device__ __forceinline__ constexpr int block_bytes(int groups) { return groups * 1024; }
  __device__ __forceinline__ void find(const ObkPipelinedGemm& p, int task) {
    const int beside = (unsigned)task / N::each, x = (unsigned)beside % N::across;
    bytes = x + 1 == N::across ? N::last_bytes : N::bytes;
    from = p.weights + (x * N::tile_bytes +
                        PipelinedGemmCluster<N>::part() * N::tile_stages * (int)stage_step() +
                        (unsigned)beside / N::across * N::weights_step);
  }
  /* Of f32 weights lie as panels of 16 columns, each with all of k: of one so many bytes are a
   * stage's, and the next begins so many further. */
  static constexpr bool kPanels = N::block_k == 32;
  static constexpr int kPanelStage = N::block_k * 64;
  static __device__ __forceinline__ uint32_t panel_stage() { return N::stage * kPanelStage; }
  static __device__ __forceinline__ uint32_t panel_step() {
    return N::split_k * N::tile_stages * panel_stage();
  }
  __device__ __forceinline__ uint32_t stage_step() const { return kPanels ? panel_stage() : bytes; }
  __device__ __forceinline__ void skip(int count) { from += count * stage_step(); }
  __device__ __forceinline__ void ahead(uint32_t stage, uint32_t full, int slot) const {
    const uint32_t to = stage + N::rows_bytes;
    mbarrier_expect(full, bytes + N::stage * N::tile_rows * 128);
    if (kPanels) {
      const char* panel = from;
#pragma unroll 1
      for (uint32_t at = 0, place = to; at < bytes;
           at += panel_stage(), place += N::panel, panel += panel_step())
        bulk_copy(place, panel, panel_stage(), full);
    } else if (N::share == 1)
      bulk_copy(to, from, bytes, full);
    else if (slot % N::share ==
             PipelinedGemmCluster<N>::sharer()) /* perhaps before another one expects
                                             them: that is counted as well */
      bulk_copy_to_all(to, from, bytes, full, PipelinedGemmCluster<N>::sharers());
  }
  __device__ __forceinline__ void with_rows(const ObkPipelinedGemm&, uint32_t, uint32_t) const {}
  static __device__ __forceinline__ void fetch(const ObkPipelinedGemm&) {}
  static __device__ __forceinline__ void acquire(const ObkPipelinedGemm&) {}
#ifdef OBK_WGMMA
  static __device__ __forceinline__ uint64_t matrix(uint32_t at) { return matrix_at(at, 1024); }
#endif
};
/* The same of an activation, boxes by its map, requested with the rows of A. */
template <class N>
struct PipelinedGemmB<N, true> {
  int row, column;

  static constexpr int kStep = N::k_rows ? 2048 : 32;
  static __device__ __forceinline__ constexpr int block_bytes(int) { return N::bytes / N::stage; }
  __device__ __forceinline__ void find(const ObkPipelinedGemm&, int task) {
    const int beside = (unsigned)task / N::each, batch = (unsigned)beside / N::across;
    const int of_tile = (unsigned)beside % N::across * N::tile_columns,
              k = PipelinedGemmCluster<N>::part() * N::tile_stages * N::stage * N::block_k;
    row = N::b_row + batch * N::b_row_step + (N::k_rows ? k : of_tile);
    column = N::b_column + batch * N::b_column_step + (N::k_rows ? of_tile : k);
  }
  __device__ __forceinline__ void skip(int count) {
    (N::k_rows ? row : column) += count * N::stage * N::block_k;
  }
  __device__ __forceinline__ void ahead(uint32_t, uint32_t, int) const {}
  __device__ __forceinline__ void with_rows(const ObkPipelinedGemm& p, uint32_t stage,
                                            uint32_t full) const {
    mbarrier_expect(full, N::bytes + N::stage * N::tile_rows * 128);
    if (N::k_rows && N::block_k == 32) { /* a box has all k of the stage */
#pragma unroll
      for (int k = 0; k < N::boxes; ++k)
        copy_box(stage + N::rows_bytes + k * (N::stage * 4096), p.b_map, row, column + k * 32,
                 full);
      return;
    }
    const int box = N::k_rows ? 8192 : block_bytes(0);
#pragma unroll
    for (int k = 0; k < N::stage * N::boxes; ++k)
      copy_box(stage + N::rows_bytes + k * box, p.b_map, row + (N::k_rows ? k / N::boxes * 64 : 0),
               column + (N::k_rows ? k % N::boxes * 64 : k * N::block_k), full);
  }
  static __device__ __forceinline__ void fetch(const ObkPipelinedGemm& p) { fetch_map(p.b_map); }
  static __device__ __forceinline__ void acquire(const ObkPipelinedGemm& p) {
    acquire_map(p.b_map);
  }
#ifdef OBK_WGMMA
  static __device__ __forceinline__ uint64_t matrix(uint32_t at) {
    return N::k_rows ? k_rows_at(at, 8192) : matrix_at(at, 1024);
  }
#endif
};

/* Thread 0's way through the tiles: the stage that it loads next. What a tile needs is worked
 * out once a tile, for a stage must cost the thread few instructions. In shared memory: registers
 * are the sums'. */
template <class N>
struct PipelinedGemmWay {
  int task, left, slot, turn; /* left: stages of the tile that are not requested */
  PipelinedGemmB<N> b;
  int row, block; /* rows of A */

  __device__ __forceinline__ void begin(const ObkPipelinedGemm& p, int at) {
    slot = turn = 0;
    find(p, at);
  }
  __device__ __forceinline__ void find(const ObkPipelinedGemm& p, int at) {
    task = at, left = 0;
    if (task >= N::tasks) return;
    find_b(p);
    find_rows();
  }
  /* Of a task that is there. */
  __device__ __forceinline__ void find_b(const ObkPipelinedGemm& p) {
    b.find(p, task);
    left = N::tile_stages, block = 0;
  }
  __device__ __forceinline__ void find_rows() {
    const int batch = (unsigned)task / N::each / N::across;
    row = N::row + batch * N::row_step + (unsigned)task % N::each * N::tile_rows;
    block += N::block + batch * N::block_step +
             PipelinedGemmCluster<N>::part() * N::tile_stages * N::stage;
  }
  /* `count` of the stages that are left. */
  __device__ __forceinline__ void skip(int count) {
    b.skip(count), block += count * N::stage, slot += count, left -= count;
  }
  __device__ __forceinline__ void turn_over(const ObkPipelinedGemm& p) {
    if (slot == N::stages) slot = 0, turn ^= 1;
    if (left == 0) find(p, task + gridDim.x / N::split_k);
  }
  __device__ __forceinline__ void step(const ObkPipelinedGemm& p) {
    skip(1);
    turn_over(p);
  }
  __device__ __forceinline__ void weights(uint32_t at, uint32_t bars) const {
    b.ahead(at + slot * N::stage_bytes, bars + 8 * slot, slot);
  }
  __device__ __forceinline__ void rows(const ObkPipelinedGemm& p, uint32_t at,
                                       uint32_t bars) const {
    const uint32_t full = bars + 8 * slot, stage = at + slot * N::stage_bytes;
    b.with_rows(p, stage, full);
    copy_blocks(stage, p.map, row, block, full);
  }
};

/* This warp's stage of the first tile, whose rows are not requested yet, and what comes past that
 * tile. Of a tall tile, whose sums want the registers, they are in shared memory. */
template <class N, bool kShared = (N::tile_rows > 64)>
struct PipelinedGemmFirst {
  PipelinedGemmWay<N> first, more;
  __device__ __forceinline__ PipelinedGemmFirst(const PipelinedGemmWay<N>& first,
                                                const PipelinedGemmWay<N>& more,
                                                PipelinedGemmWay<N>*)
      : first(first), more(more) {}
  __device__ __forceinline__ PipelinedGemmWay<N> of_warp() const { return first; }
  __device__ __forceinline__ PipelinedGemmWay<N> past() const { return more; }
};
template <class N>
struct PipelinedGemmFirst<N, true> {
  static constexpr int kWarps = OBK_THREADS / 32;
  PipelinedGemmWay<N>* at; /* by warp, and of thread 0 what comes past the tile */
  __device__ __forceinline__ PipelinedGemmFirst(const PipelinedGemmWay<N>& first,
                                                const PipelinedGemmWay<N>& more,
                                                PipelinedGemmWay<N>* at)
      : at(at) {
    if (threadIdx.x % 32 == 0) at[threadIdx.x / 32] = first;
    if (threadIdx.x == 0) at[kWarps] = more;
  }
  __device__ __forceinline__ PipelinedGemmWay<N> of_warp() const { return at[threadIdx.x / 32]; }
  __device__ __forceinline__ PipelinedGemmWay<N> past() const { return at[kWarps]; }
};

/* Threads that say that a stage has been read: one of each warp, behind __syncwarp(). racecheck
 * takes an arrival for that of its thread alone, so that reads of others (of f32: by LDS) look
 * like races with the copy that follows: OBK_EVERY_LANE_ARRIVES is for it. */
#ifdef OBK_EVERY_LANE_ARRIVES
constexpr int kPipelinedGemmReaders = OBK_THREADS;
#else
constexpr int kPipelinedGemmReaders = OBK_THREADS / 32;
#endif

/* Stages in the order of their use. */
template <class N>
struct PipelinedGemmPipe {
  const ObkPipelinedGemm* product;
  PipelinedGemmWay<N>* way;
  uint32_t at, bars;
  int32_t slot;
  uint32_t turn;
  Watchdog dog;
  uint32_t round; /* of planes of sums: even, odd */
  PipelinedGemmFirst<N> begins;
  int32_t here; /* stages of the first tile that have a place */
  bool begun;

  static constexpr int kSplitK = N::split_k;

  /* Before anything that another kernel computes is read: waits for it, and requests the first
   * stages' rows where that is not done. */
  __device__ __forceinline__ void begin() {
    if (begun) return;
    begun = true;
    wait_for_previous();
    const ObkPipelinedGemm& p = *product;
    const int warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 0 && !N::single) {
      PipelinedGemmWay<N> first = begins.of_warp();
      each_of_warp(warp, here, [&](int) { first.rows(p, at, bars), first.skip(OBK_THREADS / 32); });
      if (warp == 0) {
        PipelinedGemmWay<N> more = begins.past();
#pragma unroll 1
        for (int k = here; k < N::stages && more.task < N::tasks; ++k)
          more.rows(p, at, bars), more.step(p);
      }
    }
    if (p.grid.early) allow_next(); /* not before: its weights would come before these rows */
    __syncthreads();                /* the barriers are there */
  }
  /* Where sums from all of the cluster are counted. */
  __device__ __forceinline__ uint32_t come() const { return read_bar(bars, kMostStages); }
  __device__ __forceinline__ void wait_for_sums() {
    dog.start();
    while (!mbarrier_try(come(), round)) dog.check(4, kSplitK, round, 0);
    round ^= 1;
  }
  __device__ __forceinline__ uint32_t wait() {
    dog.start();
    while (!mbarrier_try(bars + 8 * slot, turn)) dog.check(2, slot, turn, 0);
    const uint32_t stage = at + slot * N::stage_bytes;
    if (++slot == N::stages) slot = 0, turn ^= 1;
    return stage;
  }
  /* This warp has read the stage in place `place`. */
  __device__ __forceinline__ void give_back(int place) const {
    __syncwarp();
    if (threadIdx.x % (OBK_THREADS / kPipelinedGemmReaders) != 0) return;
    if (N::share == 1) {
      mbarrier_arrive(read_bar(bars, place));
    } else {
#pragma unroll
      for (int k = 0; k < N::share; ++k)
        mbarrier_arrive_dsmem(
            dsmem_address(read_bar(bars, place),
                          PipelinedGemmCluster<N>::rank_of(PipelinedGemmCluster<N>::part(), k)));
    }
  }
  /* Thread 0, when its warp has given a stage back: the next one to the place of the oldest. */
  __device__ __forceinline__ void refill() {
    if (threadIdx.x != 0) return;
    PipelinedGemmWay<N> w = *way;
    if (w.task >= N::tasks) return;
    dog.start();
    while (!mbarrier_try(read_bar(bars, w.slot), w.turn ^ 1)) dog.check(3, w.slot, w.turn, 0);
    w.weights(at, bars);
    w.rows(*product, at, bars);
    w.step(*product);
    *way = w;
  }
  /* The same of a CTA's only tile: its stage `stage` to the place of the one that has been read. */
  __device__ __forceinline__ void refill_with(int stage) {
    if (threadIdx.x != 0) return;
    PipelinedGemmWay<N> w = begins.of_warp(); /* of stage 0 */
    w.skip(stage), w.slot = stage % N::stages;
    dog.start();
    while (!mbarrier_try(read_bar(bars, w.slot), (stage / N::stages - 1) & 1))
      dog.check(3, w.slot, stage, 0);
    w.weights(at, bars);
    w.rows(*product, at, bars);
  }
};

/* f(k) for k of 0 to `count` that are this warp's. */
template <typename F>
static __device__ __forceinline__ void each_of_warp(int warp, int count, F&& f) {
  constexpr int kWarps = OBK_THREADS / 32;
#pragma unroll
  for (int k = 0; k < (count + kWarps - 1) / kWarps; ++k)
    if (k * kWarps + warp < count) f(k * kWarps + warp);
}

/* One thread: prefetches this CTA's share of the next GEMM's weights into the L2 cache. HBM would
 * else be idle while kernels compute or wait for one another. */
static __device__ __forceinline__ void prefetch_next(const ObkPipelinedGemm& p) {
  constexpr int kPiece = 16384;
  const int64_t from = p.next_share * blockIdx.x, end = min(from + p.next_share, p.next_bytes);
#pragma unroll 1
  for (int64_t at = from; at < end; at += kPiece)
    bulk_prefetch(p.next + at, (uint32_t)min(end - at, (int64_t)kPiece));
}

/* Of a tile's rows, those whose epilogue a CTA of a cluster runs. */
static constexpr int pipelined_gemm_slice(int rows, int parts) {
  return (rows + parts - 1) / parts;
}

template <Body body, class N>
static __device__ __forceinline__ void run_pipelined_gemm(const ObkPipelinedGemm& p) {
  extern __shared__ __align__(1024) char shared[];
  constexpr int kSplitK = N::split_k;
  __shared__ uint64_t parts[32];
  __shared__ PipelinedGemmWay<N> kept, begins[N::tile_rows > 64 ? OBK_THREADS / 32 + 1 : 1];
  using Cluster = PipelinedGemmCluster<N>;
  const int first_tile = Cluster::first_tile(), step = gridDim.x / kSplitK;
  const int warp = same_in_warp(threadIdx.x / 32), lane = threadIdx.x % 32;
  const uint32_t at = shared_address(shared), bars = pipelined_gemm_bars();
  if (lane == 0) {
    mbarrier_init(bars + 8 * warp, 1);
    if (kSplitK > 1 && warp == OBK_THREADS / 32 - 2) mbarrier_init(read_bar(bars, kMostStages), 1);
  }
  PipelinedGemmWay<N> first = {},
                      more =
                          {}; /* first: this warp's stage of the first tile; more: past that tile */
  const int here = N::single || first_tile < N::tasks ? min(N::tile_stages, N::stages)
                                                      : 0; /* stages of it that have a place */
  PipelinedGemmWay<N> way = {};
  if (lane == 0) {
    way.task = first_tile;
    way.find_b(p);
    way.skip(warp);
    first = way;
    each_of_warp(warp, N::stages - OBK_THREADS / 32,
                 [&](int k) { mbarrier_init(bars + 8 * (k + OBK_THREADS / 32), 1); });
    if (N::refills)
      each_of_warp(warp, N::stages, [&](int k) {
        mbarrier_init(read_bar(bars, k), kPipelinedGemmReaders * N::share);
      });
    mbarrier_init_fence();
  }
  if (N::share > 1) { /* weights come to barriers of all of the cluster */
    __syncwarp();
    cluster_meet_relaxed();
  }
  if (lane == 0) {
    each_of_warp(warp, here, [&](int) { way.weights(at, bars), way.skip(OBK_THREADS / 32); });
#ifdef OBK_INSTANCES
    acquire_map(p.map);
    PipelinedGemmB<N>::acquire(p);
#endif
    if (warp == OBK_THREADS / 32 - 1) {
      fetch_map(p.map);
      PipelinedGemmB<N>::fetch(p);
      prefetch_next(p);
    }
    first.find_rows();
  }
  __syncwarp();
  if (kSplitK > 1) cluster_arrive_relaxed();
  if (N::single) { /* nothing else to find */
    if (lane == 0 && warp < here) {
      PipelinedGemmWay<N> mine = first;
      wait_for_previous();
      each_of_warp(warp, here, [&](int) { mine.rows(p, at, bars), mine.skip(OBK_THREADS / 32); });
    }
    __syncwarp();
  } else {
    if (N::stages > N::tile_stages)
      __syncthreads(); /* the barriers of the tiles after the first one are there */
    if (threadIdx.x == 0) {
      more.begin(p, first_tile);
      more.skip(here);
      more.turn_over(p);
      way = more;
#pragma unroll 1
      for (int k = here; k < N::stages && way.task < N::tasks; ++k)
        way.weights(at, bars), way.step(p);
      kept = way;
    }
  }
  ObkLanes lanes = {};
  PipelinedGemmPipe<N> pipe = {
      &p,   &kept, at, bars, 0, 0, {p.grid.watch, blockIdx.x, 0, 0}, 0, {first, more, begins},
      here, false};
  lanes.scratch = shared + (N::stages * N::stage_bytes - N::overlaid),
  lanes.scratch_bytes = N::scratch_bytes;
  lanes.sm = blockIdx.x, lanes.sms = (int)gridDim.x;
  lanes.warp = warp, lanes.warps = OBK_THREADS / 32;
  lanes.parts = parts, lanes.pipe = &pipe;
  assign_warps(&lanes);
  if (p.grid.stamps) wait_for_previous(); /* a task's time does not hold the wait */
  ObkProgram stamped = {};
  stamped.stamps = Cluster::part() == 0 ? p.grid.stamps : nullptr;
#pragma unroll 1
  for (int k = first_tile; N::single || k < N::tasks; k += step) {
    const PipelinedGemmTask<N> place(k);
    ObkTask task = {};
    task.r0 = place.r0, task.r1 = place.r1, task.c0 = place.c0, task.c1 = place.c1;
    if (kSplitK >
        1) { /* the rows of this CTA's slice; none of them may be left, then any place will do */
      const int slice = pipelined_gemm_slice(N::tile_rows, kSplitK);
      const int from = place.r0 + Cluster::part() * slice, end = min(from + slice, place.r1);
      task.r0 = from < end ? from : place.r0, task.r1 = from < end ? end : place.r0;
    }
    pipe.dog.task = k;
    stamp(stamped, k, false);
    body(&task, nullptr, p.grid.operands, &lanes);
    if (kSplitK > 1 && !N::single && k + step < N::tasks)
      cluster_arrive(); /* this CTA has read its planes */
    if (!N::single || p.grid.stamps)
      __syncthreads(); /* all have read the sums (and sent them) before the next tile's */
    stamp(stamped, k, true);
    if (N::single) break;
  }
}

#ifdef OBK_WGMMA

/* Stages whose products are under way while a warp waits for the next one. The assembler would
 * serialise all of them where a watchdog may end such a wait. */
#ifdef OBK_WATCHDOG
static constexpr int kUnderWay = 0;
#else
static constexpr int kUnderWay = 1;
#endif

/* Stages that a refill comes later than its place has been read. Where CTAs share weights a place
 * is free once all of them have read it, and thread 0 would wait for another SM between two
 * products; a stage later they have. Alone, a stage less under way costs more than that wait. */
template <class N>
static __device__ __forceinline__ int refills_late() {
  return N::share > 1 && N::stages > 3 ? 1 : 0;
}

/* multiply(), which waits for a stage and requests its products, for all stages that the CTA has of
 * a tile, and what loads more of them. meanwhile(): while the last products are under way. */
template <int kStages, class N, typename M, typename F>
static __device__ __forceinline__ void pipelined_gemm_stages(PipelinedGemmPipe<N>& pipe,
                                                             M&& multiply, F&& meanwhile) {
  if (!N::refills) { /* nobody waits for a place: all products may be under way */
#pragma unroll
    for (int s = 0; s < kStages; ++s) {
      multiply();
      if (kUnderWay == 0) wgmma_wait<0>();
    }
    meanwhile();
    wgmma_wait<0>();
  } else if (N::single) { /* what is not refilled nobody gives back: it might reach a CTA that has
                             ended */
    [[maybe_unused]] constexpr int kUnrolled = N::block_k == 64 || kStages <= 24 ? kStages : 4;
#pragma unroll kUnrolled
    for (int s = 0; s < kStages; ++s) {
      multiply();
      const bool again = s > 0 && s - 1 + N::stages < kStages;
      const int refilled = s - 1 - refills_late<N>() + N::stages;
      if (again || kUnderWay == 0) wgmma_wait<kUnderWay>();
      if (again) pipe.give_back((s - 1) % N::stages);
      if (refilled >= N::stages && refilled < kStages) pipe.refill_with(refilled);
    }
    meanwhile();
    wgmma_wait<0>();
  } else {
    int before = -1; /* the place of the stage whose products are under way */
#pragma unroll 1
    for (int s = 0; s < kStages; ++s) {
      const int place = pipe.slot;
      multiply();
      if (s == kStages - 1) meanwhile();
      wgmma_wait<kUnderWay>();
      if (before >= 0) pipe.give_back(before), pipe.refill();
      before = place;
    }
    wgmma_wait<0>();
    pipe.give_back(before), pipe.refill();
  }
  allow_next();
}

/* A warpgroup's sums of all k that its CTA has of a tile. meanwhile(): while the last products are
 * under way. */
template <int kType, typename S, int kStage, class N, typename F>
static __device__ __forceinline__ void pipelined_gemm_steps(PipelinedGemmPipe<N>& pipe,
                                                            float (&sum)[S::kGroups * 4],
                                                            F&& meanwhile) {
  constexpr bool kBfloat = kType == kObkBf16;
  using B = PipelinedGemmB<N>;
  constexpr int kN = S::kGroups * 8, kStages = S::kChunks / kStage;
  static_assert(S::kChunks % kStage == 0 && S::kSplitK == 1, "stages of a tile are whole");
  const int part = same_in_warp(threadIdx.x / 128);
  const uint64_t x0 = matrix_at(part * 64, 1024),
                 y0 = B::matrix(N::rows_bytes + part * (2 * B::kStep));
  float odd[kN / 2];
#pragma unroll
  for (int e = 0; e < kN / 2; ++e) sum[e] = zero_here(), odd[e] = zero_here();
  const auto multiply = [&] {
    const uint64_t stage = same_in_warp(pipe.wait()) >> 4;
    wgmma_begin();
#pragma unroll
    for (int b = 0; b < kStage; ++b) {
      const uint64_t x = x0 + stage + b * (N::tile_rows * 8),
                     y = y0 + stage + b * (B::block_bytes(S::kGroups) / 16);
      Wgmma<kN, kBfloat>::template multiply<N::k_rows>(sum, x, y);
      Wgmma<kN, kBfloat>::template multiply<N::k_rows>(odd, x + 2, y + B::kStep / 16);
    }
    wgmma_commit();
  };
  pipelined_gemm_stages<kStages>(pipe, multiply, meanwhile);
#pragma unroll
  for (int e = 0; e < kN / 2; ++e) sum[e] += odd[e];
  if (N::overlaid > 0) __syncthreads(); /* no products are under way */
}

/* The same of a tall tile: of this warpgroup's 64 rows. A k-step of 16 goes to the chain of its
 * number. */
template <int kType, typename S, int kStage, int kChains, class N, typename F>
static __device__ __forceinline__ void pipelined_gemm_tall_steps(PipelinedGemmPipe<N>& pipe,
                                                                 float (&sum)[S::kGroups * 4],
                                                                 F&& meanwhile) {
  constexpr bool kBfloat = kType == kObkBf16;
  using B = PipelinedGemmB<N>;
  constexpr int kN = S::kGroups * 8, kStages = S::kChunks / kStage;
  static_assert(S::kChunks % kStage == 0 && S::kSplitK == 1, "stages of a tile are whole");
  static_assert(kChains == 1 || kChains == 4, "a sum of one chain, or the order of all tiles");
  static_assert(kN <= (kChains == 1 ? kTallColumns : kTallColumnsOfFour), "sums fit in registers");
  constexpr int kY = B::kStep / 16; /* in the descriptor's units */
  const int half = same_in_warp(threadIdx.x / 128);
  float more[kChains == 1 ? 1 : 3][kN / 2]; /* of the chains behind the first */
#pragma unroll
  for (int e = 0; e < kN / 2; ++e) sum[e] = zero_here();
  if constexpr (kChains == 4) {
#pragma unroll
    for (int e = 0; e < kN / 2; ++e)
      more[0][e] = zero_here(), more[1][e] = zero_here(), more[2][e] = zero_here();
  }
  const auto multiply = [&] {
    const uint32_t stage = same_in_warp(pipe.wait());
    wgmma_begin();
#pragma unroll
    for (int b = 0; b < kStage; ++b) {
      const uint64_t x = matrix_at(stage + half * 8192 + b * (N::tile_rows * 128), 1024),
                     y = B::matrix(stage + N::rows_bytes + b * B::block_bytes(S::kGroups));
      Wgmma<kN, kBfloat>::template multiply<N::k_rows>(sum, x, y);
      if constexpr (kChains == 1) {
        Wgmma<kN, kBfloat>::template multiply<N::k_rows>(sum, x + 2, y + kY);
        Wgmma<kN, kBfloat>::template multiply<N::k_rows>(sum, x + 4, y + 2 * kY);
        Wgmma<kN, kBfloat>::template multiply<N::k_rows>(sum, x + 6, y + 3 * kY);
      } else {
        Wgmma<kN, kBfloat>::template multiply<N::k_rows>(more[0], x + 2, y + kY);
        Wgmma<kN, kBfloat>::template multiply<N::k_rows>(more[1], x + 4, y + 2 * kY);
        Wgmma<kN, kBfloat>::template multiply<N::k_rows>(more[2], x + 6, y + 3 * kY);
      }
    }
    wgmma_commit();
  };
  pipelined_gemm_stages<kStages>(pipe, multiply, meanwhile);
  if constexpr (kChains == 4) {
#pragma unroll
    for (int e = 0; e < kN / 2; ++e) sum[e] = (sum[e] + more[0][e]) + (more[1][e] + more[2][e]);
  }
  if (N::overlaid > 0) __syncthreads(); /* no products are under way */
}

/* This warpgroup's sums of a tall tile of `rows` rows to `c`. */
template <typename S>
static __device__ __forceinline__ void pipelined_gemm_tall_store(float (&sum)[S::kGroups * 4],
                                                                 uint32_t c, int rows) {
  const int above = same_in_warp(threadIdx.x / 128) * 64;
  wgmma_each<S, 0, S::kGroups, S::kGroups * 8>(
      sum, c + above * (S::kPitchC * 4), rows - above,
      [](uint32_t to, float v, float u) { store_shared8(to, v, u); });
}

/* The sums of a tile to g.c; the second warpgroup's `kOther` floats behind the first's, for the
 * body to add, if not 0. */
template <int kType, typename S, int kStage, int kOther, int kStatistics, class N>
static __device__ __forceinline__ void pipelined_gemm_sums(ObkLanes* w, const ObkGemm& g) {
  constexpr int kN = S::kGroups * 8, kHalf = (S::kGroups + 1) / 2;
  static_assert(S::kPitchC % 2 == 0 && S::kPitchC > S::kColumns - 1 + S::kColumns % 2,
                "sums go in pairs");
  const int part = same_in_warp(threadIdx.x / 128);
  PipelinedGemmPipe<N>& pipe = *(PipelinedGemmPipe<N>*)w->pipe;
  constexpr int kPairs = (S::kK / (2 * kPartialColumns) + 3) / 4;
  float sum[kN / 2];
  if constexpr (kStatistics == kObkOfPartials && kPairs <= 8) {
    RowPartials<kPairs> partials;
    partials.ask(g, 0, 0);
    pipelined_gemm_steps<kType, S, kStage>(pipe, sum, [&] {
      typename RowPartials<kPairs>::Sums sums;
      partials.add(g, 0, sums);
      partials.give(g, 0, sums);
    });
  } else {
    if (kStatistics == kObkOfPartials) join_partials(g);
    if (kStatistics == kObkOfRows) row_statistics<kType == kObkBf16>(g);
    pipelined_gemm_steps<kType, S, kStage>(pipe, sum, [] {});
  }
  const uint32_t c = shared_address(g.c);
  const int rows = (int)g.m;
  if (kOther == 0) {
    wgmma_add<S, kHalf, kN>(sum, part, c, rows);
    wgmma_store<S, kHalf, kN>(sum, part, c, rows);
  } else {
    wgmma_each<S, 0, S::kGroups, kN>(
        sum, c + part * (kOther * 4), rows,
        [](uint32_t to, float v, float u) { store_shared8(to, v, u); });
  }
  __syncthreads();
}

/* The same of a tall tile: no warpgroup has sums of another's rows. */
template <int kType, typename S, int kStage, int kChains, int kStatistics, class N>
static __device__ __forceinline__ void pipelined_gemm_tall(ObkLanes* w, const ObkGemm& g) {
  static_assert(S::kPitchC % 2 == 0 && S::kPitchC > S::kColumns - 1 + S::kColumns % 2,
                "sums go in pairs");
  static_assert(S::kRows > 64 && S::kRows <= kTallRows, "a warpgroup has up to 64 rows");
  PipelinedGemmPipe<N>& pipe = *(PipelinedGemmPipe<N>*)w->pipe;
  constexpr int kPairs = (S::kK / (2 * kPartialColumns) + 3) / 4, kMostRegisters = 168;
  float sum[S::kGroups * 4];
  /* Partial statistics come meanwhile where registers hold them beside the sums. */
  if constexpr (kStatistics == kObkOfPartials &&
                kChains * S::kGroups * 4 + 2 * 4 * kPairs <= kMostRegisters) {
    RowPartials<kPairs> upper, lower;
    upper.ask(g, 0, 0), lower.ask(g, 64, 0);
    pipelined_gemm_tall_steps<kType, S, kStage, kChains>(pipe, sum, [&] {
      typename RowPartials<kPairs>::Sums sums;
      upper.add(g, 0, sums);
      upper.give(g, 0, sums);
      lower.add(g, 0, sums);
      lower.give(g, 64, sums);
    });
  } else {
    if (kStatistics == kObkOfPartials) join_partials(g);
    if (kStatistics == kObkOfRows) row_statistics<kType == kObkBf16>(g);
    pipelined_gemm_tall_steps<kType, S, kStage, kChains>(pipe, sum, [] {});
  }
  pipelined_gemm_tall_store<S>(sum, shared_address(g.c), (int)g.m);
  __syncthreads();
}

/* Of a cluster's CTA, one thread: the bytes of sums of its slice's rows that come from all parts.
 */
template <typename S, class N>
static __device__ __forceinline__ void pipelined_gemm_expect(const PipelinedGemmPipe<N>& pipe) {
  constexpr int kSlice = pipelined_gemm_slice(N::tile_rows, N::split_k);
  constexpr int kUnit = S::kPitchC % 4 == 0 ? 4 : 2,
                kColumns = (S::kColumns + kUnit - 1) / kUnit * kUnit; /* sums that go at once */
  const int rows = max(min(N::tile_rows - PipelinedGemmCluster<N>::part() * kSlice, kSlice), 0);
  mbarrier_expect(pipe.come(), N::split_k * rows * kColumns * 4);
}

/* A part's sums of all rows, at `own`, to the planes at `c` of those that have the rows; and there
 * all parts' are added, where the body does not. From shared memory, rows side by side: a warp's
 * stores to another CTA are then whole lines. */
template <typename S, int kPlane, bool kAdds, class N>
static __device__ __forceinline__ void pipelined_gemm_exchange(PipelinedGemmPipe<N>& pipe,
                                                               uint32_t c, uint32_t own) {
  constexpr int kSplitK = N::split_k, kSlice = pipelined_gemm_slice(N::tile_rows, kSplitK);
  constexpr int kUnit = S::kPitchC % 4 == 0 ? 4 : 2,
                kColumns = (S::kColumns + kUnit - 1) / kUnit * kUnit;
  static_assert(kPlane >= kSlice * S::kPitchC && kPlane % 4 == 0, "planes lie side by side");
  const uint32_t mine = c + 4 * PipelinedGemmCluster<N>::part() * kPlane;
  __syncthreads();
  cluster_wait();
  constexpr int kEach = kColumns / kUnit, kAll = N::tile_rows * kEach;
#pragma unroll 4
  for (int k = 0; k < (kAll + OBK_THREADS - 1) / OBK_THREADS; ++k) {
    const int at = k * OBK_THREADS + threadIdx.x, row = at / kEach, column = at % kEach * kUnit;
    if (kAll % OBK_THREADS != 0 && at >= kAll) break;
    const int owner = row / kSlice,
              to_rank = PipelinedGemmCluster<N>::rank_of(owner, PipelinedGemmCluster<N>::sharer());
    const uint32_t from = own + 4 * (row * S::kPitchC + column),
                   bar = dsmem_address(pipe.come(), to_rank);
    const uint32_t to =
        dsmem_address(mine + 4 * ((row - owner * kSlice) * S::kPitchC + column), to_rank);
    if (kUnit == 4) {
      uint32_t words[4];
      load_shared16(words, from);
      store_dsmem16(to, words, bar);
    } else {
      float v, u;
      load_shared8(v, u, from);
      store_dsmem8(to, v, u, bar);
    }
  }
  pipe.wait_for_sums();
  if (kAdds) return;
  for (int at = threadIdx.x * 4; at < kPlane; at += OBK_THREADS * 4) {
    float all[4];
#pragma unroll
    for (int p = 0; p < kSplitK; ++p) {
      uint32_t words[4];
      load_shared16(words, c + 4 * (p * kPlane + at));
#pragma unroll
      for (int e = 0; e < 4; ++e)
        all[e] = p == 0 ? __uint_as_float(words[e]) : all[e] + __uint_as_float(words[e]);
    }
    uint32_t words[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) words[e] = __float_as_uint(all[e]);
    store_shared16(c + 4 * at, words);
  }
  __syncthreads();
}

/* The sums of this CTA's slice of a tile's rows to g.c, a plane of `kPlane` floats for each part,
 * for the body to add in order where it does (kAdds), else added here. S: of a part, 64 rows.
 * Before the planes, where the scratch begins, lie the sums of all rows, for the warpgroups to
 * exchange halves and to send from. */
template <int kType, typename S, int kStage, int kPlane, bool kAdds, class N>
static __device__ __forceinline__ void pipelined_gemm_split_k(ObkLanes* w, const ObkGemm& g) {
  constexpr int kN = S::kGroups * 8, kHalf = (S::kGroups + 1) / 2;
  static_assert(S::kPitchC % 2 == 0 && S::kPitchC > S::kColumns - 1 + S::kColumns % 2,
                "sums go in pairs");
  static_assert(S::kRows == 64,
                "no thread asks whether a row is there: wgmma would wait for those that do");
  PipelinedGemmPipe<N>& pipe = *(PipelinedGemmPipe<N>*)w->pipe;
  const int part = same_in_warp(threadIdx.x / 128);
  float sum[kN / 2];
  pipelined_gemm_steps<kType, S, kStage>(pipe, sum, [] {});
  const uint32_t own = shared_address(w->scratch);
  wgmma_add<S, kHalf, kN>(sum, part, own, 64);
  if (threadIdx.x == 0) pipelined_gemm_expect<S>(pipe);
  wgmma_store<S, kHalf, kN>(sum, part, own, 64);
  pipelined_gemm_exchange<S, kPlane, kAdds>(pipe, shared_address(g.c), own);
}

/* The same of a tall tile. S: of a part, 128 rows. */
template <int kType, typename S, int kStage, int kChains, int kPlane, bool kAdds, class N>
static __device__ __forceinline__ void pipelined_gemm_tall_split_k(ObkLanes* w, const ObkGemm& g) {
  static_assert(S::kPitchC % 2 == 0 && S::kPitchC > S::kColumns - 1 + S::kColumns % 2,
                "sums go in pairs");
  static_assert(S::kRows == kTallRows, "no thread asks whether a row is there");
  PipelinedGemmPipe<N>& pipe = *(PipelinedGemmPipe<N>*)w->pipe;
  float sum[S::kGroups * 4];
  pipelined_gemm_tall_steps<kType, S, kStage, kChains>(pipe, sum, [] {});
  const uint32_t own = shared_address(w->scratch);
  if (threadIdx.x == 0) pipelined_gemm_expect<S>(pipe);
  pipelined_gemm_tall_store<S>(sum, own, kTallRows);
  pipelined_gemm_exchange<S, kPlane, kAdds>(pipe, shared_address(g.c), own);
}

#endif

}  // namespace obk

#define OBK_PIPELINED_GEMM_KERNEL(name, body, numbers)                    \
  extern "C" __global__ void __launch_bounds__(OBK_THREADS, 1)            \
      name(OBK_PARAMETER(ObkPipelinedGemm)) {                             \
    obk::run_pipelined_gemm<body, numbers>(OBK_RECORD(ObkPipelinedGemm)); \
  }
#define OBK_PIPELINED_GEMM_CLUSTER_KERNEL(name, body, numbers)                        \
  extern "C" __global__ void __cluster_dims__(numbers::split_k* numbers::share, 1, 1) \
      __launch_bounds__(OBK_THREADS, 1) name(OBK_PARAMETER(ObkPipelinedGemm)) {       \
    obk::run_pipelined_gemm<body, numbers>(OBK_RECORD(ObkPipelinedGemm));             \
  }

#endif
