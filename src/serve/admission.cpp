#include <algorithm>

#include "serve/plan.h"
#include "serve/scheduler.h"

namespace obelisk::serve {
namespace {

/// Whether a request is in time beside what has the slots, if it starts at once, and makes nobody
/// late.
bool overlaps_in_time(const Window& window, const ModelTimes& model, Time now, const Policy& policy,
                      const Job& job, Plan& plan) {
  if (policy.kind != PolicyKind::kVliw || policy.overlap == 0 || model.away > Time(0)) return false;
  for (int machine = 0; machine < window.machines(); ++machine) {
    int fill = 0, beside = 0;
    for (const Running& run : window.running())
      if (run.machine == machine) fill += run.slots + run.beside, beside += run.beside > 0;
    if (beside >= policy.overlap) continue;
    for (const VariantTime& variant : model.variants) {
      const double crowd = crowded(fill + variant.width, window.slots());
      const Time takes = usual(variant) * passes(variant, job.rows);
      if (holds(model, variant, job.rows) && variant.batch == smallest(model, job.rows) &&
          now + scaled(takes, crowd * policy.margin) +
                  window.allowance(job.model, Time(0), takes, policy) <=
              job.deadline &&
          !plan.makes_late(
              {.machine = machine,
               .delay = scaled(takes, static_cast<double>(variant.width) / window.slots())}))
        return true;
    }
  }
  return false;
}

/// Whether a request is in time within a run that gives way, behind those that do so before it, and
/// nobody is late for it.
bool within_in_time(const Window& window, const Times& times, Time now, const Policy& policy,
                    const Job& job, Plan& plan) {
  const ModelTimes& model = times.models[static_cast<size_t>(job.model)];
  if (model.away > Time(0)) return false;
  for (const Running& run : window.running()) {
    const auto wait = gives_way(times, policy, run, job.priority);
    if (!wait) continue;
    Time before = plan.late_before(job.deadline);  // they want to run within something, too
    for (const Running& other : window.running())
      if (other.within == run.id)
        before += std::max(
            other.started + other.wait + scaled(other.predicted, policy.margin) - now, Time(0));
    for (const VariantTime& variant : model.variants) {
      const Time takes =
          scaled(usual(variant) * passes(variant, job.rows), window.slower(job.tenant, policy));
      if (variant.width <= run.slots && holds(model, variant, job.rows) &&
          variant.batch == smallest(model, job.rows) &&
          scaled(takes, policy.margin) <= room_in(window, run, now, policy) &&
          now + before + scaled(*wait + takes, policy.margin) +
                  window.allowance(job.model, before, takes, policy) <=
              job.deadline &&
          !plan.makes_late({.run = run.id, .delay = scaled(takes, policy.margin)}))
        return true;
    }
  }
  return false;
}

/// Whether nobody waits, and a program of the model is in time on slots that are free: then no plan
/// is needed.
bool starts_at_once(const Window& window, const ModelTimes& model, Time now, const Policy& policy,
                    const Job& job) {
  if (window.waiting() > 0 || policy.kind != PolicyKind::kVliw || !policy.narrow) return false;
  int free = 0;
  for (int machine = 0; machine < window.machines(); ++machine)
    free = std::max(free, window.left(machine));
  const int batch = smallest(model, job.rows);
  const double slower = window.slower(job.tenant, policy) * policy.margin;
  return std::ranges::any_of(model.variants, [&](const VariantTime& variant) {
    return variant.batch == batch && variant.width <= free &&
           now + model.away + scaled(usual(variant) * passes(variant, job.rows), slower) <=
               job.deadline;
  });
}

/// Whether the tenant of a request has had more, by Policy::share_slack, than one that was refused.
bool is_ahead(const Window& window, Time now, const Policy& policy, const Job& job) {
  if (policy.kind != PolicyKind::kVliw) return false;
  const double least = window.least_used(now, false);
  return least >= 0 && window.tenants()[static_cast<size_t>(job.tenant)].used - least >
                           share_slack(window, policy);
}

}  // namespace

Admission admit(const Window& window, const Times& times, Time now, const Policy& policy,
                const Job& job, int queue_limit) {
  const ModelTimes& model = times.models[static_cast<size_t>(job.model)];
  const Time quick = quickest(model, job.rows);
  if (model.variants.empty()) return {false, Why::kNoProgram, {}};
  const bool bounded = job.deadline != kNever;
  if (bounded && policy.drop == Drop::kHopeless && job.arrival + model.away + quick > job.deadline)
    return {false, Why::kTooShort, {}};
  const bool full = window.waiting_of(job.model) >= queue_limit;
  if (!full && (!bounded || !policy.admit_by_load)) return {};
  if (!full && starts_at_once(window, model, now, policy, job)) return {};
  Plan plan(window, times, now, policy);
  const Plan::Change with_it{.added = &job};
  const Time end = plan.end_of_added(with_it);
  if (full) return {false, Why::kQueueFull, std::max(end - now, Time(1'000'000))};
  constexpr double kAhead = 0.75;  // chosen: a smaller part is fairer and answers fewer
  const bool ahead = is_ahead(window, now, policy, job);
  // The rest of its time is room for those who are due before it and have had less.
  const Time deadline =
      ahead ? job.arrival + scaled(job.deadline - job.arrival, kAhead) : job.deadline;
  const Time waits = std::max(end - now - quick, Time(0));
  // What runs ends by Policy::margin later in the plan; that is enough where nobody else waits.
  const Time late =
      end - deadline +
      (window.waiting() == 0 ? Time(0) : window.allowance(job.model, waits, quick, policy));
  const bool by_deadline = policy.kind == PolicyKind::kEdf || policy.kind == PolicyKind::kVliw;
  if (late <= Time(0) && !(by_deadline && plan.makes_late(with_it))) return {};
  const Admission refused{false, Why::kLoad,
                          late > Time(0) ? late : std::max(end - job.deadline, Time(1'000'000))};
  if (ahead) return refused;
  const bool first = std::ranges::none_of(window.flows(), [&](const Flow& flow) {
    return !flow.waiting.empty() && flow.waiting.begin()->due <= job.deadline;
  });
  if (first && overlaps_in_time(window, model, now, policy, job, plan)) return {};
  if (within_in_time(window, times, now, policy, job, plan)) return {};
  return refused;
}

}  // namespace obelisk::serve
