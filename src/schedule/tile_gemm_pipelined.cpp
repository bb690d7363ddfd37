#include "schedule/tile_gemm_pipelined.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "schedule/packed_weights.h"
#include "schedule/tile_conv.h"
#include "schedule/tile_gemm.h"

namespace obelisk::schedule {

using stitch::Group;
using stitch::GroupKind;

std::optional<RowMatrix> row_matrix(const Group& group, const Nest& nest) {
  const stitch::Product& product = group.product;
  const int inner = nest.rows - 1;
  if (group.kind != GroupKind::kProduct || inner < 0 || inner > 1) return std::nullopt;
  const int64_t size = byte_size(product.a_type, 1), kBlock = 128 / size,
                kPiece = 16 / size;  // elements: of a block's row; of 16 bytes
  if (product.k.size() != 1 || product.k[0].a != 1 ||
      product.k[0].extent % (kBlock * product.split_k) != 0)
    return std::nullopt;
  const Access* a = nest.of_product(group, 0);
  if (!a || a->offset < 0) return std::nullopt;
  const int64_t pitch = a->strides[inner], batches = inner == 1 ? nest.dims[0].extent : 1,
                step = inner == 1 ? a->strides[0] : 0;
  if (pitch < kBlock || pitch % kPiece != 0 || step < 0 ||
      tile_span(group, nest) != nest.dims[inner].extent)
    return std::nullopt;
  RowMatrix m{.pitch = pitch, .span = nest.dims[inner].extent};
  m.row = a->offset / pitch, m.row_step = step / pitch;
  const int64_t column = a->offset % pitch, column_step = step % pitch;
  if (column % kBlock != 0 || column_step % kBlock != 0) return std::nullopt;
  if (column + (batches - 1) * column_step + product.k[0].extent > pitch) return std::nullopt;
  m.block = column / kBlock, m.block_step = column_step / kBlock;
  m.rows = m.row + (batches - 1) * m.row_step + m.span;
  return m.rows * pitch < INT32_MAX ? std::optional(m) : std::nullopt;
}

std::optional<BoxMatrix> box_matrix(const Group& group, const Nest& nest) {
  const stitch::Product& product = group.product;
  const int inner = nest.rows - 1;
  if (group.kind != GroupKind::kProduct || inner < 0 || inner > 1 || product.dual)
    return std::nullopt;
  if (product.k.size() != 1 || product.n.size() != 1) return std::nullopt;
  const Access* b = nest.of_product(group, 1);
  if (!b || b->offset < 0 || b->strides[inner] != 0) return std::nullopt;
  const int64_t kPiece = 16 / byte_size(product.b_type, 1);  // elements of 16 bytes
  const stitch::Product::Dim &n = product.n[0], &k = product.k[0];
  BoxMatrix m{.k_rows = n.b == 1};
  if (!m.k_rows && k.b != 1) return std::nullopt;
  m.pitch = m.k_rows ? k.b : n.b;
  const int64_t high = m.k_rows ? k.extent : n.extent, wide = m.k_rows ? n.extent : k.extent;
  const int64_t batches = inner == 1 ? nest.dims[0].extent : 1,
                step = inner == 1 ? b->strides[0] : 0;
  if (m.pitch < wide || m.pitch % kPiece != 0 || step < 0) return std::nullopt;
  m.row = b->offset / m.pitch, m.row_step = step / m.pitch;
  m.column = b->offset % m.pitch, m.column_step = step % m.pitch;
  m.columns = m.column + (batches - 1) * m.column_step + wide;
  m.rows = m.row + (batches - 1) * m.row_step + high;
  if (m.columns > m.pitch) return std::nullopt;
  return m.rows * m.pitch < INT32_MAX ? std::optional(m) : std::nullopt;
}

std::optional<RowMatrix> async_rows(const Group& group, const Cutting& cut, const TaskGraph& tasks,
                                    const Work& work) {
  using namespace kernels::async_mma_bounds;
  if (!cut.strategy.one_kernel() || !takes_async_mma(cut.machine, cut.strategy) ||
      group.kind != GroupKind::kProduct)
    return std::nullopt;
  const stitch::Product& product = group.product;
  if (product.split_k != 1 || product.batch.size() > 1 || !cut.tiles.gemm.pipelined)
    return std::nullopt;
  if ((product.a_type != DType::f16 && product.a_type != DType::bf16) ||
      work.tile_rows < kFewestRows || work.tile_rows > kMostRows)
    return std::nullopt;
  const Buffer& a = tasks.buffers[work.buffers[work.operand_count(group)]];
  if (a.kind != BufferKind::kArena ||
      tasks.buffers[work.buffers.back()].kind != BufferKind::kWeight)
    return std::nullopt;
  return row_matrix(group, work.nest);
}

namespace {

/// Whether a tall tile's sums, with a last row of padding as bodies pad rows, leave room for two
/// stages and for what its epilogue loads ahead.
bool tall_has_room(const PipelinedShape& shape, const machine::Machine& machine,
                   const kernels::TileLibrary& tiles, int64_t rows, int64_t wide) {
  constexpr int64_t kPadding = 8, kStages = 2, kAtom = 1024;
  const int64_t parts = shape.split_k, slice = (rows + parts - 1) / parts,
                whole = parts == 1                    ? 0
                        : OBK_LIES_AS_F32(shape.type) ? rows
                                                      : kernels::pipelined_bounds::kTallRows;
  const int64_t sums = (whole + parts * slice) * (wide + kPadding) * 4;
  const int64_t brought = round_up(wide, shape.b_together),
                blocks = tiles.gemm.pipelined->stage(shape.type, rows, brought, shape.k / parts),
                stage = round_up(blocks * rows * 128, kAtom) +
                        blocks * round_up(brought, 16) * 128 +
                        (OBK_LIES_AS_F32(shape.type) ? kAtom : 0);  // panels lie some bytes apart
  return sums + kStages * stage + machine.scratchpad.count / 8 + 2 * kBlockRoom <=
         machine.scratchpad.count;
}

}  // namespace

PipelinedCut quickest_pipelined(const PipelinedShape& shape, const machine::Machine& machine,
                                int workers, bool tall) {
  using namespace kernels::pipelined_bounds;
  const kernels::TileLibrary& tiles = kernels::tile_library(machine);
  PipelinedCut best;
  const int64_t at_once = machine::gangs_at_once(workers, shape.split_k), n = shape.columns;
  struct Kind {
    int64_t high;
    int chains;
  };
  const bool words = OBK_LIES_AS_F32(shape.type);  // one chain over k in every tile
  for (const auto [high, chains] :
       {Kind{kLowRows, 1}, Kind{kTileRows, 4}, Kind{kTallRows, 4}, Kind{kTallRows, 1}}) {
    const bool is_tall = high == kTallRows;
    if (words ? is_tall && chains == 4 : high == kLowRows) continue;
    const bool low_of_many = !is_tall && !words && shape.span > kMostRows;
    if (is_tall ? !tall || shape.span <= kTileRows
                : low_of_many && (shape.k < kShallowestLowOfMany || shape.activations ||
                                  shape.b_count != 1 || shape.split_k != 1))
      continue;
    if (is_tall && chains == 4 && shape.span > kMostRows) continue;
    if (is_tall && chains == 1 && shape.k < kShallowestTall && !shape.activations && !words)
      continue;
    const int64_t each = (shape.span + high - 1) / high,
                  rows = (shape.span + each - 1) / each;  // tiles one below another, alike
    if (is_tall && rows <= kTileRows) continue;
    kernels::PipelinedGemmTile tile{.type = shape.type,
                                    .rows = rows,
                                    .k = shape.k / shape.split_k,
                                    .chains = chains,
                                    .readers = each,
                                    .memory_bytes = machine.bytes_per_sm,
                                    .packed = !shape.activations,
                                    .parts = words ? shape.split_k : 1};
    for (int64_t columns = tiles.panel; columns < n + tiles.panel; columns += tiles.panel) {
      if (words && columns < n && columns % shape.b_together != 0) continue;  // all of a box comes
      if (shape.only.rows != 0 &&
          (rows != shape.only.rows || std::min(columns, n) != shape.only.columns))
        continue;
      tile.columns = std::min(columns, n) * shape.b_count;
      const int64_t across = (n + columns - 1) / columns, count = shape.matrices * each * across;
      if (low_of_many && count > at_once) continue;
      if (shape.activations || words)
        tile.a_readers = across, tile.brought = round_up(tile.columns, shape.b_together),
        tile.in_turn = count > at_once;
      double nanos = tiles.gemm.pipelined->nanos(tile);
      if (nanos <= 0) break;
      if (is_tall && !tall_has_room(shape, machine, tiles, rows, tile.columns)) break;
      if (shape.split_k > 1 && !words) nanos += machine.costs.split_k_exchange;
      if (is_tall && chains == 4 && count > at_once && shape.span < kFewestTallInTurn) continue;
      const double all = machine.costs.pipelined_begin +
                         static_cast<double>((count + at_once - 1) / at_once) * nanos;
      if (best.rows != 0 && all >= best.all) continue;
      best = {.rows = rows,
              .columns = std::min(columns, n),
              .chains = words ? 1 : chains,
              .nanos = nanos,
              .all = all};
    }
  }
  return best;
}

int64_t tall_split_k(const machine::Machine& machine, const machine::Strategy& strategy,
                     int32_t type, int64_t rows, int64_t columns, int64_t depth) {
  using namespace kernels::split_k_bounds;
  if (!strategy.tall_gemm || !kernels::tile_library(machine).gemm.pipelined ||
      columns > kMostColumns || depth < kLeastDepth)
    return 1;
  PipelinedShape shape{.type = type, .span = rows, .columns = columns, .k = depth};
  int64_t parts = 1;
  double best = quickest_pipelined(shape, machine, machine.sms, true).all;
  for (shape.split_k = 2; shape.split_k <= kMostSplitK; ++shape.split_k) {
    if (depth % (shape.split_k * 64) != 0 || depth / shape.split_k < kShortestSplit ||
        !stitch::splits_meet(machine, strategy, rows, columns, shape.split_k))
      continue;
    const PipelinedCut cut = quickest_pipelined(shape, machine, machine.sms, true);
    if (cut.rows != 0 && cut.all < best) best = cut.all, parts = shape.split_k;
  }
  return parts;
}

namespace {

struct CutInParts {
  PipelinedCut cut;
  int64_t parts = 1;  // of k
};
/// The same with as many parts of k as take least, where that is for the schedule to choose: of
/// words.
CutInParts quickest_in_parts(PipelinedShape shape, const machine::Machine& machine, int workers,
                             bool tall) {
  CutInParts best{quickest_pipelined(shape, machine, workers, tall), shape.split_k};
  for (shape.split_k = 2; OBK_LIES_AS_F32(shape.type) && shape.split_k <= kMostOfGang;
       ++shape.split_k) {
    using kernels::pipelined_bounds::kShortestPartOfWords;
    const int64_t part = shape.k / shape.split_k;
    if (part * shape.split_k != shape.k || part % 32 != 0 || part < kShortestPartOfWords) continue;
    const PipelinedCut split = quickest_pipelined(shape, machine, workers, tall);
    if (split.rows != 0 && split.all < best.cut.all) best = {split, shape.split_k};
  }
  return best;
}

}  // namespace

int64_t products_in_full_rounds(const passes::BatchOfProducts& batch,
                                const machine::Machine& machine,
                                const machine::Strategy& strategy) {
  const kernels::TileLibrary& tiles = kernels::tile_library(machine);
  if (!strategy.own_kernels || !takes_async_mma(machine, strategy) || !tiles.gemm.pipelined)
    return 0;
  const bool words = batch.type == DType::f32;
  if (!is_half(batch.type) && !words) return 0;
  const int64_t block = words ? 32 : 64;
  if (batch.depth % block != 0 || batch.columns % 2 != 0 ||
      batch.rows < stitch::kFewestPipelinedRows)
    return 0;
  PipelinedShape shape{
      .type = words && strategy.tf32 ? int32_t{kObkTf32} : static_cast<int32_t>(batch.type),
      .span = batch.rows,
      .columns = batch.columns,
      .k = batch.depth,
      .activations = !batch.constant,
      .b_together = batch.constant ? 1 : block};
  const auto take = [&](int64_t products) {
    shape.matrices = products;
    const PipelinedCut cut = quickest_in_parts(shape, machine, machine.sms, strategy.tall_gemm).cut;
    return cut.rows == 0 ? INFINITY : cut.all;
  };
  // Of each kind of tile: as many products as have tiles for the most whole rounds.
  std::set<int64_t> full;
  for (const int64_t high :
       {kernels::pipelined_bounds::kLowRows, kernels::pipelined_bounds::kTileRows,
        kernels::pipelined_bounds::kTallRows})
    for (int64_t columns = tiles.panel; columns < batch.columns + tiles.panel;
         columns += tiles.panel) {
      const int64_t of_one = ((batch.rows + high - 1) / high) *
                             ((batch.columns + columns - 1) / columns),
                    rounds = batch.count * of_one / machine.sms;
      full.insert(rounds * machine.sms / of_one);
    }
  const double whole = take(batch.count);
  if (whole == INFINITY) return 0;
  // A kernel more is not worth a few hundred nanoseconds, whatever share of a short one they are.
  double least = std::min(machine::thresholds::kWorthSplitting * whole,
                          whole - machine.costs.pipelined_begin / 2);
  int64_t best = 0;
  for (const int64_t first : full) {
    if (first < 1 || first >= batch.count) continue;
    const double both = take(first) + take(batch.count - first);
    if (both < least) least = both, best = first;
  }
  return best;
}

namespace {

/// Predicted nanoseconds of a GEMM of constant weights by the tiles that suit it best, b_count of
/// them side by side.
struct GemmNanos {
  double pipelined = INFINITY, other = INFINITY;  // in a pipelined kernel; in other tiles
  int64_t rounds = 0;                             // tiles of a worker in the pipelined kernel
};
GemmNanos gemm_nanos(const PipelinedShape& shape, const Cutting& cut) {
  const bool words = OBK_LIES_AS_F32(shape.type);
  Work work;
  work.nest.rows = 1;
  work.nest.dims = {{.extent = shape.span}, {.extent = shape.columns}};
  if (!cut_by_cost({.type = shape.type,
                    .rows = shape.span,
                    .columns = shape.columns,
                    .depth = shape.k,
                    .b_count = shape.b_count,
                    .packed = true},
                   cut, work))
    return {};
  const int64_t tasks = ((shape.span + work.tile_rows - 1) / work.tile_rows) *
                        ((shape.columns + work.tile_columns - 1) / work.tile_columns);
  const bool many = shape.span >= stitch::kMostPipelinedRows, one = shape.b_count == 1;
  GemmNanos nanos;
  nanos.other = many && one && !words
                    ? cut_grid_tiles(cut, as_pixels(shape.type, shape.span, shape.k, shape.k),
                                     shape.columns, tasks, work)
                    : listed_nanos(cut, tasks, work) *
                          (shape.type == kObkF32 ? kernels::pipelined_bounds::kF32ListedOver : 1);
  if ((words && !one) || shape.k % (words ? 32 : 64) != 0) return nanos;
  const PipelinedCut cut_so =
      quickest_in_parts(shape, cut.machine, cut.workers.count, cut.strategy.tall_gemm).cut;
  if (cut_so.rows != 0) {
    nanos.pipelined = cut_so.all;
    nanos.rounds = (((shape.span + cut_so.rows - 1) / cut_so.rows) *
                        ((shape.columns + cut_so.columns - 1) / cut_so.columns) +
                    cut.workers.count - 1) /
                   cut.workers.count;
  }
  return nanos;
}

/// Of the kernel that the schedule takes.
double nanos_taken(const PipelinedShape& shape, const Cutting& cut) {
  const GemmNanos nanos = gemm_nanos(shape, cut);
  if (nanos.pipelined == INFINITY) return nanos.other;
  const bool chosen = shape.span >= stitch::kMostPipelinedRows || OBK_LIES_AS_F32(shape.type);
  return chosen ? std::min(nanos.pipelined, nanos.other) : nanos.pipelined;
}

}  // namespace

bool dual_gemm_pays(DType type, int64_t rows, int64_t columns, int64_t depth,
                    const machine::Machine& machine, const machine::Strategy& strategy) {
  const kernels::TileLibrary& tiles = kernels::tile_library(machine);
  if (!strategy.own_kernels || strategy.batch_invariant || !takes_async_mma(machine, strategy) ||
      !tiles.gemm.pipelined || rows < stitch::kFewestPipelinedRows || columns == 0 || depth == 0 ||
      (!is_half(type) && type != DType::f32))
    return true;
  const Cutting cut{machine, strategy, tiles, {machine.sms}};
  PipelinedShape shape{
      .type = type == DType::f32 && strategy.tf32 ? int32_t{kObkTf32} : static_cast<int32_t>(type),
      .span = rows,
      .columns = columns,
      .b_count = 2,
      .k = depth};
  const double dual = nanos_taken(shape, cut);
  shape.b_count = 1;
  // The first stores what the second's epilogue reads.
  const double between = 2 * static_cast<double>(byte_size(type, rows * columns)) /
                         (machine.bytes_per_sm * machine.sms);
  const double two = 2 * nanos_taken(shape, cut) + between;
  return two >= machine::thresholds::kWorthSplitting * dual;
}

bool one_round_of_tiles(DType type, int64_t rows, int64_t columns, int64_t depth,
                        const machine::Machine& machine, const machine::Strategy& strategy) {
  const kernels::TileLibrary& tiles = kernels::tile_library(machine);
  if (!strategy.own_kernels || !takes_async_mma(machine, strategy) || !tiles.gemm.pipelined ||
      !is_half(type) || rows < stitch::kMostPipelinedRows)
    return false;
  const Cutting cut{machine, strategy, tiles, {machine.sms}};
  const GemmNanos nanos = gemm_nanos(
      {.type = static_cast<int32_t>(type), .span = rows, .columns = columns, .k = depth}, cut);
  return nanos.pipelined < nanos.other && nanos.rounds == 1;
}

namespace {

/// Whether a value has so many rows of a matrix, the last up to `columns`; `size`: bytes of an
/// element.
bool reaches(const Buffer& buffer, int64_t rows, int64_t pitch, int64_t columns, int64_t size) {
  return ((rows - 1) * pitch + columns) * size <= buffer.size.count;
}

/// Columns of the matrix that A lies in up to the last one of A.
int64_t a_columns(const RowMatrix& m, const Group& group, const Work& work) {
  const int64_t batches = work.nest.row_count() / m.span;
  return 128 / byte_size(group.product.a_type, 1) * (m.block + (batches - 1) * m.block_step) +
         group.product.k[0].extent;
}

}  // namespace

bool cut_pipelined(const Group& group, const Cutting& cut, const TaskGraph& tasks, Work& work,
                   std::optional<double> other) {
  const kernels::TileLibrary& tiles = cut.tiles;
  if (!cut.strategy.own_kernels || !takes_async_mma(cut.machine, cut.strategy) ||
      !tiles.gemm.pipelined || group.kind != GroupKind::kProduct)
    return false;
  const stitch::Product& product = group.product;
  if (product.split_k > kMostOfGang || work.buffers.size() > size_t{kGridOperands}) return false;
  const Buffer &a = tasks.buffers[work.buffers[work.operand_count(group)]],
               &b = tasks.buffers[work.buffers.back()];
  const bool activations = b.kind != BufferKind::kWeight, words = product.of_words();
  const bool exact = words && !product.tf32;
  const int64_t size = byte_size(product.a_type, 1);
  if (a.kind == BufferKind::kWeight || ((activations || words) && product.a_type != product.b_type))
    return false;
  if (!activations && (product.batch.size() > 1 || !work_packs_weights(group, tasks, work, tiles)))
    return false;
  if (words && (product.split_k != 1 || product.b_count() != 1 || product.statistics.wanted))
    return false;  // parts of k in words are chosen here, not by the graph
  const auto matrix = row_matrix(group, work.nest);
  const auto boxes = activations ? box_matrix(group, work.nest) : std::nullopt;
  if (!matrix || activations != boxes.has_value() || matrix->span < stitch::kFewestPipelinedRows ||
      (matrix->span >= stitch::kMostPipelinedRows || exact) != other.has_value())
    return false;
  if (a.kind != BufferKind::kArena || activations) {
    if (!reaches(a, matrix->rows, matrix->pitch, a_columns(*matrix, group, work), size) ||
        (boxes && !reaches(b, boxes->rows, boxes->pitch, boxes->columns, size)))
      return false;
  }
  PipelinedShape shape{
      .type = product.tile_type(),
      .span = matrix->span,
      .matrices = work.nest.row_count() / matrix->span,
      .columns = work.nest.column_count(),
      .b_count = product.b_count(),
      .k = product.k[0].extent,
      .split_k = product.split_k,
      .activations = activations,
      .b_together = activations && boxes->k_rows ? kernels::pipelined_bounds::kBoxBytes / size : 1,
      .only = cut.strategy.gemm_tile};
  if (shape.columns * shape.b_count % 2 != 0) return false;  // sums are stored in pairs
  const auto quickest = [&] {
    return quickest_in_parts(shape, cut.machine, cut.workers.count, cut.strategy.tall_gemm);
  };
  CutInParts found = quickest();
  const bool as_asked = shape.only.rows != 0 && found.cut.rows != 0;
  if (shape.only.rows != 0 && !as_asked) shape.only = {}, found = quickest();
  const auto [best, parts] = found;
  using kernels::pipelined_bounds::kF32ListedOver;
  if (best.rows == 0 || (!as_asked && other && best.all >= (exact ? kF32ListedOver : 1) * *other))
    return false;
  work.tile_rows = best.rows, work.tile_columns = best.columns, work.task_nanos = best.nanos;
  work.form = PipelinedGemm{.a = *matrix,
                            .tall = best.rows > kernels::pipelined_bounds::kTileRows,
                            .chains = best.chains,
                            .parts = parts,
                            .b = boxes};
  return true;
}

}  // namespace obelisk::schedule
