#include "lane_report.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace obelisk::compiler {
namespace {

using Interval = std::pair<double, double>;

/// The intervals, joined where they touch, in order.
std::vector<Interval> joined(std::vector<Interval> all) {
  std::sort(all.begin(), all.end());
  std::vector<Interval> out;
  for (const Interval& each : all) {
    if (out.empty() || each.first > out.back().second)
      out.push_back(each);
    else
      out.back().second = std::max(out.back().second, each.second);
  }
  return out;
}

double length(const std::vector<Interval>& joined) {
  double sum = 0;
  for (const Interval& each : joined) sum += each.second - each.first;
  return sum;
}

/// Time that is in both.
double shared_length(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  double sum = 0;
  for (size_t i = 0, k = 0; i < a.size() && k < b.size();) {
    sum += std::max(0.0, std::min(a[i].second, b[k].second) - std::max(a[i].first, b[k].first));
    a[i].second < b[k].second ? ++i : ++k;
  }
  return sum;
}

}  // namespace

std::optional<LaneReport> lane_report(const Dispatching& dispatching, int sms,
                                      const std::vector<runtime::TaskTime>& times) {
  if (times.empty()) return std::nullopt;
  std::map<int, Interval> ran;  // by kernel
  std::map<int, std::vector<Interval>> by_sm;
  for (const runtime::TaskTime& time : times) {
    Interval& span = ran.try_emplace(time.work, time.start_us, time.end_us).first->second;
    span.first = std::min(span.first, time.start_us);
    span.second = std::max(span.second, time.end_us);
    by_sm[time.sm].push_back({time.start_us, time.end_us});
  }

  LaneReport report;
  const schedule::Dispatch& dispatch = dispatching.dispatch;
  report.lanes.resize(static_cast<size_t>(dispatch.lanes));
  std::vector<std::vector<Interval>> in_lane(report.lanes.size()), of_class(2);
  double first = times.front().start_us, last = times.front().end_us;
  std::vector<double> durations(dispatching.kernels.size(), 0);
  for (const schedule::Dispatched& each : dispatch.kernels) {
    const auto at = ran.find(each.kernel);
    if (at == ran.end()) continue;
    const Interval span = at->second;
    report.spans.push_back({each.kernel, each.lane, span.first, span.second});
    first = std::min(first, span.first), last = std::max(last, span.second);
    durations[static_cast<size_t>(each.kernel)] = span.second - span.first;
    const size_t lane = static_cast<size_t>(each.lane);
    LaneReport::Lane& row = report.lanes[lane];
    row.start_us = row.kernels == 0 ? span.first : std::min(row.start_us, span.first);
    row.end_us = std::max(row.end_us, span.second);
    ++row.kernels;
    in_lane[lane].push_back(span);
    const schedule::Kernel& kernel = dispatching.kernels[static_cast<size_t>(each.kernel)];
    of_class[kernel.kind == schedule::KernelClass::kCompute ? 0 : 1].push_back(span);
  }
  std::stable_sort(
      report.spans.begin(), report.spans.end(),
      [](const KernelSpan& a, const KernelSpan& b) { return a.start_us < b.start_us; });
  for (size_t k = 0; k < report.lanes.size(); ++k)
    report.lanes[k].busy_us = length(joined(in_lane[k]));
  report.measured_us = last - first;
  report.overlap_us = shared_length(joined(of_class[0]), joined(of_class[1]));
  double busy = 0;
  for (const auto& [sm, spans] : by_sm) busy += length(joined(spans));
  if (report.measured_us > 0 && sms > 0) report.sm_busy_share = busy / (report.measured_us * sms);
  const schedule::Dag& dag = dispatching.dependencies.dag;
  if (const auto order = schedule::topological_order(dag); order.ok())
    report.critical_us = schedule::longest_paths(dag, *order, durations).critical;
  return report;
}

PriorityReport priority_report(const schedule::Dispatch& dispatch,
                               const std::vector<std::vector<runtime::TaskTime>>& runs) {
  std::map<std::vector<int>, std::vector<const schedule::Dispatched*>> together;
  for (const schedule::Dispatched& each : dispatch.kernels) {
    std::vector<int> after = each.predecessors;
    std::sort(after.begin(), after.end());
    together[std::move(after)].push_back(&each);
  }
  PriorityReport report;
  report.runs = static_cast<int>(runs.size());
  for (const std::vector<runtime::TaskTime>& times : runs) {
    std::map<int, double> begins;  // by kernel
    for (const runtime::TaskTime& time : times) {
      double& begin = begins.try_emplace(time.work, time.start_us).first->second;
      begin = std::min(begin, time.start_us);
    }
    for (const auto& [after, kernels] : together)
      for (size_t a = 0; a < kernels.size(); ++a)
        for (size_t b = 0; b < a; ++b) {
          // The lower number goes first.
          const bool in_order = kernels[a]->priority < kernels[b]->priority;
          const auto first = begins.find(kernels[in_order ? a : b]->kernel);
          const auto second = begins.find(kernels[in_order ? b : a]->kernel);
          if (kernels[a]->priority == kernels[b]->priority || first == begins.end() ||
              second == begins.end())
            continue;
          if (first->second == second->second) {
            ++report.ties;
            continue;
          }
          ++report.pairs;
          report.obeyed += first->second < second->second;
        }
  }
  return report;
}

std::string PriorityReport::text() const {
  if (pairs == 0)
    return ties == 0 ? "" : fmt::format("priorities: all {} pairs began at the same time\n", ties);
  const double percent = std::floor(100 * share());
  return heeded() ? fmt::format("priorities: {:.0f} % of {} pairs began in their order\n", percent,
                                pairs)
                  : fmt::format(
                        "priorities: not enforceable on this driver ({:.0f} % of {} pairs began in "
                        "their order)\n",
                        percent, pairs);
}

}  // namespace obelisk::compiler
