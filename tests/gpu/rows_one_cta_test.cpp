// Products of one kernel whose rows come by maps (rows.cuh) on a core (one_cta.h): a list of tasks
// one after another in one CTA, against sums in the order of gemm_mma.cuh, bit by bit: tiles of few
// and of many copies in turns, of few rows and columns, weights of which two pages are requested
// ahead. Nothing of A may be read before the wave before has ended. And tiles beside whose threads
// copy A themselves (gemm_fixed.cuh).
#include "one_cta_wgmma.h"

#define OBK_RING 4
#define OBK_MONO 1
#define OBK_CUDA_DIALECT_CUH
#define OBK_GEMM_CUH
#define OBK_OWN_ROW_BARS
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#include "kernels/common/abi.h"
#include "kernels/common/tiles.h"
#include "kernels/cuda/gemm/gemm_wgmma.cuh"
typedef ObkWorker ObkLanes;

namespace obk {
static int of_any_shape;  // tiles that went that way: those of an odd number of columns
template <int kType>
static void gemm_tile(ObkLanes*, const ObkGemm& g) {
  CHECK(g.n % 2 == 1, "a tile of {} columns takes the way of any shape", g.n);
  if (threadIdx.x == 0) ++of_any_shape;
}
template <int kType, typename S, bool kInlined, bool kAligned>
static void gemm_tile_of(ObkLanes* w, const ObkGemm& g) {
  gemm_tile<kType>(w, g);
}
constexpr int kBars = 512;  // bytes behind all else
static uint32_t row_bars() { return one_cta::kSharedBytes - kBars; }
}  // namespace obk
#include "kernels/cuda/exec/rows.cuh"
#pragma GCC diagnostic pop
#include "async_rows.h"

