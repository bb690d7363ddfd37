/// passes/passes.h — the door of `passes`: graph to graph, one table of passes in the order in
/// which they run, and one of those that fit a graph to a machine (machine_passes.h).
///
/// A pass is one word: its file, its function, its row here, its `--disable=` flag and its `.ir`
/// cases. Each leaves a graph that graph::verify accepts and that means the same.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "passes/convert_precision.h"
#include "passes/copy_early_pieces.h"
#include "passes/expand.h"
#include "passes/expand_for_machine.h"
#include "passes/fold_batch_norm.h"
#include "passes/fold_constants.h"
#include "passes/fold_norms.h"
#include "passes/fold_pads.h"
#include "passes/hoist_row_moves.h"
#include "passes/machine_passes.h"
#include "passes/merge_conv_groups.h"
#include "passes/merge_equal.h"
#include "passes/merge_gates.h"
#include "passes/merge_qkv.h"
#include "passes/pad_channels.h"
#include "passes/patch_products.h"
#include "passes/raise_activations.h"
#include "passes/raise_attention.h"
#include "passes/raise_axis_update.h"
#include "passes/raise_layer_norm.h"
#include "passes/raise_masked_softmax.h"
#include "passes/raise_rotary.h"
#include "passes/raise_softmax.h"
#include "passes/remarks.h"
#include "passes/remove_dead.h"
#include "passes/simplify_algebra.h"
#include "passes/sink_transposes.h"
#include "passes/slice_pools.h"
#include "passes/split_batches.h"
#include "passes/split_products.h"
#include "passes/split_reductions.h"
#include "passes/spread_uniform_weights.h"
#include "passes/stage_conv_inputs.h"

namespace obelisk::passes {

struct Pass {
  std::string_view name;
  std::string_view summary;  // for --help and the manual
  std::function<Result<graph::Graph>(graph::Graph, Remarks*)> step;
  bool idle = false;                           // of this machine and strategy: it has nothing to do
  std::string_view heading = "left as it is";  // of its remarks

  /// `remarks`, if not null: what was left although it nearly matched, and why.
  Result<graph::Graph> run(graph::Graph graph, Remarks* remarks = nullptr) const {
    return step(std::move(graph), remarks);
  }
};

struct Options {
  Precision precision = Precision::kKeep;
};

/// In order. Every one of them may be left out.
std::vector<Pass> table(const Options& options = {});

}  // namespace obelisk::passes
