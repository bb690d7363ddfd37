#include "passes/passes.h"

namespace obelisk::passes {
namespace {

/// A pass that takes whatever there is: it has nothing to remark.
auto silent(Result<graph::Graph> (*pass)(graph::Graph)) {
  return [pass](graph::Graph graph, Remarks*) { return pass(std::move(graph)); };
}

}  // namespace

std::vector<Pass> table(const Options& options) {
  const auto precise = [precision = options.precision](graph::Graph graph, Remarks* remarks) {
    return convert_precision(std::move(graph), precision, remarks);
  };
  return {
      {"fold_constants", "what is known is computed now, within bounds", fold_constants},
      {"spread_uniform_weights", "a product with weights of one number is computed once and spread",
       spread_uniform_weights},
      {"merge_equal", "what is computed twice is computed once", merge_equal},
      {"simplify_algebra", "what changes nothing goes, what is done twice is done once",
       simplify_algebra},
      {"raise_layer_norm", "normalisations told in parts become one op", raise_layer_norm},
      {"raise_activations", "activations told in parts become one op", raise_activations},
      {"raise_softmax", "a softmax told in parts becomes one op", raise_softmax},
      {"raise_rotary", "rotary embeddings told in parts become one op", raise_rotary},
      {"raise_attention", "attention told in parts becomes one op", raise_attention},
      {"raise_masked_softmax", "a mask goes into the softmax whose scores it is applied to",
       raise_masked_softmax},
      {"sink_transposes", "transposes go through elementwise ops to where they cancel or merge",
       sink_transposes},
      {"merge_qkv", "products of one input with several weights become one", merge_qkv},
      {"merge_gates", "a gate and what it gates become halves of one product", merge_gates},
      {"fold_batch_norm", "scales and shifts of channels go into weights and biases",
       fold_batch_norm},
      {"convert_precision", "all arithmetic in the type that --precision asks for", precise},
      {"expand", "composite ops are told in simpler ones, which fuse", silent(expand)},
      {"stage_conv_inputs",
       "a convolution's row-major input gets a copy that may be stored channels-last",
      silent(stage_conv_inputs)},
      {"copy_early_pieces", "what a concatenation takes from long ago gets a copy of its own",
       silent(copy_early_pieces)},
      {"remove_dead", "nodes that no output needs are removed, values are renumbered",
       silent(remove_dead)},
  };
}

}  // namespace obelisk::passes
