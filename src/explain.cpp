#include "explain.h"

#include <algorithm>
#include <map>
#include <set>

namespace obelisk::compiler {
namespace {

using graph::Graph;
using graph::Node;
using graph::NodeId;

/// What a node is called in a list.
std::string called(const Node& node) {
  const std::string op(ops::to_string(node.op));
  return node.name.empty() ? op : fmt::format("{} '{}'", op, node.name);
}

/// A node in words that stay the same when a graph is renumbered.
std::string key(const Graph& graph, NodeId id) {
  std::string out = called(graph.node(id));
  for (graph::ValueId output : graph.node(id).outputs) out += " " + to_string(graph.type(output));
  return out;
}

/// Those of `here` of which `there` has fewer.
std::vector<NodeId> missing(const Graph& here, const Graph& there) {
  std::map<std::string, int> left;
  for (NodeId id : there.order()) ++left[key(there, id)];
  std::vector<NodeId> out;
  for (NodeId id : here.order())
    if (--left[key(here, id)] < 0) out.push_back(id);
  return out;
}

/// Shows the first ones of a long list and counts the others.
std::string listed(const std::vector<std::string>& words, size_t most = 12) {
  std::string out;
  for (size_t k = 0; k < std::min(words.size(), most); ++k) out += (k ? ", " : "") + words[k];
  if (words.size() > most) out += fmt::format(" and {} more", words.size() - most);
  return out;
}

/// The nodes that went, by which of the new ones took their place: a new node has the name of one
/// of them, and what that one read of others that went belongs to it too.
/// `names`: of the new nodes, by what the old ones are called.
std::map<std::string, std::vector<NodeId>> by_successor(
    const Graph& before, const std::vector<NodeId>& gone,
    const std::map<std::string, std::string>& names) {
  std::set<NodeId> open(gone.begin(), gone.end());
  std::map<std::string, std::vector<NodeId>> out;
  for (auto last = gone.rbegin(); last != gone.rend(); ++last) {
    const auto found = names.find(before.node(*last).name);
    if (found == names.end()) continue;
    const std::string& name = found->second;
    std::vector<NodeId> stack{*last};
    while (!stack.empty()) {
      const NodeId id = stack.back();
      stack.pop_back();
      if (!open.erase(id)) continue;
      out[name].push_back(id);
      for (graph::ValueId input : before.node(id).inputs) {
        if (input == graph::kNone) continue;
        const NodeId from = before.value(input).producer;
        if (from == graph::kNone) continue;
        const auto owner = names.find(before.node(from).name);
        if (owner == names.end() || owner->second == name) stack.push_back(from);
      }
    }
  }
  for (auto& [name, ids] : out) std::sort(ids.begin(), ids.end());
  return out;
}

}  // namespace

std::string explain_import(const Graph& graph, const frontends::ImportOptions& options) {
  std::string out;
  for (const auto& [name, size] : options.dimensions)
    out += fmt::format("dimension '{}' is {}, as told\n", name, size);
  for (const auto& [name, shape] : options.input_shapes)
    out += fmt::format("input '{}' is {}, as told\n", name, to_string(shape));
  for (const auto& [name, value] : options.bound_inputs)
    out += fmt::format("input '{}' is a constant of {}, as told\n", name, to_string(value.type()));
  std::map<std::string, int> ops;
  for (NodeId id : graph.order()) ++ops[std::string(ops::to_string(graph.node(id).op))];
  int constants = 0;
  int64_t bytes = 0;
  for (graph::ValueId id = 0; id < graph.value_count(); ++id) {
    if (!graph.value(id).is_constant()) continue;
    ++constants;
    bytes += graph.value(id).constant.bytes();
  }
  out += fmt::format(
      "{} nodes in the newest spelling, functions inlined, shapes computed; {} "
      "constants of {}\n",
      graph.order().size(), constants, to_string(Bytes{bytes}));
  for (const auto& [op, count] : ops) out += fmt::format("  {} {}\n", count, op);
  return out;
}

std::string explain_pass(std::string_view reason, const Graph& before, const Graph& after) {
  std::string out = fmt::format("{}: {} nodes -> {} nodes\n", reason, before.order().size(),
                                after.order().size());
  const std::vector<NodeId> gone = missing(before, after), came = missing(after, before);
  std::map<std::string, std::string> names;  // a node made of several is called "a+b"
  for (NodeId id : came) {
    const std::string& name = after.node(id).name;
    for (size_t begin = 0; begin < name.size();) {
      const size_t end = std::min(name.find('+', begin), name.size());
      names.emplace(name.substr(begin, end - begin), name);
      begin = end + 1;
    }
    if (!name.empty()) names[name] = name;
  }
  const auto replaced = by_successor(before, gone, names);
  std::map<std::string, std::vector<std::string>> made;
  std::vector<std::string> order;
  for (NodeId id : came) {
    std::vector<std::string>& nodes = made[after.node(id).name];
    if (nodes.empty()) order.push_back(after.node(id).name);
    nodes.push_back(key(after, id));
  }
  std::set<NodeId> told;
  for (const std::string& name : order) {
    out += "  " + listed(made[name]);
    const auto old = replaced.find(name);
    if (old != replaced.end()) {
      std::vector<std::string> words;
      for (NodeId id : old->second) {
        words.push_back(called(before.node(id)));
        told.insert(id);
      }
      out += "\n    in place of " + listed(words);
    }
    out += "\n";
  }
  for (NodeId id : gone)
    if (!told.count(id)) out += fmt::format("  {} goes\n", called(before.node(id)));
  return out;
}

std::string explain_remarks(std::string_view heading, const passes::Remarks& remarks) {
  std::string out;
  std::vector<std::pair<std::string, std::vector<std::string>>> left;  // by reason, as they came
  for (const passes::Remark& remark : remarks.all()) {
    const auto same = [&](const auto& each) { return each.first == remark.why; };
    auto place = std::find_if(left.begin(), left.end(), same);
    if (place == left.end()) place = left.insert(left.end(), {remark.why, {}});
    place->second.push_back(remark.node);
  }
  for (const auto& [why, nodes] : left)
    out += fmt::format("  {}: {}\n    {}\n", heading, why, listed(nodes));
  return out;
}

std::string explain_schedule(const Graph& graph, const stitch::Plan& plan,
                             const schedule::TaskGraph& tasks, const machine::Machine& device) {
  std::vector<int> work_of(plan.groups.size(), -1);
  for (size_t w = 0; w < tasks.works.size(); ++w)
    work_of[static_cast<size_t>(tasks.works[w].group)] = static_cast<int>(w);
  std::vector<int64_t> assigned(tasks.works.size(), 0);
  std::vector<std::set<size_t>> lists(tasks.works.size());
  for (size_t sm = 0; sm < tasks.lists.size(); ++sm) {
    for (const ObkTask& task : tasks.lists[sm]) {
      ++assigned[static_cast<size_t>(task.work)];
      lists[static_cast<size_t>(task.work)].insert(sm);
    }
  }
  const std::vector<double> floors = schedule::floor_nanos(plan, tasks, device);
  const size_t one_by_one = tasks.works.empty() ? 0 : tasks.works.size() - 1;
  std::string out = fmt::format(
      "{} works in {} waves on {} workers: {} barriers where works ran one "
      "by one, {} between waves of the longest path; one costs about {} ns\n",
      tasks.works.size(), tasks.waves, device.sms, one_by_one, std::max(tasks.waves - 1, 0),
      device.barrier.count());
  if (tasks.compared)
    out += fmt::format(
        "predicted: {:.1f} us with works as early as they may run, {:.1f} us with "
        "those with slack put off\n",
        tasks.compared->early / 1000, tasks.compared->put_off / 1000);
  for (size_t w = 0; w < tasks.works.size(); ++w) {
    const schedule::Work& work = tasks.works[w];
    const stitch::Group& group = plan.groups[static_cast<size_t>(work.group)];
    out +=
        fmt::format("work {} {}: wave {}, ", w, called(graph.node(group.nodes.front())), work.wave);
    std::vector<std::string> waits;
    int earliest = 0;
    for (int before : group.after) {
      const int other = work_of[static_cast<size_t>(before)];
      if (other < 0) continue;
      const int wave = tasks.works[static_cast<size_t>(other)].wave;
      earliest = std::max(earliest, wave + 1);
      if (wave == work.wave - 1) waits.push_back(fmt::format("work {}", other));
    }
    out += !waits.empty() ? "right after what it reads of " + listed(waits)
           : work.wave == earliest
               ? "the first in which its operands are there"
               : fmt::format("put off, its operands are there from wave {} on", earliest);
    if (group.kind != stitch::GroupKind::kCustom)
      out += fmt::format("; {} x {} cut into tiles of {} x {}", work.nest.row_count(),
                         work.nest.column_count(), work.tile_rows, work.tile_columns);
    out += fmt::format("; {} tasks for {} workers", assigned[w], lists[w].size());
    if (!work.list() || work.list()->a_rows) out += "; launched as " + to_string(work.form);
    if (work.predicted_nanos > 0)
      out += fmt::format(", about {:.1f} us each", work.predicted_nanos / 1000);
    out += fmt::format(", no less than {:.2f} us in all", floors[w] / 1000);
    out += "\n";
  }
  int64_t apart = 0;
  for (const schedule::Buffer& buffer : tasks.buffers)
    if (buffer.kind == schedule::BufferKind::kArena) apart += buffer.size.count;
  out += fmt::format("arena {}: buffers of {} share it, those alive in the same wave no byte\n",
                     to_string(tasks.arena), to_string(Bytes{apart}));
  return out;
}

std::string explain_bodies(const codegen::Source& source, const Graph& graph,
                           const stitch::Plan& plan, const schedule::TaskGraph& tasks) {
  std::vector<std::vector<std::string>> users(source.bodies.size());
  std::string out;
  for (size_t work = 0; work < tasks.works.size(); ++work) {
    const stitch::Group& group = plan.groups[static_cast<size_t>(tasks.works[work].group)];
    const std::string name = fmt::format("{} {}", work, called(graph.node(group.nodes.front())));
    const int body = source.body_of_work[work];
    if (body >= 0)
      users[static_cast<size_t>(body)].push_back(name);
    else
      out += fmt::format("work {}: the reference runs it, for it has no loop form\n", name);
  }
  for (size_t body = 0; body < source.bodies.size(); ++body) {
    out +=
        fmt::format("body {} {}: {} works of one text: {}\n  {}\n",
                    to_string(source.bodies[body].hash), source.bodies[body].label,
                    users[body].size(), listed(users[body]), to_string(source.bodies[body].traits));
  }
  return out;
}

std::string print_bodies(const codegen::Source& source) {
  std::string out;
  for (const codegen::BodyText& body : source.bodies)
    out += fmt::format("// ---- body {} {}\n{}\n", to_string(body.hash), body.label, body.text);
  return out;
}

std::string print_program(const runtime::Program& program) {
  std::string out = fmt::format(
      "program \"{}\" for {}{} on {} virtual SMs: {} phases, {} tasks, {} bodies, arena {}, "
      "scratch {}\n",
      program.name, program.target,
      program.on_gpu() ? fmt::format(", {},", to_string(program.granularity)) : "", program.sms,
      program.waves, program.task_count(), program.bodies.size(), to_string(program.arena),
      to_string(program.scratch));
  for (const runtime::Port& port : program.inputs)
    out += fmt::format("  in  \"{}\": {}\n", port.name, to_string(port.type));
  for (const runtime::Port& port : program.outputs)
    out += fmt::format("  out \"{}\": {}\n", port.name, to_string(port.type));
  for (size_t sm = 0; sm < program.lists.size(); ++sm) {
    out += fmt::format("  sm {}\n", sm);
    for (const ObkTask& task : program.lists[sm])
      out += fmt::format("    wave {} work {} rows {}..{} columns {}..{}\n", task.wave, task.work,
                         task.r0, task.r1, task.c0, task.c1);
  }
  return out;
}

std::string explain_target(const machine::Machine& machine, std::string_view asked, bool asked_sms,
                           bool explain) {
  std::string text = fmt::format("{}: {} virtual SMs, {} of scratchpad memory each\n", machine.name,
                                 machine.sms, to_string(machine.scratchpad));
  if (explain)
    text += fmt::format("asked for as '{}', {}\n", asked,
                        asked_sms ? "and so were the SMs" : "with as many SMs as it has");
  return text;
}

std::string explain_load(const runtime::Executable& executable) {
  const runtime::LoadReport& report = executable.report();
  return fmt::format("{} bodies compiled with {}, {} from the cache\n", report.compiled,
                     report.compiler.empty() ? "nothing" : report.compiler, report.cached);
}

}  // namespace obelisk::compiler
