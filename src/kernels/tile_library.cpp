#include "kernels/tile_library.h"

namespace obelisk::kernels {

const TileLibrary& tile_library(const machine::Machine& device) {
  if (device.family != machine::Family::kCuda) return kCpuTiles;
  if (device.scratchpad >= 160_KiB) return kCudaTiles;
  return device.features.tma ? kCudaSmallRingTiles : kCudaSmallTiles;
}

}  // namespace obelisk::kernels
