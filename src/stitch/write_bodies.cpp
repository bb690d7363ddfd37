#include "stitch/write_bodies.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace obelisk::stitch {
namespace {

using ops::Expr;
using ops::Exprs;
using ops::Scalar;

bool is_expensive(Scalar scalar) {
  switch (scalar) {
    case Scalar::kExp:
    case Scalar::kLog:
    case Scalar::kLog1p:
    case Scalar::kExpm1:
    case Scalar::kErf:
    case Scalar::kSin:
    case Scalar::kCos:
    case Scalar::kTan:
    case Scalar::kAsin:
    case Scalar::kAcos:
    case Scalar::kAtan:
    case Scalar::kSinh:
    case Scalar::kCosh:
    case Scalar::kTanh:
    case Scalar::kAsinh:
    case Scalar::kAcosh:
    case Scalar::kAtanh:
    case Scalar::kSigmoid:
    case Scalar::kPow:
    case Scalar::kAtan2:
    case Scalar::kFmod:
    case Scalar::kMod:
      return true;
    default:
      return false;
  }
}

template <typename F>
void for_children(const Expr& expr, F&& f) {
  for (ExprId arg : expr.args)
    if (arg != kNoExpr) f(arg);
  for (ExprId coord : expr.coords) f(coord);
}

/// What staging needs to know of every expression of a body.
class Passes {
 public:
  Passes(const Body& body, const std::vector<bool>& is_column, const std::vector<Step>& steps)
      : exprs_(body.exprs), is_column_(is_column) {
    row_pass_.assign(body.row_values, 0);
    stage_pass_.assign(body.staged, 0);
    for (const Step& step : steps) {
      if (step.kind == StepKind::kReduce) row_pass_[step.slot] = pass(step.expr) + 1;
      if (step.kind == StepKind::kRow) row_pass_[step.slot] = pass(step.expr);
      if (step.kind == StepKind::kStage) stage_pass_[step.slot] = pass(step.expr);
    }
  }
  /// The first pass over the columns in which an expression can be computed.
  int pass(ExprId id) {
    auto [it, fresh] = pass_.try_emplace(id, 0);
    if (!fresh) return it->second;
    const Expr& expr = exprs_[id];
    int p = 0;
    if (expr.scalar == Scalar::kLoad && expr.slot >= kRowSlot && expr.slot < kStageSlot)
      p = row_pass_[expr.slot - kRowSlot];
    if (expr.scalar == Scalar::kLoad && expr.slot >= kStageSlot && expr.slot < kTileSlot)
      p = stage_pass_[expr.slot - kStageSlot];
    for_children(expr, [&](ExprId child) { p = std::max(p, pass(child)); });
    return pass_[id] = p;
  }
  bool per_column(ExprId id) {
    auto [it, fresh] = column_.try_emplace(id, false);
    if (!fresh) return it->second;
    const Expr& expr = exprs_[id];
    bool c = (expr.scalar == Scalar::kCoord && is_column_[expr.slot]) ||
             (expr.scalar == Scalar::kLoad && expr.slot >= kTileSlot && expr.slot < kStatisticSlot);
    for_children(expr, [&](ExprId child) { c = per_column(child) || c; });
    return column_[id] = c;
  }

 private:
  const Exprs& exprs_;
  const std::vector<bool>& is_column_;
  std::vector<int> row_pass_, stage_pass_;
  std::map<ExprId, int> pass_;
  std::map<ExprId, bool> column_;
};

/// Loads whose addresses are strides: what their coordinates would compute is nowhere computed.
std::set<ExprId> strided_loads(const Views& views, const Body& body) {
  std::set<ExprId> found;
  Exprs exprs = body.exprs;  // addresses are computed in a copy
  for (ExprId id = 0; id < body.exprs.size(); ++id) {
    const Expr& expr = body.exprs[id];
    if (expr.scalar != Scalar::kLoad || expr.slot >= kRowSlot || expr.coords.empty()) continue;
    const ExprId address = views.offset(exprs, body.operands[expr.slot], expr.coords);
    if (ops::affine(exprs, address, static_cast<int>(body.domain.size()))) found.insert(id);
  }
  return found;
}

/// Numbers that follow from coordinates alone: these are computed again sooner than stored and
/// read.
class Indices {
 public:
  explicit Indices(const Exprs& exprs) : exprs_(exprs) {}
  bool has(ExprId id) {
    if (const auto known = known_.find(id); known != known_.end()) return known->second;
    bool index = exprs_[id].dtype == DType::i64 && exprs_[id].scalar != Scalar::kLoad;
    for_children(Expr(exprs_[id]), [&](ExprId child) { index = index && has(child); });
    return known_[id] = index;
  }

