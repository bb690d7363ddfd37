/// codegen/tile_grid.h — the tile of a GEMM or a convolution whose kernel is a grid of CTAs that
/// share SMs (kernels/cuda/conv/conv_grid.cuh).
///
///   in   a group whose work has `ctas_per_sm`
///   out  text around what an epilogue loads ahead of its tile; scratchpad memory in bytes
///
/// Weights are loaded before the kernel waits for the one before it. A product is a convolution
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
