#include "kernels/cuda/gemm/gemm.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/base.h"
#include "kernels/cuda/exec/layout.h"
#include "kernels/cuda/gemm/gemm_shape.h"
#include "kernels/tile_bounds.h"
#include "machine/costs_cuda.h"

namespace obelisk::kernels {
namespace {

using obk::kAtomBytes;

bool is_int8(int32_t type) { return type == kObkI8 || type == kObkU8; }
int64_t chunks_of(int64_t k) { return (k + 63) / 64; }

/// Eight rows of eight columns, transposed: column r becomes a row of eight at to[r].
void turn_eight(const uint16_t* from, int64_t row, uint16_t* const (&to)[8]) {
#if defined(__SSE2__)
  __m128i a[8], b[8];
  for (int k = 0; k < 8; ++k)
    a[k] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + k * row));
  for (int k = 0; k < 4; ++k) {  // pairs of rows: elements 0 to 3, and 4 to 7
    b[k] = _mm_unpacklo_epi16(a[2 * k], a[2 * k + 1]);
    b[4 + k] = _mm_unpackhi_epi16(a[2 * k], a[2 * k + 1]);
  }
  for (int half = 0; half < 8; half += 4) {  // fours of rows: two columns each
    const __m128i first = _mm_unpacklo_epi32(b[half], b[half + 1]),
                  second = _mm_unpackhi_epi32(b[half], b[half + 1]),
                  third = _mm_unpacklo_epi32(b[half + 2], b[half + 3]),
                  fourth = _mm_unpackhi_epi32(b[half + 2], b[half + 3]);
    a[half] = _mm_unpacklo_epi64(first, third), a[half + 1] = _mm_unpackhi_epi64(first, third);
    a[half + 2] = _mm_unpacklo_epi64(second, fourth);
    a[half + 3] = _mm_unpackhi_epi64(second, fourth);
  }
  for (int k = 0; k < 8; ++k) _mm_storeu_si128(reinterpret_cast<__m128i*>(to[k]), a[k]);
#else
  for (int k = 0; k < 8; ++k)
    for (int e = 0; e < 8; ++e) to[k][e] = from[e * row + k];
#endif
}

/// Tile by tile [k / 64][columns / 8][row of 8][16-byte piece at place piece ^ row].
void pack_half(int64_t n, int64_t k, int64_t tile, const uint16_t* b, int64_t b_row, int64_t b_col,
               uint16_t* to) {
  constexpr int64_t kAtom = kAtomBytes / 2, kLine = 32;  // elements; columns of a line of memory
  const int64_t wide = tile > 0 ? round_up(tile, 16) : round_up(n, 16);
  const auto atom = [&](int64_t chunk, int64_t group, uint16_t* place_of) {
    for (int64_t r = 0; r < 8; ++r)
      for (int64_t place = 0; place < 8; ++place) {
        const int64_t column = group + r, from = chunk * 64 + (place ^ r) * 8;
        for (int64_t e = 0; e < 8; ++e, ++place_of)
          *place_of =
              column < n && from + e < k ? b[(from + e) * b_row + column * b_col] : uint16_t{0};
      }
  };
  for (int64_t first = 0; first < n; first += wide) {
    const int64_t end = std::min(first + wide, round_up(n, 16));
    for (int64_t chunk = 0; chunk < chunks_of(k); ++chunk)
      for (int64_t line = first; line < end; line += kLine) {
        const int64_t groups = (std::min(line + kLine, end) - line) / 8;
        if (b_col == 1 && line + groups * 8 <= n && chunk * 64 + 64 <= k) {
          for (int64_t piece = 0; piece < 8; ++piece)
            for (int64_t group = 0; group < groups; ++group) {
              uint16_t* places[8];
              for (int64_t r = 0; r < 8; ++r)
                places[r] = to + group * kAtom + r * 64 + (piece ^ r) * 8;
              turn_eight(b + (chunk * 64 + piece * 8) * b_row + line + group * 8, b_row, places);
            }
        } else {
          for (int64_t group = 0; group < groups; ++group)
            atom(chunk, line + group * 8, to + group * kAtom);
        }
        to += groups * kAtom;
      }
  }
}

