// obelisk compile: a model into one .obk file, verified.
#include <chrono>
#include <filesystem>

#include "base/progress.h"
#include "helpers.h"
#include "source.h"

namespace obelisk::cli {
namespace {

Json verification_json(const std::optional<verify::Report>& report) {
  if (!report) return nullptr;
  if (report->rows.empty()) return {{"ok", false}, {"why", report->why_not}};
  return {{"ok", report->ok},
          {"max_abs", report->max_abs},
          {"max_rel", report->max_rel},
          {"tolerance", report->tolerance},
          {"rounding", report->rounding},
          {"rows", report->rows},
          {"before", report->before}};
}

int64_t weights_bytes(const runtime::Program& program) {
  int64_t total = 0;
  for (const Tensor& weight : program.weights)
    if (!weight.empty()) total += weight.bytes();
  return total;
}

/// nvdisasm's listing of machine code.
Result<std::string> disassembled(const std::string& cubin, const std::string& folder) {
  const std::string tool = find_disassembler();
  const std::string file = folder + "/program.cubin";
  TRY_STATUS(write_file(file, cubin));
  TRY(Process process, Process::start({tool, "--print-code", file}));
  std::string text = process.read_all();
  if (process.wait() != 0)
    return Error{Code::kUsage, "cli", "nvdisasm does not read the machine code", "",
                 fmt::format("{} must be of NVRTC's version or later: {}", tool,
                             pip_install("-U nvidia-cuda-nvdisasm"))};
  return text;
}

std::vector<std::string> kinds_of_texts(const Flags& flags) {
  std::vector<std::string> kinds;
  std::istringstream list(flags.emit);
  for (std::string kind; std::getline(list, kind, ',');) kinds.push_back(kind);
  return kinds;
}

/// Whether the texts that are asked for can be written: known before anything is compiled.
Status can_emit(const Flags& flags, const compiler::Options& options) {
  for (const std::string& kind : kinds_of_texts(flags)) {
    if (kind == "schedule" || kind == "dispatch") continue;
    if (options.target == "cpu")
      return Error{Code::kUsage, "cli",
                   fmt::format("--emit {} is for GPUs, the target is cpu", kind), "",
                   "--target sm_90a compiles without a GPU"};
    if (kind == "sass" && find_disassembler().empty())
      return Error{Code::kUsage, "cli",
                   "--emit sass wants nvdisasm, which is found neither on the PATH, nor in "
                   "/usr/local/cuda, nor in a Python environment",
                   "", pip_install("nvidia-cuda-nvdisasm") + ", or OBELISK_NVDISASM=PATH of one"};
  }
  return ok_status();
}

/// --emit: texts of the program, one file each.
Result<std::vector<std::string>> emit_texts(const Flags& flags, const compiler::Options& options,
                                            const compiler::Compilation& made) {
  const std::string folder = flags.folder.empty() ? "." : flags.folder;
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed)
    return Error{Code::kUsage, "cli",
                 fmt::format("the folder '{}' cannot be made: {}", folder, failed.message())};
  std::vector<std::string> written;
  for (const std::string& kind : kinds_of_texts(flags)) {
    std::string text, file = folder + "/program." +
                             (kind == "cuda"       ? "cu"
                              : kind == "schedule" ? "schedule.txt"
                                                   : kind);
    if (kind == "dispatch") {
      if (!made.dispatching)
        return Error{Code::kUsage, "cli", "--emit dispatch is of a graph of kernels or of a CPU",
                     "", "--granularity op or stitch"};
      file = folder + "/dispatch.json",
      text = schedule::print_json(made.dispatching->dispatch, made.dispatching->kernels);
    } else if (kind == "schedule") {
      text = schedule::print(made.graph, made.plan, made.tasks);
    } else if (kind == "sass") {
      TRY(const std::string cubin, runtime::device_text(*made.program, "cubin", options.load));
      TRY(text, disassembled(cubin, folder));
    } else {
      TRY(text, runtime::device_text(*made.program, kind, options.load));
    }
    TRY_STATUS(write_file(file, text));
    written.push_back(file);
  }
  return written;
}

}  // namespace

