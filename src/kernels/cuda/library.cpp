#include "kernels/cuda/attention.h"
#include "kernels/cuda/gemm.h"
#include "kernels/tile_library.h"

namespace obelisk::kernels {
namespace {

bool no_tile(int32_t) { return false; }

/// 16-bit rows in the swizzled atoms of gemm.cuh, [k / 64][pitch rows][64]; others row after row, 16 bytes apart from a bank's multiple.
int64_t panel_pitch(int32_t type, int64_t m, int64_t k) {
  if (type == kObkF16 || type == kObkBf16) return m <= 16 ? 16 : m <= 32 ? 32 : 64;
  return k + 4;
}
int64_t panel_bytes(int32_t type, int64_t m, int64_t k) {
  if (type == kObkF16 || type == kObkBf16) return k % 64 == 0 && m <= 64 ? panel_pitch(type, m, k) * k * 2 : 0;
  return m * (k + 4) * (type == kObkF64 ? 8 : 4);
}

}  // namespace

const TileLibrary kCudaTiles = {
    .name = "cuda",
    .panel = 16,
    .takes_gemm = [](int32_t a, int32_t b) {
      return a == b && (a == kObkF32 || a == kObkF16 || a == kObkBf16 || a == kObkF64);
    },
    .takes_conv = no_tile,
    .takes_attention = no_tile,  // not before bodies name the tile's constants (cuda/dialect.cuh)
    .attention_widest = cuda_attention_widest,
    .gemm_packed_bytes = cuda_gemm_packed_bytes,
    .gemm_pack = cuda_gemm_pack,
    .gemm_scratch_bytes = cuda_gemm_scratch_bytes,
    .panel_bytes = panel_bytes,
    .panel_pitch = panel_pitch,
    .gemm_weights = cuda_gemm_weights,
    .gemm_nanos = cuda_gemm_nanos,
    .conv_packed_bytes = [](int32_t, int64_t, int64_t, int64_t, int64_t) { return int64_t{0}; },
    .conv_pack = nullptr,
    .depthwise_packed_bytes = [](int32_t, int64_t, int64_t, int64_t) { return int64_t{0}; },
    .depthwise_pack = nullptr,
    .conv_scratch_bytes = [](const ObkConv*) { return int64_t{0}; },
    .attention_scratch_bytes = cuda_attention_scratch_bytes,
    .attention_nanos = cuda_attention_nanos,
};

}  // namespace obelisk::kernels
