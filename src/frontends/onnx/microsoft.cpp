// Ops of the domain com.microsoft: what ONNX Runtime's optimiser and its model builders write,
// spelled in standard ops.
#include "frontends/onnx/handlers.h"

namespace obelisk::frontends::onnx {
namespace {

Item gelu(Site& site, const Item& x, bool tanh) {
  return site.emit("Gelu", {x}, ops::Attrs().set("approximate", tanh ? "tanh" : "none"));
}

void import_gelu(Site& site) { site.finish(gelu(site, site.in(0), false)); }

void import_fast_gelu(Site& site) {
  const Item x = site.has(1) ? site.emit("Add", {site.in(0), site.in(1)}) : site.in(0);
  site.finish(gelu(site, x, true));
}

void import_bias_gelu(Site& site) {
  site.finish(gelu(site, site.emit("Add", {site.in(0), site.in(1)}), false));
}

/// x * sigmoid(alpha * x)
void import_quick_gelu(Site& site) {
  site.finish(site.emit("Swish", {site.in(0)},
                        ops::Attrs().set("alpha", site.attrs.get_float("alpha", 1.702))));
}

void import_bias_add(Site& site) {
  site.finish(site.emit("Add", {site.emit("Add", {site.in(0), site.in(1)}), site.in(2)}));
}

ops::Attrs norm_attrs(Site& site, double epsilon) {
  return ops::Attrs()
      .set("axis", site.attrs.get_int("axis", -1))
      .set("epsilon", site.attrs.get_float("epsilon", epsilon));
}

void import_simplified_layer_norm(Site& site) {
  if (site.wanted() > 1) return site.refuse("output 1, the inverse deviation, is not supported");
  site.finish(site.emit("RMSNormalization", {site.in(0), site.in(1)}, norm_attrs(site, 1e-5)));
}

/// (input, skip, gamma, beta?, bias?) → norm(input + skip + bias), –, –, input + skip + bias
void skip_norm(Site& site, const char* op, int bias, Items parameters) {
  if (site.wants(1) || site.wants(2))
    return site.refuse("the statistics (outputs 1 and 2) are not supported");
  if (!site.in(0).is_tensor() || !site.in(1).is_tensor())
    return site.contradict("inputs are missing");
  Item sum = site.emit("Add", {site.in(0), site.in(1)});
  if (site.has(bias)) sum = site.emit("Add", {sum, site.in(bias)});
  Items inputs{sum};
  inputs.insert(inputs.end(), parameters.begin(), parameters.end());
  site.outputs = {site.emit(op, inputs, norm_attrs(site, 1e-12)), {}, {}, sum};
}

void import_skip_layer_norm(Site& site) {
  skip_norm(site, "LayerNormalization", 4, {site.in(2), site.in(3)});
}

void import_skip_simplified_layer_norm(Site& site) {
  skip_norm(site, "RMSNormalization", 3, {site.in(2)});
}

Item last_two_swapped(Site& site, const Item& item) {
  std::vector<int64_t> order(item.type.rank());
  for (size_t axis = 0; axis < order.size(); ++axis) order[axis] = static_cast<int64_t>(axis);
  if (order.size() >= 2) std::swap(order[order.size() - 1], order[order.size() - 2]);
  return site.transpose(item, order);
}

void import_fused_matmul(Site& site) {
  if (site.attrs.get_int("transBatchA", 0) != 0 || site.attrs.get_int("transBatchB", 0) != 0)
    return site.refuse("transBatchA and transBatchB are not supported");
  const Item a =
      site.attrs.get_int("transA", 0) != 0 ? last_two_swapped(site, site.in(0)) : site.in(0);
  const Item b =
      site.attrs.get_int("transB", 0) != 0 ? last_two_swapped(site, site.in(1)) : site.in(1);
  const Item product = site.emit("MatMul", {a, b});
  const double alpha = site.attrs.get_float("alpha", 1);
  if (alpha == 1) return site.finish(product);
  site.finish(site.emit("Mul", {product, site.scalar(product.type.dtype, alpha)}));
}

/// [B, S, heads * size] → [B, heads, S, size]
Item heads_apart(Site& site, const Item& item, int64_t heads) {
  const Shape& shape = item.type.shape;
  return site.transpose(site.reshape(item, {shape[0], shape[1], heads, shape[2] / heads}),
                        {0, 2, 1, 3});
}

/// Self-attention with its projection: (input [B,S,E], weights [E,3H], bias [3H]) and no mask, past
/// or relative position.
void import_fused_attention(Site& site) {
  for (int input = 3; input < static_cast<int>(site.inputs.size()); ++input)
    if (site.has(input))
      return site.refuse(fmt::format("input {} (a mask or a past) is not supported", input));
  if (site.wanted() > 1) return site.refuse("the present (output 1) is not supported");
  const int64_t heads = site.attrs.get_int("num_heads", 0);
  if (!site.in(0).is_tensor() || site.rank(0) != 3 || !site.in(1).is_tensor() || site.rank(1) != 2)
    return site.contradict("it takes an input of rank 3 and weights of rank 2");
  const int64_t hidden = site.shape(1)[1] / 3;
  if (heads <= 0 || hidden % heads != 0)
    return site.contradict(fmt::format("{} columns do not make {} heads", hidden, heads));
  if (site.attrs.has("qkv_hidden_sizes")) return site.refuse("qkv_hidden_sizes is not supported");
  Item all = site.emit("MatMul", {site.in(0), site.in(1)});
  if (site.has(2)) all = site.emit("Add", {all, site.in(2)});
  const Items parts =
      site.emit("Split", {all}, ops::Attrs().set("axis", 2).set("num_outputs", 3), 3);
  if (!site.ok()) return;
  Items inputs;
  for (const Item& part : parts) inputs.push_back(heads_apart(site, part, heads));
  ops::Attrs attrs;
  attrs.set("is_causal", site.attrs.get_int("unidirectional", 0));
  if (site.attrs.has("scale")) attrs.set("scale", site.attrs.get_float("scale", 1));
  const Item answer = site.emit("Attention", inputs, attrs);
  site.finish(site.reshape(site.transpose(answer, {0, 2, 1, 3}),
                           {site.shape(0)[0], site.shape(0)[1], hidden}));
}

/// (input [B,H,S,D] or [B,S,H*D], position_ids, cos_cache, sin_cache) → the standard op, which
/// takes caches first.
void import_rotary_embedding(Site& site) {
  if (!site.in(0).is_tensor() || !site.in(1).is_tensor())
    return site.contradict("inputs are missing");
  const Shape& shape = site.shape(0);
  if (shape.size() < 3) return site.contradict("its input has rank below 3");
  const int64_t batch = shape[0], length = shape.size() == 4 ? shape[2] : shape[1];
  Item positions = site.in(1);
  if (positions.type.count() == 1) {  // a single offset: positions offset, offset + 1, ...
    const auto number = [&](int64_t value) { return Item::of(tensor_of({value}).reshaped({})); };
    const Item steps = site.emit("Range", {number(0), number(length), number(1)});
    const Item row =
        site.emit("Add", {site.reshape(positions, {1, 1}), site.reshape(steps, {1, length})});
    positions = site.expand(row, {batch, length});
  }
  ops::Attrs attrs;
  attrs.set("interleaved", site.attrs.get_int("interleaved", 0));
  attrs.set("num_heads", site.attrs.get_int("num_heads", 0));
  attrs.set("rotary_embedding_dim", site.attrs.get_int("rotary_embedding_dim", 0));
  site.finish(site.emit("RotaryEmbedding", {site.in(0), site.in(2), site.in(3), positions}, attrs));
}

}  // namespace

Handler find_microsoft_handler(std::string_view op) {
  static const std::map<std::string_view, Handler> table = {
      {"Gelu", import_gelu},
      {"FastGelu", import_fast_gelu},
      {"BiasGelu", import_bias_gelu},
      {"QuickGelu", import_quick_gelu},
      {"BiasAdd", import_bias_add},
      {"SimplifiedLayerNormalization", import_simplified_layer_norm},
      {"SkipLayerNormalization", import_skip_layer_norm},
      {"SkipSimplifiedLayerNormalization", import_skip_simplified_layer_norm},
      {"FusedMatMul", import_fused_matmul},
      {"Attention", import_fused_attention},
      {"MultiHeadAttention", import_multi_head_attention},
      {"GroupQueryAttention", import_group_query_attention},
      {"RotaryEmbedding", import_rotary_embedding},
  };
  const auto found = table.find(op);
  return found == table.end() ? nullptr : found->second;
}

}  // namespace obelisk::frontends::onnx
