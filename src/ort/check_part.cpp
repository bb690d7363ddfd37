#include <algorithm>

#include "frontends/frontends.h"
#include "ort/graph.h"

namespace obelisk::ort {
namespace {

using namespace frontends;

/// Extents for what is not known: of images, and of all else.
struct Guess {
  int64_t pixels, other;
};
constexpr Guess kGuesses[] = {{224, 8}, {32, 32}, {64, 1}};

/// A dimension that only images have: behind the first two of four or more.
std::set<std::string> symbols_of_pixels(const Part& part) {
  std::set<std::string> pixels, others;
  for (const auto& [name, type] : part.inputs)
    for (size_t d = 0; d < type.extents.size(); ++d)
      (type.extents.size() > 3 && d > 1 ? pixels : others).insert(type.symbols[d]);
  for (const std::string& symbol : others) pixels.erase(symbol);
  return pixels;
}

std::map<std::string, Shape> shapes_at(const Part& part, const Guess& guess) {
  const std::set<std::string> pixels = symbols_of_pixels(part);
  std::map<std::string, Shape> shapes;
  for (const auto& [name, type] : part.inputs)
    for (size_t d = 0; d < type.extents.size(); ++d) {
      const std::string& symbol = type.symbols[d];
      const bool pixel =
          symbol.empty() ? type.extents.size() > 3 && d > 1 : pixels.contains(symbol);
      shapes[name].push_back(type.extents[d] >= 0 ? type.extents[d]
                             : pixel              ? guess.pixels
                                                  : guess.other);
    }
  return shapes;
}

std::vector<Refusal> refusals_at(const Graph& graph, const Part& part, const onnx::Model& model,
                                 const Guess& guess) {
  ImportOptions options;
  options.input_shapes = shapes_at(part, guess);
  ImportReport report;
  const auto imported = import_onnx(model, options, &report);
  if (imported.ok()) return {};
  std::vector<Refusal> refusals;
  for (const Unsupported& each : report.unsupported)
    if (each.root >= 0)
      refusals.push_back({part.nodes[static_cast<size_t>(each.root)], each.reason});
  const Error& error = imported.error();
  for (size_t n : part.nodes)
    if (refusals.empty() && !error.node.empty() && graph.nodes[n].name == error.node)
      refusals.push_back({n, error.message});
  if (refusals.empty())
    for (size_t n : part.nodes) refusals.push_back({n, error.text()});
  return refusals;
}

}  // namespace

std::vector<Refusal> check_part(const Graph& graph, const Part& part) {
  std::vector<Refusal> fewest;
  for (size_t n : part.nodes)
    for (const std::string& name : graph.nodes[n].inputs)
      for (const auto& [input, type] : part.inputs)
        if (input == name && !type.has_shape) {
          fewest.push_back({n, "how many dimensions '" + name + "' has is not known"});
          break;
        }
  if (!fewest.empty()) return fewest;
  const auto model = onnx::read_model_bytes(part.model, nullptr, "", "part",
                                            {part.memory.begin(), part.memory.end()});
  if (!model.ok()) {
    for (size_t n : part.nodes) fewest.push_back({n, model.error().text()});
    return fewest;
  }
  for (const Guess& guess : kGuesses) {
    std::vector<Refusal> found = refusals_at(graph, part, *model, guess);
    if (fewest.empty() || found.size() < fewest.size()) fewest = std::move(found);
    if (fewest.empty() || part.known_shapes()) break;
  }
  return fewest;
}

}  // namespace obelisk::ort
