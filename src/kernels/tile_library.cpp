#include "kernels/tile_library.h"

namespace obelisk::kernels {

const TileLibrary& tile_library(const machine::Machine& device) {
  if (device.family != machine::Family::kCuda) return kCpuTiles;
  return device.fast_memory.count < (160_KiB).count ? kCudaSmallTiles : kCudaTiles;
}

}  // namespace obelisk::kernels
