/// passes/rewrite.h — what passes that replace values have in common: the names of a graph's parts,
/// looking at constants, replacing values.
#pragma once

#include <optional>

#include "graph/graph.h"
#include "passes/remarks.h"

namespace obelisk::passes {

using graph::Graph;
using graph::kNone;
using graph::Node;
using graph::NodeId;
using graph::ValueId;
using ops::Attrs;
using ops::Op;

/// Every reader of `from` reads `to` instead, which takes over the user's name if it has none.
/// False, and nothing changes, where `from` is an output of the graph and `to` an input, a constant
/// or an output already: an answer stays a value of its own.
bool replace_value(Graph& graph, ValueId from, ValueId to);

/// A value's tensor where it is a constant, else nullptr. A node's input may be one that it lacks.
const Tensor* constant(const Graph& graph, ValueId id);
const Tensor* constant_input(const Graph& graph, const Node& node, size_t input);
/// A new constant without axes.
ValueId scalar(Graph& graph, DType dtype, double value);

/// The one value that all elements of a constant have: +0 and -0 differ, NaN and constants without
/// elements have none.
std::optional<double> uniform_value(const Graph& graph, ValueId id);

/// A constant operand of an elementwise op, for elements [from, to) of the op's axis that is the
/// `from_end`-th from the end, the last being 1: cut where the constant has that axis.
ValueId part_of_operand(Graph& graph, ValueId operand, int64_t from_end, int64_t from, int64_t to);

/// Of a Pad whose pads are constants: how many elements it puts before each axis, [rank], then how
/// many behind each, [rank]. Empty where they are not known.
std::vector<int64_t> pads_by_axis(const Graph& graph, const Node& pad);

/// The same of a Pad that puts zeros; empty for other pads, too.
std::vector<int64_t> zeros_around(const Graph& graph, const Node& pad);

/// Read by one node and not an answer: this value may vanish into its reader.
bool has_one_reader(const Graph& graph, ValueId id);

/// Ops whose element depends on the same element of each input, whatever axis it lies on.
bool is_elementwise(const Node& node);

/// Conv, ConvTranspose, MatMul or Gemm.
bool is_product(Op op);

/// The product or convolution whose epilogue gives `value`, or could; else kNone.
NodeId product_behind(const Graph& graph, ValueId value);

/// By value: how many ops lie before it that are neither elementwise nor moves, on the longest way.
std::vector<int> stages_of(const Graph& graph);

/// Orders, drops what is not read and renumbers: how passes that add nodes end. Remarks about what
/// is dropped go too.
Graph tidy(Graph graph, Remarks* remarks = nullptr);

}  // namespace obelisk::passes