/// [n / 16][k][16], each element by `read(k, column)`.
template <typename Element, typename Read>
void pack_plain(int64_t n, int64_t k, Element* to, Read read) {
  for (int64_t block = 0; block < round_up(n, 16); block += 16)
    for (int64_t row = 0; row < k; ++row)
      for (int64_t column = block; column < block + 16; ++column)
        *to++ = column < n ? read(row, column) : Element{0};
}

int read_int8(const void* p, int32_t type, int64_t index) {
  return type == kObkI8 ? static_cast<const int8_t*>(p)[index]
                        : static_cast<const uint8_t*>(p)[index];
}

}  // namespace

int64_t cuda_gemm_packed_bytes(int32_t type, int64_t n, int64_t k) {
  if (OBK_IS_HALF(type)) return round_up(n, 16) / 8 * chunks_of(k) * kAtomBytes;
  return round_up(n, 16) * k * (type == kObkF64 ? 8 : is_int8(type) ? 2 : 4);
}

void cuda_gemm_pack(int32_t type, int64_t n, int64_t k, int64_t tile, const void* b, int64_t b_row,
                    int64_t b_col, void* packed) {
  const auto at = [&](auto* from) {
    return [=](int64_t row, int64_t column) { return from[row * b_row + column * b_col]; };
  };
  if (OBK_IS_HALF(type))
    pack_half(n, k, tile, static_cast<const uint16_t*>(b), b_row, b_col,
              static_cast<uint16_t*>(packed));
  else if (type == kObkF64)
    pack_plain(n, k, static_cast<double*>(packed), at(static_cast<const double*>(b)));
  else if (is_int8(type))
    cuda_gemm_pack_int8(type, n, k, b, b_row, b_col, nullptr, 0, packed);
  else
    pack_plain(n, k, static_cast<float*>(packed), at(static_cast<const float*>(b)));
}

void cuda_gemm_pack_int8(int32_t type, int64_t n, int64_t k, const void* b, int64_t b_row,
                         int64_t b_col, const void* zero, int64_t zero_col, void* packed) {
  pack_plain(n, k, static_cast<int16_t*>(packed), [&](int64_t row, int64_t column) {
    return static_cast<int16_t>(read_int8(b, type, row * b_row + column * b_col) -
                                (zero ? read_int8(zero, type, column * zero_col) : 0));
  });
}

WeightRange cuda_gemm_weights(int32_t type, int64_t n, int64_t k, int64_t c0, int64_t c1) {
  if (!OBK_IS_HALF(type)) return {};
  const int64_t group = chunks_of(k) * kAtomBytes, columns = round_up(std::min(c1, n) - c0, 16);
  return {c0 / 8 * group, columns / 8 * group, group};
}

