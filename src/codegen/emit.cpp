#include <map>

#include "codegen/codegen.h"
#include "codegen/block.h"
#include "codegen/body.h"

namespace obelisk::codegen {

Source emit(const graph::Graph& graph, const stitch::Plan& plan, const schedule::TaskGraph& tasks, const kernels::TileLibrary& tiles) {
  Source source;
  source.tiles = &tiles;
  std::map<Hash, int> known;
  for (const schedule::Work& work : tasks.works) {
    const stitch::Group& group = plan.groups[work.group];
    if (group.kind == stitch::GroupKind::kCustom) {
      source.body_of_work.push_back(-1);
      source.params.emplace_back();
      source.scratch.emplace_back();
      continue;
    }
    const bool packed = work_packs_weights(plan, tasks, work);
    EmittedBody body = group.kind == stitch::GroupKind::kBlock
                                ? emit_block(graph, group)
                                : emit_body(graph, group, work, plan.layouts, packed, tiles);
    source.scratch.push_back({body.scratch, body.row_scratch});
    const Hash hash = hash_text(body.text);
    auto [it, fresh] = known.try_emplace(hash, static_cast<int>(source.bodies.size()));
    if (fresh) {
      std::string label;
      for (graph::NodeId n : group.nodes) label += (label.empty() ? "" : " ") + std::string(ops::to_string(graph.node(n).op));
      source.bodies.push_back({std::move(body.text), hash, std::move(label)});
    }
    source.body_of_work.push_back(it->second);
    source.params.push_back(std::move(body.params));
  }
  return source;
}

bool work_packs_weights(const stitch::Plan& plan, const schedule::TaskGraph& tasks, const schedule::Work& work) {
  const stitch::Group& group = plan.groups[work.group];
  if (group.kind == stitch::GroupKind::kConv) return true;
  if (group.kind != stitch::GroupKind::kProduct || !group.product.batch.empty()) return false;
  return tasks.buffers[work.buffers.back()].kind == schedule::BufferKind::kWeight;
}

}  // namespace obelisk::codegen
