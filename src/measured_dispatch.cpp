#include "measured_dispatch.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <set>

#include "kernel_profiles.h"
#include "schedule/local_search.h"
#include "time_in_turns.h"

namespace obelisk::compiler {

Result<std::shared_ptr<const runtime::Executable>> dispatched(const Loaded& in_waves,
                                                              const schedule::Dispatch& dispatch,
                                                              const runtime::LoadOptions& load) {
  if (dispatch.policy == "waves")
    return in_waves.plain_waves ? runtime::load(in_waves.plain_waves, load) : in_waves.executable;
  runtime::Program program = in_waves.executable->program();
  program.dispatch = dispatch.kernels;
  program.objects = in_waves.executable->objects();  // what was compiled stays
  return runtime::load(std::make_shared<runtime::Program>(std::move(program)), load);
}

namespace {

/// Durations of kernels by their own time stamps, from a run in which none is beside another.
/// Nothing for kernels whose stamps say nothing.
Result<std::map<int, double>> measure_kernels(const runtime::Executable& sequential,
                                              const std::vector<Tensor>& inputs) {
  const TimedAlone alone(sequential);
  TRY(const auto context, run_once(sequential, inputs));
  TRY(const std::vector<runtime::TaskTime> tasks, context->task_times());
  std::map<int, std::pair<double, double>> spans;
  for (const runtime::TaskTime& task : tasks) {
    const auto [at, fresh] = spans.try_emplace(task.work, task.start_us, task.end_us);
    if (fresh) continue;
    at->second.first = std::min(at->second.first, task.start_us);
    at->second.second = std::max(at->second.second, task.end_us);
  }
  std::map<int, double> nanos;
  for (const auto& [kernel, span] : spans)
    if (span.second > span.first) nanos[kernel] = 1e3 * (span.second - span.first);
  return nanos;
}

/// How the kernels of a dispatch begin.
struct Start {
  double room = 1;         // part of the machine's room that kernels may take while they wait for
                           // others (schedule::start_early)
  bool priorities = true;  // nodes of the graph have those of the dispatch; else none has one
};
/// What `auto` tries beside all of the machine's room.
constexpr double kRoom[] = {0, 0.125, 0.5};
/// Lanes that it tries where a dispatch has more. A driver has a few queues of a GPU for all lanes
/// of a graph; where lanes are many, their kernels reach the GPU one queue after another.
constexpr int kFewLanes[] = {8, 12, 16};
/// A policy's dispatch by the policy's name, or the same in fewer lanes by a name of its own.
struct Policy {
  std::string name;
  schedule::Dispatch dispatch;
};
/// What a dispatch is called that begins so.
std::string with_start(const std::string& policy, Start start) {
  return policy + (start.room == 1 ? "" : fmt::format(":{}", start.room)) +
         (start.priorities ? "" : ":no-priorities");
}
std::vector<Start> all_starts() {
  std::vector<Start> all;
  for (const bool priorities : {true, false}) {
    all.push_back({1, priorities});
    for (const double room : kRoom) all.push_back({room, priorities});
  }
  return all;
}
schedule::Dispatch started(schedule::Dispatch dispatch, Start start,
                           const std::vector<schedule::Kernel>& kernels,
                           const machine::Machine& machine) {
  schedule::start_early(dispatch, kernels, machine, start.room);
  if (!start.priorities)
    for (schedule::Dispatched& each : dispatch.kernels) each.priority = 0;
  return dispatch;
}
bool has_priorities(const schedule::Dispatch& dispatch) {
  return std::any_of(dispatch.kernels.begin(), dispatch.kernels.end(),
                     [](const schedule::Dispatched& each) { return each.priority != 0; });
}

/// A dispatch that has a time, or may get one.
struct TimedDispatch {
  std::string name, policy;  // with its start, and without
  Start start;
  schedule::Dispatch dispatch;
};
double us_of(const KernelProfile& profile, const std::string& name) {
  const auto at = profile.us.find(name);
  return at == profile.us.end() ? INFINITY : at->second;
}
/// The policies' own, waves first, and what was measured of them in fewer lanes and with other
/// starts.
std::vector<TimedDispatch> measured_candidates(const KernelProfile& profile,
                                               const std::vector<Policy>& policies,
                                               const std::vector<schedule::Kernel>& kernels,
                                               const machine::Machine& machine) {
  std::vector<TimedDispatch> all;
  for (const auto& [policy, dispatch] : policies)
    for (const Start start : all_starts()) {
      const std::string name = with_start(policy, start);
      if (name == dispatch.policy)
        all.push_back({name, policy, start, dispatch});
      else if (profile.us.count(name) > 0)
        all.push_back({name, policy, start, started(dispatch, start, kernels, machine)});
    }
  return all;
}
/// Of all but waves, which are the first, the one that took least.
const TimedDispatch& best_besides_waves(const KernelProfile& profile,
                                        const std::vector<TimedDispatch>& all) {
  return *std::min_element(all.begin() + 1, all.end(), [&](const auto& a, const auto& b) {
    return us_of(profile, a.name) < us_of(profile, b.name);
  });
}
/// The one that took least, if it is worth leaving waves for.
const TimedDispatch& best_candidate(const KernelProfile& profile,
                                    const std::vector<TimedDispatch>& all) {
  const TimedDispatch& lanes = best_besides_waves(profile, all);
  const double us = us_of(profile, lanes.name), waves = us_of(profile, all[0].name);
  return us < INFINITY && (waves == INFINITY || us < machine::thresholds::kWorthLeaving * waves)
             ? lanes
             : all[0];
}

/// Loads dispatches and times them in turns; a name with an executable is loaded. Those for which
/// there is no room beside the others get no time.
struct Named {
  std::string name;
  const schedule::Dispatch* dispatch;
  std::shared_ptr<const runtime::Executable> executable = nullptr;
};
Status time_named(const Loaded& in_waves, std::vector<Named> some, const runtime::LoadOptions& load,
                  const std::vector<Tensor>& inputs, KernelProfile& profile) {
  std::vector<Timed> timed;
  std::vector<const Named*> of;
  for (Named& each : some) {
    if (!each.executable) {
      auto loaded = dispatched(in_waves, *each.dispatch, load);
      if (!loaded.ok() && loaded.error().code == Code::kMemory) continue;
      TRY(each.executable, std::move(loaded));
    }
    timed.push_back({each.executable.get()}), of.push_back(&each);
  }
  TRY_STATUS(time_in_turns(timed, inputs));
  for (size_t k = 0; k < timed.size(); ++k)
    if (timed[k].refused.empty()) profile.us[of[k]->name] = timed[k].us;
  return ok_status();
}

/// The policies' own, and without priorities those that have some; what has fewer lanes than its
/// policy comes later.
Status time_dispatches(const Loaded& in_waves, const std::vector<Policy>& policies,
                       const std::shared_ptr<const runtime::Executable>& sequential,
                       const std::vector<schedule::Kernel>& kernels,
                       const machine::Machine& machine, const runtime::LoadOptions& load,
                       const std::vector<Tensor>& inputs, KernelProfile& profile) {
  constexpr Start kWithout{.priorities = false};
  std::deque<schedule::Dispatch> without;
  std::vector<Named> some;
  for (const auto& [policy, dispatch] : policies) {
    if (policy != dispatch.policy) continue;
    some.push_back({policy, &dispatch, policy == "sequential" ? sequential : nullptr});
    if (has_priorities(dispatch))
      some.push_back({with_start(policy, kWithout),
                      &without.emplace_back(started(dispatch, kWithout, kernels, machine))});
  }
  return time_named(in_waves, std::move(some), load, inputs, profile);
}

/// The one with several lanes that took least.
const TimedDispatch* best_of_lanes(const KernelProfile& profile,
                                   const std::vector<TimedDispatch>& candidates) {
  const TimedDispatch* best = nullptr;
  for (const TimedDispatch& one : candidates)
    if (one.dispatch.policy != "waves" && one.dispatch.lanes > 1 &&
        (!best || us_of(profile, one.name) < us_of(profile, best->name)))
      best = &one;
  return best;
}

/// Made of another dispatch, to be timed beside it.
struct Other {
  std::string name;
  schedule::Dispatch dispatch;
};
/// The best of the candidates that has several lanes, beside what is made of it.
Status time_beside_best(const Loaded& in_waves, const std::vector<TimedDispatch>& candidates,
                        const std::function<std::vector<Other>(const TimedDispatch&)>& others_of,
                        const runtime::LoadOptions& load, const std::vector<Tensor>& inputs,
                        KernelProfile& profile) {
  const TimedDispatch* best = best_of_lanes(profile, candidates);
  if (!best) return ok_status();
  const std::vector<Other> others = others_of(*best);
  if (others.empty()) return ok_status();
  std::vector<Named> some = {{best->name, &best->dispatch}};
  for (const Other& each : others) some.push_back({each.name, &each.dispatch});
  return time_named(in_waves, std::move(some), load, inputs, profile);
}

/// The same in fewer lanes.
std::vector<Other> in_fewer_lanes(const TimedDispatch& best, const std::vector<Policy>& policies,
                                  const std::vector<schedule::Kernel>& kernels,
                                  const machine::Machine& machine) {
  std::vector<Other> others;
  for (const auto& [policy, dispatch] : policies)
    if (policy != dispatch.policy && dispatch.policy == best.policy)
      others.push_back(
          {with_start(policy, best.start), started(dispatch, best.start, kernels, machine)});
  return others;
}

/// The same with less room for kernels that wait.
std::vector<Other> with_less_room(const TimedDispatch& best,
                                  const std::vector<schedule::Kernel>& kernels,
                                  const machine::Machine& machine) {
  std::vector<Other> others;
  for (const double room : kRoom) {
    const Start start{room, best.start.priorities};
    others.push_back(
        {with_start(best.policy, start), started(best.dispatch, start, kernels, machine)});
  }
  return others;
}

/// One that leads waves has to do so a second time, in turn with them alone: of many candidates
/// that take equally long, some lead by chance.
Status time_leader_again(const Loaded& in_waves, const std::vector<TimedDispatch>& candidates,
                         const runtime::LoadOptions& load, const std::vector<Tensor>& inputs,
                         KernelProfile& profile) {
  constexpr int kMost = 3;
  const TimedDispatch& waves = candidates[0];
  std::set<std::string> again;
  for (int turn = 0; turn < kMost; ++turn) {
    const TimedDispatch& leader = best_candidate(profile, candidates);
    if (leader.name == waves.name || !again.insert(leader.name).second) break;
    TRY_STATUS(time_named(in_waves,
                          {{waves.name, &waves.dispatch}, {leader.name, &leader.dispatch}}, load,
                          inputs, profile));
  }
  return ok_status();
}

/// The dispatch that a search found before; nothing where none is kept or it does not fit.
std::optional<TimedDispatch> found_before(const Dispatching& all,
                                          const schedule::DispatchOptions& how,
                                          const machine::Machine& machine,
                                          const KernelProfile& profile) {
  const FoundDispatch& found = profile.found;
  if (found.order.empty()) return std::nullopt;
  TimedDispatch before{.name = "search", .policy = "search"};
  for (const Start start : all_starts())
    if (const std::string name = with_start("search", start); profile.us.count(name) > 0)
      before.name = name, before.start = start;
  schedule::Lanes lanes{std::vector<int>(all.kernels.size(), -1)};
  for (size_t k = 0; k < found.order.size(); ++k) {
    const int kernel = found.order[k];
    if (kernel < 0 || static_cast<size_t>(kernel) >= all.kernels.size() || found.lane[k] < 0)
      return std::nullopt;
    lanes.lane[static_cast<size_t>(kernel)] = found.lane[k];
    lanes.count = std::max(lanes.count, found.lane[k] + 1);
  }
  auto made = schedule::dispatch_as("search", all.dependencies.dag, all.kernels, found.order,
                                    std::move(lanes), how);
  if (!made.ok()) return std::nullopt;
  before.dispatch = started(std::move(*made), before.start, all.kernels, machine);
  return before;
}

/// A local search that begins with `from`, by measured time. Each candidate is timed in turns with
/// the best before it, and the last of these with `best`, which it has to leave behind by what a
/// dispatch is worth leaving for; else the profile says that nothing was found. Kernels begin as
/// they do in `from`.
Result<std::optional<TimedDispatch>> search_by_measurement(
    const Options& options, const schedule::DispatchOptions& how, const machine::Machine& machine,
    const Loaded& in_waves, const Dispatching& all, const TimedDispatch& from,
    const TimedDispatch& best, const std::vector<Tensor>& inputs, KernelProfile& profile) {
  constexpr double kBetter = 0.997;  // of the best before it: less is noise
  runtime::LoadOptions load = options.load;
  TRY(load.device_weights, runtime::DeviceWeights::create(load.gpu));  // one copy for all
  TRY(std::shared_ptr<const runtime::Executable> leading,
      dispatched(in_waves, from.dispatch, load));
  const auto judge = [&](const schedule::Dispatch& candidate) -> Result<bool> {
    auto loaded = dispatched(in_waves, started(candidate, from.start, all.kernels, machine), load);
    if (!loaded.ok() && loaded.error().code == Code::kMemory) return false;
    TRY(const std::shared_ptr<const runtime::Executable> other, std::move(loaded));
    std::vector<Timed> timed{{leading.get()}, {other.get()}};
    TRY_STATUS(time_in_turns(timed, inputs));
    if (!timed[1].refused.empty() || timed[1].us >= kBetter * timed[0].us) return false;
    leading = other;
    return true;
  };
  const schedule::SearchLimits limits{.seconds = how.search_seconds};
  TRY(schedule::Searched searched,
      schedule::local_search(all.dependencies.dag, all.kernels, from.dispatch, how, limits, judge));
  profile.found = {.seconds = how.search_seconds};
  for (const Start start : all_starts()) profile.us.erase(with_start("search", start));
  if (searched.better == 0) return std::optional<TimedDispatch>();
  TRY(const auto before, dispatched(in_waves, best.dispatch, load));
  std::vector<Timed> timed{{before.get()}, {leading.get()}};
  TRY_STATUS(time_in_turns(timed, inputs));
  TimedDispatch found{with_start("search", from.start), "search", from.start,
                      started(std::move(searched.dispatch), from.start, all.kernels, machine)};
  profile.us[best.name] = timed[0].us, profile.us[found.name] = timed[1].us;
  if (timed[1].us >= machine::thresholds::kWorthLeaving * timed[0].us)
    return std::optional<TimedDispatch>();
  for (const schedule::Dispatched& each : found.dispatch.kernels)
    profile.found.order.push_back(each.kernel), profile.found.lane.push_back(each.lane);
  return std::optional(std::move(found));
}

}  // namespace

Status choose_by_measurement(const Options& options, const schedule::DispatchOptions& how,
                             const machine::Machine& machine, const Loaded& in_waves,
                             const MakeDispatch& make, Dispatching& all) {
  const KernelProfiles profiles(runtime::cache_folder(options.load.cache_dir));
  const Hash key = profile_key(*in_waves.executable, in_waves.plain_waves.get(), how);
  all.profile = key;
  const std::optional<KernelProfile> known = profiles.find(key);
  KernelProfile profile = known.value_or(KernelProfile{});

  std::vector<Tensor> inputs;
  std::shared_ptr<const runtime::Executable> sequential;
  runtime::LoadOptions load = options.load;  // of what is only measured
  if (!known) {
    if (!load.device_weights) {  // one copy for all
      TRY(load.device_weights, runtime::DeviceWeights::create(load.gpu));
    }
    inputs = verify::generate_inputs(in_waves.made.graph, options.verification.seed);
    TRY(const schedule::Dispatch one_lane, make("sequential", 0));
    TRY(sequential, dispatched(in_waves, one_lane, load));
    TRY(profile.nanos, measure_kernels(*sequential, inputs));
  }
  for (const auto& [kernel, nanos] : profile.nanos)
    if (kernel >= 0 && static_cast<size_t>(kernel) < all.kernels.size())
      all.kernels[static_cast<size_t>(kernel)].demand.nanos = nanos;

  std::vector<Policy> policies;
  for (const char* policy : schedule::kPolicies) {
    TRY(schedule::Dispatch one, make(policy, 0));
    const int lanes = one.policy == "waves" || how.streams > 0 ? 0 : one.lanes;
    policies.push_back({policy, std::move(one)});
    for (const int few : kFewLanes) {
      if (few >= lanes) break;
      TRY(schedule::Dispatch in_few, make(policy, few));
      policies.push_back({fmt::format("{}:{}-lanes", policy, few), std::move(in_few)});
    }
  }
  if (!known) {
    TRY_STATUS(time_dispatches(in_waves, policies, sequential, all.kernels, machine, load, inputs,
                               profile));
    const auto measured = [&] {
      return measured_candidates(profile, policies, all.kernels, machine);
    };
    TRY_STATUS(time_beside_best(
        in_waves, measured(),
        [&](const TimedDispatch& best) {
          return in_fewer_lanes(best, policies, all.kernels, machine);
        },
        load, inputs, profile));
    if (how.rules.early && in_waves.executable->device()->overlaps)
      TRY_STATUS(time_beside_best(
          in_waves, measured(),
          [&](const TimedDispatch& best) { return with_less_room(best, all.kernels, machine); },
          load, inputs, profile));
    TRY_STATUS(time_leader_again(in_waves, measured(), load, inputs, profile));
    profiles.keep(key, *in_waves.executable->device(), all.kernels, profile);
  }

  const std::vector<TimedDispatch> candidates =
      measured_candidates(profile, policies, all.kernels, machine);
  const TimedDispatch& best = best_candidate(profile, candidates);
  std::string times;
  for (const TimedDispatch& each : candidates)
    if (const double us = us_of(profile, each.name); us < INFINITY)
      times += fmt::format("{}{} {:.1f}", times.empty() ? "" : ", ", each.name, us);
  std::optional<TimedDispatch> found = found_before(all, how, machine, profile);
  if (how.search_seconds > profile.found.seconds) {
    if (inputs.empty())
      inputs = verify::generate_inputs(in_waves.made.graph, options.verification.seed);
    TRY(found, search_by_measurement(options, how, machine, in_waves, all,
                                     found ? *found : best_besides_waves(profile, candidates), best,
                                     inputs, profile));
    profiles.keep(key, *in_waves.executable->device(), all.kernels, profile);
  }
  const TimedDispatch& chosen = found ? *found : best;
  if (found) times += fmt::format(", {} {:.1f}", found->name, us_of(profile, found->name));
  all.dispatch = chosen.dispatch;
  all.dispatch.reason =
      fmt::format("{}, measured{} (us): {}", chosen.name, known ? " before" : "", times);
  return ok_status();
}

}  // namespace obelisk::compiler
