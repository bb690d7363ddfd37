/// passes/raise_attention.h — attention that exporters decompose becomes one op again.
///
///   MatMul(Softmax(MatMul(Q, Kᵗ) * scale + mask), V)   →   Attention(Q, K, V, mask)
///
/// Scale    uniform factors before or after the first product, on Q, on K or on both, under moves.
/// Mask     anything added that broadcasts to the scores; Where with -inf or a number below -10000;
///          several of them; scaled ones; tanh caps. A constant triangle becomes is_causal.
/// Heads    any leading axes that flatten to [batch, heads]; keys and values repeated for groups of
///          heads (Expand, Tile, Gather, or a product that broadcasts) are read unrepeated.
/// Form     [batch, length, heads * size] where Q, K and V are split into heads and the answer is
///          joined again; else [batch, heads, length, size]. A cache stays a Concat before it.
/// Guard    Where(IsNaN(weights), 0, weights), by which exporters get zeros for rows with all keys
///          masked, is dropped: the op gives zeros by itself (ops/attention.h). Where there is no
///          guard, such rows stay NaN, as softmax makes them.
/// Stands   after simplify_algebra (moves are few there), before merge_qkv.
/// Differs  the parts round f16 and bf16 at each step, the op at the end. What a finite mask
///          forbids weighs nothing, unless its row's scores are as low. Of a NaN in Q or K
///          the guarded parts make zeros; the op's answer is NaN, as that of PyTorch, whose
///          exporters write the guard. Weights with another reader, and products with constant keys
///          or values, stay.
/// Errors   none.    Cost  O(nodes).
#pragma once

#include "graph/graph.h"
#include "passes/remarks.h"

namespace obelisk::passes {

Result<graph::Graph> raise_attention(graph::Graph graph, Remarks* remarks = nullptr);

}  // namespace obelisk::passes
