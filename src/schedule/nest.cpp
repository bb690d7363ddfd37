#include <algorithm>
#include <functional>
#include <set>

#include "schedule/schedule.h"

namespace obelisk::schedule {
namespace {

using ops::Expr;
using ops::Exprs;
using ops::Scalar;
using stitch::Body;
using stitch::Group;
using stitch::GroupKind;
using stitch::Step;
using stitch::StepKind;

/// The linear offset of coords in a value's storage.
ExprId offset_of(Exprs& exprs, const stitch::Layout& layout, const std::vector<ExprId>& coords) {
  ExprId sum = exprs.integer(layout.offset);
  for (size_t d = 0; d < coords.size(); ++d)
    sum = exprs.add(sum, exprs.mul(coords[d], layout.strides[d]));
  return sum;
}

/// Marks every coordinate that an expression mentions outside of the coordinates of affine loads.
struct Pins {
  const Exprs& exprs;
  const std::set<ExprId>& affine_loads;
  std::set<int> coords;
  std::set<ExprId> seen;
  void walk(ExprId id) {
    if (id == ops::kNoExpr || !seen.insert(id).second) return;
    const Expr& expr = exprs[id];
    if (expr.scalar == Scalar::kCoord) coords.insert(expr.slot);
    if (affine_loads.count(id)) return;
    for (ExprId arg : expr.args) walk(arg);
    for (ExprId coord : expr.coords) walk(coord);
  }
};

}  // namespace

const Access* Nest::of_product(const stitch::Group& group, int which) const {
  const int operand = static_cast<int>(group.body.operands.size()) + which;
  const auto at = std::find_if(accesses.begin(), accesses.end(), [&](const Access& access) {
    return access.operand == operand && access.load == ops::kNoExpr && access.step < 0;
  });
  return at == accesses.end() ? nullptr : &*at;
}

int64_t Nest::row_count() const {
  int64_t count = 1;
  for (int d = 0; d < rows; ++d) count *= dims[d].extent;
  return count;
}
int64_t Nest::column_count() const {
  int64_t count = 1;
  for (size_t d = rows; d < dims.size(); ++d) count *= dims[d].extent;
  return count;
}

Nest fold_domain(const stitch::Plan& plan, const stitch::Group& group) {
  const Body& body = group.body;
  Exprs exprs = body.exprs;  // offsets are computed in a copy
  const int rank = static_cast<int>(body.domain.size());
  Nest nest;
  struct Raw {
    Access access;
    std::vector<int64_t> strides;
  };
  std::vector<Raw> raw;

  // Every load that a step reaches, in order of first use.
  std::vector<ExprId> loads;
  std::set<ExprId> seen;
  std::function<void(ExprId)> find = [&](ExprId id) {
    if (id == ops::kNoExpr || !seen.insert(id).second) return;
    const Expr& expr = body.exprs[id];
    for (ExprId arg : expr.args) find(arg);
    for (ExprId coord : expr.coords) find(coord);
    if (expr.scalar == Scalar::kLoad && expr.slot < stitch::kRowSlot) loads.push_back(id);
  };
  bool reduces = false;
  for (const Step& step : body.steps) {
    find(step.expr);
    if (step.kind == StepKind::kReduce) find(step.finish), reduces = true;
    if (step.kind == StepKind::kStage || step.kind == StepKind::kRow) reduces = true;
    for (ExprId at : step.at) find(at);
  }
  std::set<ExprId> affine_loads;
  Pins pins{body.exprs, affine_loads, {}, {}};
  for (ExprId id : loads) {
    const Expr expr = body.exprs[id];
    Raw entry{{.load = id, .operand = expr.slot}, {}};
    auto at = ops::affine(
        exprs, offset_of(exprs, plan.layouts[body.operands[expr.slot]], expr.coords), rank);
    entry.access.affine = at.has_value();
    if (at) {
      entry.access.offset = at->offset, entry.strides = at->strides;
      if (expr.args[0] == ops::kNoExpr)
        affine_loads.insert(id);
      else
        pins.walk(expr.args[0]), pins.walk(expr.args[1]);
    }
    raw.push_back(std::move(entry));
  }
  for (size_t s = 0; s < body.steps.size(); ++s) {
    const Step& step = body.steps[s];
    pins.walk(step.expr);
    if (step.kind == StepKind::kReduce) pins.walk(step.finish);
    if (step.kind != StepKind::kStore) continue;
    Raw entry{{.step = static_cast<int>(s), .operand = step.slot}, {}};
    auto at =
        ops::affine(exprs, offset_of(exprs, plan.layouts[body.operands[step.slot]], step.at), rank);
    entry.access.affine = at.has_value();
    if (at)
      entry.access.offset = at->offset, entry.strides = at->strides;
    else
      for (ExprId coord : step.at) pins.walk(coord);
    raw.push_back(std::move(entry));
  }

  const bool anchored = group.kind != stitch::GroupKind::kStitched;
  if (group.kind == stitch::GroupKind::kProduct) {  // A and B are walked by the tile: operands
                                                    // after the body's own
    for (int side_of : {0, 1}) {
      Raw entry{{.operand = static_cast<int>(body.operands.size()) + side_of},
                std::vector<int64_t>(rank, 0)};
      entry.access.offset = side_of ? group.product.b_offset : group.product.a_offset;
      for (const auto* dims : {&group.product.batch, &group.product.m, &group.product.n})
        for (const stitch::Product::Dim& dim : *dims)
          entry.strides[dim.c] = side_of ? dim.b : dim.a;
      raw.push_back(std::move(entry));
    }
  }
  nest.cut_columns = !reduces;
  // Merge neighbours from the inside out. Without reductions rows and columns may merge too: then
  // all is one loop.
  auto mergeable = [&](int outer, int inner_first) {
    if (pins.coords.count(outer) || pins.coords.count(inner_first)) return false;
    for (const Raw& entry : raw)
      if (entry.access.affine &&
          entry.strides[outer] != entry.strides[inner_first] * body.domain[inner_first])
        return false;
    return true;
  };
  // Folded dims hold the coords and, per access, the stride of the innermost coordinate.
  std::vector<Nest::Dim> dims;
  std::vector<int> side;  // 0 row, 1 column
  for (int d = 0; d < rank; ++d) {
    if (body.domain[d] == 1) continue;
    const int my_side = d < body.rows ? 0 : 1;
    bool merged = false;
    if (!dims.empty()) {
      const int last = dims.back().coords.back();
      const bool cross = side.back() != my_side;
      bool all = mergeable(last, d);
      if (cross && (reduces || anchored)) all = false;
      if (all) {
        dims.back().extent *= body.domain[d];
        dims.back().coords.push_back(d);
        side.back() = my_side;
        merged = true;
      }
    }
    if (!merged) {
      dims.push_back({body.domain[d], {d}});
      side.push_back(my_side);
    }
  }
  if (!reduces && !anchored) {
    // A body without reductions: the innermost loop is the columns, the others rows.
    nest.rows = std::max<int>(static_cast<int>(dims.size()) - 1, 0);
  } else {
    nest.rows = static_cast<int>(std::count(side.begin(), side.end(), 0));
  }
  nest.dims = std::move(dims);
  for (Raw& entry : raw) {
    if (entry.access.affine)
      for (const Nest::Dim& dim : nest.dims)
        entry.access.strides.push_back(entry.strides[dim.coords.back()]);
    nest.accesses.push_back(std::move(entry.access));
  }
  // Where columns jump and rows do not, the vector runs over rows: column reductions, pooling
  // channels-last.
  if (reduces && nest.rows > 0 && static_cast<size_t>(nest.rows) < nest.dims.size()) {
    // What is the same for neighbouring rows is one word for all of them, and what is the same for
    // neighbouring columns is loaded once a row: neither needs an order.
    int row_unit = 0, column_unit = 0;
    for (const Access& access : nest.accesses) {
      if (!access.affine || access.step >= 0) continue;
      const int64_t row = access.strides[nest.rows - 1], column = access.strides.back();
      row_unit += row == 1 && column != 0;
      column_unit += column == 1 && row != 0;
    }
    for (const Access& access : nest.accesses) {
      if (access.affine || access.step >= 0) continue;
      // A computed read (a window, a looked-up row): unit along what appears with stride one alone,
      // the rows first.
      ExprId offset = offset_of(exprs, plan.layouts[body.operands[access.operand]],
                                body.exprs[access.load].coords);
      const auto unit_along = [&](const Nest::Dim& dim) {
        if (dim.coords.size() != 1) return false;
        std::function<int64_t(ExprId)> stride = [&](ExprId id) -> int64_t {
          const Expr& e = exprs[id];
          if (e.scalar == Scalar::kCoord) return e.slot == dim.coords[0] ? 1 : 0;
          if (e.scalar == Scalar::kAdd) return stride(e.args[0]) + stride(e.args[1]);
          if (e.scalar == Scalar::kMul && exprs[e.args[1]].scalar == Scalar::kConst)
            return stride(e.args[0]) * exprs[e.args[1]].integer;
          return 0;
        };
        return stride(offset) == 1;
      };
      const bool along_rows = unit_along(nest.dims[nest.rows - 1]);
      row_unit += along_rows;
      column_unit += !along_rows && unit_along(nest.dims.back());
    }
    nest.lanes_in_rows = row_unit > column_unit &&
                         nest.dims[nest.rows - 1].extent >= machine::thresholds::kFewestLanes;
    for (const Step& step : body.steps)
      if (step.kind == StepKind::kStage || step.kind == StepKind::kRow) nest.lanes_in_rows = false;
  }
  return nest;
}

int64_t tile_span(const Group& group, const Nest& nest) {
  if (group.kind == GroupKind::kConv) return group.conv.out_height * group.conv.out_width;
  if (group.kind == GroupKind::kAttention) return group.attention.queries;
  if (group.kind != GroupKind::kProduct)
    return group.kind == GroupKind::kCustom ? 1 : nest.row_count();
  if (nest.rows == 0) return 1;
  const Access *a_access = nest.of_product(group, 0), *b_access = nest.of_product(group, 1);
  CHECK(a_access && b_access);
  const int inner = nest.rows - 1;
  return a_access->strides[inner] != 0 && b_access->strides[inner] == 0 ? nest.dims[inner].extent
                                                                        : 1;
}

int64_t tile_span(const Group& group, const Work& work) {
  return group.kind == GroupKind::kConv && work.grid() ? work.nest.row_count()
                                                       : tile_span(group, work.nest);
}

int64_t count_tasks(const Group& group, const Work& work) {
  if (group.kind == GroupKind::kCustom) return 1;
  const int64_t rows = work.nest.row_count(),
                columns = std::max<int64_t>(work.nest.column_count(), 1);
  const int64_t span = std::max<int64_t>(tile_span(group, work), 1);
  return (rows + span - 1) / span * ((span + work.tile_rows - 1) / work.tile_rows) *
         ((columns + work.tile_columns - 1) / work.tile_columns);
}

}  // namespace obelisk::schedule