namespace {
static_assert(few_rows_bounds::kMostRows == kFewRowsMost &&
              few_rows_bounds::kMostColumns == kFewRowsColumns);
bool is_few_rows(int32_t type, int64_t m, int64_t n) {
  return type == kObkF32 && m <= kFewRowsMost && n <= kFewRowsColumns;
}
/// Tiles of more rows whose warps share out k (fma_rows.cuh).
static_assert(fma_rows_bounds::kMostRows == kFmaRowsMost &&
              fma_rows_bounds::kMostColumns == kFmaTile);
bool is_fma_rows(int32_t type, int64_t m, int64_t n) {
  return type == kObkF32 && m > kFewRowsMost && m <= kFmaRowsMost && n <= kFmaTile;
}
FmaRowsShape fma_rows_shape_of(int64_t m, int64_t n) {
  return fma_rows_shape(static_cast<int>((m + 7) / 8 * 8), static_cast<int>((n + 15) / 16));
}

int64_t scratch_bytes(const ObkGemm& g, int smem_a, bool has_ring) {
  if (g.a_type == kObkTf32) return kTf32Stages * f32_block_bytes(kFmaTile) + 16;
  if (!OBK_IS_HALF(g.a_type)) {
    const int64_t sum = g.a_type == kObkF64 ? 8 : 4;
    int64_t most =
        g.a_type == kObkF32
            ? std::max({fma_f32_bytes(16, smem_a), fma_f32_bytes(32, smem_a),
                        fma_f32_bytes(64, smem_a)}) +
                  16
            : 2 * sum * (kFmaTile * (kFmaDepth + kFmaPad) + kFmaDepth * (kFmaTile + kFmaPad)) + 16;
    if (g.packed && smem_a >= kFewRowsLeastSmem && is_few_rows(g.a_type, g.m, g.n))
      for (int groups = 1; groups <= (g.n + 15) / 16; ++groups)  // the last tile has fewer
        most = std::max<int64_t>(
            most,
            few_rows_shape(few_rows_padded(g.m), groups, static_cast<int>((g.k + 31) / 32)).bytes);
    if (g.packed && smem_a >= kFewRowsLeastSmem && is_fma_rows(g.a_type, g.m, g.n))
      for (int64_t n = 16; n < g.n + 16; n += 16)  // the last tile has fewer
        most = std::max<int64_t>(most, fma_rows_shape_of(g.m, n).bytes);
    return most;
  }
  const int rows = gemm_pass_rows(g.m), k_blocks = static_cast<int>(chunks_of(g.k));
  if (!g.packed)  // stages; the sums' way out lies on them; aligned
    return std::max(activation_stages(smem_a) * activation_stage(rows),
                    2 * rows * (kActivationColumns + 4) * 4) +
           1024;
  const int64_t pass = gemm_pass_columns(g.m);
  const int columns = static_cast<int>(round_up(std::min<int64_t>(g.n, pass), 16));
  // Weights come through the ring where there is one, else behind the activations.
  int64_t most = int64_t{2} * rows * (columns + 4) * 4;
  // The last of several passes has fewer columns, and so has the last tile of a product: their
  // stages may be longer.
  for (int wide = 16; wide <= columns; wide += 16) {
    for (bool ring : {has_ring, false}) {
      const int all = ring ? rows : rows + wide;
      const int blocks = gemm_stages(all, k_blocks, ring ? rows == 16 : true, smem_a).blocks;
      const int stages = blocks ? std::min(4, (k_blocks + blocks - 1) / blocks) : 0;
      most = std::max(most, int64_t{128} * all * blocks * stages);
    }
  }
  if (has_ring) {  // a tile of a known shape: its operands, and sums behind them: a
                   // plane, of few rows four
    const int64_t lines = g.m < 8 ? g.m : round_up(g.m, 8);
    const bool stages = g.m > 32 && g.n > columns;
    const int64_t operands = lines * 128 * (stages ? 4 : std::max<int64_t>(chunks_of(g.k), 4));
    const int64_t plane = g.m * (round_up(g.n, 16) + 8) * 4, planes = g.m <= 8 ? 4 : 1;
    most = std::max(most, std::min<int64_t>(operands + planes * plane, smem_a));
    if (g.m <= 64 && g.n <= std::max<int64_t>(columns, kWgmmaColumns)) most = std::max(most, plane);
    if (g.m >= async_mma_bounds::kFewestRows && g.m <= async_mma_bounds::kMostRows) {
      const int groups = static_cast<int>(round_up(g.n, 16) / 8);
      const int whole = k_blocks <= 12 ? k_blocks : 0;  // gemm_wgmma.cuh
      const int staged = gemm_wgmma_most_blocks(groups, k_blocks);
      most = std::max(most, int64_t{8192} * std::max(whole, staged));
    }
  }
  return most + 1024 + 2048;  // aligned; wgmma may read, not use, two groups of columns beyond
}
}  // namespace

int64_t cuda_gemm_scratch_bytes(const ObkGemm* gemm) {
  return scratch_bytes(*gemm, OBK_GEMM_SMEM_A, true);
}
int64_t cuda_gemm_small_scratch_bytes(const ObkGemm* gemm) {
  return scratch_bytes(*gemm, kGemmSmallSmemA, false);
}
int64_t cuda_gemm_small_ring_scratch_bytes(const ObkGemm* gemm) {
  return scratch_bytes(*gemm, kGemmSmallSmemA, true);
}

