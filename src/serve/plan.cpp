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
    const int batch = smallest(model, job.rows);
    double single = 0;  // slot-nanoseconds of a row that shares nothing
    for (const VariantTime& variant : model.variants) {
      if (narrow_ ? wasteful(model, variant) : variant.width != window_.slots()) continue;
      if (variant.batch == 1) {
        const Time time = variant.width == window_.slots() ? variant.alone : variant.beside;
        const double cost = static_cast<double>(time.count()) * variant.width;
        if (single == 0 || cost < single) single = cost;
      }
      const int runs = passes(variant, job.rows);
      if (variant.batch == batch && (programs.all.empty() || variant.width < programs.narrowest))
        programs.narrowest = variant.width;
      if (variant.batch == batch)
        programs.all.push_back({variant.width, variant.alone * runs, usual(variant) * runs});
    }
    if (single > 0)
      programs.discount = std::min(
          cost_of_row(model, policy_, window_.waiting_of(job.model), window_.slots()) / single,
          1.0);
    programs.away = model.away, programs.quickest = quickest(model, job.rows);
  }
  return {&job, due, &programs, window_.slower(job.tenant, policy_)};
}

bool Plan::before(const Item& a, const Item& b) {
  return std::tuple(a.job->priority, a.due, a.job->key) <
         std::tuple(b.job->priority, b.due, b.job->key);
}

/// The widest program within its part of the slots, else the narrowest, of those that are in time;
/// width 0: none is. In `end` is what ends first then.
Plan::Place Plan::best_of(const Item& item, Place place, int slots, int part, double margin,
                          bool alone) const {
  place.width = 0;
  for (const Programs::One& program : item.programs->all) {
    if (program.width > slots) continue;
    Time takes = alone ? program.alone : program.usual;
    if (item.slower > 1) takes = scaled(takes, item.slower);
    if (place.start + scaled(takes, margin) > item.job->deadline) continue;
    const bool within = program.width <= part, was = place.width <= part;
    if (place.width > 0 && (within != was ? was
                            : within      ? program.width <= place.width
                                          : program.width >= place.width))
      continue;
    place.width = program.width, place.end = place.start + takes;
  }
  return place;
}

/// As Deciding::start_on: on the slots that are free first on which a program of it is in time. Of
/// one that cannot be in time any more, what ends first.
Plan::Place Plan::place(const Item& item, int others) const {
  Place best, late;
  late.late = true;
  for (size_t machine = 0; machine < free_.size(); ++machine) {
    int slots = 0;
    for (size_t k = 0; k < free_[machine].size(); ++k) {
      slots += free_[machine][k].slots;
      const Time start = std::max(free_[machine][k].at, now_ + item.programs->away);
      if (slots < item.programs->narrowest) continue;
      if (start >= (best.width > 0 ? best.start : late.end)) break;
      const Place here{.machine = machine, .entry = k, .start = start};
      const int part = slots / (1 + others);
      const bool empty = slots == window_.slots();
      Place found = best_of(item, here, slots, part, policy_.margin, false);
      if (found.width == 0) found = best_of(item, here, slots, part, 1, false);
      if (found.width == 0 && empty) found = best_of(item, here, slots, part, 1, true);
      if (found.width > 0) {
        best = found;
        break;
      }
      for (const Programs::One& program : item.programs->all)
        if (const Time end = start + scaled(empty ? program.alone : program.usual, item.slower);
            program.width <= slots && end < late.end)
          late.machine = machine, late.entry = k, late.start = start, late.end = end,
          late.width = program.width;
    }
  }
  return best.width > 0 ? best : late;
}

/// Slots that become free last are taken first: those before stay for who is narrower.
void Plan::take(const Place& place, Time occupied) {
  std::vector<Free>& free = free_[place.machine];
  int left = place.width;
  for (size_t k = place.entry + 1; k-- > 0 && left > 0;) {
    const int taken = std::clamp(free[k].slots, 0, left);
    free[k].slots -= taken, left -= taken;
  }
  std::erase_if(free, [](const Free& each) { return each.slots == 0; });
  const Free again{place.start + occupied, place.width};
  free.insert(std::ranges::upper_bound(free, again.at, {}, &Free::at), again);
}

std::vector<Time> Plan::ends_with(const Change& change) {
  free_.resize(static_cast<size_t>(window_.machines()));
  for (int machine = 0; machine < window_.machines(); ++machine)
    free_[static_cast<size_t>(machine)].assign(
        1, {machine == change.machine ? now_ + change.delay : now_, window_.left(machine)});
  for (const Running& run : window_.running()) {
    Time end = end_of(run, now_, policy_);
    if (run.id == change.run || run.machine == change.machine) end += change.delay;
    if (const int slots = run.slots + run.beside; slots > 0)
      free_[static_cast<size_t>(run.machine)].push_back({end, slots});
  }
  for (auto& each : free_) std::ranges::sort(each.begin() + 1, each.end(), {}, &Free::at);
  const size_t count = items_.size();
  std::vector<Time> ends(count + 1, kNever);
  Item added;
  size_t at = count + 1;  // where what is added stands
  if (change.added) {
    added = item_of(*change.added, due_of(*change.added, policy_));
    at = static_cast<size_t>(std::ranges::lower_bound(items_, added, before) - items_.begin());
  }
  int others = static_cast<int>(count) - (change.added ? 0 : 1);
  const auto next = [&](const Item& item) {
    const Place found = place(item, std::max(others--, 0));
    if (found.width > 0 && !(found.late && policy_.drop == Drop::kHopeless))
      take(found, scaled(found.end - found.start, item.programs->discount));
    return found.end;
  };
  for (size_t k = 0; k <= count; ++k) {
    if (k == at) ends[count] = next(added);
    if (k < count && items_[k].job != change.leaves) ends[k] = next(items_[k]);
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
    const auto narrowest = std::ranges::min_element(item.programs->all, {}, &Programs::One::width);
    if (narrowest != item.programs->all.end()) sum += scaled(narrowest->usual, item.slower);
  }
  return sum;
}

}  // namespace obelisk::serve
