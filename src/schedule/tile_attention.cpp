#include "schedule/tile_attention.h"

#include <algorithm>

namespace obelisk::schedule {

void cut_attention(const stitch::AttentionTile& tile, const Cutting& cut, int64_t pieces,
                   Work& work) {
  const kernels::TileLibrary& tiles = cut.tiles;
  if (tile.kv_splits > 1) {
    // A piece of the keys is named by the columns that it would have: the last to come writes them
    // all.
    work.tile_rows = tile.queries, work.tile_columns = tile.value_size / tile.kv_splits;
    return;
  }
  using namespace kernels::attention_bounds;
  const int64_t most = tiles.attention.nanos ? kMostQueries : kMostQueriesWithoutCosts;
  const int64_t heads = std::max<int64_t>(tile.images * tile.heads, 1);
  const int64_t wanted = std::clamp<int64_t>((pieces + heads - 1) / heads, 1,
                                             (tile.queries + kFewestQueries - 1) / kFewestQueries);
  int64_t block =
      tiles.attention.nanos ? most : std::min(most, (tile.queries + wanted - 1) / wanted);
  ObkAttention shape = {};
  shape.type = tile.tile_type();
  shape.keys = tile.keys, shape.size = tile.size, shape.value_size = tile.value_size;
  const auto fits = [&] {
    shape.queries = block;
    return tiles.attention.scratch_bytes(&shape) + block * tile.value_size * 4 <=
           cut.machine.scratchpad.count;
  };
  while (block > kFewestQueries && !fits()) block = std::max(kFewestQueries, block / 2);
  // The block with the least time of all workers' rounds together: where blocks of the fewest
  // queries are a few more than workers, larger ones that need no second round.
  if (tiles.attention.nanos) {
    double best = 0;
    for (int64_t candidate = kFewestQueries;
         candidate == kFewestQueries || (candidate < 2 * tile.queries && candidate <= block);
         candidate *= 2) {
      const int64_t count = tile.images * tile.heads * ((tile.queries + candidate - 1) / candidate);
      const double nanos = tiles.attention.nanos(shape.type, std::min(candidate, tile.queries),
                                                 tile.keys, tile.size, tile.value_size);
      const double all =
          static_cast<double>((count + cut.workers.count - 1) / cut.workers.count) * nanos;
      if (best != 0 && all >= best) continue;
      best = all, work.tile_rows = std::min(candidate, tile.queries);
    }
    work.tile_columns = tile.value_size;
    return;
  }
  const int64_t blocks = (tile.queries + block - 1) / block;
  block = (tile.queries + blocks - 1) / blocks;  // of about equal sizes
  work.tile_rows =
      std::min(tile.queries,
               blocks > 1 ? (block + kFewestQueries - 1) / kFewestQueries * kFewestQueries : block);
  work.tile_columns = tile.value_size;
}

}  // namespace obelisk::schedule