 private:
  const Exprs& exprs_;
  std::map<ExprId, bool> known_;
};

/// Stages expensive values that a later pass over the row needs again. Returns the first that has
/// no place, or kNoExpr.
ExprId stage(const Views& views, Body& body, const std::vector<bool>& is_column,
             const machine::Machine& device, std::vector<Step>& steps) {
  if (body.row_values == 0) return kNoExpr;
  int64_t columns = 1;
  for (size_t s = 0; s < is_column.size(); ++s)
    if (is_column[s]) columns *= body.domain[s];
  Passes passes(body, is_column, steps);
  const std::set<ExprId> strided = strided_loads(views, body);
  Indices indices(body.exprs);
  std::map<ExprId, std::set<int>> used_in;  // expensive expression → passes that use it
  for (const Step& step : steps) {
    if (step.per_row) continue;
    const int at = passes.pass(step.expr);
    std::set<ExprId> seen;
    std::function<void(ExprId)> walk = [&](ExprId id) {
      if (!seen.insert(id).second) return;
      if (is_expensive(body.exprs[id].scalar) && passes.per_column(id) && !indices.has(id))
        used_in[id].insert(at);
      if (!strided.count(id)) return for_children(body.exprs[id], walk);
      for (const ExprId arg : body.exprs[id].args)
        if (arg != kNoExpr) walk(arg);
    };
    walk(step.expr);
  }
  std::map<ExprId, int> chosen;  // → stage slot
  int64_t bytes = 0;
  ExprId homeless = kNoExpr;
  for (auto& [id, in] : used_in) {
    if (in.size() < 2) continue;
    const int64_t more = columns * byte_size(ops::compute_type(body.exprs[id].dtype), 1);
    if (bytes + more > device.scratchpad.count) {
      if (homeless == kNoExpr) homeless = id;
      continue;
    }
    bytes += more;
    chosen[id] = body.staged++;
    body.stage_types.push_back(ops::compute_type(body.exprs[id].dtype));
  }
  if (chosen.empty()) return homeless;
  std::vector<Step> out;
  std::set<int> done;
  std::vector<ExprId> coords;
  for (size_t s = 0; s < body.domain.size(); ++s)
    coords.push_back(body.exprs.coord(static_cast<int>(s), body.domain[s]));
  auto same_load = [&](int slot, DType dtype, std::vector<ExprId> at, ExprId guard,
                       ExprId otherwise) {
    return body.exprs.load(slot, dtype, std::move(at), guard, otherwise);
  };
  for (Step& step : steps) {
    // Just before the first step that computes it, a chosen value becomes a step of its own; every
    // use then reads the row.
    std::function<void(ExprId)> make = [&](ExprId id) {
      for_children(Expr(body.exprs[id]), make);
      auto it = chosen.find(id);
      if (it == chosen.end() || !done.insert(it->second).second) return;
      Step staged{.kind = StepKind::kStage, .expr = id, .slot = it->second, .node = step.node};
      Exprs::Known known;
      for (auto& [other, slot] : chosen)
        if (other != id && done.count(slot))
          known[other] = body.exprs.load(kStageSlot + slot, body.stage_types[slot], {});
      staged.expr = body.exprs.import(body.exprs, id, coords, same_load, kNoExpr, &known);
      out.push_back(staged);
    };
    if (!step.per_row) make(step.expr);
    Exprs::Known known;
    for (auto& [id, slot] : chosen)
      if (done.count(slot))
        known[id] = body.exprs.load(kStageSlot + slot, body.stage_types[slot], {});
    step.expr = body.exprs.import(body.exprs, step.expr, coords, same_load, kNoExpr, &known);
    out.push_back(step);
  }
  steps = std::move(out);
  return homeless;
}

/// The first node of the group whose value needs `id`.
NodeId node_of(const Graph& graph, const Draft& draft, ExprId id) {
  const Exprs& exprs = draft.group.body.exprs;
  std::set<ExprId> seen;
  std::function<bool(ExprId)> needs = [&](ExprId at) {
    if (at == id) return true;
    bool found = false;
    if (seen.insert(at).second)
      for_children(exprs[at], [&](ExprId child) { found = found || needs(child); });
    return found;
  };
  for (NodeId n : draft.group.nodes)
    for (ValueId v : graph.node(n).outputs) {
      const auto member = v == graph::kNone ? draft.members.end() : draft.members.find(v);
      seen.clear();
      if (member != draft.members.end() && !member->second.per_row && needs(member->second.value))
        return n;
    }
  return graph::kNone;
}

/// The order of the domain's coordinates in the finished body: rows, then columns, each by
/// descending stride of what is stored.
std::vector<int> domain_order(const Graph& graph, const Views& views, const Draft& draft,
                              const std::vector<ValueId>& stored, int& rows) {
  const Body& body = draft.group.body;
  const int rank = static_cast<int>(body.domain.size());
  std::vector<int64_t> weight(rank, 0);
  int64_t largest = -1;
  auto consider = [&](int64_t size, const std::vector<int64_t>& strides) {  // by slot
    if (size <= largest) return;
    largest = size;
    weight = strides;
  };
  Exprs exprs = body.exprs;
  for (ValueId v : stored) {
    const Member& member = draft.members.at(v);
    if (member.per_row) continue;
    std::vector<int64_t> strides(rank, 0);
    for (size_t d = 0; d < member.at.size(); ++d) {
      const Expr& at = body.exprs[member.at[d]];
      if (at.scalar == Scalar::kCoord) strides[at.slot] = views.layout(v).strides[d];
    }
    if (auto place = ops::affine(exprs, views.offset(exprs, v, member.at), rank))
      strides = place->strides;
    consider(graph.type(v).count() * 4 + 1, strides);
  }
  if (largest < 0) {  // a group that only stores row values: follow the largest read
    for (ExprId id = 0; id < body.exprs.size(); ++id) {
      const Expr expr = body.exprs[id];
      if (expr.scalar != Scalar::kLoad || expr.slot >= kRowSlot || expr.coords.empty()) continue;
      const ValueId v = body.operands[expr.slot];
      if (auto at = ops::affine(exprs, views.offset(exprs, v, expr.coords), rank))
        consider(graph.type(v).count(), at->strides);
    }
  }
  std::vector<int> order(rank);
  std::iota(order.begin(), order.end(), 0);
  if (draft.anchored) {
    // A tile's own rows stand innermost, so that one tile spans many: matrices, then their rows,
    // then columns.
    std::vector<int> place(rank, 0);
    for (const Product::Dim& dim : draft.group.product.m) place[dim.c] = 1;
    for (int s = 0; s < rank; ++s)
      if (draft.is_column[s]) place[s] = 2;
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return place[a] < place[b]; });
  } else {
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      if (draft.is_column[a] != draft.is_column[b]) return draft.is_column[a] < draft.is_column[b];
      return std::abs(weight[a]) > std::abs(weight[b]) && body.domain[a] != 1 &&
             body.domain[b] != 1;
    });
  }
  rows = static_cast<int>(std::count(draft.is_column.begin(), draft.is_column.end(), false));
  return order;
}

}  // namespace

