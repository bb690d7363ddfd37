#include "kernels/cuda/attention.h"
#include "kernels/cuda/conv.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/gemm_shape.h"
#include "kernels/tile_library.h"

namespace obelisk::kernels {
const TileLibrary kCudaTiles = {
    .name = "cuda",
    .panel = 16,
    .takes_gemm = [](int32_t a, int32_t b) {
      return a == b && (OBK_LIES_AS_F32(a) || OBK_IS_HALF(a) || a == kObkF64);
    },
    .takes_conv = [](int32_t type) {
      return OBK_LIES_AS_F32(type) || OBK_IS_HALF(type);
    },
    .takes_attention = [](int32_t type) {
      return OBK_LIES_AS_F32(type) || OBK_IS_HALF(type);
    },
    .attention_widest = cuda_attention_widest,
    .gemm_packed_bytes = cuda_gemm_packed_bytes,
    .gemm_pack = cuda_gemm_pack,
    .gemm_scratch_bytes = cuda_gemm_scratch_bytes,
    .gemm_weights = cuda_gemm_weights,
    .gemm_nanos = cuda_gemm_nanos,
    .gemm_parts = cuda_gemm_parts,
    .gemm_flows = cuda_gemm_flows,
    .gemm_statistics = cuda_gemm_statistics,
    .product_nanos = cuda_product_nanos,
    .product_stage = cuda_product_stage,
    .conv_packed_bytes = cuda_conv_packed_bytes,
    .conv_pack = cuda_conv_pack,
    .conv_weights = cuda_conv_weights,
    .depthwise_packed_bytes = cuda_depthwise_packed_bytes,
    .depthwise_pack = cuda_depthwise_pack,
    .conv_scratch_bytes = cuda_conv_scratch_bytes,
    .conv_nanos = cuda_conv_nanos,
    .vectors = true,
    .attention_scratch_bytes = cuda_attention_scratch_bytes,
    .attention_nanos = cuda_attention_nanos,
    .attention_pieces = cuda_attention_pieces,
    .attention_keeps = true,
    .attention_exchange_bytes = cuda_attention_exchange_bytes,
};

const TileLibrary kCudaSmallTiles = [] {
  TileLibrary tiles = kCudaTiles;
  tiles.name = "cuda, little shared memory";
  tiles.gemm_scratch_bytes = cuda_gemm_small_scratch_bytes;
  tiles.conv_scratch_bytes = cuda_conv_small_scratch_bytes;
  tiles.gemm_panel = kGemmSmallPanel;
  return tiles;
}();

}  // namespace obelisk::kernels
