/// kernels/tile_library.h — a machine's compute tiles as the compiler sees them: which it takes,
/// how weights are packed for them, how much scratchpad memory they want, and what they cost.
///
///   const TileLibrary& tiles = tile_library(device);
///   if (tiles.gemm.takes(type, type)) ... tiles.gemm.pack(...)
///   if (tiles.gemm.pipelined) ... tiles.gemm.pipelined->nanos(...)
///
/// All are plain functions without state; what not every machine has is an optional part.
///
/// The structures are those that a body fills at run time (tiles.h); here only types, extents,
/// strides and `packed` are looked at.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/common/tiles.h"
#include "kernels/tile_bounds.h"
#include "machine/machine.h"

namespace obelisk::kernels {

/// A part of packed weights that one tile reads: contiguous, so that a bulk copy may fetch it.
struct WeightRange {
  int64_t offset = 0, bytes = 0;  // bytes 0: nothing to fetch ahead
  int64_t group = 0;              // bytes of the columns of one atom over all of k
};

/// A tile of a pipelined GEMM, as its cost sees it: up to 64 rows, or up to 128 (a tall tile).
struct PipelinedGemmTile {
  int32_t type = 0;
  int64_t rows = 0, columns = 0, k = 0;
  int chains = 4;           // of a tall tile: sums over parts of k that an element is the sum of
  int64_t readers = 1;      // tiles one below another: their weights come from memory once
  double memory_bytes = 0;  // a ns that a worker gets from memory
  /// Of two activations: tiles side by side, whose rows of A come from memory once; columns of B
  /// that come, some of which nobody may multiply. 0: B is weights.
  int64_t a_readers = 0, brought = 0;
  bool in_turn = false;  // then: a worker has several, whose loads go on during epilogues
  bool packed = false;   // B is packed weights
  int64_t parts = 1;     // of f32: CTAs that each have such a k of the tile and exchange their sums
};

/// GEMM tiles of a persistent kernel whose pipeline loads both operands across tile boundaries
/// (kernels/cuda/gemm/pipelined_gemm.cuh).
struct PipelinedGemmTiles {
  /// Nanoseconds of one tile; 0: there is no such tile.
  double (*nanos)(const PipelinedGemmTile& tile);
  /// Blocks of 128 bytes of k in one of its stages.
  int64_t (*stage)(int32_t type, int64_t rows, int64_t n, int64_t k);
};

/// GEMM tiles of few rows whose B streams from memory to registers: an activation with rows of k,
/// or packed weights in tf32 (kernels/cuda/gemm/gemm_streamed.cuh).
struct StreamedGemmTiles {
  /// Nanoseconds of one tile made for `columns`; 0: there is no such tile. `together`: elements at
  /// whose multiples rows of B begin and end.
  double (*nanos)(int32_t type, int64_t rows, int64_t columns, int64_t k, int64_t together);
  /// Bytes of scratchpad memory of such a tile.
  int64_t (*scratch_bytes)(int32_t type, int64_t rows, int64_t columns, int64_t k);
};

/// Split-K GEMMs, whose partial sums the next body adds.
struct SplitKTiles {
  /// In how many parts of k a GEMM is faster computed.
  int64_t (*splits)(int32_t type, int64_t n, int64_t k, int64_t rows_in_one_kernel);
};

/// Tiles of programs whose values carry their own readiness (schedule/dataflow.h).
struct DataflowTiles {
  /// Bytes of scratchpad memory of a product's tile of few rows that takes its weights page by page
  /// as they arrive, whichever thread loaded them; 0: there is none.
  int64_t (*gemm_bytes)(int32_t type, int64_t rows, int64_t columns, int64_t k);
  /// KV splits of attention read keys and values in place, where the caller keeps them
  /// (schedule/in_place_kv.h).
  bool in_place_kv = false;
};

/// Products whose tiles give a norm's statistics of their rows of A as well.
struct StatisticsTiles {
  /// Whether they do for less than a phase of their own; `own_kernel`: the product is a kernel of
  /// its own.
  bool (*pays)(int32_t type, int64_t rows, int64_t n, int64_t k, bool own_kernel);
};

struct GemmTiles {
  /// Whether a batch of matrices is packed too, one behind another.
  bool packs_batches = false;
  /// Whether there is a tile for these types.
  bool (*takes)(int32_t a_type, int32_t b_type);
  int64_t (*packed_bytes)(int32_t type, int64_t n, int64_t k);
  /// B [k, n] with any strides to the packed form, for tiles of `tile` columns (0: of all).
  /// Machines whose tiles read any columns of one packing do not ask; the bytes are as many for
  /// every tile.
  void (*pack)(int32_t type, int64_t n, int64_t k, int64_t tile, const void* b, int64_t b_row,
               int64_t b_col, void* packed);
  int64_t (*scratch_bytes)(const ObkGemm* gemm);
  /// What device texts take for the operands of a product, and of a convolution in f32, where that
  /// is not OBK_GEMM_SMEM_A (kernels/cuda/gemm/gemm_shape.h); 0: that.
  int smem_a = 0;
  WeightRange (*weights)(int32_t type, int64_t n, int64_t k, int64_t c0, int64_t c1);
  /// Nanoseconds of one tile of m x n on one SM, for the cut; 0: the device's rates decide. packed:
  /// B is packed weights.
  double (*nanos)(int32_t type, int64_t m, int64_t n, int64_t k, bool packed);
  std::optional<PipelinedGemmTiles> pipelined = std::nullopt;
  std::optional<StreamedGemmTiles> streamed = std::nullopt;
  std::optional<SplitKTiles> split_k = std::nullopt;
  std::optional<StatisticsTiles> statistics = std::nullopt;
};

/// Convolutions' tiles of pixels in row order, cut by what they cost, whose weights are fetched
/// ahead. Without: tiles are whole output rows and the device's rates decide.
struct PixelTiles {
  /// Nanoseconds of one tile on one SM; 0: there is no such tile.
  double (*nanos)(const ObkConv* conv);
  /// The packed weights of one group's channels c0 .. c1.
  WeightRange (*weights)(int32_t type, int64_t out_channels, int64_t in_channels, int64_t kernel_h,
                         int64_t kernel_w, int64_t c0, int64_t c1);
};

struct ConvTiles {
  bool (*takes)(int32_t type);
  int64_t (*packed_bytes)(int32_t type, int64_t out_channels, int64_t in_channels, int64_t kernel_h,
                          int64_t kernel_w);
  /// One group's weights for tiles of `tile` channels, strides in elements.
  void (*pack)(int32_t type, int64_t out_channels, int64_t in_channels, int64_t kernel_h,
               int64_t kernel_w, int64_t tile, const void* weights, int64_t out_stride,
               int64_t in_stride, int64_t h_stride, int64_t w_stride, void* packed);
  int64_t (*depthwise_packed_bytes)(int32_t type, int64_t channels, int64_t kernel_h,
                                    int64_t kernel_w);
  void (*depthwise_pack)(int32_t type, int64_t channels, int64_t kernel_h, int64_t kernel_w,
                         const void* weights, int64_t out_stride, int64_t h_stride,
                         int64_t w_stride, void* packed);
  int64_t (*scratch_bytes)(const ObkConv* conv);
  std::optional<PixelTiles> pixels = std::nullopt;
};

/// Attention whose keys are split over several tiles.
struct SplitKvTiles {
  /// In how many splits the keys of a head of few queries are computed, a power of two that
  /// divides value_size: a matter of the shape, not of the batch, since it decides the order of
  /// sums. `dataflow`: of a program that may run as dataflow (schedule/dataflow.h).
  int64_t (*kv_splits)(int32_t type, int64_t heads, int64_t queries, int64_t keys, int64_t size,
                       int64_t value_size, bool dataflow);
  /// Bytes of global memory that the splits of one head share, zero before the first run.
  int64_t (*exchange_bytes)(int64_t kv_splits, int64_t value_size);
};

struct AttentionTiles {
  bool (*takes)(int32_t type);
  /// The largest size and value_size of a head.
  int64_t (*widest)(int32_t type);
  int64_t (*scratch_bytes)(const ObkAttention* attention);
  /// Nanoseconds of one tile on one SM, for the cut. Null: as many blocks of queries as workers.
  double (*nanos)(int32_t type, int64_t queries, int64_t keys, int64_t size,
                  int64_t value_size) = nullptr;
  std::optional<SplitKvTiles> split_kv = std::nullopt;
};

struct TileLibrary {
  const char* name;
  /// Tiles over packed weights begin at a multiple of these columns.
  int64_t panel;
  /// Bodies are for threads that wait for what they load: shapes are constants of their text, rows
  /// are walked in vectors.
  bool vectors = false;
  GemmTiles gemm;
  ConvTiles conv;
  AttentionTiles attention;
  std::optional<DataflowTiles> dataflow = std::nullopt;
};

/// `kCudaSmall...`: of a GPU that has less than 160 KiB of shared memory for a block; with a ring
/// where it has TMA.
const TileLibrary& tile_library(const machine::Machine& device);
extern const TileLibrary kCpuTiles, kCudaTiles, kCudaSmallTiles, kCudaSmallRingTiles;

}  // namespace obelisk::kernels
