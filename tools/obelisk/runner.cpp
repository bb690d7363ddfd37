#include "runner.h"

#include <string.h>

#include "base/progress.h"

namespace obelisk::cli {

std::vector<Tensor> Runner::allocate_outputs() const {
  std::vector<Tensor> out;
  for (const runtime::Port& port : outputs) out.push_back(Tensor::allocate(port.type));
  return out;
}

std::string Verified::text() const {
  if (rows.empty()) return "not verified: " + why_not;
  if (!report) return fmt::format("verified when it was compiled, on {}", rows);
  return fmt::format("{}: {}", report->before ? "verified before" : "verified", report->text());
}

Json Verified::json() const {
  Json json = {{"status", rows.empty()     ? "not"
                          : !report        ? "compiled"
                          : report->before ? "before"
                                           : "now"}};
  if (rows.empty()) {
    json["why"] = why_not;
    return json;
  }
  json["rows"] = rows;
  if (report)
    json.update({{"max_abs", report->max_abs},
                 {"max_rel", report->max_rel},
                 {"tolerance", report->tolerance},
                 {"rounding", report->rounding}});
  return json;
}

Status Runner::run(const std::vector<Tensor>& in, std::vector<Tensor>& out) {
  if (!context) {
    TRY(const auto answers, graph::interpret(compilation.imported, in));
    for (size_t k = 0; k < out.size(); ++k)
      memcpy(out[k].mutable_data(), answers[k].data(), answers[k].bytes());
    return ok_status();
  }
  std::vector<const void*> from;
  std::vector<void*> to;
  for (const Tensor& tensor : in) from.push_back(tensor.data());
  for (Tensor& tensor : out) to.push_back(tensor.mutable_data());
  return context->run(from, to);
}

Result<graph::Graph> graph_of(const Runner& runner, const Source& source) {
  if (source.kind == FileKind::kCompiled && !source.network.graph) return source.compiled.graph();
  return runner.compilation.imported;
}

namespace {

Status finish(const Flags& flags, Runner& runner) {
  const runtime::DeviceReport* device = runner.executable->device();
  runner.target =
      !device ? "cpu"
              : fmt::format("{} ({}, {})", device->gpu.empty() ? device->architecture : device->gpu,
                            device->architecture, to_string(device->granularity));
  runner.inputs = runner.executable->program().inputs;
  runner.outputs = runner.executable->program().outputs;
  TRY(runner.context, runner.executable->context(flags.threads));
  return ok_status();
}

}  // namespace

Result<std::unique_ptr<Runner>> make_runner(const Flags& flags, const Source& source,
                                            frontends::ImportReport& report, bool silent) {
  auto runner = std::make_unique<Runner>();
  TRY(compiler::Options options, options_from(flags));
  if (source.kind == FileKind::kCompiled && !source.network.graph) {
    if (!flags.explain.empty())
      return Error{Code::kUsage, "cli",
                   "a compiled file runs as it is: no step is taken that could be explained", "",
                   "--portable compiles its graph again"};
    const bool other = flags.granularity != "auto" &&
                       flags.granularity != to_string(source.compiled.program->granularity);
    if (flags.sms > 0 || flags.batch_invariant || !flags.disabled.empty() ||
        !flags.gemm_tile.empty() || other)
      return Error{Code::kUsage, "cli",
                   fmt::format("a compiled file runs as it is: {} comes too late",
                               flags.sms > 0              ? "--sms"
                               : flags.batch_invariant    ? "--batch-invariant"
                               : !flags.gemm_tile.empty() ? "--gemm-tile"
                               : other                    ? "--granularity " + flags.granularity
                                                          : "--disable"),
                   "", "leave it out, or compile the model again"};
    TRY(runner->executable, runtime::load(source.compiled.program, options.load));
    if (const std::string& why = runner->executable->report().not_carried; !why.empty())
      fmt::print(stderr, "note: {}; bodies were built again from their source\n", why);
    TRY_STATUS(finish(flags, *runner));
    runner->verified = {std::nullopt, source.compiled.verified,
                        "the file was compiled with --verify off, or where it could not run"};
    return runner;
  }
  tell_what_the_cpu_ignores(flags, options);
  options.import = source.import;
  options.host_tail = flags.host_tail;
  options.verification.seed = 0;  // once for a program: --seed is of the inputs that it answers
  if (source.kind == FileKind::kCompiled && flags.precision == "keep")
    options.passes.precision = *passes::parse_precision(source.compiled.program->precision);
  Progress progress(silent ? Progress::Mode::kNone : Progress::mode_for(stderr, false), "compile");
  options.progress = [&](std::string_view step, double done) { progress.step(step, done); };
  bool interpret = flags.target == "reference";
  if (!interpret && flags.target == "auto" && options.target == "cpu") {
    if (auto compiler = runtime::find_compiler(flags.compiler); !compiler.ok()) {
      if (!flags.compiler.empty()) return compiler.error();
      fmt::print(stderr, "note: {}; the interpreter runs instead (slow)\n",
                 compiler.error().message);
      interpret = true;
    }
  }
  if (interpret) options.to = "import";
  Status status = compiler::compile(source.network, options, runner->compilation);
  if (!status.ok() && flags.target == "auto" && options.target != "cpu" &&
      status.error().code == Code::kUnsupported &&
      runner->compilation.import_report.unsupported.empty()) {
    progress.finish();
    fmt::print(stderr, "note: {}; the CPU runs it (--target cuda makes this an error)\n",
               status.error().text());
    Flags on_cpu = flags;
    on_cpu.target = "cpu", on_cpu.granularity = "auto";
    return make_runner(on_cpu, source, report, silent);
  }
  progress.finish();
  for (const auto& [step, reasons] : runner->compilation.explanations)
    fmt::print(stderr, "== {}\n{}", step, reasons);
  if (!status.ok()) {
    report = runner->compilation.import_report;
    return status.error();
  }
  if (!interpret) {
    runner->executable = runner->compilation.executable;
    TRY_STATUS(finish(flags, *runner));
    Verified& verified = runner->verified;
    verified.report = runner->compilation.verification;
    if (verified.report) verified.rows = verified.report->rows;
    verified.why_not = verified.report ? verified.report->why_not : "--verify off";
    return runner;
  }
  runner->verified.why_not = "the interpreter is the reference itself";
  const graph::Graph& graph = runner->compilation.imported;
  runner->target = "reference";
  runner->inputs = input_ports(graph);
  for (size_t k = 0; k < graph.outputs().size(); ++k)
    runner->outputs.push_back({graph.output_names()[k], graph.type(graph.outputs()[k])});
  return runner;
}

Result<std::unique_ptr<Runner>> make_reordered(const Flags& flags, const Runner& like,
                                               std::shared_ptr<runtime::DeviceWeights> weights) {
  TRY(compiler::Options options, options_from(flags));
  options.load.device_weights = std::move(weights);
  auto runner = std::make_unique<Runner>();
  TRY(runner->executable, compiler::redispatched(options, like.compilation));
  TRY_STATUS(finish(flags, *runner));
  runner->verified = like.verified;
  return runner;
}

}  // namespace obelisk::cli
