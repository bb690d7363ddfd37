// Expressions of a body that goes lane by lane: at which level each is printed, and how.
#include <algorithm>

#include "codegen/body_emitter.h"
#include "codegen/expressions.h"
#include "codegen/scalars.h"

namespace obelisk::codegen {

/// The innermost of the levels of what it is made of.
struct BodyEmitter::LevelRules {
  const BodyEmitter& body;
  static Level join(Level x, Level y) { return std::max(x, y); }
  static Level of_accumulator() { return kRow; }
  Level of_coordinate(int slot) const { return of_dimension(body.dim_of_.at(slot)); }
  Level of_dimension(int dim) const { return body.level_of_dim(dim); }
  Level of_made(int slot) const {
    if (slot >= stitch::kStatisticSlot) return kRow;
    if (slot >= stitch::kStageSlot) return kLane;
    return body.nest_.lanes_in_rows ? kLane : kRow;
  }
  const Access& access(ExprId id) const { return *body.load_access_.at(id); }
};
BodyEmitter::Level BodyEmitter::level(ExprId id) {
  return dependence(exprs_, id, level_, LevelRules{*this});
}

/// The name that holds an expression's value at the point where the current segment's innermost
/// statement stands.
std::string BodyEmitter::value(ExprId id) {
  const Expr& expr = exprs_[id];
  if (expr.scalar == Scalar::kConst) return constant(expr);
  if (expr.scalar == Scalar::kAcc) return acc_;
  if (expr.scalar == Scalar::kCoord) return var(dim_of_.at(expr.slot));
  const Level at = level(id);
  if (auto it = named_[at].find(id); it != named_[at].end()) return it->second;
  std::string text;
  if (expr.scalar == Scalar::kLoad) {
    text = load(id, expr);
  } else {
    std::string args[3];
    for (int a = 0; a < 3; ++a)
      if (expr.args[a] != kNoExpr) args[a] = value(expr.args[a]);
    text = scalar_text(exprs_, expr, args);
  }
  const std::string name = fmt::format("e{}", names_++);
  line(at, fmt::format("const {} {} = {};", arithmetic_name(expr.dtype), name, text));
  named_[at][id] = name;
  return name;
}

std::string BodyEmitter::constant(const Expr& expr) {
  if (is_float(expr.dtype) && shapes_) return float_param(expr);
  if (expr.dtype == DType::i64 && (expr.integer > 2 || expr.integer < -2))
    return param(expr.integer);
  return constant_text(expr);
}

/// A floating constant that follows from a shape (1/n of a mean) travels by its bits.
std::string BodyEmitter::float_param(const Expr& expr) {
  int64_t pattern = 0;
  const double real = expr.real;
  __builtin_memcpy(&pattern, &real, sizeof pattern);
  const std::string slot = param(pattern);
  return fmt::format("(({})obk::as_double({}))", arithmetic_name(expr.dtype), slot);
}

std::string BodyEmitter::load(ExprId id, const Expr& expr) {
  if (expr.slot >= stitch::kStatisticSlot)
    return fmt::format("statistics[2 * (r - t->r0) + {}]", expr.slot - stitch::kStatisticSlot);
  if (expr.slot >= stitch::kTileSlot)
    return expr.slot > stitch::kTileSlot ? "tile[tile_at + (t->c1 - t->c0)]" : "tile[tile_at]";
  if (expr.slot >= stitch::kStageSlot)
    return fmt::format("g{}[stage_at]", expr.slot - stitch::kStageSlot);
  if (expr.slot >= stitch::kRowSlot) return held("w", expr.slot - stitch::kRowSlot);
  const std::string base = pointer(expr.slot, false);
  const std::string at =
      load_access_.at(id)->affine
          ? affine_offset(*load_access_.at(id), fmt::format("a{}", id), level(id))
          : computed_offset(expr);
  std::string text = fmt::format("obk::load({}, {})", base, at);
  if (expr.args[0] != kNoExpr) {
    const std::string guard = value(expr.args[0]), otherwise = value(expr.args[1]);
    text = fmt::format("{} ? {} : {}", guard, text, otherwise);
  }
  return text;
}

/// The offset of an affine access, its outer part computed once per row and once per outer
/// column.
std::string BodyEmitter::affine_offset(const Access& access, const std::string& key,
                                       Level deepest) {
  std::string name;
  for (int at = kRow; at <= deepest; ++at) {
    std::string sum = at == kRow ? (access.offset ? param(access.offset) : "") : name;
    bool any = at == kRow;
    for (size_t d = 0; d < access.strides.size(); ++d) {
      if (!access.strides[d] || level_of_dim(static_cast<int>(d)) != at) continue;
      const std::string index = var(static_cast<int>(d));
      const std::string term = static_cast<int>(d) == lane_ && access.strides[d] == 1
                                   ? index
                                   : fmt::format("{} * {}", index, stride(access, d));
      sum += (sum.empty() ? "" : " + ") + term;
      any = true;
    }
    if (!any) continue;
    if (sum.empty()) sum = "0";
    if (at == deepest && at == kLane) return sum;
    const std::string held = fmt::format("{}_{}", key, at);
    if (auto [it, fresh] = offsets_[at].try_emplace(held, held); fresh)
      line(static_cast<Level>(at), fmt::format("const int64_t {} = {};", held, sum));
    name = held;
  }
  return name;
}

std::string BodyEmitter::computed_offset(const Expr& expr) {
  const stitch::Layout& layout = (*layouts_)[body_.operands[expr.slot]];
  return offset_text(layout, expr.coords);
}

std::string BodyEmitter::offset_text(const stitch::Layout& layout,
                                     const std::vector<ExprId>& coords) {
  std::string sum = layout.offset ? param(layout.offset) : "";
  for (size_t d = 0; d < coords.size(); ++d) {
    const Expr& coord = exprs_[coords[d]];
    if (coord.scalar == Scalar::kConst && coord.integer == 0) continue;
    const std::string index = value(coords[d]);
    sum +=
        (sum.empty() ? "" : " + ") +
        (layout.strides[d] == 1 ? index : fmt::format("{} * {}", index, param(layout.strides[d])));
  }
  return sum.empty() ? "0" : sum;
}

}  // namespace obelisk::codegen
