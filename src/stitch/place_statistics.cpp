// A norm's statistics, which the tile gives that reads whole rows.
#include "stitch/former.h"

namespace obelisk::stitch {

/// Whether the body of a product stores `rows` as the rows that `reader` multiplies: it then leaves
/// partial statistics of them, for it has them in registers.
bool Former::leaves_partials(ValueId rows, const Product& reader) {
  const ValueId x = views_.rows_behind(rows);
  const int id = out_.group_of[x];
  if (id < 0 || out_.drafts[id].group.kind != GroupKind::kProduct || reader.a != x ||
      !reader.batch.empty())
    return false;
  Draft& from = out_.drafts[id];
  const auto member = from.members.find(x);
  const Shape& shape = graph_.type(x).shape;
  const Layout& layout = views_.layout(x);
  if (member == from.members.end() || !walks_in_order(from.group.body, member->second.at, shape) ||
      shape.back() % kPartialColumns != 0)
    return false;
  if (from.group.product.dual || !from.group.product.batch.empty()) return false;
  if (layout.storage != x || layout.strides != row_major_strides(shape)) return false;
  if (from.group.partials != graph::kNone && from.group.partials != x) return false;
  from.group.partials = x;
  return true;
}

/// Row values of the product that reads those rows: its tile gives them.
void Former::place_statistics(NodeId n) {
  const graph::Node& node = graph_.node(n);
  ValueId product = node.inputs[1];
  if (const NodeId halves = graph_.producer(product, ops::Op::Split);
      halves != graph::kNone && out_.group_of[product] < 0)
    product = graph_.node(halves).inputs[0];  // they do not meet
  const int id = out_.group_of[product];
  CHECK(id >= 0, "the product of '{}' stands in no group", node.name);
  Draft& draft = out_.drafts[id];
  const Member sum = draft.members.at(product);
  CHECK(draft.group.kind == GroupKind::kProduct &&
            sum.value == draft.group.body.exprs.load(kTileSlot, DType::f32, {}),
        "'{}' is no statistic of a tile's rows", node.name);
  draft.group.product.statistics = {true, node.attrs.get_int("centred", 1) != 0,
                                    leaves_partials(node.inputs[0], draft.group.product),
                                    node.attrs.get_float("epsilon", 1e-5f)};
  Exprs& exprs = draft.group.body.exprs;
  for (int k = 0; k < 2; ++k) {
    Member member{
        .at = sum.at, .value = exprs.load(kStatisticSlot + k, DType::f32, {}), .per_row = true};
    member.at.back() = exprs.integer(0);
    draft.members[node.outputs[k]] = std::move(member);
    out_.group_of[node.outputs[k]] = id;
  }
  draft.group.nodes.push_back(n);
  explain(node.inputs[0], n, Scheme::kRegional,
          "the tile that reads whole rows gives their statistics");
}

}  // namespace obelisk::stitch
