#include "stitch/fold_prologues.h"

#include <algorithm>
#include <map>

#include "stitch/form_groups.h"

namespace obelisk::stitch {
namespace {

/// The group's only stored value, when it is computed row by row and lies densely; else kNone with the reason.
ValueId rows_of(const Graph& graph, const Plan& plan, const Group& group, int64_t rows, int64_t columns, std::string& why) {
  if (group.kind != GroupKind::kStitched) { why = "its producer is not a stitched body"; return graph::kNone; }
  const Body& body = group.body;
  ValueId value = graph::kNone;
  for (const Step& step : body.steps) {
    if (step.kind != StepKind::kStore) continue;
    if (value != graph::kNone || step.per_row) { why = "its producer stores more than A"; return graph::kNone; }
    value = body.operands[step.slot];
    const Layout& layout = plan.layouts[value];
    const Shape& shape = graph.type(value).shape;
    if (layout.storage != value || layout.strides != row_major_strides(shape)) { why = "A does not lie densely"; return graph::kNone; }
    if (!walks_in_order(body, step.at, shape)) { why = "its producer walks A in another order"; return graph::kNone; }
  }
  int64_t body_rows = 1, body_columns = 1;
  for (size_t d = 0; d < body.domain.size(); ++d) (static_cast<int>(d) < body.rows ? body_rows : body_columns) *= body.domain[d];
  if (body_rows != rows || body_columns != columns) { why = "its producer has other rows"; return graph::kNone; }
  return value;
}

/// A's rows one after the other: row r of the tile's rows begins at r * k.
bool reads_rows(const Product& p) {
  if (!p.batch.empty() || p.a_offset != 0 || p.k.size() != 1 || p.k[0].a != 1) return false;
  int64_t stride = p.k[0].extent;
  for (size_t d = p.m.size(); d-- > 0;) {
    if (p.m[d].a != stride) return false;
    stride *= p.m[d].extent;
  }
  return true;
}

}  // namespace

void fold_prologues(const Graph& graph, const kernels::TileLibrary& tiles, const machine::Machine& device, Plan& plan) {
  std::map<ValueId, int> stored_by;
  for (size_t g = 0; g < plan.groups.size(); ++g)
    for (const Step& step : plan.groups[g].body.steps)
      if (step.kind == StepKind::kStore) stored_by[plan.groups[g].body.operands[step.slot]] = static_cast<int>(g);
  for (Group& group : plan.groups) {
    if (group.kind != GroupKind::kProduct) continue;
    const Product& p = group.product;
    const auto producer = stored_by.find(p.a);
    if (producer == stored_by.end() || plan.layouts[p.a].storage != p.a) continue;
    const Group& from = plan.groups[producer->second];
    std::string why;
    int64_t rows = 1;
    for (const Product::Dim& dim : p.m) rows *= dim.extent;
    const int64_t k = p.k.empty() ? 0 : p.k[0].extent;
    constexpr int64_t kLeastRows = 16;  // of a tile, for the recomputation to be shared by enough columns
    const int64_t panel = tiles.gemm.panel_bytes(static_cast<int32_t>(p.a_type), std::min(rows, kLeastRows), k);
    if (!reads_rows(p)) why = "A's rows are not neighbours";
    else if (panel == 0) why = "the machine's tiles take no rows from fast memory";
    else if (panel > device.fast_memory.count / 2) why = "rows of A exceed the fast memory";
    else if (std::count(group.body.operands.begin(), group.body.operands.end(), p.a)) why = "its epilogue reads A as well";
    else if (from.body.operands.size() + group.body.operands.size() > 24) why = "the body has enough operands";
    else if (rows_of(graph, plan, from, rows, k, why) == p.a) {
      group.prologue = from.body;
      group.after.erase(std::remove(group.after.begin(), group.after.end(), producer->second), group.after.end());
      for (int before : from.after)
        if (std::find(group.after.begin(), group.after.end(), before) == group.after.end()) group.after.push_back(before);
      std::sort(group.after.begin(), group.after.end());
      why = "every tile computes its rows of A in fast memory";
    }
    for (Edge& edge : plan.edges) {
      if (edge.to != group.anchor || graph.value(p.a).producer != edge.from) continue;
      if (group.prologue) edge.scheme = Scheme::kRegional;
      edge.why = why;
    }
  }
  // A producer that nobody reads any more goes; the others keep their order.
  std::vector<bool> read(graph.value_count(), false);
  for (ValueId v : graph.outputs()) read[v] = true;
  auto storage_read = [&](ValueId v) { read[v] = read[plan.layouts[v].storage] = true; };
  for (const Group& group : plan.groups) {
    const auto& ops = group.body.operands;
    std::vector<bool> stores(ops.size(), false);
    if (calls_op(group.kind)) {
      for (ValueId v : graph.node(group.anchor).inputs)
        if (v != graph::kNone) storage_read(v);
    } else {
      for (const Step& step : group.body.steps)
        if (step.kind == StepKind::kStore) stores[step.slot] = true;
    }
    for (size_t k = 0; k < ops.size(); ++k)
      if (!stores[k] && !calls_op(group.kind)) storage_read(ops[k]);
    if (group.kind == GroupKind::kProduct) {
      if (!group.prologue) storage_read(group.product.a);
      storage_read(group.product.b);
    }
    if (group.kind == GroupKind::kConv) storage_read(group.conv.x), storage_read(group.conv.w);
    if (group.kind == GroupKind::kAttention)
      for (const auto* side : {&group.attention.q, &group.attention.k, &group.attention.v, &group.attention.mask})
        if (side->value != graph::kNone) storage_read(side->value);
  }
  for (const Group& group : plan.groups) {
    if (!group.prologue) continue;
    for (ValueId v : group.prologue->operands)
      if (v != group.product.a) storage_read(v);
  }
  std::vector<int> place(plan.groups.size(), -1);
  std::vector<Group> kept;
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    Group& group = plan.groups[g];
    bool wanted = group.kind != GroupKind::kStitched;
    for (const Step& step : group.body.steps)
      if (step.kind == StepKind::kStore) {
        const ValueId v = group.body.operands[step.slot];
        wanted = wanted || read[v] || read[plan.layouts[v].storage];
      }
    if (!wanted) {
      for (const Step& step : group.body.steps)
        if (step.kind == StepKind::kStore) plan.layouts[group.body.operands[step.slot]].materialized = false;
      continue;
    }
    place[g] = static_cast<int>(kept.size());
    for (int& before : group.after) before = place[before];
    CHECK(std::find(group.after.begin(), group.after.end(), -1) == group.after.end(), "a group waits for one that went");
    kept.push_back(std::move(group));
  }
  plan.groups = std::move(kept);
}

}  // namespace obelisk::stitch
