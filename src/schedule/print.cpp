#include "schedule/schedule.h"

namespace obelisk::schedule {

std::string to_string(const KernelForm& form) {
  struct {
    std::string operator()(const TaskList& list) const {
      return list.a_rows ? "lists of tasks, rows of A by block copies" : "lists of tasks";
    }
    std::string operator()(const Grid& grid) const {
      return grid.tasks_per_worker
                 ? fmt::format("a grid, {} tasks a worker at once", grid.tasks_per_worker)
                 : "a grid, as many tasks a worker as have room";
    }
    std::string operator()(const Rectangles&) const { return "a grid of rectangles"; }
    std::string operator()(const PipelinedGemm& gemm) const {
      return fmt::format("a pipelined GEMM{}{}, a persistent task a worker",
                         gemm.tall ? " of tall tiles" : "",
                         gemm.parts > 1 ? fmt::format(", {} parts of k", gemm.parts) : "");
    }
    std::string operator()(const Gang& gang) const {
      return fmt::format("lists of tasks, {} run at once", gang.size);
    }
  } name;
  return std::visit(name, form);
}

std::string print(const Graph& graph, const stitch::Plan& plan, const TaskGraph& tasks) {
  constexpr std::string_view kKinds[] = {"input", "output", "weight", "arena"};
  std::string out = fmt::format("{} waves, {} works, {} tasks, arena {}\n", tasks.waves,
                                tasks.works.size(), tasks.task_count(), to_string(tasks.arena));
  if (tasks.dataflow)
    out += fmt::format("dataflow: no barriers, copies in {} of scratchpad memory\n",
                       to_string(tasks.copies));
  for (size_t b = 0; b < tasks.buffers.size(); ++b) {
    const Buffer& buffer = tasks.buffers[b];
    out += fmt::format("buffer {} {} {}: {}", b,
                       buffer.value == graph::kNone ? "of gangs" : fmt::format("%{}", buffer.value),
                       to_string(buffer.type), kKinds[static_cast<size_t>(buffer.kind)]);
    if (buffer.kind == BufferKind::kArena)
      out += fmt::format(" at {} for {}, waves {}..{}", buffer.offset.count, buffer.size.count,
                         buffer.first, buffer.last);
    else
      out += fmt::format(" {}", buffer.index);
    if (buffer.reach != Reach::kAll)
      out += fmt::format(", {}", buffer.reach == Reach::kBroadcast ? "broadcast" : "local");
    if (buffer.copy_at.count >= 0) out += fmt::format(", copies at {}", buffer.copy_at.count);
    out += "\n";
  }
  for (int wave = 0; wave < tasks.waves; ++wave) {
    out += fmt::format("wave {}\n", wave);
    for (size_t w = 0; w < tasks.works.size(); ++w) {
      const Work& work = tasks.works[w];
      if (work.wave != wave) continue;
      const stitch::Group& group = plan.groups[work.group];
      out += fmt::format("  work {} {}", w, stitch::to_string(group.kind));
      for (graph::NodeId n : group.nodes)
        out += fmt::format(" {}", ops::to_string(graph.node(n).op));
      if (group.kind != stitch::GroupKind::kCustom) {
        out += fmt::format(": {} x {}, tiles {} x {}", work.nest.row_count(),
                           work.nest.column_count(), work.tile_rows, work.tile_columns);
        if (work.nest.lanes_in_rows) out += ", lanes over rows";
        if (work.replicated()) out += ", by each for itself";
      }
      out += "; buffers";
      for (int b : work.buffers) out += fmt::format(" {}", b);
      out += "\n";
    }
  }
  return out;
}

}  // namespace obelisk::schedule
