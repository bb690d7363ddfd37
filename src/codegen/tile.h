/// codegen/tile.h — what a body knows of the tile that its anchor leaves in fast memory.
#pragma once

#include "schedule/schedule.h"

namespace obelisk::codegen {

/// Elements from row to row, where vectors read it. Four lanes store two columns each of a row,
/// eight rows at once: rows begin eight banks apart.
int64_t pitch_of_tile(const stitch::Group& group, const schedule::Work& work,
                      const kernels::TileLibrary& tiles, bool packed_b);

/// Whether every row of a product's A begins where 16 bytes do, as the tile's copies ask: buffers
/// do. `a`: how the nest reads it; `size`: bytes of an element.
bool rows_begin_at_16(const schedule::Work& work, const schedule::Access& a, int64_t size);

/// Whether the epilogue only stores the tile as it is, so that the anchor may write the output
/// itself. `store`: the first step's access.
bool stores_tile_plainly(const graph::Graph& graph, const stitch::Group& group,
                         const schedule::Access& store, int lane);

/// Where the pixels of a convolution are stored by a tile that stores them itself: elements from
/// the first pixel's first channel, from image to image, from row to row and from pixel to pixel.
/// The stored value may have the convolution's dimensions in another order.
struct ConvStore {
  int64_t offset = 0, image = 0, row = 0, pixel = 0;
};
/// `store`: the first step's access.
ConvStore conv_store(const stitch::Group& group, const schedule::Nest& nest,
                     const schedule::Access& store);

}  // namespace obelisk::codegen
