// Kernels of one product (pipelined_gemm.cuh) on a core (one_cta.h): all their CTAs, one after
// another, those of a cluster in turns, against sums in the order of gemm_mma.cuh, bit by bit. Rows
// come by a map whose matrix holds other rows and columns too; none of it may be read before the
// kernel before has ended.
#include "one_cta_wgmma.h"

#include <random>

#include "kernels/cuda/gemm/gemm.h"
#include "kernels/kernels.h"
#include "runtime/cuda/tables.h"

#define OBK_RING 1
#define OBK_CUDA_DIALECT_CUH
#define OBK_PROGRAM_CUH
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
// What a kernel of a graph waits for, which a core has not.
#define OBK_THREADS 256
#define OBK_OWN_KERNEL_ORDER
namespace obk {
static std::vector<std::pair<const char*, const char*>>
    of_previous;                     // what the kernel before writes
static bool waited[8][OBK_THREADS];  // by rank in the cluster
static void allow_next() {}
static void wait_for_previous() {
  auto& readable = one_cta::readable;
  if (std::find(readable.begin(), readable.end(), of_previous[0]) == readable.end())
    readable.insert(readable.end(), of_previous.begin(), of_previous.end());
  waited[one_cta::rank][threadIdx.x] = true;
}
}  // namespace obk
#include "kernels/common/abi.h"
#include "kernels/common/tiles.h"
#include "kernels/cuda/gemm/gemm_wgmma.cuh"

// What a kernel of a product takes from program.cuh, which a core cannot run.
#define OBK_OWN_PIPELINED_GEMM_BARS
struct ObkLanes : ObkWorker {
  int32_t warp, warps;
  uint64_t* parts;
  void* pipe;
};
namespace obk {
typedef void (*Body)(const ObkTask*, const int64_t*, void* const*, ObkLanes*);
static void stamp(const ObkProgram&, int, bool) {}
static void assign_warps(ObkLanes*) {}
constexpr int kBars = 512;  // bytes behind all else
static uint32_t pipelined_gemm_bars() { return one_cta::kSharedBytes - kBars; }
}  // namespace obk
#include "kernels/cuda/gemm/pipelined_gemm.cuh"
#pragma GCC diagnostic pop

