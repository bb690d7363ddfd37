#include <algorithm>
#include <map>

#include "codegen/block.h"
#include "codegen/body.h"
#include "codegen/codegen.h"

namespace obelisk::codegen {

Source emit(const graph::Graph& graph, const stitch::Plan& plan, const schedule::TaskGraph& tasks,
            const kernels::TileLibrary& tiles) {
  Source source;
  source.tiles = &tiles;
  std::map<Hash, int> known;
  // Beside tiles, whose weights stream through the same memory, rows that are loaded ahead get a
  // part of it.
  const bool has_tiles =
      std::any_of(plan.groups.begin(), plan.groups.end(), [](const stitch::Group& group) {
        return group.kind != stitch::GroupKind::kStitched && !stitch::calls_op(group.kind);
      });
  const int64_t ahead_bytes =
      has_tiles ? tasks.scratchpad.count / 8 : tasks.scratchpad.count / 4 * 3;
  for (const schedule::Work& work : tasks.works) {
    const stitch::Group& group = plan.groups[work.group];
    if (group.kind == stitch::GroupKind::kCustom) {
      source.body_of_work.push_back(-1);
      source.params.emplace_back();
      source.scratch.emplace_back();
      continue;
    }
    const bool packed = schedule::work_packs_weights(plan.groups[work.group], tasks, work, tiles);
    EmittedBody body =
        group.kind == stitch::GroupKind::kBlock
            ? emit_block(graph, group)
            : emit_body(graph, group, work, plan.layouts, packed, tiles, ahead_bytes);
    source.scratch.push_back({body.scratch, body.row_scratch});
    body.traits.operands = static_cast<int64_t>(work.buffers.size());
    body.traits.params = static_cast<int64_t>(body.params.size());
    const std::string wrong = disagreement(body.traits);
    CHECK(wrong.empty(), "{}: {}", wrong, to_string(body.traits));
    const Hash hash = identity(body.text, body.traits);
    auto [it, fresh] = known.try_emplace(hash, static_cast<int>(source.bodies.size()));
    if (fresh) {
      std::string label;
      for (graph::NodeId n : group.nodes)
        label += (label.empty() ? "" : " ") + std::string(ops::to_string(graph.node(n).op));
      source.bodies.push_back({std::move(body.text), body.traits, hash, std::move(label)});
    }
    source.body_of_work.push_back(it->second);
    source.params.push_back(std::move(body.params));
  }
  return source;
}

}  // namespace obelisk::codegen
