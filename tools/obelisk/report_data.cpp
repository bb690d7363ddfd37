#include "report_data.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace obelisk::cli {

extern const char* const kReportPage;  // report.html, embedded

namespace {

using graph::Graph;
using graph::NodeId;
using graph::ValueId;

/// Rectangles of a timeline beyond which tasks of one work that follow each other on a worker are
/// drawn as one.
constexpr size_t kMostRectangles = 20000;

struct Rectangle {
  int sm, wave, work, tasks;
  double start_us, end_us;
};

Json json_of(const std::vector<Rectangle>& rectangles) {
  Json out = Json::array();
  const auto rounded = [](double us) { return std::round(us * 1e4) / 1e4; };
  for (const Rectangle& each : rectangles)
    out.push_back(
        {each.sm, each.wave, each.work, each.tasks, rounded(each.start_us), rounded(each.end_us)});
  return out;
}

void add(std::vector<Rectangle>& to, const Rectangle& next, bool join) {
  if (join && !to.empty()) {
    Rectangle& last = to.back();
    if (last.sm == next.sm && last.wave == next.wave && last.work == next.work) {
      last.end_us = next.end_us, last.tasks += next.tasks;
      return;
    }
  }
  to.push_back(next);
}

/// Microseconds between waves.
double phase_us(const runtime::Program& program, const machine::Machine& machine) {
  return program.on_gpu() ? compiler::phase_us(program) : machine.barrier.count() / 1e3;
}

/// Each wave begins when the busiest worker of the one before has ended, and what a phase costs.
std::vector<Rectangle> predicted_tasks(const runtime::Program& program, double phase) {
  std::vector<double> busiest(static_cast<size_t>(program.waves), 0), begin;
  for (const auto& list : program.lists) {
    std::vector<double> busy(busiest.size(), 0);
    for (const ObkTask& task : list) busy[task.wave] += program.works[task.work].task_nanos / 1e3;
    for (size_t k = 0; k < busy.size(); ++k) busiest[k] = std::max(busiest[k], busy[k]);
  }
  double at = 0;
  for (const double us : busiest) begin.push_back(at), at += us + phase;
  const bool join = static_cast<size_t>(program.task_count()) > kMostRectangles;
  std::vector<Rectangle> out;
  for (size_t sm = 0; sm < program.lists.size(); ++sm) {
    double now = 0;
    for (const ObkTask& task : program.lists[sm]) {
      now = std::max(now, begin[task.wave]);
      const double end = now + program.works[task.work].task_nanos / 1e3;
      add(out,
          {static_cast<int>(sm), static_cast<int>(task.wave), static_cast<int>(task.work), 1, now,
           end},
          join);
      now = end;
    }
  }
  return out;
}

std::vector<Rectangle> measured_tasks(std::vector<runtime::TaskTime> times) {
  std::sort(times.begin(), times.end(), [](const auto& a, const auto& b) {
    return std::pair(a.sm, a.start_us) < std::pair(b.sm, b.start_us);
  });
  std::vector<Rectangle> out;
  for (const runtime::TaskTime& time : times)
    add(out, {time.sm, time.wave, time.work, 1, time.start_us, time.end_us},
        times.size() > kMostRectangles);
  return out;
}

double end_of(const std::vector<Rectangle>& rectangles) {
  double end = 0;
  for (const Rectangle& each : rectangles) end = std::max(end, each.end_us);
  return end;
}

/// Microseconds of each work, from its first task to the end of its last.
std::vector<double> spans(const std::vector<Rectangle>& rectangles, size_t works) {
  std::vector<double> from(works, -1), to(works, 0), out;
  for (const Rectangle& each : rectangles) {
    const auto w = static_cast<size_t>(each.work);
    from[w] = from[w] < 0 ? each.start_us : std::min(from[w], each.start_us);
    to[w] = std::max(to[w], each.end_us);
  }
  for (size_t w = 0; w < works; ++w) out.push_back(from[w] < 0 ? 0 : to[w] - from[w]);
  return out;
}

Json types_of(const Graph& graph, const std::vector<ValueId>& values) {
  Json out = Json::array();
  for (const ValueId v : values)
    if (v != graph::kNone) out.push_back(to_string(graph.type(v)));
  return out;
}

Json network_json(const compiler::Compilation& made, const std::vector<int>& wave_of_group) {
  const Graph& graph = made.graph;
  std::vector<int> group_of(static_cast<size_t>(graph.value_count()), -1);  // by a node's output
  std::map<NodeId, int> group_of_node;
  for (size_t g = 0; g < made.plan.groups.size(); ++g)
    for (const NodeId n : made.plan.groups[g].nodes) group_of_node[n] = static_cast<int>(g);
  std::map<NodeId, int> place;
  Json nodes = Json::array(), groups = Json::array(), edges = Json::array();
  for (const NodeId n : graph.order()) {
    const graph::Node& node = graph.node(n);
    place[n] = static_cast<int>(nodes.size());
    const auto group = group_of_node.find(n);
    nodes.push_back({{"op", ops::to_string(node.op)},
                     {"name", node.name},
                     {"group", group == group_of_node.end() ? -1 : group->second},
                     {"in", types_of(graph, node.inputs)},
                     {"out", types_of(graph, node.outputs)}});
  }
  for (size_t g = 0; g < made.plan.groups.size(); ++g) {
    const stitch::Group& group = made.plan.groups[g];
    Json members = Json::array();
    for (const NodeId n : group.nodes) members.push_back(place[n]);
    groups.push_back(
        {{"kind", stitch::to_string(group.kind)},
         {"nodes", members},
         {"wave", wave_of_group[g]},
         {"anchor", group.anchor == graph::kNone ? Json(nullptr) : Json(place[group.anchor])},
         {"dominant", group.dominant == graph::kNone ? Json(nullptr) : Json(place[group.dominant])},
         {"after", group.after}});
  }
  for (const stitch::Edge& edge : made.plan.edges)
    edges.push_back({{"from", place[edge.from]},
                     {"to", place[edge.to]},
                     {"scheme", stitch::to_string(edge.scheme)},
                     {"why", edge.why}});
  return {{"nodes", nodes}, {"groups", groups}, {"edges", edges}};
}

Json memory_json(const compiler::Compilation& made) {
  const schedule::TaskGraph& tasks = made.tasks;
  Json buffers = Json::array();
  int64_t apart = 0, weights = 0, inputs = 0, outputs = 0;
  for (const schedule::Buffer& buffer : tasks.buffers) {
    switch (buffer.kind) {
      case schedule::BufferKind::kInput:
        inputs += buffer.size.count;
        continue;
      case schedule::BufferKind::kOutput:
        outputs += buffer.size.count;
        continue;
      case schedule::BufferKind::kWeight:
        continue;
      case schedule::BufferKind::kArena:
        break;
    }
    if (buffer.reach == schedule::Reach::kLocal) continue;  // in scratchpads only
    apart += buffer.room().count;
    std::string name;
    if (buffer.value != graph::kNone) {
      const graph::Value& value = made.graph.value(buffer.value);
      name = !value.name.empty()              ? value.name
             : value.producer != graph::kNone ? made.graph.node(value.producer).name
                                              : fmt::format("%{}", buffer.value);
    }
    buffers.push_back({{"name", name},
                       {"type", to_string(buffer.type)},
                       {"offset", buffer.offset.count},
                       {"bytes", buffer.room().count},
                       {"first", buffer.first},
                       {"last", buffer.last}});
  }
  for (const Tensor& weight : made.program->weights)
    if (!weight.empty()) weights += weight.bytes();
  return {{"arena", tasks.arena.count},
          {"apart", apart},
          {"buffers", buffers},
          {"weights", weights},
          {"inputs", inputs},
          {"outputs", outputs},
          {"scratch", made.program->scratch.count}};
}

Json verify_json(const compiler::Compilation& made, const ReportFacts& facts) {
  if (!made.verification) {
    const std::string why =
        !facts.not_loaded.empty() ? "there is no machine code to run"
        : made.executable && made.executable->device() && made.executable->device()->gpu.empty()
            ? "there is no GPU here to run it on"
            : "--verify off";
    return {{"done", false}, {"why", why}};
  }
  const verify::Report& report = *made.verification;
  if (report.rows.empty()) return {{"done", false}, {"why", report.why_not}};
  Json outputs = Json::array();
  for (const verify::OfOutput& each : report.outputs)
    outputs.push_back({{"name", each.name},
                       {"ok", each.ok},
                       {"max_abs", each.max_abs},
                       {"max_rel", each.max_rel},
                       {"tolerance", each.tolerance},
                       {"rounding", each.rounding}});
  return {{"done", true}, {"ok", report.ok}, {"rows", report.rows}, {"outputs", outputs}};
}

Json steps_json(const compiler::Compilation& made) {
  Json out = Json::array();
  for (const auto& timing : made.timings) {
    std::string said;
    for (const auto& each : made.explanations)
      if (each.step == timing.step) said += each.text;
    out.push_back({{"step", timing.step}, {"seconds", timing.seconds}, {"said", said}});
  }
  return out;
}

Json kernels_json(const compiler::Compilation& made) {
  Json out = Json::array();
  if (!made.executable || !made.executable->device()) return out;
  for (const runtime::KernelReport& each : made.executable->device()->kernels)
    out.push_back(
        {{"name", each.name}, {"registers", each.registers}, {"spill_bytes", each.spill_bytes}});
  return out;
}

Json ports_json(const std::vector<runtime::Port>& ports) {
  Json out = Json::array();
  for (const runtime::Port& port : ports)
    out.push_back({{"name", port.name}, {"type", to_string(port.type)}});
  return out;
}

}  // namespace

