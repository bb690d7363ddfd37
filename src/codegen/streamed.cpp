#include "codegen/streamed.h"

namespace obelisk::codegen {

StreamedText emit_streamed(const stitch::Group& group, const schedule::Work& work, const kernels::TileLibrary& tiles, const ObkGemm& shape, const std::string& type, int x_a,
                           bool two_planes, int64_t pitch) {
  const schedule::RowMatrix& m = *work.streamed;
  const stitch::Product& product = group.product;
  const int64_t stage = tiles.product_stage(shape.n, shape.k / product.parts);
  const int64_t plane = two_planes ? (work.tile_rows * pitch * 4 + 63) / 64 * 64 : 0;
  const int64_t matrix = product.batch.empty() ? 0 : tiles.gemm_packed_bytes(static_cast<int32_t>(product.b_type), product.n[0].extent, shape.k);
  StreamedText text{.top = two_planes ? "  int other = 0;\n" : "", .scratch = plane};
  text.top += fmt::format("  OBK_PRODUCT({}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {})\n", x_a, x_a + 1, m.rows, m.pitch, m.span, m.row, m.block, m.row_step, m.block_step,
                          shape.k / 64, stage, matrix, product.sides(), shape.n);
  const auto sums_of = [&](int64_t columns) {
    return fmt::format("{}OBK_PRODUCT_SUMS_OF({}, g, {}, {}, {}, {}, {}, {}, {}, 0, {});\n", two_planes ? "other = " : "", type, stage, plane / 4, shape.m, columns, shape.k,
                       shape.a_row, pitch == 0 ? columns : pitch, product.parts);
  };
  const int64_t last = work.nest.column_count() * product.sides() % shape.n;  // columns of a narrower tile at the end
  text.tile = (last ? fmt::format("    if (g.n == {})\n      {}    else\n  ", last, sums_of(last)) : "") + "    " + sums_of(shape.n) + "  }\n";
  return text;
}

}  // namespace obelisk::codegen
