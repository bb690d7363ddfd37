// Where an answer went wrong.
//
// The values that bodies store are made outputs, and the first that is off names its body; then the
// values inside of that body. More outputs are another plan, though, which may be right where the
// program that was asked about is wrong. Then that program runs with an arena in which no buffers
// share bytes, and what it stored there is compared.
#include "verify/rows.h"

namespace obelisk::verify {
namespace {

/// The graph with more outputs, each once.
Graph with_outputs(const Graph& graph, std::span<const ValueId> values) {
  Graph more = graph;
  for (ValueId v : values)
    if (!more.is_output(v)) more.mark_output(v, fmt::format("%{}", v));
  return more;
}

/// What the reference answers for values of a graph.
struct Known {
  Graph graph;
  std::vector<Tensor> rounded;
  std::vector<Nature> nature;
};

Result<Known> known_of(const Graph& graph, std::span<const ValueId> values,
                       std::span<const Tensor> inputs, const Options& options) {
  Known known{with_outputs(graph, values), {}, {}};
  bool stopped = false;
  graph::Interpretation low = rounding_as(options.precision);
  low.probe = [&](graph::NodeId, std::span<const Tensor>) { return keep_on(options, stopped); };
  TRY(known.rounded, graph::interpret(known.graph, inputs, low));
  if (stopped) return interrupted();
  known.nature = natures(known.graph, options.precision);
  return known;
}

/// Compares what the machine says of a graph's outputs with the interpreter as it goes, in the
/// order of nodes; the report names the first that is off. `got`: empty where it says nothing.
Result<Report> first_off(const Known& known, std::span<const Tensor> got,
                         std::span<const Tensor> inputs, const Options& options) {
  const Graph& graph = known.graph;
  std::map<ValueId, size_t> slot;
  for (size_t k = 0; k < graph.outputs().size(); ++k)
    if (!got[k].empty()) slot.emplace(graph.outputs()[k], k);
  Report report;
  bool stopped = false;
  graph::Interpretation how{.exact = true};
  how.probe = [&](graph::NodeId id, std::span<const Tensor> made) {
    if (!keep_on(options, stopped)) return false;
    const graph::Node& node = graph.node(id);
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      const auto at = slot.find(node.outputs[k]);
      if (at == slot.end()) continue;
      const std::string& name = graph.value(at->first).name;
      compare(got[at->second], made[k], known.rounded[at->second],
              known.nature[static_cast<size_t>(at->first)],
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

/// A program of the graph with those values as outputs.
Result<Report> compare_exposed(const Bisection& bisection, std::span<const ValueId> values,
                               std::span<const Tensor> inputs, const Options& options) {
  TRY(const Known known, known_of(bisection.graph, values, inputs, options));
  TRY(const auto executable, bisection.compile(known.graph));
  TRY(const std::vector<Tensor> got, run(*executable, inputs, options.threads));
  return first_off(known, got, inputs, options);
}

/// The program as it is, with what it stored in memory of its own.
Result<Report> compare_stored(const Bisection& bisection, std::span<const Tensor> inputs,
                              const Options& options) {
  TRY(const auto stored, bisection.stored(inputs));
  std::vector<ValueId> values;
  for (const auto& [value, tensor] : stored) values.push_back(value);
  TRY(const Known known, known_of(bisection.graph, values, inputs, options));
  std::vector<Tensor> got(known.graph.outputs().size());
  for (size_t k = 0; k < got.size(); ++k)
    if (const auto at = stored.find(known.graph.outputs()[k]); at != stored.end())
      got[k] = at->second;
  return first_off(known, got, inputs, options);
}

/// The first pass behind which the graph means something else; nothing where none is or none is
/// known.
Result<std::optional<Report>> compare_passes(const Bisection& bisection, const Options& options) {
  if (!bisection.imported) return std::optional<Report>();
  Options how = options;
  how.precision = bisection.precision;
  const Graph& imported = *bisection.imported;
  const std::vector<Tensor> inputs = generate_inputs(imported, options.seed);
  TRY(const Reference known, reference(imported, inputs, how));
  Graph graph = imported;
  for (const passes::Pass& pass : bisection.passes) {
    TRY(graph, pass.run(std::move(graph)));
    bool stopped = false;
    graph::Interpretation exact{.exact = true};
    exact.probe = [&](graph::NodeId, std::span<const Tensor>) { return keep_on(options, stopped); };
    TRY(std::vector<Tensor> got, graph::interpret(graph, inputs, exact));
    if (stopped) return interrupted();
    for (size_t k = 0; k < got.size(); ++k)
      got[k] = got[k].cast(imported.type(imported.outputs()[k]).dtype);
    TRY(Report report, compare_outputs(imported, got, known, how.precision));
    if (report.ok) continue;
    report.note =
        fmt::format("the pass {} changes what the network means; --disable {} leaves it out",
                    pass.name, pass.name);
    return std::optional<Report>(std::move(report));
  }
  return std::optional<Report>();
}

Result<Report> compare_program(const Bisection& bisection, const Graph& graph,
                               std::span<const Tensor> inputs, const Options& options) {
  TRY(const std::vector<Tensor> got, run(*bisection.program, inputs, options.threads));
  TRY(const Reference known, reference(graph, inputs, options));
  return compare_outputs(graph, got, known, options.precision);
}

}  // namespace

Result<Report> bisect(const Bisection& bisection, const Options& options) {
  const std::vector<Tensor> inputs = generate_inputs(bisection.graph, options.seed);
  TRY(Report outside, compare_exposed(bisection, bisection.boundaries, inputs, options));
  if (outside.ok) {
    TRY(Report whole, compare_program(bisection, bisection.graph, inputs, options));
    if (whole.ok) {
      TRY(std::optional<Report> changed, compare_passes(bisection, options));
      return changed ? std::move(*changed) : outside;
    }
    TRY(Report stored, compare_stored(bisection, inputs, options));
    constexpr std::string_view kVanishes =
        "the program is right as soon as its stored values are made outputs, for that changes the "
        "plan";
    if (stored.ok) {
      whole.note = fmt::format(
          "{}, and where no buffers share bytes: one is written over while it is still read",
          kVanishes);
      return whole;
    }
    for (ValueId v = 0; v < bisection.graph.value_count(); ++v) {
      const graph::NodeId producer = bisection.graph.value(v).producer;
      if (producer == graph::kNone || bisection.graph.node(producer).name != stored.bad->node)
        continue;
      stored.note = fmt::format("{}; this is the first value that it stores wrongly itself, by {}",
                                kVanishes, bisection.group(v));
      break;
    }
    return stored;
  }
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
    TRY(Report inside, compare_exposed(bisection, inner, inputs, options));
    if (!inside.ok) return inside;
    outside.note = fmt::format("inside of {} it goes away when inner values are stored",
                               bisection.group(boundary));
    return outside;
  }
  return outside;
}

}  // namespace obelisk::verify
