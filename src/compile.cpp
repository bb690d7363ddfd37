#include "compile.h"

#include <algorithm>
#include <chrono>
#include <future>

#include "explain.h"

namespace obelisk::compiler {
namespace {

Error stopped() { return Error{Code::kOk, "compile", "stopped where it was told to"}; }

/// The one wrapper around every step: times, checks, explains, stops. Without a compilation it only
/// collects names.
class Steps {
 public:
  Steps(const Options& options, Compilation* compilation)
      : options_(options), compilation_(compilation) {}

  /// `make` does the work, `check` verifies what it made, `show(explain)` is its text form, with
  /// the reasons when explaining.
  template <typename Make, typename Check, typename Show>
  Status operator()(std::string_view step, Make make, Check check, Show show) {
    names.emplace_back(step);
    if (!compilation_) return ok_status();
    if (options_.interrupted && options_.interrupted())
      return Error{Code::kInterrupted, "compile", fmt::format("interrupted before '{}'", step)};
    if (options_.progress) options_.progress(step, done_);
    const auto start = std::chrono::steady_clock::now();
    TRY_STATUS(Status(make()));
    if (Status sound = check(); !sound.ok()) {
      Error error =
          sound.error();  // a step that breaks an invariant is our bug, whatever its check calls it
      error.code = Code::kBuild;
      error.message = fmt::format("after step '{}': {}", step, error.message);
      error.hint = "this is a defect of Obelisk; please report it with the model";
      return error;
    }
    compilation_->timings.push_back(
        {std::string(step),
         std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()});
    done_ = std::min(0.95, done_ + share(step));
    if (options_.explain.count(std::string(step)))
      compilation_->explanations.push_back({std::string(step), show(true)});
    if (options_.to != step) return ok_status();
    compilation_->stopped = true;
    compilation_->text = show(false);
    return stopped();
  }

  /// Whether steps are done, not only named.
  bool works() const { return compilation_ != nullptr; }
  double done() const { return done_; }
  /// How much of the whole a step takes, as seen on exported networks with an empty cache.
  static double share(std::string_view step) {
    return step == "load" ? 0.5 : step == "verify" ? 0.3 : 0.02;
  }

  std::vector<std::string> names;

