/// schedule/tile_attention.h — how attention is tiled.
#pragma once

#include "schedule/cost_model.h"

namespace obelisk::schedule {

/// One head by a block of its queries: as many blocks as give each worker some, but 16 queries at
/// least, and no more than let the scores of a block stay in scratchpad memory.
void cut_attention(const stitch::AttentionTile& tile, const Cutting& cut, int64_t pieces,
                   Work& work);

}  // namespace obelisk::schedule
