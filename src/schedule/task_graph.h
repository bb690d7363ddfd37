/// schedule/task_graph.h — the program as data: buffers, works, waves and every worker's list of
/// tasks.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "kernels/kernels.h"
#include "stitch/stitch.h"

namespace obelisk::schedule {

using graph::Graph;
using graph::ValueId;
using obelisk::to_string;
using ops::ExprId;

enum class BufferKind : uint8_t { kInput, kOutput, kWeight, kArena };

/// Where a value of a dataflow program (schedule/dataflow.h) is read.
enum class Reach : uint8_t {
  kAll,        // in the arena, by all workers
  kLocal,      // in the scratchpad memory of the worker that computes it, by itself
  kBroadcast,  // parts computed by several workers, broadcast to all: each reads a copy in its own
               // scratchpad
};

/// Memory that values live in. Arena buffers share one allocation; two whose waves overlap never
/// share bytes.
struct Buffer {
  BufferKind kind = BufferKind::kArena;
  int index = 0;  // kInput, kOutput: which one; kWeight: which weight
  Bytes offset;   // kArena: into the arena
  Bytes size;
  Type type;  // of the value, for dumps
  ValueId value = graph::kNone;
  int first = 0, last = 0;  // kArena: waves between which it is alive, inclusive
  Reach reach = Reach::kAll;
  Bytes copy_at{-1};  // kLocal, kBroadcast: where the copy lies in a worker's scratchpad memory
  /// Bytes of the arena: of a broadcast value, words of 32 bits, each with 32 more that say that it
  /// has arrived.
  Bytes room() const { return {reach == Reach::kBroadcast ? 2 * size.count : size.count}; }
};

/// One read or write of a body: an affine one by its strides over the folded domain, another by its
/// expressions.
struct Access {
  ExprId load = ops::kNoExpr;  // the load expression; kNoExpr for stores
  int step = -1;               // the store's step; -1 for loads; both -1: a product's A or B
  int operand = 0;
  bool affine = true;
  int64_t offset = 0;
  std::vector<int64_t> strides;  // per folded dimension, elements
};

/// A body's domain with dimensions merged where every access walks them as one, so that most bodies
/// have one or two loops.
struct Nest {
  struct Dim {
    int64_t extent = 1;
    std::vector<int> coords;  // the domain's coordinates it merges, outermost first
  };
  std::vector<Dim> dims;  // rows first
  int rows = 0;           // how many leading dims are rows
  bool lanes_in_rows =
      false;  // the vector runs over the innermost row dimension: columns are strided, rows are not
  bool cut_columns = false;  // columns may be split over several tasks (no reduction)
  std::vector<Access> accesses;
  /// How the tile of a product reads A (`which` 0) and B (1); null of another group.
  const Access* of_product(const stitch::Group& group, int which) const;
  int64_t row_count() const;
  int64_t column_count() const;
};

/// How many rows in a row a tile may span without leaving its matrix or image.
int64_t tile_span(const stitch::Group& group, const Nest& nest);

/// How the rows of a GEMM's A lie in a matrix that asynchronous block copies address, one batch
/// after another: row r of batch b is row `row` + b `row_step` + r of the matrix, its k begins with
/// block `block`
/// + b `block_step` of 64 columns.
struct RowMatrix {
  int64_t rows = 0, pitch = 0;  // of the matrix; elements from row to row
  int64_t span = 0;             // rows of a batch
  int64_t row = 0, block = 0, row_step = 0, block_step = 0;
};

/// How the B of a GEMM, an activation, lies in a matrix that copies by a tensor map address, one
/// batch after another: of batch b it begins in row `row` + b `row_step` and column `column` + b
/// `column_step`. Its rows are those of k (`k_rows`), or B's columns.
struct BoxMatrix {
  int64_t rows = 0, columns = 0, pitch = 0;  // of the matrix; elements from row to row
  int64_t row = 0, column = 0, row_step = 0, column_step = 0;
  bool k_rows = false;
};

/// How a work's tasks reach those that compute them.
///
/// Tasks of a table: a worker's list, or a kernel's.
struct TaskList {
  bool waits_in_body =
      false;  // of one kernel of all works: the body itself waits for the wave before
  bool shares_rows = false;  // then: long rows may be shared by all threads where they are few
  std::optional<RowMatrix>
      a_rows;  // then, of a product: where A lies, if asynchronous block copies load it
};
/// A kernel launched as a grid of many small tasks, each of which derives its tile from its place
/// in the grid: no table.
struct Grid {
  int tasks_per_worker =
      0;  // at once, of a GEMM or convolution; 0: a stitched body, as many as its registers let
};
/// A grid of the rectangles that a table would have (attention of no more tasks than workers, a
/// stitched body, a depthwise convolution): without a table it starts earlier.
struct Rectangles {
  int tasks_per_worker = 1;  // at once, of a GEMM of few rows
};
/// A GEMM with a kernel of its own: a persistent task for each worker, whose pipeline of
/// asynchronous loads of both operands crosses tile boundaries. With split-K a gang of workers
/// computes a tile.
struct PipelinedGemm {
  RowMatrix a;
  bool tall = false;           // tiles of more than 64 rows,
  int chains = 4;              // each sum of which is that of so many chains over k
  int64_t parts = 1;           // of k, each computed by a worker of a gang
  std::optional<BoxMatrix> b;  // where B is no constant weight
};
/// Tasks of a table, of which so many, the members of a block's gang, run at once and wait for each
/// other.
struct Gang {
  int size = 0;
};
using KernelForm = std::variant<TaskList, Grid, Rectangles, PipelinedGemm, Gang>;
/// "a grid, 2 tasks a worker at once"
std::string to_string(const KernelForm& form);

/// A work of a program whose values carry their own readiness (schedule/dataflow.h).
struct Dataflow {
  bool replicated = false;  // each worker computes what it reads of it
  std::vector<bool>
      broadcasts;  // by the body's operand slot: what it stores there is broadcast to all workers
  std::optional<DType> in_place_kv;  // of attention: its last two buffers are ports of this type
                                     // that have keys and values (schedule/in_place_kv.h)
  /// Of attention to caches that the run updates: the slot of the index of the new rows, behind it
  /// those of the new keys and of the new values; where these lie, in elements.
  struct NewRows {
    size_t slot = 0;
    DType index_type = DType::i64;
    int64_t index_at = 0;
    struct At {
      int64_t offset = 0, image = 0, head = 0;
      bool operator==(const At&) const = default;
    } keys, values;
    bool operator==(const NewRows&) const = default;
  };
  std::optional<NewRows> cache_rows;
};

/// One group in the program.
struct Work {
  int group = 0;
  int wave = 0;
  Nest nest;
  std::vector<int> buffers;  // by the body's operand slot; partial statistics that it reads, that
                             // it leaves; a product's A and B, a convolution's X and W
  int operand_count(const stitch::Group& group) const {  // before A or X
    return left_partials(group) + (group.partials != graph::kNone ? 1 : 0);
  }
  /// Which operand are partial statistics of the rows of A; of what the body stores.
  int read_partials(const stitch::Group& group) const {
    return static_cast<int>(group.body.operands.size());
  }
  int left_partials(const stitch::Group& group) const {
    return read_partials(group) + (group.product.statistics.of_partials ? 1 : 0);
  }
  int64_t tile_rows = 1, tile_columns = 1;
  double task_nanos = 0;       // of a full tile, by which tiles, waves and lists are chosen
  double predicted_nanos = 0;  // of a full tile, as it is reported
  KernelForm form;
  bool streams_b = false;  // of a GEMM of few rows: schedule/tile_gemm_streamed.h
  std::optional<Dataflow> dataflow;

