/* kernels/cuda/conv/conv_mma.cuh — a pass of a 16-bit convolution by mma.sync (conv.cuh says how).
 */
#ifndef OBK_CONV_MMA_CUH
#define OBK_CONV_MMA_CUH

#include "conv/conv_patch.cuh"

namespace obk {

/* Two neighbouring elements from any even address. */
static __device__ __forceinline__ uint32_t conv_word(uint32_t at) {
  const uint32_t low = load_shared_word(at & ~3u), high = load_shared_word((at & ~3u) + 4);
  return __funnelshift_r(low, high, (at & 2) * 8);
}

/* A warp's share of a pass: channels in 16s m0, m0 + 2 (kMs of them), pixels in 16s j0 + j * j_step
 * (kJs of them), some perhaps twice. Beyond the last the last again, whose sums are not stored. */
struct ConvShare {
  int part, blocks_c, blocks_p, m0, j0, j_step;

  __device__ __forceinline__ explicit ConvShare(const ConvPlan& p) {
    const int warp = threadIdx.x / 32, half = warp / 4;
    part = warp % 4, blocks_c = p.channels >> 4, blocks_p = p.pixels >> 4;
    /* The two halves of the CTA share channels, or, where those are only 16, pixels. */
    m0 = blocks_c > 1 ? half : 0, j0 = blocks_c > 1 ? 0 : half, j_step = blocks_c > 1 ? 1 : 2;
  }
  __device__ int pixels16(int j) const { return min(j0 + j * j_step, blocks_p - 1); }
};

/* What the threads of a pass share. */
struct ConvPass {
  ConvPlan plan;
  WeightPages weights;
  uint32_t table,
      work;       /* shared memory: of the steps of k; of the patch, the stages, then the sums */
  uint32_t patch; /* the first column of the first row */
  int first, pixel, pixels, channel, channels;
};
static __device__ __forceinline__ ConvPass& conv_pass_state() {
  static __shared__ ConvPass state;
  return state;
}

/* Works out a pass and requests its patch. All threads; they meet at its end. */
static __device__ __noinline__ void conv_begin_pass(const ObkConv& g, uint32_t work, int pixel,
                                                    int pixels, int channel, int channels) {
  const ConvWindow v(g, 2);
  const int first = (int)(g.row * g.out_width + g.column) + pixel;
  const ConvPlan p = conv_plan(&g, first, pixels, channels, v.aligned(), ring_state().pages > 0);
  const uint32_t body = work + p.table_bytes;
  uint32_t patch = body;
  if (p.source == kConvPatched)
    conv_load_patch(body, v, p);
  else if (p.source == kConvThin)
    patch = conv_load_thin(body, v, p);
  copy16_commit();
  if (p.source != kConvStaged) conv_make_table(work, v, p);
  if (threadIdx.x == 0) {
    ConvPass& pass = conv_pass_state();
    pass.plan = p, pass.table = work, pass.work = body, pass.patch = patch, pass.first = first;
    pass.pixel = pixel, pass.pixels = pixels, pass.channel = channel, pass.channels = channels;
    pass.weights.groups = p.channels >> 3, pass.weights.chunks = p.chunks;
    pass.weights.pitch = conv_up16((int)g.channels) >> 3; /* the tile's channels lie together */
    pass.weights.from = (const char*)g.weights +
                        (g.channel / 8 * (int64_t)p.chunks + channel / 8) * WeightPages::kAtomBytes;
  }
  __syncthreads();
}

template <int kMs, int kJs>
static __device__ __forceinline__ void conv_finish(const ObkConv& g, float (&sum)[kMs][kJs * 2][4],
                                                   const ConvPass& pass, const ConvShare& share) {
  const int lane = threadIdx.x % 32, padded = pass.plan.pixels, pitch = pass.plan.channels + 4;
#pragma unroll
  for (int m = 0; m < kMs; ++m)
#pragma unroll
    for (int j = 0; j < kJs * 2; ++j)
      if (share.m0 + m * 2 < share.blocks_c && share.j0 + j / 2 * share.j_step < share.blocks_p) {
        const int q = (share.j0 + j / 2 * share.j_step) * 16 + j % 2 * 8 + lane % 4 * 2;
        const int o = (share.m0 + m * 2) * 16 + lane / 4;
        const uint32_t at = pass.work + ((share.part * padded + q) * pitch + o) * 4;
#pragma unroll
        for (int e = 0; e < 4; ++e)
          store_shared(at + ((e & 1) * pitch + (e / 2) * 8) * 4, sum[m][j][e]);
      }
  __syncthreads();
  conv_store(g, pass.work, padded, pitch, pass.pixel, pass.pixels, pass.channel, pass.channels);
}

/* By a patch, weights by the ring. */
template <bool kBfloat, bool kThin, int kMs, int kJs>
static __device__ __noinline__ void conv_pass_patch(const ObkConv& g) {
  const ConvPass& pass = conv_pass_state();
  const ConvPlan& p = pass.plan;
  const WeightPages weights = pass.weights;
  const uint32_t table = pass.table;
  const int out_width = (int)g.out_width, first = pass.first, pixels = pass.pixels;
  Ring ring;
  ring.open(weights);
  const ConvShare share(p);
  const int lane = threadIdx.x % 32, part = share.part, r = lane & 7;
  const int per_page = weights.chunks_a_page();
  constexpr uint32_t pitch = WeightPages::kAtomBytes; /* from group to group in a page */
  const uint32_t next = weights.groups * pitch;       /* from chunk to chunk */
  const uint32_t a_at =
      (share.m0 * 2 + ((lane >> 3) & 1)) * pitch + r * 128 + (((part * 2 + (lane >> 4)) ^ r) << 4);
  const uint32_t m_step = share.m0 + 2 < share.blocks_c ? 4 * pitch : 0;
  /* Where this lane's pixels begin: ldmatrix takes 16 of them, a half of k each; words a pixel a
   * lane. */
  constexpr int kPlaces = kThin ? kJs * 2 : kJs;
  uint32_t x_at[kPlaces];
#pragma unroll
  for (int j = 0; j < kPlaces; ++j) {
    int q = kThin ? share.pixels16(j / 2) * 16 + j % 2 * 8 + lane / 4
                  : share.pixels16(j) * 16 + (lane >> 4) * 8 + r;
    q = first + min(q, pixels - 1);
    const int row = conv_div(q, out_width), column = q - row * out_width;
    /* The patch's first row and column are those of the tile's first pixel, or of its row. */
    x_at[j] = pass.patch + (row - p.top) * p.stride_h * p.row_bytes +
              (column - p.left) * p.stride_w * p.pixel_bytes +
              (kThin ? (lane & 3) * 4 : ((lane >> 3) & 1) * 16);
  }
  const bool stays = ring.holds_all();
  const int chunks = p.chunks,
            whole = p.k16 >> 2; /* blocks of k; those whose four steps are there */
  float sum[kMs][kJs * 2][4] = {};
  auto step = [&](uint32_t page, int in_page, uint32_t entry) {
    const uint32_t a_from = page + in_page * next + a_at, offset = entry >> 5;
    uint32_t a[kMs][4], x[kJs * 2][2];
#pragma unroll
    for (int m = 0; m < kMs; ++m) load_matrices(a[m], a_from + (m ? m_step : 0));
    if (kThin) {
#pragma unroll
      for (int j = 0; j < kJs * 2; ++j)
        x[j][0] = conv_word(x_at[j] + offset), x[j][1] = conv_word(x_at[j] + offset + 16);
      const int own = (int)(entry & 31) - (lane & 3) * 2; /* from this lane's first element on */
      if ((entry & 31) < 16) {
        const uint32_t low = own >= 2 ? ~0u : own == 1 ? 0xffffu : 0u;
        const uint32_t high = own >= 10 ? ~0u : own == 9 ? 0xffffu : 0u;
#pragma unroll
        for (int j = 0; j < kJs * 2; ++j) x[j][0] &= low, x[j][1] &= high;
      }
    } else {
#pragma unroll
      for (int j = 0; j < kJs; ++j) {
        uint32_t both[4];
        load_matrices(both, x_at[j] + offset);
        x[j * 2][0] = both[0], x[j * 2][1] = both[1];
        x[j * 2 + 1][0] = both[2], x[j * 2 + 1][1] = both[3];
      }
    }
#pragma unroll
    for (int j = 0; j < kJs * 2; ++j)
#pragma unroll
      for (int m = 0; m < kMs; ++m) mma_16x8x16<kBfloat>(sum[m][j], a[m], x[j][0], x[j][1]);
  };
  copy16_wait<0>();
  __syncthreads();
  uint32_t entry_at = table + part * 4;
#pragma unroll 1
  for (int c = 0; c < chunks;) {
    const uint32_t page = ring.take();
    const int n = min(per_page, chunks - c), full = min(n, max(whole - c, 0));
#pragma unroll 2
    for (int b = 0; b < full; ++b) step(page, b, load_shared_word(entry_at + b * 16));
    if (full < n)
      if (const uint32_t entry = load_shared_word(entry_at + full * 16)) step(page, full, entry);
    c += n, entry_at += n * 16;
    ring.release();
    if (!stays) ring.load_more();
  }
  ring.close();
  __syncthreads();
  conv_finish<kMs, kJs>(g, sum, pass, share);
}

/* By stages of 64 k, four in flight; weights by the ring or with the stages. */
template <bool kBfloat, int kMs, int kJs>
static __device__ __noinline__ void conv_pass_staged(const ObkConv& g) {
  const ConvPass& pass = conv_pass_state();
  const ConvPlan& p = pass.plan;
  const ConvWindow v(g, 2);
  const bool by_ring = ring_state().pages > 0, aligned = v.aligned();
  const uint32_t stages = pass.work;
  const WeightPages weights = pass.weights;
  const int first = pass.first, pixels = pass.pixels;
  Ring ring;
  if (by_ring) ring.open(weights);
  const int chunks = p.chunks, k16 = p.k16, stage_bytes = p.stage_bytes, padded = p.pixels;
  auto load = [&](int chunk) {
    if (chunk < chunks) {
      const uint32_t to = stages + chunk % kConvStages * stage_bytes;
      conv_load_stage(to, v, aligned, first, pixels, padded, chunk);
      if (!by_ring)
        for (int i = threadIdx.x; i < p.channels * 8; i += kConvThreads)
          copy16(to + padded * 144 + i * 16,
                 weights.from +
                     ((int64_t)chunk * weights.pitch + (i >> 6)) * WeightPages::kAtomBytes +
                     (i & 63) * 16);
    }
    copy16_commit(); /* empty at the end, so that the count of groups is the same */
  };
  const ConvShare share(p);
  const int lane = threadIdx.x % 32, part = share.part, r = lane & 7;
  const int per_page = weights.chunks_a_page();
  constexpr uint32_t pitch = WeightPages::kAtomBytes;
  const uint32_t a_at =
      (share.m0 * 2 + ((lane >> 3) & 1)) * pitch + r * 128 + (((part * 2 + (lane >> 4)) ^ r) << 4);
  const uint32_t m_step = share.m0 + 2 < share.blocks_c ? 4 * pitch : 0;
  uint32_t x_at[kJs];
#pragma unroll
  for (int j = 0; j < kJs; ++j)
    x_at[j] =
        (share.pixels16(j) * 16 + (lane >> 4) * 8 + r) * 144 + part * 32 + ((lane >> 3) & 1) * 16;
  float sum[kMs][kJs * 2][4] = {};
  for (int c = 0; c < kConvStages - 1; ++c) load(c);
  uint32_t page = 0;
  int in_page = 0;
#pragma unroll 1
  for (int c = 0; c < chunks; ++c) {
    copy16_wait<kConvStages - 2>();
    __syncthreads(); /* the stage is there, and all have left the one before it */
    load(c + kConvStages - 1);
    const uint32_t stage = stages + c % kConvStages * stage_bytes;
    if (by_ring && in_page == 0) page = ring.take();
    const uint32_t a_from =
        (by_ring ? page + in_page * weights.groups * pitch : stage + padded * 144) + a_at;
    if (c * 4 + part < k16) {
      uint32_t a[kMs][4], x[kJs][4];
#pragma unroll
      for (int m = 0; m < kMs; ++m) load_matrices(a[m], a_from + (m ? m_step : 0));
#pragma unroll
      for (int j = 0; j < kJs; ++j) load_matrices(x[j], stage + x_at[j]);
#pragma unroll
      for (int j = 0; j < kJs; ++j)
#pragma unroll
        for (int m = 0; m < kMs; ++m) {
          mma_16x8x16<kBfloat>(sum[m][j * 2], a[m], x[j][0], x[j][1]);
          mma_16x8x16<kBfloat>(sum[m][j * 2 + 1], a[m], x[j][2], x[j][3]);
        }
    }
    if (by_ring && (++in_page == per_page || c + 1 == chunks))
      in_page = 0, ring.release(), ring.load_more();
  }
  copy16_wait<0>();
  if (by_ring) ring.close();
  __syncthreads();
  conv_finish<kMs, kJs>(g, sum, pass, share);
}

template <bool kBfloat>
static __device__ __forceinline__ void conv16(const ObkConv& g) {
  const uint32_t work = (shared_address(g.scratch) + 127) & ~127u;
  const int all = conv_pixels(g), channels = (int)g.channels, most = conv_pass_pixels(&g);
#pragma unroll 1
  for (int pixel = 0; pixel < all; pixel += most)
#pragma unroll 1
    for (int c = 0; c < channels; c += kConvPass) {
      const int high = min(most, all - pixel), wide = min(kConvPass, channels - c);
      conv_begin_pass(g, work, pixel, high, c, wide);
      const int source = conv_pass_state().plan.source;
      /* Blocks of 16 pixels that a warp computes: all, or half where channels are 16. */
      const int js = wide > 16 ? (high + 15) >> 4 : (high + 31) >> 5;
      const bool two = wide > 32;
      if (source == kConvPatched && js == 1)
        two ? conv_pass_patch<kBfloat, false, 2, 1>(g) : conv_pass_patch<kBfloat, false, 1, 1>(g);
      else if (source == kConvPatched && js == 2)
        two ? conv_pass_patch<kBfloat, false, 2, 2>(g) : conv_pass_patch<kBfloat, false, 1, 2>(g);
      else if (source == kConvPatched)
        two ? conv_pass_patch<kBfloat, false, 2, 4>(g) : conv_pass_patch<kBfloat, false, 1, 4>(g);
      else if (source == kConvThin)
        two ? conv_pass_patch<kBfloat, true, 2, 6>(g) : conv_pass_patch<kBfloat, true, 1, 6>(g);
      else
        two ? conv_pass_staged<kBfloat, 2, 6>(g) : conv_pass_staged<kBfloat, 1, 6>(g);
    }
}

}  // namespace obk

#endif
