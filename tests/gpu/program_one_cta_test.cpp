// One kernel with barriers (program.cuh) as one of two CTAs on a core (one_cta.h): a list of tasks,
// several in a wave, waves without any, products whose rows come by maps, whose pages are more than
// the ring's, next to one another and behind tasks without weights; the other CTA arrives some
// looks later. Sums in their order, bit by bit; no row is requested before both have left the wave
// before; warps fall behind, copies come late.
#include "one_cta_wgmma.h"

#define OBK_RING 4
#define OBK_MONO 1
#define OBK_CUDA_DIALECT_CUH
#define OBK_ALL_THREADS 256
#define OBK_OWN_ROW_BARS
#define OBK_OWN_TASK_PLACES
#define __global__
#define __launch_bounds__(...)
#define __grid_constant__
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
using std::isinf;
using std::max, std::min;
#include "kernels/common/abi.h"
#include "kernels/common/numbers.h"
#include "kernels/common/tiles.h"
struct ObkLanes : ObkWorker {
  int32_t lane, lanes, group, groups, warp, warps;
  char* stage;
  uint64_t* parts;
};
struct ObkTask;
namespace obk {
constexpr int kBars = 512, kTaskPlaces = 512;  // bytes behind all else
static uint32_t row_bars() { return one_cta::kSharedBytes - kBars; }
static ObkTask* task_places() {
  return reinterpret_cast<ObkTask*>(one_cta::shared + one_cta::kSharedBytes - kBars - kTaskPlaces);
}
}  // namespace obk
#include "kernels/cuda/exec/program.cuh"
#pragma GCC diagnostic pop
#include "async_rows.h"

