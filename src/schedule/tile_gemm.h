/// schedule/tile_gemm.h — how a GEMM is tiled whose tiles are tasks of a list or of a grid;
/// pipelined GEMMs: tile_gemm_pipelined.h.
#pragma once

#include "schedule/cost_model.h"

namespace obelisk::schedule {

/// The tile of a product whose library knows what tiles cost: the least time of all workers' rounds
/// together. False: it does not.
bool cut_by_cost(const stitch::Group& group, const TaskGraph& graph, const Cutting& cut,
                 Work& work);

/// Products alike, [rows, depth] by [depth, columns], the columns b_count times side by side.
struct GemmExtents {
  int32_t type = 0;
  int64_t batches = 1, rows = 0, columns = 0, depth = 0, b_count = 1;
  bool packed = false;  // B is weights in the tiles' order
};
bool cut_by_cost(const GemmExtents& of, const Cutting& cut, Work& work);

/// The tile of a product by the machine's rates: of all that fit, the one with the least time of
/// all workers' rounds. A task computes at the machine's rate and reads its columns of B from main
/// memory, its rows of A (which all tasks of those rows share) from the last-level cache; so tiles
/// are high where B is large.
void cut_product(const stitch::Group& group, const Cutting& cut, int64_t pieces, Work& work);

/// Rows of `depth` elements, `pitch` apart, as a convolution of single pixels reads them.
ObkConv as_pixels(int32_t type, int64_t rows, int64_t depth, int64_t pitch);

/// A product of many rows by packed weights, as a convolution of single pixels, where that is
/// quicker than the tile that `work` has. Returns the time of what `work` is then.
double cut_gemm_grid(const stitch::Group& group, const TaskGraph& graph, const Cutting& cut,
                     int64_t tasks, Work& work);

}  // namespace obelisk::schedule
