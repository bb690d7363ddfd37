/// codegen/tile_grid.h — the tile of a product or a convolution whose kernel's CTAs share a
/// multiprocessor (kernels/cuda/conv/conv_grid.cuh).
///
///   in   a group whose work has `ctas_per_sm`
///   out  text around what an epilogue asks for ahead of its tile; fast memory in bytes
///
/// Weights are asked for before the kernel waits for the one before it. A product is a convolution
/// of single pixels.
#pragma once

#include <string>

#include "schedule/schedule.h"

namespace obelisk::codegen {

struct GridText {
  std::string ahead;  // before the first load of anything but weights
  std::string tile;   // computes `tile`, `pitch` floats from row to row
  int64_t scratch = 0;
};
GridText emit_grid(const stitch::Group& group, const schedule::Work& work,
                   const std::vector<stitch::Layout>& layouts, const kernels::TileLibrary& tiles,
                   int64_t pitch);

}  // namespace obelisk::codegen
