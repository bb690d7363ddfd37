#include "passes/copy_ready_pieces.h"

#include <algorithm>
#include <set>

#include "passes/rewrite.h"

namespace obelisk::passes {
namespace {

constexpr size_t kMostRuns = 2;  // each is a kernel; chosen, not measured

/// Operands that are neighbours and have no place in the concatenation, or one that has.
struct Run {
  std::vector<ValueId> pieces;
  bool placed = false;
};

std::vector<Run> runs_of(const Node& concat, const std::vector<bool>& placeable) {
  std::vector<Run> runs;
  for (size_t k = 0; k < concat.inputs.size(); ++k)
    if (!placeable[k] && !runs.empty() && !runs.back().placed)
      runs.back().pieces.push_back(concat.inputs[k]);
    else
      runs.push_back({{concat.inputs[k]}, placeable[k]});
  return runs;
}

bool is_worth_it(const Graph& graph, const std::vector<Run>& runs, const std::vector<int>& stages) {
  int64_t copied = 0, all = 0;
  int ready = 0, last = -1;
  for (const Run& run : runs)
    for (const ValueId v : run.pieces) {
      const int stage = stages[static_cast<size_t>(v)];
      const int64_t count = graph.type(v).count();
      all += count, copied += run.placed ? 0 : count;
      int& latest = run.placed ? last : ready;
      latest = std::max(latest, stage);
    }
  const auto copies =
      std::count_if(runs.begin(), runs.end(), [](const Run& run) { return !run.placed; });
  return last >= 0 && copies > 0 && static_cast<size_t>(copies) <= kMostRuns &&
         (ready < last || (last < ready && copies == 1 && 2 * copied <= all));
}

/// Whether somebody reads it as it lies in memory: elementwise ops and moves may read the operands.
bool is_stored(const Graph& graph, ValueId value) {
  const std::vector<NodeId> users = graph.users(value);
  return graph.is_output(value) || std::any_of(users.begin(), users.end(), [&](NodeId user) {
           const ops::Kind kind = ops::row(graph.node(user).op).kind;
           return kind != ops::Kind::kMap && kind != ops::Kind::kMove;
         });
}

}  // namespace

Result<Graph> copy_ready_pieces(Graph graph, const Placeable& placeable) {
  const std::vector<int> stages = stages_of(graph);
  const auto copied = placeable(graph);
  std::set<ValueId> placed;  // each has one place: in the last concatenation
  for (auto each = copied.rbegin(); each != copied.rend(); ++each) {
    const Node concat = graph.node(each->first);
    std::vector<bool> places = each->second;
    for (size_t k = 0; k < places.size(); ++k)
      places[k] = places[k] && placed.count(concat.inputs[k]) == 0;
    const std::vector<Run> runs = runs_of(concat, places);
    if (!is_stored(graph, concat.outputs[0]) || !is_worth_it(graph, runs, stages)) continue;
    std::vector<ValueId> inputs;
    for (const Run& run : runs) {
      ValueId piece = run.pieces.front();
      if (run.placed)
        placed.insert(piece);
      else if (run.pieces.size() > 1)
        piece = graph.must_add(Op::Concat, run.pieces, concat.attrs, concat.name);
      else
        piece = graph.must_add(Op::Identity, {piece}, {}, concat.name);
      inputs.push_back(piece);
    }
    graph.set_inputs(each->first, std::move(inputs));
  }
  return tidy(std::move(graph));
}

}  // namespace obelisk::passes
