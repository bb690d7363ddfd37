/// stitch/plan.h — what stitching decides: groups of ops, each one body, and where every value
/// lives.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "kernels/kernels.h"
#include "machine/machine.h"

namespace obelisk::stitch {

using graph::Graph;
using graph::NodeId;
using graph::ValueId;
using obelisk::to_string;
using ops::Combine;
using ops::ExprId;
using ops::kNoExpr;

/// AStitch §3.1, Table 1: how an intermediate goes from its producer to its consumer.
enum class Scheme : uint8_t {
  kLocal,     // one element to one element: a register
  kRegional,  // within the block that owns a row: shared memory and a block barrier
  kGlobal,    // anywhere: scratch in global memory and a barrier of all workers
};
std::string_view to_string(Scheme scheme);

/// One edge's decision, for --explain=stitch.
struct Edge {
  NodeId from, to;
  Scheme scheme;
  std::string why;
};

// In a body's expressions a load's slot names an operand; slots from these bases name what lives
// inside the body.
inline constexpr int kRowSlot =
    1 << 20;  // + k: the k-th row value (of a reduction, or of kRow), no coordinates
inline constexpr int kStageSlot = 1 << 21;  // + k: the k-th staged row, at the point's own column
inline constexpr int kTileSlot =
    1 << 22;  // + k: the anchor's tile (k: of a dual GEMM, its k-th half), at the point itself
inline constexpr int kStatisticSlot = 1 << 23;  // + k: of the row of A that the product's tile
                                                // reads: 0 its mean, 1 the inverse of its deviation

enum class StepKind : uint8_t {
  kReduce,
  kStage,
  kStore,
  kRow /* a value that a row has one of, by no reduction */
};

/// One thing a body does for each row, in order. Steps that share a pass over the columns are found
/// by code generation.
struct Step {
  StepKind kind = StepKind::kStore;
  ExprId expr = kNoExpr;  // at a point of the domain
  bool per_row = false;   // kStore: once a row instead of once a point; kRow: always
  Combine combine = Combine::kNone;
  ExprId finish = kNoExpr;  // kReduce: of kAcc
  int slot = 0;             // kReduce, kRow: row value; kStage: staged row; kStore: operand
  std::vector<ExprId> at;   // kStore: coordinates in the stored value
  int pass = 0;  // which walk over the columns it belongs to: one more than the row values it needs
  NodeId node = graph::kNone;
};

/// A function over `domain`: coordinates [0, rows) are rows, distributed over workers; the others
/// are columns, which one worker walks.
///
/// For every row the steps run in order. All shapes are known here, but code generation turns them
/// into parameters, so that bodies that differ only in shapes are one text.
struct Body {
  ops::Exprs exprs;
  Shape domain;  // extents by coordinate slot
  int rows = 0;  // how many leading coordinates are rows
  std::vector<Step> steps;
  std::vector<ValueId> operands;  // loads and stores by slot
  int row_values = 0, staged = 0;
  std::vector<DType> row_types, stage_types;
};

enum class GroupKind : uint8_t {
  kStitched,   // a body alone
  kProduct,    // a tile of a matrix product (anchor), then a body as its epilogue
  kConv,       // a tile of a convolution, then a body
  kAttention,  // rows of attention, then a body
  kBlock,      // one op without a loop form, by a hand-written block: rows are its items
  kCustom,     // one op that has neither: its reference is called
};
std::string_view to_string(GroupKind kind);
/// Groups without steps: one op, whose outputs are its operands.
inline bool calls_op(GroupKind kind) {
  return kind == GroupKind::kBlock || kind == GroupKind::kCustom;
}

/// A sum of products of two affine loads: dimensions by the roles they play. Strides are elements,
/// 0 where a side does not move.
struct Product {
  struct Dim {
    int64_t extent, a, b, c;
  };  // strides in A, B, and the tile's row space (c is unused for k)
  std::vector<Dim> batch, m, n, k;  // outermost first
  ValueId a = graph::kNone, b = graph::kNone;
  int64_t a_offset = 0, b_offset = 0;
  bool dual = false;  // dual GEMM: B has n columns twice, and the results are combined: a task
                      // computes the same columns of both halves
  int64_t b_count() const { return dual ? 2 : 1; }
  DType a_type = DType::f32, b_type = DType::f32;
  bool tf32 = false;  // of f32: its tile rounds what it multiplies to 10 bits of mantissa
  int32_t tile_type() const { return tf32 ? int32_t{kObkTf32} : static_cast<int32_t>(a_type); }
  bool of_words() const { return OBK_LIES_AS_F32(tile_type()); }  // of f32, exact or rounded
  int64_t split_k = 1;  // parts of k: each is summed for itself, then they are added in order
  /// The tile gives a norm's statistics of the rows of A as well (ops::Op::NormStatistics): of A,
  /// or where the body that stores A leaves partial ones (Group::partials), of these.
  struct Statistics {
    bool wanted = false, centred = true, of_partials = false;
    double epsilon = 0;
  } statistics;
};

/// Rows of products that run as pipelined GEMM kernels, where each work is a kernel and both
/// operands are loaded asynchronously (schedule/tile_gemm_pipelined.h); the latter exclusive.
inline constexpr int64_t kFewestPipelinedRows = kernels::pipelined_bounds::kFewestRows,
                         kMostPipelinedRows = kernels::pipelined_bounds::kMostRows + 1;
/// Whether gangs of workers compute the split-K parts of such a GEMM, or of one of more rows by
/// tall tiles, and add them, so that an epilogue joins it as it joins other GEMMs: where all gangs
/// run at once with tiles of up to 112 columns.
inline bool splits_meet(const machine::Machine& machine, const machine::Strategy& strategy,
                        int64_t rows, int64_t columns, int64_t parts) {
  using namespace kernels::pipelined_bounds;
  const bool many = rows >= kMostPipelinedRows;
  if (!strategy.own_kernels || !takes_async_mma(machine, strategy) || rows < kFewestPipelinedRows ||
      (many && !strategy.tall_gemm))
    return false;
  const int64_t high = many ? kTallRows : kTileRows;
  return (rows + high - 1) / high * ((columns + kClusterColumns - 1) / kClusterColumns) <=
         machine::gangs_at_once(machine.sms, parts);
}

/// A convolution that tiles compute: one or two spatial dimensions (a missing height is 1),
/// channels last, constant weights.
struct ConvTile {
  ops::ConvGeometry shape;
  ValueId x = graph::kNone, w = graph::kNone;
  DType type = DType::f32;
  bool tf32 = false;  // as of Product
  int32_t tile_type() const { return tf32 ? int32_t{kObkTf32} : static_cast<int32_t>(type); }
  bool depthwise = false;  // every output channel reads one input channel
  int64_t height = 1, width = 1, out_height = 1, out_width = 1;
  int64_t kernel_h = 1, kernel_w = 1, stride_h = 1, stride_w = 1, dilation_h = 1, dilation_w = 1,
          pad_top = 0, pad_left = 0;
};

/// Columns of a stored row whose sum, and sum of squares about their mean, are one partial
/// statistic: f32 [rows, columns / 16, 2].
inline constexpr int64_t kPartialColumns = 16;

/// Attention that tiles compute: blocks of query rows of one head, against all keys. Strides are
/// elements of the operand's storage.
struct AttentionTile {
  struct Operand {
    ValueId value = graph::kNone;  // of a mask: kNone where there is none
    int64_t offset = 0, image = 0, head = 0, row = 0, column = 0;
  };
  Operand q, k, v, mask;  // a mask's row is a query, its column a key
  DType type = DType::f32, mask_type = DType::f32;
  bool tf32 = false;  // as of Product
  int32_t tile_type() const { return tf32 ? int32_t{kObkTf32} : static_cast<int32_t>(type); }
  bool packed = false;  // the domain is [images, queries, heads * value_size], else [images, heads,
                        // queries, value_size]
  int64_t images = 1, heads = 1,
          shared = 1;  // `shared` neighbouring heads read the same keys and values
  int64_t queries = 0, keys = 0, size = 0, value_size = 0;
  double scale = 1, softcap = 0;
  bool causal = false;          // query i sees keys 0 .. i
  bool zero_if_masked = false;  // a query with all keys masked: zeros, not NaN
  int64_t kv_splits = 1;        // kv splits: tiles that share the keys of a head with few queries
  int64_t exchange =
      0;  // bytes that they share, of each head: zero at first, persistent from run to run
};

/// How one value is stored: element (i0, i1, ...) is at offset + sum of strides[d] * i_d of its
/// storage.
struct Layout {
  bool materialized = false;
  ValueId storage = graph::kNone;  // whose buffer; itself unless it lives inside another value
  ValueId part_of = graph::kNone;  // inside which, the next one on the way to the storage: the
                                   // concatenation of it, or what it is a slice of, or all of
  int64_t offset = 0;
  std::vector<int64_t> strides;
};

/// Elements from image to image, row to row and pixel to pixel of a convolution's input; one of one
/// dimension, [N, C, W], is images of one row.
struct PixelStrides {
  int64_t image = 0, row = 0, pixel = 0;
};
inline PixelStrides pixel_strides(const Layout& x) {
  return {x.strides[0], x.strides.size() == 3 ? x.strides[0] : x.strides[2], x.strides.back()};
}

/// Channels that a depthwise convolution's tile on a GPU reads at once, 8, 4, 2 or 1: as many as
/// divide where the pixels, rows and images of X begin and where tiles of so many channels do.
int16_t depthwise_pack(const ConvTile& conv, const Layout& x, int64_t tile_channels);

/// What a block reads for an input of its op: elements of a stored value that follow one another,
/// in row-major order, from `offset` on.
struct BlockInput {
  ValueId value = graph::kNone;
  int64_t offset = 0;
};

struct Group {
  GroupKind kind = GroupKind::kStitched;
  std::vector<NodeId> nodes;  // in order; the anchor first
  NodeId anchor = graph::kNone;
  NodeId dominant = graph::kNone;
  Body body;
  std::vector<int> anchor_coords;   // of a tile's group: the domain's coordinate for each dimension
                                    // of what the anchor computes
  Product product;                  // kProduct
  ConvTile conv;                    // kConv
  AttentionTile attention;          // kAttention
  ValueId partials = graph::kNone;  // kProduct: a stored value of whose rows the body leaves
                                    // partial statistics, of kPartialColumns each
  ops::Block block;  // kBlock; operands: the values it reads, each once, then those it writes
  std::vector<BlockInput> block_inputs;  // kBlock: by input of the op
  ValueId in_place_of =
      graph::kNone;        // kBlock: an input in whose memory the output lies: the old value is no
                           // operand, and only what differs from it is written
  std::vector<int> after;  // groups whose outputs this one reads, or that read what it overwrites
                           // (in_place_of), ascending
  ops::Cost cost;
};

/// An output that takes the memory of an input (Graph::in_place_of).
struct InPlace {
  int output = 0, input = 0;  // places in the graph's lists
  int group =
      -1;  // that writes only what differs, where the input lies; -1: the output is computed
           // elsewhere, and a run that is given one memory for both copies it there
  std::string why;  // of -1
};

struct Plan {
  std::vector<Group> groups;    // in a topological order
  std::vector<Layout> layouts;  // by value
  std::vector<Edge> edges;
  std::vector<InPlace> in_place;  // in the order of outputs
};

}  // namespace obelisk::stitch
