// Transpositions: what is read by columns is brought by rows.
#include "codegen/vector_emitter.h"

namespace obelisk::codegen {

/// A transposition: squares of 64 by 64 come in packs along the rows, lie in fast memory, and leave in packs along the columns.
VectorText VectorEmitter::turned() {
  VectorText text;
  std::string& out = text.rows;
  constexpr int64_t side = 64;
  std::string head, bring, put;
  int64_t offset = 0;
  for (const Load& load : loads_) {
    if (!turns(load)) continue;
    const Access& access = *load_access_.at(load.expr);
    const int64_t bytes = byte_size(load.storage, 1), pitch = side + 4 / bytes;
    int64_t v = 16 / bytes;
    const auto packs = [&] {
      if (access.offset % v || nest_.dims[nest_.rows - 1].extent % v || job_.tile_rows % v) return false;
      for (size_t d = 0; d < access.strides.size(); ++d)
        if (static_cast<int>(d) != nest_.rows - 1 && access.strides[d] % v) return false;
      return true;
    };
    while (v > 1 && !packs()) v /= 2;
    const std::string type = storage_name(load.storage), name = fmt::format("t{}", load.expr);
    head += fmt::format("  {0}* const {1} = ({0}*)((char*)w->scratch + {2});\n", type, name, offset);
    offset += (side * pitch * bytes + 15) / 16 * 16;
    const int64_t down = side / v;
    bring += fmt::format("    constexpr int N{} = OBK_POINTS({}, {});\n    obk::Pack<{}, {}> {}p[N{}];\n", load.expr, side * down / kAllThreads, side * down, type, v,
                         name, load.expr);
    bring += fmt::format("    OBK_EACH(k, N{}) {{\n      const int n = k * OBK_ALL_THREADS + OBK_THREAD;\n", load.expr);
    bring += fmt::format("      const int c = cb + n / {0} < (int)t->c1 ? cb + n / {0} : cb, r = rb + n % {0} * {1} < (int)t->r1 ? rb + n % {0} * {1} : rb;\n", down, v);
    std::string at = access.offset ? std::to_string(access.offset) : "0";
    bring += "      int r_ = r;\n";
    for (int d = nest_.rows - 1; d >= 0; --d) {
      bring += d == 0 ? "      const int i0 = r_;\n" : fmt::format("      const int i{0} = r_ % {1}; r_ /= {1};\n", d, nest_.dims[d].extent);
      if (access.strides[d]) at += fmt::format(" + (int64_t)i{} * {}", d, access.strides[d]);
    }
    at += fmt::format(" + (int64_t)c * {}", access.strides[lane_]);
    bring += fmt::format("      {}p[k] = obk::load_pack<{}>({}, {});\n    }}\n", name, v, job_.pointer(exprs_[load.expr].slot, false), at);
    put += fmt::format("    OBK_EACH(k, N{0}) {{\n      const int n = k * OBK_ALL_THREADS + OBK_THREAD;\n      OBK_EACH(v, {1}) {2}[(n % {3} * {1} + v) * {4} + n / {3}] = "
                       "obk::element({2}p[k], v);\n    }}\n", load.expr, v, name, down, pitch);
  }
  out += fmt::format("  constexpr int R = OBK_POINTS({0}, {1}), U = 1, V = {2};\n", side * side / v_ / kAllThreads, side * side / v_, v_) + head;
  out += fmt::format("  for (int rb = (int)t->r0; rb < (int)t->r1; rb += {0}) for (int cb = (int)t->c0; cb < (int)t->c1; cb += {0}) {{\n", side);
  out += bring + "    OBK_MEET();\n" + put + "    OBK_MEET();\n";
  out += "    int row[R], col[R];\n    bool there[R];\n";
  for (int d = 0; d < nest_.rows; ++d) out += fmt::format("    int i{}[R];\n", d);
  out += fmt::format("    int j{}[R];\n    OBK_EACH(q, R) {{\n      const int n = q * OBK_ALL_THREADS + OBK_THREAD, r = rb + n / {}, c = cb + n % {} * V;\n", lane_, side / v_,
                     side / v_);
  out += "      there[q] = r < (int)t->r1 && c < (int)t->c1;\n      row[q] = there[q] ? r : rb, col[q] = there[q] ? c : cb;\n";
  out += fmt::format("      j{}[q] = col[q];\n      int r_ = row[q];\n", lane_);
  for (int d = nest_.rows - 1; d >= 0; --d) out += d == 0 ? "      i0[q] = r_;\n" : fmt::format("      i{0}[q] = r_ % {1}, r_ /= {1};\n", d, nest_.dims[d].extent);
  out += "    }\n";
  for (const Load& load : loads_) {
    if (!turns(load)) continue;
    const int64_t pitch = side + 4 / byte_size(load.storage, 1);
    out += fmt::format("    {0} l{1}[R][V];\n    OBK_EACH(q, R) OBK_EACH(v, V) l{1}[q][v] = obk::load(t{1}, (row[q] - rb) * {2} + col[q] - cb + v);\n",
                       arithmetic_name(exprs_[load.expr].dtype), load.expr, pitch);
    loaded_.insert(load.expr);
  }
  std::string others;
  loads(others, "    ", false);
  out += declared("    ") + others;
  segment(0, out, "    ");
  out += "  }\n";
  text.scratch = offset;
  return text;
}

}  // namespace obelisk::codegen
