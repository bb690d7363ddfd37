/// codegen/body_traits.h — what the runtime must know of a body, beside its text.
///
///   in   what code generation decided while it wrote the text
///   out  fields that say how the body's kernel is built and launched; they are not searched in the
///   text
///
/// They are part of a body's identity: works share a body where text and traits are the same. They
/// stand above the text in dumps and travel in the compiled file, whose reader checks each field's
/// range (visit_numbers) and that they agree with one another (disagreement).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/hash.h"

namespace obelisk::codegen {

/// Tiles and blocks of the library that a body calls: bits.
enum Tile : uint32_t {
  kGemmTile = 1,     // whose shape is a constant of the text
  kAnyGemmTile = 2,  // of any shape
  kConvTile = 4,     // also of a GEMM that goes as a convolution of single pixels
  kDepthwiseTile = 8,
  kAttentionTile = 16,
  kGangBlock = 32,  // a block whose items are done by gangs, of one CTA or a cluster
  kAllTiles = 63,
};

/// The matrix that a GEMM's B lies in where it is an activation, which the kernel copies by boxes
/// of 128 bytes of a row.
struct BoxMatrix {
  int64_t rows = 0, columns = 0, pitch = 0;  // elements from row to row
  int64_t row = 0, column = 0, row_step = 0,
          column_step = 0;  // where B begins in it; from batch to batch
  bool k_rows = false;      // its rows are those of k, else B's columns
  bool operator==(const BoxMatrix&) const = default;
};

/// A GEMM with a kernel of its own, whose CTAs stream both operands through stages
/// (kernels/cuda/gemm/pipelined_gemm.cuh).
struct PipelinedGemm {
  int64_t a = 0, b = 0;         // which operands
  int64_t rows = 0, pitch = 0;  // of the matrix that A lies in; elements from row to row
  int64_t span = 0;             // rows of a batch
  int64_t row = 0, block = 0, row_step = 0,
          block_step = 0;  // where A begins in it, in rows and in blocks of k; from batch to batch
  int64_t size = 2;        // bytes of an element; 4: f32
  bool tf32 = false;       // then: rounded to tf32
  int64_t blocks = 0, stage = 0;     // blocks of 128 bytes of k; those of a stage
  int64_t weights_step = 0;          // bytes from one of B's matrices to the next
  int64_t b_count = 0, columns = 0;  // of a dual GEMM 2; columns of a tile, of all sides
  int64_t split_k = 0;               // CTAs of a cluster that compute a tile
  int64_t late_scratch =
      0;  // bytes at the scratch's beginning that nobody needs before the products are done
  int64_t all_rows = 0, all_columns = 0;
  std::optional<BoxMatrix> boxes;  // of B where it is no packed weight
  bool operator==(const PipelinedGemm&) const = default;
};

/// The matrix whose rows a GEMM of one kernel requests by a tensor map
/// (kernels/cuda/exec/rows.cuh).
struct AsyncRows {
  int64_t a = 0;                // which operand
  int64_t rows = 0, pitch = 0;  // elements from row to row
  int64_t blocks = 0, box = 0;  // of a copy: blocks of 64 columns, rows
  bool operator==(const AsyncRows&) const = default;
};

struct BodyTraits {
  enum class Form : uint8_t {
    kTaskList,       // runs the tasks of a table
    kGrid,           // a CTA finds its rectangle by its number (kernels/cuda/exec/grid.cuh)
    kPipelinedGemm,  // so does one of `gemm`
    kCluster,        // CTAs that wait for one another
  };
  /// What a body waits for itself, so that its caller does not.
  enum class Wait : uint8_t { kNothing, kKernelBefore, kWaveBefore };

