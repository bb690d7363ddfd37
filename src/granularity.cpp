#include "granularity.h"

#include <algorithm>

#include "machine/costs_cuda.h"
#include "machine/machine.h"
#include "schedule/assign_tasks.h"
#include "time_in_turns.h"

namespace obelisk::compiler {
namespace {

/// Nanoseconds of a phase beside its tasks, as a share of a grid barrier.
double phase_share(Granularity granularity) {
  using namespace machine::cuda_costs;
  return granularity == Granularity::kMono     ? kMonoPhaseShare
         : granularity == Granularity::kStitch ? kStitchPhaseShare
                                               : kOpPhaseShare;
}

}  // namespace

Result<std::optional<Granularity>> parse_wanted_granularity(const std::string& name) {
  if (name == "auto") return std::optional<Granularity>();
  if (const std::optional<Granularity> known = machine::parse_granularity(name)) return known;
  return Error{Code::kUsage, "compile", fmt::format("there is no granularity '{}'", name), "",
               "granularities: auto, op, stitch, mono"};
}

double phase_us(const runtime::Program& program) {
  const auto device = machine::device(program.target, program.sms);
  return (device.ok() ? device->barrier.count() : machine::cuda_costs::kAnyBarrierNanos) *
         phase_share(program.granularity) / 1e3;
}

double predicted_us(const runtime::Program& program) {
  const double busy = schedule::busiest_nanos(
      program.lists, program.waves,
      [&](const ObkTask& task) { return program.works[task.work].task_nanos; });
  return busy / 1e3 + program.waves * phase_us(program);
}

std::string Choice::text() const {
  std::string others;
  for (const Candidate& each : candidates) {
    if (&each == &candidates[chosen]) continue;
    others +=
        (others.empty() ? "" : ", ") +
        (each.refused.empty() ? fmt::format("{} {:.1f}", to_string(each.granularity), each.us)
                              : fmt::format("{} ({})", to_string(each.granularity), each.refused));
  }
  return fmt::format("{}: {:.1f} us{}{} ({})", to_string(candidates[chosen].granularity),
                     candidates[chosen].us, others.empty() ? "" : ", beside ", others,
                     measured ? "measured" : "predicted, for there is no GPU to measure on");
}

Result<Choice> choose_granularity(std::vector<Candidate> candidates,
                                  const std::function<std::vector<Tensor>()>& inputs) {
  Choice choice{.candidates = std::move(candidates)};
  std::vector<Timed> timed;
  for (Candidate& each : choice.candidates) {
    if (!each.executable) continue;
    const runtime::DeviceReport* device = each.executable->device();
    choice.measured = device && !device->gpu.empty();
    if (choice.measured)
      timed.push_back({each.executable.get()});
    else
      each.us = predicted_us(each.executable->program());
  }
  if (choice.measured) {
    TRY_STATUS(time_in_turns(timed, inputs()));
    for (const Timed& one : timed)
      for (Candidate& each : choice.candidates)
        if (each.executable.get() == one.executable) each.us = one.us, each.refused = one.refused;
  }
  int best = -1;
  for (size_t k = 0; k < choice.candidates.size(); ++k) {
    Candidate& each = choice.candidates[k];
    if (!each.refused.empty()) each.executable = nullptr;
    if (each.executable && (best < 0 || each.us < choice.candidates[best].us))
      best = static_cast<int>(k);
  }
  if (best < 0) {
    CHECK(!choice.candidates.empty());
    return Error{Code::kUnsupported, "compile", choice.candidates[0].refused, "",
                 "compile with --target cpu"};
  }
  choice.chosen = static_cast<size_t>(best);
  return choice;
}

Result<std::vector<Candidate>> load_candidates(
    const std::vector<std::shared_ptr<const runtime::Program>>& programs, const Load& load) {
  std::vector<Candidate> candidates;
  std::optional<Error> failed;  // of one granularity: another may be well
  std::string unbuilt;
  bool any = false;
  for (const auto& program : programs) {
    Candidate candidate{.granularity = program->granularity};
    auto loaded = load(program);
    if (loaded.ok()) {
      candidate.executable = std::move(*loaded), any = true;
    } else {
      const Error& error = loaded.error();
      const bool of_it_alone = error.code == Code::kUnsupported || error.code == Code::kMemory ||
                               error.code == Code::kBuild;
      if (!of_it_alone || !program->customs.empty()) return error;
      if (error.code == Code::kBuild)
        unbuilt +=
            fmt::format("{} is left out: {}\n", to_string(program->granularity), error.text());
      if (error.code != Code::kUnsupported && !failed) failed = error;
      candidate.refused = error.text();
    }
    candidates.push_back(std::move(candidate));
  }
  if (!any && failed) return *failed;
  if (!unbuilt.empty()) LOG(kWarning, "compile", "{}", unbuilt.substr(0, unbuilt.size() - 1));
  return candidates;
}

}  // namespace obelisk::compiler
