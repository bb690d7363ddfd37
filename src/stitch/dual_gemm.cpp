// Products whose halves meet: their group computes both side by side.
#include <algorithm>

#include "stitch/gemm_tile.h"
#include "stitch/views.h"

namespace obelisk::stitch {

using ops::Kind;
using ops::Loop;
using ops::Op;

/// Whether some elementwise op reads what both halves become.
bool Views::halves_meet(const graph::Node& split) const {
  constexpr size_t kMost = 100;
  std::set<NodeId> seen[2];
  for (int side : {0, 1}) {
    std::vector<ValueId> open{split.outputs[side]};
    while (!open.empty() && seen[side].size() < kMost) {
      const ValueId value = open.back();
      open.pop_back();
      for (NodeId user : graph_.users(value)) {
        if (ops::row(graph_.node(user).op).kind != Kind::kMap || !seen[side].insert(user).second)
          continue;
        open.insert(open.end(), graph_.node(user).outputs.begin(), graph_.node(user).outputs.end());
      }
    }
  }
  return std::any_of(seen[0].begin(), seen[0].end(),
                     [&](NodeId user) { return seen[1].count(user) > 0; });
}

/// A product with constant weights that only a split into halves of its columns reads, where the
/// halves meet.
void Views::find_dual_gemms() {
  for (NodeId n : graph_.order()) {
    const graph::Node& split = graph_.node(n);
    if (split.op != Op::Split || split.outputs.size() != 2) continue;
    const ValueId whole = split.inputs[0];
    const graph::Value& value = graph_.value(whole);
    if (value.producer == graph::kNone || graph_.is_output(whole) ||
        graph_.users(whole).size() != 1)
      continue;
    if (split.outputs[0] == graph::kNone || split.outputs[1] == graph::kNone) continue;
    const Shape &shape = value.type.shape, &half = graph_.type(split.outputs[0]).shape;
    if (shape.empty() || half.back() * 2 != shape.back() ||
        half != graph_.type(split.outputs[1]).shape)
      continue;
    const Loop* form = loop(value.producer, 0);
    if (!form || form->finish != kNoExpr || graph_.node(value.producer).outputs.size() != 1)
      continue;
    std::string why;
    const auto product = match_product(graph_, *this, value.producer, why);
    if (!product || !tile_fits(*tiles_, *product, why) || !product->batch.empty() ||
        product->n.size() != 1 || product->split_k > 1)
      continue;
    if (product->n[0].c + 1 != static_cast<int64_t>(shape.size()) ||
        product->n[0].extent != shape.back())
      continue;
    if (!graph_.value(product->b).is_constant() || byte_size(product->b_type, 1) < 2 ||
        !halves_meet(split))
      continue;
    dual_gemms_[value.producer] = n;
    taken_splits_.insert(n);
    view_[n] = false;
  }
}

}  // namespace obelisk::stitch
