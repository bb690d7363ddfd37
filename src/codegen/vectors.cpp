#include "codegen/vectors.h"

#include "codegen/vector_emitter.h"

namespace obelisk::codegen {

/// What is the same for all rows serves few of them where tasks are dealt (a norm's scale): it is
/// loaded where it is used, so that it holds no registers before.
void VectorEmitter::hold_back() {
  if (flat_ || overlaps_) return;
  for (const Load& load : loads_) {
    if ((load.varies & kByRow) || !packs(load, v_) || exprs_[load.expr].args[0] != kNoExpr) continue;
    if (load_access_.at(load.expr)->affine) held_.insert(load.expr);
  }
}

/// In row mode: the columns of this thread's vectors.
void VectorEmitter::columns_text(std::string& out) const {
  if (flat_) return;
  out += fmt::format("  constexpr bool kFull = {} % OBK_LANES_OF({}) == 0;\n", vectors_, lanes_);
  out += "  int col[U];\n  bool here[U];\n";
  std::string decode;
  for (int d = nest_.rows; d <= lane_; ++d) out += fmt::format("  int j{}[U];\n", d);
  out += "  OBK_EACH(u, U) {\n";
  out += fmt::format("    const int n = u * OBK_LANES_OF({}) + lane;\n    here[u] = kFull || n < {};\n    col[u] = here[u] ? n * V : 0;\n    int c = col[u];\n", lanes_, vectors_);
  for (int d = lane_; d >= nest_.rows; --d) {
    if (d == nest_.rows) out += fmt::format("    j{}[u] = c;\n", d);
    else out += fmt::format("    j{0}[u] = c % {1}, c /= {1};\n", d, nest_.dims[d].extent);
  }
  out += "  }\n";
}

/// 1 + erf(x), of which GELU is made: x, where results of 16 bits are stored; kNoExpr: it is something else.
ExprId VectorEmitter::one_plus_erf(const Expr& expr) const {
  if (expr.scalar != Scalar::kAdd || expr.dtype != DType::f32) return kNoExpr;
  for (const Step& step : body_.steps)
    if (step.kind != StepKind::kStore || bits(stored_type(step)) > 16) return kNoExpr;
  for (int side : {0, 1}) {
    const Expr &erf = exprs_[expr.args[side]], &one = exprs_[expr.args[1 - side]];
    if (erf.scalar == Scalar::kErf && erf.dtype == DType::f32 && one.scalar == Scalar::kConst && one.real == 1) return erf.args[0];
  }
  return kNoExpr;
}

std::string VectorEmitter::unindented(const std::string& text) {
  std::string out;
  size_t at = 0;
  while (at < text.size()) {
    size_t end = text.find('\n', at);
    if (end == std::string::npos) end = text.size();
    const std::string line = text.substr(at, end - at);
    out += (line.starts_with("  ") ? line.substr(2) : line) + "\n";
    at = end + 1;
  }
  return out;
}

std::optional<VectorText> emit_vectors(const VectorJob& job) {
  VectorEmitter emitter(job);
  std::optional<VectorText> text = emitter.run();
  if (text && !text->begins) text->ahead = job.begin + text->ahead;
  if (text && job.dealt) text->ahead = fmt::format("  OBK_RESIDENT({})\n", job.residents ? job.residents : emitter.residents()) + text->ahead;
  return text;
}

}  // namespace obelisk::codegen