namespace obelisk {
namespace {

/// Tiles of `rows` (of more than 64: tall ones) by `columns` of C, `sides` of them side by side;
/// the last ones of a matrix `tail` columns wide, 0: as the others. `stage` blocks of 64 k come for
/// a barrier. `other`: floats from plane to plane that the body adds, 0: it finds one.
struct Tile {
  const char* name;
  int rows, columns, b_count, tail, k, stage, split_k, other;
  bool bfloat;
  obk::Body body;
  void (*run)(const ObkPipelinedGemm&);
  void (*compile)(const runtime::cuda::PipelinedGemmNumbers&);  // that `run` is of these numbers
  int chains = 4;                                               // of a tall tile
  bool statistics = false;  // its scratch holds those of its rows
  int boxes = 0;            // copies of a block of an activation B; 0: B is packed weights
  bool k_rows = false;      // then: its rows are those of k
  int warpgroup_rows() const { return rows > 64 ? 128 : 64; }
};
void PrintTo(const Tile& c, std::ostream* out) { *out << c.name; }

std::vector<float>* result;  // C, rows of `result_wide`
int64_t result_wide;
const float* given_partials;           // [rows][k / 16][2], where tiles join them
std::vector<float>* found_statistics;  // [rows][2]

/// What a kernel is compiled with (pipelined_gemm.cuh), here set for each cut.
template <int kSplitK, int kRows, int kBoxes = 0, bool kKRows = false>
struct Numbers {
  static constexpr int split_k = kSplitK, tile_rows = kRows, boxes = kBoxes, block_k = 64;
  static constexpr bool k_rows = kKRows;
  static inline int b_row, b_column, b_row_step, b_column_step;
  static inline int share = 1, tasks, across, each, span, tile_columns, columns, tile_bytes, bytes,
                    last_bytes, rows_bytes, stage_bytes, panel, stage, tile_stages, stages;
  static inline int row, block, row_step, block_step, overlaid, scratch_bytes;
  static inline int64_t weights_step;
  static inline bool single, refills;
  static void set(const runtime::cuda::PipelinedGemmNumbers& n) {
    share = n.share, tasks = n.tasks, across = n.across, each = n.each, span = n.span,
    tile_columns = n.tile_columns, columns = n.columns;
    tile_bytes = n.tile_bytes, bytes = n.bytes, last_bytes = n.last_bytes,
    rows_bytes = n.rows_bytes, stage_bytes = n.stage_bytes, panel = n.panel, stage = n.stage;
    tile_stages = n.tile_stages, stages = n.stages, row = n.row, block = n.block,
    row_step = n.row_step, block_step = n.block_step;
    overlaid = n.overlaid, scratch_bytes = n.scratch_bytes, weights_step = n.weights_step,
    single = n.single, refills = n.refills;
    b_row = n.b_row, b_column = n.b_column, b_row_step = n.b_row_step,
    b_column_step = n.b_column_step;
  }
};

constexpr int plane_of_slice(int rows, int pitch, int split_k) {
  return (obk::pipelined_gemm_slice(rows, split_k) * pitch + 15) / 16 * 16;
}
template <bool kBfloat, int kRows, int kColumns, int kBCount, int kTail, int kK, int kStage,
          int kSplitK, int kOther, int kStatistics = kObkNoStatistics, int kChains = 4,
          int kBoxes = 0, bool kKRows = false>
void body(const ObkTask* t, const int64_t*, void* const*, ObkLanes* w) {
  constexpr int kPitch = (kColumns * kBCount + 1) / 2 * 2 + 8;
  constexpr bool kTall = kRows > 64;
  constexpr int kWarpgroupRows = kTall ? 128 : 64;
  using N = Numbers<kSplitK, kRows, kBoxes, kKRows>;
  ((obk::PipelinedGemmPipe<N>*)w->pipe)->begin();
  CHECK(obk::waited[one_cta::rank][threadIdx.x],
        "a thread goes on before the kernel before has ended");
  ObkGemm g = {};
  g.m = t->r1 - t->r0, g.n = kBCount * (t->c1 - t->c0), g.k = kK, g.c_row = kPitch,
  g.c = (char*)w->scratch + (kSplitK == 1 ? 0 : kWarpgroupRows * kPitch * 4);
  constexpr int kType = kBfloat ? kObkBf16 : kObkF16;
  if (kStatistics != kObkNoStatistics) {
    g.statistics = (float*)w->scratch + kRows * kPitch, g.epsilon = 1e-5f, g.centred = 1;
    g.partials = given_partials + t->r0 * (kK / 8);
  }
  const auto sums = [&](auto columns) {
    using S = obk::FixedShape<kSplitK == 1 ? kRows : kWarpgroupRows, columns() * kBCount,
                              kK / kSplitK, kK, kPitch>;
    if constexpr (kTall && kSplitK == 1)
      obk::pipelined_gemm_tall<kType, S, kStage, kChains, kStatistics, N>(w, g);
    else if constexpr (kTall)
      obk::pipelined_gemm_tall_split_k<kType, S, kStage, kChains,
                                       plane_of_slice(kRows, kPitch, kSplitK), kOther != 0, N>(w,
                                                                                               g);
    else if constexpr (kSplitK == 1)
      obk::pipelined_gemm_sums<kType, S, kStage, kOther, kStatistics, N>(w, g);
    else
      obk::pipelined_gemm_split_k<kType, S, kStage, plane_of_slice(kRows, kPitch, kSplitK),
                                  kOther != 0, N>(w, g);
  };
  if (kTail != 0 && t->c1 - t->c0 == kTail)
    sums(std::integral_constant < int, kTail == 0 ? kColumns : kTail > ());
  else
    sums(std::integral_constant<int, kColumns>());
  if (kStatistics != kObkNoStatistics && t->c0 == 0 && (int64_t)threadIdx.x < 2 * g.m)
    (*found_statistics)[static_cast<size_t>(2 * t->r0 + threadIdx.x)] = g.statistics[threadIdx.x];
  const float* c = static_cast<const float*>(g.c);
  for (int64_t at = threadIdx.x; at < g.m * g.n; at += OBK_THREADS) {
    const int64_t row = at / g.n, column = at % g.n, from = row * kPitch + column;
    float all = c[from];
    for (int plane = 1; kOther != 0 && plane < std::max(kSplitK, 2); ++plane)
      all += c[from + plane * kOther];
    float& to =
        (*result)[static_cast<size_t>((t->r0 + row) * result_wide + kBCount * t->c0 + column)];
    CHECK(to == -77, "row {} has two owners", t->r0 + row);
    to = all;
  }
}
template <obk::Body body, int kSplitK, int kRows, int kBoxes = 0, bool kKRows = false>
void run(const ObkPipelinedGemm& pipelined_gemm) {
  obk::run_pipelined_gemm<body, Numbers<kSplitK, kRows, kBoxes, kKRows>>(pipelined_gemm);
}

constexpr int plane(int rows, int columns) { return rows * ((columns + 1) / 2 * 2 + 8); }
#define TILE(name, bfloat, rows, columns, b_count, tail, k, stage, split_k, planes)   \
  TILE_OF(name, bfloat, rows, columns, b_count, tail, k, stage, split_k,              \
          (planes == 1   ? 0                                                          \
           : split_k > 1 ? plane_of_slice(rows, plane(1, columns * b_count), split_k) \
                         : (plane(rows, columns * b_count) + 15) / 16 * 16))
#define TILE_OF(name, bfloat, rows, columns, b_count, tail, k, stage, split_k, other)             \
  Tile {                                                                                          \
    name, rows, columns, b_count, tail, k, stage, split_k, other, bfloat,                         \
        body<bfloat, rows, columns, b_count, tail, k, stage, split_k, other>,                     \
        run<body<bfloat, rows, columns, b_count, tail, k, stage, split_k, other>, split_k, rows>, \
        Numbers<split_k, rows>::set                                                               \
  }

#define TALL(name, bfloat, rows, columns, b_count, tail, k, stage, split_k, planes, chains)      \
  Tile {                                                                                         \
    name, rows, columns, b_count, tail, k, stage, split_k,                                       \
        (planes == 1 ? 0 : plane_of_slice(rows, plane(1, columns * b_count), split_k)), bfloat,  \
        body<bfloat, rows, columns, b_count, tail, k, stage, split_k,                            \
             (planes == 1 ? 0 : plane_of_slice(rows, plane(1, columns * b_count), split_k)),     \
             kObkNoStatistics, chains>,                                                          \
        run<body<bfloat, rows, columns, b_count, tail, k, stage, split_k,                        \
                 (planes == 1 ? 0 : plane_of_slice(rows, plane(1, columns * b_count), split_k)), \
                 kObkNoStatistics, chains>,                                                      \
            split_k, rows>,                                                                      \
        Numbers<split_k, rows>::set, chains                                                      \
  }

/// Of two activations; B's rows are those of its columns, or of k.
template <bool kBfloat, int kRows, int kColumns, int kTail, int kK, int kStage, int kSplitK,
          int kPlanes, int kChains, bool kKRows>
Tile of_activations(const char* name) {
  constexpr int kPlane = plane_of_slice(kRows, plane(1, kColumns), kSplitK),
                kOther = kPlanes == 1  ? 0
                         : kSplitK > 1 ? kPlane
                                       : (plane(kRows, kColumns) + 15) / 16 * 16,
                kBoxes = kKRows ? (kColumns + 63) / 64 : 1;
  constexpr obk::Body of = body<kBfloat, kRows, kColumns, 1, kTail, kK, kStage, kSplitK, kOther,
                                kObkNoStatistics, kChains, kBoxes, kKRows>;
  return {name,
          kRows,
          kColumns,
          1,
          kTail,
          kK,
          kStage,
          kSplitK,
          kOther,
          kBfloat,
          of,
          run<of, kSplitK, kRows, kBoxes, kKRows>,
          Numbers<kSplitK, kRows, kBoxes, kKRows>::set,
          kChains,
          false,
          kBoxes,
          kKRows};
}

/// Of every kind one; matrices, batches and CTAs below.
const Tile kTiles[] = {
    TILE("rows_33", false, 33, 16, 1, 0, 64, 1, 1, 1),
    TILE("rows_33_planes", true, 33, 48, 1, 24, 192, 3, 1, 2),
    TILE("rows_50", true, 50, 48, 1, 0, 192, 1, 1, 1),
    TILE("rows_50_planes", false, 50, 96, 1, 33, 192, 3, 1, 2),
    TILE("whole_16", true, 64, 16, 1, 5, 768, 4, 1, 2),
    TILE("whole_48", false, 64, 48, 1, 16, 768, 3, 1, 1),
    TILE("whole_96", false, 64, 96, 1, 40, 768, 2, 1, 2),
    TILE("whole_96_by_four", true, 64, 96, 1, 0, 768, 4, 1, 1),
    TILE("whole_160", false, 64, 160, 1, 64, 192, 1, 1, 2),
    TILE("whole_160_by_two", true, 64, 160, 1, 96, 768, 2, 1, 1),
    TILE("short_k", false, 64, 48, 1, 0, 64, 1, 1, 2),
    TILE("dual", false, 64, 48, 2, 16, 192, 3, 1, 2),
    TILE("two_parts", false, 64, 96, 1, 40, 768, 3, 2, 2),
    TILE("two_parts_one_plane", true, 64, 48, 1, 0, 768, 1, 2, 1),
    TILE("three_parts", false, 64, 48, 1, 16, 576, 3, 3, 3),
    TILE("three_parts_rows_50", true, 50, 16, 1, 0, 192, 1, 3, 1),
    TILE("four_parts", true, 64, 32, 1, 0, 768, 3, 4, 4),
    TILE("four_parts_rows_33", false, 33, 48, 1, 16, 512, 2, 4, 4),
    TILE("eight_parts", false, 64, 16, 1, 0, 512, 1, 8, 8),
    TALL("tall", false, 128, 96, 1, 40, 384, 1, 1, 1, 4),
    TALL("tall_by_two", true, 128, 16, 1, 5, 256, 2, 1, 1, 4),
    TALL("tall_65", true, 65, 48, 1, 24, 192, 1, 1, 1, 4),
    TALL("tall_dual", false, 100, 32, 2, 16, 192, 1, 1, 1, 4),
    TALL("tall_one_chain", false, 128, 192, 1, 64, 192, 1, 1, 1, 1),
    TALL("tall_one_chain_rows_97", true, 97, 176, 1, 33, 128, 1, 1, 1, 1),
    TALL("tall_two_parts", false, 128, 96, 1, 40, 384, 1, 2, 2, 4),
    TALL("tall_three_parts_one_chain", true, 128, 112, 1, 16, 384, 1, 3, 3, 1),
    TALL("tall_four_parts_one_plane", false, 100, 48, 1, 0, 512, 1, 4, 1, 4),
    TALL("tall_eight_parts", true, 66, 16, 1, 0, 512, 1, 8, 8, 4),
    of_activations<false, 64, 48, 16, 192, 1, 1, 1, 4, true>("activations"),
    of_activations<true, 64, 96, 40, 256, 2, 1, 2, 4, true>("activations_by_two"),
    of_activations<false, 50, 16, 0, 192, 3, 1, 2, 4, true>("activations_rows_50"),
    of_activations<false, 64, 160, 64, 128, 1, 1, 1, 4, true>("activations_160"),
    of_activations<true, 128, 96, 33, 192, 1, 1, 1, 4, true>("activations_tall"),
    of_activations<false, 128, 192, 64, 128, 1, 1, 1, 1, true>("activations_one_chain"),
    of_activations<true, 100, 112, 24, 128, 1, 1, 1, 1, true>("activations_rows_100"),
    of_activations<false, 64, 48, 16, 192, 1, 3, 3, 4, true>("activations_three_parts"),
    of_activations<true, 128, 80, 0, 256, 1, 2, 2, 1, true>("activations_tall_two_parts"),
    of_activations<false, 64, 48, 16, 192, 1, 1, 2, 4, false>("transposed"),
    of_activations<true, 50, 160, 33, 128, 2, 1, 1, 4, false>("transposed_by_two"),
    of_activations<false, 128, 96, 40, 192, 1, 1, 1, 4, false>("transposed_tall"),
    of_activations<true, 128, 192, 16, 128, 1, 1, 1, 1, false>("transposed_one_chain"),
    of_activations<false, 64, 32, 0, 256, 1, 2, 2, 4, false>("transposed_two_parts"),
};

/// Matrices of `rows` rows (0: as the tile), `across` tiles wide; a batch of them whose k lie side
/// by side in A, or whose rows lie one below another with `gap` between. Stages that have a place.
/// Warps that fall behind, a bit each.
struct Cut {
  int64_t rows, across, batch = 1;
  bool beside = false;
  int64_t gap = 0;
  int ctas = 1, stages = 0, slow = 0;
  bool overlay = false;  // sums on the stages' place, where CTAs have a tile each
  int share = 1;         // tiles of a cluster, where CTAs have a tile each
};

double number(uint16_t bits, bool bfloat) {
  return static_cast<double>(bfloat ? std::bit_cast<float>(uint32_t{bits} << 16)
                                    : static_cast<float>(std::bit_cast<_Float16>(bits)));
}
struct Halves {
  std::vector<uint64_t> hold;
  const char* at;
  std::vector<double> exact;
  Halves(int64_t count, bool bfloat, std::mt19937& random)
      : hold(static_cast<size_t>(count) / 4 + 3), exact(static_cast<size_t>(count)) {
    char* to = reinterpret_cast<char*>(hold.data()) + reinterpret_cast<uint64_t>(hold.data()) % 16;
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (size_t k = 0; k < exact.size(); ++k) {
      const auto bits = static_cast<uint16_t>(bfloat ? obk::narrow_two<true>(uniform(random), 0)
                                                     : obk::narrow_two<false>(uniform(random), 0));
      memcpy(to + 2 * k, &bits, 2), exact[k] = number(bits, bfloat);
    }
    at = to;
  }
};

/// The sum of products as gemm_mma.cuh adds them, or in one chain.
float sum_of(const double* a, const double* b, int k, int split_k, int chains) {
  float all = 0;
  for (int part = 0; part < split_k; ++part) {
    float sums[4] = {};
    for (int step = part * (k / split_k); step < (part + 1) * (k / split_k); step += 16) {
      float& chain = sums[step / 16 % chains];
      double sum = static_cast<double>(chain);
      for (int e = step; e < step + 16; ++e) sum += a[e] * b[e];
      chain = static_cast<float>(sum);
    }
    const float here = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    all = part == 0 ? here : all + here;
  }
  return all;
}

void multiply(const Tile& t, const Cut& cut) {
  constexpr int64_t kAbove = 3, kBefore = 1,
                    kBehind = 1;  // of A's matrix: rows; blocks of 64 columns
  const auto type = static_cast<int32_t>(t.bfloat ? kObkBf16 : kObkF16);
  const int share = t.boxes > 0 ? 1 : cut.share;  // activations are no multicast's
  std::mt19937 random(11);
  const int64_t span = cut.rows == 0 ? t.rows : cut.rows, blocks = t.k / 64;
  const int64_t columns = (cut.across - (t.tail != 0)) * t.columns + t.tail,
                wide = columns * t.b_count;
  const int64_t beside = cut.beside ? cut.batch : 1, below = cut.beside ? 1 : cut.batch;
  const int64_t pitch = (kBefore + beside * blocks + kBehind) * 64;
  // The matrix ends with the last row that a tile has: what lies below is zeros.
  const int64_t rows = kAbove + (below - 1) * (span + cut.gap) + span;
  const Halves a(rows * pitch, t.bfloat, random), b(cut.batch * wide * t.k, t.bfloat, random);
  // An activation B lies in a matrix that ends where it does, others' numbers before and between.
  const int64_t b_high = t.k_rows ? t.k : columns, b_wide = t.k_rows ? columns : t.k;
  constexpr int64_t kAboveB = 5, kBeforeB = 13, kBetween = 3;
  const int64_t b_rows = kAboveB + (below - 1) * (b_high + kBetween) + b_high,
                b_columns = kBeforeB + (beside - 1) * (b_wide + kBetween) + b_wide,
                b_pitch = (b_columns + 16) / 8 * 8;
  const Halves b_matrix(b_rows * b_pitch, t.bfloat, random);
  const int64_t matrix = kernels::cuda_gemm_packed_bytes(type, wide, t.k);
  std::vector<uint64_t> hold(static_cast<size_t>(cut.batch * matrix) / 8 + 2);
  char* packed =
      reinterpret_cast<char*>(hold.data()) + reinterpret_cast<uint64_t>(hold.data()) % 16;
  for (int64_t k = 0; k < cut.batch; ++k)
    kernels::cuda_gemm_pack(type, wide, t.k, t.columns * t.b_count, b.at + k * wide * t.k * 2, 1,
                            t.k, packed + k * matrix);
  std::vector<char> next_hold(100000);
  char* next = next_hold.data() + 16 - reinterpret_cast<uint64_t>(next_hold.data()) % 16;

  ObkPipelinedGemm p = {};
  const one_cta::RowsMap map = {a.at, rows, pitch, t.stage, t.rows};
  static_assert(sizeof map <= sizeof p.map);
  memcpy(p.map, &map, sizeof map);
  runtime::cuda::PipelinedGemmNumbers n;
  const int columns_wide = t.columns * t.b_count,
            first = 4 * plane(t.split_k > 1 ? t.warpgroup_rows() : t.rows, columns_wide);
  const int planes = t.split_k > 1
                         ? t.split_k * plane_of_slice(t.rows, plane(1, columns_wide), t.split_k)
                         : t.other;
  n.scratch_bytes =
      (first + 4 * planes + 63) / 64 * 64 + (t.statistics ? t.warpgroup_rows() * 8 : 0);
  const one_cta::BoxesMap b_map = {b_matrix.at, b_rows, b_columns, b_pitch,
                                   t.k_rows ? 64 : (t.columns + 15) / 16 * 16};
  memcpy(p.b_map, &b_map, sizeof b_map);
  n.boxes = t.boxes, n.k_rows = t.k_rows, n.b_row = kAboveB, n.b_column = kBeforeB;
  n.b_row_step = static_cast<int>(cut.beside ? 0 : b_high + kBetween),
  n.b_column_step = static_cast<int>(cut.beside ? b_wide + kBetween : 0);
  p.weights = packed, p.next = next, p.next_bytes = 99984;
  p.next_share = (p.next_bytes / (cut.ctas * t.split_k) + 127) / 128 * 128;
  n.split_k = t.split_k, n.weights_step = matrix;
  n.span = static_cast<int>(span), n.tile_rows = t.rows, n.tile_columns = t.columns,
  n.columns = static_cast<int>(columns);
  n.across = static_cast<int>(cut.across), n.each = static_cast<int>((span + t.rows - 1) / t.rows);
  n.tasks = static_cast<int>(n.across * n.each * cut.batch);
  n.row = kAbove, n.block = kBefore;
  n.row_step = static_cast<int>(cut.beside ? 0 : span + cut.gap),
  n.block_step = static_cast<int>(cut.beside ? blocks : 0);
  n.stage = t.stage, n.tile_stages = static_cast<int>(blocks) / t.split_k / n.stage;
  const auto weights_of = [&](int64_t of) {
    return static_cast<int>(t.stage * ((of * t.b_count + 15) / 16 * 2048));
  };
  n.tile_bytes = static_cast<int>(columns_wide / 8 * blocks * 1024);
  n.bytes = weights_of(t.columns),
  n.last_bytes = weights_of(columns - (cut.across - 1) * t.columns);
  if (t.boxes > 0)
    n.bytes = n.last_bytes = t.stage * t.boxes * static_cast<int>(b_map.together) * 128;
  n.rows_bytes = (t.stage * t.rows * 128 + 1023) / 1024 * 1024,
  n.stage_bytes = n.rows_bytes + n.bytes;
  const int wanted = n.tile_stages * ((n.tasks + cut.ctas - 1) / cut.ctas);
  const int room = (one_cta::kSharedBytes - n.scratch_bytes - obk::kBars) / n.stage_bytes;
  n.stages = std::min({wanted, room, cut.stages == 0 ? 16 : cut.stages});
  ASSERT_GE(n.stages, std::min(wanted, 2));
  n.refills = n.stages < wanted;
  n.single = n.tasks == cut.ctas, n.share = share;
  ASSERT_TRUE(share == 1 || (n.single && n.each % cut.share == 0));
  if (cut.overlay && n.single) n.overlaid = std::min(first / 64 * 64, n.stages * n.stage_bytes);
  t.compile(n);

  std::vector<float> c(static_cast<size_t>(cut.batch * span * wide), -77);
  result = &c, result_wide = wide;
  one_cta::grid.x = static_cast<unsigned>(cut.ctas * t.split_k), one_cta::prefetched.clear();
  one_cta::rests = [&](int warp, int round) {
    return (cut.slow >> warp & 1) != 0 && round % 12 != 0;
  };
  one_cta::copies_rows = [] {
    CHECK(obk::waited[one_cta::rank][threadIdx.x],
          "rows are requested before the kernel before has ended");
  };
  obk::of_previous = {{a.at, a.at + rows * pitch * 2}};
  if (t.boxes > 0) obk::of_previous.push_back({b_matrix.at, b_matrix.at + b_rows * b_pitch * 2});
  for (int k = 0; k < cut.ctas / share; ++k) {  // CTAs, or clusters of them
    one_cta::cta.x = static_cast<unsigned>(k * t.split_k * share);
    memset(obk::waited, 0, sizeof obk::waited);
    const auto before = [&] {
      one_cta::readable = {{packed, packed + cut.batch * matrix}, {next, next + p.next_bytes}};
      memset(one_cta::shared, 0xff, sizeof one_cta::shared);  // NaN wherever nothing is brought
    };
    const auto after = [&] {
      for (const auto& [at, bar] : one_cta::bars) {
        EXPECT_EQ(bar.bytes, 0) << "a stage is still under way, CTA " << k;
        EXPECT_EQ(bar.waiting, bar.arrivals) << "a stage was not given back, CTA " << k;
      }
    };
    one_cta::run_cluster(t.split_k * share, OBK_THREADS, [&] { t.run(p); }, before, after);
  }
  std::sort(one_cta::prefetched.begin(), one_cta::prefetched.end());
  const char* until = next;
  for (const auto& [from, bytes] : one_cta::prefetched) {
    ASSERT_EQ(from, until) << "the next product's weights are requested once";
    until = from + bytes;
  }
  EXPECT_EQ(until, next + p.next_bytes);

  for (int64_t row = 0; row < cut.batch * span; ++row)
    for (int64_t x = 0; x < wide; ++x) {
      const int64_t of = row / span,
                    line = kAbove + row % span + (cut.beside ? 0 : of * (span + cut.gap));
      const int64_t column = (kBefore + (cut.beside ? of * blocks : 0)) * 64;
      const double* of_b = b.exact.data() + (of * wide + x) * t.k;
      std::vector<double> gathered;
      if (t.boxes > 0) {
        const int64_t first =
            (n.b_row + of * n.b_row_step) * b_pitch + n.b_column + of * n.b_column_step;
        for (int64_t k = 0; k < t.k; ++k)
          gathered.push_back(b_matrix.exact[static_cast<size_t>(
              first + (t.k_rows ? k * b_pitch + x : x * b_pitch + k))]);
        of_b = gathered.data();
      }
      const float want =
          sum_of(a.exact.data() + line * pitch + column, of_b, t.k, t.split_k, t.chains);
      ASSERT_EQ(std::bit_cast<uint32_t>(c[static_cast<size_t>(row * wide + x)]),
                std::bit_cast<uint32_t>(want))
          << "row " << row << " column " << x << ": " << c[static_cast<size_t>(row * wide + x)]
          << ", not " << want;
    }
}

// Statistics of a tile's rows are those of join_partials, bit by bit, whatever the tile.
struct alignas(16) Words {
  float of[4];
};
template <int kRows, int kColumns, int kK, int kStage>
void join(const char* name, const Cut& cut) {
  SCOPED_TRACE(name);
  constexpr obk::Body of = body<false, kRows, kColumns, 1, 0, kK, kStage, 1, 0, kObkOfPartials>;
  Tile t = {"", kRows, kColumns, 1, 0, kK, kStage, 1, 0, false, of, nullptr, nullptr};
  t.body = of, t.run = run<of, 1, kRows>, t.compile = Numbers<1, kRows>::set, t.statistics = true;
  const int64_t rows = cut.batch * (cut.rows == 0 ? kRows : cut.rows);
  std::mt19937 random(17);
  std::normal_distribution<float> normal(3, 2);
  std::vector<Words> hold(static_cast<size_t>(rows * kK / 32));
  float* partials = reinterpret_cast<float*>(hold.data());
  for (int64_t k = 0; k < rows * kK / 8; ++k)
    partials[k] = k % 2 == 0 ? 16 * normal(random) : std::abs(normal(random));
  std::vector<float> found(static_cast<size_t>(2 * rows), -77), wanted(found);
  given_partials = partials, found_statistics = &found;
  multiply(t, cut);
  ObkGemm g = {};
  g.m = rows, g.k = kK, g.partials = partials, g.statistics = wanted.data(), g.epsilon = 1e-5f,
  g.centred = 1;
  one_cta::rests = nullptr;
  one_cta::run(256, [&] { obk::find_statistics<false>(g); });
  for (size_t k = 0; k < found.size(); ++k)
    ASSERT_EQ(std::bit_cast<uint32_t>(found[k]), std::bit_cast<uint32_t>(wanted[k]))
        << "row " << k / 2;
}

TEST(OneCtaStatisticsOfTiles, AreThoseOfThePartialOnes) {
  join<64, 48, 768, 4>("all of k has a place", {0, 2, 1, false, 0, 2});
  join<64, 48, 768, 4>("sums lie where stages were", {0, 2, 1, false, 0, 2, 0, 0x40, true});
  join<64, 16, 192, 1>("two tiles a CTA, stages that come in turn",
                       {197, 3, 1, false, 0, 6, 2, 0x24});
  join<40, 32, 1088, 1>("few rows, more pairs than a thread holds", {0, 1, 1, false, 0, 1, 3});
  join<128, 64, 768, 1>("a tall tile", {0, 2, 1, false, 0, 2, 0, 0x12});
  join<99, 16, 192, 1>("two tall tiles a CTA, few rows in the last", {197, 3, 1, false, 0, 3, 2});
  join<128, 96, 768, 1>("sums leave the statistics no registers", {0, 1, 1, false, 0, 1});
}

class OneCtaPipelinedGemm : public testing::TestWithParam<Tile> {};

TEST_P(OneCtaPipelinedGemm, SumsInTheOrderOfAllTiles) {
  const Tile& t = GetParam();
  const bool whole = t.rows % 64 == 0;
  const Cut cuts[] = {
      {0, 2},                                 // all of k has a place, if anywhere
      {0, 2, 1, false, 0, 2, 0, 0x11, true},  // a tile a CTA, sums where stages were
      {0, 3, 1, false, 0, 3, 2, 0xfe},        // a tile a CTA, fewer stages than it has
      {2 * t.rows, 2, 1, false, 0, 4, 0, 0x22, false,
       t.split_k <= 4 ? 2 : 1},  // tiles that share weights
      {4 * t.rows - 3, 2, 1, false, 0, 8, 3, 0x81, true,
       t.split_k <= 4 ? 2 : 1},  // with fewer stages, sums where they were
      {4 * t.rows, 1 + (t.tail != 0), 1, false, 0, 4 * (1 + (t.tail != 0)), 2, 0, false,
       t.split_k <= 2 ? 4 : 1},                              // four of them
      {whole ? 2 * t.rows : 0, 3, 1, false, 0, 1, 2, 0x80},  // several tiles, by two stages
      {whole ? 3 * t.rows + 5 : 0, 2, 1, false, 0, 3, 3,
       0x01},                                                 // few rows at the end; uneven shares
      {0, 1 + (t.tail != 0), 3, true, 0, 3, 3, 0x2a},         // parts of k side by side
      {whole ? t.rows + 16 : 0, 2, 2, false, 5, 1, 5, 0xf0},  // matrices, others' rows between
  };
  for (const Cut& cut : cuts) {
    SCOPED_TRACE(testing::Message()
                 << "rows " << cut.rows << ", " << cut.across << " across, batch " << cut.batch
                 << ", " << cut.ctas << " CTAs, " << cut.stages << " stages, slow warps "
                 << cut.slow);
    multiply(t, cut);
    if (HasFatalFailure()) return;
  }
}
INSTANTIATE_TEST_SUITE_P(Product, OneCtaPipelinedGemm, testing::ValuesIn(kTiles),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace obelisk
