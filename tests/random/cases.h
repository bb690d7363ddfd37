/// tests/random/cases.h — random graphs as cases: what a seed means, its answers, and whether
/// others are those.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "compile.h"
#include "graph/graph.h"

namespace obelisk::random_graphs {

/// Five to forty steps, or at most so many, a third to nearly all of them moves; every eighth of
/// larger values, as tiles of products want; an eighth in 16 bits.
inline graph::RandomOptions options_of(uint64_t seed, int most_steps) {
  graph::Random random(seed * 0x9e3779b97f4a7c15 + 1);
  graph::RandomOptions options;
  options.nodes = static_cast<int>(random.between(5, 12));
  if (random.chance(25)) options.nodes = static_cast<int>(random.between(12, 40));
  options.nodes = std::min(options.nodes, most_steps);
  options.moves = static_cast<int>(random.between(30, 85));
  options.elements = random.chance(12) ? 20000 : random.chance(30) ? 400 : 2000;
  options.dtype = random.chance(12) ? DType::f16 : random.chance(4) ? DType::bf16 : DType::f32;
  return options;
}

struct Case {
  uint64_t seed = 0;
  graph::Graph graph;
  std::vector<Tensor> inputs, other_inputs;  // the others leave other numbers in memory
  std::vector<Tensor> wanted;                // in f64
  std::string failed;                        // the graph itself, or the reference
};

inline Case case_of(graph::Graph graph, uint64_t seed) {
  Case made{.seed = seed, .graph = std::move(graph)};
  made.inputs = graph::random_inputs(made.graph, seed),
  made.other_inputs = graph::random_inputs(made.graph, seed + 1);
  if (const Status sound = graph::verify(made.graph); !sound.ok())
    return made.failed = sound.error().text(), made;
  auto wanted = graph::interpret(made.graph, made.inputs, {.exact = true});
  if (!wanted.ok()) return made.failed = wanted.error().text(), made;
  made.wanted = std::move(*wanted);
  return made;
}

/// Graphs side by side as one, whose inputs and outputs stand in the order of the graphs.
inline graph::Graph together(std::span<const Case> cases) {
  graph::Graph all;
  all.name = fmt::format("random {} and {} more", cases[0].seed, cases.size() - 1);
  for (const Case& one : cases) {
    const graph::Graph& graph = one.graph;
    std::map<graph::ValueId, graph::ValueId> made{{graph::kNone, graph::kNone}};
    const auto named = [&](const std::string& name) {
      return fmt::format("{}/{}", one.seed, name);
    };
    const auto before = static_cast<int>(all.inputs().size());
    for (const graph::ValueId id : graph.inputs())
      made[id] = all.add_input(named(graph.value(id).name), graph.type(id));
    for (const graph::NodeId id : graph.order()) {
      const graph::Node& node = graph.node(id);
      std::vector<graph::ValueId> inputs;
      for (const graph::ValueId input : node.inputs) {
        if (!made.count(input)) made[input] = all.add_constant(graph.value(input).constant);
        inputs.push_back(made[input]);
      }
      const auto added = all.add_node(node.op, inputs, node.attrs, named(node.name),
                                      static_cast<int>(node.outputs.size()));
      CHECK(added.ok(), "{}", added.error().text());
      for (size_t k = 0; k < node.outputs.size(); ++k)
        made[node.outputs[k]] = all.node(*added).outputs[k];
    }
    for (size_t k = 0; k < graph.outputs().size(); ++k)
      all.mark_output(
          made[graph.outputs()[k]], named(graph.output_names()[k]),
          graph.in_place_of(k) == graph::kNone ? graph::kNone : before + graph.in_place_of(k));
  }
  return all;
}

/// What is wrong with these answers; empty: nothing. Beyond a fixed tolerance they may be off by
/// what the reference itself is when it computes in the graph's types, 16 times: sums in another
/// order are. Where that overflows nothing is compared.
inline std::string difference(const Case& one, std::span<const Tensor> got) {
  constexpr double kFactor = 16;
  std::vector<ops::Tolerance> allowed;
  for (const Tensor& tensor : got)
    allowed.push_back(tensor.dtype() == DType::bf16  ? ops::Tolerance{3e-2, 5e-2}
                      : tensor.dtype() == DType::f16 ? ops::Tolerance{4e-3, 1e-2}
                                                     : ops::Tolerance{1e-4, 1e-3});
  const graph::Comparison same = graph::compare(got, one.wanted, allowed);
  if (same.ok) return "";
  const auto rounded = graph::interpret(one.graph, one.inputs, {.sums = ops::Sums::kFloat});
  if (!rounded.ok()) return rounded.error().text();
  for (size_t k = 0; k < one.wanted.size() && k < allowed.size(); ++k) {
    const Tensor &near = (*rounded)[k], &wanted = one.wanted[k];
    double error = 0;
    for (int64_t e = 0; e < wanted.count() && is_float(wanted.dtype()); ++e) {
      const double off = std::fabs(near.get_double(e) - wanted.get_double(e));
      error = std::isfinite(off) ? std::max(error, off) : INFINITY;
      if (error == INFINITY) break;
    }
    allowed[k].absolute += kFactor * error;
  }
  const graph::Comparison again = graph::compare(got, one.wanted, allowed);
  return again.ok ? "" : again.text();
}

/// What a program leaves in its outputs when it ran with other inputs before: nothing of that may
/// be read again. The error's text, or empty.
inline std::string run(const runtime::Executable& executable, const Case& one,
                       std::vector<Tensor>& outputs, int threads = 1) {
  auto context = executable.context(threads);
  if (!context.ok()) return context.error().text();
  outputs.clear();
  std::vector<void*> out;
  for (const runtime::Port& port : executable.program().outputs) {
    outputs.push_back(Tensor::allocate(port.type));
    out.push_back(outputs.back().mutable_data());
  }
  for (const auto* inputs : {&one.other_inputs, &one.inputs}) {
    std::vector<const void*> in;
    for (const Tensor& tensor : *inputs) in.push_back(tensor.data());
    for (Tensor& output : outputs)
      memset(output.mutable_data(), 0xa5, static_cast<size_t>(output.bytes()));
    if (const Status ran = (*context)->run(in, out); !ran.ok()) return ran.error().text();
  }
  return "";
}

}  // namespace obelisk::random_graphs
