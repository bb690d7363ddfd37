#include <algorithm>

#include "verify/verify.h"

namespace obelisk::verify {
namespace {

Error interrupted() { return Error{Code::kInterrupted, "verify", "interrupted"}; }

/// The graph with more outputs, each once.
Graph with_outputs(const Graph& graph, std::span<const ValueId> values) {
  Graph more = graph;
  for (ValueId v : values)
    if (!more.is_output(v)) more.mark_output(v, fmt::format("%{}", v));
  return more;
}

/// What the machine says of `values`, compared with the interpreter as it goes; the report names
/// the first that is off.
Result<Report> compare_values(const Bisection& bisection, std::span<const ValueId> values,
                              std::span<const Tensor> inputs, const Options& options) {
  const Graph graph = with_outputs(bisection.graph, values);
  TRY(const auto executable, bisection.compile(graph));
  TRY(const std::vector<Tensor> got, run(*executable, inputs, options.threads));
  std::map<ValueId, size_t> slot;
  for (size_t k = 0; k < graph.outputs().size(); ++k) slot.emplace(graph.outputs()[k], k);
  const std::vector<double> allowed = tolerances(graph, graph.outputs(), options.arithmetic);
  Report report;
  bool stopped = false;
  graph::Interpretation how{.exact = true};
  how.probe = [&](graph::NodeId id, std::span<const Tensor> made) {
    if (options.interrupted && options.interrupted()) return !(stopped = true);
    const graph::Node& node = graph.node(id);
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      const auto at = slot.find(node.outputs[k]);
      if (at == slot.end()) continue;
      const std::string& name = graph.value(at->first).name;
      compare(got[at->second], made[k], allowed[at->second], true,
              name.empty() ? graph.output_names()[at->second] : name, report);
      if (!report.bad) continue;
      report.bad->node = node.name;
      report.bad->op = ops::to_string(node.op);
      return false;
    }
    return true;
  };
  TRY(const auto wanted, graph::interpret(graph, inputs, how));
  if (stopped) return interrupted();
  return report;
}

}  // namespace

Result<std::vector<Tensor>> run(const runtime::Executable& executable,
                                std::span<const Tensor> inputs, int threads) {
  const runtime::Program& program = executable.program();
  TRY(const auto context, executable.context(threads));
  std::vector<const void*> in;
  for (const Tensor& input : inputs) in.push_back(input.data());
  std::vector<Tensor> outputs;
  std::vector<void*> out;
  for (const runtime::Port& port : program.outputs) {
    outputs.push_back(Tensor::allocate(port.type));
    out.push_back(outputs.back().mutable_data());
  }
  TRY_STATUS(context->run(in, out));
  return outputs;
}

Result<std::vector<Tensor>> reference(const Graph& graph, std::span<const Tensor> inputs,
                                      const Options& options) {
  bool stopped = false;
  graph::Interpretation how{.exact = true};
  if (options.interrupted)
    how.probe = [&](graph::NodeId, std::span<const Tensor>) {
      return !(stopped = options.interrupted());
    };
  TRY(auto outputs, graph::interpret(graph, inputs, how));
  if (stopped) return interrupted();
  return outputs;
}

Result<Report> check(const Graph& graph, const runtime::Executable& executable,
                     const Options& options) {
  const std::vector<Tensor> inputs = generate_inputs(graph, options.seed);
  TRY(const std::vector<Tensor> got, run(executable, inputs, options.threads));
  TRY(const std::vector<Tensor> wanted, reference(graph, inputs, options));
  return compare_outputs(graph, got, wanted, options.arithmetic);
}

Result<Report> bisect(const Bisection& bisection, const Options& options) {
  const std::vector<Tensor> inputs = generate_inputs(bisection.graph, options.seed);
  TRY(Report outside, compare_values(bisection, bisection.boundaries, inputs, options));
  if (outside.ok) return outside;
  // The body that stores the bad value: with its inner values stored too, the first bad one is
  // nearer to the cause. Storing may change how ops fuse; when that hides the fault, the body's own
  // name stands.
  for (ValueId boundary : bisection.boundaries) {
    const graph::NodeId producer = bisection.graph.value(boundary).producer;
    if (producer == graph::kNone || bisection.graph.node(producer).name != outside.bad->node)
      continue;
    std::vector<ValueId> inner = bisection.inside(boundary);
    if (inner.empty()) break;
    inner.push_back(boundary);
    TRY(Report inside, compare_values(bisection, inner, inputs, options));
    return inside.ok ? outside : inside;
  }
  return outside;
}

}  // namespace obelisk::verify
