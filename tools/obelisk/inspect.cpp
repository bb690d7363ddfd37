// obelisk inspect: what a model or a compiled file holds, without running it.
#include "source.h"

namespace obelisk::cli {
namespace {

Json ports_json(const std::vector<runtime::Port>& ports, std::string_view way, std::string& text) {
  Json list = Json::array();
  for (const runtime::Port& port : ports) {
    list.push_back(port_json(port.name, port.type));
    text += fmt::format(" {:<8} {:<24} {}\n", way, port.name, to_string(port.type));
  }
  return list;
}

int inspect_compiled(const Flags& flags, const runtime::Compiled& compiled) {
  const runtime::Program& program = *compiled.program;
  int64_t weights = 0, code = 0;
  for (const Tensor& weight : program.weights)
    if (!weight.empty()) weights += weight.bytes();
  for (const std::string& object : program.objects) code += static_cast<int64_t>(object.size());
  std::string text =
      fmt::format(" file     {} · format {} · {}\n", flags.file, runtime::kObkFormat, program.name);
  Json json = {{"kind", "obk"},
               {"name", program.name},
               {"target", program.target},
               {"sms", program.sms},
               {"precision", program.precision}};
  json["inputs"] = ports_json(program.inputs, "in", text);
  json["outputs"] = ports_json(program.outputs, "out", text);
  Json bodies = Json::array();
  for (const codegen::BodyText& body : program.bodies)
    bodies.push_back({{"hash", to_string(body.hash)},
                      {"label", body.label},
                      {"bytes", body.text.size()},
                      {"kernel", to_string(body.traits)}});
  if (program.on_gpu()) json["granularity"] = to_string(program.granularity);
  json["phases"] = program.waves, json["tasks"] = program.task_count(), json["bodies"] = bodies;
  Json customs = Json::array();
  for (const runtime::CustomRecord& custom : program.customs) {
    customs.push_back({{"op", ops::to_string(custom.op)}, {"node", custom.name}});
    text += fmt::format(" slow     {} '{}' has no code: its reference is called\n",
                        ops::to_string(custom.op), custom.name);
  }
  json["customs"] = customs, json["weights_bytes"] = weights,
  json["workspace_bytes"] = program.arena.count;
  json["code_bytes"] = code, json["code_needs"] = program.objects_need;
  text += fmt::format(" plan     {}{}{} on {} virtual SMs · {} phases · {} tasks · {} bodies\n",
                      program.target,
                      program.on_gpu() ? fmt::format(", {}", to_string(program.granularity)) : "",
                      program.precision == "keep" ? "" : ", " + program.precision, program.sms,
                      program.waves, program.task_count(), program.bodies.size());
  text += fmt::format(" memory   {} weights · {} workspace · {} machine code\n",
                      to_string(Bytes{weights}), to_string(program.arena), to_string(Bytes{code}));
  text += fmt::format(" needs    {}\n", program.objects_need);
  answer(flags, json, text);
  return 0;
}

/// The graph after the passes, each node with the wave it runs in and the group that shares its
/// body.
Status write_for_viewers(const Flags& flags, const Source& source) {
  TRY(compiler::Options options, options_from(flags));
  options.import = source.import;
  options.to = "schedule";
  compiler::Network network = source.network;
  if (source.kind == FileKind::kCompiled) {  // its graph has been through the passes
    TRY(network.graph, source.compiled.graph());
    options.sms = source.compiled.program->sms;
    for (const passes::Pass& pass : passes::table())
      options.disabled.insert(std::string(pass.name));
  }
  compiler::Compilation made;
  TRY_STATUS(compiler::compile(network, options, made));
  std::map<graph::NodeId, frontends::Notes> notes;
  for (const schedule::Work& work : made.tasks.works)
    for (graph::NodeId node : made.plan.groups[work.group].nodes)
      notes[node] = {{"obelisk.wave", std::to_string(work.wave)},
                     {"obelisk.group", std::to_string(work.group)}};
  return frontends::write_onnx(made.graph, flags.onnx,
                               [&](graph::NodeId node) { return notes[node]; });
}

}  // namespace

int inspect(const Flags& flags) {
  auto source = open_source(flags);
  if (!source.ok()) return fail(flags, source.error());
  if (!flags.onnx.empty())
    if (Status written = write_for_viewers(flags, *source); !written.ok())
      return fail(flags, written.error());
  if (source->kind == FileKind::kCompiled) return inspect_compiled(flags, source->compiled);
  std::string text;
  if (source->kind == FileKind::kText) {
    const graph::Graph& graph = *source->network.graph;
    Json json = {{"kind", "ir"},
                 {"name", graph.name},
                 {"inputs", ports_json(input_ports(graph), "in", text)},
                 {"nodes", graph.order().size()}};
    answer(flags, json, text + fmt::format(" nodes    {}\n", graph.order().size()));
    return 0;
  }
  const frontends::onnx::Model& model = *source->network.model;
  const frontends::ModelDescription description = frontends::inspect(model);
  const auto ports = [&](const std::vector<frontends::PortDescription>& list,
                         std::string_view way) {
    Json out = Json::array();
    for (const auto& port : list) {
      out.push_back(port_json(port));
      text += fmt::format(" {:<8} {:<24} {}{}\n", way, port.name, port.type, port.shape_text());
    }
    return out;
  };
  Json json = {{"kind", "onnx"},
               {"name", std::string(model.graph.name)},
               {"producer", description.producer}};
  json["inputs"] = ports(description.inputs, "in");
  json["outputs"] = ports(description.outputs, "out");
  Json opsets;
  std::string versions;
  for (const auto& [domain, version] : description.opsets) {
    opsets[domain.empty() ? "ai.onnx" : domain] = version;
    versions += fmt::format(" {} {}", domain.empty() ? "ai.onnx" : domain, version);
  }
  json["opsets"] = opsets, json["symbols"] = description.symbols, json["nodes"] = description.nodes,
  json["functions"] = description.functions;
  json["weights_bytes"] = description.weights_bytes;
  text += fmt::format(" model    {} nodes · {} functions · {} weights ·{}{}\n", description.nodes,
                      description.functions, to_string(Bytes{description.weights_bytes}), versions,
                      description.producer.empty() ? "" : " · by " + description.producer);
  for (const std::string& symbol : description.symbols)
    text += fmt::format(" bind     --shape {}=N\n", symbol);
  answer(flags, json, text);
  return 0;
}

}  // namespace obelisk::cli
