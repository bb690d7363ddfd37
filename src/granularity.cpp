#include "granularity.h"

#include <algorithm>

#include "target/target.h"

namespace obelisk::compiler {
namespace {

/// Nanoseconds of a phase beside its tasks, as a share of a grid barrier (0.95 us on an H200): a
/// node of a graph whose kernels overlap is no cheaper than the barrier and its CTAs begin cold;
/// one that follows the end of the one before costs half as much again.
double phase_share(const std::string& granularity) {
  return granularity == "mono" ? 1.0 : granularity == "stitch" ? 1.2 : 1.5;
}

Result<double> measured_us(const runtime::Executable& executable,
                           const std::vector<Tensor>& inputs) {
  TRY(const auto context, executable.context());
  std::vector<const void*> in;
  std::vector<void*> out;
  std::vector<Tensor> outputs;
  for (const Tensor& tensor : inputs) in.push_back(tensor.data());
  for (const runtime::Port& port : executable.program().outputs) {
    outputs.push_back(Tensor::allocate(port.type));
    out.push_back(outputs.back().mutable_data());
  }
  TRY_STATUS(context->run(in, out));
  TRY(std::vector<double> us, context->device_us(20));
  std::nth_element(us.begin(), us.begin() + us.size() / 2, us.end());
  return us[us.size() / 2];
}

}  // namespace

double predicted_us(const runtime::Program& program) {
  // [wave][SM]
  std::vector<std::vector<double>> busy(program.waves,
                                        std::vector<double>(program.lists.size(), 0));
  for (size_t sm = 0; sm < program.lists.size(); ++sm)
    for (const ObkTask& task : program.lists[sm])
      busy[task.wave][sm] += program.works[task.work].task_nanos;
  const auto device = target::device(program.target, program.sms);
  const double phase =
      (device.ok() ? device->barrier.count() : 1000) * phase_share(program.granularity);
  double nanos = 0;
  for (const std::vector<double>& wave : busy)
    nanos += phase + *std::max_element(wave.begin(), wave.end());
  return nanos / 1e3;
}

std::string Choice::text() const {
  std::string others;
  for (const Candidate& each : candidates) {
    if (&each == &candidates[chosen]) continue;
    others += (others.empty() ? "" : ", ") +
              (each.refused.empty() ? fmt::format("{} {:.1f}", each.granularity, each.us)
                                    : fmt::format("{} ({})", each.granularity, each.refused));
  }
  return fmt::format("{}: {:.1f} us{}{} ({})", candidates[chosen].granularity,
                     candidates[chosen].us, others.empty() ? "" : ", beside ", others,
                     measured ? "measured" : "predicted, for there is no GPU to measure on");
}

Result<Choice> choose_granularity(std::vector<Candidate> candidates,
                                  const std::function<std::vector<Tensor>()>& inputs) {
  Choice choice{.candidates = std::move(candidates)};
  std::vector<Tensor> values;
  int best = -1;
  for (size_t k = 0; k < choice.candidates.size(); ++k) {
    Candidate& each = choice.candidates[k];
    if (!each.executable) continue;
    const runtime::DeviceReport* device = each.executable->device();
    choice.measured = device && !device->gpu.empty();
    if (choice.measured) {
      if (values.empty()) values = inputs();
      auto us = measured_us(*each.executable, values);
      if (!us.ok()) {
        // the GPU's context is lost with it
        if (us.error().code == Code::kDevice) return us.error();
        each.refused = us.error().message, each.executable = nullptr;
        continue;
      }
      each.us = *us;
    } else {
      each.us = predicted_us(each.executable->program());
    }
    if (best < 0 || each.us < choice.candidates[best].us) best = static_cast<int>(k);
  }
  if (best < 0) {
    CHECK(!choice.candidates.empty());
    return Error{Code::kUnsupported, "compile", choice.candidates[0].refused, "",
                 "compile with --target cpu"};
  }
  choice.chosen = static_cast<size_t>(best);
  return choice;
}

}  // namespace obelisk::compiler
