// Transpositions: what is read by columns is brought by rows.
#include "codegen/scalars.h"
#include "codegen/vectors/emitter.h"

namespace obelisk::codegen {

/// A transposition: squares of 64 by 64 (`tall` by 64 of 16 bits in a grid) come in
/// packs along the rows, some squares ahead of their turn, lie in scratchpad memory, and leave in
/// packs along the columns. Where there is room two squares have a place, so that one is written
/// while the one before is read. Of 16 bits two columns come to the same thread, which turns them
/// as words: four lanes walk along the rows, eight across, so that each has a bank of its own.
VectorText VectorEmitter::transposed() {
  VectorText text;
  std::string& out = text.rows;
  constexpr int64_t side = 64;
  const auto pack_of = [&](const Load& load) {  // elements that come at once
    const Access& access = *load_access_.at(load.expr);
    int64_t v = 16 / byte_size(load.storage, 1);
    const auto packs = [&] {
      if (access.offset % v || nest_.dims[nest_.rows - 1].extent % v || job_.tile_rows % v)
        return false;
      for (size_t d = 0; d < access.strides.size(); ++d)
        if (static_cast<int>(d) != nest_.rows - 1 && access.strides[d] % v) return false;
      return true;
    };
    while (v > 1 && !packs()) v /= 2;
    return v;
  };
  int64_t tall = job_.grid && job_.tile_rows % (2 * side) == 0 && v_ >= 4 ? 2 * side : side;
  for (const Load& load : loads_)
    if (turns(load) && (byte_size(load.storage, 1) != 2 || pack_of(load) < 4)) tall = side;
  std::string head, ask, put;
  int64_t async_bytes = 0, places = 0;
  for (const Load& load : loads_) {
    if (!turns(load)) continue;
    const int64_t bytes = byte_size(load.storage, 1);
    async_bytes += tall * side * bytes,
        places += (tall * (side + 4 / bytes) * bytes + 15) / 16 * 16;
  }
  const int64_t squares = (job_.tile_rows + tall - 1) / tall * ((wide() + side - 1) / side);
  slots_ = std::min<int64_t>({6, squares, (job_.ahead_bytes - 2 * places) / async_bytes});
  const bool twice = slots_ >= 3;
  if (!twice) slots_ = 1;
  int64_t offset = 0, behind = twice ? 2 * places : places;
  for (const Load& load : loads_) {
    if (!turns(load)) continue;
    const Access& access = *load_access_.at(load.expr);
    const int64_t bytes = byte_size(load.storage, 1), pitch = side + 4 / bytes, v = pack_of(load);
    const std::string type = storage_name(load.storage), name = fmt::format("t{}", load.expr);
    head +=
        fmt::format("  {0}* const {1}_ = ({0}*)((char*)w->scratch + {2});\n", type, name, offset);
    const int64_t down = tall / v, along = std::min<int64_t>(down, 4);
    const bool pairs = bytes == 2;
    const std::string places_of =
        pairs ? fmt::format(
                    "const int i = n % {0}, p = n / {0} % {1}, c_ = 2 * p + h, r_ = (n / {2} * {0} "
                    "+ i) * {3};",
                    along, side / 2, along * side / 2, v)
              : fmt::format("const int c_ = n / {0}, r_ = n % {0} * {1};", down, v);
    const std::string each = fmt::format(
        "    OBK_EACH(k, N{}) {{\n      const int n = k * OBK_ALL_THREADS + OBK_THREAD;\n",
        load.expr);
    const int64_t packs_of = side * down / (pairs ? 2 : 1);
    head += fmt::format("  constexpr int N{} = OBK_POINTS({}, {});\n", load.expr,
                        packs_of / kThreads, packs_of);
    ask += each + (pairs ? "      OBK_EACH(h, 2) {\n" : "");
    ask += fmt::format(
        "      {}\n      const int c = cb + c_ < (int)t->c1 ? cb + c_ : cb, r = rb + r_ < "
        "(int)t->r1 ? rb + r_ : rb;\n",
        places_of);
    std::string at = access.offset ? std::to_string(access.offset) : "0";
    ask += "      int rest = r;\n";
    for (int d = nest_.rows - 1; d >= 0; --d) {
      ask += d == 0 ? "      const int i0 = rest;\n"
                    : fmt::format("      const int i{0} = rest % {1}; rest /= {1};\n", d,
                                  nest_.dims[d].extent);
      if (access.strides[d]) at += fmt::format(" + (int64_t)i{} * {}", d, access.strides[d]);
    }
    at += fmt::format(" + (int64_t)c * {}", access.strides[lane_]);
    const std::string own =
        fmt::format("(char*)w->scratch + {} + slot * {} + {} * {} * OBK_ALL_THREADS", behind,
                    async_bytes, pairs ? "(2 * k + h)" : "k", v * bytes);
    // Copies of less than four bytes are not requested: they are made at once.
    const std::string pointer = job_.pointer(exprs_[load.expr].slot, false);
    ask += v * bytes >= 4
               ? fmt::format("      obk::async_pack<{}>({}, {}, {});\n", v, own, pointer, at)
               : fmt::format("      obk::keep_pack<{}>({}, obk::load_pack<{}>({}, {}));\n", v, own,
                             v, pointer, at);
    ask += pairs ? "      }\n    }\n" : "    }\n";
    put += fmt::format("    {0}* const {1} = {1}_ + (s & 1) * {2};\n", type, name,
                       twice ? places / bytes : 0) +
           each;
    if (pairs) {
      put += fmt::format(
          "      obk::Pack<{}, {}> two[2];\n      OBK_EACH(h, 2) two[h] = obk::take_pack<{}, "
          "{}>({});\n      const int h = 0;\n      {}\n",
          type, v, v, type, own, places_of);
      put += fmt::format(
          "      OBK_EACH(v, {}) obk::put_pair({}, ((r_ + v) * {} + c_) / 2, two[0], two[1], v);\n "
          "   }}\n",
          v, name, pitch);
    } else {
      put += fmt::format(
          "      {}\n      const auto pack = obk::take_pack<{}, {}>({});\n      OBK_EACH(v, {}) "
          "{}[(r_ + v) * {} + c_] = obk::element(pack, v);\n    }}\n",
          places_of, v, type, own, v, name, pitch);
    }
    offset += (tall * pitch * bytes + 15) / 16 * 16, behind += tall * side * bytes;
  }
  const std::string start = fmt::format(
      "rb = (int)t->r0 + s / across * {}, cb = (int)t->c0 + s % across * {};\n", tall, side);
  out += fmt::format("  constexpr int R = OBK_POINTS({0}, {1}), U = 1, V = {2};\n",
                     tall * side / v_ / kThreads, tall * side / v_, v_) +
         head;
  out += fmt::format(
      "  const int across = ((int)(t->c1 - t->c0) + {0}) / {1}, squares = ((int)(t->r1 - t->r0) + "
      "{2}) / {3} * across;\n",
      side - 1, side, tall - 1, tall);
  out += "  const auto ask = [&](int s, int slot) {\n  if (s < squares) {\n    const int " + start +
         ask + "  }\n  OBK_COMMIT_COPIES();\n  };\n  int slot = 0;\n";
  if (slots_ > 1) out += fmt::format("  OBK_EACH(k, {}) ask(k, k);\n", slots_ - 1);
  out += "  for (int s = 0; s < squares; ++s) {\n    const int " + start;
  out += fmt::format("    ask(s + {0}, slot == 0 ? {0} : slot - 1);\n    OBK_AWAIT({0});\n",
                     slots_ - 1) +
         (twice ? "" : "    OBK_MEET();\n") + put + "    OBK_MEET();\n";
  out += fmt::format("    slot = slot == {} ? 0 : slot + 1;\n", slots_ - 1);
  out += "    int row[R], col[R];\n    bool there[R];\n";
  for (int d = 0; d < nest_.rows; ++d) out += fmt::format("    int i{}[R];\n", d);
  out += fmt::format(
      "    int j{}[R];\n    OBK_EACH(q, R) {{\n      const int n = q * OBK_ALL_THREADS + "
      "OBK_THREAD, r = rb + n / {}, c = cb + n % {} * V;\n",
      lane_, side / v_, side / v_);
  out +=
      "      there[q] = r < (int)t->r1 && c < (int)t->c1;\n      row[q] = there[q] ? r : rb, "
      "col[q] = there[q] ? c : cb;\n";
  out += fmt::format("      j{}[q] = col[q];\n      int r_ = row[q];\n", lane_);
  for (int d = nest_.rows - 1; d >= 0; --d)
    out += d == 0 ? "      i0[q] = r_;\n"
                  : fmt::format("      i{0}[q] = r_ % {1}, r_ /= {1};\n", d, nest_.dims[d].extent);
  out += "    }\n";
  for (const Load& load : loads_) {
    if (!turns(load)) continue;
    const int64_t bytes = byte_size(load.storage, 1), pitch = side + 4 / bytes;
    if (bytes == 2 && v_ % 2 == 0)
      out += fmt::format(
          "    {0} l{1}[R][V];\n    OBK_EACH(q, R) {{\n      const auto pack = "
          "obk::take_pairs<V>(t{1}, ((row[q] - rb) * {2} + col[q] - cb) / 2);\n      OBK_EACH(v, "
          "V) l{1}[q][v] = obk::at(pack, v);\n    }}\n",
          arithmetic_name(exprs_[load.expr].dtype), load.expr, pitch);
    else
      out += fmt::format(
          "    {0} l{1}[R][V];\n    OBK_EACH(q, R) OBK_EACH(v, V) l{1}[q][v] = obk::load(t{1}, "
          "(row[q] - rb) * {2} + col[q] - cb + v);\n",
          arithmetic_name(exprs_[load.expr].dtype), load.expr, pitch);
    loaded_.insert(load.expr);
  }
  std::string others;
  loads(others, "    ", false);
  out += declared("    ") + others;
  segment(0, out, "    ");
  out += "  }\n";
  text.scratch = behind - async_bytes + slots_ * async_bytes;
  return text;
}

}  // namespace obelisk::codegen