  const TaskList* list() const { return std::get_if<TaskList>(&form); }
  const Grid* grid() const { return std::get_if<Grid>(&form); }
  int tasks_per_worker() const { return grid() ? grid()->tasks_per_worker : 0; }
  const Rectangles* rectangles() const { return std::get_if<Rectangles>(&form); }
  const PipelinedGemm* pipelined() const { return std::get_if<PipelinedGemm>(&form); }
  /// Whether a table has its tasks.
  bool has_tasks() const { return list() || std::holds_alternative<Gang>(form); }

  bool replicated() const { return dataflow && dataflow->replicated; }
  bool broadcasts(size_t slot) const {
    return dataflow && slot < dataflow->broadcasts.size() && dataflow->broadcasts[slot];
  }
  bool broadcasts_any() const {
    return dataflow && std::find(dataflow->broadcasts.begin(), dataflow->broadcasts.end(), true) !=
                           dataflow->broadcasts.end();
  }
};

/// The same of a work: tiles of a convolution that is a grid take pixels of all images in a row.
int64_t tile_span(const stitch::Group& group, const Work& work);

/// Tasks of its tiles.
int64_t count_tasks(const stitch::Group& group, const Work& work);

/// What lists are predicted to take, in nanoseconds: with works as early as they may run, and with
/// those with slack in waves that they lengthen least.
struct ComparedLists {
  double early = 0, put_off = 0;
};

struct TaskGraph {
  std::vector<Buffer> buffers;
  std::vector<Tensor> weights;  // what kWeight buffers hold
  std::vector<Work> works;      // in a topological order
  int waves = 0;
  std::vector<std::vector<ObkTask>> lists;  // by worker; ascending waves
  Bytes arena;
  Bytes arena_one_by_one;  // if works ran one after another; of place_by_order, else none
  Bytes scratchpad;        // of a worker; what it was cut for
  bool dataflow = false;   // no barrier: workers wait for values (schedule/dataflow.h)
  std::optional<ComparedLists> compared;  // of machine::Placement::kQuicker
  Bytes copies;  // of a worker's scratchpad memory, for its copies of values
  int64_t task_count() const;
};

}  // namespace obelisk::schedule
