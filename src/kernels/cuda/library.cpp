#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/conv/conv.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/gemm/gemm_shape.h"
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
            .pipelined = PipelinedGemmTiles{.nanos = cuda_pipelined_gemm_nanos,
                                            .stage = cuda_pipelined_gemm_stage},
            .streamed = StreamedGemmTiles{.nanos = cuda_streamed_gemm_nanos,
                                          .scratch_bytes = cuda_streamed_gemm_scratch_bytes},
            .split_k = SplitKTiles{.splits = cuda_gemm_split_k},
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
            .split_kv = SplitKvTiles{.kv_splits = cuda_attention_kv_splits,
                                     .exchange_bytes = cuda_attention_exchange_bytes},
        },
    .dataflow = DataflowTiles{.gemm_bytes = cuda_gemm_dataflow_bytes, .in_place_kv = true},
};

const TileLibrary kCudaSmallTiles = [] {
  TileLibrary tiles = kCudaTiles;
  tiles.name = "cuda, little shared memory";
  tiles.gemm.scratch_bytes = cuda_gemm_small_scratch_bytes;
  tiles.conv.scratch_bytes = cuda_conv_small_scratch_bytes;
  tiles.gemm.smem_a = kGemmSmallSmemA;
  return tiles;
}();

const TileLibrary kCudaSmallRingTiles = [] {
  TileLibrary tiles = kCudaSmallTiles;
  tiles.name = "cuda, little shared memory, weights by pages";
  tiles.gemm.scratch_bytes = cuda_gemm_small_ring_scratch_bytes;
  return tiles;
}();

}  // namespace obelisk::kernels
