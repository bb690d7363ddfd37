// obelisk check: what of a model can be run, in seconds and without building anything.
#include "source.h"

namespace obelisk::cli {

int check(const Flags& flags) {
  auto source = open_source(flags);
  if (!source.ok()) return fail(flags, source.error());
  if (source->kind == FileKind::kCompiled)
    return fail(flags, Error{Code::kUsage, "cli", "check reads models, not compiled files", "",
                             "obelisk inspect " + flags.file});
  compiler::Options options;
  options.import = source->import;
  options.interrupted = interrupted;
  options.to = "import";
  options.host_tail = true;
  compiler::Compilation compilation;
  const Status status = compiler::compile(source->network, options, compilation);
  const frontends::ImportReport& report = compilation.import_report;
  if (!status.ok() && report.unsupported.empty()) return fail(flags, status.error());
  Json inputs = Json::array(), outputs = Json::array();
  std::string text;
  if (status.ok()) {
    const graph::Graph& graph = compilation.imported;
    for (graph::ValueId v : graph.inputs()) {
      inputs.push_back(port_json(graph.value(v).name, graph.type(v)));
      text += fmt::format("in   {:<24} {}\n", graph.value(v).name, to_string(graph.type(v)));
    }
    const compiler::HostTail* tail = compilation.tail.get();
    const size_t count = tail ? tail->outputs().size() : graph.outputs().size();
    for (size_t k = 0; k < count; ++k) {
      const int head = tail ? tail->outputs()[k].head : static_cast<int>(k);
      const std::string& name = tail ? tail->outputs()[k].name : graph.output_names()[k];
      const Type& type = head < 0 ? tail->outputs()[k].type
                                  : graph.type(graph.outputs()[static_cast<size_t>(head)]);
      outputs.push_back(port_json(name, type));
      text += fmt::format("out  {:<24} {}\n", name, to_string(type));
    }
    text += tail
                ? fmt::format("ok: {} nodes in the program; {}", graph.order().size(), tail->text())
                : fmt::format("ok: {} nodes, all of them run\n", graph.order().size());
  } else {
    const frontends::ModelDescription description = frontends::inspect(*source->network.model);
    for (const auto& port : description.inputs) inputs.push_back(port_json(port));
    for (const auto& port : description.outputs) outputs.push_back(port_json(port));
  }
  const int code = status.ok() ? 0 : static_cast<int>(Code::kUnsupported);
  if (!status.ok()) {
    Flags to_people = flags;
    to_people.json = false;
    fail(to_people, status.error(), &report);
  }
  Json json = {{"ok", status.ok()},
               {"inputs", inputs},
               {"outputs", outputs},
               {"unsupported", json_of(report)}};
  if (compilation.tail) json["host"] = compilation.tail->text();
  answer(flags, json, text);
  return code;
}

}  // namespace obelisk::cli