int compile(const Flags& flags, const std::string& output) {
  const auto start = std::chrono::steady_clock::now();
  if (output.empty() && flags.to.empty() && flags.explain.empty() && flags.emit.empty())
    return fail(flags,
                Error{Code::kUsage, "cli", "compile needs a file to write", "", "-o model.obk"});
  auto options = options_from(flags);
  if (!options.ok()) return fail(flags, options.error());
  tell_what_the_cpu_ignores(flags, *options);
  if (Status texts = can_emit(flags, *options); !texts.ok()) return fail(flags, texts.error());
  for (const std::string& kind : kinds_of_texts(flags))
    options->wants_dispatch |= kind == "dispatch";
  Flags portable = flags;  // compiling a compiled file means its graph
  portable.portable = true;
  auto source = open_source(portable);
  if (!source.ok()) return fail(flags, source.error());
  std::error_code missing;
  if (source->kind != FileKind::kCompiled &&
      std::filesystem::equivalent(output, flags.file, missing))
    return fail(flags, Error{Code::kUsage, "cli", "the file to write is the model itself", "",
                             "-o with another name"});
  options->import = source->import;
  options->host_tail = output.empty();  // to be looked at; a compiled file has no place for it
  Progress progress(Progress::mode_for(stderr, false), "compile");
  options->progress = [&](std::string_view step, double done) { progress.step(step, done); };
  compiler::Compilation made;
  const Status status = compiler::compile(source->network, *options, made);
  progress.finish();
  std::string text;
  for (const auto& [step, reasons] : made.explanations)
    text += fmt::format("== {}\n{}", step, reasons);
  if (!status.ok()) {
    if (!text.empty()) fwrite(text.data(), 1, text.size(), stderr);
    return fail(flags, status.error(), &made.import_report);
  }
  Json seconds;
  double total = 0;
  for (const auto& [step, each] : made.timings) seconds[step] = each;
  Json explained = Json::object();
  for (const auto& [step, reasons] : made.explanations) explained[step] = reasons;
  std::vector<std::string> written;
  if (made.stopped) {
    text += made.text;
    Json json = {{"stopped_after", flags.to}, {"seconds", seconds}, {"text", made.text}};
    if (!explained.empty()) json["explained"] = explained;
    if (made.program && !flags.emit.empty()) {
      auto files = emit_texts(flags, *options, made);
      if (!files.ok()) return fail(flags, files.error());
      json["emitted"] = *files;
    }
    answer(flags, json, text);
    return 0;
  }
  int64_t bytes = 0;
  if (!output.empty()) {
    if (interrupted())
      return fail(flags,
                  Error{Code::kInterrupted, "cli", "interrupted before the file was written"});
    const auto begin = std::chrono::steady_clock::now();
    if (Status written = runtime::write_obk(output, *made.executable, made.graph,
                                            made.verification ? made.verification->rows : "");
        !written.ok())
      return fail(flags, written.error());
    seconds["write"] =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    std::error_code ignored;
    bytes = static_cast<int64_t>(std::filesystem::file_size(output, ignored));
  }
  total = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  Json all = {{"total", total}};
  all.update(seconds);
  const runtime::Program& program = *made.program;
  const runtime::LoadReport& load = made.executable->report();
  Json json = {{"output", output},
               {"target", program.target},
               {"precision", program.precision},
               {"seconds", all},
               {"phases", program.waves},
               {"tasks", program.task_count()},
               {"bodies", program.bodies.size()},
               {"bodies_compiled", load.compiled},
               {"bodies_cached", load.cached},
               {"weights_bytes", weights_bytes(program)},
               {"workspace_bytes", program.arena.count},
               {"peak_rss_bytes", peak_rss_bytes()},
               {"verify", verification_json(made.verification)}};
  const runtime::DeviceReport* device = made.executable->device();
  if (device) {
    json.update(json_of(*device));
    json["dataflow"] = program.dataflow;  // without barriers
  }
  if (made.choice) json["choice"] = made.choice->text();
  if (!explained.empty()) json["explained"] = explained;
  if (!flags.emit.empty()) {
    auto files = emit_texts(flags, *options, made);
    if (!files.ok()) return fail(flags, files.error());
    written = *files;
    json["emitted"] = written;
  }
  text +=
      fmt::format(" model    {} · {} nodes\n", made.imported.name, made.imported.order().size());
  text += fmt::format(
      " plan     {} phases · {} tasks · {} bodies ({} compiled, {} from the cache) · {} weights · "
      "{} workspace\n",
      program.waves, program.task_count(), program.bodies.size(), load.compiled, load.cached,
      to_string(Bytes{weights_bytes(program)}), to_string(program.arena));
  if (device) {
    int most = 0;
    int64_t spills = 0;
    for (const runtime::KernelReport& each : device->kernels)
      most = std::max(most, each.registers), spills += each.spill_bytes;
    text += fmt::format(
        " device   {}{} · {} · {} launches · {} phases · {} barriers · {} machine code · {} "
        "registers at most · {} bytes spilled\n",
        device->architecture, device->gpu.empty() ? " (not here)" : " " + device->gpu,
        to_string(device->granularity), device->launches, device->phases, device->barriers,
        to_string(Bytes{device->cubin_bytes}), most, spills);
    for (const std::string& warning : device->warnings) text += " warning  " + warning + "\n";
  } else {
    text += fmt::format(" device   {} ({}) · {} virtual SMs\n", program.target, host_cpu(),
                        program.sms);
  }
  if (made.choice) text += " choice   " + made.choice->text() + "\n";
  const bool nowhere = flags.verify && device && device->gpu.empty();
  text += nowhere ? fmt::format(" verify   not done: there is no GPU here to run {} on\n",
                                device->architecture)
          : made.verification ? fmt::format(" verify   {}{}\n",
                                            made.verification->before         ? "before: "
                                            : made.verification->rows.empty() ? "not done: "
                                                                              : "",
                                            made.verification->text())
                              : std::string(" verify   off\n");
  for (const std::string& file : written) text += fmt::format(" wrote    {}\n", file);
  if (!output.empty())
    text += fmt::format(" wrote    {} {} in {:.1f} s     next: obelisk bench {}\n", output,
                        to_string(Bytes{bytes}), total, output);
  answer(flags, json, text);
  return 0;
}

}  // namespace obelisk::cli
