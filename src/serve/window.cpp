#include "serve/window.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace obelisk::serve {

namespace {

std::tuple<int, int, int, bool> flow_key(const Job& job) {
  return {job.model, job.tenant, job.priority, job.deadline != kNever};
}

}  // namespace

std::string to_string(Why why) {
  switch (why) {
    case Why::kInTurn:
      return "its turn: the whole machine";
    case Why::kBeside:
      return "its turn: beside what runs";
    case Why::kWidest:
      return "as wide as there is room: nobody else waits for the slots";
    case Why::kShared:
      return "its part of the room: others wait for slots, too";
    case Why::kWidened:
      return "wider than its part of the room, for its deadline";
    case Why::kOverlaps:
      return "beside programs that have the slots: on slots that become free it would be late";
    case Why::kWithin:
      return "within a run that gives way to it: on slots that become free it would be late";
    case Why::kPassed:
      return "the deadline passed while it waited";
    case Why::kHopeless:
      return "its quickest program could not meet the deadline any more";
    case Why::kQueueFull:
      return "the queue of the model is full";
    case Why::kTooShort:
      return "no program of the model is that quick, even on an empty machine";
    case Why::kLoad:
      return "the work that is ahead of it would make it late";
    case Why::kNoProgram:
      return "the model has no program yet";
  }
  return "?";
}

Time due_of(const Job& job, const Policy& policy) {
  if (policy.kind != PolicyKind::kEdf && policy.kind != PolicyKind::kVliw) return job.arrival;
  return job.deadline == kNever ? job.arrival + policy.best_effort : job.deadline;
}

double slot_time(const Start& start, const Job& job) {
  return static_cast<double>(start.predicted.count()) *
         std::max({start.slots, start.beside, start.borrows, 1}) * job.rows / start.rows;
}

int Window::add_tenant(double weight) {
  tenants_.push_back({.weight = std::max(weight, 1e-6)});
  return static_cast<int>(tenants_.size()) - 1;
}

double Window::least_used(Time now, bool that_wait) const {
  double least = -1;
  for (const Tenant& tenant : tenants_)
    if ((tenant.wanted >= now || (that_wait && tenant.waiting > 0)) &&
        (least < 0 || tenant.used < least))
      least = tenant.used;
  return least;
}

/// Who was away has saved nothing.
void Window::come(const Job& job) {
  Tenant& tenant = tenants_[static_cast<size_t>(job.tenant)];
  if (tenant.waiting > 0 || tenant.wanted >= job.arrival) return;
  tenant.used = std::max(tenant.used, least_used(job.arrival, true));
}

void Window::refuse(const Job& job, const Policy& policy) {
  come(job);
  Time& wanted = tenants_[static_cast<size_t>(job.tenant)].wanted;
  wanted = std::max({wanted, job.deadline, job.arrival + policy.patience});
  forget_pace();
}

void Window::arrive(const Job& job, const Policy& policy) {
  const auto [at, fresh] = flow_of_.try_emplace(flow_key(job), static_cast<int>(flows_.size()));
  if (fresh)
    flows_.push_back(
        {job.model, job.tenant, job.priority, job.deadline != kNever, {}, job.arrival});
  Flow& flow = flows_[static_cast<size_t>(at->second)];
  Tenant& tenant = tenants_[static_cast<size_t>(job.tenant)];
  come(job);
  if (flow.waiting.empty()) flow.served = job.arrival;
  flow.waiting.insert({due_of(job, policy), job});
  ++tenant.waiting, ++waiting_;
  if (by_model_.size() <= static_cast<size_t>(job.model))
    by_model_.resize(static_cast<size_t>(job.model) + 1, 0), gaps_.resize(by_model_.size());
  ++by_model_[static_cast<size_t>(job.model)];
  Gap& gap = gaps_[static_cast<size_t>(job.model)];
  if (gap.mean != kNever)
    gap.mean += (job.arrival - gap.last - gap.mean) / 8;
  else if (gap.last >= Time(0))
    gap.mean = job.arrival - gap.last;
  gap.last = job.arrival;
  constexpr size_t kArrived = 128;  // chosen: what a few groups of a dozen take
  if (arrived_.size() == kArrived) arrived_.pop_front();
  arrived_.push_back({job.arrival, job.model});
}

