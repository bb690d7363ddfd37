// Functions that have a shorter form where the rounding of what is stored hides the difference.
#include <algorithm>

#include "codegen/vectors/emitter.h"

namespace obelisk::codegen {

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
/// difference to what its row has one of, and the division by such a number. A batch of one row
/// takes them as any other does.
std::string VectorEmitter::approximate(ExprId id) {
  const Expr& expr = exprs_[id];
  if (const ExprId of = one_plus_erf(expr); of != kNoExpr)
    return fmt::format("obk::one_plus_erf({})", value(of));
  const auto of_a_row = [&](ExprId part) {
    return exprs_[part].scalar != Scalar::kConst && !(varies(part) & (kByVector | kByElement));
  };
  if (flat_or_down() || across_ || expr.dtype != DType::f32 || !(varies(id) & kByElement))
    return "";
  if (expr.scalar == Scalar::kExp) {
    const Expr& gap = exprs_[expr.args[0]];
    if (gap.scalar == Scalar::kSub && of_a_row(gap.args[1]) && rounding_hides(id))
      return fmt::format("obk::exp_approx({})", value(expr.args[0]));
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
    return fmt::format("obk::div_approx({}, {})", value(expr.args[0]), divisor);
  }
  return "";
}

}  // namespace obelisk::codegen
