/// codegen/tile.h — what a body knows of the tile that its anchor leaves in scratchpad memory.
#pragma once

#include "schedule/schedule.h"

namespace obelisk::codegen {

/// Elements from row to row, where vectors read it. Four lanes store two columns each of a row,
/// eight rows at once: rows begin eight banks apart.
int64_t pitch_of_tile(const stitch::Group& group, const schedule::Work& work,
                      const kernels::TileLibrary& tiles, bool packed_b);

/// Whether the epilogue only stores the tile as it is, so that the anchor may write the output
/// itself. `store`: the first step's access.
bool stores_tile_plainly(const graph::Graph& graph, const stitch::Group& group,
                         const schedule::Access& store, int lane);

}  // namespace obelisk::codegen
