/// codegen/expressions.h — what rows in lanes and rows in vectors share: a nest by its names, and
/// the walk that finds what an expression depends on. What each makes of a leaf is theirs
/// (lane_expressions.cpp, vectors/dependence.cpp).
#pragma once

#include <map>

#include "schedule/schedule.h"

namespace obelisk::codegen {

/// The folded dimension of each coordinate of the body's domain, and how each load and each store
/// step of a nest reaches its operand.
inline void index_nest(const schedule::Nest& nest, std::map<int, int>& dim_of,
                       std::map<ops::ExprId, const schedule::Access*>& loads,
                       std::map<int, const schedule::Access*>& stores) {
  for (size_t d = 0; d < nest.dims.size(); ++d)
    for (const int coord : nest.dims[d].coords) dim_of[coord] = static_cast<int>(d);
  for (const schedule::Access& access : nest.accesses) {
    if (access.load != ops::kNoExpr)
      loads[access.load] = &access;
    else if (access.step >= 0)
      stores[access.step] = &access;
  }
}

/// Joins over all that `id` is made of. `known` holds what has been found before. Of `rules`:
///
///   join(x, y)
///   of_coordinate(slot)    a coordinate of the body's domain
///   of_dimension(d)        one of the folded nest, along which an operand is read
///   of_made(slot)          what the body makes itself: values of a row, staged ones, a tile's
///   of_accumulator()
///   access(id)             how the nest reads an operand
template <typename Value, typename Rules>
Value dependence(const ops::Exprs& exprs, ops::ExprId id, std::map<ops::ExprId, Value>& known,
                 const Rules& rules) {
  if (const auto it = known.find(id); it != known.end()) return it->second;
  const ops::Expr& expr = exprs[id];
  Value result{};
  const auto join = [&](Value value) { result = rules.join(result, value); };
  const auto join_all = [&](const auto& of) {
    for (const ops::ExprId each : of)
      if (each != ops::kNoExpr) join(dependence(exprs, each, known, rules));
  };
  switch (expr.scalar) {
    case ops::Scalar::kCoord:
      join(rules.of_coordinate(expr.slot));
      break;
    case ops::Scalar::kConst:
      break;
    case ops::Scalar::kAcc:
      join(rules.of_accumulator());
      break;
    case ops::Scalar::kLoad:
      if (expr.slot >= stitch::kRowSlot) {
        join(rules.of_made(expr.slot));
        break;
      }
      if (const schedule::Access& access = rules.access(id); access.affine) {
        for (size_t d = 0; d < access.strides.size(); ++d)
          if (access.strides[d]) join(rules.of_dimension(static_cast<int>(d)));
      } else {
        join_all(expr.coords);
      }
      join_all(expr.args);
      break;
    default:
      join_all(expr.args);
  }
  return known[id] = result;
}

}  // namespace obelisk::codegen