/// Of f32, rounded to tf32 or exact: bytes and products as below; the products bound by what the
/// tensor cores read from shared memory and by how long a step of k takes; or by multiply-adds and
/// what threads read for them.
static double pipelined_f32_nanos(const PipelinedGemmTile& t) {
  const bool exact = t.type == kObkF32;
  if (t.columns > (exact ? kF32Columns : kTf32Columns) || t.rows > kTallRows) return 0;
  const double depth = static_cast<double>(t.k), rows = static_cast<double>(t.rows),
               columns = static_cast<double>(std::max(round_up(t.columns, 16), t.brought)),
               a = 4 * depth * rows, b = 4 * depth * columns,
               from_memory = b / static_cast<double>(t.readers) +
                             (t.a_readers > 0 ? a / static_cast<double>(t.a_readers) : 0);
  const double memory = t.memory_bytes > 0 ? from_memory / t.memory_bytes : 0;
  using Parts = machine::cuda_costs::GemmPartsOfWords;
  const double exchange = t.parts > 1 ? Parts::kBegin + (t.in_turn ? Parts::kNext : 0) +
                                            4 * rows * columns / Parts::kBytes
                                      : 0;
  if (exact) {
    using Tile = machine::cuda_costs::GemmPipelinedF32;
    const int wide = static_cast<int>(t.columns);
    const PipelinedF32Shape s = pipelined_gemm_f32_shape(static_cast<int>(t.rows), wide,
                                                         pipelined_gemm_f32_lanes(wide, false));
    const double warps = 8.0 / s.parts, sums = s.high * s.fours;
    const double a_k =
        warps * (sums * Tile::kSums + s.high * Tile::kRow + s.fours * Tile::kFour) + Tile::kOfK;
    const double longer = s.parts > 1 ? Tile::kParts : 1;
    const double begin = !t.in_turn     ? Tile::kBegin
                         : s.parts == 1 ? Tile::kBeginInTurn
                                        : Tile::kBeginPartsInTurn;
    return std::max({(a + b) / Tile::kBytes, memory, depth * longer * a_k}) + begin + exchange +
           Tile::kOut * rows * columns;
  }
  using Tile = machine::cuda_costs::GemmPipelinedTf32;
  const bool beside = t.columns > 64;  // warpgroups: else they share out k
  const int high = pipelined_gemm_tf32_rows(static_cast<int>(t.rows)) * (beside ? 2 : 1);
  const bool is_short =
      beside && cuda_pipelined_gemm_stage(t.type, t.rows, static_cast<int64_t>(columns), t.k) == 1;
  const double products = depth * (is_short ? Tile::kStepOfShort + 64 * high / Tile::kFlopsOfShort
                                            : std::max(Tile::kStep, 64 * high / Tile::kFlops));
  const double begin = t.in_turn && beside ? Tile::kBeginInTurn : Tile::kBegin;
  return std::max({(a + b) / Tile::kBytes, memory, products}) + begin + exchange +
         Tile::kOut * rows * columns;
}

