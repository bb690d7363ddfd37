#include "network.h"

namespace obelisk::compiler {

Result<Network> open_network(const std::string& path) {
  Network network;
  if (path.ends_with(".ir")) {
    TRY(const std::string text, read_file(path));
    TRY(network.graph, graph::parse(text));
    return network;
  }
  TRY(network.model, frontends::onnx::read_model(path));
  return network;
}

std::vector<std::string> symbols_of(const Network& network) {
  return network.model ? frontends::inspect(*network.model).symbols : std::vector<std::string>();
}

Error with_cause(Error error, const frontends::ImportReport& report) {
  if (report.unsupported.empty()) return error;
  const frontends::Unsupported& first = report.unsupported.front();
  error.message = fmt::format("{}: {}", first.op, first.reason);
  if (report.unsupported.size() > 1)
    error.message +=
        fmt::format(" (and {} more nodes: obelisk check)", report.unsupported.size() - 1);
  error.node = first.node, error.hint = first.hint;
  return error;
}

}  // namespace obelisk::compiler
