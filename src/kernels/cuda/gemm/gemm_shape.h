/* kernels/cuda/gemm/gemm_shape.h — how a product tile is cut and what shared memory it takes:
 * arithmetic that host and device must do alike. */
#ifndef OBK_GEMM_SHAPE_H
#define OBK_GEMM_SHAPE_H

#include <stdint.h>

#ifdef __CUDACC__
#define OBK_BOTH static __host__ __device__ inline
#else
#define OBK_BOTH static inline
#endif

/* Shared memory for the operands of a 16-bit product, at most: 64 rows of k = 768. */
#ifndef OBK_GEMM_SMEM_A
#define OBK_GEMM_SMEM_A 98304
#endif

/* The same of a GPU with little of it, which has no ring either. */
enum { kGemmSmallSmemA = 49152 };

/* Columns of a tile of 33 to 64 rows whose shape its body knows, at most. */
enum { kWgmmaColumns = 160 };

/* Bytes that a copy of 16-bit rows takes, which all begin at multiples of `all` elements (strides,
 * or-ed): 16, 8 or 4; 0: there is no such copy. */
constexpr int row_unit(int64_t all) {
  return all % 8 == 0 ? 16 : all % 4 == 0 ? 8 : all % 2 == 0 ? 4 : 0;
}

/* Such a tile of 49 rows or more that streams both operands (gemm_wgmma_pipelined.cuh): blocks of
 * 64 k in a stage, stages that have a place in shared memory. */
constexpr int gemm_wgmma_stage(int groups, int chunks) {
  return groups <= 12 && chunks % 2 == 0 ? 2 : 1;
}
constexpr int gemm_wgmma_places(int groups, int chunks) {
  const int most = 98304 / (8192 * gemm_wgmma_stage(groups, chunks));
  const int stages = chunks / gemm_wgmma_stage(groups, chunks), places = most < 8 ? most : 8;
  return stages < places ? stages : places;
}

/* Blocks of 64 k that have a place, whatever of these columns a tile has: the last one of a layer
 * has fewer, and so may have longer stages. */
constexpr int gemm_wgmma_most_blocks(int groups, int chunks) {
  int most = 0;
  for (int g = 2; g <= groups; g += 2) {
    const int blocks = gemm_wgmma_stage(g, chunks) * gemm_wgmma_places(g, chunks);
    most = blocks > most ? blocks : most;
  }
  return most;
}

/* Tall tiles of a product's kernel of its own, of 65 to 128 rows: columns at most where a sum is
 * one chain over k, and where it is four, whose registers are as many for half as wide a tile. */
enum { kTallRows = 128, kTallColumns = 192, kTallColumnsOfFour = 96 };

/* A product's kernel of its own (pipelined_gemm.cuh): blocks of 64 k that come for one barrier, as
 * many as 56 KB hold and as cut the k of a part evenly; of a tall tile, whose sums take more of
 * shared memory and whose products take longer, as 40 KB hold. */
constexpr int pipelined_gemm_stage(int rows, int groups, int chunks_of_part) {
  const int block = (rows > 64 ? 16384 : 8192) + groups * 1024, most = rows > 64 ? 40960 : 57344;
  int stage = 1;
  for (int s = 2; s <= 6; ++s)
    if (chunks_of_part % s == 0 && s * block <= most) stage = s;
  return stage;
}

/* The same of exact f32 (pipelined_gemm_f32.cuh) and of tf32 (pipelined_gemm_tf32.cuh): columns of
 * a tile at most. How threads share a tile of exact f32: lanes of a warp side by side, each with
 * four columns, the others one below another; warps side by side, and again; in how many parts the
 * warps share out k, so that a thread has as many as kF32Sums sums; rows from one of a thread's to
 * the next, a multiple of the 8 after which rows of A are swizzled alike; its rows, and fours of
 * columns. */
