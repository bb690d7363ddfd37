#include "source.h"

#include <algorithm>

#include "base/npy.h"

namespace obelisk::cli {
namespace {

Error usage(std::string message, std::string hint = "") {
  return Error{Code::kUsage, "cli", std::move(message), "", std::move(hint)};
}

bool ends_with(const std::string& text, std::string_view end) {
  return text.size() >= end.size() &&
         std::string_view(text).substr(text.size() - end.size()) == end;
}

/// The model's input types by name, so that raw elements are read as what they are.
NamedTypes wanted_types(const Source& source) {
  const compiler::Network& network = source.network;
  NamedTypes types;
  if (network.model)
    for (const auto& input : network.model->graph.inputs)
      if (const auto dtype = frontends::onnx::to_dtype(input.type.element))
        types[std::string(input.name)] = *dtype;
  if (network.graph)
    for (graph::ValueId v : network.graph->inputs())
      types[network.graph->value(v).name] = network.graph->type(v).dtype;
  if (source.compiled.program)
    for (const runtime::Port& port : source.compiled.program->inputs)
      types[port.name] = port.type.dtype;
  return types;
}

Status read_given(const Flags& flags, Source& source, const NamedTypes& types) {
  for (const std::string& archive : flags.archives) {
    TRY(NamedTensors arrays, read_npz(archive, types));
    for (auto& [name, tensor] : arrays) {
      if (!types.count(name))
        return usage(
            fmt::format("'{}' holds '{}', but the model has no such input", archive, name));
      source.given[name] = std::move(tensor);
    }
  }
  for (const std::string& input : flags.inputs) {
    // Names may hold '=' (a path seldom does): the longest name that the model has.
    size_t at = std::string::npos;
    for (size_t equal = input.find('='); equal != std::string::npos;
         equal = input.find('=', equal + 1))
      if (at == std::string::npos || types.count(input.substr(0, equal))) at = equal;
    if (at == std::string::npos)
      return usage(fmt::format("--input {} has no '='", input), "write --input NAME=F.npy");
    const std::string name = input.substr(0, at);
    const auto type = types.find(name);
    if (type == types.end())
      return usage(fmt::format("--input {}: the model has no input '{}'", input, name));
    auto tensor = read_npy(input.substr(at + 1), type->second);
    if (!tensor.ok()) {
      Error error = tensor.error();
      error.message = fmt::format("input '{}': {}", name, error.message);
      return error;
    }
    source.given[name] = std::move(*tensor);
  }
  return ok_status();
}

Status bind_model(const Flags& flags, Source& source) {
  const frontends::onnx::Model& model = *source.network.model;
  for (const std::string& shape : flags.shapes)
    TRY_STATUS(frontends::bind_shape(model, shape, source.import));
  for (const std::string& pair : flags.in_place) {
    const size_t at = pair.find('=');
    if (at == std::string::npos || at == 0)
      return usage(fmt::format("--in-place '{}' is not understood", pair), "OUTPUT=INPUT");
    if (!source.import.in_place.emplace(pair.substr(0, at), pair.substr(at + 1)).second)
      return usage(fmt::format("--in-place names output '{}' twice", pair.substr(0, at)));
  }
  const std::vector<std::string> decide = frontends::value_dependent_inputs(model);
  const frontends::ModelDescription description = frontends::inspect(model);
  for (const auto& [name, tensor] : source.given) {
    const bool is_port =
        std::any_of(description.inputs.begin(), description.inputs.end(),
                    [&, &name = name](const auto& port) { return port.name == name; });
    // A stored default that is given anew, and a value that shapes depend on, are known when
    // compiling.
    if (!is_port || std::find(decide.begin(), decide.end(), name) != decide.end())
      source.import.bound_inputs[name] = tensor;
    else
      source.import.input_shapes[name] = tensor.shape();
  }
  return ok_status();
}

}  // namespace

Result<Source> open_source(const Flags& flags) {
  Source source;
  TRY(const auto file, MappedFile::open(flags.file));
  const std::string_view bytes(reinterpret_cast<const char*>(file->data()), file->size());
  if (ends_with(flags.file, ".obk") || bytes.substr(0, 4) == "OBK\x1a") {
    source.kind = FileKind::kCompiled;
    if (!flags.shapes.empty())
      return usage("a compiled file has its shapes already",
                   "leave --shape out, or compile the model again");
    if (!flags.portable && flags.precision != "keep")
      return usage("a compiled file has its precision already",
                   "leave --precision out, or compile the model again");
    // Its machine code is trusted, unless it is told not to be: then all of the file is checked and
    // compiled again.
    TRY(source.compiled, runtime::open_obk(flags.file, flags.portable));
    if (flags.portable || flags.target == "reference") {
      TRY(source.network.graph, source.compiled.graph());
    }
  } else if (ends_with(flags.file, ".ir")) {
    source.kind = FileKind::kText;
    TRY(source.network.graph, graph::parse(bytes));
    if (!flags.shapes.empty())
      return usage("a graph as text has its shapes already", "leave --shape out");
  } else {
    TRY(source.network.model, frontends::onnx::read_model(flags.file));
  }
  if (!source.network.model && !flags.in_place.empty())
    return usage("--in-place is for .onnx files",
                 "a graph as text says it: out %4 \"y\" in_place_of \"x\"");
  const NamedTypes types = wanted_types(source);
  TRY_STATUS(read_given(flags, source, types));
  if (source.network.model) TRY_STATUS(bind_model(flags, source));
  return source;
}

std::vector<runtime::Port> input_ports(const graph::Graph& graph) {
  std::vector<runtime::Port> ports;
  for (graph::ValueId v : graph.inputs()) ports.push_back({graph.value(v).name, graph.type(v)});
  return ports;
}

Result<std::vector<Tensor>> feeds(const Flags& flags, const Source& source,
                                  const std::vector<runtime::Port>& ports,
                                  const std::function<Result<graph::Graph>()>& graph) {
  std::vector<Tensor> generated;
  std::vector<Tensor> out;
  for (size_t k = 0; k < ports.size(); ++k) {
    const runtime::Port& port = ports[k];
    const auto given = source.given.find(port.name);
    if (given != source.given.end()) {
      if (given->second.type() != port.type)
        return usage(fmt::format("input '{}' is {}, but {} was given", port.name,
                                 to_string(port.type), to_string(given->second.type())));
      out.push_back(given->second);
      continue;
    }
    if (!flags.seed && !source.given.empty())
      return usage(fmt::format("input '{}' ({}) is not given", port.name, to_string(port.type)),
                   fmt::format("--input {}=F.npy, or --seed N to generate it", port.name));
    if (generated.empty()) {
      TRY(const graph::Graph network, graph());
      generated = verify::generate_inputs(network, flags.seed.value_or(0));
    }
    out.push_back(generated[k]);
  }
  return out;
}

}  // namespace obelisk::cli