 private:
  const Options& options_;
  Compilation* compilation_;
  double done_ = 0;
};

/// A failed Result becomes the step's Status, a value goes where it belongs.
template <typename T>
Status put(T& place, Result<T> made) {
  if (!made.ok()) return made.error();
  place = std::move(*made);
  return ok_status();
}

Status nothing_to_check() { return ok_status(); }

Result<graph::Graph> import(const Network& network, const Options& options, Compilation& made) {
  if (network.graph) return *network.graph;
  return frontends::import_onnx(*network.model, options.import, &made.import_report);
}

std::string print_bodies(const codegen::Source& source) {
  std::string out;
  for (const codegen::BodyText& body : source.bodies)
    out += fmt::format("// ---- body {} {}\n{}\n", to_string(body.hash), body.label, body.text);
  return out;
}

std::string print_program(const runtime::Program& program) {
  std::string out = fmt::format(
      "program \"{}\" for {}{} on {} virtual SMs: {} phases, {} tasks, {} bodies, arena {}, "
      "scratch {}\n",
      program.name, program.target,
      program.on_gpu() ? fmt::format(", {},", to_string(program.granularity)) : "", program.sms,
      program.waves, program.task_count(), program.bodies.size(), to_string(program.arena),
      to_string(program.scratch));
  for (const runtime::Port& port : program.inputs)
    out += fmt::format("  in  \"{}\": {}\n", port.name, to_string(port.type));
  for (const runtime::Port& port : program.outputs)
    out += fmt::format("  out \"{}\": {}\n", port.name, to_string(port.type));
  for (size_t sm = 0; sm < program.lists.size(); ++sm) {
    out += fmt::format("  sm {}\n", sm);
    for (const ObkTask& task : program.lists[sm])
      out += fmt::format("    wave {} work {} rows {}..{} columns {}..{}\n", task.wave, task.work,
                         task.r0, task.r1, task.c0, task.c1);
  }
  return out;
}

/// In how many parts a reduction is worth another phase: where few workers would walk over all of it for long.
int64_t reduction_parts(const machine::Machine& device, const Type& type, int64_t outputs, int64_t inner) {
  constexpr double kPhaseNanos = 2500;  // what BERT-base exposes a phase (h200_networks.json, exposed_us_per_phase)
  constexpr int64_t kLanes = 64;        // columns that one worker takes side by side
  const int64_t workers = std::max<int64_t>(inner >= kLanes ? outputs / kLanes : outputs, 1), parts = device.sms / workers;
  const double nanos = static_cast<double>(type.bytes()) / static_cast<double>(workers) / device.bytes_per_sm;
  return parts > 1 && nanos / static_cast<double>(parts) + kPhaseNanos < nanos / 2 ? parts : 1;
}

/// A graph as the machine takes it: what no tile of it takes whole in simpler ops, long sums in parts. `left` hears of every node
/// that was asked about.
using Asked = std::function<void(const graph::Graph&, graph::NodeId, bool taken, std::string why)>;
Result<graph::Graph> fit(graph::Graph graph, const Options& options, const machine::Machine& device, const machine::Strategy& strategy,
                         const stitch::Options& stitching, const Asked& left = {}, passes::Remarks* unfolded = nullptr) {
  const auto takes = [&](const graph::Graph& of, graph::NodeId id) {
    std::string why = "no product's tile gives them";
    const bool taken = of.node(id).op == ops::Op::NormStatistics ? passes::product_of_statistics(of, id) != graph::kNone
                                                                 : stitch::takes_whole(of, id, device, stitching, &why);
    if (left) left(of, id, taken, std::move(why));
    return taken;
  };
  const kernels::TileLibrary& tiles = kernels::tile_library(device);
  const bool splits = tiles.gemm.split_k && stitching.stitch && !options.disabled.count("split_products");
  const auto parts = [&](DType type, int64_t rows, int64_t columns, int64_t depth) -> int64_t {
    const bool dealt = strategy.own_kernels && takes_wgmma(device, strategy) && rows >= stitch::kMostStreamedRows;  // in one chain over k
    return splits && !dealt ? tiles.gemm.split_k->parts(static_cast<int32_t>(type), columns, depth, strategy.one_kernel() && !strategy.batch_invariant ? rows : 0) : 1;
  };
  const auto whole = [&](int64_t rows, int64_t columns, int64_t count) { return stitch::parts_meet(device, strategy, rows, columns, count); };
  if (tiles.gemm.statistics && stitching.stitch && stitching.tiles && !strategy.batch_invariant && !options.disabled.count("fold_norms")) {
    const auto gives_statistics = [&](DType type, int64_t rows, int64_t columns, int64_t depth) {
      return tiles.gemm.statistics->pays(static_cast<int32_t>(type), rows, columns, depth, strategy.own_kernels) && parts(type, rows, columns, depth) == 1;
    };
    const auto in_planes = [&](DType type, int64_t rows, int64_t columns, int64_t depth) {
      const int64_t count = parts(type, rows, columns, depth);
      return count > 1 && !whole(rows, columns, count);
    };
    TRY(graph, passes::fold_norms(std::move(graph), gives_statistics, in_planes, unfolded));
  }
  TRY(graph, passes::expand_for_machine(std::move(graph), takes));
  if (strategy.own_kernels && takes_wgmma(device, strategy) && stitching.stitch && !options.disabled.count("patch_products")) {
    const auto streams = [](DType type, int64_t, int64_t, int64_t depth) { return (type == DType::f16 || type == DType::bf16) && depth % 64 == 0; };
    TRY(graph, passes::patch_products(std::move(graph), streams));
  }
  if (device.family == machine::Family::kCuda && stitching.stitch && !strategy.batch_invariant && !options.disabled.count("split_reductions")) {
    TRY(graph, passes::split_reductions(std::move(graph), [&](const Type& type, int64_t outputs, int64_t inner) { return reduction_parts(device, type, outputs, inner); }));
  }
  return splits ? passes::split_products(std::move(graph), parts, whole, strategy.batch_invariant) : Result<graph::Graph>(std::move(graph));
}

/// What the steps from fitting on made, for a granularity whose graph, plan or tasks are its own.
struct Lowered {
  graph::Graph graph;
  stitch::Plan plan;
  schedule::TaskGraph tasks;
  codegen::Source source;
  std::shared_ptr<const runtime::Program> program;
};

Status lower_tasks(const machine::Machine& device, Granularity granularity, const std::string& precision, bool check_tables, Lowered& made) {
  TRY_STATUS(schedule::validate(made.graph, made.plan, made.tasks));
  if (check_tables) TRY_STATUS(schedule::shadow_run(made.graph, made.plan, made.tasks));
  made.source = codegen::emit(made.graph, made.plan, made.tasks, kernels::tile_library(device));
  auto program = runtime::assemble(made.graph, made.plan, made.tasks, made.source, device.name);
  program.granularity = granularity, program.precision = precision;
  made.program = std::make_shared<runtime::Program>(std::move(program));
  return ok_status();
}

machine::Wishes wishes_of(const Options& options, Granularity granularity) {
  return {.granularity = granularity,
          .dataflow = options.disabled.count("flow") == 0,
          .batch_invariant = options.batch_invariant,
          .tf32 = options.passes.precision == passes::Precision::kTf32};
}

/// Loads all three granularities, each with its own plan, tasks and texts, and keeps the quickest. `unfitted`: the graph before `fit`.
Status load_quickest(const Options& options, const graph::Graph& unfitted, const machine::Machine& device,
                     stitch::Options stitching, const runtime::LoadOptions& load, Compilation& made) {
  machine::Strategy strategy = strategy_for(device, wishes_of(options, Granularity::kStitch));
  Lowered stitch, op{.graph = made.graph};
  TRY(stitch.graph, fit(unfitted, options, device, strategy, stitching));
  const auto plan_and_cut = [&](Lowered& to) -> Status {
    to.plan = stitch::plan(to.graph, device, strategy, stitching);
    TRY_STATUS(stitch::verify(to.graph, to.plan));
    to.tasks = schedule::build(to.graph, to.plan, device, strategy);
    return ok_status();
  };
  TRY_STATUS(plan_and_cut(stitch));
  stitching.stitch = false;
  TRY_STATUS(plan_and_cut(op));
  const std::string& precision = made.program->precision;
  TRY_STATUS(lower_tasks(device, Granularity::kOp, precision, options.check_tables, op));
  TRY_STATUS(lower_tasks(device, Granularity::kStitch, precision, options.check_tables, stitch));
  std::vector<Candidate> candidates;
  std::optional<Error> too_large;  // beyond the memory limit: one granularity may be where another is not
  bool any = false;
  for (const auto& program : {made.program, stitch.program, op.program}) {
    Candidate candidate{.granularity = program->granularity};
    auto loaded = runtime::load(program, load);
    if (loaded.ok()) {
      candidate.executable = std::move(*loaded), any = true;
    } else if (loaded.error().code == Code::kUnsupported || loaded.error().code == Code::kMemory) {
      if (!program->customs.empty()) return loaded.error();  // so it is for all
      if (loaded.error().code == Code::kMemory && !too_large) too_large = loaded.error();
      candidate.refused = loaded.error().text();
    } else {
      return loaded.error();
    }
    candidates.push_back(std::move(candidate));
  }
  if (!any && too_large) return *too_large;
  TRY(made.choice, choose_granularity(std::move(candidates), [&] {
        return verify::generate_inputs(made.graph, options.verification.seed);
      }));
  made.executable = made.choice->candidates[made.choice->chosen].executable;
  for (Candidate& each : made.choice->candidates) each.executable = nullptr;
  const Granularity chosen = made.executable->program().granularity;
  if (chosen != Granularity::kMono) {
    Lowered& other = chosen == Granularity::kOp ? op : stitch;
    made.graph = std::move(other.graph);
    made.plan = std::move(other.plan), made.tasks = std::move(other.tasks);
    made.source = std::move(other.source);
  }
  made.program =
      std::shared_ptr<const runtime::Program>(made.executable, &made.executable->program());
  return ok_status();
}

/// Opens the GPU that `load` will ask for: starting the driver takes as long as some passes, and a core.
std::future<void> open_gpu_meanwhile(const Options& options) {
  const auto device = machine::device(options.target, options.sms);
  const bool loads = options.to.empty() || options.to == "load" || options.to == "verify";
  if (!loads || !device.ok() || device->family != machine::Family::kCuda) return {};
  return std::async(std::launch::async,
                    [gpu = options.load.gpu] { (void)runtime::describe_gpu(gpu); });
}

/// The compiler, in order.
Status lower(const Network& network, const Options& options, Compilation& made, Steps& step) {
  const auto sound_graph = [&] { return graph::verify(made.graph); };
  machine::Machine device;
  made.precision = options.passes.precision;
  const std::future<void> opening =
      step.works() ? open_gpu_meanwhile(options) : std::future<void>();  // its end waits

  TRY_STATUS(step("import", [&] {
    const Status status = put(made.graph, import(network, options, made));
    made.imported = made.graph;  // inside the step: whoever stops at it reads the import too
    return status;
  }, sound_graph, [&](bool explain) {
    return explain ? explain_import(made.graph, options.import) : graph::print(made.graph);
  }));

  for (const passes::Pass& pass : passes::table(options.passes)) {
    graph::Graph before;
    passes::Remarks remarks;
    passes::Remarks* asked = options.explain.count(std::string(pass.name)) ? &remarks : nullptr;
    const bool left_out = options.disabled.count(std::string(pass.name)) > 0;
    const auto run = [&] {
      before = made.graph;
      return left_out ? ok_status() : put(made.graph, pass.run(std::move(made.graph), asked));
    };
    const auto show = [&](bool explain) {
      if (explain && left_out) return std::string("left out by --disable\n");
      return explain ? explain_pass(pass.summary, before, made.graph) +
                           explain_remarks("left as it is", remarks)
                     : graph::print(made.graph);
    };
    TRY_STATUS(step(pass.name, run, sound_graph, show));
  }

  TRY_STATUS(step("target", [&] {
    return put(device, machine::device(options.target, options.sms));
  }, nothing_to_check, [&](bool explain) {
    std::string text = fmt::format("{}: {} virtual SMs, {} of fast memory each\n", device.name,
                                   device.sms, to_string(device.fast_memory));
    if (!explain) return text;
    return text +
           fmt::format("asked for as '{}', {}\n", options.target,
                       options.sms > 0 ? "and so were the SMs" : "with as many SMs as it has");
  }));
  stitch::Options stitching = options.stitch;
  stitching.adapt = options.disabled.count("adapt_groups") == 0;
  const machine::Strategy strategy = strategy_for(device, wishes_of(options, options.granularity.value_or(Granularity::kMono)));  // `auto` begins with one kernel
  stitching.stitch = stitching.stitch && strategy.stitches();
  graph::Graph unfitted;
  passes::Remarks whole, in_parts, unfolded;
  TRY_STATUS(step("fit", [&]() -> Status {
    unfitted = made.graph;
    return put(made.graph, fit(std::move(made.graph), options, device, strategy, stitching,
                               [&](const graph::Graph& graph, graph::NodeId id, bool taken, std::string why) {
                                 if (taken) why = "the machine has a tile or a block for it";
                                 (taken ? whole : in_parts).left(graph, id, why);
                               }, options.explain.count("fit") ? &unfolded : nullptr));
  }, sound_graph, [&](bool explain) {
    if (!explain) return graph::print(made.graph);
    return explain_pass("what no tile of the machine takes whole is told in simpler ops", unfitted,
                        made.graph) +
           explain_remarks("norms that go through no product", unfolded) + explain_remarks("stays whole", whole) +
           explain_remarks("in simpler ops", in_parts);
  }));
  TRY_STATUS(step(
      "stitch",
      [&] {
        made.plan = stitch::plan(made.graph, device, strategy, stitching);
        return ok_status();
      },
      [&] { return stitch::verify(made.graph, made.plan); },
      [&](bool explain) { return stitch::print(made.graph, made.plan, explain); }));
  TRY_STATUS(step(
      "schedule",
      [&] {
        made.tasks = schedule::build(made.graph, made.plan, device, strategy);
        return options.orders_kernels() ? schedule::place_by_order(made.graph, made.plan, made.tasks) : ok_status();
      },
      [&] {
        const Status sound = schedule::validate(made.graph, made.plan, made.tasks);
        return sound.ok() && options.check_tables ? schedule::shadow_run(made.graph, made.plan, made.tasks) : sound;
      },
      [&](bool explain) {
        return explain ? explain_schedule(made.graph, made.plan, made.tasks, device)
                       : schedule::print(made.graph, made.plan, made.tasks);
      }));
  TRY_STATUS(step("codegen", [&] {
    made.source = codegen::emit(made.graph, made.plan, made.tasks,
                                kernels::tile_library(device));
    return ok_status();
  }, nothing_to_check, [&](bool explain) {
    return explain ? explain_bodies(made.source, made.graph, made.plan, made.tasks)
                   : print_bodies(made.source);
  }));
  TRY_STATUS(step(
      "assemble",
      [&] {
        auto program = std::make_shared<runtime::Program>(
            runtime::assemble(made.graph, made.plan, made.tasks, made.source, device.name, options.weights.get()));
        program->precision = to_string(options.passes.precision);
        program->granularity = strategy.granularity;
        made.program = std::move(program);
        return ok_status();
      },
      nothing_to_check, [&](bool) { return print_program(*made.program); }));
  TRY_STATUS(step("load", [&] {
    runtime::LoadOptions load = options.load;
    if (options.progress)
      load.progress = [&](int done, int total) {
        options.progress("load", std::min(0.95, step.done() + Steps::share("load") * done / std::max(total, 1)));
      };
    load.interrupted = options.interrupted;
    if (made.program->on_gpu() && !options.granularity)
      return load_quickest(options, unfitted, device, stitching, load, made);
    return put(made.executable, runtime::load(made.program, load));
  }, nothing_to_check, [&](bool) {
    if (made.choice) return made.choice->text() + "\n";
    const runtime::LoadReport& report = made.executable->report();
    return fmt::format("{} bodies compiled with {}, {} from the cache\n", report.compiled,
                       report.compiler.empty() ? "nothing" : report.compiler, report.cached);
  }));
  TRY_STATUS(step("dispatch", [&] {
    const bool asked = options.orders_kernels() || options.wants_dispatch || options.to == "dispatch" || options.explain.count("dispatch") > 0;
    return asked ? dispatch_kernels(options, device.flops_per_sm / device.bytes_per_sm, made) : ok_status();
  }, nothing_to_check, [&](bool explain) { return explain_dispatch(made, explain); }));
  const bool runs =
      !made.executable || !made.executable->device() || !made.executable->device()->gpu.empty();
  if ((!options.verify || !runs) && made.executable) return ok_status();
  TRY_STATUS(step("verify", [&] {
    verify::Options how = options.verification;
    how.threads = options.threads;
    how.interrupted = options.interrupted;
    how.precision = options.passes.precision;
    const std::string place =
        verify::place_of_record(options.load.cache_dir, made.imported, *made.executable, how);
    made.verification = verify::recall(place, how);
    if (made.verification) return ok_status();
    auto report = verify::check(made.imported, *made.executable, how);
    if (!report.ok()) return Status(report.error());
    made.verification = std::move(*report);
    verify::remember(place, *made.verification, how);
    return made.verification->ok ? ok_status() : Status(made.verification->error());
  }, nothing_to_check, [&](bool) { return made.verification->text(); }));
  return ok_status();
}

std::string joined(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ", ") + name;
  return out;
}

Status check_names(const Options& options) {
  const std::vector<std::string> steps = step_names();
  const auto known = [&](const std::string& name) {
    return std::find(steps.begin(), steps.end(), name) != steps.end();
  };
  std::vector<std::string> asked(options.explain.begin(), options.explain.end());
  if (!options.to.empty()) asked.push_back(options.to);
  for (const std::string& name : asked)
    if (!known(name))
      return Error{Code::kUsage, "compile", fmt::format("no step is called '{}'", name), "",
                   "steps: " + joined(steps)};
  TRY_STATUS(schedule::check_options(options.dispatch));
  if (options.orders_kernels() && (options.target == "cpu" || !options.granularity || *options.granularity == Granularity::kMono))
    return Error{Code::kUsage, "compile", fmt::format("a dispatch orders the kernels of a graph; {} has none",
                                                      options.target == "cpu" ? "a CPU" : options.granularity ? "granularity mono" : "granularity auto, which is left open,"),
                 "", "--target cuda or an architecture, with --granularity op or stitch"};
  std::vector<std::string> passes;
  for (const passes::Pass& pass : passes::table()) passes.emplace_back(pass.name);
  for (const char* other : {"fold_norms", "patch_products", "split_products", "split_reductions", "adapt_groups", "flow"})
    passes.emplace_back(other);  // of `fit` and of stitching
  for (const std::string& name : options.disabled)
    if (std::find(passes.begin(), passes.end(), name) == passes.end())
      return Error{Code::kUsage, "compile", fmt::format("no pass is called '{}'", name), "",
                   "passes: " + joined(passes)};
  return ok_status();
}

}  // namespace