enum { kF32Columns = 128, kTf32Columns = 128, kF32Sums = 32 };
struct PipelinedF32Shape {
  int lanes, beside, parts, down, high, fours;
};
constexpr PipelinedF32Shape pipelined_gemm_f32_shape(int rows, int columns, int lanes) {
  PipelinedF32Shape s = {};
  const int across = (columns + 4 * lanes - 1) / (4 * lanes);
  s.lanes = lanes, s.beside = across % 2 == 0 ? 2 : 1, s.fours = across / s.beside;
  for (s.parts = 4; s.parts > 0; s.parts /= 2) {
    s.down = 32 / lanes * (8 / s.beside / s.parts), s.high = (rows + s.down - 1) / s.down;
    if (s.parts == 1 || (s.high * s.fours * 4 <= kF32Sums && s.down % 8 == 0)) break;
  }
  return s;
}
/* turned: B is an activation whose rows are the tile's columns. */
constexpr int pipelined_gemm_f32_lanes(int columns, bool turned) {
  return columns <= 16 && !turned ? 4 : 8;
}
/* Rows of a tile of tf32 in a product; blocks of 32 k that come for one barrier, as 40 KB hold. */
constexpr int pipelined_gemm_tf32_rows(int rows) { return (rows + 15) / 16 * 16; }
constexpr int pipelined_gemm_f32_stage(int rows, int columns, int blocks) {
  return blocks % 2 == 0 && 2 * (rows + columns) * 128 <= 40960 ? 2 : 1;
}

/* A pass over k: rows of C in the registers of the CTA, padded to the four warps' 16; and columns.
 */
OBK_BOTH int gemm_pass_rows(int64_t m) { return m <= 16 ? 16 : m <= 32 ? 32 : 64; }
OBK_BOTH int gemm_pass_columns(int64_t m) { return m <= 32 ? 192 : 96; }

/* Bytes of operands for a tile that is seldom met: few rows, or packed weights without a ring. */
#define OBK_GEMM_SMALL 32768

/* The operands' way through shared memory: four stages of so many blocks of 64 k; all of k where it
 * has room. */
struct GemmStages {
  int blocks;
};
OBK_BOTH struct GemmStages gemm_stages(int rows, int k_blocks, int small,
                                       int smem_a = OBK_GEMM_SMEM_A) {
  /* Activations alone come in powers of two: no division on a path that waits. */
  const int room = small        ? OBK_GEMM_SMALL / (rows * 512)
                   : rows == 64 ? 1
                   : rows == 32 ? smem_a / (32 * 512)
                                : smem_a / (rows * 512);
  const int all = (k_blocks + 3) / 4;
  struct GemmStages s = {all < room ? all : room > 1 ? room : 1};
  return s;
}

/* Of two activations (gemm_activations.cuh): columns of a pass; stages; bytes of one. */
enum { kActivationColumns = 64 };
constexpr int activation_stages(int smem_a) { return smem_a / 16384; }
constexpr int activation_stage(int padded) { return (padded + kActivationColumns) * 128; }

/* CUDA cores: a tile of C, and the k of a partial sum, which is also what lies in shared memory. */
enum {
  kFmaTile = 64,
  kFmaDepth = 32,
  kFmaPad = 4,
  /* f32 operands in stages (f32_stages.cuh): floats from row to row of A, of B; by tensor cores,
   * stages in flight and the one that is read. */
  kF32PitchA = kFmaDepth + 4,
  kF32PitchB = kFmaTile + 8,
  kTf32Stages = 4
};
/* A block of 32 k, of as many rows of A. */
constexpr int f32_block_bytes(int rows) { return 4 * (rows * kF32PitchA + kFmaDepth * kF32PitchB); }
/* By CUDA cores (fma_f32.cuh), a pass of 16, 32 or 64 rows: blocks of 32 k in a stage, each read by
 * a group of warps; places of stages; bytes with the partial sums that a group gives to another. */
constexpr int fma_f32_blocks(int smem_a) { return smem_a > kGemmSmallSmemA ? 2 : 1; }
constexpr int fma_f32_places(int rows, int smem_a) {
  return fma_f32_blocks(smem_a) == 1 || rows > 32 ? 2 : rows > 16 ? 3 : 4;
}
constexpr int fma_f32_bytes(int rows, int smem_a) {
  return fma_f32_places(rows, smem_a) * fma_f32_blocks(smem_a) * f32_block_bytes(rows) +
         (fma_f32_blocks(smem_a) - 1) * 2 * rows * kFmaTile * 4;
}

/* f32 of few rows (fma_few_rows.cuh): rows and columns of a tile at most; the least shared memory
 * for operands of a machine that has such tiles; pieces of a round, of 32 k by 16 columns; bytes of
 * a row of A in a block, so that no bank is met twice. */
