#include "dispatch.h"

#include <algorithm>

#include "compile.h"
#include "kernel_profiles.h"
#include "time_in_turns.h"

namespace obelisk::compiler {
namespace {

std::vector<schedule::Kernel> kernels_of(const Compilation& made, const machine::Machine& machine) {
  const runtime::Program& program = *made.program;
  const double ridge = machine.flops_per_sm / machine.bytes_per_sm;
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
  const std::vector<schedule::Need> needs = schedule::kernel_needs(made.plan, made.tasks, machine);
  for (const runtime::LaunchReport& launch : made.executable->launches()) {
    schedule::Kernel& kernel = kernels[static_cast<size_t>(launch.work)];
    kernel.launches = true;
    kernel.demand = {launch.shared_bytes, launch.threads, launch.registers, launch.ctas,
                     needs[static_cast<size_t>(launch.work)].nanos};
  }
  return kernels;
}

/// The same program and machine code, its kernels dispatched like that.
Result<std::shared_ptr<const runtime::Executable>> dispatched(const Compilation& made,
                                                              const schedule::Dispatch& dispatch,
                                                              const runtime::LoadOptions& load) {
  if (dispatch.policy == "waves") return made.executable;
  runtime::Program program = *made.program;
  program.dispatch = dispatch.kernels;
  program.objects = made.executable->objects();  // what was compiled stays
  return runtime::load(std::make_shared<runtime::Program>(std::move(program)), load);
}

/// Durations of kernels by their own time stamps, from a run in which none is beside another.
/// Nothing for kernels whose stamps say nothing.
Result<std::map<int, double>> measure_kernels(const runtime::Executable& sequential,
                                              const std::vector<Tensor>& inputs) {
  TRY(const auto context, run_once(sequential, inputs));
  TRY(const std::vector<runtime::TaskTime> tasks, context->task_times());
  std::map<int, std::pair<double, double>> spans;
  for (const runtime::TaskTime& task : tasks) {
    const auto [at, fresh] = spans.try_emplace(task.work, task.start_us, task.end_us);
    if (fresh) continue;
    at->second.first = std::min(at->second.first, task.start_us);
    at->second.second = std::max(at->second.second, task.end_us);
  }
  std::map<int, double> nanos;
  for (const auto& [kernel, span] : spans)
    if (span.second > span.first) nanos[kernel] = 1e3 * (span.second - span.first);
  return nanos;
}

/// `auto` where there is a GPU: kernels are timed by their stamps, candidates are made from these
/// durations and timed in turns. What was measured before, of the same program on the same GPU, is
/// not measured again.
Status choose_by_measurement(const Options& options, const std::vector<int>& waves,
                             const schedule::DispatchOptions& how, Compilation& made,
                             Dispatching& all) {
  const KernelProfiles profiles(runtime::cache_folder(options.load.cache_dir));
  const Hash key = profile_key(*made.executable, how);
  const std::optional<KernelProfile> known = profiles.find(key);
  KernelProfile profile = known.value_or(KernelProfile{});
  const auto make = [&](const std::string& policy) {
    schedule::DispatchOptions one = how;
    one.policy = policy;
    if (policy == "waves") one.launch_order.clear(), one.streams = 0;
    return schedule::dispatch(all.dependencies.dag, all.kernels, waves, one);
  };

  std::vector<Tensor> inputs;
  std::shared_ptr<const runtime::Executable> sequential;
  if (!known) {
    inputs = verify::generate_inputs(made.graph, options.verification.seed);
    TRY(const schedule::Dispatch one_lane, make("sequential"));
    TRY(sequential, dispatched(made, one_lane, options.load));
    TRY(profile.nanos, measure_kernels(*sequential, inputs));
  }
  for (const auto& [kernel, nanos] : profile.nanos)
    if (kernel >= 0 && static_cast<size_t>(kernel) < all.kernels.size())
      all.kernels[static_cast<size_t>(kernel)].demand.nanos = nanos;

  std::vector<schedule::Dispatch> dispatches;
  for (const char* policy : schedule::kPolicies) {
    TRY(schedule::Dispatch one, make(policy));
    dispatches.push_back(std::move(one));
  }
  if (!known) {
    std::vector<std::shared_ptr<const runtime::Executable>> executables;
    std::vector<Timed> timed;
    for (const schedule::Dispatch& one : dispatches) {
      auto loaded = one.policy == "sequential" ? sequential : dispatched(made, one, options.load);
      if (!loaded.ok() && loaded.error().code != Code::kMemory) return loaded.error();
      executables.push_back(loaded.ok() ? *loaded
                                        : nullptr);  // no room beside the others: left out
      if (loaded.ok()) timed.push_back({executables.back().get()});
    }
    TRY_STATUS(time_in_turns(timed, inputs));
    for (size_t k = 0; k < dispatches.size(); ++k)
      for (const Timed& each : timed)
        if (each.executable == executables[k].get() && each.refused.empty())
          profile.us[dispatches[k].policy] = each.us;
    profiles.keep(key, *made.executable->device(), all.kernels, profile);
  }

  size_t best = 0;
  std::string times;
  for (size_t k = 0; k < dispatches.size(); ++k) {
    const auto us = profile.us.find(dispatches[k].policy);
    if (us == profile.us.end()) continue;
    times += fmt::format("{}{} {:.1f}", times.empty() ? "" : ", ", us->first, us->second);
    const auto waves_us = profile.us.find("waves");
    const auto best_us = profile.us.find(dispatches[best].policy);
    if ((waves_us == profile.us.end() ||
         us->second < machine::thresholds::kWorthLeaving * waves_us->second) &&
        (best_us == profile.us.end() || us->second < best_us->second))
      best = k;
  }
  all.dispatch = std::move(dispatches[best]);
  all.dispatch.reason =
      fmt::format("{}, measured{} (us): {}", all.dispatch.policy, known ? " before" : "", times);
  return ok_status();
}

}  // namespace

Status dispatch_kernels(const Options& options, const machine::Machine& machine,
                        Compilation& made) {
  if (!made.program->on_gpu() || made.program->granularity == machine::Granularity::kMono)
    return ok_status();
  Dispatching all;
  TRY(all.dependencies, schedule::true_dependencies(made.graph, made.plan, made.tasks));
  TRY_STATUS(schedule::validate_order(made.graph, made.plan, made.tasks, all.dependencies.dag));
  all.kernels = kernels_of(made, machine);
  std::vector<int> waves;
  for (const schedule::Work& work : made.tasks.works) waves.push_back(work.wave);
  schedule::DispatchOptions how = options.dispatch;
  how.sms = made.program->sms;
  how.node_nanos = machine.costs.graph_node, how.edge_nanos = machine.costs.graph_edge;
  const runtime::DeviceReport* device = made.executable->device();
  if (options.dispatch_from.empty() && how.policy == "auto" && device && !device->gpu.empty()) {
    TRY_STATUS(choose_by_measurement(options, waves, how, made, all));
  } else if (options.dispatch_from.empty()) {
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
    all.dispatch.predicted_nanos = schedule::predict(all.dispatch.kernels, all.kernels, how);
  }
  TRY(made.executable, dispatched(made, all.dispatch, options.load));
  made.program =
      std::shared_ptr<const runtime::Program>(made.executable, &made.executable->program());
  made.dispatching = std::move(all);
  return ok_status();
}

std::string explain_dispatch(const Compilation& made, bool explain) {
  if (!made.dispatching) return "no graph of kernels\n";
  const Dispatching& all = *made.dispatching;
  std::string text = schedule::print(all.dispatch, all.kernels);
  if (made.tasks.arena_one_by_one.count > 0)
    text += fmt::format("arena {}; {} if kernels ran one after another\n",
                        to_string(made.tasks.arena), to_string(made.tasks.arena_one_by_one));
  return text + (explain ? schedule::print(all.dependencies) : "");
}

}  // namespace obelisk::compiler
