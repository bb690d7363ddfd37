// import_models FILE...: imports each model and counts what stops those that cannot be imported.
//
// Where a data set lies beside the model (as in the standard's own tests), it gives the shapes and
// the values that shapes depend on, the graph is interpreted, and its answers are compared; else
// symbolic dimensions are 2. So the program tells what the importer, the op table and its
// references lack, without the rest of the compiler.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>

#include "frontends/frontends.h"

using namespace obelisk;
namespace fs = std::filesystem;

namespace {

/// input_3.pb of the first data set: a bare tensor message, wrapped into a model as its only
/// initializer.
Result<Tensor> read_data(const fs::path& path) {
  TRY(const std::string bytes, read_file(path.string()));
  const auto field = [](int tag, const std::string& body) {
    std::string out(1, static_cast<char>(tag << 3 | 2));
    for (size_t left = body.size();; left >>= 7) {
      out += static_cast<char>((left & 127) | (left > 127 ? 128 : 0));
      if (left <= 127) break;
    }
    return out + body;
  };
  const auto owner = std::make_shared<std::string>(field(7, field(5, bytes)));
  TRY(const frontends::onnx::Model model, frontends::onnx::read_model_bytes(*owner, owner));
  return frontends::onnx::decode(model, model.graph.initializers.at(0));
}

void bind_everything(const frontends::onnx::Model& model, frontends::ImportOptions& options) {
  const fs::path data = fs::path(model.path).parent_path() / "test_data_set_0";
  const frontends::ModelDescription description = frontends::inspect(model);
  if (!fs::exists(data))
    for (const std::string& symbol : description.symbols) options.dimensions[symbol] = 2;
  const std::vector<std::string> values = frontends::value_dependent_inputs(model);
  for (size_t at = 0; at < description.inputs.size(); ++at) {
    const auto tensor = read_data(data / fmt::format("input_{}.pb", at));
    if (!tensor.ok()) continue;
    const std::string& name = description.inputs[at].name;
    options.input_shapes[name] = tensor->shape();
    if (std::find(values.begin(), values.end(), name) != values.end())
      options.bound_inputs[name] = *tensor;
  }
}

/// "" when the interpreted graph answers as the data set says.
std::string compare(const frontends::onnx::Model& model, const graph::Graph& graph) {
  const fs::path data = fs::path(model.path).parent_path() / "test_data_set_0";
  if (!fs::exists(data)) return "";
  const frontends::ModelDescription description = frontends::inspect(model);
  std::map<std::string, Tensor> given;
  for (size_t at = 0; at < description.inputs.size(); ++at)
    if (auto tensor = read_data(data / fmt::format("input_{}.pb", at)); tensor.ok())
      given[description.inputs[at].name] = *tensor;
  std::vector<Tensor> inputs;
  for (const graph::ValueId input : graph.inputs()) {
    const auto found = given.find(graph.value(input).name);
    if (found == given.end()) return "no data for " + graph.value(input).name;
    inputs.push_back(found->second);
  }
  const auto outputs = graph::interpret(graph, inputs);
  if (!outputs.ok()) return outputs.error().text();
  for (size_t at = 0; at < outputs->size(); ++at) {
    const auto want = read_data(data / fmt::format("output_{}.pb", at));
    if (!want.ok()) return want.error().text();
    const Tensor& got = (*outputs)[at];
    if (got.type() != want->type())
      return fmt::format("output {} is {}, not {}", at, to_string(got.type()),
                         to_string(want->type()));
    const double low = bits(got.dtype()) <= 16 ? 2e-2 : 2e-3;
    for (int64_t k = 0; k < got.count(); ++k) {
      const double a = got.get_double(k), b = want->get_double(k);
      if (!(std::abs(a - b) <= low * (1 + std::abs(b))) && a != b &&
          !(std::isnan(a) && std::isnan(b)))
        return fmt::format("output {} differs", at);
    }
  }
  return "";
}

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, std::vector<std::string>> reasons;
  int good = 0;
  for (int at = 1; at < argc; ++at) {
    const std::string path = argv[at];
    const auto start = std::chrono::steady_clock::now();
    const auto model = frontends::onnx::read_model(path);
    if (!model.ok()) {
      reasons[model.error().text()].push_back(path);
      continue;
    }
    frontends::ImportOptions options;
    bind_everything(*model, options);
    frontends::ImportReport report;
    const auto graph = frontends::import_onnx(*model, options, &report);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    if (graph.ok()) {
      if (const std::string problem = compare(*model, *graph); !problem.empty()) {
        reasons[problem].push_back(path);
        continue;
      }
      ++good;
      if (argc < 60)
        fmt::print("{}: {} nodes, {:.0f} ms\n", path, graph->order().size(), took.count());
      if (argc == 2) fmt::print("{}", graph::print(*graph));
    } else if (report.unsupported.empty()) {
      reasons[graph.error().text()].push_back(path);
    } else {
      for (const auto& one : report.unsupported)
        reasons[fmt::format("{}: {}", one.op, one.reason)].push_back(path);
    }
  }
  std::vector<std::pair<std::string, std::vector<std::string>>> sorted(reasons.begin(),
                                                                       reasons.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second.size() > b.second.size(); });
  for (const auto& [reason, files] : sorted)
    fmt::print("{:5} {}   {}\n", files.size(), reason, fmt::join(files, " "));
  fmt::print("{} of {} imported\n", good, argc - 1);
  return good == argc - 1 ? 0 : 1;
}
