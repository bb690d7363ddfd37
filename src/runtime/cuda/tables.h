/// runtime/cuda/tables.h — a program's tables as a GPU reads them: tasks, blocks of works,
/// launches.
///
///   Program, granularity, shared memory of a CTA  ──▶  Tables (host)  ──▶ device memory, once an
///   executable: no entry differs between contexts, operands name ports and places in the arena
#pragma once

#include "runtime/cuda/gpu.h"
#include "runtime/program.h"

namespace obelisk::runtime::cuda {

inline constexpr int kThreads = OBK_THREADS, kWarps = kThreads / 32;

/// What a pipelined GEMM's kernel is compiled with; kernels/cuda/gemm/pipelined_gemm.cuh says what
/// each number is.
struct PipelinedGemmNumbers {
  int split_k = 1, share = 1, tasks = 0, across = 0, each = 0, span = 0, tile_rows = 0,
      tile_columns = 0, columns = 0;
  int tile_bytes = 0, bytes = 0, last_bytes = 0, rows_bytes = 0, stage_bytes = 0, panel = 0,
      stage = 0, tile_stages = 0, stages = 0;
  int row = 0, block = 0, row_step = 0, block_step = 0, overlaid = 0, scratch_bytes = 0;
  int64_t weights_step = 0;
  int block_k = 64, boxes = 0, b_row = 0, b_column = 0, b_row_step = 0, b_column_step = 0;
  bool k_rows = false, single = false, refills = false;
  friend bool operator==(const PipelinedGemmNumbers&, const PipelinedGemmNumbers&) = default;
};

/// The matrix that a product's own kernel reads rows of: which operand, how many rows, elements
/// from one to the next, blocks of 128 bytes of a row that come at once, of so many rows; bytes of
/// an element; whether floats are rounded to tf32 on their way.
struct RowsMap {
  int operand = 0;
  int64_t rows = 0, pitch = 0, blocks = 0, together = 0, size = 2;
  bool tf32 = false;
};

/// The matrix in which a product's B lies that is no packed weight: of it so many rows and elements
/// of each, from row to row, rows of a copy, which has 128 bytes of each.
struct BoxesMap {
  int64_t rows = 0, columns = 0, pitch = 0, together = 0;  // 0: there is none
  int64_t size = 2;                                        // as of RowsMap
  bool tf32 = false;
};

/// A matrix that works of one kernel read rows of; its map lies behind the arena, in every
/// context's own.
struct ArenaMap {
  int64_t at = 0;    // bytes from the arena's beginning: of the map
  int64_t from = 0;  // and of the matrix
  RowsMap rows;      // its operand is nobody's
};

/// One kernel of a graph, or the only one.
struct Launch {
  int work = -1;  // -1: all of them
  int body = -1;
  int wave = 0;
  int first_task = 0, tasks = 0;  // its CTAs
  bool streams = false;           // a task of it names weights that the page ring loads
  // dynamic shared memory: pages of weights, a task's scratch, its block (of all works: and those
  // of later tasks)
  int32_t ring_pages = 0, scratch_at = 0, block_at = 0, block_bytes = 0, smem_copies_at = 0,
          soon_at = 0, soon_bytes = 0, shared = 0;
  int threads = kThreads;
  int64_t block = 0;            // of a kernel of one work, as its tasks say it
  bool grid = false;            // its CTAs find their rectangles by themselves
  ObkGrid rectangles = {};      // then: without operands, stamps and watch
  int ctas = 0;                 // of a product's own kernel; in clusters where its text says so
  bool pipelined_gemm = false;  // a product's own kernel, which copies by a map
  PipelinedGemmNumbers numbers = {};  // then
  int weights = -1;                   // which operand its weights are, or an activation B
  RowsMap rows = {};
  BoxesMap boxes = {};  // of such a B
  int next = -1;        // the weights, by number, of the product after it
};

struct Tables {
  std::vector<ObkTask> tasks;  // of one kernel: list after list; of a graph: work after work
  std::vector<int32_t> first;  // by SM, and the end; only of one kernel
  std::vector<uint64_t> blocks;
  struct WeightWord {
    int64_t at = 0, lines = 0;
  };  // of a small weight that is copied ahead, its lines
  std::vector<WeightWord>
      weight_words;  // words of `blocks` that are weights: number, until addresses are known
  std::vector<Launch> launches;  // by wave
  std::vector<ArenaMap> maps;    // of one kernel
  int64_t map_bytes = 0;         // behind the program's arena
};

/// The same as constants of device code: a struct by this name.
std::string text_of(const PipelinedGemmNumbers& numbers, const std::string& name);

/// Errors: kUnsupported, naming an op that has no body.
Status has_device_code(const Program& program);

/// Whether a program is for half of the GPU's multiprocessors or fewer, so that others run beside
/// it.
bool shares_gpu(const Program& program);

/// `room`: bytes of shared memory that a CTA may take. Weights are named by number until
/// place_weights. Errors: kUnsupported for a work that has no body, or whose rows or parameters do
/// not fit.
Result<Tables> make_tables(const Program& program, bool one_kernel, int64_t room);

/// Writes the maps behind an arena.
Status make_maps(const Tables& tables, DevicePointer arena);

/// Puts addresses where weights' numbers stood, in blocks and in the tasks that stream weights.
void place_weights(Tables& tables, const Program& program,
                   const std::vector<DevicePointer>& weights);

}  // namespace obelisk::runtime::cuda