enum {
  kFewRowsMost = 8,
  kFewRowsColumns = 64,
  kFewRowsLeastSmem = 98304,
  kFewRowsPieces = 64,
  kFewRowsBlockBytes = (kFmaDepth + 4) * 4
};
constexpr int few_rows_padded(int64_t rows) {
  return rows <= 1 ? 1 : rows <= 2 ? 2 : rows <= 4 ? 4 : 8;
}
/* Floats of a piece's partial sums. */
constexpr int few_rows_part(int rows) { return rows == 1 ? 16 : rows * 16 + 16; }
struct FewRowsShape {
  int blocks, rounds;     /* of 32 k: in a round; rounds */
  int row_bytes, a_bytes; /* of A in shared memory: from row to row, all */
  int bytes;              /* of shared memory */
};
/* rows: padded. */
OBK_BOTH struct FewRowsShape few_rows_shape(int rows, int groups, int blocks) {
  struct FewRowsShape s = {};
  const int room = kFewRowsPieces / groups;
  s.blocks = blocks < room ? blocks : room, s.rounds = (blocks + s.blocks - 1) / s.blocks;
  s.row_bytes = s.blocks * kFewRowsBlockBytes, s.a_bytes = rows * s.row_bytes;
  s.bytes = s.a_bytes + s.blocks * groups * few_rows_part(rows) * 4 + 16;
  return s;
}

/* Few rows by an activation that streams (gemm_streamed.cuh). f32: blocks of 32 k in a round, of
 * which each of 256 threads has four columns; rows: padded. Places: rounds whose A and partial sums
 * have one. */
enum { kStreamedColumns = 128, kStreamedColumnsTf32 = 64 };
struct StreamedF32Shape {
  int pieces, rounds, places;
  int row_bytes, a_bytes, parts_bytes; /* of A in a round: from row to row, all; partial sums */
  int bytes;                           /* of shared memory */
};
OBK_BOTH struct StreamedF32Shape streamed_f32_shape(int rows, int columns, int blocks) {
  struct StreamedF32Shape s = {};
  const int most = 1024 / columns;
  s.pieces = blocks < most ? blocks : most, s.rounds = (blocks + most - 1) / most;
  s.places = s.rounds > 1 ? 2 : 1;
  s.row_bytes = s.pieces * kFewRowsBlockBytes, s.a_bytes = rows * s.row_bytes;
  s.parts_bytes = rows * s.pieces * columns * 4;
  s.bytes = s.places * (s.a_bytes + s.parts_bytes) + 16;
  return s;
}
/* Else four chains' sums. columns: as many as the tile is made for. Of packed weights in tf32 a
 * tile may have more rows. */
enum { kStreamedRowsPacked = 32 };
constexpr int streamed_mma_bytes(int rows, int columns) {
  return 4 * ((rows + 7) / 8 * 8) * columns * 4 + 16;
}
constexpr int streamed_columns(int64_t columns) {
  return columns <= 16 ? 16 : columns <= 32 ? 32 : columns <= 64 ? 64 : 128;
}

/* f32 of more rows (fma_rows.cuh): rows of a tile at most (8: there is no such tile); stages; bytes
 * of a row of a piece's partial sums. */
enum { kFmaRowsMost = 64, kFmaRowsStages = 3, kFmaRowsPart = 80 };
struct FmaRowsShape {
  int log_pieces;                      /* blocks of 32 k that are multiplied at a time */
  int row_bytes, a_bytes, stage_bytes; /* of A's rows in a stage; a stage */
  int bytes;                           /* of shared memory */
};
/* rows: a multiple of 8; groups: of 16 columns. */
OBK_BOTH struct FmaRowsShape fma_rows_shape(int rows, int groups) {
  struct FmaRowsShape s = {};
  s.log_pieces = groups <= 1 ? 3 : groups <= 2 ? 2 : 1;
  s.row_bytes = ((kFmaDepth / 2 << s.log_pieces) + 4) * 4, s.a_bytes = rows * s.row_bytes;
  s.stage_bytes = s.a_bytes + (groups << s.log_pieces) * 1024;
  s.bytes = kFmaRowsStages * s.stage_bytes + (groups << s.log_pieces) * rows * kFmaRowsPart + 16;
  return s;
}

#endif