namespace obelisk {
namespace {

constexpr int kPages = OBK_RING, kPagesBytes = kPages * 24576,
              kScratch = (kPagesBytes + kPages * 16 + 1023) / 1024 * 1024;
bool ended;  // the wave before

/// A task: tile r0 .. r1 of a product, as a body has it.
template <int kRows, int kColumns, int kK, int kTogether>
void task(Product& p, int r0, int r1) {
  constexpr int kPitch = kColumns + 8;
  using S = obk::FixedShape<kRows, kColumns, kK, kK, kPitch>;
  obk::ring_load_ahead(obk::WeightPages::of_tile(p.weights(), S::kGroups, S::kChunks),
                       obk::kPacedPages);
  if (threadIdx.x == 0) ended = false;
  __syncthreads();
  char* const c = one_cta::shared + kScratch;
  char* const at = c + kRows * kPitch * 4;
  const obk::AsyncRows<true, kTogether, S> rows(p.map, kAbove + r0, kBefore / 64, at);
  static_assert(rows.kAsync);
  if (threadIdx.x == 0) ended = true;  // the count is what it waits for: poll_acquire gives 0
  rows.load(), rows.begin();
  ObkGemm g = {};
  g.a_type = g.b_type = kObkF16, g.packed = 1;
  g.m = r1 - r0, g.n = kColumns, g.k = kK, g.a = p.matrix(), g.a_row = kK, g.a_col = 1;
  g.b = p.weights(), g.c = c, g.c_row = kPitch, g.scratch = at;
  obk::gemm_rows_of<kObkF16, S, true>(nullptr, g, rows);
  for (int64_t k = threadIdx.x; k < g.m * g.n; k += OBK_THREADS) {
    float& to = p.c[static_cast<size_t>((r0 + k / g.n) * p.columns + k % g.n)];
    CHECK(to == -77, "row {} has two owners", r0 + k / g.n);
    to = reinterpret_cast<const float*>(c)[k / g.n * kPitch + k % g.n];
  }
  __syncthreads();
}

/// A last tile of an odd number of columns, which wgmma does not take: its rows come, and are let
/// be.
void narrower(Product& p) {
  using S = obk::FixedShape<64, 48, 384, 384, 56>;
  using Last = obk::FixedShape<64, 31, 384, 384, 56>;
  obk::ring_load_ahead(obk::WeightPages::of_tile(p.weights(), Last::kGroups, Last::kChunks),
                       obk::kPacedPages);
  if (threadIdx.x == 0) ended = true;
  __syncthreads();
  const obk::AsyncRows<true, 1, S> rows(p.map, kAbove, kBefore / 64, one_cta::shared + kScratch);
  rows.load(), rows.begin();
  ObkGemm g = {};
  g.m = 64, g.n = 31, g.k = 384;
  obk::gemm_rows_of<kObkF16, Last, true>(nullptr, g, rows);
  __syncthreads();
}

TEST(AsyncRows, TilesOfFewAndManyCopiesInTurns) {
  for (const int slow : {0, 0x01, 0x90}) {  // warps that fall behind: who asks, others
    Product wide = product_of(64 + 50, 48, 768, 64, 3, 1),
            narrow = product_of(64, 32, 192, 64, 1, 2),
            again = product_of(2 * 64, 48, 384, 64, 1, 3),
            uneven = product_of(50, 48, 320, 56, 1, 4);
    one_cta::readable = {};
    for (const Product* p : {&wide, &narrow, &again, &uneven}) let_read(*p);
    one_cta::rests = [&](int warp, int round) {
      return (slow >> warp & 1) != 0 && round % 12 != 0;
    };
    int issued = 0;
    obk::of_any_shape = 0;
    one_cta::copies_rows = [&] {
      CHECK(ended && threadIdx.x == 0, "rows are requested before the wave before has ended");
      ++issued;
    };
    memset(one_cta::shared, 0xff, sizeof one_cta::shared);
    one_cta::run(OBK_THREADS, [&] {
      obk::ring_start(0, kPagesBytes, kPages, nullptr, 0);
      if (threadIdx.x == 0) obk::start_rows(), obk::wave_gate() = {};
      __syncthreads();
      task<64, 48, 768, 3>(wide, 0, 64);
      task<64, 32, 192, 1>(narrow, 0, 64);
      task<64, 48, 384, 1>(again, 0, 64);
      narrower(again);
      task<56, 48, 320, 1>(uneven, 0, 50);
      task<64, 48, 384, 1>(again, 64, 128);
      task<64, 48, 768, 3>(wide, 64, 114);
      obk::ring_finish();
    });
    one_cta::copies_rows = nullptr, one_cta::rests = nullptr;
    EXPECT_EQ(issued, 4 + 3 + 6 + 6 + 5 + 6 + 4);
    EXPECT_EQ(obk::of_any_shape, 1);
    expect_sums(wide, 114), expect_sums(narrow, 64), expect_sums(again, 128),
        expect_sums(uneven, 50);
    for (const auto& [at, bar] : one_cta::bars)
      EXPECT_EQ(bar.bytes, 0) << "a copy is still under way at " << at;
  }
}

/// A tile of gemm_fixed.cuh, whose threads copy A themselves, all of it at once or in stages.
template <int kRows, int kColumns, int kK>
void expect_copied(bool staged, int slow) {
  using S = obk::FixedShape<kRows, kColumns, kK, kBefore + kK + 64, kColumns + 8>;
  ASSERT_EQ(!S::kWhole, staged);
  Product p = product_of(kRows, kColumns, kK, 64, 1, kK);
  one_cta::readable = {};
  let_read(p);
  one_cta::rests = [&](int warp, int round) { return (slow >> warp & 1) != 0 && round % 12 != 0; };
  memset(one_cta::shared, 0xff, sizeof one_cta::shared);
  one_cta::run(OBK_THREADS, [&] {
    obk::ring_start(0, kPagesBytes, kPages, nullptr, 0);
    obk::ring_load_ahead(obk::WeightPages::of_tile(p.weights(), S::kGroups, S::kChunks),
                         obk::kPacedPages);
    __syncthreads();
    char* const c = one_cta::shared + kScratch;
    ObkGemm g = {};
    g.m = kRows, g.n = kColumns, g.k = kK, g.a = p.matrix() + kAbove * p.pitch + kBefore,
    g.a_row = p.pitch, g.a_col = 1;
    g.b = p.weights(), g.c = c, g.c_row = kColumns + 8, g.scratch = c + kRows * (kColumns + 8) * 4;
    obk::fixed_tile<false, S>(g);
    for (int k = threadIdx.x; k < kRows * kColumns; k += OBK_THREADS)
      p.c[static_cast<size_t>(k)] =
          reinterpret_cast<const float*>(c)[k / kColumns * (kColumns + 8) + k % kColumns];
    obk::ring_finish();
  });
  one_cta::rests = nullptr;
  expect_sums(p, kRows);
}
TEST(FixedTiles, ReadWhatHasCome) {
  for (const int slow : {0, 0x41}) {
    expect_copied<32, 32, 3072>(true, slow), expect_copied<24, 32, 1536>(false, slow);
    expect_copied<64, 32, 1024>(true, slow), expect_copied<16, 48, 4096>(true, slow);
  }
}

}  // namespace
}  // namespace obelisk
