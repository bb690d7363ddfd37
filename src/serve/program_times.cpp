#include "serve/program_times.h"

#include <algorithm>
#include <cmath>

namespace obelisk::serve {

int passes(const VariantTime& variant, int rows) {
  return (rows + variant.batch - 1) / variant.batch;
}

int largest(const ModelTimes& model) {
  int most = 0;
  for (const VariantTime& variant : model.variants) most = std::max(most, variant.batch);
  return most;
}

bool holds(const ModelTimes& model, const VariantTime& variant, int rows) {
  return variant.batch >= std::min(rows, largest(model));
}

int smallest(const ModelTimes& model, int rows) {
  int least = 0;
  for (const VariantTime& variant : model.variants)
    if (holds(model, variant, rows) && (least == 0 || variant.batch < least)) least = variant.batch;
  return least;
}

double crowded(int fill, int slots) {
  return std::max(static_cast<double>(fill) / static_cast<double>(slots), 1.0);
}

Time usual(const VariantTime& variant) { return std::max(variant.alone, variant.beside); }

bool wasteful(const ModelTimes& model, const VariantTime& variant) {
  return std::any_of(model.variants.begin(), model.variants.end(), [&](const VariantTime& other) {
    return other.batch == variant.batch && other.width < variant.width &&
           usual(other) <= usual(variant);
  });
}

std::optional<Time> gives_way(const Times& times, const Policy& policy, const Running& run,
                              int priority) {
  const auto& variants = times.models[static_cast<size_t>(run.model)].variants;
  if (policy.kind != PolicyKind::kVliw || !policy.segments || run.slots == 0 || run.shares ||
      priority > run.priority || static_cast<size_t>(run.variant) >= variants.size())
    return std::nullopt;
  const VariantTime& variant = variants[static_cast<size_t>(run.variant)];
  if (variant.segment == kNever) return std::nullopt;
  // Its parts are as much longer than alone as it is.
  return scaled(variant.segment, static_cast<double>(usual(variant).count()) /
                                     static_cast<double>(std::max(variant.alone, Time(1)).count()));
}

Time end_of(const Running& run, Time now, const Policy& policy) {
  return std::max(run.started + run.paused + scaled(run.predicted - run.paused, policy.margin),
                  now);
}

double share_slack(const Window& window, const Policy& policy) {
  return policy.shares
             ? static_cast<double>(policy.share_slack.count()) * window.slots() * window.machines()
             : INFINITY;
}

Time room_in(const Window& window, const Running& run, Time now, const Policy& policy) {
  const Time own = run.predicted - run.paused;
  const Time end = end_of(run, now, policy) + window.allowance(run.model, own, own, policy);
  Time room = std::max(own, policy.patience) - run.paused;
  for (const Time deadline : run.deadlines)
    if (run.started + run.predicted <= deadline) room = std::min(room, deadline - end);
  return room;
}

Time quickest(const ModelTimes& model, int rows) {
  Time best = kNever;
  for (const VariantTime& variant : model.variants)
    if (holds(model, variant, rows)) best = std::min(best, variant.alone * passes(variant, rows));
  return best;
}

bool joins(const Policy& policy) {
  return policy.kind == PolicyKind::kBatch || (policy.kind == PolicyKind::kVliw && policy.batches);
}

int launches(const ModelTimes& model, const Policy& policy, int requests) {
  const int most = joins(policy) ? std::max(largest(model), 1) : 1;
  return (requests + most - 1) / most;
}

bool follows(const ModelTimes& model, const Policy& policy, int slots) {
  const int most = largest(model);
  if (!joins(policy) || most <= 1) return false;
  constexpr double kLittleMore = 1.25;  // chosen
  double whole = INFINITY, least = INFINITY;
  for (const VariantTime& variant : model.variants) {
    if (variant.batch != most) continue;
    const double cost = static_cast<double>(usual(variant).count()) * variant.width;
    least = std::min(least, cost);
    if (variant.width == slots) whole = cost;
  }
  return whole <= kLittleMore * least;
}

int beside_own(const ModelTimes& model, const Policy& policy, int requests, int slots) {
  return follows(model, policy, slots) ? 0 : std::max(launches(model, policy, requests) - 1, 0);
}

bool better(const ModelTimes& model, const VariantTime& a, Time a_time, const VariantTime& b,
            Time b_time, const Room& room) {
  const int enough = smallest(model, room.rows);
  if ((a.batch <= enough) != (b.batch <= enough)) return a.batch <= enough;
  if (a.width != b.width && !room.crowded) {
    const bool a_within = a.width <= room.share, b_within = b.width <= room.share;
    if (a_within != b_within) return a_within;
    return a_within ? a.width > b.width : a.width < b.width;
  }
  const auto cost = [&](const VariantTime& variant, Time time) {
    return static_cast<double>(time.count()) * variant.width / std::min(variant.batch, room.rows);
  };
  const double a_cost = cost(a, a_time), b_cost = cost(b, b_time);
  return a_cost != b_cost ? a_cost < b_cost : a.batch < b.batch;
}

double cost_of_row(const ModelTimes& model, const Policy& policy, int waiting, int slots) {
  const bool batches = joins(policy);
  const bool narrow = policy.kind == PolicyKind::kVliw && policy.narrow;
  double best = 0;
  for (const VariantTime& variant : model.variants) {
    if (variant.batch > 1 && (!batches || variant.batch > waiting)) continue;
    if (variant.width != slots && !narrow) continue;
    const Time time = variant.width == slots ? variant.alone : variant.beside;
    const double cost = static_cast<double>(time.count()) * variant.width / variant.batch;
    if (best == 0 || cost < best) best = cost;
  }
  return best;
}

}  // namespace obelisk::serve