namespace obelisk {
namespace {

constexpr int kPages = OBK_RING,
              kScratch = (kPages * (obk::kRingPageBytes + obk::kPageBarBytes) + 1023) / 1024 * 1024,
              kBlocksAt = 225 * 1024, kBlockBytes = 128;

enum Body { kPlain, kHigh, kWide, kSmall };
struct Products {
  Product high = product_of(200, 80, 768, 56, 3, 1), wide = product_of(128, 48, 768, 64, 3, 2),
          small = product_of(64, 32, 192, 64, 1, 3);
  Product& of(int body) { return body == kHigh ? high : body == kWide ? wide : small; }
};
Products* products;
int issued;

/// A product's body.
template <int kRows, int kColumns, int kK, int kTogether>
void tile(const ObkTask* t, Product& p) {
  constexpr int kPitch = kColumns + 8;
  using S = obk::FixedShape<kRows, kColumns, kK, kK, kPitch>;
  char* const c = one_cta::shared + kScratch;
  char* const at = c + kRows * kPitch * 4;
  const obk::AsyncRows<true, kTogether, S> rows(p.map, kAbove + static_cast<int>(t->r0),
                                                kBefore / 64, at);
  static_assert(rows.kAsync);
  rows.load();
  rows.begin();
  ObkGemm g = {};
  g.a_type = g.b_type = kObkF16, g.packed = 1;
  g.m = t->r1 - t->r0, g.n = kColumns, g.k = kK, g.a = p.matrix(), g.a_row = kK, g.a_col = 1;
  g.b = p.weights(), g.c = c, g.c_row = kPitch, g.scratch = at;
  obk::gemm_rows_of<kObkF16, S, true>(nullptr, g, rows);
  for (int64_t k = threadIdx.x; k < g.m * g.n; k += OBK_THREADS)
    p.c[static_cast<size_t>((t->r0 + k / g.n) * p.columns + k % g.n)] =
        reinterpret_cast<const float*>(c)[k / g.n * kPitch + k % g.n];
}

struct Entry {
  int wave;
  Body body;
  int r0, r1;
};

/// Runs a list and returns what the counter is at its end.
uint64_t run(const std::vector<Entry>& list, int waves, unsigned slow) {
  alignas(16) ObkTask tasks[32] = {};
  alignas(16) uint64_t blocks[4 * OBK_WORK_WORDS] = {};
  for (int body = 0; body < 4; ++body) {
    ObkWork head = {};
    head.body = body, head.groups = 8;
    memcpy(blocks + body * OBK_WORK_WORDS, &head, sizeof head);
  }
  for (size_t n = 0; n < list.size(); ++n) {
    ObkTask& task = tasks[n];
    task.wave = static_cast<uint32_t>(list[n].wave), task.r0 = list[n].r0, task.r1 = list[n].r1;
    task.block = int64_t{list[n].body} * OBK_WORK_WORDS * 8 << OBK_BLOCK_AT | OBK_WORK_WORDS;
    if (list[n].body == kPlain) continue;
    const Product& p = products->of(list[n].body);
    task.c1 = p.columns, task.weight_group = p.k / 64 * 1024,
    task.weight_bytes = task.weight_group * (p.columns / 8);
    task.weights = reinterpret_cast<int64_t>(p.weights());
  }
  one_cta::readable = {
      {reinterpret_cast<char*>(tasks), reinterpret_cast<char*>(tasks + 32)},
      {reinterpret_cast<char*>(blocks), reinterpret_cast<char*>(blocks) + sizeof blocks}};
  for (int body : {kHigh, kWide, kSmall}) let_read(products->of(body));
  uint64_t counter = 10;  // of runs before, five of their barriers
  int looks = 0;
  one_cta::waits_for_others = [&](uint64_t* at) {
    if (*at % 2 == 1 && ++looks % 5 == 0) ++*at;
  };
  one_cta::copies_rows = [&] {
    CHECK(counter % 2 == 0 && threadIdx.x == 0,
          "rows are requested before the other CTA has left the wave");
    ++issued;
  };
  one_cta::rests = [&](int warp, int round) { return (slow >> warp & 1) != 0 && round % 12 != 0; };
  memset(one_cta::shared, 0xff, sizeof one_cta::shared);
  const int32_t first[2] = {0, static_cast<int32_t>(list.size())};
  ObkProgram program = {};
  program.tasks = tasks, program.first = first,
  program.blocks = reinterpret_cast<const char*>(blocks), program.counter = &counter;
  program.waves = waves, program.ring_pages = kPages, program.scratch_at = kScratch,
  program.block_at = kBlocksAt, program.block_bytes = kBlockBytes;
  one_cta::grid = {2, 1, 1};
  one_cta::run(OBK_THREADS, [&] { obk_program(program); });
  one_cta::grid = {1, 1, 1};
  one_cta::waits_for_others = nullptr, one_cta::copies_rows = nullptr, one_cta::rests = nullptr;
  for (const auto& [at, bar] : one_cta::bars)
    EXPECT_EQ(bar.bytes, 0) << "a copy is still under way at " << at;
  return counter;
}

TEST(OneCtaProgram, AListOfTasksInWaves) {
  const std::vector<Entry> list = {{0, kPlain, 0, 1},    {1, kHigh, 0, 50},    {1, kHigh, 50, 100},
                                   {2, kPlain, 0, 1},    {2, kPlain, 0, 1},    {3, kWide, 0, 64},
                                   {4, kWide, 64, 128},  {6, kSmall, 0, 64},   {7, kPlain, 0, 1},
                                   {8, kHigh, 100, 150}, {8, kHigh, 150, 200}, {8, kSmall, 0, 64},
                                   {9, kPlain, 0, 1},    {11, kPlain, 0, 1}};
  constexpr int kWaves = 13;
  for (const unsigned slow : {0u, 0x01u, 0x06u, 0x90u, 0xfeu}) {
    SCOPED_TRACE(fmt::format("slow {:#x}", slow));
    Products all;
    products = &all, issued = 0;
    EXPECT_EQ(run(list, kWaves, slow), 10u + 2 * (kWaves - 1));
    EXPECT_EQ(issued, 4 * 4 + 2 * 4 + 2 * 3);
    expect_sums(all.high, 200), expect_sums(all.wide, 128), expect_sums(all.small, 64);
  }
}

// A CTA without tasks, and one whose first and last come late, arrive as often as others.
TEST(OneCtaProgram, ListsOfFewTasksArriveAsOften) {
  Products all;
  products = &all, issued = 0;
  EXPECT_EQ(run({}, 7, 0), 10u + 2 * 6);
  EXPECT_EQ(run({{3, kWide, 0, 64}}, 7, 0x81), 10u + 2 * 6);
  EXPECT_EQ(run({{0, kWide, 64, 128}, {6, kPlain, 0, 1}}, 7, 0), 10u + 2 * 6);
  EXPECT_EQ(issued, 8);
  expect_sums(all.wide, 128);
}

}  // namespace
}  // namespace obelisk

static void obk_dispatch(int32_t body, const ObkTask* t, const int64_t*, void* const*, ObkLanes*) {
  using namespace obelisk;
  switch (body) {
    case kPlain:
      return obk::begin_wave();
    case kHigh:
      return tile<56, 80, 768, 3>(t, products->high);
    case kWide:
      return tile<64, 48, 768, 3>(t, products->wide);
    default:
      return tile<64, 32, 192, 1>(t, products->small);
  }
}
