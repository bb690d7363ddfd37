#include "granularity.h"

#include <algorithm>

#include "machine/costs_cuda.h"
#include "machine/machine.h"

namespace obelisk::compiler {
namespace {

/// Nanoseconds of a phase beside its tasks, as a share of a grid barrier.
double phase_share(Granularity granularity) {
  using namespace machine::cuda_costs;
  return granularity == Granularity::kMono     ? kMonoPhaseShare
         : granularity == Granularity::kStitch ? kStitchPhaseShare
                                               : kOpPhaseShare;
}

/// A candidate that has run once, and the times of its rounds.
struct Measured {
  Candidate* candidate;
  std::unique_ptr<runtime::Context> context;
  std::vector<double> us;
};

Result<std::unique_ptr<runtime::Context>> started(const runtime::Executable& executable,
                                                  const std::vector<Tensor>& inputs) {
  TRY(auto context, executable.context());
  std::vector<const void*> in;
  std::vector<void*> out;
  std::vector<Tensor> outputs;
  for (const Tensor& tensor : inputs) in.push_back(tensor.data());
  for (const runtime::Port& port : executable.program().outputs) {
    outputs.push_back(Tensor::allocate(port.type));
    out.push_back(outputs.back().mutable_data());
  }
  TRY_STATUS(context->run(in, out));
  return context;
}

/// Rounds in turns, so that clocks which rise and whatever else runs meet all alike; the first is
/// thrown away. What fails is refused. Errors: kDevice, for the GPU's context is lost with it.
Status measure(std::vector<Measured>& all) {
  constexpr int kRounds = 4, kRuns = 20;
  for (int round = 0; round < kRounds; ++round)
    for (Measured& each : all) {
      if (!each.candidate->refused.empty()) continue;
      auto us = each.context->device_us(kRuns);
      if (!us.ok()) {
        if (us.error().code == Code::kDevice) return us.error();
        each.candidate->refused = us.error().message;
      } else if (round > 0) {
        each.us.insert(each.us.end(), us->begin(), us->end());
      }
    }
  for (Measured& each : all) {
    if (!each.candidate->refused.empty()) continue;
    const auto middle = each.us.begin() + static_cast<std::ptrdiff_t>(each.us.size() / 2);
    std::nth_element(each.us.begin(), middle, each.us.end());
    each.candidate->us = *middle;
  }
  return ok_status();
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
  // [wave][SM]
  std::vector<std::vector<double>> busy(program.waves,
                                        std::vector<double>(program.lists.size(), 0));
  for (size_t sm = 0; sm < program.lists.size(); ++sm)
    for (const ObkTask& task : program.lists[sm])
      busy[task.wave][sm] += program.works[task.work].task_nanos;
  const double phase = phase_us(program) * 1e3;
  double nanos = 0;
  for (const std::vector<double>& wave : busy)
    nanos += phase + *std::max_element(wave.begin(), wave.end());
  return nanos / 1e3;
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
  std::vector<Tensor> values;
  std::vector<Measured> measured;
  for (Candidate& each : choice.candidates) {
    if (!each.executable) continue;
    const runtime::DeviceReport* device = each.executable->device();
    choice.measured = device && !device->gpu.empty();
    if (!choice.measured) {
      each.us = predicted_us(each.executable->program());
      continue;
    }
    if (values.empty()) values = inputs();
    auto context = started(*each.executable, values);
    if (context.ok()) {
      measured.push_back({&each, std::move(*context), {}});
    } else {
      if (context.error().code == Code::kDevice) return context.error();
      each.refused = context.error().message;
    }
  }
  TRY_STATUS(measure(measured));
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

Result<Choice> load_quickest(const std::vector<std::shared_ptr<const runtime::Program>>& programs,
                             const runtime::LoadOptions& options,
                             const std::function<std::vector<Tensor>()>& inputs) {
  std::vector<Candidate> candidates;
  std::optional<Error>
      too_large;  // beyond the memory limit: one granularity may be where another is not
  bool any = false;
  for (const auto& program : programs) {
    Candidate candidate{.granularity = program->granularity};
    auto loaded = runtime::load(program, options);
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
  TRY(Choice choice, choose_granularity(std::move(candidates), inputs));
  choice.executable = choice.candidates[choice.chosen].executable;
  for (Candidate& each : choice.candidates) each.executable = nullptr;
  return choice;
}

}  // namespace obelisk::compiler
