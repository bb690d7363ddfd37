#include "fewer_sms.h"

#include <chrono>

#include "kernel_profiles.h"
#include "time_in_turns.h"

namespace obelisk::compiler {
namespace {

constexpr double kParts[] = {2.0 / 3, 1.0 / 2};  // of the SMs; which is quicker differs by network
constexpr double kSideBySide = 1.25;  // times of all kernels over those of the longest path: below
                                      // it there is little to run beside

/// What times by SMs are called in a profile.
std::string name_of(int sms) { return fmt::format("{} SMs", sms); }

bool has_branches(const Dispatching& all) {
  double sum = 0;
  for (const schedule::Kernel& kernel : all.kernels)
    if (kernel.launches) sum += kernel.demand.nanos;
  return sum > kSideBySide * all.dispatch.critical_nanos;
}

Options options_for(int sms, double search_seconds, const Options& of_all,
                    const Compilation& for_all) {
  Options options = of_all;
  options.sms = sms, options.granularity = for_all.program->granularity;
  options.dispatch.policy = "auto";
  options.dispatch.search_seconds = search_seconds;
  options.verify = false, options.to.clear(), options.progress = nullptr;
  return options;
}

/// What another compilation made, in place of what this one did from the target on.
void adopt(Compilation& other, Compilation& made) {
  static_cast<Lowered&>(made) = std::move(static_cast<Lowered&>(other));
  made.executable = std::move(other.executable);
  made.explanations.clear();
  for (auto& each : other.explanations)
    if (each.step != "dispatch") made.explanations.push_back(std::move(each));
}

/// Whether nothing else can go on after it.
bool ends_all(const Error& error) {
  return error.code == Code::kInterrupted || error.code == Code::kDevice;
}

/// Times for parts of the SMs that have none in `us`, by name, and for all of them. Each is timed
/// in turns with the program for all, and its time is that one's by the ratio of the two.
Status time_parts(const Network& network, const Options& options, const Compilation& made,
                  std::map<std::string, double>& us) {
  const int all_sms = made.program->sms;
  const std::vector<Tensor> inputs = verify::generate_inputs(made.graph, options.verification.seed);
  const auto start = std::chrono::steady_clock::now();
  for (const double part : kParts) {
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    const int sms = static_cast<int>(part * all_sms);
    if (sms < 1 || spent.count() >= options.dispatch.search_seconds) break;
    if (us.count(name_of(sms)) > 0) continue;
    Compilation other;
    const Status compiled = compile(network, options_for(sms, 0, options, made), other);
    if (!compiled.ok() && ends_all(compiled.error())) return compiled;
    if (!compiled.ok()) continue;
    std::vector<Timed> timed{{made.executable.get()}, {other.executable.get()}};
    TRY_STATUS(time_in_turns(timed, inputs));
    if (!timed[0].refused.empty() || !timed[1].refused.empty()) continue;
    double& for_all = us.try_emplace(name_of(all_sms), timed[0].us).first->second;
    us[name_of(sms)] = timed[1].us / timed[0].us * for_all;
  }
  return ok_status();
}

}  // namespace

Status take_fewer_sms(const Network& network, const Options& options, Compilation& made) {
  CHECK(made.dispatching && made.executable);
  const std::optional<Hash> key = made.dispatching->profile;
  const int all_sms = made.program->sms;
  if (!key || options.disabled.count("fewer_sms") > 0) return ok_status();
  const auto gpu = runtime::describe_gpu(options.load.gpu);
  if (!gpu.ok() || gpu->sms != all_sms) return ok_status();  // made for a part of it already
  const KernelProfiles profiles(runtime::cache_folder(options.load.cache_dir));
  KernelProfile profile = profiles.find(*key).value_or(KernelProfile{});
  const size_t measured = profile.us.size();
  if (options.dispatch.search_seconds > 0 && has_branches(*made.dispatching))
    TRY_STATUS(time_parts(network, options, made, profile.us));
  if (profile.us.size() > measured)
    profiles.keep(*key, *made.executable->device(), made.dispatching->kernels, profile);
  const auto for_all = profile.us.find(name_of(all_sms));
  if (for_all == profile.us.end()) return ok_status();
  int best = all_sms;
  double least = machine::thresholds::kWorthLeaving * for_all->second;
  std::string times = fmt::format("{} {:.1f}", all_sms, for_all->second);
  for (const double part : kParts) {
    const int sms = static_cast<int>(part * all_sms);
    const auto at = profile.us.find(name_of(sms));
    if (at == profile.us.end()) continue;
    times += fmt::format(", {} {:.1f}", sms, at->second);
    if (at->second < least) best = sms, least = at->second;
  }
  if (best != all_sms) {
    Compilation other;
    const Status compiled =
        compile(network, options_for(best, options.dispatch.search_seconds, options, made), other);
    if (!compiled.ok() && ends_all(compiled.error())) return compiled;
    if (compiled.ok())
      adopt(other, made);
    else
      best = all_sms;
  }
  made.dispatching->sms = fmt::format(
      "kernels for {} of {} multiprocessors, measured (us by how many): {}", best, all_sms, times);
  return ok_status();
}

}  // namespace obelisk::compiler
