// Kernels of one product of tf32 (pipelined_gemm_tf32.cuh) and of exact f32
// (pipelined_gemm_f32.cuh) on a core (one_cta.h), all their CTAs, one after another, those of a
// cluster in turns, against sums in as many chains over k as the tile has, of rounded operands or
// by fused multiply-adds, bit by bit: B as boxes of rows of k, as boxes of its columns, as packed
// weights. Both matrices hold others' numbers too.
#include "one_cta_wgmma.h"

#include <cmath>
#include <random>

#include "kernels/cuda/gemm/gemm.h"
#include "kernels/kernels.h"
#include "runtime/cuda/tables.h"

#define OBK_RING 1
#define OBK_CUDA_DIALECT_CUH
#define OBK_PROGRAM_CUH
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
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
#include "kernels/cuda/gemm/pipelined_gemm_f32.cuh"
#include "kernels/cuda/gemm/pipelined_gemm_tf32.cuh"
#pragma GCC diagnostic pop

namespace obelisk {
namespace {

enum class Kind { kOfK, kOfColumns, kWeights };  // B's rows; or it is packed

struct Tile {
  const char* name;
  bool exact;
  int rows, columns, tail, k, stage;  // tail: columns of the last tile of a row, 0: as the others
  int parts;                          // of k, by the CTAs of a cluster
  Kind kind;
  void (*run)(const ObkPipelinedGemm&);
  void (*compile)(const runtime::cuda::PipelinedGemmNumbers&);  // that `run` is of these numbers
};
std::string name_of(const Tile& t) { return std::string(t.exact ? "f32_" : "tf32_") + t.name; }
void PrintTo(const Tile& t, std::ostream* out) { *out << name_of(t); }

std::vector<float>* result;  // C, rows of `result_wide`
int64_t result_wide;

template <int kRows, int kBoxes, bool kKRows, int kParts>
struct Numbers {
  static constexpr int split_k = kParts, share = 1, tile_rows = kRows, boxes = kBoxes, block_k = 32;
  static constexpr bool k_rows = kKRows;
  static inline int b_row, b_column, b_row_step, b_column_step;
  static inline int tasks, across, each, span, tile_columns, columns, tile_bytes, bytes, last_bytes,
      rows_bytes, stage_bytes, panel, stage, tile_stages, stages;
  static inline int row, block, row_step, block_step, overlaid, scratch_bytes;
  static inline int64_t weights_step;
  static inline bool single, refills;
  static void set(const runtime::cuda::PipelinedGemmNumbers& n) {
    tasks = n.tasks, across = n.across, each = n.each, span = n.span, tile_columns = n.tile_columns,
    columns = n.columns, tile_bytes = n.tile_bytes, bytes = n.bytes, last_bytes = n.last_bytes,
    rows_bytes = n.rows_bytes, stage_bytes = n.stage_bytes, panel = n.panel, stage = n.stage,
    tile_stages = n.tile_stages, stages = n.stages, row = n.row, block = n.block,
    row_step = n.row_step, block_step = n.block_step, overlaid = n.overlaid,
    scratch_bytes = n.scratch_bytes, weights_step = n.weights_step, single = n.single,
    refills = n.refills, b_row = n.b_row, b_column = n.b_column, b_row_step = n.b_row_step,
    b_column_step = n.b_column_step;
  }
};

/// Bytes of so many rows of sums.
constexpr int sums_of(int rows, int pitch) { return (rows * pitch * 4 + 63) / 64 * 64; }
constexpr int pitch_of(int columns) { return (columns + 1) / 2 * 2 + (columns % 16 == 0 ? 4 : 0); }

/// The body adds a cluster's parts where there are three.
template <bool kExact, int kRows, int kColumns, int kTail, int kK, int kStage, int kBoxes,
          bool kKRows, int kParts>
void body(const ObkTask* t, const int64_t*, void* const*, ObkLanes* w) {
  using N = Numbers<kRows, kBoxes, kKRows, kParts>;
  constexpr int kPitch = pitch_of(kColumns),
                kPlane = sums_of(obk::pipelined_gemm_slice(kRows, kParts), kPitch) / 4;
  constexpr bool kAdds = kParts == 3;
  ((obk::PipelinedGemmPipe<N>*)w->pipe)->begin();
  CHECK(obk::waited[one_cta::rank][threadIdx.x],
        "a thread goes on before the kernel before has ended");
  ObkGemm g = {};
  g.m = t->r1 - t->r0, g.n = t->c1 - t->c0, g.k = kK, g.c_row = kPitch;
  g.c = (char*)w->scratch + (kParts == 1 ? 0 : sums_of(kRows, kPitch));
  const auto sums = [&](auto columns) {
    using S = obk::FixedShape<kRows, columns(), kK / kParts, kK, kPitch>;
    if constexpr (kParts > 1 && kExact)
      obk::pipelined_gemm_f32_split_k<S, kStage, kPlane, kAdds, N>(w, g);
    else if constexpr (kParts > 1)
      obk::pipelined_gemm_tf32_split_k<S, kStage, kPlane, kAdds, N>(w, g);
    else if constexpr (kExact)
      obk::pipelined_gemm_f32<S, kStage, N>(w, g);
    else
      obk::pipelined_gemm_tf32<S, kStage, N>(w, g);
  };
  if (kTail != 0 && g.n == kTail)
    sums(std::integral_constant < int, kTail == 0 ? kColumns : kTail > ());
  else
    sums(std::integral_constant<int, kColumns>());
  const float* c = static_cast<const float*>(g.c);
  for (int64_t at = threadIdx.x; at < g.m * g.n; at += OBK_THREADS) {
    const int64_t row = at / g.n, column = at % g.n;
    float& to = (*result)[static_cast<size_t>((t->r0 + row) * result_wide + t->c0 + column)];
    CHECK(to == -77, "row {} has two owners", t->r0 + row);
    to = c[row * kPitch + column];
    for (int part = 1; kAdds && part < kParts; ++part)
      to += c[part * kPlane + row * kPitch + column];
  }
}

template <bool kExact, Kind kKind, int kRows, int kColumns, int kTail, int kK, int kParts>
Tile tile_of(const char* name) {
  constexpr bool kKRows = kKind == Kind::kOfK;
  constexpr int kWide = kKRows ? (kColumns + 31) / 32 * 32 : (kColumns + 15) / 16 * 16,
                kBoxes = kKRows                    ? kWide / 32
                         : kKind == Kind::kWeights ? 0
                                                   : 1,
                kStage = pipelined_gemm_f32_stage(kRows, kWide, kK / kParts / 32);
  using N = Numbers<kRows, kBoxes, kKRows, kParts>;
  return {name,
          kExact,
          kRows,
          kColumns,
          kTail,
          kK,
          kStage,
          kParts,
          kKind,
          obk::run_pipelined_gemm<
              body<kExact, kRows, kColumns, kTail, kK, kStage, kBoxes, kKRows, kParts>, N>,
          N::set};
}

template <Kind kKind, int kRows, int kColumns, int kTail, int kK, int kParts = 1>
std::vector<Tile> tile(const char* name) {
  return {tile_of<false, kKind, kRows, kColumns, kTail, kK, kParts>(name),
          tile_of<true, kKind, kRows, kColumns, kTail, kK, kParts>(name)};
}

const std::vector<Tile> kTiles[] = {
    tile<Kind::kOfK, 128, 128, 72, 96>("of_k"),
    tile<Kind::kOfK, 128, 64, 0, 128>("of_k_half_of_the_rows_each"),
    tile<Kind::kOfK, 64, 128, 16, 64>("of_k_64_rows"),
    tile<Kind::kOfK, 64, 32, 0, 192>("of_k_two_blocks"),
    tile<Kind::kOfK, 32, 32, 8, 192>("of_k_low"),
    tile<Kind::kOfK, 99, 80, 50, 96>("of_k_rows_99"),
    tile<Kind::kOfK, 50, 16, 0, 160>("of_k_rows_50"),
    tile<Kind::kOfK, 33, 112, 96, 32>("of_k_one_block"),
    tile<Kind::kOfK, 45, 32, 0, 128>("of_k_two_blocks_of_45_rows"),
    tile<Kind::kOfK, 100, 96, 64, 96>("of_k_rows_100"),
    tile<Kind::kOfColumns, 128, 128, 24, 96>("of_columns"),
    tile<Kind::kOfColumns, 64, 48, 18, 192>("of_columns_two_blocks"),
    tile<Kind::kOfColumns, 66, 96, 0, 160>("of_columns_rows_66"),
    tile<Kind::kOfColumns, 40, 64, 0, 128>("of_columns_rows_40"),
    tile<Kind::kWeights, 128, 128, 40, 96>("weights"),
    tile<Kind::kWeights, 128, 64, 0, 96>("weights_half_of_the_rows_each"),
    tile<Kind::kWeights, 64, 64, 2, 128>("weights_64_rows"),
    tile<Kind::kWeights, 99, 80, 0, 160>("weights_rows_99"),
    tile<Kind::kWeights, 32, 16, 0, 192>("weights_low"),
    tile<Kind::kWeights, 32, 64, 48, 128>("weights_low_and_wide"),
    tile<Kind::kWeights, 20, 128, 0, 64>("weights_20_rows"),
    tile<Kind::kOfK, 24, 48, 0, 96>("of_k_rows_24"),
    tile<Kind::kWeights, 43, 48, 0, 128>("weights_two_blocks_of_43_rows"),
    tile<Kind::kWeights, 64, 64, 0, 384, 4>("weights_in_four_parts"),
    tile<Kind::kWeights, 128, 128, 40, 192, 2>("weights_tall_in_two_parts"),
    tile<Kind::kWeights, 99, 80, 0, 288, 3>("weights_of_99_rows_in_three_parts"),
    tile<Kind::kWeights, 32, 16, 0, 512, 8>("weights_low_in_eight_parts"),
    tile<Kind::kOfK, 50, 96, 50, 192, 3>("of_k_in_three_parts"),
    tile<Kind::kOfColumns, 45, 48, 18, 256, 4>("of_columns_in_four_parts"),
};

/// Matrices of `rows` rows (0: as the tile), `across` tiles wide; a batch of them one below another
/// with `gap` between, or whose k lie side by side. Stages that have a place. Warps that fall
/// behind, a bit each.
struct Cut {
  int64_t rows, across, batch = 1;
  bool beside = false;
  int64_t gap = 0;
  int ctas = 1, stages = 0, slow = 0;
  bool overlay = false;
};

struct Floats {
  struct alignas(16) Words {
    float of[4];
  };
  std::vector<Words> hold;
  float* at;
  Floats(int64_t count, std::mt19937& random)
      : hold(static_cast<size_t>(count) / 4 + 1), at(hold[0].of) {
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (int64_t k = 0; k < count; ++k) at[k] = uniform(random);
  }
  const char* bytes() const { return reinterpret_cast<const char*>(at); }
};
double rounded(float v) {
  return static_cast<double>(std::bit_cast<float>(obk::round_tf32(v) >> 13 << 13));
}

void multiply(const Tile& t, const Cut& cut) {
  constexpr int64_t kAbove = 3, kBefore = 1, kBehind = 1;  // of A: rows; blocks
  std::mt19937 random(11);
  const bool k_rows = t.kind == Kind::kOfK, packed = t.kind == Kind::kWeights;
  const int64_t span = cut.rows == 0 ? t.rows : cut.rows, blocks = t.k / 32;
  const int64_t columns = (cut.across - (t.tail != 0)) * t.columns + t.tail;
  const int64_t beside = cut.beside ? cut.batch : 1, below = cut.beside ? 1 : cut.batch;
  const int64_t pitch = (kBefore + beside * blocks + kBehind) * 32;
  const int64_t rows = kAbove + (below - 1) * (span + cut.gap) + span;
  const Floats a(rows * pitch, random);
  const int64_t b_high = k_rows ? t.k : columns, b_wide = k_rows ? columns : t.k;
  constexpr int64_t kAboveB = 5, kBeforeB = 13, kBetween = 3;
  const int64_t b_rows = kAboveB + (below - 1) * (b_high + kBetween) + b_high,
                b_columns = kBeforeB + (beside - 1) * (b_wide + kBetween) + b_wide,
                b_pitch = (b_columns + 8) / 4 * 4;
  const Floats b(b_rows * b_pitch, random);

  ObkPipelinedGemm p = {};
  runtime::cuda::PipelinedGemmNumbers n;
  const one_cta::RowsMap map = {a.bytes(), rows, pitch, t.stage, t.rows, 4, !t.exact};
  memcpy(p.map, &map, sizeof map);
  const one_cta::BoxesMap b_map = {
      b.bytes(), b_rows,  b_columns, b_pitch, k_rows ? 32 * t.stage : (t.columns + 15) / 16 * 16,
      4,         !t.exact};
  memcpy(p.b_map, &b_map, sizeof b_map);
  n.b_row = kAboveB, n.b_column = kBeforeB;
  n.b_row_step = static_cast<int>(cut.beside ? 0 : b_high + kBetween),
  n.b_column_step = static_cast<int>(cut.beside ? b_wide + kBetween : 0);
  const auto b_of = [&](int64_t of, int64_t k, int64_t x) {
    const int64_t first =
        (n.b_row + of * n.b_row_step) * b_pitch + n.b_column + of * n.b_column_step;
    return b.at[first + (k_rows ? k * b_pitch + x : x * b_pitch + k)];
  };
  const int64_t matrix = kernels::cuda_gemm_packed_bytes(kObkTf32, columns, t.k);
  Floats weights(cut.batch * matrix / 4, random);
  for (int64_t of = 0; of < cut.batch; ++of)
    kernels::cuda_gemm_pack(
        kObkTf32, columns, t.k, 0,
        &b.at[(n.b_row + of * n.b_row_step) * b_pitch + n.b_column + of * n.b_column_step],
        k_rows ? b_pitch : 1, k_rows ? 1 : b_pitch, weights.at + of * matrix / 4);
  n.block_k = 32;
  const int whole = sums_of(t.rows, pitch_of(t.columns));
  n.scratch_bytes = whole;
  if (t.parts > 1)
    n.scratch_bytes +=
        t.parts * sums_of(obk::pipelined_gemm_slice(t.rows, t.parts), pitch_of(t.columns));
  p.weights = weights.bytes();
  n.weights_step = matrix;
  n.span = static_cast<int>(span), n.tile_rows = t.rows, n.tile_columns = t.columns,
  n.columns = static_cast<int>(columns);
  n.across = static_cast<int>(cut.across), n.each = static_cast<int>((span + t.rows - 1) / t.rows);
  n.tasks = static_cast<int>(n.across * n.each * cut.batch);
  n.row = kAbove, n.block = kBefore;
  n.row_step = static_cast<int>(cut.beside ? 0 : span + cut.gap),
  n.block_step = static_cast<int>(cut.beside ? blocks : 0);
  n.stage = t.stage, n.tile_stages = static_cast<int>(blocks) / t.parts / n.stage;
  const auto weights_of = [&](int64_t of) {
    return static_cast<int>(t.stage * ((of + 15) / 16 * 2048));
  };
  n.tile_bytes = static_cast<int>(t.columns / 16 * blocks * 2048);
  n.bytes = weights_of(t.columns),
  n.last_bytes = weights_of(columns - (cut.across - 1) * t.columns);
  if (!packed)
    n.bytes = n.last_bytes =
        static_cast<int>((k_rows ? (t.columns + 31) / 32 : t.stage) * b_map.together * 128);
  n.rows_bytes = (t.stage * t.rows * 128 + 1023) / 1024 * 1024,
  n.panel = t.stage * 2048 + (t.exact ? 64 : 0);
  n.stage_bytes =
      n.rows_bytes + (packed ? ((t.columns + 15) / 16 * n.panel + 1023) / 1024 * 1024 : n.bytes);
  const int wanted = n.tile_stages * ((n.tasks + cut.ctas - 1) / cut.ctas);
  const int room = (one_cta::kSharedBytes - n.scratch_bytes - obk::kBars) / n.stage_bytes;
  n.stages = std::min({wanted, room, cut.stages == 0 ? 16 : cut.stages});
  ASSERT_GE(n.stages, std::min(wanted, 2));
  n.refills = n.stages < wanted, n.single = n.tasks == cut.ctas;
  if (cut.overlay && n.single) n.overlaid = std::min(whole, n.stages * n.stage_bytes);
  t.compile(n);

  std::vector<float> c(static_cast<size_t>(cut.batch * span * columns), -77);
  result = &c, result_wide = columns;
  one_cta::grid.x = static_cast<unsigned>(cut.ctas * t.parts);
  one_cta::rests = [&](int warp, int round) {
    return (cut.slow >> warp & 1) != 0 && round % 12 != 0;
  };
  one_cta::copies_rows = [] {
    CHECK(obk::waited[one_cta::rank][threadIdx.x],
          "rows are requested before the kernel before has ended");
  };
  obk::of_previous = {{a.bytes(), a.bytes() + rows * pitch * 4}};
  if (!packed) obk::of_previous.push_back({b.bytes(), b.bytes() + b_rows * b_pitch * 4});
  for (int k = 0; k < cut.ctas; ++k) {  // CTAs, or clusters of them
    one_cta::cta.x = static_cast<unsigned>(k * t.parts);
    memset(obk::waited, 0, sizeof obk::waited);
    const auto before = [&] {
      one_cta::readable.clear();
      if (packed) one_cta::readable = {{p.weights, p.weights + cut.batch * matrix}};
      memset(one_cta::shared, 0xff, sizeof one_cta::shared);  // NaN wherever nothing is brought
    };
    const auto after = [&] {
      for (const auto& [at, bar] : one_cta::bars) {
        EXPECT_EQ(bar.bytes, 0) << "a stage is still under way, CTA " << k;
        EXPECT_EQ(bar.waiting, bar.arrivals) << "a stage was not given back, CTA " << k;
      }
    };
    one_cta::run_cluster(t.parts, OBK_THREADS, [&] { t.run(p); }, before, after);
  }

  for (int64_t row = 0; row < cut.batch * span; ++row)
    for (int64_t x = 0; x < columns; ++x) {
      const int64_t of = row / span,
                    line = kAbove + row % span + (cut.beside ? 0 : of * (span + cut.gap));
      const float* of_a = a.at + line * pitch + (kBefore + (cut.beside ? of * blocks : 0)) * 32;
      const int wide = t.tail != 0 && x >= (cut.across - 1) * t.columns ? t.tail : t.columns;
      const bool turned = t.kind == Kind::kOfColumns;
      const int chains =
          !t.exact ? (wide > 64 ? 1 : 2)
                   : pipelined_gemm_f32_shape(t.rows, wide, pipelined_gemm_f32_lanes(wide, turned))
                         .parts;
      float want = 0;
      for (int64_t part = 0, deep = t.k / t.parts; part < t.parts; ++part) {
        float of_chain[4] = {};
        for (int64_t step = part * deep; step < (part + 1) * deep; step += 8) {
          for (int64_t k = step; t.exact && k < step + 8; ++k) {
            float& sum = of_chain[k / 4 % chains];
            sum = std::fmaf(of_a[k], b_of(of, k, x), sum);
          }
          if (t.exact) continue;
          float& chain = of_chain[step / 8 % chains];
          double sum = static_cast<double>(chain);
          for (int64_t k = step; k < step + 8; ++k)
            sum += rounded(of_a[k]) * rounded(b_of(of, k, x));
          chain = static_cast<float>(sum);
        }
        float of_part = of_chain[0];
        for (int chain = 1; chain < chains; ++chain) of_part += of_chain[chain];
        want = part == 0 ? of_part : want + of_part;
      }
      const float is = c[static_cast<size_t>(row * columns + x)];
      ASSERT_EQ(std::bit_cast<uint32_t>(is), std::bit_cast<uint32_t>(want))
          << "row " << row << " column " << x << ": " << is << ", not " << want;
    }
}

std::vector<Tile> all_tiles() {
  std::vector<Tile> all;
  for (const std::vector<Tile>& some : kTiles) all.insert(all.end(), some.begin(), some.end());
  return all;
}

class OneCtaPipelinedF32 : public testing::TestWithParam<Tile> {};

TEST_P(OneCtaPipelinedF32, SumsInOneChain) {
  const Tile& t = GetParam();
  const Cut cuts[] = {
      {0, 2},                                          // all of k has a place, if anywhere
      {0, 2, 1, false, 0, 2, 0, 0x11, true},           // a tile a CTA, sums where stages were
      {0, 2, 1, false, 0, 2, 2, 0xfe},                 // a tile a CTA, fewer stages than it has
      {2 * t.rows - 3, 2, 1, false, 0, 1, 2, 0x80},    // several tiles, by two stages
      {0, 1 + (t.tail != 0), 3, true, 0, 2, 3, 0x2a},  // parts of k side by side; uneven shares
      {t.rows + 5, 2, 2, false, 5, 1, 5, 0xf0},        // matrices, others' rows between
  };
  for (const Cut& cut : cuts) {
    if (t.kind == Kind::kWeights && t.columns % 16 != 0 && cut.across > 1) continue;
    SCOPED_TRACE(testing::Message()
                 << "rows " << cut.rows << ", " << cut.across << " across, batch " << cut.batch
                 << ", " << cut.ctas << " CTAs, " << cut.stages << " stages, slow warps "
                 << cut.slow);
    multiply(t, cut);
    if (HasFatalFailure()) return;
  }
}
INSTANTIATE_TEST_SUITE_P(Product, OneCtaPipelinedF32, testing::ValuesIn(all_tiles()),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace obelisk
