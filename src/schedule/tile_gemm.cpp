#include "schedule/tile_gemm.h"

#include <algorithm>

#include "schedule/packed_weights.h"
#include "schedule/schedule.h"
#include "schedule/tile_conv.h"

namespace obelisk::schedule {

using stitch::Group;

bool cut_by_cost(const Group& group, const TaskGraph& graph, const Cutting& cut, Work& work) {
  const int64_t inner = tile_span(group, work.nest);
  return cut_by_cost(
      {.type = group.product.tile_type(),
       .batches = inner == 0 ? 0 : std::max<int64_t>(work.nest.row_count() / inner, 1),
       .rows = inner,
       .columns = work.nest.column_count(),
       .depth = group.product.k[0].extent,
       .b_count = group.product.b_count(),
       .packed = work_packs_weights(group, graph, work, cut.tiles)},
      cut, work);
}

bool cut_by_cost(const GemmExtents& of, const Cutting& cut, Work& work) {
  const kernels::TileLibrary& tiles = cut.tiles;
  const int64_t inner = of.rows, n = of.columns, k = of.depth;
  if (inner == 0 || n == 0 || tiles.gemm.nanos(of.type, 1, 1, k, of.packed) <= 0) return false;
  const auto has_room = [&](int64_t rows, int64_t wide) {
    ObkGemm shape = {};
    shape.a_type = shape.b_type = of.type;
    shape.m = rows, shape.n = wide, shape.k = k;
    int64_t most = 0;
    for (int either : {0, 1})
      shape.packed = either, most = std::max(most, tiles.gemm.scratch_bytes(&shape));
    return most + rows * (wide + 8) * 4 + kBlockRoom <= cut.machine.scratchpad.count;
  };
  double best = 0;
  for (int64_t rows = 8; rows == 8 || (rows < 2 * inner && rows <= 128); rows *= 2) {
    for (int64_t columns = tiles.panel;
         columns < n + tiles.panel && columns <= kernels::kMostTileColumns;
         columns += tiles.panel) {
      const int64_t wide = columns * of.b_count;  // of the tile
      if (wide > kernels::kMostTileColumns || rows * wide * 8 > cut.machine.scratchpad.count / 2)
        continue;
      if ((rows > 8 || columns > tiles.panel) && !has_room(std::min(rows, inner), wide)) continue;
      const int64_t count =
          of.batches * ((inner + rows - 1) / rows) * ((n + columns - 1) / columns);
      const int64_t rounds = (count + cut.workers.count - 1) / cut.workers.count;
      const int64_t high =
          of.packed && of.type == kObkF32 && inner > kernels::few_rows_bounds::kMostRows
              ? std::max(std::min(rows, inner), kernels::few_rows_bounds::kMostRows + 1)
              : std::min(rows, inner);
      const double nanos =
          tiles.gemm.nanos(of.type, high, std::min(wide, n * of.b_count), k, of.packed);
      if (best != 0 && rounds * nanos >= best) continue;
      best = rounds * nanos;
      work.tile_rows = std::min(rows, inner), work.tile_columns = std::min(columns, n);
      work.task_nanos = nanos;
    }
  }
  return true;
}

void cut_product(const Group& group, const Cutting& cut, int64_t pieces, Work& work) {
  const machine::Costs& costs = cut.machine.costs;
  const int64_t inner = tile_span(group, work.nest), columns = work.nest.column_count(),
                k = group.product.k[0].extent;
  const int64_t fit =
      std::max<int64_t>(cut.machine.scratchpad.count / 4 / 4, 64);  // accumulators in a quarter
  if (inner == 0 || columns == 0) return;
  const int64_t batches = std::max<int64_t>(work.nest.row_count() / inner, 1);
  const int64_t workers = pieces > 1 ? cut.workers.count : 1;
  double best = 0;
  for (const int64_t about : {inner, int64_t{512}, int64_t{256}, int64_t{192}, int64_t{128},
                              int64_t{96}, int64_t{64}, int64_t{48}, int64_t{32}, int64_t{16}}) {
    const int64_t parts = (inner + about - 1) / about;
    int64_t high = (inner + parts - 1) /
                   parts;  // of about equal sizes, blocks of 16 keep the vector units full
    if (parts > 1) high = std::min(inner, (high + 15) / 16 * 16);
    for (int64_t wide = 64; wide < columns + 64; wide += 64) {
      const int64_t sums = high * wide * group.product.b_count();
      if (wide > 64 && sums > fit) break;
      if (wide == 64 && high > 16 && sums > 2 * fit) break;
      const int64_t count = batches * ((inner + high - 1) / high) * ((columns + wide - 1) / wide);
      const double m = static_cast<double>(high),
                   n = static_cast<double>(std::min(wide, columns) * group.product.b_count()),
                   depth = static_cast<double>(k);
      const double task = costs.gemm_task + 2 * m * n * depth / cut.machine.flops_per_sm +
                          4 * depth * (n + m / costs.cache_over_memory) / cut.machine.bytes_per_sm;
      const double all = static_cast<double>((count + workers - 1) / workers) * task;
      if (best != 0 && all >= best) continue;
      best = all, work.tile_rows = high, work.tile_columns = std::min(wide, columns);
    }
  }
}

ObkConv as_pixels(int32_t type, int64_t rows, int64_t depth, int64_t pitch) {
  ObkConv shape = {};
  shape.type = type, shape.in_channels = depth, shape.height = 1, shape.width = rows;
  shape.kernel_h = shape.kernel_w = 1;
  shape.x_row = shape.x_image = rows * pitch, shape.x_pixel = pitch;
  return shape;
}

double cut_gemm_grid(const Group& group, const TaskGraph& graph, const Cutting& cut, int64_t tasks,
                     Work& work) {
  const stitch::Product& p = group.product;
  const int64_t rows = work.nest.row_count(), size = byte_size(p.a_type, 1);
  const Access* access = work.nest.of_product(group, 0);
  if (!access || work.nest.rows != 1 || rows < stitch::kMostPipelinedRows || p.b_count() != 1 ||
      !p.batch.empty() || p.k.size() != 1 || p.statistics.wanted)
    return listed_nanos(cut, tasks, work);
  const int64_t row = access->strides[0];
  const bool packed =
      graph.buffers[work.buffers[static_cast<size_t>(work.operand_count(group)) + 1]].kind ==
          BufferKind::kWeight &&
      p.b_type == p.a_type;
  if (!packed || p.k[0].a != 1 || row <= 0 || access->offset % kernels::at_once(row) != 0 ||
      rows * row * size >= INT32_MAX)
    return listed_nanos(cut, tasks, work);
  return cut_grid_tiles(cut, as_pixels(static_cast<int32_t>(p.a_type), rows, p.k[0].extent, row),
                        work.nest.column_count(), tasks, work);
}

}  // namespace obelisk::schedule
