// obelisk profile: where a GPU's time goes, from times that the kernels themselves record.
#include <algorithm>
#include <cmath>
#include <map>

#include "granularity.h"
#include "lane_report.h"
#include "runner.h"

namespace obelisk::cli {
namespace {

/// One phase: from the end of the phase before to the end of its own last task.
struct Phase {
  double from_us = 0, to_us = 0;  // the first task begins, the last one ends
  double took_us = 0;             // since the phase before ended
  double floor_us = 0, predicted_us = 0;
  int tasks = 0, sms = 0;
  runtime::TaskTime last;  // what the phase waited for
  double median_us = 0;    // of its tasks
};

std::vector<Phase> phases_of(const runtime::Program& program,
                             const std::vector<runtime::TaskTime>& times) {
  std::vector<Phase> phases(program.waves);
  std::vector<std::vector<double>> durations(program.waves);
  std::vector<std::map<int, double>> busy(program.waves);
  for (const runtime::TaskTime& time : times) {
    Phase& phase = phases[time.wave];
    if (phase.tasks++ == 0 || time.start_us < phase.from_us) phase.from_us = time.start_us;
    if (phase.tasks == 1 || time.end_us > phase.last.end_us) phase.last = time;
    durations[time.wave].push_back(time.end_us - time.start_us);
    busy[time.wave][time.sm] += program.works[time.work].task_nanos / 1e3;
  }
  for (const runtime::WorkRecord& work : program.works) {
    const size_t w = &work - program.works.data();
    for (const auto& list : program.lists) {
      const auto at = std::find_if(list.begin(), list.end(),
                                   [&](const ObkTask& task) { return task.work == w; });
      if (at == list.end()) continue;
      phases[at->wave].floor_us += work.floor_nanos / 1e3;
      break;
    }
  }
  double before = 0;
  for (size_t k = 0; k < phases.size(); ++k) {
    Phase& phase = phases[k];
    if (phase.tasks == 0) continue;
    phase.to_us = phase.last.end_us, phase.sms = static_cast<int>(busy[k].size());
    phase.took_us = phase.to_us - before, before = phase.to_us;
    for (const auto& [sm, us] : busy[k]) phase.predicted_us = std::max(phase.predicted_us, us);
    phase.predicted_us += compiler::phase_us(program);
    std::nth_element(durations[k].begin(), durations[k].begin() + durations[k].size() / 2,
                     durations[k].end());
    phase.median_us = durations[k][durations[k].size() / 2];
  }
  return phases;
}

std::string quoted(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// Lanes of a graph of kernels, as a table and for machines.
std::string lanes_table(const compiler::LaneReport& report) {
  std::string text = fmt::format("\n{:>5} {:>8} {:>9} {:>9} {:>9}\n", "lane", "kernels", "from us",
                                 "to us", "busy us");
  for (size_t k = 0; k < report.lanes.size(); ++k) {
    const compiler::LaneReport::Lane& lane = report.lanes[k];
    text += fmt::format("{:>5} {:>8} {:>9.2f} {:>9.2f} {:>9.2f}\n", k, lane.kernels, lane.start_us,
                        lane.end_us, lane.busy_us);
  }
  return text + fmt::format(
                    "{:.2f} us with records; the longest path is {:.2f} us; SMs are busy for "
                    "{:.0f}% of it; compute- and memory-bound kernels overlap for {:.2f} us\n",
                    report.measured_us, report.critical_us, 100 * report.sm_busy_share,
                    report.overlap_us);
}

Json lanes_json(const compiler::LaneReport& report) {
  Json lanes = Json::array();
  for (size_t k = 0; k < report.lanes.size(); ++k) {
    const compiler::LaneReport::Lane& lane = report.lanes[k];
    lanes.push_back({{"lane", k},
                     {"kernels", lane.kernels},
                     {"start_us", lane.start_us},
                     {"end_us", lane.end_us},
                     {"busy_us", lane.busy_us}});
  }
  return {{"lanes", lanes},
          {"measured_us", report.measured_us},
          {"critical_us", report.critical_us},
          {"sm_busy_share", report.sm_busy_share},
          {"overlap_us", report.overlap_us}};
}

/// Kernels are timed in some more runs.
Result<compiler::PriorityReport> priorities_of(const schedule::Dispatch& dispatch,
                                               runtime::Context& context) {
  constexpr int kRuns = 20;
  std::vector<std::vector<runtime::TaskTime>> runs;
  for (int run = 0; run < kRuns; ++run) {
    TRY(std::vector<runtime::TaskTime> times, context.task_times());
    runs.push_back(std::move(times));
  }
  return compiler::priority_report(dispatch, runs);
}

Json priorities_json(const compiler::PriorityReport& report) {
  return {{"runs", report.runs},
          {"pairs", report.pairs},
          {"obeyed", report.obeyed},
          {"ties", report.ties},
          {"share", report.pairs ? Json(report.share()) : Json(nullptr)},
          {"heeded", report.pairs ? Json(report.heeded()) : Json(nullptr)}};
}

/// Tracks of lanes, in a process of their own.
std::string lane_events(const runtime::Program& program, const compiler::Dispatching& dispatching,
                        const compiler::LaneReport& report) {
  std::string out =
      "{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": 1, \"args\": {\"name\": "
      "\"lanes\"}},\n";
  for (size_t k = 0; k < report.lanes.size(); ++k)
    out += fmt::format(
        "{{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": 1, \"tid\": {0}, \"args\": "
        "{{\"name\": \"lane {0}\"}}}},\n",
        k);
  for (const compiler::KernelSpan& span : report.spans)
    out += fmt::format(
        "{{\"ph\": \"X\", \"name\": {}, \"cat\": \"{}\", \"pid\": 1, \"tid\": {}, \"ts\": "
        "{:.3f}, \"dur\": {:.3f}, \"args\": {{\"work\": {}}}}},\n",
        quoted(program.works[static_cast<size_t>(span.kernel)].label),
        to_string(dispatching.kernels[static_cast<size_t>(span.kernel)].kind), span.lane,
        span.start_us, span.end_us - span.start_us, span.kernel);
  return out;
}

/// Chrome's trace format, which Perfetto reads: a track for each SM, after `more` events.
std::string trace_of(const runtime::Program& program, const std::vector<runtime::TaskTime>& times,
                     const std::string& more) {
  std::string out = "{\"traceEvents\": [\n" + more;
  std::map<int, bool> seen;
  for (const runtime::TaskTime& time : times)
    if (!std::exchange(seen[time.sm], true))
      out += fmt::format(
          "{{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": 0, \"tid\": {0}, \"args\": "
          "{{\"name\": \"SM {0}\"}}}},\n",
          time.sm);
  for (size_t k = 0; k < times.size(); ++k) {
    const runtime::TaskTime& time = times[k];
    out += fmt::format(
        "{{\"ph\": \"X\", \"name\": {}, \"cat\": \"phase {}\", \"pid\": 0, \"tid\": {}, \"ts\": "
        "{:.3f}, \"dur\": {:.3f}, \"args\": {{\"phase\": {}, \"work\": {}}}}}{}\n",
        quoted(program.works[time.work].label), time.wave, time.sm, time.start_us,
        time.end_us - time.start_us, time.wave, time.work, k + 1 < times.size() ? "," : "");
  }
  return out + "], \"displayTimeUnit\": \"ns\"}\n";
}

}  // namespace

int profile(const Flags& flags) {
  auto source = open_source(flags);
  if (!source.ok()) return fail(flags, source.error());
  frontends::ImportReport report;
  auto runner = make_runner(flags, *source, report);
  if (!runner.ok()) return fail(flags, runner.error(), &report);
  if (!(*runner)->executable || !(*runner)->executable->device())
    return fail(flags, Error{Code::kUsage, "cli",
                             "profile is for GPUs: kernels record when their tasks ran", "",
                             "OBELISK_PROFILE=1 obelisk run prints where a CPU's time goes"});
  auto in = feeds(flags, *source, (*runner)->inputs, [&] { return graph_of(**runner, *source); });
  if (!in.ok()) return fail(flags, in.error());
  std::vector<Tensor> out = (*runner)->allocate_outputs();
  if (Status status = (*runner)->run(*in, out); !status.ok()) return fail(flags, status.error());
  auto device_us = (*runner)->context->device_us(50);
  if (!device_us.ok()) return fail(flags, device_us.error());
  auto times = (*runner)->context->task_times();
  if (!times.ok()) return fail(flags, times.error());
  const runtime::Program& program = (*runner)->executable->program();
  const runtime::DeviceReport& device = *(*runner)->executable->device();
  const std::vector<Phase> phases = phases_of(program, *times);
  std::sort(device_us->begin(), device_us->end());
  const double median = (*device_us)[device_us->size() / 2];
  const double stream = device.roof_bytes_per_us > 0
                            ? static_cast<double>(device.bytes_streamed) / device.roof_bytes_per_us
                            : 0;
  const double exposed =
      (median - stream) / std::max<double>(1, static_cast<double>(phases.size()));
  Json list = Json::array();
  std::string text =
      fmt::format("{:>5} {:>9} {:>9} {:>9} {:>9} {:>6} {:>5}  {}\n", "phase", "floor us",
                  "predicted", "measured", "task us", "tasks", "SMs", "waited for");
  double floor = 0, predicted = 0, measured = 0;
  for (size_t k = 0; k < phases.size(); ++k) {
    const Phase& phase = phases[k];
    const std::string label = phase.tasks ? program.works[phase.last.work].label : "";
    floor += phase.floor_us, predicted += phase.predicted_us, measured += phase.took_us;
    text += fmt::format(
        "{:>5} {:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f} {:>6} {:>5}  {} on SM {}, {:.2f} us\n", k,
        phase.floor_us, phase.predicted_us, phase.took_us, phase.median_us, phase.tasks, phase.sms,
        label, phase.last.sm, phase.last.end_us - phase.last.start_us);
    list.push_back({{"phase", k},
                    {"floor_us", phase.floor_us},
                    {"predicted_us", phase.predicted_us},
                    {"measured_us", phase.took_us},
                    {"task_us", phase.median_us},
                    {"tasks", phase.tasks},
                    {"sms", phase.sms},
                    {"waited_for",
                     {{"work", phase.last.work},
                      {"node", label},
                      {"sm", phase.last.sm},
                      {"us", phase.last.end_us - phase.last.start_us}}}});
  }
  text += fmt::format(
      "{:>5} {:>9.2f} {:>9.2f} {:>9.2f}   {:.2f} us of device time a run without records; {:.2f} "
      "us are streaming, {:.2f} us a phase are exposed\n",
      "all", floor, predicted, measured, median, stream, exposed);
  const auto& dispatching = (*runner)->compilation.dispatching;
  std::optional<compiler::LaneReport> lanes;
  if (dispatching) lanes = compiler::lane_report(*dispatching, program.sms, *times);
  if (lanes) text += lanes_table(*lanes);
  std::optional<compiler::PriorityReport> priorities;
  if (lanes && dispatching->dispatch.policy != "waves") {
    auto told = priorities_of(dispatching->dispatch, *(*runner)->context);
    if (!told.ok()) return fail(flags, told.error());
    priorities = *told;
    text += priorities->text();
  }
  if (!flags.trace.empty()) {
    const std::string more = lanes ? lane_events(program, *dispatching, *lanes) : "";
    if (Status written = write_file(flags.trace, trace_of(program, *times, more)); !written.ok())
      return fail(flags, written.error());
    text += fmt::format("wrote {}: open it at https://ui.perfetto.dev\n", flags.trace);
  }
  text += fmt::format("{}\n", (*runner)->target);
  Json json = {{"target", program.target},
               {"precision", program.precision},
               {"device", device.gpu},
               {"device_us", median},
               {"stream_us", stream},
               {"exposed_us_per_phase", exposed},
               {"phases", list}};
  if (lanes) json["dispatch"] = lanes_json(*lanes);
  if (priorities) json["dispatch"]["priorities"] = priorities_json(*priorities);
  json["granularity"] = to_string(device.granularity), json["trace"] = flags.trace;
  answer(flags, json, text);
  return 0;
}

}  // namespace obelisk::cli
