#include "schedule/tile_gemm_streamed.h"

#include <algorithm>

#include "schedule/packed_weights.h"
#include "schedule/schedule.h"

namespace obelisk::schedule {

using stitch::Group;
using stitch::GroupKind;

namespace {

/// Elements at whose multiples every row of k begins and ends, in all matrices: loads of so many
/// take whole columns.
int64_t columns_together(const Group& group, const Nest& nest) {
  const Access* b = nest.of_product(group, 1);
  int64_t all = b->offset | group.product.k[0].b | nest.column_count();
  for (int d = 0; d < nest.rows; ++d)
    if (nest.dims[static_cast<size_t>(d)].extent > 1) all |= b->strides[static_cast<size_t>(d)];
  return kernels::at_once(all);
}

bool stores_parts_of_bytes(const Group& group, const TaskGraph& tasks, const Work& work) {
  return std::any_of(group.body.steps.begin(), group.body.steps.end(),
                     [&](const stitch::Step& step) {
                       return step.kind == stitch::StepKind::kStore &&
                              bits(tasks.buffers[work.buffers[step.slot]].type.dtype) < 8;
                     });
}

}  // namespace

bool cut_streamed(const Group& group, const TaskGraph& tasks, const Cutting& cut, Work& work) {
  using namespace kernels::streamed_bounds;
  const auto& streamed = cut.tiles.gemm.streamed;
  const stitch::Product& product = group.product;
  if (!streamed || group.kind != GroupKind::kProduct || product.dual || product.split_k != 1 ||
      product.statistics.wanted || product.a_type != product.b_type || product.k.size() != 1 ||
      product.n.size() != 1 || product.k[0].a != 1 || stores_parts_of_bytes(group, tasks, work))
    return false;
  const bool packed = work_packs_weights(group, tasks, work, cut.tiles);
  if (packed ? !product.tf32 || !product.batch.empty() : product.n[0].b != 1 || product.k[0].b < 1)
    return false;
  const int64_t rows = tile_span(group, work.nest), all = work.nest.row_count(),
                n = work.nest.column_count(), k = product.k[0].extent;
  if (rows < 1 || rows > (packed ? kMostRowsPacked : kMostRows) || n < 1 || k < 1 || k >= INT32_MAX)
    return false;
  const int32_t type = product.tile_type();
  const int64_t together = packed ? cut.tiles.panel : columns_together(group, work.nest);
  double best = 0;
  for (int64_t columns = kFewestColumns; columns <= kMostColumns; columns *= 2) {
    const double nanos = streamed->nanos(type, rows, columns, k, together);
    const int64_t scratch = streamed->scratch_bytes(type, rows, columns, k);
    if (best != 0 && columns >= 2 * n) break;
    if (nanos <= 0 || scratch + rows * columns * 4 + kBlockRoom > cut.machine.scratchpad.count / 2)
      continue;
    const int64_t count = all / rows * ((n + columns - 1) / columns),
                  rounds = (count + cut.workers.count - 1) / cut.workers.count;
    if (best != 0 && static_cast<double>(rounds) * nanos >= best) continue;
    best = static_cast<double>(rounds) * nanos;
    work.tile_rows = rows, work.tile_columns = std::min(columns, n), work.task_nanos = nanos;
    work.streams_b = true, work.form = TaskList{};
    if (cut.strategy.own_kernels && work.buffers.size() <= size_t{kGridOperands} && all < INT32_MAX)
      work.form = Rectangles{.tasks_per_worker = count > cut.workers.count ? 2 : 1};
  }
  return best != 0;
}

}  // namespace obelisk::schedule
