#include "schedule/tile_gemm_pipelined.h"

#include <algorithm>

namespace obelisk::schedule {

using stitch::Group;
using stitch::GroupKind;

std::optional<RowMatrix> row_matrix(const Group& group, const Nest& nest) {
  constexpr int64_t kBlock = 64, kPiece = 8;  // elements: of a block's row; of 16 bytes
  const stitch::Product& product = group.product;
  const int inner = nest.rows - 1;
  if (group.kind != GroupKind::kProduct || inner < 0 || inner > 1) return std::nullopt;
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

bool cut_pipelined(const Group& group, const Cutting& cut, const TaskGraph& tasks, Work& work) {
  constexpr int64_t kRows = kernels::async_mma_bounds::kMostRows;
  const machine::Costs& costs = cut.machine.costs;
  const kernels::TileLibrary& tiles = cut.tiles;
  if (!cut.strategy.own_kernels || !takes_async_mma(cut.machine, cut.strategy) ||
      !tiles.gemm.pipelined || group.kind != GroupKind::kProduct)
    return false;
  const stitch::Product& product = group.product;
  if (product.batch.size() > 1 || product.split_k > kMostOfGang ||
      work.buffers.size() > size_t{kGridOperands})
    return false;
  const Buffer& a = tasks.buffers[work.buffers[work.operand_count(group)]];
  if (a.kind != BufferKind::kArena ||
      tasks.buffers[work.buffers.back()].kind != BufferKind::kWeight)
    return false;
  const auto matrix = row_matrix(group, work.nest);
  if (!matrix || matrix->span < stitch::kFewestPipelinedRows ||
      matrix->span >= stitch::kMostPipelinedRows)
    return false;
  const auto type = static_cast<int32_t>(product.a_type);
  const int64_t n = work.nest.column_count(), k = product.k[0].extent / product.split_k;
  const int64_t each = (matrix->span + kRows - 1) / kRows,
                rows = (matrix->span + each - 1) / each;  // tiles one below another, alike
  const int64_t down = work.nest.row_count() / matrix->span * each;
  if (n * product.b_count() % 2 != 0) return false;  // sums are stored in pairs
  const int64_t workers = machine::gangs_at_once(cut.workers.count, product.split_k);
  double best = 0;
  for (int64_t columns = tiles.panel; columns < n + tiles.panel; columns += tiles.panel) {
    const int64_t wide = std::min(columns, n) * product.b_count(),
                  count = down * ((n + columns - 1) / columns);
    double nanos = tiles.gemm.pipelined->nanos(type, rows, wide, k);
    if (nanos <= 0) break;
    if (product.split_k > 1) nanos += costs.split_k_exchange;
    const double all =
        costs.pipelined_begin + static_cast<double>((count + workers - 1) / workers) * nanos;
    if (best != 0 && all >= best) continue;
    best = all, work.tile_rows = rows, work.tile_columns = std::min(columns, n),
    work.task_nanos = nanos;
  }
  if (best != 0) work.form = PipelinedGemm{*matrix};
  return best != 0;
}

}  // namespace obelisk::schedule
