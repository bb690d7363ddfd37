/// passes/convert_precision.h — all arithmetic in one float type; the ports keep the model's.
///
///   in   Graph   x f32 → MatMul(w f32) → Softmax → y f32
///   out  Graph   x f32 → Cast f16 → MatMul(w f16) → Cast f32 → Softmax → y f32      with kFp16
///
/// Every value of type f64, f32, f16 or bf16 is computed in f32 (kFp32; kTf32, of which the graph
/// says no more: the tiles that round their operands are marked later), or in 16 bits where
/// precision_rules.h allows and in f32 elsewhere. Integers, booleans and floats of 8 bits stay what
/// they are. The user's own casts between float types go.
///
///   constants    are converted here. A constant that 16 bits cannot hold decides for its op: huge
///                ones that are added or selected (masks such as -3.4e38) become half of the type's
///                largest value, so that a score added to them is still finite and no row of a
///                softmax becomes NaN; where all that reads the sum reads f32 (a softmax, the mask
///                of an attention) it stays in f32 with its mask, so that scores vanish in it as
///                they do in f32. Bounds become the largest value; infinities stay. Any other huge
///                or tiny one (an epsilon of 1e-12) keeps its op in f32.
///   f32 remains  for what follows ops in f32 until a 16-bit value joins it; for quotients,
///                squares, sums of many; for numbers that count: what comes from integers, and what
///                leads to Sin, Floor, indices. Such values keep f64 if they had it.
///   casts        are `loose`: a value that stays inside a body is not rounded, only what is stored
///                is.
///
/// Stands   after the passes that look for patterns and fold weights, in the model's own precision;
///          before `expand`, for which normalisations and recurrences of 16 bits are composite ops
///          that compute in f32.
/// Errors   none: an op that does not support the type keeps the one that it had.
/// Cost     O(nodes + elements of constants).
#pragma once

#include "graph/graph.h"
#include "passes/remarks.h"

namespace obelisk::passes {

enum class Precision : uint8_t { kKeep, kFp32, kTf32, kFp16, kBf16 };
/// "keep", "fp32", "tf32", "fp16", "bf16"
std::optional<Precision> parse_precision(std::string_view name);
std::string_view to_string(Precision precision);
/// The type that most values get; nothing for kKeep.
std::optional<DType> dtype_of(Precision precision);

Result<graph::Graph> convert_precision(graph::Graph graph, Precision precision,
                                       Remarks* remarks = nullptr);

}  // namespace obelisk::passes