std::vector<ValueId> stored_members(const Graph& graph, const Views& views,
                                    const Grouping& grouping, const Draft& draft) {
  std::vector<ValueId> stored;
  for (NodeId n : draft.group.nodes) {
    for (ValueId v : graph.node(n).outputs) {
      if (v == graph::kNone || !draft.members.count(v)) continue;
      if (views.needs_storage(v) || grouping.read_outside.count(v)) stored.push_back(v);
    }
  }
  return stored;
}

NodeId write_body(const Graph& graph, const Views& views, const Grouping& grouping,
                  const machine::Machine& device, Draft& draft) {
  if (calls_op(draft.group.kind)) return graph::kNone;
  Body& body = draft.group.body;
  std::vector<Step> steps = draft.reduce_steps;
  const std::vector<ValueId> stored = stored_members(graph, views, grouping, draft);
  for (ValueId v : stored) {
    const Member& member = draft.members.at(v);
    Step step{.kind = StepKind::kStore,
              .expr = member.value,
              .per_row = member.per_row,
              .node = graph.value(v).producer};
    step.slot = static_cast<int>(body.operands.size());
    step.at = member.at;
    body.operands.push_back(v);
    steps.push_back(std::move(step));
  }
  const ExprId homeless = stage(views, body, draft.is_column, device, steps);
  const NodeId without_place = homeless == kNoExpr ? graph::kNone : node_of(graph, draft, homeless);
  Passes passes(body, draft.is_column, steps);
  for (Step& step : steps) step.pass = passes.pass(step.expr);

  int rows = 0;
  const std::vector<int> order = domain_order(graph, views, draft, stored, rows);
  Body ordered;
  ordered.rows = rows;
  std::vector<ExprId> coords(order.size());
  for (size_t k = 0; k < order.size(); ++k) {
    ordered.domain.push_back(body.domain[order[k]]);
    coords[order[k]] = ordered.exprs.coord(static_cast<int>(k), body.domain[order[k]]);
  }
  // Operands that no surviving expression reads (a member used to read them) are dropped, the
  // others keep their order.
  std::map<int, int> renamed;
  auto load = [&](int slot, DType dtype, std::vector<ExprId> at, ExprId guard, ExprId otherwise) {
    if (slot < kRowSlot) {
      auto [it, fresh] = renamed.try_emplace(slot, static_cast<int>(ordered.operands.size()));
      if (fresh) ordered.operands.push_back(body.operands[slot]);
      slot = it->second;
    }
    return ordered.exprs.load(slot, dtype, std::move(at), guard, otherwise);
  };
  for (const Step& step : steps) {
    Step made = step;
    made.expr = ordered.exprs.import(body.exprs, step.expr, coords, load);
    if (step.kind == StepKind::kReduce) {
      const ExprId acc = ordered.exprs.acc(ops::compute_type(body.exprs[step.expr].dtype));
      made.finish = ordered.exprs.import(body.exprs, step.finish, coords, load, acc);
    }
    made.at.clear();
    for (ExprId at : step.at) made.at.push_back(ordered.exprs.import(body.exprs, at, coords, load));
    if (step.kind == StepKind::kStore) {
      made.slot = static_cast<int>(ordered.operands.size());
      ordered.operands.push_back(body.operands[step.slot]);
    }
    ordered.steps.push_back(std::move(made));
  }
  ordered.row_values = body.row_values, ordered.row_types = body.row_types;
  ordered.staged = body.staged, ordered.stage_types = body.stage_types;
  if (draft.group.kind == GroupKind::kProduct) {
    for (auto* dims :
         {&draft.group.product.batch, &draft.group.product.m, &draft.group.product.n}) {
      for (Product::Dim& dim : *dims) {
        dim.c = std::find(order.begin(), order.end(), static_cast<int>(dim.c)) - order.begin();
      }
      std::sort(dims->begin(), dims->end(), [](auto& x, auto& y) { return x.c < y.c; });
    }
  }
  if (draft.anchored) {
    draft.group.anchor_coords.resize(order.size());
    for (size_t k = 0; k < order.size(); ++k)
      draft.group.anchor_coords[static_cast<size_t>(order[k])] = static_cast<int>(k);
  }
  draft.group.body = std::move(ordered);
  return without_place;
}

}  // namespace obelisk::stitch
