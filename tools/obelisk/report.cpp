// obelisk report: a network as it was compiled, as one page for a browser.
#include <filesystem>

#include "base/progress.h"
#include "report_data.h"
#include "source.h"

namespace obelisk::cli {
namespace {

/// One run on generated inputs, whose tasks are timed; the second one, so that pages and caches are
/// there.
Result<std::vector<runtime::TaskTime>> timed_run(const compiler::Compilation& made,
                                                 const Flags& flags) {
  TRY(const auto context, made.executable->context(flags.threads));
  const std::vector<Tensor> inputs = verify::generate_inputs(made.imported, flags.seed.value_or(0));
  std::vector<Tensor> outputs;
  for (const runtime::Port& port : made.program->outputs)
    outputs.push_back(Tensor::allocate(port.type));
  std::vector<const void*> in;
  std::vector<void*> out;
  for (const Tensor& each : inputs) in.push_back(each.data());
  for (Tensor& each : outputs) out.push_back(each.mutable_data());
  TRY_STATUS(context->run(in, out));
  return context->task_times();
}

}  // namespace

int report(const Flags& flags, const std::string& output, bool measure) {
  auto options = options_from(flags);
  if (!options.ok()) return fail(flags, options.error());
  tell_what_the_cpu_ignores(flags, *options);
  Flags portable = flags;  // of a compiled file its graph: tables alone do not say why
  portable.portable = true;
  auto source = open_source(portable);
  if (!source.ok()) return fail(flags, source.error());
  std::error_code missing;
  if (std::filesystem::equivalent(output, flags.file, missing))
    return fail(flags, Error{Code::kUsage, "cli", "the file to write is the model itself", "",
                             "-o with another name"});
  options->import = source->import;
  for (const std::string& step : compiler::step_names())
    if (step != "stitch" && step != "schedule" && step != "codegen") options->explain.insert(step);
  Progress progress(Progress::mode_for(stderr, false), "compile");
  options->progress = [&](std::string_view step, double done) { progress.step(step, done); };
  compiler::Compilation made;
  const Status status = compiler::compile(source->network, *options, made);
  progress.finish();
  ReportFacts facts;
  // A page about a program that could not be built, or that answers wrongly, is still a page.
  const bool wrong = !status.ok() && status.error().code == Code::kAccuracy;
  if (!status.ok() && (!made.program || status.error().code == Code::kInterrupted))
    return fail(flags, status.error(), &made.import_report);
  if (!made.executable) facts.not_loaded = status.error().text();
  auto machine = machine::device(made.program->target, made.program->sms);
  if (!machine.ok()) return fail(flags, machine.error());
  facts.machine = *machine;
  const bool gpu_is_elsewhere =
      made.executable && made.executable->device() && made.executable->device()->gpu.empty();
  if (!measure) {
    facts.why_not_measured = "--no-run";
  } else if (!made.executable) {
    facts.why_not_measured = "there is no machine code to run";
  } else if (gpu_is_elsewhere) {
    facts.why_not_measured = "there is no GPU here to run it on";
  } else if (auto times = timed_run(made, flags); times.ok()) {
    facts.times = std::move(*times);
  } else {
    facts.why_not_measured = times.error().text();
  }
  const Json data = report_data(made, facts);
  if (Status written = write_file(output, report_page(data)); !written.ok())
    return fail(flags, written.error());
  std::string text = fmt::format(
      " model    {} · {} nodes in {} groups\n plan     {} waves · {} tasks on {} workers · {:.1f} "
      "us predicted\n",
      data["name"].get<std::string>(), data["network"]["nodes"].size(),
      data["network"]["groups"].size(), made.program->waves, made.program->task_count(),
      made.program->lists.size(), data["predicted_us"].get<double>());
  text += facts.times.empty() ? fmt::format(" run      not measured: {}\n", facts.why_not_measured)
                              : std::string();
  if (!facts.not_loaded.empty()) text += " load     " + facts.not_loaded + "\n";
  text += fmt::format(" wrote    {}\n", output);
  if (flags.json) {
    answer(flags, {{"output", output}, {"report", data}}, text);
  } else {
    answer(flags, {}, text);
  }
  if (wrong) {
    fmt::print(stderr, "{}\n", status.error().text());
    return static_cast<int>(Code::kAccuracy);
  }
  return 0;
}

}  // namespace obelisk::cli
