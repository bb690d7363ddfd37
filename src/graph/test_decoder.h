/// graph/test_decoder.h — one token of a small decoder, for tests of programs of few rows
/// (schedule/dataflow.h): in each layer a norm, queries, keys and values of one product, a cache
/// that grows by a row, attention, a gate, residuals.
#pragma once

#include <cmath>
#include <random>

#include "graph/graph.h"

namespace obelisk::graph {

struct DecoderSizes {
  int64_t width = 512, heads = 8, size = 64, keys = 320, inner = 1024, layers = 2;
  DType past = DType::f32;  // of the keys and values that are given: f32 or the decoder's own
  int64_t words = 0;        // of a last product behind a norm; 0: none
  bool gives_keys = false;  // all keys of the first layer are an output, too
  bool gives_sum = false;   // the sum behind its attention is one
  /// The cache has all keys and is an output in place: the new row is put to "position" (i64[1]),
  /// and keys behind it are masked. `past` is the decoder's own type.
  bool fixed_cache = false;
  bool places_differ = false;  // then: a position for each head
};

/// Inputs: x [1, 1, width] and of each layer past keys and values [1, heads, keys - 1, size], of a
/// fixed cache [1, heads, keys, size] behind "position"; output "y" [1, 1, width or words] is the
/// last.
inline Graph decoder_step(DType type, const DecoderSizes& sizes = {}) {
  std::mt19937 random(11);
  std::normal_distribution<double> normal(0, 1);
  Graph graph;
  const auto constant = [&](Shape shape, double scale, double shift = 0) {
    Tensor tensor = Tensor::allocate({type, shape});
    for (int64_t k = 0; k < tensor.count(); ++k)
      tensor.set_double(k, shift + normal(random) * scale);
    return graph.add_constant(std::move(tensor));
  };
  const auto ints = [&](std::vector<int64_t> values) {
    return graph.add_constant(tensor_of(values));
  };
  const auto product = [&](ValueId a, int64_t depth, int64_t columns) {
    return graph.must_add(
        ops::Op::MatMul,
        {a, constant({depth, columns}, 1 / std::sqrt(static_cast<double>(depth)))});
  };
  const auto cast = [&](ValueId v, DType to) {
    return graph.must_add(ops::Op::Cast, {v}, ops::Attrs().set("to", ops::number_of_dtype(to)));
  };
  const auto norm = [&](ValueId v) {
    const ValueId wide = cast(v, DType::f32);
    const ValueId mean = graph.must_add(ops::Op::ReduceMean,
                                        {graph.must_add(ops::Op::Mul, {wide, wide}), ints({-1})},
                                        ops::Attrs().set("keepdims", int64_t{1}));
    const ValueId root = graph.must_add(
        ops::Op::Sqrt,
        {graph.must_add(ops::Op::Add,
                        {mean, graph.add_constant(tensor_of(DType::f32, {}, {1e-5}))})});
    return graph.must_add(ops::Op::Mul, {cast(graph.must_add(ops::Op::Div, {wide, root}), type),
                                         constant({sizes.width}, 0.2, 1)});
  };
  const int64_t all = sizes.heads * sizes.size;
  ValueId x = graph.add_input("x", {type, {1, 1, sizes.width}});
  ValueId place = kNone, mask = kNone;
  if (sizes.fixed_cache) {
    const Shape rows{1, sizes.heads, 1, sizes.size};
    place = graph.add_input("position", {DType::i64, Shape{sizes.places_differ ? sizes.heads : 1}});
    std::vector<int64_t> places(static_cast<size_t>(sizes.keys));
    for (size_t k = 0; k < places.size(); ++k) places[k] = static_cast<int64_t>(k);
    const ValueId last = graph.must_add(ops::Op::ReduceMax, {place, ints({0})});
    mask = graph.must_add(
        ops::Op::Reshape,
        {graph.must_add(ops::Op::LessOrEqual, {ints(places), last}), ints({1, 1, 1, sizes.keys})});
    if (sizes.places_differ)
      place = graph.must_add(ops::Op::Reshape, {place, ints({1, sizes.heads, 1, 1})});
    place = graph.must_add(ops::Op::Expand, {place, ints(rows)});
  }
  for (int64_t layer = 0; layer < sizes.layers; ++layer) {
    const ValueId qkv = graph.must_add(
        ops::Op::Reshape,
        {product(norm(x), sizes.width, 3 * all), ints({1, 3 * sizes.heads, 1, sizes.size})});
    const auto parts =
        graph.add_node(ops::Op::Split, {qkv, ints({sizes.heads, sizes.heads, sizes.heads})},
                       ops::Attrs().set("axis", int64_t{1}), "", 3);
    std::vector<ValueId> operands{graph.must_add(ops::Op::Neg, {graph.node(*parts).outputs[0]})};
    for (int which = 1; which <= 2; ++which) {
      ValueId added = graph.node(*parts).outputs[which];
      if (which == 1) added = graph.must_add(ops::Op::Tanh, {added});
      const std::string name = (which == 1 ? "keys" : "values") + std::to_string(layer);
      if (sizes.fixed_cache) {
        const int cache = static_cast<int>(graph.inputs().size());
        const ValueId past =
            graph.add_input(name, {type, {1, sizes.heads, sizes.keys, sizes.size}});
        operands.push_back(graph.must_add(ops::Op::ScatterElements, {past, place, added},
                                          ops::Attrs().set("axis", int64_t{2})));
        graph.mark_output(operands.back(), "new_" + name, cache);
        continue;
      }
      const ValueId past =
          graph.add_input(name, {sizes.past, {1, sizes.heads, sizes.keys - 1, sizes.size}});
      operands.push_back(graph.must_add(ops::Op::Concat,
                                        {sizes.past == type ? past : cast(past, type), added},
                                        ops::Attrs().set("axis", int64_t{2})));
      if (which == 1 && layer == 0 && sizes.gives_keys)
        graph.mark_output(operands.back(), "all_keys");
    }
    if (mask != kNone) operands.push_back(mask);
    const ValueId seen =
        graph.must_add(ops::Op::Attention, std::move(operands), ops::Attrs().set("scale", 0.125));
    x = graph.must_add(ops::Op::Add,
                       {x, product(graph.must_add(ops::Op::Reshape, {seen, ints({1, 1, all})}), all,
                                   sizes.width)});
    if (layer == 0 && sizes.gives_sum) graph.mark_output(x, "attended");
    const ValueId inner = norm(x);
    const ValueId gate = graph.must_add(ops::Op::Swish, {product(inner, sizes.width, sizes.inner)});
    x = graph.must_add(
        ops::Op::Add,
        {x, product(graph.must_add(ops::Op::Mul, {gate, product(inner, sizes.width, sizes.inner)}),
                    sizes.inner, sizes.width)});
  }
  if (sizes.words > 0) x = product(norm(x), sizes.width, sizes.words);
  graph.mark_output(x, "y");
  return graph;
}

}  // namespace obelisk::graph
