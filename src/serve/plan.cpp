#include "serve/plan.h"

#include <algorithm>
#include <tuple>

namespace obelisk::serve {

namespace {

/// Looked at of each flow, and of all; what is behind them is estimated (Plan::end_of_added).
constexpr size_t kOfFlow = 256, kOfAll = 512;

/// Requests of a flow that are due before a time; of very many the rest is estimated.
int ahead_in(const Flow& flow, Time due) {
  constexpr int kLooked = kOfFlow;
  if (flow.waiting.empty() || flow.waiting.begin()->due > due) return 0;
  if (flow.waiting.rbegin()->due <= due) return static_cast<int>(flow.waiting.size());
  int count = 0;
  for (const Flow::Waiting& waiting : flow.waiting) {
    if (waiting.due > due) return count;
    if (++count == kLooked) break;
  }
  const double from = static_cast<double>(flow.waiting.begin()->due.count()),
               to = static_cast<double>(flow.waiting.rbegin()->due.count());
  const double part = to > from ? (static_cast<double>(due.count()) - from) / (to - from) : 1;
  return std::max(count, static_cast<int>(part * static_cast<double>(flow.waiting.size())));
}

}  // namespace

Plan::Plan(const Window& window, const Times& times, Time now, const Policy& policy)
    : window_(window),
      times_(times),
      now_(now),
      policy_(policy),
      narrow_(policy.kind == PolicyKind::kVliw && policy.narrow) {
  for (const Flow& flow : window.flows()) {
    if (flow.waiting.empty() || times.models[static_cast<size_t>(flow.model)].variants.empty())
      continue;
    size_t k = 0;
    for (const Flow::Waiting& waiting : flow.waiting) {
      items_.push_back(item_of(waiting.job, waiting.due));
      if (++k == kOfFlow) break;
    }
    all_ &= k == flow.waiting.size();
  }
  std::sort(items_.begin(), items_.end(), before);
  if (items_.size() > kOfAll) items_.resize(kOfAll), all_ = false;
}

Plan::Item Plan::item_of(const Job& job, Time due) {
  const auto [at, fresh] = programs_.try_emplace({job.model, job.rows});
  Programs& programs = at->second;
  if (fresh) {
    const ModelTimes& model = times_.models[static_cast<size_t>(job.model)];
    programs.model = &model;
    programs.batch = smallest(model, job.rows);
    for (const VariantTime& variant : model.variants) {
      if (narrow_ ? wasteful(model, variant) : variant.width != window_.slots()) continue;
      if (!holds(model, variant, job.rows)) continue;
      if (variant.batch != programs.batch && !joins(policy_)) continue;
      const int runs = passes(variant, job.rows);
      programs.all.push_back({&variant, variant.alone * runs, usual(variant) * runs});
      if (variant.batch == programs.batch &&
          (programs.narrowest == 0 || variant.width < programs.narrowest))
        programs.narrowest = variant.width;
    }
    programs.away = model.away, programs.quickest = quickest(model, job.rows);
  }
  return {&job, due, &programs, window_.slower(job.tenant, policy_)};
}

bool Plan::before(const Item& a, const Item& b) {
  return std::tuple(a.job->priority, a.due, a.job->key) <
         std::tuple(b.job->priority, b.due, b.job->key);
}

/// What the scheduler would choose of the programs that are in time; none: there is none.
Plan::Place Plan::best_of(const Item& item, Place place, int slots, const Room& room, double margin,
                          bool alone) const {
  place.program = nullptr;
  const auto takes = [&](const Programs::One& program, bool alone) {
    const Time time = alone ? program.alone : program.usual;
    return item.slower > 1 ? scaled(time, item.slower) : time;
  };
  for (const Programs::One& program : item.programs->all) {
    if (program.variant->width > slots) continue;
    const Time time = takes(program, alone);
    if (place.start + scaled(time, margin) > item.job->deadline) continue;
    if (is_small(item, program, place.start, room.rows)) continue;
    if (place.program && !better(*item.programs->model, *program.variant, takes(program, false),
                                 *place.program->variant, takes(*place.program, false), room))
      continue;
    place.program = &program, place.end = place.start + time;
  }
  return place;
}

/// Requests of the same model that are likely to come until a time.
int Plan::coming(const Job& job, Time until) const {
  const Time gap = policy_.foresee ? window_.gap(job.model) : kNever;
  if (gap == kNever) return 0;
  return static_cast<int>(std::min((until - now_) / std::max(gap, Time(1)), int64_t{1} << 20));
}

/// Whether a row of so many takes far more of the machine in a program than in one of a larger
/// batch and the same width.
bool Plan::is_small(const Item& item, const Programs::One& program, Time start, int rows) const {
  if (!item.added || start <= now_) return false;
  constexpr double kFarMore = 1.25;  // chosen
  const auto cost = [&](const Programs::One& one) {
    return static_cast<double>(one.usual.count()) / std::min(one.variant->batch, rows);
  };
  return std::ranges::any_of(item.programs->all, [&](const Programs::One& other) {
    return other.variant->width == program.variant->width &&
           other.variant->batch > program.variant->batch && kFarMore * cost(other) < cost(program);
  });
}

/// As Deciding::start_on: on the slots that are free first on which a program of it is in time. Of
/// one that cannot be in time any more, what ends first.
Plan::Place Plan::place(const Item& item, int others, int waiting, bool behind) const {
  Place best, late;
  late.late = true;
  const int least = item.programs->narrowest;
  for (size_t machine = 0; machine < free_.size(); ++machine) {
    int slots = 0;
    const auto own = own_ends_.find({machine, item.job->model});
    const Time not_before = behind && own != own_ends_.end() ? own->second : now_;
    for (size_t k = 0; k < free_[machine].size(); ++k) {
      slots += free_[machine][k].slots;
      const Time start = std::max({free_[machine][k].at, now_ + item.programs->away, not_before});
      if (slots < least) continue;
      if (k + 1 < free_[machine].size() && free_[machine][k + 1].at <= not_before &&
          not_before > now_)
        continue;  // by then there are more
      if (start >= (best.program ? best.start : late.end)) break;
      const Place here{.machine = machine, .entry = k, .start = start};
      const int share = slots / (1 + others);
      const Room room{
          .share = std::max(share, least),
          .crowded = share < least,
          .rows =
              std::max(joins(policy_) ? waiting + (item.added ? coming(*item.job, start) : 0) : 1,
                       item.job->rows)};
      const bool empty = slots == window_.slots();
      Place found = best_of(item, here, slots, room, policy_.margin, false);
      if (!found.program) found = best_of(item, here, slots, room, 1, false);
      if (!found.program && empty) found = best_of(item, here, slots, room, 1, true);
      if (found.program) {
        best = found;
        break;
      }
      for (const Programs::One& program : item.programs->all)
        if (const Time end = start + scaled(empty ? program.alone : program.usual, item.slower);
            program.variant->width <= slots && end < late.end &&
            !is_small(item, program, start, room.rows))
          late.machine = machine, late.entry = k, late.start = start, late.end = end,
          late.program = &program;
    }
  }
  return best.program ? best : late;
}

/// Slots that become free last are taken first: those before stay for who is narrower.
void Plan::take(const Place& place) {
  std::vector<Free>& free = free_[place.machine];
  const int width = place.program->variant->width;
  int left = width;
  for (size_t k = place.entry + 1; k-- > 0 && left > 0;) {
    const int taken = std::clamp(free[k].slots, 0, left);
    free[k].slots -= taken, left -= taken;
  }
  std::erase_if(free, [](const Free& each) { return each.slots == 0; });
  const Free again{place.end, width};
  free.insert(std::ranges::upper_bound(free, again.at, {}, &Free::at), again);
}

/// Counts a run of a model whose batches follow one another, and tells where the end of the one on
/// this machine is kept, kNever before the first; null for other models.
Time* Plan::own_end(size_t machine, int model) {
  const auto m = static_cast<size_t>(model);
  if (!follows(times_.models[m], policy_, window_.slots())) return nullptr;
  ++runs_[m];
  return &own_ends_.try_emplace({machine, model}, kNever).first->second;
}

std::vector<Time> Plan::ends_with(const Change& change) {
  free_.resize(static_cast<size_t>(window_.machines()));
  own_ends_.clear(), runs_.assign(times_.models.size(), 0);
  for (int machine = 0; machine < window_.machines(); ++machine)
    free_[static_cast<size_t>(machine)].assign(
        1, {machine == change.machine ? now_ + change.delay : now_, window_.left(machine)});
  for (const Running& run : window_.running()) {
    const auto machine = static_cast<size_t>(run.machine);
    Time end = end_of(run, now_, policy_);
    if (run.id == change.run || run.machine == change.machine) end += change.delay;
    if (const int slots = run.slots + run.beside; slots > 0) free_[machine].push_back({end, slots});
    if (Time* own = run.slots > 0 ? own_end(machine, run.model) : nullptr)
      *own = std::min(*own, end);
  }
  for (auto& each : free_) std::ranges::sort(each.begin() + 1, each.end(), {}, &Free::at);
  const size_t count = items_.size();
  Item added;
  std::vector<std::pair<const Item*, size_t>> order;  // and where its end goes
  for (size_t k = 0; k < count; ++k)
    if (items_[k].job != change.leaves) order.emplace_back(&items_[k], k);
  std::vector<int> left(times_.models.size());  // requests of a model that have no place yet
  for (size_t m = 0; m < left.size(); ++m) left[m] = window_.waiting_of(static_cast<int>(m));
  if (change.leaves) --left[static_cast<size_t>(change.leaves->model)];
  if (change.added) {
    added = item_of(*change.added, due_of(*change.added, policy_));
    added.added = true;
    const auto at = std::ranges::lower_bound(order, added, before,
                                             [](const auto& each) { return *each.first; });
    order.insert(at, {&added, count});
    ++left[static_cast<size_t>(change.added->model)];
  }
  const auto launches_of = [&](size_t m) {
    return left[m] == 0 || runs_[m] >= window_.machines()
               ? 0
               : launches(times_.models[m], policy_, left[m]);
  };
  int claims = 0;
  for (size_t m = 0; m < left.size(); ++m) claims += launches_of(m);
  std::vector<Time> ends(count + 1, kNever);
  std::vector<bool> taken(order.size());
  for (size_t k = 0; k < order.size(); ++k) {
    if (taken[k]) continue;
    const auto& [item, to] = order[k];
    const auto m = static_cast<size_t>(item->job->model);
    claims -= launches_of(m);
    const int own = beside_own(*item->programs->model, policy_, left[m], window_.slots());
    Place found = place(*item, claims + own, left[m], true);
    if (found.late && runs_[m] > 0) found = place(*item, claims + own, left[m], false);
    ends[to] = found.end;
    --left[m];
    if (found.program && !(found.late && policy_.drop == Drop::kHopeless)) {
      take(found);
      if (Time* own = own_end(found.machine, item->job->model)) *own = found.end;
      const int batch = joins(policy_) ? found.program->variant->batch : 1;
      int rows = item->job->rows;
      for (size_t other = k + 1; other < order.size() && rows < batch; ++other) {
        const auto& [joined, its] = order[other];
        if (taken[other] || joined->job->model != item->job->model ||
            rows + joined->job->rows > batch ||
            (policy_.kind == PolicyKind::kVliw && joined->job->deadline < found.end))
          continue;
        taken[other] = true, ends[its] = found.end, rows += joined->job->rows;
        --left[m];
      }
    }
    claims += launches_of(m);
  }
  return ends;
}

/// Asked for the end of what is added, and whether that makes others late, it plans once.
const std::vector<Time>& Plan::changed(const Change& change) {
  if (!change.added || change.added != added_) changed_ = ends_with(change);
  added_ = change.added;
  return changed_;
}

const std::vector<Time>& Plan::as_it_is() {
  if (as_it_is_.empty()) as_it_is_ = ends_with({});
  return as_it_is_;
}

Time Plan::end_of_added(const Change& change) {
  const Time end = changed(change).back();
  if (all_ || end == kNever) return end;
  const Time due = due_of(*change.added, policy_);
  const auto cost = [&](int model) {
    return cost_of_row(times_.models[static_cast<size_t>(model)], policy_,
                       window_.waiting_of(model), window_.slots());
  };
  double ahead = 0;  // slot-nanoseconds of what was not looked at
  for (const Flow& flow : window_.flows()) ahead += ahead_in(flow, due) * cost(flow.model);
  for (const Item& item : items_)
    if (item.due <= due) ahead -= cost(item.job->model);
  return end +
         Time(static_cast<int64_t>(std::max(ahead, 0.0) / window_.slots() / window_.machines()));
}

bool Plan::is_late(const Item& item, Time end, bool cautious) const {
  if (item.job->deadline == kNever) return false;
  if (cautious) {
    const Time takes = item.programs->quickest, waits = std::max(end - now_ - takes, Time(0));
    end += window_.allowance(item.job->model, waits, takes, policy_);
  }
  return end > item.job->deadline;
}

bool Plan::makes_late(const Change& change) {
  for (const Running& run : window_.running()) {
    if (run.machine != change.machine) continue;
    const Time end = std::max(run.started + run.predicted, now_);
    for (const Time deadline : run.deadlines)
      if (end <= deadline && end + change.delay > deadline) return true;
  }
  if (items_.empty()) return false;
  const std::vector<Time>& ends = changed(change);
  for (size_t k = 0; k < items_.size(); ++k) {
    const Item& item = items_[k];
    if (item.job == change.leaves || (change.added && item.job->priority > change.added->priority))
      continue;
    for (const bool cautious : {false, true})
      if (is_late(item, ends[k], cautious) && !is_late(item, as_it_is()[k], cautious)) return true;
  }
  return false;
}

Time Plan::late_before(Time due) {
  Time sum{0};
  for (size_t k = 0; k < items_.size(); ++k) {
    const Item& item = items_[k];
    if (item.due >= due || !is_late(item, as_it_is()[k], false)) continue;
    for (const Programs::One& program : item.programs->all)
      if (program.variant->batch == item.programs->batch &&
          program.variant->width == item.programs->narrowest)
        sum += scaled(program.usual, item.slower);
  }
  return sum;
}

}  // namespace obelisk::serve
