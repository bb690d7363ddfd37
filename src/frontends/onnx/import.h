/// frontends/onnx/import.h — a model and its bindings become a graph with static shapes.
///
///   in   Model (any operator set), shapes for symbolic dimensions, values for inputs that shapes
///        depend on
///   out  graph::Graph in the newest spelling of every op; functions inlined, control flow
///        unrolled, constants folded
///
/// Weights are not copied. Small constants (kFoldElements) are folded as the walk goes, so that
/// shapes become known.
/// Errors  kUsage       bindings that are missing or contradict the model
///         kBadModel    the model contradicts itself: the node's name and why
///         kUnsupported nodes that cannot be run; ImportReport lists all of them, not only the
///         first
///         kMemory      shapes, or unrolled control flow, beyond any reason
#pragma once

#include <map>
#include <string>
#include <vector>

#include "frontends/onnx/model.h"
#include "graph/graph.h"

namespace obelisk::frontends {

struct ImportOptions {
  std::map<std::string, Shape> input_shapes;   // by input name
  std::map<std::string, int64_t> dimensions;   // by name of a symbolic dimension
  std::map<std::string, Tensor> bound_inputs;  // inputs that become constants
  std::map<std::string, std::string>
      in_place;  // by output: the input whose memory it takes (graph::Graph::mark_output)
  int64_t max_nodes = 1 << 18;    // after inlining and unrolling
  int64_t max_iterations = 4096;  // of one Loop or Scan
  double fold_flops = 4e9;        // for all of the folding
  int64_t fold_bytes = int64_t{1} << 30;
};

/// A node that this version cannot run, as reported to the user: fields of `obelisk check --json`.
struct Unsupported {
  std::string node, op, domain;
  int64_t opset = 0;                       // of its domain; 0: not a node
  std::vector<std::string> inputs;         // their names, as the model has them
  std::vector<std::string> types, shapes;  // of its inputs: "f32", "[1,128]", "?" if unknown
  std::string reason, hint;
  int64_t root = -1;  // of the model's own nodes: the one that it is, or stands in
};

struct ImportReport {
  std::vector<Unsupported> unsupported;  // root causes only, in the order of the model
};

Result<graph::Graph> import_onnx(const onnx::Model& model, const ImportOptions& options = {},
                                 ImportReport* report = nullptr);

/// "NAME=2x128" binds the shape of an input, "batch=2" a dimension; a NAME of both kinds is an
/// input when it has an `x` or when the model has such an input. "NAME=" is a scalar. Errors:
/// kUsage.
Status bind_shape(const onnx::Model& model, std::string_view text, ImportOptions& options);

}  // namespace obelisk::frontends