double cuda_pipelined_gemm_nanos(const PipelinedGemmTile& t) {
  if (OBK_LIES_AS_F32(t.type)) return pipelined_f32_nanos(t);
  const bool tall = t.rows > 64;
  const int64_t most = !tall           ? int64_t{kWgmmaColumns}
                       : t.chains == 1 ? int64_t{kTallColumns}
                                       : int64_t{kTallColumnsOfFour};
  if (!OBK_IS_HALF(t.type) || t.columns > most || t.rows > kTallRows) return 0;
  // Bytes from the second-level cache; of them the weights from memory, once for all tiles that
  // read them, or both operands where both are activations; or products. And the epilogue, which
  // waits for all of them.
  using Tile = machine::cuda_costs::GemmPipelined;
  const double columns = static_cast<double>(round_up(t.columns, 16)),
               depth = static_cast<double>(t.k), rows = static_cast<double>(t.rows),
               a = 2 * depth * rows,
               b = 2 * depth * std::max(columns, static_cast<double>(t.brought));
  const bool activations = t.a_readers > 0;
  const double from_memory =
      b / static_cast<double>(t.readers) + (activations ? a / static_cast<double>(t.a_readers) : 0);
  const bool low_of_many = !tall && t.rows * t.readers > pipelined_bounds::kMostRows;
  const double bytes = (a + b) / (low_of_many ? Tile::kBytesOfMany : Tile::kBytes),
               memory = t.memory_bytes > 0 ? from_memory / t.memory_bytes : 0,
               products = (tall ? 128 : 64) * columns * depth;  // multiply-adds
  const auto nanos = [&](double flops, double begin, double column) {
    return std::max({bytes, memory, products / flops}) + begin + column * columns +
           (activations && t.in_turn ? Tile::kNextOfActivations : 0);
  };
  if (!tall) return nanos(Tile::kFlops, Tile::kBegin, Tile::kColumn);
  const double high = rows / double{kTallRows};
  if (t.chains == 4)
    return nanos(Tile::kTallFlopsOfFour, Tile::kTallBeginOfFour, Tile::kTallColumnOfFour * high);
  return (activations ? !t.in_turn : t.rows * t.readers <= pipelined_bounds::kMostRows)
             ? nanos(Tile::kTallFlopsOfFew, Tile::kTallBeginOfFew, Tile::kTallColumn * high)
             : nanos(Tile::kTallFlops, Tile::kTallBegin, Tile::kTallColumn * high);
}

int64_t cuda_pipelined_gemm_stage(int32_t type, int64_t rows, int64_t n, int64_t k) {
  if (OBK_LIES_AS_F32(type))
    return pipelined_gemm_f32_stage(static_cast<int>(rows), static_cast<int>(round_up(n, 16)),
                                    static_cast<int>(k / 32));
  return pipelined_gemm_stage(static_cast<int>(rows), static_cast<int>(round_up(n, 16) / 8),
                              static_cast<int>(chunks_of(k)));
}

