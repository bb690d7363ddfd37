#include "dispatch.h"

#include <algorithm>
#include <cmath>

#include "compile.h"

namespace obelisk::compiler {
namespace {

std::vector<schedule::Kernel> kernels_of(const Compilation& made, double ridge) {
  const runtime::Program& program = *made.program;
  const auto known = machine::device(program.target, program.sms);
  const machine::Machine machine = known.ok() ? *known : machine::cpu(program.sms);
  std::vector<schedule::Kernel> kernels;
  for (size_t w = 0; w < made.tasks.works.size(); ++w) {
    const stitch::Group& group = made.plan.groups[static_cast<size_t>(made.tasks.works[w].group)];
    const graph::NodeId anchor = group.anchor == graph::kNone ? group.nodes.front() : group.anchor;
    schedule::Kernel kernel{.name = program.works[w].label, .launches = false};
    if (kernel.name.empty()) kernel.name = ops::to_string(made.graph.node(anchor).op);
    const double bytes = static_cast<double>(group.cost.read.count + group.cost.written.count);
    const schedule::Classified classified =
        schedule::classify(static_cast<double>(group.cost.flops.count), bytes, ridge,
                           ops::to_string(made.graph.node(anchor).op));
    kernel.kind = classified.kind, kernel.why_kind = classified.why;
    kernels.push_back(std::move(kernel));
  }
  std::vector<int64_t> tasks_of(program.works.size(), 0);
  for (const auto& list : program.lists)
    for (const ObkTask& task : list) ++tasks_of[task.work];
  for (const runtime::LaunchReport& launch : made.executable->launches()) {
    schedule::Kernel& kernel = kernels[static_cast<size_t>(launch.work)];
    const schedule::Work& work = made.tasks.works[static_cast<size_t>(launch.work)];
    const double roof =
        schedule::roof_nanos(made.plan.groups[static_cast<size_t>(work.group)], machine);
    kernel.launches = true;
    kernel.demand = {launch.shared_bytes, launch.threads, launch.registers, launch.ctas};
    // Its tasks in rounds of all multiprocessors, and no less than what it moves takes.
    const double rounds = std::ceil(
        static_cast<double>(tasks_of[static_cast<size_t>(launch.work)]) / std::max(program.sms, 1));
    kernel.demand.nanos = std::max({roof, rounds * work.task_nanos, 1.0});
  }
  return kernels;
}

}  // namespace

Status dispatch_kernels(const Options& options, double ridge, Compilation& made) {
  if (!made.program->on_gpu() || made.program->granularity == machine::Granularity::kMono)
    return ok_status();
  Dispatching all;
  TRY(all.dependencies, schedule::true_dependencies(made.graph, made.plan, made.tasks));
  TRY_STATUS(schedule::validate_order(made.graph, made.plan, made.tasks, all.dependencies.dag));
  all.kernels = kernels_of(made, ridge);
  std::vector<int> waves;
  for (const schedule::Work& work : made.tasks.works) waves.push_back(work.wave);
  schedule::DispatchOptions how = options.dispatch;
  how.sms = made.program->sms;
  if (options.dispatch_from.empty()) {
    TRY(all.dispatch, schedule::dispatch(all.dependencies.dag, all.kernels, waves, how));
  } else {
    all.dispatch.policy = "given", all.dispatch.launch_order = "given",
    all.dispatch.kernels = options.dispatch_from;
    for (const schedule::Dispatched& each : options.dispatch_from)
      all.dispatch.lanes = std::max(all.dispatch.lanes, each.lane + 1);
    if (Status sound = schedule::validate_dispatch(all.dependencies.dag, all.kernels, all.dispatch);
        !sound.ok())
      return Error{Code::kUsage, "compile", sound.error().message, "",
                   "--dispatch-from takes what --emit dispatch wrote of this program"};
    all.dispatch.predicted_nanos = schedule::predict(all.dispatch.kernels, all.kernels, how.sms);
  }
  if (all.dispatch.policy != "waves") {
    runtime::Program program = *made.program;
    program.dispatch = all.dispatch.kernels;
    program.objects = made.executable->objects();  // what was compiled stays
    made.program = std::make_shared<runtime::Program>(std::move(program));
    TRY(made.executable, runtime::load(made.program, options.load));
  }
  made.dispatching = std::move(all);
  return ok_status();
}

std::string explain_dispatch(const Compilation& made, bool explain) {
  if (!made.dispatching) return "no graph of kernels\n";
  const Dispatching& all = *made.dispatching;
  return schedule::print(all.dispatch, all.kernels) +
         (explain ? schedule::print(all.dependencies) : "");
}

}  // namespace obelisk::compiler
