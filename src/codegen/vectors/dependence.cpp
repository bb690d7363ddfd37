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
