#include "codegen/vectors.h"

#include "codegen/vector_emitter.h"

namespace obelisk::codegen {

/// What is the same for all rows serves few of them where tasks are dealt (a norm's scale): it is
/// loaded where it is used, so that it holds no registers before.
void VectorEmitter::hold_back() {
  if (flat_ || overlaps_) return;
  for (const Load& load : loads_) {
    if ((load.varies & kByRow) || !packs(load, v_) || exprs_[load.expr].args[0] != kNoExpr)
      continue;
    if (load_access_.at(load.expr)->affine) held_.insert(load.expr);
  }
}

/// Whether `part` is among what `id` is made of.
static bool made_of(const ops::Exprs& exprs, ExprId id, const Expr& part) {
  std::vector<bool> made(static_cast<size_t>(id) + 1);
  const auto in = [&](ExprId arg) { return arg != kNoExpr && made[arg]; };
  for (ExprId e = 0; e <= id; ++e)  // arguments come before what is made of them
    made[e] = &exprs[e] == &part ||
              std::any_of(std::begin(exprs[e].args), std::end(exprs[e].args), in) ||
              std::any_of(exprs[e].coords.begin(), exprs[e].coords.end(), in);
  return made[id];
}

int64_t VectorEmitter::registers_of(const Load& load, int64_t units) const {
  if (!(load.varies & kByElement)) return load.varies & kByVector ? units : 1;
  if (!(load.varies & kByRow) && !flat_ && !across_) return 0;  // once for all rows
  const bool pack = load.expr == kNoExpr || packs(load, v_);
  const bool computed = !pack && load.expr != kNoExpr &&
                        exprs_[load.expr].slot < stitch::kRowSlot &&
                        !load_access_.at(load.expr)->affine;
  const int64_t bytes =
      pack ? byte_size(load.storage, 1)
           : byte_size(ops::compute_type(load.storage), 1) + (computed ? 4 : 0);  // its place
  return (units * v_ * bytes + 3) / 4;
}

int64_t VectorEmitter::registers(int64_t units) const {
  int64_t words = 0;
  for (const Load& load : loads_) words += registers_of(load, units);
  for (const Step& step : body_.steps)
    if (step.kind == StepKind::kStage) words += registers_of(step, units);
  return std::max<int64_t>(words, units * v_ / 2);
}

/// Whether a pass, or one behind it, reads `part`.
bool VectorEmitter::read_from(int pass, ExprId part) const {
  const auto reads = [&](ExprId id) { return id != kNoExpr && made_of(exprs_, id, exprs_[part]); };
  return std::any_of(body_.steps.begin(), body_.steps.end(), [&](const Step& step) {
    return step.pass >= pass && (reads(step.expr) || reads(step.finish) ||
                                 std::any_of(step.at.begin(), step.at.end(), reads));
  });
}

/// What a pass reads for the last time makes room, element by element, for what it stages (a
/// softmax's row).
int64_t VectorEmitter::held_at_once(int64_t units) const {
  int64_t most = units * v_ / 2;
  int last = 0;
  for (const Step& step : body_.steps) last = std::max(last, step.pass);
  for (int pass = 0; pass <= last; ++pass) {
    int64_t words = 0;
    for (const Load& load : loads_)
      if (load.expr == kNoExpr || read_from(pass, load.expr)) words += registers_of(load, units);
    for (const Step& stage : body_.steps) {
      if (stage.kind != StepKind::kStage || stage.pass >= pass) continue;
      bool read = false;
      for (ExprId e = 0; e < exprs_.size(); ++e)
        read = read || (exprs_[e].scalar == Scalar::kLoad &&
                        exprs_[e].slot == stitch::kStageSlot + stage.slot && read_from(pass, e));
      if (read) words += registers_of(stage, units);
    }
    most = std::max(most, words);
  }
  return most;
}

/// Of rows that all threads share as many CTAs as hold a row in registers (H200, LayerNorm of f32:
/// rows of 8192 by three 129.2 us, by two 130.2; of 12288 by two 129.7, by three 136.0; of 16384
/// 130.1 and 187.5; of f16: rows of 8192 by four 68.7, by three 73.5).
int VectorEmitter::residents() const {
  const int64_t narrow = unpacked_anew(1).empty() ? 32 : 48;
  if (lanes_ == kAllThreads && !flat_)
    return words_ <= 16 ? 4 : words_ <= narrow ? 3 : words_ <= 104 ? 2 : 1;
  return words_ <= kFewRegisters ? 4 : words_ <= 64 ? 3 : words_ <= 104 ? 2 : 1;
}

/// Packs of 16 bits that a pass before this one has unpacked, and this one unpacks anew: compilers
/// keep the wide copies from pass to pass, and these are more than a thread's registers hold (H200,
/// LayerNorm of f16: rows of 16384 in 68.3 us, 78.2 without; of 32768 80.6 and 121.9).
std::vector<ExprId> VectorEmitter::unpacked_anew(int pass) const {
  std::vector<ExprId> anew;
  if (pass == 0 || !job_.dealt || flat_ || across_ || words_ < 32) return anew;
  for (const Load& load : loads_)
    if (packs(load, v_) && (load.varies & kByRow) && byte_size(load.storage, 1) == 2 &&
        exprs_[load.expr].slot < stitch::kTileSlot && read_from(pass, load.expr))
      anew.push_back(load.expr);
  return anew;
}

/// In row mode: the columns of this thread's vectors.
void VectorEmitter::columns_text(std::string& out) const {
  if (flat_) return;
  out += fmt::format("  constexpr bool kFull = {} % OBK_LANES_OF({}) == 0;\n", vectors_, lanes_);
  out += "  int col[U];\n  bool here[U];\n";
  std::string decode;
  for (int d = nest_.rows; d <= lane_; ++d) out += fmt::format("  int j{}[U];\n", d);
  out += "  OBK_EACH(u, U) {\n";
  out += fmt::format(
      "    const int n = u * OBK_LANES_OF({}) + lane;\n    here[u] = kFull || n < {};\n    col[u] "
      "= here[u] ? n * V : 0;\n    int c = col[u];\n",
      lanes_, vectors_);
  for (int d = lane_; d >= nest_.rows; --d) {
    if (d == nest_.rows)
      out += fmt::format("    j{}[u] = c;\n", d);
    else
      out += fmt::format("    j{0}[u] = c % {1}, c /= {1};\n", d, nest_.dims[d].extent);
  }
  out += "  }\n";
}

/// 1 + erf(x), of which GELU is made: x, where all that is stored of it has 16 bits; kNoExpr: it is
/// something else.
ExprId VectorEmitter::one_plus_erf(const Expr& expr) const {
  if (expr.scalar != Scalar::kAdd || expr.dtype != DType::f32) return kNoExpr;
  for (const Step& step : body_.steps)
    if (step.kind != StepKind::kStore ||
        (bits(stored_type(step)) > 16 && made_of(exprs_, step.expr, expr)))
      return kNoExpr;
  for (int side : {0, 1}) {
    const Expr &erf = exprs_[expr.args[side]], &one = exprs_[expr.args[1 - side]];
    if (erf.scalar == Scalar::kErf && erf.dtype == DType::f32 && one.scalar == Scalar::kConst &&
        one.real == 1)
      return erf.args[0];
  }
  return kNoExpr;
}

/// Which expressions are made of `id`, by way of what a row has one of and of staged rows too.
std::vector<bool> VectorEmitter::made_from(ExprId id) const {
  std::vector<bool> made(static_cast<size_t>(exprs_.size()));
  const auto in = [&](ExprId e) { return e != kNoExpr && made[e]; };
  const auto given = [&](const Expr& expr) {  // by a step
    return std::any_of(body_.steps.begin(), body_.steps.end(), [&](const Step& step) {
      const bool row = step.kind == StepKind::kReduce || step.kind == StepKind::kRow;
      return (in(step.expr) || in(step.finish)) &&
             ((row && expr.slot == stitch::kRowSlot + step.slot) ||
              (step.kind == StepKind::kStage && expr.slot == stitch::kStageSlot + step.slot));
    });
  };
  made[id] = true;
  for (bool more = true; more;) {
    more = false;
    for (ExprId e = 0; e < exprs_.size(); ++e) {
      const Expr& expr = exprs_[e];
      const bool leaf = expr.scalar == Scalar::kLoad && expr.slot >= stitch::kRowSlot &&
                        expr.slot < stitch::kTileSlot;
      if (made[e] ||
          !(std::any_of(std::begin(expr.args), std::end(expr.args), in) || (leaf && given(expr))))
        continue;
      made[e] = more = true;
    }
  }
  return made;
}

/// Whether all that is stored of a value are floats of 16 bits, by functions that make its error no
/// larger: no floor, no comparison, no logarithm, no root, no division by it but by a sum of
/// exponentials.
bool VectorEmitter::rounding_hides(ExprId id) const {
  const std::vector<bool> made = made_from(id);
  const auto itself = [&](ExprId e) {  // or as it is staged
    while (exprs_[e].scalar == Scalar::kCast && is_float(exprs_[e].dtype)) e = exprs_[e].args[0];
    return e == id || (exprs_[e].scalar == Scalar::kLoad &&
                       std::any_of(body_.steps.begin(), body_.steps.end(), [&](const Step& step) {
                         return step.kind == StepKind::kStage && step.expr == id &&
                                exprs_[e].slot == stitch::kStageSlot + step.slot;
                       }));
  };
  const auto sum_of_it = [&](ExprId by) {
    const Expr& row = exprs_[by];
    return exprs_[id].scalar == Scalar::kExp && row.scalar == Scalar::kLoad &&
           std::any_of(body_.steps.begin(), body_.steps.end(), [&](const Step& step) {
             return step.kind == StepKind::kReduce && step.combine == ops::Combine::kSum &&
                    itself(step.expr) && row.slot == stitch::kRowSlot + step.slot;
           });
  };
  for (ExprId e = 0; e < exprs_.size(); ++e) {
    const Expr& expr = exprs_[e];
    const auto in = [&](int a) { return expr.args[a] != kNoExpr && made[expr.args[a]]; };
    if (!in(0) && !in(1) && !in(2)) continue;
    switch (expr.scalar) {
      case Scalar::kNeg:
      case Scalar::kAbs:
      case Scalar::kAdd:
      case Scalar::kSub:
      case Scalar::kMul:
      case Scalar::kMin:
      case Scalar::kMax:
      case Scalar::kTanh:
      case Scalar::kSigmoid:
      case Scalar::kErf:
        break;
      case Scalar::kCast:
      case Scalar::kCastSat:
        if (!is_float(expr.dtype)) return false;
        break;
      case Scalar::kDiv:
        if (in(1) && !sum_of_it(expr.args[1])) return false;
        break;
      case Scalar::kSelect:
        if (in(0)) return false;
        break;
      default:
        return false;
    }
  }
  return std::all_of(body_.steps.begin(), body_.steps.end(), [&](const Step& step) {
    if (step.kind == StepKind::kReduce)
      return !made[step.expr] || step.finish == kNoExpr ||
             exprs_[step.finish].scalar == Scalar::kAcc;
    return step.kind != StepKind::kStore || !made[step.expr] ||
           (is_float(stored_type(step)) && bits(stored_type(step)) == 16);
  });
}

/// What a softmax and a norm are made of, where rounding hides the difference: the exponential of a
/// difference to what its row has one of, and the division by such a number (H200, softmax of rows
/// of 8192: 65.8 us, 91.9 by the exact ones). A batch of one row takes them as any other does.
std::string VectorEmitter::near(ExprId id) {
  const Expr& expr = exprs_[id];
  if (const ExprId of = one_plus_erf(expr); of != kNoExpr)
    return fmt::format("obk::one_plus_erf({})", value(of));
  const auto of_a_row = [&](ExprId part) {
    return exprs_[part].scalar != Scalar::kConst && !(varies(part) & (kByVector | kByElement));
  };
  if (flat_ || across_ || expr.dtype != DType::f32 || !(varies(id) & kByElement)) return "";
  if (expr.scalar == Scalar::kExp) {
    const Expr& gap = exprs_[expr.args[0]];
    if (gap.scalar == Scalar::kSub && of_a_row(gap.args[1]) && rounding_hides(id))
      return fmt::format("obk::exp_near({})", value(expr.args[0]));
  }
  if (expr.scalar == Scalar::kDiv && of_a_row(expr.args[1]) && varies(expr.args[0]) & kByElement &&
      rounding_hides(id)) {
    std::string& divisor = divisors_[expr.args[1]];
    if (divisor.empty()) {
      const std::string by = value(expr.args[1]);
      divisor = fmt::format("e{}", names_++);
      lines_[kOnce].push_back(
          fmt::format("const obk::Divisor {} = obk::divisor({});", divisor, by));
    }
    return fmt::format("obk::over_near({}, {})", value(expr.args[0]), divisor);
  }
  return "";
}

bool VectorEmitter::flies_ahead() const {
  if (!flat_ || !job_.anchored || batches_ != 1) return false;
  int64_t words = 0;
  for (const Load& load : loads_)
    if (!(load.varies & kByTile))
      words +=
          load.varies & kByElement ? std::max<int64_t>(v_ * byte_size(load.storage, 1) / 4, 1) : 1;
  return words * points_ <= job_.most_ahead;
}

std::string VectorEmitter::overlapped(const std::string& loads) const {
  std::string text = "  struct Batch {\n" + declared("    ") +
                     "  } next;\n  const auto fetch = [&](int base) {\n" + aliases("    ", "next") +
                     loads + "  };\n";
  text += fmt::format("  fetch({});\n", first_text());
  text += loop_head("") + "    const Batch now = next;\n" +
          fmt::format("    if (base + {0} < {1}) fetch(base + {0});\n", step_text(), end_text());
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
  if (text && job.dealt) text->ctas_per_sm = job.residents ? job.residents : emitter.residents();
  return text;
}

}  // namespace obelisk::codegen