double cuda_gemm_nanos(int32_t type, int64_t m, int64_t n, int64_t k, bool packed) {
  if (OBK_IS_HALF(type) && !packed) {
    using Tile = machine::cuda_costs::GemmActivations;
    constexpr int64_t most = kActivationColumns;
    const double passes = static_cast<double>((m + 63) / 64 * ((n + most - 1) / most));
    const double columns = static_cast<double>(round_up(std::min(n, most), 16));
    const double products = 2 * 64 * gemm_pass_rows(m) * columns / Tile::kFlops;
    return passes *
           (Tile::kBegin + static_cast<double>(chunks_of(k)) * std::max(products, Tile::kBlock));
  }
  if (OBK_IS_HALF(type)) {
    const double area = static_cast<double>(m) * static_cast<double>(n);
    // Without what a phase costs whatever it does: the rows of A, which many SMs share; weights,
    // and those that find no place in the ring before the barrier; what the warps read from shared
    // memory for each 64 of k; the sums' way out. Larger tiles go over k in passes, three times as
    // slow.
    using Tile = machine::cuda_costs::GemmTile;
    const int64_t most = m <= 32 ? 192 : kWgmmaColumns;
    const int64_t deep = (m + 63) / 64, wide = (n + most - 1) / most;
    const double passes = deep * wide == 1 ? 1 : Tile::kPasses * static_cast<double>(deep * wide);
    const int64_t blocks = (std::min<int64_t>(m, 64) + 15) / 16;
    const int64_t groups = round_up(std::min(n, most), 16) / 8;
    const int64_t one = blocks * 512 + (groups + 1) / 2 * 256;  // two warps side by side, or below
    const int64_t two = (blocks + 1) / 2 * 512 + groups * 256;
    const int64_t bytes = m <= 8 ? one - 256 : blocks > 1 ? std::min(one, two) : one;
    double fragments = static_cast<double>(bytes) * 8 / Tile::kSharedBytes / Tile::kClock;
    // By wgmma: all of k at once, or pipelined where there are columns enough.
    if (m >= async_mma_bounds::kFewestRows && passes == 1 && (k <= 768 || n > 16))
      fragments = 2.0 * static_cast<double>(groups * 8) / Tile::kWgmmaColumns;
    const double a = static_cast<double>(m * k) / 512;  // KB
    const double b = static_cast<double>(round_up(n, 16) * k) / 512;
    const double brought =
        Tile::kAPerKb * a + Tile::kAPastPerKb * std::max(a - Tile::kAheadKb, 0.0) +
        Tile::kBPerKb * b + Tile::kBPastPerKb * std::max(b - Tile::kAheadKb, 0.0);
    return Tile::kBegin + brought +
           passes * (static_cast<double>(chunks_of(k)) * fragments + Tile::kOut * area);
  }
  if (packed && is_few_rows(type, m, n)) {
    // Weights stream, or are multiplied with all rows, those that are not there too; and each round
    // is joined.
    using Few = machine::cuda_costs::GemmFmaFewRows;
    const int groups = static_cast<int>((n + 15) / 16), rows = few_rows_padded(m);
    const FewRowsShape shape = few_rows_shape(rows, groups, static_cast<int>((k + 31) / 32));
    const double weights = 16.0 * groups * static_cast<double>(k);
    return Few::kBegin + Few::kRound * shape.rounds +
           std::max(4 * weights / Few::kBytes, 2 * rows * weights / Few::kFlops);
  }
  if (packed && is_fma_rows(type, m, n)) {
    // Both operands stream, or all rows in eights are multiplied; and rounds are joined.
    using Rows = machine::cuda_costs::GemmFmaRows;
    const int groups = static_cast<int>((n + 15) / 16), log = fma_rows_shape(8, groups).log_pieces;
    const double rounds = std::ceil(static_cast<double>(k) / static_cast<double>(32 << log));
    const double high = static_cast<double>(round_up(m, 8)), wide = 16.0 * groups;
    return Rows::kBegin + Rows::kRound * rounds +
           std::max(
               4 * static_cast<double>(m + 16 * groups) * static_cast<double>(k) / Rows::kBytes,
               2 * high * wide * static_cast<double>(k) / Rows::kFlops);
  }
  if (type == kObkF32 || type == kObkTf32) {
    // Both operands come by stages for each pass, or are multiplied: of 16, 32 or 64 rows, of a
    // half of the columns (by half of the warps, which hide less of one another's waits) or of all.
    // On CUDA cores a thread reads its rows of A and four columns of B for each k.
    using Tile = machine::cuda_costs::GemmF32;
    const double passes = std::ceil(m / 64.0) * std::ceil(n / 64.0);
    const double rows = static_cast<double>(gemm_pass_rows(m)),
                 columns = static_cast<double>(round_up(std::min<int64_t>(n, kFmaTile), 32));
    const double bytes = 4 * (static_cast<double>(std::min<int64_t>(m, kFmaTile)) + columns);
    const double products = type == kObkTf32
                                ? rows * (columns + kFmaTile) / Tile::kTf32Flops
                                : 4 * (columns + kFmaTile) * (rows / 8 + 4) / Tile::kSharedBytes;
    return passes *
           (Tile::kBegin + static_cast<double>(k) * std::max(bytes / Tile::kBytes, products));
  }
  using Fma = machine::cuda_costs::GemmFma;
  // On CUDA cores a pass is 64 x 64 whatever it holds: streaming, and the sums.
  const int64_t width = type == kObkF64 ? 8 : 4;
  const double passes = std::ceil(m / 64.0) * std::ceil(n / 64.0);
  const double flops = passes * 2.0 * 64 * 64 * static_cast<double>(k);
  return Fma::kBegin + static_cast<double>((m + n) * k * width) / Fma::kBytes +
         flops / (width == 4 ? Fma::kFlops32 : Fma::kFlops64);
}

static_assert(streamed_bounds::kMostRows == kFewRowsMost &&
              streamed_bounds::kMostRowsPacked == kStreamedRowsPacked &&
              streamed_bounds::kMostColumns == kStreamedColumns);

