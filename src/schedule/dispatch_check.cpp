// Refuses a dispatch that loses an edge, a kernel or the order of a lane.
#include "schedule/dispatch.h"

namespace obelisk::schedule {
namespace {

Error refused(std::string text) {
  return Error{Code::kBuild, "schedule", "the dispatch is refused: " + std::move(text), "",
               "this is a defect of Obelisk; please report it with the model"};
}

}  // namespace

Status validate_dispatch(const Dag& dag, const std::vector<Kernel>& kernels,
                         const Dispatch& dispatch) {
  Dag edges(dag.size());
  std::vector<int> place(dag.size(), -1);
  for (size_t k = 0; k < dispatch.kernels.size(); ++k) {
    const Dispatched& each = dispatch.kernels[k];
    if (each.kernel < 0 || each.kernel >= dag.size())
      return refused(fmt::format("it has kernel {} of {}", each.kernel, dag.size()));
    if (each.position != static_cast<int>(k))
      return refused(
          fmt::format("kernel {} has position {} instead of {}", each.kernel, each.position, k));
    if (place[each.kernel] >= 0) return refused(fmt::format("it has kernel {} twice", each.kernel));
    if (!kernels[each.kernel].launches)
      return refused(fmt::format("kernel {} launches nothing", each.kernel));
    if (each.lane < 0 || each.lane >= dispatch.lanes)
      return refused(
          fmt::format("kernel {} has lane {} of {}", each.kernel, each.lane, dispatch.lanes));
    for (const int before : each.predecessors) {
      if (before < 0 || before >= dag.size() || place[before] < 0)
        return refused(fmt::format("kernel {} follows kernel {}, which is not launched before it",
                                   each.kernel, before));
      edges.add(before, each.kernel);
    }
    place[each.kernel] = static_cast<int>(k);
  }
  for (int v = 0; v < dag.size(); ++v)
    if (kernels[v].launches && place[v] < 0) return refused(fmt::format("it lacks kernel {}", v));
  // A kernel that launches nothing stands for its predecessors.
  for (int v = 0; v < dag.size(); ++v)
    if (!kernels[v].launches)
      for (const int before : dag.before[v]) edges.add(before, v);
  for (int v = 0; v < dag.size(); ++v)
    if (kernels[v].launches)
      for (const int before : dag.before[v])
        if (!kernels[before].launches) edges.add(before, v);
  TRY(const Reachability reaches, Reachability::make(edges));
  for (int v = 0; v < dag.size(); ++v)
    for (const int before : dag.before[v])
      if (!reaches(before, v))
        return refused(
            fmt::format("no edges lead from kernel {} to kernel {}, which follows it", before, v));
  std::vector<int> last(dispatch.lanes, -1);
  for (const Dispatched& each : dispatch.kernels) {
    if (last[each.lane] >= 0 && !reaches(last[each.lane], each.kernel))
      return refused(fmt::format("kernel {} does not follow kernel {}, before it in lane {}",
                                 each.kernel, last[each.lane], each.lane));
    last[each.lane] = each.kernel;
  }
  return ok_status();
}

}  // namespace obelisk::schedule
