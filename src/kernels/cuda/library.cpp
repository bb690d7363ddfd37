#include "kernels/cuda/attention.h"
#include "kernels/cuda/conv.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/gemm_shape.h"
#include "kernels/tile_library.h"

namespace obelisk::kernels {
namespace {

bool takes_float(int32_t type) { return OBK_LIES_AS_F32(type) || OBK_IS_HALF(type); }

}  // namespace

const TileLibrary kCudaTiles = {
    .name = "cuda",
    .panel = 16,
    .vectors = true,
    .gemm =
        {
            .packs_batches = true,
            .takes =
                [](int32_t a, int32_t b) {
                  return a == b &&
                         (OBK_LIES_AS_F32(a) || a == kObkF16 || a == kObkBf16 || a == kObkF64);
                },
            .packed_bytes = cuda_gemm_packed_bytes,
            .pack = cuda_gemm_pack,
            .scratch_bytes = cuda_gemm_scratch_bytes,
            .weights = cuda_gemm_weights,
            .nanos = cuda_gemm_nanos,
            .pipelined =
                PipelinedGemmTiles{.nanos = cuda_product_nanos, .stage = cuda_product_stage},
            .split_k = SplitKTiles{.parts = cuda_gemm_parts},
            .statistics = StatisticsTiles{.pays = cuda_gemm_statistics},
        },
    .conv =
        {
            .takes = takes_float,
            .packed_bytes = cuda_conv_packed_bytes,
            .pack = cuda_conv_pack,
            .depthwise_packed_bytes = cuda_depthwise_packed_bytes,
            .depthwise_pack = cuda_depthwise_pack,
            .scratch_bytes = cuda_conv_scratch_bytes,
            .pixels = PixelTiles{.nanos = cuda_conv_nanos, .weights = cuda_conv_weights},
        },
    .attention =
        {
            .takes = takes_float,
            .widest = cuda_attention_widest,
            .scratch_bytes = cuda_attention_scratch_bytes,
            .nanos = cuda_attention_nanos,
            .split_keys = SplitKeysTiles{.pieces = cuda_attention_pieces,
                                         .exchange_bytes = cuda_attention_exchange_bytes},
        },
    .dataflow = DataflowTiles{.gemm_bytes = cuda_gemm_flows, .in_place_kv = true},
};

const TileLibrary kCudaSmallTiles = [] {
  TileLibrary tiles = kCudaTiles;
  tiles.name = "cuda, little shared memory";
  tiles.gemm.scratch_bytes = cuda_gemm_small_scratch_bytes;
  tiles.conv.scratch_bytes = cuda_conv_small_scratch_bytes;
  tiles.gemm.panel = kGemmSmallPanel;
  return tiles;
}();

const TileLibrary kCudaSmallRingTiles = [] {
  TileLibrary tiles = kCudaSmallTiles;
  tiles.name = "cuda, little shared memory, weights by pages";
  tiles.gemm.scratch_bytes = cuda_gemm_small_ring_scratch_bytes;
  return tiles;
}();

}  // namespace obelisk::kernels
