// Transpositions: what is read by columns is brought by rows.
#include "codegen/vector_emitter.h"

namespace obelisk::codegen {

/// A transposition: squares of 64 by 64 come in packs along the rows, some squares ahead of their turn, lie in fast memory, and leave in packs
/// along the columns. Where there is room two squares have a place, so that one is written while the one before is read.
VectorText VectorEmitter::turned() {
  VectorText text;
  std::string& out = text.rows;
  constexpr int64_t side = 64;
  std::string head, ask, put;
  int64_t asked_bytes = 0, places = 0;
  for (const Load& load : loads_) {
    if (!turns(load)) continue;
    const int64_t bytes = byte_size(load.storage, 1);
    asked_bytes += side * side * bytes, places += (side * (side + 4 / bytes) * bytes + 15) / 16 * 16;
  }
  const int64_t squares = (job_.tile_rows + side - 1) / side * ((wide() + side - 1) / side);
  slots_ = std::min<int64_t>({6, squares, (job_.ahead_bytes - 2 * places) / asked_bytes});
  const bool twice = slots_ >= 3;
  if (!twice) slots_ = 1;
  int64_t offset = 0, behind = twice ? 2 * places : places;
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
    head += fmt::format("  {0}* const {1}_ = ({0}*)((char*)w->scratch + {2});\n", type, name, offset);
    const int64_t down = side / v;
    head += fmt::format("  constexpr int N{} = OBK_POINTS({}, {});\n", load.expr, side * down / kAllThreads, side * down);
    ask += fmt::format("    OBK_EACH(k, N{}) {{\n      const int n = k * OBK_ALL_THREADS + OBK_THREAD;\n", load.expr);
    ask += fmt::format("      const int c = cb + n / {0} < (int)t->c1 ? cb + n / {0} : cb, r = rb + n % {0} * {1} < (int)t->r1 ? rb + n % {0} * {1} : rb;\n", down, v);
    std::string at = access.offset ? std::to_string(access.offset) : "0";
    ask += "      int r_ = r;\n";
    for (int d = nest_.rows - 1; d >= 0; --d) {
      ask += d == 0 ? "      const int i0 = r_;\n" : fmt::format("      const int i{0} = r_ % {1}; r_ /= {1};\n", d, nest_.dims[d].extent);
      if (access.strides[d]) at += fmt::format(" + (int64_t)i{} * {}", d, access.strides[d]);
    }
    at += fmt::format(" + (int64_t)c * {}", access.strides[lane_]);
    const std::string own = fmt::format("(char*)w->scratch + {} + slot * {} + k * {} * OBK_ALL_THREADS", behind, asked_bytes, v * bytes);
    // Copies of less than four bytes are not asked for: they are made at once.
    const std::string pointer = job_.pointer(exprs_[load.expr].slot, false);
    ask += v * bytes >= 4 ? fmt::format("      obk::ask_pack<{}>({}, {}, {});\n    }}\n", v, own, pointer, at)
                          : fmt::format("      obk::keep_pack<{}>({}, obk::load_pack<{}>({}, {}));\n    }}\n", v, own, v, pointer, at);
    put += fmt::format("    {0}* const {1} = {1}_ + (s & 1) * {2};\n", type, name, twice ? places / bytes : 0);
    put += fmt::format("    OBK_EACH(k, N{0}) {{\n      const int n = k * OBK_ALL_THREADS + OBK_THREAD;\n      const auto pack = obk::take_pack<{1}, {6}>({5});\n"
                       "      OBK_EACH(v, {1}) {2}[(n % {3} * {1} + v) * {4} + n / {3}] = obk::element(pack, v);\n    }}\n",
                       load.expr, v, name, down, pitch, own, type);
    offset += (side * pitch * bytes + 15) / 16 * 16, behind += side * side * bytes;
  }
  const std::string start = fmt::format("rb = (int)t->r0 + s / across * {0}, cb = (int)t->c0 + s % across * {0};\n", side);
  out += fmt::format("  constexpr int R = OBK_POINTS({0}, {1}), U = 1, V = {2};\n", side * side / v_ / kAllThreads, side * side / v_, v_) + head;
  out += fmt::format("  const int across = ((int)(t->c1 - t->c0) + {0}) / {1}, squares = ((int)(t->r1 - t->r0) + {0}) / {1} * across;\n", side - 1, side);
  out += "  const auto ask = [&](int s, int slot) {\n  if (s < squares) {\n    const int " + start + ask + "  }\n  OBK_ASKED();\n  };\n  int slot = 0;\n";
  if (slots_ > 1) out += fmt::format("  OBK_EACH(k, {}) ask(k, k);\n", slots_ - 1);
  out += "  for (int s = 0; s < squares; ++s) {\n    const int " + start;
  out += fmt::format("    ask(s + {0}, slot == 0 ? {0} : slot - 1);\n    OBK_AWAIT({0});\n", slots_ - 1) + (twice ? "" : "    OBK_MEET();\n") + put + "    OBK_MEET();\n";
  out += fmt::format("    slot = slot == {} ? 0 : slot + 1;\n", slots_ - 1);
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
  text.scratch = behind - asked_bytes + slots_ * asked_bytes;
  return text;
}

}  // namespace obelisk::codegen
