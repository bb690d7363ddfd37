/// passes/merge_rotary_norms.h — a rotary embedding behind a norm of heads reads what the norm
/// reads, so that one kernel computes both.
///
///   in   %2 = x * r * g          r: 1 / root mean square of a head, g: the norm's scale
///        %3 = RotaryEmbedding(%2, cos, sin)
///   out  %3 = (x * A + swapped x * B) * r
///        A = [cos g0, cos g1],  B = [-sin g1, sin g0],  of both halves of a head
///
/// What     Norms of queries and keys, as of Qwen3: r is one number a head of a token, so turning
///          pairs and scaling by it may change places, and a pair's other half is an element of x,
///          which is stored, and not of what the norm gives, which would have to be.
/// Needs    x [1, heads, length, size], not interleaved, all elements of a head turned; constant
///          scale and angles, with tables A and B of up to 131,072 elements; nothing else that
///          reads the norm.
/// Not      batch-invariant programs: of larger batches the roundings are others.
/// Stands   after `expand`, which decomposes such norms; for machines with epilogues.
/// Errors   none.    Cost  O(nodes + elements of A and B), f32.
#pragma once

#include "graph/graph.h"

namespace obelisk::passes {

Result<graph::Graph> merge_rotary_norms(graph::Graph graph);

}  // namespace obelisk::passes
