#include "passes/remove_dead.h"

namespace obelisk::passes {

Result<graph::Graph> remove_dead(graph::Graph graph) {
  graph.remove_dead();
  return graph.compacted();
}

}  // namespace obelisk::passes
