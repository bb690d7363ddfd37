/// kernels/tile_library.h — a machine's compute tiles as the compiler sees them: which it takes, how
/// weights are packed for them, how much fast memory they want, and what they cost.
///
///   const TileLibrary& tiles = tile_library(device);
///   if (tiles.takes_gemm(gemm)) ... tiles.gemm_pack(...)        all plain functions, no state
///
/// The structures are those that a body fills at run time (tiles.h); here only types, extents,
/// strides and `packed` are looked at.
#pragma once

#include <cstdint>

#include "kernels/common/tiles.h"
#include "target/target.h"

namespace obelisk::kernels {

/// A part of packed weights that one tile reads: contiguous, so that a copy engine may fetch it.
struct WeightRange {
  int64_t offset = 0, bytes = 0;  // bytes 0: nothing to fetch ahead
  int64_t group = 0;              // bytes of the columns of one atom over all of k
};

struct TileLibrary {
  const char* name;
  /// Tiles over packed weights begin at a multiple of these columns.
  int64_t panel;
  /// Whether there is a product tile for these types.
  bool (*takes_gemm)(int32_t a_type, int32_t b_type);
  bool (*takes_conv)(int32_t type);
  bool (*takes_attention)(int32_t type);
  /// The largest size and value_size of a head.
  int64_t (*attention_widest)(int32_t type);

  int64_t (*gemm_packed_bytes)(int32_t type, int64_t n, int64_t k);
  /// B [k, n] with any strides to the packed form, for tiles of `tile` columns (0: of all). Machines
  /// whose tiles read any columns of one packing do not ask; the bytes are as many for every tile.
  void (*gemm_pack)(int32_t type, int64_t n, int64_t k, int64_t tile, const void* b, int64_t b_row,
                    int64_t b_col, void* packed);
  int64_t (*gemm_scratch_bytes)(const ObkGemm* gemm);
  /// What device texts take for the operands of a product, and of a convolution in f32, where that is not OBK_GEMM_PANEL (kernels/cuda/gemm_shape.h); 0: that.
  int gemm_panel = 0;
  WeightRange (*gemm_weights)(int32_t type, int64_t n, int64_t k, int64_t c0, int64_t c1);
  /// Nanoseconds of one tile of m x n on one SM, for the cut; 0: the device's rates decide.
  double (*gemm_nanos)(int32_t type, int64_t m, int64_t n, int64_t k);
  /// In how many parts of k of their own a product is better computed where the next body adds them up; null: always in one.
  int64_t (*gemm_parts)(int32_t type, int64_t n, int64_t k, int64_t rows_in_one_kernel) = nullptr;

  /// Bytes of fast memory of a product's tile of few rows that takes its weights page by page as they come, whoever asked for them
  /// (schedule/flow.h); 0: there is none. Null: all do.
  int64_t (*gemm_flows)(int32_t type, int64_t rows, int64_t columns, int64_t k) = nullptr;

  /// Whether a product's tile gives a norm's statistics of its rows of A for less than a phase of their own; `own_kernel`: it is
  /// a kernel of its own. Null: no tile does.
  bool (*gemm_statistics)(int32_t type, int64_t rows, int64_t n, int64_t k, bool own_kernel) = nullptr;

  /// Nanoseconds of one tile of m rows, up to 64, by n columns where the product has a kernel of its own, and blocks of 64 k in one of its stages; 0: there is no such tile. Null:
  /// no product has.
  double (*product_nanos)(int32_t type, int64_t m, int64_t n, int64_t k) = nullptr;
  int64_t (*product_stage)(int64_t n, int64_t k) = nullptr;

  int64_t (*conv_packed_bytes)(int32_t type, int64_t out_channels, int64_t in_channels,
                               int64_t kernel_h, int64_t kernel_w);
  /// One group's weights for tiles of `tile` channels, strides in elements.
  void (*conv_pack)(int32_t type, int64_t out_channels, int64_t in_channels, int64_t kernel_h,
                    int64_t kernel_w, int64_t tile, const void* weights, int64_t out_stride, int64_t in_stride,
                    int64_t h_stride, int64_t w_stride, void* packed);
  /// The packed weights of one group's channels c0 .. c1; null: none are fetched ahead.
  WeightRange (*conv_weights)(int32_t type, int64_t out_channels, int64_t in_channels,
                              int64_t kernel_h, int64_t kernel_w, int64_t c0, int64_t c1);
  int64_t (*depthwise_packed_bytes)(int32_t type, int64_t channels, int64_t kernel_h,
                                    int64_t kernel_w);
  void (*depthwise_pack)(int32_t type, int64_t channels, int64_t kernel_h, int64_t kernel_w,
                         const void* weights, int64_t out_stride, int64_t h_stride,
                         int64_t w_stride, void* packed);
  int64_t (*conv_scratch_bytes)(const ObkConv* conv);
  /// Nanoseconds of one tile on one SM. Null: tiles are whole output rows and the device's rates
  /// decide; else tiles are pixels in row order, cut by this.
  double (*conv_nanos)(const ObkConv* conv);
  /// Bodies are for threads that wait for what they load: shapes are constants of their text, rows are
  /// walked in vectors.
  bool vectors;
  int64_t (*attention_scratch_bytes)(const ObkAttention* attention);
  /// Nanoseconds of one tile on one SM, for the cut; 0: the device's rates decide.
  double (*attention_nanos)(int32_t type, int64_t queries, int64_t keys, int64_t size,
                            int64_t value_size);
  /// In how many pieces the keys of a head of few queries are shared out, a power of two that divides value_size: a
  /// matter of the shape, not of the batch, since it decides the order of sums. Null: always one. `flows`: of a program that may flow
  /// (schedule/flow.h).
  int64_t (*attention_pieces)(int32_t type, int64_t heads, int64_t queries, int64_t keys,
                              int64_t size, int64_t value_size, bool flows) = nullptr;
  /// Whether a piece of a program that flows takes keys and values from where the caller keeps them (schedule/kept_keys.h).
  bool attention_keeps = false;
  /// Bytes of global memory that the pieces of one head share, zero before the first run.
  int64_t (*attention_exchange_bytes)(int64_t pieces, int64_t value_size) = nullptr;
};

/// `kCudaSmallTiles`: of a GPU that has less than 160 KiB of shared memory for a block.
const TileLibrary& tile_library(const target::DeviceSpec& device);
extern const TileLibrary kCpuTiles, kCudaTiles, kCudaSmallTiles;

}  // namespace obelisk::kernels
