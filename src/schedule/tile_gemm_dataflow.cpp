#include "schedule/tile_gemm_dataflow.h"

#include <optional>

namespace obelisk::schedule {

using stitch::Group;
using stitch::GroupKind;
using stitch::Plan;

bool has_dataflow_tiles(const kernels::TileLibrary& tiles, const stitch::Product& p, int64_t rows,
                        int64_t n, int64_t columns) {
  const auto takes = [&](int64_t wide) {
    return tiles.dataflow->gemm_bytes(p.tile_type(), rows, wide * p.b_count(), p.k[0].extent) > 0;
  };
  return takes(columns) && (n % columns == 0 || (p.b_count() == 1 && takes(n % columns)));
}

void cut_for_dataflow(const Plan& plan, const machine::Machine& device, TaskGraph& tasks) {
  const kernels::TileLibrary& tiles = kernels::tile_library(device);
  if (!tiles.dataflow) return;
  for (Work& work : tasks.works) {
    const Group& group = plan.groups[work.group];
    const int64_t rows = work.nest.row_count(), n = work.nest.column_count();
    if (group.kind != GroupKind::kProduct || rows > kMostDataflowRows ||
        group.product.k.size() != 1)
      continue;
    const auto fits = [&](int64_t columns) {
      return has_dataflow_tiles(tiles, group.product, rows, n, columns);
    };
    if (n == 0 || (n % work.tile_columns == 0 && fits(work.tile_columns))) continue;
    std::optional<int64_t> best;
    for (const bool equal :
         {true, false}) {  // tiles of as many columns each; only else a narrower one at the end
      if (best) break;
      for (int64_t columns = tiles.panel; columns <= n; columns += tiles.panel) {
        if ((n % columns == 0) != equal || !fits(columns)) continue;
        const int64_t rounds = ((n + columns - 1) / columns + device.sms - 1) / device.sms,
                      cost = rounds * (columns + machine::thresholds::kTaskColumns);
        if (best && cost > *best) continue;
        work.task_nanos *= static_cast<double>(columns) / static_cast<double>(work.tile_columns);
        best = cost, work.tile_rows = rows, work.tile_columns = columns;
      }
    }
  }
}

}  // namespace obelisk::schedule
