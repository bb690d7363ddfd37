#include "compile.h"

#include <algorithm>
#include <future>
#include <iterator>

#include "dispatch.h"
#include "explain.h"
#include "fewer_sms.h"
#include "fit.h"
#include "steps.h"

namespace obelisk::compiler {
namespace {

Result<graph::Graph> import(const Network& network, const Options& options, Compilation& made) {
  if (network.graph) return *network.graph;
  return frontends::import_onnx(*network.model, options.import, &made.import_report);
}

bool loads(const Options& options) {
  return options.to.empty() || options.to == "load" || options.to == "dispatch" ||
         options.to == "verify";
}

/// Opens the GPU that `load` will ask for: starting the driver takes as long as some passes, and a
/// core.
std::future<void> open_gpu_meanwhile(const Options& options) {
  const auto machine = machine::device(options.target, options.sms);
  if (!loads(options) || !machine.ok() || machine->family != machine::Family::kCuda) return {};
  return std::async(std::launch::async,
                    [gpu = options.load.gpu] { (void)runtime::describe_gpu(gpu); });
}

/// What orders the kernels of a graph, or works on a CPU: where no policy is given, `auto` on a CPU
/// and where the program is loaded on its GPU and can be measured, else `waves`.
schedule::DispatchOptions dispatch_for(const Options& options, const machine::Machine& machine) {
  schedule::DispatchOptions how = options.dispatch;
  if (!how.policy.empty()) return how;
  const bool on_cpu = machine.family == machine::Family::kCpu;
  how.policy = on_cpu || options.orders_kernels() ? "auto" : "waves";
  const bool may_be_graph =
      machine.family == machine::Family::kCuda && options.granularity != Granularity::kMono;
  // Programs that share launches are of one code, whatever was measured of each.
  if (how.policy == "waves" && may_be_graph && loads(options) && !options.load.instances) {
    const auto gpu = runtime::describe_gpu(options.load.gpu);
    if (gpu.ok() && gpu->architecture == options.target) how.policy = "auto";
  }
  return how;
}

/// Whether somebody uses or sees it.
bool wants_dispatch(const Options& options) {
  return options.orders_kernels() || options.wants_dispatch || options.to == "dispatch" ||
         options.explain.count("dispatch") > 0;
}

/// What a dispatch means where there is one kernel.
machine::Placement placement_of(const Options& options) {
  using machine::Placement;
  const std::string& policy = options.dispatch.policy;
  if (policy == "sequential") return Placement::kSequential;
  if (policy == "nimble") return Placement::kLanes;
  if (policy == "critical") return Placement::kCritical;
  if (policy == "auto") return Placement::kQuicker;
  const bool by_class = options.disabled.count("dispatch_classes") == 0;
  return policy == "opara" && by_class ? Placement::kClasses : Placement::kWaves;
}

/// The strategies that are compiled for: one, or where a GPU's granularity is left open one of
/// each.
std::vector<machine::Strategy> strategies_for(const machine::Machine& machine,
                                              const Options& options) {
  const bool open = machine.family == machine::Family::kCuda && !options.granularity;
  std::vector<Granularity> wanted = {options.granularity.value_or(Granularity::kMono)};
  if (open) wanted = {Granularity::kMono, Granularity::kStitch, Granularity::kOp};
  std::vector<machine::Strategy> strategies;
  for (const Granularity granularity : wanted)
    strategies.push_back(
        strategy_for(machine, {.granularity = granularity,
                               .dataflow = options.disabled.count("dataflow") == 0,
                               .batch_invariant = options.batch_invariant,
                               .tall_gemm = options.disabled.count("tall_gemm") == 0,
                               .gemm_tile = options.gemm_tile,
                               .placement = placement_of(options),
                               .tf32 = options.passes.precision == passes::Precision::kTf32}));
  return strategies;
}

stitch::Options stitching_for(const machine::Strategy& strategy, const Options& options) {
  stitch::Options stitching = options.stitch;
  stitching.stitch = stitching.stitch && strategy.stitches();
  stitching.adapt = options.disabled.count("adapt_groups") == 0;
  stitching.own_kernels = strategy.own_kernels && strategy.stitches();
  return stitching;
}

/// Whether the program has no barriers once its products of few rows are whole. Found out before
/// the steps, on a copy of the graph, where such products would be split over k: in all that was
/// measured (h100_torch_cache.json, `whole_products`) barriers cost more than the split gains.
Result<bool> flows_with_whole_products(const machine::Machine& machine, const Options& options,
                                       const machine::Strategy& strategy, graph::Graph graph) {
  if (!strategy.dataflow() || strategy.batch_invariant) return false;
  const stitch::Options stitching = stitching_for(strategy, options);
  FewRows few_rows{.whole = true};
  for (const passes::Pass& pass :
       passes::machine_passes(questions_for(machine, strategy, stitching, options, &few_rows)))
    if (!options.disabled.count(std::string(pass.name))) {
      TRY(graph, pass.run(std::move(graph)));
    }
  if (!few_rows.split) return false;
  const stitch::Plan plan = stitch::plan(graph, machine, strategy, stitching);
  return schedule::build(graph, plan, machine, strategy).dataflow;
}

/// From the graph that the passes left to a program, as one strategy has it.
Status lower(const machine::Machine& machine, const Options& options, Lowered& made, Steps& step) {
  const machine::Strategy& strategy = made.strategy;
  const stitch::Options stitching = stitching_for(strategy, options);
  FewRows few_rows;
  TRY(few_rows.whole, flows_with_whole_products(machine, options, strategy, made.graph));
  const passes::OfTiles tiles = questions_for(machine, strategy, stitching, options, &few_rows);

  for (const passes::Pass& pass : passes::machine_passes(tiles)) TRY_STATUS(step(pass, made.graph));

  TRY_STATUS(step(
      "stitch",
      [&] {
        made.plan = stitch::plan(made.graph, machine, strategy, stitching);
        return ok_status();
      },
      [&] { return stitch::verify(made.graph, made.plan); },
      [&](bool explain) { return stitch::print(made.graph, made.plan, explain); }));

  TRY_STATUS(step(
      "schedule",
      [&] {
        made.tasks = schedule::build(made.graph, made.plan, machine, strategy);
        if (machine.family == machine::Family::kCpu)
          return wants_dispatch(options) ? dispatch_works(options, machine, made) : ok_status();
        if (!options.orders_kernels() || strategy.granularity == Granularity::kMono)
          return ok_status();
        made.tasks_in_waves = made.tasks;
        return schedule::place_by_order(made.graph, made.plan, machine, made.tasks,
                                        options.disabled.count("dispatch_memory") == 0);
      },
      [&]() -> Status {
        if (made.tasks_in_waves)
          TRY_STATUS(schedule::validate(made.graph, made.plan, *made.tasks_in_waves));
        const Status sound = schedule::validate(made.graph, made.plan, made.tasks);
        return sound.ok() && options.check_tables
                   ? schedule::shadow_run(made.graph, made.plan, made.tasks)
                   : sound;
      },
      [&](bool explain) {
        return explain ? explain_schedule(made.graph, made.plan, made.tasks, machine)
                       : schedule::print(made.graph, made.plan, made.tasks);
      }));

  TRY_STATUS(step(
      "codegen",
      [&] {
        made.source =
            codegen::emit(made.graph, made.plan, made.tasks, kernels::tile_library(machine));
        return ok_status();
      },
      nothing_to_check,
      [&](bool explain) {
        return explain ? explain_bodies(made.source, made.graph, made.plan, made.tasks)
                       : print_bodies(made.source);
      }));

  return step(
      "assemble",
      [&] {
        runtime::Program program = runtime::assemble(made.graph, made.plan, made.tasks, made.source,
                                                     machine.name, options.weights.get());
        program.precision = to_string(options.passes.precision);
        program.granularity = strategy.granularity;
        if (made.dispatching && made.dispatching->dispatch.policy != "waves")
          program.dispatch = made.dispatching->dispatch.kernels;
        made.program = std::make_shared<runtime::Program>(std::move(program));
        return options.admits ? options.admits(*made.program) : ok_status();
      },
      nothing_to_check, [&](bool) { return print_program(*made.program); });
}

/// What one strategy's steps made and decided.
struct Attempt {
  Lowered made;
  std::vector<Compilation::Explanation> explanations;
};

/// It becomes what the compilation made.
void keep(Attempt& attempt, Compilation& made) {
  static_cast<Lowered&>(made) = std::move(attempt.made);
  std::move(attempt.explanations.begin(), attempt.explanations.end(),
            std::back_inserter(made.explanations));
}

/// Loads them and chooses the quickest. Graphs are compared in waves first; those that are near the
/// quickest get their dispatch, and are compared again.
Result<Choice> choose(std::vector<Attempt>& attempts, const Options& options,
                      const machine::Machine& machine, const runtime::LoadOptions& load,
                      const std::function<std::vector<Tensor>()>& inputs) {
  constexpr double kNear = 2;  // what lanes in place of waves gain at most, as far as was measured
  std::vector<std::shared_ptr<const runtime::Program>> programs;
  for (const Attempt& attempt : attempts) programs.push_back(attempt.made.program);
  TRY(std::vector<Candidate> candidates,
      load_candidates(programs, [&](const auto& program) { return runtime::load(program, load); }));
  TRY(Choice choice, choose_granularity(std::move(candidates), inputs));
  if (!options.orders_kernels()) return choice;
  const double least = choice.candidates[choice.chosen].us;
  bool ordered = false;
  for (size_t k = 0; k < attempts.size(); ++k) {
    Candidate& each = choice.candidates[k];
    const bool near = choice.measured ? each.us <= kNear * least : k == choice.chosen;
    if (!each.executable || each.granularity == Granularity::kMono || !near) continue;
    const auto in_waves = each.executable;
    TRY(attempts[k].made.dispatching,
        dispatch_kernels(options, machine, attempts[k].made, each.executable));
    ordered = ordered || each.executable != in_waves;
  }
  if (!ordered || !choice.measured) return choice;
  return choose_granularity(std::move(choice.candidates), inputs);
}

/// Keeps the attempt whose program is the quickest, or the first where none can be.
Status load_quickest_of(std::vector<Attempt>& attempts, const Options& options,
                        const machine::Machine& machine, const runtime::LoadOptions& load,
                        Compilation& made) {
  auto choice = choose(attempts, options, machine, load, [&] {
    return verify::generate_inputs(made.graph, options.verification.seed);
  });
  keep(attempts[choice.ok() ? choice->chosen : 0], made);
  if (!choice.ok()) return choice.error();
  made.choice = std::move(*choice);
  made.executable = made.choice->candidates[made.choice->chosen].executable;
  for (Candidate& each : made.choice->candidates) each.executable = nullptr;
  made.program =
      std::shared_ptr<const runtime::Program>(made.executable, &made.executable->program());
  return ok_status();
}

/// Answers beside what the import means, once for a program: the cache keeps what was found.
Status verified(const Options& options, Compilation& made) {
  verify::Options how = options.verification;
  how.threads = options.threads;
  how.interrupted = options.interrupted;
  how.precision = options.passes.precision;
  const std::string place =
      verify::place_of_record(options.load.cache_dir, made.imported, *made.executable, how);
  made.verification = verify::recall(place, how);
  if (made.verification) return ok_status();
  auto report = verify::check(made.imported, *made.executable, how);
  if (!report.ok()) return report.error();
  made.verification = std::move(*report);
  verify::remember(place, *made.verification, how);
  return made.verification->ok ? ok_status() : Status(made.verification->error());
}

/// The compiler, in order.
Status compile_in_steps(const Network& network, const Options& options, Compilation& made,
                        Steps& step) {
  made.precision = options.passes.precision;
  const std::future<void> opening =
      step.works() ? open_gpu_meanwhile(options) : std::future<void>();  // its end waits

  TRY_STATUS(step(
      "import",
      [&] {
        const Status status = put(made.graph, import(network, options, made));
        made.imported = made.graph;  // inside the step, so that stopping at it includes the import
        return status;
      },
      [&] { return graph::verify(made.graph); },
      [&](bool explain) {
        return explain ? explain_import(made.graph, options.import) : graph::print(made.graph);
      }));

  for (const passes::Pass& pass : passes::table(options.passes)) TRY_STATUS(step(pass, made.graph));

  machine::Machine machine;
  TRY_STATUS(step(
      "target", [&] { return put(machine, machine::device(options.target, options.sms)); },
      nothing_to_check,
      [&](bool explain) {
        return explain_target(machine, options.target, options.sms > 0, explain);
      }));

  Options ordered = options;
  if (step.works()) ordered.dispatch = dispatch_for(options, machine);
  std::vector<Attempt> attempts;
  for (const machine::Strategy& strategy : strategies_for(machine, options)) {
    Attempt& attempt = attempts.emplace_back();
    attempt.made.strategy = strategy, attempt.made.graph = made.graph;
    step.explain_into(attempt.explanations);
    const Status lowered = lower(machine, ordered, attempt.made, step);
    step.explain_into(made.explanations);
    if (lowered.ok()) continue;
    keep(attempt, made);
    return lowered;
  }
  if (attempts.size() == 1) keep(attempts.front(), made);

  TRY_STATUS(step(
      "load",
      [&]() -> Status {
        runtime::LoadOptions load = options.load;
        load.interrupted = options.interrupted;
        if (options.progress)
          load.progress = [&](int done, int total) {
            options.progress("load", std::min(0.95, step.done() + Steps::share("load") * done /
                                                                      std::max(total, 1)));
          };
        if (attempts.size() > 1) return load_quickest_of(attempts, ordered, machine, load, made);
        return put(made.executable, runtime::load(made.program, load));
      },
      nothing_to_check,
      [&](bool) {
        return made.choice ? made.choice->text() + "\n" : explain_load(*made.executable);
      }));

  TRY_STATUS(step(
      "dispatch",
      [&]() -> Status {
        const bool is_graph =
            made.program->on_gpu() && made.program->granularity != Granularity::kMono;
        if (!wants_dispatch(ordered) || !is_graph) return ok_status();
        if (!made.dispatching) {
          TRY(made.dispatching, dispatch_kernels(ordered, machine, made, made.executable));
          made.program =
              std::shared_ptr<const runtime::Program>(made.executable, &made.executable->program());
        }
        return take_fewer_sms(network, ordered, made);
      },
      nothing_to_check, [&](bool explain) { return explain_dispatch(made, explain); }));

  const bool runs =
      !made.executable || !made.executable->device() || !made.executable->device()->gpu.empty();
  if ((!options.verify || !runs) && made.executable) return ok_status();
  return step(
      "verify", [&] { return verified(options, made); }, nothing_to_check,
      [&](bool) { return made.verification->text(); });
}

}  // namespace

namespace {

/// The same of the network's head, where its tail can run on the host; else the status as it is.
Status compile_head(const Network& network, const Options& options, Status status,
                    Compilation& compilation) {
  auto split = split_tail(*network.model, options.import, compilation.import_report);
  if (!split) return status;
  Network head;
  head.model = std::move(split->head);
  Options once = options;
  once.host_tail = false;
  compilation = {};
  compilation.tail = std::move(split->tail);
  status = compile(head, once, compilation);
  for (auto& explanation : compilation.explanations)
    if (explanation.step == "import") explanation.text += compilation.tail->text();
  return status;
}

}  // namespace

Status compile(const Network& network, const Options& options, Compilation& compilation) {
  TRY_STATUS(check_names(options));
  Steps steps(options, &compilation);
  Status status = compile_in_steps(network, options, compilation, steps);
  if (!status.ok() && compilation.stopped && status.error().code == Code::kOk) return ok_status();
  if (!status.ok() && options.host_tail && network.model && options.import.in_place.empty() &&
      status.error().code == Code::kUnsupported && !compilation.import_report.unsupported.empty())
    return compile_head(network, options, std::move(status), compilation);
  if (status.ok() && options.progress) options.progress("done", 1.0);
  return status;
}

std::vector<std::string> step_names() {
  const Options options;
  Compilation nothing;
  Steps names(options, nullptr);
  const Status listed = compile_in_steps({}, options, nothing, names);
  CHECK(listed.ok());
  return names.names;
}

}  // namespace obelisk::compiler
