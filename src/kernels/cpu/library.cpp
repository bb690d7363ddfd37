#include "kernels/cpu/table.h"
#include "kernels/tile_library.h"

namespace obelisk::kernels {
namespace {

bool is_float_tile(int32_t type) { return OBK_LIES_AS_F32(type) || OBK_IS_HALF(type); }

}  // namespace

const TileLibrary kCpuTiles = {
    .name = "cpu",
    .panel = kObkPanel,
    .gemm = {
        .takes = [](int32_t a, int32_t b) { return a == b && (is_float_tile(a) || a == kObkF64); },
        .packed_bytes = obk_gemm_packed_bytes,
        .pack =
            [](int32_t type, int64_t n, int64_t k, int64_t, const void* b, int64_t b_row,
               int64_t b_col,
               void* packed) { obk_gemm_pack(type, n, k, b, b_row, b_col, nullptr, 0, packed); },
        .scratch_bytes = obk_gemm_scratch_bytes,
        .weights = [](int32_t, int64_t, int64_t, int64_t, int64_t) { return WeightRange(); },
        .nanos = [](int32_t, int64_t, int64_t, int64_t, bool) { return 0.0; },
    },
    .conv = {
        .takes = is_float_tile,
        .packed_bytes = [](int32_t, int64_t out, int64_t in, int64_t kh,
                           int64_t kw) { return obk_conv_packed_bytes(out, in, kh, kw); },
        .pack =
            [](int32_t type, int64_t out, int64_t in, int64_t kh, int64_t kw, int64_t,
               const void* weights, int64_t out_stride, int64_t in_stride, int64_t h_stride,
               int64_t w_stride, void* packed) {
              obk_conv_pack(type, out, in, kh, kw, weights, out_stride, in_stride, h_stride,
                            w_stride, packed);
            },
        .depthwise_packed_bytes =
            [](int32_t, int64_t channels, int64_t kh, int64_t kw) {
              return obk_depthwise_packed_bytes(channels, kh, kw);
            },
        .depthwise_pack = obk_depthwise_pack,
        .scratch_bytes = obk_conv_scratch_bytes,
    },
    .attention =
        {
            .takes = is_float_tile,
            .widest = [](int32_t) { return INT64_MAX; },
            .scratch_bytes = obk_attention_scratch_bytes,
        },
};

}  // namespace obelisk::kernels
