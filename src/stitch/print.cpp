#include <functional>

#include "stitch/stitch.h"

namespace obelisk::stitch {
namespace {

using ops::Expr;
using ops::Scalar;

std::string show(const Body& body, ExprId id) {
  const Expr& expr = body.exprs[id];
  switch (expr.scalar) {
    case Scalar::kCoord:
      return fmt::format("c{}", expr.slot);
    case Scalar::kConst:
      return is_float(expr.dtype) ? fmt::format("{}", expr.real) : fmt::format("{}", expr.integer);
    case Scalar::kAcc:
      return "acc";
    case Scalar::kLoad: {
      if (expr.slot >= kStatisticSlot)
        return expr.slot > kStatisticSlot ? "inverse deviation" : "mean";
      if (expr.slot >= kTileSlot) return expr.slot > kTileSlot ? "second tile" : "tile";
      if (expr.slot >= kStageSlot) return fmt::format("stage{}", expr.slot - kStageSlot);
      if (expr.slot >= kRowSlot) return fmt::format("row{}", expr.slot - kRowSlot);
      std::string out = fmt::format("%{}[", body.operands[expr.slot]);
      for (size_t d = 0; d < expr.coords.size(); ++d)
        out += (d ? ", " : "") + show(body, expr.coords[d]);
      out += "]";
      if (expr.args[0] != kNoExpr)
        out = fmt::format("({} if {} else {})", out, show(body, expr.args[0]),
                          show(body, expr.args[1]));
      return out;
    }
    default: {
      const bool cast = expr.scalar == Scalar::kCast || expr.scalar == Scalar::kCastSat;
      std::string out = cast ? fmt::format("{}(", to_string(expr.dtype))
                             : fmt::format("{}(", ops::to_string(expr.scalar));
      for (int a = 0; a < 3 && expr.args[a] != kNoExpr; ++a)
        out += (a ? ", " : "") + show(body, expr.args[a]);
      return out + ")";
    }
  }
}

std::string show_step(const Body& body, const Step& step) {
  constexpr std::string_view kCombines[] = {"", "sum", "prod", "max", "min", "any", "all"};
  switch (step.kind) {
    case StepKind::kReduce: {
      std::string out =
          fmt::format("row{} = {} {}", step.slot, kCombines[static_cast<size_t>(step.combine)],
                      show(body, step.expr));
      if (body.exprs[step.finish].scalar != Scalar::kAcc) out += " then " + show(body, step.finish);
      return out;
    }
    case StepKind::kRow:
      return fmt::format("once a row: row{} = {}", step.slot, show(body, step.expr));
    case StepKind::kStage:
      return fmt::format("stage{} = {}", step.slot, show(body, step.expr));
    case StepKind::kStore: {
      std::string out =
          fmt::format("{}%{}[", step.per_row ? "once a row: " : "", body.operands[step.slot]);
      for (size_t d = 0; d < step.at.size(); ++d) out += (d ? ", " : "") + show(body, step.at[d]);
      return out + "] = " + show(body, step.expr);
    }
  }
  return "";
}

}  // namespace

std::string print(const Graph& graph, const Plan& plan, bool edges) {
  std::string out;
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    const Group& group = plan.groups[g];
    out += fmt::format("group {} {}", g, to_string(group.kind));
    if (group.dominant != graph::kNone)
      out += fmt::format(", dominant {}", ops::to_string(graph.node(group.dominant).op));
    if (!group.after.empty()) {
      out += ", after";
      for (int before : group.after) out += fmt::format(" {}", before);
    }
    out += "\n";
    for (NodeId n : group.nodes)
      out += fmt::format("  {} '{}'\n", ops::to_string(graph.node(n).op), graph.node(n).name);
    if (group.kind == GroupKind::kCustom) continue;
    if (group.kind == GroupKind::kBlock) {
      out += fmt::format("  block {} of {}: {} items\n", group.block.name, group.block.header,
                         group.block.items);
      continue;
    }
    if (group.kind == GroupKind::kProduct) {
      auto extent = [](const std::vector<Product::Dim>& dims) {
        int64_t count = 1;
        for (const Product::Dim& dim : dims) count *= dim.extent;
        return count;
      };
      const Product& p = group.product;
      out += fmt::format(
          "  tile = %{} x %{}: batch {} m {} n {} k {}{}{}\n", p.a, p.b, extent(p.batch),
          extent(p.m), extent(p.n), extent(p.k), p.tf32 ? ", tf32" : "",
          !p.statistics.wanted       ? ""
          : p.statistics.of_partials ? ", and statistics of its rows, joined from parts"
                                     : ", and statistics of its rows");
    }
    if (group.kind == GroupKind::kConv) {
      const ConvTile& c = group.conv;
      out += fmt::format("  tile = %{} conv %{}: {} groups, kernel {}x{}, stride {}x{}{}{}\n", c.x,
                         c.w, c.shape.groups, c.kernel_h, c.kernel_w, c.stride_h, c.stride_w,
                         c.depthwise ? ", depthwise" : "", c.tf32 ? ", tf32" : "");
    }
    if (group.kind == GroupKind::kAttention) {
      const AttentionTile& a = group.attention;
      out += fmt::format(
          "  tile = attention of %{} %{} %{}{}: {} images, {} heads{}, {} queries, {} keys of {} "
          "and {}{}{}{}\n",
          a.q.value, a.k.value, a.v.value,
          a.mask.value == graph::kNone ? "" : fmt::format(" mask %{}", a.mask.value), a.images,
          a.heads, a.shared > 1 ? fmt::format(" in groups of {}", a.shared) : "", a.queries, a.keys,
          a.size, a.value_size, a.causal ? ", causal" : "",
          a.zero_if_masked ? ", zero if masked" : "", a.tf32 ? ", tf32" : "");
      if (a.kv_splits > 1) out += fmt::format("  kv_splits {}\n", a.kv_splits);
    }
    const Shape rows(group.body.domain.begin(), group.body.domain.begin() + group.body.rows);
    const Shape columns(group.body.domain.begin() + group.body.rows, group.body.domain.end());
    out += fmt::format("  rows {} columns {}\n", to_string(rows), to_string(columns));
    for (const Step& step : group.body.steps) out += "    " + show_step(group.body, step) + "\n";
  }
  for (ValueId v = 0; v < graph.value_count(); ++v) {
    const Layout& layout = plan.layouts[v];
    if (!layout.materialized) continue;
    const bool plain =
        layout.storage == v && layout.strides == row_major_strides(graph.type(v).shape);
    if (plain) continue;
    out += fmt::format("layout %{} {}: strides {}", v, to_string(graph.type(v)),
                       to_string(Shape(layout.strides)));
    if (layout.storage != v) out += fmt::format(" inside %{} at {}", layout.storage, layout.offset);
    out += "\n";
  }
  for (const InPlace& each : plan.in_place)
    out +=
        fmt::format("output '{}' in place of '{}': {}\n", graph.output_names()[each.output],
                    graph.value(graph.inputs()[each.input]).name,
                    each.group >= 0 ? fmt::format("group {} writes only what differs", each.group)
                                    : "computed elsewhere and copied, since " + each.why);
  if (!edges) return out;
  for (const Edge& edge : plan.edges) {
    out +=
        fmt::format("edge {} '{}' -> {} '{}': {}, {}\n", ops::to_string(graph.node(edge.from).op),
                    graph.node(edge.from).name, ops::to_string(graph.node(edge.to).op),
                    graph.node(edge.to).name, to_string(edge.scheme), edge.why);
  }
  return out;
}

}  // namespace obelisk::stitch
