// obelisk compile: a model into one .obk file, verified.
#include <chrono>

#include "base/progress.h"
#include "source.h"

namespace obelisk::cli {
namespace {

Json verification_json(const std::optional<verify::Report>& report) {
  if (!report) return nullptr;
  return {{"ok", report->ok}, {"max_abs", report->max_abs}, {"max_rel", report->max_rel}, {"tolerance", report->tolerance}};
}

int64_t weights_bytes(const runtime::Program& program) {
  int64_t total = 0;
  for (const Tensor& weight : program.weights)
    if (!weight.empty()) total += weight.bytes();
  return total;
}

}  // namespace

int compile(const Flags& flags, const std::string& output, bool verify) {
  const auto start = std::chrono::steady_clock::now();
  if (output.empty() && flags.to.empty() && flags.explain.empty())
    return fail(flags, Error{Code::kUsage, "cli", "compile needs a file to write", "", "-o model.obk"});
  auto options = options_from(flags);
  if (!options.ok()) return fail(flags, options.error());
  Flags portable = flags;  // compiling a compiled file means its graph
  portable.portable = true;
  auto source = open_source(portable);
  if (!source.ok()) return fail(flags, source.error());
  options->import = source->import;
  options->verify = verify;
  Progress progress(Progress::mode_for(stderr, false), "compile");
  options->progress = [&](std::string_view step, double done) { progress.step(step, done); };
  compiler::Compilation made;
  const Status status = compiler::compile(source->network, *options, made);
  progress.finish();
  std::string text;
  for (const auto& [step, reasons] : made.explanations) text += fmt::format("== {}\n{}", step, reasons);
  if (!status.ok()) {
    if (!text.empty()) fwrite(text.data(), 1, text.size(), stderr);
    return fail(flags, status.error(), &made.import_report);
  }
  Json seconds;
  double total = 0;
  for (const auto& [step, each] : made.timings) seconds[step] = each;
  if (made.stopped) {
    text += made.text;
    answer(flags, {{"stopped_after", flags.to}, {"seconds", seconds}, {"text", made.text}}, text);
    return 0;
  }
  int64_t bytes = 0;
  if (!output.empty()) {
    runtime::Program program = *made.program;
    program.objects = made.executable->objects();
    program.objects_need = program.objects.empty() ? "" : runtime::cpu_features();
    if (interrupted()) return fail(flags, Error{Code::kInterrupted, "cli", "interrupted before the file was written"});
    const std::string file = runtime::obk_bytes(program, made.graph);
    bytes = static_cast<int64_t>(file.size());
    if (Status written = write_file(output, file); !written.ok()) return fail(flags, written.error());
  }
  total = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  Json all = {{"total", total}};
  all.update(seconds);
  const runtime::Program& program = *made.program;
  const runtime::LoadReport& load = made.executable->report();
  Json json = {{"output", output}, {"target", program.target}, {"seconds", all}, {"phases", program.waves}, {"tasks", program.task_count()},
               {"bodies", program.bodies.size()}, {"weights_bytes", weights_bytes(program)}, {"workspace_bytes", program.arena.count},
               {"peak_rss_bytes", peak_rss_bytes()}, {"verify", verification_json(made.verification)}};
  text += fmt::format(" model    {} · {} nodes\n", made.imported.name, made.imported.order().size());
  text += fmt::format(" plan     {} phases · {} tasks · {} bodies ({} compiled, {} from the cache) · {} weights · {} workspace\n", program.waves,
                      program.task_count(), program.bodies.size(), load.compiled, load.cached, to_string(Bytes{weights_bytes(program)}), to_string(program.arena));
  text += made.verification ? " verify   " + made.verification->text() + "\n" : std::string(" verify   off\n");
  if (!output.empty()) text += fmt::format(" wrote    {} {} in {:.1f} s     next: obelisk bench {}\n", output, to_string(Bytes{bytes}), total, output);
  answer(flags, json, text);
  return 0;
}

}  // namespace obelisk::cli
