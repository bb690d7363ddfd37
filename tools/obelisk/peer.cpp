#include "peer.h"

#include <filesystem>

#include "base/npy.h"
#include "helpers.h"

namespace obelisk::cli {
namespace {

namespace fs = std::filesystem;

Error usage(std::string message, std::string hint) {
  return Error{Code::kUsage, "cli", std::move(message), "", std::move(hint)};
}

}  // namespace

Result<std::string> peer_model(const Flags& flags, const Source& source, const Runner& runner,
                               const std::string& folder) {
  if (source.kind == FileKind::kModel) return fs::absolute(flags.file).string();
  TRY(graph::Graph graph, graph_of(runner, source));
  // What the standard has no words for.
  TRY(graph, passes::expand_for_machine(
                 std::move(graph), [](const graph::Graph& g, graph::NodeId id, std::string*) {
                   const graph::Node& node = g.node(id);
                   return node.op != ops::Op::Recurrence && !node.attrs.has("nan_if_masked");
                 }));
  const std::string path = folder + "/model.onnx";
  TRY_STATUS(frontends::write_onnx(graph, path));
  return path;
}

Result<std::vector<Tensor>> peer_answers(const Flags& flags, const Source& source,
                                         const Runner& runner, const std::vector<Tensor>& inputs) {
  const std::string python = find_python();
  if (python.empty())
    return usage("no Python for ONNX Runtime was found",
                 "scripts/setup.sh, or OBELISK_PYTHON=PATH");
  TRY(const TemporaryFolder folder, TemporaryFolder::create());
  TRY(const std::string model, peer_model(flags, source, runner, folder.path()));
  NamedTensors arrays = source.given;  // also those that became constants
  for (size_t k = 0; k < inputs.size(); ++k) arrays[runner.inputs[k].name] = inputs[k];
  TRY_STATUS(write_npz(folder.path() + "/inputs.npz", arrays));
  TRY(Process process,
      Process::start({python, find_script("answers_onnxruntime.py"), model, folder.path()}));
  const std::string said = process.read_all();
  if (process.wait() != 0)
    return usage("ONNX Runtime gave no answer: " + said.substr(0, said.find('\n')),
                 "obelisk doctor");
  std::vector<Tensor> out;
  for (size_t k = 0; k < runner.outputs.size(); ++k) {
    const runtime::Port& port = runner.outputs[k];
    TRY(Tensor tensor, read_npy(fmt::format("{}/{}.npy", folder.path(), k), port.type.dtype));
    if (tensor.shape() != port.type.shape)
      return Error{Code::kAccuracy, "cli",
                   fmt::format("output '{}' is {} here, {} in ONNX Runtime", port.name,
                               to_string(port.type.shape), to_string(tensor.shape()))};
    // A copy: the mapped file goes with the folder.
    Tensor copy = Tensor::allocate(tensor.type());
    std::copy_n(tensor.as<std::byte>(), tensor.bytes(), copy.as_mutable<std::byte>());
    out.push_back(std::move(copy));
  }
  return out;
}

}  // namespace obelisk::cli