Result<FoundMachine> find_machine(const std::string& name, int sms, int threads) {
  FoundMachine machine;
  if (name.starts_with("sm_")) {
    machine.target = name, machine.sms = sms;
    return machine;
  }
  const bool numbered = name.starts_with("cuda:") && name.size() > 5 && name.size() < 9 && name.find_first_not_of("0123456789", 5) == std::string::npos;
  const bool asked = name == "cuda" || numbered;
  if (asked || name == "auto") {
    machine.gpu = numbered ? atoi(name.c_str() + 5) : 0;
    auto gpu = runtime::describe_gpu(machine.gpu);
    if (!gpu.ok() && asked) return gpu.error();
    if (gpu.ok() && (asked || runtime::find_device_compiler().ok())) {
      machine.target = gpu->architecture, machine.name = gpu->name;
      machine.sms = sms > 0 ? sms : gpu->sms;
      return machine;
    }
  } else {
    machine.target = name;
  }
  machine.sms = sms > 0 ? sms : threads;
  return machine;
}

Status compile(const Network& network, const Options& options, Compilation& compilation) {
  TRY_STATUS(check_names(options));
  Steps steps(options, &compilation);
  Status status = lower(network, options, compilation, steps);
  if (!status.ok() && compilation.stopped && status.error().code == Code::kOk) return ok_status();
  if (status.ok() && options.progress) options.progress("done", 1.0);
  return status;
}

