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
      {"raise_axis_update", "an update of an input along one axis, in its place, is one op",
       raise_axis_update},
      {"fold_constants", "what is known is computed now, within bounds", fold_constants},
      {"spread_uniform_weights", "a product with weights of one number is computed once and spread",
       spread_uniform_weights},
      {"merge_equal", "what is computed twice is computed once", merge_equal},
      {"simplify_algebra", "what changes nothing goes, what is done twice is done once",
       simplify_algebra},
      {"slice_pools", "a pool whose windows are single elements is a slice with steps",
       silent(slice_pools)},
      {"fold_pads", "zeros around the input of a convolution or an average pool are its padding",
       silent(fold_pads)},
      {"raise_layer_norm", "decomposed normalisations become one op", raise_layer_norm},
      {"raise_activations", "decomposed activations become one op", raise_activations},
      {"raise_softmax", "a decomposed softmax becomes one op", raise_softmax},
      {"raise_rotary", "decomposed rotary embeddings become one op", raise_rotary},
      {"raise_attention", "decomposed attention becomes one op", raise_attention},
      {"raise_masked_softmax", "a mask goes into the softmax whose scores it is applied to",
       raise_masked_softmax},
      {"sink_transposes", "transposes go through elementwise ops to where they cancel or merge",
       sink_transposes},
      {"hoist_row_moves", "moves of whole rows behind a norm go before it",
       silent(hoist_row_moves)},
      {"merge_qkv", "products of one input with several weights become one", merge_qkv},
      {"merge_gates", "a gate and what it gates become halves of one product", merge_gates},
      {"fold_batch_norm", "scales and shifts of channels go into weights and biases",
       fold_batch_norm},
      {"convert_precision", "all arithmetic in the type that --precision names", precise},
      {"expand", "composite ops are decomposed into simpler ones, which fuse", silent(expand)},
      {"stage_conv_inputs",
       "a convolution's row-major input gets a copy that may be stored channels-last",
       silent(stage_conv_inputs)},
      {"copy_early_pieces", "what a concatenation takes from long ago gets a copy of its own",
       silent(copy_early_pieces)},
      {"remove_dead", "nodes that no output needs are removed, values are renumbered",
       silent(remove_dead)},
  };
}

std::vector<Pass> machine_passes(const OfTiles& tiles) {
  const auto as_it_is = [](graph::Graph graph, Remarks*) {
    return Result<graph::Graph>(std::move(graph));
  };
  using Step = std::function<Result<graph::Graph>(graph::Graph, Remarks*)>;
  const auto asking = [&](bool has, Step step) -> Step {
    if (has) return step;
    return as_it_is;
  };
  const bool statistics = tiles.gives_statistics != nullptr, whole = tiles.takes_whole != nullptr,
             patches = tiles.streams_patches != nullptr, pads = tiles.wanted_channels != nullptr;
  const bool reductions = tiles.reduction_parts != nullptr, products = tiles.split_k != nullptr,
             batches = tiles.first_of_batch != nullptr, groups = tiles.conv_groups != nullptr,
             excites = tiles.has_excite_blocks && whole, places = tiles.placeable != nullptr,
             halves = tiles.dual_gemm_pays != nullptr,
             rotary = tiles.has_epilogues && !tiles.batch_invariant;
  return {
      {"unflatten_gemm", "a Gemm is a MatMul of the rows as they were, and an Add",
       asking(tiles.has_epilogues,
              [](graph::Graph graph, Remarks*) { return unflatten_gemm(std::move(graph)); }),
       !tiles.has_epilogues},
      {"hoist_halves", "the halves of a gated linear unit are cut before its bias",
       asking(halves,
              [tiles](graph::Graph graph, Remarks*) {
                return hoist_halves(std::move(graph), tiles.dual_gemm_pays);
              }),
       !halves},
      {"hoist_maps", "elementwise ops behind moves go before them, into epilogues",
       asking(tiles.has_epilogues,
              [](graph::Graph graph, Remarks*) { return hoist_maps(std::move(graph)); }),
       !tiles.has_epilogues},
      {"merge_rotary_norms", "a rotary embedding behind a norm of heads reads what the norm reads",
       asking(rotary,
              [](graph::Graph graph, Remarks*) { return merge_rotary_norms(std::move(graph)); }),
       !rotary},
      {"fold_norms", "a norm before a product with constant weights goes through it",
       asking(statistics,
              [tiles](graph::Graph graph, Remarks* remarks) {
                return fold_norms(std::move(graph), tiles.gives_statistics, tiles.in_planes,
                                  remarks);
              }),
       !statistics},
      {"raise_squeeze_excite", "the ops of a squeeze-and-excitation block become one",
       asking(excites,
              [tiles](graph::Graph graph, Remarks*) {
                return raise_squeeze_excite(std::move(graph), tiles.takes_whole);
              }),
       !excites},
      {"expand_for_machine",
       "what no tile of the machine takes whole is decomposed into simpler ops",
       asking(whole,
              [tiles](graph::Graph graph, Remarks* remarks) {
                return expand_for_machine(std::move(graph), tiles.takes_whole, remarks);
              }),
       !whole, "asked of the machine"},
      {"sink_concatenations", "elementwise ops behind a concatenation go before it",
       asking(tiles.has_epilogues,
              [](graph::Graph graph, Remarks*) { return sink_concatenations(std::move(graph)); }),
       !tiles.has_epilogues},
      {"fold_channel_moves", "a 1x1 convolution of moved channels reads them where they are",
       asking(tiles.has_epilogues,
              [](graph::Graph graph, Remarks*) { return fold_channel_moves(std::move(graph)); }),
       !tiles.has_epilogues},
      {"patch_products", "a convolution whose kernel steps by its own size is a product",
       asking(patches,
              [tiles](graph::Graph graph, Remarks*) {
                return patch_products(std::move(graph), tiles.streams_patches);
              }),
       !patches},
      {"merge_conv_groups", "narrow groups of a convolution become wider ones, with zeros",
       asking(groups,
              [tiles](graph::Graph graph, Remarks*) {
                return merge_conv_groups(std::move(graph), tiles.conv_groups);
              }),
       !groups},
      {"pad_channels", "convolutions between convolutions have channels in whole vectors",
       asking(pads,
              [tiles](graph::Graph graph, Remarks*) {
                return pad_channels(std::move(graph), tiles.wanted_channels);
              }),
       !pads},
      {"split_reductions", "a reduction that few workers would share is made of parts",
       asking(reductions,
              [tiles](graph::Graph graph, Remarks*) {
                return split_reductions(std::move(graph), tiles.reduction_parts,
                                        tiles.channels_last);
              }),
       !reductions},
      {"split_products", "a product with a long sum and few columns is made of parts",
       asking(products,
              [tiles](graph::Graph graph, Remarks*) {
                return split_products(std::move(graph), tiles.split_k, tiles.product_stays_whole,
                                      tiles.batch_invariant);
              }),
       !products},
      {"split_batches", "a batch of products is split where its last round of tiles is small",
       asking(batches,
              [tiles](graph::Graph graph, Remarks*) {
                return split_batches(std::move(graph), tiles.first_of_batch);
              }),
       !batches},
      {"copy_ready_pieces",
       "what has no place in a concatenation is copied before its last operand is there",
       asking(places,
              [tiles](graph::Graph graph, Remarks*) {
                return copy_ready_pieces(std::move(graph), tiles.placeable);
              }),
       !places},
  };
}

}  // namespace obelisk::passes
