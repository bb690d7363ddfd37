// Column sums and pooling: the vector runs over rows.
#include "codegen/vectors/emitter.h"

namespace obelisk::codegen {

/// Where columns jump and rows do not (pooling channels-last, sums over a matrix's rows): a thread
/// takes V neighbouring rows and walks their columns, U at a time. Many columns are shared by the
/// warps, whose parts are joined in order.
VectorText VectorEmitter::across() {
  VectorText text;
  const int64_t n = slices(), joined = n > 1 ? kThreads * v_ * 8 : 0;
  std::string& out = text.rows;
  out += fmt::format(
      "  constexpr int R = {}, U = {}, V = {}, kSlices = OBK_SLICES({}), kTogether = "
      "OBK_ALL_THREADS / kSlices;\n",
      rows_text_, units_text_, v_, n);
  out += "  const int slice = OBK_THREAD / kTogether;\n";
  out += "  for (int base = (int)t->r0; base < (int)t->r1; base += V * kTogether) {\n";
  out += "    int row[R];\n    bool there[R];\n";
  for (int d = 0; d < nest_.rows; ++d) out += fmt::format("    int i{}[R];\n", d);
  out +=
      "    OBK_EACH(q, R) {\n      const int r = base + OBK_THREAD % kTogether * V;\n      "
      "there[q] = r < (int)t->r1;\n";
  out += "      row[q] = there[q] ? r : (int)t->r0;\n      int r_ = row[q];\n";
  for (int d = nest_.rows - 1; d >= 0; --d) {
    if (d == 0)
      out += "      i0[q] = r_;\n";
    else
      out += fmt::format("      i{0}[q] = r_ % {1}, r_ /= {1};\n", d, nest_.dims[d].extent);
  }
  out += "    }\n";
  for (const Load& load : loads_) needed_.insert(load.expr);
  in_walk_ = false;
  loads(out, "    ", false);
  int last = 0;
  for (const Step& step : body_.steps) last = std::max(last, step.pass);
  for (int pass = 0; pass <= last; ++pass) {
    row_stores(pass, out, "    ");
    needed_.clear();
    for (const Step& step : body_.steps)
      if (!step.per_row && step.pass == pass)
        need(step.expr),
            std::for_each(step.at.begin(), step.at.end(), [&](ExprId id) { need(id); });
    if (needed_.empty()) continue;
    std::string walk = "      bool here[U];\n";
    for (size_t d = nest_.rows; d < nest_.dims.size(); ++d)
      walk += fmt::format("      int j{}[U];\n", d);
    walk += fmt::format(
        "      OBK_EACH(u, U) {{\n        int c = c0 + u * kSlices;\n        here[u] = c < {0};\n  "
        "      c = here[u] ? c : {1};\n",
        columns_, columns_ - 1);
    for (int d = static_cast<int>(nest_.dims.size()) - 1; d >= nest_.rows; --d) {
      if (d == nest_.rows)
        walk += fmt::format("        j{}[u] = c;\n", d);
      else
        walk += fmt::format("        j{0}[u] = c % {1}, c /= {1};\n", d, nest_.dims[d].extent);
    }
    walk += "      }\n";
    in_walk_ = true;
    std::string loop =
        fmt::format("    for (int c0 = slice; c0 < {}; c0 += U * kSlices) {{\n", columns_);
    if (slots_ > 0) {
      const std::string each = "OBK_EACH(q, R) OBK_EACH(u, U)", index = "u";
      std::string ask = fmt::format(
          "    char* const own = (char*)w->scratch + {};\n    const auto ask = [&](int c0, int "
          "slot) {{\n    if (c0 < {}) {{\n",
          joined, columns_);
      ask += walk + async_loads("      ", index, each) +
             "    }\n    OBK_COMMIT_COPIES();\n    };\n    int slot = 0;\n";
      ask += fmt::format("    OBK_EACH(k, {}) ask(slice + k * U * kSlices, k);\n", slots_ - 1);
      loop = ask + loop +
             fmt::format(
                 "      ask(c0 + {0} * U * kSlices, slot == 0 ? {0} : slot - 1);\n      "
                 "OBK_AWAIT({0});\n",
                 slots_ - 1);
      walk += taken("      ", index, each) +
              fmt::format("      slot = slot == {} ? 0 : slot + 1;\n", slots_ - 1);
    } else {
      loads(walk, "      ", false);
    }
    walk = loop + walk;
    segment(pass, out, "      ", &walk);
    for (const Load& load : loads_)
      if (load.varies & kByVector) loaded_.erase(load.expr);
  }
  out += "  }\n";
  text.scratch = joined + slots_ * slot_bytes_;
  return text;
}

void VectorEmitter::need(ExprId id) {
  if (id == kNoExpr || !needed_.insert(id).second) return;
  const Expr& expr = exprs_[id];
  for (ExprId arg : expr.args) need(arg);
  for (ExprId coord : expr.coords) need(coord);
}

}  // namespace obelisk::codegen