void Window::forget(int model) {
  const auto number = static_cast<size_t>(model);
  if (number < gaps_.size()) gaps_[number] = {};
  if (number < caution_.size()) caution_[number] = kFirstCaution;
  if (number < together_.size()) together_[number] = 1;
  std::erase_if(arrived_, [&](const Arrived& one) { return one.model == model; });
}

void Window::left(const Job& job) {
  --tenants_[static_cast<size_t>(job.tenant)].waiting, --waiting_;
  --by_model_[static_cast<size_t>(job.model)];
}

std::optional<Job> Window::cancel(uint64_t key) {
  for (Flow& flow : flows_)
    for (auto at = flow.waiting.begin(); at != flow.waiting.end(); ++at) {
      if (at->job.key != key) continue;
      const Job job = at->job;
      flow.waiting.erase(at), left(job);
      return job;
    }
  return std::nullopt;
}

std::vector<Job> Window::cancel_model(int model) {
  std::vector<Job> jobs;
  for (Flow& flow : flows_) {
    if (flow.model != model) continue;
    for (const Flow::Waiting& waiting : flow.waiting)
      jobs.push_back(waiting.job), left(waiting.job);
    flow.waiting.clear();
  }
  return jobs;
}

uint64_t Window::apply(const Decisions& decisions, const Policy& policy, Time now) {
  const uint64_t first = next_run_;
  const auto take = [&](const Job& job) {
    const int number = flow_of_.at(flow_key(job));
    Flow& flow = flows_[static_cast<size_t>(number)];
    const size_t gone = flow.waiting.erase({due_of(job, policy), job});
    CHECK(gone == 1, "request {} was decided upon and does not wait", job.key);
    left(job);
    return number;
  };
  for (const GiveUp& given : decisions.given_up) {
    take(given.job);
    judge(given.job.model, false, policy);
    // Nothing of a tenant runs where all that its runs took says that it would be late; then it is
    // not learnt either that this has passed.
    Tenant& tenant = tenants_[static_cast<size_t>(given.job.tenant)];
    if (tenant.ratio > 1) move_ratio(tenant, 1, policy);
    forget_pace();
  }
  for (const Start& start : decisions.starts) {
    CHECK(!start.jobs.empty(), "a start of nothing");
    free_[static_cast<size_t>(start.machine)] -= start.slots;
    CHECK(free_[static_cast<size_t>(start.machine)] >= 0,
          "more slots were given away than there are");
    for (const Job& job : start.jobs) {
      const int number = take(job);
      if (&job == &start.jobs.front()) last_flow_ = number;
      flows_[static_cast<size_t>(number)].served = now;
      Tenant& tenant = tenants_[static_cast<size_t>(job.tenant)];
      tenant.used += slot_time(start, job) / tenant.weight;
    }
    for (Running& run : running_)
      if (start.within > 0 ? run.id == start.within : run.machine == start.machine)
        run.predicted += start.delay;
    running_.push_back({next_run_++, start.machine, start.model, start.variant, start.slots,
                        start.jobs.front().tenant, static_cast<int>(start.jobs.size()), now,
                        start.predicted, start.beside});
    Running& run = running_.back();
    if (policy.kind == PolicyKind::kVliw) run.slower = slower(run.tenant, policy);
    run.within = start.within, run.borrows = start.borrows, run.wait = start.wait;
    run.shares = start.launch > 0, run.priority = start.jobs.front().priority;
    for (const Job& job : start.jobs) {
      run.priority = std::min(run.priority, job.priority);
      if (job.deadline != kNever) run.deadlines.push_back(job.deadline);
    }
  }
  return first;
}

