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

/// Whether `part` is among what `id` is made of.
static bool made_of(const ops::Exprs& exprs, ExprId id, const Expr& part) {
  std::vector<bool> made(static_cast<size_t>(id) + 1);
  for (ExprId e = 0; e <= id; ++e)  // arguments come before what is made of them
    made[e] = &exprs[e] == &part || std::any_of(std::begin(exprs[e].args), std::end(exprs[e].args), [&](ExprId arg) { return arg != kNoExpr && made[arg]; });
  return made[id];
}

/// 1 + erf(x), of which GELU is made: x, where all that is stored of it has 16 bits; kNoExpr: it is something else.
ExprId VectorEmitter::one_plus_erf(const Expr& expr) const {
  if (expr.scalar != Scalar::kAdd || expr.dtype != DType::f32) return kNoExpr;
  for (const Step& step : body_.steps)
    if (step.kind != StepKind::kStore || (bits(stored_type(step)) > 16 && made_of(exprs_, step.expr, expr))) return kNoExpr;
  for (int side : {0, 1}) {
    const Expr &erf = exprs_[expr.args[side]], &one = exprs_[expr.args[1 - side]];
    if (erf.scalar == Scalar::kErf && erf.dtype == DType::f32 && one.scalar == Scalar::kConst && one.real == 1) return erf.args[0];
  }
  return kNoExpr;
}

bool VectorEmitter::flies_ahead() const {
  if (!flat_ || !job_.anchored || batches_ != 1) return false;
  int64_t words = 0;
  for (const Load& load : loads_)
    if (!(load.varies & kByTile)) words += load.varies & kByElement ? std::max<int64_t>(v_ * byte_size(load.storage, 1) / 4, 1) : 1;
  return words * points_ <= job_.most_ahead;
}

std::string VectorEmitter::overlapped(const std::string& loads) const {
  std::string text = "  struct Batch {\n" + declared("    ") + "  } next;\n  const auto fetch = [&](int base) {\n" + aliases("    ", "next") + loads + "  };\n";
  text += fmt::format("  fetch({});\n", first_text());
  text += loop_head("") + "    const Batch now = next;\n" + fmt::format("    if (base + {0} < {1}) fetch(base + {0});\n", step_text(), end_text());
  return text + aliases("    ", "now");
}

void VectorEmitter::row_values(int pass, std::string& out, const std::string& indent) {
  begin();
  for (const Step& step : body_.steps) {
    if (step.kind != StepKind::kRow || step.pass != pass) continue;
    const std::string type = arithmetic_name(body_.row_types[step.slot]), given = value(step.expr);
    out += fmt::format("{0}{1} w{2}[R];\n{0}OBK_EACH(q, R) {{\n", indent, type, step.slot);
    statements_.push_back(fmt::format("w{}[q] = ({}){};", step.slot, type, given));
    finish_loop(out, indent);
  }
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
