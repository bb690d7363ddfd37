/// schedule/tile_gemm_dataflow.h — how a GEMM of few rows is tiled in a dataflow program.
#pragma once

#include "schedule/task_graph.h"

namespace obelisk::schedule {

/// Rows of a GEMM, and of an attention's queries, at most.
inline constexpr int64_t kMostDataflowRows = kernels::dataflow_bounds::kMostRows;

/// Products of few rows in tiles that take their weights as they come, all alike: where the cut for
/// time alone has others.
void cut_for_dataflow(const stitch::Plan& plan, const machine::Machine& device, TaskGraph& tasks);

/// Whether there are dataflow tiles of so many columns for a GEMM: the last one may have fewer, but
/// not of a dual GEMM, whose halves lie side by side.
bool has_dataflow_tiles(const kernels::TileLibrary& tiles, const stitch::Product& p, int64_t rows,
                        int64_t n, int64_t columns);

}  // namespace obelisk::schedule