Result<Unshared> unshare(const Compilation& made, const Options& options) {
  if (made.tasks.flows)
    return Error{Code::kUnsupported, "compile",
                 "what a program that flows stores cannot be looked at", "", "--disable flow"};
  Unshared unshared{nullptr, made.tasks};
  constexpr int64_t kApart = 256;
  int64_t end = 0;
  for (schedule::Buffer& buffer : unshared.tasks.buffers) {
    if (buffer.kind != schedule::BufferKind::kArena) continue;
    buffer.offset = Bytes{end};
    end += (buffer.room().count + kApart - 1) / kApart * kApart;
  }
  unshared.tasks.arena = Bytes{end};
  TRY(machine::Machine device, machine::device(made.program->target, made.program->sms));
  codegen::Source source =
      codegen::emit(made.graph, made.plan, unshared.tasks, kernels::tile_library(device));
  auto program = std::make_shared<runtime::Program>(runtime::assemble(
      made.graph, made.plan, unshared.tasks, std::move(source), made.program->target));
  program->granularity = made.program->granularity, program->precision = made.program->precision;
  const auto last = static_cast<int>(program->outputs.size());
  program->outputs.push_back({"", {DType::u8, {end}}});
  if (end > 0) program->copies.push_back({last, {runtime::BufferKind::kArena, 0}});
  TRY(unshared.executable, runtime::load(std::move(program), options.load));
  return unshared;
}