double cuda_streamed_gemm_nanos(int32_t type, int64_t rows, int64_t columns, int64_t k,
                                int64_t together) {
  using Tile = machine::cuda_costs::GemmStreamed;
  const bool half = OBK_IS_HALF(type);
  const int64_t most_rows = type == kObkTf32 ? kStreamedRowsPacked : kFewRowsMost;
  if ((!half && type != kObkF32 && type != kObkTf32) || rows > most_rows) return 0;
  // By mma.sync a load takes all of a lane's columns, in 16 bits two at least.
  const int64_t most = half ? std::clamp<int64_t>(16 * together, 32, kStreamedColumns)
                       : type == kObkTf32
                           ? std::clamp<int64_t>(16 * together, 16, kStreamedColumnsTf32)
                           : int64_t{kStreamedColumns};
  if (columns > most || (half && columns < 32)) return 0;
  const auto b = static_cast<double>(columns * k);
  const double products = type == kObkF32 ? 2 * b * few_rows_padded(rows) / Tile::kFlops : 0;
  return Tile::kBegin + std::max(b * (half ? 2 : 4) / Tile::kBytes, products);
}

int64_t cuda_streamed_gemm_scratch_bytes(int32_t type, int64_t rows, int64_t columns, int64_t k) {
  const int made_for = streamed_columns(columns);
  return type == kObkF32 ? streamed_f32_shape(few_rows_padded(rows), made_for,
                                              static_cast<int>((k + kFmaDepth - 1) / kFmaDepth))
                               .bytes
                         : streamed_mma_bytes(static_cast<int>(rows), made_for);
}

bool cuda_gemm_statistics(int32_t type, int64_t rows, int64_t, int64_t k, bool own_kernel) {
  return own_kernel && OBK_IS_HALF(type) && k % 64 == 0 && rows >= pipelined_bounds::kFewestRows;
}

int64_t cuda_gemm_dataflow_bytes(int32_t type, int64_t rows, int64_t columns, int64_t k) {
  // gemm_skinny.cuh: all of A and four planes of sums in shared memory, a few pages' code. A body
  // with that promise asserts it.
  using namespace dataflow_bounds;
  if (!OBK_IS_HALF(type) || rows < 1 || rows > kMostRows || columns < 1 || columns > kMostColumns ||
      k < 1 || k % 8 != 0)
    return 0;
  const int64_t chunks = (k + 63) / 64, groups = (columns + 15) / 16 * 2,
                lines = rows < 8 ? rows : 8, across = groups / 2;
  const int64_t operands = lines * 128 * chunks, plane = rows * (groups * 8 + 8) * 4;
  if (chunks * (1 + (across + 1) / 2 + across) > kMostCode ||
      operands + 4 * plane > OBK_GEMM_SMEM_A)
    return 0;
  const bool in_place = rows == 1 && k % 64 == 0;
  return (in_place ? 0 : operands) + 4 * plane + 1024;  // aligned
}

int64_t cuda_gemm_split_k(int32_t type, int64_t n, int64_t k, int64_t rows_in_one_kernel) {
  // Few columns leave most SMs idle, or give each so few that it reads A for little; and a tile
  // keeps all of k in shared memory only to k = 768. Of a long k the rows do not count: a row's
  // bits would depend on how many there are.
  using namespace split_k_bounds;
  if (!OBK_IS_HALF(type) || n > kMostColumns) return 1;
  // A phase of one kernel waits for its tiles' rows of A, 96 KB where k is 768: of half of k it
  // waits for half, and the norm behind adds two planes. Few rows run as dataflow; of many an SM
  // has several tiles, which hide it.
  if (k < kLeastDepth)
    return rows_in_one_kernel >= kFewestRows && rows_in_one_kernel <= kMostRows &&
                   k >= 2 * kShortestSplit && k % 128 == 0
               ? 2
               : 1;
  for (int64_t split_k = kMostSplitK; split_k > 1; --split_k)
    if (k % (split_k * 64) == 0 && k / split_k >= kShortestSplit) return split_k;
  return 1;
}

}  // namespace obelisk::kernels
