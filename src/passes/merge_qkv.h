/// passes/merge_qkv.h — products of one input with several weights become one product.
///
///   MatMul(x, Wq) + bq,  MatMul(x, Wk) + bk,  MatMul(x, Wv) + bv
///       →  Split(MatMul(x, [Wq Wk Wv]) + [bq bk bv])
///
/// What     MatMul and plain Gemm, constant matrices of one type, transposed alike; a constant bias
/// of
///          one number a column may be missing in some. The parts are views of the one result.
/// Not      those whose results are operands of one elementwise op: a gate and what it gates are
/// merged by
///          merge_gates, whose halves one task computes; of others the op is the epilogue of the
///          second product.
/// Stands   after raise_attention, which takes scales off the products; before fold_batch_norm.
/// Errors   none.    Cost  O(nodes), and a copy of the weights.
#pragma once

#include "graph/graph.h"
#include "passes/remarks.h"

namespace obelisk::passes {

Result<graph::Graph> merge_qkv(graph::Graph graph, Remarks* remarks = nullptr);

}  // namespace obelisk::passes