  int64_t operands = 0, params = 0;  // what a work hands it
  Form form = Form::kTaskList;
  Wait waits = Wait::kNothing;
  uint32_t tiles = 0;                 // Tile
  int32_t ctas_per_sm = 0;            // kGrid: that registers leave room for; else 0
  int32_t cluster = 1;                // kCluster: CTAs that wait for one another; else 1
  std::optional<PipelinedGemm> gemm;  // kPipelinedGemm
  std::optional<AsyncRows> async_rows;
  bool calls(uint32_t of) const { return (tiles & of) != 0; }
  bool operator==(const BodyTraits&) const = default;
};

inline constexpr int32_t kMostCtasPerSm = 32, kMostOfBodyCluster = 16;

/// Calls visit(name, number, least, most) for every field, in the order in which they are hashed
/// and stored. The visitor of traits that are not const may set the numbers.
template <typename Traits, typename Visit>
void visit_numbers(Traits& traits, Visit&& visit) {
  constexpr int64_t kMost = int64_t{1} << 48;
  const auto optional = [&](const char* name, auto& part) {
    bool there = part.has_value();
    visit(name, there, 0, 1);
    if constexpr (requires { part.emplace(); })
      if (there && !part) part.emplace();
    return there;
  };
  visit("operands", traits.operands, 0, INT32_MAX);
  visit("params", traits.params, 0, INT32_MAX);
  visit("form", traits.form, 0, static_cast<int64_t>(BodyTraits::Form::kCluster));
  visit("waits", traits.waits, 0, static_cast<int64_t>(BodyTraits::Wait::kWaveBefore));
  visit("tiles", traits.tiles, 0, kAllTiles);
  visit("ctas_per_sm", traits.ctas_per_sm, 0, kMostCtasPerSm);
  visit("cluster", traits.cluster, 1, kMostOfBodyCluster);
  if (optional("gemm", traits.gemm)) {
    auto& g = *traits.gemm;
    visit("a", g.a, 0, INT32_MAX);
    visit("b", g.b, 0, INT32_MAX);
    visit("rows", g.rows, 1, INT32_MAX);
    visit("pitch", g.pitch, 1, kMost);
    visit("span", g.span, 1, INT32_MAX);
    visit("row", g.row, 0, INT32_MAX);
    visit("block", g.block, 0, INT32_MAX);
    visit("row_step", g.row_step, 0, INT32_MAX);
    visit("block_step", g.block_step, 0, INT32_MAX);
    visit("size", g.size, 2, 4);
    visit("blocks", g.blocks, 1, INT32_MAX);
    visit("stage", g.stage, 1, INT32_MAX);
    visit("weights_step", g.weights_step, 0, kMost);
    visit("b_count", g.b_count, 1, INT32_MAX);
    visit("columns", g.columns, 1, INT32_MAX);
    visit("split_k", g.split_k, 1, kMostOfBodyCluster);
    visit("tf32", g.tf32, 0, 1);
    visit("late_scratch", g.late_scratch, 0, INT32_MAX);
    visit("all_rows", g.all_rows, 1, INT32_MAX);
    visit("all_columns", g.all_columns, 1, INT32_MAX);
    if (optional("boxes", g.boxes)) {
      auto& b = *g.boxes;
      visit("b_rows", b.rows, 1, INT32_MAX);
      visit("b_columns", b.columns, 1, INT32_MAX);
      visit("b_pitch", b.pitch, 1, kMost);
      visit("b_row", b.row, 0, INT32_MAX);
      visit("b_column", b.column, 0, INT32_MAX);
      visit("b_row_step", b.row_step, 0, INT32_MAX);
      visit("b_column_step", b.column_step, 0, INT32_MAX);
      visit("b_k_rows", b.k_rows, 0, 1);
    }
  }
  if (optional("async_rows", traits.async_rows)) {
    auto& r = *traits.async_rows;
    visit("a", r.a, 0, INT32_MAX);
    visit("rows", r.rows, 1, INT32_MAX);
    visit("pitch", r.pitch, 1, INT32_MAX);
    visit("blocks", r.blocks, 1, INT32_MAX);
    visit("box", r.box, 1, INT32_MAX);
  }
}

/// Whether the fields agree with one another; else why not.
std::string disagreement(const BodyTraits& traits);
/// One line, for dumps: "grid of 2 CTAs an SM, waits for the kernel before, conv; 4 operands".
std::string to_string(const BodyTraits& traits);
/// What tells a body from all others.
Hash identity(const std::string& text, const BodyTraits& traits);

}  // namespace obelisk::codegen
