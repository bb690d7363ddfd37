#include "steps.h"

#include <algorithm>
#include <chrono>

#include "explain.h"

namespace obelisk::compiler {
namespace {

std::string joined(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ", ") + name;
  return out;
}

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

Steps::Steps(const Options& options, Compilation* compilation)
    : options_(options), compilation_(compilation) {
  if (compilation) explanations_ = &compilation->explanations;
}

double Steps::share(std::string_view step) {
  return step == "load" ? 0.5 : step == "verify" ? 0.3 : 0.02;
}

Status Steps::operator()(std::string_view step, const std::function<Status()>& make,
                         const std::function<Status()>& check,
                         const std::function<std::string(bool explain)>& show) {
  const bool first = !contains(names, step);  // of several candidates
  if (first) names.emplace_back(step);
  if (!compilation_) return ok_status();
  if (options_.interrupted && options_.interrupted())
    return Error{Code::kInterrupted, "compile", fmt::format("interrupted before '{}'", step)};
  if (options_.progress) options_.progress(step, done_);
  const auto start = std::chrono::steady_clock::now();
  TRY_STATUS(make());
  if (Status sound = check(); !sound.ok()) {
    Error error =
        sound.error();  // a step that breaks an invariant is our bug, whatever its check calls it
    error.code = Code::kBuild;
    error.message = fmt::format("after step '{}': {}", step, error.message);
    error.hint = "this is a defect of Obelisk; please report it with the model";
    return error;
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  auto& timings = compilation_->timings;
  const auto timed = std::find_if(timings.begin(), timings.end(),
                                  [&](const auto& each) { return each.step == step; });
  if (timed != timings.end())
    timed->seconds += seconds;
  else
    timings.push_back({std::string(step), seconds});
  if (first) done_ = std::min(0.95, done_ + share(step));
  if (options_.explain.count(std::string(step)))
    explanations_->push_back({std::string(step), show(true)});
  if (options_.to != step) return ok_status();
  compilation_->stopped = true;
  compilation_->text = show(false);
  return Error{Code::kOk, "compile", "stopped where it was told to"};
}

Status Steps::operator()(const passes::Pass& pass, graph::Graph& graph) {
  graph::Graph before;
  passes::Remarks remarks;
  passes::Remarks* asked = options_.explain.count(std::string(pass.name)) ? &remarks : nullptr;
  const bool left_out = options_.disabled.count(std::string(pass.name)) > 0;
  const auto run = [&]() -> Status {
    if (left_out) return ok_status();
    if (asked) before = graph;
    return put(graph, pass.run(std::move(graph), asked));
  };
  const auto show = [&](bool explain) {
    if (!explain) return graph::print(graph);
    if (left_out) return std::string("left out by --disable\n");
    if (pass.idle)
      return std::string(
          "nothing to do: neither the machine's tiles nor how they are launched ask for it\n");
    return explain_pass(pass.summary, before, graph) + explain_remarks(pass.heading, remarks);
  };
  return (*this)(pass.name, run, [&] { return graph::verify(graph); }, show);
}

Status check_names(const Options& options) {
  const std::vector<std::string> steps = step_names();
  std::vector<std::string> asked(options.explain.begin(), options.explain.end());
  if (!options.to.empty()) asked.push_back(options.to);
  for (const std::string& name : asked)
    if (!contains(steps, name))
      return Error{Code::kUsage, "compile", fmt::format("no step is called '{}'", name), "",
                   "steps: " + joined(steps)};
  std::vector<std::string> passes;
  for (const auto& table : {passes::table(), passes::machine_passes()})
    for (const passes::Pass& pass : table) passes.emplace_back(pass.name);
  for (const char* other :
       {"adapt_groups", "dataflow", "tall_gemm", "dispatch_classes", "dispatch_demand",
        "dispatch_priorities", "dispatch_memory", "dispatch_early", "fewer_sms"})
    passes.emplace_back(other);  // of stitching, of a strategy, of a dispatch
  for (const std::string& name : options.disabled)
    if (!contains(passes, name))
      return Error{Code::kUsage, "compile", fmt::format("no pass is called '{}'", name), "",
                   "passes: " + joined(passes)};
  schedule::DispatchOptions dispatch = options.dispatch;
  if (dispatch.policy.empty()) dispatch.policy = "auto";
  TRY_STATUS(schedule::check_options(dispatch));
  const bool on_cpu = options.target == "cpu";
  const bool plain = dispatch.launch_order.empty() && dispatch.streams == 0 &&
                     dispatch.search_seconds == 0 && options.dispatch_from.empty();
  if (!on_cpu && options.granularity == Granularity::kMono && !plain)
    return Error{
        Code::kUsage, "compile",
        fmt::format(
            "--streams, --launch-order, --search-seconds and --dispatch-from order the "
            "kernels of a graph; granularity mono has one kernel, whose dispatch is {} alone",
            dispatch.policy),
        "", "--granularity op or stitch, or --dispatch without them"};
  if (!options.dispatch_from.empty() && !options.granularity && !on_cpu)
    return Error{Code::kUsage, "compile", "a dispatch that was written is of one granularity", "",
                 "--granularity op or stitch"};
  return ok_status();
}

}  // namespace obelisk::compiler
