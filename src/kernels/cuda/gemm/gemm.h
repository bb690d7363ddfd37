/// kernels/cuda/gemm/gemm.h — the host's side of the GPU's product tile (gemm.cuh): packed weights,
/// shared memory, cost.
///
///   packed = buffer of cuda_gemm_packed_bytes(type, n, k), aligned to 16; cuda_gemm_pack(...)
///   cuda_gemm_weights(type, n, k, c0, c1)      what a tile streams, for its task record
///
/// Types by the numbers of ObkType. 16-bit weights lie in atoms of 8 columns by 64 k, the image
/// that the tensor cores read, tile of columns by tile [k / 64][columns / 8]: what a tile streams
/// is one run of bytes in the order of its use. So packing knows how wide tiles are; a tile's first
/// column and its range of bytes follow from the column alone. Others lie as [n / 16][k][16].
/// Columns are padded to 16 and 16-bit k to 64, with zeros.
#pragma once

#include <cstdint>

#include "kernels/common/tiles.h"
#include "kernels/tile_library.h"

namespace obelisk::kernels {

int64_t cuda_gemm_packed_bytes(int32_t type, int64_t n, int64_t k);

/// B [k, n] with any strides, in elements. tile: columns of a tile, a multiple of 16; 0: one tile
/// has all. i8, u8: `zero`, a zero point per column (every `zero_col` elements; 0: one for all) or
/// null, is taken off.
void cuda_gemm_pack(int32_t type, int64_t n, int64_t k, int64_t tile, const void* b, int64_t b_row,
                    int64_t b_col, void* packed);
void cuda_gemm_pack_int8(int32_t type, int64_t n, int64_t k, const void* b, int64_t b_row,
                         int64_t b_col, const void* zero, int64_t zero_col, void* packed);

/// The packed bytes that a tile of columns c0 .. c1 reads, and how many of them hold 8 columns:
/// what the kernel's loop needs to request them ahead. No bytes for types that no ring loads.
WeightRange cuda_gemm_weights(int32_t type, int64_t n, int64_t k, int64_t c0, int64_t c1);

/// Shared memory that gemm_tile wants at g.scratch for a tile of these extents and types.
int64_t cuda_gemm_scratch_bytes(const ObkGemm* gemm);
/// The same with kGemmSmallSmemA as the device's OBK_GEMM_SMEM_A, and no ring.
int64_t cuda_gemm_small_scratch_bytes(const ObkGemm* gemm);
/// The same with a ring.
int64_t cuda_gemm_small_ring_scratch_bytes(const ObkGemm* gemm);

/// Predicted nanoseconds of one tile of m x n over all of k on one SM, all SMs at work. packed: B
/// is packed weights.
double cuda_gemm_nanos(int32_t type, int64_t m, int64_t n, int64_t k, bool packed);

/// One tile of a product with a kernel of its own (pipelined_gemm.cuh), in nanoseconds; and the
/// blocks of 128 bytes of k that are one of its stages, of a part of k.
double cuda_pipelined_gemm_nanos(const PipelinedGemmTile& tile);
int64_t cuda_pipelined_gemm_stage(int32_t type, int64_t rows, int64_t n, int64_t k);

/// One tile of few rows whose B streams (gemm_streamed.cuh), made for `columns`, of which a load
/// takes `together` at most: its nanoseconds, 0 where there is none; and its shared memory.
double cuda_streamed_gemm_nanos(int32_t type, int64_t rows, int64_t columns, int64_t k,
                                int64_t together);
int64_t cuda_streamed_gemm_scratch_bytes(int32_t type, int64_t rows, int64_t columns, int64_t k);

/// Whether a product's tile gives the statistics of its rows of A (statistics.cuh) for less than a
/// norm's phase: pipelined GEMMs, which join partial statistics while their first stage comes. Not
/// in one kernel for all, whose tiles would wait for them first. Of 512 rows and more the schedule
/// says whether it is such a GEMM (one_round_of_tiles).
bool cuda_gemm_statistics(int32_t type, int64_t rows, int64_t n, int64_t k, bool own_kernel);

/// Bytes of shared memory of a tile of these rows and columns that takes its weights page by page,
/// whichever warp loaded them (gemm_skinny.cuh): four planes of sums and all of A (one row of a
/// multiple of 64 is read where it lies), beside pages of 16 KB; 0: there is none.
int64_t cuda_gemm_dataflow_bytes(int32_t type, int64_t rows, int64_t columns, int64_t k);

/// In how many parts of k, each a product of its own whose sums the next body adds, a product of
/// 16-bit numbers over all SMs is quicker; 1: in none. rows_in_one_kernel: its rows, where it is a
/// phase of one kernel, else 0.
int64_t cuda_gemm_split_k(int32_t type, int64_t n, int64_t k, int64_t rows_in_one_kernel);

}  // namespace obelisk::kernels
