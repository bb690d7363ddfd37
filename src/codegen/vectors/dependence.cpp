// What a value varies with.
#include <algorithm>

#include "codegen/expressions.h"
#include "codegen/vectors/emitter.h"

namespace obelisk::codegen {

/// Whether an expression is the innermost column itself.
bool VectorEmitter::is_lane(ExprId id) const {
  const Expr& expr = exprs_[id];
  return expr.scalar == Scalar::kCoord && dim_of_.count(expr.slot) &&
         dim_of_.at(expr.slot) == lane_ && nest_.dims[lane_].coords.size() == 1;
}

int VectorEmitter::varies_by(int dim) const {
  const int outer = dim < nest_.rows ? kByRow : kByVector;
  return dim == lane_ ? outer | kByElement : outer;
}

struct VectorEmitter::VariesRules {
  const VectorEmitter& rows;
  static int join(int x, int y) { return x | y; }
  int of_accumulator() const { return kByRow | kByPass | (rows.across_ ? kByElement : 0); }
  int of_coordinate(int slot) const {
    return rows.dim_of_.count(slot) ? of_dimension(rows.dim_of_.at(slot)) : 0;
  }
  int of_dimension(int dim) const { return rows.varies_by(dim); }
  int of_made(int slot) const {
    if (slot >= stitch::kStatisticSlot) return kByRow | kByTile;
    if (slot >= stitch::kTileSlot) return kByRow | kByVector | kByElement | kByTile;
    if (slot >= stitch::kStageSlot) return kByRow | kByVector | kByElement | kByPass;
    return of_accumulator();
  }
  const Access& access(ExprId id) const { return *rows.load_access_.at(id); }
};
int VectorEmitter::varies(ExprId id) { return dependence(exprs_, id, varies_, VariesRules{*this}); }

int VectorEmitter::depth(ExprId id) {
  if (id == kNoExpr) return 0;
  const Expr& expr = exprs_[id];
  int below = 0;
  for (ExprId arg : expr.args) below = std::max(below, depth(arg));
  if (expr.scalar != Scalar::kLoad || expr.slot >= stitch::kRowSlot) return below;
  if (!load_access_.at(id)->affine)
    for (ExprId coord : expr.coords) below = std::max(below, depth(coord));
  return below + 1;
}

/// How far behind the innermost column an index is; none: it is no such index.
std::optional<int64_t> VectorEmitter::behind_lane(ExprId id) const {
  if (is_lane(id)) return 0;
  const Expr& expr = exprs_[id];
  if (expr.scalar != Scalar::kAdd && expr.scalar != Scalar::kSub) return std::nullopt;
  const Expr &x = exprs_[expr.args[0]], &y = exprs_[expr.args[1]];
  const bool minus = expr.scalar == Scalar::kSub;
  if (y.scalar == Scalar::kConst)
    if (const auto at = behind_lane(expr.args[0])) return minus ? *at - y.integer : *at + y.integer;
  if (x.scalar == Scalar::kConst && !minus)
    if (const auto at = behind_lane(expr.args[1])) return *at + x.integer;
  return std::nullopt;
}

bool VectorEmitter::same_in_vector(ExprId id, int64_t v) const {
  if (id == kNoExpr || !(varies_.at(id) & kByElement)) return true;
  const Expr& expr = exprs_[id];
  const auto same = [&](ExprId arg) { return same_in_vector(arg, v); };
  switch (expr.scalar) {
    case Scalar::kNot:
    case Scalar::kAnd:
    case Scalar::kOr:
    case Scalar::kXor:
      return std::all_of(std::begin(expr.args), std::end(expr.args), same);
    case Scalar::kLt:
    case Scalar::kLe: {
      // What is less than a bound begins or ends where the index reaches it.
      const auto x = behind_lane(expr.args[0]), y = behind_lane(expr.args[1]);
      const Expr &of_x = exprs_[expr.args[0]], &of_y = exprs_[expr.args[1]];
      const int64_t or_equal = expr.scalar == Scalar::kLe;
      if (x && of_y.scalar == Scalar::kConst) return (of_y.integer + or_equal - *x) % v == 0;
      if (y && of_x.scalar == Scalar::kConst) return (of_x.integer + !or_equal - *y) % v == 0;
      return false;
    }
    default:
      return false;
  }
}

/// Whether `part` is among what `id` is made of.
bool made_of(const ops::Exprs& exprs, ExprId id, const Expr& part) {
  std::vector<bool> made(static_cast<size_t>(id) + 1);
  const auto in = [&](ExprId arg) { return arg != kNoExpr && made[arg]; };
  for (ExprId e = 0; e <= id; ++e)  // arguments come before what is made of them
    made[e] = &exprs[e] == &part ||
              std::any_of(std::begin(exprs[e].args), std::end(exprs[e].args), in) ||
              std::any_of(exprs[e].coords.begin(), exprs[e].coords.end(), in);
  return made[id];
}

}  // namespace obelisk::codegen
