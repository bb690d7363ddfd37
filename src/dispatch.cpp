#include "dispatch.h"

#include <algorithm>
#include <set>

#include "compile.h"
#include "measured_dispatch.h"
#include "schedule/cost_model.h"
#include "schedule/local_search.h"

namespace obelisk::compiler {
namespace {

/// What each work is called and of which class; it launches nothing so far.
std::vector<schedule::Kernel> named_kernels(const Lowered& made, const machine::Machine& machine) {
  std::vector<schedule::Kernel> kernels;
  for (const schedule::Work& work : made.tasks.works) {
    const stitch::Group& group = made.plan.groups[static_cast<size_t>(work.group)];
    const graph::NodeId anchor = group.anchor == graph::kNone ? group.nodes.front() : group.anchor;
    const std::string_view op = ops::to_string(made.graph.node(anchor).op);
    schedule::Kernel kernel{.name = made.graph.node(group.nodes.front()).name, .launches = false};
    if (kernel.name.empty()) kernel.name = op;
    const schedule::Classified classified = schedule::class_of(made.graph, group, machine);
    kernel.kind = classified.kind, kernel.why_kind = classified.why;
    kernels.push_back(std::move(kernel));
  }
  return kernels;
}

std::vector<schedule::Kernel> kernels_of(const Loaded& in_waves, const machine::Machine& machine) {
  const runtime::Program& program = in_waves.executable->program();
  std::vector<schedule::Kernel> kernels = named_kernels(in_waves.made, machine);
  for (size_t w = 0; w < kernels.size(); ++w)
    if (!program.works[w].label.empty()) kernels[w].name = program.works[w].label;
  const std::vector<schedule::Need> needs =
      schedule::kernel_needs(in_waves.made.plan, in_waves.made.tasks, machine);
  for (const runtime::LaunchReport& launch : in_waves.executable->launches()) {
    schedule::Kernel& kernel = kernels[static_cast<size_t>(launch.work)];
    kernel.launches = true;
    kernel.demand = {launch.shared_bytes, launch.threads, launch.registers, launch.ctas,
                     needs[static_cast<size_t>(launch.work)].nanos};
  }
  return kernels;
}

/// The same of a CPU: works that have tasks.
std::vector<schedule::Kernel> kernels_of(const Lowered& made, const machine::Machine& machine) {
  std::vector<schedule::Kernel> kernels = named_kernels(made, machine);
  const std::vector<schedule::Need> needs = schedule::kernel_needs(made.plan, made.tasks, machine);
  for (const auto& list : made.tasks.lists)
    for (const ObkTask& task : list) ++kernels[task.work].demand.blocks;
  for (size_t w = 0; w < kernels.size(); ++w)
    kernels[w].launches = kernels[w].demand.blocks > 0, kernels[w].demand.nanos = needs[w].nanos;
  return kernels;
}

schedule::DispatchRules rules_of(const Options& options) {
  const auto has = [&](const char* rule) { return options.disabled.count(rule) == 0; };
  return {.classes = has("dispatch_classes"),
          .demand = has("dispatch_demand"),
          .priorities = has("dispatch_priorities"),
          .early = has("dispatch_early")};
}

/// The program of the table that was made for waves; nothing where there is none or it takes more
/// memory than is admitted.
std::shared_ptr<const runtime::Program> plain_waves_of(const Options& options,
                                                       const Loaded& loaded) {
  if (!loaded.made.tasks_in_waves) return nullptr;
  runtime::Program program = runtime::with_table(loaded.executable->program(), loaded.made.plan,
                                                 *loaded.made.tasks_in_waves);
  program.objects = loaded.executable->objects();  // what was compiled stays
  if (options.admits && !options.admits(program).ok()) return nullptr;
  return std::make_shared<runtime::Program>(std::move(program));
}

std::vector<int> waves_of(const schedule::TaskGraph& tasks) {
  std::vector<int> waves;
  for (const schedule::Work& work : tasks.works) waves.push_back(work.wave);
  return waves;
}

Result<schedule::Dependencies> dependencies_of(const Lowered& made,
                                               const schedule::TaskGraph& tasks) {
  TRY(schedule::Dependencies dependencies,
      schedule::true_dependencies(made.graph, made.plan, tasks));
  TRY_STATUS(schedule::validate_order(made.graph, made.plan, tasks, dependencies.dag));
  return dependencies;
}

/// The waves that other dispatches are compared with, by the table that was made for them.
Result<schedule::Dispatch> waves_dispatch(schedule::DispatchOptions how, const Loaded& loaded,
                                          const std::vector<schedule::Kernel>& kernels) {
  how.policy = "waves", how.launch_order.clear(), how.streams = 0, how.search_seconds = 0;
  const schedule::TaskGraph& tasks = loaded.tasks_in_waves();
  TRY(const schedule::Dependencies dependencies, dependencies_of(loaded.made, tasks));
  return schedule::dispatch(dependencies.dag, kernels, waves_of(tasks), how);
}

/// A local search by predicted time, for a GPU that is not there, in place of what `auto` chose by
/// prediction.
Status search_by_prediction(const std::vector<int>& waves, const schedule::DispatchOptions& how,
                            Dispatching& all) {
  constexpr int kMost = 1000;  // candidates: the same ones, wherever there is time enough
  schedule::DispatchOptions one = how;
  one.policy = all.dispatch.policy == "waves" ? "critical" : all.dispatch.policy;
  one.search_seconds = 0;
  TRY(schedule::Dispatch from, schedule::dispatch(all.dependencies.dag, all.kernels, waves, one));
  double least = from.predicted_nanos;
  const auto judge = [&](const schedule::Dispatch& candidate) -> Result<bool> {
    if (candidate.predicted_nanos >= least) return false;
    least = candidate.predicted_nanos;
    return true;
  };
  const schedule::SearchLimits limits{.seconds = how.search_seconds, .judged = kMost};
  TRY(schedule::Searched searched, schedule::local_search(all.dependencies.dag, all.kernels,
                                                          std::move(from), how, limits, judge));
  const double before = all.dispatch.predicted_nanos;
  if (searched.better == 0 || least >= machine::thresholds::kWorthLeaving * before)
    return ok_status();
  searched.dispatch.reason = fmt::format("search, {:.1f} us after {} candidates; {}", least / 1000,
                                         searched.judged, all.dispatch.reason);
  all.dispatch = std::move(searched.dispatch);
  return ok_status();
}

/// Whether no two kernels of any wave launch: each follows the one before it.
bool follow_one_another(const std::vector<int>& waves,
                        const std::vector<schedule::Kernel>& kernels) {
  std::set<int> seen;
  for (size_t k = 0; k < kernels.size(); ++k)
    if (kernels[k].launches && !seen.insert(waves[k]).second) return false;
  return true;
}

/// Dependencies of a table, checked, and the options that its machine decides.
struct Asked {
  Dispatching all;
  std::vector<int> waves;  // by work
  schedule::DispatchOptions how;
};
schedule::DispatchOptions how_of(const Options& options, const machine::Machine& machine,
                                 const Lowered& made) {
  schedule::DispatchOptions how = options.dispatch;
  how.sms = static_cast<int>(made.tasks.lists.size()), how.rules = rules_of(options);
  how.node_nanos = machine.costs.graph_node, how.edge_nanos = machine.costs.graph_edge;
  return how;
}
Result<Asked> ask(const Options& options, const machine::Machine& machine, const Lowered& made) {
  Asked asked;
  TRY(asked.all.dependencies, dependencies_of(made, made.tasks));
  asked.waves = waves_of(made.tasks);
  asked.how = how_of(options, machine, made);
  return asked;
}

schedule::Dispatch given_dispatch(const Options& options) {
  schedule::Dispatch given;
  given.policy = "given", given.launch_order = "given", given.kernels = options.dispatch_from;
  for (const schedule::Dispatched& each : options.dispatch_from)
    given.lanes = std::max(given.lanes, each.lane + 1);
  return given;
}

/// The dispatch that was given.
Status take_given(const Options& options, Asked& asked) {
  Dispatching& all = asked.all;
  all.dispatch = given_dispatch(options);
  if (Status sound = schedule::validate_dispatch(all.dependencies.dag, all.kernels, all.dispatch);
      !sound.ok())
    return Error{Code::kUsage, "compile", sound.error().message, "",
                 "--dispatch-from takes what --emit dispatch wrote of this program"};
  all.dispatch.predicted_nanos = schedule::predict(all.dispatch.kernels, all.kernels, asked.how);
  return ok_status();
}

/// A dispatch that is given may be the one that `auto` wrote of waves, which have a table of their
/// own: where the present one does not allow it, that is taken.
Status take_table_of_given(const Options& options, Lowered& made, Loaded& in_waves,
                           Dispatching& all) {
  const schedule::Dispatch given = given_dispatch(options);
  if (!made.tasks_in_waves ||
      schedule::validate_dispatch(all.dependencies.dag, all.kernels, given).ok())
    return ok_status();
  TRY(schedule::Dependencies plain, dependencies_of(made, *made.tasks_in_waves));
  const auto program = plain_waves_of(options, in_waves);
  if (!program || !schedule::validate_dispatch(plain.dag, all.kernels, given).ok())
    return ok_status();
  TRY(in_waves.executable, runtime::load(program, options.load));
  made.tasks = std::move(*made.tasks_in_waves), all.dependencies = std::move(plain);
  return ok_status();
}

/// The policy's, without measuring; `auto` compares with `in_waves`, where there is one.
Status take_predicted(Asked& asked, const schedule::Dispatch* in_waves = nullptr) {
  TRY(asked.all.dispatch, schedule::dispatch(asked.all.dependencies.dag, asked.all.kernels,
                                             asked.waves, asked.how, in_waves));
  return asked.how.search_seconds > 0 ? search_by_prediction(asked.waves, asked.how, asked.all)
                                      : ok_status();
}

}  // namespace

Result<Dispatching> dispatch_kernels(const Options& options, const machine::Machine& machine,
                                     Lowered& made,
                                     std::shared_ptr<const runtime::Executable>& executable) {
  Loaded in_waves{made, executable};
  TRY(Asked asked, ask(options, machine, made));
  Dispatching& all = asked.all;
  schedule::DispatchOptions& how = asked.how;
  all.kernels = kernels_of(in_waves, machine);
  const runtime::DeviceReport* device = executable->device();
  const bool chooses = options.dispatch_from.empty() && how.policy == "auto";
  if (chooses) in_waves.plain_waves = plain_waves_of(options, in_waves);
  if (chooses && follow_one_another(waves_of(in_waves.tasks_in_waves()), all.kernels)) {
    TRY(all.dispatch, waves_dispatch(how, in_waves, all.kernels));
    all.dispatch.reason = "waves: every kernel follows the one before it";
  } else if (chooses && device && !device->gpu.empty()) {
    const auto make = [&](const std::string& policy, int streams) {
      if (policy == "waves") return waves_dispatch(how, in_waves, all.kernels);
      schedule::DispatchOptions one = how;
      one.policy = policy, one.search_seconds = 0;
      if (streams > 0) one.streams = streams;
      return schedule::dispatch(all.dependencies.dag, all.kernels, asked.waves, one);
    };
    TRY_STATUS(choose_by_measurement(options, how, machine, in_waves, make, all));
  } else if (options.dispatch_from.empty()) {
    std::optional<schedule::Dispatch> plain;
    if (in_waves.plain_waves) {
      TRY(plain, waves_dispatch(how, in_waves, all.kernels));
    }
    TRY_STATUS(take_predicted(asked, plain ? &*plain : nullptr));
  } else {
    TRY_STATUS(take_table_of_given(options, made, in_waves, all));
    TRY_STATUS(take_given(options, asked));
  }
  TRY(executable, dispatched(in_waves, all.dispatch, options.load));
  if (all.dispatch.policy == "waves" && in_waves.plain_waves) {
    made.tasks = std::move(*made.tasks_in_waves);
    TRY(all.dependencies, dependencies_of(made, made.tasks));
    std::vector<schedule::Kernel> kernels = kernels_of(Loaded{made, executable}, machine);
    for (size_t k = 0; k < kernels.size(); ++k)  // durations may have been measured
      kernels[k].demand.nanos = all.kernels[k].demand.nanos;
    all.kernels = std::move(kernels);
  }
  made.tasks_in_waves.reset();
  return std::move(asked.all);
}

namespace {

/// `auto` on a CPU: works begin as soon as they may, unless handing each of them over takes so much
/// longer than barriers do that it is seen.
Status choose_for_cpu(const machine::Machine& machine, Asked& asked) {
  Dispatching& all = asked.all;
  schedule::DispatchOptions& how = asked.how;
  const double search_seconds = std::exchange(how.search_seconds, 0);
  how.policy = "critical";
  TRY_STATUS(take_predicted(asked));
  const int waves = *std::max_element(asked.waves.begin(), asked.waves.end()) + 1;
  const auto works = static_cast<double>(all.dispatch.kernels.size());
  const double handing_over = works * machine.costs.graph_node,
               barriers = waves * machine.barrier.count();
  const double longer = (handing_over - barriers) / all.dispatch.predicted_nanos;
  const std::string why =
      fmt::format("handing over {} works takes {:.1f} us, {} barriers {:.1f}, all {:.1f}", works,
                  handing_over / 1000, waves, barriers / 1000, all.dispatch.predicted_nanos / 1000);
  if (longer > 1 - machine::thresholds::kWorthLeaving) {
    how.policy = "waves", how.launch_order.clear(), how.streams = 0;
    TRY_STATUS(take_predicted(asked));
  }
  all.dispatch.reason = fmt::format("{}: {}", all.dispatch.policy, why);
  how.search_seconds = search_seconds;
  return search_seconds > 0 && how.policy != "waves" ? search_by_prediction(asked.waves, how, all)
                                                     : ok_status();
}

}  // namespace

Result<std::shared_ptr<const runtime::Executable>> redispatched(const Options& options,
                                                                const Compilation& made) {
  CHECK(made.dispatching && made.dispatching->dispatch.policy != "waves" &&
        options.dispatch.policy != "waves" && options.dispatch.policy != "auto");
  TRY(const machine::Machine machine, machine::device(options.target, options.sms));
  TRY(const schedule::Dispatch other,
      schedule::dispatch(made.dispatching->dependencies.dag, made.dispatching->kernels,
                         waves_of(made.tasks), how_of(options, machine, made)));
  return dispatched({made, made.executable}, other, options.load);
}

Status dispatch_works(const Options& options, const machine::Machine& machine, Lowered& made) {
  schedule::TaskGraph in_waves = made.tasks;
  if (options.orders_kernels())
    TRY_STATUS(schedule::place_by_order(made.graph, made.plan, machine, made.tasks,
                                        options.disabled.count("dispatch_memory") == 0));
  TRY(Asked asked, ask(options, machine, made));
  Dispatching& all = asked.all;
  all.kernels = kernels_of(made, machine);
  const bool any = std::any_of(all.kernels.begin(), all.kernels.end(),
                               [](const schedule::Kernel& each) { return each.launches; });
  TRY_STATUS(!options.dispatch_from.empty()      ? take_given(options, asked)
             : asked.how.policy == "auto" && any ? choose_for_cpu(machine, asked)
                                                 : take_predicted(asked));
  if (options.orders_kernels() && all.dispatch.policy == "waves") {
    const std::string reason = std::move(all.dispatch.reason);
    made.tasks = std::move(in_waves);
    Options plain = options;
    plain.dispatch = {.policy = "waves"};
    TRY(asked, ask(plain, machine, made));
    all.kernels = kernels_of(made, machine);
    TRY_STATUS(take_predicted(asked));
    all.dispatch.reason = reason;
  }
  made.dispatching = std::move(all);
  return ok_status();
}

std::string explain_dispatch(const Compilation& made, bool explain) {
  if (!made.dispatching) return "no graph of kernels\n";
  const Dispatching& all = *made.dispatching;
  std::string text = schedule::print(all.dispatch, all.kernels);
  if (!all.sms.empty()) text += all.sms + "\n";
  if (made.tasks.arena_one_by_one.count > 0)
    text += fmt::format("arena {}; {} if kernels ran one after another\n",
                        to_string(made.tasks.arena), to_string(made.tasks.arena_one_by_one));
  return text + (explain ? schedule::print(all.dependencies) : "");
}

}  // namespace obelisk::compiler
