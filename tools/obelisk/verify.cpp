// obelisk verify: the machine's answers beside the reference's (or another runtime's), and the
// first node that is off.
#include <algorithm>

#include "peer.h"
#include "runner.h"

namespace obelisk::cli {
namespace {

/// Programs of the graph after the passes, with whatever more outputs are asked for.
Result<verify::Report> bisect_program(const Flags& flags, const compiler::Compilation& made) {
  TRY(compiler::Options options, options_from(flags));
  options.verify = false;
  options.passes.precision = made.precision;
  if (made.precision == passes::Precision::kTf32)  // the graph's types say the rest
    options.verification.precision = made.precision;
  for (const passes::Pass& pass : passes::table()) options.disabled.insert(std::string(pass.name));
  const auto stored = [&](graph::ValueId v) { return made.plan.layouts[v].materialized; };
  verify::Bisection bisection{.graph = made.graph};
  bisection.program = made.executable;
  bisection.imported = &made.imported, bisection.precision = made.precision;
  passes::Options pass_options;
  pass_options.precision = made.precision;
  for (const passes::Pass& pass : passes::table(pass_options)) {
    const std::string name(pass.name);
    const bool left_out =
        std::find(flags.disabled.begin(), flags.disabled.end(), name) != flags.disabled.end();
    if (!left_out) bisection.passes.push_back(pass);
  }
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
  bisection.compile =
      [&](const graph::Graph& graph) -> Result<std::shared_ptr<const runtime::Executable>> {
    compiler::Network network;
    network.graph = graph;
    compiler::Compilation again;
    TRY_STATUS(compiler::compile(network, options, again));
    return again.executable;
  };
  bisection.stored = [&](std::span<const Tensor> in) -> Result<std::map<graph::ValueId, Tensor>> {
    TRY(const compiler::Unshared unshared, compiler::unshare(made, options));
    TRY(const auto outputs, verify::run(*unshared.executable, in, options.threads));
    return compiler::stored_values(made, unshared, outputs);
  };
  bisection.group = [&](graph::ValueId value) {
    std::vector<std::string> names;
    for (const stitch::Group& group : made.plan.groups) {
      bool here = false;
      for (graph::NodeId node : group.nodes)
        for (graph::ValueId v : made.graph.node(node).outputs) here |= v == value;
      if (!here) continue;
      for (graph::NodeId node : group.nodes) {
        const std::string& name = made.graph.node(node).name;
        names.push_back(
            fmt::format("'{}'", name.empty() ? ops::to_string(made.graph.node(node).op) : name));
      }
    }
    return names.empty() ? std::string("no group")
                         : fmt::format("the group of {}", fmt::join(names, ", "));
  };
  return verify::bisect(bisection, options.verification);
}

/// What the program computes in where its judge does not: a compiled file carries the graph that it
/// computes.
passes::Precision arithmetic(const Flags& flags, const Source& source) {
  const bool carried = source.kind == FileKind::kCompiled && flags.precision == "keep";
  const auto precision =
      *passes::parse_precision(carried ? source.compiled.program->precision : flags.precision);
  // Its types say the rest.
  if (carried && precision != passes::Precision::kTf32) return passes::Precision::kKeep;
  return precision;
}

/// The runner's answers for given or generated inputs, judged by the reference or by ONNX Runtime.
Result<verify::Report> compare_answers(const Flags& flags, const Source& source, Runner& runner,
                                       const graph::Graph& graph) {
  TRY(const auto in,
      feeds(flags, source, runner.inputs, [&]() -> Result<graph::Graph> { return graph; }));
  std::vector<Tensor> got = runner.allocate_outputs();
  TRY_STATUS(runner.run(in, got));
  verify::Options how;
  how.interrupted = interrupted;
  how.precision = arithmetic(flags, source);
  TRY(verify::Reference known, verify::reference(graph, in, how));
  if (flags.against == "onnxruntime") {
    TRY(known.wanted, peer_answers(flags, source, runner, in));
  }
  TRY(verify::Report result, verify::compare_outputs(graph, got, known, how.precision));
  if (!flags.against.empty()) result.against = flags.against;
  return result;
}

/// A compiled file whose graph compiles to right code may still carry wrong code.
Result<verify::Report> compare_carried(const Flags& flags, const graph::Graph& graph) {
  TRY(const Source source, open_source(flags));
  frontends::ImportReport report;
  TRY(const auto runner, make_runner(flags, source, report));
  return compare_answers(flags, source, *runner, graph);
}

}  // namespace

int verify(const Flags& flags, bool bisect) {
  Flags portable = flags;
  portable.portable = bisect;  // needs the graph and a plan
  auto source = open_source(portable);
  if (!source.ok()) return fail(flags, source.error());
  frontends::ImportReport report;
  auto runner = make_runner(flags, *source, report);
  if (!runner.ok()) return fail(flags, runner.error(), &report);
  if ((*runner)->target == "reference")
    return fail(flags, Error{Code::kUsage, "cli", "the interpreter is the reference itself", "",
                             "leave --target out"});
  auto graph = graph_of(**runner, *source);
  if (!graph.ok()) return fail(flags, graph.error());
  auto found = bisect ? bisect_program(flags, (*runner)->compilation)
                      : compare_answers(flags, *source, **runner, *graph);
  bool carried = false;
  if (bisect && found.ok() && found->ok && source->kind == FileKind::kCompiled) {
    found = compare_carried(flags, *graph);
    carried = found.ok() && !found->ok;
  }
  if (!found.ok()) return fail(flags, found.error());
  const verify::Report& result = *found;
  Json json = {
      {"ok", result.ok},           {"against", result.against},     {"max_abs", result.max_abs},
      {"max_rel", result.max_rel}, {"tolerance", result.tolerance}, {"rounding", result.rounding},
      {"rows", result.rows}};
  if (!result.note.empty()) json["note"] = result.note;
  if (result.bad)
    json["first"] = {{"value", result.bad->output},   {"node", result.bad->node},
                     {"op", result.bad->op},          {"coordinate", result.bad->coordinate},
                     {"got", result.bad->got},        {"wanted", result.bad->wanted},
                     {"allowed", result.bad->allowed}};
  answer(flags, json,
         (!result.ok            ? ""
          : result.rows.empty() ? "not verified: "
                                : "ok: ") +
             result.text() + "\n");
  if (result.ok) return 0;
  Flags to_people = flags;
  to_people.json = false;
  Error error = result.error();
  if (carried)
    error.hint =
        "compiled again from the graph inside it is right, so the file's machine code is wrong: "
        "compile it again";
  return fail(to_people, error);
}

}  // namespace obelisk::cli