void Window::finish(uint64_t run, Time took, const Policy& policy, Time waited) {
  const auto at = std::find_if(running_.begin(), running_.end(),
                               [&](const Running& one) { return one.id == run; });
  CHECK(at != running_.end(), "run {} ends, and does not run", run);
  int& free = free_[static_cast<size_t>(at->machine)];
  free += at->slots;
  for (Running& other : running_) {
    if (other.within == run) {  // it did not begin yet, and has slots of its own now
      other.within = 0, other.slots = other.borrows, other.borrows = 0;
      free -= other.slots, at->predicted -= other.predicted;
    } else if (other.id == at->within) {
      other.paused += took, other.predicted += took - at->predicted;
    }
  }
  const Time end = at->started + waited + took;
  Time& ended = ended_[static_cast<size_t>(at->machine)];
  ended = std::max(ended, end);
  // What ran within it says nothing of it.
  if (const Time predicted = at->predicted - at->paused; predicted > Time(0)) {
    const double ratio = std::min(
        static_cast<double>((took - at->paused).count()) / static_cast<double>(predicted.count()),
        4.0);
    Tenant& tenant = tenants_[static_cast<size_t>(at->tenant)];
    constexpr double kOfLate = 1.0 / 64;  // chosen: of some tens of runs
    const double longer = std::max(ratio / std::max(tenant.ratio, 1.0) - 1, 0.0);
    longer_ += kOfLate * (longer * longer - longer_);
    if (!tenant.demoted)  // its slowness is its own
      pace_ += kOfPace * (std::min(ratio * at->slower, policy.straggler) - pace_);
    move_ratio(tenant, ratio, policy);
  }
  if (const auto model = static_cast<size_t>(at->model); !at->deadlines.empty()) {
    if (together_.size() <= model) together_.resize(model + 1, 1);
    constexpr double kNew = 1.0 / 16;  // chosen
    together_[model] += kNew * (static_cast<double>(at->deadlines.size()) - together_[model]);
  }
  for (const Time deadline : at->deadlines) judge(at->model, end <= deadline, policy);
  running_.erase(at);
}

/// While nothing runs, nothing else tells that the machine is as quick again as ever.
void Window::forget_pace() {
  if (running_.empty() && pace_ > 1) pace_ += kOfPace * (1 - pace_);
}

/// Two runs of more than twice the time are enough to be noticed, a single one of any length is
/// not: a pause of the host makes such.
void Window::move_ratio(Tenant& tenant, double ratio, const Policy& policy) {
  constexpr double kNew = 0.35, kMost = 0.4, kBack = 0.8;
  tenant.ratio += std::min(kNew * (ratio - tenant.ratio), kMost);
  if (tenant.ratio > policy.straggler) tenant.demoted = true;
  if (tenant.ratio < 1 + kBack * (policy.straggler - 1)) tenant.demoted = false;
}

/// Steps are in balance where the share of misses is 1 - promise. Step and bound are chosen: a
/// larger step refuses what could be in time. Those of one run are late together: all of them make
/// one step.
void Window::judge(int model, bool in_time, const Policy& policy) {
  constexpr double kStep = 0.5, kMost = 20;
  if (policy.promise <= 0 || policy.promise >= 1) return;
  if (caution_.size() <= static_cast<size_t>(model))
    caution_.resize(static_cast<size_t>(model) + 1, kFirstCaution);
  double& caution = caution_[static_cast<size_t>(model)];
  const double step =
      kStep /
      (static_cast<size_t>(model) < together_.size() ? together_[static_cast<size_t>(model)] : 1);
  caution += in_time ? -step * (1 - policy.promise) / policy.promise : step;
  caution = std::clamp(caution, 0.0, kMost);
}

/// Errors of runs behind one another are taken as independent; half of a symmetric spread is
/// longer.
Time Window::allowance(int model, Time waits, Time takes, const Policy& policy) const {
  const auto own = static_cast<double>(takes.count());
  constexpr double kLeast = 0.05;  // chosen: plans are wrong even where runs take what they should
  const double variance =
      std::max(2 * longer_, kLeast * kLeast) * own * (own + static_cast<double>(waits.count()));
  return Time(static_cast<int64_t>(caution(model, policy) * std::sqrt(variance)));
}

int Window::left(int machine) const {
  int left = free(machine);
  for (const Running& run : running_)
    if (run.machine == machine) left -= run.beside;
  return left;
}

int Window::running_of(int model) const {
  return static_cast<int>(std::count_if(running_.begin(), running_.end(),
                                        [&](const Running& one) { return one.model == model; }));
}

}  // namespace obelisk::serve
