// obelisk verify: the machine's answers beside the reference's (or another runtime's), and the first node that is off.
#include "peer.h"
#include "runner.h"

namespace obelisk::cli {
namespace {

/// Programs of the graph after the passes, with whatever more outputs are asked for.
Result<verify::Report> bisect_program(const Flags& flags, const compiler::Compilation& made) {
  TRY(compiler::Options options, options_from(flags));
  options.verify = false;
  for (const passes::Pass& pass : passes::table()) options.disabled.insert(std::string(pass.name));
  const auto stored = [&](graph::ValueId v) { return made.plan.layouts[v].materialized; };
  verify::Bisection bisection{.graph = made.graph};
  for (const stitch::Group& group : made.plan.groups)
    for (graph::NodeId node : group.nodes)
      for (graph::ValueId v : made.graph.node(node).outputs)
        if (stored(v)) bisection.boundaries.push_back(v);
  bisection.inside = [&](graph::ValueId boundary) {
    std::vector<graph::ValueId> inner;
    for (const stitch::Group& group : made.plan.groups) {
      bool here = false;
      for (graph::NodeId node : group.nodes)
        for (graph::ValueId v : made.graph.node(node).outputs) here |= v == boundary;
      if (!here) continue;
      for (graph::NodeId node : group.nodes)
        for (graph::ValueId v : made.graph.node(node).outputs)
          if (!stored(v)) inner.push_back(v);
    }
    return inner;
  };
  bisection.compile = [&](const graph::Graph& graph) -> Result<std::shared_ptr<const runtime::Executable>> {
    compiler::Network network;
    network.graph = graph;
    compiler::Compilation again;
    TRY_STATUS(compiler::compile(network, options, again));
    return again.executable;
  };
  return verify::bisect(bisection, options.verification);
}

/// What the program computes in where its judge does not: a compiled file carries the graph that it computes.
std::optional<DType> arithmetic(const Flags& flags, const Source& source) {
  if (source.kind == FileKind::kCompiled && !source.network.graph) return std::nullopt;
  return passes::dtype_of(*passes::parse_precision(flags.precision));
}

}  // namespace

int verify(const Flags& flags, bool bisect) {
  const std::string& against = flags.against;
  Flags portable = flags;
  portable.portable = bisect;  // needs the graph and a plan
  auto source = open_source(portable);
  if (!source.ok()) return fail(flags, source.error());
  frontends::ImportReport report;
  auto runner = make_runner(flags, *source, report);
  if (!runner.ok()) return fail(flags, runner.error(), &report);
  if ((*runner)->target == "reference") return fail(flags, Error{Code::kUsage, "cli", "the interpreter is the reference itself", "", "leave --target out"});
  auto graph = graph_of(**runner, *source);
  if (!graph.ok()) return fail(flags, graph.error());
  verify::Report result;
  if (bisect) {
    auto found = bisect_program(flags, (*runner)->compilation);
    if (!found.ok()) return fail(flags, found.error());
    result = *found;
  } else {
    auto in = feeds(flags, *source, (*runner)->inputs, [&]() -> Result<graph::Graph> { return *graph; });
    if (!in.ok()) return fail(flags, in.error());
    std::vector<Tensor> got = (*runner)->allocate_outputs();
    if (Status status = (*runner)->run(*in, got); !status.ok()) return fail(flags, status.error());
    Result<std::vector<Tensor>> wanted = Error{};
    if (against == "onnxruntime") {
      wanted = peer_answers(flags, *source, **runner, *in);
    } else {
      verify::Options how;
      how.interrupted = interrupted;
      wanted = verify::reference(*graph, *in, how);
    }
    if (!wanted.ok()) return fail(flags, wanted.error());
    result = verify::compare_outputs(*graph, got, *wanted, arithmetic(flags, *source));
    if (!against.empty()) result.against = against;
  }
  Json json = {{"ok", result.ok}, {"against", result.against}, {"max_abs", result.max_abs}, {"max_rel", result.max_rel}, {"tolerance", result.tolerance}};
  if (result.bad)
    json["first"] = {{"value", result.bad->output}, {"node", result.bad->node}, {"op", result.bad->op}, {"coordinate", result.bad->coordinate},
                     {"got", result.bad->got}, {"wanted", result.bad->wanted}, {"allowed", result.bad->allowed}};
  answer(flags, json, (result.ok ? "ok: " : "") + result.text() + "\n");
  if (result.ok) return 0;
  Flags to_people = flags;
  to_people.json = false;
  return fail(to_people, result.error());
}

}  // namespace obelisk::cli
