#include "kernels/tile_library.h"

namespace obelisk::kernels {

const TileLibrary& tile_library(target::Family family) {
  return family == target::Family::kCuda ? kCudaTiles : kCpuTiles;
}

}  // namespace obelisk::kernels
