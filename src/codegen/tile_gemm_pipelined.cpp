#include "codegen/tile_gemm_pipelined.h"

#include <algorithm>

namespace obelisk::codegen {

/// Rows whose sums a CTA of a cluster has, the last ones perhaps beyond the matrix: in f32 the
/// tile's, else its warpgroups'.
static int64_t rows_of_part(const stitch::Group& group, const schedule::Work& work) {
  using namespace kernels::pipelined_bounds;
  if (group.product.of_words()) return work.tile_rows;
  return work.pipelined()->tall ? kTallRows : kTileRows;
}

int64_t pipelined_slice(const schedule::Work& work) {
  const int64_t split_k = work.pipelined()->parts;
  return (work.tile_rows + split_k - 1) / split_k;
}

static int64_t wide_of(const stitch::Group& group, const schedule::Work& work, int64_t pitch) {
  return pitch == 0 ? work.tile_columns * group.product.b_count() : pitch;
}

int64_t pipelined_whole(const stitch::Group& group, const schedule::Work& work, int64_t pitch) {
  return work.pipelined()->parts == 1
             ? 0
             : (rows_of_part(group, work) * wide_of(group, work, pitch) * 4 + 63) / 64 * 64;
}

int64_t pipelined_planes(const stitch::Group& group, const schedule::Work& work) {
  const int64_t parts = work.pipelined()->parts;
  return work.pipelined()->tall || group.product.of_words() ? parts : std::max<int64_t>(parts, 2);
}

int64_t pipelined_registers_ahead(const stitch::Group& group, const schedule::Work& work) {
  constexpr int64_t kMost = 48, kWithSums = 208;
  if (!work.pipelined()->tall || group.product.of_words()) return kMost;
  const int64_t sums =
      work.pipelined()->chains * round_up(work.tile_columns * group.product.b_count(), 16) / 2;
  return std::clamp<int64_t>(kWithSums - sums, 0, kMost);
}

PipelinedGemmText emit_pipelined_gemm(const stitch::Group& group, const schedule::Work& work,
                                      const kernels::TileLibrary& tiles, const ObkGemm& shape,
                                      const std::string& type, int x_a, bool vectors,
                                      int64_t pitch) {
  const schedule::PipelinedGemm& form = *work.pipelined();
  const schedule::RowMatrix& m = form.a;
  const stitch::Product& product = group.product;
  const bool adds =
      vectors && pipelined_planes(group, work) > 1;  // a tall tile has one plane of sums
  const int64_t split_k = form.parts, depth = shape.k / split_k;
  const int64_t size = byte_size(product.a_type, 1);
  const int64_t brought = form.b && form.b->k_rows
                              ? round_up(shape.n, kernels::pipelined_bounds::kBoxBytes / size)
                              : shape.n;
  const int64_t stage = tiles.gemm.pipelined->stage(shape.a_type, shape.m, brought, depth);
  const int64_t plane = (pipelined_slice(work) * wide_of(group, work, pitch) * 4 + 63) / 64 * 64;
  const int64_t matrix = product.batch.empty() || form.b
                             ? 0
                             : tiles.gemm.packed_bytes(static_cast<int32_t>(product.b_type),
                                                       product.n[0].extent, shape.k);
  PipelinedGemmText text{.top = adds ? "  int other = 0;\n" : "", .scratch = adds ? plane : 0};
  if (split_k > 1) text.scratch = (split_k - 1) * plane;
  const int64_t sums = split_k > 1 ? pipelined_whole(group, work, pitch) : plane + text.scratch;
  text.traits = {.a = x_a,
                 .b = x_a + 1,
                 .rows = m.rows,
                 .pitch = m.pitch,
                 .span = m.span,
                 .row = m.row,
                 .block = m.block,
                 .row_step = m.row_step,
                 .block_step = m.block_step,
                 .size = size,
                 .tf32 = product.tf32,
                 .blocks = shape.k * size / 128,
                 .stage = stage,
                 .weights_step = matrix,
                 .b_count = product.b_count(),
                 .columns = shape.n,
                 .split_k = split_k,
                 .late_scratch = sums,
                 .all_rows = work.nest.row_count(),
                 .all_columns = work.nest.column_count()};
  if (form.b)
    text.traits.boxes = {.rows = form.b->rows,
                         .columns = form.b->columns,
                         .pitch = form.b->pitch,
                         .row = form.b->row,
                         .column = form.b->column,
                         .row_step = form.b->row_step,
                         .column_step = form.b->column_step,
                         .k_rows = form.b->k_rows};
  const char* statistics = !product.statistics.wanted       ? "kObkNoStatistics"
                           : product.statistics.of_partials ? "kObkOfPartials"
                                                            : "kObkOfRows";
  const auto sums_of = [&](int64_t columns) {
    if (product.of_words())
      return fmt::format("{}OBK_PIPELINED_GEMM_{}{}, {}, {}, {}, {}, {});\n",
                         adds ? "other = " : "", product.tf32 ? "TF32" : "F32",
                         split_k > 1
                             ? fmt::format("_SPLIT_K_OF(g, {}, {}, {:d}", stage, plane / 4, adds)
                             : fmt::format("_OF(g, {}", stage),
                         shape.m, columns, depth, shape.a_row, pitch == 0 ? columns : pitch);
    const std::string chains = form.tall ? fmt::format(", {}", form.chains) : "";
    const std::string of_what =
        split_k > 1 ? fmt::format("{}SPLIT_K_OF({}, g, {}{}, {}, {:d}", form.tall ? "TALL_" : "",
                                  type, stage, chains, plane / 4, adds)
        : form.tall ? fmt::format("TALL_OF({}, g, {}{}, {}", type, stage, chains, statistics)
                    : fmt::format("SUMS_OF({}, g, {}, {}, {}", type, stage, adds ? plane / 4 : 0,
                                  statistics);
    return fmt::format("{}OBK_PIPELINED_GEMM_{}, {}, {}, {}, {}, {});\n", adds ? "other = " : "",
                       of_what, split_k > 1 ? rows_of_part(group, work) : shape.m, columns, depth,
                       shape.a_row, pitch == 0 ? columns : pitch);
  };
  const int64_t last = work.nest.column_count() * product.b_count() %
                       shape.n;  // columns of a narrower tile at the end
  text.tile =
      (last ? fmt::format("    if (g.n == {})\n      {}    else\n  ", last, sums_of(last)) : "") +
      "    " + sums_of(shape.n) + "  }\n";
  return text;
}

}  // namespace obelisk::codegen
