// The call of a GEMM's tile: its operands, where its sums go, which of the tiles it is.
#include <algorithm>

#include "codegen/body_emitter.h"
#include "codegen/codegen.h"
#include "codegen/row_statistics.h"
#include "codegen/scalars.h"
#include "codegen/tile_gemm_pipelined.h"
#include "kernels/kernels.h"

namespace obelisk::codegen {

/// Whether every row of a product's A begins where the tile's copies ask: where 16 bytes do, as
/// buffers do, or, of several rows in 16 bits, where their pitch lets copies of 8 or 4 bytes begin.
/// `a`: how the nest reads it; `size`: bytes of an element.
static bool rows_begin_at_copies(const schedule::Work& work, const schedule::Access& a,
                                 int64_t size, const ObkGemm& shape) {
  int64_t all = a.offset;
  for (int d = 0; d < work.nest.rows; ++d)
    if (work.nest.dims[static_cast<size_t>(d)].extent > 1) all |= a.strides[static_cast<size_t>(d)];
  if (size == 2 && shape.m > 1) return kernels::at_once(all) >= kernels::at_once(shape.a_row);
  return all * size % 16 == 0;
}

/// What a product of one kernel of all works requests as soon as A is there
/// (kernels/cuda/exec/rows.cuh), as a declaration. `at`: where A goes; `pitch` 0: rows of the tile
/// lie one after another.
///
///   OBK_ROWS(blocks of a copy, map, row, block, at, shape...)    the host makes the map from what
///   `traits` say (runtime/cuda/row_maps.cpp)
struct AsyncRowsText {
  std::string top;  // the declaration
  AsyncRows traits;
};
static AsyncRowsText emit_async_rows(const schedule::Work& work, const ObkGemm& shape, int x_a,
                                     const std::string& at, int64_t pitch) {
  constexpr int64_t kFewestCopies = 4;  // at once: products begin when the first one is there
  const schedule::RowMatrix& m = *work.list()->a_rows;
  const int64_t blocks = shape.k / 64, box = (shape.m + 7) / 8 * 8;
  int64_t together = std::max<int64_t>(blocks / kFewestCopies, 1);
  while (blocks % together != 0) --together;
  const bool batch = work.nest.rows == 2;
  const std::string row =
      !batch ? "(int)t->r0"
             : fmt::format("(int)t->r0 % {0} + (int)t->r0 / {0} * {1}", m.span, m.row_step);
  const std::string block = !batch || m.block_step == 0
                                ? ""
                                : fmt::format(" + (int)t->r0 / {} * {}", m.span, m.block_step);
  AsyncRowsText text{
      .traits = {.a = x_a, .rows = m.rows, .pitch = m.pitch, .blocks = together, .box = box}};
  text.top = fmt::format("  OBK_ROWS({}, x[{}], {} + {}, {}{}, {}, {}, {}, {}, {}, {})\n", together,
                         work.buffers.size(), row, m.row, m.block, block, at, shape.m, shape.n,
                         shape.k, shape.a_row, pitch == 0 ? shape.n : pitch);
  return text;
}

/// What the library is told of a whole tile; `a_row`: elements of A from row to row.
ObkGemm BodyEmitter::gemm_shape(int64_t a_row) const {
  const stitch::Product& product = group_.product;
  ObkGemm shape = {};
  shape.a_type = shape.b_type = product.tile_type();
  shape.packed = packed_b_;
  shape.m = work_.tile_rows, shape.n = work_.tile_columns * product.b_count(),
  shape.k = product.k[0].extent;
  shape.a_row = a_row, shape.a_col = product.k[0].a;
  shape.b_row = product.k[0].b, shape.b_col = product.n[0].b,
  shape.n_packed = product.n[0].extent * product.b_count(), shape.c_row = shape.n;
  return shape;
}

/// The tile whose shape is a constant of the text where the machine has one, else that of any
/// shape. `a`: how the nest reads A.
std::string BodyEmitter::gemm_call(const ObkGemm& shape, const std::string& type, const Access& a) {
  using namespace kernels::fma_rows_bounds;
  const int64_t a_row = shape.a_row;
  // Tiles of f32 whose shape is a constant store where they are told to.
  const bool stores = shape.a_type == kObkF32 && shape.m <= kMostRows && shape.n <= kMostColumns;
  if (tiles_.vectors && packed_b_ && (!direct_ || stores) && shape.a_col == 1 && a_row >= 0 &&
      a_row < (int64_t{1} << 30)) {
    const std::string aligned =
        loads_rows()
            ? ""
            : fmt::format(", {:d}", rows_begin_at_copies(
                                        work_, a, byte_size(group_.product.a_type, 1), shape));
    const auto tile_of = [&](int64_t columns) {
      const int64_t c_row =
          pitch_.front() == '('
              ? columns
              : tile_pitch();  // the same for all tiles where the pitch is a number
      const std::string parts =
          group_.product.split_k > 1 ? fmt::format(", {}", group_.product.split_k) : "";
      return fmt::format("OBK_GEMM_{}_OF({}, g{}, {}, {}, {}, {}, {}{});\n",
                         loads_rows() ? "ROWS" : "TILE", type, aligned, shape.m, columns, shape.k,
                         a_row, c_row, parts);
    };
    const int64_t last = work_.nest.column_count() * group_.product.b_count() %
                         shape.n;  // columns of a narrower tile at the end
    std::string text;
    if (last) text += fmt::format("    if (g.n == {})\n      {}    else\n  ", last, tile_of(last));
    traits_.tiles |= kGemmTile;
    return text + "    " + tile_of(shape.n) + "  }\n";
  }
  traits_.tiles |= kAnyGemmTile;
  return fmt::format("    OBK_GEMM_TILE({}, g);\n  }}\n", type);
}

/// Whether B streams to registers. Values of a dataflow program may lie in shared memory.
bool BodyEmitter::streams() const {
  return work_.streams_b && tiles_.gemm.streamed && !work_.dataflow;
}

std::string BodyEmitter::streamed_call(const std::string& type) {
  traits_.tiles |= kAnyGemmTile;
  const int64_t ctas = work_.rectangles() ? work_.rectangles()->tasks_per_worker : 1;
  int64_t made_for = kernels::streamed_bounds::kFewestColumns;
  while (made_for < work_.tile_columns) made_for *= 2;
  return fmt::format("    OBK_GEMM_STREAMED_TILE({}, g, {}, {}, {}{});\n  }}\n", type,
                     work_.tile_rows, made_for, ctas, packed_b_ ? ", true" : "");
}

void BodyEmitter::product(bool vectors) {
  const stitch::Product& product = group_.product;
  const int x_a = work_.operand_count(group_), x_b = x_a + 1;
  const Access *a_access = nest_.of_product(group_, 0), *b_access = nest_.of_product(group_, 1);
  CHECK(a_access && b_access);
  const int inner = nest_.rows - 1;
  const bool walks_rows =
      inner >= 0 && a_access->strides[inner] != 0 && b_access->strides[inner] == 0;
  const Step& first = body_.steps.front();
  const Access* store = store_access_.at(0);

  std::string text = "  {\n" + decode("t->r0", "    ", true);
  auto base = [&](const Access& access) {
    std::string sum = param(access.offset);
    for (int d = 0; d < nest_.rows; ++d)
      if (access.strides[d]) sum += fmt::format(" + {} * {}", var(d), stride(access, d));
    return sum;
  };
  const std::string type = tile_type(product.tile_type()), element = storage_name(product.a_type),
                    sum = product.a_type == DType::f64 ? "double" : "float";
  const int64_t sum_bytes = product.a_type == DType::f64 ? 8 : 4;
  text += fmt::format(
      "    ObkGemm g = {{}};\n    g.a_type = g.b_type = {};\n    g.m = t->r1 - t->r0;\n    g.n = "
      "{}(t->c1 - t->c0);\n",
      type, group_.product.dual ? "2 * " : "");
  text += fmt::format("    g.k = {};\n", param(product.k[0].extent));
  text += fmt::format("    g.a = (const {}*)x[{}] + ({});\n", element, x_a, base(*a_access));
  text += fmt::format("    g.a_row = {};\n    g.a_col = {};\n",
                      walks_rows ? stride(*a_access, inner) : "0", param(product.k[0].a));
  if (packed_b_) {
    std::string from = fmt::format("x[{}]", x_b);
    if (!product.batch.empty()) {
      const int dim = schedule::packed_matrix_dim(group_, work_);
      const int64_t bytes = tiles_.gemm.packed_bytes(static_cast<int32_t>(product.b_type),
                                                     product.n[0].extent, product.k[0].extent);
      from = fmt::format("(const char*){} + {} * {}", from, var(dim), param(bytes));
    }
    text += fmt::format(
        "    g.packed = 1;\n    g.b = {};\n    g.column = {}t->c0;\n    g.n_packed = {};\n", from,
        group_.product.dual ? "2 * " : "", param(product.n[0].extent * product.b_count()));
  } else {
    text += fmt::format("    g.b = (const {}*)x[{}] + ({}) + t->c0 * {};\n", element, x_b,
                        base(*b_access), param(product.n[0].b));
    text += fmt::format("    g.b_row = {};\n    g.b_col = {};\n", param(product.k[0].b),
                        param(product.n[0].b));
  }
  if (direct_) {
    std::string out = base(*store);
    if (lane_ >= 0) out += " + t->c0";
    text += fmt::format("    g.c = {} + ({});\n    g.c_row = {};\n", pointer(first.slot, true), out,
                        inner >= 0 ? param(store->strides[inner]) : "0");
    text += "    g.scratch = (char*)w->scratch;\n";
  } else {
    if (pipelined())
      scratch_ += pipelined_whole(group_, work_, pitch_.front() == '(' ? 0 : tile_pitch());
    const std::string at =
        scratch_ > 0 ? fmt::format("((char*)w->scratch + {})", param(scratch_)) : "w->scratch";
    top_ += fmt::format("  {0}* __restrict tile = ({0}*){1};\n", sum, at);
    scratch_ +=
        ((pipelined() ? pipelined_slice(work_) : work_.tile_rows) * tile_pitch() * sum_bytes + 63) /
        64 * 64;
    text +=
        fmt::format("    g.c = tile;\n    g.c_row = {};\n    g.scratch = (char*)w->scratch + {};\n",
                    pitch_, param(scratch_));
  }
  const ObkGemm shape = gemm_shape(walks_rows ? a_access->strides[inner] : 0);
  if (pipelined()) {
    text += statistics_fields(group_, work_);
    const PipelinedGemmText pipelined = emit_pipelined_gemm(
        group_, work_, tiles_, shape, type, x_a, vectors, pitch_.front() == '(' ? 0 : tile_pitch());
    traits_.gemm = pipelined.traits;
    top_ += pipelined.top, scratch_ += pipelined.scratch, out_ += text + pipelined.tile;
    scratch_ += keep_row_statistics(group_, work_, scratch_, top_);
    return;
  }
  text += statistics_found(group_, work_, type);
  if (loads_rows()) {
    const AsyncRowsText rows =
        emit_async_rows(work_, shape, x_a, fmt::format("(char*)w->scratch + {}", scratch_),
                        pitch_.front() == '(' ? 0 : tile_pitch());
    top_ += rows.top, traits_.async_rows = rows.traits;
  }
  if (streams()) {
    const int64_t bytes =
        tiles_.gemm.streamed->scratch_bytes(shape.a_type, shape.m, work_.tile_columns, shape.k);
    scratch_ += (bytes + 63) / 64 * 64;
    out_ += text + streamed_call(type);
    return;
  }
  scratch_ += ((work_.dataflow && tiles_.dataflow
                    ? tiles_.dataflow->gemm_bytes(shape.a_type, shape.m, shape.n, shape.k)
                    : tiles_.gemm.scratch_bytes(&shape)) +
               63) /
              64 * 64;
  text += gemm_call(shape, type, *a_access);
  out_ += text;
  scratch_ += keep_row_statistics(group_, work_, scratch_, top_);
}

}  // namespace obelisk::codegen
