/// schedule/tile_conv.h — how a convolution is tiled.
#pragma once

#include "schedule/cost_model.h"

namespace obelisk::schedule {

/// Whole output rows of one image by channels of one group. The part of the input that a tile reads
/// and its accumulators stay in scratchpad memory; where weights are large a tile takes many rows,
/// so that each panel of 64 channels is read few times. Single pixels have small weights for what
/// they read and write: there a tile takes more channels, so that its epilogue walks along longer
/// rows.
void cut_conv(const stitch::ConvTile& conv, const Cutting& cut, int64_t pieces, Work& work);

/// The tile of a convolution whose library knows what tiles cost: pixels in row order by channels.
/// False: it does not.
bool cut_conv_by_cost(const stitch::Plan& plan, const stitch::ConvTile& conv, const Cutting& cut,
                      Work& work);

/// The same of a kernel launched as a grid, several tasks a worker at once: tiles of any images'
/// pixels, chosen where predicted faster than the tile that `work` has. With two tasks a worker
/// only the first prologue is exposed. `tasks`: of the tile that `work` has. Returns the time of
/// what `work` is then.
double cut_grid_tiles(const Cutting& cut, ObkConv shape, int64_t outputs, int64_t tasks,
                      Work& work);
/// Of a kernel whose tasks are a list: rounds of all workers.
double listed_nanos(const Cutting& cut, int64_t tasks, const Work& work);

/// cut_grid_tiles for a convolution whose tiles of any images' pixels there can be.
void cut_conv_grid(const stitch::Plan& plan, const stitch::ConvTile& conv, const Cutting& cut,
                   int64_t tasks, Work& work);

}  // namespace obelisk::schedule
