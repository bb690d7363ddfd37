#include "schedule/shadow_run.h"

#include <algorithm>

#include "schedule/shadow.h"

namespace obelisk::schedule {

namespace shadow {

Status Shadow::run() {
  TRY_STATUS(prepare());
  std::vector<std::vector<std::pair<const ObkTask*, int>>> waves(
      static_cast<size_t>(std::max(tasks_.waves, 1)));
  for (size_t sm = 0; sm < tasks_.lists.size(); ++sm)
    for (const ObkTask& task : tasks_.lists[sm])
      waves[task.wave].emplace_back(&task, static_cast<int>(sm));
  for (size_t wave = 0; wave < waves.size(); ++wave) {
    wave_ = static_cast<int32_t>(wave);
    TRY_STATUS(read_operands());
    for (const auto& [task, sm] : waves[wave]) {
      TRY_STATUS(read(*task, sm));
      if (tasks_.works[task->work].replicated()) TRY_STATUS(store(*task, sm));
    }
    for (const auto& [task, sm] : waves[wave])
      if (!tasks_.works[task->work].replicated()) TRY_STATUS(store(*task, sm));
    TRY_STATUS(store_whole());
  }
  return check_end();
}

}  // namespace shadow

Status shadow_run(const Graph& graph, const stitch::Plan& plan, const TaskGraph& tasks,
                  const ShadowOptions& options) {
  return shadow::Shadow(graph, plan, tasks, options).run();
}

}  // namespace obelisk::schedule