Json report_data(const compiler::Compilation& made, const ReportFacts& facts) {
  const runtime::Program& program = *made.program;
  const machine::Machine& machine = facts.machine;
  std::vector<int> waves(made.plan.groups.size(), -1);
  for (const schedule::Work& work : made.tasks.works)
    waves[static_cast<size_t>(work.group)] = work.wave;
  const double phase = phase_us(program, machine);
  const std::vector<Rectangle> predicted = predicted_tasks(program, phase),
                               measured = measured_tasks(facts.times);
  const std::vector<double> floors = schedule::floor_nanos(made.plan, made.tasks, machine),
                            predicted_us = spans(predicted, program.works.size()),
                            measured_us = spans(measured, program.works.size());
  const auto traffic = schedule::traffic(made.plan, made.tasks, machine);
  const double sms = machine.sms;
  Json works = Json::array();
  for (size_t w = 0; w < made.tasks.works.size(); ++w) {
    const schedule::Work& work = made.tasks.works[w];
    int64_t tasks = 0;
    for (const auto& list : program.lists)
      tasks += std::count_if(list.begin(), list.end(),
                             [&](const ObkTask& task) { return task.work == w; });
    works.push_back({{"label", program.works[w].label},
                     {"group", work.group},
                     {"wave", work.wave},
                     {"tasks", tasks},
                     {"form", to_string(work.form)},
                     {"tile", {work.tile_rows, work.tile_columns}},
                     {"bytes", traffic[w].bytes},
                     {"flops", traffic[w].flops},
                     {"peak", traffic[w].peak * sms},
                     {"floor_us", floors[w] / 1e3},
                     {"predicted_us", predicted_us[w]},
                     {"measured_us", facts.times.empty() ? Json(nullptr) : Json(measured_us[w])}});
  }
  const runtime::DeviceReport* device = made.executable ? made.executable->device() : nullptr;
  return {{"format", 1},
          {"version", OBELISK_VERSION},
          {"name", program.name},
          {"target", program.target},
          {"device", device             ? device->gpu
                     : program.on_gpu() ? ""
                                        : host_cpu()},
          {"granularity", program.on_gpu() ? Json(to_string(program.granularity)) : Json(nullptr)},
          {"choice", made.choice ? Json(made.choice->text()) : Json(nullptr)},
          {"precision", program.precision},
          {"workers", program.lists.size()},
          {"waves", program.waves},
          {"tasks", program.task_count()},
          {"phase_us", phase},
          {"predicted_us", end_of(predicted)},
          {"not_loaded", facts.not_loaded},
          {"inputs", ports_json(program.inputs)},
          {"outputs", ports_json(program.outputs)},
          {"network", network_json(made, waves)},
          {"works", works},
          {"timeline",
           {{"predicted", json_of(predicted)},
            {"measured", facts.times.empty() ? Json(nullptr) : json_of(measured)},
            {"why_not_measured", facts.why_not_measured}}},
          {"peaks",
           {{"bytes_per_ns", machine.peaks.memory_bytes * sms},
            {"cache_bytes_per_ns", machine.peaks.cache_bytes * sms},
            {"f32", machine.peaks.f32 * sms},
            {"tensor_16", machine.peaks.tensor_16 * sms},
            {"tensor_tf32", machine.peaks.tensor_tf32 * sms}}},
          {"memory", memory_json(made)},
          {"verify", verify_json(made, facts)},
          {"steps", steps_json(made)},
          {"kernels", kernels_json(made)}};
}

std::string report_page(const Json& data) {
  // Inside of a script element neither "</script" nor "<!--" may stand.
  std::string text = data.dump(-1, ' ', true, Json::error_handler_t::replace), safe;
  safe.reserve(text.size());
  for (const char c : text) c == '<' ? safe += "\\u003c" : safe += c;
  std::string page = kReportPage;
  const std::string_view mark = "{\"data\": \"goes here\"}";
  const size_t at = page.find(mark);
  CHECK(at != std::string::npos, "the page has no place for its data");
  return page.replace(at, mark.size(), safe);
}

}  // namespace obelisk::cli
