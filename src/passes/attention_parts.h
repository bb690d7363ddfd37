/// passes/attention_parts.h — what raise_attention finds in a graph before it changes anything.
#pragma once

#include <optional>
#include <vector>

#include "graph/graph.h"
#include "passes/remarks.h"

namespace obelisk::passes {

/// One thing that happens to scores between their product and the softmax.
struct ScoreMask {
  graph::ValueId value;  // what is added, or the condition
  bool is_condition;     // true: Where
  bool allows;           // a condition that allows where it is true, or where it is false
  double fill;           // of a condition: what forbidden scores become
  double factor;         // of what is added
  Shape frame;           // leading axes of the scores there
};

/// softmax(cap * tanh(Q Kt * scale / cap), masks in order) V, as it stands.
struct AttentionParts {
  graph::ValueId q, kt, v;       // inputs of the products
  double scale = 1, cap = 0;     // cap 0: none
  std::vector<ScoreMask> masks;  // the first one is applied first
  bool guarded = false;          // weights that are NaN become 0
};

/// From the second product, or nothing, and why where weights of a softmax are multiplied.
std::optional<AttentionParts> attention_parts(const graph::Graph& graph, graph::NodeId product,
                                              Reason& why);

/// The heads of one attention: leading axes flattened to [batch, heads].
struct AttentionHeads {
  int64_t batch, heads, kv_heads;
};
std::optional<AttentionHeads> attention_heads(const graph::Graph& graph,
                                              const AttentionParts& parts, const Shape& answer);

/// Where `frame` splits into batch and heads; nothing when it does not.
std::optional<size_t> split_of(const Shape& frame, const AttentionHeads& heads);

/// All axes but the last two.
Shape leading(const Shape& shape);

/// Padded with ones in front to this rank.
Shape padded(Shape shape, size_t rank);

}  // namespace obelisk::passes