std::map<graph::ValueId, Tensor> stored_values(const Compilation& made, const Unshared& unshared,
                                               std::span<const Tensor> outputs) {
  std::map<graph::ValueId, Tensor> storages, values;
  for (const schedule::Buffer& buffer : unshared.tasks.buffers) {
    if (buffer.value == graph::kNone) continue;
    const DType dtype = made.graph.type(buffer.value).dtype;
    if (buffer.kind == schedule::BufferKind::kOutput) {
      const Tensor& output = outputs[static_cast<size_t>(buffer.index)];
      storages[buffer.value] = output.reshaped({output.count()});
    } else if (buffer.kind == schedule::BufferKind::kArena) {
      const auto* bytes = static_cast<const std::byte*>(outputs.back().data()) + buffer.offset.count;
      storages[buffer.value] =
          Tensor::view({dtype, {buffer.size.count * 8 / bits(dtype)}}, bytes, nullptr);
    }
  }
  for (const graph::NodeId id : made.graph.order()) {
    for (const graph::ValueId v : made.graph.node(id).outputs) {
      const stitch::Layout& layout = made.plan.layouts[static_cast<size_t>(v)];
      const auto from = storages.find(layout.storage);
      if (!layout.materialized || from == storages.end()) continue;
      const Type& type = made.graph.type(v);
      if (from->second.dtype() != type.dtype || layout.strides.size() != type.shape.size()) continue;
      Tensor value = Tensor::allocate(type);
      std::vector<int64_t> at(type.shape.size(), 0);
      int64_t place = layout.offset;
      for (int64_t k = 0; k < value.count(); ++k) {
        if (is_float(type.dtype)) value.set_double(k, from->second.get_double(place));
        else value.set_int(k, from->second.get_int(place));
        for (size_t d = at.size(); d-- > 0;) {
          place += layout.strides[d];
          if (++at[d] < type.shape[d]) break;
          place -= layout.strides[d] * type.shape[d];
          at[d] = 0;
        }
      }
      values[v] = std::move(value);
    }
  }
  return values;
}

std::vector<std::string> step_names() {
  Options options;
  Compilation nothing;
  Steps names(options, nullptr);
  Status listed = lower({}, options, nothing, names);
  CHECK(listed.ok());
  return names.names;
}

}  // namespace obelisk::compiler
